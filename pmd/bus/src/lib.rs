//! How an adapter function is reached.
//!
//! The driver sees a [`Function`]: register windows, a DMA address space, interrupts, reset.
//! A device model (the software ConnectX) offers a [`Device`]: what it does on a register load or
//! store, and on reset; it sees its driver as a [`Host`]: memory by device address and interrupt
//! vectors to raise. A *backing* joins the two:
//!
//! | backing | register windows | DMA address space | interrupts |
//! | --- | --- | --- | --- |
//! | [`local`]: the device model lives in this process | shared memory, or a call | [`HostMemory`] tables | eventfds |
//! | [`process`]: the device model lives in another process | shared memory, or a message | messages that carry memory fds | eventfds, passed once |
//! | [`vfio_user`]: the device model lives in another process, behind a standard protocol | sparse mapped areas, or a message | messages that carry memory fds | eventfds |
//! | [`vfio`]: an adapter bound to vfio-pci | mapped BAR | the kernel's IOMMU | eventfds |
//!
//! Only bytes in mapped memory, register loads and stores, and interrupts cross a backing. No
//! type of either side does.
//!
//! # Lifecycle
//!
//! A backing's `connect` gives an `Arc<dyn Function>`. The driver maps its memory through the
//! function's [`DmaDomain`], takes [`Registers`] windows, enables interrupts, and switches bus
//! mastering on; at the end it does the reverse. Dropping the last handle disconnects: the device
//! forgets all that this driver gave it, whatever state the driver left it in.
//!
//! # The far end of a cable
//!
//! [`netdev`] has this machine's own interfaces, for device models whose ports are to lead out of
//! them. It is here because this is the crate for system calls that have no safe form.
//!
//! # What a data-path core may call
//!
//! [`Doorbell::ring`] on a mapped window: one store. Everything else belongs to control threads.

#![deny(unsafe_code)]

mod device;
mod domain;
mod error;
mod function;
mod host_memory;
mod interrupt;
mod iova;
pub mod local;
pub mod netdev;
pub mod process;
mod registers;
mod rights;
pub mod settings;
pub mod vfio;
pub mod vfio_user;

pub use device::{Device, Host, MappedWindow, PciIdentity};
pub use domain::{DmaDomain, DmaLimits, DmaMapping, DmaSpace, NATURAL};
pub use error::BusError;
pub use function::{Function, Identity};
pub use host_memory::{DmaFault, FaultLog, HostMemory, HostReader};
pub use interrupt::{Interrupt, InterruptLines};
pub use iova::{Iova, IovaAllocator};
pub use registers::{Doorbell, Registers, Trap};
