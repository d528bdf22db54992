//! The receive queue: a ring of 16-byte data segments with one buffer each, and its completion
//! queue (64-byte CQEs, compression off).
//!
//! # Lifecycle
//!
//! The control thread lays out the memory, calls [`prepare_cq`] on the completion queue, creates
//! CQ and RQ, brings the RQ to RDY and then calls [`RxQueue::new`], which posts the buffers. The
//! queue goes to one core; [`burst`](RxQueue::burst) needs `&mut self`. Dropping it sends
//! [`RxRemains`] home, buffers included.
//!
//! # What a burst does
//!
//! Entries are taken in order while the owner bit says so. That bit and the WQE index are in one
//! word, read first; everything else is read behind it. An entry with an error that concerns one
//! packet, or with a length that the posted buffer does not have, costs that packet and nothing
//! else. An entry that cannot be true fails the queue: nothing that it says is used. Slots get
//! new buffers in batches; a slot that could not get one is not posted until it has one, so the
//! device never writes into memory that is not the queue's.

use crate::counters::RxCounters;
use crate::gate::{Gate, QueueFailure};
use crate::regions::Regions;
use pollux_mempool::{Burst, Cells, InFlight, MemoryError, Pool, Word32};
use pollux_prm::completion::{CqeOpcode, Tail, offset};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod core;
mod headers;

use self::core::Core;
pub use headers::packet_type;

/// What the control thread gives to a receive queue.
pub struct RxParts {
    /// Port number, written into each packet.
    pub port: u16,
    /// Queue number inside the port.
    pub queue: u16,
    /// The work queue: `mlx5_wqe_data_seg`s, as many as descriptors.
    pub wq: Cells<[u8; 16]>,
    /// The completion queue: `mlx5_cqe64`s, at least as many as descriptors.
    pub cq: Cells<[u8; 64]>,
    /// Receive counter of the RQ's doorbell record (`MLX5_RCV_DBR`).
    pub rq_record: Word32,
    /// Consumer counter of the CQ's doorbell record (`MLX5_CQ_SET_CI`).
    pub cq_record: Word32,
    /// Where the buffers come from.
    pub pool: Pool,
    /// Where the pool's memory lies for this port.
    pub regions: Arc<Regions>,
    /// The queue's gate.
    pub gate: Arc<Gate>,
    /// The queue's counters.
    pub counters: Arc<RxCounters>,
    /// Called once, with what is left, when the queue is dropped. It runs on whatever thread
    /// drops the queue, which may not be one that may wait.
    pub home: Box<dyn FnOnce(RxRemains) + Send>,
}

/// What a dropped receive queue leaves. Until the device's half is destroyed the device may write
/// into the buffers: keep this value until then.
#[derive(Debug)]
pub struct RxRemains {
    /// Queue number inside the port.
    pub queue: u16,
    /// The buffers that were posted; dropping them frees them.
    pub buffers: InFlight,
    /// The work queue, kept mapped.
    pub wq: Cells<[u8; 16]>,
    /// The completion queue, kept mapped.
    pub cq: Cells<[u8; 64]>,
}

/// Makes every entry of a completion queue invalid, as the device wants to find it (RX and TX).
pub fn prepare_cq(cq: &Cells<[u8; 64]>) {
    for i in 0..cq.count() {
        let tail = Tail::new(0, 0, 0, CqeOpcode::INVALID, true);
        cq.write(i, &[0; 64]);
        cq.store_u64::<{ offset::TAIL }>(i, tail.to_memory(), Ordering::Release);
    }
}

/// A receive queue. It belongs to one core at a time: `Send`, not `Sync`.
pub struct RxQueue {
    /// Empty only inside `drop`.
    core: Option<Core>,
}

impl fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.core {
            Some(core) => core.fmt(f),
            None => f.write_str("RxQueue"),
        }
    }
}

impl RxQueue {
    /// A queue that starts to receive: posts as many buffers as the pool gives, at most one per
    /// descriptor. The device's RQ must be in RDY with indices at zero.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] when the completion queue is smaller than the work queue or
    /// the work queue has more than 32,768 entries; [`MemoryError::NotPowerOfTwo`].
    pub fn new(parts: RxParts) -> Result<Self, MemoryError> {
        Core::new(parts).map(|core| Self { core: Some(core) })
    }

    /// Puts packets behind those that are in `out`, up to its capacity; returns how many.
    ///
    /// Never waits, and returns 0 while the queue recovers from an error and after its port has
    /// stopped.
    #[inline]
    pub fn burst(&mut self, out: &mut Burst) -> usize {
        match &mut self.core {
            Some(core) => core.burst(out),
            None => 0,
        }
    }

    /// Descriptors that have a buffer and wait for a packet.
    pub fn posted(&self) -> usize {
        self.core.as_ref().map_or(0, Core::posted)
    }

    /// Number of descriptors.
    pub fn descriptors(&self) -> usize {
        self.core.as_ref().map_or(0, Core::descriptors)
    }

    /// How the queue failed last, if it has since its port was started. A queue that fails recovers
    /// by itself while it is polled.
    pub fn failure(&self) -> Option<QueueFailure> {
        self.core.as_ref().and_then(Core::failure)
    }

    /// What the queue counts.
    pub fn counters(&self) -> Option<&Arc<RxCounters>> {
        self.core.as_ref().map(Core::counters)
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.send_home();
        }
    }
}
