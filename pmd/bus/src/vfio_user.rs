//! The backing for a device model behind a vfio-user socket, the protocol by which virtual machine
//! monitors reach devices that other programs play.

mod client;

pub use client::{connect, connect_on, connect_within};
