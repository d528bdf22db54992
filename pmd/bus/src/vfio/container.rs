//! Containers and groups: what the kernel gives before it gives a function.
//!
//! A container is one IOMMU domain. Groups are opened into it when their first function is, and
//! given back when their last function goes. Whoever holds a mapping holds the container, so that
//! memory is never freed while the IOMMU still shows it.

use super::ioctl::{self, Answer};
use super::sysfs::Sysfs;
use crate::{BusError, DmaDomain, DmaLimits, DmaSpace, Iova};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::Mode;
use pollux_mempool::Window;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use vfio_bindings::bindings::vfio;

/// `VFIO_TYPE1v2_IOMMU`: whole mappings are unmapped, never parts.
const TYPE1V2: u32 = 3;

/// Where neither the kernel nor its module says how many mappings there may be.
const MAPPINGS: usize = 65_535;

/// One IOMMU domain, for the functions that are opened into it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Container {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fd: Arc<OwnedFd>,
    sysfs: Sysfs,
    state: Mutex<State>,
    claims: Claims,
}

/// The functions that somebody has. The kernel gives a function of a group that is open as often as
/// it is asked, and two drivers on one function would wreck each other.
#[derive(Clone, Debug, Default)]
struct Claims(Arc<Mutex<HashSet<String>>>);

impl Claims {
    fn of(&self, address: &str) -> Result<Claim, BusError> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.insert(address.to_owned()) {
            return Err(BusError::InUse {
                name: address.to_owned(),
            });
        }
        Ok(Claim {
            claims: self.clone(),
            address: address.to_owned(),
        })
    }
}

/// One function is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Claims,
    address: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut taken = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.address);
    }
}

#[derive(Debug, Default)]
struct State {
    groups: HashMap<u32, Weak<Group>>,
    /// Made with the first group, as the kernel does.
    domain: Option<Arc<DmaDomain>>,
}

/// An open group; given back with its last function.
#[derive(Debug)]
pub(super) struct Group {
    fd: OwnedFd,
    // Behind the group, which leaves the container when it is closed.
    _container: Arc<OwnedFd>,
}

impl Group {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a character device of VFIO.
fn open_device(path: &str, remedy: &'static str) -> Result<OwnedFd, BusError> {
    open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| BusError::Vfio {
        what: format!("opening {path}"),
        source: errno.into(),
        remedy: match errno {
            Errno::EACCES | Errno::EPERM => {
                "give this user the file (chown, or a udev rule), or run as root"
            }
            Errno::EBUSY => "another process, or another container of this one, has the group; end that one first",
            _ => remedy,
        },
    })
}

impl Container {
    /// A container without groups.
    ///
    /// # Errors
    /// [`BusError::Vfio`] when `/dev/vfio/vfio` cannot be opened or offers no IOMMU of type 1.
    pub fn new() -> Result<Self, BusError> {
        let fd = open_device("/dev/vfio/vfio", "load the modules: modprobe vfio-pci")?;
        let version = ioctl::with_number(fd.as_fd(), ioctl::GET_API_VERSION, 0);
        let has_type1 = ioctl::with_number(fd.as_fd(), ioctl::CHECK_EXTENSION, TYPE1V2);
        if version != Ok(vfio::VFIO_API_VERSION as i32) || has_type1 != Ok(1) {
            return Err(BusError::Vfio {
                what: format!(
                    "asking /dev/vfio/vfio for API version 0 with an IOMMU of type 1 (version 2); it says {version:?} and {has_type1:?}"
                ),
                source: Errno::ENOTSUP.into(),
                remedy: "load vfio_iommu_type1, and switch the IOMMU on (VT-d or AMD-Vi in the BIOS, intel_iommu=on)",
            });
        }
        Ok(Self {
            inner: Arc::new(Inner {
                fd: Arc::new(fd),
                sysfs: Sysfs::default(),
                state: Mutex::default(),
                claims: Claims::default(),
            }),
        })
    }

    pub(super) fn sysfs(&self) -> &Sysfs {
        &self.inner.sysfs
    }

    /// Takes a function for one driver of this container; of any other container the kernel keeps
    /// its whole group away.
    pub(super) fn claim(&self, address: &str) -> Result<Claim, BusError> {
        self.inner.claims.of(address)
    }

    /// The group with this number, and the domain that it is in now.
    pub(super) fn join(&self, number: u32) -> Result<(Arc<Group>, Arc<DmaDomain>), BusError> {
        let inner = &self.inner;
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let there = state.groups.get(&number).and_then(Weak::upgrade);
        if let (Some(group), Some(domain)) = (there, &state.domain) {
            return Ok((group, Arc::clone(domain)));
        }
        let path = format!("/dev/vfio/{number}");
        let fd = open_device(&path, "bind every function of the group to vfio-pci")?;
        let mut status = vfio::vfio_group_status::default();
        let failed = |what: String, remedy| {
            move |errno: Errno| BusError::Vfio {
                what,
                source: errno.into(),
                remedy,
            }
        };
        ioctl::with(fd.as_fd(), ioctl::GROUP_GET_STATUS, &mut status).map_err(failed(
            format!("asking group {number} for its state"),
            "see the kernel's log",
        ))?;
        if status.flags & vfio::VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(BusError::GroupNotViable {
                group: number,
                culprits: inner.sysfs.culprits(number).join(", "),
            });
        }
        ioctl::set_container(fd.as_fd(), inner.fd.as_fd()).map_err(failed(
            format!("putting group {number} into the container"),
            "the group's IOMMU may differ from that of the groups in it: use a container of its own",
        ))?;
        let group = Arc::new(Group {
            fd,
            _container: Arc::clone(&inner.fd),
        });
        // A container from which all groups have gone has lost its IOMMU, and its mappings.
        let alone = state.groups.values().all(|group| group.strong_count() == 0);
        let domain = match (&state.domain, alone) {
            (Some(domain), false) => Arc::clone(domain),
            _ => {
                ioctl::with_number(inner.fd.as_fd(), ioctl::SET_IOMMU, TYPE1V2).map_err(failed(
                    format!("giving group {number} an IOMMU of type 1"),
                    "where interrupts are not remapped: modprobe vfio_iommu_type1 allow_unsafe_interrupts=1",
                ))?;
                let limits = limits(inner.fd.as_fd(), &inner.sysfs, number)?;
                DmaDomain::new(Box::new(Space {
                    fd: Arc::clone(&inner.fd),
                    limits,
                }))
            }
        };
        state.groups.retain(|_, group| group.strong_count() > 0);
        state.groups.insert(number, Arc::downgrade(&group));
        state.domain = Some(Arc::clone(&domain));
        Ok((group, domain))
    }
}

/// What the IOMMU accepts, as the kernel says.
fn limits(fd: BorrowedFd<'_>, sysfs: &Sysfs, group: u32) -> Result<DmaLimits, BusError> {
    let answer = Answer::iommu(fd).map_err(|errno| BusError::Vfio {
        what: "asking the container for what its IOMMU accepts".to_owned(),
        source: errno.into(),
        remedy: "see the kernel's log",
    })?;
    let flags = answer.u32(4).unwrap_or(0);
    let page_sizes = match flags & vfio::VFIO_IOMMU_INFO_PGSIZES != 0 {
        true => answer.u64(8).unwrap_or(0),
        false => 0,
    };
    let chained = flags & vfio::VFIO_IOMMU_INFO_CAPS != 0;
    let capability = |id| answer.capability(id).filter(|_| chained);
    let ranges = capability(vfio::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
        .and_then(|at| answer.pairs(at))
        .filter(|ranges| !ranges.is_empty());
    let (address_bits, reserved) = match ranges {
        Some(ranges) => usable(ranges),
        // A kernel before 5.4: the narrowest IOMMU there is, around what sysfs names.
        None => (
            39,
            sysfs.reserved(group).into_iter().map(half_open).collect(),
        ),
    };
    let available = capability(vfio::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)
        .and_then(|at| answer.u32(at + 8))
        .map(|count| count as usize);
    Ok(DmaLimits {
        address_bits,
        reserved,
        page_sizes: if page_sizes == 0 { 0x1000 } else { page_sizes },
        max_mappings: available
            .or_else(|| sysfs.mapping_limit())
            .unwrap_or(MAPPINGS),
    })
}

/// From ends that are inclusive.
fn half_open((first, last): (u64, u64)) -> Range<u64> {
    first..last.saturating_add(1)
}

/// Address width and forbidden ranges of a space in which only these ranges may be used.
fn usable(mut ranges: Vec<(u64, u64)>) -> (u32, Vec<Range<u64>>) {
    ranges.sort_unstable();
    let last = ranges.iter().map(|&(_, last)| last).max().unwrap_or(0);
    let bits = u64::BITS - last.leading_zeros();
    let mut reserved = Vec::new();
    let mut next = 0;
    for (first, last) in ranges {
        if first > next {
            reserved.push(next..first);
        }
        next = next.max(last.saturating_add(1));
    }
    let ceiling = 1u64.checked_shl(bits).unwrap_or(u64::MAX);
    if next < ceiling {
        reserved.push(next..ceiling);
    }
    (bits, reserved)
}

/// A container's mappings.
struct Space {
    fd: Arc<OwnedFd>,
    limits: DmaLimits,
}

impl DmaSpace for Space {
    fn limits(&self) -> DmaLimits {
        self.limits.clone()
    }

    fn map(&self, iova: Iova, memory: &Window) -> Result<(), BusError> {
        let mut argument = vfio::vfio_iommu_type1_dma_map {
            flags: vfio::VFIO_DMA_MAP_FLAG_READ | vfio::VFIO_DMA_MAP_FLAG_WRITE,
            vaddr: (memory.segment().address() + memory.segment_offset()) as u64,
            iova: iova.0,
            size: memory.len() as u64,
            ..Default::default()
        };
        let refused = |errno| match errno {
            Errno::ENOSPC => BusError::MapLimit {
                limit: self.limits.max_mappings,
            },
            Errno::EEXIST => BusError::Overlap {
                iova,
                len: memory.len() as u64,
            },
            Errno::ENOMEM => BusError::LockedMemory {
                len: memory.len() as u64,
                limit: getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft),
            },
            errno => BusError::Vfio {
                what: format!("mapping {:#x} bytes at device address {iova}", memory.len()),
                source: errno.into(),
                remedy: "see the kernel's log",
            },
        };
        ioctl::with(self.fd.as_fd(), ioctl::IOMMU_MAP_DMA, &mut argument).map_err(refused)
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        match ioctl::unmap_dma(self.fd.as_fd(), iova.0, len) {
            // The kernel unmaps what it finds and says how much that was.
            Ok(unmapped) if unmapped == len => Ok(()),
            Ok(_) => Err(BusError::NotMapped { iova, len }),
            Err(errno) => Err(BusError::Vfio {
                what: format!("unmapping {len:#x} bytes at device address {iova}"),
                source: errno.into(),
                remedy: "the memory stays mapped until the process ends",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_usable_ranges_is_reserved() {
        let vtd = vec![(0xfef0_0000, 0x7f_ffff_ffff), (0, 0xfedf_ffff)];
        let window = 0xfee0_0000..0xfef0_0000;
        assert_eq!(usable(vtd), (39, Vec::from([window])));
        // A width that is no power of two keeps its top forbidden.
        let odd = vec![(0x1000, 0x2_ffff)];
        assert_eq!(usable(odd), (18, vec![0..0x1000, 0x3_0000..0x4_0000]));
        assert_eq!(usable(vec![(0, u64::MAX)]), (64, vec![]));
    }

    #[test]
    fn a_function_is_given_once_until_it_comes_back() {
        let claims = Claims::default();
        let first = claims.of("0000:81:00.0").unwrap();
        let other = claims.of("0000:81:00.1").unwrap();
        for _ in 0..2 {
            let refused = claims.of("0000:81:00.0").unwrap_err();
            assert!(matches!(&refused, BusError::InUse { name } if name == "0000:81:00.0"));
        }
        drop(first);
        claims.of("0000:81:00.0").unwrap();
        claims.of("0000:81:00.0").unwrap();
        assert!(claims.of("0000:81:00.1").is_err());
        drop(other);
        claims.of("0000:81:00.1").unwrap();
    }

    #[test]
    fn an_absent_device_file_says_what_to_do() {
        let error = open_device("/dev/vfio/no-such-group", "bind it")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/dev/vfio/no-such-group"), "{error}");
        assert!(error.ends_with("bind it"), "{error}");
    }
}
