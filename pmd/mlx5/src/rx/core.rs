//! The receive queue's state and its loop.

use super::headers::HeaderWord;
use super::{RxParts, RxRemains};
use crate::counters::RxCounters;
use crate::gate::{Cause, Gate, Phase, QueueFailure};
use crate::regions::Regions;
use pollux_mempool::{Burst, Cells, InFlight, MemoryError, Pool, RxMeta, Word32, barrier};
use pollux_prm::completion::{
    CqeFormat, CqeOpcode, ErrorCqe, Syndrome, Tail, byte_cnt, lap, offset, rss_hash,
};
use pollux_prm::wqe::{DataSeg, record};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most descriptors: the device counts WQEs modulo 2^16.
const MAX_DESCRIPTORS: usize = 1 << 15;

/// Most descriptors that get a new buffer at once.
const REFILL: u32 = 32;

/// Bits of the last word of an entry that decide whether it is a good one: WQE counter, opcode,
/// format and owner. The signature and the event bit say nothing here.
const DECIDES: u32 = 0xffff_00fd;

pub(super) struct Core {
    cq: Cells<[u8; 64]>,
    wq: Cells<[u8; 16]>,
    /// Those of the WQEs from `taken` to `posted`.
    buffers: InFlight,
    /// Next completion, counted for ever.
    cqe: u32,
    /// Oldest posted WQE, counted since the last reset.
    taken: u32,
    /// First WQE that is not posted, counted likewise.
    posted: u32,
    /// Descriptors.
    size: u32,
    cq_log: u8,
    /// Descriptors that get a buffer at once.
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
            buffers: InFlight::new(parts.wq.count())?,
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
        out.len().wrapping_sub(before)
    }

    /// Moves packets to `out` until there are no more, or no more room.
    #[inline(always)]
    fn receive(&mut self, out: &mut Burst) {
        let most = out.room().min(self.buffers.len());
        let mut left = most;
        loop {
            let n = self.receive_good(out, left);
            left = left.wrapping_sub(n);
            if left == 0 {
                break;
            }
            let tail = self.tail();
            let owner = u32::from(lap(self.cqe, self.cq_log));
            if (tail ^ owner) & 1 != 0 || !self.odd(tail) {
                break;
            }
            left = left.wrapping_sub(1);
        }
    }

    /// Moves packets to `out`, at most `most`, up to the first entry that is not there or not
    /// plainly good; returns how many. `most` fit into `out`, and so many are posted.
    #[inline(always)]
    fn receive_good(&mut self, out: &mut Burst, most: usize) -> usize {
        // All that the loop needs is in locals: it writes to headers, and nothing can say that
        // those are not this queue.
        let cq = self.cq.by_ref();
        let wrap = cq.mask() as u32;
        let (room, headroom, port, queue) = (self.room, self.headroom, self.port, self.queue);
        let mut cqe = self.cqe;
        let owner = u32::from(lap(cqe, self.cq_log));
        let mut good = self.taken << 16 | u32::from(CqeOpcode::RESP_SEND.0) << 4 | owner;
        let mut bytes = 0;
        'all: for span in self.buffers.oldest(most) {
            for mbuf in span {
                let tail = cq.load_u64::<{ offset::TAIL }>(cqe, Ordering::Acquire);
                barrier::after_owner();
                if u64::from_be(tail) as u32 & DECIDES != good {
                    break 'all;
                }
                let length = byte_cnt(cq.load_u64::<{ offset::BYTE_CNT }>(cqe, Ordering::Relaxed));
                // No packet has a length of zero either.
                if length.wrapping_sub(1) >= room {
                    break 'all;
                }
                let hash = cq.load_u64::<{ offset::RSS_HASH }>(cqe, Ordering::Relaxed);
                let hash = rss_hash(hash);
                let headers = cq.load_u64::<{ offset::HEADERS }>(cqe, Ordering::Relaxed);
                let headers = HeaderWord::from_memory(headers);
                let meta = RxMeta {
                    port,
                    queue,
                    flags: headers.flags(hash),
                    packet_type: headers.packet_type(),
                    rss_hash: hash,
                    vlan_tci: headers.vlan(),
                };
                mbuf.received_at(headroom, length, meta);
                bytes += u64::from(length);
                cqe = cqe.wrapping_add(1);
                // The next WQE, and the other owner bit where the ring begins again.
                good = good.wrapping_add(1 << 16) ^ u32::from(cqe & wrap == 0);
            }
        }
        let n = cqe.wrapping_sub(self.cqe);
        if n != 0 {
            self.buffers.take_into(out, n as usize);
            self.cqe = cqe;
            self.taken = self.taken.wrapping_add(n);
            self.counters.packets.add(u64::from(n));
            self.counters.bytes.add(bytes);
        }
        n as usize
    }

    /// Bytes 60 to 63 of the next completion, in the CPU's order.
    #[inline(always)]
    fn tail(&self) -> u32 {
        let tail = self
            .cq
            .load_u64::<{ offset::TAIL }>(self.cqe, Ordering::Acquire);
        barrier::after_owner();
        u64::from_be(tail) as u32
    }

    /// Looks at an entry that is there and was not plainly good: drops the packet, or fails the
    /// queue. False when the burst ends here.
    #[cold]
    #[inline(never)]
    fn odd(&mut self, tail: u32) -> bool {
        let opcode = CqeOpcode(tail as u8 >> 4);
        if opcode == CqeOpcode::INVALID {
            return false;
        }
        let found = (tail >> 16) as u16;
        let expected = self.taken as u16;
        let format = CqeFormat(tail as u8 >> 2 & 3);
        let lie = match opcode {
            _ if found != expected => Cause::WrongIndex { found, expected },
            CqeOpcode::RESP_SEND if format == CqeFormat::NO_INLINE_DATA => {
                // A good one that came between two looks stays for the next.
                let length = self
                    .cq
                    .load_u64::<{ offset::BYTE_CNT }>(self.cqe, Ordering::Relaxed);
                if byte_cnt(length).wrapping_sub(1) >= self.room {
                    self.drop_one();
                }
                return true;
            }
            CqeOpcode::RESP_ERR => {
                let entry = ErrorCqe::from_bytes(self.cq.read(self.cqe));
                let syndrome = Syndrome(entry.syndrome());
                if is_fatal(syndrome) {
                    let cause = Cause::Completion {
                        syndrome: syndrome.0,
                        vendor: entry.vendor_err_synd(),
                        wqe: found,
                    };
                    let [_, address] = self.wq.read_part::<[u64; 2], 0>(u32::from(found));
                    self.gate.fail_at(cause, u64::from_be(address));
                    return false;
                }
                self.drop_one();
                return true;
            }
            _ => Cause::WrongOpcode {
                opcode: opcode.0,
                wqe: found,
            },
        };
        if self.gate.fail(lie) {
            self.counters.lies.add(1);
        }
        false
    }

    /// Frees the buffer of a packet that is lost.
    fn drop_one(&mut self) {
        self.buffers.free_oldest(1);
        self.cqe = self.cqe.wrapping_add(1);
        self.taken = self.taken.wrapping_add(1);
        self.counters.errors.add(1);
    }

    /// Gives new buffers to the descriptors whose packets were taken, a batch at a time.
    #[inline(always)]
    fn refill(&mut self) {
        let mut empty = self.size.wrapping_sub(self.posted.wrapping_sub(self.taken));
        while empty >= self.refill {
            if !self.post(self.refill) {
                self.starved(empty);
                break;
            }
            empty = empty.wrapping_sub(self.refill);
        }
    }

    /// Gives buffers to the next `n` descriptors; false, and nothing done, when the pool has not
    /// so many.
    #[inline(always)]
    fn post(&mut self, n: u32) -> bool {
        if !self.buffers.fill_from(&self.pool, n as usize) {
            return false;
        }
        let wq = self.wq.by_ref();
        let regions = self.regions.by_ref();
        let (room, headroom) = (self.room, u64::from(self.headroom));
        let mut wqe = self.posted;
        for span in self.buffers.newest(n as usize) {
            for mbuf in span {
                let region = regions.get(mbuf.region());
                let address = mbuf.room_address().wrapping_add(headroom);
                let segment =
                    DataSeg::halves(room, region.lkey, address.wrapping_add(region.shift));
                wq.write_part::<[u64; 2], 0>(wqe, &segment);
                wqe = wqe.wrapping_add(1);
            }
        }
        self.posted = wqe;
        true
    }

    /// The pool is (nearly) empty: takes what there is, and counts each descriptor once.
    #[cold]
    #[inline(never)]
    fn starved(&mut self, mut empty: u32) {
        let mut n = self.refill.min(empty);
        while n > 0 {
            if self.post(n) {
                empty = empty.wrapping_sub(n);
                n = n.min(empty);
            } else {
                n /= 2;
            }
        }
        // Those from `posted` to `end` have none; those before `missing` are counted already.
        let end = self.taken.wrapping_add(self.size);
        let counted = self.missing.wrapping_sub(self.posted);
        let counted = if counted <= empty { counted } else { 0 };
        self.counters
            .no_buffer
            .add(u64::from(empty.wrapping_sub(counted)));
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
        self.buffers.free_oldest(usize::MAX);
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

    pub(super) fn failure(&self) -> Option<QueueFailure> {
        self.gate.failure("RX", self.queue)
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
            buffers: self.buffers,
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
