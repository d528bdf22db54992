//! The mlx5 adapter's wire formats: commands, contexts, WQEs, CQEs, EQEs.
#![forbid(unsafe_code)]

mod bits;
pub mod command;
pub mod commands;
pub mod layout;
pub mod opcode;
pub mod open_enum;
mod rows;

pub use command::Command;
pub use layout::{FieldTooWide, Layout, SetFieldError};
