//! The VFIO system calls, as typed functions over descriptors.
//!
//! Nothing here knows what a group or an adapter is for. Answers of variable length come as
//! [`Answer`]s, whose capability chains are read with every offset checked.

#![allow(unsafe_code)] // ioctl(2): each call says why the kernel's accesses stay inside its argument

use nix::errno::Errno;
use nix::libc::{c_int, c_ulong};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use vfio_bindings::bindings::vfio;

/// VFIO numbers its calls from here, without direction or size (linux/vfio.h).
pub(super) const fn request(number: u32) -> c_ulong {
    nix::request_code_none!(vfio::VFIO_TYPE, vfio::VFIO_BASE + number) as c_ulong
}

pub(super) const GET_API_VERSION: u32 = 0;
pub(super) const CHECK_EXTENSION: u32 = 1;
pub(super) const SET_IOMMU: u32 = 2;
pub(super) const GROUP_GET_STATUS: u32 = 3;
pub(super) const GROUP_SET_CONTAINER: u32 = 4;
pub(super) const GROUP_GET_DEVICE_FD: u32 = 6;
pub(super) const DEVICE_GET_INFO: u32 = 7;
pub(super) const DEVICE_GET_REGION_INFO: u32 = 8;
pub(super) const DEVICE_GET_IRQ_INFO: u32 = 9;
pub(super) const DEVICE_SET_IRQS: u32 = 10;
pub(super) const DEVICE_RESET: u32 = 11;
pub(super) const IOMMU_GET_INFO: u32 = 12;
pub(super) const IOMMU_MAP_DMA: u32 = 13;
pub(super) const IOMMU_UNMAP_DMA: u32 = 14;

/// A call whose argument is a number; the kernel touches no memory of ours.
pub(super) fn with_number(fd: BorrowedFd<'_>, call: u32, value: u32) -> Result<c_int, Errno> {
    // SAFETY: the calls made this way take their argument by value.
    let answer = unsafe { nix::libc::ioctl(fd.as_raw_fd(), request(call), c_ulong::from(value)) };
    Errno::result(answer)
}

/// `VFIO_GROUP_SET_CONTAINER`.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd: c_int = container.as_raw_fd();
    // SAFETY: the kernel reads one int through the pointer, which lives until it returns.
    let answer = unsafe {
        nix::libc::ioctl(
            group.as_raw_fd(),
            request(GROUP_SET_CONTAINER),
            &raw const fd,
        )
    };
    Errno::result(answer).map(drop)
}

/// `VFIO_GROUP_GET_DEVICE_FD`.
pub(super) fn device_fd(group: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel reads a string that ends in zero.
    let fd = unsafe {
        nix::libc::ioctl(
            group.as_raw_fd(),
            request(GROUP_GET_DEVICE_FD),
            name.as_ptr(),
        )
    };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Arguments that begin with their own size, which bounds what the kernel reads and writes.
///
/// # Safety
/// `repr(C)`, plain integers, and the first field is the `argsz` that [`sized`](Self::sized) sets.
pub(super) unsafe trait Sized32: Default {
    /// Where the size stands.
    fn argsz(&mut self) -> &mut u32;
}

macro_rules! sized {
    ($($name:ident)*) => {
        $(
            // SAFETY: bindgen's structures of linux/vfio.h, all of which begin with `argsz`.
            unsafe impl Sized32 for vfio::$name {
                fn argsz(&mut self) -> &mut u32 {
                    &mut self.argsz
                }
            }
        )*
    };
}

sized! {
    vfio_group_status vfio_device_info vfio_irq_info vfio_iommu_type1_dma_map
}

/// A call with one structure of fixed length, in and out.
pub(super) fn with<T: Sized32>(
    fd: BorrowedFd<'_>,
    call: u32,
    argument: &mut T,
) -> Result<(), Errno> {
    *argument.argsz() = size_of::<T>() as u32;
    // SAFETY: the kernel touches at most `argsz` bytes, and that is the structure.
    let answer =
        unsafe { nix::libc::ioctl(fd.as_raw_fd(), request(call), std::ptr::from_mut(argument)) };
    Errno::result(answer).map(drop)
}

/// `VFIO_IOMMU_UNMAP_DMA`; how many bytes the kernel says it has unmapped.
pub(super) fn unmap_dma(container: BorrowedFd<'_>, iova: u64, size: u64) -> Result<u64, Errno> {
    // argsz, flags, iova, size.
    let mut argument = [u64::from(UNMAP_LEN as u32), iova, size];
    #[cfg(target_endian = "big")]
    {
        argument[0] <<= 32;
    }
    // SAFETY: `argsz` says three words, and that is what there is.
    let answer = unsafe {
        nix::libc::ioctl(
            container.as_raw_fd(),
            request(IOMMU_UNMAP_DMA),
            argument.as_mut_ptr(),
        )
    };
    Errno::result(answer).map(|_| argument[2])
}

const UNMAP_LEN: usize = 24;
const _: () = assert!(size_of::<vfio::vfio_iommu_type1_dma_unmap>() == UNMAP_LEN);

/// `VFIO_DEVICE_SET_IRQS` with event descriptors from vector 0 on; none disables the index.
pub(super) fn set_irqs(
    device: BorrowedFd<'_>,
    index: u32,
    eventfds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let data = match eventfds.is_empty() {
        true => vfio::VFIO_IRQ_SET_DATA_NONE,
        false => vfio::VFIO_IRQ_SET_DATA_EVENTFD,
    };
    let argsz = (IRQ_SET_LEN + eventfds.len() * 4) as u32;
    let flags = data | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words: Vec<u32> = vec![argsz, flags, index, 0, eventfds.len() as u32];
    words.extend(eventfds.iter().map(|fd| fd.as_raw_fd() as u32));
    // SAFETY: the kernel reads `argsz` bytes, and that is the length of `words`.
    let answer =
        unsafe { nix::libc::ioctl(device.as_raw_fd(), request(DEVICE_SET_IRQS), words.as_ptr()) };
    Errno::result(answer).map(drop)
}

const IRQ_SET_LEN: usize = 20;
const _: () = assert!(size_of::<vfio::vfio_irq_set>() == IRQ_SET_LEN);

/// The largest answer that is believed.
const LONGEST: usize = 64 << 10;

/// An answer of variable length: a fixed part, and a chain of capabilities.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whole words, so that the kernel's structure is aligned.
    words: Vec<u64>,
    /// Where `cap_offset` stands.
    chain: usize,
}

impl Answer {
    /// `VFIO_DEVICE_GET_REGION_INFO`.
    pub(super) fn region(device: BorrowedFd<'_>, index: u32) -> Result<Self, Errno> {
        let mut first = vec![0; size_of::<vfio::vfio_region_info>() / 8];
        put(&mut first, 8, index);
        Self::ask(device, DEVICE_GET_REGION_INFO, first, 12)
    }

    /// `VFIO_IOMMU_GET_INFO`.
    pub(super) fn iommu(container: BorrowedFd<'_>) -> Result<Self, Errno> {
        let first = vec![0; size_of::<vfio::vfio_iommu_type1_info>() / 8];
        Self::ask(container, IOMMU_GET_INFO, first, 16)
    }

    fn ask(
        fd: BorrowedFd<'_>,
        call: u32,
        mut words: Vec<u64>,
        chain: usize,
    ) -> Result<Self, Errno> {
        let mut room = words.len() * 8;
        loop {
            put(&mut words, 0, room as u32);
            // SAFETY: the kernel writes at most `argsz` bytes, and that is the length of `words`.
            let answer =
                unsafe { nix::libc::ioctl(fd.as_raw_fd(), request(call), words.as_mut_ptr()) };
            Errno::result(answer)?;
            let answer = Self { words, chain };
            let wanted = answer.u32(0).unwrap_or(0) as usize;
            if wanted <= room {
                return Ok(answer);
            }
            if wanted > LONGEST {
                return Err(Errno::E2BIG);
            }
            words = answer.words;
            words.resize(wanted.div_ceil(8), 0);
            room = words.len() * 8;
        }
    }

    /// The 32-bit field at a byte offset.
    pub(super) fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.words.get(at / 8)?.to_ne_bytes();
        let part = bytes.get(at % 8..at % 8 + 4)?;
        Some(u32::from_ne_bytes(part.try_into().ok()?))
    }

    /// The 64-bit field at a byte offset.
    pub(super) fn u64(&self, at: usize) -> Option<u64> {
        match at % 8 {
            0 => self.words.get(at / 8).copied(),
            _ => None,
        }
    }

    /// Where the capability `id` begins.
    pub(super) fn capability(&self, id: u32) -> Option<usize> {
        let mut at = self.u32(self.chain)? as usize;
        // A chain cannot have more links than there are words.
        for _ in 0..self.words.len() {
            if at == 0 || at % 8 != 0 {
                return None;
            }
            // id and version share a word; both 16 bits.
            let head = self.u32(at)?.to_ne_bytes();
            if u32::from(u16::from_ne_bytes([head[0], head[1]])) == id {
                return Some(at);
            }
            at = self.u32(at + 4)? as usize;
        }
        None
    }

    /// Pairs of 64-bit fields: the list at the end of a capability, whose count is 8 bytes in.
    pub(super) fn pairs(&self, capability: usize) -> Option<Vec<(u64, u64)>> {
        let count = self.u32(capability + 8)? as usize;
        (0..count)
            .map(|k| {
                let at = capability
                    .checked_add(16)?
                    .checked_add(k.checked_mul(16)?)?;
                Some((self.u64(at)?, self.u64(at + 8)?))
            })
            .collect()
    }

    #[cfg(test)]
    pub(super) fn of(words: Vec<u64>, chain: usize) -> Self {
        Self { words, chain }
    }
}

/// Sets the 32-bit field at a byte offset.
pub(super) fn put(words: &mut [u64], at: usize, value: u32) {
    if let Some(word) = words.get_mut(at / 8) {
        let mut bytes = word.to_ne_bytes();
        if let Some(part) = bytes.get_mut(at % 8..at % 8 + 4) {
            part.copy_from_slice(&value.to_ne_bytes());
        }
        *word = u64::from_ne_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IOMMU's answer with a chain of two capabilities.
    fn answer(second: u32) -> Answer {
        let mut words = vec![0; 12];
        put(&mut words, 16, 24); // cap_offset
        put(&mut words, 24, 1 | 1 << 16); // id 1, version 1
        put(&mut words, 28, second);
        put(&mut words, 32, 2); // two ranges
        words[5..9].copy_from_slice(&[0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff]);
        put(&mut words, 72, 3 | 1 << 16);
        put(&mut words, 80, 65_535);
        Answer::of(words, 16)
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn chains_are_walked() {
        let answer = answer(72);
        let ranges = answer.capability(1).unwrap();
        assert_eq!(
            answer.pairs(ranges).unwrap(),
            [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]
        );
        let avail = answer.capability(3).unwrap();
        assert_eq!(answer.u32(avail + 8), Some(65_535));
        assert_eq!(answer.capability(9), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn chains_that_leave_or_go_in_circles_end() {
        for second in [24, 96, 95, 4096, u32::MAX, 1] {
            let answer = answer(second);
            assert_eq!(answer.capability(3), None, "{second}");
            assert!(answer.capability(1).is_some());
        }
        let mut long = answer(0);
        put(&mut long.words, 32, 1 << 30);
        assert_eq!(long.pairs(24), None, "more ranges than there is room");
    }

    /// The C compiler on the installed header, where there is one.
    #[test]
    fn numbers_are_those_of_the_installed_header() {
        let calls = [
            ("VFIO_GET_API_VERSION", GET_API_VERSION),
            ("VFIO_CHECK_EXTENSION", CHECK_EXTENSION),
            ("VFIO_SET_IOMMU", SET_IOMMU),
            ("VFIO_GROUP_GET_STATUS", GROUP_GET_STATUS),
            ("VFIO_GROUP_SET_CONTAINER", GROUP_SET_CONTAINER),
            ("VFIO_GROUP_GET_DEVICE_FD", GROUP_GET_DEVICE_FD),
            ("VFIO_DEVICE_GET_INFO", DEVICE_GET_INFO),
            ("VFIO_DEVICE_GET_REGION_INFO", DEVICE_GET_REGION_INFO),
            ("VFIO_DEVICE_GET_IRQ_INFO", DEVICE_GET_IRQ_INFO),
            ("VFIO_DEVICE_SET_IRQS", DEVICE_SET_IRQS),
            ("VFIO_DEVICE_RESET", DEVICE_RESET),
            ("VFIO_IOMMU_GET_INFO", IOMMU_GET_INFO),
            ("VFIO_IOMMU_MAP_DMA", IOMMU_MAP_DMA),
            ("VFIO_IOMMU_UNMAP_DMA", IOMMU_UNMAP_DMA),
        ];
        let checks: String = calls
            .iter()
            .map(|(name, call)| format!("_Static_assert({name} == {:#x}, \"\");\n", request(*call)))
            .collect();
        let source = format!("#include <linux/vfio.h>\n#include <sys/ioctl.h>\n{checks}");
        let path = std::env::temp_dir().join(format!("pollux-vfio-{}.c", std::process::id()));
        std::fs::write(&path, source).unwrap();
        let compiled = std::process::Command::new("cc")
            .arg("-fsyntax-only")
            .arg(&path)
            .output();
        std::fs::remove_file(&path).ok();
        match compiled {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(words.contains("No such file"), "{words}");
                eprintln!("NOT RUN: linux/vfio.h is not installed");
            }
            Err(_) => eprintln!("NOT RUN: there is no C compiler"),
        }
    }
}
