//! How steps end, and what happens beside them: answers are booked, trouble is reported, idle
//! memory is let go of, and a device that has failed is given up.

use super::{Demand, InFlight, Origin, Outcome, PageMemory, PageServer};
use crate::error::CommandFailure;
use crate::pages::StepCost;
use crate::pages::arena::{LIMBO, Wrong};
use std::time::{Duration, Instant};

/// Time between two reports of the same trouble.
const REPORT: Duration = Duration::from_secs(1);

/// Lets a report through now and then, and counts those that it held back.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// How many were held back since the last one, if this one goes out.
    pub(super) fn pass(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < REPORT)
        {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

impl<M: PageMemory> PageServer<M> {
    /// A part of the step in flight cost so much.
    pub(crate) fn spent(&mut self, cost: StepCost) {
        self.spent += cost;
    }

    /// The step is over, and its last part cost so much. To be called after
    /// [`gave`](Self::gave) or [`took`](Self::took) with whose it was.
    pub(crate) fn step_over(&mut self, of: Option<usize>, cost: StepCost) {
        let mut whole = std::mem::take(&mut self.spent);
        whole += cost;
        self.times.record(whole.wall);
        self.cpu.record(whole.cpu);
        if whole.wall > self.longest.wall {
            self.longest = whole;
        }
        if let Some(function) = of.and_then(|of| self.functions.get_mut(of)) {
            function.pages.longest_step = function.pages.longest_step.max(whole.wall);
        }
    }

    /// A GIVE or CANT_GIVE has ended. Returns whose it was, for [`step_over`](Self::step_over).
    pub(crate) fn gave(&mut self, result: Result<(), CommandFailure>) -> Option<usize> {
        self.overdue = false;
        let Some(InFlight::Give { demand, crossed }) = self.in_flight.take() else {
            if let Err(failure) = result {
                if let Some(held_back) = self.failed.pass() {
                    tracing::warn!(%failure, held_back, "firmware was not told that there are no pages");
                }
            }
            return None;
        };
        let count = self.outgoing.len();
        let function = self.functions.get_mut(demand.of)?;
        let pages = &mut function.pages;
        let outcome = match result {
            Ok(()) => {
                pages.outstanding += count;
                pages.doubtful += if crossed { count } else { 0 };
                pages.given += count as u64;
                pages.wanted = pages.wanted.saturating_sub(count as u64);
                self.counts.given += count as u64;
                if demand.remaining > 0 {
                    self.demands.push_front(demand);
                    return Some(demand.of);
                }
                Outcome::Done
            }
            Err(failure) => {
                pages.failed += count as u64;
                pages.wanted = pages.wanted.saturating_sub(count as u64 + demand.remaining);
                self.counts.dropped += 1;
                if let Some(held_back) = self.failed.pass() {
                    tracing::warn!(%failure, key = %pages.key, count, held_back, "firmware did not take pages");
                }
                let owner = function.owner;
                match &failure {
                    // It knows that it refused, or never heard of them.
                    CommandFailure::Refused(_)
                    | CommandFailure::TooLong { .. }
                    | CommandFailure::NoSlot { .. } => {
                        self.arena.give_back(owner, &self.outgoing, |page, wrong| {
                            tracing::error!(page, why = wrong.text(), "page of a failed GIVE");
                        });
                    }
                    // Firmware may have the pages all the same: they are never given again. A
                    // demand that did not reach it is still to be answered.
                    other => {
                        function.limbo += count;
                        self.arena.pass_on(&self.outgoing, owner, LIMBO);
                        let gone = matches!(other, CommandFailure::Gone { .. });
                        if demand.origin == Origin::Event && !gone {
                            self.refusals.push_back(demand.of);
                        }
                    }
                }
                Outcome::Failed(failure)
            }
        };
        if let Origin::Startup(ticket) = demand.origin {
            self.outcomes.push((ticket, outcome));
        }
        Some(demand.of)
    }

    /// A TAKE has ended; `Ok` holds the addresses that firmware returned. Returns whose it was, for
    /// [`step_over`](Self::step_over).
    pub(crate) fn took(&mut self, result: Result<&[u64], CommandFailure>) -> Option<usize> {
        let Some(InFlight::Take {
            of,
            count,
            crossed,
            renewed,
        }) = self.in_flight.take()
        else {
            return None;
        };
        self.overdue = false;
        let function = self.functions.get_mut(of)?;
        let key = function.pages.key;
        let mut wrong: Option<(u64, Wrong)> = None;
        let mut corrupt = 0;
        let told = matches!(result, Ok(_) | Err(CommandFailure::Refused(_)));
        let returned = match result {
            // They are free, or about to be: firmware dropped them after it answered.
            Ok(pages) if crossed => {
                self.counts.crossed += pages.len() as u64;
                pages.len()
            }
            Ok(pages) => {
                let (owned, unsure) = self.arena.give_back(function.owner, pages, |page, kind| {
                    corrupt += 1;
                    wrong.get_or_insert((page, kind));
                });
                function.pages.outstanding = function.pages.outstanding.saturating_sub(owned);
                function.pages.doubtful = function.pages.doubtful.min(function.pages.outstanding);
                function.pages.returned += (owned + unsure) as u64;
                function.limbo = function.limbo.saturating_sub(unsure);
                self.counts.taken += (owned + unsure) as u64;
                pages.len()
            }
            Err(failure) => {
                let lie = matches!(failure, CommandFailure::Damaged { .. });
                corrupt += u64::from(lie);
                if lie {
                    if let Some(held_back) = self.corrupt.pass() {
                        tracing::error!(%failure, %key, held_back, "device corruption: none of the pages is freed");
                    }
                } else if let Some(held_back) = self.failed.pass() {
                    tracing::warn!(%failure, %key, count, held_back, "firmware returned no pages");
                }
                0
            }
        };
        function.pages.corrupt += corrupt;
        self.counts.unknown += corrupt;
        if let Some((page, kind)) = wrong {
            if let Some(held_back) = self.corrupt.pass() {
                tracing::error!(
                    %key, addresses = corrupt, first = page, why = kind.text(), held_back,
                    "device corruption: firmware returned pages that it does not hold; not freed"
                );
            }
        }
        self.empty_handed = returned == 0;
        let returned = u32::try_from(returned).unwrap_or(u32::MAX);
        let target = &mut function.pages.target;
        // Fewer than asked: firmware has withdrawn the hint.
        let remains = if returned < count {
            0
        } else {
            target.saturating_sub(returned)
        };
        *target = remains.max(renewed);
        if self.closing && self.empty_handed && told && !crossed {
            self.settle(of);
        }
        Some(of)
    }

    /// A device that was taken down has nothing more to return of this function: of the pages that
    /// it may hold, it holds none.
    fn settle(&mut self, of: usize) {
        let Some(function) = self.functions.get_mut(of) else {
            return;
        };
        function.limbo = 0;
        let pages = function.pages;
        if pages.doubtful > 0 && pages.outstanding == pages.doubtful {
            self.release_all(pages.key);
        }
    }

    /// The step in flight was not answered in time. It stays in flight, and is booked if an answer
    /// comes after all; whoever waits for pages at start-up is told now.
    pub(crate) fn late(&mut self, failure: &CommandFailure) {
        self.overdue = true;
        if let Some(held_back) = self.failed.pass() {
            tracing::error!(%failure, held_back, "no page requests are served until this is answered");
        }
        let mut told = Vec::new();
        let mut tell = |demand: &Demand| match demand.origin {
            Origin::Startup(ticket) => {
                told.push((ticket, demand.of, demand.remaining));
                true
            }
            Origin::Event => false,
        };
        if let Some(InFlight::Give { demand, .. }) = &mut self.in_flight {
            if tell(demand) {
                (demand.origin, demand.remaining) = (Origin::Event, 0);
            }
        }
        self.demands.retain(|demand| !tell(demand));
        for (ticket, of, unserved) in told {
            if let Some(function) = self.functions.get_mut(of) {
                function.pages.wanted = function.pages.wanted.saturating_sub(unserved);
            }
            self.outcomes
                .push((ticket, Outcome::Failed(failure.clone())));
        }
    }

    /// The device has failed: nothing is asked for or answered any more. The pages stay as they
    /// are, because the device may still write them.
    pub(crate) fn give_up(&mut self, failure: &CommandFailure) {
        match self.in_flight {
            Some(InFlight::Take { .. }) => {
                self.took(Err(failure.clone()));
            }
            Some(_) => {
                self.gave(Err(failure.clone()));
            }
            None => {}
        }
        for demand in self.demands.drain(..) {
            if let Origin::Startup(ticket) = demand.origin {
                self.outcomes
                    .push((ticket, Outcome::Failed(failure.clone())));
            }
        }
        self.refusals.clear();
        self.targets.clear();
        for function in &mut self.functions {
            function.queued = false;
            function.pages.target = 0;
            function.pages.wanted = 0;
        }
    }

    /// Unmaps an idle block when it is time.
    pub(crate) fn trim(&mut self, now: Instant) {
        let Some(interval) = self.options.release_interval else {
            return;
        };
        if !self.has_surplus() {
            self.next_release = None;
            return;
        }
        match self.next_release {
            // What has just become idle may be wanted again at once.
            None => self.next_release = Some(now + interval),
            Some(at) if now >= at => {
                self.next_release = Some(now + interval);
                if let Some(block) = self.arena.remove_idle() {
                    self.unmapped += 1;
                    self.memory.unmap(block);
                }
            }
            Some(_) => {}
        }
    }

    fn has_surplus(&self) -> bool {
        self.arena.idle_blocks() > 0
            && self.arena.free() > self.options.pooled
            && self.demands.is_empty()
    }

    /// When [`trim`](Self::trim) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_release
    }

    /// The device is gone or switched off: it holds no page any more. Returns how many it held.
    pub(crate) fn forget_all(&mut self) -> usize {
        let held = self.held();
        self.memory.finish();
        self.arena.clear();
        self.asked.clear();
        self.demands.clear();
        self.refusals.clear();
        self.targets.clear();
        self.sweeps.clear();
        self.functions.clear();
        self.by_key.clear();
        self.in_flight = None;
        self.overdue = false;
        self.next_release = None;
        held
    }
}
