//! `txonly`: sends UDP packets made here. Addresses are those kept for benchmarks (RFC
//! 2544: 198.18.0.0/15), the port is `discard` (RFC 863).

use pollux_mempool::Pool;

use super::engine::Engine;
use super::queue::{Receive, Transmit};
use super::stream::Stream;

/// Ethernet, IPv4 and UDP header.
pub const SHORTEST: usize = 42;

const SOURCE: [u8; 4] = [198, 18, 0, 1];
const DESTINATION: [u8; 4] = [198, 18, 0, 2];
const DISCARD: u16 = 9;
const TIME_TO_LIVE: u8 = 64;
const UDP: u8 = 17;

/// A packet of `length` bytes, at least [`SHORTEST`], at most 65,549 (IPv4's limit).
pub fn packet(destination: [u8; 6], source: [u8; 6], length: usize) -> Vec<u8> {
    let length = length.clamp(SHORTEST, 14 + usize::from(u16::MAX));
    let ip_length = (length - 14) as u16;
    let mut p = Vec::with_capacity(length);
    p.extend(destination);
    p.extend(source);
    p.extend([0x08, 0x00]);
    let mut ip = [0u8; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
    ip[8] = TIME_TO_LIVE;
    ip[9] = UDP;
    ip[12..16].copy_from_slice(&SOURCE);
    ip[16..20].copy_from_slice(&DESTINATION);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    p.extend(ip);
    p.extend(DISCARD.to_be_bytes());
    p.extend(DISCARD.to_be_bytes());
    p.extend((ip_length - 20).to_be_bytes());
    // No UDP checksum: allowed over IPv4.
    p.extend([0, 0]);
    p.resize(length, 0);
    p
}

/// The Internet checksum (RFC 1071).
fn checksum(header: &[u8; 20]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The mode; buffers come from its pool, the packet is the stream's template.
#[derive(Clone, Debug)]
pub struct Txonly {
    /// Where buffers come from.
    pub pool: Pool,
}

impl Engine for Txonly {
    #[inline(always)]
    fn turn<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let n = stream.burst.capacity();
        if !self.pool.alloc_bulk(&mut stream.burst, n) {
            return self.fewer(stream);
        }
        self.fill_and_send(stream)
    }
}

impl Txonly {
    /// The pool has less than a burst: what it has.
    #[cold]
    fn fewer<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        while stream.burst.room() > 0 {
            let Some(mbuf) = self.pool.alloc() else {
                break;
            };
            if stream.burst.push(mbuf).is_err() {
                break;
            }
        }
        if stream.burst.is_empty() {
            return 0;
        }
        self.fill_and_send(stream)
    }

    #[inline(always)]
    fn fill_and_send<R: Receive, T: Transmit>(&mut self, stream: &mut Stream<R, T>) -> usize {
        let Stream {
            burst, template, ..
        } = stream;
        for mbuf in burst.iter_mut() {
            // A packet that does not fit was refused before the start.
            let fits = mbuf.extend_from_slice(template);
            debug_assert!(fits);
        }
        stream.send()
    }
}
