//! What can go wrong between a port and its adapter: one enum for the crate.
//!
//! Every message says what was asked, what is there, the limit and the remedy. A command that
//! failed is described by [`CommandFailure`]: it can be cloned, because one event (the device
//! gone) may end many commands at once.

use crate::command::CommandError;
use crate::config::MacAddress;
use pollux_bus::BusError;
use pollux_mempool::MemoryError;
use pollux_prm::command_queue::DeliveryStatus;
use pollux_prm::layout::FieldTooWide;
use pollux_prm::opcode::Opcode;
use std::time::Duration;

/// Failure of a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bus refused something.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory could not be had or reached.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A value does not fit the field of the command it is for.
    #[error(transparent)]
    Field(#[from] FieldTooWide),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandFailure),
    /// The function speaks another command interface.
    #[error(
        "{function}: command interface revision {found}, this driver speaks 5, as every mlx5 adapter has; update its firmware (mstflint -d PCI query), and look at its device id"
    )]
    Interface {
        /// The function's name.
        function: String,
        /// The revision found.
        found: u16,
    },
    /// The command queue that the function announces cannot be served.
    #[error(
        "{function}: a command queue of 2^{log_size} entries of 2^{log_stride} bytes does not fit one 4 KiB page of 64-byte entries with a slot for pages beside one for commands"
    )]
    CommandQueue {
        /// The function's name.
        function: String,
        /// Entries, log 2.
        log_size: u8,
        /// Bytes from one entry to the next, log 2.
        log_stride: u8,
    },
    /// Firmware does not leave its initializing state.
    #[error(
        "{function}: firmware still initializing after {:.1} s, the limit{health}; it needs seconds after power-on, so it hangs: reset it (mlxfwreset -d PCI reset), else a cold boot",
        .waited.as_secs_f32()
    )]
    Initializing {
        /// The function's name.
        function: String,
        /// Time waited.
        waited: Duration,
        /// What its health buffer says, behind a blank; or nothing.
        health: String,
    },
    /// Firmware had stopped before it was asked for anything.
    #[error("{function}: firmware has stopped: {fault}")]
    Health {
        /// The function's name.
        function: String,
        /// What it says of itself.
        fault: crate::health::Fault,
    },
    /// Known to be something that is no mlx5 adapter.
    #[error("{function}: {vendor:04x}:{device:04x} is {what}; {remedy}")]
    NotMlx5 {
        /// The function's name.
        function: String,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
        /// What it is.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The port is no Ethernet port.
    #[error(
        "{function}: the port is in {found} mode and Pollux drives Ethernet; mlxconfig -d {function} set LINK_TYPE_P{port}=2 (mstconfig takes the same words), then mlxfwreset or a cold boot"
    )]
    PortType {
        /// The function's name.
        function: String,
        /// Its mode.
        found: String,
        /// The port's number for `mlxconfig`.
        port: u8,
    },
    /// The adapter has less of some capabilities than the driver needs.
    #[error("{function}: the adapter lacks {missing}; {remedy}")]
    Capabilities {
        /// The function's name.
        function: String,
        /// All of them, each with what is there, what is needed, and what for.
        missing: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The adapter lacks something that the driver cannot do without.
    #[error("{function}: the adapter {lacks}; {remedy}")]
    Unsupported {
        /// The function's name.
        function: String,
        /// What it lacks.
        lacks: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A setting is outside what the adapter takes.
    #[error("{what}: {given} given, {allowed} allowed; {remedy}")]
    Setting {
        /// What was set.
        what: &'static str,
        /// The value given.
        given: u64,
        /// The values allowed, in words.
        allowed: String,
        /// What to do.
        remedy: String,
    },
    /// An address that no single station can have.
    #[error(
        "station address {given}: not one of a single station; clear the lowest bit of the first byte, and do not use zero"
    )]
    Address {
        /// The address given.
        given: MacAddress,
    },
    /// A call that does not fit the port's state.
    #[error("port {function}: {asked} while the port is {state}; {remedy}")]
    State {
        /// The function's name.
        function: String,
        /// What was asked.
        asked: &'static str,
        /// The state the port is in.
        state: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A queue that is not there, or is with somebody else.
    #[error("{kind} queue {index} of port {function}: {why}")]
    Queue {
        /// The function's name.
        function: String,
        /// `RX` or `TX`.
        kind: &'static str,
        /// Its index.
        index: usize,
        /// Why it cannot be had.
        why: String,
    },
    /// Firmware wants pages that cannot be had.
    #[error("{function}: firmware wants {count} pages of 4 KiB to start: {why}")]
    NoPages {
        /// The function's name.
        function: String,
        /// Pages wanted.
        count: i32,
        /// Why there are none.
        why: String,
    },
    /// Firmware keeps pages that it was given.
    #[error(
        "{function}: firmware keeps {kept} of the pages it was given ({keys}); something was still alive on the device when it was torn down"
    )]
    PagesKept {
        /// The function's name.
        function: String,
        /// Pages not returned.
        kept: usize,
        /// Which functions hold them.
        keys: String,
    },
    /// Closing did not go through in every step.
    #[error("{function}: closing met {count} errors, the first: {first}")]
    Close {
        /// The function's name.
        function: String,
        /// Number of errors.
        count: usize,
        /// The first of them.
        first: Box<Error>,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandFailure {
    /// Firmware refused it.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// The command did not reach firmware whole.
    #[error(
        "{opcode} (op_mod {op_mod:#x}) was not delivered: {}",
        delivery_text(*.delivery)
    )]
    Delivery {
        /// The command.
        opcode: Opcode,
        /// Its variant.
        op_mod: u16,
        /// Delivery status of the entry.
        delivery: DeliveryStatus,
    },
    /// Firmware did not answer in time.
    #[error(
        "{opcode} (op_mod {op_mod:#x}) in slot {slot}: no answer after {} ms; the device hangs, reset the function",
        .waited.as_millis()
    )]
    TimedOut {
        /// The command.
        opcode: Opcode,
        /// Its variant.
        op_mod: u16,
        /// The slot, which stays unused.
        slot: usize,
        /// Time waited.
        waited: Duration,
    },
    /// Every slot is held by a command that was never answered.
    #[error(
        "{opcode}: no command slot came free within {} ms; earlier commands hang, reset the function",
        .waited.as_millis()
    )]
    NoSlot {
        /// The command.
        opcode: Opcode,
        /// Time waited.
        waited: Duration,
    },
    /// The device is gone or has failed.
    #[error("{opcode} not done: the device has failed ({fault})")]
    Gone {
        /// The command.
        opcode: Opcode,
        /// What was seen.
        fault: crate::health::Fault,
    },
    /// The control thread is not there (the port is closed).
    #[error("{opcode} not done: the port is closed")]
    Closed {
        /// The command.
        opcode: Opcode,
    },
    /// The input or output is longer than a slot's mailboxes hold.
    #[error("{opcode}: {bytes} bytes of {direction}, a slot holds {limit}; ask for less at once")]
    TooLong {
        /// The command.
        opcode: Opcode,
        /// `input` or `output`.
        direction: &'static str,
        /// Bytes wanted.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// Mailboxes of the answer do not belong to it.
    #[error("{opcode}: the answer is damaged ({what})")]
    Damaged {
        /// The command.
        opcode: Opcode,
        /// What is wrong.
        what: &'static str,
    },
    /// Called from the control thread, which would wait for itself.
    #[error("{opcode}: called from a link callback; a callback must not call its port")]
    OnControlThread {
        /// The command.
        opcode: Opcode,
    },
    /// The bus failed while the command was posted.
    #[error("{opcode}: {why}")]
    Bus {
        /// The command.
        opcode: Opcode,
        /// What the bus said.
        why: String,
    },
}

/// Delivery status of a command entry in words.
fn delivery_text(status: DeliveryStatus) -> String {
    let text = match status {
        DeliveryStatus::SIGNATURE_ERROR => "signature error",
        DeliveryStatus::TOKEN_ERROR => "token error",
        DeliveryStatus::BAD_BLOCK_NUMBER => "bad block number",
        DeliveryStatus::OUTPUT_POINTER_ALIGNMENT => "output mailbox not aligned",
        DeliveryStatus::INPUT_POINTER_ALIGNMENT => "input mailbox not aligned",
        DeliveryStatus::FIRMWARE_ERROR => "firmware internal error",
        DeliveryStatus::INPUT_LENGTH_ERROR => "input length error",
        DeliveryStatus::OUTPUT_LENGTH_ERROR => "output length error",
        DeliveryStatus::RESERVED_NOT_CLEAR => "reserved field not clear",
        DeliveryStatus::BAD_DESCRIPTOR => "bad command descriptor",
        _ => "unknown",
    };
    format!("{text} (delivery status {:#x})", status.0)
}
