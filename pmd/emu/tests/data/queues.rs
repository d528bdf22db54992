//! Queues from the driver's side: WQEs, doorbell records and completions as bytes.

use crate::rig::{Side, until};
use pollux_emu::data::{CqSpec, RqSpec, SqSpec};
use pollux_mempool::Window;
use pollux_prm::completion::{Cqe, CqeOpcode, ErrorCqe};
use pollux_prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, EthSeg, SendOpcode, record, uar};
use std::sync::atomic::Ordering;

/// A completion queue from the driver's side.
pub struct Cq {
    pub heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: CqSpec,
    pub consumer: u32,
}

impl Cq {
    fn slot(&self) -> usize {
        let index = (self.consumer & ((1 << self.spec.log_size) - 1)) as usize;
        let entry = 1 << self.spec.log_entry;
        self.at + index * entry + entry - 64
    }

    /// The next completion, when there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let last = self
            .heap
            .word8(self.slot() + 63)
            .unwrap()
            .load(Ordering::Acquire);
        let lap = (self.consumer >> self.spec.log_size & 1) as u8;
        if last & 1 != lap || last >> 4 == 0xf {
            return None;
        }
        let mut bytes = [0; 64];
        self.heap.copy_out(self.slot(), &mut bytes).unwrap();
        self.consumer += 1;
        Some(Cqe::from_bytes(bytes))
    }

    pub fn next(&mut self) -> Cqe {
        let cqe = until("a completion", || self.poll());
        self.publish();
        cqe
    }

    pub fn next_error(&mut self) -> ErrorCqe {
        let cqe = self.next();
        let error = [CqeOpcode::REQ_ERR.0, CqeOpcode::RESP_ERR.0].contains(&cqe.opcode());
        assert!(error, "not an error: {cqe:?}");
        ErrorCqe::from_bytes(*cqe.bytes())
    }

    /// Tells the device what was consumed.
    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at).unwrap();
        word.store(record::cq_consumer(self.consumer), Ordering::Release);
    }

    pub fn write_arm(&self, count: u32) {
        let word = self.heap.word32(self.record_at + 4).unwrap();
        word.store(
            record::cq_arm(count, false, self.consumer),
            Ordering::Release,
        );
    }

    pub fn arm(&self, side: &Side, count: u32) {
        self.write_arm(count);
        let arm = u64::from(count & 3) << 28 | u64::from(self.consumer & 0xff_ffff);
        side.store_doorbell(
            self.spec.uar,
            uar::CQ_ARM,
            arm << 32 | u64::from(self.spec.cqn),
        );
    }
}

/// A send queue from the driver's side.
pub struct Sq {
    pub heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: SqSpec,
    /// Basic blocks posted.
    pub posted: u16,
}

pub fn bytes(words: [u32; 4]) -> [u8; 16] {
    let mut out = [0; 16];
    for (chunk, word) in out.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    out
}

impl Sq {
    /// Writes a WQE of whole segments; gives its index.
    pub fn wqe(&mut self, segments: &[u8]) -> u16 {
        assert_eq!(segments.len() % 16, 0);
        let index = self.posted;
        let mask = (1usize << self.spec.log_size) - 1;
        for (block, part) in segments.chunks(64).enumerate() {
            let at = self.at + ((usize::from(index) + block) & mask) * 64;
            self.heap.copy_in(at, part).unwrap();
        }
        self.posted = index.wrapping_add(segments.len().div_ceil(64) as u16);
        index
    }

    pub fn control(&self, opcode: SendOpcode, segments: usize, flags: CtrlFlags) -> [u8; 16] {
        bytes(CtrlSeg::words(
            0,
            self.posted,
            opcode,
            self.spec.sqn,
            segments as u8,
            flags,
        ))
    }

    /// A SEND with an inline header and data segments `(bytes, key, address)`, completed always.
    pub fn send(&mut self, inline: &[u8], data: &[(u32, u32, u64)]) -> u16 {
        self.send_with(SendOpcode::SEND, CtrlFlags::CQ_UPDATE, [0; 4], inline, data)
    }

    /// As [`send`](Self::send); `eth` is laid over the Ethernet segment.
    pub fn send_with(
        &mut self,
        opcode: SendOpcode,
        flags: CtrlFlags,
        eth: [u32; 4],
        inline: &[u8],
        data: &[(u32, u32, u64)],
    ) -> u16 {
        let mut body = Vec::new();
        let mut start = [0; 2];
        let head = inline.len().min(2);
        start[..head].copy_from_slice(&inline[..head]);
        let plain = EthSeg::words(
            pollux_prm::wqe::ChecksumFlags::NONE,
            0,
            inline.len() as u16,
            start,
        );
        let eth: Vec<u32> = plain.iter().zip(eth).map(|(a, b)| a | b).collect();
        body.extend(bytes([eth[0], eth[1], eth[2], eth[3]]));
        body.extend(&inline[head..]);
        body.resize(body.len().next_multiple_of(16), 0);
        for (len, key, address) in data {
            body.extend(bytes(DataSeg::words(*len, *key, *address)));
        }
        let mut wqe = self.control(opcode, body.len() / 16 + 1, flags).to_vec();
        wqe.extend(body);
        self.wqe(&wqe)
    }

    /// Writes the doorbell record.
    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at + 4).unwrap();
        word.store(record::counter(self.posted), Ordering::Release);
    }

    /// Stores to the UAR page.
    pub fn ring(&self, side: &Side) {
        self.ring_at(side, uar::SEND);
    }

    pub fn ring_at(&self, side: &Side, offset: usize) {
        side.store_doorbell(self.spec.uar, offset, u64::from(self.spec.sqn) << 8 | 3);
    }
}

/// A receive queue from the driver's side.
pub struct Rq {
    pub heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: RqSpec,
    pub posted: u16,
    /// Heap offset of the buffer of each WQE, by index in the ring.
    pub buffers: Vec<usize>,
}

impl Rq {
    /// Writes a WQE of data segments `(bytes, key, address)`; `at` is where its first buffer is.
    pub fn post(&mut self, data: &[(u32, u32, u64)], at: usize) {
        let slot = usize::from(self.posted) & ((1 << self.spec.log_size) - 1);
        let stride = 1 << self.spec.log_stride;
        for (segment, (len, key, address)) in data.iter().enumerate() {
            let place = self.at + slot * stride + segment * 16;
            assert!((segment + 1) * 16 <= stride);
            self.heap
                .copy_in(place, &bytes(DataSeg::words(*len, *key, *address)))
                .unwrap();
        }
        if self.buffers.len() <= slot {
            self.buffers.resize(slot + 1, 0);
        }
        self.buffers[slot] = at;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Posts the buffer of a WQE again.
    pub fn repost(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at).unwrap();
        word.store(record::counter(self.posted), Ordering::Release);
    }

    /// The frame that a completion is for.
    pub fn bytes(&self, cqe: &Cqe) -> Vec<u8> {
        assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND.0, "{cqe:?}");
        let slot = usize::from(cqe.wqe_counter()) & ((1 << self.spec.log_size) - 1);
        self.heap
            .to_vec(self.buffers[slot], cqe.byte_cnt() as usize)
            .unwrap()
    }

    /// Takes the next frame.
    pub fn receive(&self, cq: &mut Cq) -> Vec<u8> {
        let cqe = cq.next();
        self.bytes(&cqe)
    }
}
