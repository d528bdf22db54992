//! The report that `--json` writes: what ran, on what, and what came of it. Meant for
//! programs; fields are added, never renamed.

use std::path::Path;

use serde::Serialize;

use crate::output::device::DeviceBlock;
use crate::output::forward::{ForwardReport, PortStats};
use crate::output::gaps::CoreGaps;

/// The whole file.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Report {
    /// `pollux-testpmd`.
    pub program: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Some port is emulated: its figures say nothing about an adapter's.
    pub emulated: bool,
    /// The device strings.
    pub devices: Vec<String>,
    /// One per pool.
    pub memory: Vec<Memory>,
    /// One per port.
    pub ports: Vec<Port>,
    /// The forwarding mode.
    pub mode: &'static str,
    /// Packets per burst.
    pub burst: usize,
    /// The last run.
    pub run: Option<Run>,
    /// What the emulator's wires did.
    pub wires: Vec<Wire>,
}

/// One pool.
#[derive(Clone, Serialize, Debug)]
pub struct Memory {
    /// Its name.
    pub pool: String,
    /// Buffers.
    pub mbufs: usize,
    /// Bytes mapped.
    pub bytes: u64,
    /// Bytes per page.
    pub page_bytes: u64,
    /// NUMA node.
    pub node: i32,
}

/// One port.
#[derive(Clone, Serialize, Debug)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// Model.
    pub model: String,
    /// Firmware version.
    pub firmware: String,
    /// Address.
    pub mac: String,
    /// It is software.
    pub emulated: bool,
}

/// One run from start to stop.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Run {
    /// Seconds in which packets moved.
    pub seconds: f64,
    /// Packets received by all streams.
    pub rx_packets: u64,
    /// Packets sent by all streams.
    pub tx_packets: u64,
    /// Packets that transmit queues refused.
    pub dropped: u64,
    /// Packets forwarded per second.
    pub packets_per_second: f64,
    /// What the ports counted.
    pub ports: Vec<PortRun>,
    /// Cycles per packet, when recorded.
    pub cycles_per_packet: Option<f64>,
    /// Gaps between polls, when recorded.
    pub poll_gaps: Vec<Gaps>,
}

/// One port's part of a run.
#[derive(Clone, Serialize, Debug)]
pub struct PortRun {
    /// The port.
    pub port: u16,
    /// Received.
    pub rx_packets: u64,
    /// Found no descriptor.
    pub rx_missed: u64,
    /// In error.
    pub rx_errors: u64,
    /// Refills without a buffer.
    pub rx_nombuf: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Lost on the way out.
    pub tx_dropped: u64,
}

impl From<&PortStats> for PortRun {
    fn from(p: &PortStats) -> Self {
        Self {
            port: p.port,
            rx_packets: p.rx_packets,
            rx_missed: p.rx_missed,
            rx_errors: p.rx_errors,
            rx_nombuf: p.rx_nombuf,
            tx_packets: p.tx_packets,
            tx_dropped: p.tx_dropped,
        }
    }
}

/// One core's gaps, in nanoseconds.
#[derive(Clone, Serialize, Debug)]
pub struct Gaps {
    /// CPU.
    pub cpu: usize,
    /// The core shares its CPU with the emulator.
    pub yields: bool,
    /// Gaps counted.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub longest_ns: u64,
    /// Time in gaps above 10 us, in ppm.
    pub lost_ppm: u64,
    /// Seconds observed.
    pub seconds: f64,
}

impl From<&CoreGaps> for Gaps {
    fn from(g: &CoreGaps) -> Self {
        let ns = |t: std::time::Duration| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX);
        Self {
            cpu: g.cpu,
            yields: g.yields,
            count: g.count,
            p50_ns: ns(g.p50),
            p99_ns: ns(g.p99),
            p999_ns: ns(g.p999),
            longest_ns: ns(g.longest),
            lost_ppm: g.lost_ppm,
            seconds: g.observed.as_secs_f64(),
        }
    }
}

/// One wire of an emulator.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Wire {
    /// The port that it is plugged into.
    pub port: u16,
    /// Kind and files.
    pub what: String,
    /// The capture that it plays.
    pub input: Option<String>,
    /// The capture that it writes.
    pub output: Option<String>,
    /// Frames from the wire that reached a receive queue.
    pub frames_in: u64,
    /// Frames that the port sent.
    pub frames_out: u64,
    /// Frames that no receive queue got.
    pub dropped: u64,
    /// Every frame of the input was delivered or dropped.
    pub drained: bool,
    /// Frames of the input that were too large.
    pub oversize_count: u64,
    /// The longest frame that would have been taken, when some were too large.
    pub oversize_limit: Option<u32>,
    /// The first of them.
    pub oversize: Vec<Oversize>,
    /// Why frames were not written.
    pub output_error: Option<String>,
}

/// A frame that was too large.
#[derive(Clone, Serialize, Debug)]
pub struct Oversize {
    /// Its number in the capture, from 1.
    pub packet: u64,
    /// Its length.
    pub bytes: u32,
}

impl Report {
    /// Takes what the device block shows.
    pub fn describe(&mut self, devices: &[String], block: &DeviceBlock) {
        self.program = "pollux-testpmd";
        self.version = env!("CARGO_PKG_VERSION");
        self.devices = devices.to_vec();
        self.emulated = block.functions.iter().any(|f| f.emulated);
        self.memory = block
            .memory
            .iter()
            .map(|m| Memory {
                pool: m.pool.clone(),
                mbufs: m.mbufs,
                bytes: m.bytes,
                page_bytes: m.page,
                node: m.node,
            })
            .collect();
        self.ports = block
            .functions
            .iter()
            .map(|f| Port {
                port: f.port,
                model: f.model.clone(),
                firmware: f.firmware.clone(),
                mac: f.mac.to_string(),
                emulated: f.emulated,
            })
            .collect();
    }

    /// Writes the file.
    ///
    /// # Errors
    /// One line: the file and the reason.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| {
            format!(
                "--json={}: {e}; give a file that can be written",
                path.display()
            )
        })
    }
}

impl Run {
    /// Takes what the statistics show.
    pub fn count(&mut self, forward: &ForwardReport) {
        self.ports = forward.ports.iter().map(PortRun::from).collect();
        for s in &forward.streams {
            self.rx_packets += s.rx_packets;
            self.tx_packets += s.tx_packets;
            self.dropped += s.dropped;
        }
        self.cycles_per_packet = forward.cycles_per_packet().map(|(c, _)| c);
    }
}
