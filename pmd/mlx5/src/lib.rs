//! The mlx5 poll-mode driver proper.
//!
//! [`Port::open`] brings an adapter function up, [`Port::start`] makes its queues,
//! [`Port::take_rx`] and [`Port::take_tx`] hand them to whoever polls them. Everything that is
//! not a burst goes through the function's control thread, so that nothing the control plane
//! does stalls a core that moves packets.
#![forbid(unsafe_code)]

mod bringup;
mod capability;
mod command;
mod config;
mod control;
pub mod counters;
mod dma;
mod eq;
mod error;
mod family;
pub mod gate;
mod health;
mod init_segment;
mod link;
mod link_trouble;
mod memory_key;
mod needs;
mod pages;
mod port;
mod queues;
pub mod regions;
mod rings;
pub mod rx;
mod shelf;
mod stack;
mod stats;
mod steering;
pub mod tx;
mod uars;
mod vport;
mod work_queue;

pub use capability::InlineMode;
pub use command::CommandError;
pub use config::{
    Limits, MacAddress, OpenOptions, PortConfig, PortInfo, RxQueueConfig, TxQueueConfig,
};
pub use control::EventCounts;
pub use error::{CommandFailure, Error};
pub use gate::{Cause, QueueFailure};
pub use health::Fault;
pub use init_segment::FirmwareVersion;
pub use link::{Duplex, Link};
pub use link_trouble::LinkTrouble;
#[cfg(feature = "bench")]
pub use pages::bench::{HostSide, HostStep};
pub use pages::{
    FunctionKey, FunctionPages, MAX_PAGES_PER_STEP, PageBacking, PageCounts, PageMemoryReport,
    PageOptions, PageReport, StepCost, StepTimes,
};
pub use port::{CloseReport, Ending, Port, PortWatch};
pub use rx::RxQueue;
pub use stats::{DeviceStats, PortStats, RxQueueStats, TxQueueStats};
pub use tx::TxQueue;
