//! A software ConnectX function: the mlx5 wire formats from the device's side.

#![forbid(unsafe_code)]

pub mod data;
pub mod wire;
