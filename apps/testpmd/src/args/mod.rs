//! The command line, in DPDK's shape: `pollux-testpmd [EAL options] -- [testpmd options]`.
//!
//! EAL options say which cores, memory and devices there are; testpmd options say what to
//! do with them. Every refusal is one line: what was given, what is allowed, what to do.
//! Values are range-checked in [`crate::settings`], where those of a file are checked too.

pub mod cpu_list;
pub mod eal;
pub mod options;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use eal::EalOptions;
use options::Options;

/// Both halves.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    /// Before `--`.
    pub eal: EalOptions,
    /// After it.
    pub testpmd: Options,
    /// `--config`, which may stand in either half.
    pub config: Option<PathBuf>,
}

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Refusal {
    /// Print this and end with status 0 (`--help`, `--version`).
    Show(String),
    /// Print this one line and end with status 2.
    Bad(String),
}

/// EAL half for clap.
#[derive(Parser, Debug)]
#[command(
    name = "pollux-testpmd",
    version,
    about = "Forwards packets between the ports of mlx5 adapters, real or emulated.",
    override_usage = "pollux-testpmd [EAL options] -- [testpmd options]",
    after_help = "The testpmd options, after `--`, are listed by: pollux-testpmd -- --help"
)]
struct EalLine {
    #[command(flatten)]
    eal: EalOptions,
    /// Settings from a TOML file; the command line wins over it
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
}

/// testpmd half for clap.
#[derive(Parser, Debug)]
#[command(
    name = "pollux-testpmd",
    about = "testpmd options, given after `--`; each can stand in the [testpmd] table of a --config file too.",
    override_usage = "pollux-testpmd [EAL options] -- [testpmd options]"
)]
struct TestpmdLine {
    #[command(flatten)]
    options: Options,
    /// Settings from a TOML file; the command line wins over it
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
}

/// Parses a command line without the program's own name.
///
/// # Errors
/// Help was asked for, or an option is unknown or ill-formed.
pub fn parse<I>(line: I) -> Result<Arguments, Refusal>
where
    I: IntoIterator<Item = OsString>,
{
    let mut first: Vec<OsString> = vec!["pollux-testpmd".into()];
    let mut second = first.clone();
    let mut at_second = false;
    for word in line {
        if !at_second && word == "--" {
            at_second = true;
        } else if at_second {
            second.push(word);
        } else {
            first.push(word);
        }
    }
    let eal = EalLine::try_parse_from(first).map_err(|e| refusal(&e, TestpmdLine::command()))?;
    let testpmd =
        TestpmdLine::try_parse_from(second).map_err(|e| refusal(&e, EalLine::command()))?;
    let config = match (eal.config, testpmd.config) {
        (Some(a), Some(b)) => {
            return Err(Refusal::Bad(format!(
                "two configuration files: {} and {}; give one --config",
                a.display(),
                b.display()
            )));
        }
        (a, b) => a.or(b),
    };
    Ok(Arguments {
        eal: eal.eal,
        testpmd: testpmd.options,
        config,
    })
}

fn refusal(error: &clap::Error, other_half: clap::Command) -> Refusal {
    if !error.use_stderr() {
        return Refusal::Show(error.to_string());
    }
    let mut line = one_line(error);
    let unknown = (error.kind() == ErrorKind::UnknownArgument)
        .then(|| text(error, ContextKind::InvalidArg))
        .flatten();
    if let Some(given) = unknown.filter(|given| names(&other_half, given)) {
        line = format!(
            "{given} stands on the wrong side of `--`: EAL options come before it, testpmd options after it"
        );
    }
    Refusal::Bad(line)
}

/// True when `command` has the option `given` (`--name`, `--name=value` or `-x`).
fn names(command: &clap::Command, given: &str) -> bool {
    let bare = given.split('=').next().unwrap_or(given);
    command.get_arguments().any(|a| {
        let long = a.get_long().is_some_and(|l| bare == format!("--{l}"));
        let alias = a
            .get_all_aliases()
            .unwrap_or_default()
            .iter()
            .any(|l| bare == format!("--{l}"));
        let short = a.get_short().is_some_and(|s| bare == format!("-{s}"));
        long || alias || short
    })
}

/// A clap error as one line: what was given, what is allowed, what to do.
pub fn one_line(error: &clap::Error) -> String {
    let arg = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::InvalidValue if value.as_deref().is_none_or(str::is_empty) => {
            format!(
                "{arg} needs a value{}",
                allowed(error, "; allowed: ", "; give one")
            )
        }
        ErrorKind::InvalidValue => format!(
            "{arg}: given {}{}",
            value.unwrap_or_default(),
            allowed(error, "; allowed: ", "; see --help")
        ),
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error)
                .map_or_else(|| "not a valid value".to_owned(), ToString::to_string);
            format!("{arg}: given {}: {why}", value.unwrap_or_default())
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
            let near = text(error, ContextKind::SuggestedArg)
                .map(|s| format!("; did you mean {s}?"))
                .unwrap_or_default();
            format!("unknown option {arg}{near}; --help lists all")
        }
        ErrorKind::ArgumentConflict => format!(
            "{arg} cannot be used together with {}; give one of them",
            text(error, ContextKind::PriorArg).unwrap_or_else(|| "an earlier option".into())
        ),
        ErrorKind::TooManyValues | ErrorKind::WrongNumberOfValues => {
            format!("{arg}: too many values; give one")
        }
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

fn allowed(error: &clap::Error, before: &str, without: &str) -> String {
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(v)) if !v.is_empty() => format!("{before}{}", v.join(", ")),
        _ => without.to_owned(),
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(s) => Some(s.clone()),
        ContextValue::Strings(v) => Some(v.join(", ")),
        other => Some(other.to_string()),
    }
}
