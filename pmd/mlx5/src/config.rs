//! What a port is asked for, and what it says of itself. Plain values.

use crate::init_segment::FirmwareVersion;
use crate::pages::PageOptions;
use pollux_bus::Identity;
use pollux_mempool::{NodeId, PageChoice, Pool};
use std::fmt;
use std::time::Duration;

/// How to open a port.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Number that the port's packets carry ([`pollux_mempool::Mbuf::port`]).
    pub number: u16,
    /// Node for all memory of the control plane and the rings; the function's own by default.
    pub node: Option<NodeId>,
    /// Pages for it.
    pub pages: PageChoice,
    /// Time after which a command has failed. Firmware may need seconds to start or stop a
    /// function; the Linux driver waits 60 s.
    pub command_deadline: Duration,
    /// Time that firmware may need to leave its initializing state.
    pub init_deadline: Duration,
    /// Have firmware sign the answers of commands, and check them.
    pub command_signatures: bool,
    /// How firmware's pages are served.
    pub firmware_pages: PageOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            number: 0,
            node: None,
            pages: PageChoice::BestEffort,
            command_deadline: Duration::from_secs(60),
            init_deadline: Duration::from_secs(120),
            command_signatures: false,
            firmware_pages: PageOptions::default(),
        }
    }
}

/// One receive queue.
#[derive(Clone, Debug)]
pub struct RxQueueConfig {
    /// Descriptors, one packet each: a power of two inside [`PortInfo::rx_descriptors`].
    pub descriptors: usize,
    /// Where its buffers come from.
    pub pool: Pool,
}

/// One transmit queue.
#[derive(Clone, Copy, Debug)]
pub struct TxQueueConfig {
    /// Descriptors (64-byte blocks; a packet of one buffer takes one): a power of two inside
    /// [`PortInfo::tx_descriptors`].
    pub descriptors: usize,
    /// Whether packets may be chains of buffers.
    pub chains: bool,
}

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct PortConfig {
    /// Receive queues. With several, packets are spread over them by a hash of addresses and
    /// ports; what is not IP goes to the first.
    pub rx: Vec<RxQueueConfig>,
    /// Transmit queues.
    pub tx: Vec<TxQueueConfig>,
    /// Largest IP packet in bytes; what the port has when not given.
    pub mtu: Option<usize>,
    /// Take every packet, whatever its destination.
    pub promiscuous: bool,
    /// Further pools whose packets may be sent; those of `rx` are known anyway.
    pub pools: Vec<Pool>,
}

/// Smallest and largest of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest.
    pub min: usize,
    /// Largest.
    pub max: usize,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it names a group of stations.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Who the function is; says also whether it is emulated.
    pub identity: Identity,
    /// Number that the port's packets carry.
    pub number: u16,
    /// The adapter's family.
    pub model: &'static str,
    /// Version of its firmware.
    pub firmware: FirmwareVersion,
    /// Board identity (PSID).
    pub board: String,
    /// The address that the adapter was made with.
    pub mac: MacAddress,
    /// The function had no address (a virtual one whose owner gave it none), so one was made up.
    pub mac_made_up: bool,
    /// What makes the port less than it could be, each a sentence: a model that is not known,
    /// optional capabilities that the adapter lacks, what its firmware says of its health.
    pub shortcomings: Vec<String>,
    /// Largest MTU in bytes.
    pub max_mtu: usize,
    /// Most receive queues.
    pub max_rx_queues: usize,
    /// Most transmit queues.
    pub max_tx_queues: usize,
    /// Descriptors of a receive queue.
    pub rx_descriptors: Limits,
    /// Descriptors of a transmit queue.
    pub tx_descriptors: Limits,
    /// Node that the control plane and the rings are on.
    pub node: Option<NodeId>,
}
