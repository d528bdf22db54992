//! The command queue from the device's side: slots as asynchronous state machines.
//!
//! A doorbell bit starts its slot: the entry is read by DMA, checked, its mailboxes are gathered,
//! and the command is handed to the firmware. The answer may come at once, later (a delay that a
//! test asked for), when pages came (the slot holds its input until then), or never. An entry that
//! is malformed goes back with a delivery status and is not executed. The ownership bit is given
//! back last. Command thread only.

use crate::faults::{CommandFault, Faults};
use crate::firmware::{Firmware, Outcome, refused};
use crate::observe::{CommandOutcome, CommandRecord};
use crate::syndrome::Refusal;
use pollux_bus::HostReader;
use pollux_prm::Layout;
use pollux_prm::command::Status;
use pollux_prm::command_queue::{
    CommandEntry, DeliveryStatus, ENTRY_TYPE, INLINE, MAILBOX_ALIGN, Mailbox, block_range,
    mailboxes,
};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Logarithm of the number of slots.
pub(crate) const LOG_SLOTS: u8 = 5;
/// Logarithm of the distance between entries in bytes.
pub(crate) const LOG_STRIDE: u8 = 6;
/// Longest input or output in bytes: eight million pages. Drivers that do not cut a request into
/// steps ask for as many in one command as the firmware offers.
pub(crate) const MAX_LENGTH: usize = 64 << 20;
/// Shortest: opcode and variant, or status and syndrome.
const MIN_LENGTH: usize = 8;

/// Where an output goes.
#[derive(Clone, Debug)]
struct Target {
    entry: CommandEntry,
    /// Device addresses of the output mailboxes.
    chain: Vec<u64>,
    room: usize,
}

#[derive(Clone, Debug)]
enum Slot {
    /// The driver's.
    Idle,
    /// Waits until the firmware has pages.
    Held {
        target: Target,
        input: Vec<u8>,
        silent: bool,
    },
    /// The firmware has not come to it yet.
    Waiting {
        target: Target,
        input: Vec<u8>,
        at: Instant,
    },
    /// Executed; the answer leaves later.
    Late {
        target: Target,
        output: Vec<u8>,
        at: Instant,
        silent: bool,
    },
    /// Executed; the answer never leaves.
    Mute,
}

/// What the queue did since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    /// Commands executed, refused ones included.
    pub executed: u64,
    /// Entries that went back with a delivery status.
    pub undelivered: u64,
    /// Doorbells for slots that are busy, not there, or not the device's.
    pub stray: u64,
}

/// The command queue of one function.
pub(crate) struct CommandQueue {
    base: u64,
    slots: Vec<Slot>,
    pub(crate) counts: QueueCounts,
    /// Slots that completed and are to be reported by an event.
    completed: u32,
    /// What was done, if somebody wants to know.
    records: Option<Vec<CommandRecord>>,
}

impl CommandQueue {
    /// A queue at a device address; `counts` go on.
    pub(crate) fn new(base: u64, counts: QueueCounts) -> Self {
        Self {
            base,
            slots: vec![Slot::Idle; 1 << LOG_SLOTS],
            counts,
            completed: 0,
            records: None,
        }
    }

    /// Begins to keep records of commands, or no longer keeps them.
    pub(crate) fn keep_records(&mut self, keep: bool) {
        match (&self.records, keep) {
            (None, true) => self.records = Some(Vec::new()),
            (Some(_), false) => self.records = None,
            _ => {}
        }
    }

    /// The records since the last call.
    pub(crate) fn take_records(&mut self) -> Vec<CommandRecord> {
        self.records
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn record(&mut self, record: impl FnOnce() -> CommandRecord) {
        if let Some(records) = &mut self.records {
            records.push(record());
        }
    }

    fn address(&self, slot: usize) -> u64 {
        self.base + ((slot as u64) << LOG_STRIDE)
    }

    /// Slots that completed since the last call and are to be reported.
    pub(crate) fn take_completed(&mut self) -> u32 {
        std::mem::take(&mut self.completed)
    }

    /// When the next delayed answer is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = |slot: &Slot| match slot {
            Slot::Late { at, .. } | Slot::Waiting { at, .. } => Some(*at),
            _ => None,
        };
        self.slots.iter().filter_map(due).min()
    }

    /// A doorbell: starts the slots whose bits are set.
    pub(crate) fn ring(
        &mut self,
        vector: u32,
        firmware: &mut Firmware,
        reader: &mut HostReader,
        faults: &Faults,
    ) {
        for slot in (0..u32::BITS as usize).filter(|slot| vector >> slot & 1 == 1) {
            if faults.killed() {
                return;
            }
            if !matches!(self.slots.get(slot), Some(Slot::Idle)) {
                self.counts.stray += 1;
                continue;
            }
            self.start(slot, firmware, reader, faults);
        }
    }

    fn start(
        &mut self,
        slot: usize,
        firmware: &mut Firmware,
        reader: &mut HostReader,
        faults: &Faults,
    ) {
        let mut bytes = [0; CommandEntry::LEN];
        let there = reader.copy_out(self.address(slot), &mut bytes).is_ok();
        let entry = CommandEntry::from_bytes(bytes);
        if !there || !entry.ownership() {
            self.counts.stray += 1;
            return;
        }
        let checksum = firmware.limits().checksum;
        let (target, input) = match gather(entry, checksum, reader) {
            Ok(parts) => parts,
            Err(status) => return self.undeliver(slot, entry, status, reader),
        };
        let fault = faults.meet(entry.opcode().0);
        let mut silent = false;
        match fault {
            Some(CommandFault::Undelivered { status }) => {
                return self.undeliver(slot, entry, DeliveryStatus(status), reader);
            }
            Some(CommandFault::Fail { status, syndrome }) => {
                let refusal = Refusal {
                    status: Status(status),
                    syndrome,
                };
                let output = refused(refusal, target.room);
                self.counts.executed += 1;
                self.record(|| CommandRecord::answered(&input, &output));
                return self.answer(slot, &target, &output, silent, reader);
            }
            Some(CommandFault::Wait(time)) => {
                let at = Instant::now() + time;
                return self.put(slot, Slot::Waiting { target, input, at });
            }
            Some(CommandFault::DropEvent) => silent = true,
            Some(CommandFault::Die) => {
                faults.die();
                return self.put(slot, Slot::Mute);
            }
            _ => {}
        }
        let output = match firmware.execute(&input, target.room) {
            Outcome::Done(output) => output,
            Outcome::Hold => return self.put(slot, held(target, input, silent)),
        };
        self.counts.executed += 1;
        self.record(|| CommandRecord::answered(&input, &output));
        match fault {
            Some(CommandFault::DropAnswer) => self.put(slot, Slot::Mute),
            Some(CommandFault::Delay(time)) => {
                let at = Instant::now() + time;
                self.put(
                    slot,
                    Slot::Late {
                        target,
                        output,
                        at,
                        silent,
                    },
                );
            }
            _ => self.answer(slot, &target, &output, silent, reader),
        }
    }

    fn put(&mut self, slot: usize, state: Slot) {
        if let Some(there) = self.slots.get_mut(slot) {
            *there = state;
        }
    }

    /// Tries held commands again, and sends delayed answers that are due.
    pub(crate) fn advance(
        &mut self,
        pages_came: bool,
        now: Instant,
        firmware: &mut Firmware,
        reader: &mut HostReader,
    ) {
        for slot in 0..self.slots.len() {
            let Some(state) = self.slots.get_mut(slot) else {
                break;
            };
            match std::mem::replace(state, Slot::Idle) {
                Slot::Held {
                    target,
                    input,
                    silent,
                } if pages_came => self.again(slot, target, input, silent, firmware, reader),
                Slot::Waiting { target, input, at } if at <= now => {
                    self.again(slot, target, input, false, firmware, reader);
                }
                Slot::Late {
                    target,
                    output,
                    at,
                    silent,
                } if at <= now => {
                    self.answer(slot, &target, &output, silent, reader);
                }
                other => self.put(slot, other),
            }
        }
    }

    /// Executes a command whose turn has come, or holds it.
    fn again(
        &mut self,
        slot: usize,
        target: Target,
        input: Vec<u8>,
        silent: bool,
        firmware: &mut Firmware,
        reader: &mut HostReader,
    ) {
        match firmware.execute(&input, target.room) {
            Outcome::Done(output) => {
                self.counts.executed += 1;
                self.record(|| CommandRecord::answered(&input, &output));
                self.answer(slot, &target, &output, silent, reader);
            }
            Outcome::Hold => self.put(slot, held(target, input, silent)),
        }
    }

    /// Whether a command waits for pages.
    pub(crate) fn holds(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(slot, Slot::Held { .. }))
    }

    /// Commands that wait for their time.
    pub(crate) fn late(&self) -> usize {
        let late = |slot: &&Slot| matches!(slot, Slot::Late { .. } | Slot::Waiting { .. });
        self.slots.iter().filter(late).count()
    }

    fn undeliver(
        &mut self,
        slot: usize,
        mut entry: CommandEntry,
        status: DeliveryStatus,
        reader: &mut HostReader,
    ) {
        self.counts.undelivered += 1;
        self.record(|| {
            let outcome = CommandOutcome::Undelivered(status);
            let length = entry.input_length() as usize;
            CommandRecord::new(&entry.input_inline(), length, outcome)
        });
        // Seven bits; a test may ask for more.
        carried(entry.set_status(status.0 & 0x7f));
        self.give_back(slot, entry, false, reader);
    }

    fn answer(
        &mut self,
        slot: usize,
        target: &Target,
        output: &[u8],
        silent: bool,
        reader: &mut HostReader,
    ) {
        let mut entry = target.entry;
        let mut inline = [0; INLINE];
        for (to, from) in inline.iter_mut().zip(output) {
            *to = *from;
        }
        entry.set_output_inline(inline);
        let mut delivered = DeliveryStatus::OK;
        for (block, address) in target.chain.iter().enumerate() {
            let next = target.chain.get(block + 1).copied().unwrap_or(0);
            let data = output
                .get(block_range(block, output.len()))
                .unwrap_or_default();
            let mailbox = Mailbox::chained(data, next, block as u32, entry.token());
            if reader.copy_in(*address, mailbox.bytes()).is_err() {
                delivered = DeliveryStatus::FIRMWARE_ERROR;
            }
        }
        carried(entry.set_status(delivered.0));
        self.give_back(slot, entry, silent, reader);
    }

    /// Writes the entry, ownership last, and notes the completion.
    fn give_back(
        &mut self,
        slot: usize,
        mut entry: CommandEntry,
        silent: bool,
        reader: &mut HostReader,
    ) {
        entry.set_ownership(false);
        entry.sign();
        self.put(slot, Slot::Idle);
        let address = self.address(slot);
        let written = crate::events::write_owner_last(reader, address, entry.bytes());
        if written.is_some() && !silent {
            self.completed |= 1 << slot;
        }
        // The event must not be seen before the entry.
        std::sync::atomic::fence(Ordering::Release);
    }
}

fn held(target: Target, input: Vec<u8>, silent: bool) -> Slot {
    Slot::Held {
        target,
        input,
        silent,
    }
}

/// A delivery status fits its seven bits.
fn carried<T, E>(result: Result<T, E>) {
    debug_assert!(result.is_ok());
}

/// Checks an entry and gathers its input.
fn gather(
    entry: CommandEntry,
    checksum: u8,
    reader: &mut HostReader,
) -> Result<(Target, Vec<u8>), DeliveryStatus> {
    if entry.entry_type() != ENTRY_TYPE {
        return Err(DeliveryStatus::BAD_DESCRIPTOR);
    }
    // A signature of zero is one that was not made, unless the driver has switched them on.
    let required = checksum != 0;
    if (required || entry.signature() != 0) && !entry.is_signed() {
        return Err(DeliveryStatus::SIGNATURE_ERROR);
    }
    if entry.without_reserved() != entry || entry.status() != 0 {
        return Err(DeliveryStatus::RESERVED_NOT_CLEAR);
    }
    let lengths = MIN_LENGTH..=MAX_LENGTH;
    let (input_len, room) = (
        entry.input_length() as usize,
        entry.output_length() as usize,
    );
    if !lengths.contains(&input_len) {
        return Err(DeliveryStatus::INPUT_LENGTH_ERROR);
    }
    if !lengths.contains(&room) {
        return Err(DeliveryStatus::OUTPUT_LENGTH_ERROR);
    }
    let signatures = if required {
        Signatures::Required
    } else {
        Signatures::WherePresent
    };
    let walk = Walk {
        token: entry.token(),
        signatures,
    };
    let short = DeliveryStatus::INPUT_LENGTH_ERROR;
    let align = DeliveryStatus::INPUT_POINTER_ALIGNMENT;
    let mut input = entry.input_inline().to_vec();
    let mut take = |_: u64, mailbox: &Mailbox| input.extend_from_slice(&mailbox.data());
    walk.each(
        entry.input_mailbox(),
        mailboxes(input_len),
        align,
        short,
        reader,
        &mut take,
    )?;
    input.truncate(input_len);
    let mut chain = Vec::new();
    let short = DeliveryStatus::OUTPUT_LENGTH_ERROR;
    let align = DeliveryStatus::OUTPUT_POINTER_ALIGNMENT;
    let mut note = |address: u64, _: &Mailbox| chain.push(address);
    // Output mailboxes are about to be overwritten: their old signatures mean nothing.
    let walk = Walk {
        token: entry.token(),
        signatures: Signatures::Ignored,
    };
    walk.each(
        entry.output_mailbox(),
        mailboxes(room),
        align,
        short,
        reader,
        &mut note,
    )?;
    Ok((Target { entry, chain, room }, input))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signatures {
    WherePresent,
    Required,
    Ignored,
}

/// A walk along a chain of mailboxes.
struct Walk {
    token: u8,
    signatures: Signatures,
}

impl Walk {
    fn each(
        &self,
        first: u64,
        count: usize,
        align: DeliveryStatus,
        short: DeliveryStatus,
        reader: &mut HostReader,
        visit: &mut dyn FnMut(u64, &Mailbox),
    ) -> Result<(), DeliveryStatus> {
        let mut address = first;
        for block in 0..count {
            if address == 0 {
                return Err(short);
            }
            if address % MAILBOX_ALIGN as u64 != 0 {
                return Err(align);
            }
            let mut bytes = [0; Mailbox::LEN];
            reader
                .copy_out(address, &mut bytes)
                .map_err(|_| DeliveryStatus::FIRMWARE_ERROR)?;
            let mailbox = Mailbox::from_bytes(bytes);
            self.check(&mailbox, block)?;
            visit(address, &mailbox);
            address = mailbox.next_pointer();
        }
        Ok(())
    }

    fn check(&self, mailbox: &Mailbox, block: usize) -> Result<(), DeliveryStatus> {
        let good = match self.signatures {
            // Two zeros are signatures that were not made. (One alone can come out of the sum: the
            // whole's is zero when the data's is.)
            Signatures::WherePresent => {
                mailbox.ctrl_signature() == 0 && mailbox.signature() == 0 || mailbox.is_signed()
            }
            Signatures::Required => mailbox.is_signed(),
            Signatures::Ignored => true,
        };
        if !good {
            return Err(DeliveryStatus::SIGNATURE_ERROR);
        }
        if mailbox.token() != self.token {
            return Err(DeliveryStatus::TOKEN_ERROR);
        }
        if mailbox.block_number() as usize != block {
            return Err(DeliveryStatus::BAD_BLOCK_NUMBER);
        }
        if mailbox.without_reserved() != *mailbox {
            return Err(DeliveryStatus::RESERVED_NOT_CLEAR);
        }
        Ok(())
    }
}
