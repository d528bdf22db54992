//! Page service: requests of firmware, of the bring-up and of the teardown, one MANAGE_PAGES at a
//! time in the slot that is kept for it, one step in a turn of the control thread.

use super::mailbox::Reply;
use super::meter::Meter;
use super::{Tag, Thread, answer};
use crate::command::{Completed, Order};
use crate::error::CommandFailure;
use crate::pages::{FunctionKey, Outcome, PageReport, Step};
use pollux_prm::command::Command;
use pollux_prm::commands::pages::{ManagePages, PagesAction};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Time between two tries while it returns none.
const RETRY: Duration = Duration::from_millis(10);
/// Firmware that returns a few pages whenever patience is nearly over is given up after so many
/// times that patience.
const ROUNDS: u32 = 12;

struct Reclaim {
    reply: Reply<Vec<(FunctionKey, usize)>>,
    held: usize,
    progress: Instant,
    retry: Option<Instant>,
    patience: Duration,
    end: Instant,
}

/// Who waits for page service.
#[derive(Default)]
pub(super) struct PageJobs {
    startups: Vec<(u64, Reply<Outcome>)>,
    next: u64,
    reclaim: Option<Reclaim>,
    /// Most steps that began while a command waited to be posted.
    pub(super) wait_steps: u64,
}

impl PageJobs {
    /// When something is to be done although nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        self.reclaim.as_ref().and_then(|r| r.retry)
    }
}

impl Thread {
    pub(super) fn startup_pages(&mut self, key: FunctionKey, count: i32, reply: Reply<Outcome>) {
        let ticket = self.page_jobs.next;
        self.page_jobs.next += 1;
        self.page_jobs.startups.push((ticket, reply));
        self.pages.startup(key, count, ticket);
    }

    pub(super) fn reclaim_pages(
        &mut self,
        patience: Duration,
        reply: Reply<Vec<(FunctionKey, usize)>>,
        now: Instant,
    ) {
        self.pages.reclaim_all();
        self.page_jobs.reclaim = Some(Reclaim {
            reply,
            held: self.pages.unsettled(),
            progress: now,
            retry: None,
            patience,
            end: now + patience * ROUNDS,
        });
    }

    pub(super) fn page_report(&self) -> PageReport {
        PageReport {
            mailboxes: self.queue.pages_mailboxes(),
            command_wait_steps: self.page_jobs.wait_steps,
            ..self.pages.report()
        }
    }

    /// One step. True when there is more to do that needs no event.
    pub(super) fn page_service(&mut self, now: Instant) -> bool {
        self.pages.trim(now);
        let mut more = false;
        if self.fault.is_none() && (self.queue.free_pages_slot().is_some() || self.pages.is_busy())
        {
            let meter = Meter::start();
            match self.pages.next_step() {
                Some(Step::Freed) => more = true,
                Some(step) => {
                    self.shared.page_steps.fetch_add(1, Ordering::Relaxed);
                    // One that was not posted has ended, and the next one may come.
                    more = !self.post_step(step, &meter);
                }
                None => {}
            }
        }
        for (ticket, outcome) in self.pages.take_outcomes() {
            let startups = &mut self.page_jobs.startups;
            if let Some(at) = startups.iter().position(|(of, _)| *of == ticket) {
                let (_, reply) = startups.swap_remove(at);
                answer(&reply, outcome);
            }
        }
        self.reclaim_progress(now);
        more
    }

    /// Posts a step's command; false when it failed at once.
    fn post_step(&mut self, step: Step, meter: &Meter) -> bool {
        let began = meter.began();
        let (action, key, count) = match step {
            Step::Give(key) => (PagesAction::GIVE, key, self.pages.outgoing().len() as u32),
            Step::CantGive(key) => (PagesAction::CANT_GIVE, key, 0),
            Step::Take { key, count } => (PagesAction::TAKE, key, count),
            Step::Freed => return true,
        };
        let mut head = ManagePages::request();
        head.set_op_mod(action.0)
            .set_embedded_cpu_function(key.embedded)
            .set_function_id(key.function)
            .set_input_num_entries(count);
        let (pages, returned, tag) = match step {
            Step::Give(_) => (self.pages.outgoing(), 0, Tag::Give),
            Step::Take { .. } => (&[][..], count as usize, Tag::Take),
            _ => (&[][..], 0, Tag::Give),
        };
        let order = Order {
            head: head.as_bytes(),
            pages,
            output_len: ManagePages::output_len(returned),
            patience: self.patience,
        };
        self.eager = 0;
        let posted = match self.queue.free_pages_slot() {
            Some(slot) => self.queue.post(slot, order, tag, began),
            // Not reached: the slot was free when the step was made.
            None => Err(Completed {
                tag,
                result: Err(CommandFailure::NoSlot {
                    opcode: ManagePages::OPCODE,
                    waited: Duration::ZERO,
                }),
            }),
        };
        self.pages.spent(meter.cost());
        match posted {
            Ok(()) => true,
            Err(failed) => {
                self.complete(failed, began);
                false
            }
        }
    }

    /// A GIVE or CANT_GIVE has ended.
    pub(super) fn gave(&mut self, result: Result<(), CommandFailure>) {
        let meter = Meter::start();
        self.count_late();
        let of = self.pages.gave(result);
        self.pages.step_over(of, meter.cost());
    }

    /// A TAKE has ended; its pages are in the command queue's buffer.
    pub(super) fn took(&mut self, result: Result<(), CommandFailure>) {
        let meter = Meter::start();
        self.count_late();
        let pages = result.map(|()| self.queue.returned());
        let of = self.pages.took(pages);
        self.pages.step_over(of, meter.cost());
    }

    /// The step has ended; counts it if nobody believed in its answer any more. (A device that was
    /// given up has not answered.)
    fn count_late(&mut self) {
        let late = self.pages.is_overdue() && self.fault.is_none();
        self.shared.count(|c| &c.late_answers, u64::from(late));
    }

    /// Ends a reclaim, or tries again when firmware has come back with nothing.
    fn reclaim_progress(&mut self, now: Instant) {
        // One that is overdue has had its time.
        let overdue = self.pages.is_overdue();
        if self.pages.is_busy() && !overdue {
            return;
        }
        let Some(reclaim) = &mut self.page_jobs.reclaim else {
            return;
        };
        if reclaim.retry.is_some_and(|at| now < at) {
            return;
        }
        let held = self.pages.unsettled();
        if held < reclaim.held {
            reclaim.held = held;
            reclaim.progress = now;
        }
        let late = now.saturating_duration_since(reclaim.progress) >= reclaim.patience
            || now >= reclaim.end;
        if held == 0 || late || overdue || self.fault.is_some() {
            if let Some(reclaim) = self.page_jobs.reclaim.take() {
                answer(&reclaim.reply, self.pages.holders());
            }
            return;
        }
        let empty_handed = self.pages.came_empty_handed();
        reclaim.retry = Some(if empty_handed { now + RETRY } else { now });
        self.pages.reclaim_all();
    }
}
