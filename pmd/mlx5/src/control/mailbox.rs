//! Jobs for the control thread, from any other thread: a bounded queue and an eventfd that wakes
//! the sleeper. Each job carries a one-shot channel for its answer; a channel whose sender is
//! gone means that the thread has ended.

use super::recovery::Watched;
use crate::command::Request;
use crate::dma::DmaMemory;
use crate::eq::EventQueue;
use crate::error::{CommandFailure, Error};
use crate::pages::{FunctionKey, Outcome, PageCounts, PageReport};
use pollux_bus::{BusError, Interrupt};
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Jobs that may wait; whoever brings one more waits for space.
const CAPACITY: usize = 64;

/// Answers one job, once.
pub(super) type Reply<T> = SyncSender<T>;

/// What the control thread is asked to do.
pub(super) enum Job {
    /// Run a command.
    Command {
        request: Request,
        reply: Reply<Result<Vec<u8>, CommandFailure>>,
        /// Steps of page service so far.
        page_steps: u64,
    },
    /// Read and arm this event queue from now on.
    AdoptEq(Box<EventQueue>),
    /// Stop reading an event queue; its ring comes back.
    ReleaseEq {
        number: u8,
        reply: Reply<Option<DmaMemory>>,
    },
    /// Give the pages that firmware wants at start-up.
    StartupPages {
        key: FunctionKey,
        count: i32,
        reply: Reply<Outcome>,
    },
    /// Take all pages back, as long as firmware returns some within this time; the answer is what
    /// it keeps.
    ReclaimPages {
        patience: Duration,
        reply: Reply<Vec<(FunctionKey, usize)>>,
    },
    /// The device cannot reach memory any more: free all its pages. The answer is their number.
    ForgetPages { reply: Reply<usize> },
    /// Say what the page server did.
    PageCounts { reply: Reply<PageCounts> },
    /// Say everything about firmware's pages.
    PageReport { reply: Reply<Box<PageReport>> },
    /// Watch sensors and health counter from now on, or not.
    WatchHealth(bool),
    /// The port is being closed: one command that is not answered in its time is enough.
    Closing,
    /// Check signatures of answers.
    VerifySignatures(bool),
    /// Ask for the link state.
    AskLink,
    /// Recover these queues when they fail, replacing what was watched.
    WatchQueues(Vec<Watched>, Reply<()>),
    /// End.
    Stop,
}

struct Inbox {
    jobs: VecDeque<Job>,
    open: bool,
}

pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    space: Condvar,
    kick: Interrupt,
}

impl Mailbox {
    pub(super) fn new() -> Result<Self, Error> {
        let kick = Interrupt::new().map_err(|e: BusError| Error::from(e))?;
        let inbox = Mutex::new(Inbox {
            jobs: VecDeque::new(),
            open: true,
        });
        Ok(Self {
            inbox,
            space: Condvar::new(),
            kick,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a job; gives it back when the thread has ended.
    pub(super) fn put(&self, job: Job) -> Result<(), Job> {
        let full = |inbox: &mut Inbox| inbox.open && inbox.jobs.len() >= CAPACITY;
        let guard = self.lock();
        let mut inbox = self
            .space
            .wait_while(guard, full)
            .unwrap_or_else(PoisonError::into_inner);
        if !inbox.open {
            return Err(job);
        }
        inbox.jobs.push_back(job);
        drop(inbox);
        self.kick.raise();
        Ok(())
    }

    /// What wakes the thread.
    pub(super) fn kick(&self) -> &Interrupt {
        &self.kick
    }

    /// All jobs that wait, and whether the box is still open.
    pub(super) fn take(&self) -> VecDeque<Job> {
        self.kick.take();
        let jobs = std::mem::take(&mut self.lock().jobs);
        self.space.notify_all();
        jobs
    }

    /// No job comes in any more; those that wait are dropped, and with them their answers.
    pub(super) fn close(&self) {
        let jobs = {
            let mut inbox = self.lock();
            inbox.open = false;
            std::mem::take(&mut inbox.jobs)
        };
        self.space.notify_all();
        drop(jobs);
    }
}
