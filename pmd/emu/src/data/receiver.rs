//! A function's receive side: rules, TIRs, tables of queues, queues, and the way of a frame
//! through them.

use super::cq::Cq;
use super::describe::{Description, Sums};
use super::frame::{Class, Frame, Headers};
use super::memory::Memory;
use super::request::{
    DataEvent, Direction, Dispatch, RqChange, RqSpec, RqtSpec, SIZE_CLASSES, TirSpec, Traffic,
    size_class,
};
use super::reshape::take_reshaped;
use super::rq::{Rq, Taken};
use super::rss::{Hashed, Hasher};
use super::slots::Slots;
use super::steering::{Fate, Rules, Steering};
use super::{DataError, Kind};
use std::collections::HashMap;

/// Place of no queue.
const NOWHERE: usize = usize::MAX;

/// What became of a frame at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// At least one queue has it.
    Accepted,
    /// Nobody has it; the counters say why.
    Dropped,
    /// It is larger than the port or the buffer.
    Oversize {
        /// What would have fit.
        limit: u32,
    },
    /// A queue has no buffer. Nothing happened; the frame is to be offered again.
    Wait,
}

/// What a frame meets besides the receive side itself.
pub(super) struct Surroundings<'a> {
    pub memory: &'a mut Memory,
    pub cqs: &'a mut Slots<Cq>,
    pub events: &'a mut Vec<DataEvent>,
    /// Drop instead of waiting.
    pub lossy: bool,
    /// Largest frame.
    pub max_frame: u32,
    /// Time stamp.
    pub now: u64,
    /// What completions sum up.
    pub sums: Sums,
}

/// Where a TIR leads.
#[derive(Debug)]
pub(super) enum Target {
    Nowhere,
    Queue(usize),
    Table { hasher: Hasher, queues: Vec<usize> },
}

/// What happened to frames towards the function, since the emulator started.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Frames in queues; a frame that rules copied counts for each.
    pub accepted: Direction,
    /// Copies beyond the first.
    pub copies: Direction,
    /// Frames that fit the port and that no queue got.
    pub refused: Direction,
    /// Frames that fit the port, by length.
    pub sizes: [u64; SIZE_CLASSES],
    /// Longer than the port takes.
    pub too_long: u64,
    /// Shorter than a header.
    pub too_short: u64,
    /// No buffer, or the queue failed.
    pub discards: u64,
    /// Longer than the buffer.
    pub buffer_too_small: u64,
    /// Dropped by an entry.
    pub flow_drops: u64,
    /// Wanted by nobody.
    pub no_destination: u64,
}

impl Tally {
    /// Counts frames of one length.
    #[inline(always)]
    pub fn size(&mut self, len: usize, frames: u64) {
        if let Some(count) = self.sizes.get_mut(size_class(len)) {
            *count += frames;
        }
    }
}

/// A function's receive side.
#[derive(Debug)]
pub(super) struct Receiver {
    pub rqs: Slots<Rq>,
    pub tally: Tally,
    pub rules: Rules,
    steering: Steering,
    tirs: HashMap<u32, TirSpec>,
    rqts: HashMap<u32, RqtSpec>,
    /// Places of TIRs in `targets`; given once and kept.
    places: HashMap<u32, usize>,
    pub targets: Vec<Target>,
    out_of_buffer: Vec<u64>,
    /// Something that the targets are made of has changed.
    stale: bool,
    listening: bool,
    scratch: Vec<u8>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            rqs: Slots::new(Kind::Rq),
            tally: Tally::default(),
            rules: Rules::default(),
            steering: Steering::default(),
            tirs: HashMap::new(),
            rqts: HashMap::new(),
            places: HashMap::new(),
            targets: Vec::new(),
            out_of_buffer: vec![0; 256],
            stale: false,
            listening: false,
            scratch: Vec::new(),
        }
    }
}

impl Receiver {
    pub fn create_rq(
        &mut self,
        memory: &mut Memory,
        spec: RqSpec,
        cq: usize,
    ) -> Result<(), DataError> {
        let number = spec.rqn;
        self.rqs.check_free(number)?;
        let rq = Rq::create(memory, spec, cq)?;
        self.rqs.insert(number, rq)?;
        self.stale = true;
        Ok(())
    }

    pub fn modify_rq(&mut self, rqn: u32, change: RqChange) -> Result<(), DataError> {
        self.rqs.by_number(rqn)?.modify(change);
        self.stale = true;
        Ok(())
    }

    pub fn destroy_rq(&mut self, rqn: u32) -> Result<(), DataError> {
        self.rqs.remove(rqn)?;
        self.stale = true;
        Ok(())
    }

    pub fn set_tir(&mut self, spec: TirSpec) {
        self.tirs.insert(spec.tirn, spec);
        self.stale = true;
    }

    pub fn remove_tir(&mut self, tirn: u32) -> Result<(), DataError> {
        self.stale = true;
        match self.tirs.remove(&tirn) {
            Some(_) => Ok(()),
            None => Err(DataError::Unknown {
                kind: Kind::Tir,
                number: tirn,
            }),
        }
    }

    pub fn set_rqt(&mut self, spec: RqtSpec) {
        self.rqts.insert(spec.rqtn, spec);
        self.stale = true;
    }

    pub fn remove_rqt(&mut self, rqtn: u32) -> Result<(), DataError> {
        self.stale = true;
        match self.rqts.remove(&rqtn) {
            Some(_) => Ok(()),
            None => Err(DataError::Unknown {
                kind: Kind::Rqt,
                number: rqtn,
            }),
        }
    }

    pub fn set_steering(&mut self, steering: Steering) {
        self.steering = steering;
        self.stale = true;
    }

    pub fn flow_counter(&mut self, id: u32, clear: bool) -> (u64, u64) {
        self.refresh();
        self.rules.counter(id, clear)
    }

    pub fn out_of_buffer(&mut self, set: u8, clear: bool) -> u64 {
        match self.out_of_buffer.get_mut(usize::from(set)) {
            Some(count) if clear => std::mem::take(count),
            Some(count) => *count,
            None => 0,
        }
    }

    /// Forgets queues and rules, and the counters that belong to them.
    pub fn reset(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        *self = Self {
            tally,
            ..Self::default()
        };
    }

    /// Frames that came to at least one queue, since the emulator started.
    pub fn arrived(&self) -> Traffic {
        self.tally.accepted.minus(&self.tally.copies).total()
    }

    /// Whether some rule leads to a queue that works: the time from which a wire lets frames in.
    pub fn is_listening(&mut self) -> bool {
        self.refresh();
        self.listening
    }

    /// Makes rules and targets ready if something has changed.
    #[inline(always)]
    pub fn refresh(&mut self) {
        if self.stale {
            self.compile();
        }
    }

    #[cold]
    fn compile(&mut self) {
        self.stale = false;
        let places = &mut self.places;
        self.rules.replace(&self.steering, |tirn| {
            let next = places.len();
            *places.entry(tirn).or_insert(next)
        });
        for tirn in self.tirs.keys() {
            let next = self.places.len();
            self.places.entry(*tirn).or_insert(next);
        }
        let queue = |rqn: u32| self.rqs.place(rqn).unwrap_or(NOWHERE);
        self.targets.clear();
        self.targets
            .resize_with(self.places.len(), || Target::Nowhere);
        for (tirn, spec) in &self.tirs {
            let target = match &spec.dispatch {
                Dispatch::Direct { rqn } => Target::Queue(queue(*rqn)),
                Dispatch::Indirect { rqtn, hash } => {
                    let listed = self.rqts.get(rqtn).map(|rqt| rqt.queues.as_slice());
                    Target::Table {
                        hasher: Hasher::new(hash),
                        queues: listed
                            .unwrap_or_default()
                            .iter()
                            .map(|n| queue(*n))
                            .collect(),
                    }
                }
            };
            if let Some(slot) = self
                .places
                .get(tirn)
                .and_then(|at| self.targets.get_mut(*at))
            {
                *slot = target;
            }
        }
        let ready = |place: &usize| self.rqs.get(*place).is_some_and(Rq::is_ready);
        self.listening = self.rules.has_root()
            && self
                .rules
                .destinations()
                .any(|place| match self.targets.get(place) {
                    Some(Target::Queue(queue)) => ready(queue),
                    Some(Target::Table { queues, .. }) => queues.iter().any(ready),
                    _ => false,
                });
    }

    /// Offers a frame to the function.
    #[inline(always)]
    pub fn deliver<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        self.refresh();
        if headers.len > around.max_frame as usize || headers.len < 14 {
            return self.misfit(headers.len, around.max_frame);
        }
        match self.rules.find(headers) {
            Fate::Deliver => {}
            fate => return self.unwanted(fate, headers),
        }
        match *self.rules.tirs() {
            [place] => {
                let (queue, hashed) = pick(&self.targets, place, headers);
                self.one(frame, headers, queue, hashed, around)
            }
            _ => self.several(frame, headers, around),
        }
    }

    #[cold]
    fn misfit(&mut self, len: usize, limit: u32) -> Outcome {
        if len < 14 {
            self.tally.too_short += 1;
            return Outcome::Dropped;
        }
        self.tally.too_long += 1;
        Outcome::Oversize { limit }
    }

    #[inline(always)]
    fn one<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        queue: usize,
        hashed: Hashed,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        let outcome = self.put(frame, headers, queue, hashed, around);
        match outcome {
            Outcome::Wait => return outcome,
            Outcome::Accepted => {}
            _ => self.tally.refused.count(headers.class(), headers.len),
        }
        self.tally.size(headers.len, 1);
        self.rules.count(headers.len);
        outcome
    }

    /// A frame that rules copy to several queues: none gets it before all can.
    #[cold]
    fn several<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        let picked: Vec<(usize, Hashed)> = self
            .rules
            .tirs()
            .iter()
            .map(|place| pick(&self.targets, *place, headers))
            .collect();
        if !around.lossy {
            for (queue, _) in &picked {
                if let Some(rq) = self.rqs.at(*queue) {
                    let dry = rq.is_ready() && !rq.has_buffer(around.events);
                    if dry && rq.is_ready() && rq.is_stocked() {
                        return Outcome::Wait;
                    }
                }
            }
        }
        self.rules.count(headers.len);
        let mut best = Outcome::Dropped;
        for (queue, hashed) in picked {
            // Two rules may lead to one queue, and its last buffer went to the first. What some
            // queue has got already cannot wait for another.
            let outcome = match self.put(frame, headers, queue, hashed, around) {
                Outcome::Wait => self.miss(queue),
                outcome => outcome,
            };
            if outcome == Outcome::Accepted && best == Outcome::Accepted {
                self.tally.copies.count(headers.class(), headers.len);
            }
            if outcome == Outcome::Accepted || best == Outcome::Dropped {
                best = outcome;
            }
        }
        self.tally.size(headers.len, 1);
        if best != Outcome::Accepted {
            self.tally.refused.count(headers.class(), headers.len);
        }
        best
    }

    /// Drops a frame for want of a buffer.
    #[cold]
    fn miss(&mut self, queue: usize) -> Outcome {
        let set = self
            .rqs
            .get(queue)
            .map_or(0, |rq| usize::from(rq.spec().counter_set));
        if let Some(count) = self.out_of_buffer.get_mut(set) {
            *count += 1;
        }
        self.tally.discards += 1;
        Outcome::Dropped
    }

    /// Puts a frame into a queue's next buffer, if there is one.
    #[inline(always)]
    fn put<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        queue: usize,
        hashed: Hashed,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        let Some(rq) = self.rqs.at(queue).filter(|rq| rq.is_ready()) else {
            self.tally.no_destination += 1;
            return Outcome::Dropped;
        };
        if !rq.has_buffer(around.events) {
            return self.without_buffer(queue, around.lossy);
        }
        let Some(cq) = around.cqs.at(rq.cq) else {
            self.tally.discards += 1;
            return Outcome::Dropped;
        };
        let entry = Description::of(frame, headers, around.sums).entry(hashed, around.now);
        let tag = self.rules.flow_tag();
        let taken = if rq.reshapes(headers.vlan.is_some()) {
            take_reshaped(
                rq,
                frame,
                headers,
                entry,
                tag,
                &mut self.scratch,
                around.memory,
                cq,
                around.events,
                around.sums,
            )
        } else {
            rq.take(frame, entry, tag, around.memory, cq, around.events)
        };
        if taken == Taken::Accepted {
            self.tally.accepted.count(headers.class(), headers.len);
            return Outcome::Accepted;
        }
        self.not_taken(taken)
    }

    #[cold]
    fn without_buffer(&mut self, queue: usize, lossy: bool) -> Outcome {
        if !self.rqs.get(queue).is_some_and(Rq::is_ready) {
            self.stale = true;
            self.tally.discards += 1;
            return Outcome::Dropped;
        }
        if lossy || !self.rqs.get(queue).is_some_and(Rq::is_stocked) {
            self.miss(queue)
        } else {
            Outcome::Wait
        }
    }

    #[cold]
    fn not_taken(&mut self, taken: Taken) -> Outcome {
        match taken {
            Taken::Accepted => Outcome::Accepted,
            Taken::TooLong { limit } => {
                self.tally.buffer_too_small += 1;
                Outcome::Oversize { limit }
            }
            Taken::Again => Outcome::Wait,
            Taken::Failed => {
                self.stale = true;
                self.tally.discards += 1;
                Outcome::Dropped
            }
        }
    }

    #[cold]
    fn unwanted(&mut self, fate: Fate, headers: &Headers) -> Outcome {
        self.tally.refused.count(headers.class(), headers.len);
        self.tally.size(headers.len, 1);
        self.rules.count(headers.len);
        if fate == Fate::Drop {
            self.tally.flow_drops += 1;
        } else {
            self.tally.no_destination += 1;
        }
        Outcome::Dropped
    }
}

#[inline(always)]
fn pick(targets: &[Target], place: usize, headers: &Headers) -> (usize, Hashed) {
    match targets.get(place) {
        Some(Target::Queue(queue)) => (*queue, Hashed::NONE),
        Some(Target::Table { hasher, queues }) => {
            let hashed = hasher.hash(headers);
            let entries = queues.len();
            let at = if entries.is_power_of_two() {
                hashed.value as usize & (entries - 1)
            } else {
                (hashed.value as usize).checked_rem(entries).unwrap_or(0)
            };
            (queues.get(at).copied().unwrap_or(NOWHERE), hashed)
        }
        _ => (NOWHERE, Hashed::NONE),
    }
}

impl Direction {
    /// The sum with another.
    pub(super) fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    /// What came since another reading.
    pub(super) fn minus(&self, other: &Self) -> Self {
        self.with(other, u64::wrapping_sub)
    }

    fn with(&self, other: &Self, op: fn(u64, u64) -> u64) -> Self {
        let traffic = |a: Traffic, b: Traffic| Traffic {
            frames: op(a.frames, b.frames),
            bytes: op(a.bytes, b.bytes),
        };
        Self {
            unicast: traffic(self.unicast, other.unicast),
            multicast: traffic(self.multicast, other.multicast),
            broadcast: traffic(self.broadcast, other.broadcast),
        }
    }

    #[inline(always)]
    pub(super) fn count(&mut self, class: Class, bytes: usize) {
        let traffic = match class {
            Class::Unicast => &mut self.unicast,
            Class::Multicast => &mut self.multicast,
            Class::Broadcast => &mut self.broadcast,
        };
        traffic.frames += 1;
        traffic.bytes += bytes as u64;
    }
}
