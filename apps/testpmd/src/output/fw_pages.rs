//! Pages that a port's firmware holds: a ledger per function, as a table for people and as a
//! value for programs.

use std::fmt;
use std::time::Duration;

use pollux::{FunctionPages, PageReport};
use serde::Serialize;

/// The pages of one port.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct FwPages {
    /// The port's number.
    pub port: u16,
    /// Pages that firmware holds.
    pub held: usize,
    /// Pages given since the start.
    pub given: u64,
    /// Pages taken back.
    pub taken: u64,
    /// Pages that firmware dropped of its own accord.
    pub released: u64,
    /// Demands that could not be met.
    pub refused: u64,
    /// Gives that failed.
    pub dropped: u64,
    /// Addresses that firmware returned without holding them.
    pub corrupt: u64,
    /// MANAGE_PAGES commands.
    pub steps: u64,
    /// 99 of 100 steps took no longer, in microseconds.
    pub step_us_p99: f64,
    /// The longest step.
    pub step_us_max: f64,
    /// For how much of it the driver had a CPU; others had it for the rest.
    pub longest_cpu_us: f64,
    /// How often the CPU was taken away in it.
    pub longest_preemptions: u64,
    /// A command is under way whose time is over, and no other one is sent.
    pub overdue: bool,
    /// Mailboxes of a step, made once.
    pub mailboxes: usize,
    /// Most steps that another command waited for.
    pub command_wait_steps: u64,
    /// Page memory: mapped pages, those that are free, blocks, blocks of which no page is out.
    pub mapped: usize,
    /// Of these, free.
    pub free: usize,
    /// Mapped blocks.
    pub blocks: usize,
    /// Of these, idle.
    pub idle_blocks: usize,
    /// One per function.
    pub functions: Vec<FunctionLine>,
}

/// One function's ledger.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct FunctionLine {
    /// Function id.
    pub function: u16,
    /// The embedded CPU's.
    pub embedded: bool,
    /// Pages given.
    pub given: u64,
    /// Pages that came back.
    pub returned: u64,
    /// Pages that it holds.
    pub outstanding: usize,
    /// Of these, pages that it may have dropped.
    pub doubtful: usize,
    /// Pages whose GIVE failed.
    pub failed: u64,
    /// CANT_GIVE sent.
    pub refused: u64,
    /// Addresses that were not its own.
    pub corrupt: u64,
    /// Pages to be taken back.
    pub target: u32,
    /// Pages that it waits for.
    pub wanted: u64,
    /// MANAGE_PAGES commands.
    pub steps: u64,
    /// Pages of the largest.
    pub largest_step: u32,
    /// Time of the longest in microseconds.
    pub longest_step_us: f64,
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl From<&FunctionPages> for FunctionLine {
    fn from(f: &FunctionPages) -> Self {
        Self {
            function: f.key.function,
            embedded: f.key.embedded,
            given: f.given,
            returned: f.returned,
            outstanding: f.outstanding,
            doubtful: f.doubtful,
            failed: f.failed,
            refused: f.refused,
            corrupt: f.corrupt,
            target: f.target,
            wanted: f.wanted,
            steps: f.steps,
            largest_step: f.largest_step,
            longest_step_us: micros(f.longest_step),
        }
    }
}

impl FwPages {
    /// What the driver reports of a port.
    pub fn new(port: u16, report: &PageReport) -> Self {
        let (counts, memory) = (&report.counts, &report.memory);
        Self {
            port,
            held: counts.held,
            given: counts.given,
            taken: counts.taken,
            released: counts.released,
            refused: counts.refused,
            dropped: counts.dropped,
            corrupt: counts.unknown,
            steps: counts.steps,
            step_us_p99: micros(report.steps.quantile(990)),
            step_us_max: micros(report.steps.longest()),
            longest_cpu_us: micros(report.longest.cpu),
            longest_preemptions: report.longest.preemptions,
            overdue: report.overdue,
            mailboxes: report.mailboxes,
            command_wait_steps: report.command_wait_steps,
            mapped: memory.pages,
            free: memory.free,
            blocks: memory.blocks,
            idle_blocks: memory.idle_blocks,
            functions: report.functions.iter().map(FunctionLine::from).collect(),
        }
    }
}

impl fmt::Display for FwPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        writeln!(f, "Firmware pages of port {}", self.port)?;
        writeln!(
            f,
            "held: {}, given: {}, taken back: {}, released: {}, refused: {}, failed gives: {}, corrupt: {}",
            self.held,
            self.given,
            self.taken,
            self.released,
            self.refused,
            self.dropped,
            self.corrupt
        )?;
        writeln!(
            f,
            "steps: {}, p99 {:.1} us, longest {:.1} us ({:.1} us on a CPU, which was taken away {} times); {} mailboxes; other commands waited for at most {}",
            self.steps,
            self.step_us_p99,
            self.step_us_max,
            self.longest_cpu_us,
            self.longest_preemptions,
            self.mailboxes,
            self.command_wait_steps
        )?;
        if self.overdue {
            writeln!(
                f,
                "a command is not answered in time: no request is served until it is"
            )?;
        }
        writeln!(
            f,
            "memory: {} pages in {} blocks, {} free, {} blocks idle",
            self.mapped, self.blocks, self.free, self.idle_blocks
        )?;
        writeln!(
            f,
            "{:<10} {:>9} {:>9} {:>11} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8} {:>10}",
            "function",
            "given",
            "returned",
            "outstanding",
            "failed",
            "refused",
            "corrupt",
            "target",
            "wanted",
            "largest",
            "longest us"
        )?;
        for line in &self.functions {
            let cpu = if line.embedded { " (ec)" } else { "" };
            writeln!(
                f,
                "{:<10} {:>9} {:>9} {:>11} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8} {:>10.1}",
                format!("{:#x}{cpu}", line.function),
                line.given,
                line.returned,
                line.outstanding,
                line.failed,
                line.refused,
                line.corrupt,
                line.target,
                line.wanted,
                line.largest_step,
                line.longest_step_us
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux::FunctionKey;

    fn report() -> PageReport {
        let mut report = PageReport::default();
        report.counts.held = 606;
        report.counts.given = 1_300_606;
        report.counts.taken = 1_300_000;
        report.counts.refused = 2;
        report.counts.unknown = 1;
        report.counts.steps = 54;
        report.mailboxes = 782;
        report.command_wait_steps = 1;
        report.memory.pages = 1_310_720;
        report.memory.free = 1_310_114;
        report.memory.blocks = 80;
        report.memory.idle_blocks = 79;
        let usual = std::iter::repeat_n(Duration::from_micros(225), 99);
        report.steps = usual.chain([Duration::from_nanos(412_340)]).collect();
        report.longest.cpu = Duration::from_micros(301);
        report.longest.preemptions = 1;
        report.functions = vec![
            FunctionPages {
                given: 606,
                outstanding: 606,
                doubtful: 5,
                refused: 2,
                corrupt: 1,
                target: 7,
                wanted: 9,
                steps: 2,
                largest_step: 606,
                longest_step: Duration::from_micros(12),
                ..FunctionPages::default()
            },
            FunctionPages {
                key: FunctionKey {
                    function: 0x1f,
                    embedded: true,
                },
                given: 1_300_000,
                returned: 1_300_000,
                steps: 52,
                largest_step: 50_000,
                longest_step: Duration::from_nanos(412_340),
                ..FunctionPages::default()
            },
        ];
        report
    }

    #[test]
    fn people_see_a_line_per_function() {
        let text = FwPages::new(3, &report()).to_string();
        let wanted = "
Firmware pages of port 3
held: 606, given: 1300606, taken back: 1300000, released: 0, refused: 2, failed gives: 0, corrupt: 1
steps: 54, p99 229.4 us, longest 412.3 us (301.0 us on a CPU, which was taken away 1 times); 782 mailboxes; other commands waited for at most 1
memory: 1310720 pages in 80 blocks, 1310114 free, 79 blocks idle
function       given  returned outstanding  failed refused corrupt    target    wanted  largest longest us
0x0              606         0         606       0       2       1         7         9      606       12.0
0x1f (ec)    1300000   1300000           0       0       0       0         0         0    50000      412.3
";
        assert_eq!(text, wanted);
        let mut late = report();
        late.overdue = true;
        let text = FwPages::new(3, &late).to_string();
        assert!(text.contains("\na command is not answered in time"));
    }

    #[test]
    fn programs_get_the_same() {
        let value = serde_json::to_value(FwPages::new(3, &report())).unwrap();
        let wanted = serde_json::json!({
            "port": 3, "held": 606, "given": 1_300_606, "taken": 1_300_000, "released": 0,
            "refused": 2, "dropped": 0, "corrupt": 1, "steps": 54, "step_us_p99": 229.375,
            "step_us_max": 412.34, "longest_cpu_us": 301.0, "longest_preemptions": 1,
            "overdue": false, "mailboxes": 782, "command_wait_steps": 1, "mapped": 1_310_720,
            "free": 1_310_114, "blocks": 80, "idle_blocks": 79,
            "functions": [
                {"function": 0, "embedded": false, "given": 606, "returned": 0,
                 "outstanding": 606, "doubtful": 5, "failed": 0, "refused": 2, "corrupt": 1,
                 "target": 7, "wanted": 9, "steps": 2, "largest_step": 606,
                 "longest_step_us": 12.0},
                {"function": 31, "embedded": true, "given": 1_300_000, "returned": 1_300_000,
                 "outstanding": 0, "doubtful": 0, "failed": 0, "refused": 0, "corrupt": 0,
                 "target": 0, "wanted": 0, "steps": 52, "largest_step": 50_000,
                 "longest_step_us": 412.34},
            ],
        });
        assert_eq!(value, wanted);
    }
}
