//! Statistics of a port, with the names of `rte_eth_stats`.
//!
//! Packets and bytes are what the queues' cores handed over, so a restart of the port does not
//! lose them; missed packets are the device's count. Values only grow; a reset keeps what they
//! were and shows the difference, so nothing ever wraps and no running queue is touched.

use crate::control::Control;
use crate::counters::{RxCounters, TxCounters};
use crate::error::Error;
use pollux_prm::command::Command;
use pollux_prm::commands::counters::QueryQCounter;
use pollux_prm::commands::vport::{QueryVportCounter, TrafficCounter};

/// Statistics of a receive queue since the last reset, or since its port was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets handed to the application.
    pub packets: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Packets dropped for an error of theirs.
    pub errors: u64,
    /// Times that a descriptor got no buffer because the pool was empty.
    pub no_buffer: u64,
}

/// Statistics of a transmit queue since the last reset, or since its port was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxQueueStats {
    /// Packets given to the device.
    pub packets: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Packets that could not be sent as they were, or were lost when the queue failed.
    pub errors: u64,
}

/// What the device's virtual port counted. Bytes are as the device counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

/// Statistics of a port since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets handed to the application.
    pub ipackets: u64,
    /// Packets given to the device.
    pub opackets: u64,
    /// Bytes of `ipackets`.
    pub ibytes: u64,
    /// Bytes of `opackets`.
    pub obytes: u64,
    /// Packets that the device dropped because no descriptor had a buffer.
    pub imissed: u64,
    /// Packets dropped for an error of theirs.
    pub ierrors: u64,
    /// Packets that could not be sent, or were lost when a queue failed.
    pub oerrors: u64,
    /// Times that a descriptor got no buffer because the pool was empty.
    pub rx_nombuf: u64,
    /// By receive queue.
    pub rx: Vec<RxQueueStats>,
    /// By transmit queue.
    pub tx: Vec<TxQueueStats>,
    /// By the device itself.
    pub device: DeviceStats,
}

impl RxQueueStats {
    fn read(counters: &RxCounters) -> Self {
        Self {
            packets: counters.packets.get(),
            bytes: counters.bytes.get(),
            errors: counters.errors.get(),
            no_buffer: counters.no_buffer.get(),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
            errors: self.errors.saturating_sub(other.errors),
            no_buffer: self.no_buffer.saturating_sub(other.no_buffer),
        }
    }
}

impl TxQueueStats {
    fn read(counters: &TxCounters) -> Self {
        Self {
            packets: counters.packets.get(),
            bytes: counters.bytes.get(),
            errors: counters.refused.get().wrapping_add(counters.failed.get()),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
            errors: self.errors.saturating_sub(other.errors),
        }
    }
}

impl DeviceStats {
    fn minus(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_sub(other.rx_packets),
            rx_bytes: self.rx_bytes.saturating_sub(other.rx_bytes),
            tx_packets: self.tx_packets.saturating_sub(other.tx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(other.tx_bytes),
            rx_errors: self.rx_errors.saturating_sub(other.rx_errors),
            tx_errors: self.tx_errors.saturating_sub(other.tx_errors),
        }
    }
}

/// A device counter of 32 bits, carried on in 64.
#[derive(Clone, Copy, Debug, Default)]
struct Extended {
    last: u32,
    total: u64,
}

impl Extended {
    fn update(&mut self, now: u32) -> u64 {
        self.total = self
            .total
            .wrapping_add(u64::from(now.wrapping_sub(self.last)));
        self.last = now;
        self.total
    }
}

/// What the device counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Packets that found no descriptor, where it has a set for that.
    pub(crate) counter_set: Option<u8>,
    /// What passed its virtual port.
    pub(crate) port: bool,
}

/// What a port remembers to show statistics.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Totals of queues of earlier starts.
    retired: PortStats,
    /// Totals at the last reset.
    baseline: PortStats,
    out_of_buffer: Extended,
}

/// Adds the queues' values to the totals.
fn add(totals: &mut PortStats, rx: &[RxQueueStats], tx: &[TxQueueStats]) {
    for queue in rx {
        totals.ipackets += queue.packets;
        totals.ibytes += queue.bytes;
        totals.ierrors += queue.errors;
        totals.rx_nombuf += queue.no_buffer;
    }
    for queue in tx {
        totals.opackets += queue.packets;
        totals.obytes += queue.bytes;
        totals.oerrors += queue.errors;
    }
}

impl Ledger {
    /// Everything since the port was opened.
    fn totals(
        &mut self,
        control: &Control,
        counts: Counts,
        rx: &[&RxCounters],
        tx: &[&TxCounters],
    ) -> Result<PortStats, Error> {
        let mut totals = self.retired.clone();
        totals.rx = rx
            .iter()
            .map(|counters| RxQueueStats::read(counters))
            .collect();
        totals.tx = tx
            .iter()
            .map(|counters| TxQueueStats::read(counters))
            .collect();
        let (rx, tx) = (totals.rx.clone(), totals.tx.clone());
        add(&mut totals, &rx, &tx);
        if let Some(set) = counts.counter_set {
            totals.imissed = self.out_of_buffer.update(out_of_buffer(control, set)?);
        }
        if counts.port {
            totals.device = device(control)?;
        }
        Ok(totals)
    }

    /// Statistics since the last reset.
    ///
    /// # Errors
    /// The device does not answer.
    pub(crate) fn read(
        &mut self,
        control: &Control,
        counts: Counts,
        rx: &[&RxCounters],
        tx: &[&TxCounters],
    ) -> Result<PortStats, Error> {
        let now = self.totals(control, counts, rx, tx)?;
        let base = &self.baseline;
        let rx_base = base
            .rx
            .iter()
            .copied()
            .chain(std::iter::repeat(RxQueueStats::default()));
        let tx_base = base
            .tx
            .iter()
            .copied()
            .chain(std::iter::repeat(TxQueueStats::default()));
        Ok(PortStats {
            ipackets: now.ipackets.saturating_sub(base.ipackets),
            opackets: now.opackets.saturating_sub(base.opackets),
            ibytes: now.ibytes.saturating_sub(base.ibytes),
            obytes: now.obytes.saturating_sub(base.obytes),
            imissed: now.imissed.saturating_sub(base.imissed),
            ierrors: now.ierrors.saturating_sub(base.ierrors),
            oerrors: now.oerrors.saturating_sub(base.oerrors),
            rx_nombuf: now.rx_nombuf.saturating_sub(base.rx_nombuf),
            rx: now
                .rx
                .iter()
                .zip(rx_base)
                .map(|(now, base)| now.minus(base))
                .collect(),
            tx: now
                .tx
                .iter()
                .zip(tx_base)
                .map(|(now, base)| now.minus(base))
                .collect(),
            device: now.device.minus(base.device),
        })
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// The device does not answer.
    pub(crate) fn reset(
        &mut self,
        control: &Control,
        counts: Counts,
        rx: &[&RxCounters],
        tx: &[&TxCounters],
    ) -> Result<(), Error> {
        self.baseline = self.totals(control, counts, rx, tx)?;
        Ok(())
    }

    /// The queues are gone: keeps what they counted.
    pub(crate) fn retire(&mut self, rx: &[&RxCounters], tx: &[&TxCounters]) {
        let rx: Vec<_> = rx
            .iter()
            .map(|counters| RxQueueStats::read(counters))
            .collect();
        let tx: Vec<_> = tx
            .iter()
            .map(|counters| TxQueueStats::read(counters))
            .collect();
        add(&mut self.retired, &rx, &tx);
        self.baseline.rx.clear();
        self.baseline.tx.clear();
    }
}

/// Packets that found no buffer, as the counter set says it.
fn out_of_buffer(control: &Control, counter_set: u8) -> Result<u32, Error> {
    let mut input = QueryQCounter::request();
    input.set_counter_set_id(counter_set);
    Ok(control.execute::<QueryQCounter>(&input)?.out_of_buffer())
}

fn device(control: &Control) -> Result<DeviceStats, Error> {
    let out = control.execute::<QueryVportCounter>(&QueryVportCounter::request())?;
    let sum = |counters: [TrafficCounter; 3]| {
        counters.iter().fold((0u64, 0u64), |(packets, octets), c| {
            (
                packets.wrapping_add(c.packets()),
                octets.wrapping_add(c.octets()),
            )
        })
    };
    let (rx_packets, rx_bytes) = sum([
        out.received_eth_unicast(),
        out.received_eth_multicast(),
        out.received_eth_broadcast(),
    ]);
    let (tx_packets, tx_bytes) = sum([
        out.transmitted_eth_unicast(),
        out.transmitted_eth_multicast(),
        out.transmitted_eth_broadcast(),
    ]);
    Ok(DeviceStats {
        rx_packets,
        rx_bytes,
        tx_packets,
        tx_bytes,
        rx_errors: out.received_errors().packets(),
        tx_errors: out.transmit_errors().packets(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_32_bits_goes_on_beyond_them() {
        let mut counter = Extended::default();
        assert_eq!(counter.update(0xffff_fff0), 0xffff_fff0);
        assert_eq!(counter.update(0x10), 0x1_0000_0010);
        assert_eq!(counter.update(0x10), 0x1_0000_0010);
    }

    #[test]
    fn queues_of_earlier_starts_still_count() {
        let (rx, tx) = (RxCounters::default(), TxCounters::default());
        rx.packets.add(7);
        rx.bytes.add(700);
        tx.packets.add(5);
        tx.refused.add(1);
        tx.failed.add(2);
        let mut ledger = Ledger::default();
        ledger.retire(&[&rx], &[&tx]);
        ledger.retire(&[&rx], &[]);
        let kept = &ledger.retired;
        assert_eq!(
            (kept.ipackets, kept.ibytes, kept.opackets, kept.oerrors),
            (14, 1400, 5, 3)
        );
    }
}
