//! Everything that the data thread owns, one part per function, and its turn.

use super::clock::DeviceClock;
use super::cq::Cq;
use super::describe::Sums;
use super::doorbell::{Pages, Rung};
use super::frame::Headers;
use super::memory::Memory;
use super::outlet::{Completions, Dispatched, Joint, Outlet, Plug};
use super::receiver::{Outcome, Receiver};
use super::request::*;
use super::slots::Slots;
use super::sq::Sq;
use super::{DataError, DataFunction, EventSink, Features, Kind};
use crate::wire::{self, WireKind, WireReport};
use pollux_mempool::cycles;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// WQEs that one queue may send, and frames that one wire may bring, in a turn.
const BUDGET: usize = 64;

/// Largest frame until the command side says otherwise: 1500 bytes behind a header and one tag.
const DEFAULT_FRAME: u32 = 1518;

/// A function's send side.
pub(super) struct Sender {
    pub sqs: Slots<Sq>,
    pub sent: Dispatched,
    /// Doorbells for queues that do not exist or belong to another page.
    pub strays: u64,
    /// The counters when they were cleared last.
    pub base: Counters,
    pub features: Features,
}

/// All functions. Vectors are by function number.
pub(super) struct Engine {
    pub strict: bool,
    pub memories: Vec<Memory>,
    pub completions: Vec<Completions>,
    pub senders: Vec<Sender>,
    pub receivers: Vec<Receiver>,
    pub plugs: Vec<Plug>,
    pub pages: Vec<Pages>,
    clocks: Vec<DeviceClock>,
    stamps: Vec<u64>,
    sinks: Vec<EventSink>,
    found: Vec<Rung>,
    told: Vec<DataEvent>,
    scratch: Vec<u8>,
    turn: u64,
    /// Time of day when the CPU's counter stood at `epoch_cycles`.
    epoch: Duration,
    epoch_cycles: u64,
    /// Counts of the CPU's counter.
    per_microsecond: u64,
    /// The time of day is needed: some wire writes it down.
    timed: bool,
}

impl Engine {
    /// Opens the wires.
    pub fn new(strict: bool, functions: Vec<DataFunction>) -> Result<Self, DataError> {
        wire::check_joints(functions.iter().map(|function| &function.wire))?;
        let mut engine = Self {
            strict,
            memories: Vec::new(),
            completions: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            plugs: Vec::new(),
            pages: Vec::new(),
            clocks: Vec::new(),
            stamps: Vec::new(),
            sinks: Vec::new(),
            found: Vec::new(),
            told: Vec::new(),
            scratch: Vec::new(),
            turn: 0,
            epoch: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            epoch_cycles: cycles::now(),
            per_microsecond: (cycles::frequency() / 1_000_000).max(1),
            timed: false,
        };
        for (number, function) in functions.into_iter().enumerate() {
            let joint = match function.wire.kind {
                WireKind::Loop => Joint::Function(number),
                WireKind::Pair { peer } => Joint::Function(peer),
                _ => Joint::Wire(wire::open(&function.wire)?),
            };
            let what = match &joint {
                Joint::Function(peer) if *peer == number => "loop".to_owned(),
                Joint::Function(peer) => format!("pair with function {peer}"),
                Joint::Wire(wire) => wire.what(),
            };
            engine.timed |= matches!(&joint, Joint::Wire(wire) if wire.wants_frames());
            engine.memories.push(Memory::default());
            engine.completions.push(Completions {
                cqs: Slots::new(Kind::Cq),
                events: Vec::new(),
                moderated: false,
            });
            engine.senders.push(Sender {
                sqs: Slots::new(Kind::Sq),
                sent: Dispatched::default(),
                strays: 0,
                base: Counters::default(),
                features: function.features,
            });
            engine.receivers.push(Receiver::default());
            engine.plugs.push(Plug {
                joint,
                lossy: function.wire.lossy,
                sums: match function.features.rx_checksum_full {
                    true => Sums::Frame,
                    false => Sums::Packet,
                },
                link: LinkSpec {
                    up: true,
                    max_frame: DEFAULT_FRAME,
                },
                cable: true,
                held: false,
                far: true,
                up: false,
                report: WireReport {
                    what,
                    ..WireReport::default()
                },
            });
            engine.pages.push(Pages::new(
                function.uars,
                function.first_uar,
                function.log_bf_reg_size,
            ));
            engine.clocks.push(DeviceClock::new(function.frequency_khz));
            engine.stamps.push(0);
            engine.sinks.push(function.events);
        }
        engine.ask_wires(cycles::now());
        for plug in 0..engine.plugs.len() {
            let up = engine.is_up(plug);
            if let Some(plug) = engine.plugs.get_mut(plug) {
                plug.up = up;
            }
        }
        Ok(engine)
    }

    /// One look at everything. True when there was work.
    pub fn turn(&mut self) -> bool {
        self.turn = self.turn.wrapping_add(1);
        let now = cycles::now();
        for (stamp, clock) in self.stamps.iter_mut().zip(&self.clocks) {
            *stamp = clock.at(now);
        }
        if self.ask_wires(now) {
            self.relink();
        }
        let mut busy = false;
        for function in 0..self.memories.len() {
            busy |= self.look(function);
            if !self.strict {
                self.sample(function);
            }
        }
        // After the doorbells: what a driver maps before it rings is there.
        busy |= self.freshen();
        for function in 0..self.memories.len() {
            busy |= self.serve(function, now);
        }
        // A turn with an event that waits for its time is no idle one: the thread must not sleep
        // past it.
        for side in &mut self.completions {
            busy |= side.moderate(now, self.per_microsecond);
        }
        self.tell();
        busy
    }

    /// Takes newer memory tables where there are any. True when there were.
    #[inline]
    pub fn freshen(&mut self) -> bool {
        let mut any = false;
        for function in 0..self.memories.len() {
            if self.memories.get(function).is_some_and(Memory::is_stale) {
                self.renew(function);
                any = true;
            }
        }
        any
    }

    /// Takes the doorbells of a function.
    #[inline]
    fn look(&mut self, function: usize) -> bool {
        let mut found = std::mem::take(&mut self.found);
        if let Some(pages) = self.pages.get_mut(function) {
            pages.look(self.turn, &mut found);
        }
        let any = !found.is_empty();
        for rung in found.drain(..) {
            self.rung(function, rung);
        }
        self.found = found;
        any
    }

    fn rung(&mut self, function: usize, rung: Rung) {
        let (Some(pages), Some(sender), Some(side)) = (
            self.pages.get_mut(function),
            self.senders.get_mut(function),
            self.completions.get_mut(function),
        ) else {
            return;
        };
        match rung {
            Rung::Send { uar, value } => {
                let sqn = (value >> 8) as u32 & 0xff_ffff;
                match pages.sq_at(uar, sqn).and_then(|place| sender.sqs.at(place)) {
                    Some(sq) => sq.ring(),
                    None => sender.strays += 1,
                }
            }
            Rung::Arm { uar, value } => {
                let cqn = value as u32 & 0xff_ffff;
                match pages.cq_at(uar, cqn).and_then(|place| side.cqs.at(place)) {
                    Some(cq) => cq.ring_arm(&mut side.events),
                    None => sender.strays += 1,
                }
            }
            Rung::Eq { uar, offset, value } => {
                side.events
                    .push(DataEvent::EqDoorbell { uar, offset, value });
            }
        }
    }

    /// A 64-bit store to a trapped page.
    pub fn ring(&mut self, function: usize, uar: u32, offset: u32, value: u64) {
        let rung = match offset as usize {
            pollux_prm::wqe::uar::CQ_ARM => Rung::Arm { uar, value },
            offset if offset >= pollux_prm::wqe::uar::SEND => Rung::Send { uar, value },
            _ => return,
        };
        self.rung(function, rung);
        self.tell();
    }

    /// Sampled mode: looks at records without a doorbell.
    fn sample(&mut self, function: usize) {
        if let Some(sender) = self.senders.get_mut(function) {
            sender.sqs.iter_mut().for_each(Sq::sample);
        }
        if let Some(side) = self.completions.get_mut(function) {
            side.cqs
                .iter_mut()
                .for_each(|cq| cq.sample_arm(&mut side.events));
        }
    }

    /// Moves a function's packets.
    #[inline]
    fn serve(&mut self, function: usize, now: u64) -> bool {
        let Self {
            memories,
            completions,
            senders,
            receivers,
            plugs,
            stamps,
            scratch,
            ..
        } = self;
        let mut busy = false;
        if let (Some(receiver), Some(side)) =
            (receivers.get_mut(function), completions.get_mut(function))
        {
            for rq in receiver.rqs.iter_mut().filter(|rq| !rq.is_ready()) {
                if let Some(cq) = side.cqs.at(rq.cq) {
                    busy |= rq.flush(cq, &mut side.events);
                }
            }
        }
        let time = match self.timed {
            true => self.epoch + cycles::to_duration(now.saturating_sub(self.epoch_cycles)),
            false => Duration::ZERO,
        };
        let mut outlet = Outlet {
            memories,
            completions,
            receivers,
            plugs,
            stamps,
            time,
            scratch,
        };
        if let Some(Sender { sqs, sent, .. }) = senders.get_mut(function) {
            for place in 0..sqs.places() {
                if let Some(sq) = sqs.at(place).filter(|sq| sq.has_work()) {
                    busy |= sq.serve(function, &mut outlet, sent, BUDGET);
                }
            }
        }
        busy | inward(function, &mut outlet, now)
    }

    /// Tells events that came up.
    fn tell(&mut self) {
        for (side, sink) in self.completions.iter_mut().zip(&self.sinks) {
            if side.events.is_empty() {
                continue;
            }
            std::mem::swap(&mut side.events, &mut self.told);
            self.told.drain(..).for_each(sink);
        }
    }

    /// Lets go of a function's memory and resolves it again.
    fn renew(&mut self, function: usize) {
        self.release(function);
        let (Some(memory), Some(side), Some(sender), Some(receiver)) = (
            self.memories.get_mut(function),
            self.completions.get_mut(function),
            self.senders.get_mut(function),
            self.receivers.get_mut(function),
        ) else {
            return;
        };
        memory.renew();
        side.cqs.iter_mut().for_each(|cq: &mut Cq| cq.renew(memory));
        sender.sqs.iter_mut().for_each(|sq| sq.renew(memory));
        receiver.rqs.iter_mut().for_each(|rq| rq.renew(memory));
    }

    pub fn release(&mut self, function: usize) {
        if let Some(side) = self.completions.get_mut(function) {
            side.cqs.iter_mut().for_each(Cq::release);
        }
        if let Some(sender) = self.senders.get_mut(function) {
            sender.sqs.iter_mut().for_each(Sq::release);
        }
        if let Some(receiver) = self.receivers.get_mut(function) {
            receiver.rqs.iter_mut().for_each(super::rq::Rq::release);
        }
    }

    /// Before a long sleep: nothing of any driver's memory is held.
    pub fn park(&mut self) {
        for function in 0..self.memories.len() {
            self.release(function);
            if let Some(memory) = self.memories.get_mut(function) {
                memory.park();
            }
        }
    }

    /// After a long sleep.
    pub fn unpark(&mut self) {
        for function in 0..self.memories.len() {
            self.renew(function);
        }
    }

    /// Whether frames can cross a port.
    pub fn is_up(&self, function: usize) -> bool {
        let side = |function: usize| {
            self.plugs
                .get(function)
                .is_some_and(|plug| plug.link.up && plug.cable)
        };
        let peer = match self.plugs.get(function).map(|plug| &plug.joint) {
            Some(Joint::Function(peer)) => side(*peer),
            Some(Joint::Wire(_)) => self.plugs.get(function).is_some_and(|plug| plug.far),
            None => false,
        };
        side(function) && peer
    }

    /// Asks the wires that lead out about their far ends. True when one has changed.
    #[inline]
    fn ask_wires(&mut self, now: u64) -> bool {
        let mut changed = false;
        for plug in &mut self.plugs {
            if let Joint::Wire(wire) = &mut plug.joint {
                let far = wire.link(now);
                changed |= plug.far != far;
                plug.far = far;
            }
        }
        changed
    }

    /// Works out the links anew and tells those that changed.
    pub fn relink(&mut self) {
        for function in 0..self.plugs.len() {
            let up = self.is_up(function);
            let (Some(plug), Some(side)) = (
                self.plugs.get_mut(function),
                self.completions.get_mut(function),
            ) else {
                continue;
            };
            if plug.up != up {
                plug.up = up;
                side.events.push(DataEvent::Link { up });
            }
        }
        self.tell();
    }

    /// Flushes what wires have buffered.
    pub fn flush_wires(&mut self) {
        for plug in &mut self.plugs {
            if let Joint::Wire(wire) = &mut plug.joint {
                wire.flush();
            }
        }
    }
}

/// Brings frames in from a function's wire.
#[inline]
fn inward(function: usize, outlet: &mut Outlet<'_>, now: u64) -> bool {
    let open = outlet.plugs.get_mut(function).is_some_and(|plug| {
        let brings = matches!(&plug.joint, Joint::Wire(wire) if wire.brings());
        plug.up && brings && !plug.held
    });
    if !open
        || !outlet
            .receivers
            .get_mut(function)
            .is_some_and(Receiver::is_listening)
    {
        return false;
    }
    // The wire is taken out, as its frame is lent to the receive side.
    let nothing = Joint::Function(function);
    let Some(plug) = outlet.plugs.get_mut(function) else {
        return false;
    };
    let mut joint = std::mem::replace(&mut plug.joint, nothing);
    let mut busy = false;
    if let Joint::Wire(wire) = &mut joint {
        for _ in 0..BUDGET {
            let Some(frame) = wire.peek(now) else { break };
            let headers = Headers::parse(&frame);
            if outlet.receive(function, &frame, &headers) == Outcome::Wait {
                break;
            }
            wire.advance();
            busy = true;
        }
    }
    if let Some(plug) = outlet.plugs.get_mut(function) {
        plug.joint = joint;
    }
    busy
}
