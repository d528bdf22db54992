//! The data side of the emulator, driven through [`pollux_emu::data::DataPort`] by hand-made
//! descriptors: no driver takes part.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod captures;
mod completion;
mod doorbell;
mod interfaces;
mod joint;
mod kernel;
mod memory;
mod mixes;
mod moderation;
mod queues;
mod receive;
mod rig;
mod send;
mod spread;
mod steer;
