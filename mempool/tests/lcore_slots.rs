//! All slots taken at once. Alone in its process, since slots are the process's.
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pollux_mempool::{Lcore, MemoryError, lcore};

#[test]
fn slots_are_unique_and_bounded() {
    let barrier = std::sync::Barrier::new(lcore::MAX_LCORES + 1);
    let slots: Vec<usize> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..lcore::MAX_LCORES)
            .map(|_| {
                s.spawn(|| {
                    let guard = Lcore::register().unwrap();
                    barrier.wait();
                    barrier.wait();
                    guard.slot()
                })
            })
            .collect();
        barrier.wait();
        let e = Lcore::register().unwrap_err();
        assert!(matches!(e, MemoryError::NoSlot { max: 128, .. }), "{e}");
        barrier.wait();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut unique = slots.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), lcore::MAX_LCORES);
    assert!(unique.iter().all(|s| *s < lcore::MAX_LCORES));
    // All free again.
    assert!(Lcore::register().is_ok());
}
