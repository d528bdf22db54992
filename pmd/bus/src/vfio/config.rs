//! The few fields of PCI configuration space that a driver must set (PCI Local Bus and PCI Express
//! specifications; offsets as in linux/pci_regs.h).

use super::ioctl::Answer;
use crate::BusError;
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio;

/// Command register; memory decoding, bus mastering.
const COMMAND: u64 = 0x04;
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
/// Status register; there is a list of capabilities.
const STATUS: u64 = 0x06;
const HAS_LIST: u16 = 1 << 4;
/// Where that list begins.
const LIST: u64 = 0x34;
/// The PCI Express capability, its device status, and transactions under way.
const EXPRESS: u8 = 0x10;
const DEVICE_STATUS: u64 = 0x0a;
const PENDING: u16 = 1 << 5;

/// How long an adapter may take to finish what it began (PCI Express allows a completion 50 ms).
const DRAIN: Duration = Duration::from_millis(500);

/// A function's configuration space, through the kernel.
pub(super) struct ConfigSpace {
    file: File,
    offset: u64,
    name: String,
    /// Where the device status is, if the function has one.
    status: Option<u64>,
}

impl ConfigSpace {
    pub(super) fn of(name: &str, device: &OwnedFd) -> Result<Self, BusError> {
        let answer = Answer::region(device.as_fd(), vfio::VFIO_PCI_CONFIG_REGION_INDEX);
        let offset = answer.ok().and_then(|answer| answer.u64(24));
        let file = device.try_clone().map_err(|source| BusError::Os {
            what: "dup",
            source,
        })?;
        let space = Self {
            file: file.into(),
            offset: offset.unwrap_or(0),
            name: name.to_owned(),
            status: None,
        };
        if offset.is_none() {
            return Err(space.failed("finding", Errno::ENODEV.into()));
        }
        let status = space.device_status()?;
        Ok(Self { status, ..space })
    }

    #[cfg(test)]
    pub(super) fn over(file: File) -> Result<Self, BusError> {
        let space = Self {
            file,
            offset: 0,
            name: "test".to_owned(),
            status: None,
        };
        let status = space.device_status()?;
        Ok(Self { status, ..space })
    }

    fn failed(&self, what: &str, source: std::io::Error) -> BusError {
        BusError::Vfio {
            what: format!("{what} the configuration space of {}", self.name),
            source,
            remedy: "the function may have been pulled; see the kernel's log",
        }
    }

    fn read(&self, at: u64) -> Result<u16, BusError> {
        let mut bytes = [0; 2];
        self.file
            .read_exact_at(&mut bytes, self.offset + at)
            .map_err(|source| self.failed("reading", source))?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn write(&self, at: u64, value: u16) -> Result<(), BusError> {
        self.file
            .write_all_at(&value.to_le_bytes(), self.offset + at)
            .map_err(|source| self.failed("writing", source))
    }

    /// Walks the list of capabilities.
    fn device_status(&self) -> Result<Option<u64>, BusError> {
        if self.read(STATUS)? & HAS_LIST == 0 {
            return Ok(None);
        }
        let mut at = u64::from(self.read(LIST)? & 0xfc);
        // No more capabilities than fit: a list that goes in circles ends.
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            let [id, next] = self.read(at)?.to_le_bytes();
            if id == EXPRESS {
                return Ok(Some(at + DEVICE_STATUS));
            }
            at = u64::from(next & 0xfc);
        }
        Ok(None)
    }

    /// Switches memory decoding on; without it a mapped register would be a signal.
    pub(super) fn enable_memory(&self) -> Result<(), BusError> {
        let command = self.read(COMMAND)?;
        self.write(COMMAND, command | MEMORY)?;
        match self.read(COMMAND)? & MEMORY {
            0 => Err(self.failed("enabling memory in", Errno::EIO.into())),
            _ => Ok(()),
        }
    }

    /// Lets the function reach memory, or not; when it may not, waits until nothing is under way.
    pub(super) fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        let command = self.read(COMMAND)?;
        let wanted = match on {
            true => command | BUS_MASTER,
            false => command & !BUS_MASTER,
        };
        self.write(COMMAND, wanted)?;
        let (false, Some(status)) = (on, self.status) else {
            return Ok(());
        };
        let deadline = Instant::now() + DRAIN;
        loop {
            match self.read(status)? {
                // Pulled: nothing is under way any more.
                u16::MAX => return Ok(()),
                word if word & PENDING == 0 => return Ok(()),
                _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                _ => {
                    let source = Errno::ETIMEDOUT.into();
                    return Err(self.failed("transactions stay under way in", source));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    /// A space of 256 bytes with these bytes set.
    fn file(bytes: &[(u64, u8)]) -> File {
        let file = File::from(memfd_create("config", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(256).unwrap();
        for &(at, byte) in bytes {
            file.write_all_at(&[byte], at).unwrap();
        }
        file
    }

    fn word(file: &File, at: u64) -> u16 {
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    #[test]
    fn only_the_bit_that_was_asked_for_changes() {
        let file = file(&[(4, 0x40), (5, 0x01)]);
        let space = ConfigSpace::over(file.try_clone().unwrap()).unwrap();
        space.enable_memory().unwrap();
        assert_eq!(word(&file, 4), 0x0142);
        space.set_bus_master(true).unwrap();
        assert_eq!(word(&file, 4), 0x0146);
        space.set_bus_master(false).unwrap();
        assert_eq!(word(&file, 4), 0x0142);
    }

    #[test]
    fn transactions_under_way_are_waited_for() {
        // MSI-X at 0x40, then PCI Express at 0x60.
        let list = [
            (6, 0x10),
            (0x34, 0x40),
            (0x40, 0x11),
            (0x41, 0x60),
            (0x60, 0x10),
        ];
        let file = file(&list);
        let space = ConfigSpace::over(file.try_clone().unwrap()).unwrap();
        assert_eq!(space.status, Some(0x6a));
        file.write_all_at(&[0x20], 0x6a).unwrap();
        let error = space.set_bus_master(false).unwrap_err().to_string();
        assert!(error.contains("under way"), "{error}");
        // An adapter that was pulled reads all ones.
        file.write_all_at(&[0xff, 0xff], 0x6a).unwrap();
        space.set_bus_master(false).unwrap();
    }

    #[test]
    fn a_list_that_goes_in_circles_ends() {
        let file = file(&[(6, 0x10), (0x34, 0x40), (0x40, 0x11), (0x41, 0x40)]);
        assert_eq!(ConfigSpace::over(file).unwrap().status, None);
    }
}
