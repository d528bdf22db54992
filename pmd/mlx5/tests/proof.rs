//! Proofs about the data path: a million polls with traffic allocate nothing and make no system
//! call. Errors, refused packets, an empty pool and recovery are part of the traffic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod device;
mod sandbox;

use device::{Entry, Known, Rx, Tx, TxSetting, frame, know, receive_queue, send_queue};
use pollux_mempool::{Burst, Lcore, LcoreGuard, Mbuf, Pool, PoolConfig};
use pollux_mlx5::gate::Phase;
use sandbox::{Ended, allocator_calls, forbid_system_calls, in_child};

#[global_allocator]
static ALLOCATOR: sandbox::Counting = sandbox::Counting;

const POLLS: u32 = 1_000_000;

/// Queues that are forwarded between, with everything allocated.
struct Forwarder {
    known: Known,
    rx: Rx,
    tx: Tx,
    packets: Burst,
    held: Burst,
    frame: Vec<u8>,
    sent: u64,
    _lcore: LcoreGuard,
}

impl Forwarder {
    fn new(inline_l2: bool) -> Self {
        let lcore = Lcore::register().unwrap();
        let pool = Pool::new(&PoolConfig::new("packets", 700).cache(64).chunks(3)).unwrap();
        let known = know(pool);
        Self {
            rx: receive_queue(&known, 256),
            tx: send_queue(
                &known,
                TxSetting {
                    descriptors: 256,
                    inline_l2,
                    ..TxSetting::default()
                },
            ),
            known,
            packets: Burst::with_capacity(32),
            held: Burst::with_capacity(512),
            frame: frame(1, 60),
            sent: 0,
            _lcore: lcore,
        }
    }

    /// One turn of device and driver.
    fn poll(&mut self, turn: u32) {
        for k in 0..turn % 9 {
            match turn.wrapping_mul(8).wrapping_add(k) % 509 {
                // A length that no buffer has; an error of one packet.
                7 if self.rx.device.posted() > 0 => {
                    let cqe = self.rx.device.good(1 << 20, Entry::default());
                    self.rx.device.push(&cqe);
                }
                8 if self.rx.device.posted() > 0 => {
                    let cqe = self.rx.device.error(0x11, 0);
                    self.rx.device.push(&cqe);
                }
                _ => {
                    self.rx.device.deliver(&self.frame, Entry::default());
                }
            }
        }
        self.rx.burst(&mut self.packets);
        match turn % 97 {
            // Two packets become one of two buffers.
            3 if self.packets.len() > 1 => {
                let mut head = self.packets.pop_front().unwrap();
                let tail = self.packets.pop_front().unwrap();
                Mbuf::push_segment(&mut head, tail).unwrap();
                self.packets.push(head).unwrap();
            }
            // A packet without bytes is refused.
            5 => {
                if let Some(mbuf) = self.packets.as_mut_slice().first_mut() {
                    mbuf.reset();
                }
            }
            // Now and then the application keeps what it gets, until the pool is empty.
            _ if turn % 4096 < 400 => {
                self.packets.move_to(&mut self.held, 32);
            }
            _ => self.held.clear(),
        }
        self.tx.burst(&mut self.packets);
        let due = self.rx.gate.failures() * 100_000 < turn;
        if due && self.rx.device.posted() > 0 && self.tx.pending() > 0 {
            self.fail();
        } else {
            self.sent += self.tx.device.swallow();
        }
    }

    /// Both queues fail and recover.
    fn fail(&mut self) {
        let cqe = self.rx.device.error(0x04, 0x51);
        self.rx.device.push(&cqe);
        self.tx.device.fail(0x02, 0x68);
        while self.rx.gate.phase() == Phase::Running {
            self.packets.clear();
            self.rx.burst(&mut self.packets);
        }
        self.tx.burst(&mut self.packets);
        self.rx.device.wqe = 0;
        self.tx.device.reset();
        for gate in [&self.rx.gate, &self.tx.gate] {
            assert!(gate.was_reset());
        }
        self.rx.burst(&mut self.packets);
        self.tx.burst(&mut self.packets);
        for gate in [&self.rx.gate, &self.tx.gate] {
            assert!(gate.resume());
        }
        self.rx.burst(&mut self.packets);
    }

    /// Whether the traffic was what it was meant to be.
    fn saw_everything(&self) -> bool {
        let (rx, tx) = (&self.rx.counters, &self.tx.counters);
        self.sent > u64::from(POLLS)
            && rx.packets.get() > u64::from(POLLS)
            && rx.errors.get() > 1000
            && rx.no_buffer.get() > 1000
            && tx.refused.get() > 1000
            && self.rx.gate.failures() >= 5
            && self.tx.gate.failures() >= 5
            && tx.failed.get() > 0
            && rx.lies.get() + tx.lies.get() == 0
            && self.known.pool.stats().failed > 0
    }
}

#[test]
fn a_million_polls_allocate_nothing() {
    for inline_l2 in [false, true] {
        let mut forwarder = Forwarder::new(inline_l2);
        let before = allocator_calls();
        for turn in 0..POLLS {
            forwarder.poll(turn);
        }
        let calls = allocator_calls() - before;
        assert!(
            forwarder.saw_everything(),
            "{:?} {:?}",
            forwarder.rx.counters,
            forwarder.tx.counters
        );
        assert_eq!(calls, 0);
    }
}

#[test]
fn a_million_polls_make_no_system_call() {
    for inline_l2 in [false, true] {
        let ended = in_child(|| {
            let mut forwarder = Forwarder::new(inline_l2);
            forbid_system_calls().unwrap();
            for turn in 0..POLLS {
                forwarder.poll(turn);
            }
            let good = forwarder.saw_everything();
            // Giving memory back would be a system call.
            std::mem::forget(forwarder);
            good
        });
        assert_eq!(ended.unwrap(), Ended::Exit(0));
    }
}

/// The instruments themselves: each sees what it is there to see.
#[test]
fn the_instruments_see() {
    let before = allocator_calls();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(allocator_calls() - before, 2);
    let quiet = in_child(|| forbid_system_calls().is_ok());
    assert_eq!(quiet.unwrap(), Ended::Exit(0));
    let loud = in_child(|| {
        forbid_system_calls().unwrap();
        std::thread::yield_now();
        true
    });
    assert_eq!(loud.unwrap(), Ended::Signal(libc::SIGSYS));
    assert_eq!(in_child(|| false).unwrap(), Ended::Exit(1));
}
