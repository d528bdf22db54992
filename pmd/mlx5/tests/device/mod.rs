//! A device as small as the data path needs one: it plays one RQ and one SQ with their CQs, by
//! bytes in memory only. Every number here is the PRM's, written down again: nothing is taken
//! from the driver or from the wire-format crate.
#![allow(dead_code, unused_imports)] // each test file uses a part

mod receive;
mod send;
mod world;

pub use receive::{Entry, Receiver};
pub use send::Sender;
pub use world::*;

use pollux_mempool::{Cells, Segment, SegmentRequest, Window};

/// Memory of a test, and where the pieces lie in it.
pub struct Memory {
    segment: Segment,
    used: usize,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let segment = Segment::map(&SegmentRequest::new("rings", bytes)).unwrap();
        Self { segment, used: 0 }
    }

    pub fn take(&mut self, bytes: usize) -> Window {
        let at = self.used.next_multiple_of(4096);
        self.used = at + bytes;
        self.segment.window(at, bytes).unwrap()
    }

    pub fn cells<T>(&mut self, count: usize) -> Cells<T> {
        self.take(count * size_of::<T>()).cells(0, count).unwrap()
    }
}

/// Device addresses of buffers: which window lies there, and under which key.
#[derive(Clone, Default)]
pub struct Keys {
    regions: Vec<(u64, u32, Window)>,
}

impl Keys {
    pub fn add(&mut self, iova: u64, key: u32, memory: Window) {
        self.regions.push((iova, key, memory));
    }

    /// The window of `len` bytes at `iova` under `key`; `None` is a protection error.
    pub fn window(&self, key: u32, iova: u64, len: usize) -> Option<Window> {
        self.regions.iter().find_map(|(start, k, memory)| {
            let at = usize::try_from(iova.checked_sub(*start)?).ok()?;
            (*k == key).then(|| memory.window(at, len).ok())?
        })
    }
}

/// Stores a 64-byte completion word by word; the word with the owner bit last.
pub fn publish(cq: &Cells<[u8; 64]>, index: u32, entry: &[u8; 64]) {
    for word in 0..16 {
        publish_word(cq, index, entry, word);
    }
}

/// Stores one of the sixteen 32-bit words of a completion.
pub fn publish_word(cq: &Cells<[u8; 64]>, index: u32, entry: &[u8; 64], word: usize) {
    use std::sync::atomic::Ordering::{Relaxed, Release};
    let at = word * 4;
    let value = u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap());
    macro_rules! store {
        ($($n:literal)*) => {
            match word {
                $( $n => cq.store_u32::<{ $n * 4 }>(index, value, Relaxed), )*
                _ => cq.store_u32::<60>(index, value, Release),
            }
        };
    }
    store!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// Opcodes of completions.
pub const RESPONDER_SEND: u8 = 2;
pub const REQUESTER: u8 = 0;
pub const REQUESTER_ERROR: u8 = 13;
pub const RESPONDER_ERROR: u8 = 14;

/// Bytes 60..64 of a completion: WQE counter, signature, opcode and owner bit for lap `index`.
pub fn tail(entry: &mut [u8; 64], opcode: u8, wqe: u16, index: u32, entries: usize) {
    let owner = ((index as usize / entries) & 1) as u8;
    entry[60..62].copy_from_slice(&wqe.to_be_bytes());
    entry[63] = opcode << 4 | owner;
}
