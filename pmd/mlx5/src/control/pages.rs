//! Page service: requests of firmware, of the bring-up and of the teardown, one MANAGE_PAGES at a
//! time in the slot that is kept for it.

use super::mailbox::Reply;
use super::{Tag, Thread, answer};
use crate::command::Request;
use crate::error::CommandFailure;
use crate::pages::{FunctionKey, Outcome, Step};
use pollux_prm::command::Command;
use pollux_prm::commands::pages::{ManagePages, ManagePagesOut, PagesAction};
use pollux_prm::opcode::Opcode;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Time between two tries while it returns none.
const RETRY: Duration = Duration::from_millis(10);

struct Reclaim {
    reply: Reply<Vec<(FunctionKey, usize)>>,
    held: usize,
    progress: Instant,
    retry: Option<Instant>,
    patience: Duration,
}

/// Who waits for page service.
#[derive(Default)]
pub(super) struct PageJobs {
    startups: Vec<(u64, Reply<Outcome>)>,
    next: u64,
    reclaim: Option<Reclaim>,
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
        let held = self.pages.reclaim_all();
        self.page_jobs.reclaim = Some(Reclaim {
            reply,
            held,
            progress: now,
            retry: None,
            patience,
        });
    }

    /// One step, if the slot is free.
    pub(super) fn page_service(&mut self, now: Instant) {
        while self.queue.free_pages_slot().is_some() || self.fault.is_some() {
            let Some(step) = self.pages.next_step() else {
                break;
            };
            let request = match self.manage_pages(&step) {
                Ok(request) => request,
                Err(error) => {
                    tracing::error!(%error, "MANAGE_PAGES cannot be written");
                    break;
                }
            };
            let tag = match step {
                Step::Give { .. } | Step::CantGive { .. } => Tag::Give,
                Step::Take { count, .. } => Tag::Take { count },
            };
            let done = match (self.fault, self.queue.free_pages_slot()) {
                (Some(fault), _) => {
                    let opcode = Opcode::MANAGE_PAGES;
                    Some(crate::command::Completed {
                        tag,
                        result: Err(CommandFailure::Gone { opcode, fault }),
                    })
                }
                (None, Some(slot)) => {
                    self.eager = 0;
                    self.queue.post(slot, &request, tag, now).err()
                }
                (None, None) => None,
            };
            match done {
                Some(failed) => self.complete(failed, now),
                None => break,
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
    }

    /// Ends a reclaim, or tries again when firmware has come back with nothing.
    fn reclaim_progress(&mut self, now: Instant) {
        if self.pages.is_busy() {
            return;
        }
        let Some(reclaim) = &mut self.page_jobs.reclaim else {
            return;
        };
        if reclaim.retry.is_some_and(|at| now < at) {
            return;
        }
        let holders = self.pages.holders();
        let held: usize = holders.iter().map(|(_, held)| held).sum();
        if held < reclaim.held {
            reclaim.held = held;
            reclaim.progress = now;
        }
        let late = now.saturating_duration_since(reclaim.progress) >= reclaim.patience;
        if held == 0 || late || self.fault.is_some() || self.queue.pages_slot_lost() {
            if let Some(reclaim) = self.page_jobs.reclaim.take() {
                answer(&reclaim.reply, holders);
            }
            return;
        }
        let empty_handed = self.pages.came_empty_handed();
        reclaim.retry = Some(if empty_handed { now + RETRY } else { now });
        self.pages.reclaim_all();
    }

    fn manage_pages(&self, step: &Step) -> Result<Request, crate::error::Error> {
        let mut input = ManagePages::request();
        let (action, key, count, pages): (_, _, _, &[u64]) = match step {
            Step::Give { key, pages } => (PagesAction::GIVE, key, pages.len() as u32, pages),
            Step::CantGive { key } => (PagesAction::CANT_GIVE, key, 0, &[]),
            Step::Take { key, count } => (PagesAction::TAKE, key, *count, &[]),
        };
        input
            .set_op_mod(action.0)
            .set_embedded_cpu_function(key.embedded)
            .set_function_id(key.function)
            .set_input_num_entries(count);
        let mut bytes = Vec::with_capacity(ManagePages::input_len(pages.len()));
        bytes.extend(input.as_bytes());
        pages
            .iter()
            .for_each(|page| bytes.extend(page.to_be_bytes()));
        let returned = if action == PagesAction::TAKE {
            count as usize
        } else {
            0
        };
        Ok(Request {
            input: bytes,
            output_len: ManagePages::output_len(returned),
            patience: self.patience,
        })
    }

    pub(super) fn took(&mut self, count: u32, result: Result<Vec<u8>, CommandFailure>) {
        let pages = result.and_then(|output| returned_pages(&output, count));
        self.pages.took(pages.as_deref().map_err(Clone::clone));
    }
}

/// The addresses in the answer to a TAKE of `count` pages.
fn returned_pages(output: &[u8], count: u32) -> Result<Vec<u64>, CommandFailure> {
    let damaged = |what| CommandFailure::Damaged {
        opcode: Opcode::MANAGE_PAGES,
        what,
    };
    let (head, tail) =
        ManagePagesOut::read_from_prefix(output).map_err(|_| damaged("no header"))?;
    let returned = head.output_num_entries();
    if returned > count {
        return Err(damaged("more pages than asked for"));
    }
    Ok(tail
        .chunks_exact(8)
        .take(returned as usize)
        .filter_map(|bytes| bytes.try_into().ok().map(u64::from_be_bytes))
        .collect())
}
