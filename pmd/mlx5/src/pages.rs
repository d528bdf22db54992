//! Firmware pages: who holds which, and what firmware still wants.
//!
//! Firmware asks for 4 KiB pages and hands them back. A positive request is a demand, which ends
//! in GIVE or CANT_GIVE; demands are served in order and never set off against anything. A
//! negative request is a hint: the function's reclaim target becomes the larger of what remains
//! and what is asked, and TAKE is repeated until it is met or firmware returns fewer than asked.
//! "Release all" says that firmware has dropped the function's pages already: they are freed here
//! and no command is sent.
//!
//! The [`PageServer`] decides; the control thread sends what [`PageServer::next_step`] says, one
//! command at a time in the last slot, and turns to other work between two steps.

mod arena;

use crate::error::CommandFailure;
pub(crate) use arena::PageMemory;
use arena::{Arena, ArenaError};
use std::collections::VecDeque;
use std::fmt;

/// Most pages that one MANAGE_PAGES carries.
pub const MAX_PAGES_PER_STEP: u32 = 50_000;

/// Whose pages they are: a function id and whether it is the embedded CPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionKey {
    /// Function id; 0 is the function itself.
    pub function: u16,
    /// The embedded CPU's function.
    pub embedded: bool,
}

impl fmt::Display for FunctionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {:#x}", self.function)?;
        if self.embedded {
            f.write_str(" of the embedded CPU")?;
        }
        Ok(())
    }
}

/// The next MANAGE_PAGES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Give these pages.
    Give {
        /// To whom.
        key: FunctionKey,
        /// Their device addresses.
        pages: Vec<u64>,
    },
    /// Say that there are none.
    CantGive {
        /// To whom.
        key: FunctionKey,
    },
    /// Ask for pages back.
    Take {
        /// From whom.
        key: FunctionKey,
        /// How many at most.
        count: u32,
    },
}

/// How a demand or a reclaim that somebody waits for has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it was done.
    Done,
    /// There was no memory, in words.
    NoMemory(String),
    /// The command failed.
    Failed(CommandFailure),
}

/// Who waits for a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Firmware, by an event: a failure is answered with CANT_GIVE.
    Event,
    /// The bring-up, which is told the outcome under this number.
    Startup(u64),
}

#[derive(Debug)]
struct Demand {
    key: FunctionKey,
    remaining: u32,
    origin: Origin,
}

#[derive(Debug)]
enum InFlight {
    /// With the demand it serves, whose `remaining` counts what comes after this step.
    Give {
        demand: Demand,
        pages: Vec<u64>,
    },
    CantGive,
    Take {
        key: FunctionKey,
        count: u32,
    },
}

/// What the server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that firmware holds now.
    pub held: usize,
    /// Pages given since the start.
    pub given: u64,
    /// Pages taken back by TAKE.
    pub taken: u64,
    /// Pages that firmware dropped by "release all".
    pub released: u64,
    /// CANT_GIVE sent.
    pub refused: u64,
    /// Gives that firmware did not accept.
    pub dropped: u64,
    /// Addresses that firmware returned without holding them.
    pub unknown: u64,
}

/// The pages of one control thread.
#[derive(Debug)]
pub(crate) struct PageServer<M: PageMemory> {
    arena: Arena<M>,
    demands: VecDeque<Demand>,
    /// Functions to which CANT_GIVE is due, in order.
    refusals: VecDeque<FunctionKey>,
    /// Reclaim targets still open.
    targets: Vec<(FunctionKey, u32)>,
    in_flight: Option<InFlight>,
    outcomes: Vec<(u64, Outcome)>,
    counts: PageCounts,
    /// The last TAKE returned nothing at all.
    empty_handed: bool,
}

impl<M: PageMemory> PageServer<M> {
    /// A server without a page, which gets its memory from `memory`.
    pub(crate) fn new(memory: M) -> Self {
        Self {
            arena: Arena::new(memory),
            demands: VecDeque::new(),
            refusals: VecDeque::new(),
            targets: Vec::new(),
            in_flight: None,
            outcomes: Vec::new(),
            counts: PageCounts::default(),
            empty_handed: false,
        }
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts {
            held: self.arena.held_total(),
            ..self.counts
        }
    }

    /// Functions that hold pages, and how many.
    pub(crate) fn holders(&self) -> Vec<(FunctionKey, usize)> {
        self.arena.holders()
    }

    /// Whether a command is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Takes the outcomes that somebody waits for.
    pub(crate) fn take_outcomes(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// A page request of firmware.
    pub(crate) fn request(&mut self, key: FunctionKey, release_all: bool, count: i32) {
        if release_all {
            // Nothing is left to be taken; a demand stays one, whatever came after it.
            self.targets.retain(|(of, _)| *of != key);
            self.counts.released += self.arena.release_all(key) as u64;
        } else if count > 0 {
            self.demand(key, count.unsigned_abs(), Origin::Event);
        } else if count < 0 {
            self.reclaim(key, count.unsigned_abs());
        }
    }

    /// Pages that firmware wants at start-up; a count that is not positive asks for nothing.
    pub(crate) fn startup(&mut self, key: FunctionKey, count: i32, ticket: u64) {
        if count > 0 {
            self.demand(key, count.unsigned_abs(), Origin::Startup(ticket));
        } else {
            if count < 0 {
                self.reclaim(key, count.unsigned_abs());
            }
            self.outcomes.push((ticket, Outcome::Done));
        }
    }

    fn demand(&mut self, key: FunctionKey, count: u32, origin: Origin) {
        self.demands.push_back(Demand {
            key,
            remaining: count,
            origin,
        });
    }

    /// Raises a function's reclaim target.
    pub(crate) fn reclaim(&mut self, key: FunctionKey, count: u32) {
        match self.targets.iter_mut().find(|(of, _)| *of == key) {
            Some((_, target)) => *target = (*target).max(count),
            None => self.targets.push((key, count)),
        }
    }

    /// Sets every function's target to all that it holds (teardown). Returns the pages held.
    pub(crate) fn reclaim_all(&mut self) -> usize {
        let holders = self.arena.holders();
        for (key, held) in &holders {
            self.reclaim(*key, u32::try_from(*held).unwrap_or(u32::MAX));
        }
        self.empty_handed = false;
        holders.iter().map(|(_, held)| held).sum()
    }

    /// Whether the last TAKE came back with nothing.
    pub(crate) fn came_empty_handed(&self) -> bool {
        self.empty_handed
    }

    /// The next command, if none is in flight and anything is to be done. Demands come first:
    /// firmware waits for them.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Some(key) = self.refusals.pop_front() {
            self.in_flight = Some(InFlight::CantGive);
            self.counts.refused += 1;
            return Some(Step::CantGive { key });
        }
        while let Some(mut demand) = self.demands.pop_front() {
            let key = demand.key;
            let count = demand.remaining.min(MAX_PAGES_PER_STEP);
            match self.arena.take(key, count) {
                Ok(pages) => {
                    demand.remaining -= count;
                    let carried = pages.clone();
                    self.in_flight = Some(InFlight::Give { demand, pages });
                    return Some(Step::Give {
                        key,
                        pages: carried,
                    });
                }
                Err(ArenaError(why)) => {
                    tracing::warn!(%key, count, why, "no pages for firmware");
                    match demand.origin {
                        Origin::Event => {
                            self.in_flight = Some(InFlight::CantGive);
                            self.counts.refused += 1;
                            return Some(Step::CantGive { key });
                        }
                        Origin::Startup(ticket) => {
                            self.outcomes.push((ticket, Outcome::NoMemory(why)));
                        }
                    }
                }
            }
        }
        while let Some(&(key, target)) = self.targets.first() {
            let held = u32::try_from(self.arena.held(key)).unwrap_or(u32::MAX);
            let count = target.min(held).min(MAX_PAGES_PER_STEP);
            if count == 0 {
                self.targets.remove(0);
                continue;
            }
            // The others' turn comes before this function's next step.
            self.targets.rotate_left(1);
            self.in_flight = Some(InFlight::Take { key, count });
            return Some(Step::Take { key, count });
        }
        None
    }

    /// A GIVE or CANT_GIVE has ended.
    pub(crate) fn gave(&mut self, result: Result<(), CommandFailure>) {
        let Some(InFlight::Give { demand, pages }) = self.in_flight.take() else {
            if let Err(failure) = result {
                tracing::warn!(%failure, "firmware was not told that there are no pages");
            }
            return;
        };
        let outcome = match result {
            Ok(()) => {
                self.arena.commit(&pages);
                self.counts.given += pages.len() as u64;
                if demand.remaining > 0 {
                    self.demands.push_front(demand);
                    return;
                }
                Outcome::Done
            }
            Err(failure) => {
                tracing::warn!(%failure, pages = pages.len(), "firmware did not take pages");
                self.counts.dropped += 1;
                match &failure {
                    CommandFailure::Refused(_) => self.arena.cancel(&pages),
                    // Firmware may have the pages all the same: they are never given again. A
                    // demand that did not reach it is still to be answered.
                    CommandFailure::Gone { .. } => {}
                    _ if demand.origin == Origin::Event => self.refusals.push_back(demand.key),
                    _ => {}
                }
                Outcome::Failed(failure)
            }
        };
        if let Origin::Startup(ticket) = demand.origin {
            self.outcomes.push((ticket, outcome));
        }
    }

    /// A TAKE has ended; `Ok` holds the addresses that firmware returned.
    pub(crate) fn took(&mut self, result: Result<&[u64], CommandFailure>) {
        let Some(InFlight::Take { key, count }) = self.in_flight.take() else {
            return;
        };
        let returned = match result {
            Ok(pages) => {
                for page in pages {
                    match self.arena.give_back(key, *page) {
                        true => self.counts.taken += 1,
                        false => self.counts.unknown += 1,
                    }
                }
                u32::try_from(pages.len()).unwrap_or(u32::MAX)
            }
            Err(failure) => {
                tracing::debug!(%failure, %key, "firmware returned no pages");
                0
            }
        };
        self.empty_handed = returned == 0;
        if let Some(at) = self.targets.iter().position(|(of, _)| *of == key) {
            // Fewer than asked: firmware has withdrawn the hint.
            if returned < count {
                self.targets.remove(at);
            } else if let Some((_, target)) = self.targets.get_mut(at) {
                *target = target.saturating_sub(returned);
                if *target == 0 {
                    self.targets.remove(at);
                }
            }
        }
    }

    /// The device is gone or switched off: it holds no page any more. Returns how many it held.
    pub(crate) fn forget_all(&mut self) -> usize {
        let held = self.arena.held_total();
        self.arena.clear();
        self.demands.clear();
        self.refusals.clear();
        self.targets.clear();
        self.in_flight = None;
        held
    }
}

#[cfg(test)]
mod tests;
