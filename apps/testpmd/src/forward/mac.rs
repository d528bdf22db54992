//! `mac`: to the neighbour's address, from the sending port's own.

use super::engine::{Engine, addresses};
use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// The mode.
#[derive(Clone, Copy, Debug)]
pub struct Mac;

impl Engine for Mac {
    #[inline(always)]
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let n = stream.receive();
        if n > 0 {
            let header = stream.header;
            for mbuf in stream.burst.iter_mut() {
                if let Some(addresses) = addresses(mbuf) {
                    *addresses = header;
                }
            }
            stream.send();
        }
        n
    }
}
