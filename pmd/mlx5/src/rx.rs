//! The receive queue: a ring of 16-byte data segments with one buffer each, and its completion
//! queue (64-byte CQEs, compression off).
//!
//! # Lifecycle
//!
//! The control thread lays out the memory, calls [`prepare_cq`] on the completion queue, creates
//! CQ and RQ, brings the RQ to RDY and then calls [`RxQueue::new`], which posts the buffers. The
//! queue goes to one core; [`burst`](RxQueue::burst) needs `&mut self`. Dropping it sends
//! [`RxRemains`] home, buffers included.

use crate::counters::RxCounters;
use crate::gate::Gate;
use pollux_mempool::{Burst, Cells, Pool, Slots, Word32};
use std::sync::Arc;

/// What the control thread gives to a receive queue.
pub struct RxParts {
    /// Port number, written into each packet.
    pub port: u16,
    /// Queue number inside the port.
    pub queue: u16,
    /// The work queue: `mlx5_wqe_data_seg`s; as many as descriptors.
    pub wq: Cells<[u8; 16]>,
    /// The completion queue: `mlx5_cqe64`s; at least as many as descriptors.
    pub cq: Cells<[u8; 64]>,
    /// Receive counter of the RQ's doorbell record (`MLX5_RCV_DBR`).
    pub rq_record: Word32,
    /// Consumer counter of the CQ's doorbell record (`MLX5_CQ_SET_CI`).
    pub cq_record: Word32,
    /// Where the buffers come from.
    pub pool: Pool,
    /// The queue's gate.
    pub gate: Arc<Gate>,
    /// The queue's counters.
    pub counters: Arc<RxCounters>,
    /// Called once, with what is left, when the queue is dropped.
    pub home: Box<dyn FnOnce(RxRemains) + Send>,
}

/// What a dropped receive queue leaves. Until the device's half is destroyed the device may write
/// into the buffers: keep this value until then.
pub struct RxRemains {
    /// Queue number inside the port.
    pub queue: u16,
    /// The buffers that were posted; dropping them frees them.
    pub buffers: Slots,
    /// The rings, which keep their memory mapped.
    pub wq: Cells<[u8; 16]>,
    /// As above.
    pub cq: Cells<[u8; 64]>,
}
