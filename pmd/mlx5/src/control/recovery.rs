//! Bringing failed queues back: which command is due for which queue.
//!
//! A queue's core and the control thread talk through the queue's [`Gate`]: the core (or an error
//! event) moves it to `Failed`; the device's queue is then brought to reset by way of error,
//! whatever state it is in; the core clears its half; the device's queue is made ready. Nobody
//! wakes the control thread for a failure that only the core saw: it looks every
//! [`LOOK`](super::LOOK).

use crate::error::CommandFailure;
use crate::gate::{Cause, Gate, Phase};
use crate::work_queue::{self, QueueKind, QueueState};
use std::sync::Arc;

/// A queue that is to be recovered when it fails.
pub(crate) struct Watched {
    /// Send or receive.
    pub(crate) kind: QueueKind,
    /// Index inside the port.
    pub(crate) index: usize,
    /// Number of the SQ or RQ.
    pub(crate) number: u32,
    /// Number of its CQ.
    pub(crate) cqn: u32,
    /// What its core and we say to each other.
    pub(crate) gate: Arc<Gate>,
}

/// The command that a queue needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ask for its state.
    Query,
    /// Move it from one state to the other.
    Modify(QueueState, QueueState),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing known to be wrong.
    Well,
    /// The device's state must be asked for.
    Ask,
    /// The device's queue is in this state and must come to reset.
    From(QueueState),
    /// In reset; the core's turn, or ours when it has cleaned up.
    InReset,
    /// A command failed; it stays as it is.
    Dead,
}

struct Patient {
    watched: Watched,
    stage: Stage,
    waiting: bool,
    /// Failures that have been told.
    told: u32,
}

/// All queues that are watched.
#[derive(Default)]
pub(super) struct Recovery {
    patients: Vec<Patient>,
    /// Distinguishes answers to orders of an earlier set of queues.
    generation: u32,
}

/// Which queue an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    generation: u32,
    at: usize,
    order: Order,
}

impl Case {
    pub(super) fn order(&self) -> Order {
        self.order
    }
}

impl Recovery {
    /// Watches these queues instead of those before.
    pub(super) fn watch(&mut self, queues: Vec<Watched>) {
        self.generation = self.generation.wrapping_add(1);
        self.patients = queues
            .into_iter()
            .map(|watched| Patient {
                watched,
                stage: Stage::Well,
                waiting: false,
                told: 0,
            })
            .collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patients.is_empty()
    }

    /// An error event about a work queue.
    pub(super) fn queue_event(&mut self, kind: QueueKind, number: u32) -> bool {
        self.fail(|w| w.kind == kind && w.number == number)
    }

    /// An error event about a completion queue.
    pub(super) fn cq_event(&mut self, cqn: u32) -> bool {
        self.fail(|w| w.cqn == cqn)
    }

    fn fail(&mut self, is_meant: impl Fn(&Watched) -> bool) -> bool {
        let mut found = false;
        for patient in self.patients.iter().filter(|p| is_meant(&p.watched)) {
            found = true;
            patient.watched.gate.fail(Cause::Event);
        }
        found
    }

    /// Looks at all gates; the orders to be carried out now.
    pub(super) fn look(&mut self) -> Vec<(Case, QueueKind, u32)> {
        let mut orders = Vec::new();
        for (at, patient) in self.patients.iter_mut().enumerate() {
            if patient.waiting {
                continue;
            }
            let gate = &patient.watched.gate;
            match (patient.stage, gate.phase()) {
                // The lcore is about to say why.
                (Stage::Well, Phase::Failed) if gate.failures() == patient.told => continue,
                (Stage::Well, Phase::Failed) => {
                    patient.told = gate.failures();
                    tell(&patient.watched);
                    patient.stage = Stage::Ask;
                }
                (Stage::Well | Stage::Dead, _) | (_, Phase::Inert) => continue,
                _ => {}
            }
            let order = match (patient.stage, gate.phase()) {
                (Stage::Ask, _) => Order::Query,
                (Stage::From(QueueState::ERROR), _) => {
                    Order::Modify(QueueState::ERROR, QueueState::RESET)
                }
                (Stage::From(state), _) => Order::Modify(state, QueueState::ERROR),
                (Stage::InReset, Phase::Clean) => {
                    Order::Modify(QueueState::RESET, QueueState::READY)
                }
                _ => continue,
            };
            patient.waiting = true;
            let case = Case {
                generation: self.generation,
                at,
                order,
            };
            orders.push((case, patient.watched.kind, patient.watched.number));
        }
        orders
    }

    /// The state in the answer to a query.
    pub(super) fn state_in(&self, case: &Case, output: &[u8]) -> Option<QueueState> {
        let patient = self.patients.get(case.at)?;
        work_queue::state(patient.watched.kind, output)
    }

    /// An order has been carried out: the state that a query found, or nothing.
    pub(super) fn carried_out(
        &mut self,
        case: Case,
        result: Result<Option<QueueState>, CommandFailure>,
    ) {
        if case.generation != self.generation {
            return;
        }
        let Some(patient) = self.patients.get_mut(case.at) else {
            return;
        };
        patient.waiting = false;
        let gate = &patient.watched.gate;
        patient.stage = match (case.order, result) {
            (Order::Query, Ok(Some(QueueState::RESET)))
            | (Order::Modify(_, QueueState::RESET), Ok(_)) => {
                gate.was_reset();
                Stage::InReset
            }
            (Order::Query, Ok(Some(state))) => Stage::From(state),
            (Order::Modify(_, QueueState::READY), Ok(_)) => {
                gate.resume();
                tracing::info!(
                    kind = patient.watched.kind.name(),
                    queue = patient.watched.index,
                    "queue recovered"
                );
                Stage::Well
            }
            (Order::Modify(_, state), Ok(_)) => Stage::From(state),
            (Order::Query, Ok(None)) => Stage::Dead,
            (order, Err(failure)) => {
                tracing::error!(
                    kind = patient.watched.kind.name(),
                    queue = patient.watched.index,
                    %failure,
                    ?order,
                    "queue not recovered; stop and start the port"
                );
                Stage::Dead
            }
        };
    }
}

/// The first cause, once, with all that is known.
fn tell(watched: &Watched) {
    let cause = watched
        .gate
        .cause()
        .map_or_else(|| "unknown".into(), |c| c.to_string());
    let address = watched
        .gate
        .address()
        .map_or_else(|| "unknown".into(), |address| format!("{address:#x}"));
    tracing::warn!(
        kind = watched.kind.name(),
        queue = watched.index,
        number = watched.number,
        failures = watched.gate.failures(),
        cause,
        address,
        "queue failed; recovering"
    );
}
