//! The transmit queue: one WQE per packet, its completion queue, one doorbell per burst.
//!
//! # Lifecycle
//!
//! The control thread lays out the memory, calls [`prepare_cq`](crate::rx::prepare_cq) on the
//! completion queue, creates CQ and SQ, brings the SQ to RDY and then calls [`TxQueue::new`].
//! The queue goes to one core; [`burst`](TxQueue::burst) needs `&mut self`. Dropping it sends
//! [`TxRemains`] home, with the buffers that the device has not given back.
//!
//! # What a burst does
//!
//! First it takes completions and frees the packets they cover. Then it writes one WQE per
//! packet: control segment, Ethernet segment with the L2 header where the adapter asks for it,
//! one data segment per buffer. A packet that cannot be sent is dropped and counted before
//! anything of it is written. A completion is asked for once per batch, so up to a batch of sent
//! packets stays with the queue until more are sent. At the end the doorbell rings once.

use crate::counters::TxCounters;
use crate::gate::{Gate, QueueFailure};
use crate::regions::Regions;
use pollux_bus::Doorbell;
use pollux_mempool::{Burst, Cells, InFlight, MemoryError, Word32};
use std::fmt;
use std::sync::Arc;

mod core;
mod wqe;

use self::core::Core;
pub use self::core::cq_entries;

/// What the control thread gives to a transmit queue.
pub struct TxParts {
    /// Queue number inside the port.
    pub queue: u16,
    /// The send queue in 64-byte WQE basic blocks, as many as descriptors.
    pub sq: Cells<[u8; 64]>,
    /// The completion queue; [`cq_entries`] says how many are needed.
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
    /// Whether packets may be chains of buffers.
    pub chains: bool,
    /// Longest frame in bytes, without FCS.
    pub max_len: usize,
    /// Longest WQE in bytes (`max_wqe_sz_sq`).
    pub max_wqe_len: usize,
    /// Where packet memory lies for this port: every pool whose packets may be sent.
    pub regions: Arc<Regions>,
    /// The queue's gate.
    pub gate: Arc<Gate>,
    /// The queue's counters.
    pub counters: Arc<TxCounters>,
    /// Called once, with what is left, when the queue is dropped. It runs on whatever thread
    /// drops the queue, which may not be one that may wait.
    pub home: Box<dyn FnOnce(TxRemains) + Send>,
}

/// What a dropped transmit queue leaves. Until the device's half is destroyed the device may read
/// the buffers: keep this value until then.
pub struct TxRemains {
    /// Queue number inside the port.
    pub queue: u16,
    /// The buffers that the device has not completed; dropping them frees them.
    pub buffers: InFlight,
    /// The send queue, kept mapped.
    pub sq: Cells<[u8; 64]>,
    /// The completion queue, kept mapped.
    pub cq: Cells<[u8; 64]>,
    /// The doorbell, whose page is kept mapped.
    pub doorbell: Doorbell,
}

impl fmt::Debug for TxRemains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxRemains")
            .field("queue", &self.queue)
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}

/// A transmit queue. It belongs to one core at a time: `Send`, not `Sync`.
pub struct TxQueue {
    /// Empty only inside `drop`.
    core: Option<Core>,
}

impl fmt::Debug for TxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.core {
            Some(core) => core.fmt(f),
            None => f.write_str("TxQueue"),
        }
    }
}

impl TxQueue {
    /// A queue that is ready to send. The device's SQ must be in RDY with indices at zero.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] when the send queue has more than 32,768 blocks, the
    /// completion queue is too small ([`cq_entries`]), or the longest WQE has no room for one
    /// buffer; [`MemoryError::OutOfBounds`] never for parts of these sizes.
    pub fn new(parts: TxParts) -> Result<Self, MemoryError> {
        Core::new(parts).map(|core| Self { core: Some(core) })
    }

    /// Takes packets from the front of `packets` and sends them; returns how many it took.
    ///
    /// A packet that cannot be sent (no bytes, more bytes than the port's limit, more buffers
    /// than a WQE has room for, memory that the port does not know) is taken as well: it is freed
    /// and counted as refused. Packets for which the ring has no room stay in `packets`. Never
    /// waits, and takes nothing while the queue recovers from an error and after its port has
    /// stopped.
    #[inline]
    pub fn burst(&mut self, packets: &mut Burst) -> usize {
        match &mut self.core {
            Some(core) => core.burst(packets),
            None => 0,
        }
    }

    /// Packets that the device has not given back.
    pub fn pending(&self) -> usize {
        self.core.as_ref().map_or(0, Core::pending)
    }

    /// Number of descriptors (WQE basic blocks).
    pub fn descriptors(&self) -> usize {
        self.core.as_ref().map_or(0, Core::descriptors)
    }

    /// How the queue failed last, if it has since its port was started. A queue that fails recovers
    /// by itself while it is polled.
    pub fn failure(&self) -> Option<QueueFailure> {
        self.core.as_ref().and_then(Core::failure)
    }

    /// What the queue counts.
    pub fn counters(&self) -> Option<&Arc<TxCounters>> {
        self.core.as_ref().map(Core::counters)
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.send_home();
        }
    }
}
