//! The page server: requests in, steps out, ledgers in between.

mod ending;

use super::arena::{Arena, FREE, LIMBO};
use super::ledger::{FunctionPages, PageCounts, PageMemoryReport, PageReport, StepCost, StepTimes};
use super::{FunctionKey, MAX_PAGES_PER_STEP, PageOptions};
use crate::error::CommandFailure;
use ending::Throttle;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// A block that was asked for: its holder, its device address, its pages, which may be fewer than
/// asked; or why there is none, in words.
pub(crate) type Came<B> = Result<(B, u64, usize), String>;

/// Where blocks come from and go to. Nothing here waits.
pub(crate) trait PageMemory {
    /// What keeps a block mapped.
    type Block;

    /// Asks for a block of about `pages` pages; it comes by [`poll`](Self::poll).
    fn ask(&mut self, pages: usize);

    /// The next block that was asked for, in the order of asking.
    fn poll(&mut self) -> Option<Came<Self::Block>>;

    /// Unmaps a block, some time.
    fn unmap(&mut self, block: Self::Block);

    /// Unmaps all that was given to [`unmap`](Self::unmap) or is still to come; nothing is made
    /// any more.
    fn finish(&mut self);
}

/// What the control thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Give the pages that [`PageServer::outgoing`] lists.
    Give(FunctionKey),
    /// Say that there are none.
    CantGive(FunctionKey),
    /// Ask for pages back.
    Take {
        /// From whom.
        key: FunctionKey,
        /// How many at most.
        count: u32,
    },
    /// A slice of work without a command was done; there may be more.
    Freed,
}

/// How a demand that somebody waits for has ended.
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
enum Origin {
    /// Firmware, by an event: a failure is answered with CANT_GIVE.
    Event,
    /// The bring-up, which is told the outcome under this number.
    Startup(u64),
}

#[derive(Clone, Copy, Debug)]
struct Demand {
    /// Index of the function.
    of: usize,
    remaining: u64,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
enum InFlight {
    /// With the demand it serves, whose `remaining` counts what comes after this step. `crossed`:
    /// firmware has dropped the function's pages since it was sent.
    Give {
        demand: Demand,
        crossed: bool,
    },
    CantGive,
    /// `crossed`: firmware has dropped the function's pages since it was sent. `renewed`: what
    /// firmware has offered since, which a short answer does not withdraw.
    Take {
        of: usize,
        count: u32,
        crossed: bool,
        renewed: u32,
    },
}

#[derive(Debug)]
struct Function {
    pages: FunctionPages,
    /// Its number in the arena; 0 while it has none.
    owner: u16,
    /// Pages of a GIVE about which nobody knows whether it arrived.
    limbo: usize,
    /// It stands in the queue of targets.
    queued: bool,
}

/// Pages that firmware dropped and that are freed slice by slice.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    owner: u16,
    at: usize,
}

/// Demands that are kept apart; more of them are added up by function.
const DEMANDS: usize = 1024;
/// Chunks looked at in one slice of a sweep.
const SWEEP_CHUNKS: usize = 1024;
/// Most pages that one block is asked for.
const BLOCK_PAGES: u64 = 16_384;

/// The pages of one control thread.
pub(crate) struct PageServer<M: PageMemory> {
    options: PageOptions,
    memory: M,
    arena: Arena<M::Block>,
    /// Sizes of the blocks that were asked for and did not come yet.
    asked: VecDeque<u64>,
    /// Why the last block did not come.
    shortage: Option<String>,
    functions: Vec<Function>,
    by_key: HashMap<FunctionKey, usize>,
    /// Numbers for the arena: those given back, and the lowest never used.
    vacant_owners: Vec<u16>,
    next_owner: u16,
    demands: VecDeque<Demand>,
    /// Functions to which CANT_GIVE is due, in order.
    refusals: VecDeque<usize>,
    /// Functions with open reclaim targets.
    targets: VecDeque<usize>,
    sweeps: VecDeque<Sweep>,
    in_flight: Option<InFlight>,
    /// Pages of the GIVE in flight.
    outgoing: Vec<u64>,
    outcomes: Vec<(u64, Outcome)>,
    counts: PageCounts,
    times: StepTimes,
    cpu: StepTimes,
    longest: StepCost,
    /// What the step in flight has cost so far.
    spent: StepCost,
    /// The last TAKE returned nothing at all.
    empty_handed: bool,
    /// The device is being taken down: what firmware does not return it does not hold.
    closing: bool,
    /// The step in flight was not answered in time.
    overdue: bool,
    next_release: Option<Instant>,
    unmapped: u64,
    no_memory: Throttle,
    corrupt: Throttle,
    failed: Throttle,
}

impl<M: PageMemory> PageServer<M> {
    /// A server without a page, which gets its memory from `memory`.
    pub(crate) fn new(memory: M, options: PageOptions) -> Self {
        Self {
            options,
            memory,
            arena: Arena::new(),
            asked: VecDeque::with_capacity(16),
            shortage: None,
            functions: Vec::new(),
            by_key: HashMap::new(),
            vacant_owners: Vec::new(),
            next_owner: FREE + 1,
            demands: VecDeque::with_capacity(DEMANDS),
            refusals: VecDeque::with_capacity(16),
            targets: VecDeque::with_capacity(16),
            sweeps: VecDeque::with_capacity(16),
            in_flight: None,
            outgoing: super::touched(options.give_limit),
            outcomes: Vec::new(),
            counts: PageCounts::default(),
            times: StepTimes::default(),
            cpu: StepTimes::default(),
            longest: StepCost::default(),
            spent: StepCost::default(),
            empty_handed: false,
            closing: false,
            overdue: false,
            next_release: None,
            unmapped: 0,
            no_memory: Throttle::default(),
            corrupt: Throttle::default(),
            failed: Throttle::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.arena.check();
    }

    #[cfg(test)]
    pub(super) fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts {
            held: self.held(),
            ..self.counts
        }
    }

    /// Everything that is known.
    pub(crate) fn report(&self) -> PageReport {
        PageReport {
            counts: self.counts(),
            functions: self.functions.iter().map(|f| f.pages).collect(),
            memory: PageMemoryReport {
                blocks: self.arena.blocks(),
                idle_blocks: self.arena.idle_blocks(),
                pages: self.arena.pages(),
                free: self.arena.free(),
                unmapped: self.unmapped,
            },
            steps: self.times.clone(),
            cpu: self.cpu.clone(),
            longest: self.longest,
            mailboxes: 0,
            overdue: self.overdue,
            command_wait_steps: 0,
        }
    }

    /// Pages that firmware holds.
    pub(crate) fn held(&self) -> usize {
        self.functions.iter().map(|f| f.pages.outstanding).sum()
    }

    /// Pages that firmware holds, or may hold.
    pub(crate) fn unsettled(&self) -> usize {
        let limbo: usize = self.functions.iter().map(|f| f.limbo).sum();
        self.held() + limbo
    }

    /// Functions that hold pages, and how many.
    pub(crate) fn holders(&self) -> Vec<(FunctionKey, usize)> {
        self.functions
            .iter()
            .map(|f| (f.pages.key, f.pages.outstanding))
            .filter(|(_, held)| *held > 0)
            .collect()
    }

    /// Whether a command is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether it was not answered in time.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue
    }

    /// Addresses of the GIVE in flight.
    pub(crate) fn outgoing(&self) -> &[u64] {
        &self.outgoing
    }

    /// Takes the outcomes that somebody waits for.
    pub(crate) fn take_outcomes(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    fn function(&mut self, key: FunctionKey) -> usize {
        if let Some(at) = self.by_key.get(&key) {
            return *at;
        }
        let at = self.functions.len();
        self.functions.push(Function {
            pages: FunctionPages {
                key,
                ..FunctionPages::default()
            },
            owner: FREE,
            limbo: 0,
            queued: false,
        });
        self.by_key.insert(key, at);
        at
    }

    /// A page request of firmware.
    pub(crate) fn request(&mut self, key: FunctionKey, release_all: bool, count: i32) {
        if release_all {
            self.release_all(key);
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
        let of = self.function(key);
        let remaining = u64::from(count);
        if let Some(function) = self.functions.get_mut(of) {
            function.pages.wanted += remaining;
        }
        if self.demands.len() >= DEMANDS {
            // A flood is answered as it came, function by function, but kept small.
            let same = |demand: &&mut Demand| demand.of == of && demand.origin == Origin::Event;
            if let Some(last) = self.demands.iter_mut().rev().find(same) {
                last.remaining += remaining;
                return;
            }
        }
        self.demands.push_back(Demand {
            of,
            remaining,
            origin,
        });
    }

    /// Raises a function's reclaim target.
    pub(crate) fn reclaim(&mut self, key: FunctionKey, count: u32) {
        let of = self.function(key);
        if let Some(InFlight::Take {
            of: taking,
            renewed,
            ..
        }) = &mut self.in_flight
        {
            if *taking == of {
                *renewed = (*renewed).max(count);
            }
        }
        if let Some(function) = self.functions.get_mut(of) {
            function.pages.target = function.pages.target.max(count);
            if !std::mem::replace(&mut function.queued, true) {
                self.targets.push_back(of);
            }
        }
    }

    /// Sets every function's target to all that it holds or may hold (teardown).
    pub(crate) fn reclaim_all(&mut self) {
        self.closing = true;
        for at in 0..self.functions.len() {
            let Some(function) = self.functions.get(at) else {
                break;
            };
            let all = function.pages.outstanding + function.limbo;
            if all > 0 {
                self.reclaim(function.pages.key, u32::try_from(all).unwrap_or(u32::MAX));
            }
        }
        self.empty_handed = false;
    }

    /// Firmware has dropped all pages of a function. Demands stay: they are of what it wants now.
    ///
    /// Requests and answers are read in the order in which firmware wrote them. So a GIVE that was
    /// answered before is dropped with the rest, and the pages of one that is not answered yet are
    /// given after it: they must not be freed, because firmware has them or will have them. Only
    /// firmware that answers later than it acts can have dropped them too; they are remembered as
    /// doubtful, and written off when it does not return them at the end.
    fn release_all(&mut self, key: FunctionKey) {
        let of = self.function(key);
        let mut giving = false;
        match &mut self.in_flight {
            Some(InFlight::Take {
                of: taking,
                crossed,
                renewed,
                ..
            }) if *taking == of => (*crossed, *renewed) = (true, 0),
            Some(InFlight::Give { demand, crossed }) if demand.of == of => {
                (*crossed, giving) = (true, true);
            }
            _ => {}
        }
        let Some(function) = self.functions.get_mut(of) else {
            return;
        };
        let (held, owner) = (function.pages.outstanding, function.owner);
        function.pages.target = 0;
        function.pages.outstanding = 0;
        function.pages.doubtful = 0;
        function.pages.returned += held as u64;
        self.counts.released += held as u64;
        if held == 0 {
            return;
        }
        function.owner = FREE;
        self.sweeps.push_back(Sweep { owner, at: 0 });
        // What is on its way was not firmware's to drop.
        if giving {
            if let Some(fresh) = self.owner(of) {
                self.arena.pass_on(&self.outgoing, owner, fresh);
            }
        }
    }

    /// The function's number in the arena.
    fn owner(&mut self, of: usize) -> Option<u16> {
        let function = self.functions.get_mut(of)?;
        if function.owner == FREE {
            function.owner = match self.vacant_owners.pop() {
                Some(vacant) => vacant,
                None if self.next_owner < LIMBO => {
                    self.next_owner += 1;
                    self.next_owner - 1
                }
                None => return None,
            };
        }
        Some(function.owner)
    }

    /// Whether the last TAKE came back with nothing.
    pub(crate) fn came_empty_handed(&self) -> bool {
        self.empty_handed
    }

    /// The next thing to do. At most one command is in flight; demands come before reclaims,
    /// because firmware waits for them.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        if self.absorb() || self.sweep() {
            return Some(Step::Freed);
        }
        if self.in_flight.is_some() {
            return None;
        }
        let step = match self.refusals.pop_front() {
            Some(of) => self.refuse(of),
            None => self.give().or_else(|| self.take()),
        };
        if matches!(
            step,
            Some(Step::Give(_) | Step::CantGive(_) | Step::Take { .. })
        ) {
            self.counts.steps += 1;
            self.spent = StepCost::default();
        }
        step
    }

    fn refuse(&mut self, of: usize) -> Option<Step> {
        self.in_flight = Some(InFlight::CantGive);
        self.counts.refused += 1;
        let function = self.functions.get_mut(of)?;
        function.pages.refused += 1;
        Some(Step::CantGive(function.pages.key))
    }

    /// Takes over a block that came: a slice of work, because the tables of pages may grow with it.
    fn absorb(&mut self) -> bool {
        let Some(came) = self.memory.poll() else {
            return false;
        };
        self.asked.pop_front();
        match came {
            Ok((block, base, pages)) => {
                if self.arena.add(block, base, pages) == 0 {
                    self.shortage = Some(format!(
                        "{pages} pages at device address {base:#x} hold no aligned 2 MiB"
                    ));
                }
            }
            Err(why) => self.shortage = Some(why),
        }
        true
    }

    /// A slice of freeing what firmware dropped; false when there is none.
    fn sweep(&mut self) -> bool {
        let Some(sweep) = self.sweeps.front_mut() else {
            return false;
        };
        let pages = MAX_PAGES_PER_STEP as usize;
        let (_, next) = self.arena.sweep(sweep.owner, sweep.at, pages, SWEEP_CHUNKS);
        match next {
            Some(at) => sweep.at = at,
            None => {
                self.vacant_owners.push(sweep.owner);
                self.sweeps.pop_front();
            }
        }
        true
    }

    /// The next GIVE or CANT_GIVE, if a demand can be served now.
    fn give(&mut self) -> Option<Step> {
        while let Some(&Demand {
            of,
            remaining,
            origin,
        }) = self.demands.front()
        {
            let count = remaining.min(u64::from(self.options.give_limit));
            let free = self.arena.free() as u64;
            let owner = self.owner(of);
            if let (Some(owner), true) = (owner, free >= count) {
                // Those behind it will not find the memory that this one leaves.
                self.shortage = None;
                self.order_memory(count);
                self.demands.pop_front();
                self.outgoing.clear();
                self.arena.take(owner, count as usize, &mut self.outgoing);
                self.in_flight = Some(InFlight::Give {
                    demand: Demand {
                        of,
                        remaining: remaining - count,
                        origin,
                    },
                    crossed: false,
                });
                let function = self.functions.get_mut(of)?;
                function.pages.steps += 1;
                function.pages.largest_step = function.pages.largest_step.max(count as u32);
                return Some(Step::Give(function.pages.key));
            }
            let why = match (owner, &self.shortage) {
                (None, _) => "more functions hold pages than can be told apart".to_owned(),
                (_, Some(why)) if self.asked.is_empty() => {
                    let why = why.clone();
                    self.shortage = None;
                    why
                }
                _ => {
                    self.order_memory(0);
                    return None;
                }
            };
            self.demands.pop_front();
            let function = self.functions.get_mut(of)?;
            function.pages.wanted = function.pages.wanted.saturating_sub(remaining);
            let key = function.pages.key;
            if let Some(held_back) = self.no_memory.pass() {
                tracing::warn!(%key, count = remaining, free, why, held_back, "no pages for firmware");
            }
            match origin {
                Origin::Event => return self.refuse(of),
                Origin::Startup(ticket) => self.outcomes.push((ticket, Outcome::NoMemory(why))),
            }
        }
        None
    }

    /// Asks for the memory of the coming two steps; `taken` pages of what is free go now.
    fn order_memory(&mut self, taken: u64) {
        let ahead = 2 * u64::from(self.options.give_limit);
        let mut wanted = 0;
        for demand in &self.demands {
            wanted += demand.remaining;
            if wanted >= ahead + taken {
                break;
            }
        }
        let mut there = self.arena.free() as u64 + self.asked.iter().sum::<u64>();
        let wanted = wanted.min(ahead + taken);
        while there < wanted && self.asked.len() < 16 {
            let pages = (wanted - there).min(BLOCK_PAGES);
            self.memory.ask(pages as usize);
            self.asked.push_back(pages);
            there += pages;
        }
    }

    /// The next TAKE; the others' turn comes before a function's next one.
    fn take(&mut self) -> Option<Step> {
        for _ in 0..self.targets.len() {
            let of = self.targets.pop_front()?;
            let function = self.functions.get_mut(of)?;
            let there = u32::try_from(function.pages.outstanding + function.limbo);
            let count = function
                .pages
                .target
                .min(there.unwrap_or(u32::MAX))
                .min(self.options.take_limit);
            if count == 0 && function.pages.target > 0 && function.pages.wanted > 0 {
                // It holds nothing yet: what it asked for before waits for memory.
                self.targets.push_back(of);
                continue;
            }
            if count == 0 {
                function.pages.target = 0;
                function.queued = false;
                continue;
            }
            self.targets.push_back(of);
            function.pages.steps += 1;
            function.pages.largest_step = function.pages.largest_step.max(count);
            let key = function.pages.key;
            self.in_flight = Some(InFlight::Take {
                of,
                count,
                crossed: false,
                renewed: 0,
            });
            return Some(Step::Take { key, count });
        }
        None
    }
}
