//! The table of commands and registers in `README.md` against the device: what it says of each is
//! asked of a running function of each model.
//!
//! `POLLUX_WRITE_TABLE=1 cargo test -p pollux-emu --test table` writes it anew. Who exercises what
//! comes from the lists in `tests/exercised`, one name a line: `CREATE_CQ` for a command,
//! `PTYS:read` or `PTYS:write` for a register, `#` before a comment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{Model, command_shapes};
use pollux_prm::command::{Opcode, Status};
use pollux_prm::commands::register::{AccessReg, RegisterAccess, RegisterId};
use pollux_prm::{Command, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// Lists of who exercises what, with the name that the table gives them.
const LISTS: [(&str, &str, &str); 3] = [
    (
        "pollux",
        "tests/exercised/pollux.txt",
        include_str!("exercised/pollux.txt"),
    ),
    (
        "linux",
        "tests/exercised/linux.txt",
        include_str!("exercised/linux.txt"),
    ),
    (
        "recording",
        "tests/exercised/recording.txt",
        include_str!("exercised/recording.txt"),
    ),
];

/// Room for the longest answer, that of QUERY_HCA_CAP.
const ROOM: usize = 4112;

const BEGIN: &str = "<!-- table: written by tests/table.rs -->";
const END: &str = "<!-- end of table -->";

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|name| !name.is_empty())
}

fn exercised_by(name: &str) -> String {
    let by: Vec<&str> = LISTS
        .iter()
        .filter(|(_, _, text)| names(text).any(|listed| listed == name))
        .map(|(who, ..)| *who)
        .collect();
    if by.is_empty() {
        "nobody".into()
    } else {
        by.join(", ")
    }
}

/// What a model answers: nothing where it has the thing, the status where not.
type Answer = Option<Status>;

/// Sums up the models' answers.
fn here(answers: &[(Model, Answer)]) -> String {
    let without: Vec<&(Model, Answer)> = answers.iter().filter(|(_, a)| a.is_some()).collect();
    match without.first() {
        None => "yes".into(),
        Some((_, status)) => {
            let status = status.unwrap();
            let status = status.name().unwrap_or("?");
            if without.len() == answers.len() {
                format!("no: {status}")
            } else {
                let models: Vec<&str> = without.iter().map(|(model, _)| model.key()).collect();
                format!("yes; {}: {status}", models.join(", "))
            }
        }
    }
}

fn of_models<K: Ord + Copy>(
    ask: impl Fn(Model) -> Vec<(K, Answer)>,
) -> BTreeMap<K, Vec<(Model, Answer)>> {
    let mut all = BTreeMap::<K, Vec<(Model, Answer)>>::new();
    for model in Model::ALL {
        for (key, answer) in ask(model) {
            all.entry(key).or_default().push((model, answer));
        }
    }
    all
}

/// Every opcode that has a name, sent to a running function with an input of zeros.
fn commands(model: Model) -> Vec<(Opcode, Answer)> {
    let mut world = World::new(model);
    let shapes: BTreeMap<Opcode, usize> = command_shapes()
        .into_iter()
        .map(|shape| (shape.opcode, shape.input_len))
        .collect();
    let mut answers = Vec::new();
    for named in Opcode::NAMED {
        let opcode = Opcode(u16::try_from(named.value).unwrap());
        let mut input = vec![0; shapes.get(&opcode).copied().unwrap_or(16)];
        input[..2].copy_from_slice(&opcode.0.to_be_bytes());
        let refused = world.driver.try_raw(&input, ROOM).err();
        let absent = refused.filter(|why| {
            // Whatever else is wrong with zeros: the command is there.
            parts(why.syndrome).is_some_and(|(reason, ..)| reason == Reason::UnknownOpcode)
        });
        answers.push((opcode, absent.map(|why| why.status)));
    }
    answers
}

/// Every register that has a name, in both directions.
fn registers(model: Model) -> Vec<((RegisterId, bool), Answer)> {
    let mut world = World::new(model);
    let mut answers = Vec::new();
    for named in RegisterId::NAMED {
        let id = RegisterId(u16::try_from(named.value).unwrap());
        for write in [false, true] {
            let mut input = AccessReg::request();
            input.set_register_id(id.0);
            let direction = if write {
                RegisterAccess::WRITE
            } else {
                RegisterAccess::READ
            };
            input.set_op_mod(direction.0);
            let refused = world.driver.try_raw(input.as_bytes(), ROOM).err();
            let absent = refused.filter(|why| {
                parts(why.syndrome).is_some_and(|(reason, ..)| reason == Reason::UnknownRegister)
            });
            answers.push(((id, write), absent.map(|why| why.status)));
        }
    }
    answers
}

fn table() -> String {
    let mut text = String::new();
    let mut line = |row: String| writeln!(text, "{row}").unwrap();
    line("| opcode | command | here | exercised by |".into());
    line("| --- | --- | --- | --- |".into());
    for (opcode, answers) in of_models(commands) {
        let name = opcode.name().unwrap();
        let by = exercised_by(name);
        line(format!(
            "| {:#05x} | {name} | {} | {by} |",
            opcode.0,
            here(&answers)
        ));
    }
    line(String::new());
    line("| id | register | read | write | exercised by |".into());
    line("| --- | --- | --- | --- | --- |".into());
    let all = of_models(registers);
    let ids: BTreeSet<RegisterId> = all.keys().map(|(id, _)| *id).collect();
    for id in ids {
        let name = id.name().unwrap();
        let by = |direction: &str| exercised_by(&format!("{name}:{direction}"));
        let by = match (by("read"), by("write")) {
            (read, write) if read == write => read,
            (read, write) => format!("read: {read}; write: {write}"),
        };
        line(format!(
            "| {:#06x} | {name} | {} | {} | {by} |",
            id.0,
            here(&all[&(id, false)]),
            here(&all[&(id, true)])
        ));
    }
    text
}

#[test]
fn the_readme_says_what_the_device_does() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("the table's beginning");
    let (there, after) = rest.split_once(END).expect("the table's end");
    let now = table();
    if std::env::var_os("POLLUX_WRITE_TABLE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}\n\n{now}\n{END}{after}")).unwrap();
        return;
    }
    let rows = |text: &str| -> Vec<String> { text.trim().lines().map(str::to_owned).collect() };
    for (said, true_) in rows(there).iter().zip(&rows(&now)) {
        assert_eq!(
            said, true_,
            "README.md and the device differ; POLLUX_WRITE_TABLE=1 cargo test -p pollux-emu --test \
             table writes the table anew"
        );
    }
    assert_eq!(rows(there).len(), rows(&now).len());
}

#[test]
fn the_lists_name_what_there_is() {
    for (who, file, text) in LISTS {
        let mut seen = BTreeSet::new();
        for name in names(text) {
            let register = name.split_once(':');
            let known = match register {
                None => Opcode::NAMED.iter().any(|named| named.name == name),
                Some((register, direction)) => {
                    ["read", "write"].contains(&direction)
                        && RegisterId::NAMED.iter().any(|named| named.name == register)
                }
            };
            assert!(known, "{who}: {file} names {name}, which nobody knows");
            assert!(seen.insert(name), "{who}: {file} names {name} twice");
        }
    }
}

#[test]
fn what_a_driver_sends_is_there() {
    // The model that has most.
    let (commands, registers) = (commands(Model::ConnectX7), registers(Model::ConnectX7));
    let mut had: BTreeSet<String> = commands
        .into_iter()
        .filter(|(_, answer)| answer.is_none())
        .map(|(opcode, _)| opcode.name().unwrap().to_owned())
        .collect();
    for ((id, write), answer) in registers {
        if answer.is_none() {
            let direction = if write { "write" } else { "read" };
            had.insert(format!("{}:{direction}", id.name().unwrap()));
        }
    }
    for (who, file, text) in &LISTS[..2] {
        for name in names(text) {
            assert!(
                had.contains(name),
                "{who}: {file} lists {name}, which no model has"
            );
        }
    }
}

/// The recording's list against the recording itself, where there is one.
#[test]
fn the_list_of_the_recording_is_the_recordings() {
    let Some(folder) = std::env::var_os("POLLUX_REFERENCE_DATA") else {
        eprintln!("not run: POLLUX_REFERENCE_DATA names no folder with the recording");
        return;
    };
    let recorded = pollux_prm::recording::read(&PathBuf::from(folder)).unwrap();
    let mut sent = BTreeSet::new();
    for command in &recorded {
        sent.insert(command.opcode.name().unwrap().to_owned());
        if command.opcode == Opcode::ACCESS_REG {
            let input = command.input();
            let at = <AccessReg as Command>::Input::FIELDS
                .iter()
                .find(|field| field.name == "register_id")
                .map(|field| field.bit_offset / 8)
                .unwrap();
            let id = RegisterId(u16::from_be_bytes([input[at], input[at + 1]]));
            let write = input[7] == RegisterAccess::WRITE.0 as u8;
            let direction = if write { "write" } else { "read" };
            sent.insert(format!("{}:{direction}", id.name().unwrap()));
        }
    }
    let listed: BTreeSet<String> = names(LISTS[2].2).map(str::to_owned).collect();
    assert_eq!(listed, sent);
}
