//! The commands that a real kernel and a real adapter exchanged, against the layouts.
//!
//! The recording is not part of the project: `POLLUX_REFERENCE_DATA` names its folder. Without
//! it each test says so in one line and passes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

use pollux_prm::command::{InputHeader, OutputHeader, Status};
use pollux_prm::command_queue::{CommandEntry, DeliveryStatus, ENTRY_TYPE, Mailbox, next_token};
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::eq::CreateEqIn;
use pollux_prm::commands::offload::{EthernetOffloadCaps, FlowTableNicCap};
use pollux_prm::commands::pages::{ManagePagesIn, PagesAction};
use pollux_prm::commands::register::{
    AccessRegIn, HostEndianness, Register, RegisterAccess, RegisterId,
};
use pollux_prm::layout::{Layout, Shape};
use pollux_prm::recording::{self, RecordedCommand};
use pollux_prm::{catalog, command, commands};
use zerocopy::FromBytes;

fn recorded() -> Option<Vec<RecordedCommand>> {
    let Some(folder) = std::env::var_os("POLLUX_REFERENCE_DATA") else {
        eprintln!("SKIPPED: POLLUX_REFERENCE_DATA is not set, the recording is NOT compared");
        return None;
    };
    let commands = recording::read(folder.as_ref()).expect("the recording can be read");
    assert_eq!(commands.len(), 42);
    Some(commands)
}

/// The positions of the bits that decoding and encoding through the accessors loses.
fn lost_bits(shape: &Shape, bytes: &[u8]) -> Vec<usize> {
    // Where the log is cut short, the missing part counts as zeros.
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().max(shape.len), 0);
    let again = (shape.through_accessors)(&whole).expect("enough bytes");
    let mut lost = Vec::new();
    for (at, (a, b)) in bytes.iter().zip(&again).enumerate() {
        lost.extend(
            (0..8)
                .filter(|bit| (a ^ b) >> (7 - bit) & 1 == 1)
                .map(|bit| at * 8 + bit),
        );
    }
    lost
}

fn unexpected(shape: &Shape, bytes: &[u8]) -> Vec<String> {
    lost_bits(shape, bytes)
        .into_iter()
        .map(|bit| format!("{} bit {bit:#x} is set and no field has it", shape.name))
        .collect()
}

fn shape_of<T: Layout>() -> &'static Shape {
    catalog::layouts()
        .find(|s| s.name == T::NAME)
        .expect("every layout is in the catalog")
}

#[test]
fn entries_and_mailboxes_decode_and_encode_to_the_same_bytes() {
    let Some(commands) = recorded() else { return };
    let (mut entries, mut mailboxes) = (0, 0);
    for command in &commands {
        for side in [&command.submitted, &command.completed] {
            let lost = unexpected(shape_of::<CommandEntry>(), side.entry.bytes());
            assert!(lost.is_empty(), "{}: {lost:?}", command.opcode);
            entries += 1;
            for mailbox in &side.mailboxes {
                let lost = unexpected(shape_of::<Mailbox>(), mailbox.bytes());
                assert!(lost.is_empty(), "{}: {lost:?}", command.opcode);
                mailboxes += 1;
            }
        }
    }
    assert_eq!(entries, 84);
    assert_eq!(mailboxes, 179 + 15 + 8 + 12 * 8 + 2);
}

#[test]
fn inputs_and_outputs_decode_and_encode_to_the_same_bytes() {
    let Some(commands) = recorded() else { return };
    let mut lost = Vec::new();
    for command in &commands {
        let info = commands::find(command.opcode).expect("every recorded command has a layout");
        let (input, output) = (command.input(), command.output());
        lost.extend(unexpected(info.input, &input));
        // Older kernels ask for longer outputs than the layouts have, never for shorter ones.
        let asked = command.completed.entry.output_length() as usize;
        assert!(asked >= info.output.len, "{}", command.opcode);
        assert!(command.submitted.entry.input_length() as usize >= info.input_min);
        lost.extend(unexpected(info.output, &output));
        let capability = match command.opcode {
            command::Opcode::QUERY_HCA_CAP => &output[16..],
            command::Opcode::SET_HCA_CAP => &input[16..],
            _ => continue,
        };
        let (head, _) = InputHeader::ref_from_prefix(&input).unwrap();
        match CapGroup::of_op_mod(head.op_mod()).0 {
            CapGroup::GENERAL => lost.extend(unexpected(shape_of::<CmdHcaCap>(), capability)),
            CapGroup::ETHERNET_OFFLOADS => {
                lost.extend(unexpected(shape_of::<EthernetOffloadCaps>(), capability));
            }
            CapGroup::FLOW_TABLE => {
                lost.extend(unexpected(shape_of::<FlowTableNicCap>(), capability));
            }
            group => println!("capability group {group} has no layout here"),
        }
    }
    lost.sort();
    lost.dedup();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn entries_carry_what_the_rules_say() {
    let Some(commands) = recorded() else { return };
    let mut token = 0;
    for command in &commands {
        let (submitted, completed) = (&command.submitted.entry, &command.completed.entry);
        assert_eq!(submitted.entry_type(), ENTRY_TYPE);
        assert_eq!(submitted.opcode(), command.opcode);
        assert!(submitted.ownership());
        assert!(!completed.ownership());
        assert_eq!(DeliveryStatus(completed.status()), DeliveryStatus::OK);
        token = next_token(token);
        assert_eq!(submitted.token(), token, "tokens follow each other");
        assert!(submitted.is_signed(), "{}", command.opcode);
        let mut unsigned = *submitted;
        unsigned.set_signature(0);
        assert_eq!(unsigned.sign(), submitted, "{}", command.opcode);
        let (head, _) =
            OutputHeader::ref_from_prefix(completed.bytes().get(32..).unwrap()).unwrap();
        assert_eq!(Status(head.status()), Status::OK);
        // MANAGE_PAGES goes through the slot that nothing else may use.
        let pages = command.opcode == command::Opcode::MANAGE_PAGES;
        assert_eq!(command.doorbell, if pages { 1 << 31 } else { 1 });
    }
}

#[test]
fn chains_are_numbered_and_linked() {
    let Some(commands) = recorded() else { return };
    let mut cut = 0;
    for command in &commands {
        let submitted = &command.submitted.entry;
        let sides = [
            (
                &command.submitted,
                submitted.input_mailbox(),
                command.has_whole_input(),
            ),
            (
                &command.completed,
                submitted.output_mailbox(),
                command.has_whole_output(),
            ),
        ];
        for (side, first, whole) in sides {
            assert_eq!(first % 1024, 0);
            if whole {
                assert_eq!(first == 0, side.mailboxes.is_empty(), "{}", command.opcode);
            } else {
                cut += 1;
            }
            for (number, mailbox) in side.mailboxes.iter().enumerate() {
                assert_eq!(mailbox.token(), submitted.token());
                assert_eq!(mailbox.block_number() as usize, number);
                assert_eq!(mailbox.next_pointer() % 1024, 0);
                // The kernel reuses chains: a needed last mailbox may point to one that is not.
                if number + 1 < side.mailboxes.len() || !whole {
                    assert_ne!(mailbox.next_pointer(), 0, "{} {number}", command.opcode);
                }
            }
        }
    }
    // Both sides of ACCESS_REG, the shortest MANAGE_PAGES and the longest.
    assert_eq!(cut, 4);
}

#[test]
fn bring_up_is_what_it_is_known_to_be() {
    let Some(commands) = recorded() else { return };
    let names: Vec<_> = commands
        .iter()
        .map(|c| c.opcode.name().expect("a named opcode"))
        .collect();
    let start = [
        "ENABLE_HCA",
        "QUERY_ISSI",
        "SET_ISSI",
        "QUERY_PAGES",
        "MANAGE_PAGES",
        "ACCESS_REG",
    ];
    assert_eq!(names[..6], start);
    assert_eq!(
        names[26..],
        [["ALLOC_UAR"; 1].as_slice(), &["CREATE_EQ"; 15]].concat()
    );

    let gives: Vec<(ManagePagesIn, Vec<u8>)> = commands
        .iter()
        .filter(|c| c.opcode == command::Opcode::MANAGE_PAGES)
        .map(|c| {
            (
                ManagePagesIn::read_from_prefix(&c.input()).unwrap().0,
                c.input()[16..].to_vec(),
            )
        })
        .collect();
    assert_eq!(gives.len(), 2);
    for (give, tail) in &gives {
        assert_eq!(PagesAction(give.op_mod()), PagesAction::GIVE);
        for page in tail.chunks_exact(8) {
            let address = u64::from_be_bytes(page.try_into().unwrap());
            assert!(address != 0 && address % 4096 == 0, "{address:#x}");
        }
    }
    assert_eq!(gives[1].0.input_num_entries(), 12_868);
    assert_eq!(
        commands[10].submitted.entry.input_length() as usize,
        16 + 12_868 * 8
    );
    assert!(!commands[10].has_whole_input());

    let access = AccessRegIn::read_from_prefix(&commands[5].input())
        .unwrap()
        .0;
    assert_eq!(RegisterId(access.register_id()), HostEndianness::ID);
    assert_eq!(RegisterAccess(access.op_mod()), RegisterAccess::WRITE);
    let len = commands[5].submitted.entry.input_length() as usize;
    assert_eq!(len, AccessRegIn::LEN + HostEndianness::LEN);

    let cap = CmdHcaCap::read_from_prefix(&commands[7].output()[16..])
        .unwrap()
        .0;
    assert_eq!(cap.port_type(), 1);
    assert_eq!(cap.num_ports(), 1);

    let eq = CreateEqIn::read_from_prefix(&commands[27].input())
        .unwrap()
        .0;
    assert_ne!(eq.event_bitmask(), [0; 4]);
}
