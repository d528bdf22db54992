//! The server against a firmware that is a few lines of test.

use super::*;
use crate::command::CommandError;
use crate::error::CommandFailure;
use pollux_prm::command_queue::DeliveryStatus;
use pollux_prm::opcode::{Opcode, Status};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Blocks at ascending addresses, as many as the budget allows; what is unmapped is there again.
struct Budget {
    next: u64,
    pages: usize,
    made: VecDeque<Came<usize>>,
    /// Nothing comes until this is false.
    slow: bool,
}

impl PageMemory for Budget {
    type Block = usize;

    fn ask(&mut self, pages: usize) {
        let pages = pages.next_multiple_of(512);
        if pages > self.pages {
            let why = format!("{} pages left", self.pages);
            self.made.push_back(Err(why));
            return;
        }
        self.pages -= pages;
        self.made.push_back(Ok((pages, self.next, pages)));
        self.next += pages as u64 * 4096;
    }

    fn poll(&mut self) -> Option<Came<usize>> {
        if self.slow {
            None
        } else {
            self.made.pop_front()
        }
    }

    fn unmap(&mut self, block: usize) {
        self.pages += block;
    }

    fn finish(&mut self) {
        self.made.clear();
    }
}

type Server = PageServer<Budget>;

fn with(pages: usize, options: PageOptions) -> Server {
    let memory = Budget {
        next: 0,
        pages,
        made: VecDeque::new(),
        slow: false,
    };
    PageServer::new(memory, options)
}

fn server(pages: usize) -> Server {
    with(pages, PageOptions::default())
}

fn key(function: u16, embedded: bool) -> FunctionKey {
    FunctionKey { function, embedded }
}

const PF: FunctionKey = FunctionKey {
    function: 0,
    embedded: false,
};
const VF: FunctionKey = FunctionKey {
    function: 3,
    embedded: false,
};
const EC: FunctionKey = FunctionKey {
    function: 0,
    embedded: true,
};

fn refused() -> CommandFailure {
    CommandFailure::Refused(CommandError {
        opcode: Opcode::MANAGE_PAGES,
        op_mod: 1,
        status: Status::BAD_RES_ERR,
        syndrome: 1,
    })
}

fn timed_out() -> CommandFailure {
    CommandFailure::TimedOut {
        opcode: Opcode::MANAGE_PAGES,
        op_mod: 1,
        slot: 31,
        waited: Duration::from_secs(1),
    }
}

fn undelivered() -> CommandFailure {
    CommandFailure::Delivery {
        opcode: Opcode::MANAGE_PAGES,
        op_mod: 1,
        delivery: DeliveryStatus::FIRMWARE_ERROR,
    }
}

fn gone() -> CommandFailure {
    CommandFailure::Gone {
        opcode: Opcode::MANAGE_PAGES,
        fault: crate::health::Fault::NotAnswering,
    }
}

/// The next step that is a command; asking again is what memory that comes needs.
fn step(s: &mut Server) -> Option<Step> {
    for _ in 0..1000 {
        match s.next_step() {
            Some(Step::Freed) => {}
            Some(command) => return Some(command),
            None if s.is_busy() => return None,
            None => {
                // What was ordered has come by the next call.
                let again = s.next_step();
                if again != Some(Step::Freed) {
                    return again;
                }
            }
        }
    }
    panic!("no end");
}

/// The pages of the GIVE that must come next.
fn give(s: &mut Server, key: FunctionKey) -> Vec<u64> {
    assert_eq!(step(s), Some(Step::Give(key)));
    s.outgoing().to_vec()
}

/// A willing firmware's pages.
type Held = BTreeMap<FunctionKey, BTreeSet<u64>>;

/// Runs the next step as a willing firmware.
fn obey(s: &mut Server, held: &mut Held) -> bool {
    match step(s) {
        None => return false,
        Some(Step::Give(key)) => {
            held.entry(key).or_default().extend(s.outgoing());
            s.gave(Ok(()));
        }
        Some(Step::CantGive(_)) => {
            s.gave(Ok(()));
        }
        Some(Step::Take { key, count }) => {
            let back = return_some(held, key, count as usize);
            s.took(Ok(&back));
        }
        Some(Step::Freed) => {}
    }
    true
}

fn return_some(held: &mut Held, key: FunctionKey, count: usize) -> Vec<u64> {
    let pages = held.entry(key).or_default();
    let back: Vec<u64> = pages.iter().copied().take(count).collect();
    back.iter().for_each(|page| {
        pages.remove(page);
    });
    back
}

fn distinct(pages: &[u64]) -> usize {
    pages.iter().collect::<BTreeSet<_>>().len()
}

#[test]
fn never_gives_the_page_at_address_zero() {
    let mut s = server(512);
    s.request(PF, false, 511);
    let pages = give(&mut s, PF);
    assert_eq!(distinct(&pages), 511);
    assert!(!pages.contains(&0));
    s.gave(Ok(()));
    s.request(PF, false, 1);
    assert_eq!(
        step(&mut s),
        Some(Step::CantGive(PF)),
        "only page 0 is left"
    );
}

#[test]
fn demands_are_served_in_order_and_not_netted() {
    let mut s = server(1 << 20);
    s.request(PF, false, 10);
    s.request(PF, false, -10);
    s.request(VF, false, 3);
    let mut seen = Vec::new();
    while let Some(step) = step(&mut s) {
        match step {
            Step::Give(key) => {
                seen.push((key, s.outgoing().len() as i64));
                s.gave(Ok(()));
            }
            Step::Take { key, count } => {
                seen.push((key, -i64::from(count)));
                s.took(Ok(&[]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [(PF, 10), (VF, 3), (PF, -10)]);
    assert_eq!(s.counts().held, 13);
}

#[test]
fn large_requests_are_cut_into_steps() {
    let mut s = server(1 << 20);
    s.request(PF, false, 120_001);
    let mut sizes = Vec::new();
    let mut held = Held::new();
    while step(&mut s) == Some(Step::Give(PF)) {
        sizes.push(s.outgoing().len());
        held.entry(PF).or_default().extend(s.outgoing());
        assert_eq!(step(&mut s), None, "one MANAGE_PAGES at a time");
        s.gave(Ok(()));
    }
    assert_eq!(sizes, [50_000, 50_000, 20_001]);
    s.request(PF, false, -100_000);
    let mut steps = 0;
    while obey(&mut s, &mut held) {
        steps += 1;
    }
    assert_eq!((steps, s.counts().held), (2, 20_001));
    let pages = s.report().functions[0];
    assert_eq!((pages.largest_step, pages.steps), (50_000, 5));
    assert_eq!((pages.given, pages.returned), (120_001, 100_000));
}

#[test]
fn limits_hold_in_each_direction() {
    let options = PageOptions {
        give_limit: 7,
        take_limit: 3,
        ..PageOptions::default()
    };
    let mut s = with(4096, options);
    s.request(PF, false, 20);
    s.request(PF, false, -8);
    let (mut gives, mut takes, mut held) = (Vec::new(), Vec::new(), Held::new());
    while let Some(step) = step(&mut s) {
        match step {
            Step::Give(key) => {
                gives.push(s.outgoing().len());
                held.entry(key).or_default().extend(s.outgoing());
                s.gave(Ok(()));
            }
            Step::Take { key, count } => {
                takes.push(count);
                let back = return_some(&mut held, key, count as usize);
                s.took(Ok(&back));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((gives, takes), (vec![7, 7, 6], vec![3, 3, 2]));
}

#[test]
fn a_demand_without_memory_is_refused_and_the_next_one_served() {
    let mut s = server(512);
    s.request(PF, false, 600);
    s.request(VF, false, 5);
    assert_eq!(step(&mut s), Some(Step::CantGive(PF)));
    s.gave(Ok(()));
    assert_eq!(give(&mut s, VF).len(), 5);
    s.gave(Ok(()));
    assert_eq!(s.counts().refused, 1);
    assert_eq!(s.report().functions[0].refused, 1);
    // Firmware asks again when there is memory.
    s.request(PF, false, 500);
    assert_eq!(give(&mut s, PF).len(), 500);
}

#[test]
fn a_demand_that_waits_for_memory_holds_up_no_reclaim() {
    let mut s = server(1 << 16);
    s.request(PF, false, 100);
    let pages = give(&mut s, PF);
    s.gave(Ok(()));
    s.memory().slow = true;
    s.request(VF, false, 30_000);
    s.request(PF, false, -100);
    assert_eq!(
        step(&mut s),
        Some(Step::Take {
            key: PF,
            count: 100
        })
    );
    s.took(Ok(&pages));
    assert_eq!(step(&mut s), None);
    s.memory().slow = false;
    assert_eq!(give(&mut s, VF).len(), 30_000);
}

#[test]
fn a_target_is_the_larger_of_two_and_ends_when_firmware_withdraws() {
    let mut s = server(4096);
    s.request(PF, false, 1000);
    let pages = give(&mut s, PF);
    s.gave(Ok(()));
    s.request(PF, false, -100);
    s.request(PF, false, -40);
    let take = |count| Some(Step::Take { key: PF, count });
    assert_eq!(step(&mut s), take(100));
    s.took(Ok(&pages[..99]));
    assert_eq!(
        step(&mut s),
        None,
        "fewer than asked: the hint is withdrawn"
    );
    s.request(PF, false, -2000);
    assert_eq!(step(&mut s), take(901), "never more than held");
    s.took(Err(refused()));
    assert_eq!(step(&mut s), None);
    assert!(s.came_empty_handed());
}

/// Firmware that raises its request again after each step, and firmware that does not.
#[test]
fn the_remainder_is_neither_forgotten_nor_counted_twice() {
    for repeats in [false, true] {
        let mut s = server(1 << 18);
        s.request(PF, false, 180_000);
        let mut held = Held::new();
        while obey(&mut s, &mut held) {}
        s.request(PF, false, -160_000);
        let mut left = 160_000;
        let mut takes = 0;
        while let Some(Step::Take { key, count }) = step(&mut s) {
            let back = return_some(&mut held, key, count as usize);
            left -= back.len() as i32;
            if repeats && left > 0 {
                s.request(PF, false, -left);
            }
            s.took(Ok(&back));
            takes += 1;
        }
        assert_eq!((takes, s.counts().held), (4, 20_000), "repeats: {repeats}");
    }
}

/// The offer that follows a short answer may be read before the answer.
#[test]
fn a_short_answer_does_not_withdraw_a_newer_offer() {
    let mut s = server(4096);
    s.request(PF, false, 1000);
    let pages = give(&mut s, PF);
    s.gave(Ok(()));
    s.request(PF, false, -1000);
    let take = |count| Some(Step::Take { key: PF, count });
    assert_eq!(step(&mut s), take(1000));
    s.request(PF, false, -900);
    s.took(Ok(&pages[..100]));
    assert_eq!(step(&mut s), take(900));
    s.took(Ok(&pages[100..]));
    assert_eq!(step(&mut s), None);
}

#[test]
fn release_all_frees_without_a_command_and_never_twice() {
    let mut s = server(4096);
    s.request(VF, false, 50);
    let pages = give(&mut s, VF);
    s.gave(Ok(()));
    s.request(VF, false, -50);
    assert_eq!(step(&mut s), Some(Step::Take { key: VF, count: 50 }));
    s.request(VF, true, 0);
    assert_eq!(s.counts().held, 0);
    assert_eq!(s.next_step(), Some(Step::Freed));
    // The take that was in flight comes back with pages that are free already.
    s.took(Ok(&pages));
    assert_eq!((s.counts().crossed, s.counts().unknown), (50, 0));
    assert_eq!(step(&mut s), None);
    // All of them can be given once, and only once.
    s.request(PF, false, 511);
    assert_eq!(distinct(&give(&mut s, PF)), 511);
    s.gave(Ok(()));
    let ledger = s.report().functions;
    assert_eq!((ledger[0].returned, ledger[1].outstanding), (50, 511));
}

#[test]
fn release_all_of_many_goes_in_slices() {
    let mut s = server(1 << 18);
    s.request(VF, false, 180_000);
    let mut held = Held::new();
    while obey(&mut s, &mut held) {}
    s.request(VF, true, 0);
    assert_eq!(s.counts().released, 180_000);
    let mut slices = 0;
    while s.next_step() == Some(Step::Freed) {
        slices += 1;
    }
    assert_eq!(slices, 4, "at most 50,000 pages each, a chunk more or less");
    assert_eq!(s.report().memory.free, s.report().memory.pages);
}

#[test]
fn a_give_in_flight_survives_release_all() {
    let mut s = server(4096);
    s.request(VF, false, 20);
    give(&mut s, VF);
    s.gave(Ok(()));
    s.request(VF, false, 50);
    s.request(PF, false, 7);
    let pages = give(&mut s, VF);
    s.request(VF, true, 0);
    s.gave(Ok(()));
    assert_eq!(s.counts().held, 50, "given after the release");
    let others = give(&mut s, PF);
    assert!(others.iter().all(|page| !pages.contains(page)));
    s.gave(Ok(()));
    s.request(VF, false, -50);
    assert_eq!(step(&mut s), Some(Step::Take { key: VF, count: 50 }));
    s.took(Ok(&pages));
    assert_eq!((s.counts().held, s.counts().unknown), (7, 0));
}

/// Firmware that acts, drops all, and answers then: what it was given last is gone too, and at the
/// end nobody waits for it.
#[test]
fn doubtful_pages_are_written_off_when_firmware_does_not_return_them() {
    for dropped in [false, true] {
        let mut s = server(4096);
        s.request(VF, false, 50);
        let pages = give(&mut s, VF);
        s.request(VF, true, 0);
        s.gave(Ok(()));
        let ledger = s.report().functions[0];
        assert_eq!((ledger.outstanding, ledger.doubtful), (50, 50));
        s.request(VF, false, 10);
        let more = give(&mut s, VF);
        s.gave(Ok(()));
        s.reclaim_all();
        let take = |count| Some(Step::Take { key: VF, count });
        assert_eq!(step(&mut s), take(60));
        if dropped {
            s.took(Ok(&more));
            assert_eq!(s.counts().held, 50);
            s.reclaim_all();
            assert_eq!(step(&mut s), take(50));
            s.took(Ok(&[]));
            assert_eq!(s.counts().released, 50);
        } else {
            s.took(Ok(&[pages.clone(), more].concat()));
        }
        assert_eq!(
            (s.counts().held, s.unsettled(), s.counts().unknown),
            (0, 0, 0)
        );
        while s.next_step() == Some(Step::Freed) {}
        assert_eq!(s.report().memory.free, s.report().memory.pages);
        s.check();
    }
}

/// Before the end it may have its reasons to return nothing.
#[test]
fn doubtful_pages_are_kept_while_the_device_runs() {
    let mut s = server(4096);
    s.request(VF, false, 50);
    let pages = give(&mut s, VF);
    s.request(VF, true, 0);
    s.gave(Ok(()));
    s.request(VF, false, -50);
    let take = |count| Some(Step::Take { key: VF, count });
    assert_eq!(step(&mut s), take(50));
    s.took(Ok(&[]));
    assert_eq!(s.counts().held, 50);
    s.request(VF, false, -50);
    assert_eq!(step(&mut s), take(50));
    s.took(Ok(&pages[..20]));
    let ledger = s.report().functions[0];
    assert_eq!((ledger.outstanding, ledger.doubtful), (30, 30));
    // All dropped once more, with nothing under way: no doubt is left.
    s.request(VF, true, 0);
    let ledger = s.report().functions[0];
    assert_eq!((ledger.outstanding, ledger.doubtful), (0, 0));
}

#[test]
fn an_answer_that_comes_after_all_is_booked() {
    let mut s = server(4096);
    s.startup(PF, 100, 5);
    s.startup(VF, 7, 6);
    let pages = give(&mut s, PF);
    s.late(&timed_out());
    let told = s.take_outcomes();
    assert_eq!(
        told,
        [5, 6].map(|ticket| (ticket, Outcome::Failed(timed_out())))
    );
    assert!(s.is_overdue() && s.report().overdue);
    assert_eq!(step(&mut s), None, "nothing is sent beside it");
    s.gave(Ok(()));
    assert!(!s.is_overdue());
    assert_eq!((s.counts().held, s.report().functions[0].wanted), (100, 0));
    assert_eq!(s.report().functions[1].wanted, 0);
    assert_eq!(step(&mut s), None);
    s.request(PF, false, -100);
    assert_eq!(
        step(&mut s),
        Some(Step::Take {
            key: PF,
            count: 100
        })
    );
    s.late(&timed_out());
    s.took(Ok(&pages));
    assert_eq!((s.counts().held, s.is_overdue()), (0, false));
    assert_eq!(s.take_outcomes(), []);
}

/// Nobody knows whether an undelivered GIVE arrived, until the device was taken down.
#[test]
fn pages_of_an_undelivered_give_are_asked_for_at_the_end() {
    for arrived in [false, true] {
        let mut s = server(512);
        s.request(PF, false, 20);
        let pages = give(&mut s, PF);
        s.gave(Err(undelivered()));
        assert_eq!(step(&mut s), Some(Step::CantGive(PF)));
        s.gave(Ok(()));
        assert_eq!((s.counts().held, s.unsettled()), (0, 20));
        s.reclaim_all();
        assert_eq!(step(&mut s), Some(Step::Take { key: PF, count: 20 }));
        s.took(if arrived { Ok(&pages) } else { Ok(&[]) });
        assert_eq!((s.unsettled(), s.counts().unknown), (0, 0));
    }
}

#[test]
fn only_a_refused_give_frees_its_pages() {
    let mut s = server(512);
    s.request(PF, false, 500);
    let pages = give(&mut s, PF);
    s.gave(Err(refused()));
    assert_eq!(step(&mut s), None, "firmware knows that it refused");
    s.request(PF, false, 500);
    let again = give(&mut s, PF);
    assert_eq!(
        pages.iter().collect::<BTreeSet<_>>(),
        again.iter().collect()
    );
    s.gave(Err(timed_out()));
    assert_eq!(
        step(&mut s),
        Some(Step::CantGive(PF)),
        "nobody knows: answer it"
    );
    s.gave(Ok(()));
    s.request(PF, false, 500);
    assert_eq!(
        step(&mut s),
        Some(Step::CantGive(PF)),
        "those pages are lost"
    );
    assert_eq!(s.report().functions[0].failed, 1000);
}

/// A GIVE that timed out may have arrived: firmware then returns pages that nobody knows it has.
#[test]
fn pages_of_a_lost_give_may_come_back() {
    let mut s = server(512);
    s.request(PF, false, 10);
    give(&mut s, PF);
    s.gave(Ok(()));
    s.request(PF, false, 20);
    let lost = give(&mut s, PF);
    s.gave(Err(timed_out()));
    assert_eq!(step(&mut s), Some(Step::CantGive(PF)));
    s.gave(Ok(()));
    s.reclaim_all();
    assert_eq!(step(&mut s), Some(Step::Take { key: PF, count: 30 }));
    s.took(Ok(&lost));
    assert_eq!((s.counts().held, s.counts().unknown), (10, 0));
    s.request(PF, false, 501);
    assert_eq!(distinct(&give(&mut s, PF)), 501, "free again");
}

#[test]
fn pages_go_back_to_the_function_they_were_given_for() {
    let mut s = server(4096);
    s.request(PF, false, 4);
    let pages = give(&mut s, PF);
    s.gave(Ok(()));
    s.request(EC, false, 4);
    let other = give(&mut s, EC);
    s.gave(Ok(()));
    s.request(EC, false, -4);
    assert_eq!(step(&mut s), Some(Step::Take { key: EC, count: 4 }));
    let mixed = [other[0], pages[0], other[1], 0xdead_b000];
    s.took(Ok(&mixed));
    assert_eq!(s.holders(), [(PF, 4), (EC, 2)]);
    assert_eq!(s.counts().unknown, 2);
}

#[test]
fn a_corrupt_answer_frees_nothing_that_is_not_the_functions() {
    let mut s = server(4096);
    s.request(PF, false, 8);
    let pages = give(&mut s, PF);
    s.gave(Ok(()));
    s.request(PF, false, -6);
    assert_eq!(step(&mut s), Some(Step::Take { key: PF, count: 6 }));
    // Once right, twice, misaligned, never given, free, zero.
    let free = pages[7] + 4096;
    s.took(Ok(&[pages[0], pages[0], pages[1] + 8, 1 << 40, free, 0]));
    assert_eq!((s.counts().held, s.counts().unknown), (7, 5));
    assert_eq!(s.report().functions[0].corrupt, 5);
    s.request(PF, false, -2);
    assert_eq!(step(&mut s), Some(Step::Take { key: PF, count: 2 }));
    let liar = CommandFailure::Damaged {
        opcode: Opcode::MANAGE_PAGES,
        what: "more pages than asked for",
    };
    s.took(Err(liar));
    assert_eq!((s.counts().held, s.counts().unknown), (7, 6));
    assert_eq!(step(&mut s), None, "it ends the request");
}

#[test]
fn a_dead_device_ends_all_that_waits_and_frees_nothing() {
    let mut s = server(4096);
    s.request(PF, false, 600);
    give(&mut s, PF);
    s.gave(Ok(()));
    s.startup(VF, 100, 7);
    s.request(PF, false, 100);
    s.request(PF, false, -600);
    give(&mut s, VF);
    s.give_up(&gone());
    assert_eq!(s.take_outcomes(), [(7, Outcome::Failed(gone()))]);
    assert_eq!(step(&mut s), None);
    assert_eq!(s.counts().held, 600, "the device may still write them");
    assert_eq!(s.forget_all(), 600);
    assert_eq!((s.counts().held, s.report().memory.pages), (0, 0));
}

#[test]
fn a_take_in_flight_when_the_device_dies_is_over() {
    let mut s = server(4096);
    s.request(PF, false, 600);
    give(&mut s, PF);
    s.gave(Ok(()));
    s.request(PF, false, -600);
    assert!(matches!(step(&mut s), Some(Step::Take { .. })));
    s.give_up(&gone());
    assert!(!s.is_busy());
    assert_eq!(s.took(Ok(&[])), None, "an answer that comes after all");
    assert_eq!(s.forget_all(), 600);
}

#[test]
fn startup_counts_may_be_zero_or_negative() {
    let mut s = server(4096);
    s.startup(PF, 0, 1);
    s.startup(PF, -7, 2);
    assert_eq!(s.take_outcomes(), [(1, Outcome::Done), (2, Outcome::Done)]);
    assert_eq!(step(&mut s), None, "nothing is held that could be taken");
    s.startup(PF, i32::MIN, 3);
    s.startup(PF, 5000, 4);
    assert_eq!(step(&mut s), None);
    assert_eq!(s.take_outcomes().len(), 2);
    assert_eq!(
        s.counts().refused,
        0,
        "a start-up demand is not answered with CANT_GIVE"
    );
}

#[test]
fn startup_failures_are_told_to_the_caller() {
    let mut s = server(512);
    s.startup(PF, 100, 9);
    give(&mut s, PF);
    s.gave(Err(refused()));
    assert_eq!(s.take_outcomes(), [(9, Outcome::Failed(refused()))]);
    s.startup(PF, 5000, 10);
    assert_eq!(step(&mut s), None);
    assert!(
        matches!(&s.take_outcomes()[..], [(10, Outcome::NoMemory(why))] if why.contains("0 pages left"))
    );
}

#[test]
fn a_flood_of_demands_stays_small_and_is_all_served() {
    let mut s = server(1 << 16);
    for _ in 0..5000 {
        s.request(PF, false, 1);
        s.request(VF, false, 2);
    }
    let mut held = Held::new();
    let mut steps = 0;
    while obey(&mut s, &mut held) {
        steps += 1;
    }
    assert_eq!((held[&PF].len(), held[&VF].len()), (5000, 10_000));
    assert!(steps <= 1026, "{steps}");
}

#[test]
fn idle_blocks_are_unmapped_one_by_one_and_only_beyond_the_pool() {
    let options = PageOptions {
        release_interval: Some(Duration::from_secs(1)),
        pooled: 20_000,
        give_limit: 1000,
        ..PageOptions::default()
    };
    let mut s = with(1 << 18, options);
    // Blocks of 2,000 pages and less: what two steps want.
    s.request(PF, false, 40_000);
    let mut held = Held::new();
    while obey(&mut s, &mut held) {}
    let blocks = s.report().memory.blocks;
    let start = Instant::now();
    s.trim(start);
    assert_eq!(s.due(), None, "nothing is idle");
    s.request(PF, false, -40_000);
    while obey(&mut s, &mut held) {}
    s.trim(start);
    assert_eq!(s.due(), Some(start + Duration::from_secs(1)));
    s.trim(start + Duration::from_millis(999));
    assert_eq!(s.report().memory.blocks, blocks);
    let mut now = start;
    for n in 1..=3 {
        now += Duration::from_secs(1);
        s.trim(now);
        s.trim(now);
        assert_eq!(s.report().memory.blocks, blocks - n, "one at a time");
    }
    for _ in 0..100 {
        now += Duration::from_secs(1);
        s.trim(now);
    }
    let memory = s.report().memory;
    assert!(memory.free <= 20_000 && memory.free > 15_000, "{memory:?}");
    assert_eq!(s.due(), None);
}

#[test]
fn release_can_be_off() {
    let options = PageOptions {
        release_interval: None,
        pooled: 0,
        ..PageOptions::default()
    };
    let mut s = with(1 << 16, options);
    s.request(PF, false, 5000);
    let mut held = Held::new();
    while obey(&mut s, &mut held) {}
    s.request(PF, true, 0);
    while s.next_step() == Some(Step::Freed) {}
    s.trim(Instant::now() + Duration::from_secs(1000));
    let memory = s.report().memory;
    assert_eq!((memory.unmapped, s.due()), (0, None));
    assert_eq!(memory.free, memory.pages);
}

/// What firmware does next in a random mix.
#[derive(Clone, Debug)]
enum Move {
    Ask(FunctionKey, i32),
    ReleaseAll(FunctionKey),
    /// Serve one step, in one of the ways firmware has.
    Serve(Way),
    Idle,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Willing,
    /// Returns a part of what was asked for, from the end.
    Partial(usize),
    /// Refuses the command.
    Refuse,
    /// Does it and never answers.
    Mute,
    /// Never heard of it.
    Deaf,
    /// Drops all pages of the function between doing a TAKE and its answer.
    Cross,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        8 => Just(Way::Willing),
        2 => (0usize..400).prop_map(Way::Partial),
        1 => Just(Way::Refuse),
        1 => Just(Way::Mute),
        1 => Just(Way::Deaf),
        1 => Just(Way::Cross),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    let keys =
        || (0u16..100, any::<bool>()).prop_map(|(function, embedded)| key(function, embedded));
    let few = || (0u16..3, any::<bool>()).prop_map(|(function, embedded)| key(function, embedded));
    prop_oneof![
        4 => (keys(), -300i32..600).prop_map(|(key, count)| Move::Ask(key, count)),
        4 => (few(), -3000i32..3000).prop_map(|(key, count)| Move::Ask(key, count)),
        1 => few().prop_map(Move::ReleaseAll),
        12 => way().prop_map(Move::Serve),
        1 => Just(Move::Idle),
    ]
}

/// Serves one step in `way`. `lost` has the pages of which the server cannot know that firmware
/// holds them.
fn serve(s: &mut Server, held: &mut Held, lost: &mut Held, way: Way, cap: usize) {
    match step(s) {
        None | Some(Step::Freed) => {}
        Some(Step::CantGive(_)) => {
            s.gave(match way {
                Way::Refuse => Err(refused()),
                _ => Ok(()),
            });
        }
        Some(Step::Give(key)) => {
            let pages = s.outgoing().to_vec();
            assert!(pages.len() <= cap && distinct(&pages) == pages.len());
            let others: BTreeSet<u64> = held
                .values()
                .chain(lost.values())
                .flatten()
                .copied()
                .collect();
            assert!(
                pages.iter().all(|page| !others.contains(page)),
                "given to two"
            );
            match way {
                Way::Refuse => {
                    s.gave(Err(refused()));
                }
                Way::Mute => {
                    lost.entry(key).or_default().extend(pages);
                    s.gave(Err(timed_out()));
                }
                Way::Deaf => {
                    s.gave(Err(timed_out()));
                }
                _ => {
                    held.entry(key).or_default().extend(pages);
                    s.gave(Ok(()));
                }
            }
        }
        Some(Step::Take { key, count }) => {
            let count = count as usize;
            assert!(count <= cap);
            match way {
                Way::Refuse | Way::Deaf => {
                    s.took(Err(refused()));
                }
                Way::Mute => {
                    // It has let go of pages, and nobody will ever say so.
                    let gone = return_some(held, key, count);
                    lost.entry(key).or_default().extend(gone);
                    s.took(Err(timed_out()));
                }
                Way::Cross => {
                    let back = return_some(held, key, count);
                    held.remove(&key);
                    lost.remove(&key);
                    s.request(key, true, 0);
                    s.took(Ok(&back));
                }
                Way::Partial(most) => {
                    let back = return_some(held, key, count.min(most));
                    s.took(Ok(&back));
                }
                Way::Willing => {
                    let back = return_some(held, key, count);
                    s.took(Ok(&back));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever firmware asks, in whatever order, and however it answers: no page is with two
    /// holders, no step is larger than the limit, and at every quiet moment each function's
    /// ledger is what firmware knows itself (where it told the truth). At the end nothing is held.
    #[test]
    fn the_ledger_agrees_with_firmware(
        script in prop::collection::vec(moves(), 1..120),
        cap in prop::sample::select(vec![50_000u32, 700, 100]),
        budget in prop::sample::select(vec![1usize << 17, 1 << 12]),
    ) {
        let options = PageOptions { give_limit: cap, take_limit: cap, ..PageOptions::default() };
        let mut s = with(budget, options);
        let (mut held, mut lost) = (Held::new(), Held::new());
        let mut quiet = 0;
        for next in script {
            match next {
                Move::Ask(key, count) => s.request(key, false, count),
                Move::ReleaseAll(key) => {
                    held.remove(&key);
                    lost.remove(&key);
                    s.request(key, true, 0);
                }
                Move::Serve(way) => {
                    serve(&mut s, &mut held, &mut lost, way, cap as usize);
                    s.check();
                }
                Move::Idle if lost.is_empty() => {
                    let mut steps = 0;
                    while obey(&mut s, &mut held) && steps < 300 { steps += 1; }
                    if steps < 300 {
                        quiet += 1;
                        agrees(&s, &held)?;
                    }
                }
                Move::Idle => {}
            }
        }
        prop_assert_eq!(s.counts().unknown, 0);
        if lost.values().all(BTreeSet::is_empty) {
            let mut steps = 0;
            while obey(&mut s, &mut held) && steps < 20_000 { steps += 1; }
            agrees(&s, &held)?;
            s.reclaim_all();
            while obey(&mut s, &mut held) {}
            prop_assert_eq!(s.counts().held, 0, "quiet moments: {}", quiet);
            prop_assert!(held.values().all(BTreeSet::is_empty));
        }
        s.forget_all();
        prop_assert_eq!(s.counts().held, 0);
        prop_assert_eq!(s.report().memory.pages, 0);
    }
}

fn agrees(s: &Server, held: &Held) -> Result<(), TestCaseError> {
    let theirs: Vec<(FunctionKey, usize)> = held
        .iter()
        .map(|(key, pages)| (*key, pages.len()))
        .filter(|(_, pages)| *pages > 0)
        .collect();
    let mut ours = s.holders();
    ours.sort();
    prop_assert_eq!(ours, theirs);
    let report = s.report();
    for function in &report.functions {
        prop_assert_eq!(
            function.given - function.returned,
            function.outstanding as u64
        );
        prop_assert!(function.largest_step <= MAX_PAGES_PER_STEP);
    }
    Ok(())
}
