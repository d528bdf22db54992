//! Compares two captures packet by packet.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::capture::{Capture, CaptureError};

/// What the forwarder does to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Transformation {
    /// Source and destination address change places
    Macswap,
    /// Nothing changes
    None,
}

impl Transformation {
    fn apply(self, packet: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Macswap => {
                // A frame without both addresses is forwarded as it is.
                if let Some((to, rest)) = packet.split_at_mut_checked(6) {
                    if let Some(from) = rest.get_mut(..6) {
                        to.swap_with_slice(from);
                    }
                }
            }
        }
    }
}

impl fmt::Display for Transformation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Macswap => "addresses swapped",
            Self::None => "unchanged",
        })
    }
}

/// Packets that were named as too large, counted from 1.
#[derive(Clone, Default, Debug)]
pub struct Skipped {
    numbers: BTreeSet<u64>,
    /// The longest frame that was taken, and how many longer ones were counted.
    longer: Option<(usize, u64)>,
}

impl Skipped {
    /// Lets packet `number` be missing.
    pub fn allow(&mut self, number: u64) {
        self.numbers.insert(number);
    }

    fn covers(&self, number: u64, length: usize) -> bool {
        self.numbers.contains(&number) || self.longer.is_some_and(|(limit, _)| length > limit)
    }

    /// Takes what a forwarder's report says of packets that were too large. The report must
    /// be about `input`.
    ///
    /// # Errors
    /// The report cannot be read or has another form.
    pub fn read_report(&mut self, report: &Path, input: &Path) -> Result<(), String> {
        let bad = |what: String| format!("{}: {what}", report.display());
        let text = std::fs::read_to_string(report)
            .map_err(|e| bad(format!("{e}; give a report written by --json")))?;
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| bad(format!("no JSON ({e}); give a report written by --json")))?;
        let wires = value
            .get("wires")
            .and_then(serde_json::Value::as_array)
            .ok_or_else(|| bad("no list `wires`; give a report written by --json".into()))?;
        for wire in wires {
            let same = wire
                .get("input")
                .and_then(serde_json::Value::as_str)
                .is_some_and(|name| same_file(Path::new(name), input));
            if !same {
                continue;
            }
            let number = |key: &str| wire.get(key).and_then(serde_json::Value::as_u64);
            // A report names the first few; the limit tells all of them.
            if let (Some(limit), Some(count)) = (number("oversize_limit"), number("oversize_count"))
            {
                self.longer = Some((usize::try_from(limit).unwrap_or(usize::MAX), count));
            }
        }
        Ok(())
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    a == b
        || matches!(
            (std::fs::canonicalize(a), std::fs::canonicalize(b)),
            (Ok(a), Ok(b)) if a == b
        )
}

/// The first difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A byte differs.
    Differs {
        /// Packet in the input.
        packet: u64,
        /// Packet in the output.
        output: u64,
        /// Offset of the byte.
        at: usize,
        /// Expected there.
        expected: u8,
        /// Found there.
        found: u8,
    },
    /// A packet has another length.
    Length {
        /// Packet in the input.
        packet: u64,
        /// Packet in the output.
        output: u64,
        /// Expected length.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// The output ended too early.
    Missing {
        /// Packet in the input that should come next.
        packet: u64,
    },
    /// The output has more packets.
    Extra {
        /// Packet in the output that is too many.
        output: u64,
    },
    /// Named as too large although larger ones were forwarded.
    NotTooLarge {
        /// Packet in the input.
        packet: u64,
        /// Its length.
        length: usize,
        /// Length of a packet that went through.
        forwarded: usize,
    },
    /// The report counted another number of packets that were too large.
    Count {
        /// The longest packet that was taken.
        limit: usize,
        /// Packets beyond it in the input.
        there: u64,
        /// Packets beyond it in the report.
        told: u64,
    },
    /// A packet that does not exist was named as too large.
    NoSuchPacket {
        /// The number.
        packet: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs {
                packet,
                output,
                at,
                expected,
                found,
            } => write!(
                f,
                "packet {packet} (in the output {output}) differs at byte {at}: {expected:#04x} expected, {found:#04x} found"
            ),
            Self::Length {
                packet,
                output,
                expected,
                found,
            } => write!(
                f,
                "packet {packet} (in the output {output}) has {found} bytes, {expected} expected"
            ),
            Self::Missing { packet } => write!(f, "the output ends before packet {packet}"),
            Self::Extra { output } => write!(
                f,
                "the output goes on with packet {output} after the last one of the input"
            ),
            Self::NotTooLarge {
                packet,
                length,
                forwarded,
            } => write!(
                f,
                "packet {packet} of {length} bytes is named as too large, yet one of {forwarded} bytes went through"
            ),
            Self::Count { limit, there, told } => write!(
                f,
                "{there} packets of the input are longer than {limit} bytes, but {told} were reported as too large"
            ),
            Self::NoSuchPacket { packet } => write!(
                f,
                "packet {packet} is named as too large, but the input has fewer packets"
            ),
        }
    }
}

/// Packets, bytes and digest of one side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Packets.
    pub packets: u64,
    /// Bytes of packets.
    pub bytes: u64,
    /// SHA-256 over each packet's length (32 bits, little endian) and bytes.
    pub sha256: String,
}

#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    hash: Sha256,
}

impl Tally {
    fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        // A capture's packet never reaches 2^32 bytes.
        let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        self.hash.update(length.to_le_bytes());
        self.hash.update(packet);
    }

    fn finish(self) -> Side {
        let sha256 = self
            .hash
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        Side {
            packets: self.packets,
            bytes: self.bytes,
            sha256,
        }
    }
}

/// The result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// What the forwarder did.
    pub transformation: Transformation,
    /// The input's file.
    pub input_path: PathBuf,
    /// All packets of the input.
    pub input: Side,
    /// What must have come out.
    pub expected: Side,
    /// What came out.
    pub output: Side,
    /// Packets that were named as too large and are missing, with their lengths.
    pub skipped: Vec<(u64, usize)>,
    /// The first difference; `None` when there is none.
    pub fault: Option<Fault>,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [
            ("input", &self.input),
            ("expected", &self.expected),
            ("output", &self.output),
        ] {
            writeln!(
                f,
                "{name:<9} {:>10} packets {:>12} bytes  sha256 {}",
                side.packets, side.bytes, side.sha256
            )?;
        }
        for (packet, length) in &self.skipped {
            writeln!(
                f,
                "skipped   packet {packet} of {length} bytes, named as too large"
            )?;
        }
        if self.fault.is_none() {
            writeln!(
                f,
                "proven: every packet of {} left in order, byte for byte, {}{}",
                self.input_path.display(),
                self.transformation,
                if self.skipped.is_empty() {
                    String::new()
                } else {
                    format!(", except the {} named above", self.skipped.len())
                }
            )?;
        } else {
            writeln!(f, "NOT proven")?;
        }
        Ok(())
    }
}

/// A comparison to be made.
#[derive(Debug)]
pub struct Comparison {
    transformation: Transformation,
    skipped: Skipped,
}

impl Comparison {
    /// Compares under `transformation`, letting `skipped` packets be missing.
    pub fn new(transformation: Transformation, skipped: Skipped) -> Self {
        Self {
            transformation,
            skipped,
        }
    }

    /// Reads `input` and `outputs` to their ends. Several outputs follow one another.
    ///
    /// # Errors
    /// A file cannot be read to its end, or holds packets that are not Ethernet. A
    /// difference is no error: it is in the result.
    pub fn run(self, input: &Path, outputs: &[PathBuf]) -> Result<Proof, CaptureError> {
        let mut source = Capture::open(input)?;
        let mut sink = Outputs::open(outputs)?;
        let (mut all, mut wanted, mut found) =
            (Tally::default(), Tally::default(), Tally::default());
        let mut skipped = Vec::new();
        let mut fault = None;
        let mut longest = 0;
        let mut packet = Vec::new();
        while let Some(facts) = source.next_ethernet()? {
            all.add(source.bytes());
            if self.skipped.covers(facts.number, source.bytes().len()) {
                skipped.push((facts.number, source.bytes().len()));
                continue;
            }
            packet.clear();
            packet.extend_from_slice(source.bytes());
            self.transformation.apply(&mut packet);
            wanted.add(&packet);
            longest = longest.max(packet.len());
            match sink.next()? {
                Some((number, bytes)) => {
                    found.add(bytes);
                    if fault.is_none() {
                        fault = difference(facts.number, number, &packet, bytes);
                    }
                }
                None => {
                    fault.get_or_insert(Fault::Missing {
                        packet: facts.number,
                    });
                }
            }
        }
        while let Some((number, bytes)) = sink.next()? {
            found.add(bytes);
            fault.get_or_insert(Fault::Extra { output: number });
        }
        if fault.is_none() {
            fault = self.check_skipped(&skipped, all.packets, longest);
        }
        Ok(Proof {
            transformation: self.transformation,
            input_path: input.to_path_buf(),
            input: all.finish(),
            expected: wanted.finish(),
            output: found.finish(),
            skipped,
            fault,
        })
    }

    /// "Too large" must hold: it is no excuse for an ordinary packet.
    fn check_skipped(
        &self,
        skipped: &[(u64, usize)],
        packets: u64,
        longest: usize,
    ) -> Option<Fault> {
        if let Some((limit, told)) = self.skipped.longer {
            let there = skipped.iter().filter(|(_, n)| *n > limit).count() as u64;
            if there != told {
                return Some(Fault::Count { limit, there, told });
            }
        }
        if let Some(n) = self.skipped.numbers.iter().find(|n| **n > packets) {
            return Some(Fault::NoSuchPacket { packet: *n });
        }
        skipped
            .iter()
            .find(|(_, length)| *length <= longest)
            .map(|(packet, length)| Fault::NotTooLarge {
                packet: *packet,
                length: *length,
                forwarded: longest,
            })
    }
}

fn difference(packet: u64, output: u64, expected: &[u8], found: &[u8]) -> Option<Fault> {
    if expected.len() != found.len() {
        return Some(Fault::Length {
            packet,
            output,
            expected: expected.len(),
            found: found.len(),
        });
    }
    expected
        .iter()
        .zip(found)
        .enumerate()
        .find(|(_, (e, f))| e != f)
        .map(|(at, (e, f))| Fault::Differs {
            packet,
            output,
            at,
            expected: *e,
            found: *f,
        })
}

/// Several captures read as one.
struct Outputs {
    captures: Vec<Capture>,
    current: usize,
    number: u64,
}

impl Outputs {
    fn open(paths: &[PathBuf]) -> Result<Self, CaptureError> {
        Ok(Self {
            captures: paths
                .iter()
                .map(|p| Capture::open(p))
                .collect::<Result<_, _>>()?,
            current: 0,
            number: 0,
        })
    }

    fn next(&mut self) -> Result<Option<(u64, &[u8])>, CaptureError> {
        while let Some(c) = self.captures.get_mut(self.current) {
            if c.next_ethernet()?.is_some() {
                self.number += 1;
                return Ok(self
                    .captures
                    .get(self.current)
                    .map(|c| (self.number, c.bytes())));
            }
            self.current += 1;
        }
        Ok(None)
    }
}
