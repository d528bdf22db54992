//! One golden input and output for every command, written by hand.
//!
//! The bytes were worked out from the PRM's bit positions as `mlx5_ifc.h` has them, not produced
//! by this crate. A case lists only what is not zero: offset and bytes in hex.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

#[path = "golden/bring_up.rs"]
mod bring_up;
#[path = "golden/flows.rs"]
mod flows;
#[path = "golden/ports.rs"]
mod ports;
#[path = "golden/queues.rs"]
mod queues;

use std::collections::BTreeSet;

use pollux_prm::{Command, Layout, commands};
use zerocopy::IntoBytes;

/// Bytes at an offset, in hex; blanks do not count.
type Rows = &'static [(usize, &'static str)];

/// A command, what its accessors made, and what that has to be.
pub struct Case {
    opcode: u16,
    input: Vec<u8>,
    input_rows: Rows,
    output: Vec<u8>,
    output_rows: Rows,
}

/// A case for the command `C`.
pub fn case<C: Command>(
    fill_input: impl FnOnce(&mut C::Input),
    input_rows: Rows,
    fill_output: impl FnOnce(&mut C::Output),
    output_rows: Rows,
) -> Case {
    let (mut input, mut output) = (C::request(), C::Output::default());
    fill_input(&mut input);
    fill_output(&mut output);
    Case {
        opcode: C::OPCODE.0,
        input: input.as_bytes().to_vec(),
        input_rows,
        output: output.as_bytes().to_vec(),
        output_rows,
    }
}

fn expected(len: usize, rows: Rows) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (offset, hex) in rows {
        let digits: Vec<u32> = hex
            .chars()
            .filter(|c| *c != ' ')
            .map(|c| c.to_digit(16).expect("a digit"))
            .collect();
        for (at, pair) in digits.chunks_exact(2).enumerate() {
            bytes[offset + at] = u8::try_from(pair[0] << 4 | pair[1]).expect("a byte");
        }
    }
    bytes
}

/// Where two byte strings differ, for a message that a person can use.
fn assert_same(what: &str, opcode: u16, made: &[u8], golden: &[u8]) {
    assert_eq!(made.len(), golden.len(), "{what} of {opcode:#x}");
    let wrong: Vec<String> = made
        .iter()
        .zip(golden)
        .enumerate()
        .filter(|(_, (a, b))| a != b)
        .map(|(at, (a, b))| format!("{at:#05x}: {a:02x}, golden {b:02x}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "{what} of {opcode:#x}:\n{}",
        wrong.join("\n")
    );
}

fn cases() -> Vec<Case> {
    [
        bring_up::cases(),
        queues::cases(),
        ports::cases(),
        flows::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_command_has_its_golden_bytes() {
    for case in cases() {
        let info = commands::find(pollux_prm::command::Opcode(case.opcode)).expect("a command");
        let golden = expected(info.input.len, case.input_rows);
        assert_same("input", case.opcode, &case.input, &golden);
        let golden = expected(info.output.len, case.output_rows);
        assert_same("output", case.opcode, &case.output, &golden);
        assert!(
            case.input_rows.iter().any(|(at, _)| *at == 0),
            "the opcode is written by hand too"
        );
    }
}

#[test]
fn no_command_is_without_golden_bytes() {
    let golden: BTreeSet<u16> = cases().iter().map(|c| c.opcode).collect();
    let all: BTreeSet<u16> = commands::ALL
        .iter()
        .copied()
        .flatten()
        .map(|c| c.opcode.0)
        .collect();
    assert_eq!(golden, all);
}

#[test]
fn lengths_count_the_tail() {
    use commands::cq::CreateCq;
    use commands::pages::ManagePages;
    use commands::tir::CreateRqt;
    assert_eq!(CreateCq::input_len(0), 272);
    assert_eq!(CreateCq::input_len(3), 296);
    assert_eq!(CreateCq::output_len(0), 16);
    assert_eq!(ManagePages::input_len(50_000), 400_016);
    assert_eq!(ManagePages::output_len(768), 6_160);
    assert_eq!(CreateRqt::input_len(512), 2_320);
    assert_eq!(<commands::cq::Cqc as Layout>::LEN, 64);
}
