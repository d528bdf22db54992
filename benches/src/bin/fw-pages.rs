//! Firmware page requests: how fast millions of pages come back, how long a step keeps the control
//! thread, and what an lcore on another CPU notices of it.
//!
//! Two CPUs: the lcore has the last one that is allowed, everything else the first one. With
//! `--save DIR` the histograms are written there, and drawn.
#![forbid(unsafe_code)]

use pollux_benches::draw::draw;
use pollux_benches::figures::{Figures, Options, median};
use pollux_benches::forwarder::{Forwarder, own_testpmd};
use pollux_benches::pages::{Rig, uncapped, untouched};
use pollux_benches::quiet::{Quiet, busy, idle, observe};
use pollux_mempool::lcore;
use pollux_mlx5::{HostSide, MAX_PAGES_PER_STEP, PageOptions};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const MILLIONS: [(&str, u32); 2] = [("1300k", 1_300_000), ("8m", 8_000_000)];
const SOURCE: u32 = 1_300_000;
/// Time that the lcore is watched in one run, and the pause before it: together more than twice
/// the window, because Linux takes a real-time thread off its CPU that has had more than 95 % of
/// the last second.
const WINDOW: Duration = Duration::from_millis(400);
const PAUSE: Duration = Duration::from_millis(700);
/// Laps of the lcore between two steps of the reclaim that it does itself.
const LAPS: usize = 300;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The time that so many of a thousand do not exceed.
fn quantile(times: &mut [Duration], permille: usize) -> Duration {
    times.sort_unstable();
    let at = (times.len() * permille).div_ceil(1000).saturating_sub(1);
    times.get(at).copied().unwrap_or_default()
}

struct Bench {
    figures: Figures,
    histograms: String,
    sabotage: bool,
    rounds: usize,
}

impl Bench {
    fn options(&self) -> PageOptions {
        if self.sabotage {
            uncapped(SOURCE)
        } else {
            untouched()
        }
    }

    /// One line of a histogram: its name, the upper edge in nanoseconds, the count.
    fn histogram(&mut self, name: &str, buckets: impl Iterator<Item = (Duration, u64)>) {
        for (edge, count) in buckets {
            // Writing to a string cannot fail.
            _ = writeln!(self.histograms, "{name}\t{}\t{count}", edge.as_nanos());
        }
    }

    /// Millions back and forth, as the driver does it.
    fn speed(&mut self) -> Result<(), String> {
        let rig = Rig::new(&[("wire", "null")], self.options())?;
        // Once before, so that memory is mapped and tables have their size.
        rig.give(MILLIONS[1].1)?;
        rig.take(MILLIONS[1].1)?;
        let before = rig.report();
        let mut given = Duration::ZERO;
        for (name, pages) in MILLIONS {
            let mut times = Vec::new();
            for _ in 0..self.rounds.min(5) {
                given += rig.give(pages)?;
                times.push(millis(rig.take(pages)?));
            }
            self.figures
                .add(&format!("reclaim_{name}_ms"), median(&times), "ms");
        }
        let after = rig.report();
        let pages: u64 = after.counts.given - before.counts.given;
        self.figures.add(
            "give_pages_per_s",
            pages as f64 / given.as_secs_f64(),
            "1/s",
        );
        let steps = after.counts.steps;
        rig.give(SOURCE)?;
        let between = rig.report().counts.steps;
        rig.take(SOURCE)?;
        let last = rig.report();
        self.figures
            .add("steps_1300k", (last.counts.steps - between) as f64, "steps");
        self.figures
            .add("gives_1300k", (between - steps) as f64, "steps");
        self.figures
            .add("mailboxes_max", last.mailboxes as f64, "mailboxes");
        self.figures
            .add("step_us_p50", micros(last.steps.quantile(500)), "us");
        self.figures
            .add("step_us_p99", micros(last.steps.quantile(990)), "us");
        self.figures
            .add("step_us_max", micros(last.steps.longest()), "us");
        // What of it was the step's own, and what happened to the longest.
        let longest = last.longest;
        for (name, value, unit) in [
            ("step_cpu_us_p50", micros(last.cpu.quantile(500)), "us"),
            ("step_cpu_us_p99", micros(last.cpu.quantile(990)), "us"),
            ("step_cpu_us_max", micros(last.cpu.longest()), "us"),
            ("steps_measured", last.steps.number() as f64, "steps"),
            ("longest_step_cpu_us", micros(longest.cpu), "us"),
            (
                "longest_step_preemptions",
                longest.preemptions as f64,
                "switches",
            ),
            (
                "longest_step_page_faults",
                longest.page_faults as f64,
                "faults",
            ),
        ] {
            self.figures.add(name, value, unit);
        }
        self.histogram("step_on", last.steps.buckets());
        rig.close()
    }

    /// The host's half of a reclaim by itself, in order and in none.
    fn host_side(&mut self) -> Result<(), String> {
        let cases = [
            ("", MAX_PAGES_PER_STEP, false),
            ("_shuffled", MAX_PAGES_PER_STEP, true),
            ("_uncapped", SOURCE, false),
        ];
        for (name, limit, shuffled) in cases {
            let (mut per_page, mut steps, mut mailboxes) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..self.rounds.max(5) {
                let limit = if self.sabotage { SOURCE } else { limit };
                let mut host = HostSide::new(SOURCE, limit, shuffled).map_err(|e| e.to_string())?;
                let (mut pages, mut time) = (0, Duration::ZERO);
                while let Some(step) = host.step().map_err(|e| e.to_string())? {
                    pages += step.pages;
                    time += step.time;
                    // The first round warms up.
                    if round > 0 {
                        steps.push(step.time);
                        let each = step.time / step.mailboxes as u32;
                        mailboxes.push((each, step.mailboxes as u64));
                    }
                }
                if pages != SOURCE as usize || host.held() != 0 {
                    return Err(format!("{pages} pages came back, {} are out", host.held()));
                }
                if round > 0 {
                    per_page.push(time.as_nanos() as f64 / pages as f64);
                }
            }
            self.figures.add(
                &format!("reclaim_ns_per_page{name}"),
                median(&per_page),
                "ns",
            );
            let longest = steps.iter().max().copied().unwrap_or_default();
            self.figures
                .add(&format!("host_step_us_max{name}"), micros(longest), "us");
            self.figures.add(
                &format!("host_step_us_p50{name}"),
                micros(quantile(&mut steps, 500)),
                "us",
            );
            self.histogram(&format!("mailbox{name}"), mailboxes.into_iter());
        }
        Ok(())
    }

    /// What an application waits for that asks while millions go back.
    fn queries(&mut self, name: &str, pages: u32, options: PageOptions) -> Result<(), String> {
        let rig = Rig::new(&[("wire", "null")], options)?;
        rig.give(pages)?;
        let (mut links, mut stats) = (Vec::new(), Vec::new());
        rig.take_while(pages, |port| {
            let begun = Instant::now();
            std::hint::black_box(port.link());
            let between = Instant::now();
            port.stats().map_err(|e| e.to_string())?;
            links.push(between - begun);
            stats.push(between.elapsed());
            Ok(())
        })?;
        let report = rig.report();
        self.figures.add(
            &format!("query_wait_steps_max{name}"),
            report.command_wait_steps as f64,
            "steps",
        );
        for (query, times) in [("link", &mut links), ("stats", &mut stats)] {
            self.figures.add(
                &format!("{query}_query_us_p99{name}"),
                micros(quantile(times, 990)),
                "us",
            );
        }
        self.figures.add(
            &format!("stats_queries{name}"),
            stats.len() as f64,
            "queries",
        );
        if !name.is_empty() {
            self.figures.add(
                &format!("step_us_max{name}"),
                micros(report.steps.longest()),
                "us",
            );
            self.figures.add(
                &format!("mailboxes{name}"),
                report.mailboxes as f64,
                "mailboxes",
            );
            self.histogram("step_uncapped", report.steps.buckets());
        }
        rig.close()
    }

    fn bring_up(&mut self) -> Result<(), String> {
        let mut times = Vec::new();
        for _ in 0..self.rounds.clamp(3, 5) {
            let start = Instant::now();
            let settings = [("wire", "null"), ("init_pages", "20000")];
            let rig = Rig::new(&settings, PageOptions::default())?;
            times.push(millis(start.elapsed()));
            rig.close()?;
        }
        self.figures.add("bringup_20000_ms", median(&times), "ms");
        Ok(())
    }

    /// What an lcore on another CPU notices.
    fn quiet(&mut self, cpu: usize) -> Result<(), String> {
        let rig = Rig::new(&[("wire", "null")], self.options())?;
        rig.give(SOURCE)?;
        rig.take(SOURCE)?;
        let storm = || {
            busy(WINDOW, || {
                rig.give(SOURCE)?;
                rig.take(SOURCE).map(drop)
            })
        };
        let names = ["off", "on", "off_again", "control"];
        let mut runs: [Vec<Quiet>; 4] = Default::default();
        let pages = rig.report().counts.taken;
        for _ in 0..self.rounds {
            let mut own =
                HostSide::new(SOURCE, MAX_PAGES_PER_STEP, false).map_err(|e| e.to_string())?;
            let nothing = |_| Ok(());
            let reclaim = |lap: usize| {
                if lap % LAPS == 0 {
                    own.step().map_err(|e| e.to_string())?;
                }
                Ok(())
            };
            let [off, on, off_again, control] = &mut runs;
            idle(PAUSE)?;
            off.push(observe(cpu, nothing, || idle(WINDOW))?);
            idle(PAUSE)?;
            on.push(observe(cpu, nothing, storm)?);
            idle(PAUSE)?;
            off_again.push(observe(cpu, nothing, || idle(WINDOW))?);
            idle(PAUSE)?;
            control.push(observe(cpu, reclaim, || idle(WINDOW))?);
        }
        let moved = rig.report().counts.taken - pages;
        for (name, runs) in names.into_iter().zip(&runs) {
            let lost: Vec<f64> = runs
                .iter()
                .map(|run| run.gaps.report().lost_ppm as f64)
                .collect();
            self.figures
                .add(&format!("lost_ppm_{name}"), median(&lost), "ppm");
            let (least, most) = lost
                .iter()
                .fold((f64::MAX, 0.0_f64), |(a, b), x| (a.min(*x), b.max(*x)));
            self.figures
                .add(&format!("lost_ppm_{name}_least"), least, "ppm");
            self.figures
                .add(&format!("lost_ppm_{name}_most"), most, "ppm");
            let longest: Vec<f64> = runs
                .iter()
                .map(|run| micros(run.gaps.report().longest))
                .collect();
            self.figures
                .add(&format!("longest_gap_us_{name}"), median(&longest), "us");
            let mut all: Option<pollux::gaps::GapRecorder> = None;
            for run in runs {
                match &mut all {
                    Some(all) => all.merge(&run.gaps),
                    None => all = Some(run.gaps.clone()),
                }
            }
            if let Some(all) = all {
                self.histogram(&format!("gap_{name}"), all.buckets());
            }
        }
        let interrupts = |runs: &[Quiet]| runs.iter().map(|run| run.tlb_interrupts).sum::<u64>();
        self.figures.add(
            "tlb_interrupts_lcore",
            interrupts(&runs[1]) as f64,
            "interrupts",
        );
        self.figures.add(
            "tlb_interrupts_lcore_off",
            interrupts(&runs[0]) as f64,
            "interrupts",
        );
        self.figures
            .add("pages_back_while_on", moved as f64, "pages");
        let packets: u64 = runs[1].iter().map(|run| run.packets).sum();
        self.figures.add(
            "quiet_mpps_on",
            packets as f64 / (WINDOW * self.rounds as u32).as_secs_f64() / 1e6,
            "Mpps",
        );
        rig.close()
    }

    /// What the unmapping of one block costs an lcore: blocks of touched memory are let go of one
    /// by one, and then the same time without.
    fn release(&mut self, cpu: usize) -> Result<(), String> {
        // 512 MiB, eight blocks.
        const PAGES: u32 = 131_072;
        let interval = Duration::from_millis(100);
        let mut longest = [Vec::new(), Vec::new()];
        let mut interrupts = 0;
        let mut unmapped = 0;
        for (release, longest) in [None, Some(interval)].into_iter().zip(&mut longest) {
            let options = PageOptions {
                release_interval: release,
                pooled: 0,
                ..PageOptions::default()
            };
            let rig = Rig::new(&[("wire", "null")], options)?;
            rig.give(PAGES)?;
            rig.take(PAGES)?;
            for _ in 0..6 {
                let run = observe(cpu, |_| Ok(()), || idle(interval))?;
                longest.push(micros(run.gaps.report().longest));
                if release.is_some() {
                    interrupts += run.tlb_interrupts;
                }
            }
            unmapped += rig.report().memory.unmapped;
            rig.close()?;
        }
        let [off, on] = &longest;
        self.figures
            .add("release_longest_gap_us_off", median(off), "us");
        self.figures
            .add("release_longest_gap_us_on", median(on), "us");
        self.figures
            .add("release_blocks", unmapped as f64, "blocks");
        self.figures
            .add("release_tlb_interrupts", interrupts as f64, "interrupts");
        Ok(())
    }

    /// Packets and firmware on one CPU: without a goal.
    fn forwarding(&mut self) -> Result<(), String> {
        let ours = own_testpmd()?;
        // A million pages every 400 ms, half of it each way, for as long as it is looked at. They
        // are populated here, so fewer of them.
        let storm: Vec<String> = (0..40)
            .map(|n| {
                let way = if n % 2 == 0 { "give" } else { "take" };
                format!("{}:{way}:100000", 500 + n * 200)
            })
            .collect();
        let storm = format!("emu:ports=2,wire=pair,storm0={}", storm.join("+"));
        for (name, device) in [("quiet", "emu:ports=2,wire=pair"), ("storm", &storm)] {
            let mut rates = Vec::new();
            for _ in 0..self.rounds.min(3) {
                let args = [
                    "-l",
                    "0-1",
                    "-a",
                    device,
                    "--",
                    "-i",
                    "--forward-mode=io",
                    "--total-num-mbufs=16384",
                    "--burst=32",
                ];
                let mut forwarder = Forwarder::start(&ours, &args)?;
                forwarder.command("start tx_first 1")?;
                std::thread::sleep(Duration::from_secs(1));
                rates.push(forwarder.rate(2, Duration::from_secs(2))?);
                forwarder.quit()?;
            }
            self.figures.add(
                &format!("forward_mpps_{name}"),
                median(&rates) / 1e6,
                "Mpps",
            );
        }
        Ok(())
    }
}

fn run(options: &Options) -> Result<Bench, String> {
    let cpus = lcore::allowed_cpus();
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else {
        return Err("no CPU is allowed".into());
    };
    if first == last {
        return Err("two CPUs are needed: one for the lcore, one for all else".into());
    }
    let mut bench = Bench {
        figures: Figures::default(),
        histograms: String::new(),
        sabotage: options.sabotage,
        rounds: options.rounds.unwrap_or(10),
    };
    let say = |what: &str| eprintln!("fw-pages: {what}");
    say("forwarding");
    // Programs of their own, with CPUs of their own choice.
    if let Err(why) = bench.forwarding() {
        say(&format!("no forwarding rate: {why}"));
    }
    // Threads inherit it. Sabotage: the control thread and the firmware run where the lcore polls.
    lcore::pin(if options.sabotage { last } else { first }).map_err(|e| e.to_string())?;
    say("millions of pages");
    bench.speed()?;
    say("host side");
    bench.host_side()?;
    say("queries");
    let options = bench.options();
    bench.queries("", MILLIONS[1].1, options)?;
    bench.queries("_uncapped", SOURCE, uncapped(SOURCE))?;
    say("bring-up");
    bench.bring_up()?;
    say("poll gaps");
    bench.quiet(last)?;
    say("release");
    bench.release(last)?;
    Ok(bench)
}

fn main() -> ExitCode {
    let options = Options::from_command_line();
    let saved = |bench: &Bench| -> Result<(), String> {
        let Some(folder) = &options.save else {
            return Ok(());
        };
        let folder = Path::new(folder);
        let file = folder.join("fw-pages.tsv");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&file, &bench.histograms))
            .map_err(|e| format!("{}: {e}", file.display()))?;
        draw(&bench.histograms, folder)
    };
    let result = run(&options).and_then(|bench| saved(&bench).map(|()| bench));
    match result {
        Ok(bench) => {
            bench.figures.print(&options);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("fw-pages: {problem}");
            ExitCode::FAILURE
        }
    }
}
