//! Everything about one port. Tools want one empty line before the block and none in it.

use std::fmt;

use super::{Mac, link_text, speed_text};

/// A ring's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLimits {
    /// Queues in use.
    pub queues: u16,
    /// Queues that the device can give.
    pub max_queues: u32,
    /// Most descriptors per queue.
    pub max_descriptors: u32,
    /// Fewest descriptors per queue.
    pub min_descriptors: u32,
    /// Descriptor counts must be multiples of this.
    pub alignment: u32,
}

/// The block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfoBlock {
    /// The port's number.
    pub port: u16,
    /// Its address.
    pub mac: Mac,
    /// The device's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// Firmware version, `None` when not available.
    pub firmware: Option<String>,
    /// The device string's part for this port.
    pub devargs: String,
    /// NUMA node of the device.
    pub socket: i32,
    /// NUMA node of the buffers.
    pub memory_socket: i32,
    /// Link state.
    pub link_up: Option<bool>,
    /// Link speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Both directions at once.
    pub full_duplex: bool,
    /// Speed was negotiated.
    pub autoneg: bool,
    /// Current MTU, as the device reports it.
    pub mtu: u32,
    /// Smallest MTU.
    pub min_mtu: u32,
    /// Largest MTU.
    pub max_mtu: u32,
    /// Frames to foreign addresses are received.
    pub promiscuous: bool,
    /// All multicast frames are received.
    pub all_multicast: bool,
    /// Unicast addresses that the port can have.
    pub max_mac_addresses: u32,
    /// Bytes of the RSS key, 0 without RSS.
    pub hash_key_size: u32,
    /// Entries of the RSS table, 0 without RSS.
    pub reta_size: u32,
    /// Names of the traffic types that RSS tells apart.
    pub rss_types: Vec<&'static str>,
    /// Smallest usable buffer.
    pub min_rx_buffer: u32,
    /// Longest frame.
    pub max_rx_frame: u32,
    /// Receive side.
    pub rx: RingLimits,
    /// Send side.
    pub tx: RingLimits,
    /// Segments that one packet to send may have.
    pub max_tx_segments: u32,
    /// One line of what else there is to say, e.g. that the device is emulated.
    pub private_info: String,
}

/// RSS type names per line.
const RSS_LINE: usize = 64;

impl fmt::Display for PortInfoBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |x: bool| if x { "enabled" } else { "disabled" };
        let border = "*".repeat(21);
        writeln!(f, "\n{border} Infos for port {:<2} {border}", self.port)?;
        writeln!(f, "MAC address: {}", self.mac)?;
        writeln!(f, "Device name: {}", self.name)?;
        writeln!(f, "Driver name: {}", self.driver)?;
        writeln!(
            f,
            "Firmware-version: {}",
            self.firmware.as_deref().unwrap_or("not available")
        )?;
        writeln!(f, "Devargs: {}", self.devargs)?;
        writeln!(f, "Connect to socket: {}", self.socket)?;
        writeln!(f, "memory allocation on the socket: {}", self.memory_socket)?;
        writeln!(f, "Link status: {}", link_text(self.link_up))?;
        writeln!(f, "Link speed: {}", speed_text(self.speed_mbps))?;
        let duplex = if self.full_duplex { "full" } else { "half" };
        writeln!(f, "Link duplex: {duplex}-duplex")?;
        let autoneg = if self.autoneg { "On" } else { "Off" };
        writeln!(f, "Autoneg status: {autoneg}")?;
        writeln!(f, "MTU: {}", self.mtu)?;
        writeln!(f, "Minimum MTU: {}", self.min_mtu)?;
        writeln!(f, "Maximum MTU: {}", self.max_mtu)?;
        writeln!(f, "Promiscuous mode: {}", on(self.promiscuous))?;
        writeln!(f, "Allmulticast mode: {}", on(self.all_multicast))?;
        writeln!(
            f,
            "Maximum number of MAC addresses: {}",
            self.max_mac_addresses
        )?;
        writeln!(f, "Maximum number of MAC addresses of hash filtering: 0")?;
        writeln!(f, "VLAN offload: ")?;
        writeln!(f, "  strip off, filter off, extend off, qinq strip off")?;
        if self.hash_key_size > 0 {
            writeln!(f, "Hash key size in bytes: {}", self.hash_key_size)?;
        }
        if self.reta_size > 0 {
            writeln!(f, "Redirection table size: {}", self.reta_size)?;
        }
        rss_types(f, &self.rss_types)?;
        writeln!(f, "Minimum size of RX buffer: {}", self.min_rx_buffer)?;
        writeln!(
            f,
            "Maximum configurable length of RX packet: {}",
            self.max_rx_frame
        )?;
        writeln!(f, "Maximum configurable size of LRO aggregated packet: 0")?;
        ring(f, "RX", &self.rx)?;
        ring(f, "TX", &self.tx)?;
        writeln!(f, "Max segment number per packet: {}", self.max_tx_segments)?;
        writeln!(
            f,
            "Max segment number per MTU/TSO: {}",
            self.max_tx_segments
        )?;
        writeln!(f, "Device capabilities: 0x0( )")?;
        writeln!(f, "Device error handling mode: none")?;
        writeln!(f, "Device private info:")?;
        writeln!(f, "  {}", self.private_info)
    }
}

fn ring(f: &mut fmt::Formatter<'_>, side: &str, r: &RingLimits) -> fmt::Result {
    writeln!(f, "Current number of {side} queues: {}", r.queues)?;
    writeln!(f, "Max possible {side} queues: {}", r.max_queues)?;
    writeln!(
        f,
        "Max possible number of {side}Ds per queue: {}",
        r.max_descriptors
    )?;
    writeln!(
        f,
        "Min possible number of {side}Ds per queue: {}",
        r.min_descriptors
    )?;
    writeln!(f, "{side}Ds number alignment: {}", r.alignment)
}

/// Two blanks before each name, a new line before the one that would pass the limit.
fn rss_types(f: &mut fmt::Formatter<'_>, names: &[&str]) -> fmt::Result {
    if names.is_empty() {
        return writeln!(f, "No RSS offload flow type is supported.");
    }
    writeln!(f, "Supported RSS offload flow types:")?;
    let mut line = 0;
    for name in names {
        if line > 0 && line + 2 + name.len() >= RSS_LINE {
            writeln!(f)?;
            line = 0;
        }
        write!(f, "  {name}")?;
        line += 2 + name.len();
    }
    writeln!(f)
}
