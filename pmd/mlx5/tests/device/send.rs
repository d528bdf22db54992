//! The sending half: notices the doorbell, reads WQEs, gathers frames, writes completions.

use super::{Keys, REQUESTER, REQUESTER_ERROR, publish, tail};
use pollux_mempool::{Cells, Word32, Word64};
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// A frame that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub wqe: u16,
    pub bytes: Vec<u8>,
    /// Bytes that stood in the WQE itself.
    pub inline: usize,
    pub segments: usize,
    pub completion: bool,
}

pub struct Sender {
    pub sq: Cells<[u8; 64]>,
    pub cq: Cells<[u8; 64]>,
    pub sq_record: Word32,
    pub cq_record: Word32,
    pub doorbell: Word64,
    pub sqn: u32,
    /// Header bytes that must stand in the WQE.
    pub min_inline: usize,
    pub keys: Keys,
    /// Next WQE basic block.
    pub wqe: u16,
    /// Next completion.
    pub cqe: u32,
    /// Doorbells seen.
    pub rings: u64,
    /// Whether completions are written at once; if not they wait in `held`.
    pub hold: bool,
    pub held: Vec<u16>,
    /// Set by a protection error or a bad WQE: the queue does nothing more.
    pub failed: bool,
}

impl Sender {
    /// Looks at the doorbell once. Strict: without a store there nothing moves. What was stored
    /// must be the first eight bytes of the last WQE.
    pub fn turn(&mut self) -> Vec<Sent> {
        let rung = u64::from_be(self.doorbell.swap(0, AcqRel));
        if rung == 0 {
            return Vec::new();
        }
        self.rings += 1;
        let last = (rung >> 40) as u16;
        let ds = (rung & 0x3f) as u16;
        assert_eq!(
            (rung >> 8) as u32 & 0xff_ffff,
            self.sqn,
            "doorbell names another queue"
        );
        let end = self.sq_record.load_be(Acquire) as u16;
        assert_eq!(
            last.wrapping_add(ds.div_ceil(4)),
            end,
            "record and doorbell differ"
        );
        self.run(end)
    }

    /// As [`turn`](Self::turn), while the driver may be writing: the record may be ahead of the
    /// doorbell that was seen.
    pub fn turn_now(&mut self) -> Vec<Sent> {
        if self.doorbell.swap(0, AcqRel) == 0 {
            return Vec::new();
        }
        self.rings += 1;
        let end = self.sq_record.load_be(Acquire) as u16;
        self.run(end)
    }

    /// Whether WQEs are posted that have not been sent.
    pub fn behind(&self) -> bool {
        self.wqe != self.sq_record.load_be(Acquire) as u16
    }

    /// Ignores a doorbell, as a lost store would have it.
    pub fn lose_doorbell(&mut self) -> bool {
        self.doorbell.swap(0, AcqRel) != 0
    }

    fn run(&mut self, end: u16) -> Vec<Sent> {
        let mut sent = Vec::new();
        while self.wqe != end && !self.failed {
            let (frame, blocks) = match self.parse() {
                Ok(good) => good,
                Err(syndrome) => {
                    self.fail(syndrome, 0x68);
                    break;
                }
            };
            if frame.completion {
                self.held.push(self.wqe);
            }
            sent.push(frame);
            self.wqe = self.wqe.wrapping_add(blocks);
        }
        if !self.hold {
            self.complete(usize::MAX);
        }
        sent
    }

    /// As [`turn`](Self::turn), without gathering frames or allocating: takes WQEs by their size
    /// and completes those that ask for it. Returns how many.
    pub fn swallow(&mut self) -> u64 {
        if self.doorbell.swap(0, AcqRel) == 0 {
            return 0;
        }
        self.rings += 1;
        let end = self.sq_record.load_be(Acquire) as u16;
        let mut taken = 0;
        while self.wqe != end {
            let block = self.sq.read(self.wqe);
            if block[11] & 0x08 != 0 {
                let mut cqe = [0; 64];
                tail(&mut cqe, REQUESTER, self.wqe, self.cqe, self.cq.count());
                self.push(&cqe);
            }
            self.wqe = self
                .wqe
                .wrapping_add(u16::from(block[7] & 0x3f).div_ceil(4));
            taken += 1;
        }
        taken
    }

    /// Writes up to `n` of the completions that are due; returns how many.
    pub fn complete(&mut self, n: usize) -> usize {
        let n = n.min(self.held.len());
        for wqe in self.held.drain(..n).collect::<Vec<_>>() {
            let mut cqe = [0; 64];
            tail(&mut cqe, REQUESTER, wqe, self.cqe, self.cq.count());
            self.push(&cqe);
        }
        n
    }

    /// Completions that are due and not written.
    pub fn due(&self) -> usize {
        self.held.len()
    }

    /// An error completion for the next WQE; the queue stands still after it.
    pub fn fail(&mut self, syndrome: u8, vendor: u8) {
        self.complete(usize::MAX);
        let cqe = self.error(syndrome, vendor);
        self.push(&cqe);
        self.failed = true;
    }

    /// What [`fail`](Self::fail) writes.
    pub fn error(&self, syndrome: u8, vendor: u8) -> [u8; 64] {
        let mut cqe = [0; 64];
        cqe[54] = vendor;
        cqe[55] = syndrome;
        tail(
            &mut cqe,
            REQUESTER_ERROR,
            self.wqe,
            self.cqe,
            self.cq.count(),
        );
        cqe
    }

    pub fn push(&mut self, cqe: &[u8; 64]) {
        publish(&self.cq, self.cqe, cqe);
        self.cqe = self.cqe.wrapping_add(1);
    }

    /// The SQ goes through RST to RDY: indices from zero. The CQ goes on.
    pub fn reset(&mut self) {
        self.held.clear();
        self.wqe = 0;
        self.failed = false;
        self.doorbell.swap(0, AcqRel);
    }

    fn byte(&self, at: usize) -> u8 {
        let at = at & (self.sq.count() * 64 - 1);
        self.sq.read(at / 64)[at % 64]
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, 1, 2, 3].map(|k| self.byte(at + k)))
    }

    /// The address in the first data segment of the next WQE, one without chains.
    pub fn first_address(&self) -> u64 {
        let at = usize::from(self.wqe) * 64;
        let inline = (self.be32(at + 28) >> 16) as usize;
        let s = at + (2 + inline.saturating_sub(2).div_ceil(16)) * 16;
        u64::from(self.be32(s + 8)) << 32 | u64::from(self.be32(s + 12))
    }

    /// Reads the WQE at the head; an error is a syndrome.
    fn parse(&self) -> Result<(Sent, u16), u8> {
        const BAD_WQE: u8 = 0x02;
        const PROTECTION: u8 = 0x04;
        let at = usize::from(self.wqe) * 64;
        let first = self.be32(at);
        let second = self.be32(at + 4);
        let ds = (second & 0x3f) as usize;
        // Opcode SEND, its own index, its own queue, nothing else.
        if first != u32::from(self.wqe) << 8 | 0x0a || second >> 8 != self.sqn || ds < 3 {
            return Err(BAD_WQE);
        }
        let flags = self.be32(at + 8);
        if flags & !0x08 != 0 || self.be32(at + 12) != 0 {
            return Err(BAD_WQE);
        }
        // No software parser, no segmentation, no metadata.
        if self.be32(at + 16) != 0
            || self.be32(at + 20) & 0x3fff_ffff != 0
            || self.be32(at + 24) != 0
        {
            return Err(BAD_WQE);
        }
        let inline = (self.be32(at + 28) >> 16) as usize;
        if inline < self.min_inline {
            return Err(BAD_WQE);
        }
        let mut bytes: Vec<u8> = (0..inline).map(|k| self.byte(at + 30 + k)).collect();
        // The Ethernet segment holds two inline bytes; the others fill whole 16-byte units.
        let mut unit = 2 + inline.saturating_sub(2).div_ceil(16);
        let mut segments = 0;
        while unit < ds {
            let s = at + unit * 16;
            let len = self.be32(s) as usize;
            let key = self.be32(s + 4);
            let iova = u64::from(self.be32(s + 8)) << 32 | u64::from(self.be32(s + 12));
            // A length of zero means 2^31 bytes.
            if len == 0 {
                return Err(BAD_WQE);
            }
            let memory = self.keys.window(key, iova, len).ok_or(PROTECTION)?;
            bytes.extend(memory.to_vec(0, len).unwrap());
            segments += 1;
            unit += 1;
        }
        let sent = Sent {
            wqe: self.wqe,
            bytes,
            inline,
            segments,
            completion: flags & 0x08 != 0,
        };
        Ok((sent, ds.div_ceil(4) as u16))
    }
}
