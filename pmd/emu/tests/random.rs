//! Random commands: whatever comes, every entry is answered, no page is lost or given twice, and
//! the function can be started again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use driver::{Driver, words};
use pollux_emu::fields::set_bits_at;
use pollux_emu::{CommandShape, EmulatorConfig, FunctionConfig, Model, command_shapes};
use pollux_prm::command::Opcode;
use pollux_prm::command_queue::CommandEntry;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One thing that happens to the function.
#[derive(Clone, Debug)]
enum Step {
    /// A command of this device with some of its fields set, and a tail.
    Command {
        which: usize,
        fields: Vec<(usize, u64)>,
        tail: Vec<u32>,
    },
    /// Any bytes as input.
    Bytes { input: Vec<u8>, room: usize },
    /// Any bytes as an entry, but one that the device owns.
    Entry(Vec<u8>),
    /// Pages are given: how many, and whether some are wrong.
    Give { count: usize, wrong: Option<u64> },
    /// Pages are taken.
    Take(usize),
    /// The firmware is asked what it wants.
    Ask(u16),
}

fn step() -> impl Strategy<Value = Step> {
    // Small numbers hit objects, large ones limits.
    let number = prop_oneof![
        4 => 0u64..8,
        4 => prop_oneof![0x10u64..0x18, 0x20u64..0x24, 0x30u64..0x34, 0x100u64..0x104, 0x200u64..0x204, 0x400u64..0x404],
        1 => any::<u64>(),
        1 => (0u32..64).prop_map(|bit| 1u64 << bit),
    ];
    let fields = prop::collection::vec((0usize..64, number), 0..8);
    let tail = prop::collection::vec(any::<u32>(), 0..6);
    prop_oneof![
        12 => (any::<prop::sample::Index>(), fields, tail).prop_map(|(which, fields, tail)| {
            Step::Command { which: which.index(1 << 16), fields, tail }
        }),
        1 => (prop::collection::vec(any::<u8>(), 8..200), 8usize..600)
            .prop_map(|(input, room)| Step::Bytes { input, room }),
        1 => prop::collection::vec(any::<u8>(), 64).prop_map(Step::Entry),
        2 => (1usize..24, prop::option::of(any::<u64>()))
            .prop_map(|(count, wrong)| Step::Give { count, wrong }),
        2 => (1usize..24).prop_map(Step::Take),
        1 => (1u16..4).prop_map(Step::Ask),
    ]
}

/// What the test knows of the pages.
struct Ledger {
    given: BTreeSet<u64>,
}

fn input_of(shape: &CommandShape, fields: &[(usize, u64)], tail: &[u32]) -> Vec<u8> {
    let mut input = vec![0; shape.input_len];
    let used: Vec<_> = shape.leaves.iter().filter(|(_, used)| *used).collect();
    for (which, value) in fields {
        let (leaf, _) = used[which % used.len()];
        set_bits_at(&mut input, leaf.bit_offset, leaf.bits, *value);
    }
    input[..2].copy_from_slice(&shape.opcode.0.to_be_bytes());
    if tail.len() > 1 {
        input.extend(words(tail));
    }
    input
}

/// Commands that would end the run early; they have their own place at its end.
const NOT_HERE: [Opcode; 2] = [Opcode::TEARDOWN_HCA, Opcode::DISABLE_HCA];

fn play(driver: &mut Driver, shapes: &[CommandShape], ledger: &mut Ledger, step: &Step) {
    match step {
        Step::Command {
            which,
            fields,
            tail,
        } => {
            let shape = &shapes[which % shapes.len()];
            let input = input_of(shape, fields, tail);
            // Pages move by the steps that keep the books.
            if !NOT_HERE.contains(&shape.opcode) && shape.opcode != Opcode::MANAGE_PAGES {
                drop(driver.try_raw(&input, 4200));
            }
        }
        Step::Bytes { input, room } => {
            let opcode = Opcode(u16::from_be_bytes([input[0], input[1]]));
            if !NOT_HERE.contains(&opcode) && opcode != Opcode::MANAGE_PAGES {
                drop(driver.try_raw(input, *room));
            }
        }
        Step::Entry(bytes) => {
            let mut entry = CommandEntry::from_bytes(bytes.as_slice().try_into().unwrap());
            entry.set_ownership(true).set_status(0).unwrap();
            // Not a command by chance, and no address of ours by chance either.
            entry.set_entry_type(entry.entry_type() | 8);
            driver.post(3, &entry);
            assert_ne!(driver.wait(3).status(), 0);
        }
        Step::Give { count, wrong } => {
            let at = driver.take(count * 4096);
            let mut pages: Vec<u64> = (0..*count).map(|n| driver.iova(at + n * 4096)).collect();
            pages.extend(wrong);
            let good = driver.give_list(&pages).is_ok();
            // A page that was made up can be good by chance; it is refused by its alignment else.
            if good {
                for page in pages {
                    assert!(page != 0 && page % 4096 == 0, "{page:#x} was taken");
                    assert!(ledger.given.insert(page), "{page:#x} was taken twice");
                }
            }
        }
        Step::Take(count) => {
            for page in driver.take_pages(*count) {
                assert!(ledger.given.remove(&page), "{page:#x} was never given");
            }
        }
        Step::Ask(variant) => {
            drop(driver.try_raw(&words(&[0x0107_0000, u32::from(*variant), 0, 0]), 16));
        }
    }
}

fn check(driver: &Driver, ledger: &Ledger) {
    let report = driver.emulator.report(0).unwrap();
    assert_eq!(report.firmware_pages, ledger.given.len());
    assert!(
        !report.holding,
        "a command waits for pages that nobody was asked for"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_running_function_survives(steps in prop::collection::vec(step(), 1..80)) {
        let shapes = command_shapes();
        let world = World::new(Model::ConnectX5);
        let mut driver = world.driver;
        let mut ledger = Ledger { given: driver.given.iter().copied().collect() };
        for step in &steps {
            play(&mut driver, &shapes, &mut ledger, step);
            check(&driver, &ledger);
        }
        // It can be started again, and then gives everything back.
        driver.function.reset().unwrap();
        driver.start_queue();
        driver.bring_up();
        prop_assert_eq!(driver.shut_down(), 518);
    }

    #[test]
    fn a_sleeping_function_survives(steps in prop::collection::vec(step(), 1..80)) {
        let shapes = command_shapes();
        let config = FunctionConfig { boot_pages: 2, init_pages: 8, spare_pages: 8, ..Default::default() };
        let mut driver = Driver::new(EmulatorConfig { functions: vec![config], ..Default::default() });
        // Taking needs a function that is awake.
        driver.raw(&words(&[0x0104_0000, 0, 0, 0]), 16);
        let mut ledger = Ledger { given: BTreeSet::new() };
        for step in &steps {
            play(&mut driver, &shapes, &mut ledger, step);
            check(&driver, &ledger);
        }
        driver.function.reset().unwrap();
        driver.start_queue();
        driver.bring_up();
        prop_assert_eq!(driver.shut_down(), 10);
    }
}
