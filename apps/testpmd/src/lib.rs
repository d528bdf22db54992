//! A packet forwarder with the command line that DPDK's users know.
#![forbid(unsafe_code)]

pub mod args;
pub mod commands;
pub mod forward;
pub mod grammar;
pub mod input;
pub mod output;
pub mod proof;
pub mod report;
pub mod screen;
pub mod settings;
