//! A software adapter in this process or in another, and ports on it.

mod adapters;
pub mod child;
pub mod control;

use adapters::Adapters;
use child::{DeviceProcess, Way};
use pollux_bus::{BusError, Function, local};
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::{Burst, PageChoice, Pool, PoolConfig};
use pollux_mlx5::{OpenOptions, Port, PortConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Local,
    Process,
    VfioUser,
    /// Where adapters are bound to vfio-pci; see [`adapters`].
    Vfio,
}

impl Backing {
    /// How many there are everywhere.
    pub const COUNT: usize = 3;

    /// Tests that open a port for each command in turn take so many at a stride: an emulated CPU
    /// needs a second for what takes milliseconds elsewhere.
    pub fn stride(self) -> usize {
        if self == Self::Vfio { 3 } else { 1 }
    }
}

/// One test per backing.
#[macro_export]
macro_rules! on_every_backing {
    ($($name:ident)*) => {
        mod in_this_process {
            $(#[test] fn $name() { super::$name($crate::harness::Backing::Local); })*
        }
        mod in_another_process {
            $(#[test] fn $name() { super::$name($crate::harness::Backing::Process); })*
        }
        mod over_vfio_user {
            $(#[test] fn $name() { super::$name($crate::harness::Backing::VfioUser); })*
        }
        mod over_vfio {
            $(
                #[test]
                #[ignore = "needs adapters bound to vfio-pci: scripts/guest vfio"]
                fn $name() { super::$name($crate::harness::Backing::Vfio); }
            )*
        }
    };
}

/// The device's side of the test binary, started again as another process.
#[test]
#[ignore = "the device's process of other tests, not a test"]
fn device_process() {
    child::serve(emulator);
}

/// Longest that anything may take before a test calls it hung; never a measure of speed.
pub const HANG: Duration = Duration::from_secs(100);

pub fn emulator(settings: &str) -> Arc<Emulator> {
    // Tests share few CPUs with many others.
    let pairs = settings.split(',').chain(["idle=yield"]);
    let pairs = pairs.filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
    Arc::new(Emulator::new(EmulatorConfig::from_keys(pairs).unwrap()).unwrap())
}

enum Play {
    Here(Arc<Emulator>),
    There(DeviceProcess),
    Bound(Adapters),
}

/// A software adapter.
pub struct Rig {
    play: Play,
}

/// Key and value of an answer line.
pub struct Answer(String);

impl Answer {
    pub fn get(&self, key: &str) -> u64 {
        let text = self.text(key);
        text.parse()
            .unwrap_or_else(|_| panic!("{key} in {}", self.0))
    }

    pub fn text(&self, key: &str) -> &str {
        self.0
            .split_whitespace()
            .find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key))
            .unwrap_or_else(|| panic!("{key} in {}", self.0))
            .1
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Rig {
    /// An adapter with these keys of a device string.
    pub fn new(backing: Backing, settings: &str) -> Self {
        let play = match backing {
            Backing::Local => Play::Here(emulator(settings)),
            Backing::Process => Play::There(DeviceProcess::start(Way::Messages, settings)),
            Backing::VfioUser => Play::There(DeviceProcess::start(Way::VfioUser, settings)),
            Backing::Vfio => Play::Bound(Adapters::with(settings)),
        };
        Self { play }
    }

    /// Has the device's side do one line of [`control`].
    pub fn ask(&self, line: &str) -> String {
        match &self.play {
            Play::Here(emulator) => control::run(emulator, line),
            Play::There(process) => process.ask(line),
            Play::Bound(adapters) => adapters.ask(line),
        }
    }

    pub fn report(&self, function: usize) -> Answer {
        Answer(self.ask(&format!("report {function}")))
    }

    pub fn wire(&self, function: usize) -> Answer {
        Answer(self.ask(&format!("wire {function}")))
    }

    pub fn connect(&self, function: usize) -> Result<Arc<dyn Function>, BusError> {
        match &self.play {
            Play::Here(emulator) => local::connect(emulator.function(function).unwrap()),
            Play::There(process) => process.connect(function),
            Play::Bound(adapters) => adapters.connect(function),
        }
    }

    /// Opens a port.
    pub fn open(&self, function: usize) -> Result<Port, pollux_mlx5::Error> {
        self.open_within(function, HANG)
    }

    /// Opens a port whose commands have this deadline.
    pub fn open_within(
        &self,
        function: usize,
        command_deadline: Duration,
    ) -> Result<Port, pollux_mlx5::Error> {
        let options = OpenOptions {
            number: function as u16,
            pages: PageChoice::Ordinary,
            command_deadline,
            ..OpenOptions::default()
        };
        Port::open(self.connect(function)?, options)
    }

    /// Ends the device's process at once.
    pub fn kill_process(&self) {
        match &self.play {
            Play::Here(_) => panic!("the device is in this process"),
            Play::Bound(_) => panic!("the device is not ours to kill"),
            Play::There(process) => process.kill(),
        }
    }

    /// Checks that a function's firmware holds nothing of a driver.
    pub fn assert_clean(&self, function: usize) {
        let report = self.report(function);
        let left = (
            report.get("connected"),
            report.get("pages"),
            report.get("objects"),
        );
        assert_eq!(left, (0, 0, 0), "{report}");
        assert_eq!(report.get("undelivered"), 0, "{report}");
        assert_eq!(report.get("stray"), 0, "{report}");
    }
}

/// A pool for tests: ordinary pages, no caches.
pub fn pool(count: usize) -> Pool {
    pool_of(count, 2048)
}

pub fn pool_of(count: usize, data_room: usize) -> Pool {
    let config = PoolConfig::new("test", count).data_room(data_room).cache(0);
    Pool::new(&config.page(PageChoice::Ordinary)).unwrap()
}

/// A plain configuration: one queue each way.
pub fn one_queue(pool: &Pool, descriptors: usize) -> PortConfig {
    queues(pool, 1, descriptors)
}

/// As many queues each way.
pub fn queues(pool: &Pool, count: usize, descriptors: usize) -> PortConfig {
    let rx = RxQueueConfig {
        descriptors,
        pool: pool.clone(),
    };
    let tx = TxQueueConfig {
        descriptors,
        chains: true,
    };
    PortConfig {
        rx: vec![rx; count],
        tx: vec![tx; count],
        promiscuous: true,
        ..PortConfig::default()
    }
}

/// Turns until the condition holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: still not so");
        std::thread::yield_now();
    }
}

/// A source address for frames that come from nowhere in particular.
pub const ANYBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x99];

/// A frame for everybody.
pub fn plain(number: u32, len: usize) -> Vec<u8> {
    frame([0xff; 6], ANYBODY, len, number)
}

/// An Ethernet frame: destination, source, a type that no hardware looks into, and a payload that
/// tells `number`.
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

/// The number that [`frame`] put in.
pub fn number_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[14..18].try_into().unwrap())
}

/// Puts frames into buffers of a pool.
pub fn load(pool: &Pool, frames: &[Vec<u8>]) -> Burst {
    let mut burst = Burst::with_capacity(frames.len().max(1));
    for bytes in frames {
        let mut mbuf = pool.alloc().expect("the pool is large enough");
        assert!(mbuf.extend_from_slice(bytes), "the frame fits");
        assert!(burst.push(mbuf).is_ok(), "the burst has room");
    }
    burst
}

/// Sends frames, all of them, giving the device time.
pub fn send(queue: &mut TxQueue, pool: &Pool, frames: &[Vec<u8>]) {
    for chunk in frames.chunks(32) {
        let mut burst = load(pool, chunk);
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
        frames.extend(burst.drain().map(|mbuf| mbuf.to_vec()));
        frames.len() >= count
    });
    frames
}
