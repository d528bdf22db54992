//! The command line.

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::PathBuf;

/// Serves the functions of a software ConnectX on vfio-user sockets, one function a socket.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "pollux-hca", version)]
pub struct Arguments {
    /// Socket of a function; once for each function, in their order
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// What the functions are: KEY=VALUE,... as in a device string behind emu:
    #[arg(long, value_name = "SETTINGS")]
    pub device: Option<String>,
    /// Access bits of the sockets, in octal; 600 unless given
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Takes memory files of any kind, not only sealed ones; for clients that are trusted
    #[arg(long)]
    pub trust_memory: bool,
    /// Offers no page for mapping: every doorbell is a message
    #[arg(long)]
    pub trap_all: bool,
    /// Socket through which scripts ask the emulator and order faults
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Asks the program that listens on --control one line, and prints the answer
    #[arg(long, value_name = "LINE", requires = "control")]
    pub ask: Option<String>,
    /// Orders a fault at the start: a line as --ask has it; may be given several times
    #[arg(long, value_name = "LINE")]
    pub fault: Vec<String>,
    /// Logs each command by name, to a file or to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub log_commands: Option<Option<PathBuf>>,
    /// Settings from a TOML file; the command line wins over it
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// What to log to standard error, as in error, warn, info, debug; warn unless given
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Refusal {
    /// Print this and end with status 0 (`--help`, `--version`).
    Show(String),
    /// Print this one line and end with status 2.
    Bad(String),
}

/// Parses a command line that begins with the program's name.
///
/// # Errors
/// Help was asked for, or an option is unknown or ill-formed.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Arguments, Refusal> {
    Arguments::try_parse_from(line).map_err(|error| {
        if error.use_stderr() {
            Refusal::Bad(one_line(&error))
        } else {
            Refusal::Show(error.to_string())
        }
    })
}

/// A clap error as one line: what was given, what is allowed, what to do.
fn one_line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(list)) => Some(list.join(", ")),
        _ => None,
    };
    let arg = text(ContextKind::InvalidArg).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let near = text(ContextKind::SuggestedArg)
                .map(|near| format!("; did you mean {near}?"))
                .unwrap_or_default();
            format!("unknown option {arg}{near}; --help lists all")
        }
        ErrorKind::InvalidValue => format!("{arg} needs a value; give one"),
        ErrorKind::ArgumentConflict => format!("{arg} is given twice; give it once"),
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing; --help lists all"),
        _ => error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_owned(),
    }
}
