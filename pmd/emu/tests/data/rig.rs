//! The hand-made driver: memory, queues and doorbells of a function.

pub use crate::queues::{Cq, Rq, Sq};
use pollux_bus::{HostMemory, Iova};
use pollux_emu::data::steering::*;
use pollux_emu::data::*;
use pollux_emu::wire::{WireConfig, WireKind};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use pollux_prm::wqe::uar;
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
    /// Memory is mapped a page at a time, as a guest behind a virtual IOMMU does.
    pub piecemeal: bool,
}

impl Setup {
    pub fn new(wires: Vec<WireConfig>) -> Self {
        Self {
            strict: true,
            idle: IdlePolicy::Yield,
            features: Features::default(),
            wires,
            piecemeal: false,
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
        let piecemeal = self.piecemeal;
        let sides = parts
            .into_iter()
            .enumerate()
            .map(|(number, (uars, events))| {
                let port = plane.port(number).unwrap();
                Side::new(port, uars, events, number as u64, piecemeal)
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
    fn new(
        port: DataPort,
        uars: Window,
        events: Receiver<DataEvent>,
        number: u64,
        piecemeal: bool,
    ) -> Self {
        let heap = segment("heap", MEMORY).whole();
        let base = 0x1_0000_0000 * (number + 1);
        let memory = HostMemory::new();
        let piece = if piecemeal { 4096 } else { MEMORY };
        for at in (0..MEMORY).step_by(piece) {
            let window = heap.window(at, piece).unwrap();
            memory.map(Iova(base + at as u64), window).unwrap();
        }
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
            moderation: Moderation::default(),
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
            transmits: true,
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
