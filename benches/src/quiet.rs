//! An lcore that feeds itself: it receives packets whose completions it has written before, and
//! sends them to nobody, so that no emulator is on its path and every gap between two polls is
//! somebody else's doing.

use crate::datapath::{DataPath, Setting};
use pollux::gaps::{GapRecorder, PollClock};
use pollux_mempool::lcore;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Packets of one turn.
const TURN: usize = 32;
/// Turns between two looks at the flag that ends the loop.
const TURNS: usize = 64;

/// What one run of the lcore saw.
#[derive(Clone)]
pub struct Quiet {
    /// The gaps.
    pub gaps: GapRecorder,
    /// Packets received and sent.
    pub packets: u64,
    /// Interrupts for remote TLB flushes that its CPU took.
    pub tlb_interrupts: u64,
}

/// Interrupts of this kind that a CPU took since the system started.
fn interrupts(kind: &str, cpu: usize) -> u64 {
    let table = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let mut lines = table.lines();
    let column = lines.next().and_then(|head| {
        let name = format!("CPU{cpu}");
        head.split_whitespace().position(|word| word == name)
    });
    let row = lines.find_map(|line| line.trim_start().strip_prefix(kind));
    let cell = row.zip(column).and_then(|(row, column)| {
        row.strip_prefix(':')?
            .split_whitespace()
            .nth(column)?
            .parse()
            .ok()
    });
    cell.unwrap_or(0)
}

/// Polls on `cpu` while `beside` runs on this thread, which says when it is over. `between` is
/// called on the lcore now and then, with its number.
///
/// # Errors
/// In words.
pub fn observe(
    cpu: usize,
    mut between: impl FnMut(usize) -> Result<(), String> + Send,
    beside: impl FnOnce() -> Result<(), String>,
) -> Result<Quiet, String> {
    let over = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (end, start) = (Arc::clone(&over), Arc::clone(&begun));
        let lcore = scope.spawn(move || -> Result<Quiet, String> {
            lcore::pin(cpu).map_err(|e| e.to_string())?;
            let mut path = DataPath::new(TURN, Setting::default()).map_err(|e| e.to_string())?;
            let mut packets = 0;
            let turn = |path: &mut DataPath| -> Result<u64, String> {
                path.feed(TURN)?;
                Ok(path.forward() as u64)
            };
            for _ in 0..10_000 {
                turn(&mut path)?;
            }
            let mut gaps = GapRecorder::new();
            let before = interrupts("TLB", cpu);
            start.store(true, Ordering::Release);
            let mut lap = 0;
            while !end.load(Ordering::Relaxed) {
                for _ in 0..TURNS {
                    gaps.poll();
                    packets += turn(&mut path)?;
                }
                between(lap)?;
                lap += 1;
            }
            gaps.pause();
            Ok(Quiet {
                tlb_interrupts: interrupts("TLB", cpu) - before,
                gaps,
                packets,
            })
        });
        while !begun.load(Ordering::Acquire) && !lcore.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let beside = beside();
        over.store(true, Ordering::Release);
        let quiet = lcore
            .join()
            .map_err(|_| "the lcore panicked".to_owned())??;
        beside?;
        Ok(quiet)
    })
}

/// Sleeps until `window` is over.
pub fn idle(window: Duration) -> Result<(), String> {
    std::thread::sleep(window);
    Ok(())
}

/// Repeats `work` until `window` is over.
///
/// # Errors
/// What `work` says.
pub fn busy(window: Duration, mut work: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < window {
        work()?;
    }
    Ok(())
}
