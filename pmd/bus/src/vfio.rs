//! The backing for an adapter that is bound to the kernel's vfio-pci.
//!
//! Registers are pages of the card, the DMA address space is the IOMMU's, interrupts are MSI-X
//! vectors joined to eventfds. The kernel's interface is that of groups and containers
//! (`/dev/vfio/vfio`, IOMMU type 1 version 2), which every kernel with VFIO has.
//!
//! # Lifecycle
//!
//! [`Container::new`], then [`open`] for each function; functions opened into one container share
//! one [`DmaDomain`](crate::DmaDomain), so that a pool is mapped once for all of them. Dropping a
//! function switches its bus mastering off and gives it back, dropping the last one of a group
//! gives that back, and a process that is killed leaves nothing: the kernel does the same for it.
//!
//! A mapping is a whole segment, which is one range of addresses on both sides however many pages
//! it has: a container's few entries (65,535 by default) go far. A mapping is taken away whole, as
//! this IOMMU type demands, and the kernel's answer says how much went.

mod config;
mod container;
mod function;
mod ioctl;
mod sysfs;

pub use container::Container;

use crate::{BusError, Function};
use std::sync::Arc;

/// PCI subsystem vendor and id by which the software ConnectX says that it is one; no adapter of
/// metal has them. They reach a driver that knows nothing else of who plays the device.
pub const EMULATED_SUBSYSTEM: (u16, u16) = (0x15b3, 0x504c);

/// Looks whether the function at a PCI address could be opened, without touching it.
///
/// # Errors
/// [`BusError::NoFunction`], [`BusError::NotBound`] or [`BusError::NoIommu`].
pub fn look(address: &str) -> Result<(), BusError> {
    sysfs::Sysfs::default()
        .function(address)?
        .openable()
        .map(drop)
}

/// Opens the function at a PCI address (`dddd:bb:dd.f`), which must be bound to vfio-pci.
/// `token` is the secret that a virtual function's owner demands, a UUID.
///
/// # Errors
/// [`BusError::NoFunction`], [`BusError::NotBound`], [`BusError::NoIommu`],
/// [`BusError::InUse`] while it is open in this container, [`BusError::GroupNotViable`], or
/// [`BusError::Vfio`] with what the kernel refused and the remedy.
pub fn open(
    container: &Container,
    address: &str,
    token: Option<&str>,
) -> Result<Arc<dyn Function>, BusError> {
    let pci = container.sysfs().function(address)?;
    Ok(Arc::new(function::VfioFunction::open(
        container, &pci, token,
    )?))
}
