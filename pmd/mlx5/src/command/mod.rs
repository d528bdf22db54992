//! The command interface: a page of entries, each with its mailboxes made once.
//!
//! A slot is an entry with room for one command; the last slot is kept for MANAGE_PAGES, because
//! firmware may hold every other command until it has pages. The device owns an entry from the
//! store of its ownership bit until it clears it; nothing of the entry is read before that.
//! Control thread only: it posts, and looks at entries when an event or the clock tells it to.
//!
//! MANAGE_PAGES moves hundreds of kilobytes and is sent again and again, so its list of pages goes
//! from where it lies straight into mailboxes, and back into a buffer made once
//! ([`CommandQueue::returned`]): such a command allocates nothing.

mod chain;
mod error;

#[cfg(feature = "bench")]
pub(crate) use chain::Chain;
pub use error::CommandError;

use crate::dma::{Carver, DmaMemory};
use crate::error::{CommandFailure, Error};
use crate::health::Fault;
use crate::init_segment::InitSegment;
#[cfg(not(feature = "bench"))]
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
use pollux_prm::commands::pages::{ManagePagesOut, PagesAction};
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
    /// The opcode.
    pub(crate) fn opcode(&self) -> Opcode {
        Opcode(header(&self.input).opcode())
    }

    /// As it is posted.
    pub(crate) fn order(&self) -> Order<'_> {
        Order {
            head: &self.input,
            pages: &[],
            output_len: self.output_len,
            patience: self.patience,
        }
    }
}

/// A command as it is posted. Only the slot for MANAGE_PAGES takes one with pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'a> {
    /// The input, or what of it comes before the pages: 16 bytes then.
    pub(crate) head: &'a [u8],
    /// Addresses that end the input.
    pub(crate) pages: &'a [u64],
    /// Bytes of output wanted.
    pub(crate) output_len: usize,
    /// Time from posting until it has failed.
    pub(crate) patience: Duration,
}

impl Order<'_> {
    fn len(&self) -> usize {
        self.head.len() + 8 * self.pages.len()
    }
}

fn header(input: &[u8]) -> InputHeader {
    InputHeader::read_from_prefix(input).map_or_else(|_| InputHeader::zeroed(), |(h, _)| h)
}

struct Busy<T> {
    opcode: Opcode,
    op_mod: u16,
    output_len: usize,
    token: u8,
    posted: Instant,
    deadline: Instant,
    /// The deadline has passed, and the answer is waited for all the same.
    overdue: bool,
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
    /// The output (empty for MANAGE_PAGES, see [`CommandQueue::returned`]), or why there is none.
    pub(crate) result: Result<Vec<u8>, CommandFailure>,
}

/// The command queue of one function. `T` says what a command in flight is for.
pub(crate) struct CommandQueue<T> {
    segment: InitSegment,
    entries: DmaMemory,
    slots: Vec<Slot<T>>,
    token: u8,
    verify: bool,
    /// Pages in the answer to the last TAKE.
    returned: Vec<u64>,
}

impl<T> CommandQueue<T> {
    /// Reads the geometry and prepares entries and mailboxes, those of MANAGE_PAGES for steps of up
    /// to `largest` pages. The device is not told yet.
    ///
    /// # Errors
    /// Another interface revision, a geometry that does not fit, no memory.
    pub(crate) fn new(
        name: &str,
        segment: InitSegment,
        domain: &Arc<DmaDomain>,
        node: Option<NodeId>,
        pages: PageChoice,
        largest: u32,
    ) -> Result<Self, Error> {
        let pages_bytes = INLINE + 8 * largest as usize;
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
        let boxes = 2 * ordinary * mailboxes(ORDINARY_BYTES) + mailboxes(pages_bytes);
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
        let shared = Chain::new(&mut carver, pages_bytes)?;
        slot(there - 1, shared.clone(), shared)?;
        Ok(Self {
            segment,
            entries,
            slots,
            token: 0,
            verify: false,
            returned: crate::pages::touched(largest),
        })
    }

    /// Pages in the answer to the last TAKE that went well.
    pub(crate) fn returned(&self) -> &[u64] {
        &self.returned
    }

    /// Mailboxes of the slot for MANAGE_PAGES.
    pub(crate) fn pages_mailboxes(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.input.boxes())
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

    /// Commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.iter().filter(|s| s.busy.is_some()).count()
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.slots
            .iter()
            .filter_map(|s| s.busy.as_ref().filter(|b| !b.overdue).map(|b| b.deadline))
            .min()
    }

    /// Writes the entry and rings. On failure the tag comes back with the reason.
    pub(crate) fn post(
        &mut self,
        index: usize,
        order: Order<'_>,
        tag: T,
        now: Instant,
    ) -> Result<(), Completed<T>> {
        let header = header(order.head);
        let opcode = Opcode(header.opcode());
        self.token = next_token(self.token);
        let token = self.token;
        let written = match self.slots.get_mut(index) {
            Some(slot) if slot.busy.is_none() => slot.write(order, opcode, token),
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
                    output_len: order.output_len,
                    token,
                    posted: now,
                    deadline: now + order.patience,
                    overdue: false,
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

    /// Looks at every busy entry and puts those that the device has given back into `done`. With
    /// `only`, looks at the entries whose bits are set.
    pub(crate) fn collect(&mut self, only: Option<u32>, done: &mut Vec<Completed<T>>) {
        let verify = self.verify;
        let last = self.pages_slot();
        for (at, slot) in self.slots.iter_mut().enumerate() {
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
                let result = if at == last {
                    slot.read_pages(&busy, verify, &mut self.returned)
                        .map(|()| Vec::new())
                } else {
                    slot.read(&busy, verify)
                };
                done.push(Completed {
                    tag: busy.tag,
                    result,
                });
            }
        }
    }

    /// Looks at every busy entry whose event should have come: puts those into `done` that were
    /// found ended by the look before this one already, because their event is lost. True when
    /// some were found for the first time.
    pub(crate) fn collect_overdue(&mut self, done: &mut Vec<Completed<T>>) -> bool {
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
        self.collect(Some(overdue), done);
        found
    }

    /// Gives up the commands whose time is over. The caller has looked at the entries before.
    ///
    /// MANAGE_PAGES is not given up: pages are about to change hands, and only its answer says
    /// which. Its failure is returned once; it stays in flight.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        done: &mut Vec<Completed<T>>,
    ) -> Option<CommandFailure> {
        let last = self.pages_slot();
        let mut late = None;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let number = slot.number;
            let failure = |busy: &Busy<T>| CommandFailure::TimedOut {
                opcode: busy.opcode,
                op_mod: busy.op_mod,
                slot: number,
                waited: now.saturating_duration_since(busy.posted),
            };
            let is_due = |busy: &mut Busy<T>| busy.deadline <= now && !busy.overdue;
            if at == last {
                if let Some(busy) = slot.busy.as_mut().filter(|busy| busy.deadline <= now) {
                    if !std::mem::replace(&mut busy.overdue, true) {
                        late = Some(failure(busy));
                    }
                }
            } else if let Some(busy) = slot.busy.take_if(is_due) {
                slot.lost = true;
                let result = Err(failure(&busy));
                done.push(Completed {
                    tag: busy.tag,
                    result,
                });
            }
        }
        late
    }

    /// Ends every command in flight, because the device has failed.
    pub(crate) fn abandon(&mut self, fault: Fault, done: &mut Vec<Completed<T>>) {
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
    }
}

impl<T> Slot<T> {
    fn is_device_owned(&self) -> bool {
        self.owner.load(Ordering::Acquire) & 1 != 0
    }

    /// Fills entry and mailboxes and hands them over; returns the doorbell's bit.
    fn write(&self, order: Order<'_>, opcode: Opcode, token: u8) -> Result<u32, CommandFailure> {
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
        let (input, output) = (order.len(), order.output_len);
        if input > self.input.capacity() {
            return Err(too_long("input", input, self.input.capacity()));
        }
        if output > self.output.capacity() || output < OutputHeader::LEN {
            return Err(too_long("output", output, self.output.capacity()));
        }
        let mut entry = CommandEntry::zeroed();
        let mut inline = [0; INLINE];
        for (to, from) in inline.iter_mut().zip(order.head) {
            *to = *from;
        }
        let filled = if order.pages.is_empty() {
            self.input.fill(order.head, token)
        } else {
            self.input.fill_words(order.pages, token)
        };
        entry
            .set_entry_type(ENTRY_TYPE)
            .set_input_length(input as u32)
            .set_input_inline(inline)
            .set_input_mailbox(filled.map_err(memory)?)
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

    /// The entry, if it was delivered and is what it should be.
    fn entry(&self, busy: &Busy<T>, verify: bool) -> Result<CommandEntry, CommandFailure> {
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
        Ok(entry)
    }

    /// What the answer's header says of the command.
    fn verdict(busy: &Busy<T>, output: &[u8]) -> Result<(), CommandFailure> {
        let opcode = busy.opcode;
        let (header, _) =
            OutputHeader::read_from_prefix(output).map_err(|_| CommandFailure::Damaged {
                opcode,
                what: "no header",
            })?;
        match Status(header.status()) {
            Status::OK => Ok(()),
            status => Err(CommandFailure::Refused(CommandError {
                opcode,
                op_mod: busy.op_mod,
                status,
                syndrome: header.syndrome(),
            })),
        }
    }

    fn read(&self, busy: &Busy<T>, verify: bool) -> Result<Vec<u8>, CommandFailure> {
        let opcode = busy.opcode;
        let entry = self.entry(busy, verify)?;
        let mut output = vec![0; busy.output_len];
        for (to, from) in output.iter_mut().zip(entry.output_inline()) {
            *to = from;
        }
        let token = verify.then_some(busy.token);
        self.output
            .read(&mut output, token)
            .map_err(|e| CommandFailure::Bus {
                opcode,
                why: e.to_string(),
            })?
            .map_err(|what| CommandFailure::Damaged { opcode, what })?;
        Self::verdict(busy, &output)?;
        Ok(output)
    }

    /// Reads the answer to a MANAGE_PAGES; the pages that came back replace those in `pages`.
    fn read_pages(
        &self,
        busy: &Busy<T>,
        verify: bool,
        pages: &mut Vec<u64>,
    ) -> Result<(), CommandFailure> {
        let opcode = busy.opcode;
        let damaged = |what| CommandFailure::Damaged { opcode, what };
        pages.clear();
        let entry = self.entry(busy, verify)?;
        let inline = entry.output_inline();
        Self::verdict(busy, &inline)?;
        let (head, _) =
            ManagePagesOut::read_from_prefix(&inline).map_err(|_| damaged("no header"))?;
        let room = busy.output_len.saturating_sub(INLINE) / 8;
        let count = head.output_num_entries() as usize;
        // Of a GIVE nothing comes back, whatever the field holds.
        if busy.op_mod != PagesAction::TAKE.0 {
            return Ok(());
        }
        if count > room {
            return Err(damaged("more pages than asked for"));
        }
        let read = self
            .output
            .read_words(pages, count, verify.then_some(busy.token))
            .map_err(|e| CommandFailure::Bus {
                opcode,
                why: e.to_string(),
            })?
            .map_err(damaged);
        if read.is_err() {
            pages.clear();
        }
        read
    }
}
