//! A driver of a few hundred lines, for tests: it knows buses and wire formats and nothing else.
//!
//! It owns one block of memory: the command queue, mailboxes for each slot, pages for the firmware
//! and space for rings. Panics when something is not as a test expects.
#![allow(dead_code)] // each test file uses its part

pub mod world;

use pollux_bus::{DmaMapping, Function, Interrupt, Registers, local};
use pollux_emu::{Emulator, EmulatorConfig, FunctionConfig};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use pollux_prm::Layout;
use pollux_prm::command::{Command, Opcode, OutputHeader, Status};
use pollux_prm::command_queue::{CommandEntry, ENTRY_TYPE, Mailbox, block_range, mailboxes};
use pollux_prm::commands::eq::*;
use pollux_prm::commands::hca::*;
use pollux_prm::commands::pages::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;
/// Mailboxes of one slot and direction: enough for 25,000 page addresses.
const MAILBOXES: usize = 400;
const SLOTS: usize = 4;
const MAILBOX_SPACE: usize = MAILBOXES * 1024;

/// What a command came back with, beside a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: Status,
    pub syndrome: u32,
}

impl Refused {
    /// What the device's own table says.
    pub fn text(self) -> String {
        pollux_emu::syndrome::explain(self.syndrome).unwrap_or_default()
    }
}

pub struct Driver {
    pub emulator: Emulator,
    pub function: Arc<dyn Function>,
    pub segment: Segment,
    pub memory: Window,
    pub mapping: DmaMapping,
    pub interrupts: Vec<Interrupt>,
    pub registers: Registers,
    control: Registers,
    next_token: u8,
    /// First byte of the memory that is not in use.
    free: usize,
    /// Pages that the firmware was given.
    pub given: Vec<u64>,
    /// Pages that the firmware gave back.
    pub returned: Vec<u64>,
    /// EQ consumer indices by number.
    consumers: std::collections::BTreeMap<u8, u32>,
}

impl Driver {
    /// Connects to function 0 of a new emulator, with its command queue set up.
    pub fn new(config: EmulatorConfig) -> Self {
        Self::with_memory(config, 32 << 20)
    }

    pub fn one(function: FunctionConfig) -> Self {
        Self::new(EmulatorConfig {
            functions: vec![function],
            ..EmulatorConfig::default()
        })
    }

    pub fn with_memory(config: EmulatorConfig, len: usize) -> Self {
        let emulator = Emulator::new(config).unwrap();
        Self::on(emulator, len)
    }

    pub fn on(emulator: Emulator, len: usize) -> Self {
        let function = local::connect(emulator.function(0).unwrap()).unwrap();
        let request = SegmentRequest::new("driver", len).page(PageChoice::Ordinary);
        let segment = Segment::map(&request).unwrap();
        let mapping = function.domain().map(&segment).unwrap();
        function.set_bus_master(true).unwrap();
        let interrupts = function.enable_interrupts(function.vectors()).unwrap();
        let mut driver = Self {
            registers: function.registers(0, 0x4000).unwrap(),
            control: function.registers(0x10 * PAGE as u64, PAGE as u64).unwrap(),
            memory: segment.whole(),
            emulator,
            function,
            segment,
            mapping,
            interrupts,
            next_token: 0,
            free: PAGE + 2 * SLOTS * MAILBOX_SPACE,
            given: Vec::new(),
            returned: Vec::new(),
            consumers: Default::default(),
        };
        driver.start_queue();
        driver
    }

    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Waits until the firmware has started, and gives it the command queue's address.
    pub fn start_queue(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.registers.load_u32(0x1fc).unwrap() >> 31 == 1 {
            assert!(Instant::now() < until, "the firmware does not start");
            std::thread::yield_now();
        }
        let queue = self.iova(0);
        self.registers
            .store_u32(0x10, (queue >> 32) as u32)
            .unwrap();
        self.registers.store_u32(0x14, queue as u32).unwrap();
    }

    pub fn iova(&self, offset: usize) -> u64 {
        self.mapping.iova().0 + offset as u64
    }

    /// Offset in the memory of a device address.
    pub fn offset(&self, iova: u64) -> usize {
        (iova - self.mapping.iova().0) as usize
    }

    /// `len` bytes of fresh memory on a page boundary; its offset.
    pub fn take(&mut self, len: usize) -> usize {
        let at = self.free;
        self.free += len.next_multiple_of(PAGE);
        assert!(
            self.free <= self.memory.len(),
            "the test driver's memory is used up"
        );
        at
    }

    /// `len` bytes of fresh memory aligned to their length (a power of two).
    pub fn take_aligned(&mut self, len: usize) -> usize {
        let base = self.mapping.iova().0 as usize;
        self.free = (base + self.free).next_multiple_of(len) - base;
        self.take(len)
    }

    fn mailbox_offset(slot: usize, output: bool, block: usize) -> usize {
        let chain = slot * 2 + usize::from(output);
        PAGE + chain * MAILBOX_SPACE + block * 1024
    }

    /// An entry and its mailboxes for `input` and `room` bytes of output, as a driver makes them.
    pub fn prepare(&mut self, slot: usize, input: &[u8], room: usize) -> CommandEntry {
        self.next_token = pollux_prm::command_queue::next_token(self.next_token);
        let token = self.next_token;
        for (output, len) in [(false, input.len()), (true, room)] {
            let count = mailboxes(len);
            assert!(count <= MAILBOXES, "the test driver has too few mailboxes");
            for block in 0..count {
                let next = if block + 1 < count {
                    self.iova(Self::mailbox_offset(slot, output, block + 1))
                } else {
                    0
                };
                let data = if output {
                    &[]
                } else {
                    &input[block_range(block, len)]
                };
                let mailbox = Mailbox::chained(data, next, block as u32, token);
                let at = Self::mailbox_offset(slot, output, block);
                self.memory.copy_in(at, mailbox.bytes()).unwrap();
            }
        }
        let mut entry = CommandEntry::zeroed();
        let mut inline = [0; 16];
        let short = input.len().min(16);
        inline[..short].copy_from_slice(&input[..short]);
        entry
            .set_entry_type(ENTRY_TYPE)
            .set_input_length(input.len() as u32)
            .set_output_length(room as u32)
            .set_input_inline(inline)
            .set_token(token)
            .set_ownership(true);
        if mailboxes(input.len()) > 0 {
            entry.set_input_mailbox(self.iova(Self::mailbox_offset(slot, false, 0)));
        }
        if mailboxes(room) > 0 {
            entry.set_output_mailbox(self.iova(Self::mailbox_offset(slot, true, 0)));
        }
        entry.sign();
        entry
    }

    /// Offset of a slot's first mailbox of a direction.
    pub fn first_mailbox(slot: usize, output: bool) -> usize {
        Self::mailbox_offset(slot, output, 0)
    }

    /// Writes an entry and rings the doorbell.
    pub fn post(&mut self, slot: usize, entry: &CommandEntry) {
        self.memory.copy_in(slot * 64, entry.bytes()).unwrap();
        self.registers.store_u32(0x18, 1 << slot).unwrap();
    }

    /// The entry, once the device has given it back.
    pub fn poll(&self, slot: usize) -> Option<CommandEntry> {
        let owner = self
            .memory
            .word8(slot * 64 + 63)
            .unwrap()
            .load(Ordering::Acquire);
        if owner & 1 == 1 {
            return None;
        }
        Some(CommandEntry::from_bytes(
            self.memory.read(slot * 64).unwrap(),
        ))
    }

    pub fn wait(&self, slot: usize) -> CommandEntry {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(entry) = self.poll(slot) {
                return entry;
            }
            assert!(Instant::now() < until, "no answer in slot {slot}");
            std::thread::yield_now();
        }
    }

    /// The output of a slot that came back, signatures and tokens checked.
    pub fn output(&self, slot: usize, entry: &CommandEntry) -> Vec<u8> {
        assert_eq!(entry.status(), 0, "delivery status");
        assert!(entry.is_signed(), "the entry is not signed");
        let room = entry.output_length() as usize;
        let mut out = entry.output_inline().to_vec();
        for block in 0..mailboxes(room) {
            let at = Self::mailbox_offset(slot, true, block);
            let mailbox = Mailbox::from_bytes(self.memory.read(at).unwrap());
            assert!(mailbox.is_signed(), "output mailbox {block} is not signed");
            assert_eq!(mailbox.token(), entry.token());
            assert_eq!(mailbox.block_number(), block as u32);
            out.extend_from_slice(&mailbox.data());
        }
        out.truncate(room);
        out
    }

    /// Sends raw bytes and returns the raw output.
    pub fn raw(&mut self, input: &[u8], room: usize) -> Vec<u8> {
        let entry = self.prepare(0, input, room);
        self.post(0, &entry);
        let entry = self.wait(0);
        self.output(0, &entry)
    }

    /// Sends raw bytes; the output, or the refusal.
    pub fn try_raw(&mut self, input: &[u8], room: usize) -> Result<Vec<u8>, Refused> {
        let out = self.raw(input, room);
        let (header, _) = OutputHeader::read_from_prefix(&out).unwrap();
        let status = Status(header.status());
        if status == Status::OK {
            return Ok(out);
        }
        Err(Refused {
            status,
            syndrome: header.syndrome(),
        })
    }

    /// Sends a command with a tail and room for `out_tail` bytes of output tail.
    pub fn call_tail<C: Command>(
        &mut self,
        input: &C::Input,
        tail: &[u8],
        out_tail: usize,
    ) -> Result<(C::Output, Vec<u8>), Refused> {
        let bytes = [input.as_bytes(), tail].concat();
        let out = self.try_raw(&bytes, C::Output::LEN + out_tail)?;
        let (fixed, rest) = C::Output::read_from_prefix(&out).unwrap();
        Ok((fixed, rest.to_vec()))
    }

    /// Sends a command.
    pub fn call<C: Command>(&mut self, input: &C::Input) -> Result<C::Output, Refused> {
        self.call_tail::<C>(input, &[], 0).map(|(out, _)| out)
    }

    /// Answers QUERY_PAGES of a variant by giving what is asked; how many.
    pub fn give_pages(&mut self, variant: u16) -> usize {
        let mut query = QueryPages::request();
        query.set_op_mod(variant);
        let wanted = self.call::<QueryPages>(&query).unwrap().num_pages() as i32;
        let wanted = usize::try_from(wanted).unwrap();
        self.give(wanted);
        wanted
    }

    /// Gives fresh pages.
    pub fn give(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let at = self.take(count * PAGE);
        let pages: Vec<u64> = (0..count).map(|n| self.iova(at + n * PAGE)).collect();
        self.give_list(&pages).unwrap();
        self.given.extend(pages);
    }

    pub fn give_list(&mut self, pages: &[u64]) -> Result<(), Refused> {
        let mut input = ManagePages::request();
        input
            .set_op_mod(1)
            .set_input_num_entries(pages.len() as u32);
        let tail: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        self.call_tail::<ManagePages>(&input, &tail, 0).map(|_| ())
    }

    /// Takes at most `count` pages back; the addresses.
    pub fn take_pages(&mut self, count: usize) -> Vec<u64> {
        let mut input = ManagePages::request();
        input.set_op_mod(2).set_input_num_entries(count as u32);
        let (out, tail) = self
            .call_tail::<ManagePages>(&input, &[], count * 8)
            .unwrap();
        let taken = out.output_num_entries() as usize;
        let pages: Vec<u64> = tail
            .chunks_exact(8)
            .take(taken)
            .map(|page| u64::from_be_bytes(page.try_into().unwrap()))
            .collect();
        assert_eq!(pages.len(), taken);
        self.returned.extend(&pages);
        pages
    }

    /// From power-on to the state in which objects can be made.
    pub fn bring_up(&mut self) {
        self.call::<EnableHca>(&EnableHca::request()).unwrap();
        let mut issi = SetIssi::request();
        issi.set_current_issi(1);
        self.call::<SetIssi>(&issi).unwrap();
        self.give_pages(1);
        self.give_pages(2);
        self.call::<InitHca>(&InitHca::request()).unwrap();
    }

    /// From the running state to power-on; how many pages came back.
    pub fn shut_down(&mut self) -> usize {
        self.call::<TeardownHca>(&TeardownHca::request()).unwrap();
        let mut back = 0;
        loop {
            let pages = self.take_pages(768);
            back += pages.len();
            if pages.is_empty() {
                break;
            }
        }
        self.call::<DisableHca>(&DisableHca::request()).unwrap();
        back
    }

    pub fn uar(&mut self) -> u32 {
        self.call::<AllocUar>(&AllocUar::request()).unwrap().uar()
    }

    /// An event queue of `1 << log_size` entries on the first UAR page, its entries the driver's;
    /// number and offset of the ring.
    pub fn eq(&mut self, uar: u32, vector: u16, events: [u64; 4], log_size: u8) -> (u8, usize) {
        let ring = self.take(64 << log_size);
        for entry in 0..1usize << log_size {
            self.memory
                .word8(ring + entry * 64 + 63)
                .unwrap()
                .store(1, Ordering::Relaxed);
        }
        let mut input = CreateEq::request();
        let mut context = Eqc::zeroed();
        context.set_log_eq_size(log_size).unwrap();
        context.set_uar_page(uar).unwrap();
        context.set_intr(vector).unwrap();
        input.set_eq_context_entry(context);
        input.set_event_bitmask(events);
        let tail = self.page_list(ring, 64 << log_size);
        let (out, _) = self.call_tail::<CreateEq>(&input, &tail, 0).unwrap();
        self.consumers.insert(out.eq_number(), 0);
        (out.eq_number(), ring)
    }

    pub fn page_list(&self, at: usize, len: usize) -> Vec<u8> {
        (0..len.div_ceil(PAGE))
            .flat_map(|n| self.iova(at + n * PAGE).to_be_bytes())
            .collect()
    }

    pub fn arm_eq(&mut self, eqn: u8) {
        let index = self.consumers[&eqn];
        self.control
            .store_u32(0x40, u32::from(eqn) << 24 | index)
            .unwrap();
    }

    /// The next event of a queue, if it is there.
    pub fn event(&mut self, eqn: u8, ring: usize, log_size: u8) -> Option<pollux_prm::event::Eqe> {
        let index = self.consumers[&eqn];
        let at = ring + (index as usize & ((1 << log_size) - 1)) * 64;
        let owner = self.memory.word8(at + 63).unwrap().load(Ordering::Acquire);
        if (owner & 1 == 1) != pollux_prm::event::owner(index, log_size) {
            return None;
        }
        let entry = pollux_prm::event::Eqe::from_bytes(self.memory.read(at).unwrap());
        let next = (index + 1) & 0xff_ffff;
        self.consumers.insert(eqn, next);
        self.control
            .store_u32(0x48, u32::from(eqn) << 24 | next)
            .unwrap();
        Some(entry)
    }

    pub fn wait_event(&mut self, eqn: u8, ring: usize, log_size: u8) -> pollux_prm::event::Eqe {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.event(eqn, ring, log_size) {
                return event;
            }
            assert!(Instant::now() < until, "no event");
            std::thread::yield_now();
        }
    }
}

/// Words as the device sees them.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The opcode of an input.
pub fn opcode(input: &[u8]) -> Opcode {
    Opcode(u16::from_be_bytes([input[0], input[1]]))
}
