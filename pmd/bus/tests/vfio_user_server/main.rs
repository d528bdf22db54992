//! The vfio-user server against clients of all kinds: honest, strange, broken and hostile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

#[path = "../fake/mod.rs"]
#[allow(dead_code)] // other tests use the rest
mod fake;

mod config_space;
mod dma;
mod hostile;
mod interrupts;
mod listener;
mod raw;
mod regions;
mod stranger;
