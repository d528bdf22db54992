//! `rxonly`: counted and dropped.

use super::engine::Engine;
use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// The mode.
#[derive(Clone, Copy, Debug)]
pub struct Rxonly;

impl Engine for Rxonly {
    #[inline(always)]
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let n = stream.receive();
        if n > 0 {
            stream.burst.clear();
        }
        n
    }
}
