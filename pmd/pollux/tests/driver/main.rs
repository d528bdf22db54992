//! The driver against the software adapter, in this process, in another, and in another behind
//! vfio-user: every test runs over all three, so that nothing but bytes, stores and interrupts can pass between the two.
//! What a real adapter would see is what the emulator sees; what it counts is what tests ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

mod bringup;
mod cards;
mod faults;
mod harness;
mod running;
mod traffic;
