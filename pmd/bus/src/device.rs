//! What a device model offers to a backing, and what it gets from it.

use crate::{HostMemory, Identity, InterruptLines};
use pollux_mempool::Window;
use std::sync::Arc;

/// A part of the register region that the driver reaches as plain memory. The device notices
/// stores there by looking.
#[derive(Clone, Debug)]
pub struct MappedWindow {
    /// First byte inside the register region; a multiple of the page size.
    pub offset: u64,
    /// The memory behind it; a whole number of pages.
    pub memory: Window,
}

/// What PCI configuration space tells of a function besides its [`Identity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Class, subclass and interface: 24 bits.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Who made the board.
    pub subsystem_vendor: u16,
    /// Which board it is.
    pub subsystem: u16,
    /// Speed of the link as PCI Express numbers it: 3 is 8 GT/s, 4 is 16, 5 is 32.
    pub link_speed: u8,
    /// Lanes of the link.
    pub link_width: u8,
    /// Serial number (an EUI-64).
    pub serial: Option<u64>,
    /// Name of the product, for vital product data.
    pub product: String,
    /// Read-only fields of vital product data, such as `PN` and `SN`.
    pub vital: Vec<([u8; 2], String)>,
}

impl Default for PciIdentity {
    /// An Ethernet controller on an 8 GT/s link of 16 lanes.
    fn default() -> Self {
        Self {
            class: 0x02_0000,
            revision: 0,
            subsystem_vendor: 0,
            subsystem: 0,
            link_speed: 3,
            link_width: 16,
            serial: None,
            product: String::new(),
            vital: Vec::new(),
        }
    }
}

/// A device model: what a program must do to be reached as an adapter function.
///
/// Calls come from the driver's threads (or from those that serve a socket) and may overlap; they
/// must return soon. Loads and stores carry bytes in memory order, as a bus does.
pub trait Device: Send + Sync {
    /// Who the device is.
    fn identity(&self) -> Identity;

    /// What PCI configuration space tells besides [`identity`](Self::identity), for backings that
    /// show one.
    fn pci(&self) -> PciIdentity {
        let identity = self.identity();
        PciIdentity {
            subsystem_vendor: identity.vendor,
            subsystem: identity.device,
            product: identity.name,
            ..PciIdentity::default()
        }
    }

    /// Size of the register region in bytes.
    fn register_size(&self) -> u64;

    /// The parts of it that are memory, fixed for the device's life; all else is trapped.
    fn mapped_windows(&self) -> Vec<MappedWindow>;

    /// Number of interrupt vectors.
    fn vectors(&self) -> usize;

    /// A driver arrives. False when one is there already.
    fn connect(&self, host: Host) -> bool;

    /// The driver is gone: forget all that it gave. When this returns, the device touches none of
    /// its memory.
    fn disconnect(&self);

    /// A load from a trapped register. Bytes outside any register read as zero.
    fn load(&self, offset: u64, bytes: &mut [u8]);

    /// A store to a trapped register. A store outside any register is dropped.
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Function-level reset.
    fn reset(&self);
}

/// What a device sees of its driver: memory by device address, and vectors to raise.
#[derive(Clone, Debug)]
pub struct Host {
    /// The driver's memory.
    pub memory: Arc<HostMemory>,
    /// The driver's interrupts.
    pub interrupts: Arc<InterruptLines>,
}
