//! Recorded command traffic: the kernel's debug log of a real adapter, as bytes.
//!
//! The format is what mlx5_core logs with dynamic debugging on: each command's entry, then its
//! mailboxes, as hex lines, once when it is submitted and once when it has completed. Only tests
//! use this (feature `recording`); what it yields are plain bytes, so that both sides of the
//! wire can be held against them.

use std::path::Path;

use crate::command::Opcode;
use crate::command_queue::{CommandEntry, INLINE, Mailbox, mailboxes};
use crate::layout::Layout;

/// Name of the recording inside the folder of reference data.
pub const FILE: &str = "trace-mlx5_core.txt.gz";

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be unpacked.
    #[error("{path} cannot be unpacked with gzip: {reason}")]
    Unpack {
        /// The file.
        path: String,
        /// What gzip, or starting it, said.
        reason: String,
    },
    /// A line is not what the format has there.
    #[error("line {line}: {found}, expected {expected}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
}

/// One direction of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The entry at that moment.
    pub entry: CommandEntry,
    /// The mailboxes of this direction, in chain order.
    pub mailboxes: Vec<Mailbox>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCommand {
    /// Its opcode.
    pub opcode: Opcode,
    /// As it was submitted, with the input's mailboxes.
    pub submitted: Recorded,
    /// What was written to the command doorbell.
    pub doorbell: u32,
    /// As it had completed, with the output's mailboxes.
    pub completed: Recorded,
}

impl RecordedCommand {
    /// Whether the log has every mailbox of the input.
    ///
    /// The kernel of the recording stopped printing once it had printed as many bytes, entry and
    /// control parts included, as the message is long. So the end of very long messages is
    /// missing, and the only mailbox of very short ones.
    pub fn has_whole_input(&self) -> bool {
        let len = self.submitted.entry.input_length() as usize;
        self.submitted.mailboxes.len() == mailboxes(len)
    }

    /// Whether the log has every mailbox of the output; see [`Self::has_whole_input`].
    pub fn has_whole_output(&self) -> bool {
        let len = self.completed.entry.output_length() as usize;
        self.completed.mailboxes.len() == mailboxes(len)
    }

    /// The input: `input_length` bytes, or as many as the log has.
    pub fn input(&self) -> Vec<u8> {
        let entry = &self.submitted.entry;
        assemble(
            entry.input_inline(),
            entry.input_length(),
            &self.submitted.mailboxes,
        )
    }

    /// The output: `output_length` bytes, or as many as the log has.
    pub fn output(&self) -> Vec<u8> {
        let entry = &self.completed.entry;
        assemble(
            entry.output_inline(),
            entry.output_length(),
            &self.completed.mailboxes,
        )
    }
}

fn assemble(inline: [u8; INLINE], len: u32, mailboxes: &[Mailbox]) -> Vec<u8> {
    let mut bytes = inline.to_vec();
    for mailbox in mailboxes {
        bytes.extend_from_slice(&mailbox.data());
    }
    bytes.truncate(len as usize);
    bytes
}

/// Reads [`FILE`] in `folder`.
///
/// # Errors
/// [`RecordingError`] if the file cannot be unpacked or is not in the format.
pub fn read(folder: &Path) -> Result<Vec<RecordedCommand>, RecordingError> {
    let path = folder.join(FILE);
    let unpack = |reason: String| RecordingError::Unpack {
        path: path.display().to_string(),
        reason,
    };
    let output = std::process::Command::new("gzip")
        .arg("-dc")
        .arg(&path)
        .output()
        .map_err(|e| unpack(e.to_string()))?;
    if !output.status.success() {
        return Err(unpack(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Takes the commands out of a log.
///
/// # Errors
/// [`RecordingError::Line`] where a dump is cut short or a completion has no submission.
pub fn parse(log: &str) -> Result<Vec<RecordedCommand>, RecordingError> {
    let mut lines = Lines {
        rest: log.lines().enumerate(),
        last: 0,
    };
    let mut commands = Vec::new();
    let mut submitted: Option<(Opcode, Recorded, u32)> = None;
    let mut completed: Option<Recorded> = None;
    while let Some(line) = lines.next() {
        if let Some((opcode, is_input)) = headline(line) {
            if let (Some((opcode, submitted, doorbell)), Some(completed)) =
                (submitted.clone(), completed.take())
            {
                commands.push(RecordedCommand {
                    opcode,
                    submitted,
                    doorbell,
                    completed,
                });
            }
            let entry: CommandEntry = lines.dump()?;
            let recorded = Recorded {
                entry,
                mailboxes: Vec::new(),
            };
            if is_input {
                submitted = Some((opcode, recorded, 0));
            } else if submitted.as_ref().is_some_and(|(o, ..)| *o == opcode) {
                completed = Some(recorded);
            } else {
                return Err(lines.error(line, "the output of the command submitted last"));
            }
        } else if line.ends_with("command block:") {
            let mailbox: Mailbox = lines.dump()?;
            match (&mut completed, &mut submitted) {
                (Some(side), _) | (None, Some((_, side, _))) => side.mailboxes.push(mailbox),
                (None, None) => return Err(lines.error(line, "an entry before its mailboxes")),
            }
        } else if let Some(value) = doorbell(line) {
            match &mut submitted {
                Some((.., to)) => *to = value,
                None => return Err(lines.error(line, "an entry before its doorbell")),
            }
        }
    }
    if let (Some((opcode, submitted, doorbell)), Some(completed)) = (submitted, completed) {
        commands.push(RecordedCommand {
            opcode,
            submitted,
            doorbell,
            completed,
        });
    }
    Ok(commands)
}

/// Opcode and direction of the line that announces an entry.
fn headline(line: &str) -> Option<(Opcode, bool)> {
    let (_, rest) = line.split_once(": dump command ")?;
    let (_, rest) = rest.rsplit_once("(0x")?;
    let (opcode, direction) = rest.split_once(") ")?;
    let opcode = Opcode(u16::from_str_radix(opcode, 16).ok()?);
    match direction {
        "INPUT" => Some((opcode, true)),
        "OUTPUT" => Some((opcode, false)),
        _ => None,
    }
}

fn doorbell(line: &str) -> Option<u32> {
    let value = line
        .split_once("writing 0x")?
        .1
        .strip_suffix(" to command doorbell")?;
    u32::from_str_radix(value, 16).ok()
}

struct Lines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
    last: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (number, line) = self.rest.next()?;
        self.last = number + 1;
        Some(line)
    }

    fn error(&self, found: &str, expected: &'static str) -> RecordingError {
        RecordingError::Line {
            line: self.last,
            found: format!("{found:?}"),
            expected,
        }
    }

    /// The hex lines that follow, as a layout; other drivers' lines in between are passed over.
    fn dump<T: Layout>(&mut self) -> Result<T, RecordingError> {
        let mut bytes = Vec::with_capacity(T::LEN);
        while bytes.len() < T::LEN {
            let Some(line) = self.next() else {
                return Err(self.error("the end", "more lines of a dump"));
            };
            if headline(line).is_some() || line.ends_with("command block:") {
                return Err(self.error(line, "more lines of a dump"));
            }
            if let Some(words) = hex_line(line) {
                bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            }
        }
        T::read_from_bytes(&bytes).map_err(|_| self.error("a dump", "one that ends on its size"))
    }
}

/// The four words of `[time] offset: word word word word`.
fn hex_line(line: &str) -> Option<[u32; 4]> {
    let (_, rest) = line.split_once("] ")?;
    let (offset, rest) = rest.split_once(": ")?;
    usize::from_str_radix(offset, 16).ok()?;
    let mut words = [0; 4];
    let mut parts = rest.split(' ');
    for word in &mut words {
        let part = parts.next().filter(|part| part.len() == 8)?;
        *word = u32::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(words)
}
