//! What a function's port is plugged into, and the way of a frame out of it.

use super::cq::Cq;
use super::describe::Sums;
use super::frame::{Frame, Headers};
use super::memory::Memory;
use super::receiver::{Outcome, Receiver, Surroundings};
use super::request::{DataEvent, Direction, LinkSpec};
use super::slots::Slots;
use crate::wire::{Delivery, Oversize, Wire, WireReport};
use std::time::Duration;

/// Oversize frames that a report names.
const NAMED: usize = 8;

/// A function's completion queues and the events that wait to be told.
pub(super) struct Completions {
    pub cqs: Slots<Cq>,
    pub events: Vec<DataEvent>,
    /// Some queue may hold its event back.
    pub moderated: bool,
}

impl Completions {
    /// Tells events whose time has come; `now` and `per_microsecond` in counts of the CPU's
    /// counter. True while some still wait.
    pub fn moderate(&mut self, now: u64, per_microsecond: u64) -> bool {
        if !self.moderated {
            return false;
        }
        let Self { cqs, events, .. } = self;
        let mut waiting = false;
        for cq in cqs.iter_mut() {
            waiting |= cq.moderate(now, per_microsecond, events);
        }
        waiting
    }
}

/// Where a port's frames go.
pub(super) enum Joint {
    /// To a function of this emulator, perhaps itself.
    Function(usize),
    /// Out of it.
    Wire(Box<dyn Wire>),
}

/// A function's port.
pub(super) struct Plug {
    pub joint: Joint,
    /// Frames towards this port are dropped rather than kept waiting.
    pub lossy: bool,
    /// What its completions sum up.
    pub sums: Sums,
    pub link: LinkSpec,
    /// The cable is whole (a fault can cut it).
    pub cable: bool,
    /// What the wire brings waits, though the link is up.
    pub held: bool,
    /// The far end of a wire that leads out is up.
    pub far: bool,
    /// Frames can cross.
    pub up: bool,
    pub report: WireReport,
}

impl Plug {
    /// Tells a wire that leads out whether this end is up.
    pub fn tell_wire(&mut self) {
        let up = self.link.up && self.cable;
        if let Joint::Wire(wire) = &mut self.joint {
            wire.tell_link(up);
        }
    }

    /// A frame towards the port was not accepted; `accepted` were before.
    #[cold]
    pub fn refuse(&mut self, outcome: Outcome, accepted: u64, len: usize) {
        match outcome {
            Outcome::Accepted | Outcome::Wait => {}
            Outcome::Dropped => self.report.dropped += 1,
            Outcome::Oversize { limit } => {
                let index = accepted + self.report.dropped;
                self.report.dropped += 1;
                self.oversize(false, index, len, limit);
            }
        }
    }

    #[cold]
    fn oversize(&mut self, outgoing: bool, index: u64, len: usize, limit: u32) {
        self.report.oversize += 1;
        if self.report.oversize_first.len() < NAMED {
            let length = u32::try_from(len).unwrap_or(u32::MAX);
            self.report.oversize_first.push(Oversize {
                outgoing,
                index,
                length,
                limit,
            });
        }
    }
}

/// Whether a frame is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Delivered, written or dropped.
    Done,
    /// To be offered again.
    Wait,
}

/// Everything that a frame on its way out may touch.
pub(super) struct Outlet<'a> {
    pub memories: &'a mut [Memory],
    pub completions: &'a mut [Completions],
    pub receivers: &'a mut [Receiver],
    pub plugs: &'a mut [Plug],
    /// Time stamps of this turn, per function.
    pub stamps: &'a [u64],
    /// Time of day of this turn.
    pub time: Duration,
    pub scratch: &'a mut Vec<u8>,
}

impl Outlet<'_> {
    /// The function's time stamp.
    #[inline(always)]
    pub fn stamp(&self, function: usize) -> u64 {
        self.stamps.get(function).copied().unwrap_or(0)
    }

    /// Offers a frame to a function's receive side.
    #[inline(always)]
    pub fn receive<F: Frame>(&mut self, function: usize, frame: &F, headers: &Headers) -> Outcome {
        let stamp = self.stamp(function);
        let (Some(receiver), Some(memory), Some(side), Some(plug)) = (
            self.receivers.get_mut(function),
            self.memories.get_mut(function),
            self.completions.get_mut(function),
            self.plugs.get_mut(function),
        ) else {
            return Outcome::Dropped;
        };
        let mut around = Surroundings {
            memory,
            cqs: &mut side.cqs,
            events: &mut side.events,
            lossy: plug.lossy,
            max_frame: plug.link.max_frame,
            now: stamp,
            sums: plug.sums,
        };
        let outcome = receiver.deliver(frame, headers, &mut around);
        if outcome != Outcome::Accepted {
            plug.refuse(outcome, receiver.arrived().frames, headers.len);
        }
        outcome
    }

    /// Sends a frame of `function`.
    #[inline(always)]
    pub fn transmit<F: Frame>(
        &mut self,
        function: usize,
        frame: &F,
        headers: &Headers,
        sent: &mut Dispatched,
    ) -> Sent {
        let Some(plug) = self.plugs.get_mut(function) else {
            return Sent::Done;
        };
        let limit = plug.link.max_frame;
        if !plug.up || headers.len > limit as usize {
            sent.discards += 1;
            if plug.up {
                plug.oversize(true, sent.frames.total().frames, headers.len, limit);
            }
            return Sent::Done;
        }
        match &mut plug.joint {
            Joint::Function(peer) => {
                let peer = *peer;
                if self.receive(peer, frame, headers) == Outcome::Wait {
                    return Sent::Wait;
                }
            }
            Joint::Wire(wire) => {
                if wire.wants_frames() {
                    self.scratch.clear();
                    frame.append_to(self.scratch);
                    match wire.send(self.scratch, self.time) {
                        Delivery::Taken => {}
                        Delivery::Wait => return Sent::Wait,
                        Delivery::Lost => {
                            sent.discards += 1;
                            return Sent::Done;
                        }
                    }
                }
            }
        }
        sent.frames.count(headers.class(), headers.len);
        Sent::Done
    }
}

/// What became of a function's frames, since the emulator started.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatched {
    /// Frames that went out.
    pub frames: Direction,
    /// Frames dropped because the link was down or they were too long.
    pub discards: u64,
    /// WQEs that ended in an error.
    pub errors: u64,
}
