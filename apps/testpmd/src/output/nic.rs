//! What a port's device counted since it started, and the rates since the last look.

use std::fmt;
use std::time::{Duration, Instant};

/// The counters of one port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NicStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that found no descriptor.
    pub rx_missed: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received in error.
    pub rx_errors: u64,
    /// Times that no buffer was to be had for a descriptor.
    pub rx_nombuf: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that the device failed to send.
    pub tx_errors: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

impl NicStats {
    /// What was counted after `base` was taken. A counter that was reset in between gives
    /// 0, never a number near 2^64.
    pub fn since(&self, base: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_sub(base.rx_packets),
            rx_missed: self.rx_missed.saturating_sub(base.rx_missed),
            rx_bytes: self.rx_bytes.saturating_sub(base.rx_bytes),
            rx_errors: self.rx_errors.saturating_sub(base.rx_errors),
            rx_nombuf: self.rx_nombuf.saturating_sub(base.rx_nombuf),
            tx_packets: self.tx_packets.saturating_sub(base.tx_packets),
            tx_errors: self.tx_errors.saturating_sub(base.tx_errors),
            tx_bytes: self.tx_bytes.saturating_sub(base.tx_bytes),
        }
    }
}

/// Packets and bits per second.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Packets received per second.
    pub rx_pps: u64,
    /// Bits received per second.
    pub rx_bps: u64,
    /// Packets sent per second.
    pub tx_pps: u64,
    /// Bits sent per second.
    pub tx_bps: u64,
}

impl Rates {
    /// The rates of what was counted within `time`; all 0 for an empty time.
    pub fn of(counted: &NicStats, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        let per_second = |n: u64| {
            if seconds > 0.0 {
                (n as f64 / seconds) as u64
            } else {
                0
            }
        };
        Self {
            rx_pps: per_second(counted.rx_packets),
            rx_bps: per_second(counted.rx_bytes).saturating_mul(8),
            tx_pps: per_second(counted.tx_packets),
            tx_bps: per_second(counted.tx_bytes).saturating_mul(8),
        }
    }
}

/// Remembers a port's last look, so that the next one can tell rates.
#[derive(Clone, Copy, Default, Debug)]
pub struct Meter {
    last: Option<(NicStats, Instant)>,
}

impl Meter {
    /// The rates since the last look; all 0 at the first.
    pub fn look(&mut self, stats: &NicStats, at: Instant) -> Rates {
        let rates = self.last.map_or(Rates::default(), |(before, then)| {
            Rates::of(&stats.since(&before), at.saturating_duration_since(then))
        });
        self.last = Some((*stats, at));
        rates
    }
}

/// The block of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicBlock {
    /// The port's number.
    pub port: u16,
    /// Its counters.
    pub stats: NicStats,
    /// Its rates.
    pub rates: Rates,
}

impl fmt::Display for NicBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let border = "#".repeat(24);
        let (s, r) = (&self.stats, &self.rates);
        writeln!(
            f,
            "\n  {border} NIC statistics for port {:<2} {border}",
            self.port
        )?;
        writeln!(
            f,
            "  RX-packets: {:<10} RX-missed: {:<10} RX-bytes:  {}",
            s.rx_packets, s.rx_missed, s.rx_bytes
        )?;
        writeln!(f, "  RX-errors: {}", s.rx_errors)?;
        writeln!(f, "  RX-nombuf:  {:<10}", s.rx_nombuf)?;
        writeln!(
            f,
            "  TX-packets: {:<10} TX-errors: {:<10} TX-bytes:  {}",
            s.tx_packets, s.tx_errors, s.tx_bytes
        )?;
        writeln!(f, "\n  Throughput (since last show)")?;
        writeln!(
            f,
            "  Rx-pps: {:12}          Rx-bps: {:12}\n  Tx-pps: {:12}          Tx-bps: {:12}",
            r.rx_pps, r.rx_bps, r.tx_pps, r.tx_bps
        )?;
        writeln!(f, "  {}", "#".repeat(76))
    }
}
