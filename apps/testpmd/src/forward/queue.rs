//! The two queue calls that a forwarding loop makes. The driver's queues are the ones
//! used; tests put queues in their place that are full, empty or slow on purpose.

use pollux::{RxQueue, TxQueue};
use pollux_mempool::Burst;

/// Something that packets come from.
pub trait Receive {
    /// Appends packets to `into`, up to its room; returns how many.
    fn burst(&mut self, into: &mut Burst) -> usize;
}

/// Something that packets go to.
pub trait Transmit {
    /// Takes packets from the front of `packets` and returns how many; the rest stays.
    fn burst(&mut self, packets: &mut Burst) -> usize;
}

impl Receive for RxQueue {
    #[inline(always)]
    fn burst(&mut self, into: &mut Burst) -> usize {
        RxQueue::burst(self, into)
    }
}

impl Transmit for TxQueue {
    #[inline(always)]
    fn burst(&mut self, packets: &mut Burst) -> usize {
        TxQueue::burst(self, packets)
    }
}
