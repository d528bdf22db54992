//! The server against a firmware that is a few lines of test.

use super::*;
use crate::command::CommandError;
use pollux_prm::opcode::{Opcode, Status};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks at ascending addresses, as many as the budget allows.
struct Budget {
    next: u64,
    pages: usize,
}

impl PageMemory for Budget {
    type Block = ();

    fn block(&mut self, pages: usize) -> Result<((), u64, usize), String> {
        let pages = pages.next_multiple_of(512);
        if pages > self.pages {
            return Err(format!("{} pages left", self.pages));
        }
        self.pages -= pages;
        let at = self.next;
        self.next += pages as u64 * 4096;
        Ok(((), at, pages))
    }
}

fn server(pages: usize) -> PageServer<Budget> {
    PageServer::new(Budget { next: 0, pages })
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
        waited: std::time::Duration::from_secs(1),
    }
}

/// Runs the next step as a willing firmware; the pages of a take come from `held`.
fn obey(server: &mut PageServer<Budget>, held: &mut BTreeMap<FunctionKey, BTreeSet<u64>>) -> bool {
    match server.next_step() {
        None => return false,
        Some(Step::Give { key, pages }) => {
            held.entry(key).or_default().extend(pages);
            server.gave(Ok(()));
        }
        Some(Step::CantGive { .. }) => server.gave(Ok(())),
        Some(Step::Take { key, count }) => {
            let pages = held.entry(key).or_default();
            let back: Vec<u64> = pages.iter().copied().take(count as usize).collect();
            back.iter().for_each(|page| {
                pages.remove(page);
            });
            server.took(Ok(&back));
        }
    }
    true
}

#[test]
fn never_gives_the_page_at_address_zero() {
    let mut s = server(512);
    s.request(PF, false, 511);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    assert_eq!(pages.len(), 511);
    assert!(!pages.contains(&0));
    s.gave(Ok(()));
    s.request(PF, false, 1);
    assert_eq!(
        s.next_step(),
        Some(Step::CantGive { key: PF }),
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
    while let Some(step) = s.next_step() {
        match step {
            Step::Give { key, pages } => {
                seen.push((key, pages.len() as i64));
                s.gave(Ok(()));
            }
            Step::Take { key, count } => {
                seen.push((key, -i64::from(count)));
                s.took(Ok(&[]));
            }
            Step::CantGive { .. } => panic!("there is memory"),
        }
    }
    assert_eq!(seen, [(PF, 10), (VF, 3), (PF, -10)]);
    assert_eq!(s.counts().held, 13);
}

#[test]
fn large_demands_are_cut_into_steps() {
    let mut s = server(1 << 20);
    s.request(PF, false, 120_001);
    let mut sizes = Vec::new();
    let mut all = BTreeSet::new();
    while let Some(Step::Give { pages, .. }) = s.next_step() {
        sizes.push(pages.len());
        all.extend(pages);
        assert!(s.next_step().is_none(), "one MANAGE_PAGES at a time");
        s.gave(Ok(()));
    }
    assert_eq!(sizes, [50_000, 50_000, 20_001]);
    s.request(PF, false, -100_000);
    let mut held = BTreeMap::from([(PF, all)]);
    let mut steps = 0;
    while obey(&mut s, &mut held) {
        steps += 1;
    }
    assert_eq!((steps, s.counts().held), (2, 20_001));
}

#[test]
fn a_demand_without_memory_is_refused_and_the_next_one_served() {
    let mut s = server(512);
    s.request(PF, false, 600);
    s.request(VF, false, 5);
    assert_eq!(s.next_step(), Some(Step::CantGive { key: PF }));
    s.gave(Ok(()));
    assert!(
        matches!(s.next_step(), Some(Step::Give { key, pages }) if key == VF && pages.len() == 5)
    );
}

#[test]
fn a_target_is_the_larger_of_two_and_ends_when_firmware_withdraws() {
    let mut s = server(4096);
    s.request(PF, false, 1000);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.gave(Ok(()));
    s.request(PF, false, -100);
    s.request(PF, false, -40);
    assert_eq!(
        s.next_step(),
        Some(Step::Take {
            key: PF,
            count: 100
        })
    );
    s.took(Ok(&pages[..99]));
    assert_eq!(
        s.next_step(),
        None,
        "fewer than asked: the hint is withdrawn"
    );
    s.request(PF, false, -2000);
    assert_eq!(
        s.next_step(),
        Some(Step::Take {
            key: PF,
            count: 901
        }),
        "never more than held"
    );
    s.took(Err(refused()));
    assert_eq!(s.next_step(), None);
    assert!(s.came_empty_handed());
}

#[test]
fn release_all_frees_without_a_command_and_never_twice() {
    let mut s = server(4096);
    s.request(VF, false, 50);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.gave(Ok(()));
    s.request(VF, false, -50);
    assert_eq!(s.next_step(), Some(Step::Take { key: VF, count: 50 }));
    s.request(VF, true, 0);
    assert_eq!(s.counts().held, 0);
    // The take that was in flight comes back with pages that are free already.
    s.took(Ok(&pages));
    assert_eq!(s.counts().unknown, 50);
    assert_eq!(s.next_step(), None);
    // All of them can be given once, and only once.
    s.request(PF, false, 511);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), 511);
}

#[test]
fn a_give_in_flight_survives_release_all() {
    let mut s = server(4096);
    s.request(VF, false, 50);
    s.request(PF, false, 7);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.request(VF, true, 0);
    s.gave(Ok(()));
    assert_eq!(s.counts().held, 50, "given after the release");
    let Some(Step::Give { pages: others, .. }) = s.next_step() else {
        panic!("no give")
    };
    assert!(others.iter().all(|page| !pages.contains(page)));
}

#[test]
fn only_a_refused_give_frees_its_pages() {
    let mut s = server(512);
    s.request(PF, false, 500);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.gave(Err(refused()));
    assert_eq!(s.next_step(), None, "firmware knows that it refused");
    s.request(PF, false, 500);
    let Some(Step::Give { pages: again, .. }) = s.next_step() else {
        panic!("no give")
    };
    assert_eq!(
        pages.iter().collect::<BTreeSet<_>>(),
        again.iter().collect()
    );
    s.gave(Err(timed_out()));
    assert_eq!(
        s.next_step(),
        Some(Step::CantGive { key: PF }),
        "nobody knows: answer it"
    );
    s.gave(Ok(()));
    s.request(PF, false, 500);
    assert_eq!(
        s.next_step(),
        Some(Step::CantGive { key: PF }),
        "those pages are lost"
    );
}

#[test]
fn pages_go_back_to_the_function_they_were_given_for() {
    let mut s = server(4096);
    s.request(PF, false, 4);
    let Some(Step::Give { pages, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.gave(Ok(()));
    s.request(EC, false, 4);
    let Some(Step::Give { pages: other, .. }) = s.next_step() else {
        panic!("no give")
    };
    s.gave(Ok(()));
    s.request(EC, false, -4);
    assert_eq!(s.next_step(), Some(Step::Take { key: EC, count: 4 }));
    let mixed = [other[0], pages[0], other[1], 0xdead_b000];
    s.took(Ok(&mixed));
    assert_eq!(s.holders(), [(PF, 4), (EC, 2)]);
    assert_eq!(s.counts().unknown, 2);
}

#[test]
fn startup_counts_may_be_zero_or_negative() {
    let mut s = server(4096);
    s.startup(PF, 0, 1);
    s.startup(PF, -7, 2);
    assert_eq!(s.take_outcomes(), [(1, Outcome::Done), (2, Outcome::Done)]);
    assert_eq!(s.next_step(), None, "nothing is held that could be taken");
    s.startup(PF, i32::MIN, 3);
    s.startup(PF, 5000, 4);
    assert_eq!(s.next_step(), None);
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
    assert!(matches!(s.next_step(), Some(Step::Give { .. })));
    s.gave(Err(refused()));
    assert_eq!(s.take_outcomes(), [(9, Outcome::Failed(refused()))]);
    s.startup(PF, 5000, 10);
    assert_eq!(s.next_step(), None);
    assert!(
        matches!(&s.take_outcomes()[..], [(10, Outcome::NoMemory(why))] if why.contains("0 pages left"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever firmware asks, in whatever order: no page is with two holders, and after a
    /// reclaim of all nothing is held.
    #[test]
    fn the_ledger_agrees_with_firmware(
        requests in prop::collection::vec((0u16..3, any::<bool>(), 0u8..10, -3000i32..3000), 1..60)
    ) {
        let mut s = server(1 << 16);
        let mut held: BTreeMap<FunctionKey, BTreeSet<u64>> = BTreeMap::new();
        for (function, embedded, release, count) in requests {
            let key = FunctionKey { function, embedded };
            s.request(key, release == 0, count);
            if release == 0 {
                held.remove(&key);
            }
            if release % 3 == 1 {
                while obey(&mut s, &mut held) {}
            }
        }
        while obey(&mut s, &mut held) {}
        let all: Vec<u64> = held.values().flatten().copied().collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        prop_assert_eq!(s.counts().held, all.len());
        prop_assert_eq!(s.counts().unknown, 0);
        s.reclaim_all();
        while obey(&mut s, &mut held) {}
        prop_assert_eq!(s.counts().held, 0);
    }
}
