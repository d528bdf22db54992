//! Every command, every field: what is not understood, out of range or reserved is refused with a
//! status and a syndrome that names it, and changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

#[path = "../driver/mod.rs"]
mod driver;
mod network;
mod queues;

use driver::world::World;
use driver::{Driver, Refused, words};
use pollux_emu::fields::{Leaf, set_bits_at};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{CommandShape, Model, command_shapes};
use pollux_prm::Command;
use pollux_prm::command::{Opcode, Status};
use pollux_prm::commands::capability::CmdHcaCap;
use pollux_prm::commands::hca::*;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// A value that must be refused: the field (or all fields below it), the value, the status and
/// the reason.
type Wrong = (&'static str, u64, Status, Reason);

struct Case {
    opcode: Opcode,
    /// An input that is accepted. Called once for the case.
    input: fn(&mut World) -> Vec<u8>,
    wrong: Vec<Wrong>,
    /// Fields of which every value is good.
    free: Vec<&'static str>,
}

const BAD_PARAM: Status = Status::BAD_PARAM_ERR;
const BAD_RES: Status = Status::BAD_RES_ERR;
/// A number that names nothing.
const NOTHING: u64 = 0xff_ffff;

const fn value(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_PARAM, Reason::BadValue)
}

const fn absent(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_RES, Reason::NoObject)
}

const fn limit(path: &'static str, value: u64) -> Wrong {
    (path, value, Status::LIM_ERR, Reason::Limit)
}

const fn offered(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_PARAM, Reason::NotOffered)
}

const fn address(path: &'static str) -> Wrong {
    (path, 4, BAD_PARAM, Reason::BadAddress)
}

const fn pages(path: &'static str) -> Wrong {
    (path, 1, Status::BAD_INP_LEN_ERR, Reason::PageList)
}

const fn length(path: &'static str, value: u64) -> Wrong {
    (path, value, Status::BAD_INP_LEN_ERR, Reason::InputLength)
}

fn case(
    opcode: Opcode,
    input: fn(&mut World) -> Vec<u8>,
    wrong: &[Wrong],
    free: &[&'static str],
) -> Case {
    Case {
        opcode,
        input,
        wrong: wrong.to_vec(),
        free: free.to_vec(),
    }
}

/// An input of an opcode and nothing else.
fn bare<C: Command>(_: &mut World) -> Vec<u8> {
    C::request().as_bytes().to_vec()
}

/// An input with one number in its third word, as queries and destructions have it.
fn numbered(opcode: Opcode, number: u32) -> Vec<u8> {
    words(&[u32::from(opcode.0) << 16, 0, number, 0])
}

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Tap for Vec<u8> {}

/// Bits of an input that no leaf covers, as runs.
fn gaps(shape: &CommandShape) -> Vec<std::ops::Range<usize>> {
    let mut covered = vec![false; shape.input_len * 8];
    for (leaf, _) in &shape.leaves {
        covered[leaf.bit_offset..leaf.bit_offset + leaf.bits].fill(true);
    }
    let mut runs = Vec::new();
    let mut at = 0;
    while at < covered.len() {
        let end = (at..covered.len())
            .find(|bit| covered[*bit])
            .unwrap_or(covered.len());
        if end > at {
            runs.push(at..end);
        }
        at = end + 1;
    }
    runs
}

/// Sends a mutation, which must be refused so.
fn expect(
    driver: &mut Driver,
    what: &str,
    input: &[u8],
    room: usize,
    status: Status,
    reason: Reason,
) -> u16 {
    let objects = driver.emulator.report(0).unwrap().objects;
    let before = u16::from_be_bytes([input[0], input[1]]);
    let Err(Refused {
        status: got,
        syndrome,
    }) = driver.try_raw(input, room)
    else {
        panic!("{what}: accepted");
    };
    let (why, opcode, detail) = parts(syndrome).unwrap_or_else(|| panic!("{what}: {syndrome:#x}"));
    let text = pollux_emu::syndrome::explain(syndrome).unwrap();
    assert_eq!((got, why), (status, reason), "{what}: {text}");
    assert_eq!(opcode.0, before, "{what}");
    assert_eq!(
        driver.emulator.report(0).unwrap().objects,
        objects,
        "{what} left something behind"
    );
    detail
}

fn leaf_room() -> usize {
    8192
}

fn below(leaf: &Leaf, path: &str) -> bool {
    leaf.path
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tries every mutation of one command, then the command itself.
fn mutate(driver: &mut Driver, shape: &CommandShape, base: &[u8], wrong: &[Wrong], free: &[&str]) {
    let name = shape.opcode.to_string();
    let room = leaf_room();
    // Lengths.
    let short = if shape.opcode == Opcode::INIT_HCA {
        16
    } else {
        shape.input_len
    };
    let (status, reason) = (Status::BAD_INP_LEN_ERR, Reason::InputLength);
    let cut = &base[..short - 4];
    expect(
        driver,
        &format!("{name}: four bytes short"),
        cut,
        room,
        status,
        reason,
    );
    let long = [base, &[0; 2]].concat();
    expect(
        driver,
        &format!("{name}: two bytes long"),
        &long,
        room,
        status,
        reason,
    );
    let (status, reason) = (Status::BAD_OUTP_LEN_ERR, Reason::OutputLength);
    expect(driver, &format!("{name}: no room"), base, 8, status, reason);
    // Variant.
    let mut input = base.to_vec();
    input[6..8].copy_from_slice(&0x55u16.to_be_bytes());
    let (status, reason) = (Status::BAD_OP_ERR, Reason::UnknownVariant);
    expect(
        driver,
        &format!("{name}: variant"),
        &input,
        room,
        status,
        reason,
    );
    // Reserved bits: first and last of each gap.
    for gap in gaps(shape) {
        for bit in [gap.start, gap.end - 1] {
            let mut input = base.to_vec();
            set_bits_at(&mut input, bit, 1, 1);
            let what = format!("{name}: reserved bit {bit:#x}");
            let word = expect(driver, &what, &input, room, BAD_PARAM, Reason::ReservedBits);
            assert_eq!(usize::from(word), bit / 32, "{what}");
        }
    }
    // Fields.
    let mut used_wrong = BTreeMap::<&str, usize>::new();
    for (leaf, used) in &shape.leaves {
        if leaf.path == "opcode" || leaf.path == "op_mod" {
            continue;
        }
        let what = format!("{name}: {}", leaf.path);
        if !used {
            for value in [1, u64::MAX] {
                let mut input = base.to_vec();
                set_bits_at(&mut input, leaf.bit_offset, leaf.bits, value);
                let detail = expect(driver, &what, &input, room, BAD_PARAM, Reason::NotOffered);
                assert_eq!(detail, leaf.index, "{what}");
            }
            continue;
        }
        let mut tried = free.iter().any(|path| below(leaf, path));
        for (path, value, status, reason) in wrong.iter().filter(|(path, ..)| below(leaf, path)) {
            let mut input = base.to_vec();
            set_bits_at(&mut input, leaf.bit_offset, leaf.bits, *value);
            expect(driver, &what, &input, room, *status, *reason);
            *used_wrong.entry(path).or_default() += 1;
            tried = true;
        }
        assert!(
            tried,
            "{what} is acted on, but no test says which values are wrong"
        );
    }
    for (path, ..) in wrong {
        assert!(
            used_wrong.contains_key(path),
            "{name}: there is no field {path}"
        );
    }
    if let Err(why) = driver.try_raw(base, room) {
        panic!("{name}: the input itself is refused: {}", why.text());
    }
}

fn shapes() -> BTreeMap<u16, CommandShape> {
    command_shapes()
        .into_iter()
        .map(|shape| (shape.opcode.0, shape))
        .collect()
}

/// Commands that belong to other phases than the running one.
const ELSEWHERE: &[Opcode] = &[
    Opcode::ENABLE_HCA,
    Opcode::DISABLE_HCA,
    Opcode::SET_ISSI,
    Opcode::SET_HCA_CAP,
    Opcode::INIT_HCA,
    Opcode::TEARDOWN_HCA,
];

#[test]
fn every_command_of_a_running_function() {
    let mut world = World::new(Model::ConnectX5);
    let mut shapes = shapes();
    for case in queues::cases().into_iter().chain(network::cases()) {
        let shape = shapes.remove(&case.opcode.0).unwrap();
        let base = (case.input)(&mut world);
        mutate(&mut world.driver, &shape, &base, &case.wrong, &case.free);
    }
    let left: Vec<Opcode> = shapes.into_values().map(|shape| shape.opcode).collect();
    for opcode in &left {
        assert!(ELSEWHERE.contains(opcode), "{opcode} has no case");
    }
}

#[test]
fn every_command_of_bring_up_and_teardown() {
    let shapes = shapes();
    let mut driver = Driver::new(Default::default());
    let shape = |opcode: Opcode| &shapes[&opcode.0];
    let words = driver::words;
    mutate(
        &mut driver,
        shape(Opcode::ENABLE_HCA),
        &words(&[0x0104_0000, 0, 0, 0]),
        &[],
        &[],
    );
    let issi = words(&[0x010b_0000, 0, 1, 0]);
    mutate(
        &mut driver,
        shape(Opcode::SET_ISSI),
        &issi,
        &[value("current_issi", 2)],
        &[],
    );
    driver.give_pages(1);
    let mut query = QueryHcaCap::request();
    query.set_op_mod(1);
    let now = driver.call::<QueryHcaCap>(&query).unwrap();
    let mut set = SetHcaCap::request();
    set.set_capability(now.capability());
    mutate(
        &mut driver,
        shape(Opcode::SET_HCA_CAP),
        set.as_bytes(),
        &[("capability", u64::MAX, BAD_PARAM, Reason::AboveMaximum)],
        &[],
    );
    driver.give_pages(2);
    let init = words(&[0x0102_0000, 0, 0, 0, 0, 0, 0, 0]);
    mutate(&mut driver, shape(Opcode::INIT_HCA), &init, &[], &[]);
    mutate(
        &mut driver,
        shape(Opcode::TEARDOWN_HCA),
        &words(&[0x0103_0000, 0, 0, 0]),
        &[],
        &[],
    );
    while !driver.take_pages(768).is_empty() {}
    mutate(
        &mut driver,
        shape(Opcode::DISABLE_HCA),
        &words(&[0x0105_0000, 0, 0, 0]),
        &[],
        &[],
    );
}

#[test]
fn no_capability_can_be_raised_above_its_maximum() {
    let leaves = pollux_emu::fields::leaves(<CmdHcaCap as pollux_prm::Layout>::FIELDS);
    for model in Model::ALL {
        let function = pollux_emu::FunctionConfig {
            model,
            ..Default::default()
        };
        let mut driver = Driver::one(function);
        driver.call::<EnableHca>(&EnableHca::request()).unwrap();
        driver.give_pages(1);
        let most = driver
            .call::<QueryHcaCap>(&QueryHcaCap::request())
            .unwrap()
            .capability();
        let set = |driver: &mut Driver, bytes: [u8; 4096]| {
            let mut input = SetHcaCap::request();
            input.set_capability(bytes);
            driver.call::<SetHcaCap>(&input)
        };
        set(&mut driver, most).unwrap();
        for leaf in &leaves {
            let max = pollux_emu::fields::bits_at(&most, leaf.bit_offset, leaf.bits);
            if max == u64::MAX >> (64 - leaf.bits) {
                continue;
            }
            let mut bytes = most;
            set_bits_at(&mut bytes, leaf.bit_offset, leaf.bits, max + 1);
            let why = set(&mut driver, bytes).unwrap_err();
            let (reason, _, detail) = parts(why.syndrome).unwrap();
            let expected = (BAD_PARAM, Reason::AboveMaximum, leaf.index);
            assert_eq!(
                (why.status, reason, detail),
                expected,
                "{model}: {}",
                leaf.path
            );
            assert!(why.text().contains(&leaf.path), "{}", why.text());
        }
        // What was refused is not in force.
        let mut query = QueryHcaCap::request();
        query.set_op_mod(1);
        assert_eq!(
            driver.call::<QueryHcaCap>(&query).unwrap().capability(),
            most
        );
    }
}
