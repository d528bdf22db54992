//! The reader of recorded commands, on logs written by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

use pollux_prm::command::Opcode;
use pollux_prm::recording::{RecordingError, parse};

/// An entry with its opcode, input length and owner bit, as four lines.
fn entry(opcode: u16, input_length: u32, owner: u8) -> String {
    format!(
        "[ +0.1] 000: 07000000 {input_length:08x} 00000000 00000000\n\
         [ +0.1] 010: {opcode:04x}0000 00000001 00000000 00000000\n\
         [ +0.1] usbcore: a line of another driver\n\
         [ +0.1] 020: 00000000 00000000 00000000 00000000\n\
         [ +0.1] 030: 00000000 00000000 00000010 0100000{owner}\n"
    )
}

fn headline(opcode: u16, direction: &str) -> String {
    format!("[ +0.1] mlx5_core: dump_command: dump command ANY(0x{opcode:x}) {direction}\n")
}

fn mailbox() -> String {
    let mut text = "[ +0.1] mlx5_core: command block:\n".to_string();
    for line in 0..36 {
        text += &format!(
            "[ +0.1] {:03x}: {line:08x} 00000000 00000000 00000000\n",
            0x40 + line * 16
        );
    }
    text
}

fn whole() -> String {
    headline(0x108, "INPUT")
        + &entry(0x108, 24, 1)
        + &mailbox()
        + "[ +0.1] mlx5_core: cmd_work_handler: writing 0x80000000 to command doorbell\n"
        + &headline(0x108, "OUTPUT")
        + &entry(0x108, 24, 0)
}

#[test]
fn a_command_is_read_with_its_mailbox_and_doorbell() {
    let commands = parse(&(whole() + &whole())).expect("a log");
    assert_eq!(commands.len(), 2);
    let command = &commands[0];
    assert_eq!(command.opcode, Opcode::MANAGE_PAGES);
    assert_eq!(command.doorbell, 1 << 31);
    assert!(command.submitted.entry.ownership() && !command.completed.entry.ownership());
    assert!(command.has_whole_input() && command.has_whole_output());
    let input = command.input();
    assert_eq!(input.len(), 24);
    assert_eq!(input[..8], [0x01, 0x08, 0, 0, 0, 0, 0, 1]);
    assert_eq!(command.submitted.mailboxes[0].data()[16..20], [0, 0, 0, 1]);
    assert_eq!(command.output().len(), 16);
}

#[test]
fn a_log_of_something_else_has_no_commands() {
    assert!(parse("").expect("a log").is_empty());
    assert!(
        parse("[ +0.1] eth0: link up\nnot even that\n")
            .expect("a log")
            .is_empty()
    );
}

#[test]
fn a_command_that_never_completed_is_left_out() {
    let log = headline(0x104, "INPUT") + &entry(0x104, 16, 1);
    assert!(parse(&log).expect("a log").is_empty());
}

#[test]
fn what_is_cut_short_or_out_of_place_names_its_line() {
    let cut: String = whole()
        .lines()
        .take(12)
        .map(|line| format!("{line}\n"))
        .collect();
    let stray = headline(0x105, "OUTPUT") + &entry(0x105, 16, 0);
    let interrupted = headline(0x104, "INPUT") + &headline(0x104, "INPUT");
    for (log, at) in [(cut, 12), (stray, 6), (interrupted, 2), (mailbox(), 37)] {
        match parse(&log) {
            Err(RecordingError::Line { line, .. }) => assert_eq!(line, at, "{log}"),
            other => panic!("{other:?} from {log}"),
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = pollux_prm::recording::read("/nonexistent".as_ref()).expect_err("no file");
    assert!(
        error
            .to_string()
            .contains("/nonexistent/trace-mlx5_core.txt.gz"),
        "{error}"
    );
}
