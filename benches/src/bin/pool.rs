//! Cycles per buffer to take it from a pool and to give it back, by batch and cache size.
//!
//! 128 buffers are held at a time, as DPDK's own measurement does it. `raw` moves handles only,
//! as a queue does; `packet` makes empty packets of them and frees them by what they are.
#![forbid(unsafe_code)]

use pollux_benches::figures::{Figures, Options, median, program};
use pollux_mempool::{Burst, InFlight, Lcore, Pool, PoolConfig, cycles};
use std::process::ExitCode;

/// Buffers held at a time.
const HELD: usize = 128;
/// Times that they are taken and given back per sample.
const TURNS: usize = 2000;

fn new_pool(cache: usize) -> Result<Pool, String> {
    let config = PoolConfig::new("packets", 8192).cache(cache);
    Pool::new(&config).map_err(|e| e.to_string())
}

/// Cycles per buffer, taken `n` at a time.
fn raw(pool: &Pool, n: usize) -> Result<f64, String> {
    let mut held = InFlight::new(HELD).map_err(|e| e.to_string())?;
    let start = cycles::now();
    for _ in 0..TURNS {
        for _ in 0..HELD / n {
            if !held.fill_from(pool, n) {
                return Err("the pool is empty".into());
            }
        }
        for _ in 0..HELD / n {
            held.free_oldest(n);
        }
    }
    Ok((cycles::now() - start) as f64 / (TURNS * HELD) as f64)
}

fn packet(pool: &Pool, n: usize) -> Result<f64, String> {
    let mut held = Burst::with_capacity(HELD);
    let start = cycles::now();
    for _ in 0..TURNS {
        for _ in 0..HELD / n {
            if !pool.alloc_bulk(&mut held, n) {
                return Err("the pool is empty".into());
            }
        }
        for _ in 0..HELD / n {
            held.free_front(n);
        }
    }
    Ok((cycles::now() - start) as f64 / (TURNS * HELD) as f64)
}

fn run(options: &Options) -> Result<Figures, String> {
    let _lcore = Lcore::register().map_err(|e| e.to_string())?;
    let rounds = options.rounds.unwrap_or(9);
    let mut rows = Vec::new();
    for cache in [0, 256, 512] {
        // Sabotage: every pool is without its caches.
        let pool = new_pool(if options.sabotage { 0 } else { cache })?;
        for n in [1, 4, 8, 32, 64, 128] {
            rows.push((format!("pool_raw_c{cache}_n{n}"), pool.clone(), n, false));
        }
        for n in [1, 32] {
            rows.push((format!("pool_packet_c{cache}_n{n}"), pool.clone(), n, true));
        }
    }
    let mut samples = vec![Vec::new(); rows.len()];
    for _ in 0..rounds {
        for ((_, pool, n, packets), samples) in rows.iter().zip(&mut samples) {
            samples.push(if *packets {
                packet(pool, *n)?
            } else {
                raw(pool, *n)?
            });
        }
    }
    let mut figures = Figures::default();
    for ((name, ..), samples) in rows.iter().zip(&samples) {
        figures.add(name, median(samples), "cycles/buffer");
    }
    Ok(figures)
}

fn main() -> ExitCode {
    program("pool", run)
}
