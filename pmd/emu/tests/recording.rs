//! The emulator set to ConnectX-4 Lx against the recording of a real one: it takes every input
//! that a kernel sent to the card, and answers as the card did.
//!
//! Needs the folder of recorded data in POLLUX_REFERENCE_DATA; says so and passes without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::Driver;
use pollux_emu::fields::{bits_at, leaves, set_bits_at};
use pollux_emu::{FunctionConfig, Model};
use pollux_prm::Layout;
use pollux_prm::command::Opcode;
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::find;
use pollux_prm::commands::offload::{EthernetOffloadCaps, FlowTableNicCap};
use pollux_prm::layout::Field;
use pollux_prm::recording::{self, RecordedCommand};
use std::path::PathBuf;

fn recorded() -> Option<Vec<RecordedCommand>> {
    let Some(folder) = std::env::var_os("POLLUX_REFERENCE_DATA") else {
        eprintln!("not run: POLLUX_REFERENCE_DATA names no folder with the recording");
        return None;
    };
    Some(recording::read(&PathBuf::from(folder)).unwrap())
}

/// The card asked for so many pages; ours asks for as many, so that the same commands follow.
const CARD_PAGES: u32 = 12_868;

fn card() -> Driver {
    let function = FunctionConfig {
        model: Model::ConnectX4Lx,
        init_pages: CARD_PAGES,
        ..FunctionConfig::default()
    };
    Driver::with_memory(
        pollux_emu::EmulatorConfig {
            functions: vec![function],
            ..Default::default()
        },
        72 << 20,
    )
}

/// Capability groups whose fields are known here.
fn group(number: u16) -> Option<&'static [Field]> {
    match CapGroup(number) {
        CapGroup::GENERAL => Some(CmdHcaCap::FIELDS),
        CapGroup::ETHERNET_OFFLOADS => Some(EthernetOffloadCaps::FIELDS),
        CapGroup::FLOW_TABLE => Some(FlowTableNicCap::FIELDS),
        _ => None,
    }
}

/// Checks that ours announces no more than the card: no field above, no bit where none is known.
fn subset(what: &str, number: u16, ours: &[u8], card: &[u8]) {
    let Some(fields) = group(number) else {
        assert!(
            ours.iter().all(|byte| *byte == 0),
            "{what}: a group that nobody knows"
        );
        return;
    };
    let leaves = leaves(fields);
    let mut unknown = ours.to_vec();
    for leaf in &leaves {
        let (mine, theirs) = (
            bits_at(ours, leaf.bit_offset, leaf.bits),
            bits_at(card, leaf.bit_offset, leaf.bits),
        );
        assert!(
            mine <= theirs,
            "{what}: {} is {mine}, the card's is {theirs}",
            leaf.path
        );
        set_bits_at(&mut unknown, leaf.bit_offset, leaf.bits, 0);
    }
    assert!(
        unknown.iter().all(|byte| *byte == 0),
        "{what}: bits outside any field"
    );
}

/// The smaller of two capability blocks, field by field.
fn smaller(number: u16, wanted: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut out = vec![0; wanted.len()];
    for leaf in leaves(group(number).unwrap()) {
        let (want, have) = (
            bits_at(wanted, leaf.bit_offset, leaf.bits),
            bits_at(ours, leaf.bit_offset, leaf.bits),
        );
        set_bits_at(&mut out, leaf.bit_offset, leaf.bits, want.min(have));
    }
    out
}

/// Where an input holds device addresses: from this byte to the end, eight each.
fn addresses(opcode: Opcode) -> Option<usize> {
    match opcode {
        Opcode::MANAGE_PAGES => Some(16),
        Opcode::CREATE_EQ => Some(272),
        _ => None,
    }
}

/// The input with its addresses moved to memory of the test, each aligned as it was.
fn relocate(driver: &mut Driver, command: &RecordedCommand) -> Vec<u8> {
    let mut input = command.input();
    // The log breaks off before the end of very long lists, and lacks the only mailbox of the
    // register access, which is zero on a little-endian host.
    let len = command.submitted.entry.input_length() as usize;
    input.resize(len, 0);
    let Some(start) = addresses(command.opcode) else {
        return input;
    };
    let page = if command.opcode == Opcode::CREATE_EQ {
        4096 << (u32::from_be_bytes(input[0x28..0x2c].try_into().unwrap()) >> 24)
    } else {
        4096
    };
    for at in (start..len).step_by(8) {
        let there = driver.take_aligned(page);
        input[at..at + 8].copy_from_slice(&driver.iova(there).to_be_bytes());
    }
    input
}

#[test]
fn every_recorded_input_is_accepted_and_answered_alike() {
    let Some(commands) = recorded() else { return };
    assert_eq!(commands.len(), 42);
    let mut driver = card();
    // What ours announces, by `op_mod` of QUERY_HCA_CAP.
    let mut ours_by_variant = std::collections::BTreeMap::<u16, Vec<u8>>::new();
    let mut exceptions = std::collections::BTreeMap::<&str, usize>::new();
    for (number, command) in commands.iter().enumerate() {
        let what = format!("command {number}, {}", command.opcode);
        let mut input = relocate(&mut driver, command);
        let variant = u16::from_be_bytes([input[6], input[7]]);
        if command.opcode == Opcode::SET_HCA_CAP {
            // Exception 1. A driver echoes the capabilities that it was told. The recorded one was
            // told the card's; ours has fewer, so the echo is reduced to what ours announces.
            let ours = &ours_by_variant[&variant];
            let reduced = smaller(variant >> 1, &input[16..], ours);
            input[16..].copy_from_slice(&reduced);
            ours_by_variant.insert(variant | 1, reduced);
            *exceptions.entry("echoed capabilities").or_default() += 1;
        }
        let room = command.completed.entry.output_length() as usize;
        let card = command.output();
        let mut ours = driver.raw(&input, room);
        // Opcode, length, status, syndrome: the whole header of the answer.
        assert_eq!(ours.len(), room, "{what}: length");
        if !command.has_whole_output() {
            // Exception 4. What the log does not have.
            assert_eq!(
                (command.opcode, card.len()),
                (Opcode::ACCESS_REG, 16),
                "{what}"
            );
            ours.truncate(card.len());
            *exceptions.entry("not in the log").or_default() += 1;
        }
        assert_eq!(ours[..8], card[..8], "{what}: status and syndrome");
        assert!(find(command.opcode).is_some(), "{what}");
        match command.opcode {
            Opcode::QUERY_HCA_CAP => {
                // Exception 2. Capabilities: a subset of the card's, never more.
                subset(&what, variant >> 1, &ours[16..], &card[16..]);
                assert_eq!(ours[8..16], card[8..16], "{what}");
                if let Some(before) = ours_by_variant.insert(variant, ours[16..].to_vec()) {
                    // What was set is what is told; maxima stay.
                    assert_eq!(before, ours[16..], "{what}");
                }
                *exceptions.entry("capabilities").or_default() += 1;
            }
            Opcode::QUERY_ADAPTER => {
                // Exception 3. The board's own identity (PSID) in the last 16 bytes.
                assert_eq!(ours[..256], card[..256], "{what}");
                *exceptions.entry("board identity").or_default() += 1;
            }
            _ => assert_eq!(ours, card, "{what}"),
        }
    }
    let report = driver.emulator.report(0).unwrap();
    assert_eq!((report.refused, report.undelivered), (0, 0));
    assert_eq!(report.firmware_pages, 6 + CARD_PAGES as usize);
    assert_eq!(exceptions["echoed capabilities"], 1);
    assert_eq!(exceptions["capabilities"], 12);
    assert_eq!(exceptions["board identity"], 1);
    assert_eq!(exceptions["not in the log"], 1);
}

#[test]
fn the_kernels_own_echo_is_refused_for_what_ours_lacks() {
    let Some(commands) = recorded() else { return };
    let mut driver = card();
    for command in &commands {
        let input = relocate(&mut driver, command);
        if command.opcode == Opcode::SET_HCA_CAP {
            // Unreduced, it asks for queue pairs, which this device does not have.
            let why = driver.try_raw(&input, 16).unwrap_err();
            assert!(why.text().contains("maximum"), "{}", why.text());
            return;
        }
        driver
            .try_raw(&input, command.completed.entry.output_length() as usize)
            .unwrap();
    }
    panic!("no SET_HCA_CAP in the recording");
}
