//! Cycles per value to pass it through a ring on one core, by batch and by how many threads may be
//! on a side.
#![forbid(unsafe_code)]

use pollux_benches::figures::{Figures, Options, median, program};
use pollux_mempool::cycles;
use pollux_mempool::ring::{Mode, Multi, Ring, Single};
use std::process::ExitCode;

/// Batches passed per sample.
const TURNS: usize = 20_000;

fn pass<P: Mode, C: Mode>(n: usize) -> Result<f64, String> {
    let ring = Ring::<usize, P, C>::with_capacity(1024).map_err(|e| e.to_string())?;
    let (mut put, mut take) = ring.split();
    let mut values: Vec<usize> = (0..n).collect();
    let start = cycles::now();
    for _ in 0..TURNS {
        if !put.enqueue_bulk(&values) || !take.dequeue_bulk(&mut values) {
            return Err("a ring of 1024 refused a batch".into());
        }
    }
    let spent = cycles::now() - start;
    if values.iter().copied().ne(0..n) {
        return Err("values came out in another order".into());
    }
    Ok(spent as f64 / (TURNS * n) as f64)
}

fn run(options: &Options) -> Result<Figures, String> {
    let mut rows = Vec::new();
    for n in [1, 8, 32, 64, 128] {
        // Sabotage: the sides that need no agreement among threads pay for it.
        let single = if options.sabotage {
            pass::<Multi, Multi>
        } else {
            pass::<Single, Single>
        };
        rows.push((format!("ring_spsc_n{n}"), n, single));
        rows.push((format!("ring_mpmc_n{n}"), n, pass::<Multi, Multi>));
    }
    let mut samples = vec![Vec::new(); rows.len()];
    for _ in 0..options.rounds.unwrap_or(9) {
        for ((_, n, pass), samples) in rows.iter().zip(&mut samples) {
            samples.push(pass(*n)?);
        }
    }
    let mut figures = Figures::default();
    for ((name, ..), samples) in rows.iter().zip(&samples) {
        figures.add(name, median(samples), "cycles/value");
    }
    Ok(figures)
}

fn main() -> ExitCode {
    program("ring", run)
}
