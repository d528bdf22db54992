//! What a port is plugged into.
//!
//! A wire is described by a [`WireConfig`] and opened before the data thread starts, so that a bad
//! capture is an error of creation. Loop and pair are joints between functions and cost one copy;
//! the others are a source of frames, a sink of frames, or both.

use serde::Deserialize;
use std::path::PathBuf;

/// What a port is plugged into, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireConfig {
    /// The kind.
    pub kind: WireKind,
    /// Drops frames for which there is no receive buffer, and counts them, instead of waiting.
    #[serde(default)]
    pub lossy: bool,
}

/// Kinds of wires.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireKind {
    /// Frames come back to the port that sent them.
    Loop,
    /// Frames go to another function of the same emulator, and its frames come here. Both ends
    /// name each other.
    Pair {
        /// The other function.
        peer: usize,
    },
    /// Frames vanish, none come.
    #[default]
    Null,
    /// Frames are made up; what is sent vanishes.
    Gen(GenConfig),
    /// Frames come from a capture, what is sent goes to one.
    Pcap(PcapConfig),
}

/// Captures of a pcap wire; pcap and pcapng.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapConfig {
    /// Capture to receive from.
    #[serde(default)]
    pub input: Option<PathBuf>,
    /// Capture to write what is sent to; pcapng when the name ends in `.pcapng`.
    #[serde(default)]
    pub output: Option<PathBuf>,
    /// Times to play the input; 0 for ever, 1 when left out.
    #[serde(default = "once")]
    pub repeat: u64,
    /// Frames per second; as fast as they are taken when left out.
    #[serde(default)]
    pub rate: Option<u64>,
}

/// Frames that a generator makes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenConfig {
    /// Frame sizes in bytes without check sequence, taken at random; at least 60 for UDP/IPv4.
    pub sizes: Vec<u32>,
    /// Distinct flows (UDP source ports and addresses).
    pub flows: u32,
    /// Frames in all; without end when left out.
    pub count: Option<u64>,
    /// Frames per second; as fast as they are taken when left out.
    pub rate: Option<u64>,
    /// Seed of sizes and contents.
    pub seed: u64,
    /// Destination address; broadcast when left out.
    pub destination: Option<[u8; 6]>,
}

fn once() -> u64 {
    1
}

impl Default for GenConfig {
    fn default() -> Self {
        Self {
            sizes: vec![60],
            flows: 1,
            count: None,
            rate: None,
            seed: 1,
            destination: None,
        }
    }
}

/// A frame that did not fit, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversize {
    /// Number of the frame on its wire and direction, from 0.
    pub index: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The limit that it met.
    pub limit: u32,
}

/// What a wire did. Bytes are without the frame check sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireReport {
    /// The wire's kind and files, for people.
    pub what: String,
    /// Whether frames can cross.
    pub up: bool,
    /// Frames that came in from the wire and reached a receive queue.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that the function sent.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames that are still to come in (known ones: the rest of a capture or of a count; 1 for a
    /// peer's frame that waits for a buffer).
    pub waiting: u64,
    /// Frames from the wire that no receive queue got: no rule, no buffer on a lossy wire, too
    /// large, link down. The function's counters say which.
    pub dropped: u64,
    /// Frames that were larger than the port or the receive buffer.
    pub oversize: u64,
    /// The first few of them.
    pub oversize_first: Vec<Oversize>,
    /// All frames of a finite source have been delivered or dropped, and no send queue has work
    /// left.
    pub drained: bool,
    /// A write to the output capture failed; frames after it are lost.
    pub output_error: Option<String>,
}

/// Why a wire could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A capture cannot be read.
    #[error("capture {path}: {reason}")]
    Capture {
        /// The file.
        path: String,
        /// What is wrong and what would do.
        reason: String,
    },
    /// A joint that leads nowhere.
    #[error("wire of function {function}: {reason}")]
    Joint {
        /// The function.
        function: usize,
        /// What is wrong and what would do.
        reason: String,
    },
    /// A generator that makes nothing sensible.
    #[error("generator: {reason}")]
    Generator {
        /// What is wrong and what would do.
        reason: String,
    },
}
