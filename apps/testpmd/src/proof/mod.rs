//! Proves that a capture left again as it came in, apart from what the forwarder was told
//! to change.
//!
//! Captures are read with the crate `pcap-parser`; the product's own wires use another
//! parser, so a fault in one of them cannot hide in both. Nothing here knows the device
//! or the forwarder.
//!
//! Used by the binary `capture-proof` and by tests; works on one thread, file after file.

pub mod capture;
pub mod compare;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Parser;

use capture::{Capture, CaptureError};
use compare::{Comparison, Skipped, Transformation};

/// `capture-proof`'s command line.
#[derive(Parser, Debug)]
#[command(
    name = "capture-proof",
    about = "Checks that OUTPUT holds every packet of INPUT, in order and byte for byte apart from the transformation.\n\
             Exit status: 0 it does, 1 it does not, 2 a file or an argument is bad."
)]
pub struct ProofArgs {
    /// Only describe the files: packets, bytes, sizes, link type
    #[arg(long)]
    pub inspect: bool,
    /// What the forwarder did to each packet
    #[arg(long, value_enum, default_value_t = Transformation::Macswap, value_name = "NAME")]
    pub transform: Transformation,
    /// Packets of INPUT, counted from 1, that were named as too large and may be missing
    #[arg(long, value_delimiter = ',', value_name = "NUMBER,...")]
    pub allow_skipped: Vec<u64>,
    /// A report of the forwarder (its --json); packets named there as too large may be missing
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,
    /// INPUT OUTPUT [OUTPUT...]; several outputs are read one after the other
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// What the program prints and its exit status.
#[derive(Debug)]
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// For standard error; empty or one line.
    pub error: String,
    /// 0 proven, 1 refuted, 2 bad input.
    pub status: u8,
}

/// Runs the program.
pub fn run(args: &ProofArgs) -> Outcome {
    let result = if args.inspect {
        inspect(args)
    } else {
        prove(args)
    };
    result.unwrap_or_else(|error| Outcome {
        text: String::new(),
        error,
        status: 2,
    })
}

fn inspect(args: &ProofArgs) -> Result<Outcome, String> {
    let mut text = String::new();
    for path in &args.files {
        let mut capture = Capture::open(path).map_err(text_of)?;
        let s = capture.summary().map_err(text_of)?;
        let mean = if s.packets == 0 {
            0.0
        } else {
            s.bytes as f64 / s.packets as f64
        };
        _ = writeln!(
            text,
            "{}: {}, {} packets, {} bytes, length min {} mean {mean:.1} max {}, link type {}{}",
            path.display(),
            capture.format(),
            s.packets,
            s.bytes,
            s.min,
            s.max,
            s.link_types,
            if s.cut > 0 {
                format!(
                    ", {} packets cut short by the capture's length limit",
                    s.cut
                )
            } else {
                String::new()
            }
        );
    }
    Ok(Outcome {
        text,
        error: String::new(),
        status: 0,
    })
}

fn prove(args: &ProofArgs) -> Result<Outcome, String> {
    let [input, outputs @ ..] = args.files.as_slice() else {
        return Err("no files given; give INPUT and OUTPUT".into());
    };
    if outputs.is_empty() {
        return Err(format!(
            "only one file given ({}); give INPUT and at least one OUTPUT, or --inspect",
            input.display()
        ));
    }
    let mut skipped = Skipped::default();
    for n in &args.allow_skipped {
        if *n == 0 {
            return Err("--allow-skipped 0: packets are counted from 1".into());
        }
        skipped.allow(*n);
    }
    if let Some(path) = &args.report {
        skipped.read_report(path, input)?;
    }
    let outcome = Comparison::new(args.transform, skipped)
        .run(input, outputs)
        .map_err(text_of)?;
    let status = u8::from(outcome.fault.is_some());
    Ok(Outcome {
        text: outcome.to_string(),
        error: outcome.fault.map(|f| f.to_string()).unwrap_or_default(),
        status,
    })
}

fn text_of(e: CaptureError) -> String {
    e.to_string()
}
