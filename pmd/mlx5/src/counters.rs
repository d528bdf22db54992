//! Counters of one queue: written by the core that polls it, read by everybody.
//!
//! Each value has a single writer, so an addition is a load and a store, never a locked
//! instruction. A reader may see the values of one burst half updated; each value by itself is
//! right. They only grow (modulo 2^64): who wants them from zero keeps what they were.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

/// One value of a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds. Only the one writer may call it: two would lose counts.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }
}

/// What an RX queue counts.
#[derive(Debug, Default)]
pub struct RxCounters(CachePadded<RxValues>);

/// The values of [`RxCounters`].
#[derive(Debug, Default)]
pub struct RxValues {
    /// Packets handed to the application.
    pub packets: Counter,
    /// Their bytes, without FCS.
    pub bytes: Counter,
    /// Packets dropped because the device reported an error for them, or a length that their
    /// buffer does not have.
    pub errors: Counter,
    /// Ring slots that stayed without a buffer because the pool was empty (`rx_nombuf`); each
    /// counts once, when its packet was taken.
    pub no_buffer: Counter,
    /// Completions that cannot be true (wrong index, wrong kind).
    pub lies: Counter,
}

/// What a TX queue counts.
#[derive(Debug, Default)]
pub struct TxCounters(CachePadded<TxValues>);

/// The values of [`TxCounters`].
#[derive(Debug, Default)]
pub struct TxValues {
    /// Packets given to the device.
    pub packets: Counter,
    /// Their bytes, without FCS.
    pub bytes: Counter,
    /// Packets dropped before posting: no bytes, too many bytes, too many segments.
    pub refused: Counter,
    /// Packets that were with the device when the queue failed; freed, perhaps not sent.
    pub failed: Counter,
    /// Completions that cannot be true (wrong index, wrong kind).
    pub lies: Counter,
}

impl std::ops::Deref for RxCounters {
    type Target = RxValues;

    fn deref(&self) -> &RxValues {
        &self.0
    }
}

impl std::ops::Deref for TxCounters {
    type Target = TxValues;

    fn deref(&self) -> &TxValues {
        &self.0
    }
}
