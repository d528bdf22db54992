//! UAR pages: who lies on which, and the look for doorbells on the mapped ones.
//!
//! A doorbell register is emptied by swapping it with zero, so each store is seen once; no
//! doorbell value is zero, as it carries a queue's number. Only pages that ALLOC_UAR handed out
//! and a queue uses are looked at. BlueFlame data behind a register is not read: the WQE is in
//! the ring.

use pollux_mempool::{Window, Word32, Word64};
use pollux_prm::wqe::uar;
use std::sync::atomic::Ordering;

/// BlueFlame registers of a page; each is used in two halves.
const REGISTERS: usize = 4;

/// Turns after which registers that a queue's page never used are looked at once more; a page
/// without any is looked at wholly.
const RARELY: u64 = 16;

/// A store that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// A send doorbell, its value native.
    Send { uar: u32, value: u64 },
    /// A CQ arm doorbell, its value native.
    Arm { uar: u32, value: u64 },
    /// An EQ doorbell, its value native.
    Eq { uar: u32, offset: u32, value: u32 },
}

#[derive(Debug)]
struct Registers {
    arm: Word64,
    sends: Vec<Word64>,
    eqs: [(u32, Word32); 2],
}

#[derive(Debug, Default)]
struct Page {
    number: u32,
    enabled: bool,
    /// Queues by number and place.
    sqs: Vec<(u32, usize)>,
    cqs: Vec<(u32, usize)>,
    eqs: u32,
    registers: Option<Registers>,
    /// Send registers that were ever rung, one bit each.
    used: u32,
}

impl Page {
    fn is_watched(&self) -> bool {
        self.enabled && !(self.sqs.is_empty() && self.cqs.is_empty() && self.eqs == 0)
    }
}

/// A function's UAR pages.
#[derive(Debug)]
pub(super) struct Pages {
    mapped: Window,
    first: u32,
    /// Bytes from one half register to the next.
    half: usize,
    pages: Vec<Page>,
    watched: Vec<usize>,
}

impl Pages {
    /// `mapped` starts with page `first`.
    pub fn new(mapped: Window, first: u32, log_bf_reg_size: u32) -> Self {
        let half = 1 << log_bf_reg_size.clamp(5, 9) >> 1;
        Self {
            mapped,
            first,
            half,
            pages: Vec::new(),
            watched: Vec::new(),
        }
    }

    fn page(&mut self, number: u32) -> Option<&mut Page> {
        let at = match self.pages.iter().position(|page| page.number == number) {
            Some(at) => at,
            None => {
                self.pages.push(Page {
                    number,
                    ..Page::default()
                });
                self.pages.len() - 1
            }
        };
        self.pages.get_mut(at)
    }

    /// Changes a page and works out anew which pages are looked at.
    fn change(&mut self, number: u32, change: impl FnOnce(&mut Page)) {
        if let Some(page) = self.page(number) {
            change(page);
        }
        let (mapped, first, half) = (&self.mapped, self.first, self.half);
        self.watched.clear();
        for (at, page) in self.pages.iter_mut().enumerate() {
            if !page.is_watched() {
                page.registers = None;
                continue;
            }
            if page.registers.is_none() {
                page.registers = registers(mapped, first, half, page.number);
                page.used = 0;
            }
            // A trapped page has no registers here: its stores come as calls.
            if page.registers.is_some() {
                self.watched.push(at);
            }
        }
    }

    /// ALLOC_UAR or DEALLOC_UAR.
    pub fn enable(&mut self, number: u32, on: bool) {
        // What the last owner of the page left there is nobody's doorbell.
        if let (true, Some(registers)) =
            (on, registers(&self.mapped, self.first, self.half, number))
        {
            registers
                .sends
                .iter()
                .for_each(|word| word.store(0, Ordering::Release));
            registers.arm.store(0, Ordering::Release);
            registers
                .eqs
                .iter()
                .for_each(|(_, word)| word.store(0, Ordering::Release));
        }
        self.change(number, |page| page.enabled = on);
    }

    pub fn watch_eq(&mut self, number: u32, on: bool) {
        self.change(number, |page| {
            page.eqs = if on {
                page.eqs + 1
            } else {
                page.eqs.saturating_sub(1)
            };
        });
    }

    pub fn add_sq(&mut self, number: u32, sqn: u32, place: usize) {
        self.change(number, |page| page.sqs.push((sqn, place)));
    }

    pub fn remove_sq(&mut self, number: u32, sqn: u32) {
        self.change(number, |page| page.sqs.retain(|(other, _)| *other != sqn));
    }

    pub fn add_cq(&mut self, number: u32, cqn: u32, place: usize) {
        self.change(number, |page| page.cqs.push((cqn, place)));
    }

    pub fn remove_cq(&mut self, number: u32, cqn: u32) {
        self.change(number, |page| page.cqs.retain(|(other, _)| *other != cqn));
    }

    /// Forgets all queues; `pages` too when all that was allocated is gone.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.watched.clear();
    }

    /// Place of the send queue that a doorbell on `uar` is for.
    #[inline]
    pub fn sq_at(&self, uar: u32, sqn: u32) -> Option<usize> {
        let page = self
            .pages
            .iter()
            .find(|page| page.number == uar && page.enabled)?;
        page.sqs
            .iter()
            .find(|(number, _)| *number == sqn)
            .map(|(_, place)| *place)
    }

    /// Place of the completion queue that a doorbell on `uar` is for.
    #[inline]
    pub fn cq_at(&self, uar: u32, cqn: u32) -> Option<usize> {
        let page = self
            .pages
            .iter()
            .find(|page| page.number == uar && page.enabled)?;
        page.cqs
            .iter()
            .find(|(number, _)| *number == cqn)
            .map(|(_, place)| *place)
    }

    /// Looks for doorbells and empties their registers.
    #[inline]
    pub fn look(&mut self, turn: u64, found: &mut Vec<Rung>) {
        let all = turn % RARELY == 0;
        for at in &self.watched {
            let Some(page) = self.pages.get_mut(*at) else {
                continue;
            };
            let Some(registers) = &page.registers else {
                continue;
            };
            let uar = page.number;
            if !page.sqs.is_empty() {
                for (bit, word) in registers.sends.iter().enumerate() {
                    if !all && page.used != 0 && page.used >> bit & 1 == 0 {
                        continue;
                    }
                    if let Some(value) = take(word) {
                        page.used |= 1 << bit;
                        found.push(Rung::Send { uar, value });
                    }
                }
            }
            if !page.cqs.is_empty() {
                if let Some(value) = take(&registers.arm) {
                    found.push(Rung::Arm { uar, value });
                }
            }
            if page.eqs > 0 {
                for (offset, word) in &registers.eqs {
                    if word.load(Ordering::Relaxed) != 0 {
                        let value = u32::from_be(word.swap(0, Ordering::Acquire));
                        found.push(Rung::Eq {
                            uar,
                            offset: *offset,
                            value,
                        });
                    }
                }
            }
        }
    }
}

/// Empties a register; nothing when nothing was stored.
#[inline(always)]
fn take(word: &Word64) -> Option<u64> {
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // Acquire: what the driver stored before it rang is seen by what reads the records now.
    match u64::from_be(word.swap(0, Ordering::Acquire)) {
        0 => None,
        value => Some(value),
    }
}

fn registers(mapped: &Window, first: u32, half: usize, number: u32) -> Option<Registers> {
    let page = (number.checked_sub(first)? as usize).checked_mul(uar::PAGE)?;
    let word32 = |offset: usize| Some((offset as u32, mapped.word32(page + offset).ok()?));
    let sends = (0..2 * REGISTERS)
        .map(|index| mapped.word64(page + uar::SEND + index * half).ok())
        .collect::<Option<Vec<_>>>()?;
    Some(Registers {
        arm: mapped.word64(page + uar::CQ_ARM).ok()?,
        sends,
        eqs: [word32(uar::EQ_ARM)?, word32(uar::EQ_CONSUMER)?],
    })
}
