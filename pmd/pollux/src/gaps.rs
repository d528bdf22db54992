//! Gaps between polls: how long a poll loop looked away.
//!
//! A loop is written once, generic over [`PollClock`], and compiled twice: with [`NoClock`], which
//! is nothing at all, and with [`GapRecorder`], which reads the cycle counter once per poll and
//! counts the time since the last poll. The choice is made when the loop starts, so that the
//! loop without measurement never reads a clock.
//!
//! ```
//! use pollux::gaps::{GapRecorder, NoClock, PollClock};
//!
//! fn poll_loop<C: PollClock>(mut clock: C, turns: usize) -> C {
//!     for _ in 0..turns {
//!         clock.poll();
//!         // burst in, work, burst out
//!     }
//!     clock
//! }
//! poll_loop(NoClock, 1000);
//! let gaps = poll_loop(GapRecorder::new(), 1000).report();
//! assert_eq!(gaps.gaps, 999);
//! ```

use pollux_mempool::cycles;
use std::fmt;
use std::time::Duration;

/// A gap longer than this counts as time lost: at 10 Mpps a ring of 128 descriptors fills in it.
pub const LONG_GAP: Duration = Duration::from_micros(10);

/// What a poll loop calls once per turn.
pub trait PollClock {
    /// A turn begins.
    fn poll(&mut self);
    /// The loop leaves off on purpose (it yields its CPU, or stops); the time until the next
    /// [`poll`](Self::poll) is no gap.
    fn pause(&mut self);
    /// What was recorded; `None` for a clock that records nothing.
    fn gaps(&self) -> Option<GapReport>;
}

/// No measurement: compiles to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClock;

impl PollClock for NoClock {
    #[inline(always)]
    fn poll(&mut self) {}
    #[inline(always)]
    fn pause(&mut self) {}
    fn gaps(&self) -> Option<GapReport> {
        None
    }
}

/// Values below this have a bucket each; above, each power of two has [`STEPS`] buckets.
const STEPS: usize = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// The bucket of a value: 3 % wide at most.
#[inline(always)]
fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let top = value.ilog2() + 1 - STEP_BITS;
    top as usize * STEPS + ((value >> (top - 1)) as usize & (STEPS - 1))
}

/// The largest value of a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let (top, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    if top == 0 {
        return step;
    }
    let shift = (top - 1) as u32;
    let base = u128::from(STEPS as u64 | step);
    let edge = ((base + 1) << shift) - 1;
    u64::try_from(edge).unwrap_or(u64::MAX)
}

/// Counts gaps in a histogram of fixed size (15 KiB), allocated when it is made.
#[derive(Clone)]
pub struct GapRecorder {
    last: Option<u64>,
    long: u64,
    counts: Box<[u64; BUCKETS]>,
    gaps: u64,
    total: u64,
    lost: u64,
    lost_gaps: u64,
    longest: u64,
}

impl Default for GapRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GapRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt(f)
    }
}

impl GapRecorder {
    /// A recorder with nothing in it. Finds the counter's frequency, which may take 20 ms once.
    pub fn new() -> Self {
        Self {
            last: None,
            long: cycles::from_duration(LONG_GAP),
            counts: Box::new([0; BUCKETS]),
            gaps: 0,
            total: 0,
            lost: 0,
            lost_gaps: 0,
            longest: 0,
        }
    }

    /// Counts one gap of so many cycles.
    #[inline]
    pub fn record(&mut self, gap: u64) {
        if let Some(count) = self.counts.get_mut(bucket(gap)) {
            *count = count.wrapping_add(1);
        }
        self.gaps = self.gaps.wrapping_add(1);
        self.total = self.total.wrapping_add(gap);
        if gap > self.long {
            self.lost = self.lost.wrapping_add(gap);
            self.lost_gaps = self.lost_gaps.wrapping_add(1);
        }
        self.longest = self.longest.max(gap);
    }

    /// Adds what another lcore recorded.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.wrapping_add(*more);
        }
        self.gaps = self.gaps.wrapping_add(other.gaps);
        self.total = self.total.wrapping_add(other.total);
        self.lost = self.lost.wrapping_add(other.lost);
        self.lost_gaps = self.lost_gaps.wrapping_add(other.lost_gaps);
        self.longest = self.longest.max(other.longest);
    }

    /// Forgets what was recorded; allocates nothing.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.last = None;
        (self.gaps, self.total) = (0, 0);
        (self.lost, self.lost_gaps, self.longest) = (0, 0, 0);
    }

    /// The gap that this share of all gaps does not exceed, in cycles.
    fn quantile(&self, permille: u64) -> u64 {
        let rank = (u128::from(self.gaps) * u128::from(permille))
            .div_ceil(1000)
            .max(1);
        let mut seen = 0u128;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                // No gap was longer than the longest.
                return upper_edge(index).min(self.longest);
            }
        }
        self.longest
    }

    /// Every bucket that holds something: its largest gap, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (cycles::to_duration(upper_edge(bucket)), *count))
    }

    /// What was recorded, as times.
    pub fn report(&self) -> GapReport {
        let (time, share) = (cycles::to_duration, |part: u64| {
            let ppm = u128::from(part) * 1_000_000 / u128::from(self.total.max(1));
            u64::try_from(ppm).unwrap_or(u64::MAX)
        });
        GapReport {
            gaps: self.gaps,
            p50: time(self.quantile(500)),
            p99: time(self.quantile(990)),
            p999: time(self.quantile(999)),
            longest: time(self.longest),
            wall: time(self.total),
            long_gaps: self.lost_gaps,
            lost_ppm: share(self.lost),
        }
    }
}

impl PollClock for GapRecorder {
    #[inline]
    fn poll(&mut self) {
        let now = cycles::now();
        if let Some(last) = self.last.replace(now) {
            // A counter that ran backwards (another CPU's) is no gap.
            let gap = now.wrapping_sub(last);
            self.record(if gap > u64::MAX / 2 { 0 } else { gap });
        }
    }

    #[inline]
    fn pause(&mut self) {
        self.last = None;
    }

    fn gaps(&self) -> Option<GapReport> {
        Some(self.report())
    }
}

/// Gaps between polls as people read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapReport {
    /// Gaps counted: one less than the polls of an unbroken run.
    pub gaps: u64,
    /// Half of all gaps are at most this long.
    pub p50: Duration,
    /// 99 % are.
    pub p99: Duration,
    /// 99.9 % are.
    pub p999: Duration,
    /// The longest.
    pub longest: Duration,
    /// All gaps together: the time the loop ran.
    pub wall: Duration,
    /// Gaps above [`LONG_GAP`].
    pub long_gaps: u64,
    /// Their share of the time, in parts per million.
    pub lost_ppm: u64,
}

impl fmt::Display for GapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            p50,
            p99,
            p999,
            longest,
            long_gaps,
            lost_ppm,
            ..
        } = self;
        write!(
            f,
            "gaps between polls: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, longest {longest:?}; \
             {long_gaps} above {LONG_GAP:?} took {lost_ppm} ppm of the time"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let edges = (0..64).flat_map(|k| [(1u64 << k) - 1, 1 << k, (1 << k) + 1]);
        for value in (0..10_000).chain(edges).chain([u64::MAX - 1, u64::MAX]) {
            let at = bucket(value);
            assert!(at < BUCKETS, "{value}");
            assert!(value <= upper_edge(at), "{value}");
            assert!(at == 0 || upper_edge(at - 1) < value, "{value}");
            assert!(
                upper_edge(at) - value <= value / 32,
                "{value}: 3 % and no more"
            );
        }
    }

    #[test]
    fn quantiles_of_known_gaps() {
        let hz = cycles::frequency();
        let micro = |n: u64| n * hz / 1_000_000;
        let mut recorder = GapRecorder::new();
        // 989 short ones, 10 of 5 us, one of 2 ms.
        (0..989).for_each(|_| recorder.record(100));
        (0..10).for_each(|_| recorder.record(micro(5)));
        recorder.record(micro(2000));
        let report = recorder.report();
        assert_eq!(report.gaps, 1000);
        let near = |time: Duration, cycles: u64| {
            let want = cycles as f64 / hz as f64;
            let ratio = time.as_secs_f64() / want;
            assert!(
                (0.96..1.04).contains(&ratio),
                "{time:?} for {cycles} cycles"
            );
        };
        near(report.p50, 100);
        near(report.p99, micro(5));
        near(report.p999, micro(5));
        near(report.longest, micro(2000));
        assert_eq!(report.long_gaps, 1);
        let counts: Vec<u64> = recorder.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts, [989, 10, 1]);
        let total = 989 * 100 + 10 * micro(5) + micro(2000);
        assert_eq!(report.lost_ppm, micro(2000) * 1_000_000 / total);
    }

    #[test]
    fn merging_is_adding() {
        let (mut one, mut other, mut both) =
            (GapRecorder::new(), GapRecorder::new(), GapRecorder::new());
        for gap in [1, 77, 4096, 1 << 40] {
            one.record(gap);
            both.record(gap);
            other.record(gap * 3);
            both.record(gap * 3);
        }
        one.merge(&other);
        assert_eq!(one.report(), both.report());
        one.clear();
        assert_eq!(one.report(), GapRecorder::new().report());
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let report = GapRecorder::new().report();
        assert_eq!((report.gaps, report.lost_ppm), (0, 0));
        assert_eq!(
            (report.p50, report.longest),
            (Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn a_pause_is_no_gap() {
        let mut recorder = GapRecorder::new();
        recorder.poll();
        recorder.pause();
        std::thread::sleep(Duration::from_millis(20));
        recorder.poll();
        assert_eq!(recorder.report().gaps, 0);
        recorder.poll();
        assert_eq!(recorder.report().gaps, 1);
        std::thread::sleep(Duration::from_millis(20));
        recorder.poll();
        assert!(recorder.report().longest >= Duration::from_millis(19));
        assert_eq!(NoClock.gaps(), None);
    }

    #[test]
    fn the_report_is_one_line() {
        let mut recorder = GapRecorder::new();
        recorder.record(1000);
        let text = recorder.report().to_string();
        for word in ["p50", "p99", "p99.9", "longest", "ppm"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(!text.contains('\n'));
    }
}
