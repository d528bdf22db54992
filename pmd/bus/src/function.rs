//! The driver's view of one adapter function.

use crate::{BusError, DmaDomain, Interrupt, Registers};
use std::fmt;
use std::sync::Arc;

/// Who a function is, as found before any command was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// How the function is named to people: a PCI address, or the emulated function's name.
    pub name: String,
    /// PCI vendor id (0x15b3 for Mellanox).
    pub vendor: u16,
    /// PCI device id; it tells the model.
    pub device: u16,
    /// Whether a program plays the device.
    pub emulated: bool,
    /// NUMA node the function hangs on, where the platform says so.
    pub node: Option<u32>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{:04x}:{:04x}]", self.name, self.vendor, self.device)?;
        if self.emulated {
            f.write_str(" EMULATED")?;
        }
        Ok(())
    }
}

/// One adapter function, whatever stands behind it. Dropping the last handle disconnects.
///
/// All methods are for control threads; they may lock, allocate and call the kernel.
pub trait Function: Send + Sync {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// Size of the register region (BAR 0) in bytes.
    fn register_size(&self) -> u64;

    /// A window on the registers: wholly mapped where it can be, trapped otherwise.
    ///
    /// # Errors
    /// [`BusError::Window`] when it leaves the region or crosses from mapped into trapped pages.
    fn registers(&self, offset: u64, len: u64) -> Result<Registers, BusError>;

    /// The IOMMU domain the function is in; several functions may share it.
    fn domain(&self) -> &Arc<DmaDomain>;

    /// Number of interrupt vectors the function has.
    fn vectors(&self) -> usize;

    /// Enables the first `count` interrupt vectors at once, replacing what was enabled.
    ///
    /// # Errors
    /// [`BusError::Vectors`] when the function has fewer.
    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError>;

    /// Disables all vectors; a raise after this goes nowhere.
    ///
    /// # Errors
    /// The backing's refusal.
    fn disable_interrupts(&self) -> Result<(), BusError>;

    /// Lets the device reach memory, or not. When switching off returns, nothing is in flight.
    ///
    /// # Errors
    /// The backing's refusal, or a device that would not let go.
    fn set_bus_master(&self, on: bool) -> Result<(), BusError>;

    /// Function-level reset: the device forgets everything but its identity.
    ///
    /// # Errors
    /// The backing's refusal.
    fn reset(&self) -> Result<(), BusError>;

    /// Raised when the platform wants the function back (it is being unbound, or pulled): whoever
    /// has it should close it soon. `None` where no platform can say so.
    fn removal(&self) -> Option<Interrupt> {
        None
    }
}
