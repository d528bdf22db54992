//! Memory for a poll-mode driver: mapped segments, hugepages, NUMA placement, rings,
//! pools and packet buffers.
//!
//! Nearly all `unsafe` of the project lives in this crate, a module at a time, each with
//! its reason. What other crates see is safe:
//!
//! - [`segment`]: mappings (hugepages, ordinary pages, received ones);
//! - [`foreign`]: the three ways to touch memory that somebody else may write;
//! - [`barrier`], [`cycles`], [`page`]: what depends on the processor;
//! - [`topology`], [`lcore`]: nodes and CPUs, threads and their places;
//! - [`ring`], [`pool`], [`mbuf`], [`burst`], [`in_flight`]: packet buffers and how they travel.

pub mod barrier;
pub mod burst;
mod cgroup;
pub mod cycles;
pub mod error;
pub mod foreign;
pub mod in_flight;
pub mod lcore;
pub mod mbuf;
pub mod page;
pub mod pool;
mod raw_copy;
pub mod ring;
pub mod segment;
mod sync;
pub mod topology;

pub use burst::Burst;
pub use error::MemoryError;
pub use foreign::{Cells, CellsRef, Window, Word8, Word16, Word32, Word64};
pub use in_flight::InFlight;
pub use lcore::{Lcore, LcoreGuard};
pub use mbuf::{Mbuf, RxMeta};
pub use page::{FIRMWARE_PAGE, PageSize};
pub use pool::{Pool, PoolConfig, PoolStats};
pub use segment::{PageChoice, Segment, SegmentRequest};
pub use topology::NodeId;
