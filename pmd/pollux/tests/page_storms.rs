//! Firmware that gives and takes pages by the million, for many functions, and tells of it in part.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod storm;

use pollux_emu::faults::{PageDemand, PageManners};
use std::time::{Duration, Instant};
use storm::{Storm, function, options, until};

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
