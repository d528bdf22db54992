//! The ring under loom: every interleaving of a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pollux-mempool --test loom --release`
#![cfg(loom)]
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use loom::thread;
use pollux_mempool::ring::{Multi, Ring, Single};

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three forced switches reach every bug of two or three short threads, in minutes.
    builder.preemption_bound = Some(3);
    builder.check(f);
}

type Shared = Arc<Ring<u32, Multi, Multi>>;

/// Runs `f` twice at once. Not on the model's first thread, whose next step loom takes
/// before all others.
fn in_two_threads<R: 'static>(ring: &Shared, f: fn(&Shared) -> R) -> [R; 2] {
    let threads = [0, 1].map(|_| {
        let ring = ring.clone();
        thread::spawn(move || f(&ring))
    });
    threads.map(|t| t.join().unwrap())
}

#[test]
fn one_to_one_keeps_order_and_reuses_cells() {
    model(|| {
        let (mut p, mut c) = Ring::<u32, Single, Single>::with_capacity(2)
            .unwrap()
            .split();
        let producer = thread::spawn(move || {
            for value in 0..3 {
                while p.enqueue(value).is_err() {
                    thread::yield_now();
                }
            }
        });
        for expect in 0..3 {
            let got = loop {
                match c.dequeue() {
                    Some(v) => break v,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, expect);
        }
        producer.join().unwrap();
        assert!(c.dequeue().is_none());
    });
}

#[test]
fn two_producers_lose_nothing_and_keep_their_order() {
    model(|| {
        let (p, mut c) = Ring::<u32, Multi, Single>::with_capacity(4)
            .unwrap()
            .split();
        let threads: Vec<_> = [10, 20]
            .into_iter()
            .map(|base| {
                let mut p = p.clone();
                thread::spawn(move || assert!(p.enqueue_bulk(&[base, base + 1])))
            })
            .collect();
        // A few looks while they are at it (a loop without end would wait for a waiter,
        // endlessly for loom), the rest afterwards.
        let mut into = [0; 4];
        let mut n = 0;
        for _ in 0..3 {
            n += c.dequeue_burst(&mut into[n..]);
            thread::yield_now();
        }
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(c.dequeue_burst(&mut into[n..]), 4 - n);
        let got = into;
        // A batch stays together.
        assert!(
            got == [10, 11, 20, 21] || got == [20, 21, 10, 11],
            "{got:?}"
        );
    });
}

#[test]
fn two_consumers_share_without_overlap() {
    model(|| {
        let (mut p, c) = Ring::<u32, Single, Multi>::with_capacity(4)
            .unwrap()
            .split();
        assert!(p.enqueue_bulk(&[1, 2, 3]));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mut c = c.clone();
                thread::spawn(move || {
                    let mut into = [0; 2];
                    let n = c.dequeue_burst(&mut into);
                    into[..n].to_vec()
                })
            })
            .collect();
        let mut got: Vec<u32> = threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect();
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    });
}

#[test]
fn all_or_nothing_is_decided_once() {
    model(|| {
        let ring = Arc::new(Ring::<u32, Multi, Multi>::with_capacity(3).unwrap());
        assert!(ring.enqueue_bulk(&[1, 2, 3]));
        let both = in_two_threads(&ring, |ring| {
            let mut into = [0; 2];
            ring.dequeue_bulk(&mut into)
        });
        let [mine, theirs] = both;
        // Three values serve exactly one of two gets of two.
        assert!(mine != theirs);
        assert_eq!(ring.len(), 1);
    });
}

#[test]
fn a_full_ring_passes_cells_back_and_forth() {
    model(|| {
        let ring = Arc::new(Ring::<u32, Multi, Multi>::with_capacity(1).unwrap());
        assert!(ring.enqueue(1).is_ok());
        // As a pool does: take one, give one back.
        in_two_threads(&ring, |ring| {
            if let Some(v) = ring.dequeue() {
                assert!(ring.enqueue(v).is_ok());
            }
        });
        assert_eq!(ring.dequeue(), Some(1));
    });
}
