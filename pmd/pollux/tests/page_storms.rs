//! Firmware that gives and takes pages by the million, lies about them, and dies: driver and
//! emulator in one process, over page memory that nobody touches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use pollux_bus::local;
use pollux_emu::faults::{
    CommandFault, FaultInjector, PageDemand, PageLie, PageManners, PageOwner, Trigger,
};
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::PageChoice;
use pollux_mlx5::{Fault, FunctionKey, OpenOptions, PageBacking, PageOptions, PageReport, Port};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const MANAGE_PAGES: u16 = 0x108;
/// MANAGE_PAGES cannot be answered worse than this: bad parameter.
const BAD_PARAM: u8 = 0x3;

struct Storm {
    emulator: Emulator,
    faults: FaultInjector,
    port: Port,
    /// Pages that firmware holds when nothing else is asked for.
    base: usize,
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn options() -> OpenOptions {
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
    fn new(options: OpenOptions) -> Self {
        Self::with("wire=null", options)
    }

    fn with(settings: &str, options: OpenOptions) -> Self {
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

    fn ask(&self, demand: PageDemand) {
        self.faults.page_request(demand);
    }

    fn theirs(&self) -> BTreeMap<PageOwner, u64> {
        self.emulator.report(0).unwrap().pages_by_function
    }

    /// Waits until nothing is wanted or offered any more, and nothing happens for a while; the two
    /// ledgers are then the same.
    fn settle(&self) {
        let quiet = || {
            let report = self.port.page_report();
            let still = report
                .functions
                .iter()
                .all(|f| f.target == 0 && f.wanted == 0);
            let agreed = still && ledger(&report) == self.theirs();
            agreed.then_some(report.counts.steps)
        };
        until("both agree", || {
            let before = quiet();
            std::thread::sleep(Duration::from_millis(20));
            before.is_some() && quiet() == before
        });
    }

    fn until_held(&self, pages: usize) {
        until("pages", || self.port.pages().held == pages);
        self.settle();
    }

    /// Closes, and nothing is left anywhere.
    fn end(self) {
        let closed = self.port.close().unwrap();
        assert_eq!((closed.pages_kept, closed.reset), (0, false));
        assert_eq!(self.emulator.report(0).unwrap().firmware_pages, 0);
    }
}

fn ledger(report: &PageReport) -> BTreeMap<PageOwner, u64> {
    report
        .functions
        .iter()
        .filter(|f| f.outstanding > 0)
        .map(|f| (owner(f.key), f.outstanding as u64))
        .collect()
}

fn owner(key: FunctionKey) -> PageOwner {
    PageOwner {
        function: key.function,
        embedded: key.embedded,
    }
}

fn function(function: u16, embedded: bool) -> PageOwner {
    PageOwner { function, embedded }
}

#[test]
fn a_million_and_more_come_back_in_steps() {
    let storm = Storm::new(options());
    storm.ask(PageDemand::Give(1_300_000));
    storm.until_held(storm.base + 1_300_000);
    let steps = storm.port.pages().steps;
    storm.ask(PageDemand::Take(1_300_000));
    storm.until_held(storm.base);
    let report = storm.port.page_report();
    assert_eq!(report.counts.steps - steps, 26);
    assert_eq!(
        (report.functions[0].largest_step, report.mailboxes),
        (50_000, 782)
    );
    assert_eq!((report.counts.unknown, report.counts.refused), (0, 0));
    storm.end();
}

#[test]
fn eight_million_come_back_while_the_application_asks() {
    let storm = Storm::new(options());
    storm.ask(PageDemand::Give(8_000_000));
    storm.until_held(storm.base + 8_000_000);
    storm.ask(PageDemand::Take(8_000_000));
    let mut asked = 0;
    until("taken", || {
        storm.port.stats().unwrap();
        storm.port.link();
        asked += 1;
        storm.port.pages().held == storm.base
    });
    let report = storm.port.page_report();
    assert!(report.command_wait_steps <= 1, "{report:?}");
    assert!(asked > 1);
    assert_eq!(report.counts.taken, 8_000_000);
    storm.settle();
    storm.end();
}

#[test]
fn closing_during_a_reclaim_of_millions_is_bounded() {
    let storm = Storm::new(options());
    storm.ask(PageDemand::Give(2_000_000));
    storm.until_held(storm.base + 2_000_000);
    storm.ask(PageDemand::Take(2_000_000));
    until("it has begun", || storm.port.pages().taken > 0);
    let begun = Instant::now();
    storm.end();
    // 40 steps; the limit only tells it from waiting for ever.
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_hundred_functions_at_once() {
    let storm = Storm::new(options());
    let all = |demand: fn(u16) -> PageDemand| {
        let one = move |n: u16| (function(n % 100, n >= 100), demand(n));
        storm.faults.page_requests((1..=101).map(one));
    };
    all(|n| PageDemand::Give(100 + u32::from(n)));
    storm.until_held(storm.base + (1..=101).map(|n| 100 + n).sum::<usize>());
    assert_eq!(storm.theirs().len(), 102);
    // Give and take interleaved; every second function drops all of its own accord.
    all(|n| PageDemand::Give(u32::from(n)));
    all(|_| PageDemand::Take(20));
    storm.settle();
    all(|n| match n % 2 {
        0 => PageDemand::ReleaseAll,
        _ => PageDemand::Take(50),
    });
    storm.settle();
    all(|_| PageDemand::Take(1000));
    storm.until_held(storm.base);
    assert_eq!(storm.port.pages().unknown, 0);
    storm.end();
}

#[test]
fn other_commands_wait_until_pages_come() {
    let storm = Storm::new(options());
    storm.faults.page_manners(PageManners {
        holds: true,
        ..PageManners::default()
    });
    storm.ask(PageDemand::Give(400_000));
    // Held until the last page is there, and then answered.
    storm.port.stats().unwrap();
    assert!(storm.port.pages().held >= storm.base + 400_000);
    storm.end();
}

#[test]
fn partial_answers_end_the_request_or_are_asked_for_again() {
    for repeats in [false, true] {
        let storm = Storm::new(options());
        storm.ask(PageDemand::Give(120_000));
        storm.until_held(storm.base + 120_000);
        storm.faults.page_manners(PageManners {
            partial: Some(7_000),
            repeats,
            ..PageManners::default()
        });
        storm.ask(PageDemand::Take(120_000));
        if repeats {
            storm.until_held(storm.base);
        } else {
            storm.until_held(storm.base + 113_000);
            assert_eq!(storm.port.page_report().functions[0].target, 0);
        }
        storm.faults.page_manners(PageManners::default());
        storm.end();
    }
}

#[test]
fn firmware_with_smaller_limits_is_served_with_smaller_steps() {
    let manners = PageManners {
        refuse_above: Some(768),
        ..PageManners::default()
    };
    // As it is, firmware refuses; nothing is freed, nothing is lost.
    let storm = Storm::new(options());
    storm.faults.page_manners(manners);
    storm.ask(PageDemand::Give(2_000));
    until("refused", || storm.port.pages().dropped == 1);
    storm.faults.page_manners(PageManners::default());
    storm.ask(PageDemand::Give(3_000));
    storm.until_held(storm.base + 3_000);
    storm.end();
    let mut small = options();
    small.firmware_pages.give_limit = 768;
    small.firmware_pages.take_limit = 700;
    let storm = Storm::new(small);
    storm.faults.page_manners(manners);
    storm.ask(PageDemand::Give(2_000));
    storm.until_held(storm.base + 2_000);
    storm.ask(PageDemand::Take(2_000));
    storm.until_held(storm.base);
    let report = storm.port.page_report();
    assert_eq!(
        (report.functions[0].largest_step, report.mailboxes),
        (768, 12)
    );
    storm.end();
}

#[test]
fn lies_are_reported_and_free_nothing_wrong() {
    let lies = [
        (PageLie::Twice, 1),
        (PageLie::Misaligned, 1),
        (PageLie::Unknown, 1),
        (PageLie::Others, 1),
        // None of the answer is believed.
        (PageLie::TooMany, 1000),
    ];
    for (lie, left) in lies {
        let storm = Storm::new(options());
        let other = function(7, false);
        storm.faults.page_requests([(other, PageDemand::Give(10))]);
        storm.ask(PageDemand::Give(1_000));
        storm.until_held(storm.base + 1_010);
        storm.faults.lie_about_pages(lie);
        storm.ask(PageDemand::Take(1_000));
        until("noticed", || storm.port.pages().unknown > 0);
        until("over", || storm.port.pages().held == storm.base + 10 + left);
        let report = storm.port.page_report();
        assert_eq!(report.functions[0].corrupt, 1, "{lie:?}");
        assert_eq!(ledger(&report)[&other], 10, "{lie:?}");
        // Firmware does not hold what it denies: closing names it, and resets.
        let error = storm.port.close().unwrap_err().to_string();
        assert!(error.contains(&format!("keeps {left}")), "{lie:?}: {error}");
        assert!(error.contains("function 0x0"), "{error}");
        until("nothing left", || {
            storm.emulator.report(0).unwrap().firmware_pages == 0
        });
    }
}

#[test]
fn late_and_lost_answers_cost_time_only() {
    let storm = Storm::new(options());
    for fault in [
        CommandFault::Delay(Duration::from_millis(20)),
        CommandFault::DropEvent,
    ] {
        storm
            .faults
            .command(Trigger::EveryOpcode(MANAGE_PAGES), fault);
        storm.ask(PageDemand::Give(120_000));
        storm.until_held(storm.base + 120_000);
        storm.ask(PageDemand::Take(120_000));
        storm.until_held(storm.base);
        storm.faults.disarm();
    }
    assert_eq!(storm.port.pages().unknown, 0);
    storm.end();
}

/// Each MANAGE_PAGES of a give and a reclaim is refused, undelivered or never answered once.
#[test]
fn a_fault_at_each_command_leaves_nothing_behind() {
    let faults = [
        CommandFault::Fail {
            status: BAD_PARAM,
            syndrome: 9,
        },
        CommandFault::Undelivered { status: 1 },
        CommandFault::DropAnswer,
    ];
    for fault in faults {
        for nth in 1..=6 {
            let mut patience = options();
            patience.command_deadline = Duration::from_millis(400);
            let storm = Storm::new(patience);
            storm
                .faults
                .command(Trigger::Opcode(MANAGE_PAGES, nth), fault);
            storm.ask(PageDemand::Give(120_000));
            storm.ask(PageDemand::Take(120_000));
            until("quiet", || {
                let report = storm.port.page_report();
                let f = report.functions[0];
                let served = f.target == 0 && f.wanted == 0 && storm.faults.armed() == 0;
                // A command that is never answered keeps the slot for pages.
                served || storm.port.events().timeouts > 0
            });
            assert_eq!(storm.port.pages().unknown, 0, "{fault:?} at {nth}");
            // What firmware could not tell of is found out by a reset, if need be.
            drop(storm.port.close());
            // A reset is done when the device's own thread has come to it.
            until(&format!("{fault:?} at {nth}: nothing left"), || {
                storm.emulator.report(0).unwrap().firmware_pages == 0
            });
        }
    }
}

#[test]
fn a_device_that_dies_in_the_middle_gives_all_memory_back() {
    for nth in [1, 2, 14, 27] {
        let storm = Storm::new(options());
        storm.ask(PageDemand::Give(600_000));
        storm.until_held(storm.base + 600_000);
        storm
            .faults
            .command(Trigger::Opcode(MANAGE_PAGES, nth), CommandFault::Die);
        storm.ask(PageDemand::Take(600_000));
        // Also a GIVE dies with it.
        storm.ask(PageDemand::Give(800_000));
        until("noticed", || {
            storm.port.fault() == Some(Fault::NotAnswering)
        });
        assert!(storm.port.pages().held > 0, "still the device's");
        let function = storm.emulator.function(0).unwrap();
        drop(storm.port.close());
        drop(storm.port);
        storm.faults.revive().unwrap();
        let port = Port::open(local::connect(function).unwrap(), options()).unwrap();
        assert_eq!(port.pages().held, storm.base);
        port.close().unwrap();
    }
}

#[test]
fn a_storm_in_the_device_string_reaches_any_driver() {
    let settings =
        "wire=null,storm=0:give:200000+500:take:200000+1000:give:1000:5+1500:release:0:5";
    let storm = Storm::with(settings, options());
    until("all waves", || {
        let pages = storm.port.pages();
        pages.given >= 205_000 && pages.taken == 200_000 && pages.released > 0
    });
    storm.settle();
    // Release-all took the pages of bring-up too.
    storm.end();
}

/// What firmware asks in a random mix: gives, or releases of all. (One that comes while pages are
/// on their way leaves open whether it means them; they count as held then, and firmware may know
/// better.)
fn demands() -> impl Strategy<Value = Vec<(PageOwner, PageDemand)>> {
    prop_oneof![
        2 => prop::collection::vec(demand(false), 1..12),
        1 => prop::collection::vec(demand(true), 1..12),
    ]
}

fn demand(releases: bool) -> impl Strategy<Value = (PageOwner, PageDemand)> {
    let owners = prop_oneof![
        3 => Just(PageOwner::OWN),
        2 => (0u16..100, any::<bool>()).prop_map(|(n, embedded)| function(n, embedded)),
    ];
    let demands = prop_oneof![
        4 => (1u32..90_000).prop_map(move |pages| match releases {
            true => PageDemand::ReleaseAll,
            false => PageDemand::Give(pages),
        }),
        3 => (1u32..90_000).prop_map(PageDemand::Take),
        1 => (1u32..90_000).prop_map(PageDemand::Hint),
    ];
    (owners, demands)
}

fn manners() -> impl Strategy<Value = PageManners> {
    (prop::option::of(1u32..60_000), any::<bool>(), any::<bool>()).prop_map(
        |(partial, repeats, holds)| PageManners {
            partial,
            refuse_above: None,
            repeats,
            holds,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// Whatever the firmware asks, for whom, and how it answers: at every quiet moment each
    /// function's ledger is the firmware's own, and at the end nothing is left.
    #[test]
    fn the_ledger_is_the_firmwares(
        parts in prop::collection::vec(
            (manners(), demands()),
            1..5,
        ),
    ) {
        let storm = Storm::new(options());
        for (manners, demands) in parts {
            storm.faults.page_manners(manners);
            storm.faults.page_requests(demands);
            storm.settle();
            let report = storm.port.page_report();
            prop_assert_eq!(report.counts.unknown, 0);
            prop_assert!(report.functions.iter().all(|f| f.largest_step <= 50_000));
        }
        storm.faults.page_manners(PageManners::default());
        storm.end();
    }
}
