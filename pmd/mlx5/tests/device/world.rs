//! Queues of the driver joined to the small device.

use super::{Keys, Memory, Receiver, Sender};
use pollux_bus::Registers;
use pollux_mempool::{Burst, MemoryError, Pool, PoolConfig};
use pollux_mlx5::counters::{RxCounters, TxCounters};
use pollux_mlx5::gate::Gate;
use pollux_mlx5::regions::Regions;
use pollux_mlx5::rx::{RxParts, RxQueue, RxRemains, prepare_cq};
use pollux_mlx5::tx::{TxParts, TxQueue, TxRemains, cq_entries};
use std::sync::Arc;
use std::sync::mpsc;

/// Key of a pool's first chunk; each further chunk has the next.
pub const FIRST_KEY: u32 = 0x1842;
pub const SQN: u32 = 0x00ab_cdef;

/// A pool that the device knows.
pub struct Known {
    pub pool: Pool,
    pub regions: Regions,
    pub keys: Keys,
}

/// Enters a pool's chunks; device addresses are far from the process's and from each other.
pub fn know(pool: Pool) -> Known {
    let mut known = Known {
        pool,
        regions: Regions::new(),
        keys: Keys::default(),
    };
    let pool = known.pool.clone();
    known.learn(&pool);
    known
}

impl Known {
    /// Enters the chunks of a further pool.
    pub fn learn(&mut self, pool: &Pool) {
        for (k, segment) in pool.chunks().iter().enumerate() {
            let region = pool.region(k).unwrap();
            let iova = 0x4_0000_0000 + (u64::from(region) << 34);
            let key = FIRST_KEY + u32::from(region);
            self.regions.add(region, segment.address(), iova, key);
            self.keys.add(iova, key, segment.whole());
        }
    }
}

pub fn small_pool(count: usize) -> Pool {
    Pool::new(&PoolConfig::new("packets", count).cache(count.min(64))).unwrap()
}

pub struct Rx {
    pub queue: Option<RxQueue>,
    pub device: Receiver,
    pub gate: Arc<Gate>,
    pub counters: Arc<RxCounters>,
    pub home: mpsc::Receiver<RxRemains>,
}

pub fn receive_queue(known: &Known, descriptors: usize) -> Rx {
    receive_queue_with(known, descriptors, descriptors)
}

pub fn receive_queue_with(known: &Known, descriptors: usize, entries: usize) -> Rx {
    try_receive_queue(known, descriptors, entries).unwrap()
}

pub fn try_receive_queue(
    known: &Known,
    descriptors: usize,
    entries: usize,
) -> Result<Rx, MemoryError> {
    let mut memory = Memory::new(descriptors * 16 + entries * 64 + 4 * 4096);
    let records = memory.take(16);
    let wq = memory.cells::<[u8; 16]>(descriptors);
    let cq = memory.cells::<[u8; 64]>(entries);
    prepare_cq(&cq);
    let gate = Arc::new(Gate::new());
    let counters = Arc::new(RxCounters::default());
    let (send, home) = mpsc::channel();
    let device = Receiver {
        wq: wq.clone(),
        cq: cq.clone(),
        rq_record: records.word32(0).unwrap(),
        cq_record: records.word32(8).unwrap(),
        keys: known.keys.clone(),
        wqe: 0,
        cqe: 0,
        missed: 0,
    };
    let queue = RxQueue::new(RxParts {
        port: 7,
        queue: 3,
        wq,
        cq,
        rq_record: records.word32(0).unwrap(),
        cq_record: records.word32(8).unwrap(),
        pool: known.pool.clone(),
        regions: Arc::new(known.regions.clone()),
        gate: Arc::clone(&gate),
        counters: Arc::clone(&counters),
        home: Box::new(move |remains| send.send(remains).unwrap()),
    })?;
    Ok(Rx {
        queue: Some(queue),
        device,
        gate,
        counters,
        home,
    })
}

impl Rx {
    pub fn burst(&mut self, out: &mut Burst) -> usize {
        self.queue.as_mut().unwrap().burst(out)
    }

    pub fn posted(&self) -> usize {
        self.queue.as_ref().unwrap().posted()
    }
}

/// How a transmit queue shall be.
#[derive(Clone, Copy, Debug)]
pub struct TxSetting {
    pub descriptors: usize,
    pub inline_l2: bool,
    pub chains: bool,
    pub max_len: usize,
    pub max_wqe_len: usize,
}

impl Default for TxSetting {
    fn default() -> Self {
        Self {
            descriptors: 64,
            inline_l2: false,
            chains: true,
            max_len: 1518,
            max_wqe_len: 1024,
        }
    }
}

pub struct Tx {
    pub queue: Option<TxQueue>,
    pub device: Sender,
    pub gate: Arc<Gate>,
    pub counters: Arc<TxCounters>,
    pub home: mpsc::Receiver<TxRemains>,
}

pub fn send_queue(known: &Known, setting: TxSetting) -> Tx {
    let entries = cq_entries(setting.descriptors);
    let mut memory = Memory::new(setting.descriptors * 64 + entries * 64 + 5 * 4096);
    let records = memory.take(16);
    let uar = memory.take(4096);
    let sq = memory.cells::<[u8; 64]>(setting.descriptors);
    let cq = memory.cells::<[u8; 64]>(entries);
    prepare_cq(&cq);
    let gate = Arc::new(Gate::new());
    let counters = Arc::new(TxCounters::default());
    let (send, home) = mpsc::channel();
    let device = Sender {
        sq: sq.clone(),
        cq: cq.clone(),
        sq_record: records.word32(4).unwrap(),
        cq_record: records.word32(8).unwrap(),
        doorbell: uar.word64(0x800).unwrap(),
        sqn: SQN,
        min_inline: if setting.inline_l2 { 18 } else { 0 },
        keys: known.keys.clone(),
        wqe: 0,
        cqe: 0,
        rings: 0,
        hold: false,
        held: Vec::with_capacity(setting.descriptors),
        failed: false,
    };
    let queue = TxQueue::new(TxParts {
        queue: 5,
        sq,
        cq,
        sq_record: records.word32(4).unwrap(),
        cq_record: records.word32(8).unwrap(),
        doorbell: Registers::mapped(uar).doorbell(0x800).unwrap(),
        sqn: SQN,
        inline_l2: setting.inline_l2,
        chains: setting.chains,
        max_len: setting.max_len,
        max_wqe_len: setting.max_wqe_len,
        regions: Arc::new(known.regions.clone()),
        gate: Arc::clone(&gate),
        counters: Arc::clone(&counters),
        home: Box::new(move |remains| send.send(remains).unwrap()),
    })
    .unwrap();
    Tx {
        queue: Some(queue),
        device,
        gate,
        counters,
        home,
    }
}

impl Tx {
    pub fn burst(&mut self, packets: &mut Burst) -> usize {
        self.queue.as_mut().unwrap().burst(packets)
    }

    pub fn pending(&self) -> usize {
        self.queue.as_ref().unwrap().pending()
    }
}

/// A frame that can be told from others: `len` bytes from a seed.
pub fn frame(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|k| {
            let x = seed
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(k.wrapping_mul(0x85eb_ca6b));
            (x >> 24) as u8 ^ k as u8
        })
        .collect()
}

/// Puts a packet with these bytes, cut into buffers of these sizes, behind the others.
pub fn push_packet(pool: &Pool, burst: &mut Burst, bytes: &[u8], cuts: &[usize]) {
    let mut rest = bytes;
    let mut packet = None;
    for part in cuts.iter().copied().chain([usize::MAX]) {
        let (now, later) = rest.split_at(part.min(rest.len()));
        rest = later;
        let mut mbuf = pool.alloc().unwrap();
        mbuf.reset();
        assert!(mbuf.extend_from_slice(now));
        match &mut packet {
            None => packet = Some(mbuf),
            Some(head) => pollux_mempool::Mbuf::push_segment(head, mbuf).unwrap(),
        }
        if rest.is_empty() {
            break;
        }
    }
    burst.push(packet.unwrap()).unwrap();
}
