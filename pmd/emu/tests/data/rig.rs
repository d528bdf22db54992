//! The hand-made driver: memory, queues and doorbells of a function.

use pollux_bus::{HostMemory, Iova};
use pollux_emu::data::steering::*;
use pollux_emu::data::*;
use pollux_emu::wire::{WireConfig, WireKind};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use pollux_prm::completion::{Cqe, CqeOpcode, ErrorCqe};
use pollux_prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, EthSeg, SendOpcode, record, uar};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const KEY: u32 = 0x1234 << 8 | 0x56;
pub const PD: u32 = 7;
pub const UAR: u32 = 5;
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MEMORY: usize = 8 << 20;

/// Waits for something that must happen.
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "never happened: {what}"
        );
        std::thread::yield_now();
    }
}

pub fn wire(kind: WireKind) -> WireConfig {
    WireConfig { kind, lossy: false }
}

pub fn segment(name: &str, len: usize) -> Segment {
    Segment::map(&SegmentRequest::new(name, len).page(PageChoice::Ordinary)).unwrap()
}

/// How a plane for tests differs from the usual one.
pub struct Setup {
    pub strict: bool,
    pub idle: IdlePolicy,
    pub features: Features,
    pub wires: Vec<WireConfig>,
}

impl Setup {
    pub fn new(wires: Vec<WireConfig>) -> Self {
        Self {
            strict: true,
            idle: IdlePolicy::Yield,
            features: Features::default(),
            wires,
        }
    }

    pub fn pair() -> Self {
        Self::new(vec![
            wire(WireKind::Pair { peer: 1 }),
            wire(WireKind::Pair { peer: 0 }),
        ])
    }

    pub fn start(self) -> Rig {
        let mut functions = Vec::new();
        let mut parts = Vec::new();
        for wire in self.wires {
            let uars = segment("uars", 8 * 4096).whole();
            let (tell, events) = channel();
            functions.push(DataFunction {
                uars: uars.clone(),
                first_uar: 4,
                log_bf_reg_size: 9,
                features: self.features,
                frequency_khz: 1_000_000,
                wire,
                events: Box::new(move |event| {
                    // A test that ends early listens no more.
                    if tell.send(event).is_err() {}
                }),
            });
            parts.push((uars, events));
        }
        let config = DataPlaneConfig {
            strict: self.strict,
            cpu: None,
            idle: self.idle,
            functions,
        };
        let plane = DataPlane::start(config).unwrap();
        let sides = parts
            .into_iter()
            .enumerate()
            .map(|(number, (uars, events))| {
                Side::new(plane.port(number).unwrap(), uars, events, number as u64)
            })
            .collect();
        Rig {
            sides,
            _plane: plane,
        }
    }
}

/// A running plane and the driver side of each function.
pub struct Rig {
    pub sides: Vec<Side>,
    _plane: DataPlane,
}

impl Rig {
    /// The two ends of a pair.
    pub fn both(&mut self) -> (&mut Side, &mut Side) {
        let [a, b] = self.sides.as_mut_slice() else {
            panic!("two functions")
        };
        (a, b)
    }
}

/// One function from its driver's side.
pub struct Side {
    pub port: DataPort,
    pub memory: Arc<HostMemory>,
    pub heap: Window,
    pub base: u64,
    used: usize,
    uars: Window,
    events: Receiver<DataEvent>,
    next: u32,
}

impl Side {
    fn new(port: DataPort, uars: Window, events: Receiver<DataEvent>, number: u64) -> Self {
        let heap = segment("heap", MEMORY).whole();
        let base = 0x1_0000_0000 * (number + 1);
        let memory = HostMemory::new();
        memory.map(Iova(base), heap.clone()).unwrap();
        memory.set_bus_master(true).unwrap();
        port.connect(Arc::clone(&memory)).unwrap();
        port.enable_uar(UAR).unwrap();
        port.set_mkey(MkeySpec {
            key: KEY,
            pd: Some(PD),
            start: 0,
            len: None,
            local_read: true,
            local_write: true,
            translation: Translation::Physical,
        })
        .unwrap();
        Self {
            port,
            memory,
            heap,
            base,
            used: 0,
            uars,
            events,
            next: 0x10,
        }
    }

    /// Takes memory, aligned to 4096; gives offset and device address.
    pub fn take(&mut self, len: usize) -> (usize, u64) {
        let at = self.used;
        self.used = (at + len).next_multiple_of(4096);
        assert!(self.used <= MEMORY, "the test's heap is full");
        (at, self.base + at as u64)
    }

    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Two answers of the data thread have a whole turn between them.
    pub fn settle(&self) {
        for _ in 0..3 {
            self.port.counters().unwrap();
        }
    }

    pub fn event(&self) -> DataEvent {
        self.events
            .recv_timeout(Duration::from_secs(20))
            .expect("an event")
    }

    pub fn no_event(&self) {
        self.settle();
        if let Ok(event) = self.events.try_recv() {
            panic!("unexpected {event:?}");
        }
    }

    pub fn store_doorbell(&self, page: u32, offset: usize, value: u64) {
        let at = (page - 4) as usize * uar::PAGE + offset;
        fence(Ordering::SeqCst);
        self.uars
            .word64(at)
            .unwrap()
            .store(value.to_be(), Ordering::SeqCst);
    }

    pub fn doorbell_word(&self, page: u32, offset: usize) -> u64 {
        let at = (page - 4) as usize * uar::PAGE + offset;
        self.uars.word64(at).unwrap().load(Ordering::SeqCst)
    }

    pub fn ring_memory(&mut self, bytes: usize) -> (usize, RingMemory) {
        let (at, iova) = self.take(bytes);
        let pages = (0..bytes.div_ceil(4096) as u64)
            .map(|page| iova + page * 4096)
            .collect();
        (
            at,
            RingMemory {
                pages,
                log_page_size: 12,
                offset: 0,
            },
        )
    }

    pub fn cq(&mut self, log_size: u32) -> Cq {
        self.cq_with(log_size, |_| {})
    }

    pub fn cq_with(&mut self, log_size: u32, change: impl FnOnce(&mut CqSpec)) -> Cq {
        let (at, ring) = self.ring_memory(128 << log_size);
        let (record_at, doorbell_record) = self.take(8);
        let mut spec = CqSpec {
            cqn: self.number(),
            ring,
            log_size,
            log_entry: 6,
            doorbell_record,
            uar: UAR,
            overrun_ignore: false,
        };
        change(&mut spec);
        // As drivers leave entries that the device has not written.
        for entry in 0..2usize << log_size {
            self.heap.write(at + entry * 64 + 63, &0xf1u8).unwrap();
        }
        self.port.create_cq(spec.clone()).unwrap();
        Cq {
            heap: self.heap.clone(),
            at,
            record_at,
            spec,
            consumer: 0,
        }
    }

    pub fn sq(&mut self, log_size: u32, cq: &Cq) -> Sq {
        self.sq_with(log_size, cq, |_| {})
    }

    pub fn sq_with(&mut self, log_size: u32, cq: &Cq, change: impl FnOnce(&mut SqSpec)) -> Sq {
        let (at, ring) = self.ring_memory(64 << log_size);
        let (record_at, doorbell_record) = self.take(8);
        let mut spec = SqSpec {
            sqn: self.number(),
            ring,
            log_size,
            doorbell_record,
            uar: UAR,
            cqn: cq.spec.cqn,
            pd: PD,
            inline: InlineMode::None,
            flush_in_error: true,
            user_index: 0xabcdef,
            state: QueueState::Ready,
        };
        change(&mut spec);
        self.port.create_sq(spec.clone()).unwrap();
        Sq {
            heap: self.heap.clone(),
            at,
            record_at,
            spec,
            posted: 0,
        }
    }

    pub fn rq(&mut self, log_size: u32, cq: &Cq) -> Rq {
        self.rq_with(log_size, 4, cq, |_| {})
    }

    pub fn rq_with(
        &mut self,
        log_size: u32,
        log_stride: u32,
        cq: &Cq,
        change: impl FnOnce(&mut RqSpec),
    ) -> Rq {
        let (at, ring) = self.ring_memory(1 << (log_stride + log_size));
        let (record_at, doorbell_record) = self.take(8);
        let mut spec = RqSpec {
            rqn: self.number(),
            ring,
            log_size,
            log_stride,
            doorbell_record,
            cqn: cq.spec.cqn,
            pd: PD,
            vlan_strip: false,
            scatter_fcs: false,
            counter_set: 3,
            flush_in_error: true,
            user_index: 0x123456,
            state: QueueState::Ready,
        };
        change(&mut spec);
        self.port.create_rq(spec.clone()).unwrap();
        Rq {
            heap: self.heap.clone(),
            at,
            record_at,
            spec,
            posted: 0,
            buffers: Vec::new(),
        }
    }

    /// Rules that send everything to one queue.
    pub fn steer_all(&self, rqn: u32) {
        self.port
            .set_tir(TirSpec {
                tirn: 1,
                dispatch: Dispatch::Direct { rqn },
            })
            .unwrap();
        self.port.set_steering(all_to(1)).unwrap();
    }

    /// A receive queue with `count` buffers of 2 KiB that gets everything.
    pub fn receiver(&mut self, log_size: u32, count: usize) -> (Rq, Cq) {
        let cq = self.cq(log_size + 1);
        let mut rq = self.rq(log_size, &cq);
        for _ in 0..count {
            let (at, iova) = self.take(2048);
            rq.post(&[(2048, KEY, iova)], at);
        }
        rq.publish();
        self.steer_all(rq.spec.rqn);
        (rq, cq)
    }

    pub fn sender(&mut self, log_size: u32) -> (Sq, Cq) {
        let cq = self.cq(log_size);
        (self.sq(log_size, &cq), cq)
    }

    /// Puts a frame into fresh memory; gives its device address.
    pub fn place(&mut self, frame: &[u8]) -> u64 {
        let (at, iova) = self.take(frame.len());
        self.heap.copy_in(at, frame).unwrap();
        iova
    }

    /// Posts a frame from fresh memory as one data segment.
    pub fn post(&mut self, sq: &mut Sq, frame: &[u8]) -> u16 {
        let iova = self.place(frame);
        sq.send(&[], &[(frame.len() as u32, KEY, iova)])
    }

    /// Posts and rings.
    pub fn send(&mut self, sq: &mut Sq, frame: &[u8]) -> u16 {
        let index = self.post(sq, frame);
        sq.publish();
        sq.ring(self);
        index
    }
}

pub fn entry(value: HeaderBits, action: FlowAction) -> FlowEntry {
    FlowEntry {
        value,
        flow_tag: 0,
        counters: Vec::new(),
        action,
    }
}

pub fn to_tir(tirn: u32) -> FlowAction {
    FlowAction::Forward(vec![FlowDestination::Tir(tirn)])
}

pub fn table(id: u32, groups: Vec<(HeaderBits, Vec<FlowEntry>)>) -> FlowTable {
    let groups = groups
        .into_iter()
        .map(|(mask, entries)| FlowGroup { mask, entries })
        .collect();
    FlowTable {
        id,
        miss: None,
        groups,
    }
}

pub fn all_to(tirn: u32) -> Steering {
    let any = [0; 64];
    let root = table(1, vec![(any, vec![entry(any, to_tir(tirn))])]);
    Steering {
        root: Some(1),
        tables: vec![root],
    }
}

/// A frame of `len` bytes whose contents come from `seed`.
pub fn frame(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    bytes[..6].copy_from_slice(&MAC);
    // An EtherType of nobody, so that contents mean nothing.
    bytes[12] = 0x88;
    bytes[13] = 0xb5;
    bytes
}

/// A completion queue from the driver's side.
pub struct Cq {
    heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: CqSpec,
    pub consumer: u32,
}

impl Cq {
    fn slot(&self) -> usize {
        let index = (self.consumer & ((1 << self.spec.log_size) - 1)) as usize;
        let entry = 1 << self.spec.log_entry;
        self.at + index * entry + entry - 64
    }

    /// The next completion, when there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let last = self
            .heap
            .word8(self.slot() + 63)
            .unwrap()
            .load(Ordering::Acquire);
        let lap = (self.consumer >> self.spec.log_size & 1) as u8;
        if last & 1 != lap || last >> 4 == 0xf {
            return None;
        }
        let mut bytes = [0; 64];
        self.heap.copy_out(self.slot(), &mut bytes).unwrap();
        self.consumer += 1;
        Some(Cqe::from_bytes(bytes))
    }

    pub fn next(&mut self) -> Cqe {
        let cqe = until("a completion", || self.poll());
        self.publish();
        cqe
    }

    pub fn next_error(&mut self) -> ErrorCqe {
        let cqe = self.next();
        let error = [CqeOpcode::REQ_ERR.0, CqeOpcode::RESP_ERR.0].contains(&cqe.opcode());
        assert!(error, "not an error: {cqe:?}");
        ErrorCqe::from_bytes(*cqe.bytes())
    }

    /// Tells the device what was consumed.
    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at).unwrap();
        word.store(record::cq_consumer(self.consumer), Ordering::Release);
    }

    pub fn write_arm(&self, count: u32) {
        let word = self.heap.word32(self.record_at + 4).unwrap();
        word.store(
            record::cq_arm(count, false, self.consumer),
            Ordering::Release,
        );
    }

    pub fn arm(&self, side: &Side, count: u32) {
        self.write_arm(count);
        let arm = u64::from(count & 3) << 28 | u64::from(self.consumer & 0xff_ffff);
        side.store_doorbell(
            self.spec.uar,
            uar::CQ_ARM,
            arm << 32 | u64::from(self.spec.cqn),
        );
    }
}

/// A send queue from the driver's side.
pub struct Sq {
    heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: SqSpec,
    /// Basic blocks posted.
    pub posted: u16,
}

pub fn bytes(words: [u32; 4]) -> [u8; 16] {
    let mut out = [0; 16];
    for (chunk, word) in out.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    out
}

impl Sq {
    /// Writes a WQE of whole segments; gives its index.
    pub fn wqe(&mut self, segments: &[u8]) -> u16 {
        assert_eq!(segments.len() % 16, 0);
        let index = self.posted;
        let mask = (1usize << self.spec.log_size) - 1;
        for (block, part) in segments.chunks(64).enumerate() {
            let at = self.at + ((usize::from(index) + block) & mask) * 64;
            self.heap.copy_in(at, part).unwrap();
        }
        self.posted = index.wrapping_add(segments.len().div_ceil(64) as u16);
        index
    }

    pub fn control(&self, opcode: SendOpcode, segments: usize, flags: CtrlFlags) -> [u8; 16] {
        bytes(CtrlSeg::words(
            0,
            self.posted,
            opcode,
            self.spec.sqn,
            segments as u8,
            flags,
        ))
    }

    /// A SEND with an inline header and data segments `(bytes, key, address)`, completed always.
    pub fn send(&mut self, inline: &[u8], data: &[(u32, u32, u64)]) -> u16 {
        self.send_with(SendOpcode::SEND, CtrlFlags::CQ_UPDATE, [0; 4], inline, data)
    }

    /// As [`send`](Self::send); `eth` is laid over the Ethernet segment.
    pub fn send_with(
        &mut self,
        opcode: SendOpcode,
        flags: CtrlFlags,
        eth: [u32; 4],
        inline: &[u8],
        data: &[(u32, u32, u64)],
    ) -> u16 {
        let mut body = Vec::new();
        let mut start = [0; 2];
        let head = inline.len().min(2);
        start[..head].copy_from_slice(&inline[..head]);
        let plain = EthSeg::words(
            pollux_prm::wqe::ChecksumFlags::NONE,
            0,
            inline.len() as u16,
            start,
        );
        let eth: Vec<u32> = plain.iter().zip(eth).map(|(a, b)| a | b).collect();
        body.extend(bytes([eth[0], eth[1], eth[2], eth[3]]));
        body.extend(&inline[head..]);
        body.resize(body.len().next_multiple_of(16), 0);
        for (len, key, address) in data {
            body.extend(bytes(DataSeg::words(*len, *key, *address)));
        }
        let mut wqe = self.control(opcode, body.len() / 16 + 1, flags).to_vec();
        wqe.extend(body);
        self.wqe(&wqe)
    }

    /// Writes the doorbell record.
    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at + 4).unwrap();
        word.store(record::counter(self.posted), Ordering::Release);
    }

    /// Stores to the UAR page.
    pub fn ring(&self, side: &Side) {
        self.ring_at(side, uar::SEND);
    }

    pub fn ring_at(&self, side: &Side, offset: usize) {
        side.store_doorbell(self.spec.uar, offset, u64::from(self.spec.sqn) << 8 | 3);
    }
}

/// A receive queue from the driver's side.
pub struct Rq {
    heap: Window,
    pub at: usize,
    pub record_at: usize,
    pub spec: RqSpec,
    pub posted: u16,
    /// Heap offset of the buffer of each WQE, by index in the ring.
    pub buffers: Vec<usize>,
}

impl Rq {
    /// Writes a WQE of data segments `(bytes, key, address)`; `at` is where its first buffer is.
    pub fn post(&mut self, data: &[(u32, u32, u64)], at: usize) {
        let slot = usize::from(self.posted) & ((1 << self.spec.log_size) - 1);
        let stride = 1 << self.spec.log_stride;
        for (segment, (len, key, address)) in data.iter().enumerate() {
            let place = self.at + slot * stride + segment * 16;
            assert!((segment + 1) * 16 <= stride);
            self.heap
                .copy_in(place, &bytes(DataSeg::words(*len, *key, *address)))
                .unwrap();
        }
        if self.buffers.len() <= slot {
            self.buffers.resize(slot + 1, 0);
        }
        self.buffers[slot] = at;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Posts the buffer of a WQE again.
    pub fn repost(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    pub fn publish(&self) {
        let word = self.heap.word32(self.record_at).unwrap();
        word.store(record::counter(self.posted), Ordering::Release);
    }

    /// The frame that a completion is for.
    pub fn bytes(&self, cqe: &Cqe) -> Vec<u8> {
        assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND.0, "{cqe:?}");
        let slot = usize::from(cqe.wqe_counter()) & ((1 << self.spec.log_size) - 1);
        self.heap
            .to_vec(self.buffers[slot], cqe.byte_cnt() as usize)
            .unwrap()
    }

    /// Takes the next frame.
    pub fn receive(&self, cq: &mut Cq) -> Vec<u8> {
        let cqe = cq.next();
        self.bytes(&cqe)
    }
}
