//! What a piece of work costs the control thread: time on the clock, time on a CPU, and what the
//! kernel did to it meanwhile. A step that took long and had the CPU for little of it was
//! interrupted; nothing in this program can make it shorter.

use crate::pages::StepCost;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// A piece of work under way.
pub(super) struct Meter {
    wall: Instant,
    before: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    cpu: Duration,
    preemptions: i64,
    page_faults: i64,
}

impl Counts {
    /// Of this thread so far; zeros where the kernel does not tell.
    fn now() -> Self {
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        let usage = getrusage(UsageWho::RUSAGE_THREAD);
        Self {
            cpu: cpu.map(Duration::from).unwrap_or_default(),
            preemptions: usage.map_or(0, |u| u.involuntary_context_switches()),
            page_faults: usage.map_or(0, |u| u.minor_page_faults() + u.major_page_faults()),
        }
    }
}

impl Meter {
    /// Begins.
    pub(super) fn start() -> Self {
        let before = Counts::now();
        Self {
            wall: Instant::now(),
            before,
        }
    }

    /// When it began.
    pub(super) fn began(&self) -> Instant {
        self.wall
    }

    /// What it cost until now.
    pub(super) fn cost(&self) -> StepCost {
        let wall = self.wall.elapsed();
        let now = Counts::now();
        let since = |now: i64, before: i64| u64::try_from(now - before).unwrap_or(0);
        StepCost {
            wall,
            cpu: now.cpu.saturating_sub(self.before.cpu),
            preemptions: since(now.preemptions, self.before.preemptions),
            page_faults: since(now.page_faults, self.before.page_faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_no_cpu_time() {
        let meter = Meter::start();
        std::thread::sleep(Duration::from_millis(30));
        let slept = meter.cost();
        assert!(slept.wall >= Duration::from_millis(30));
        assert!(slept.cpu < slept.wall);
        let meter = Meter::start();
        let memory = vec![1u8; 4 << 20];
        assert_eq!(std::hint::black_box(&memory).len(), 4 << 20);
        assert!(meter.cost().page_faults > 0);
        assert!(meter.cost().cpu > Duration::ZERO);
    }
}
