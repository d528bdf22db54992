//! `macswap`: out of the other port, source and destination address exchanged.

use super::engine::{Engine, addresses};
use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// The mode.
#[derive(Clone, Copy, Debug)]
pub struct Macswap;

impl Engine for Macswap {
    #[inline(always)]
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let n = stream.receive();
        if n > 0 {
            for mbuf in stream.burst.iter_mut() {
                if let Some(addresses) = addresses(mbuf) {
                    // Two loads and two stores; a rotation by half of the array.
                    addresses.rotate_left(6);
                }
            }
            stream.send();
        }
        n
    }
}
