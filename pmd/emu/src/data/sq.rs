//! Send queues: reading WQEs, finding the frame, completing.
//!
//! A plain WQE (control, Ethernet, inline header or none, one data segment) is sent from where it
//! lies. All others are brought together in a buffer first.

use super::compose::{MAX_GATHER, vendor};
use super::cq::{self, Cq, Entry};
use super::frame::{Headers, L3, L4, Piece, Pieces};
use super::memory::{Access, AccessError, Memory, Views};
use super::outlet::{Dispatched, Outlet, Sent};
use super::request::{DataEvent, InlineMode, QueueFault, QueueState, QueueStatus, SqSpec};
use super::ring::{self, Ring};
use super::rq::error_entry;
use super::{DataError, Features, Kind};
use pollux_bus::Iova;
use pollux_mempool::Word32;
use pollux_prm::completion::{CqeOpcode, Syndrome, Tail};
use pollux_prm::wqe::SendOpcode;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct Reached {
    pub ring: Ring<[u64; 8]>,
    record: Word32,
}

/// A send queue.
#[derive(Debug)]
pub(super) struct Sq {
    pub spec: SqSpec,
    pub features: Features,
    state: QueueState,
    pub reached: Option<Reached>,
    pub views: Views,
    /// Place of the completion queue.
    pub cq: usize,
    /// Basic blocks taken.
    pub hardware: u16,
    /// Basic blocks posted, as the record said last.
    software: u16,
    /// Doorbells still to be lost.
    pub ignored: u32,
    /// A frame waits for a buffer at the other end.
    waiting: bool,
    /// Segments of a large send that are out already.
    pub segments_out: usize,
    pub wqe: Vec<u8>,
    pub gathered: Vec<u8>,
    pub cut: Vec<u8>,
}

/// What a WQE came to.
pub(super) enum Step {
    Done,
    Wait,
    Fail(Syndrome, u8),
}

impl From<AccessError> for Step {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Stale => Self::Wait,
            error => Self::Fail(Syndrome::LOCAL_PROT_ERR, error as u8),
        }
    }
}

/// The fields of a control segment.
#[derive(Clone, Copy)]
pub(super) struct Control {
    pub opcode: u8,
    pub segments: usize,
    pub blocks: u16,
    completion: u8,
}

impl Sq {
    pub fn create(
        memory: &mut Memory,
        spec: SqSpec,
        cq: usize,
        features: Features,
    ) -> Result<Self, DataError> {
        let number = spec.sqn;
        ring::check(Kind::Sq, number, &spec.ring, spec.log_size, 6, 6..=6)?;
        let mut sq = Self {
            features,
            state: spec.state,
            reached: None,
            views: Views::new(spec.pd, Access::Read),
            cq,
            hardware: 0,
            software: 0,
            ignored: 0,
            waiting: false,
            segments_out: 0,
            wqe: Vec::new(),
            gathered: Vec::new(),
            cut: Vec::new(),
            spec,
        };
        sq.reached = Some(sq.reach(memory).map_err(|fault| DataError::Memory {
            kind: Kind::Sq,
            number,
            fault,
        })?);
        Ok(sq)
    }

    fn reach(&self, memory: &mut Memory) -> Result<Reached, pollux_bus::DmaFault> {
        let ring = Ring::resolve(memory, &self.spec.ring, self.spec.log_size, Access::Read)?;
        let (_, record) = cq::words(memory, self.spec.doorbell_record)?;
        Ok(Reached { ring, record })
    }

    /// Lets go of the driver's memory.
    pub fn release(&mut self) {
        self.reached = None;
        self.views.clear();
    }

    /// Resolves the memory again.
    pub fn renew(&mut self, memory: &mut Memory) {
        self.reached = self.reach(memory).ok();
    }

    pub fn spec(&self) -> &SqSpec {
        &self.spec
    }

    pub fn status(&self) -> QueueStatus {
        QueueStatus {
            state: self.state,
            hardware_index: self.hardware,
            software_index: self.software,
        }
    }

    pub fn modify(&mut self, state: QueueState) {
        self.state = state;
        self.waiting = false;
        if state == QueueState::Reset {
            self.hardware = 0;
            self.software = 0;
            self.segments_out = 0;
        }
    }

    /// Whether WQEs are known to wait.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.hardware != self.software && self.state != QueueState::Reset
    }

    /// Whether a frame waits for a buffer at the other end.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// The driver stored to the doorbell.
    pub fn ring(&mut self) {
        if self.ignored > 0 {
            self.ignored -= 1;
            return;
        }
        self.sample();
    }

    /// Reads the record.
    #[inline]
    pub fn sample(&mut self) {
        if self.state == QueueState::Reset {
            return;
        }
        if let Some(reached) = &self.reached {
            self.software = reached.record.load_be(Ordering::Acquire) as u16;
        }
    }

    /// Basic blocks known to be posted and not taken.
    #[inline(always)]
    pub fn pending(&self) -> u16 {
        self.software.wrapping_sub(self.hardware)
    }

    /// Works through up to `budget` WQEs. True when anything was done.
    #[inline]
    pub fn serve(
        &mut self,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
        budget: usize,
    ) -> bool {
        if self.state != QueueState::Ready {
            return self.flush(function, outlet, sent, budget);
        }
        if u32::from(self.pending()) > 1 << self.spec.log_size {
            self.fail(QueueFault::Index, function, outlet);
            return true;
        }
        let mut done = 0;
        self.waiting = false;
        while done < budget && self.pending() != 0 {
            let burst = self.burst(function, outlet, sent, budget - done);
            done += burst.packets;
            if let Some(index) = burst.complete {
                self.complete(SendOpcode::SEND.0, index, function, outlet);
                if self.state != QueueState::Ready {
                    break;
                }
                continue;
            }
            if done >= budget || self.pending() == 0 {
                break;
            }
            let index = usize::from(self.hardware);
            let Some(reached) = &self.reached else {
                let iova = Iova(self.spec.doorbell_record);
                self.fail(QueueFault::Memory { iova }, function, outlet);
                return true;
            };
            let Some(words) = reached.ring.part(index).map(|part| part.read(index)) else {
                break;
            };
            let control = match self.control(&words) {
                Ok(control) => control,
                Err((opcode, syndrome, vendor)) => {
                    sent.errors += 1;
                    self.complete_error(opcode, syndrome, vendor, function, outlet);
                    return true;
                }
            };
            match self.execute(control, &words, function, outlet, sent) {
                Step::Done => {}
                Step::Wait => {
                    self.waiting = true;
                    break;
                }
                Step::Fail(syndrome, vendor) => {
                    sent.errors += 1;
                    self.complete_error(control.opcode, syndrome, vendor, function, outlet);
                    return true;
                }
            }
            done += 1;
            self.segments_out = 0;
            let taken = self.hardware;
            self.hardware = taken.wrapping_add(control.blocks);
            if control.completion >= 2 {
                self.complete(control.opcode, taken, function, outlet);
                if self.state != QueueState::Ready {
                    break;
                }
            }
        }
        done > 0
    }

    /// Checks a control segment: PRM, "Control segment".
    #[inline(always)]
    fn control(&self, words: &[u64; 8]) -> Result<Control, (u8, Syndrome, u8)> {
        let [first, second, ..] = *words;
        let (first, second) = (u64::from_be(first), u64::from_be(second));
        let opcode = (first >> 32) as u8;
        let segments = (first & 0x3f) as usize;
        let blocks = segments.div_ceil(4) as u16;
        let right = (first >> 40) as u16 == self.hardware
            && first >> 56 == 0
            && (first >> 8) as u32 & 0xff_ffff == self.spec.sqn
            && segments > 0
            && blocks <= self.pending();
        if !right {
            return Err((opcode, Syndrome::LOCAL_QP_OP_ERR, vendor::CONTROL));
        }
        Ok(Control {
            opcode,
            segments,
            blocks,
            completion: (second >> 34) as u8 & 3,
        })
    }

    #[inline]
    fn execute(
        &mut self,
        control: Control,
        words: &[u64; 8],
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
    ) -> Step {
        if control.opcode == SendOpcode::SEND.0 && self.spec.transmits {
            let [_, _, eth, inline, ..] = *words;
            let flags = (u64::from_be(eth) >> 24) as u8;
            let size = (u64::from_be(inline) >> 16) as u16;
            let plain = flags & 0xf0 == 0 || !self.features.tx_checksum;
            let shape = match control.segments {
                3 => size <= 2,
                4 => (3..=18).contains(&size),
                _ => false,
            };
            if plain && shape {
                return self.plain(control, words, usize::from(size), function, outlet, sent);
            }
        }
        self.composed(control, function, outlet, sent)
    }

    /// One data segment behind an inline header of up to 18 bytes.
    #[inline]
    fn plain(
        &mut self,
        control: Control,
        words: &[u64; 8],
        inline: usize,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
    ) -> Step {
        let [.., third, fourth, fifth, sixth] = *words;
        let (head, address) = if control.segments == 3 {
            (third, fourth)
        } else {
            (fifth, sixth)
        };
        let (head, address) = (u64::from_be(head), u64::from_be(address));
        let (bytes, key) = ((head >> 32) as u32, head as u32);
        if bytes >> 31 != 0 {
            return self.composed(control, function, outlet, sent);
        }
        let len = bytes as usize;
        if len == 0 || len + inline < 14 || len > MAX_GATHER {
            return Step::Fail(Syndrome::LOCAL_LENGTH_ERR, vendor::LENGTH);
        }
        let Some(memory) = outlet.memories.get_mut(function) else {
            return Step::Wait;
        };
        let (window, offset, there) = match self.views.find(memory, key, address, len) {
            Ok(found) => found,
            Err(error) => return error.into(),
        };
        if there < len {
            return self.composed(control, function, outlet, sent);
        }
        let index = usize::from(self.hardware);
        let Some(part) = self
            .reached
            .as_ref()
            .and_then(|reached| reached.ring.part(index))
        else {
            return Step::Wait;
        };
        let frame = Pieces {
            // The inline header starts with the last two bytes of the Ethernet segment.
            head: Piece {
                window: part.window(),
                offset: part.byte_offset(index) + 30,
                len: inline,
            },
            body: Piece {
                window,
                offset,
                len,
            },
        };
        let headers = Headers::parse(&frame);
        if self.spec.inline != InlineMode::None
            && inline < needed(self.spec.inline, &headers).min(headers.len)
        {
            return Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::INLINE);
        }
        match outlet.transmit(function, &frame, &headers, sent) {
            Sent::Done => Step::Done,
            Sent::Wait => Step::Wait,
        }
    }

    #[inline]
    fn complete(&mut self, opcode: u8, index: u16, function: usize, outlet: &mut Outlet<'_>) {
        let entry = Entry {
            body: [
                0,
                0,
                0,
                0,
                (u64::from(self.spec.user_index & 0xff_ffff) << 32).to_be(),
                0,
                outlet.stamp(function).to_be(),
            ],
            tail: Tail::new(
                u32::from(opcode) << 24 | self.spec.sqn,
                index,
                0,
                CqeOpcode::REQ,
                false,
            ),
        };
        self.push(&entry, function, outlet);
    }

    fn push(&mut self, entry: &Entry, function: usize, outlet: &mut Outlet<'_>) {
        let Some(side) = outlet.completions.get_mut(function) else {
            return;
        };
        let pushed = match side.cqs.at(self.cq) {
            Some(cq) => cq.push(entry, &mut side.events),
            None => Err(QueueFault::CompletionQueue),
        };
        if let Err(fault) = pushed {
            self.fail(fault, function, outlet);
        }
    }

    /// A WQE failed: its completion, error state, event.
    #[cold]
    fn complete_error(
        &mut self,
        opcode: u8,
        syndrome: Syndrome,
        vendor: u8,
        function: usize,
        outlet: &mut Outlet<'_>,
    ) {
        self.push_error(opcode, syndrome, vendor, function, outlet);
        let syndrome = syndrome.0;
        self.fail(
            QueueFault::Completion { syndrome, vendor },
            function,
            outlet,
        );
        self.skip();
    }

    fn push_error(
        &mut self,
        opcode: u8,
        syndrome: Syndrome,
        vendor: u8,
        function: usize,
        outlet: &mut Outlet<'_>,
    ) {
        let entry = error_entry(
            CqeOpcode::REQ_ERR,
            opcode,
            self.spec.sqn,
            self.spec.user_index,
            self.hardware,
            syndrome,
            vendor,
        );
        self.push(&entry, function, outlet);
    }

    /// Steps over a WQE that is not carried out.
    fn skip(&mut self) {
        let index = usize::from(self.hardware);
        let part = self
            .reached
            .as_ref()
            .and_then(|reached| reached.ring.part(index));
        let segments = part.map_or(1, |part| u64::from_be(part.read(index)[0]) & 0x3f);
        let blocks = match segments.div_ceil(4).max(1) as u16 {
            // A size that cannot be says nothing about where the next WQE is.
            blocks if blocks > self.pending() => 1,
            blocks => blocks,
        };
        self.hardware = self.hardware.wrapping_add(blocks);
        self.segments_out = 0;
    }

    #[cold]
    fn fail(&mut self, cause: QueueFault, function: usize, outlet: &mut Outlet<'_>) {
        if self.state == QueueState::Error {
            return;
        }
        self.state = QueueState::Error;
        self.waiting = false;
        if let Some(side) = outlet.completions.get_mut(function) {
            side.events.push(DataEvent::SqError {
                sqn: self.spec.sqn,
                cause,
            });
        }
    }

    /// In error state: completes what is posted as flushed, as far as the completion queue has
    /// room.
    #[cold]
    fn flush(
        &mut self,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
        budget: usize,
    ) -> bool {
        if self.state != QueueState::Error || self.reached.is_none() {
            return false;
        }
        if u32::from(self.pending()) > 1 << self.spec.log_size || !self.spec.flush_in_error {
            self.hardware = self.software;
            return false;
        }
        let mut done = 0;
        while done < budget && self.pending() != 0 && self.has_room(function, outlet) {
            let index = usize::from(self.hardware);
            let part = self
                .reached
                .as_ref()
                .and_then(|reached| reached.ring.part(index));
            let [first, second, ..] = part.map_or([0; 8], |part| part.read(index));
            let opcode = (u64::from_be(first) >> 32) as u8;
            // Mode 1 wants a completion for the first error only.
            if (u64::from_be(second) >> 34) & 3 != 1 {
                self.push_error(opcode, Syndrome::WR_FLUSH_ERR, 0, function, outlet);
            }
            sent.errors += 1;
            self.skip();
            done += 1;
        }
        done > 0
    }

    fn has_room(&self, function: usize, outlet: &mut Outlet<'_>) -> bool {
        let side = outlet.completions.get_mut(function);
        side.and_then(|side| side.cqs.at(self.cq))
            .is_some_and(|cq: &mut Cq| cq.is_usable() && cq.has_room())
    }
}

/// Bytes of header that the device insists on.
pub(super) fn needed(mode: InlineMode, headers: &Headers) -> usize {
    match mode {
        InlineMode::None => 0,
        InlineMode::L2 => headers.l3_at,
        _ if headers.l3 == L3::None => headers.l3_at,
        InlineMode::Ip => headers.l4_at,
        InlineMode::TcpUdp => {
            headers.l4_at
                + match headers.l4 {
                    L4::None => 0,
                    L4::Udp => 8,
                    L4::Tcp => headers.tcp_header(),
                }
        }
    }
}
