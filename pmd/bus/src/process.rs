//! The backing for a device model that lives in another process.
//!
//! The two processes hold the ends of one `SOCK_SEQPACKET` socket pair. The driver asks, the
//! device answers; the device never asks. Mapped register pages and DMA memory are files that
//! travel with the messages, interrupts are eventfds that travel once, so that traffic itself
//! crosses no socket. A load from a trapped register is a round trip, a store is posted: it is
//! behind all earlier messages, and nothing is said when it is lost, as on a bus.
//!
//! # Lifecycle
//!
//! The device's process runs [`serve`] for each connection; the driver's calls [`connect`]. When
//! the driver drops its function, or dies, the device is disconnected and forgets its memory
//! before the socket closes. So a closed socket proves to the driver that nobody touches its
//! memory any more, while a silent one proves nothing: memory stays mapped then.
//!
//! # Trust
//!
//! Either side may be broken. Kinds, lengths, counts, offsets and descriptors are checked where
//! they arrive; an answer that does not come within the deadline, or makes no sense, ends the
//! connection: loads then read all ones, as from a card that was pulled.

mod client;
mod message;
mod server;
mod socket;

pub use client::{connect, connect_within};
pub use server::{Ending, serve};
pub use socket::pair;
