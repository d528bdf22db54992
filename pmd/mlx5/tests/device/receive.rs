//! The receiving half: takes posted buffers in order, fills them, writes completions.

use super::{Keys, RESPONDER_ERROR, RESPONDER_SEND, publish, tail};
use pollux_mempool::{Cells, Word32};
use std::sync::atomic::Ordering::Acquire;

/// What a completion says about a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    pub hash: u32,
    /// `Some` when the adapter took a VLAN tag out.
    pub vlan: Option<u16>,
    /// Byte 29: header types.
    pub types: u8,
    /// Byte 28: which checksums are right.
    pub checks: u8,
}

pub struct Receiver {
    pub wq: Cells<[u8; 16]>,
    pub cq: Cells<[u8; 64]>,
    pub rq_record: Word32,
    pub cq_record: Word32,
    pub keys: Keys,
    /// Next WQE, modulo 2^16 on the wire.
    pub wqe: u16,
    /// Next completion.
    pub cqe: u32,
    /// Packets for which no buffer was posted.
    pub missed: u64,
}

impl Receiver {
    /// Buffers that are posted and not used.
    pub fn posted(&self) -> u16 {
        (self.rq_record.load_be(Acquire) as u16).wrapping_sub(self.wqe)
    }

    /// Room in the completion queue.
    pub fn cq_room(&self) -> u32 {
        let consumer = self.cq_record.load_be(Acquire) & 0xff_ffff;
        let used = self.cqe.wrapping_sub(consumer) & 0xff_ffff;
        self.cq.count() as u32 - used
    }

    /// The segment of the next WQE: length, key, address.
    pub fn segment(&self) -> (usize, u32, u64) {
        let s = self.wq.read(self.wqe);
        (
            u32::from_be_bytes(s[0..4].try_into().unwrap()) as usize,
            u32::from_be_bytes(s[4..8].try_into().unwrap()),
            u64::from_be_bytes(s[8..16].try_into().unwrap()),
        )
    }

    /// A packet arrives; false when no buffer was there.
    pub fn deliver(&mut self, frame: &[u8], entry: Entry) -> bool {
        if self.posted() == 0 {
            self.missed += 1;
            return false;
        }
        assert!(self.cq_room() > 0, "completion queue overrun");
        let (room, key, iova) = self.segment();
        assert!(frame.len() <= room, "test frames fit");
        let memory = self
            .keys
            .window(key, iova, frame.len())
            .expect("a valid key and address");
        memory.copy_in(0, frame).unwrap();
        let cqe = self.good(frame.len() as u32, entry);
        self.push(&cqe);
        true
    }

    /// A completion for the next WQE with this byte count, whatever was written.
    pub fn good(&self, bytes: u32, entry: Entry) -> [u8; 64] {
        let mut cqe = [0; 64];
        cqe[12..16].copy_from_slice(&entry.hash.to_be_bytes());
        cqe[28] = entry.checks;
        cqe[29] = entry.types | u8::from(entry.vlan.is_some());
        cqe[30..32].copy_from_slice(&entry.vlan.unwrap_or(0).to_be_bytes());
        cqe[44..48].copy_from_slice(&bytes.to_be_bytes());
        tail(
            &mut cqe,
            RESPONDER_SEND,
            self.wqe,
            self.cqe,
            self.cq.count(),
        );
        cqe
    }

    /// An error completion for the next WQE.
    pub fn error(&self, syndrome: u8, vendor: u8) -> [u8; 64] {
        let mut cqe = [0; 64];
        cqe[54] = vendor;
        cqe[55] = syndrome;
        tail(
            &mut cqe,
            RESPONDER_ERROR,
            self.wqe,
            self.cqe,
            self.cq.count(),
        );
        cqe
    }

    /// Publishes a completion and moves on.
    pub fn push(&mut self, cqe: &[u8; 64]) {
        publish(&self.cq, self.cqe, cqe);
        self.cqe = self.cqe.wrapping_add(1);
        self.wqe = self.wqe.wrapping_add(1);
    }
}
