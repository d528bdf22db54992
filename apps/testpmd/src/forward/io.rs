//! `io`: out of the other port, untouched.

use super::engine::Engine;
use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// The mode.
#[derive(Clone, Copy, Debug)]
pub struct Io;

impl Engine for Io {
    #[inline(always)]
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let n = stream.receive();
        if n > 0 {
            stream.send();
        }
        n
    }
}
