//! The receive queue's state and its loop.

use super::headers::HeaderWord;
use super::{RxParts, RxRemains};
use crate::counters::RxCounters;
use crate::gate::{Cause, Gate, Phase};
use crate::regions::Regions;
use pollux_mempool::{Burst, Cells, MemoryError, Pool, RxMeta, Slots, Word32, barrier};
use pollux_prm::completion::{
    CqeFormat, CqeOpcode, ErrorCqe, Syndrome, Tail, byte_cnt, lap, offset, rss_hash,
};
use pollux_prm::wqe::{DataSeg, record};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most descriptors: the device counts WQEs modulo 2^16.
const MAX_DESCRIPTORS: usize = 1 << 15;

/// Most slots that get a new buffer at once.
const REFILL: u32 = 32;

/// Bytes of the last word of an entry that decide whether it is a good one: WQE counter, opcode,
/// format, event and owner bits. The signature is not checked.
const DECIDES: u32 = 0xffff_00ff;

/// What is to be done with an entry that is not plainly good.
enum Odd {
    /// Not there yet, or the queue has failed: stop.
    Stop,
    /// Good after all.
    Take,
    /// This packet is lost.
    Drop,
}

pub(super) struct Core {
    cq: Cells<[u8; 64]>,
    wq: Cells<[u8; 16]>,
    slots: Slots,
    /// Next completion, counted for ever.
    cqe: u32,
    /// Oldest posted WQE, counted since the last reset.
    taken: u32,
    /// First WQE that is not posted, counted likewise.
    posted: u32,
    /// Descriptors.
    size: u32,
    cq_log: u8,
    /// Slots that get a buffer at once.
    refill: u32,
    /// WQE up to which missing buffers have been counted.
    missing: u32,
    /// Bytes that a buffer has for a packet.
    room: u32,
    headroom: u16,
    port: u16,
    queue: u16,
    rq_record: Word32,
    cq_record: Word32,
    pool: Pool,
    regions: Arc<Regions>,
    gate: Arc<Gate>,
    counters: Arc<RxCounters>,
    home: Box<dyn FnOnce(RxRemains) + Send>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxQueue")
            .field("port", &self.port)
            .field("queue", &self.queue)
            .field("descriptors", &self.size)
            .field("posted", &self.posted())
            .field("phase", &self.gate.phase())
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(parts: RxParts) -> Result<Self, MemoryError> {
        let size = parts.wq.count();
        let refuse = |what, given: usize, min: usize, max: usize, remedy: &str| {
            Err(MemoryError::OutOfRange {
                what,
                given: given as u64,
                min: min as u64,
                max: max as u64,
                remedy: remedy.into(),
            })
        };
        if size > MAX_DESCRIPTORS {
            return refuse(
                "RX descriptors",
                size,
                1,
                MAX_DESCRIPTORS,
                "use a smaller ring",
            );
        }
        let entries = parts.cq.count();
        if entries < size || entries > 1 << 23 {
            let remedy = "one completion per descriptor must fit";
            return refuse("RX completion entries", entries, size, 1 << 23, remedy);
        }
        let headroom = parts.pool.headroom();
        let room = parts.pool.data_room();
        let size = size as u32;
        let mut core = Self {
            slots: Slots::new(parts.wq.count())?,
            cq_log: entries.trailing_zeros() as u8,
            cq: parts.cq,
            wq: parts.wq,
            cqe: 0,
            taken: 0,
            posted: 0,
            size,
            refill: REFILL.min(size / 4).max(1),
            missing: 0,
            room: room as u32,
            headroom: headroom as u16,
            port: parts.port,
            queue: parts.queue,
            rq_record: parts.rq_record,
            cq_record: parts.cq_record,
            pool: parts.pool,
            regions: parts.regions,
            gate: parts.gate,
            counters: parts.counters,
            home: parts.home,
        };
        core.refill();
        core.publish();
        Ok(core)
    }

    #[inline]
    pub(super) fn burst(&mut self, out: &mut Burst) -> usize {
        if !self.gate.is_running() {
            return self.stopped();
        }
        let before = out.len();
        let (taken, posted) = (self.taken, self.posted);
        self.receive(out);
        self.refill();
        if self.taken != taken || self.posted != posted {
            self.publish();
        }
        out.len() - before
    }

    /// Moves packets to `out` until there are no more, or no more room.
    #[inline(always)]
    fn receive(&mut self, out: &mut Burst) {
        let most = (out.room() as u32).min(self.posted.wrapping_sub(self.taken));
        let end = self.taken.wrapping_add(most);
        let (mut cqe, mut wqe) = (self.cqe, self.taken);
        // Packets from `run` to `wqe` are good and still in their slots.
        let mut run = wqe;
        let mut bytes = 0;
        let mut packets = 0;
        while wqe != end {
            let tail = self.cq.load_u64::<{ offset::TAIL }>(cqe, Ordering::Acquire);
            barrier::after_owner();
            let tail = u64::from_be(tail) as u32;
            let owner = u32::from(lap(cqe, self.cq_log));
            let good = wqe << 16 | u32::from(CqeOpcode::RESP_SEND.0) << 4 | owner;
            if tail & DECIDES != good {
                if (tail ^ owner) & 1 != 0 {
                    break;
                }
                match self.odd(tail, cqe, wqe) {
                    Odd::Take => {}
                    Odd::Stop => break,
                    Odd::Drop => {
                        run = self.drop_one(out, run, wqe);
                        cqe = cqe.wrapping_add(1);
                        wqe = wqe.wrapping_add(1);
                        continue;
                    }
                }
            }
            let length = byte_cnt(
                self.cq
                    .load_u64::<{ offset::BYTE_CNT }>(cqe, Ordering::Relaxed),
            );
            // No packet has a length of zero either.
            if length.wrapping_sub(1) >= self.room {
                run = self.drop_one(out, run, wqe);
                cqe = cqe.wrapping_add(1);
                wqe = wqe.wrapping_add(1);
                continue;
            }
            let hash = rss_hash(
                self.cq
                    .load_u64::<{ offset::RSS_HASH }>(cqe, Ordering::Relaxed),
            );
            let headers = self
                .cq
                .load_u64::<{ offset::HEADERS }>(cqe, Ordering::Relaxed);
            let headers = HeaderWord::from_memory(headers);
            if let Some(mbuf) = self.slots.get_mut(wqe) {
                mbuf.received_at(
                    self.headroom,
                    length,
                    RxMeta {
                        port: self.port,
                        queue: self.queue,
                        flags: headers.flags(hash),
                        packet_type: headers.packet_type(),
                        rss_hash: hash,
                        vlan_tci: headers.vlan(),
                    },
                );
            }
            bytes += u64::from(length);
            packets += 1;
            cqe = cqe.wrapping_add(1);
            wqe = wqe.wrapping_add(1);
        }
        let n = wqe.wrapping_sub(run) as usize;
        self.slots.take_many_into(out, run, n);
        self.cqe = cqe;
        self.taken = wqe;
        if packets != 0 {
            self.counters.packets.add(packets);
            self.counters.bytes.add(bytes);
        }
    }

    /// Looks at an entry that is there and not plainly good.
    #[cold]
    #[inline(never)]
    fn odd(&mut self, tail: u32, cqe: u32, wqe: u32) -> Odd {
        let opcode = CqeOpcode(tail as u8 >> 4);
        if opcode == CqeOpcode::INVALID {
            return Odd::Stop;
        }
        let found = (tail >> 16) as u16;
        let expected = wqe as u16;
        let format = CqeFormat(tail as u8 >> 2 & 3);
        let lie = match opcode {
            _ if found != expected => Cause::WrongIndex { found, expected },
            CqeOpcode::RESP_SEND if format == CqeFormat::NO_INLINE_DATA => return Odd::Take,
            CqeOpcode::RESP_ERR => {
                let entry = ErrorCqe::from_bytes(self.cq.read(cqe));
                let syndrome = Syndrome(entry.syndrome());
                if is_fatal(syndrome) {
                    self.gate.fail(Cause::Completion {
                        syndrome: syndrome.0,
                        vendor: entry.vendor_err_synd(),
                        wqe: found,
                    });
                    return Odd::Stop;
                }
                return Odd::Drop;
            }
            _ => Cause::WrongOpcode {
                opcode: opcode.0,
                wqe: found,
            },
        };
        if self.gate.fail(lie) {
            self.counters.lies.add(1);
        }
        Odd::Stop
    }

    /// Hands over the good packets before `wqe` and frees the buffer of that one; returns where
    /// the next good packets may begin.
    #[cold]
    #[inline(never)]
    fn drop_one(&mut self, out: &mut Burst, run: u32, wqe: u32) -> u32 {
        let n = wqe.wrapping_sub(run) as usize;
        self.slots.take_many_into(out, run, n);
        self.slots.free_many(wqe, 1);
        self.counters.errors.add(1);
        wqe.wrapping_add(1)
    }

    /// Gives new buffers to the slots whose packets were taken, a batch at a time.
    #[inline(always)]
    fn refill(&mut self) {
        let mut empty = self.size.wrapping_sub(self.posted.wrapping_sub(self.taken));
        while empty >= self.refill {
            if !self.post(self.refill) {
                self.starved(empty);
                break;
            }
            empty -= self.refill;
        }
    }

    /// Gives buffers to the next `n` slots; false, and nothing done, when the pool has not so
    /// many.
    #[inline(always)]
    fn post(&mut self, n: u32) -> bool {
        if !self.slots.fill_from(&self.pool, self.posted, n as usize) {
            return false;
        }
        let end = self.posted.wrapping_add(n);
        while self.posted != end {
            if let Some(mbuf) = self.slots.get(self.posted) {
                let region = self.regions.get(mbuf.region());
                let address = mbuf.room_address().wrapping_add(u64::from(self.headroom));
                let segment =
                    DataSeg::halves(self.room, region.lkey, address.wrapping_add(region.shift));
                self.wq.write_part::<[u64; 2], 0>(self.posted, &segment);
            }
            self.posted = self.posted.wrapping_add(1);
        }
        true
    }

    /// The pool is (nearly) empty: takes what there is, and counts each slot once.
    #[cold]
    #[inline(never)]
    fn starved(&mut self, mut empty: u32) {
        let mut n = self.refill.min(empty);
        while n > 0 {
            if self.post(n) {
                empty -= n;
                n = n.min(empty);
            } else {
                n /= 2;
            }
        }
        // Slots from `posted` to `end` have none; those before `missing` are counted already.
        let end = self.taken.wrapping_add(self.size);
        let counted = self.missing.wrapping_sub(self.posted);
        let counted = if counted <= empty { counted } else { 0 };
        self.counters.no_buffer.add(u64::from(empty - counted));
        self.missing = end;
    }

    /// Tells the device what was taken and what was posted, once per burst. The CQ goes first:
    /// a buffer must not be posted before there is room for its completion.
    #[inline(always)]
    fn publish(&mut self) {
        barrier::dma_write();
        self.cq_record
            .store(record::cq_consumer(self.cqe), Ordering::Release);
        barrier::dma_write();
        self.rq_record
            .store(record::counter(self.posted as u16), Ordering::Release);
    }

    /// A burst while the gate is not open.
    #[cold]
    #[inline(never)]
    fn stopped(&mut self) -> usize {
        match self.gate.phase() {
            Phase::Reset => self.clean(),
            Phase::Resume => {
                self.refill();
                self.publish();
                self.gate.resumed();
            }
            Phase::Running | Phase::Failed | Phase::Clean | Phase::Inert => {}
        }
        0
    }

    /// The device's RQ is in RST: throws away what it had completed and begins again at WQE 0.
    /// The completion queue goes on where it is.
    fn clean(&mut self) {
        for _ in 0..self.cq.count() {
            let tail = self
                .cq
                .load_u64::<{ offset::TAIL }>(self.cqe, Ordering::Acquire);
            if !Tail::from_memory(tail).is_owned(lap(self.cqe, self.cq_log)) {
                break;
            }
            self.cqe = self.cqe.wrapping_add(1);
        }
        self.slots.free_many(0u32, self.size as usize);
        self.taken = 0;
        self.posted = 0;
        self.missing = 0;
        // Zero while the RQ goes to RDY; the buffers follow after that.
        self.publish();
        self.gate.cleaned();
    }

    pub(super) fn posted(&self) -> usize {
        self.posted.wrapping_sub(self.taken) as usize
    }

    pub(super) fn descriptors(&self) -> usize {
        self.size as usize
    }

    pub(super) fn counters(&self) -> &Arc<RxCounters> {
        &self.counters
    }

    pub(super) fn send_home(self) {
        (self.home)(RxRemains {
            queue: self.queue,
            buffers: self.slots,
            wq: self.wq,
            cq: self.cq,
        });
    }
}

/// Whether the RQ is in error after this: those that concern the queue and not one packet.
fn is_fatal(syndrome: Syndrome) -> bool {
    matches!(
        syndrome,
        Syndrome::LOCAL_QP_OP_ERR | Syndrome::LOCAL_PROT_ERR | Syndrome::WR_FLUSH_ERR
    )
}
