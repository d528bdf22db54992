//! Memory for a poll-mode driver: mapped segments, hugepages, NUMA placement, rings,
//! pools and packet buffers.
//!
//! Nearly all `unsafe` of the project lives in this crate, a module at a time, each with
//! its reason. What other crates see is safe:
//!
//! - [`segment`]: mappings (hugepages, ordinary pages, received ones);
//! - [`foreign`]: the three ways to touch memory that somebody else may write;
//! - [`barrier`], [`cycles`], [`page`]: what depends on the processor;
//! - [`topology`]: nodes, CPUs and where memory is.

pub mod barrier;
mod cgroup;
pub mod cycles;
pub mod error;
pub mod foreign;
pub mod page;
mod raw_copy;
pub mod segment;
pub mod topology;

pub use error::MemoryError;
pub use foreign::{Cells, Window, Word8, Word16, Word32, Word64};
pub use page::{FIRMWARE_PAGE, PageSize};
pub use segment::{PageChoice, Segment, SegmentRequest};
pub use topology::NodeId;
