//! The backing for a device model that is reached over a vfio-user socket, as QEMU's
//! `vfio-user-pci` speaks it.
//!
//! [`connect`] is the driver's end: a [`Function`](crate::Function) whose device is behind such a
//! socket, whoever serves it. [`serve`] plays the device: it shows a [`Device`](crate::Device) as a PCI function with
//! configuration space, a register BAR whose mapped windows the client can map, MSI-X in a BAR of
//! its own, and DMA into memory that the client shares.
//!
//! # Lifecycle
//!
//! A [`Listener`] is bound once. [`serve`] then lets in one client after the other on its caller's
//! thread, until its [`Stop`] is raised. A client's arrival is a driver's arrival
//! ([`Device::connect`](crate::Device::connect)), and however it leaves, the device is disconnected,
//! and its memory and eventfds are let go, before the next one is let in. While one is served,
//! others are answered "busy".
//!
//! # Why the protocol is served here
//!
//! The published crate for this protocol, `vfio_user` 0.1.7, trusts its client: a message's length
//! and counts size its buffers unchecked, a length below the header's underflows, a version text
//! without its final zero ends the process, and a command that it does not know leaves its body in
//! the stream. A wrapper could mend that only by reading and judging every message in front of it,
//! and every answer behind it, since failures of the device are answered with errno 0 and the flag
//! for "unmap all" has an older number. That is the whole protocol a second time, so it is served
//! here once; the numbers come from `vfio-bindings`, and the crate's client judges this server in
//! the tests.
//!
//! # Trust
//!
//! The socket is an open door: everything that comes through it is checked here, and a client that
//! cannot be understood is shown out. It can at most harm its own session. Memory is taken only from
//! files that cannot be shrunk under the device ([`Trust`]), and a page that is lost all the same ends
//! its client's session, not the process; interrupts are taken only from eventfds.

mod client;
mod config_space;
mod guard;
mod listener;
mod memory;
mod message;
mod server;
mod session;
mod stream;

pub use client::{connect, connect_on, connect_within};
pub use listener::{Listener, OWNER_ONLY};
pub use memory::{MAX_FILES, MAX_RANGES, Trust};
pub use server::{Ending, Event, ServeOptions, serve};
pub use stream::Stop;
