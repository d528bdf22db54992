//! The driver on the software ConnectX: bring-up, traffic, faults. What a real adapter would see is
//! what the emulator sees; what it counts at the end is what these tests ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails loudly

mod bringup;
mod faults;
mod traffic;
mod world;
