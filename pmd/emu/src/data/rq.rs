//! Receive queues: taking a WQE, scattering a frame, completing.

use super::cq::{self, Cq, Entry};
use super::frame::Frame;
use super::memory::{Access, AccessError, Memory, Views};
use super::request::{DataEvent, QueueFault, QueueState, QueueStatus, RqChange, RqSpec};
use super::ring::{self, Ring};
use super::{DataError, Kind};
use pollux_bus::Iova;
use pollux_mempool::Word32;
use pollux_prm::completion::{CqeOpcode, Syndrome, Tail};
use pollux_prm::wqe::INVALID_LKEY;
use std::sync::atomic::Ordering;

/// Segment length that the PRM writes as zero.
const ZERO_MEANS: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct Reached {
    pub ring: Ring<[u64; 2]>,
    record: Word32,
}

/// A receive queue.
#[derive(Debug)]
pub(super) struct Rq {
    pub spec: RqSpec,
    state: QueueState,
    pub reached: Option<Reached>,
    pub views: Views,
    /// Place of the completion queue.
    pub cq: usize,
    /// WQEs taken.
    pub hardware: u16,
    /// WQEs posted, as the record said last.
    software: u16,
    /// A buffer was posted since the last reset.
    stocked: bool,
}

/// What became of a frame at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is in the driver's buffer.
    Accepted,
    /// It is larger than the buffer, which holds `limit` bytes; the WQE is used up, the queue
    /// goes on.
    TooLong {
        /// Bytes of the buffer.
        limit: u32,
    },
    /// The queue failed.
    Failed,
    /// The buffer can be reached next turn; nothing is used up.
    Again,
}

enum Fault {
    Short(u32),
    Access(AccessError),
}

impl Rq {
    pub fn create(memory: &mut Memory, spec: RqSpec, cq: usize) -> Result<Self, DataError> {
        let number = spec.rqn;
        ring::check(
            Kind::Rq,
            number,
            &spec.ring,
            spec.log_size,
            spec.log_stride,
            4..=10,
        )?;
        let mut rq = Self {
            state: spec.state,
            reached: None,
            views: Views::new(spec.pd, Access::Write),
            cq,
            hardware: 0,
            software: 0,
            stocked: false,
            spec,
        };
        rq.reached = Some(rq.reach(memory).map_err(|fault| DataError::Memory {
            kind: Kind::Rq,
            number,
            fault,
        })?);
        Ok(rq)
    }

    fn reach(&self, memory: &mut Memory) -> Result<Reached, pollux_bus::DmaFault> {
        let log_cells = self.spec.log_size + self.spec.log_stride - 4;
        let ring = Ring::resolve(memory, &self.spec.ring, log_cells, Access::Read)?;
        let (record, _) = cq::words(memory, self.spec.doorbell_record)?;
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

    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }

    /// Whether frames are changed on their way into the buffer.
    #[inline(always)]
    pub fn reshapes(&self, tagged: bool) -> bool {
        self.spec.scatter_fcs || (tagged && self.spec.vlan_strip)
    }

    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.state == QueueState::Ready
    }

    pub fn status(&self) -> QueueStatus {
        // The record is not kept: what it claims is checked when a frame needs a buffer.
        let record = self
            .reached
            .as_ref()
            .filter(|_| self.state != QueueState::Reset);
        let posted = record.map(|reached| reached.record.load_be(Ordering::Acquire) as u16);
        QueueStatus {
            state: self.state,
            hardware_index: self.hardware,
            software_index: posted.unwrap_or(self.software),
        }
    }

    pub fn modify(&mut self, change: RqChange) {
        if let Some(state) = change.state {
            self.state = state;
            if state == QueueState::Reset {
                self.hardware = 0;
                self.software = 0;
                self.stocked = false;
            }
        }
        self.spec.vlan_strip = change.vlan_strip.unwrap_or(self.spec.vlan_strip);
        self.spec.scatter_fcs = change.scatter_fcs.unwrap_or(self.spec.scatter_fcs);
        self.spec.counter_set = change.counter_set.unwrap_or(self.spec.counter_set);
    }

    #[inline(always)]
    fn read_record(&mut self) {
        // In reset state the record may hold what an earlier life left there.
        if self.state == QueueState::Reset {
            return;
        }
        if let Some(reached) = &self.reached {
            self.software = reached.record.load_be(Ordering::Acquire) as u16;
        }
    }

    /// Buffers known to be there.
    #[inline(always)]
    pub fn posted(&self) -> u16 {
        self.software.wrapping_sub(self.hardware)
    }

    /// Whether a buffer is there. Looks at the record when none is known; a record that claims
    /// more than the ring holds fails the queue.
    #[inline(always)]
    pub fn has_buffer(&mut self, events: &mut Vec<DataEvent>) -> bool {
        self.posted() != 0 || self.look(events)
    }

    /// Whether WQEs are single segments and frames stay as they are, tags apart.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.spec.log_stride == 4 && !self.spec.scatter_fcs
    }

    /// As [`has_buffer`](Self::has_buffer), always with a look at the record.
    #[inline(never)]
    pub fn look(&mut self, events: &mut Vec<DataEvent>) -> bool {
        self.read_record();
        if u32::from(self.posted()) > 1 << self.spec.log_size {
            self.fail(QueueFault::Index, events);
            return false;
        }
        self.stocked |= self.posted() != 0;
        self.posted() != 0
    }

    /// Whether buffers can be expected. A driver that never posted one has the queue for dropping
    /// what comes.
    #[inline]
    pub fn is_stocked(&self) -> bool {
        self.stocked
    }

    /// Puts a frame into the next buffer and completes it. [`has_buffer`](Self::has_buffer) was
    /// true. `entry` lacks the queue's own fields and the length.
    #[inline(always)]
    pub fn take<F: Frame>(
        &mut self,
        frame: &F,
        mut entry: Entry,
        flow_tag: u32,
        memory: &mut Memory,
        cq: &mut Cq,
        events: &mut Vec<DataEvent>,
    ) -> Taken {
        let Some(reached) = &self.reached else {
            let iova = Iova(self.spec.doorbell_record);
            self.fail(QueueFault::Memory { iova }, events);
            return Taken::Failed;
        };
        let log_segments = self.spec.log_stride - 4;
        let first = usize::from(self.hardware) << log_segments;
        let done = scatter(
            frame,
            &reached.ring,
            first,
            1 << log_segments,
            &mut self.views,
            memory,
        );
        match done {
            Ok(()) => {
                let [_, _, _, flags, index, count, _] = &mut entry.body;
                *flags |= (u64::from(self.spec.rqn) << 32).to_be();
                *index = (u64::from(self.spec.user_index & 0xff_ffff) << 32).to_be();
                *count = (frame.len() as u64).to_be();
                entry.tail = Tail::new(flow_tag, self.hardware, 0, CqeOpcode::RESP_SEND, false);
                self.hardware = self.hardware.wrapping_add(1);
                match cq.push(&entry, events) {
                    Ok(()) => Taken::Accepted,
                    Err(fault) => {
                        self.fail(fault, events);
                        Taken::Failed
                    }
                }
            }
            Err(Fault::Short(limit)) => {
                let syndrome = Syndrome::LOCAL_LENGTH_ERR;
                match self.complete_error(syndrome, 0, cq, events) {
                    Ok(()) => Taken::TooLong { limit },
                    Err(fault) => {
                        self.fail(fault, events);
                        Taken::Failed
                    }
                }
            }
            Err(Fault::Access(AccessError::Stale)) => Taken::Again,
            Err(Fault::Access(error)) => {
                let (syndrome, vendor) = (Syndrome::LOCAL_PROT_ERR, error as u8);
                let cause = match self.complete_error(syndrome, vendor, cq, events) {
                    Ok(()) => QueueFault::Completion {
                        syndrome: syndrome.0,
                        vendor,
                    },
                    Err(fault) => fault,
                };
                self.fail(cause, events);
                Taken::Failed
            }
        }
    }

    #[cold]
    fn complete_error(
        &mut self,
        syndrome: Syndrome,
        vendor: u8,
        cq: &mut Cq,
        events: &mut Vec<DataEvent>,
    ) -> Result<(), QueueFault> {
        let index = self.hardware;
        self.hardware = index.wrapping_add(1);
        let entry = error_entry(
            CqeOpcode::RESP_ERR,
            0,
            self.spec.rqn,
            self.spec.user_index,
            index,
            syndrome,
            vendor,
        );
        cq.push(&entry, events)
    }

    #[cold]
    fn fail(&mut self, cause: QueueFault, events: &mut Vec<DataEvent>) {
        if self.state != QueueState::Error {
            self.state = QueueState::Error;
            events.push(DataEvent::RqError {
                rqn: self.spec.rqn,
                cause,
            });
        }
    }

    /// In error state: completes what is posted as flushed, as far as the completion queue has
    /// room. True when something was flushed.
    pub fn flush(&mut self, cq: &mut Cq, events: &mut Vec<DataEvent>) -> bool {
        if self.state != QueueState::Error || !self.spec.flush_in_error || !cq.is_usable() {
            return false;
        }
        self.read_record();
        if self.reached.is_none() || u32::from(self.posted()) > 1 << self.spec.log_size {
            return false;
        }
        let mut any = false;
        while self.posted() != 0 && cq.has_room() {
            if self
                .complete_error(Syndrome::WR_FLUSH_ERR, 0, cq, events)
                .is_err()
            {
                break;
            }
            any = true;
        }
        any
    }
}

/// Writes a frame into the buffers of one WQE.
#[inline(always)]
fn scatter<F: Frame>(
    frame: &F,
    ring: &Ring<[u64; 2]>,
    first: usize,
    segments: usize,
    views: &mut Views,
    memory: &mut Memory,
) -> Result<(), Fault> {
    let len = frame.len();
    let mut done = 0;
    for segment in 0..segments {
        let index = first + segment;
        let Some(part) = ring.part(index) else { break };
        let [head, address] = part.read(index);
        let (head, mut address) = (u64::from_be(head), u64::from_be(address));
        let key = head as u32;
        if key == INVALID_LKEY {
            break;
        }
        let room = match (head >> 32) as u32 & (ZERO_MEANS - 1) {
            0 => ZERO_MEANS,
            bytes => bytes,
        };
        let mut left = (len - done).min(room as usize);
        while left > 0 {
            let (window, at, there) = views
                .find(memory, key, address, left)
                .map_err(Fault::Access)?;
            let copied = frame.copy_to(done, window, at, there);
            if copied.is_err() {
                return Err(Fault::Access(AccessError::Unmapped));
            }
            done += there;
            left -= there;
            address = address.wrapping_add(there as u64);
        }
        if done == len {
            return Ok(());
        }
    }
    Err(Fault::Short(done as u32))
}

/// An error completion of a work queue.
pub(super) fn error_entry(
    opcode: CqeOpcode,
    send_opcode: u8,
    number: u32,
    user_index: u32,
    index: u16,
    syndrome: Syndrome,
    vendor: u8,
) -> Entry {
    let user = (u64::from(user_index & 0xff_ffff) << 32).to_be();
    let codes = u64::from(vendor) << 8 | u64::from(syndrome.0);
    let tail = u32::from(send_opcode) << 24 | number & 0xff_ffff;
    Entry {
        body: [0, 0, 0, 0, user, 0, codes.to_be()],
        tail: Tail::new(tail, index, 0, opcode, false),
    }
}
