//! A stream at work: queues, the burst in hand, counters.

use pollux_mempool::Burst;

use super::counters::Shared;
use super::plan::StreamPlan;
use super::queue::{Receive, Transmit};
use super::verbose::Talk;

/// What to do when a transmit queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// Drop what it did not take.
    Drop,
    /// Try so often again, with a pause in between, then drop.
    Retry {
        /// Tries at most.
        count: u32,
        /// What to do between two of them.
        pause: Pause,
    },
}

/// How a core passes time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// So many pause instructions.
    Spin(u32),
    /// The CPU is given away: somebody on it must work before the queue has room.
    Yield,
}

/// One stream. A core owns it while it forwards; queues that the mode does not use are
/// absent.
#[derive(Debug)]
pub struct Stream<R, T> {
    /// Which queues these are.
    pub plan: StreamPlan,
    /// The receive queue.
    pub rx: Option<R>,
    /// The transmit queue.
    pub tx: Option<T>,
    /// Packets in hand; empty between turns.
    pub burst: Burst,
    /// What happened.
    pub counters: Shared,
    /// What to do when the transmit queue is full.
    pub when_full: WhenFull,
    /// Destination and source address that `mac` writes.
    pub header: [u8; 12],
    /// The packet that `txonly` sends.
    pub template: Box<[u8]>,
    /// Says what passes, when that was asked for.
    pub talk: Option<Talk>,
}

impl<R: Receive, T: Transmit> Stream<R, T> {
    /// Receives into the burst; returns how many packets came.
    #[inline(always)]
    pub fn receive(&mut self) -> usize {
        let Some(rx) = &mut self.rx else {
            return 0;
        };
        let n = rx.burst(&mut self.burst);
        if n > 0 {
            self.counters.received(n);
            if let Some(talk) = self.talk.as_ref().filter(|t| t.rx) {
                talk.burst(self.plan.rx, true, &self.burst);
            }
        }
        n
    }

    /// Sends the burst; what the queue does not take is dropped and counted.
    #[inline(always)]
    pub fn send(&mut self) -> usize {
        if let Some(talk) = self.talk.as_ref().filter(|t| t.tx) {
            talk.burst(self.plan.tx, false, &self.burst);
        }
        let Some(tx) = &mut self.tx else {
            return self.give_up(0);
        };
        let sent = tx.burst(&mut self.burst);
        if self.burst.is_empty() {
            self.counters.sent(sent);
            return sent;
        }
        self.queue_full(sent)
    }

    /// Brings sent buffers home; for a turn that moved nothing.
    pub fn reclaim(&mut self) {
        if let Some(tx) = &mut self.tx {
            // Between turns the burst is empty: nothing is sent.
            tx.burst(&mut self.burst);
        }
    }

    #[cold]
    fn queue_full(&mut self, mut sent: usize) -> usize {
        if let (WhenFull::Retry { count, pause }, Some(tx)) = (self.when_full, &mut self.tx) {
            for _ in 0..count {
                match pause {
                    Pause::Spin(n) => (0..n).for_each(|_| std::hint::spin_loop()),
                    Pause::Yield => std::thread::yield_now(),
                }
                sent += tx.burst(&mut self.burst);
                if self.burst.is_empty() {
                    break;
                }
            }
        }
        self.give_up(sent)
    }

    fn give_up(&mut self, sent: usize) -> usize {
        self.counters.sent(sent);
        self.counters.lost(self.burst.len());
        self.burst.clear();
        sent
    }
}
