//! A software ConnectX function: the mlx5 wire formats from the device's side.
//!
//! An [`Emulator`] is one or more functions, each with a thread that plays its firmware, and one
//! thread that moves packets between their queues and wires. A driver reaches a function through a
//! backing of `pollux-bus` only: bytes in mapped memory, register loads and stores, interrupts.
//!
//! What a model is and announces is data ([`profile`]); what is not announced is refused, and each
//! refusal says why ([`syndrome`]). Tests ask for [`faults`], and for a [`card`] that is not as it should
//! be.

#![forbid(unsafe_code)]

pub mod card;
mod command_queue;
pub mod config;
pub mod control;
pub mod data;
mod emulator;
mod error;
mod events;
pub mod faults;
pub mod fields;
mod firmware;
mod function;
mod init_segment;
pub mod objects;
pub mod observe;
pub mod profile;
pub mod storm;
pub mod syndrome;
pub mod wire;

pub use card::{Less, Module, Starting};
pub use config::{EmulatorConfig, FunctionConfig};
pub use emulator::Emulator;
pub use error::EmuError;
pub use firmware::{CommandShape, command_shapes};
pub use function::FunctionReport;
pub use profile::Model;
