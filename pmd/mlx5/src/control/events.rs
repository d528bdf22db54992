//! Event queues and interrupts: who is woken by what.

use super::{BUDGET, Thread};
use crate::eq::{EqKind, EventQueue};
use crate::pages::FunctionKey;
use crate::work_queue::QueueKind;
use pollux_prm::event::{
    CommandEvent, CqErrorEvent, CqErrorSyndrome, Eqe, EventType, PageRequestEvent, PortChange,
    QueueEvent, QueueType,
};
use std::time::Instant;

impl Thread {
    /// Takes an event queue over. What the device wrote before raises its vector at once.
    pub(super) fn adopt(&mut self, mut eq: EventQueue) {
        if let Err(error) = eq.arm() {
            tracing::error!(%error, eq = eq.kind().name(), "event queue not armed");
        }
        self.eqs.push(eq);
    }

    /// Reads what the queues hold. True when one of them may hold more.
    pub(super) fn drain_events(&mut self, now: Instant) -> bool {
        let mut more = false;
        let mut eqs = std::mem::take(&mut self.eqs);
        for eq in &mut eqs {
            let mut taken = 0;
            while taken < BUDGET {
                let Some(entry) = eq.next() else { break };
                taken += 1;
                self.event(eq.kind(), &entry, now);
                if let Err(error) = eq.keep_up() {
                    tracing::error!(%error, "event queue");
                }
            }
            more |= taken == BUDGET;
            if taken > 0 {
                self.shared.count(|c| &c.events, taken as u64);
                if let Err(error) = eq.arm() {
                    tracing::error!(%error, "event queue not armed");
                }
            }
        }
        // Handling an event adopts no queue.
        self.eqs = eqs;
        more
    }

    /// A vector was raised: its queues are armed again even if they hold nothing.
    pub(super) fn fired(&mut self, vector: usize) {
        self.shared.count(|c| &c.interrupts, 1);
        for eq in self.eqs.iter_mut().filter(|eq| eq.vector() == vector) {
            if let Err(error) = eq.arm() {
                tracing::error!(%error, eq = eq.kind().name(), "event queue not armed");
            }
        }
    }

    /// A vector's descriptor is of no use any more: it is not polled again, and its queues are
    /// read by the clock from now on.
    pub(super) fn drop_interrupt(&mut self, vector: usize) {
        if let Some(interrupt) = self.interrupts.get_mut(vector) {
            *interrupt = None;
        }
        self.shared.count(|c| &c.lost_interrupts, 1);
        tracing::error!(
            vector,
            "interrupt lost: its events are polled for now, more slowly"
        );
    }

    /// Whether every vector still has its descriptor.
    pub(super) fn interrupts_whole(&self) -> bool {
        self.interrupts.iter().all(Option::is_some)
    }

    fn event(&mut self, kind: EqKind, entry: &Eqe, now: Instant) {
        let data = entry.event_data();
        match EventType(entry.event_type()) {
            EventType::CMD => {
                let slots = CommandEvent::from_bytes(data).vector();
                self.collect(Some(slots), now);
            }
            EventType::PAGE_REQUEST => {
                let request = PageRequestEvent::from_bytes(data);
                let key = FunctionKey {
                    function: request.function_id(),
                    embedded: request.embedded_cpu_function(),
                };
                self.shared.count(|c| &c.page_requests, 1);
                self.pages
                    .request(key, request.release_all(), request.count());
            }
            EventType::PORT_CHANGE => {
                let up = match PortChange(entry.event_sub_type()) {
                    PortChange::ACTIVE => Some(true),
                    PortChange::DOWN => Some(false),
                    _ => None,
                };
                self.link.event(up, now);
            }
            EventType::CQ_ERROR => {
                let error = CqErrorEvent::from_bytes(data);
                let syndrome = CqErrorSyndrome(error.syndrome());
                let known = self.recovery.cq_event(error.cqn());
                tracing::warn!(cqn = error.cqn(), %syndrome, known, "completion queue error");
            }
            EventType::WQ_CATAS_ERROR
            | EventType::WQ_INVAL_REQ_ERROR
            | EventType::WQ_ACCESS_ERROR => {
                let event = QueueEvent::from_bytes(data);
                let queue = match QueueType(event.queue_type()) {
                    QueueType::RQ => Some(QueueKind::Rx),
                    QueueType::SQ => Some(QueueKind::Tx),
                    _ => None,
                };
                let number = event.number();
                let known = queue.is_some_and(|kind| self.recovery.queue_event(kind, number));
                tracing::debug!(number, known, event = %EventType(entry.event_type()), "work queue error");
            }
            // The flag says that somebody armed a completion queue; nobody here does.
            EventType::COMP if kind == EqKind::Completions => {}
            other => {
                self.shared.count(|c| &c.unknown_events, 1);
                tracing::debug!(event = %other, "event not used");
            }
        }
    }
}
