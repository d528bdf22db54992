//! Judges a forwarder by its captures; see the library's module `proof`.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = match pollux_testpmd::proof::ProofArgs::try_parse() {
        Ok(args) => args,
        Err(e) if e.use_stderr() => {
            eprintln!("capture-proof: {}", pollux_testpmd::args::one_line(&e));
            return ExitCode::from(2);
        }
        Err(e) => {
            print!("{e}");
            return ExitCode::SUCCESS;
        }
    };
    let outcome = pollux_testpmd::proof::run(&args);
    // A reader that went away changes nothing about the result.
    _ = std::io::stdout().write_all(outcome.text.as_bytes());
    if !outcome.error.is_empty() {
        eprintln!("capture-proof: {}", outcome.error);
    }
    ExitCode::from(outcome.status)
}
