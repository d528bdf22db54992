//! What a port is plugged into.
//!
//! A wire is described by a [`WireConfig`] and opened before the data thread starts, so that a bad
//! capture is an error of creation. Loop and pair are joints between functions and cost one copy;
//! the others are a source of frames, a sink of frames, or both.
//!
//! # Wires to the world
//! `wire=tap,interface=NAME` joins the port to a TAP interface of this machine, so that it talks to
//! the machine's own network stack; `wire=packet,interface=NAME` to what is at the far end of any
//! interface, such as one end of a veth pair.
//!
//! | wire | set up | take down |
//! | --- | --- | --- |
//! | `tap` | `sudo sh -c "ip tuntap add dev tap0 mode tap user $USER; ip address add 192.0.2.1/24 dev tap0; ip link set tap0 up"` | `sudo ip link del tap0` |
//! | `packet` | `sudo sh -c "ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up"` | `sudo ip link del veth0` |
//!
//! A TAP interface made `user $USER` needs no privilege; a packet socket needs CAP_NET_RAW. The
//! port's link follows the interface (for `packet` its carrier too), and a TAP interface's carrier
//! follows the port's link.

mod capture;
mod generator;
mod interface;
mod pace;

use capture::PcapWire;
use generator::GenWire;
use interface::InterfaceWire;
use pollux_bus::netdev::NetdevError;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A wire that leads out of the emulator. Used by the data thread alone.
pub trait Wire: Send {
    /// Kind and files, for people.
    fn what(&self) -> String;

    /// Whether a frame may still come in.
    fn brings(&self) -> bool;

    /// Whether [`send`](Self::send) looks at the bytes it gets.
    fn wants_frames(&self) -> bool;

    /// The next frame that is due when the CPU's counter stands at `now`. The same one again until
    /// [`advance`](Self::advance).
    fn peek(&mut self, now: u64) -> Option<&[u8]>;

    /// The frame from [`peek`](Self::peek) was delivered or dropped.
    fn advance(&mut self);

    /// Frames still to come in; `None` when there is no end.
    fn remaining(&self) -> Option<u64>;

    /// A frame that the function sent, at this time of day.
    fn send(&mut self, frame: &[u8], time: Duration) -> Delivery;

    /// Pushes out what is buffered.
    fn flush(&mut self);

    /// Why frames that were sent are lost, if they are.
    fn error(&self) -> Option<String>;

    /// Whether the far end is up, when the CPU's counter stands at `now`.
    fn link(&mut self, _now: u64) -> bool {
        true
    }

    /// The near end is up or down now.
    fn tell_link(&mut self, _up: bool) {}
}

/// What a wire did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It has it.
    Taken,
    /// It has no room; the frame is to be offered again.
    Wait,
    /// It could not be sent and is lost; [`Wire::error`] says why.
    Lost,
}

/// A wire without a far end.
struct NullWire;

impl Wire for NullWire {
    fn what(&self) -> String {
        "null".to_owned()
    }

    fn brings(&self) -> bool {
        false
    }

    fn wants_frames(&self) -> bool {
        false
    }

    fn peek(&mut self, _now: u64) -> Option<&[u8]> {
        None
    }

    fn advance(&mut self) {}

    fn remaining(&self) -> Option<u64> {
        Some(0)
    }

    fn send(&mut self, _frame: &[u8], _time: Duration) -> Delivery {
        Delivery::Taken
    }

    fn flush(&mut self) {}

    fn error(&self) -> Option<String> {
        None
    }
}

/// Opens a wire that leads out; joints have none.
pub(crate) fn open(config: &WireConfig) -> Result<Box<dyn Wire>, WireError> {
    Ok(match &config.kind {
        WireKind::Loop | WireKind::Pair { .. } | WireKind::Null => Box::new(NullWire),
        WireKind::Gen(config) => Box::new(GenWire::open(config)?),
        WireKind::Pcap(config) => Box::new(PcapWire::open(config)?),
        WireKind::Tap(config) => Box::new(InterfaceWire::tap(&config.interface)?),
        WireKind::Packet(config) => Box::new(InterfaceWire::packet(&config.interface)?),
    })
}

/// Checks what the wires of one emulator have to do with each other: pairs name each other, and
/// no capture is written that another wire reads or writes.
pub(crate) fn check_joints<'a>(
    wires: impl Iterator<Item = &'a WireConfig>,
) -> Result<(), WireError> {
    let wires: Vec<&WireConfig> = wires.collect();
    for (function, wire) in wires.iter().enumerate() {
        let refuse = |reason: String| Err(WireError::Joint { function, reason });
        if let WireKind::Pair { peer } = wire.kind {
            let back = match wires.get(peer).map(|wire| &wire.kind) {
                None => {
                    return refuse(format!(
                        "paired with function {peer}, but there are {}; raise ports or name another",
                        wires.len()
                    ));
                }
                Some(WireKind::Pair { peer }) => Some(*peer),
                Some(_) => None,
            };
            if peer == function {
                return refuse("paired with itself; that is the loop wire".into());
            }
            if back != Some(function) {
                return refuse(format!(
                    "paired with function {peer}, whose wire does not lead back; pair both"
                ));
            }
        }
    }
    let interface = |wire: &WireConfig| match &wire.kind {
        WireKind::Tap(config) | WireKind::Packet(config) => Some(config.interface.clone()),
        _ => None,
    };
    for (function, wire) in wires.iter().enumerate() {
        let Some(name) = interface(wire) else {
            continue;
        };
        let other = wires
            .iter()
            .take(function)
            .position(|other| interface(other).as_ref() == Some(&name));
        if let Some(other) = other {
            let reason = format!(
                "interface {name} is the wire of function {other} already; give each its own"
            );
            return Err(WireError::Joint { function, reason });
        }
    }
    let captures = wires.iter().filter_map(|wire| match &wire.kind {
        WireKind::Pcap(config) => Some(config),
        _ => None,
    });
    let captures: Vec<&PcapConfig> = captures.collect();
    for (at, capture) in captures.iter().enumerate() {
        let Some(output) = &capture.output else {
            continue;
        };
        let read = captures.iter().filter_map(|other| other.input.as_deref());
        let written = captures
            .iter()
            .take(at)
            .filter_map(|other| other.output.as_deref());
        if read.chain(written).any(|other| same_file(output, other)) {
            return Err(WireError::Capture {
                path: output.display().to_string(),
                reason: "is used by another wire too; write each capture to a file of its own"
                    .into(),
            });
        }
    }
    Ok(())
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize();
    one == other || matches!((real(one), real(other)), (Ok(one), Ok(other)) if one == other)
}

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
    /// A TAP interface of this machine: the port talks to the machine's network stack.
    Tap(InterfaceConfig),
    /// Any interface of this machine, through a packet socket: the port talks to what is at its
    /// far end.
    Packet(InterfaceConfig),
}

/// An interface of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// Its name.
    pub interface: String,
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
    /// The function wanted to send it; otherwise it came from the wire.
    pub outgoing: bool,
    /// Number of the frame in its direction, from 0.
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
    /// A write to the output capture or to an interface failed; frames are lost.
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
    /// An interface that cannot be used.
    #[error(transparent)]
    Interface(NetdevError),
    /// A generator that makes nothing sensible.
    #[error("generator: {reason}")]
    Generator {
        /// What is wrong and what would do.
        reason: String,
    },
}
