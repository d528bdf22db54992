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
use mailbox::{Job, Mailbox, Reply};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use pages::PageJobs;
use pollux_bus::Interrupt;
use recovery::{Case, Order, Recovery};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
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

/// What a command in flight is for.
enum Tag {
    Caller(Reply<Result<Vec<u8>, CommandFailure>>),
    Give,
    Take { count: u32 },
    LinkState,
    LinkSpeed,
    Recovery(Case),
}

struct Waiting {
    request: Request,
    tag: Tag,
    since: Instant,
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
    pages: PageServer<Blocks>,
    page_jobs: PageJobs,
    link: LinkWatch,
    recovery: Recovery,
    health: Watch,
    fault: Option<Fault>,
    next_look: Instant,
    next_health: Instant,
    patience: Duration,
    eager: u32,
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
            self.page_service(now);
            self.ask_link(now);
            self.recover(now);
            more |= self.post_waiting(now);
            if !self.stop {
                self.sleep(more);
            }
        }
    }

    fn job(&mut self, job: Job, now: Instant) {
        match job {
            Job::Command { request, reply } => {
                self.waiting.push_back(Waiting {
                    request,
                    tag: Tag::Caller(reply),
                    since: now,
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
            Job::WatchHealth(on) => {
                self.health.count(on, now);
                self.next_health = now;
            }
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
            let done = self.queue.collect(None);
            self.complete_all(done, now);
        }
        if now >= self.next_look {
            let (done, found) = self.queue.collect_overdue();
            self.shared.count(|c| &c.lost_events, done.len() as u64);
            self.complete_all(done, now);
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
            let done = self.queue.collect(None);
            self.shared.count(|c| &c.lost_events, done.len() as u64);
            self.complete_all(done, now);
            let expired = self.queue.expire(now);
            self.shared.count(|c| &c.timeouts, expired.len() as u64);
            self.complete_all(expired, now);
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
        let done = self.queue.abandon(fault);
        self.complete_all(done, now);
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
                continue;
            };
            self.eager = 0;
            if let Err(refused) = self.queue.post(slot, &waiting.request, waiting.tag, now) {
                self.complete(refused, now);
                more = true;
            }
        }
        more
    }

    fn complete_all(&mut self, done: Vec<Completed<Tag>>, now: Instant) {
        for completed in done {
            self.complete(completed, now);
        }
    }

    fn complete(&mut self, completed: Completed<Tag>, now: Instant) {
        let Completed { tag, result } = completed;
        match tag {
            Tag::Caller(reply) => answer(&reply, result),
            Tag::Give => self.pages.gave(result.map(drop)),
            Tag::Take { count } => self.took(count, result),
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
        let interrupts: Vec<(usize, Interrupt)> = self
            .interrupts
            .iter()
            .enumerate()
            .filter_map(|(vector, i)| i.clone().map(|i| (vector, i)))
            .collect();
        let mut fds = vec![PollFd::new(self.mailbox.kick().as_fd(), PollFlags::POLLIN)];
        fds.extend(
            interrupts
                .iter()
                .map(|(_, i)| PollFd::new(i.as_fd(), PollFlags::POLLIN)),
        );
        // Rounded up, so that a deadline has passed when the sleep ends.
        let millis = timeout.as_micros().div_ceil(1000).min(60_000) as u16;
        match nix::poll::poll(&mut fds, PollTimeout::from(millis)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "poll; going on by the clock");
                std::thread::sleep(Duration::from_millis(1));
                return;
            }
        }
        let bad = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let found: Vec<PollFlags> = fds
            .iter()
            .skip(1)
            .map(|fd| fd.revents().unwrap_or(bad))
            .collect();
        drop(fds);
        for ((vector, interrupt), flags) in interrupts.iter().zip(found) {
            if flags.intersects(bad) {
                self.drop_interrupt(*vector);
            } else if flags.contains(PollFlags::POLLIN) {
                interrupt.take();
                self.fired(*vector);
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
