//! What all forwarding modes share: the shape of a turn, and the loop around it.

use pollux::gaps::PollClock;
use pollux_mempool::{Mbuf, cycles};

use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// A forwarding mode.
pub trait Engine {
    /// Serves one stream once; returns the packets moved, 0 for an idle turn.
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize;
}

/// Turns between two questions whether to go on.
const HOUSEKEEPING: usize = 64;

/// Serves `streams` while `running` says so; it is asked every 64 turns, and when a
/// yielded CPU comes back.
///
/// `TIMED` reads the cycle counter around each turn and lets `clock` record the gaps
/// between polls; without it no clock is read. `YIELD` gives the CPU away in each turn
/// that moved nothing: for a core that shares its CPU with the emulator.
pub fn run<E, R, T, C, F, const TIMED: bool, const YIELD: bool>(
    engine: &mut E,
    streams: &mut [Stream<R, T>],
    clock: &mut C,
    running: &F,
) where
    E: Engine,
    R: Receive,
    T: Transmit,
    C: PollClock,
    F: Fn() -> bool,
{
    while running() {
        let mut moved = 0;
        for _ in 0..HOUSEKEEPING {
            clock.poll();
            moved = 0;
            for stream in streams.iter_mut() {
                let before = if TIMED { cycles::now() } else { 0 };
                let n = engine.turn(stream);
                if TIMED && n > 0 {
                    stream.counters.spent(before, cycles::now());
                }
                moved += n;
            }
            if YIELD && moved == 0 {
                std::thread::yield_now();
                break;
            }
        }
        if moved == 0 {
            // Buffers that were sent come home when their queue is looked at. Without
            // packets to send nobody would, and receive queues that wait for buffers of a
            // small pool would wait for ever.
            streams.iter_mut().for_each(Stream::reclaim);
        }
    }
}

/// The destination and source address of a frame that is long enough to have them, and
/// whose bytes nobody else sees.
#[inline(always)]
pub(crate) fn addresses(mbuf: &mut Mbuf) -> Option<&mut [u8; 12]> {
    mbuf.data_mut()?.first_chunk_mut()
}
