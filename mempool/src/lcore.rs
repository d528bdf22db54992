//! Lcores: threads with a small number of their own, and pinning.
//!
//! A thread that registers gets a *slot* below [`MAX_LCORES`], unique while its guard
//! lives. Pools keep one cache per slot; a thread without a slot works too, straight on
//! the pools' shared rings. Dropping the guard gives the slot back and sends what the
//! thread's caches hold home.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::error::MemoryError;
use crate::pool;
use crate::topology::ranges;

/// Number of slots.
pub const MAX_LCORES: usize = 128;

/// The slot of a thread that has none.
const NONE: usize = usize::MAX;

static TAKEN: [AtomicU64; MAX_LCORES / 64] = [const { AtomicU64::new(0) }; MAX_LCORES / 64];

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(NONE) };
}

/// This thread's slot; `MAX_LCORES` or more for a thread that has none.
#[inline(always)]
pub(crate) fn slot() -> usize {
    SLOT.get()
}

/// Registration of threads.
#[derive(Debug)]
pub struct Lcore;

/// A registered thread's hold on its slot. Stays on its thread.
#[derive(Debug)]
pub struct LcoreGuard {
    slot: usize,
    cpu: Option<usize>,
    stay: PhantomData<*const ()>,
}

impl Lcore {
    /// Gives this thread a slot.
    ///
    /// # Errors
    /// [`MemoryError::NoSlot`] when it has one already or all are taken.
    pub fn register() -> Result<LcoreGuard, MemoryError> {
        if SLOT.get() != NONE {
            return Err(MemoryError::NoSlot {
                reason: format!("this thread is registered already, as slot {}", SLOT.get()),
                max: MAX_LCORES,
            });
        }
        for (w, word) in TAKEN.iter().enumerate() {
            loop {
                let taken = word.load(Ordering::Relaxed);
                let bit = (!taken).trailing_zeros();
                if bit == 64 {
                    break;
                }
                // Acquire pairs with the release of the slot's last owner, whose caches
                // come with it.
                if word.fetch_or(1 << bit, Ordering::Acquire) & (1 << bit) == 0 {
                    let slot = w * 64 + bit as usize;
                    SLOT.set(slot);
                    return Ok(LcoreGuard {
                        slot,
                        cpu: None,
                        stay: PhantomData,
                    });
                }
            }
        }
        Err(MemoryError::NoSlot {
            reason: "all slots are taken by other threads".into(),
            max: MAX_LCORES,
        })
    }

    /// Pins this thread to a CPU and gives it a slot.
    ///
    /// # Errors
    /// As [`pin`] and [`Lcore::register`].
    pub fn register_on(cpu: usize) -> Result<LcoreGuard, MemoryError> {
        pin(cpu)?;
        let mut guard = Self::register()?;
        guard.cpu = Some(cpu);
        Ok(guard)
    }

    /// This thread's slot, if it is registered.
    pub fn current() -> Option<usize> {
        Some(slot()).filter(|s| *s < MAX_LCORES)
    }
}

impl LcoreGuard {
    /// The slot, below [`MAX_LCORES`].
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The CPU that the thread was pinned to when it registered.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }
}

impl Drop for LcoreGuard {
    fn drop(&mut self) {
        pool::flush_slot(self.slot);
        SLOT.set(NONE);
        if let Some(word) = TAKEN.get(self.slot / 64) {
            word.fetch_and(!(1 << (self.slot % 64)), Ordering::Release);
        }
    }
}

/// The CPUs that this process may use, as they were before the first pinning.
pub fn allowed_cpus() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(affinity)
}

/// The CPUs that this thread may use now.
pub fn affinity() -> Vec<usize> {
    sched_getaffinity(Pid::from_raw(0)).map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CpuSet::count())
                .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
                .collect()
        },
    )
}

/// Pins this thread to one CPU, and reads back that it is so.
///
/// # Errors
/// [`MemoryError::CpuNotAllowed`] naming the CPU and the set allowed.
pub fn pin(cpu: usize) -> Result<(), MemoryError> {
    let allowed = allowed_cpus();
    let refuse = |remedy: &str| MemoryError::CpuNotAllowed {
        cpu,
        allowed: ranges(allowed),
        remedy: remedy.into(),
    };
    if !allowed.contains(&cpu) {
        return Err(refuse(
            "choose one of those, or widen the set (taskset, cpuset of the container)",
        ));
    }
    let asked = core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
    if !asked || affinity() != [cpu] {
        return Err(refuse("the kernel did not pin the thread there"));
    }
    Ok(())
}
