//! The mlx5 adapter's wire formats: commands, contexts, WQEs, CQEs, EQEs.
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
