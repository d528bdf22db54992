//! One core's work, from start to stop.
//!
//! Built by the shell's thread, moved to the core's thread, run there, and moved back
//! with its queues when it ends. Everything it needs is allocated before.

use pollux::gaps::{GapRecorder, GapReport, NoClock};

use super::engine::{Engine, run};
use super::io::Io;
use super::mac::Mac;
use super::macswap::Macswap;
use super::queue::{Receive, Transmit};
use super::rxonly::Rxonly;
use super::stream::Stream;
use super::txonly::Txonly;

/// A mode with what it needs.
#[derive(Clone, Debug)]
pub enum Mode {
    /// See [`Io`].
    Io,
    /// See [`Mac`].
    Mac,
    /// See [`Macswap`].
    Macswap,
    /// See [`Rxonly`].
    Rxonly,
    /// See [`Txonly`].
    Txonly(Txonly),
}

/// The work.
#[derive(Debug)]
pub struct Job<R, T> {
    /// The CPU it is for.
    pub cpu: usize,
    /// Its streams.
    pub streams: Vec<Stream<R, T>>,
    /// The mode.
    pub mode: Mode,
    /// Bursts to send on each stream before forwarding starts, and what they are made of.
    pub first: Option<(u32, Txonly)>,
    /// Read the clock in each turn.
    pub timed: bool,
    /// Yield the CPU in each idle turn.
    pub yields: bool,
}

/// What comes back.
#[derive(Debug)]
pub struct Done<R, T> {
    /// The CPU.
    pub cpu: usize,
    /// The streams with their queues.
    pub streams: Vec<Stream<R, T>>,
    /// Gaps between polls, if they were recorded.
    pub gaps: Option<GapReport>,
    /// The core yielded its CPU.
    pub yields: bool,
}

impl<R: Receive, T: Transmit> Job<R, T> {
    /// Forwards while `running` says so. Call it on the core's thread.
    pub fn run(mut self, running: &impl Fn() -> bool) -> Done<R, T> {
        if let Some((bursts, engine)) = &mut self.first {
            for _ in 0..*bursts {
                for stream in &mut self.streams {
                    engine.turn(stream);
                }
            }
        }
        let (streams, timed, yields) = (&mut self.streams, self.timed, self.yields);
        let gaps = match &mut self.mode {
            Mode::Io => choose(&mut Io, streams, timed, yields, running),
            Mode::Mac => choose(&mut Mac, streams, timed, yields, running),
            Mode::Macswap => choose(&mut Macswap, streams, timed, yields, running),
            Mode::Rxonly => choose(&mut Rxonly, streams, timed, yields, running),
            Mode::Txonly(engine) => choose(engine, streams, timed, yields, running),
        };
        Done {
            cpu: self.cpu,
            streams: self.streams,
            gaps,
            yields,
        }
    }
}

/// Picks the compiled loop.
fn choose<E: Engine, R: Receive, T: Transmit>(
    engine: &mut E,
    streams: &mut [Stream<R, T>],
    timed: bool,
    yields: bool,
    running: &impl Fn() -> bool,
) -> Option<GapReport> {
    if timed {
        let mut clock = GapRecorder::new();
        if yields {
            run::<_, _, _, _, _, true, true>(engine, streams, &mut clock, running);
        } else {
            run::<_, _, _, _, _, true, false>(engine, streams, &mut clock, running);
        }
        return Some(clock.report());
    }
    if yields {
        run::<_, _, _, _, _, false, true>(engine, streams, &mut NoClock, running);
    } else {
        run::<_, _, _, _, _, false, false>(engine, streams, &mut NoClock, running);
    }
    None
}
