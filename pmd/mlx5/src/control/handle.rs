//! The control thread's handle: how all other threads run commands and other jobs.
//!
//! Every call here waits for the control thread, which answers within the command's deadline. A
//! call from the control thread itself (out of a link callback) is refused, since it would wait
//! for itself.

use super::blocks::BlockMaker;
use super::mailbox::{Job, Mailbox, Reply};
use super::{Blocks, HEALTH, LOOK, MAX_DONE, PageJobs, Recovery, Shared, Tag, Thread, Watched};
use crate::command::{CommandQueue, Request};
use crate::dma::DmaMemory;
use crate::eq::EventQueue;
use crate::error::{CommandFailure, Error};
use crate::health::Watch;
use crate::init_segment::InitSegment;
use crate::link::LinkWatch;
use crate::pages::{FunctionKey, Outcome, PageCounts, PageOptions, PageReport, PageServer};
use pollux_bus::{Interrupt, Iova};
use pollux_prm::command::Command;
use pollux_prm::layout::Layout;
use pollux_prm::opcode::Opcode;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// What the thread is made of.
pub(crate) struct ControlParts {
    pub(crate) name: String,
    pub(crate) segment: InitSegment,
    pub(crate) queue: Queue,
    pub(crate) interrupts: Vec<Interrupt>,
    pub(crate) blocks: Blocks,
    pub(crate) pages: PageOptions,
    pub(crate) patience: Duration,
}

/// The command queue as the control thread uses it.
pub(crate) struct Queue(pub(super) CommandQueue<Tag>);

impl Queue {
    /// See [`CommandQueue::new`].
    pub(crate) fn new(
        name: &str,
        segment: &InitSegment,
        blocks: &Blocks,
        pages: &PageOptions,
    ) -> Result<Self, Error> {
        let queue = CommandQueue::new(
            name,
            segment.clone(),
            &blocks.domain,
            blocks.node,
            blocks.pages,
            pages.largest(),
        )?;
        Ok(Self(queue))
    }

    /// Where it is, for the device.
    pub(crate) fn address(&self) -> Iova {
        self.0.address()
    }
}

struct Inner {
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    thread: ThreadId,
    join: Mutex<Option<JoinHandle<()>>>,
    patience: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        end(self);
    }
}

/// Ends the thread and waits for it, once.
fn end(inner: &Inner) {
    if inner.mailbox.put(Job::Stop).is_err() {
        tracing::trace!("the control thread has ended");
    }
    let join = inner
        .join
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(join) = join {
        if join.thread().id() != std::thread::current().id() && join.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

/// Handle of a control thread.
#[derive(Clone)]
pub(crate) struct Control {
    inner: Arc<Inner>,
}

/// A command on its way.
pub(crate) struct Pending {
    opcode: Opcode,
    answer: Receiver<Result<Vec<u8>, CommandFailure>>,
}

impl Pending {
    /// Waits for the output.
    pub(crate) fn wait(self) -> Result<Vec<u8>, CommandFailure> {
        let closed = CommandFailure::Closed {
            opcode: self.opcode,
        };
        self.answer.recv().unwrap_or(Err(closed))
    }
}

impl Control {
    /// Starts the thread. The queue has been announced to the device.
    ///
    /// # Errors
    /// No eventfd or no thread to be had.
    pub(crate) fn start(parts: ControlParts) -> Result<Self, Error> {
        let mailbox = Arc::new(Mailbox::new()?);
        let shared = Arc::new(Shared::default());
        let now = Instant::now();
        let memory = BlockMaker::start(parts.blocks, mailbox.kick().clone())?;
        let thread = Thread {
            mailbox: Arc::clone(&mailbox),
            shared: Arc::clone(&shared),
            segment: parts.segment,
            queue: parts.queue.0,
            waiting: VecDeque::new(),
            eqs: Vec::new(),
            interrupts: parts.interrupts.into_iter().map(Some).collect(),
            pages: PageServer::new(memory, parts.pages),
            page_jobs: PageJobs::default(),
            link: LinkWatch::default(),
            recovery: Recovery::default(),
            health: Watch::new(now),
            fault: None,
            next_look: now + LOOK,
            next_health: now + HEALTH,
            patience: parts.patience,
            done: Vec::with_capacity(MAX_DONE),
            eager: 0,
            closing: false,
            stop: false,
        };
        // The kernel shows 15 characters; the function's distinguishing end comes first.
        let name = format!("ctl:{}", parts.name);
        let join = std::thread::Builder::new()
            .name(name)
            .spawn(move || thread.run())
            .map_err(|source| Error::Os {
                what: "control thread",
                source,
            })?;
        let inner = Inner {
            mailbox,
            shared,
            thread: join.thread().id(),
            join: Mutex::new(Some(join)),
            patience: parts.patience,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What the thread tells without being asked.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Whether the caller is the control thread.
    pub(crate) fn is_current(&self) -> bool {
        std::thread::current().id() == self.inner.thread
    }

    /// Posts a command without waiting for it.
    pub(crate) fn submit(
        &self,
        input: Vec<u8>,
        output_len: usize,
    ) -> Result<Pending, CommandFailure> {
        let request = Request {
            input,
            output_len,
            patience: self.inner.patience,
        };
        let opcode = request.opcode();
        if self.is_current() {
            return Err(CommandFailure::OnControlThread { opcode });
        }
        let (reply, answer) = sync_channel(1);
        let page_steps = self.inner.shared.page_steps.load(Ordering::Relaxed);
        let job = Job::Command {
            request,
            reply,
            page_steps,
        };
        match self.inner.mailbox.put(job) {
            Ok(()) => Ok(Pending { opcode, answer }),
            Err(_) => Err(CommandFailure::Closed { opcode }),
        }
    }

    /// Runs a command whose input is already laid out.
    pub(crate) fn execute_bytes(
        &self,
        input: Vec<u8>,
        output_len: usize,
    ) -> Result<Vec<u8>, CommandFailure> {
        self.submit(input, output_len)?.wait()
    }

    /// Runs a command.
    pub(crate) fn execute<C: Command>(
        &self,
        input: &C::Input,
    ) -> Result<C::Output, CommandFailure> {
        self.execute_with::<C>(input, &[])
    }

    /// Runs a command whose input has a tail.
    pub(crate) fn execute_with<C: Command>(
        &self,
        input: &C::Input,
        tail: &[u8],
    ) -> Result<C::Output, CommandFailure> {
        let bytes = [input.as_bytes(), tail].concat();
        let output = self.execute_bytes(bytes, C::Output::LEN)?;
        match C::Output::read_from_prefix(&output) {
            Ok((output, _)) => Ok(output),
            // Not reached: the output has the length asked for.
            Err(_) => Err(CommandFailure::Damaged {
                opcode: C::OPCODE,
                what: "short",
            }),
        }
    }

    /// Brings a job and waits for its answer; nothing when the thread has ended or is our own.
    fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Option<T> {
        if self.is_current() {
            return None;
        }
        let (reply, answer) = sync_channel(1);
        self.inner.mailbox.put(job(reply)).ok()?;
        answer.recv().ok()
    }

    fn tell(&self, job: Job) {
        if self.inner.mailbox.put(job).is_err() {
            tracing::trace!("the control thread has ended");
        }
    }

    /// Has an event queue read and armed from now on.
    pub(crate) fn adopt_eq(&self, eq: EventQueue) {
        self.tell(Job::AdoptEq(Box::new(eq)));
    }

    /// Stops reading an event queue; the ring's memory comes back.
    pub(crate) fn release_eq(&self, number: u8) -> Option<DmaMemory> {
        self.ask(|reply| Job::ReleaseEq { number, reply }).flatten()
    }

    /// Gives start-up pages; returns when all of them are with firmware.
    pub(crate) fn startup_pages(&self, key: FunctionKey, count: i32) -> Option<Outcome> {
        self.ask(|reply| Job::StartupPages { key, count, reply })
    }

    /// Takes all pages back, as long as firmware returns some within `patience`; the answer is what
    /// it keeps.
    pub(crate) fn reclaim_pages(&self, patience: Duration) -> Option<Vec<(FunctionKey, usize)>> {
        self.ask(|reply| Job::ReclaimPages { patience, reply })
    }

    /// Frees all pages locally. Only for a device that cannot reach memory any more.
    pub(crate) fn forget_pages(&self) -> usize {
        self.ask(|reply| Job::ForgetPages { reply }).unwrap_or(0)
    }

    /// What the page server did.
    pub(crate) fn page_counts(&self) -> PageCounts {
        self.ask(|reply| Job::PageCounts { reply })
            .unwrap_or_default()
    }

    /// Everything about firmware's pages.
    pub(crate) fn page_report(&self) -> PageReport {
        self.ask(|reply| Job::PageReport { reply })
            .map(|report| *report)
            .unwrap_or_default()
    }

    /// Watches health, or not.
    pub(crate) fn watch_health(&self, on: bool) {
        self.tell(Job::WatchHealth(on));
    }

    /// From now on the device is given up when a command is not answered: whoever closes it resets
    /// it then, and must not wait for each of a hundred commands in turn.
    pub(crate) fn closing(&self) {
        self.tell(Job::Closing);
    }

    /// Checks the signatures of answers, or not.
    pub(crate) fn verify_signatures(&self, on: bool) {
        self.tell(Job::VerifySignatures(on));
    }

    /// Has the link state asked for.
    pub(crate) fn ask_link(&self) {
        self.tell(Job::AskLink);
    }

    /// Recovers these queues when they fail; none, to stop that. When this returns, no order for
    /// a queue of before will be sent any more.
    pub(crate) fn watch_queues(&self, queues: Vec<Watched>) {
        let done = self.ask(|reply| Job::WatchQueues(queues, reply));
        tracing::trace!(done = done.is_some(), "queues watched");
    }

    /// Ends the thread and waits for it; whoever waits is answered.
    pub(crate) fn stop(&self) {
        end(&self.inner);
    }
}
