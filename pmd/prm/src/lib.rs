//! The mlx5 adapter's wire formats: commands, contexts, WQEs, CQEs, EQEs.
//!
//! Driver and device model both speak through these layouts and share nothing else. Every layout
//! is a table ([`layout`]) from which type, accessors and field list are made; the tables are
//! held against the C headers of kernel and rdma-core, against golden bytes, and against
//! commands recorded from a real adapter.
//!
//! - [`command`], [`commands`]: what the firmware is asked, by family; [`opcode`]
//! - [`command_queue`]: how a command travels: registers, entries, mailboxes, signatures
//! - [`event`], [`completion`], [`wqe`]: the queues; the latter two have whole-word forms for
//!   the data path
//! - [`catalog`]: all of it as data
//!
//! Layouts are values. Nothing here points into memory that a device may write: callers copy
//! bytes out, look at them, and copy bytes in.
#![forbid(unsafe_code)]

mod bits;
pub mod catalog;
pub mod command;
pub mod command_queue;
pub mod commands;
pub mod completion;
pub mod event;
pub mod layout;
pub mod opcode;
pub mod open_enum;
#[cfg(feature = "recording")]
pub mod recording;
mod rows;
mod table;
pub mod wqe;

pub use command::Command;
pub use layout::{FieldTooWide, Layout, SetFieldError};
