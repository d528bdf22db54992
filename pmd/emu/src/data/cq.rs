//! Completion queues: writing entries, overrun, arming.
//!
//! An entry's last word carries the owner bit and is stored last, with release order. An overrun
//! puts the queue into error for good, as on a card; work queues that need it then fail, too.
//!
//! With moderation an armed queue's event waits until so many completions have come or the period
//! is over. Completions are counted as they are written; time is looked at once a turn, by
//! [`Cq::moderate`], so that no clock is read for a packet.

use super::memory::{Access, Memory};
use super::request::{CqChange, CqSpec, CqStatus, DataEvent, QueueFault};
use super::ring::{self, Ring};
use super::{DataError, Kind};
use pollux_mempool::{Window, Word32, barrier};
use pollux_prm::completion::Tail;
use pollux_prm::wqe::record;
use std::sync::atomic::Ordering;

/// A completion queue event's syndrome for an overrun (PRM: CQ error syndromes).
const OVERRUN: u8 = 1;
/// The same for memory that cannot be reached.
const UNREACHABLE: u8 = 2;

/// Indices of a completion queue count modulo 2^24.
const INDEX: u32 = 0xff_ffff;

/// What a completion says; the queue adds owner bit and order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The first 56 bytes as words in memory order.
    pub body: [u64; 7],
    /// The last word, its owner bit not yet set.
    pub tail: Tail,
}

impl Entry {
    /// Replaces the sum (bytes 20 and 21), as it lies in memory.
    pub fn set_sum(&mut self, sum: u16) {
        let [_, _, word, ..] = &mut self.body;
        *word = u64::from_le(word.to_le() & 0xffff_ffff | u64::from(sum) << 32);
    }
}

#[derive(Debug)]
pub(super) struct Reached {
    pub ring: Ring<[u64; 8]>,
    consumer: Word32,
    arm: Word32,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub spec: CqSpec,
    pub reached: Option<Reached>,
    /// Entries written.
    pub producer: u32,
    consumer: u32,
    armed: bool,
    last_arm: u32,
    /// Completions that the event which is held back would tell; 0 when none is.
    held: u32,
    /// `held` has grown since time was looked at.
    fresh: bool,
    /// When the held event is due at the latest; nothing before time was looked at.
    due: Option<u64>,
    /// An event was told since time was looked at.
    told: bool,
    /// When the event before was told.
    last_event: Option<u64>,
    error: bool,
    corrupt: Vec<(u32, [u8; 64])>,
}

impl Cq {
    pub fn create(memory: &mut Memory, spec: CqSpec) -> Result<Self, DataError> {
        let number = spec.cqn;
        ring::check(
            Kind::Cq,
            number,
            &spec.ring,
            spec.log_size,
            spec.log_entry,
            6..=7,
        )?;
        let mut cq = Self {
            spec,
            reached: None,
            producer: 0,
            consumer: 0,
            armed: false,
            last_arm: 0,
            held: 0,
            fresh: false,
            due: None,
            told: false,
            last_event: None,
            error: false,
            corrupt: Vec::new(),
        };
        let reached = cq.reach(memory).map_err(|fault| DataError::Memory {
            kind: Kind::Cq,
            number,
            fault,
        })?;
        cq.last_arm = reached.arm.load_be(Ordering::Acquire);
        cq.reached = Some(reached);
        Ok(cq)
    }

    fn reach(&self, memory: &mut Memory) -> Result<Reached, pollux_bus::DmaFault> {
        // An entry of 128 bytes is two cells; the second is the 64-byte entry.
        let log_cells = self.spec.log_size + self.spec.log_entry - 6;
        let ring = Ring::resolve(memory, &self.spec.ring, log_cells, Access::Write)?;
        let (consumer, arm) = words(memory, self.spec.doorbell_record)?;
        Ok(Reached {
            ring,
            consumer,
            arm,
        })
    }

    /// Lets go of the driver's memory.
    pub fn release(&mut self) {
        self.reached = None;
    }

    /// Resolves the memory again.
    pub fn renew(&mut self, memory: &mut Memory) {
        self.reached = self.reach(memory).ok();
    }

    pub fn spec(&self) -> &CqSpec {
        &self.spec
    }

    pub fn status(&mut self) -> CqStatus {
        self.read_consumer();
        CqStatus {
            error: self.error,
            armed: self.armed,
            producer: self.producer & INDEX,
            consumer: self.consumer,
        }
    }

    /// Whether completions can be written.
    #[inline(always)]
    pub fn is_usable(&self) -> bool {
        !self.error
    }

    fn read_consumer(&mut self) {
        if let Some(reached) = &self.reached {
            self.consumer = reached.consumer.load_be(Ordering::Acquire) & INDEX;
        }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.producer.wrapping_sub(self.consumer) & INDEX >= 1 << self.spec.log_size
    }

    /// Whether one more entry can be written without an overrun.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        !self.is_full() || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.read_consumer();
        self.spec.overrun_ignore || !self.is_full()
    }

    /// Whether entries are written as they are, 64 bytes each.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        !self.error && self.spec.log_entry == 6 && self.corrupt.is_empty()
    }

    /// Entries that can be written without an overrun.
    #[inline]
    pub fn room(&mut self) -> usize {
        self.read_consumer();
        let used = self.producer.wrapping_sub(self.consumer) & INDEX;
        (1usize << self.spec.log_size).saturating_sub(used as usize)
    }

    /// Entries were written.
    #[inline]
    pub fn advance(&mut self, entries: u32, events: &mut Vec<DataEvent>) {
        self.producer = self.producer.wrapping_add(entries);
        if self.armed {
            self.notify(entries, events);
        }
    }

    #[cold]
    fn fail(&mut self, syndrome: u8, events: &mut Vec<DataEvent>) -> QueueFault {
        if !self.error {
            self.error = true;
            events.push(DataEvent::CqError {
                cqn: self.spec.cqn,
                syndrome,
            });
        }
        QueueFault::CompletionQueue
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> usize {
        let index = index as usize;
        if self.spec.log_entry == 7 {
            index * 2 + 1
        } else {
            index
        }
    }

    /// Writes a completion. An armed queue raises its event.
    ///
    /// # Errors
    /// [`QueueFault::CompletionQueue`] on overrun or when the queue failed before; the work queue
    /// has to go to error.
    #[inline(always)]
    pub fn push(&mut self, entry: &Entry, events: &mut Vec<DataEvent>) -> Result<(), QueueFault> {
        if self.error {
            return Err(QueueFault::CompletionQueue);
        }
        if !self.has_room() {
            return Err(self.fail(OVERRUN, events));
        }
        if !self.corrupt.is_empty() {
            return self.push_corrupt(entry, events);
        }
        self.write(entry.body, entry.tail.to_memory(), events)
    }

    #[inline(always)]
    fn write(
        &mut self,
        body: [u64; 7],
        tail: u64,
        events: &mut Vec<DataEvent>,
    ) -> Result<(), QueueFault> {
        let index = self.cell(self.producer);
        let Some(part) = self
            .reached
            .as_ref()
            .and_then(|reached| reached.ring.part(index))
        else {
            return Err(self.fail(UNREACHABLE, events));
        };
        // The owner bit is the lowest bit of the last byte.
        let lap = u64::from(self.producer >> self.spec.log_size & 1);
        part.write_part::<[u64; 7], 0>(index, &body);
        barrier::dma_write();
        part.store_u64::<56>(index, tail ^ (lap << 56), Ordering::Release);
        self.producer = self.producer.wrapping_add(1);
        if self.armed {
            self.notify(1, events);
        }
        Ok(())
    }

    /// Completions came to an armed queue.
    #[inline]
    fn notify(&mut self, entries: u32, events: &mut Vec<DataEvent>) {
        if !self.spec.moderation.is_on() {
            return self.fire(events);
        }
        self.held = self.held.saturating_add(entries);
        self.fresh = true;
        if self.held >= u32::from(self.spec.moderation.max_count) {
            self.fire(events);
        }
    }

    /// Tells an event that has waited long enough. True while one waits.
    #[inline]
    pub fn moderate(
        &mut self,
        now: u64,
        per_microsecond: u64,
        events: &mut Vec<DataEvent>,
    ) -> bool {
        if std::mem::take(&mut self.told) {
            self.last_event = Some(now);
        }
        if self.held == 0 {
            return false;
        }
        let moderation = self.spec.moderation;
        let period = u64::from(moderation.period) * per_microsecond;
        let fresh = std::mem::take(&mut self.fresh);
        let due = match (self.due, moderation.from_completion) {
            (Some(due), false) => due,
            (Some(due), true) if !fresh => due,
            (_, true) => now.saturating_add(period),
            // A first event waits for nobody.
            (None, false) => self
                .last_event
                .map_or(now, |last| last.saturating_add(period)),
        };
        self.due = Some(due);
        if !moderation.is_on() || due <= now {
            self.fire(events);
            self.last_event = Some(now);
            self.told = false;
        }
        self.held != 0
    }

    /// MODIFY_CQ.
    pub fn modify(&mut self, change: CqChange) {
        self.spec.moderation = change.moderation;
        self.spec.overrun_ignore = change.overrun_ignore;
        self.due = None;
        self.fresh = self.held > 0;
    }

    #[cold]
    fn fire(&mut self, events: &mut Vec<DataEvent>) {
        self.armed = false;
        self.held = 0;
        self.fresh = false;
        self.due = None;
        self.told = true;
        events.push(DataEvent::Completion { cqn: self.spec.cqn });
    }

    #[cold]
    fn push_corrupt(
        &mut self,
        entry: &Entry,
        events: &mut Vec<DataEvent>,
    ) -> Result<(), QueueFault> {
        let mut words = [0u64; 8];
        for (word, value) in words.iter_mut().zip(entry.body) {
            *word = value;
        }
        let [.., tail] = &mut words;
        *tail = entry.tail.to_memory();
        self.corrupt.retain_mut(|(skip, mask)| {
            if let Some(left) = skip.checked_sub(1) {
                *skip = left;
                return true;
            }
            for (word, mask) in words.iter_mut().zip(mask.chunks_exact(8)) {
                *word ^= mask
                    .first_chunk::<8>()
                    .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            }
            false
        });
        let [a, b, c, d, e, f, g, tail] = words;
        self.write([a, b, c, d, e, f, g], tail, events)
    }

    /// Fault: changes one of the next entries.
    pub fn corrupt(&mut self, skip: u32, mask: [u8; 64]) {
        self.corrupt.push((skip, mask));
    }

    /// The driver stored to the arm doorbell.
    pub fn ring_arm(&mut self, events: &mut Vec<DataEvent>) {
        let Some(word) = self
            .reached
            .as_ref()
            .map(|r| r.arm.load_be(Ordering::Acquire))
        else {
            return;
        };
        self.last_arm = word;
        self.arm(word & INDEX, events);
    }

    /// Looks at the arm record without a doorbell (sampled mode).
    #[inline]
    pub fn sample_arm(&mut self, events: &mut Vec<DataEvent>) {
        let Some(word) = self
            .reached
            .as_ref()
            .map(|r| r.arm.load_be(Ordering::Acquire))
        else {
            return;
        };
        if word != self.last_arm {
            self.last_arm = word;
            self.arm(word & INDEX, events);
        }
    }

    fn arm(&mut self, consumer: u32, events: &mut Vec<DataEvent>) {
        if self.error {
            return;
        }
        self.armed = true;
        self.held = 0;
        self.due = None;
        // Entries that the driver has not seen count as if they came now.
        let unseen = self.producer.wrapping_sub(consumer) & INDEX;
        if unseen != 0 {
            self.notify(unseen, events);
        }
    }
}

/// The two words of a doorbell record.
pub(super) fn words(
    memory: &mut Memory,
    record_at: u64,
) -> Result<(Word32, Word32), pollux_bus::DmaFault> {
    let window = memory.window(record_at, record::LEN as u64, Access::Read)?;
    let word = |window: &Window, index: usize| {
        window.word32(index * 4).map_err(|_| pollux_bus::DmaFault {
            iova: pollux_bus::Iova(record_at),
            len: record::LEN as u64,
        })
    };
    Ok((word(&window, 0)?, word(&window, 1)?))
}
