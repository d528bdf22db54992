//! Event queues: a ring of 64-byte entries that the device writes and the control thread reads.
//!
//! An entry is the driver's when its owner bit equals the lap of the consumer index; that bit is
//! read first, the rest after an acquire. The consumer index goes back through a register of the
//! UAR page, at least once in [`SPARE`] entries, so that the ring never looks full to the device;
//! the store that arms makes the device raise the vector once more, at once if entries wait.

use crate::dma::DmaMemory;
use crate::error::Error;
use pollux_bus::{BusError, Registers};
use pollux_mempool::{Cells, barrier};
use pollux_prm::command::Command;
use pollux_prm::commands::eq::{CreateEq, Eqc};
use pollux_prm::event::{Eqe, EventType, owner};
use pollux_prm::wqe::uar;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Entries by which a ring is larger than what may be outstanding, and after which the consumer
/// index is told at the latest.
pub(crate) const SPARE: u32 = 128;

const EQE: usize = 64;
/// Byte and bit of the owner.
const OWNER: usize = 63;

/// What a queue is for. Sizes are those that the Linux driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EqKind {
    /// Command completions and page requests: in one queue, so that their order is firmware's. Of
    /// a GIVE and a release of all pages it makes a difference which came first.
    Commands,
    /// Port changes and errors.
    Async,
    /// Completion events; none is ever armed, but a CQ must name a queue.
    Completions,
}

impl EqKind {
    /// All, in the order of creation.
    pub(crate) const ALL: [Self; 3] = [Self::Commands, Self::Async, Self::Completions];

    pub(crate) fn log_size(self) -> u8 {
        match self {
            Self::Commands => 8,
            Self::Async => 9,
            Self::Completions => 11,
        }
    }

    /// The vector it likes to have, of `there`.
    pub(crate) fn vector(self, there: usize) -> usize {
        let wish = match self {
            Self::Completions => 0,
            Self::Commands => 1,
            Self::Async => 2,
        };
        if there == 0 { 0 } else { wish % there }
    }

    fn events(self) -> &'static [EventType] {
        match self {
            Self::Commands => &[EventType::CMD, EventType::PAGE_REQUEST],
            Self::Async => &[
                EventType::CQ_ERROR,
                EventType::WQ_CATAS_ERROR,
                EventType::PORT_CHANGE,
                EventType::WQ_INVAL_REQ_ERROR,
                EventType::WQ_ACCESS_ERROR,
            ],
            Self::Completions => &[],
        }
    }

    /// Bytes of the ring.
    pub(crate) fn bytes(self) -> usize {
        EQE << self.log_size()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commands => "command EQ",
            Self::Async => "async EQ",
            Self::Completions => "completion EQ",
        }
    }
}

/// An event queue on the driver's side.
pub(crate) struct EventQueue {
    kind: EqKind,
    number: u8,
    /// Keeps the ring mapped for the device.
    memory: DmaMemory,
    entries: Cells<[u8; EQE]>,
    consumer: u32,
    /// Entries taken since the device was told.
    untold: u32,
    page: Registers,
    vector: usize,
}

/// A ring that no queue uses yet.
pub(crate) struct Ring {
    memory: DmaMemory,
    entries: Cells<[u8; EQE]>,
}

impl Ring {
    /// Sets every entry to the device's ownership. `memory` has [`EqKind::bytes`] bytes, aligned
    /// to as many.
    pub(crate) fn new(kind: EqKind, memory: DmaMemory) -> Result<Self, Error> {
        let count = 1usize << kind.log_size();
        let entries = memory.window().cells(0, count)?;
        for index in 0..count {
            entries.write(index, &[0; EQE]);
            entries.store_u8::<OWNER>(index, 1, Ordering::Release);
        }
        Ok(Self { memory, entries })
    }

    /// Input of `CREATE_EQ` for the ring, with its page list.
    pub(crate) fn create(
        &self,
        kind: EqKind,
        uar_page: u32,
        vector: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut context = Eqc::zeroed();
        context.set_log_eq_size(kind.log_size())?;
        context.set_uar_page(uar_page)?;
        context.set_intr(vector as u16)?;
        // The ring is one page of its own size.
        let log_page = kind.bytes().trailing_zeros() as u8 - 12;
        context.set_log_page_size(log_page)?;
        let mut mask = [0; 4];
        for event in kind.events() {
            for (word, bits) in mask.iter_mut().zip(event.mask()) {
                *word |= bits;
            }
        }
        let mut input = CreateEq::request();
        input.set_eq_context_entry(context).set_event_bitmask(mask);
        let mut bytes = input.as_bytes().to_vec();
        bytes.extend(self.memory.iova().0.to_be_bytes());
        Ok(bytes)
    }

    /// The queue that firmware has made of the ring.
    pub(crate) fn created(
        self,
        kind: EqKind,
        number: u8,
        page: Registers,
        vector: usize,
    ) -> EventQueue {
        EventQueue {
            kind,
            number,
            memory: self.memory,
            entries: self.entries,
            consumer: 0,
            untold: 0,
            page,
            vector,
        }
    }
}

impl EventQueue {
    pub(crate) fn kind(&self) -> EqKind {
        self.kind
    }

    /// Number that firmware gave it.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Its interrupt vector.
    pub(crate) fn vector(&self) -> usize {
        self.vector
    }

    /// The ring's memory, which the device may write until the queue is destroyed.
    pub(crate) fn into_memory(self) -> DmaMemory {
        self.memory
    }

    /// The next entry, if the device has written one.
    pub(crate) fn next(&mut self) -> Option<Eqe> {
        let owned = self
            .entries
            .load_u8::<OWNER>(self.consumer, Ordering::Acquire)
            & 1
            != 0;
        if owned != owner(self.consumer, self.kind.log_size()) {
            return None;
        }
        barrier::after_owner();
        let entry = Eqe::from_bytes(self.entries.read(self.consumer));
        self.consumer = self.consumer.wrapping_add(1);
        self.untold += 1;
        Some(entry)
    }

    /// Tells the consumer index when it is due.
    pub(crate) fn keep_up(&mut self) -> Result<(), BusError> {
        if self.untold < SPARE {
            return Ok(());
        }
        self.store(uar::EQ_CONSUMER)
    }

    /// Tells the consumer index and asks for the next interrupt.
    pub(crate) fn arm(&mut self) -> Result<(), BusError> {
        self.store(uar::EQ_ARM)
    }

    fn store(&mut self, offset: usize) -> Result<(), BusError> {
        self.untold = 0;
        let word = u32::from(self.number) << 24 | self.consumer & 0xff_ffff;
        self.page.store_u32(offset as u64, word)
    }
}
