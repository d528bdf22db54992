//! What a test asks of the device's side, as one line and one line of answer: the same words work
//! on an emulator in this process and on one in another.
#![allow(clippy::unit_arg)] // an order that returns nothing is answered with "ok"

use pollux_emu::Emulator;
use pollux_emu::faults::{CommandFault, PageDemand, Trigger};
use pollux_emu::objects::Kind;
use std::time::Duration;

/// Does one line: a verb, the number of a function, arguments.
pub fn run(emulator: &Emulator, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| parse(words[at]);
    let function = number(1) as usize;
    let faults = || emulator.faults(function).unwrap();
    match words[0] {
        "report" => {
            let report = emulator.report(function).unwrap();
            let kinds: Vec<String> = report
                .objects
                .iter()
                .filter(|(_, numbers)| !numbers.is_empty())
                .map(|(kind, numbers)| format!("{kind:?}:{}", numbers.len()))
                .collect();
            format!(
                "connected={} pages={} objects={} commands={} refused={} undelivered={} stray={} lost={} faults={} holding={} kinds={}",
                u8::from(report.connected),
                report.firmware_pages,
                report.live_objects(),
                report.commands,
                report.refused,
                report.undelivered,
                report.stray_doorbells,
                report.events_lost,
                report.faults,
                u8::from(report.holding),
                kinds.join(",")
            )
        }
        "wire" => {
            let wire = emulator.wire(function).unwrap();
            format!(
                "in={} out={} bytes_in={} bytes_out={} waiting={} dropped={} oversize={} drained={} up={}",
                wire.frames_in,
                wire.frames_out,
                wire.bytes_in,
                wire.bytes_out,
                wire.waiting,
                wire.dropped,
                wire.oversize,
                u8::from(wire.drained),
                u8::from(wire.up)
            )
        }
        "mac" => emulator
            .mac(function)
            .unwrap()
            .map(|byte| format!("{byte:02x}"))
            .join(":"),
        "arm" => done(faults().command(trigger(words[2]), fault(words[3]))),
        "disarm" => done(faults().disarm()),
        "armed" => faults().armed().to_string(),
        "demand" => done(faults().page_request(match words[2] {
            "give" => PageDemand::Give(number(3) as u32),
            "take" => PageDemand::Take(number(3) as u32),
            _ => PageDemand::ReleaseAll,
        })),
        "kill" => done(faults().kill().unwrap()),
        "revive" => done(faults().revive().unwrap()),
        "link" => done(faults().link(words[2] == "up").unwrap()),
        "doorbells" => done(
            faults()
                .ignore_doorbells(number(2) as u32, number(3) as u32)
                .unwrap(),
        ),
        "cqs" => numbers(emulator, function, Kind::Cq),
        "sqs" => numbers(emulator, function, Kind::Sq),
        "corrupt" => {
            let mut mask = [0; 64];
            mask[number(4) as usize] = number(5) as u8;
            done(
                faults()
                    .corrupt_cqe(number(2) as u32, number(3) as u32, mask)
                    .unwrap(),
            )
        }
        other => panic!("{other}"),
    }
}

fn numbers(emulator: &Emulator, function: usize, kind: Kind) -> String {
    let report = emulator.report(function).unwrap();
    let numbers: Vec<String> = report.numbers(kind).iter().map(u64::to_string).collect();
    numbers.join(",")
}

fn done((): ()) -> String {
    "ok".to_owned()
}

fn parse(word: &str) -> u64 {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => word.parse().unwrap(),
    }
}

fn trigger(word: &str) -> Trigger {
    let parts: Vec<&str> = word.split(':').collect();
    match parts.as_slice() {
        ["nth", n] => Trigger::Command(parse(n)),
        ["opcode", opcode, n] => Trigger::Opcode(parse(opcode) as u16, parse(n)),
        ["each", opcode] => Trigger::EveryOpcode(parse(opcode) as u16),
        ["all"] => Trigger::Every,
        other => panic!("{other:?}"),
    }
}

fn fault(word: &str) -> CommandFault {
    let parts: Vec<&str> = word.split(':').collect();
    match parts.as_slice() {
        ["fail", status, syndrome] => CommandFault::Fail {
            status: parse(status) as u8,
            syndrome: parse(syndrome) as u32,
        },
        ["undelivered", status] => CommandFault::Undelivered {
            status: parse(status) as u8,
        },
        ["delay", millis] => CommandFault::Delay(Duration::from_millis(parse(millis))),
        ["drop-answer"] => CommandFault::DropAnswer,
        ["drop-event"] => CommandFault::DropEvent,
        other => panic!("{other:?}"),
    }
}
