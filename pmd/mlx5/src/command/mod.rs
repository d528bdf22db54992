//! The command interface: a page of entries, each with its mailboxes made once.
//!
//! A slot is an entry with room for one command; the last slot is kept for MANAGE_PAGES, because
//! firmware may hold every other command until it has pages. The device owns an entry from the
//! store of its ownership bit until it clears it; nothing of the entry is read before that.
//! Control thread only: it posts, and looks at entries when an event or the clock tells it to.

mod chain;
mod error;

pub use error::CommandError;

use crate::dma::{Carver, DmaMemory};
use crate::error::{CommandFailure, Error};
use crate::health::Fault;
use crate::init_segment::InitSegment;
use crate::pages::MAX_PAGES_PER_STEP;
use chain::Chain;
use pollux_bus::{DmaDomain, Iova};
use pollux_mempool::{
    FIRMWARE_PAGE, MemoryError, NodeId, PageChoice, SegmentRequest, Window, Word8, barrier,
};
use pollux_prm::command::{InputHeader, OutputHeader};
use pollux_prm::command_queue::{
    CMD_INTERFACE_REV, CommandEntry, DeliveryStatus, ENTRY_TYPE, INLINE, LOG_QUEUE_BYTES,
    MAILBOX_ALIGN, MAX_SLOTS, mailboxes, next_token,
};
use pollux_prm::opcode::{Opcode, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Commands that may be in flight beside MANAGE_PAGES. More would only hold memory: bring-up and
/// queue commands come from few threads.
const ORDINARY_SLOTS: usize = 8;
/// Longest input or output of an ordinary command: capability groups are 4,112 bytes, memory key
/// tables up to 512 entries of 8 bytes behind 272.
const ORDINARY_BYTES: usize = 8 << 10;
/// A give or a take of [`MAX_PAGES_PER_STEP`] addresses behind 16 bytes.
const PAGES_BYTES: usize = INLINE + 8 * MAX_PAGES_PER_STEP as usize;
/// The ownership bit's byte.
const OWNER: usize = 63;

/// A command to be run.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The whole input.
    pub(crate) input: Vec<u8>,
    /// Bytes of output wanted.
    pub(crate) output_len: usize,
    /// Time from posting until it has failed.
    pub(crate) patience: Duration,
}

impl Request {
    fn header(&self) -> InputHeader {
        InputHeader::read_from_prefix(&self.input)
            .map_or_else(|_| InputHeader::zeroed(), |(h, _)| h)
    }

    /// The opcode.
    pub(crate) fn opcode(&self) -> Opcode {
        Opcode(self.header().opcode())
    }
}

struct Busy<T> {
    opcode: Opcode,
    op_mod: u16,
    output_len: usize,
    token: u8,
    posted: Instant,
    deadline: Instant,
    tag: T,
}

struct Slot<T> {
    /// Index in the device's queue, and bit in doorbells and events.
    number: usize,
    entry: Window,
    owner: Word8,
    input: Chain,
    output: Chain,
    busy: Option<Busy<T>>,
    /// The command timed out: the slot is the device's until it clears the ownership bit.
    lost: bool,
    /// The command was found ended without its event; the event may be on its way.
    suspect: bool,
}

/// A command that has ended.
pub(crate) struct Completed<T> {
    /// What the poster said it is.
    pub(crate) tag: T,
    /// The output, or why there is none.
    pub(crate) result: Result<Vec<u8>, CommandFailure>,
}

/// The command queue of one function. `T` says what a command in flight is for.
pub(crate) struct CommandQueue<T> {
    segment: InitSegment,
    entries: DmaMemory,
    slots: Vec<Slot<T>>,
    token: u8,
    verify: bool,
}

impl<T> CommandQueue<T> {
    /// Reads the geometry and prepares entries and mailboxes. The device is not told yet.
    ///
    /// # Errors
    /// Another interface revision, a geometry that does not fit, no memory.
    pub(crate) fn new(
        name: &str,
        segment: InitSegment,
        domain: &Arc<DmaDomain>,
        node: Option<NodeId>,
        pages: PageChoice,
    ) -> Result<Self, Error> {
        let found = segment.interface_revision()?;
        if found != CMD_INTERFACE_REV {
            return Err(Error::Interface {
                function: name.into(),
                found,
            });
        }
        let (log_size, log_stride) = segment.queue_geometry()?;
        let there = 1usize << log_size;
        // At least one slot beside that for pages; entries are 64 bytes; all lie in one page.
        if !(1..=5).contains(&log_size)
            || log_stride < 6
            || log_size + log_stride > LOG_QUEUE_BYTES
            || there > MAX_SLOTS
        {
            return Err(Error::CommandQueue {
                function: name.into(),
                log_size,
                log_stride,
            });
        }
        let ordinary = ORDINARY_SLOTS.min(there - 1);
        let boxes = 2 * ordinary * mailboxes(ORDINARY_BYTES) + mailboxes(PAGES_BYTES);
        let request = SegmentRequest::new(
            format!("commands of {name}"),
            FIRMWARE_PAGE + boxes * MAILBOX_ALIGN,
        );
        let memory = DmaMemory::new(domain, &request.node(node).page(pages))?;
        let mut carver = Carver::new(memory);
        let entries = carver.take(FIRMWARE_PAGE, FIRMWARE_PAGE)?;
        let mut slots = Vec::with_capacity(ordinary + 1);
        let mut slot = |number: usize, input, output| -> Result<(), Error> {
            let entry = entries.window().window(number << log_stride, 64)?;
            let owner = entry.word8(OWNER)?;
            slots.push(Slot {
                number,
                entry,
                owner,
                input,
                output,
                busy: None,
                lost: false,
                suspect: false,
            });
            Ok(())
        };
        for index in 0..ordinary {
            let input = Chain::new(&mut carver, ORDINARY_BYTES)?;
            slot(index, input, Chain::new(&mut carver, ORDINARY_BYTES)?)?;
        }
        // A give is long on its way in, a take on its way out, nothing is in both.
        let shared = Chain::new(&mut carver, PAGES_BYTES)?;
        slot(there - 1, shared.clone(), shared)?;
        Ok(Self {
            segment,
            entries,
            slots,
            token: 0,
            verify: false,
        })
    }

    /// Where it is, for the device.
    pub(crate) fn address(&self) -> Iova {
        self.entries.iova()
    }

    /// Whether answers' signatures are checked. Inputs are always signed.
    pub(crate) fn verify_signatures(&mut self, on: bool) {
        self.verify = on;
    }

    fn pages_slot(&self) -> usize {
        self.slots.len() - 1
    }

    /// A free slot for an ordinary command.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        self.slots
            .iter()
            .take(self.pages_slot())
            .position(|s| s.busy.is_none() && !s.lost)
    }

    /// The slot for MANAGE_PAGES, when it is free.
    pub(crate) fn free_pages_slot(&self) -> Option<usize> {
        let last = self.slots.last()?;
        (last.busy.is_none() && !last.lost).then(|| self.pages_slot())
    }

    /// Whether the slot for MANAGE_PAGES is held by a command that timed out.
    pub(crate) fn pages_slot_lost(&self) -> bool {
        self.slots.last().is_none_or(|s| s.lost)
    }

    /// Commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.iter().filter(|s| s.busy.is_some()).count()
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.slots
            .iter()
            .filter_map(|s| s.busy.as_ref().map(|b| b.deadline))
            .min()
    }

    /// Writes the entry and rings. On failure the tag comes back with the reason.
    pub(crate) fn post(
        &mut self,
        index: usize,
        request: &Request,
        tag: T,
        now: Instant,
    ) -> Result<(), Completed<T>> {
        let header = request.header();
        let opcode = Opcode(header.opcode());
        self.token = next_token(self.token);
        let token = self.token;
        let written = match self.slots.get_mut(index) {
            Some(slot) if slot.busy.is_none() => slot.write(request, opcode, token),
            _ => Err(CommandFailure::NoSlot {
                opcode,
                waited: Duration::ZERO,
            }),
        };
        let rung = written.and_then(|bit| {
            self.segment.ring(bit).map_err(|e| CommandFailure::Bus {
                opcode,
                why: e.to_string(),
            })
        });
        match (rung, self.slots.get_mut(index)) {
            (Ok(()), Some(slot)) => {
                slot.busy = Some(Busy {
                    opcode,
                    op_mod: header.op_mod(),
                    output_len: request.output_len,
                    token,
                    posted: now,
                    deadline: now + request.patience,
                    tag,
                });
                Ok(())
            }
            (Err(failure), _) => Err(Completed {
                tag,
                result: Err(failure),
            }),
            (Ok(()), None) => Ok(()), // not reached: a slot was written
        }
    }

    /// Looks at every busy entry and takes those that the device has given back. With `only`,
    /// looks at the entries whose bits are set.
    pub(crate) fn collect(&mut self, only: Option<u32>) -> Vec<Completed<T>> {
        let verify = self.verify;
        let mut done = Vec::new();
        for slot in &mut self.slots {
            if only.is_some_and(|bits| bits >> slot.number & 1 == 0) {
                continue;
            }
            slot.lost &= slot.is_device_owned();
            if slot.busy.is_none() || slot.is_device_owned() {
                continue;
            }
            slot.suspect = false;
            if let Some(busy) = slot.busy.take() {
                barrier::after_owner();
                let result = slot.read(&busy, verify);
                done.push(Completed {
                    tag: busy.tag,
                    result,
                });
            }
        }
        done
    }

    /// Looks at every busy entry whose event should have come: takes those that were found ended
    /// by the look before this one already, because their event is lost. The flag says that some
    /// were found for the first time.
    pub(crate) fn collect_overdue(&mut self) -> (Vec<Completed<T>>, bool) {
        let mut overdue = 0;
        let mut found = false;
        for slot in &mut self.slots {
            let ended = slot.busy.is_some() && !slot.is_device_owned();
            if ended && slot.suspect {
                overdue |= 1 << slot.number;
            }
            found |= ended && !slot.suspect;
            slot.suspect = ended;
            // A slot that timed out is free again when the device lets go of it.
            slot.lost &= slot.is_device_owned();
        }
        (self.collect(Some(overdue)), found)
    }

    /// Gives up the commands whose time is over. The caller has looked at the entries before.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Completed<T>> {
        let mut done = Vec::new();
        for slot in &mut self.slots {
            if let Some(busy) = slot.busy.take_if(|busy| busy.deadline <= now) {
                slot.lost = true;
                done.push(Completed {
                    tag: busy.tag,
                    result: Err(CommandFailure::TimedOut {
                        opcode: busy.opcode,
                        op_mod: busy.op_mod,
                        slot: slot.number,
                        waited: now.saturating_duration_since(busy.posted),
                    }),
                });
            }
        }
        done
    }

    /// Ends every command in flight, because the device has failed.
    pub(crate) fn abandon(&mut self, fault: Fault) -> Vec<Completed<T>> {
        let mut done = Vec::new();
        for slot in &mut self.slots {
            if let Some(busy) = slot.busy.take() {
                slot.lost = true;
                let result = Err(CommandFailure::Gone {
                    opcode: busy.opcode,
                    fault,
                });
                done.push(Completed {
                    tag: busy.tag,
                    result,
                });
            }
        }
        done
    }
}

impl<T> Slot<T> {
    fn is_device_owned(&self) -> bool {
        self.owner.load(Ordering::Acquire) & 1 != 0
    }

    /// Fills entry and mailboxes and hands them over; returns the doorbell's bit.
    fn write(&self, request: &Request, opcode: Opcode, token: u8) -> Result<u32, CommandFailure> {
        let memory = |e: MemoryError| CommandFailure::Bus {
            opcode,
            why: e.to_string(),
        };
        let too_long = |direction, bytes, limit| CommandFailure::TooLong {
            opcode,
            direction,
            bytes,
            limit,
        };
        let (input, output) = (&request.input, request.output_len);
        if input.len() > self.input.capacity() {
            return Err(too_long("input", input.len(), self.input.capacity()));
        }
        if output > self.output.capacity() || output < OutputHeader::LEN {
            return Err(too_long("output", output, self.output.capacity()));
        }
        let mut entry = CommandEntry::zeroed();
        let mut inline = [0; INLINE];
        for (to, from) in inline.iter_mut().zip(input) {
            *to = *from;
        }
        entry
            .set_entry_type(ENTRY_TYPE)
            .set_input_length(input.len() as u32)
            .set_input_inline(inline)
            .set_input_mailbox(self.input.fill(input, token).map_err(memory)?)
            .set_output_mailbox(self.output.clear(output, token).map_err(memory)?)
            .set_output_length(output as u32)
            .set_token(token)
            .set_ownership(true);
        entry.sign();
        // All of the entry but the word with the ownership bit, then that.
        let bytes = entry.bytes();
        let (rest, last) = bytes.split_at(60);
        self.entry.write(0, rest).map_err(memory)?;
        barrier::dma_write();
        self.entry.write(60, last).map_err(memory)?;
        Ok(1 << self.number)
    }

    fn read(&self, busy: &Busy<T>, verify: bool) -> Result<Vec<u8>, CommandFailure> {
        let opcode = busy.opcode;
        let damaged = |what| CommandFailure::Damaged { opcode, what };
        let memory = |e: MemoryError| CommandFailure::Bus {
            opcode,
            why: e.to_string(),
        };
        let entry: CommandEntry = self.entry.read(0).map_err(memory)?;
        let delivery = DeliveryStatus(entry.status());
        if delivery != DeliveryStatus::OK {
            return Err(CommandFailure::Delivery {
                opcode,
                op_mod: busy.op_mod,
                delivery,
            });
        }
        if verify && !entry.is_signed() {
            return Err(damaged("signature of the entry"));
        }
        let mut output = vec![0; busy.output_len];
        for (to, from) in output.iter_mut().zip(entry.output_inline()) {
            *to = from;
        }
        let token = verify.then_some(busy.token);
        self.output
            .read(&mut output, token)
            .map_err(memory)?
            .map_err(damaged)?;
        let (header, _) =
            OutputHeader::read_from_prefix(&output).map_err(|_| damaged("no header"))?;
        match Status(header.status()) {
            Status::OK => Ok(output),
            status => Err(CommandFailure::Refused(CommandError {
                opcode,
                op_mod: busy.op_mod,
                status,
                syndrome: header.syndrome(),
            })),
        }
    }
}
