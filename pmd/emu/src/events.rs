//! Event queues at work: entries written, vectors raised.
//!
//! An event goes to the queue that subscribed to its type (a completion: to the queue of its
//! completion queue). The entry is written owner bit last; an armed queue raises its vector once
//! and is disarmed. A queue that is full fails, or overwrites when it was created so. Command
//! thread only.

use crate::faults::PageOwner;
use crate::firmware::{Eq, Firmware};
use pollux_bus::{HostReader, InterruptLines};
use pollux_prm::event::{
    CommandEvent, CompletionEvent, CqErrorEvent, Eqe, EventType, PageRequestEvent, PortChange,
    PortChangeEvent, QueueEvent, QueueType,
};
use std::sync::atomic::Ordering;

const PORT: u8 = 1;
const ENTRY: u64 = 64;
const INDEX: u32 = 0xff_ffff;

/// Something that the driver is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The firmware wants pages (above zero), offers some (below), or has dropped all.
    PageRequest {
        owner: PageOwner,
        count: i32,
        release_all: bool,
    },
    /// The link went up or down.
    PortChange { up: bool },
    /// Command slots have completed.
    Command { vector: u32 },
    /// An armed completion queue got a completion.
    Completion { cqn: u32 },
    /// A completion queue failed.
    CqError { cqn: u32, syndrome: u8 },
    /// A send or receive queue moved to error state.
    QueueError {
        send: bool,
        number: u32,
        access: bool,
    },
}

impl Event {
    fn event_type(self) -> EventType {
        match self {
            Self::PageRequest { .. } => EventType::PAGE_REQUEST,
            Self::PortChange { .. } => EventType::PORT_CHANGE,
            Self::Command { .. } => EventType::CMD,
            Self::Completion { .. } => EventType::COMP,
            Self::CqError { .. } => EventType::CQ_ERROR,
            Self::QueueError { access: true, .. } => EventType::WQ_ACCESS_ERROR,
            Self::QueueError { .. } => EventType::WQ_CATAS_ERROR,
        }
    }

    /// The entry, its owner bit still clear. Every number here fits its field: it came out of a
    /// field as wide.
    fn entry(self) -> Eqe {
        let mut sub_type = 0;
        let data = match self {
            Self::PageRequest {
                owner,
                count,
                release_all,
            } => {
                let mut event = PageRequestEvent::zeroed();
                event
                    .set_function_id(owner.function)
                    .set_embedded_cpu_function(owner.embedded)
                    .set_release_all(release_all)
                    .set_num_pages(count as u32);
                *event.bytes()
            }
            Self::PortChange { up } => {
                let mut event = PortChangeEvent::zeroed();
                fit(event.set_port_num(PORT));
                sub_type = if up {
                    PortChange::ACTIVE.0
                } else {
                    PortChange::DOWN.0
                };
                *event.bytes()
            }
            Self::Command { vector } => *CommandEvent::zeroed().set_vector(vector).bytes(),
            Self::Completion { cqn } => {
                let mut event = CompletionEvent::zeroed();
                fit(event.set_cqn(cqn));
                *event.bytes()
            }
            Self::CqError { cqn, syndrome } => {
                let mut event = CqErrorEvent::zeroed();
                fit(event.set_cqn(cqn));
                event.set_syndrome(syndrome);
                *event.bytes()
            }
            Self::QueueError { send, number, .. } => {
                let mut event = QueueEvent::zeroed();
                let kind = if send { QueueType::SQ } else { QueueType::RQ };
                event.set_queue_type(kind.0);
                fit(event.set_number(number));
                *event.bytes()
            }
        };
        let mut entry = Eqe::zeroed();
        entry
            .set_event_type(self.event_type().0)
            .set_event_sub_type(sub_type)
            .set_event_data(data);
        entry
    }

    /// Whether it must not be lost when nobody has subscribed yet.
    fn waits(self) -> bool {
        matches!(self, Self::PageRequest { .. })
    }
}

fn fit<T, E>(result: Result<T, E>) {
    debug_assert!(
        result.is_ok(),
        "a number that came out of the field goes into it"
    );
}

/// What delivering did, for the function's report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Entries written.
    pub written: u64,
    /// Events that were lost: no queue, a full one, memory out of reach.
    pub lost: u64,
}

/// Writes all waiting events.
pub(crate) fn deliver(
    firmware: &mut Firmware,
    reader: &mut HostReader,
    lines: &InterruptLines,
) -> Delivered {
    let mut done = Delivered::default();
    let mut waiting = Vec::new();
    for event in std::mem::take(&mut firmware.events) {
        let eqn = match event {
            // Requests of one function must not overtake each other.
            Event::PageRequest { .. } if !waiting.is_empty() => {
                waiting.push(event);
                continue;
            }
            Event::Completion { cqn } => firmware.eq_of_cq(cqn),
            other => subscriber(firmware, other.event_type()),
        };
        match eqn.and_then(|eqn| firmware.eqs.get_mut(&eqn)) {
            // It asks when there is room: a flood of requests shall not break a queue.
            Some(eq) if event.waits() && is_full(eq) => waiting.push(event),
            Some(eq) => {
                if push(eq, event.entry(), reader) {
                    fire(eq, lines);
                    done.written += 1;
                } else {
                    done.lost += 1;
                }
            }
            None if event.waits() => waiting.push(event),
            None => done.lost += 1,
        }
    }
    firmware.events = waiting;
    done
}

fn subscriber(firmware: &Firmware, event: EventType) -> Option<u8> {
    let mask = event.mask();
    let wants = |eq: &Eq| eq.events.iter().zip(&mask).any(|(has, bit)| has & bit != 0);
    firmware
        .eqs
        .iter()
        .find(|(_, eq)| wants(eq))
        .map(|(eqn, _)| *eqn)
}

/// Whether a command completion would be reported by an event.
pub(crate) fn reports_commands(firmware: &Firmware) -> bool {
    subscriber(firmware, EventType::CMD).is_some()
}

/// Whether a page request that is raised now is written at once.
pub(crate) fn takes_requests(firmware: &Firmware) -> bool {
    let eq = subscriber(firmware, EventType::PAGE_REQUEST);
    let eq = eq.and_then(|eqn| firmware.eqs.get(&eqn));
    !firmware.events.iter().any(|event| event.waits()) && eq.is_some_and(|eq| !is_full(eq))
}

fn is_full(eq: &Eq) -> bool {
    let entries = 1u32 << eq.log_size.min(24);
    // Others' events have a quarter for themselves.
    eq.producer.wrapping_sub(eq.consumer) & INDEX >= entries - entries / 4
}

fn push(eq: &mut Eq, mut entry: Eqe, reader: &mut HostReader) -> bool {
    let entries = 1u32 << eq.log_size.min(24);
    let used = eq.producer.wrapping_sub(eq.consumer) & INDEX;
    if eq.failed || used >= entries && !eq.overrun_ignore {
        eq.failed = true;
        return false;
    }
    let offset = u64::from(eq.producer & (entries - 1)) * ENTRY;
    let page = offset >> eq.ring.log_page_size;
    let inside = offset & ((1 << eq.ring.log_page_size) - 1);
    let Some(address) = eq.ring.pages.get(page as usize).map(|page| page + inside) else {
        eq.failed = true;
        return false;
    };
    entry.set_owner(pollux_prm::event::owner(eq.producer, eq.log_size as u8));
    if write_owner_last(reader, address, entry.bytes()).is_none() {
        eq.failed = true;
        return false;
    }
    eq.producer = eq.producer.wrapping_add(1) & INDEX;
    true
}

/// Writes an entry so that its last word, which holds the owner bit, appears after the rest.
pub(crate) fn write_owner_last(
    reader: &mut HostReader,
    address: u64,
    entry: &[u8; 64],
) -> Option<()> {
    let (window, at) = reader.resolve_mut(address, ENTRY).ok()?;
    let (rest, last) = entry.split_at(60);
    let owner = window.word32(at + 60).ok()?;
    window.copy_in(at, rest).ok()?;
    let word = last
        .iter()
        .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    owner.store_be(word, Ordering::Release);
    Some(())
}

fn fire(eq: &mut Eq, lines: &InterruptLines) {
    if std::mem::take(&mut eq.armed) {
        lines.raise(eq.vector);
    }
}

/// An EQ doorbell: the driver's consumer index, and whether it wants the next event's interrupt.
pub(crate) fn doorbell(firmware: &mut Firmware, value: u32, arm: bool, lines: &InterruptLines) {
    let eqn = (value >> 24) as u8;
    let Some(eq) = firmware.eqs.get_mut(&eqn) else {
        return;
    };
    eq.consumer = value & INDEX;
    if arm {
        eq.armed = true;
        if eq.consumer != eq.producer {
            fire(eq, lines);
        }
    }
}
