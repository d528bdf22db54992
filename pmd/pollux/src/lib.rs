//! The Pollux poll-mode driver for mlx5 adapters, as an application embeds it.

#![forbid(unsafe_code)]

pub mod config;
mod device;
mod error;
pub mod gaps;

pub use config::{Config, MemoryConfig, Pages, PortSettings};
pub use device::{DeviceSpec, Setting};
pub use error::Error;
