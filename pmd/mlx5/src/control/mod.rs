//! The control thread of one function: it alone posts commands and reads event queues.
//!
//! It sleeps on eventfds (one for each interrupt vector, one for the mailbox) with a timeout for
//! deadlines, health and the retry of questions. One turn of its loop does a bounded amount of
//! each kind of work: the jobs that wait, the entries that each event queue holds (at most
//! [`BUDGET`]), one step of page service, one question about the link, one order per failed queue.
//! So no kind of work starves another.
//!
//! Commands end by an event once there is a command EQ, by polling before that and after its
//! destruction. An event can be lost: every [`LOOK`] the entries in flight are looked at
//! themselves, and once more when a deadline passes.
//!
//! # Lifecycle
//!
//! [`Control::start`] makes the thread; [`Control`] is its handle for all other threads, cheap to
//! clone. [`Control::stop`] ends it; whatever still waits is answered with
//! [`CommandFailure::Closed`].

mod blocks;
mod events;
mod handle;
mod link;
mod mailbox;
mod meter;
mod pages;
mod recovery;
mod shared;

pub(crate) use blocks::Blocks;
pub(crate) use handle::{Control, ControlParts, Queue};
pub(crate) use recovery::Watched;
pub use shared::EventCounts;
pub(crate) use shared::Shared;

use crate::command::{CommandQueue, Completed, Request};
use crate::eq::{EqKind, EventQueue};
use crate::error::CommandFailure;
use crate::health::{Fault, Watch};
use crate::init_segment::InitSegment;
use crate::link::LinkWatch;
use crate::pages::PageServer;
use crate::work_queue;
use blocks::BlockMaker;
use mailbox::{Job, Mailbox, Reply};
use meter::Meter;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use pages::PageJobs;
use pollux_bus::Interrupt;
use pollux_prm::opcode::Opcode;
use recovery::{Case, Order, Recovery};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries taken from one event queue in one turn.
const BUDGET: usize = 256;
/// How often entries in flight and the gates of queues are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// How soon a look is repeated that found a command ended without its event.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often the device's health is looked at.
const HEALTH: Duration = Duration::from_secs(1);
/// Turns without sleeping while a command is polled for.
const EAGER: u32 = 500;
/// Commands that may end at once: the queue has no more slots.
const MAX_DONE: usize = 32;
/// Interrupt vectors that are used at most.
const VECTORS: usize = EqKind::ALL.len();

/// What a command in flight is for.
enum Tag {
    Caller(Reply<Result<Vec<u8>, CommandFailure>>),
    Give,
    Take,
    LinkState,
    LinkSpeed,
    Recovery(Case),
}

struct Waiting {
    request: Request,
    tag: Tag,
    since: Instant,
    /// Steps of page service at its arrival.
    page_steps: u64,
}

struct Thread {
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    segment: InitSegment,
    queue: CommandQueue<Tag>,
    waiting: VecDeque<Waiting>,
    eqs: Vec<EventQueue>,
    /// By vector; nothing where the descriptor failed.
    interrupts: Vec<Option<Interrupt>>,
    pages: PageServer<BlockMaker>,
    page_jobs: PageJobs,
    link: LinkWatch,
    recovery: Recovery,
    health: Watch,
    fault: Option<Fault>,
    next_look: Instant,
    next_health: Instant,
    patience: Duration,
    /// Commands that have ended, while they are dealt with; kept for its room.
    done: Vec<Completed<Tag>>,
    eager: u32,
    closing: bool,
    stop: bool,
}

impl Thread {
    fn run(mut self) {
        while !self.stop {
            let now = Instant::now();
            for job in self.mailbox.take() {
                self.job(job, now);
            }
            let mut more = self.drain_events(now);
            self.look(now);
            self.ask_link(now);
            self.recover(now);
            // Commands first: none waits for more than the step that was under way.
            more |= self.post_waiting(now);
            more |= self.page_service(now);
            if !self.stop {
                self.sleep(more);
            }
        }
    }

    fn job(&mut self, job: Job, now: Instant) {
        match job {
            Job::Command {
                request,
                reply,
                page_steps,
            } => {
                self.waiting.push_back(Waiting {
                    request,
                    tag: Tag::Caller(reply),
                    since: now,
                    page_steps,
                });
            }
            Job::AdoptEq(eq) => self.adopt(*eq),
            Job::ReleaseEq { number, reply } => {
                let at = self.eqs.iter().position(|eq| eq.number() == number);
                let memory = at.map(|at| self.eqs.remove(at).into_memory());
                answer(&reply, memory);
            }
            Job::StartupPages { key, count, reply } => self.startup_pages(key, count, reply),
            Job::ReclaimPages { patience, reply } => self.reclaim_pages(patience, reply, now),
            Job::ForgetPages { reply } => {
                let held = self.pages.forget_all();
                answer(&reply, held);
            }
            Job::PageCounts { reply } => answer(&reply, self.pages.counts()),
            Job::PageReport { reply } => answer(&reply, Box::new(self.page_report())),
            Job::WatchHealth(on) => {
                self.health.count(on, now);
                self.next_health = now;
            }
            Job::Closing => self.closing = true,
            Job::VerifySignatures(on) => self.queue.verify_signatures(on),
            Job::AskLink => self.link.event(None, now),
            Job::WatchQueues(queues, reply) => {
                self.recovery.watch(queues);
                answer(&reply, ());
            }
            Job::Stop => self.stop = true,
        }
    }

    fn by_events(&self) -> bool {
        self.eqs.iter().any(|eq| eq.kind() == EqKind::Commands)
    }

    /// Looks at entries, deadlines and health when it is time.
    fn look(&mut self, now: Instant) {
        if !self.by_events() {
            self.collect(None, now);
        }
        if now >= self.next_look {
            let found = self.queue.collect_overdue(&mut self.done);
            self.shared
                .count(|c| &c.lost_events, self.done.len() as u64);
            self.complete_all(now);
            self.next_look = now + if found { LOOK_AGAIN } else { LOOK };
            // A command that takes long is a reason to see whether anybody is there.
            if self.queue.in_flight() > 0 && self.fault.is_none() && !self.segment.answers() {
                self.fail(Fault::NotAnswering);
            }
        }
        if self
            .queue
            .next_deadline()
            .is_some_and(|deadline| now >= deadline)
        {
            self.queue.collect(None, &mut self.done);
            self.shared
                .count(|c| &c.lost_events, self.done.len() as u64);
            self.complete_all(now);
            let pages = self.queue.expire(now, &mut self.done);
            let timeouts = self.done.len() + usize::from(pages.is_some());
            self.shared.count(|c| &c.timeouts, timeouts as u64);
            self.complete_all(now);
            if let Some(failure) = pages {
                self.pages.late(&failure);
            }
            if timeouts > 0 && self.closing {
                self.fail(Fault::Silent);
            }
        }
        if now >= self.next_health {
            self.next_health = now + HEALTH;
            if self.fault.is_none() {
                if let Some(fault) = self.health.look(&self.segment, now) {
                    self.fail(fault);
                }
            }
        }
    }

    /// The device is given up: whoever waits is told now, whoever comes later at once.
    fn fail(&mut self, fault: Fault) {
        if self.fault.is_some() {
            return;
        }
        tracing::error!(%fault, "the device has failed");
        self.fault = Some(fault);
        self.shared.set_fault(fault);
        if let Some(link) = self.link.lost() {
            self.shared.tell_link(link);
        }
        let now = Instant::now();
        self.queue.abandon(fault, &mut self.done);
        self.complete_all(now);
        self.pages.give_up(&CommandFailure::Gone {
            opcode: Opcode::MANAGE_PAGES,
            fault,
        });
        for waiting in std::mem::take(&mut self.waiting) {
            let result = Err(CommandFailure::Gone {
                opcode: waiting.request.opcode(),
                fault,
            });
            self.complete(
                Completed {
                    tag: waiting.tag,
                    result,
                },
                now,
            );
        }
        if let Some(link) = self.link.lost() {
            self.shared.tell_link(link);
        }
    }

    /// Puts a command of our own before those that wait.
    fn post_first(&mut self, request: Request, tag: Tag, since: Instant) {
        self.waiting.push_front(Waiting {
            request,
            tag,
            since,
            page_steps: self.shared.page_steps.load(Ordering::Relaxed),
        });
    }

    /// Posts what waits, as far as slots are free. True when something failed at once, so that
    /// its waiter's next step is not slept over.
    fn post_waiting(&mut self, now: Instant) -> bool {
        let mut more = false;
        while let Some(waiting) = self.waiting.pop_front() {
            let opcode = waiting.request.opcode();
            if let Some(fault) = self.fault {
                let result = Err(CommandFailure::Gone { opcode, fault });
                self.complete(
                    Completed {
                        tag: waiting.tag,
                        result,
                    },
                    now,
                );
                more = true;
                continue;
            }
            let Some(slot) = self.queue.free_slot() else {
                let waited = now.saturating_duration_since(waiting.since);
                if waited < waiting.request.patience {
                    self.waiting.push_front(waiting);
                    break;
                }
                let result = Err(CommandFailure::NoSlot { opcode, waited });
                self.complete(
                    Completed {
                        tag: waiting.tag,
                        result,
                    },
                    now,
                );
                more = true;
                if self.closing {
                    self.fail(Fault::Silent);
                }
                continue;
            };
            self.eager = 0;
            let steps = self.shared.page_steps.load(Ordering::Relaxed);
            let waited = steps.saturating_sub(waiting.page_steps);
            self.page_jobs.wait_steps = self.page_jobs.wait_steps.max(waited);
            let order = waiting.request.order();
            if let Err(refused) = self.queue.post(slot, order, waiting.tag, now) {
                self.complete(refused, now);
                more = true;
            }
        }
        more
    }

    /// Deals with the commands whose entries the device has given back.
    fn collect(&mut self, only: Option<u32>, now: Instant) {
        let meter = self.pages.is_busy().then(Meter::start);
        self.queue.collect(only, &mut self.done);
        if let Some(meter) = meter {
            // Reading the answer to a TAKE is a good part of it.
            if self.done.iter().any(|c| matches!(c.tag, Tag::Take)) {
                self.pages.spent(meter.cost());
            }
        }
        self.complete_all(now);
    }

    /// Deals with the commands in `done`.
    fn complete_all(&mut self, now: Instant) {
        let mut done = std::mem::take(&mut self.done);
        for completed in done.drain(..) {
            self.complete(completed, now);
        }
        // Completing a command completes no other one.
        self.done = done;
    }

    fn complete(&mut self, completed: Completed<Tag>, now: Instant) {
        let Completed { tag, result } = completed;
        match tag {
            Tag::Caller(reply) => answer(&reply, result),
            Tag::Give => self.gave(result.map(drop)),
            Tag::Take => self.took(result.map(drop)),
            Tag::LinkState => self.link_state(result, now),
            Tag::LinkSpeed => self.link_speed(result, now),
            Tag::Recovery(case) => self.recovered(case, result),
        }
    }

    /// Carries out what failed queues need.
    fn recover(&mut self, now: Instant) {
        if self.fault.is_some() {
            return;
        }
        for (case, kind, number) in self.recovery.look() {
            let input = match case.order() {
                Order::Query => work_queue::query(kind, number),
                Order::Modify(from, to) => work_queue::modify(kind, number, from, to),
            };
            match input {
                Ok((input, output_len)) => {
                    let request = Request {
                        input,
                        output_len,
                        patience: self.patience,
                    };
                    self.post_first(request, Tag::Recovery(case), now);
                }
                // Not reached: the numbers came from firmware's own fields.
                Err(error) => tracing::error!(%error, "queue cannot be recovered"),
            }
        }
    }

    fn recovered(&mut self, case: Case, result: Result<Vec<u8>, CommandFailure>) {
        let state = result.map(|output| match case.order() {
            Order::Query => self.recovery.state_in(&case, &output),
            Order::Modify(..) => None,
        });
        self.recovery.carried_out(case, state);
    }

    /// Sleeps until something happens or is due.
    fn sleep(&mut self, more: bool) {
        let timeout = self.timeout(more);
        if timeout.is_zero() {
            std::thread::yield_now();
        }
        // Rounded up, so that a deadline has passed when the sleep ends.
        let millis = timeout.as_micros().div_ceil(1000).min(60_000) as u16;
        let kick = self.mailbox.kick().as_fd();
        // Where a descriptor is missing, the kick stands twice: its flags are not looked at.
        let mut fds: [PollFd<'_>; VECTORS + 1] = std::array::from_fn(|at| {
            let vector = at.checked_sub(1).and_then(|at| self.interrupts.get(at));
            let fd = match vector {
                Some(Some(interrupt)) => interrupt.as_fd(),
                _ => kick,
            };
            PollFd::new(fd, PollFlags::POLLIN)
        });
        let there = (self.interrupts.len() + 1).min(fds.len());
        let polled = nix::poll::poll(
            fds.get_mut(..there).unwrap_or_default(),
            PollTimeout::from(millis),
        );
        match polled {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "poll; going on by the clock");
                std::thread::sleep(Duration::from_millis(1));
                return;
            }
        }
        let bad = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let found: [PollFlags; VECTORS] = std::array::from_fn(|vector| {
            let fd = fds.get(vector + 1).filter(|_| vector + 1 < there);
            fd.map_or(PollFlags::empty(), |fd| fd.revents().unwrap_or(bad))
        });
        for (vector, flags) in found.into_iter().enumerate() {
            let Some(Some(interrupt)) = self.interrupts.get(vector) else {
                continue;
            };
            if flags.intersects(bad) {
                self.drop_interrupt(vector);
            } else if flags.contains(PollFlags::POLLIN) {
                interrupt.take();
                self.fired(vector);
            }
        }
    }

    fn timeout(&mut self, more: bool) -> Duration {
        if more {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let in_flight = self.queue.in_flight();
        let mut due = self.next_health;
        if in_flight > 0 {
            if self.by_events() {
                due = due.min(self.next_look);
            } else {
                self.eager = self.eager.saturating_add(1);
                let step = if self.eager < EAGER {
                    Duration::ZERO
                } else {
                    Duration::from_millis(1)
                };
                due = due.min(now + step);
            }
        }
        if !self.recovery.is_empty() || !self.waiting.is_empty() || !self.interrupts_whole() {
            due = due.min(self.next_look);
        }
        let others = [
            self.queue.next_deadline(),
            self.link.next_question(),
            self.page_jobs.due(),
            self.pages.due(),
        ];
        due = others.into_iter().flatten().fold(due, Instant::min);
        due.saturating_duration_since(now)
    }
}

impl Drop for Thread {
    /// However the thread ends: no job is left without an answer. Those in flight and in line go
    /// with the command queue, and their channels with them.
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// Answers a job; nobody may be waiting any more.
fn answer<T>(reply: &Reply<T>, value: T) {
    if reply.try_send(value).is_err() {
        tracing::trace!("nobody waits for the answer");
    }
}
