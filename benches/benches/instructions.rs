//! Instructions of the data path and its parts, counted by valgrind under gungraun: the same on a
//! busy machine as on a quiet one. `scripts/bench instructions` runs it and compares the counts with
//! the recorded ones; only the functions below are counted, not what prepares and checks them.
//!
//! With `POLLUX_SABOTAGE` set, every way is the slow one: no caches, several threads allowed on
//! every side of a ring, a doorbell and a fence per packet.
#![forbid(unsafe_code)]
#![allow(missing_docs)] // of what the macros make
#![allow(clippy::expect_used, clippy::panic)] // a benchmark that does not do its work must not end well

use gungraun::prelude::*;
use pollux_benches::datapath::{DataPath, ROUND, Setting};
use pollux_mempool::ring::{Consumer, Mode, Multi, Producer, Ring, Single};
use pollux_mempool::{Burst, InFlight, Lcore, LcoreGuard, Pool, PoolConfig};
use std::hint::black_box;

/// Values or buffers that one counted call moves, in batches of 32; a round of [`DataPath`] too.
const MOVED: usize = ROUND;
const BATCH: usize = 32;
/// Buffers of the pool.
const BUFFERS: usize = 8192;

fn sabotage() -> bool {
    std::env::var_os("POLLUX_SABOTAGE").is_some()
}

struct Path {
    path: DataPath,
    sent: usize,
    _lcore: LcoreGuard,
}

fn path(burst: usize, inline_l2: bool) -> Path {
    let lcore = Lcore::register().expect("a free lcore slot");
    let setting = Setting {
        inline_l2,
        sabotage: sabotage(),
    };
    let mut path = DataPath::new(burst, setting).expect("memory for rings and pool");
    // Until every buffer has come by and all caches are as they stay.
    for _ in 0..24 {
        path.prepare().expect("a clean round");
        assert_eq!(path.forward(), ROUND);
    }
    path.prepare().expect("a clean round");
    Path {
        path,
        sent: 0,
        _lcore: lcore,
    }
}

fn check_path(mut moved: Path) {
    assert_eq!(moved.sent, ROUND, "all packets of the round are sent");
    moved.path.prepare().expect("sent whole and in order");
}

#[library_benchmark(setup = path, teardown = check_path)]
#[bench::b1(1, false)]
#[bench::b8(8, false)]
#[bench::b32(32, false)]
#[bench::b64(64, false)]
#[bench::inline_b32(32, true)]
fn rxtx(mut path: Path) -> Path {
    path.sent = black_box(path.path.forward());
    path
}

struct Held {
    handles: InFlight,
    packets: Burst,
    pool: Pool,
    _lcore: LcoreGuard,
}

fn pool(_: ()) -> Held {
    let lcore = Lcore::register().expect("a free lcore slot");
    let cache = if sabotage() { 0 } else { 256 };
    let mut held = Held {
        handles: InFlight::new(BATCH).expect("memory"),
        packets: Burst::with_capacity(BATCH),
        pool: Pool::new(&PoolConfig::new("packets", BUFFERS).cache(cache)).expect("memory"),
        _lcore: lcore,
    };
    for _ in 0..64 {
        raw(&mut held);
        packets(&mut held);
    }
    held
}

fn raw(held: &mut Held) {
    assert!(
        held.handles.fill_from(&held.pool, BATCH),
        "the pool is empty"
    );
    held.handles.free_oldest(BATCH);
}

fn packets(held: &mut Held) {
    assert!(
        held.pool.alloc_bulk(&mut held.packets, BATCH),
        "the pool is empty"
    );
    held.packets.free_front(BATCH);
}

fn check_pool(held: Held) {
    assert_eq!(held.pool.available(), BUFFERS, "all are back");
}

#[library_benchmark(setup = pool, teardown = check_pool)]
#[bench::n32(())]
fn pool_raw(mut held: Held) -> Held {
    for _ in 0..MOVED / BATCH {
        raw(black_box(&mut held));
    }
    held
}

#[library_benchmark(setup = pool, teardown = check_pool)]
#[bench::n32(())]
fn pool_packet(mut held: Held) -> Held {
    for _ in 0..MOVED / BATCH {
        packets(black_box(&mut held));
    }
    held
}

struct Sides<P: Mode, C: Mode> {
    put: Producer<usize, P, C>,
    take: Consumer<usize, P, C>,
    values: [usize; BATCH],
}

impl<P: Mode, C: Mode> Sides<P, C> {
    fn new() -> Self {
        let (put, take) = Ring::<usize, P, C>::with_capacity(1024)
            .expect("memory")
            .split();
        let mut sides = Self {
            put,
            take,
            values: std::array::from_fn(|k| k),
        };
        sides.pass();
        sides
    }

    fn pass(&mut self) {
        for _ in 0..MOVED / BATCH {
            let values = black_box(&mut self.values);
            assert!(self.put.enqueue_bulk(values), "the ring is full");
            assert!(self.take.dequeue_bulk(values), "the ring is empty");
        }
    }
}

/// A ring by how many threads may be on its sides.
enum Sort {
    One(Sides<Single, Single>),
    Many(Sides<Multi, Multi>),
}

impl Sort {
    fn values(&self) -> &[usize] {
        match self {
            Self::One(sides) => &sides.values,
            Self::Many(sides) => &sides.values,
        }
    }
}

fn ring(one: bool) -> Sort {
    if one && !sabotage() {
        Sort::One(Sides::new())
    } else {
        Sort::Many(Sides::new())
    }
}

fn check_ring(sort: Sort) {
    assert!(sort.values().iter().copied().eq(0..BATCH), "in order");
}

#[library_benchmark(setup = ring, teardown = check_ring)]
#[bench::spsc_n32(true)]
#[bench::mpmc_n32(false)]
fn ring_pass(mut sort: Sort) -> Sort {
    match &mut sort {
        Sort::One(sides) => sides.pass(),
        Sort::Many(sides) => sides.pass(),
    }
    sort
}

library_benchmark_group!(
    name = instructions,
    benchmarks = [rxtx, pool_raw, pool_packet, ring_pass]
);

main!(
    config = LibraryBenchmarkConfig::default().pass_through_env("POLLUX_SABOTAGE"),
    library_benchmark_groups = instructions
);
