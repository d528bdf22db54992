//! The initialization segment: the registers at the start of BAR 0 by which a function is found,
//! given its command queue, rung, and watched.
//!
//! Layout: `mlx5_init_seg` of the kernel's `device.h`. Control plane only.

use crate::error::Error;
use pollux_bus::{BusError, Function, Iova, Registers};
use pollux_prm::command_queue::{HealthBuffer, NicInterface, registers};
use std::fmt;

/// The value of every register of a device that does not answer.
pub(crate) const ALL_ONES: u32 = u32::MAX;

/// Version of the firmware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FirmwareVersion {
    /// Major; it tells the adapter generation.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Sub-minor.
    pub subminor: u16,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:04}", self.major, self.minor, self.subminor)
    }
}

/// The segment of one function. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InitSegment {
    registers: Registers,
}

impl InitSegment {
    /// The segment of `function`.
    ///
    /// # Errors
    /// [`BusError::Window`] when the register region is smaller.
    pub(crate) fn new(function: &dyn Function) -> Result<Self, Error> {
        let registers = function.registers(0, registers::END as u64)?;
        Ok(Self { registers })
    }

    /// The segment in any registers.
    #[cfg(test)]
    pub(crate) fn over(registers: Registers) -> Self {
        Self { registers }
    }

    fn load(&self, offset: usize) -> Result<u32, BusError> {
        self.registers.load_u32(offset as u64)
    }

    fn store(&self, offset: usize, value: u32) -> Result<(), BusError> {
        self.registers.store_u32(offset as u64, value)
    }

    /// Whether the device answers at all.
    pub(crate) fn answers(&self) -> bool {
        self.load(registers::FW_REV)
            .is_ok_and(|word| word != ALL_ONES)
    }

    pub(crate) fn firmware(&self) -> Result<FirmwareVersion, BusError> {
        let [a, b, c, d] = self.load(registers::FW_REV)?.to_be_bytes();
        let sub = self.load(registers::CMDIF_REV_FW_SUB)?;
        Ok(FirmwareVersion {
            major: u16::from_be_bytes([c, d]),
            minor: u16::from_be_bytes([a, b]),
            subminor: sub as u16,
        })
    }

    /// Revision of the command interface.
    pub(crate) fn interface_revision(&self) -> Result<u16, BusError> {
        Ok((self.load(registers::CMDIF_REV_FW_SUB)? >> 16) as u16)
    }

    /// Command queue: entries and distance of entries, both log 2.
    pub(crate) fn queue_geometry(&self) -> Result<(u8, u8), BusError> {
        let word = self.load(registers::CMDQ_ADDR_L_SZ)?;
        Ok(((word >> 4 & 0xf) as u8, (word & 0xf) as u8))
    }

    /// Tells the device where its command queue is; interface state 0 (full driver) goes with it.
    /// The lower half starts the interface, so it goes last.
    pub(crate) fn set_queue(&self, iova: Iova) -> Result<(), BusError> {
        self.store(registers::CMDQ_ADDR_H, (iova.0 >> 32) as u32)?;
        self.store(registers::CMDQ_ADDR_L_SZ, iova.0 as u32 & !0xfff)
    }

    /// Rings for the slots whose bits are set.
    pub(crate) fn ring(&self, slots: u32) -> Result<(), BusError> {
        self.store(registers::CMD_DBELL, slots)
    }

    /// Whether firmware is still starting.
    pub(crate) fn initializing(&self) -> Result<bool, BusError> {
        Ok(self.load(registers::INITIALIZING)? >> 31 != 0)
    }

    /// What the function's registers offer.
    pub(crate) fn interface(&self) -> Result<NicInterface, BusError> {
        Ok(NicInterface(
            (self.load(registers::CMDQ_ADDR_L_SZ)? >> 8 & 7) as u8,
        ))
    }

    /// The health counter.
    pub(crate) fn health_counter(&self) -> Result<u32, BusError> {
        self.load(registers::HEALTH_COUNTER)
    }

    /// The health buffer.
    pub(crate) fn health(&self) -> Result<HealthBuffer, BusError> {
        let mut buffer = HealthBuffer::zeroed();
        self.registers
            .copy_out(registers::HEALTH as u64, buffer.bytes_mut())?;
        Ok(buffer)
    }
}
