//! The shell's language: one command tree for the shell, script files and `--cmd`, for
//! completion and for help.
//!
//! Answers to what cannot be parsed keep the two lines that tools look for (`Command not
//! found`, `Bad arguments`); a line for people follows each.

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command as Tree, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::args::one_line;
use crate::args::options::{EthPeer, ForwardMode, parse_mac};
use crate::output::Mac;

/// One line of input.
#[derive(Parser, Debug)]
#[command(
    name = "testpmd",
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true,
    disable_version_flag = true
)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// A port number or all ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ports {
    /// Every port.
    All,
    /// One.
    One(u16),
}

impl std::str::FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse()
            .map(Self::One)
            .map_err(|_| "give a port number or all".to_owned())
    }
}

/// `on` or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// A MAC address as an argument.
fn mac(text: &str) -> Result<Mac, String> {
    parse_mac(text).ok_or_else(|| "give six hexadecimal pairs, e.g. 02:00:00:00:00:01".to_owned())
}

/// The commands.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Start packet forwarding with the current configuration
    Start(Start),
    /// Stop packet forwarding, and show what it did
    Stop,
    /// Leave the program; forwarding stops and all ports are closed
    Quit,
    /// Show what a section of commands does
    Help {
        /// control, display, config, ports or all
        section: Option<String>,
    },
    /// Show state and counters
    #[command(subcommand)]
    Show(Show),
    /// Set counters back to 0
    #[command(subcommand)]
    Clear(Clear),
    /// Change how packets are forwarded, from the next start on
    #[command(subcommand)]
    Set(Set),
    /// Start, stop, close and configure ports
    #[command(subcommand)]
    Port(Port),
    /// Run the commands of a file, showing each
    Load {
        /// The file
        file: std::path::PathBuf,
    },
}

/// `start`
#[derive(Args, Clone, PartialEq, Eq, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Start {
    /// What to do before
    #[command(subcommand)]
    pub before: Option<TxFirst>,
}

/// `start tx_first`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
#[command(rename_all = "snake_case")]
pub enum TxFirst {
    /// Send bursts of packets before forwarding starts
    TxFirst {
        /// How many bursts
        #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        bursts: u32,
    },
}

/// `show`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Show {
    /// Ports
    #[command(subcommand)]
    Port(ShowPort),
    /// Forwarding
    #[command(subcommand)]
    Fwd(Stats),
    /// The configuration
    #[command(subcommand)]
    Config(ShowConfig),
    /// Firmware
    #[command(subcommand)]
    Fw(ShowFw),
}

/// `show fw`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum ShowFw {
    /// Show the pages that firmware holds, function by function
    Pages {
        /// Which
        #[arg(value_name = "port_id|all", default_value = "all")]
        port: Ports,
        /// As one line of JSON per port
        format: Option<JsonWord>,
    },
}

/// `json`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum JsonWord {
    /// JSON
    Json,
}

/// `show port`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum ShowPort {
    /// Show everything about a port
    Info {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Show a port's counters and rates
    Stats {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Show one line per port
    Summary {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Show a port's counters by name
    Xstats {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
}

/// `... stats all`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Stats {
    /// Statistics of forwarding since it started or they were cleared
    #[command(subcommand)]
    Stats(All),
}

/// `all`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum All {
    /// Of all streams and ports
    All,
}

/// `show config`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum ShowConfig {
    /// Show which core forwards what
    Fwd,
    /// Show queues and bursts
    Rxtx,
    /// Show the forwarding cores
    Cores,
}

/// `clear`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Clear {
    /// Forwarding
    #[command(subcommand)]
    Fwd(Stats),
    /// Ports
    #[command(subcommand)]
    Port(ClearPort),
}

/// `clear port`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum ClearPort {
    /// Set a port's counters back to 0
    Stats {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// The same counters, by the name of the other display
    Xstats {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
}

/// `set`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Set {
    /// Set the forwarding mode, with retry of packets that a full transmit queue refuses
    Fwd {
        /// The mode
        mode: ForwardMode,
        /// Try again when a transmit queue is full
        variant: Option<RetryWord>,
    },
    /// Receive frames to foreign addresses, or not
    Promisc {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
        /// on or off
        state: Switch,
    },
    /// Set packets per burst
    Burst {
        /// How many
        packets: u32,
    },
    /// Set the number of forwarding cores
    Nbcore {
        /// How many
        cores: u32,
    },
    /// Set the length of the packets that txonly and tx_first send
    Txpkts {
        /// Bytes
        length: u32,
    },
    /// Set the address of a port's neighbour, for mac and txonly
    #[command(name = "eth-peer")]
    EthPeer {
        /// The port
        #[arg(value_name = "port_id")]
        port: u16,
        /// Its neighbour's address
        #[arg(value_parser = mac)]
        mac: Mac,
    },
    /// Set what is said of packets, from the next start on: 0 nothing, 1 received ones, 2 sent ones, 3 both
    Verbose {
        /// The level
        level: u32,
    },
    /// Measure cycles per packet, or not
    #[command(name = "record-core-cycles")]
    RecordCoreCycles {
        /// on or off
        state: Switch,
    },
}

/// `retry`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RetryWord {
    /// Try again
    Retry,
}

/// `port`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Port {
    /// Start a port
    Start {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Stop a port
    Stop {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Close a port; it is gone for this run
    Close {
        /// Which
        #[arg(value_name = "port_id|all")]
        port: Ports,
    },
    /// Configure ports
    #[command(subcommand)]
    Config(PortConfig),
}

/// `port config`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum PortConfig {
    /// Set a port's MTU
    Mtu {
        /// The port
        #[arg(value_name = "port_id")]
        port: u16,
        /// Bytes without the Ethernet header
        value: u32,
    },
    /// Set a number for all ports, which must be stopped
    #[command(subcommand)]
    All(PortConfigAll),
}

/// `port config all`
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum PortConfigAll {
    /// Receive queues per port
    Rxq {
        /// How many
        value: u32,
    },
    /// Transmit queues per port
    Txq {
        /// How many
        value: u32,
    },
    /// Descriptors per receive queue
    Rxd {
        /// How many
        value: u32,
    },
    /// Descriptors per transmit queue
    Txd {
        /// How many
        value: u32,
    },
    /// Packets per burst
    Burst {
        /// How many
        value: u32,
    },
}

impl From<EthPeer> for Set {
    fn from(p: EthPeer) -> Self {
        Self::EthPeer {
            port: p.port,
            mac: p.mac,
        }
    }
}

/// Why a line is no command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// Its first word is unknown.
    NotFound(String),
    /// Its first word is known, the rest is not as it should be.
    BadArguments(String),
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound(hint) => write!(f, "Command not found\n{hint}"),
            Self::BadArguments(hint) => write!(f, "Bad arguments\n{hint}"),
        }
    }
}

/// Parses one line; `None` for an empty one or a comment (`#`).
///
/// # Errors
/// The line is no command.
pub fn parse(line: &str) -> Result<Option<Command>, Rejection> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let Some(words) = shlex::split(line) else {
        return Err(Rejection::BadArguments(
            "a quotation mark has no partner; close it".into(),
        ));
    };
    match Line::try_parse_from(&words) {
        Ok(parsed) => Ok(Some(parsed.command)),
        Err(e) => Err(reject(&words, &e)),
    }
}

fn reject(words: &[String], error: &clap::Error) -> Rejection {
    let tree = tree();
    let first = words.first().map(String::as_str).unwrap_or_default();
    if tree.find_subcommand(first).is_none() {
        let near = match error.get(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(names)) if !names.is_empty() => {
                format!("did you mean {}? ", names.join(" or "))
            }
            _ => String::new(),
        };
        return Rejection::NotFound(format!(
            "'{first}' is no command; {near}`help all` lists the commands"
        ));
    }
    Rejection::BadArguments(explain(words, error, &tree))
}

/// Finds the word at which the line left the tree and says what may stand there.
fn explain(words: &[String], error: &clap::Error, tree: &Tree) -> String {
    let mut at = tree;
    let mut path = Vec::new();
    for word in words {
        let Some(next) = at.find_subcommand(word) else {
            break;
        };
        path.push(word.as_str());
        at = next;
    }
    let so_far = path.join(" ");
    let wrong = words.get(path.len());
    if at.has_subcommands() {
        let names = at
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect::<Vec<_>>()
            .join(", ");
        return match wrong {
            Some(w) => format!("'{w}' after '{so_far}': allowed: {names}"),
            None => format!("'{so_far}' needs one more word: {names}"),
        };
    }
    let usage = usage(&so_far, at);
    match error.kind() {
        clap::error::ErrorKind::UnknownArgument | clap::error::ErrorKind::TooManyValues => {
            format!("too many words; usage: {usage}")
        }
        clap::error::ErrorKind::MissingRequiredArgument => {
            format!("something is missing; usage: {usage}")
        }
        _ => format!("{}; usage: {usage}", one_line(error)),
    }
}

/// `path (argument) [optional]`.
pub fn usage(path: &str, command: &Tree) -> String {
    let mut text = path.to_owned();
    for a in command.get_positionals() {
        let values = a.get_possible_values();
        let name = if values.is_empty() {
            a.get_value_names()
                .and_then(|n| n.first())
                .map_or_else(|| a.get_id().to_string(), ToString::to_string)
                .to_lowercase()
        } else {
            values
                .iter()
                .map(|v| v.get_name().to_owned())
                .collect::<Vec<_>>()
                .join("|")
        };
        if a.is_required_set() {
            text.push_str(&format!(" ({name})"));
        } else {
            text.push_str(&format!(" [{name}]"));
        }
    }
    text
}

/// The command tree.
pub fn tree() -> Tree {
    let mut tree = Line::command();
    tree.build();
    tree
}

/// Completes the last word of `line`: the words that may stand there, and where it starts.
pub fn complete(line: &str) -> (usize, Vec<String>) {
    let tree = tree();
    let start = line.rfind(char::is_whitespace).map_or(0, |i| {
        i + line[i..].chars().next().map_or(1, char::len_utf8)
    });
    let (before, last) = line.split_at(start);
    let mut at = &tree;
    let mut positionals = 0;
    for word in before.split_whitespace() {
        match at.find_subcommand(word) {
            Some(next) if positionals == 0 => at = next,
            _ => positionals += 1,
        }
    }
    let mut words: Vec<String> = Vec::new();
    if positionals == 0 {
        words.extend(at.get_subcommands().map(|c| c.get_name().to_owned()));
    }
    if let Some(argument) = at.get_positionals().nth(positionals) {
        words.extend(
            argument
                .get_possible_values()
                .iter()
                .map(|v| v.get_name().to_owned()),
        );
        let all = argument
            .get_value_names()
            .is_some_and(|n| n.iter().any(|n| n.contains("|all")));
        if all {
            words.push("all".into());
        }
    }
    words.retain(|w| w.starts_with(last));
    (start, words)
}
