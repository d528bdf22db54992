//! The statistics of a forwarding run: per stream, per port, and all ports together.
//!
//! Tools find a section by its title and its border line, and take the 2nd, 4th and 6th
//! word of each line in between: so the lines for errors and missing buffers appear only
//! when they count something.

use std::fmt;

const BORDER: &str = "----------------------";
const ACCUMULATED: &str = "+++++++++++++++";

/// What one stream did since forwarding started or its statistics were cleared.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StreamStats {
    /// Port and queue received from.
    pub rx: (u16, u16),
    /// Port and queue sent to.
    pub tx: (u16, u16),
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that the transmit queue accepted.
    pub tx_packets: u64,
    /// Packets that it did not accept, dropped by the loop.
    pub dropped: u64,
}

/// What one port's device counted in the same time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PortStats {
    /// The port's number.
    pub port: u16,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that found no descriptor.
    pub rx_missed: u64,
    /// Packets received in error.
    pub rx_errors: u64,
    /// Times that a descriptor could not be refilled for want of a buffer.
    pub rx_nombuf: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets lost on the way out: refused by the queue or failed in the device.
    pub tx_dropped: u64,
}

/// Cycles spent in turns that moved packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BusyCycles {
    /// Cycles in busy turns, all cores together.
    pub cycles: u64,
    /// The forwarding mode's name.
    pub mode: &'static str,
    /// True for a mode that only sends: its packets are the sent ones.
    pub sends_only: bool,
    /// The counter's frequency.
    pub mhz: u64,
}

/// The whole block.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ForwardReport {
    /// Streams in their order; shown when there are more of them than ports.
    pub streams: Vec<StreamStats>,
    /// Ports in the order of forwarding.
    pub ports: Vec<PortStats>,
    /// Present when cycles were recorded.
    pub busy: Option<BusyCycles>,
}

impl ForwardReport {
    /// All ports together; the port number has no meaning.
    pub fn total(&self) -> PortStats {
        self.ports
            .iter()
            .fold(PortStats::default(), |sum, p| PortStats {
                port: 0,
                rx_packets: sum.rx_packets.saturating_add(p.rx_packets),
                rx_missed: sum.rx_missed.saturating_add(p.rx_missed),
                rx_errors: sum.rx_errors.saturating_add(p.rx_errors),
                rx_nombuf: sum.rx_nombuf.saturating_add(p.rx_nombuf),
                tx_packets: sum.tx_packets.saturating_add(p.tx_packets),
                tx_dropped: sum.tx_dropped.saturating_add(p.tx_dropped),
            })
    }

    /// Cycles per packet, and the packets counted; `None` when nothing was recorded or moved.
    pub fn cycles_per_packet(&self) -> Option<(f64, u64)> {
        let busy = self.busy.as_ref()?;
        let total = self.total();
        let packets = if busy.sends_only {
            total.tx_packets
        } else {
            total.rx_packets
        };
        (packets > 0).then(|| (busy.cycles as f64 / packets as f64, packets))
    }
}

impl fmt::Display for ForwardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.streams.len() > self.ports.len() {
            for s in &self.streams {
                stream(f, s)?;
            }
        }
        for p in &self.ports {
            port(f, p)?;
        }
        let t = self.total();
        writeln!(
            f,
            "\n  {ACCUMULATED} Accumulated forward statistics for all ports{ACCUMULATED}"
        )?;
        lines(f, &t, false)?;
        writeln!(f, "  {}", "+".repeat(76))?;
        if let (Some(busy), Some((per_packet, packets))) = (&self.busy, self.cycles_per_packet()) {
            writeln!(
                f,
                "\n  CPU cycles/packet={per_packet:.2} (busy cycles={} / total {} packets={packets}) at {} MHz Clock",
                busy.cycles, busy.mode, busy.mhz
            )?;
        }
        Ok(())
    }
}

fn stream(f: &mut fmt::Formatter<'_>, s: &StreamStats) -> fmt::Result {
    if s.rx_packets == 0 && s.tx_packets == 0 && s.dropped == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "\n  ------- Forward Stats for RX Port={:2}/Queue={:2} -> TX Port={:2}/Queue={:2} -------",
        s.rx.0, s.rx.1, s.tx.0, s.tx.1
    )?;
    writeln!(
        f,
        "  RX-packets: {:<14} TX-packets: {:<14} TX-dropped: {:<14}",
        s.rx_packets, s.tx_packets, s.dropped
    )
}

fn port(f: &mut fmt::Formatter<'_>, p: &PortStats) -> fmt::Result {
    writeln!(
        f,
        "\n  {BORDER} Forward statistics for port {:<2} {BORDER}",
        p.port
    )?;
    lines(f, p, true)?;
    writeln!(f, "  {}", "-".repeat(76))
}

fn lines(f: &mut fmt::Formatter<'_>, p: &PortStats, one_port: bool) -> fmt::Result {
    writeln!(
        f,
        "  RX-packets: {:<14} RX-dropped: {:<14}RX-total: {}",
        p.rx_packets,
        p.rx_missed,
        p.rx_packets.saturating_add(p.rx_missed)
    )?;
    if one_port && p.rx_errors.saturating_add(p.rx_nombuf) > 0 {
        writeln!(f, "  RX-error: {}", p.rx_errors)?;
        writeln!(f, "  RX-nombufs: {:<14}", p.rx_nombuf)?;
    }
    writeln!(
        f,
        "  TX-packets: {:<14} TX-dropped: {:<14}TX-total: {}",
        p.tx_packets,
        p.tx_dropped,
        p.tx_packets.saturating_add(p.tx_dropped)
    )?;
    if !one_port && p.rx_nombuf > 0 {
        writeln!(f, "  RX-nombufs: {:<14}", p.rx_nombuf)?;
    }
    Ok(())
}
