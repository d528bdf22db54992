//! A port's counters by name, one per line.

use std::fmt;

use super::nic::NicStats;

/// Counters of one queue.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets in error; shown for receive queues only.
    pub errors: u64,
}

/// The block of one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XstatsBlock {
    /// The port's number.
    pub port: u16,
    /// The port's sums.
    pub stats: NicStats,
    /// Receive queues by number.
    pub rx: Vec<QueueStats>,
    /// Transmit queues by number.
    pub tx: Vec<QueueStats>,
}

impl fmt::Display for XstatsBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.stats;
        // The blank before the line's end is part of the format.
        writeln!(
            f,
            "###### NIC extended statistics for port {:<2}",
            self.port
        )?;
        for (name, value) in [
            ("rx_good_packets", s.rx_packets),
            ("tx_good_packets", s.tx_packets),
            ("rx_good_bytes", s.rx_bytes),
            ("tx_good_bytes", s.tx_bytes),
            ("rx_missed_errors", s.rx_missed),
            ("rx_errors", s.rx_errors),
            ("tx_errors", s.tx_errors),
            ("rx_mbuf_allocation_errors", s.rx_nombuf),
        ] {
            writeln!(f, "{name}: {value}")?;
        }
        for (i, q) in self.rx.iter().enumerate() {
            writeln!(f, "rx_q{i}_packets: {}", q.packets)?;
            writeln!(f, "rx_q{i}_bytes: {}", q.bytes)?;
            writeln!(f, "rx_q{i}_errors: {}", q.errors)?;
        }
        for (i, q) in self.tx.iter().enumerate() {
            writeln!(f, "tx_q{i}_packets: {}", q.packets)?;
            writeln!(f, "tx_q{i}_bytes: {}", q.bytes)?;
        }
        Ok(())
    }
}
