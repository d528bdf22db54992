//! How long the forwarding cores went without polling.

use std::fmt;
use std::time::Duration;

/// One core's gaps between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreGaps {
    /// CPU number.
    pub cpu: usize,
    /// Gaps measured.
    pub count: u64,
    /// Half of the gaps are shorter.
    pub p50: Duration,
    /// 99 of 100 are shorter.
    pub p99: Duration,
    /// 999 of 1000 are shorter.
    pub p999: Duration,
    /// The longest.
    pub longest: Duration,
    /// Time in gaps above 10 us, in millionths of the time observed.
    pub lost_ppm: u64,
    /// Gaps above 10 us.
    pub long_gaps: u64,
    /// Time observed.
    pub observed: Duration,
    /// The core shares its CPU with the emulator.
    pub yields: bool,
}

impl fmt::Display for CoreGaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "poll gaps on core {}{}: p50 {}, p99 {}, p99.9 {}, longest {}; {} gaps above 10 us took {} ppm of {:.3} s ({} polls)",
            self.cpu,
            if self.yields { " (shares its CPU)" } else { "" },
            time_text(self.p50),
            time_text(self.p99),
            time_text(self.p999),
            time_text(self.longest),
            self.long_gaps,
            self.lost_ppm,
            self.observed.as_secs_f64(),
            self.count
        )
    }
}

/// A time with the unit that fits it.
pub fn time_text(t: Duration) -> String {
    let ns = t.as_nanos();
    if ns < 10_000 {
        format!("{ns} ns")
    } else if ns < 10_000_000 {
        format!("{:.1} us", ns as f64 / 1e3)
    } else {
        format!("{:.1} ms", ns as f64 / 1e6)
    }
}
