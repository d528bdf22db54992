//! Firmware that is late with pages, refuses them, lies about them, drops them meanwhile, and dies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod storm;

use pollux_bus::local;
use pollux_emu::faults::{CommandFault, PageDemand, PageLie, PageManners, Trigger};
use pollux_mlx5::{Fault, Port};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storm::{MANAGE_PAGES, Storm, function, ledger, options, until};

/// MANAGE_PAGES cannot be answered worse than this: bad parameter.
const BAD_PARAM: u8 = 0x3;

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

/// A GIVE that firmware comes to after it has dropped all: the pages are of the time after.
#[test]
fn a_give_that_firmware_does_after_release_all_is_held() {
    let storm = Storm::new(options());
    storm.ask(PageDemand::Give(1_000));
    storm.until_held(storm.base + 1_000);
    let wait = CommandFault::Wait(Duration::from_millis(50));
    storm.faults.command(Trigger::Opcode(MANAGE_PAGES, 1), wait);
    storm.ask(PageDemand::Give(60_000));
    until("under way", || storm.faults.armed() == 0);
    storm.ask(PageDemand::ReleaseAll);
    // And the second step of it, which nothing has crossed.
    storm.until_held(60_000);
    let report = storm.port.page_report();
    assert_eq!(report.functions[0].doubtful, 50_000);
    assert_eq!(report.counts.released, storm.base as u64 + 1_000);
    storm.ask(PageDemand::Take(30_000));
    storm.until_held(30_000);
    assert_eq!(storm.port.pages().unknown, 0);
    storm.end();
}

/// A GIVE that was answered before firmware dropped all, though both are read at once.
#[test]
fn a_give_that_was_answered_before_release_all_is_dropped_with_it() {
    let storm = Storm::new(options());
    let (blocked, entered) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let armed = Arc::new(AtomicBool::new(false));
    let block = Arc::clone(&armed);
    storm
        .port
        .on_link_change(move |_| {
            // The control thread reads nothing until it may go on.
            if block.load(Ordering::Acquire) && blocked.send(()).is_ok() {
                wait.recv_timeout(Duration::from_secs(60)).ok();
            }
        })
        .unwrap();
    armed.store(true, Ordering::Release);
    let delay = CommandFault::Delay(Duration::from_millis(300));
    storm
        .faults
        .command(Trigger::Opcode(MANAGE_PAGES, 1), delay);
    storm.ask(PageDemand::Give(500));
    until("under way", || storm.faults.armed() == 0);
    storm.faults.link(false).unwrap();
    entered.recv_timeout(Duration::from_secs(60)).unwrap();
    until("answered", || storm.emulator.report(0).unwrap().late == 0);
    storm.ask(PageDemand::ReleaseAll);
    until("dropped", || storm.theirs().is_empty());
    drop(go);
    storm.until_held(0);
    let report = storm.port.page_report();
    assert_eq!(report.functions[0].doubtful, 0);
    assert_eq!(report.counts.released, storm.base as u64 + 500);
    storm.end();
}

/// A GIVE that firmware did, dropped, and answered only then: it looks like one done afterwards. No
/// page of it is used again, and closing finds out without a reset.
#[test]
fn a_give_that_was_dropped_before_its_answer_is_written_off_at_the_end() {
    let storm = Storm::new(options());
    let delay = CommandFault::Delay(Duration::from_millis(50));
    storm
        .faults
        .command(Trigger::Opcode(MANAGE_PAGES, 1), delay);
    storm.ask(PageDemand::Give(500));
    until("under way", || storm.faults.armed() == 0);
    storm.ask(PageDemand::ReleaseAll);
    until("answered", || {
        storm.port.pages().given as usize == storm.base + 500
    });
    assert!(storm.theirs().is_empty());
    assert_eq!(storm.port.page_report().functions[0].doubtful, 500);
    storm.ask(PageDemand::Give(70));
    until("given", || storm.port.pages().held == 570);
    storm.end();
}

#[test]
fn a_take_that_crosses_release_all_frees_nothing_twice() {
    for fault in [CommandFault::Wait, CommandFault::Delay] {
        let storm = Storm::new(options());
        storm.ask(PageDemand::Give(60_000));
        storm.until_held(storm.base + 60_000);
        storm.faults.command(
            Trigger::Opcode(MANAGE_PAGES, 1),
            fault(Duration::from_millis(50)),
        );
        storm.ask(PageDemand::Take(60_000));
        until("under way", || storm.faults.armed() == 0);
        storm.ask(PageDemand::ReleaseAll);
        storm.until_held(0);
        let report = storm.port.page_report();
        assert_eq!(
            (report.counts.unknown, report.functions[0].doubtful),
            (0, 0)
        );
        storm.ask(PageDemand::Give(200_000));
        storm.until_held(200_000);
        storm.end();
    }
}

/// A MANAGE_PAGES whose answer comes when nobody believes in it any more is booked all the same.
#[test]
fn an_answer_after_the_deadline_is_booked() {
    let mut impatient = options();
    impatient.command_deadline = Duration::from_millis(400);
    let storm = Storm::new(impatient);
    for (nth, demand) in [PageDemand::Give(80_000), PageDemand::Take(80_000)]
        .into_iter()
        .enumerate()
    {
        let delay = CommandFault::Delay(Duration::from_millis(1500));
        storm
            .faults
            .command(Trigger::Opcode(MANAGE_PAGES, 1), delay);
        storm.ask(demand);
        let late = nth as u64 + 1;
        until("late", || storm.port.events().timeouts == late);
        // Other commands go on.
        storm.port.stats().unwrap();
        until("answered", || storm.port.events().late_answers == late);
        storm.settle();
    }
    assert_eq!(storm.port.pages().held, storm.base);
    assert_eq!(storm.port.pages().unknown, 0);
    storm.end();
}

/// A MANAGE_PAGES that is never answered stops page service and nothing else; closing cuts the
/// device off, resets it, and only then frees what it holds.
#[test]
fn a_command_never_answered_keeps_nobody_waiting() {
    for demand in [PageDemand::Give(120_000), PageDemand::Take(50_000)] {
        let mut impatient = options();
        impatient.command_deadline = Duration::from_millis(400);
        let storm = Storm::new(impatient);
        storm.ask(PageDemand::Give(60_000));
        storm.until_held(storm.base + 60_000);
        storm
            .faults
            .command(Trigger::Opcode(MANAGE_PAGES, 1), CommandFault::DropAnswer);
        storm.ask(demand);
        until("late", || storm.port.events().timeouts == 1);
        let report = storm.port.page_report();
        assert!(report.overdue);
        // Firmware asks on, and the application too.
        storm.ask(PageDemand::Give(10));
        storm.port.stats().unwrap();
        assert_eq!(storm.port.pages().held, storm.base + 60_000);
        let closed = storm.port.close();
        let error = closed.unwrap_err().to_string();
        assert!(
            error.contains(&format!("keeps {}", storm.base + 60_000)),
            "{error}"
        );
        until("reset", || {
            storm.emulator.report(0).unwrap().firmware_pages == 0
        });
    }
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
            patience.command_deadline = Duration::from_secs(1);
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
                // One that is never answered lets no other one pass.
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
