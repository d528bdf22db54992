//! A packet forwarder with the command line that DPDK's users know.
//!
//! [`app`] is the program. What it is told comes from [`args`] and a file, checked by
//! [`settings`]; [`session`] holds the ports, [`forwarding`] a run of the cores in
//! [`forward`], [`commands`] what [`grammar`] understands, [`output`] the blocks that tools
//! parse. [`proof`] is another program's, which judges captures.
#![forbid(unsafe_code)]

pub mod app;
pub mod args;
pub mod commands;
pub mod drain;
pub mod forward;
pub mod forwarding;
pub mod grammar;
pub mod input;
pub mod output;
pub mod progress;
pub mod proof;
pub mod report;
pub mod screen;
pub mod session;
pub mod settings;
pub mod watch;
