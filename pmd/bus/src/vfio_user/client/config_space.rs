//! The function's PCI configuration space: who it is, and the two switches that a driver's end
//! turns (PCI Local Bus 3.0, 6.2). All fields are little-endian.

use super::link::Link;
use super::region;
use crate::BusError;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;

/// Bytes that every function's configuration space has.
const SIZE: u64 = 256;

const VENDOR: u64 = 0x00;
const DEVICE: u64 = 0x02;
const COMMAND: u64 = 0x04;

/// Bits of the command register.
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

/// See the module.
pub(super) struct ConfigSpace {
    link: Arc<Link>,
}

impl ConfigSpace {
    /// Over a region of `size` bytes.
    pub fn new(link: Arc<Link>, size: u64) -> Result<Self, BusError> {
        if size < SIZE {
            let text = format!("{size} bytes of configuration space, at least {SIZE}");
            return Err(link.nonsense("the configuration space", text));
        }
        Ok(Self { link })
    }

    fn load(&self, offset: u64) -> Result<u16, BusError> {
        let mut bytes = [0; 2];
        region::load(&self.link, VFIO_PCI_CONFIG_REGION_INDEX, offset, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Vendor and device id.
    pub fn ids(&self) -> Result<(u16, u16), BusError> {
        let vendor = self.load(VENDOR)?;
        if vendor == u16::MAX {
            let text = "no function is there (vendor id 0xffff)".to_owned();
            return Err(self.link.nonsense("the configuration space", text));
        }
        Ok((vendor, self.load(DEVICE)?))
    }

    /// The command register.
    pub fn command(&self) -> Result<u16, BusError> {
        self.load(COMMAND)
    }

    /// Stores the command register. When this returns, the device has acted on it: with bus
    /// mastering off it has nothing in flight.
    pub fn set_command(&self, value: u16) -> Result<(), BusError> {
        region::store(
            &self.link,
            VFIO_PCI_CONFIG_REGION_INDEX,
            COMMAND,
            &value.to_le_bytes(),
        )
    }

    fn switch(&self, what: &'static str, bit: u16, on: bool) -> Result<(), BusError> {
        let before = self.command()?;
        let wanted = if on { before | bit } else { before & !bit };
        self.set_command(wanted)?;
        let after = self.command()?;
        if (after ^ wanted) & bit == 0 {
            return Ok(());
        }
        Err(BusError::Refused {
            what,
            reason: format!("its command register reads {after:#06x} after {wanted:#06x}"),
        })
    }

    /// Lets the function answer at its registers.
    pub fn set_memory_decoding(&self) -> Result<(), BusError> {
        self.switch("memory decoding", MEMORY, true)
    }

    /// Lets the function reach memory, or not.
    pub fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        self.switch("bus mastering", BUS_MASTER, on)
    }
}
