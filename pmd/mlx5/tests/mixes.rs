//! Any mix of traffic, errors, empty pools, full rings and recoveries: order is kept, nothing is
//! lost or doubled, and at the end every buffer is home.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod device;

use device::{Entry, Known, Rx, Tx, TxSetting, frame, know, receive_queue, send_queue};
use pollux_mempool::{Burst, Mbuf, Pool, PoolConfig};
use pollux_mlx5::gate::{Gate, Phase};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The device receives good packets.
    Arrive(u8),
    /// It reports a length that no buffer has.
    BadLength,
    /// It reports an error of one packet.
    BadPacket,
    Receive,
    Send,
    /// The application keeps some packets, makes one of two, or frees what it kept.
    Keep(u8),
    Join,
    Free(u8),
    /// The device sends what the doorbell told it.
    Transmit,
    /// It writes completions that it has held back, and whether it holds them from now on.
    Complete(u8, bool),
    FailReceive,
    FailSend,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..40u8).prop_map(Step::Arrive),
        1 => Just(Step::BadLength),
        1 => Just(Step::BadPacket),
        6 => Just(Step::Receive),
        6 => Just(Step::Send),
        1 => (1..30u8).prop_map(Step::Keep),
        2 => Just(Step::Join),
        1 => (1..60u8).prop_map(Step::Free),
        5 => Just(Step::Transmit),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(n, hold)| Step::Complete(n, hold)),
        1 => Just(Step::FailReceive),
        1 => Just(Step::FailSend),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    rx: usize,
    tx: usize,
    buffers: usize,
    cache: usize,
    chunks: usize,
    burst: usize,
    inline_l2: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        0..8u32,
        0..8u32,
        1..400usize,
        0..64usize,
        1..5usize,
        1..65usize,
        any::<bool>(),
    )
        .prop_map(|(rx, tx, buffers, cache, chunks, burst, inline_l2)| Setup {
            rx: 1 << rx,
            tx: 1 << tx,
            buffers,
            cache: cache.min(buffers),
            chunks: chunks.min(buffers),
            burst,
            inline_l2,
        })
}

struct World {
    setup: Setup,
    known: Known,
    rx: Rx,
    tx: Tx,
    packets: Burst,
    kept: Burst,
    next: u32,
    /// Frames that the driver must hand over next, and that the device must send next.
    arriving: VecDeque<Vec<u8>>,
    leaving: VecDeque<Vec<u8>>,
    bad: u64,
    refused: u64,
}

impl World {
    fn new(setup: Setup) -> Self {
        let config = PoolConfig::new("packets", setup.buffers)
            .cache(setup.cache)
            .chunks(setup.chunks)
            .data_room(256);
        let known = know(Pool::new(&config).unwrap());
        let tx = TxSetting {
            descriptors: setup.tx,
            inline_l2: setup.inline_l2,
            ..TxSetting::default()
        };
        Self {
            rx: receive_queue(&known, setup.rx),
            tx: send_queue(&known, tx),
            packets: Burst::with_capacity(setup.burst),
            kept: Burst::with_capacity(512),
            known,
            setup,
            next: 0,
            arriving: VecDeque::new(),
            leaving: VecDeque::new(),
            bad: 0,
            refused: 0,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Arrive(n) => {
                for _ in 0..n {
                    let frame = frame(self.next, 60 + self.next as usize % 100);
                    if self.rx.device.deliver(&frame, Entry::default()) {
                        self.arriving.push_back(frame);
                        self.next += 1;
                    }
                }
            }
            Step::BadLength if self.rx.device.posted() > 0 => {
                let cqe = self.rx.device.good(257, Entry::default());
                self.rx.device.push(&cqe);
                self.bad += 1;
            }
            Step::BadPacket if self.rx.device.posted() > 0 => {
                let cqe = self.rx.device.error(0x01, 0);
                self.rx.device.push(&cqe);
                self.bad += 1;
            }
            Step::Receive => self.receive(),
            Step::Send => self.send(),
            Step::Keep(n) => {
                self.packets.move_to(&mut self.kept, n.into());
            }
            Step::Join if self.packets.len() > 1 => {
                let mut parts = self.packets.drain();
                let mut head = parts.next().unwrap();
                head.push_segment(parts.next().unwrap()).unwrap();
                let rest: Vec<_> = parts.by_ref().collect();
                drop(parts);
                for mbuf in [head].into_iter().chain(rest) {
                    self.packets.push(mbuf).unwrap();
                }
            }
            Step::Free(n) => self.kept.free_front(n.into()),
            Step::Transmit => {
                for sent in self.tx.device.turn() {
                    assert_eq!(Some(sent.bytes), self.leaving.pop_front());
                }
                assert!(!self.tx.device.failed);
            }
            Step::Complete(n, hold) => {
                self.tx.device.hold = hold;
                self.tx.device.complete(n.into());
            }
            Step::FailReceive if self.rx.device.posted() > 0 => {
                let cqe = self.rx.device.error(0x04, 0x51);
                self.rx.device.push(&cqe);
                while self.rx.gate.phase() == Phase::Running {
                    self.packets.clear();
                    self.receive();
                }
                assert!(
                    self.arriving.is_empty(),
                    "what came before the error is good"
                );
                recover(
                    &self.rx.gate,
                    || {
                        self.rx.device.wqe = 0;
                    },
                    || {
                        assert_eq!(self.rx.queue.as_mut().unwrap().burst(&mut self.packets), 0);
                    },
                );
            }
            Step::FailSend if self.tx.device.behind() => {
                self.tx.device.fail(0x02, 0x68);
                self.send();
                // Whatever the device has not sent by now it never will.
                self.leaving.clear();
                let tx = &mut self.tx;
                let mut none = Burst::with_capacity(1);
                recover(
                    &tx.gate,
                    || tx.device.reset(),
                    || {
                        assert_eq!(tx.queue.as_mut().unwrap().burst(&mut none), 0);
                    },
                );
                assert_eq!(tx.pending(), 0);
            }
            Step::BadLength | Step::BadPacket | Step::Join | Step::FailReceive | Step::FailSend => {
            }
        }
        self.count();
    }

    fn receive(&mut self) {
        let before = self.packets.len();
        let n = self.rx.burst(&mut self.packets);
        assert_eq!(self.packets.len(), before + n);
        for mbuf in &self.packets.as_slice()[before..] {
            assert_eq!(Some(mbuf.to_vec()), self.arriving.pop_front());
        }
    }

    fn send(&mut self) {
        // The longest WQE for which a ring of this size finds room, in segments.
        let size = self.setup.tx;
        let most = ((size - (size / 4).clamp(1, 32) + 1) * 4).min(63);
        let headers = if self.setup.inline_l2 { 3 } else { 2 };
        let given: Vec<_> = self
            .packets
            .iter()
            .map(|mbuf| (mbuf.to_vec(), usize::from(mbuf.nb_segs()) + headers))
            .collect();
        let n = self.tx.burst(&mut self.packets);
        assert_eq!(self.packets.len(), given.len() - n);
        for (bytes, segments) in given.into_iter().take(n) {
            if segments <= most && bytes.len() <= 1518 {
                self.leaving.push_back(bytes);
            } else {
                self.refused += 1;
            }
        }
        assert_eq!(self.tx.counters.refused.get(), self.refused);
    }

    /// Every buffer is in exactly one place.
    fn count(&self) {
        let buffers = |burst: &Burst| {
            burst
                .iter()
                .map(|m| usize::from(m.nb_segs()))
                .sum::<usize>()
        };
        let outside = self.known.pool.in_use();
        let elsewhere = buffers(&self.packets) + buffers(&self.kept) + self.rx.posted();
        assert!(outside >= elsewhere + self.tx.pending());
        if self.tx.pending() == 0 {
            assert_eq!(outside, elsewhere);
        }
        assert!(self.rx.posted() <= self.setup.rx);
        assert!(self.rx.counters.errors.get() <= self.bad);
        assert_eq!(self.rx.counters.lies.get() + self.tx.counters.lies.get(), 0);
    }

    fn end(mut self) {
        while self.rx.counters.errors.get() < self.bad || !self.arriving.is_empty() {
            self.packets.clear();
            self.receive();
        }
        drop((self.packets, self.kept));
        drop(self.rx.queue.take());
        drop(self.tx.queue.take());
        let rx = self.rx.home.recv().unwrap();
        let tx = self.tx.home.recv().unwrap();
        drop((rx, tx));
        assert_eq!(self.known.pool.in_use(), 0);
        self.known.pool.check().unwrap();
    }
}

/// What the control thread does about a failed queue, with `burst` as the lcore's part.
fn recover(gate: &Gate, reset: impl FnOnce(), mut burst: impl FnMut()) {
    burst();
    assert_eq!(gate.phase(), Phase::Failed);
    reset();
    assert!(gate.was_reset());
    burst();
    assert!(gate.resume());
    burst();
    assert_eq!(gate.phase(), Phase::Running);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_has_one_place(setup in setup(), steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(setup);
        for step in steps {
            world.run(step);
        }
        world.end();
    }
}

/// A buffer that others still show goes home when the last of them is gone, not when it was sent.
#[test]
fn a_shared_buffer_outlives_its_sending() {
    let mut world = World::new(Setup {
        rx: 8,
        tx: 4,
        buffers: 64,
        cache: 8,
        chunks: 1,
        burst: 8,
        inline_l2: false,
    });
    world.run(Step::Arrive(4));
    world.run(Step::Receive);
    let copies: Vec<Mbuf> = world
        .packets
        .iter()
        .map(|m| m.clone_ref().unwrap())
        .collect();
    let held = world.known.pool.in_use();
    for _ in 0..3 {
        world.send();
        assert_eq!(world.tx.device.turn().len(), world.leaving.len());
        world.leaving.clear();
    }
    assert!(world.packets.is_empty());
    assert!(world.known.pool.in_use() < held + 4);
    for copy in &copies {
        assert_eq!(copy.pkt_len(), copy.data().len());
    }
    drop(copies);
    world.end();
}
