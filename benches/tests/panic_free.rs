//! Reads the machine code of an optimised program: from a burst in and a burst out, with all that
//! they call, no path leads to a panic or to the allocator.
//!
//! One edge is cut: dropping the last handle of memory that an application attached to a packet
//! runs the application's own code. Indirect calls are not followed: there are those through
//! which a queue picks its loop, and a doorbell that is not mapped.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What no path may reach.
const FORBIDDEN: [&str; 9] = [
    "panic",
    "unwrap_failed",
    "expect_failed",
    "slice_index_fail",
    "handle_alloc_error",
    "rust_alloc",
    "rust_dealloc",
    "malloc@",
    "syscall@",
];

/// Where the search does not go on: the drop of an application's memory.
const APPLICATION: &str = "alloc4sync";

/// Functions by address, and which function each of them calls or jumps to.
struct Code {
    names: BTreeMap<u64, String>,
    calls: BTreeMap<String, BTreeSet<String>>,
}

fn objdump(arguments: &[&str]) -> Option<String> {
    let output = Command::new("objdump").args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `1234 <name>:`
fn header(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// The function that an instruction's text names as its target, `... 1234 <name+0x12>`.
fn direct(instruction: &str) -> Option<&str> {
    let target = instruction.split_once('<')?.1.split_once('>')?.0;
    Some(target.split_once('+').map_or(target, |(name, _)| name))
}

impl Code {
    fn read(program: &str) -> Option<Self> {
        let text = objdump(&["-d", "--no-show-raw-insn", program])?;
        let names = text.lines().filter_map(header);
        let mut code = Self {
            names: names.map(|(at, name)| (at, name.to_owned())).collect(),
            calls: BTreeMap::new(),
        };
        // Calls through the offset table: its slots and what the loader puts there.
        let slots: BTreeMap<u64, String> = objdump(&["-R", program])?
            .lines()
            .filter_map(|line| code.slot(line))
            .collect();
        let mut current = String::new();
        for line in text.lines() {
            if let Some((_, name)) = header(line) {
                name.clone_into(&mut current);
                continue;
            }
            let Some((_, instruction)) = line.split_once(":\t") else {
                continue;
            };
            let jumps = instruction.starts_with("call") || instruction.starts_with('j');
            if !jumps && !instruction.starts_with("addr32 call") {
                continue;
            }
            let target = if instruction.contains('*') {
                instruction
                    .split_once('#')
                    .and_then(|(_, slot)| slot.split_whitespace().next())
                    .and_then(|slot| u64::from_str_radix(slot, 16).ok())
                    .and_then(|slot| slots.get(&slot).cloned())
            } else {
                direct(instruction).map(str::to_owned)
            };
            if let Some(target) = target.filter(|t| *t != current) {
                code.calls
                    .entry(current.clone())
                    .or_default()
                    .insert(target);
            }
        }
        Some(code)
    }

    /// `1234 R_X86_64_RELATIVE *ABS*+0x5678`, or a name in place of the last word.
    fn slot(&self, line: &str) -> Option<(u64, String)> {
        let mut words = line.split_whitespace();
        let slot = u64::from_str_radix(words.next()?, 16).ok()?;
        let value = words.nth(1)?;
        let name = match value.strip_prefix("*ABS*+0x") {
            Some(address) => self
                .names
                .get(&u64::from_str_radix(address, 16).ok()?)?
                .clone(),
            None => value.to_owned(),
        };
        Some((slot, name))
    }

    /// All functions that `root` reaches, each with the one that it was first reached from.
    fn reach(&self, root: &str) -> BTreeMap<String, String> {
        let mut reached = BTreeMap::from([(root.to_owned(), String::new())]);
        let mut open = vec![root.to_owned()];
        while let Some(from) = open.pop() {
            for to in self.calls.get(&from).into_iter().flatten() {
                if !to.contains(APPLICATION) && !reached.contains_key(to) {
                    reached.insert(to.clone(), from.clone());
                    open.push(to.clone());
                }
            }
        }
        reached
    }
}

#[test]
fn no_panic_can_be_reached_from_a_burst() {
    if cfg!(debug_assertions) || !cfg!(target_arch = "x86_64") {
        eprintln!("NOT RUN: needs optimised x86-64 code: cargo test --release -p pollux-benches");
        return;
    }
    let program = env!("CARGO_BIN_EXE_datapath");
    let Some(code) = Code::read(program) else {
        eprintln!("NOT RUN: objdump cannot read {program} (package binutils)");
        return;
    };
    // `forward` has the receive loop in it; `send` is picked by pointer.
    let roots: Vec<&String> = code
        .names
        .values()
        .filter(|name| {
            name.contains("8DataPath7forward")
                || (name.contains("pollux_mlx5")
                    && name.contains("2tx4core")
                    && name.contains("4send"))
        })
        .filter(|name| !name.contains("9send_home"))
        .collect();
    assert!(
        roots.len() >= 5,
        "{roots:?}: one receive loop and four send loops"
    );
    let mut all = BTreeSet::new();
    for root in roots {
        let reached = code.reach(root);
        for (name, from) in &reached {
            let bad = FORBIDDEN.iter().find(|word| name.contains(*word));
            assert!(bad.is_none(), "{root} reaches {name} through {from}");
        }
        all.extend(reached.into_keys());
    }
    // The search sees what is there: errors, an empty pool, chains, packets that are refused.
    for part in [
        "3odd",
        "7starved",
        "7stopped",
        "11write_chain",
        "9free_slow",
        "6refuse",
    ] {
        assert!(
            all.iter().any(|name| name.contains(part)),
            "{part} is not among {all:?}"
        );
    }
}
