//! What the driver sends at bring-up against what a Linux kernel sent to a real ConnectX-4 Lx:
//! wherever both send the same command, every field agrees, or is on a short list of reasons.
//!
//! Needs the folder of recorded data in POLLUX_REFERENCE_DATA; says so and passes without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails loudly

mod tap;

use pollux_emu::{Emulator, EmulatorConfig, FunctionConfig, Model};
use pollux_mempool::PageChoice;
use pollux_mlx5::{OpenOptions, Port};
use pollux_prm::command::Opcode;
use pollux_prm::commands::capability::CmdHcaCap;
use pollux_prm::commands::eq::{CreateEqIn, Eqc};
use pollux_prm::layout::Layout;
use pollux_prm::recording::{self, RecordedCommand};
use std::path::PathBuf;
use std::sync::Arc;
use tap::{Sent, Tap};

fn recorded() -> Option<Vec<RecordedCommand>> {
    let Some(folder) = std::env::var_os("POLLUX_REFERENCE_DATA") else {
        eprintln!("not run: POLLUX_REFERENCE_DATA names no folder with the recording");
        return None;
    };
    Some(recording::read(&PathBuf::from(folder)).unwrap())
}

/// The card asked for so many pages before it was started.
const CARD_PAGES: u32 = 12_868;

/// All commands of a bring-up on the emulated card.
fn ours() -> Vec<Sent> {
    let function = FunctionConfig {
        model: Model::ConnectX4Lx,
        init_pages: CARD_PAGES,
        ..FunctionConfig::default()
    };
    let config = EmulatorConfig {
        functions: vec![function],
        ..EmulatorConfig::default()
    };
    let emulator = Emulator::new(config).unwrap();
    let tap = Tap::new(emulator.function(0).unwrap());
    let function = pollux_bus::local::connect(Arc::clone(&tap) as Arc<_>).unwrap();
    let options = OpenOptions {
        pages: PageChoice::Ordinary,
        ..OpenOptions::default()
    };
    let port = Port::open(function, options).unwrap();
    let sent = tap.sent();
    port.close().unwrap();
    sent
}

fn of(sent: &[Sent], opcode: Opcode) -> Vec<&Sent> {
    sent.iter().filter(|s| s.opcode == opcode.0).collect()
}

fn card(recorded: &[RecordedCommand], opcode: Opcode) -> Vec<&RecordedCommand> {
    recorded.iter().filter(|r| r.opcode == opcode).collect()
}

#[test]
fn the_order_is_the_kernels() {
    let Some(recorded) = recorded() else { return };
    let sent = ours();
    // First appearances, of commands that both send.
    let mut kernel: Vec<u16> = Vec::new();
    for command in &recorded {
        if !kernel.contains(&command.opcode.0) && !of(&sent, command.opcode).is_empty() {
            kernel.push(command.opcode.0);
        }
    }
    let mut driver: Vec<u16> = Vec::new();
    for command in &sent {
        if !driver.contains(&command.opcode) && kernel.contains(&command.opcode) {
            driver.push(command.opcode);
        }
    }
    assert_eq!(driver, kernel);
    assert!(driver.len() >= 12, "{driver:x?}");
}

#[test]
fn short_commands_agree_to_the_bit() {
    let Some(recorded) = recorded() else { return };
    let sent = ours();
    let opcodes = [
        Opcode::ENABLE_HCA,
        Opcode::QUERY_ISSI,
        Opcode::SET_ISSI,
        Opcode::QUERY_PAGES,
        Opcode::ACCESS_REG,
        Opcode::INIT_HCA,
        Opcode::QUERY_ADAPTER,
        Opcode::ALLOC_UAR,
    ];
    for opcode in opcodes {
        let (mine, theirs) = (of(&sent, opcode), card(&recorded, opcode));
        assert!(!mine.is_empty() && !theirs.is_empty(), "{opcode}");
        for (mine, theirs) in mine.iter().zip(&theirs) {
            let mut input = mine.input.clone();
            if opcode == Opcode::INIT_HCA {
                // Since then the command has got a software owner behind what it was: zero.
                assert!(input[16..].iter().all(|byte| *byte == 0));
                input.truncate(16);
            }
            // Of a message that is little longer than its inline part, the log lacks the mailbox.
            let recorded = theirs.input();
            assert_eq!(input.len() as u32, theirs.submitted.entry.input_length());
            assert!(theirs.has_whole_input() || recorded.len() >= 16);
            assert_eq!(input[..recorded.len()], recorded, "{opcode}");
            assert_eq!(mine.doorbell, theirs.doorbell, "{opcode}");
        }
    }
}

#[test]
fn capability_queries_are_among_the_kernels() {
    let Some(recorded) = recorded() else { return };
    let theirs: Vec<_> = card(&recorded, Opcode::QUERY_HCA_CAP)
        .iter()
        .map(|r| r.input())
        .collect();
    let sent = ours();
    let mine = of(&sent, Opcode::QUERY_HCA_CAP);
    assert!(mine.len() >= 4);
    for query in mine {
        assert!(
            theirs.contains(&query.input),
            "op_mod {:#x}",
            query.op_mod()
        );
        assert_eq!(query.output_len, 4112);
    }
}

#[test]
fn pages_are_given_as_the_kernel_gives_them() {
    let Some(recorded) = recorded() else { return };
    let sent = ours();
    let (mine, theirs) = (
        of(&sent, Opcode::MANAGE_PAGES),
        card(&recorded, Opcode::MANAGE_PAGES),
    );
    assert_eq!(mine.len(), theirs.len());
    for (mine, theirs) in mine.iter().zip(&theirs) {
        // Opcode, variant, function, count; behind them the addresses, which are everybody's own.
        assert_eq!(mine.input[..16], theirs.input()[..16]);
        assert_eq!(
            mine.input.len() as u32,
            theirs.submitted.entry.input_length()
        );
        assert_eq!(mine.doorbell, 1 << 31, "the slot kept for pages");
        assert_eq!(theirs.doorbell, 1 << 31);
        let mut pages: Vec<u64> = mine.input[16..]
            .chunks_exact(8)
            .map(|page| u64::from_be_bytes(page.try_into().unwrap()))
            .collect();
        assert!(pages.iter().all(|page| *page != 0 && page % 4096 == 0));
        let count = pages.len();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), count);
    }
}

/// Fields of the general capabilities that one side changes and the other does not.
const CHANGED_BY_ONE: &[(&str, &str)] = &[
    (
        "log_max_qp",
        "the kernel raises it; the driver has no queue pairs, and each costs memory",
    ),
    (
        "release_all_pages",
        "the card of the recording does not have it",
    ),
];

#[test]
fn capabilities_are_set_as_the_kernel_sets_them() {
    let Some(recorded) = recorded() else { return };
    let sent = ours();
    let changed = |set: &[u8], current: &[u8]| -> Vec<&'static str> {
        let (set, current): (CmdHcaCap, CmdHcaCap) = (read(&set[16..]), read(&current[16..]));
        let differs = |field: &&pollux_prm::layout::Field| {
            set.value_of(field.name) != current.value_of(field.name)
        };
        CmdHcaCap::FIELDS
            .iter()
            .filter(differs)
            .map(|field| field.name)
            .collect()
    };
    let current = |op_mod: u16| op_mod == 1;
    let theirs = {
        let set = card(&recorded, Opcode::SET_HCA_CAP);
        let query = card(&recorded, Opcode::QUERY_HCA_CAP);
        let query = query.iter().find(|q| current(q.input()[7].into())).unwrap();
        assert_eq!(
            set[0].input()[..16],
            of(&sent, Opcode::SET_HCA_CAP)[0].input[..16]
        );
        changed(&set[0].input(), &query.output())
    };
    let mine = {
        let set = of(&sent, Opcode::SET_HCA_CAP);
        assert_eq!(set.len(), 1);
        let query = of(&sent, Opcode::QUERY_HCA_CAP);
        let query = query.iter().find(|q| current(q.op_mod())).unwrap();
        changed(&set[0].input, &query.output)
    };
    let one = |name: &&&str| CHANGED_BY_ONE.iter().any(|(known, _)| known == *name);
    let surprising: Vec<_> = mine
        .iter()
        .filter(|name| !theirs.contains(name))
        .chain(theirs.iter().filter(|name| !mine.contains(name)))
        .filter(|name| !one(name))
        .collect();
    assert!(
        surprising.is_empty(),
        "{surprising:?} (ours {mine:?}, the kernel's {theirs:?})"
    );
}

fn read<L: Layout>(bytes: &[u8]) -> L {
    L::read_from_prefix(bytes).unwrap().0
}

#[test]
fn event_queues_are_made_as_the_kernel_makes_them() {
    let Some(recorded) = recorded() else { return };
    let sent = ours();
    let (mine, theirs) = (
        of(&sent, Opcode::CREATE_EQ),
        card(&recorded, Opcode::CREATE_EQ),
    );
    // The kernel's are for commands, asynchronous events, pages, and completions. Here commands and
    // pages share one, so that the order of their events is known.
    assert_eq!(mine.len(), 3);
    let masks = |input: &[u8]| read::<CreateEqIn>(input).event_bitmask();
    let pages = masks(&theirs[2].input());
    for (index, (mine, theirs)) in mine.iter().zip([0, 1, 3].map(|at| theirs[at])).enumerate() {
        let theirs = theirs.input();
        assert_eq!(mine.input.len(), theirs.len(), "as long a page list");
        let (a, b): (CreateEqIn, CreateEqIn) = (read(&mine.input), read(&theirs));
        let (ours, kernel) = (a.eq_context_entry(), b.eq_context_entry());
        for field in Eqc::FIELDS {
            // The last one never raises its vector.
            if index == 2 && field.name == "intr" {
                continue;
            }
            assert_eq!(
                ours.value_of(field.name),
                kernel.value_of(field.name),
                "{}",
                field.name
            );
        }
        for ((ours, kernel), pages) in a.event_bitmask().iter().zip(b.event_bitmask()).zip(pages) {
            let kernel = kernel | if index == 0 { pages } else { 0 };
            // The kernel also wants events of queue pairs, which the driver does not have.
            assert_eq!(ours & !kernel, 0, "queue {index}");
            assert!(index == 1 || *ours == kernel, "queue {index}");
        }
        let address = u64::from_be_bytes(mine.input[272..280].try_into().unwrap());
        assert!(address != 0 && address % (64 << ours.log_eq_size()) == 0);
    }
}
