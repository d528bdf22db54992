//! What is to be served: the command line and the file, put together and checked.

use crate::args::Arguments;
use pollux_bus::settings;
use pollux_bus::vfio_user::OWNER_ONLY;
use pollux_emu::{EmuError, EmulatorConfig};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A setting that cannot be; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSetting(pub String);

/// Where commands are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLog {
    /// Standard error.
    Stderr,
    /// A file, emptied at the start.
    File(PathBuf),
}

/// Everything that is to be served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A socket for each function.
    pub sockets: Vec<PathBuf>,
    /// The functions.
    pub emulator: EmulatorConfig,
    /// Access bits of the sockets.
    pub mode: u32,
    /// Memory files of any kind are taken.
    pub trust_memory: bool,
    /// No page is offered for mapping.
    pub trap_all: bool,
    /// Where scripts ask.
    pub control: Option<PathBuf>,
    /// Lines for [`pollux_emu::control`] that are done at the start, those of the file first.
    pub faults: Vec<String>,
    /// Where commands are logged.
    pub commands: Option<CommandLog>,
    /// Filter of the log on standard error.
    pub log_level: String,
}

/// What the file may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    socket: Option<Vec<PathBuf>>,
    mode: Option<Spanned<String>>,
    trust_memory: Option<bool>,
    trap_all: Option<bool>,
    control: Option<PathBuf>,
    #[serde(default)]
    fault: Vec<String>,
    log_commands: Option<LogCommands>,
    log_level: Option<String>,
    #[serde(default)]
    device: HashMap<Spanned<String>, Spanned<Plain>>,
}

/// `true` for standard error, or the name of a file.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LogCommands {
    Switch(bool),
    File(PathBuf),
}

/// A value of the device table, written as TOML has it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Plain {
    Text(String),
    Number(i64),
    Switch(bool),
}

impl Plain {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Switch(on) => if *on { "on" } else { "off" }.to_owned(),
        }
    }
}

/// A file's text, for saying where in it something is wrong.
struct Source {
    name: String,
    text: String,
}

impl Source {
    fn read(path: &Path) -> Result<Self, BadSetting> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text }),
            Err(why) => Err(BadSetting(format!(
                "{name}: {why}; give a readable TOML file"
            ))),
        }
    }

    fn wrong(&self, at: usize, why: &str) -> BadSetting {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(start..).map_or(0, |rest| rest.chars().count()) + 1;
        let why = why.trim().replace('\n', "; ");
        BadSetting(format!("{}:{line}:{column}: {why}", self.name))
    }

    fn parse(&self) -> Result<File, BadSetting> {
        toml::from_str(&self.text).map_err(|error: toml::de::Error| {
            self.wrong(error.span().map_or(0, |span| span.start), error.message())
        })
    }
}

impl Settings {
    /// Puts the command line and the file that it names together.
    ///
    /// # Errors
    /// [`BadSetting`], with line and column for what the file says.
    pub fn new(arguments: Arguments) -> Result<Self, BadSetting> {
        let source = arguments.config.as_deref().map(Source::read).transpose()?;
        let file = source.as_ref().map(Source::parse).transpose()?;
        let file = file.unwrap_or_default();
        let mode = match (&arguments.mode, &file.mode) {
            (Some(mode), _) => octal(mode).map_err(BadSetting)?,
            (None, Some(mode)) => {
                let wrong = |why: String| match &source {
                    Some(source) => source.wrong(mode.span().start, &why),
                    None => BadSetting(why),
                };
                octal(mode.get_ref()).map_err(wrong)?
            }
            (None, None) => OWNER_ONLY,
        };
        let sockets = match (arguments.socket.is_empty(), file.socket) {
            (true, Some(sockets)) => sockets,
            (_, _) => arguments.socket,
        };
        if sockets.is_empty() {
            return Err(BadSetting(
                "no socket; give --socket PATH, once for each function".to_owned(),
            ));
        }
        let emulator = emulator(
            arguments.device.as_deref(),
            &file.device,
            source.as_ref(),
            sockets.len(),
        )?;
        let commands = match (arguments.log_commands, file.log_commands) {
            (Some(None), _) | (None, Some(LogCommands::Switch(true))) => Some(CommandLog::Stderr),
            (Some(Some(path)), _) | (None, Some(LogCommands::File(path))) => {
                Some(CommandLog::File(path))
            }
            (None, Some(LogCommands::Switch(false)) | None) => None,
        };
        Ok(Self {
            sockets,
            emulator,
            mode,
            trust_memory: arguments.trust_memory || file.trust_memory.unwrap_or(false),
            trap_all: arguments.trap_all || file.trap_all.unwrap_or(false),
            control: arguments.control.or(file.control),
            faults: [file.fault, arguments.fault].concat(),
            commands,
            log_level: arguments
                .log_level
                .or(file.log_level)
                .unwrap_or_else(|| "warn".to_owned()),
        })
    }
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600)
        .ok_or_else(|| {
            format!("mode {text:?}: octal access bits with 600 in them allowed, as in 660")
        })
}

/// The emulator's settings, from the device string or the file's device table.
fn emulator(
    line: Option<&str>,
    table: &HashMap<Spanned<String>, Spanned<Plain>>,
    source: Option<&Source>,
    sockets: usize,
) -> Result<EmulatorConfig, BadSetting> {
    let ports = sockets.to_string();
    let owned: Vec<(String, String)> = match line {
        Some(line) => {
            let line = line.strip_prefix("emu:").unwrap_or(line);
            let wrong = |why: String| BadSetting(format!("--device: {why}"));
            let settings = settings::split(line).map_err(wrong)?;
            let pair = |setting: settings::Setting| (setting.key, setting.value);
            settings.into_iter().map(pair).collect()
        }
        None => table
            .iter()
            .map(|(key, value)| (key.get_ref().clone(), value.get_ref().text()))
            .collect(),
    };
    let mut all: Vec<(&str, &str)> = owned
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    if !all.iter().any(|(key, _)| *key == "ports") {
        all.push(("ports", &ports));
    }
    let config = EmulatorConfig::from_keys(all).map_err(|error| {
        let named = match &error {
            EmuError::Key { key, .. } | EmuError::Value { key, .. } => Some(key.as_str()),
            _ => None,
        };
        let place = table
            .keys()
            .find(|key| Some(key.get_ref().as_str()) == named);
        match (line, place, source) {
            (None, Some(key), Some(source)) => source.wrong(key.span().start, &error.to_string()),
            (None, None, Some(source)) => BadSetting(format!("{}: {error}", source.name)),
            _ => BadSetting(error.to_string()),
        }
    })?;
    if config.functions.len() != sockets {
        return Err(BadSetting(format!(
            "ports={} with {sockets} sockets; give one --socket for each function",
            config.functions.len()
        )));
    }
    Ok(config)
}
