//! The data path by itself: `RxQueue::burst` and `TxQueue::burst` on rings in ordinary memory,
//! with everything the device would have written already there.
//!
//! [`DataPath::prepare`] plays the device: it gives every RX descriptor of the coming round its
//! completion, completes what was sent, and checks that the packets of the last round were sent
//! whole and in order. [`DataPath::forward`] is what is measured: it receives and sends, burst by
//! burst, and does nothing else.

use pollux_bus::Registers;
use pollux_mempool::{
    Burst, Cells, MemoryError, PageChoice, Pool, PoolConfig, Segment, SegmentRequest, Window,
    Word32, Word64, barrier,
};
use pollux_mlx5::counters::{RxCounters, TxCounters};
use pollux_mlx5::gate::Gate;
use pollux_mlx5::regions::Regions;
use pollux_mlx5::rx::{RxParts, RxQueue, prepare_cq};
use pollux_mlx5::tx::{TxParts, TxQueue, cq_entries};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Descriptors of each ring.
pub const RING: usize = 1024;
/// Buffers that circulate.
pub const BUFFERS: usize = 4096;
/// Packets of a round.
pub const ROUND: usize = 512;
/// Bytes of a packet, without FCS.
pub const LENGTH: u32 = 60;
/// Buffers that rest outside the rings from one round to the next, so that all of them come by.
const RESTING: usize = 2048;

const SQN: u32 = 0x1234;
const KEY: u32 = 0x1800;
const IOVA: u64 = 0x1_0000_0000;

/// How the queues are set up and driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The L2 header stands in the WQE, as ConnectX-4 Lx wants it.
    pub inline_l2: bool,
    /// No per-core cache, and one doorbell and one full barrier per packet.
    pub sabotage: bool,
}

/// The queues and the device's half of them.
pub struct DataPath {
    rx: RxQueue,
    tx: TxQueue,
    burst: Burst,
    single: Burst,
    setting: Setting,
    resting: VecDeque<Burst>,
    pool: Pool,
    wq: Cells<[u64; 2]>,
    rx_cq: Cells<[u64; 8]>,
    sq: Cells<[u64; 8]>,
    tx_cq: Cells<[u64; 8]>,
    sq_record: Word32,
    doorbell: Word64,
    /// Next RX WQE and completion; next TX block and completion.
    received: u32,
    sent: u16,
    tx_cqe: u32,
    /// Addresses that the next packets sent must have.
    expected: VecDeque<u64>,
    /// Packets seen leaving.
    pub checked: u64,
}

struct Memory {
    segment: Segment,
    used: usize,
}

impl Memory {
    fn take(&mut self, bytes: usize) -> Result<Window, MemoryError> {
        let at = self.used.next_multiple_of(4096);
        self.used = at + bytes;
        self.segment.window(at, bytes)
    }
}

impl DataPath {
    /// Queues that move packets in bursts of `burst`.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(burst: usize, setting: Setting) -> Result<Self, MemoryError> {
        let cache = if setting.sabotage { 0 } else { 256 };
        let pool = Pool::new(&PoolConfig::new("packets", BUFFERS).cache(cache))?;
        shuffle(&pool);
        let mut regions = Regions::new();
        for (k, segment) in pool.chunks().iter().enumerate() {
            if let Some(region) = pool.region(k) {
                regions.add(region, segment.address(), IOVA, KEY);
            }
        }
        let regions = Arc::new(regions);
        let tx_entries = cq_entries(RING);
        let bytes = RING * (16 + 64 + 64) + tx_entries * 64 + 8 * 4096;
        let request = SegmentRequest::new("rings", bytes).page(PageChoice::BestEffort);
        let mut memory = Memory {
            segment: Segment::map(&request)?,
            used: 0,
        };
        let records = memory.take(4096)?;
        let uar = memory.take(4096)?;
        let wq = memory.take(RING * 16)?;
        let rx_cq = memory.take(RING * 64)?;
        let sq = memory.take(RING * 64)?;
        let tx_cq = memory.take(tx_entries * 64)?;
        prepare_cq(&rx_cq.cells(0, RING)?);
        prepare_cq(&tx_cq.cells(0, tx_entries)?);
        let rx = RxQueue::new(RxParts {
            port: 0,
            queue: 0,
            wq: wq.cells(0, RING)?,
            cq: rx_cq.cells(0, RING)?,
            rq_record: records.word32(0)?,
            cq_record: records.word32(64)?,
            pool: pool.clone(),
            regions: Arc::clone(&regions),
            gate: Arc::new(Gate::new()),
            counters: Arc::new(RxCounters::default()),
            home: Box::new(drop),
        })?;
        let tx = TxQueue::new(TxParts {
            queue: 0,
            sq: sq.cells(0, RING)?,
            cq: tx_cq.cells(0, tx_entries)?,
            sq_record: records.word32(128 + 4)?,
            cq_record: records.word32(192)?,
            doorbell: Registers::mapped(uar.clone())
                .doorbell(0x800)
                .map_err(|_| {
                    // The window above is a page: this cannot be.
                    MemoryError::OutOfBounds {
                        what: "doorbell",
                        offset: 0x800,
                        asked: 8,
                        len: uar.len(),
                    }
                })?,
            sqn: SQN,
            inline_l2: setting.inline_l2,
            chains: true,
            max_len: 1518,
            max_wqe_len: 1024,
            regions,
            gate: Arc::new(Gate::new()),
            counters: Arc::new(TxCounters::default()),
            home: Box::new(drop),
        })?;
        Ok(Self {
            rx,
            tx,
            burst: Burst::with_capacity(burst),
            single: Burst::with_capacity(1),
            setting,
            resting: VecDeque::new(),
            pool,
            wq: wq.cells(0, RING)?,
            rx_cq: rx_cq.cells(0, RING)?,
            sq: sq.cells(0, RING)?,
            tx_cq: tx_cq.cells(0, tx_entries)?,
            sq_record: records.word32(128 + 4)?,
            doorbell: uar.word64(0x800)?,
            received: 0,
            sent: 0,
            tx_cqe: 0,
            expected: VecDeque::with_capacity(2 * ROUND),
            checked: 0,
        })
    }

    /// The device's turn, not measured: checks what was sent and completes it, exchanges some
    /// buffers, and receives the packets of the next round.
    ///
    /// # Errors
    /// What was not sent as it had to be.
    pub fn prepare(&mut self) -> Result<(), String> {
        self.check()?;
        self.exchange();
        self.receive(ROUND);
        Ok(())
    }

    /// A shorter turn: checks and completes what was sent, and receives `packets` more.
    ///
    /// # Errors
    /// What was not sent as it had to be.
    pub fn feed(&mut self, packets: usize) -> Result<(), String> {
        self.check()?;
        self.receive(packets);
        Ok(())
    }

    /// Gives the next descriptors their completions.
    fn receive(&mut self, packets: usize) {
        for _ in 0..packets {
            let at = self.received;
            let [_, address] = self.wq.read(at);
            self.expected.push_back(u64::from_be(address));
            let lap = u64::from((at / RING as u32) & 1);
            // RSS hash; checksums right, IPv4 and UDP; length; WQE counter, opcode 2, owner.
            let tail = u64::from(at & 0xffff) << 16 | 2 << 4 | lap;
            let cqe = [
                0,
                u64::from(at | 1),
                0,
                0x0728_0000,
                0,
                u64::from(LENGTH),
                0,
                tail,
            ];
            self.rx_cq.write(at, &cqe.map(u64::to_be));
            self.received = at.wrapping_add(1);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let end = u32::from_be(self.sq_record.load(Relaxed)) as u16;
        let rung = u64::from_be(self.doorbell.load(Relaxed));
        if end != self.sent && (rung >> 40) as u16 != end.wrapping_sub(1) {
            return Err(format!("the doorbell says {rung:#x}, the record {end}"));
        }
        while self.sent != end {
            let wqe = self.sq.read(self.sent).map(u64::from_be);
            let (at, skip, words) = if self.setting.inline_l2 {
                (6, 18, 4)
            } else {
                (4, 0, 3)
            };
            let head =
                u64::from(u32::from(self.sent) << 8 | 0x0a) << 32 | u64::from(SQN) << 8 | words;
            let address = self.expected.pop_front().unwrap_or_default();
            let segment = [
                (u64::from(LENGTH) - skip) << 32 | u64::from(KEY),
                address + skip,
            ];
            if wqe[0] != head || wqe[at..at + 2] != segment {
                return Err(format!(
                    "block {} holds {wqe:x?}, not {segment:x?}",
                    self.sent
                ));
            }
            if wqe[1] >> 32 == 8 {
                let entries = self.tx_cq.count() as u32;
                let lap = u64::from((self.tx_cqe / entries) & 1);
                let tail = u64::from(self.sent) << 16 | lap;
                self.tx_cq
                    .write(self.tx_cqe, &[0, 0, 0, 0, 0, 0, 0, tail.to_be()]);
                self.tx_cqe = self.tx_cqe.wrapping_add(1);
            }
            self.sent = self.sent.wrapping_add(1);
            self.checked += 1;
        }
        Ok(())
    }

    /// Takes what the pool would give next to rest, and gives back what has rested longest.
    fn exchange(&mut self) {
        let mut taken = Burst::with_capacity(ROUND);
        let n = ROUND.min(self.pool.available());
        self.pool.get_bulk(&mut taken, n);
        self.resting.push_back(taken);
        if self.resting.iter().map(Burst::len).sum::<usize>() > RESTING {
            self.resting.pop_front();
        }
    }

    /// What is measured: a round's packets, received and sent. Returns how many.
    #[inline(never)]
    pub fn forward(&mut self) -> usize {
        let mut sent = 0;
        loop {
            if self.rx.burst(&mut self.burst) == 0 {
                return sent;
            }
            if self.setting.sabotage {
                while self.burst.move_to(&mut self.single, 1) != 0 {
                    barrier::full();
                    sent += self.tx.burst(&mut self.single);
                }
            } else {
                sent += self.tx.burst(&mut self.burst);
            }
        }
    }
}

/// Brings the pool's buffers into an order that no prefetcher guesses.
fn shuffle(pool: &Pool) {
    let mut all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..all.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.swap(i, state as usize % (i + 1));
    }
}
