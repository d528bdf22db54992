//! What commands a function was given, one record each, for whoever keeps a log.

use pollux_prm::command::{Opcode, Status};
use pollux_prm::command_queue::DeliveryStatus;
use pollux_prm::commands::register::RegisterId;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The firmware answered.
    Answered {
        /// Status.
        status: Status,
        /// Syndrome, zero where there is nothing to say.
        syndrome: u32,
    },
    /// The entry was malformed and never reached the firmware.
    Undelivered(DeliveryStatus),
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRecord {
    /// Which command.
    pub opcode: Opcode,
    /// Its variant (`op_mod`).
    pub variant: u16,
    /// The register, with ACCESS_REG.
    pub register: Option<RegisterId>,
    /// Bytes of input.
    pub input: usize,
    /// How it ended.
    pub outcome: CommandOutcome,
}

impl CommandRecord {
    /// The record of a command with this input.
    pub(crate) fn new(input: &[u8], length: usize, outcome: CommandOutcome) -> Self {
        let word = |at: usize| match input.get(at..at + 2) {
            Some(&[high, low]) => u16::from_be_bytes([high, low]),
            _ => 0,
        };
        let opcode = Opcode(word(0));
        Self {
            opcode,
            variant: word(6),
            register: (opcode == Opcode::ACCESS_REG).then(|| RegisterId(word(10))),
            input: length,
            outcome,
        }
    }

    /// The record of a command with this input and output.
    pub(crate) fn answered(input: &[u8], output: &[u8]) -> Self {
        let syndrome = output
            .get(4..8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_be_bytes);
        let status = Status(output.first().copied().unwrap_or(0));
        let outcome = CommandOutcome::Answered { status, syndrome };
        Self::new(input, input.len(), outcome)
    }
}

/// A name, or the number of what has none.
struct Named(Option<&'static str>, u32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#06x}", self.1),
        }
    }
}

impl fmt::Display for CommandRecord {
    /// One line: name, variant, register, input bytes, how it ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opcode = Named(self.opcode.name(), self.opcode.0.into());
        write!(f, "{opcode} op_mod={:#x}", self.variant)?;
        if let Some(register) = self.register {
            write!(f, " reg={}", Named(register.name(), register.0.into()))?;
        }
        write!(f, " in={}", self.input)?;
        match self.outcome {
            CommandOutcome::Answered { status, syndrome } => {
                let status = Named(status.name(), status.0.into());
                write!(f, " status={status} syndrome={syndrome:#x}")
            }
            CommandOutcome::Undelivered(status) => {
                write!(f, " undelivered={}", Named(status.name(), status.0.into()))
            }
        }
    }
}

/// What is called with each record, on the function's command thread.
pub type CommandWatcher = Box<dyn FnMut(&CommandRecord) + Send>;

/// The place of a function's watcher.
#[derive(Default)]
pub(crate) struct Watched {
    /// Whether there is one: commands of unwatched functions make no record.
    there: AtomicBool,
    watcher: Mutex<Option<CommandWatcher>>,
}

impl Watched {
    pub fn set(&self, watcher: Option<CommandWatcher>) {
        let mut place = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        self.there.store(watcher.is_some(), Ordering::Release);
        *place = watcher;
    }

    pub fn is_there(&self) -> bool {
        self.there.load(Ordering::Acquire)
    }

    pub fn tell(&self, records: &[CommandRecord]) {
        if records.is_empty() {
            return;
        }
        let mut place = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = place.as_mut() {
            records.iter().for_each(watcher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_what_has_a_name() {
        let mut input = [0; 32];
        input[..2].copy_from_slice(&[0x08, 0x05]);
        input[7] = 1;
        input[10..12].copy_from_slice(&[0x50, 0x04]);
        let line = CommandRecord::answered(&input, &[0; 16]).to_string();
        assert_eq!(
            line,
            "ACCESS_REG op_mod=0x1 reg=PTYS in=32 status=OK syndrome=0x0"
        );
        input[..2].copy_from_slice(&[0x0f, 0xff]);
        let mut output = [0; 16];
        output[0] = 2;
        output[6..8].copy_from_slice(&[0xbe, 0xef]);
        let line = CommandRecord::answered(&input, &output).to_string();
        assert_eq!(
            line,
            "0x0fff op_mod=0x1 in=32 status=BAD_OP_ERR syndrome=0xbeef"
        );
    }
}
