//! Lcores: threads pinned to one CPU each, that poll queues.
//!
//! [`Pollux::spawn`](crate::Pollux::spawn) starts one and waits until it is pinned and has its
//! place in the pools' caches. What it runs gets a [`Lcore`], asks [`Lcore::running`] once per
//! turn, and calls [`Lcore::idle`] when a turn found nothing. An lcore that has a CPU to itself
//! spins then; one that shares its CPU with the emulator yields, since nothing can arrive before
//! the emulator has run.

use crate::Error;
use pollux_mempool::lcore as slots;
use pollux_mempool::{NodeId, topology};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the code on an lcore knows of its place. Stays on its thread.
#[derive(Debug)]
pub struct Lcore {
    cpu: usize,
    slot: usize,
    shares: bool,
    running: Arc<AtomicBool>,
}

impl Lcore {
    /// The CPU it is pinned to.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Its number in the pools' caches.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The NUMA node of its CPU.
    pub fn node(&self) -> Option<NodeId> {
        topology::current().node_of_cpu(self.cpu)
    }

    /// Whether the emulator runs on the same CPU, so that polling keeps it from working.
    pub fn shares_cpu(&self) -> bool {
        self.shares
    }

    /// Whether to go on; false once the lcore was told to stop. A loop that must leave nothing
    /// behind asks before it polls: whatever had arrived before the stop is seen by a poll after
    /// the answer.
    #[inline]
    pub fn running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// A turn found nothing: yields a shared CPU (a system call), or tells the processor of an own
    /// one that this is a waiting loop.
    #[inline]
    pub fn idle(&self) {
        if self.shares {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// A running lcore. Dropping the handle leaves the lcore running; [`crate::Pollux::close`] stops
/// it all the same.
#[derive(Debug)]
pub struct LcoreHandle<T> {
    cpu: usize,
    running: Arc<AtomicBool>,
    thread: JoinHandle<Option<T>>,
}

impl<T> LcoreHandle<T> {
    /// The CPU.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Tells the lcore to stop; does not wait.
    pub fn stop(&self) {
        self.running.store(false, Ordering::Release);
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end (tell it to [`stop`](Self::stop) first, if it would not end by itself).
    ///
    /// # Errors
    /// [`Error::LcorePanicked`].
    pub fn join(self) -> Result<T, Error> {
        let panicked = |cause| Error::LcorePanicked {
            cpu: self.cpu,
            cause,
        };
        match self.thread.join() {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(panicked("it did not start".to_owned())),
            Err(cause) => Err(panicked(words(&*cause))),
        }
    }
}

fn words(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| cause.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Where the emulator's busy thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "emu"), allow(dead_code))] // elsewhere, always
pub(crate) enum EmulatorPlace {
    /// There is none in this process.
    Elsewhere,
    /// Pinned to a CPU.
    On(usize),
    /// Wherever the kernel puts it.
    Anywhere,
}

/// The CPUs for `count` lcores when none were named: the last ones, so that the first stay free for
/// everything else.
pub(crate) fn default_cpus(allowed: &[usize], count: usize) -> Vec<usize> {
    let skip = allowed.len().saturating_sub(count);
    allowed.iter().skip(skip).copied().collect()
}

/// A CPU for the emulator that no lcore uses.
#[cfg_attr(not(feature = "emu"), allow(dead_code))] // no emulator to place
pub(crate) fn spare_cpu(allowed: &[usize], lcores: &[usize]) -> Option<usize> {
    allowed.iter().find(|cpu| !lcores.contains(cpu)).copied()
}

/// The lcores of one [`crate::Pollux`].
#[derive(Debug)]
pub(crate) struct Lcores {
    emulator: EmulatorPlace,
    taken: Arc<Mutex<BTreeSet<usize>>>,
    started: Mutex<Vec<Started>>,
}

#[derive(Debug)]
struct Started {
    running: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

/// Gives the CPU back when its lcore ends, however it ends.
struct Seat {
    cpu: usize,
    taken: Arc<Mutex<BTreeSet<usize>>>,
    ended: Arc<AtomicBool>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.cpu);
        self.ended.store(true, Ordering::Release);
    }
}

impl Lcores {
    pub fn new(emulator: EmulatorPlace) -> Self {
        Self {
            emulator,
            taken: Arc::default(),
            started: Mutex::default(),
        }
    }

    /// Whether an lcore on this CPU keeps the emulator from working.
    pub fn shares(&self, cpu: usize) -> bool {
        match self.emulator {
            EmulatorPlace::Elsewhere => false,
            EmulatorPlace::On(other) => other == cpu,
            // With a CPU to spare the kernel puts it there.
            EmulatorPlace::Anywhere => slots::allowed_cpus().len() < 2,
        }
    }

    pub fn spawn<T, F>(&self, cpu: usize, work: F) -> Result<LcoreHandle<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Lcore) -> T + Send + 'static,
    {
        if !self
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(cpu)
        {
            return Err(Error::LcoreTaken { cpu });
        }
        let ended = Arc::new(AtomicBool::new(false));
        let seat = Seat {
            cpu,
            taken: Arc::clone(&self.taken),
            ended: Arc::clone(&ended),
        };
        let running = Arc::new(AtomicBool::new(true));
        let (shares, flag) = (self.shares(cpu), Arc::clone(&running));
        let (ready, pinned) = mpsc::sync_channel(1);
        let body = move || {
            let _seat = seat;
            let guard = match slots::Lcore::register_on(cpu) {
                Ok(guard) => guard,
                Err(refused) => {
                    drop(ready.send(Err(refused)));
                    return None;
                }
            };
            let lcore = Lcore {
                cpu,
                slot: guard.slot(),
                shares,
                running: flag,
            };
            drop(ready.send(Ok(())));
            Some(work(&lcore))
        };
        let thread = std::thread::Builder::new()
            .name(format!("lcore-{cpu}"))
            .spawn(body)
            .map_err(|source| Error::LcoreThread { cpu, source })?;
        let handle = LcoreHandle {
            cpu,
            running: Arc::clone(&running),
            thread,
        };
        match pinned.recv() {
            Ok(Ok(())) => {
                let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                started.retain(|lcore| !lcore.ended.load(Ordering::Acquire));
                started.push(Started { running, ended });
                Ok(handle)
            }
            Ok(Err(refused)) => {
                drop(handle.join());
                Err(refused.into())
            }
            // It ended without a word: the join says why.
            Err(_) => match handle.join() {
                Err(cause) => Err(cause),
                Ok(_) => Err(Error::LcorePanicked {
                    cpu,
                    cause: "it did not start".to_owned(),
                }),
            },
        }
    }

    /// Tells every lcore to stop and waits for them; how many had not ended after `patience`.
    pub fn stop(&self, patience: Duration) -> usize {
        let started =
            std::mem::take(&mut *self.started.lock().unwrap_or_else(PoisonError::into_inner));
        for lcore in &started {
            lcore.running.store(false, Ordering::Release);
        }
        let deadline = Instant::now() + patience;
        let left = || {
            started
                .iter()
                .filter(|l| !l.ended.load(Ordering::Acquire))
                .count()
        };
        while left() != 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lcores() -> Lcores {
        Lcores::new(EmulatorPlace::Elsewhere)
    }

    fn cpu() -> usize {
        slots::allowed_cpus()[0]
    }

    #[test]
    fn an_lcore_is_pinned_and_registered() {
        let lcores = lcores();
        let handle = lcores
            .spawn(cpu(), |lcore| {
                (slots::affinity(), slots::Lcore::current(), lcore.slot())
            })
            .unwrap();
        let (affinity, slot, told) = handle.join().unwrap();
        assert_eq!(affinity, [cpu()]);
        assert_eq!(slot, Some(told));
    }

    #[test]
    fn a_cpu_outside_the_set_names_those_inside() {
        let error = lcores().spawn(100_000, |_| ()).err().unwrap().to_string();
        assert!(error.contains("100000"), "{error}");
        let first = cpu().to_string();
        assert!(
            error.contains("may run on") && error.contains(&first),
            "{error}"
        );
    }

    #[test]
    fn one_lcore_per_cpu_and_the_cpu_comes_back() {
        let lcores = lcores();
        let wait = |lcore: &Lcore| {
            while lcore.running() {
                std::thread::yield_now();
            }
        };
        let handle = lcores.spawn(cpu(), wait).unwrap();
        let refused = lcores.spawn(cpu(), wait).err().unwrap();
        assert!(matches!(refused, Error::LcoreTaken { .. }), "{refused}");
        handle.stop();
        handle.join().unwrap();
        let again = lcores.spawn(cpu(), wait).unwrap();
        assert!(!again.is_finished());
        assert_eq!(lcores.stop(Duration::from_secs(60)), 0);
        again.join().unwrap();
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let lcores = lcores();
        let handle = lcores
            .spawn(cpu(), |_| -> () { panic!("ring of the wrong size") })
            .unwrap();
        let error = handle.join().unwrap_err().to_string();
        assert!(error.contains("ring of the wrong size"), "{error}");
        assert_eq!(lcores.stop(Duration::from_secs(60)), 0);
        lcores.spawn(cpu(), |_| ()).unwrap().join().unwrap();
    }

    #[test]
    fn sharing_a_cpu_with_the_emulator() {
        let on = Lcores::new(EmulatorPlace::On(cpu()));
        assert!(on.shares(cpu()));
        assert!(!on.shares(cpu() + 1));
        assert!(on.spawn(cpu(), Lcore::shares_cpu).unwrap().join().unwrap());
        assert!(!lcores().shares(cpu()));
        let anywhere = Lcores::new(EmulatorPlace::Anywhere);
        assert_eq!(anywhere.shares(cpu()), slots::allowed_cpus().len() == 1);
    }

    #[test]
    fn default_places() {
        assert_eq!(default_cpus(&[0, 1, 4, 5], 1), [5]);
        assert_eq!(default_cpus(&[3], 2), [3]);
        assert_eq!(spare_cpu(&[0, 1], &[0]), Some(1));
        assert_eq!(spare_cpu(&[0, 1], &[1]), Some(0));
        assert_eq!(spare_cpu(&[7], &[7]), None);
    }
}
