//! [`DataPort`]: one function's handle on the data thread.
//!
//! Used by the function's command side, from any of its threads. Each call posts a request, wakes
//! the data thread and waits for its answer; the data thread answers between two turns, so that
//! when a `destroy_*` returns nothing of that queue is touched any more. Never call from inside an
//! [`EventSink`](super::EventSink): the data thread would wait for itself.

use super::DataError;
use super::engine::Engine;
use super::request::*;
use super::steering::Steering;
use super::thread::Mailbox;
use crate::wire::WireReport;
use pollux_bus::HostMemory;
use std::sync::Arc;

/// One function's handle on the data thread. Cheap to clone.
#[derive(Clone)]
pub struct DataPort {
    mailbox: Arc<Mailbox>,
    function: usize,
}

impl DataPort {
    pub(super) fn new(mailbox: Arc<Mailbox>, function: usize) -> Self {
        Self { mailbox, function }
    }

    fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine, usize) -> T + Send + 'static,
    ) -> Result<T, DataError> {
        let function = self.function;
        self.mailbox.call(move |engine| job(engine, function))
    }

    /// A driver arrives with its memory.
    ///
    /// # Errors
    /// [`DataError::Connected`] when one is there, [`DataError::Stopped`].
    pub fn connect(&self, memory: Arc<HostMemory>) -> Result<(), DataError> {
        self.call(move |engine, function| engine.connect(function, &memory))?
    }

    /// The driver is gone: all its queues, keys and rules are forgotten, and nothing of its memory
    /// is touched when this returns.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn disconnect(&self) -> Result<(), DataError> {
        self.call(|engine, function| engine.disconnect(function))
    }

    /// Function-level reset: queues, keys, rules, pages and counters are forgotten; the memory
    /// stays.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn reset(&self) -> Result<(), DataError> {
        self.call(|engine, function| engine.reset(function))
    }

    /// ALLOC_UAR handed this page out: doorbells on it count from now on.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn enable_uar(&self, uar: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.enable_uar(function, uar, true))
    }

    /// DEALLOC_UAR took it back.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn disable_uar(&self, uar: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.enable_uar(function, uar, false))
    }

    /// Watches a mapped page for EQ doorbells (one more, or one less, EQ lies there).
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn watch_eq(&self, uar: u32, on: bool) -> Result<(), DataError> {
        self.call(move |engine, function| engine.watch_eq(function, uar, on))
    }

    /// A 64-bit doorbell that came through a trapped page: `offset` in the page, native value.
    /// Does not wait for the answer.
    pub fn ring(&self, uar: u32, offset: u32, value: u64) {
        let function = self.function;
        self.mailbox.post(Box::new(move |engine| {
            engine.ring(function, uar, offset, value)
        }));
    }

    /// CREATE_CQ. A new queue is neither armed nor in error.
    ///
    /// # Errors
    /// [`DataError::Exists`], [`DataError::Ring`], [`DataError::Memory`], [`DataError::Stopped`].
    pub fn create_cq(&self, spec: CqSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.create_cq(function, spec))?
    }

    /// MODIFY_CQ. An event that waits by the rules of before goes by the new ones.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn modify_cq(&self, cqn: u32, change: CqChange) -> Result<(), DataError> {
        self.call(move |engine, function| engine.modify_cq(function, cqn, change))?
    }

    /// DESTROY_CQ.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn destroy_cq(&self, cqn: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.destroy_cq(function, cqn))?
    }

    /// QUERY_CQ's moving parts.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn cq_status(&self, cqn: u32) -> Result<CqStatus, DataError> {
        self.call(move |engine, function| engine.cq_status(function, cqn))?
    }

    /// CREATE_SQ.
    ///
    /// # Errors
    /// [`DataError::Exists`], [`DataError::Unknown`] CQ, [`DataError::Ring`],
    /// [`DataError::Memory`], [`DataError::Stopped`].
    pub fn create_sq(&self, spec: SqSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.create_sq(function, spec))?
    }

    /// MODIFY_SQ: moves the queue to `state`. To [`QueueState::Reset`] zeroes its indices; the
    /// transitions that are legal are the command side's business.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn modify_sq(&self, sqn: u32, state: QueueState) -> Result<(), DataError> {
        self.call(move |engine, function| engine.modify_sq(function, sqn, state))?
    }

    /// DESTROY_SQ.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn destroy_sq(&self, sqn: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.destroy_sq(function, sqn))?
    }

    /// QUERY_SQ's moving parts.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn sq_status(&self, sqn: u32) -> Result<QueueStatus, DataError> {
        self.call(move |engine, function| engine.sq_status(function, sqn))?
    }

    /// CREATE_RQ.
    ///
    /// # Errors
    /// As [`create_sq`](Self::create_sq).
    pub fn create_rq(&self, spec: RqSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.create_rq(function, spec))?
    }

    /// MODIFY_RQ: the state, or other fields of [`RqChange`].
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn modify_rq(&self, rqn: u32, change: RqChange) -> Result<(), DataError> {
        self.call(move |engine, function| engine.modify_rq(function, rqn, change))?
    }

    /// DESTROY_RQ.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn destroy_rq(&self, rqn: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.destroy_rq(function, rqn))?
    }

    /// QUERY_RQ's moving parts.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn rq_status(&self, rqn: u32) -> Result<QueueStatus, DataError> {
        self.call(move |engine, function| engine.rq_status(function, rqn))?
    }

    /// CREATE_MKEY, or a change of the key with the same index.
    ///
    /// # Errors
    /// [`DataError::Key`] for an index beyond [`MAX_MKEYS`](super::MAX_MKEYS),
    /// [`DataError::Stopped`].
    pub fn set_mkey(&self, spec: MkeySpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_mkey(function, spec))?
    }

    /// DESTROY_MKEY; `index` is the key without its variant.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn remove_mkey(&self, index: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.remove_mkey(function, index))?
    }

    /// CREATE_TIR or MODIFY_TIR. Queues and tables that it names may come and go; packets for a
    /// TIR that leads nowhere are dropped and counted.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn set_tir(&self, spec: TirSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_tir(function, spec))
    }

    /// DESTROY_TIR.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn remove_tir(&self, tirn: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.remove_tir(function, tirn))?
    }

    /// CREATE_RQT or MODIFY_RQT.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn set_rqt(&self, spec: RqtSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_rqt(function, spec))
    }

    /// DESTROY_RQT.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn remove_rqt(&self, rqtn: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.remove_rqt(function, rqtn))?
    }

    /// Replaces the receive rules, counters of flow entries kept where the counter number stays.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn set_steering(&self, steering: Steering) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_steering(function, steering))
    }

    /// Value of a flow counter; zero for one that no rule ever used.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn flow_counter(&self, id: u32, clear: bool) -> Result<Traffic, DataError> {
        self.call(move |engine, function| engine.flow_counter(function, id, clear))
    }

    /// Port and vport state: link, frame limit.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn set_link(&self, link: LinkSpec) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_link(function, link))
    }

    /// Whether packets can cross: this side up, the wire up.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn link_up(&self) -> Result<bool, DataError> {
        self.call(|engine, function| engine.link_up(function))
    }

    /// The counters as of now.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn counters(&self) -> Result<Counters, DataError> {
        self.call(|engine, function| engine.counters(function))
    }

    /// Zeroes the counters (PPCNT's clear bit).
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn clear_counters(&self) -> Result<(), DataError> {
        self.call(|engine, function| engine.clear_counters(function))
    }

    /// Frames dropped for want of buffers by queues of this counter set.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn out_of_buffer(&self, counter_set: u8, clear: bool) -> Result<u64, DataError> {
        self.call(move |engine, function| engine.out_of_buffer(function, counter_set, clear))
    }

    /// What the wire did.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn wire(&self) -> Result<WireReport, DataError> {
        self.call(|engine, function| engine.wire_report(function))
    }

    /// Fault: the next `count` doorbells of this send queue are lost.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn ignore_doorbells(&self, sqn: u32, count: u32) -> Result<(), DataError> {
        self.call(move |engine, function| engine.ignore_doorbells(function, sqn, count))?
    }

    /// Fault: `bytes` are xored over the completion that the queue writes after `skip` others.
    ///
    /// # Errors
    /// [`DataError::Unknown`], [`DataError::Stopped`].
    pub fn corrupt_cqe(&self, cqn: u32, skip: u32, bytes: [u8; 64]) -> Result<(), DataError> {
        self.call(move |engine, function| engine.corrupt_cqe(function, cqn, skip, bytes))?
    }

    /// Fault: the wire is cut (false) or mended, whatever the driver asked.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn set_wire(&self, up: bool) -> Result<(), DataError> {
        self.call(move |engine, function| engine.set_wire(function, up))
    }

    /// What comes in from the wire waits, though the link is up, or goes on.
    ///
    /// # Errors
    /// [`DataError::Stopped`].
    pub fn hold_wire(&self, held: bool) -> Result<(), DataError> {
        self.call(move |engine, function| engine.hold_wire(function, held))
    }
}
