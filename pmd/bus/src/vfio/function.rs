//! One PCI function that vfio-pci has given us.

use super::config::ConfigSpace;
use super::container::{Claim, Container, Group};
use super::ioctl::{self, Answer};
use super::sysfs::PciFunction;
use crate::local::register_window;
use crate::{BusError, DmaDomain, Function, Identity, Interrupt, MappedWindow, Registers, Trap};
use nix::errno::Errno;
use pollux_mempool::Segment;
use pollux_mempool::page::system_page_size;
use std::any::Any;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use vfio_bindings::bindings::vfio;

/// Nobody has made an mlx5 adapter with a larger BAR 0.
const MAX_REGION: u64 = 1 << 32;

/// Loads and stores that the kernel does for us, where pages cannot be mapped.
struct Kernel {
    device: File,
    offset: u64,
    _group: Arc<Group>,
}

impl Trap for Kernel {
    fn load(&self, offset: u64, bytes: &mut [u8]) {
        if self
            .device
            .read_exact_at(bytes, self.offset + offset)
            .is_err()
        {
            // As from a card that was pulled.
            bytes.fill(0xff);
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        // A store on a bus is not answered either.
        drop(self.device.write_all_at(bytes, self.offset + offset));
    }
}

pub(super) struct VfioFunction {
    identity: Identity,
    size: u64,
    windows: Vec<MappedWindow>,
    trap: Arc<dyn Trap>,
    vectors: usize,
    resettable: bool,
    config: ConfigSpace,
    removal: Option<Interrupt>,
    // Interrupts are switched one set at a time.
    interrupts: Mutex<()>,
    domain: Arc<DmaDomain>,
    // Closed in this order: the kernel stops the device before its group is free.
    device: OwnedFd,
    _group: Arc<Group>,
    _claim: Claim,
}

fn failed(what: String, remedy: &'static str) -> impl FnOnce(Errno) -> BusError {
    move |errno| BusError::Vfio {
        what,
        source: errno.into(),
        remedy,
    }
}

impl VfioFunction {
    /// Takes the function out of its group; memory decoding is on, bus mastering is not.
    pub(super) fn open(
        container: &Container,
        pci: &PciFunction,
        token: Option<&str>,
    ) -> Result<Self, BusError> {
        let address = &pci.address;
        let number = pci.openable()?;
        let claim = container.claim(address)?;
        let (group, domain) = container.join(number)?;
        let name = match token {
            Some(token) => format!("{address} vf_token={token}"),
            None => address.clone(),
        };
        let name = CString::new(name).map_err(|_| {
            failed(format!("naming {address}"), "leave zero bytes out")(Errno::EINVAL)
        })?;
        let device = ioctl::device_fd(group.fd(), &name).map_err(|errno| {
            failed(
                format!("taking {address} out of group {number}"),
                match errno {
                    Errno::EACCES => "a virtual function needs vf_token=UUID, that of its physical function's owner",
                    Errno::EBUSY => "another process has it; end that one first",
                    _ => "see the kernel's log",
                },
            )(errno)
        })?;
        Self::take(pci, device, group, domain, claim)
    }

    fn take(
        pci: &PciFunction,
        device: OwnedFd,
        group: Arc<Group>,
        domain: Arc<DmaDomain>,
        claim: Claim,
    ) -> Result<Self, BusError> {
        let address = &pci.address;
        let mut info = vfio::vfio_device_info::default();
        ioctl::with(device.as_fd(), ioctl::DEVICE_GET_INFO, &mut info).map_err(failed(
            format!("asking what {address} is"),
            "see the kernel's log",
        ))?;
        let (offset, size, windows) = registers(address, device.as_fd(), &group)?;
        let config = ConfigSpace::of(address, &device)?;
        config.enable_memory()?;
        let duplicate = device.try_clone().map_err(|source| BusError::Os {
            what: "dup",
            source,
        })?;
        let removal = removal(device.as_fd())?;
        Ok(Self {
            identity: Identity {
                name: address.clone(),
                vendor: pci.vendor,
                device: pci.device,
                emulated: pci.subsystem == super::EMULATED_SUBSYSTEM,
                node: pci.node,
            },
            size,
            windows,
            trap: Arc::new(Kernel {
                device: duplicate.into(),
                offset,
                _group: Arc::clone(&group),
            }),
            vectors: vectors(device.as_fd(), vfio::VFIO_PCI_MSIX_IRQ_INDEX)?,
            resettable: info.flags & vfio::VFIO_DEVICE_FLAGS_RESET != 0,
            config,
            removal,
            interrupts: Mutex::new(()),
            domain,
            device,
            _group: group,
            _claim: claim,
        })
    }

    fn join(&self, interrupts: &[Interrupt]) -> Result<(), BusError> {
        let _guard = self
            .interrupts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let fds: Vec<BorrowedFd<'_>> = interrupts.iter().map(AsFd::as_fd).collect();
        ioctl::set_irqs(self.device.as_fd(), vfio::VFIO_PCI_MSIX_IRQ_INDEX, &fds).map_err(failed(
            format!(
                "joining {} interrupt vectors of {}",
                fds.len(),
                self.identity.name
            ),
            "fewer vectors may be had; see the kernel's log",
        ))
    }
}

/// BAR 0: its place in the descriptor, its size, and the parts that are memory. Who holds such a
/// part holds the group: for the kernel a mapped page keeps the device open, and so the group, which
/// could be had again by nobody, were it not by us.
fn registers(
    address: &str,
    device: BorrowedFd<'_>,
    group: &Arc<Group>,
) -> Result<(u64, u64, Vec<MappedWindow>), BusError> {
    let answer = Answer::region(device, vfio::VFIO_PCI_BAR0_REGION_INDEX).map_err(failed(
        format!("asking for the registers of {address}"),
        "see the kernel's log",
    ))?;
    let field = |at| answer.u64(at).unwrap_or(0);
    let (flags, size, offset) = (answer.u32(4).unwrap_or(0), field(16), field(24));
    if size == 0 || size > MAX_REGION {
        return Err(BusError::Vfio {
            what: format!("BAR 0 of {address} has {size:#x} bytes"),
            source: Errno::ENODEV.into(),
            remedy: "this is no mlx5 adapter, or its memory was not assigned (check lspci -v, and the BIOS setting for large BARs)",
        });
    }
    let page = system_page_size() as u64;
    let areas = match answer.capability(vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
        _ if flags & vfio::VFIO_REGION_INFO_FLAG_MMAP == 0 => Vec::new(),
        Some(at) if flags & vfio::VFIO_REGION_INFO_FLAG_CAPS != 0 => {
            answer.pairs(at).unwrap_or_default()
        }
        _ => vec![(0, size)],
    };
    let windows = areas
        .into_iter()
        .filter(|&(at, len)| {
            let inside = at.checked_add(len).is_some_and(|end| end <= size);
            inside && len != 0 && at % page == 0 && len % page == 0
        })
        .map(|(at, len)| {
            let fd = device.try_clone_to_owned();
            let fd = fd.map_err(|source| BusError::Os {
                what: "dup",
                source,
            })?;
            let owner: Arc<dyn Any + Send + Sync> = Arc::<Group>::clone(group);
            let memory = Segment::from_owned_fd(fd, offset + at, len as usize, Some(owner))?;
            let memory = memory.whole();
            Ok(MappedWindow { offset: at, memory })
        })
        .collect::<Result<_, BusError>>()?;
    Ok((offset, size, windows))
}

/// Number of vectors of a kind of interrupt.
fn vectors(device: BorrowedFd<'_>, index: u32) -> Result<usize, BusError> {
    let mut info = vfio::vfio_irq_info {
        index,
        ..Default::default()
    };
    ioctl::with(device, ioctl::DEVICE_GET_IRQ_INFO, &mut info).map_err(failed(
        "asking for interrupt vectors".to_owned(),
        "see the kernel's log",
    ))?;
    Ok(info.count as usize)
}

/// The kernel's wish to have the function back: it is being unbound, or pulled.
fn removal(device: BorrowedFd<'_>) -> Result<Option<Interrupt>, BusError> {
    let index = vfio::VFIO_PCI_REQ_IRQ_INDEX;
    // Kernels before 4.0 have no such interrupt, and then there is nothing to listen to.
    if !matches!(vectors(device, index), Ok(1)) {
        return Ok(None);
    }
    let interrupt = Interrupt::new()?;
    ioctl::set_irqs(device, index, &[interrupt.as_fd()]).map_err(failed(
        "listening to the kernel's wish to have the function back".to_owned(),
        "see the kernel's log",
    ))?;
    Ok(Some(interrupt))
}

impl Function for VfioFunction {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn register_size(&self) -> u64 {
        self.size
    }

    fn registers(&self, offset: u64, len: u64) -> Result<Registers, BusError> {
        let window = register_window(&self.windows, &self.trap, self.size, offset, len)?;
        if window.is_mapped() {
            // The kernel maps a page when it is touched. Here, so that no lcore's first doorbell
            // is a page fault.
            let page = system_page_size() as u64;
            for at in (0..window.len() / 4 * 4).step_by(page as usize) {
                window.load_u32(at)?;
            }
        }
        Ok(window)
    }

    fn domain(&self) -> &Arc<DmaDomain> {
        &self.domain
    }

    fn vectors(&self) -> usize {
        self.vectors
    }

    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError> {
        let interrupts = Interrupt::several(count, self.vectors)?;
        self.join(&interrupts)?;
        Ok(interrupts)
    }

    fn disable_interrupts(&self) -> Result<(), BusError> {
        self.join(&[])
    }

    fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        self.config.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), BusError> {
        if !self.resettable {
            return Err(failed(
                format!("resetting {}", self.identity.name),
                "the kernel knows no reset for this function; unbind and bind it again",
            )(Errno::ENOTSUP));
        }
        ioctl::with_number(self.device.as_fd(), ioctl::DEVICE_RESET, 0).map_err(failed(
            format!("resetting {}", self.identity.name),
            "see the kernel's log",
        ))?;
        self.config.enable_memory()
    }

    fn removal(&self) -> Option<Interrupt> {
        self.removal.clone()
    }
}

impl Drop for VfioFunction {
    fn drop(&mut self) {
        // Nothing is in flight when mappings are taken away behind this. An adapter that is gone
        // cannot be told, and need not be.
        drop(self.config.set_bus_master(false));
        drop(self.disable_interrupts());
    }
}
