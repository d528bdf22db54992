//! The data side of the emulator: one thread that moves packets between queues and wires.
//!
//! [`DataPlane`] owns the thread and serves all functions of an emulator. Each function's command
//! side holds a [`DataPort`], through which it creates queues and rules. Queues live in tables of
//! this thread alone; what a packet needs is found by index.
//!
//! # Lifecycle
//! [`DataPlane::start`] opens the wires and starts the thread. A driver comes and goes by
//! [`DataPort::connect`] and [`DataPort::disconnect`]. Dropping the plane stops the thread, flushes
//! the wires and joins.

mod burst;
mod checksum;
pub mod clock;
mod command;
mod compose;
mod cq;
mod describe;
mod doorbell;
mod engine;
mod frame;
mod memory;
pub(crate) mod offload;
mod outlet;
pub mod port;
mod receiver;
pub mod request;
mod reshape;
mod ring;
mod rq;
mod rss;
mod slots;
mod sq;
pub mod steering;
mod thread;

pub use clock::DeviceClock;
pub use port::DataPort;
pub use request::*;
pub use steering::Steering;
pub use thread::DataPlane;

use crate::wire::{WireConfig, WireError};
use pollux_bus::DmaFault;
use pollux_mempool::Window;
use serde::Deserialize;

/// Most memory keys of a function.
pub const MAX_MKEYS: u32 = 1 << 16;

/// Receiver of a function's [`DataEvent`]s; runs on the data thread and must return at once.
pub type EventSink = Box<dyn Fn(DataEvent) + Send>;

/// What the data thread does when there is no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdlePolicy {
    /// Looks again at once, always.
    Spin,
    /// Looks again for a while, then gives the CPU away, then sleeps, longer and longer up to a
    /// millisecond. With one CPU allowed it gives the CPU away at once.
    #[default]
    Adaptive,
    /// Gives the CPU away after each look without work.
    Yield,
}

/// How a data plane is set up.
pub struct DataPlaneConfig {
    /// Send and arm records are read only after their doorbell, as a card does.
    pub strict: bool,
    /// CPU to pin the thread to.
    pub cpu: Option<usize>,
    /// See [`IdlePolicy`].
    pub idle: IdlePolicy,
    /// The functions, by number.
    pub functions: Vec<DataFunction>,
}

/// One function of a data plane.
pub struct DataFunction {
    /// The mapped UAR pages, 4096 bytes each.
    pub uars: Window,
    /// Number of the first of them, as ALLOC_UAR counts.
    pub first_uar: u32,
    /// Logarithm of a BlueFlame register's size (the capability).
    pub log_bf_reg_size: u32,
    /// What the device is able to do for packets.
    pub features: Features,
    /// Frequency of the timer that stamps completions, in kHz (the capability).
    pub frequency_khz: u32,
    /// What the port is plugged into.
    pub wire: WireConfig,
    /// Where the function's events go.
    pub events: EventSink,
}

/// Offloads that a model announces. What is not announced is refused or ignored as hardware
/// without it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// IPv4, TCP and UDP checksums on send (csum_cap).
    pub tx_checksum: bool,
    /// The sum in receive completions is over the whole frame (cqe_checksum_full).
    pub rx_checksum_full: bool,
    /// VLAN tag put in on send (wqe_vlan_insert).
    pub tx_vlan_insert: bool,
    /// Largest TCP payload to be cut into segments; 0 without (max_lso_cap).
    pub max_lso: u32,
}

/// Kinds of numbered objects, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Kind {
    Cq,
    Sq,
    Rq,
    Tir,
    Rqt,
    Mkey,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cq => "completion queue",
            Self::Sq => "send queue",
            Self::Rq => "receive queue",
            Self::Tir => "TIR",
            Self::Rqt => "RQT",
            Self::Mkey => "memory key",
        })
    }
}

/// Why the data side refused a request.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The data thread has ended, or does not answer.
    #[error("the emulator's data thread does not answer; it was stopped, or its process is")]
    Stopped,
    /// A driver is connected already.
    #[error("function {function} has a driver already; disconnect that one first")]
    Connected {
        /// The function.
        function: usize,
    },
    /// A function number out of range.
    #[error("function {function} does not exist, there are {there}")]
    Function {
        /// Asked for.
        function: usize,
        /// Present.
        there: usize,
    },
    /// The number is taken.
    #[error("{kind} {number:#x} exists already")]
    Exists {
        /// What.
        kind: Kind,
        /// Its number.
        number: u32,
    },
    /// There is no such object.
    #[error("{kind} {number:#x} does not exist")]
    Unknown {
        /// What.
        kind: Kind,
        /// Its number.
        number: u32,
    },
    /// A ring that does not add up.
    #[error(
        "the ring of {kind} {number:#x} needs {needed} bytes, its pages hold {there}, entries are 2^{log_entry} bytes (limits {limits})"
    )]
    Ring {
        /// What.
        kind: Kind,
        /// Its number.
        number: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        there: u64,
        /// Logarithm of an entry.
        log_entry: u32,
        /// What would do.
        limits: &'static str,
    },
    /// Memory that the function's host did not map.
    #[error("{kind} {number:#x}: {fault}")]
    Memory {
        /// What.
        kind: Kind,
        /// Its number.
        number: u32,
        /// Where.
        fault: DmaFault,
    },
    /// A key number beyond the table.
    #[error("memory key index {index:#x} is beyond the table of {limit}")]
    Key {
        /// Asked for.
        index: u32,
        /// Size of the table.
        limit: u32,
    },
    /// The configuration is no good.
    #[error("{what}")]
    Config {
        /// What is wrong and what would do.
        what: String,
    },
    /// A wire could not be set up.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was asked.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}
