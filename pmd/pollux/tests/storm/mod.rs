//! A port whose firmware does with pages what a test asks, over page memory that nobody touches:
//! driver and emulator in one process.
#![allow(dead_code)] // each test program uses its part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use pollux_bus::local;
use pollux_emu::faults::{FaultInjector, PageDemand, PageOwner};
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::PageChoice;
use pollux_mlx5::{
    FunctionKey, FunctionPages, OpenOptions, PageBacking, PageOptions, PageReport, Port,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub const MANAGE_PAGES: u16 = 0x108;

pub struct Storm {
    pub emulator: Emulator,
    pub faults: FaultInjector,
    pub port: Port,
    /// Pages that firmware holds when nothing else is asked for.
    pub base: usize,
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn options() -> OpenOptions {
    OpenOptions {
        pages: PageChoice::Ordinary,
        firmware_pages: PageOptions {
            backing: PageBacking::Untouched,
            ..PageOptions::default()
        },
        ..OpenOptions::default()
    }
}

impl Storm {
    pub fn new(options: OpenOptions) -> Self {
        Self::with("wire=null", options)
    }

    pub fn with(settings: &str, options: OpenOptions) -> Self {
        let pairs = settings
            .split(',')
            .map(|pair| pair.split_once('=').unwrap());
        let config = EmulatorConfig::from_keys(pairs).unwrap();
        let emulator = Emulator::new(config).unwrap();
        let function = local::connect(emulator.function(0).unwrap()).unwrap();
        let faults = emulator.faults(0).unwrap();
        let port = Port::open(function, options).unwrap();
        let base = port.pages().held;
        Self {
            emulator,
            faults,
            port,
            base,
        }
    }

    pub fn ask(&self, demand: PageDemand) {
        self.faults.page_request(demand);
    }

    pub fn theirs(&self) -> BTreeMap<PageOwner, u64> {
        self.emulator.report(0).unwrap().pages_by_function
    }

    /// Waits until nothing is wanted or offered any more, and nothing happens for a while; the two
    /// ledgers are then the same.
    pub fn settle(&self) {
        let quiet = || {
            let report = self.port.page_report();
            let still = report
                .functions
                .iter()
                .all(|f| f.target == 0 && f.wanted == 0);
            let agreed = still && agree(&report, &self.theirs());
            agreed.then_some(report.counts.steps)
        };
        until("both agree", || {
            let before = quiet();
            std::thread::sleep(Duration::from_millis(20));
            before.is_some() && quiet() == before
        });
    }

    pub fn until_held(&self, pages: usize) {
        until("pages", || self.port.pages().held == pages);
        self.settle();
    }

    /// Closes, and nothing is left anywhere.
    pub fn end(self) {
        let closed = self.port.close().unwrap();
        assert_eq!((closed.pages_kept, closed.reset), (0, false));
        assert_eq!(self.emulator.report(0).unwrap().firmware_pages, 0);
    }
}

/// Whether both ledgers say the same. Of pages that are doubtful firmware may know better.
fn agree(report: &PageReport, theirs: &BTreeMap<PageOwner, u64>) -> bool {
    let doubtful = |of: &FunctionPages| (of.outstanding - of.doubtful) as u64;
    let ours = |f: &FunctionPages| {
        let theirs = theirs.get(&owner(f.key)).copied().unwrap_or(0);
        (doubtful(f)..=f.outstanding as u64).contains(&theirs)
    };
    let known = |of: &PageOwner| report.functions.iter().any(|f| owner(f.key) == *of);
    report.functions.iter().all(ours) && theirs.keys().all(known)
}

pub fn ledger(report: &PageReport) -> BTreeMap<PageOwner, u64> {
    report
        .functions
        .iter()
        .filter(|f| f.outstanding > 0)
        .map(|f| (owner(f.key), f.outstanding as u64))
        .collect()
}

pub fn owner(key: FunctionKey) -> PageOwner {
    PageOwner {
        function: key.function,
        embedded: key.embedded,
    }
}

pub fn function(function: u16, embedded: bool) -> PageOwner {
    PageOwner { function, embedded }
}
