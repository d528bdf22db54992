//! The mlx5 poll-mode driver proper.
#![forbid(unsafe_code)]

pub mod counters;
pub mod gate;
pub mod regions;
pub mod rx;
pub mod tx;
