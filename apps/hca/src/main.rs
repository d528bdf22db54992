//! The device's program; everything it does is in the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pollux_hca::app::main(std::env::args_os())
}
