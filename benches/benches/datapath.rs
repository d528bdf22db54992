//! The data path under criterion: time per packet at several burst sizes, with its spread. Only
//! `forward` is timed; the device's turn between two rounds is not.
#![forbid(unsafe_code)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pollux_benches::datapath::{DataPath, ROUND, Setting};
use pollux_mempool::Lcore;
use std::time::{Duration, Instant};

fn rounds(path: &mut DataPath, count: u64) -> Result<Duration, String> {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        path.prepare()?;
        let start = Instant::now();
        let sent = path.forward();
        spent += start.elapsed();
        if sent != ROUND {
            return Err(format!("{sent} of {ROUND} packets sent"));
        }
    }
    Ok(spent)
}

#[allow(clippy::expect_used)] // a benchmark that moves no packets must not end well
fn datapath(criterion: &mut Criterion) {
    let _lcore = Lcore::register().expect("a free lcore slot");
    let mut group = criterion.benchmark_group("rxtx");
    group.throughput(Throughput::Elements(ROUND as u64));
    for (name, inline_l2, burst) in [
        ("plain", false, 1),
        ("plain", false, 8),
        ("plain", false, 32),
        ("plain", false, 64),
        ("inline", true, 32),
    ] {
        let setting = Setting {
            inline_l2,
            sabotage: false,
        };
        let mut path = DataPath::new(burst, setting).expect("memory for rings and pool");
        group.bench_function(BenchmarkId::new(name, burst), |bencher| {
            bencher.iter_custom(|count| rounds(&mut path, count).expect("all packets sent"));
        });
    }
    group.finish();
}

criterion_group!(benches, datapath);
criterion_main!(benches);
