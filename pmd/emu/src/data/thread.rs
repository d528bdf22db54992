//! The data thread: its mailbox, its loop, its sleep.
//!
//! Mapped doorbells wake nobody, so the thread looks. With work it never stops; without, it does
//! what [`IdlePolicy`] says. Before a longer sleep it lets go of all driver memory, so that no
//! unmap waits for a sleeper. A request always wakes it.

use super::engine::Engine;
use super::{DataError, DataPlaneConfig, DataPort, IdlePolicy};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

pub(super) type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// How long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks without work before the CPU is given away.
const SPINS: u32 = 20_000;
/// Times that the CPU is given away before the thread sleeps.
const YIELDS: u32 = 200;
/// First and longest sleep.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// How requests reach the data thread.
pub(super) struct Mailbox {
    jobs: Mutex<Vec<Job>>,
    pending: AtomicBool,
    stop: AtomicBool,
    closed: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Mailbox {
    fn new() -> Self {
        Self {
            jobs: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Leaves a request and does not wait.
    pub fn post(&self, job: Job) {
        let mut jobs = self.lock();
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        jobs.push(job);
        self.pending.store(true, Ordering::Release);
        drop(jobs);
        self.wake();
    }

    /// Leaves a request and waits for its answer.
    pub fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, DataError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.post(Box::new(move |engine| {
            // Whoever asked may have lost patience.
            drop(answer.send(job(engine)));
        }));
        answered
            .recv_timeout(PATIENCE)
            .map_err(|_| DataError::Stopped)
    }

    #[inline(always)]
    fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<Job> {
        let mut jobs = self.lock();
        self.pending.store(false, Ordering::Relaxed);
        std::mem::take(&mut *jobs)
    }

    fn close(&self) {
        let mut jobs = self.lock();
        self.closed.store(true, Ordering::Release);
        jobs.clear();
    }
}

/// The data plane of an emulator: the thread and the way to it.
pub struct DataPlane {
    mailbox: Arc<Mailbox>,
    functions: usize,
    thread: Option<JoinHandle<()>>,
}

impl DataPlane {
    /// Opens the wires and starts the thread.
    ///
    /// # Errors
    /// [`DataError::Wire`] for a wire that cannot be set up, [`DataError::Os`] when the thread or
    /// its CPU cannot be had.
    pub fn start(config: DataPlaneConfig) -> Result<Self, DataError> {
        let functions = config.functions.len();
        let engine = Engine::new(config.strict, config.functions)?;
        // Counted before the thread is pinned: a pinned thread has its CPU to itself.
        let shared = cpus() == 1;
        let mailbox = Arc::new(Mailbox::new());
        let (ready, readied) = mpsc::sync_channel(1);
        let (cpu, idle, inbox) = (config.cpu, config.idle, Arc::clone(&mailbox));
        let thread = std::thread::Builder::new()
            .name("emu-data".to_owned())
            .spawn(move || {
                let pinned = cpu.map_or(Ok(()), pin);
                let good = pinned.is_ok();
                if ready.send(pinned).is_ok() && good {
                    run(engine, &inbox, Rest::new(idle, shared));
                }
                inbox.close();
            })
            .map_err(|source| DataError::Os {
                what: "starting the emulator's data thread".to_owned(),
                source,
            })?;
        if mailbox.thread.set(thread.thread().clone()).is_err() {
            return Err(DataError::Stopped);
        }
        let plane = Self {
            mailbox,
            functions,
            thread: Some(thread),
        };
        readied.recv().map_err(|_| DataError::Stopped)??;
        Ok(plane)
    }

    /// Handle for one function.
    ///
    /// # Errors
    /// [`DataError::Function`].
    pub fn port(&self, function: usize) -> Result<DataPort, DataError> {
        if function >= self.functions {
            return Err(DataError::Function {
                function,
                there: self.functions,
            });
        }
        Ok(DataPort::new(Arc::clone(&self.mailbox), function))
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.mailbox.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                tracing::error!("the emulator's data thread panicked");
            }
        }
    }
}

/// Pins the calling thread and reads the mask back.
fn pin(cpu: usize) -> Result<(), DataError> {
    let refuse = |source: std::io::Error| DataError::Os {
        what: format!("pinning the emulator's data thread to CPU {cpu}"),
        source,
    };
    let mut set = CpuSet::new();
    set.set(cpu).map_err(|errno| refuse(errno.into()))?;
    let this = Pid::from_raw(0);
    sched_setaffinity(this, &set).map_err(|errno| refuse(errno.into()))?;
    let now = sched_getaffinity(this).map_err(|errno| refuse(errno.into()))?;
    if now == set {
        Ok(())
    } else {
        Err(refuse(std::io::Error::other("the kernel chose other CPUs")))
    }
}

/// CPUs that the calling thread may use; 1 when nobody says.
fn cpus() -> usize {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .count()
        .max(1)
}

fn run(mut engine: Engine, mailbox: &Mailbox, mut rest: Rest) {
    while !mailbox.stop.load(Ordering::Relaxed) {
        let mut busy = false;
        if mailbox.is_pending() {
            let jobs = mailbox.take();
            // What was mapped before a request is there when it is answered.
            engine.freshen();
            for job in jobs {
                job(&mut engine);
            }
            busy = true;
        }
        busy |= engine.turn();
        if busy {
            rest.again();
        } else {
            rest.pause(&mut engine);
        }
    }
    engine.flush_wires();
}

/// What the thread does between turns without work.
struct Rest {
    policy: IdlePolicy,
    /// Somebody else needs this CPU.
    shared: bool,
    idle: u32,
    sleep: Duration,
}

impl Rest {
    fn new(policy: IdlePolicy, shared: bool) -> Self {
        Self {
            policy,
            shared,
            idle: 0,
            sleep: SHORTEST,
        }
    }

    #[inline(always)]
    fn again(&mut self) {
        self.idle = 0;
        self.sleep = SHORTEST;
    }

    fn pause(&mut self, engine: &mut Engine) {
        self.idle = self.idle.saturating_add(1);
        match self.policy {
            IdlePolicy::Spin => std::hint::spin_loop(),
            IdlePolicy::Yield => std::thread::yield_now(),
            IdlePolicy::Adaptive => {
                let spins = if self.shared { 0 } else { SPINS };
                if self.idle < spins {
                    std::hint::spin_loop();
                } else if self.idle < spins + YIELDS {
                    std::thread::yield_now();
                } else {
                    engine.park();
                    std::thread::park_timeout(self.sleep);
                    engine.unpark();
                    self.sleep = (self.sleep * 2).min(LONGEST);
                }
            }
        }
    }
}
