//! An emulator with ports on it, packets, and waiting.

use pollux_emu::data::IdlePolicy;
use pollux_emu::wire::{WireConfig, WireKind};
use pollux_emu::{Emulator, EmulatorConfig, FunctionConfig, Model};
use pollux_mempool::{Burst, PageChoice, Pool, PoolConfig};
use pollux_mlx5::{OpenOptions, Port, PortConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use std::time::{Duration, Instant};

/// How long anything may take before a test is called broken.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Functions of one model, joined in pairs (0 and 1, 2 and 3), or each to itself.
pub fn emulator(model: Model, ports: usize) -> Emulator {
    emulator_with(model, ports, |_| {})
}

/// As [`emulator`], with a change to each function.
pub fn emulator_with(model: Model, ports: usize, change: impl Fn(&mut FunctionConfig)) -> Emulator {
    let function = |number: usize| {
        let kind = match ports {
            1 => WireKind::Loop,
            _ => WireKind::Pair { peer: number ^ 1 },
        };
        let wire = WireConfig { kind, lossy: false };
        let mut function = FunctionConfig {
            model,
            wire,
            ..FunctionConfig::default()
        };
        change(&mut function);
        function
    };
    let config = EmulatorConfig {
        functions: (0..ports).map(function).collect(),
        idle: IdlePolicy::Yield,
        ..EmulatorConfig::default()
    };
    Emulator::new(config).unwrap()
}

pub fn options() -> OpenOptions {
    OpenOptions {
        pages: PageChoice::Ordinary,
        command_deadline: LIMIT,
        ..OpenOptions::default()
    }
}

/// Opens a function with ordinary pages.
pub fn open(emulator: &Emulator, number: usize) -> Port {
    try_open(emulator, number, options()).unwrap()
}

pub fn try_open(
    emulator: &Emulator,
    number: usize,
    options: OpenOptions,
) -> Result<Port, pollux_mlx5::Error> {
    let function = pollux_bus::local::connect(emulator.function(number).unwrap())?;
    Port::open(function, options)
}

pub fn pool(count: usize) -> Pool {
    Pool::new(
        &PoolConfig::new("packets", count)
            .page(PageChoice::Ordinary)
            .cache(0),
    )
    .unwrap()
}

/// `queues` pairs of queues of 64 descriptors.
pub fn config(pool: &Pool, queues: usize) -> PortConfig {
    PortConfig {
        rx: vec![
            RxQueueConfig {
                descriptors: 64,
                pool: pool.clone()
            };
            queues
        ],
        tx: vec![
            TxQueueConfig {
                descriptors: 64,
                chains: true
            };
            queues
        ],
        ..PortConfig::default()
    }
}

/// Nothing is left on a function whose port is closed.
pub fn assert_empty(emulator: &Emulator, number: usize) {
    let report = emulator.report(number).unwrap();
    assert_eq!(report.live_objects(), 0, "{:?}", report.objects);
    assert_eq!(report.firmware_pages, 0);
    assert_eq!((report.undelivered, report.stray_doorbells), (0, 0));
}

/// Waits for something that happens on another thread; the limit only ends a broken test.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

/// An Ethernet frame: destination, source, type and a payload that tells `number`.
pub fn frame(to: [u8; 6], from: [u8; 6], len: usize, number: u32) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    let mut fill = number;
    while bytes.len() < len {
        fill = fill.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((fill >> 24) as u8);
    }
    bytes.truncate(len);
    bytes
}

/// Sends frames, all of them, giving the device time.
pub fn send(queue: &mut TxQueue, pool: &Pool, frames: &[Vec<u8>]) {
    let mut burst = Burst::with_capacity(32);
    for chunk in frames.chunks(32) {
        for bytes in chunk {
            let mut mbuf = pool.alloc().expect("a buffer");
            assert!(mbuf.extend_from_slice(bytes));
            assert!(burst.push(mbuf).is_ok());
        }
        until("room in the ring", || {
            queue.burst(&mut burst);
            burst.is_empty()
        });
    }
}

/// Receives `count` frames.
pub fn receive(queue: &mut RxQueue, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut burst = Burst::with_capacity(32);
    until("frames to arrive", || {
        queue.burst(&mut burst);
        for mbuf in burst.drain() {
            frames.push(mbuf.to_vec());
        }
        frames.len() >= count
    });
    frames
}
