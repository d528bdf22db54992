//! Cycles and instructions per 64-byte packet, received and sent, with descriptors already there.
#![forbid(unsafe_code)]

use pollux_benches::datapath::{DataPath, ROUND, Setting};
use pollux_benches::figures::{Figures, Options, median};
use pollux_mempool::{Lcore, cycles};
use std::process::{Command, ExitCode};

/// The word by which the program calls itself below valgrind.
const COUNTED: &str = "--counted";

/// Rounds of which one median is taken.
const SAMPLES: usize = 400;

/// Rounds that valgrind counts.
const COUNTED_ROUNDS: usize = 20;

/// Cycles per packet in the median round.
fn cycles_per_packet(burst: usize, setting: Setting) -> Result<f64, String> {
    let mut path = DataPath::new(burst, setting).map_err(|e| e.to_string())?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for round in 0..SAMPLES + SAMPLES / 4 {
        path.prepare()?;
        let start = cycles::now();
        let sent = path.forward();
        let spent = cycles::now() - start;
        if sent != ROUND {
            return Err(format!("{sent} of {ROUND} packets sent"));
        }
        // The first rounds warm up.
        if round >= SAMPLES / 4 {
            samples.push(spent as f64 / ROUND as f64);
        }
    }
    path.prepare()?;
    Ok(median(&samples))
}

/// What runs below valgrind.
fn counted(setting: Setting) -> Result<(), String> {
    let mut path = DataPath::new(32, setting).map_err(|e| e.to_string())?;
    for _ in 0..COUNTED_ROUNDS {
        path.prepare()?;
        if path.forward() != ROUND {
            return Err("packets missing".into());
        }
    }
    path.prepare()
}

/// Instructions per packet at burst 32, counted by valgrind; an error says why they could not be.
fn instructions_per_packet(sabotage: bool, inline_l2: bool) -> Result<f64, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*DataPath*forward*")
        .arg(me)
        .arg(COUNTED);
    for (given, word) in [(sabotage, "sabotage"), (inline_l2, "inline")] {
        if given {
            command.arg(word);
        }
    }
    let output = command.output().map_err(|e| format!("valgrind: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let counted = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse::<f64>().ok())
        .filter(|n| *n > 0.0 && output.status.success());
    match counted {
        Some(n) => Ok(n / (COUNTED_ROUNDS * ROUND) as f64),
        None => Err(format!("valgrind counted nothing: {}", text.trim())),
    }
}

fn run(options: &Options) -> Result<Figures, String> {
    let _lcore = Lcore::register().map_err(|e| e.to_string())?;
    let plain = Setting {
        inline_l2: false,
        sabotage: options.sabotage,
    };
    let inline = Setting {
        inline_l2: true,
        ..plain
    };
    let cases = [
        ("rxtx_cycles_b1", 1, plain),
        ("rxtx_cycles_b8", 8, plain),
        ("rxtx_cycles_b32", 32, plain),
        ("rxtx_cycles_b64", 64, plain),
        ("rxtx_inline_cycles_b32", 32, inline),
    ];
    // The cases alternate, so that a noisy moment meets all of them.
    let rounds = options.rounds.unwrap_or(9);
    let mut samples = vec![Vec::with_capacity(rounds); cases.len()];
    for _ in 0..rounds {
        for ((_, burst, setting), samples) in cases.iter().zip(&mut samples) {
            samples.push(cycles_per_packet(*burst, *setting)?);
        }
    }
    let mut figures = Figures::default();
    for ((name, ..), samples) in cases.iter().zip(&samples) {
        figures.add(name, median(samples), "cycles/packet");
    }
    for (name, inline_l2) in [
        ("rxtx_instructions_b32", false),
        ("rxtx_inline_instructions_b32", true),
    ] {
        match instructions_per_packet(options.sabotage, inline_l2) {
            Ok(n) => figures.add(name, n, "instructions/packet"),
            Err(reason) => eprintln!("{name}: NOT MEASURED: {reason}"),
        }
    }
    Ok(figures)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = if words.first().is_some_and(|word| word == COUNTED) {
        Lcore::register()
            .map_err(|e| e.to_string())
            .and_then(|_lcore| {
                counted(Setting {
                    inline_l2: words.iter().any(|w| w == "inline"),
                    sabotage: words.iter().any(|w| w == "sabotage"),
                })
            })
    } else {
        let options = Options::from_command_line();
        eprintln!(
            "datapath: burst in and burst out, 64-byte packets (60 without FCS), rings of 1024, 4096 buffers; {}, TSC {:.1} MHz",
            if cfg!(target_feature = "avx2") {
                "built beyond baseline x86-64"
            } else {
                "baseline instruction set"
            },
            cycles::frequency() as f64 / 1e6,
        );
        run(&options).map(|figures| figures.print(&options))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("datapath: {problem}");
            ExitCode::FAILURE
        }
    }
}
