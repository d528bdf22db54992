//! A stream's counters: one core writes them, anybody reads them, nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

/// Written by the core that serves the stream, each in a cache line that no other core
/// writes. They only grow; "clear" is a base that the reader subtracts, so that clearing
/// never races with counting.
#[derive(Debug, Default)]
pub struct Counters {
    rx: AtomicU64,
    tx: AtomicU64,
    dropped: AtomicU64,
    busy: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

/// A reading.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Packets received.
    pub rx: u64,
    /// Packets that the transmit queue accepted.
    pub tx: u64,
    /// Packets that it did not.
    pub dropped: u64,
    /// Cycles in turns that moved packets; 0 unless they are recorded.
    pub busy: u64,
    /// The cycle counter at the start of the first such turn; 0 as above.
    pub first: u64,
    /// And at the end of the last one.
    pub last: u64,
}

impl Reading {
    /// What was counted after `base`; never below 0.
    pub fn since(&self, base: &Self) -> Self {
        Self {
            rx: self.rx.saturating_sub(base.rx),
            tx: self.tx.saturating_sub(base.tx),
            dropped: self.dropped.saturating_sub(base.dropped),
            busy: self.busy.saturating_sub(base.busy),
            first: self.first,
            last: self.last,
        }
    }
}

/// Counters shared between a core and the readers.
pub type Shared = Arc<CachePadded<Counters>>;

impl Counters {
    /// New ones, in a cache line of their own.
    pub fn shared() -> Shared {
        Arc::new(CachePadded::new(Self::default()))
    }

    /// Only the core that serves the stream calls the four that follow: one writer needs
    /// no read-modify-write instruction.
    #[inline(always)]
    pub fn received(&self, n: usize) {
        add(&self.rx, n as u64);
    }

    /// See [`Counters::received`].
    #[inline(always)]
    pub fn sent(&self, n: usize) {
        add(&self.tx, n as u64);
    }

    /// See [`Counters::received`].
    #[inline(always)]
    pub fn lost(&self, n: usize) {
        add(&self.dropped, n as u64);
    }

    /// See [`Counters::received`]. A turn that moved packets, by the cycle counter.
    #[inline(always)]
    pub fn spent(&self, from: u64, to: u64) {
        add(&self.busy, to.wrapping_sub(from));
        self.last.store(to, Relaxed);
        if self.first.load(Relaxed) == 0 {
            self.first.store(from, Relaxed);
        }
    }

    /// For any thread; the numbers may be from slightly different moments.
    pub fn read(&self) -> Reading {
        Reading {
            rx: self.rx.load(Relaxed),
            tx: self.tx.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            busy: self.busy.load(Relaxed),
            first: self.first.load(Relaxed),
            last: self.last.load(Relaxed),
        }
    }
}

#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}
