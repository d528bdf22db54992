//! The transmit queue's state and its loop.

use super::wqe::{Writer, Written, blocks_of};
use super::{TxParts, TxRemains};
use crate::counters::TxCounters;
use crate::gate::{Cause, Gate, Phase, QueueFailure};
use crate::regions::Regions;
use pollux_bus::Doorbell;
use pollux_mempool::{Burst, Cells, InFlight, MemoryError, Word32, barrier};
use pollux_prm::completion::{CqeOpcode, ErrorCqe, Tail, lap, offset};
use pollux_prm::wqe::{SEGMENT, record};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most basic blocks: the device counts them modulo 2^16.
const MAX_DESCRIPTORS: usize = 1 << 15;

/// Most blocks from one completion to the next.
const BATCH: usize = 32;

/// Most completions that can be due at once.
const MAX_BATCHES: usize = MAX_DESCRIPTORS / BATCH;

/// Bytes of the last word of an entry that decide whether it is a good one: WQE counter, opcode,
/// owner bit.
const DECIDES: u32 = 0xffff_00f1;

/// Blocks between two completions in a ring of `descriptors`.
const fn batch(descriptors: usize) -> usize {
    match descriptors / 4 {
        0 => 1,
        quarter if quarter < BATCH => quarter,
        _ => BATCH,
    }
}

/// Entries that the completion queue of a ring of `descriptors` (a power of two) must have.
///
/// Completions are asked for once per batch, but a queue that fails may report each of its WQEs
/// as flushed; a completion queue that overran could not be recovered with it.
pub const fn cq_entries(descriptors: usize) -> usize {
    descriptors
}

/// What a completion that is due stands for.
#[derive(Clone, Copy, Default)]
struct Due {
    /// The WQE that asked for it.
    wqe: u16,
    /// First block behind that WQE.
    block: u16,
    /// First packet behind it.
    packet: u16,
}

/// Why writing ended.
enum Stop {
    /// There is no packet left, or no room for the next one.
    Done,
    /// The next packet cannot be sent.
    Refused,
}

/// The loop for a queue's settings, chosen when it starts.
type Run = fn(&mut Core, &mut Burst) -> usize;

pub(super) struct Core {
    run: Run,
    sq: Writer,
    cq: Cells<[u8; 64]>,
    /// Those of the packets from `packet_tail` to `packet_head`.
    buffers: InFlight,
    /// Blocks written and blocks completed, modulo 2^16.
    head: u16,
    tail: u16,
    /// Packets written and packets completed, modulo 2^16.
    packet_head: u16,
    packet_tail: u16,
    /// First block after the last completion that was asked for.
    asked: u16,
    /// Blocks of the ring.
    size: u16,
    /// Blocks between two completions.
    batch: u16,
    /// Next completion, and the first one not asked for yet.
    cqe: u32,
    due_end: u32,
    cq_log: u8,
    due: Box<[Due; MAX_BATCHES]>,
    queue: u16,
    blocks: Cells<[u8; 64]>,
    sq_record: Word32,
    cq_record: Word32,
    doorbell: Doorbell,
    regions: Arc<Regions>,
    gate: Arc<Gate>,
    counters: Arc<TxCounters>,
    home: Box<dyn FnOnce(TxRemains) + Send>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxQueue")
            .field("queue", &self.queue)
            .field("descriptors", &self.size)
            .field("pending", &self.pending())
            .field("phase", &self.gate.phase())
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(parts: TxParts) -> Result<Self, MemoryError> {
        let size = parts.sq.count();
        let check = |what, given: usize, min: usize, max: usize, remedy: &str| {
            if (min..=max).contains(&given) {
                return Ok(());
            }
            Err(MemoryError::OutOfRange {
                what,
                given: given as u64,
                min: min as u64,
                max: max as u64,
                remedy: remedy.into(),
            })
        };
        check(
            "TX descriptors",
            size,
            1,
            MAX_DESCRIPTORS,
            "use a smaller ring",
        )?;
        let entries = parts.cq.count();
        let remedy = "one completion per block must fit, for a queue that is flushed";
        check(
            "TX completion entries",
            entries,
            cq_entries(size),
            1 << 23,
            remedy,
        )?;
        let run: Run = match (parts.inline_l2, parts.chains) {
            (false, false) => Self::send::<false, false>,
            (false, true) => Self::send::<false, true>,
            (true, false) => Self::send::<true, false>,
            (true, true) => Self::send::<true, true>,
        };
        let least = 4 * SEGMENT;
        check(
            "longest WQE in bytes",
            parts.max_wqe_len,
            least,
            1 << 16,
            "",
        )?;
        Ok(Self {
            run,
            // With fewer blocks than a batch behind the last completion asked for, this much
            // becomes free without further sending.
            sq: Writer::new(&parts, size - batch(size) + 1)?,
            buffers: InFlight::new(size)?,
            cq_log: entries.trailing_zeros() as u8,
            cq: parts.cq,
            head: 0,
            tail: 0,
            packet_head: 0,
            packet_tail: 0,
            asked: 0,
            size: size as u16,
            batch: batch(size) as u16,
            cqe: 0,
            due_end: 0,
            due: Box::new([Due::default(); MAX_BATCHES]),
            queue: parts.queue,
            blocks: parts.sq,
            sq_record: parts.sq_record,
            cq_record: parts.cq_record,
            doorbell: parts.doorbell,
            regions: parts.regions,
            gate: parts.gate,
            counters: parts.counters,
            home: parts.home,
        })
    }

    #[inline]
    pub(super) fn burst(&mut self, packets: &mut Burst) -> usize {
        if !self.gate.is_running() && !self.stopped() {
            return 0;
        }
        (self.run)(self, packets)
    }

    /// The loop. `INLINE`: the L2 header stands in the WQE. `CHAINS`: packets may have several
    /// buffers.
    fn send<const INLINE: bool, const CHAINS: bool>(&mut self, packets: &mut Burst) -> usize {
        if self.head != self.tail && !self.reap() {
            return 0;
        }
        let before = packets.len();
        let mut last = (self.head, 0);
        let mut sent = 0;
        let mut bytes = 0;
        loop {
            let (n, stop) = self.write::<INLINE, CHAINS>(packets, &mut last, &mut bytes);
            self.packet_head = self.packet_head.wrapping_add(n as u16);
            self.buffers.put_from(packets, n);
            sent += n;
            match stop {
                Stop::Refused => self.refuse(packets),
                Stop::Done => break,
            }
        }
        if sent != 0 {
            self.ask(last.0);
            self.ring(last);
            self.counters.packets.add(sent as u64);
            self.counters.bytes.add(bytes);
        }
        before.wrapping_sub(packets.len())
    }

    /// Writes packets from the front of `packets`, until one is refused, or the ring is full, or
    /// all are written; returns how many. `last` becomes the last WQE and its segments.
    #[inline(always)]
    fn write<const INLINE: bool, const CHAINS: bool>(
        &mut self,
        packets: &Burst,
        last: &mut (u16, u16),
        bytes: &mut u64,
    ) -> (usize, Stop) {
        // All that the loop needs is in locals: it writes to the ring, and nothing can say that
        // the ring is not this queue.
        let pen = self.sq.pen(self.regions.by_ref());
        let mut head = self.head;
        let mut free = self.size.wrapping_sub(head.wrapping_sub(self.tail));
        let mut end = *last;
        let mut n = 0;
        let mut length = 0;
        let mut stop = Stop::Done;
        for mbuf in packets.as_slice() {
            match pen.write::<INLINE, CHAINS>(head, free, mbuf) {
                Written::Block { segments, bytes } => {
                    end = (head, segments);
                    head = head.wrapping_add(1);
                    free = free.wrapping_sub(1);
                    length += u64::from(bytes);
                    n += 1;
                }
                Written::Chain { segments, bytes } => {
                    end = (head, segments);
                    head = head.wrapping_add(blocks_of(segments));
                    free = free.wrapping_sub(blocks_of(segments));
                    length += u64::from(bytes);
                    n += 1;
                }
                Written::NoRoom => break,
                Written::Refused => {
                    stop = Stop::Refused;
                    break;
                }
            }
        }
        self.head = head;
        *last = end;
        *bytes += length;
        (n, stop)
    }

    /// Drops the packet at the front, which cannot be sent.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, packets: &mut Burst) {
        packets.free_front(1);
        self.counters.refused.add(1);
    }

    /// Asks for a completion with the WQE at `last` when a batch is full.
    #[inline(always)]
    fn ask(&mut self, last: u16) {
        if self.head.wrapping_sub(self.asked) >= self.batch {
            self.sq.ask(last);
            self.due[self.due_end as usize % MAX_BATCHES] = Due {
                wqe: last,
                block: self.head,
                packet: self.packet_head,
            };
            self.due_end = self.due_end.wrapping_add(1);
            self.asked = self.head;
        }
    }

    /// The one place where a send queue's doorbell rings: WQEs, barrier, record, barrier, UAR
    /// page ([`Doorbell::ring`] begins with the second barrier).
    #[inline(always)]
    fn ring(&self, (block, segments): (u16, u16)) {
        barrier::dma_write();
        self.sq_record
            .store(record::counter(self.head), Ordering::Release);
        self.doorbell.ring(self.sq.head_word(block, segments));
    }

    /// Takes completions and frees what they cover; false when the queue has failed.
    #[inline(always)]
    fn reap(&mut self) -> bool {
        let before = self.cqe;
        loop {
            let tail = self
                .cq
                .load_u64::<{ offset::TAIL }>(self.cqe, Ordering::Acquire);
            barrier::after_owner();
            let tail = u64::from_be(tail) as u32;
            let owner = u32::from(lap(self.cqe, self.cq_log));
            if (tail ^ owner) & 1 != 0 {
                break;
            }
            let due = self.due[self.cqe as usize % MAX_BATCHES];
            let good = u32::from(due.wqe) << 16 | u32::from(CqeOpcode::REQ.0) << 4 | owner;
            if tail & DECIDES != good || self.cqe == self.due_end {
                if self.odd(tail, due.wqe) {
                    break;
                }
                return false;
            }
            let n = due.packet.wrapping_sub(self.packet_tail);
            self.buffers.free_oldest(usize::from(n));
            self.packet_tail = due.packet;
            self.tail = due.block;
            self.cqe = self.cqe.wrapping_add(1);
        }
        if self.cqe != before {
            self.cq_record
                .store(record::cq_consumer(self.cqe), Ordering::Release);
        }
        true
    }

    /// Looks at an entry that is there and not the completion that is due; true when it was not
    /// there after all.
    #[cold]
    #[inline(never)]
    fn odd(&mut self, tail: u32, expected: u16) -> bool {
        let opcode = CqeOpcode(tail as u8 >> 4);
        let found = (tail >> 16) as u16;
        match opcode {
            CqeOpcode::INVALID => return true,
            CqeOpcode::REQ_ERR => {
                let entry = ErrorCqe::from_bytes(self.cq.read(self.cqe));
                let cause = Cause::Completion {
                    syndrome: entry.syndrome(),
                    vendor: entry.vendor_err_synd(),
                    wqe: found,
                };
                self.gate.fail_at(cause, self.sq.address(found));
            }
            CqeOpcode::REQ => self.lie(Cause::WrongIndex { found, expected }),
            _ => self.lie(Cause::WrongOpcode {
                opcode: opcode.0,
                wqe: found,
            }),
        }
        false
    }

    fn lie(&self, cause: Cause) {
        if self.gate.fail(cause) {
            self.counters.lies.add(1);
        }
    }

    /// A burst while the gate is not open; true when it is open now.
    #[cold]
    #[inline(never)]
    fn stopped(&mut self) -> bool {
        match self.gate.phase() {
            Phase::Reset => {
                self.clean();
                false
            }
            Phase::Resume => self.gate.resumed(),
            Phase::Running => true,
            Phase::Failed | Phase::Clean | Phase::Inert => false,
        }
    }

    /// The device's SQ is in RST: nothing reads the packets any more. Frees them as failed and
    /// begins again at block 0; the completion queue goes on where it is.
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
        self.due_end = self.cqe;
        let pending = self.pending();
        self.buffers.free_oldest(usize::MAX);
        self.counters.failed.add(pending as u64);
        (self.head, self.tail, self.asked) = (0, 0, 0);
        (self.packet_head, self.packet_tail) = (0, 0);
        barrier::dma_write();
        self.cq_record
            .store(record::cq_consumer(self.cqe), Ordering::Release);
        self.sq_record.store(record::counter(0), Ordering::Release);
        self.gate.cleaned();
    }

    pub(super) fn pending(&self) -> usize {
        usize::from(self.packet_head.wrapping_sub(self.packet_tail))
    }

    pub(super) fn failure(&self) -> Option<QueueFailure> {
        self.gate.failure("TX", self.queue)
    }

    pub(super) fn descriptors(&self) -> usize {
        usize::from(self.size)
    }

    pub(super) fn counters(&self) -> &Arc<TxCounters> {
        &self.counters
    }

    pub(super) fn send_home(self) {
        (self.home)(TxRemains {
            queue: self.queue,
            buffers: self.buffers,
            sq: self.blocks,
            cq: self.cq,
            doorbell: self.doorbell,
        });
    }
}
