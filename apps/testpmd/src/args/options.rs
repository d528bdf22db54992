//! Options after `--`, and the `[testpmd]` table of a configuration file: the same
//! names, checked by the same code.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer};

use crate::output::Mac;

/// What is done with a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardMode {
    /// Out of the other port, untouched
    #[default]
    Io,
    /// Out of the other port, to the peer's address, from the port's own
    Mac,
    /// Out of the other port, source and destination address exchanged
    Macswap,
    /// Counted and dropped
    Rxonly,
    /// Nothing is received; packets made here are sent
    Txonly,
}

impl ForwardMode {
    /// The name that users type and tools read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Mac => "mac",
            Self::Macswap => "macswap",
            Self::Rxonly => "rxonly",
            Self::Txonly => "txonly",
        }
    }

    /// The mode polls receive queues.
    pub fn receives(self) -> bool {
        self != Self::Txonly
    }

    /// The mode fills transmit queues.
    pub fn sends(self) -> bool {
        self != Self::Rxonly
    }
}

impl fmt::Display for ForwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which port's packets leave by which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// 0 with 1, 2 with 3
    #[default]
    Paired,
    /// 0 to 1, 1 to 2, the last to 0
    Chained,
    /// Back out of the port they came from
    Loop,
}

/// The address that a port's neighbour has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthPeer {
    /// The port.
    pub port: u16,
    /// Its neighbour's address.
    pub mac: Mac,
}

impl FromStr for EthPeer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "give PORT,MAC, e.g. 0,02:00:00:00:00:01";
        let (port, mac) = text
            .split_once(',')
            .ok_or_else(|| format!("no comma; {FORM}"))?;
        Ok(Self {
            port: port
                .parse()
                .map_err(|_| format!("'{port}' is no port number; {FORM}"))?,
            mac: parse_mac(mac).ok_or_else(|| format!("'{mac}' is no MAC address; {FORM}"))?,
        })
    }
}

impl<'de> Deserialize<'de> for EthPeer {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Six hexadecimal pairs with colons or dashes between.
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(Mac(mac))
}

/// Events that DPDK's users mask; the only ones that exist here are changes of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
pub enum Event {
    /// The link went up or down
    #[value(name = "intr_lsc")]
    #[serde(rename = "intr_lsc")]
    LinkChange,
    /// All of them
    #[value(name = "all")]
    #[serde(rename = "all")]
    All,
}

/// The options. `None` and `false` mean: not given.
#[derive(Args, Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Options {
    /// Open a shell; without it forwarding starts at once
    #[arg(short = 'i', long)]
    pub interactive: bool,
    /// Start forwarding before the shell opens
    #[arg(short = 'a', long)]
    pub auto_start: bool,
    /// What to do with packets [default: io]
    #[arg(long, value_enum, value_name = "MODE")]
    pub forward_mode: Option<ForwardMode>,
    /// Which port's packets leave by which [default: paired]
    #[arg(long, value_enum, value_name = "TOPOLOGY")]
    pub port_topology: Option<Topology>,
    /// Forwarding cores, of those that -l leaves [default: 1]
    #[arg(long, value_name = "N")]
    pub nb_cores: Option<u64>,
    /// Receive queues per port [default: 1]
    #[arg(long, value_name = "N")]
    pub rxq: Option<u64>,
    /// Transmit queues per port [default: 1]
    #[arg(long, value_name = "N")]
    pub txq: Option<u64>,
    /// Descriptors per receive queue, a power of two [default: 512]
    #[arg(long, value_name = "N")]
    pub rxd: Option<u64>,
    /// Descriptors per transmit queue, a power of two [default: 512]
    #[arg(long, value_name = "N")]
    pub txd: Option<u64>,
    /// Packets per burst, 1 to 512 [default: 32]
    #[arg(long, value_name = "N")]
    pub burst: Option<u64>,
    /// Bytes per buffer, 128 of headroom included [default: 2176]
    #[arg(long, value_name = "BYTES")]
    pub mbuf_size: Option<u64>,
    /// Buffers [default: what rings, caches and bursts can hold at once, with some to spare]
    #[arg(long, value_name = "N")]
    pub total_num_mbufs: Option<u64>,
    /// Buffers that each core keeps at hand [default: 256]
    #[arg(long, value_name = "N")]
    pub mbcache: Option<u64>,
    /// Longest frame, 18 bytes of header and checksum included [default: what the port's MTU gives]
    #[arg(long, value_name = "BYTES")]
    pub max_pkt_len: Option<u64>,
    /// Length of the packets that txonly and --tx-first send [default: 64]
    #[arg(long, value_name = "BYTES")]
    pub txpkts: Option<u64>,
    /// Address of a port's neighbour, for mac and txonly [default: 02:00:00:00:00:PORT]
    #[arg(long, value_name = "PORT,MAC")]
    pub eth_peer: Vec<EthPeer>,
    /// Send one burst before forwarding (without a shell)
    #[arg(long)]
    pub tx_first: bool,
    /// Show the ports' statistics every so many seconds (without a shell)
    #[arg(long, value_name = "SECONDS")]
    pub stats_period: Option<u64>,
    /// Do not start the ports
    #[arg(long)]
    pub disable_device_start: bool,
    /// Do not wait for links after a port was started or stopped
    #[arg(long)]
    pub disable_link_check: bool,
    /// Measure cycles per packet (reads the clock in every turn)
    #[arg(long)]
    pub record_core_cycles: bool,
    /// Measure the gaps between polls (reads the clock in every turn)
    #[arg(long)]
    pub poll_gaps: bool,
    /// End when every capture was sent and forwarded
    #[arg(long)]
    pub until_drained: bool,
    /// End after so many seconds (without a shell)
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Show a progress bar (without a shell)
    #[arg(long)]
    pub progress: bool,
    /// Write what happened to a file at the end
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Shell commands from a file, before anything else; each is shown as it runs; may be repeated
    #[arg(long, value_name = "FILE")]
    pub cmdline_file: Vec<PathBuf>,
    /// The same, without showing them
    #[arg(long, value_name = "FILE")]
    pub cmdline_file_noecho: Vec<PathBuf>,
    /// One shell command, run after those of files; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub cmd: Vec<String>,
    /// Do not report this event
    #[arg(long, value_enum, value_name = "EVENT")]
    pub mask_event: Vec<Event>,
    /// Accepted for DPDK's users: memory is never locked here, it is populated instead
    #[arg(long)]
    pub no_mlockall: bool,
    /// Accepted for DPDK's users: receive queues are never flushed here
    #[arg(long)]
    pub no_flush_rx: bool,
}

macro_rules! first_given {
    ($ours:ident, $file:ident: option { $($o:ident)* } flag { $($b:ident)* } list { $($l:ident)* }) => {
        Options {
            $($o: $ours.$o.or($file.$o),)*
            $($b: $ours.$b || $file.$b,)*
            $($l: if $ours.$l.is_empty() { $file.$l } else { $ours.$l },)*
        }
    };
}

impl Options {
    /// These options where given, those of `file` elsewhere.
    pub fn or(self, file: Self) -> Self {
        let ours = self;
        first_given!(ours, file:
            option {
                forward_mode port_topology nb_cores rxq txq rxd txd burst mbuf_size
                total_num_mbufs mbcache max_pkt_len txpkts stats_period duration json
            }
            flag {
                interactive auto_start tx_first disable_device_start disable_link_check
                record_core_cycles poll_gaps until_drained progress no_mlockall no_flush_rx
            }
            list { eth_peer cmdline_file cmdline_file_noecho cmd mask_event })
    }
}
