//! The transmit queue: one WQE per packet, its completion queue, one doorbell per burst.
//!
//! # Lifecycle
//!
//! The control thread lays out the memory, calls [`prepare_cq`](crate::rx::prepare_cq) on the
//! completion queue, creates CQ and SQ, brings the SQ to RDY and then calls [`TxQueue::new`].
//! The queue goes to one core; [`burst`](TxQueue::burst) needs `&mut self`. Dropping it sends
//! [`TxRemains`] home, with the buffers that the device has not given back.

use crate::counters::TxCounters;
use crate::gate::Gate;
use pollux_bus::Doorbell;
use pollux_mempool::{Burst, Cells, Slots, Word32};
use std::sync::Arc;

/// What the control thread gives to a transmit queue.
pub struct TxParts {
    /// Queue number inside the port.
    pub queue: u16,
    /// The send queue in 64-byte WQE basic blocks; as many as descriptors.
    pub sq: Cells<[u8; 64]>,
    /// The completion queue; [`cq_entries`](crate::tx::cq_entries) says how many are needed.
    pub cq: Cells<[u8; 64]>,
    /// Send counter of the SQ's doorbell record: its second word (`MLX5_SND_DBR`).
    pub sq_record: Word32,
    /// Consumer counter of the CQ's doorbell record (`MLX5_CQ_SET_CI`).
    pub cq_record: Word32,
    /// The doorbell register: offset 0x800 of a UAR page that no other queue uses.
    pub doorbell: Doorbell,
    /// Number of the SQ.
    pub sqn: u32,
    /// Whether the adapter wants the L2 header inside the WQE (`wqe_inline_mode`).
    pub inline_l2: bool,
    /// Longest frame in bytes, without FCS.
    pub max_len: usize,
    /// Longest WQE in bytes (`max_wqe_sz_sq`).
    pub max_wqe_len: usize,
    /// The queue's gate.
    pub gate: Arc<Gate>,
    /// The queue's counters.
    pub counters: Arc<TxCounters>,
    /// Called once, with what is left, when the queue is dropped.
    pub home: Box<dyn FnOnce(TxRemains) + Send>,
}

/// What a dropped transmit queue leaves. Until the device's half is destroyed the device may read
/// the buffers: keep this value until then.
pub struct TxRemains {
    /// Queue number inside the port.
    pub queue: u16,
    /// The buffers that the device has not completed; dropping them frees them.
    pub buffers: Slots,
    /// The rings, which keep their memory mapped.
    pub sq: Cells<[u8; 64]>,
    /// As above.
    pub cq: Cells<[u8; 64]>,
    /// The doorbell, whose page stays mapped.
    pub doorbell: Doorbell,
}
