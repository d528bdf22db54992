//! The program from its arguments to its exit status.
//!
//! 0: it served until it was told to stop. 1: something failed. 2: an argument, a file or a setting
//! was bad; one line on standard error says what was given, what is allowed and what to do.

use crate::args::{self, Arguments, Refusal};
use crate::control;
use crate::service::{Service, ServiceError};
use crate::settings::{BadSetting, Settings};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pollux_emu::Emulator;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// A failure that ends the program.
struct Failure {
    line: String,
    status: u8,
}

impl From<BadSetting> for Failure {
    fn from(bad: BadSetting) -> Self {
        Self {
            line: bad.0,
            status: 2,
        }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let status = if error.is_input() { 2 } else { 1 };
        Self {
            line: error.to_string(),
            status,
        }
    }
}

fn failed(what: &str, why: impl Display) -> Failure {
    Failure {
        line: format!("{what}: {why}"),
        status: 1,
    }
}

/// Runs the program.
pub fn main(line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match args::parse(line) {
        Ok(arguments) => arguments,
        Err(Refusal::Show(text)) => {
            // Help that nobody reads is no failure.
            drop(std::io::stdout().write_all(text.as_bytes()));
            return ExitCode::SUCCESS;
        }
        Err(Refusal::Bad(line)) => return fail(&Failure { line, status: 2 }),
    };
    match run(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("pollux-hca: {}", failure.line);
    ExitCode::from(failure.status)
}

fn run(arguments: Arguments) -> Result<u8, Failure> {
    if let (Some(line), Some(path)) = (&arguments.ask, &arguments.control) {
        return ask(path, line);
    }
    let settings = Settings::new(arguments)?;
    log(&settings.log_level)?;
    // Before any thread, so that a signal never finds the program without its handler.
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|why| failed("signal handlers", why))?;
    more_descriptors();
    let service = Service::start(&settings)?;
    print(&banner(&settings, &service.emulator)?)?;
    signals.forever().next();
    let emulator = service.stop()?;
    print(&leftovers(&emulator)?)?;
    Ok(0)
}

/// Raises the limit of open descriptors as far as it goes. Clients bring files and eventfds, and one
/// function's must not leave the others without.
fn more_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(why) = raised {
        tracing::warn!(%why, "the limit of open descriptors stays as it is");
    }
}

fn ask(path: &Path, line: &str) -> Result<u8, Failure> {
    let answer =
        control::ask(path, line).map_err(|why| failed(&path.display().to_string(), why))?;
    match answer {
        Ok(answer) => {
            print(&format!("{answer}\n"))?;
            Ok(0)
        }
        Err(why) => Err(failed("refused", why)),
    }
}

fn log(filter: &str) -> Result<(), Failure> {
    let parsed = EnvFilter::try_new(filter).map_err(|why| {
        BadSetting(format!(
            "--log-level={filter}: {why}; give error, warn, info, debug or a filter by target"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|why| failed("standard output", why))
}

fn banner(settings: &Settings, emulator: &Emulator) -> Result<String, Failure> {
    let mut text = String::new();
    for (number, path) in settings.sockets.iter().enumerate() {
        let identity = emulator
            .function(number)
            .map_err(ServiceError::from)?
            .identity();
        let mac = emulator.mac(number).map_err(ServiceError::from)?;
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        text += &format!("{identity} mac {mac} at {}\n", path.display());
    }
    text += "ready\n";
    Ok(text)
}

/// What each function was left with.
fn leftovers(emulator: &Emulator) -> Result<String, Failure> {
    let mut text = String::new();
    for number in 0..emulator.len() {
        let report = emulator.report(number).map_err(ServiceError::from)?;
        text += &format!(
            "emu{number}: {} commands, {} refused; left: {} pages, {} objects\n",
            report.commands,
            report.refused,
            report.firmware_pages,
            report.live_objects()
        );
    }
    Ok(text)
}
