//! What is alive on the device: enough to see a leak, a double destruction, a wrong order.

use super::Command;
use std::collections::{BTreeMap, BTreeSet};

/// Live objects by kind (the opcode that creates them), and pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    pub live: BTreeMap<u16, BTreeSet<u32>>,
    pub pages: BTreeSet<u64>,
    pub enabled: bool,
    pub started: bool,
    next: u32,
    /// Things that must not happen, in words.
    pub faults: Vec<String>,
}

/// Create opcode, destroy opcode, and where the number stands in output and in destroy's input
/// (byte offset of the 32-bit word).
const KINDS: &[(u16, u16, usize, usize)] = &[
    (0x200, 0x202, 8, 8),  // memory key
    (0x301, 0x302, 8, 8),  // event queue
    (0x400, 0x401, 8, 8),  // completion queue
    (0x771, 0x772, 8, 8),  // queue counter
    (0x800, 0x801, 8, 8),  // protection domain
    (0x802, 0x803, 8, 8),  // UAR page
    (0x816, 0x817, 8, 8),  // transport domain
    (0x900, 0x902, 8, 8),  // TIR
    (0x904, 0x906, 8, 8),  // SQ
    (0x908, 0x90a, 8, 8),  // RQ
    (0x912, 0x914, 8, 8),  // TIS
    (0x916, 0x918, 8, 8),  // RQT
    (0x930, 0x931, 8, 20), // flow table
    (0x933, 0x934, 8, 24), // flow group
];
const SET_ENTRY: u16 = 0x936;
const DELETE_ENTRY: u16 = 0x938;

impl Objects {
    /// Everything alive, in numbers.
    pub fn count(&self) -> usize {
        self.live.values().map(BTreeSet::len).sum()
    }

    fn check(&mut self, fine: bool, what: impl FnOnce() -> String) {
        if !fine {
            self.faults.push(what());
        }
    }

    /// Carries a command out; the output's words at 8 and on.
    pub fn carry_out(&mut self, command: &Command, output: &mut [u8]) {
        let mut put = |at: usize, word: u32| {
            if let Some(place) = output.get_mut(at..at + 4) {
                place.copy_from_slice(&word.to_be_bytes());
            }
        };
        for (create, destroy, out, input) in KINDS {
            if command.opcode == *create {
                // The first UAR page is the trapped one.
                let first = if *create == 0x802 {
                    super::FIRST_UAR
                } else {
                    1
                };
                let live = self.live.entry(*create).or_default();
                let mut number = first;
                while live.contains(&number) {
                    number += 1;
                }
                live.insert(number);
                self.next += 1;
                put(*out, number);
            } else if command.opcode == *destroy {
                let number = command.word(*input) & 0xff_ffff;
                let there = self.live.entry(*create).or_default().remove(&number);
                self.check(there, || {
                    format!("{destroy:#x} of {number}, which is not there")
                });
            }
        }
        match command.opcode {
            0x104 => self.enabled = true,
            0x105 => {
                let empty = self.pages.is_empty();
                self.check(empty, || "disabled while pages are held".into());
                self.enabled = false;
            }
            0x102 => self.started = true,
            0x103 => {
                let (count, live) = (self.count(), format!("{:?}", self.live));
                self.check(count == 0, || {
                    format!("torn down with objects alive: {live}")
                });
                self.started = false;
            }
            SET_ENTRY => {
                self.live
                    .entry(SET_ENTRY)
                    .or_default()
                    .insert(entry(command));
            }
            DELETE_ENTRY => {
                let there = self
                    .live
                    .entry(SET_ENTRY)
                    .or_default()
                    .remove(&entry(command));
                self.check(there, || "deleted a flow entry that is not there".into());
            }
            _ => {}
        }
    }

    /// MANAGE_PAGES; the addresses to return.
    pub fn manage_pages(&mut self, command: &Command, output: &mut [u8]) {
        let count = command.word(12) as usize;
        match command.op_mod {
            1 => {
                let listed = command.input[16..].chunks_exact(8);
                self.check(listed.len() == count, || {
                    "page list and count differ".into()
                });
                for page in listed {
                    let page = u64::from_be_bytes(page.try_into().unwrap());
                    let fresh = page != 0 && page % 4096 == 0 && self.pages.insert(page);
                    self.check(fresh, || {
                        format!("page {page:#x} given twice or not a page")
                    });
                }
            }
            2 => {
                let room = (output.len() - 16) / 8;
                let back: Vec<u64> = self.pages.iter().copied().take(count.min(room)).collect();
                output[8..12].copy_from_slice(&(back.len() as u32).to_be_bytes());
                for (place, page) in output[16..].chunks_exact_mut(8).zip(&back) {
                    place.copy_from_slice(&page.to_be_bytes());
                    self.pages.remove(page);
                }
            }
            _ => {}
        }
    }
}

/// Table and index of a flow entry in one number.
fn entry(command: &Command) -> u32 {
    command.word(20) << 16 | command.word(32)
}
