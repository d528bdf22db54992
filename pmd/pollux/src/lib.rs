//! The Pollux poll-mode driver for mlx5 adapters, as an application embeds it.
//!
//! ```no_run
//! use pollux::{Burst, Config, Pollux};
//!
//! let config = Config { devices: vec!["emu:ports=2,wire=pair".into()], ..Config::default() };
//! let pollux = Pollux::open(&config)?;
//! let port = pollux.port(0)?;
//! port.start()?;
//! let (mut rx, mut tx) = (port.take_rx(0)?, port.take_tx(0)?);
//! let lcore = pollux.spawn(pollux.lcores()[0], move |lcore| {
//!     let mut burst = Burst::with_capacity(pollux::BURST);
//!     while lcore.running() {
//!         if rx.burst(&mut burst) == 0 {
//!             lcore.idle();
//!         }
//!         tx.burst(&mut burst);
//!         burst.clear();
//!     }
//! })?;
//! lcore.stop();
//! lcore.join()?;
//! pollux.close()?;
//! # Ok::<(), pollux::Error>(())
//! ```
//!
//! A device is chosen by one string ([`DeviceSpec`]); a [`Config`] is a value or a TOML file.
//! Queues belong to one core at a time and may go to an lcore of [`Pollux::spawn`] or to any
//! thread. Their bursts are the only calls for a loop that polls; all others may wait.

#![forbid(unsafe_code)]

pub mod config;
mod device;
#[cfg(feature = "emu")]
mod emulator;
mod error;
pub mod gaps;
mod lcore;
mod pollux;
mod port;

pub use config::{Config, FirmwareConfig, MemoryConfig, Pages, PortSettings};
pub use device::{DeviceSpec, Setting};
#[cfg(feature = "emu")]
pub use emulator::EmulatorHandle;
pub use error::Error;
pub use lcore::{Lcore, LcoreHandle};
pub use pollux::{CloseReport, Pollux, PoolSummary};
pub use port::Port;

#[cfg(feature = "emu")]
pub use pollux_emu::wire::WireReport;
pub use pollux_mempool::{Burst, Mbuf, NodeId, PageSize, Pool, PoolConfig};
pub use pollux_mlx5::{
    Duplex, Ending, FunctionKey, FunctionPages, Limits, Link, LinkTrouble, MacAddress, PageReport,
    PortInfo, PortStats, PortWatch, QueueFailure, RxQueue, StepCost, StepTimes, TxQueue,
};

/// Packets in a usual burst, for which pools are sized.
pub const BURST: usize = 64;
