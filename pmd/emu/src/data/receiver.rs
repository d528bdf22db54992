//! A function's receive side: rules, TIRs, tables of queues, queues, and the way of a frame
//! through them.

use super::checksum;
use super::cq::{Cq, Entry};
use super::frame::{Class, Frame, Headers, L3, L4};
use super::memory::Memory;
use super::request::{
    Counters, DataEvent, Direction, Dispatch, RqChange, RqSpec, RqtSpec, TirSpec,
};
use super::rq::{Rq, Taken};
use super::rss::{Hashed, Hasher};
use super::slots::Slots;
use super::steering::{Fate, Rules, Steering};
use super::{DataError, Kind};
use pollux_prm::completion::{CqeOpcode, L3HeaderType, L4HeaderType, Tail};
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
}

#[derive(Debug)]
enum Target {
    Nowhere,
    Queue(usize),
    Table { hasher: Hasher, queues: Vec<usize> },
}

/// A function's receive side.
#[derive(Debug)]
pub(super) struct Receiver {
    pub rqs: Slots<Rq>,
    pub counters: Counters,
    rules: Rules,
    steering: Steering,
    tirs: HashMap<u32, TirSpec>,
    rqts: HashMap<u32, RqtSpec>,
    /// Places of TIRs in `targets`; given once and kept.
    places: HashMap<u32, usize>,
    targets: Vec<Target>,
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
            counters: Counters::default(),
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
        *self = Self::default();
    }

    /// Whether some rule leads to a queue that works: the time from which a wire lets frames in.
    pub fn is_listening(&mut self) -> bool {
        self.refresh();
        self.listening
    }

    #[inline(always)]
    fn refresh(&mut self) {
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
    #[inline]
    pub fn deliver<F: Frame>(&mut self, frame: &F, around: &mut Surroundings<'_>) -> Outcome {
        self.refresh();
        let len = frame.len();
        if len > around.max_frame as usize {
            self.counters.rx_too_long += 1;
            return Outcome::Oversize {
                limit: around.max_frame,
            };
        }
        if len < 14 {
            self.counters.rx_too_short += 1;
            return Outcome::Dropped;
        }
        let headers = Headers::parse(frame);
        match self.rules.find(&headers) {
            Fate::Deliver => {}
            fate => return self.unwanted(fate, &headers, frame.class()),
        }
        match *self.rules.tirs() {
            [place] => {
                let (queue, hashed) = pick(&self.targets, place, &headers);
                self.one(frame, &headers, queue, hashed, around)
            }
            _ => self.several(frame, &headers, around),
        }
    }

    #[inline]
    fn one<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        queue: usize,
        hashed: Hashed,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        let outcome = match self.check(queue, around) {
            Outcome::Accepted => self.put(frame, headers, queue, hashed, around),
            outcome => outcome,
        };
        if outcome != Outcome::Wait {
            self.counters.port_rx.count(frame.class(), frame.len());
            self.rules.count(frame.len());
        }
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
                    if rq.is_ready() && !rq.has_buffer(around.events) && rq.is_ready() {
                        return Outcome::Wait;
                    }
                }
            }
        }
        self.counters.port_rx.count(frame.class(), frame.len());
        self.rules.count(frame.len());
        let mut best = Outcome::Dropped;
        for (queue, hashed) in picked {
            let outcome = match self.check(queue, around) {
                Outcome::Accepted => self.put(frame, headers, queue, hashed, around),
                outcome => outcome,
            };
            // Two rules may lead to one queue, and its last buffer went to the first. What some
            // queue has got already cannot wait for another.
            let outcome = match outcome {
                Outcome::Wait => self.miss(queue),
                outcome => outcome,
            };
            if outcome == Outcome::Accepted || best == Outcome::Dropped {
                best = outcome;
            }
        }
        best
    }

    /// Whether a queue can take a frame now.
    #[inline]
    fn check(&mut self, queue: usize, around: &mut Surroundings<'_>) -> Outcome {
        let Some(rq) = self.rqs.at(queue).filter(|rq| rq.is_ready()) else {
            self.counters.rx_no_destination += 1;
            return Outcome::Dropped;
        };
        if rq.has_buffer(around.events) {
            return Outcome::Accepted;
        }
        if !rq.is_ready() {
            self.counters.rx_discards += 1;
            return Outcome::Dropped;
        }
        if !around.lossy {
            return Outcome::Wait;
        }
        self.miss(queue)
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
        self.counters.rx_discards += 1;
        Outcome::Dropped
    }

    #[inline]
    fn put<F: Frame>(
        &mut self,
        frame: &F,
        headers: &Headers,
        queue: usize,
        hashed: Hashed,
        around: &mut Surroundings<'_>,
    ) -> Outcome {
        let Some(rq) = self.rqs.at(queue) else {
            return Outcome::Dropped;
        };
        let Some(cq) = around.cqs.at(rq.cq) else {
            return Outcome::Dropped;
        };
        let mut entry = describe(frame, headers, hashed, around.now);
        let tag = self.rules.flow_tag();
        let strip = rq.spec().vlan_strip && headers.vlan.is_some();
        let taken = if strip || rq.spec().scatter_fcs {
            let bytes = reshape(frame, headers, rq.spec(), &mut self.scratch, &mut entry);
            rq.take(&bytes, &entry, tag, around.memory, cq, around.events)
        } else {
            rq.take(frame, &entry, tag, around.memory, cq, around.events)
        };
        match taken {
            Taken::Accepted => {
                self.counters.vport_rx.count(frame.class(), frame.len());
                Outcome::Accepted
            }
            Taken::TooLong { limit } => {
                self.counters.rx_buffer_too_small += 1;
                Outcome::Oversize { limit }
            }
            Taken::Again => Outcome::Wait,
            Taken::Failed => {
                self.stale = true;
                self.counters.rx_discards += 1;
                Outcome::Dropped
            }
        }
    }

    #[cold]
    fn unwanted(&mut self, fate: Fate, headers: &Headers, class: Class) -> Outcome {
        self.counters.port_rx.count(class, headers.len);
        self.rules.count(headers.len);
        if fate == Fate::Drop {
            self.counters.rx_flow_drops += 1;
        } else {
            self.counters.rx_no_destination += 1;
        }
        Outcome::Dropped
    }
}

#[inline]
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

/// The completion of a received frame without what the queue adds.
#[inline]
fn describe<F: Frame>(frame: &F, headers: &Headers, hashed: Hashed, now: u64) -> Entry {
    let sums = checksum::verify(frame, headers);
    let l3 = match headers.l3 {
        L3::None => L3HeaderType::NONE,
        L3::V4 => L3HeaderType::IPV4,
        L3::V6 => L3HeaderType::IPV6,
    };
    let l4 = match headers.l4 {
        L4::None => L4HeaderType::NONE,
        L4::Udp => L4HeaderType::UDP,
        L4::Tcp => tcp_type(headers),
    };
    let kinds = u64::from(headers.fragment) << 7
        | u64::from(l4.0) << 4
        | u64::from(l3.0) << 2
        | u64::from(headers.options) << 1;
    let ok = 1 | u64::from(sums.l3_ok) << 1 | u64::from(sums.l4_ok) << 2;
    Entry {
        body: [
            0,
            u64::from(hashed.value).to_be(),
            // Hash type at byte 16; the sum at bytes 20 and 21 as it lies in memory.
            u64::from_le(u64::from(hashed.kind())) | u64::from_le(u64::from(sums.complete) << 32),
            (ok << 24 | kinds << 16).to_be(),
            0,
            0,
            now.to_be(),
        ],
        tail: Tail::new(0, 0, 0, CqeOpcode::RESP_SEND, false),
    }
}

fn tcp_type(headers: &Headers) -> L4HeaderType {
    let payload = headers.l3_at + headers.l3_len > headers.l4_at + headers.tcp_header();
    match (headers.tcp_flags() & 0x10 != 0, payload) {
        (false, _) => L4HeaderType::TCP_NO_ACK,
        (true, false) => L4HeaderType::TCP_ACK_NO_DATA,
        (true, true) => L4HeaderType::TCP_ACK_AND_DATA,
    }
}

/// The frame as the queue wants it: tag taken out, check sequence appended.
#[cold]
fn reshape<'a, F: Frame>(
    frame: &F,
    headers: &Headers,
    spec: &RqSpec,
    scratch: &'a mut Vec<u8>,
    entry: &mut Entry,
) -> &'a [u8] {
    scratch.clear();
    frame.append_to(scratch);
    let crc = if spec.scatter_fcs {
        Some(crc32(scratch))
    } else {
        None
    };
    if let (true, Some((tag, _))) = (spec.vlan_strip, headers.vlan) {
        scratch.drain(12..16);
        let [_, _, _, flags, ..] = &mut entry.body;
        *flags |= (1u64 << 16 | u64::from(tag)).to_be();
    }
    if let Some(crc) = crc {
        scratch.extend_from_slice(&crc.to_le_bytes());
    }
    scratch
}

/// Ethernet's check sequence.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

impl Direction {
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

#[cfg(test)]
mod tests {
    #[test]
    fn check_sequence_of_the_nine_digits() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
