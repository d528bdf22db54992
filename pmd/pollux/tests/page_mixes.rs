//! Any mix of what firmware can ask for a hundred functions, how it can answer, and what can go
//! wrong: both ledgers are the same whenever it is quiet, and at the end nothing is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod storm;

use pollux_emu::faults::{CommandFault, PageDemand, PageManners, PageOwner, Trigger};
use proptest::prelude::*;
use std::time::Duration;
use storm::{MANAGE_PAGES, Storm, function, options, until};

fn demand() -> impl Strategy<Value = (PageOwner, PageDemand)> {
    let owners = prop_oneof![
        3 => Just(PageOwner::OWN),
        4 => (0u16..100, any::<bool>()).prop_map(|(n, embedded)| function(n, embedded)),
        2 => (1u16..4).prop_map(|n| function(n, false)),
    ];
    let pages = || prop_oneof![3 => 1u32..2_000, 1 => 1u32..90_000];
    let demands = prop_oneof![
        5 => pages().prop_map(PageDemand::Give),
        3 => pages().prop_map(PageDemand::Take),
        1 => pages().prop_map(PageDemand::Hint),
        1 => Just(PageDemand::ReleaseAll),
    ];
    (owners, demands)
}

fn manners() -> impl Strategy<Value = PageManners> {
    (prop::option::of(1u32..60_000), any::<bool>(), any::<bool>()).prop_map(
        |(partial, repeats, holds)| PageManners {
            // Few at a time and again and again is the same, only longer.
            partial: partial.map(|most| if repeats { most.max(500) } else { most }),
            refuse_above: None,
            repeats,
            holds,
        },
    )
}

/// What goes wrong with one of the coming MANAGE_PAGES.
fn fault() -> impl Strategy<Value = (u64, CommandFault)> {
    let time = || (1u64..30).prop_map(Duration::from_millis);
    let faults = prop_oneof![
        2 => (1u8..9, any::<u32>()).prop_map(|(status, syndrome)| CommandFault::Fail { status, syndrome }),
        1 => (1u8..9).prop_map(|status| CommandFault::Undelivered { status }),
        2 => time().prop_map(CommandFault::Wait),
        1 => time().prop_map(CommandFault::Delay),
        1 => Just(CommandFault::DropEvent),
    ];
    (1u64..12, faults)
}

/// What firmware does between two quiet moments: its manners, faults, requests all at once, and
/// requests one by one while those are served.
type Part = (
    PageManners,
    Vec<(u64, CommandFault)>,
    Vec<(PageOwner, PageDemand)>,
    Vec<(PageOwner, PageDemand)>,
);

fn part() -> impl Strategy<Value = Part> {
    (
        manners(),
        prop::collection::vec(fault(), 0..4),
        prop::collection::vec(demand(), 1..40),
        prop::collection::vec(demand(), 0..10),
    )
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// In peace.
    Quiet,
    /// While requests are served.
    Busy,
    /// With a command that is never answered.
    Mute,
    /// With the device's death.
    Death,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        Just(End::Quiet),
        Just(End::Busy),
        Just(End::Mute),
        Just(End::Death)
    ]
}

fn raise(storm: &Storm, part: &Part) {
    let (manners, faults, at_once, one_by_one) = part;
    storm.faults.page_manners(*manners);
    for (nth, fault) in faults {
        storm
            .faults
            .command(Trigger::Opcode(MANAGE_PAGES, *nth), *fault);
    }
    storm.faults.page_requests(at_once.iter().copied());
    for demand in one_by_one {
        storm.faults.page_requests([*demand]);
        std::thread::sleep(Duration::from_micros(200));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn both_ledgers_are_the_same(
        parts in prop::collection::vec(part(), 1..5),
        caps in prop::sample::select(vec![(50_000u32, 50_000u32), (50_000, 1_000), (700, 50_000)]),
        last in (part(), end()),
    ) {
        let mut limited = options();
        limited.firmware_pages.give_limit = caps.0;
        limited.firmware_pages.take_limit = caps.1;
        // Only a command that is never answered takes as long.
        limited.command_deadline = Duration::from_secs(2);
        let storm = Storm::new(limited);
        let refused = storm.emulator.report(0).unwrap().refused;
        let mut undelivered = false;
        for part in &parts {
            let is = |fault: &CommandFault| matches!(fault, CommandFault::Undelivered { .. });
            undelivered |= part.1.iter().any(|(_, fault)| is(fault));
            raise(&storm, part);
            storm.settle();
            storm.faults.disarm();
            let report = storm.port.page_report();
            prop_assert_eq!(report.counts.unknown, 0);
            // It refuses a page that it has already. (And, after a CANT_GIVE, all that it asked
            // for before; that is what the driver says when a GIVE was not delivered.)
            if !undelivered {
                prop_assert_eq!(storm.emulator.report(0).unwrap().refused, refused);
            }
            for f in &report.functions {
                prop_assert!(f.largest_step <= caps.0.max(caps.1));
                prop_assert_eq!(f.given - f.returned, f.outstanding as u64);
            }
        }
        let (part, end) = last;
        raise(&storm, &part);
        match end {
            End::Quiet => storm.settle(),
            End::Busy => {}
            End::Mute => {
                storm.faults.disarm();
                storm.faults.command(Trigger::Opcode(MANAGE_PAGES, 1), CommandFault::DropAnswer);
                storm.ask(PageDemand::Give(1));
                until("never answered", || storm.port.events().timeouts > 0);
            }
            End::Death => storm.faults.kill().unwrap(),
        }
        // From here on it is to answer, if it lives.
        storm.faults.disarm();
        storm.faults.page_manners(PageManners::default());
        let closed = storm.port.close();
        if matches!(end, End::Quiet | End::Busy) {
            let closed = closed.unwrap();
            prop_assert_eq!((closed.pages_kept, closed.reset), (0, false));
        }
        if matches!(end, End::Death) {
            storm.faults.revive().unwrap();
        }
        drop(storm.port);
        let left = || storm.emulator.report(0).unwrap().firmware_pages;
        // A dead device forgets when the next driver resets it; no driver is there any more.
        if !matches!(end, End::Death) {
            until("nothing is left", || left() == 0);
        }
    }
}
