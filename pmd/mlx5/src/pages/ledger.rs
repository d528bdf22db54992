//! What is known of firmware's pages: totals, one ledger per function, and how long steps took.
//! Plain values that everybody may read.

use super::FunctionKey;
use std::fmt;
use std::time::Duration;

/// What the page service has done so far, all functions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that firmware holds now.
    pub held: usize,
    /// Pages given since the start.
    pub given: u64,
    /// Pages taken back by TAKE.
    pub taken: u64,
    /// Pages that firmware dropped by "release all".
    pub released: u64,
    /// CANT_GIVE sent.
    pub refused: u64,
    /// Gives that firmware did not accept, or that nobody knows the end of.
    pub dropped: u64,
    /// Addresses that firmware returned without holding them, and answers with more pages than
    /// were asked for: the device is corrupt.
    pub unknown: u64,
    /// Pages returned by a TAKE that firmware had dropped by "release all" meanwhile.
    pub crossed: u64,
    /// MANAGE_PAGES done.
    pub steps: u64,
}

/// The pages of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionPages {
    /// Whose.
    pub key: FunctionKey,
    /// Pages given since the start.
    pub given: u64,
    /// Pages that came back, by TAKE or because firmware dropped them.
    pub returned: u64,
    /// Pages that firmware holds now.
    pub outstanding: usize,
    /// Of these, pages whose GIVE was answered after firmware had dropped all of the function's:
    /// they count as given after that, but may have been dropped with the others.
    pub doubtful: usize,
    /// Pages whose GIVE failed: free again if firmware refused them, kept aside if nobody knows.
    pub failed: u64,
    /// CANT_GIVE sent.
    pub refused: u64,
    /// Addresses that came back and were not this function's.
    pub corrupt: u64,
    /// Pages that are still to be taken back.
    pub target: u32,
    /// Pages that firmware waits for.
    pub wanted: u64,
    /// MANAGE_PAGES done.
    pub steps: u64,
    /// Pages of the largest.
    pub largest_step: u32,
    /// Time that the one which took longest kept the control thread, both halves together: filling
    /// and posting, reading and booking. The device's own time is not in it.
    pub longest_step: Duration,
}

/// What a step cost the control thread, both halves together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Time by the clock.
    pub wall: Duration,
    /// Time on a CPU.
    pub cpu: Duration,
    /// How often the kernel gave its CPU to somebody else.
    pub preemptions: u64,
    /// Page faults that it took.
    pub page_faults: u64,
}

impl std::ops::AddAssign for StepCost {
    fn add_assign(&mut self, more: Self) {
        self.wall += more.wall;
        self.cpu += more.cpu;
        self.preemptions += more.preemptions;
        self.page_faults += more.page_faults;
    }
}

/// The memory that pages are cut from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageMemoryReport {
    /// Mapped blocks.
    pub blocks: usize,
    /// Blocks of which no page is out; they stay for the next demand, or are unmapped one by one.
    pub idle_blocks: usize,
    /// Pages of all blocks.
    pub pages: usize,
    /// Pages that can be given at once.
    pub free: usize,
    /// Blocks unmapped since the start.
    pub unmapped: u64,
}

/// Everything about firmware's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageReport {
    /// Totals.
    pub counts: PageCounts,
    /// Every function that ever had a page or asked for one, in the order of appearance.
    pub functions: Vec<FunctionPages>,
    /// Memory.
    pub memory: PageMemoryReport,
    /// How long steps kept the control thread.
    pub steps: StepTimes,
    /// For how much of that it had a CPU: the rest belongs to whoever interrupted it.
    pub cpu: StepTimes,
    /// The step that kept it longest.
    pub longest: StepCost,
    /// Mailboxes that MANAGE_PAGES has, made once; no step allocates any.
    pub mailboxes: usize,
    /// A MANAGE_PAGES is under way whose time is over. No other one is sent until it is answered.
    pub overdue: bool,
    /// Most steps that began while another command waited to be posted.
    pub command_wait_steps: u64,
}

/// Buckets of a power of two.
const PARTS: usize = 8;
const LOG_PARTS: u32 = PARTS.trailing_zeros();
const BUCKETS: usize = 40 * PARTS;

/// Times of steps in a histogram with eight buckets per power of two, so that a value is known to
/// an eighth. Fixed in size.
#[derive(Clone, PartialEq, Eq)]
pub struct StepTimes {
    counts: Box<[u64; BUCKETS]>,
    number: u64,
    total: Duration,
    longest: Duration,
}

impl Default for StepTimes {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            number: 0,
            total: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }
}

impl fmt::Debug for StepTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepTimes")
            .field("number", &self.number)
            .field("p50", &self.quantile(500))
            .field("p99", &self.quantile(990))
            .field("longest", &self.longest)
            .finish()
    }
}

/// Largest value of a bucket in nanoseconds.
fn edge(bucket: usize) -> u64 {
    let (power, part) = (bucket as u32 / PARTS as u32, bucket as u64 % PARTS as u64);
    if power == 0 {
        return part;
    }
    ((PARTS as u64 + part + 1) << (power - 1)) - 1
}

fn bucket(nanos: u64) -> usize {
    if nanos < PARTS as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2() + 1 - LOG_PARTS;
    let part = (nanos >> (power - 1)) as usize & (PARTS - 1);
    (power as usize * PARTS + part).min(BUCKETS - 1)
}

impl FromIterator<Duration> for StepTimes {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut all = Self::default();
        times.into_iter().for_each(|time| all.record(time));
        all
    }
}

impl StepTimes {
    /// Counts one step.
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count += 1;
        }
        self.number += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }

    /// Steps counted.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All steps together.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The time that so many of a thousand steps do not exceed.
    pub fn quantile(&self, permille: u64) -> Duration {
        let rank = (self.number * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(edge(bucket)).min(self.longest);
            }
        }
        self.longest
    }

    /// Every bucket that holds something: its largest value, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (Duration::from_nanos(edge(bucket)), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        let powers = (0..38).flat_map(|k| [(1u64 << k) - 1, 1 << k, (1 << k) + 1]);
        for nanos in (0..5000).chain(powers) {
            let at = bucket(nanos);
            assert!(nanos <= edge(at), "{nanos}");
            assert!(at == 0 || edge(at - 1) < nanos, "{nanos}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_known_times() {
        let mut times = StepTimes::default();
        (0..98).for_each(|_| times.record(Duration::from_micros(100)));
        times.record(Duration::from_micros(300));
        times.record(Duration::from_millis(2));
        assert_eq!(
            (times.number(), times.longest()),
            (100, Duration::from_millis(2))
        );
        let near = |permille, micros: u128| {
            let found = times.quantile(permille).as_micros();
            assert!(found >= micros && found <= micros + micros / 7, "{found}");
        };
        near(500, 100);
        near(990, 300);
        near(1000, 2000);
        assert_eq!(times.buckets().map(|(_, n)| n).sum::<u64>(), 100);
    }

    #[test]
    fn no_step_takes_no_time() {
        assert_eq!(StepTimes::default().quantile(990), Duration::ZERO);
    }
}
