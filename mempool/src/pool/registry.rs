//! Which pools there are: from a buffer's pool number to the pool, and who closes it.
//!
//! The table is read by every free; it is changed under one lock, by the control path.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{ptr, ptr::NonNull};

use super::{Leak, MAX_POOLS, MAX_REGIONS, Pool, PoolInner};
use crate::error::MemoryError;

static POOLS: [AtomicPtr<PoolInner>; MAX_POOLS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_POOLS];

static CONTROL: Mutex<Control> = Mutex::new(Control {
    orphans: Vec::new(),
    regions: [0; MAX_REGIONS / 64],
});

struct Control {
    /// Closed pools with buffers outside.
    orphans: Vec<u16>,
    /// Region numbers taken.
    regions: [u64; MAX_REGIONS / 64],
}

fn control() -> MutexGuard<'static, Control> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of that number.
///
/// # Safety
/// A buffer of that pool is outside, and stays so while the result is used (or is put
/// by it as the last thing done).
#[inline(always)]
pub(crate) unsafe fn of<'a>(id: u16) -> &'a PoolInner {
    let id = usize::from(id) % MAX_POOLS;
    let pool = POOLS
        .get(id)
        .map_or(ptr::null_mut(), |p| p.load(Ordering::Acquire));
    // SAFETY: a pool is removed only when all its buffers are home.
    unsafe { &*pool }
}

/// Region numbers for the chunks of a pool; given back when it goes.
pub(super) struct Regions(Vec<u16>);

impl Regions {
    pub(super) fn take(count: usize) -> Result<Self, MemoryError> {
        let mut control = control();
        sweep(&mut control);
        let mut taken = Self(Vec::with_capacity(count));
        for (w, word) in control.regions.iter_mut().enumerate() {
            while taken.0.len() < count && *word != u64::MAX {
                let bit = (!*word).trailing_zeros();
                *word |= 1 << bit;
                taken.0.extend(u16::try_from(w as u32 * 64 + bit));
            }
        }
        let got = taken.0.len();
        drop(control);
        if got == count {
            return Ok(taken);
        }
        Err(MemoryError::OutOfRange {
            what: "chunks of all pools together",
            given: (MAX_REGIONS - got + count) as u64,
            min: 1,
            max: MAX_REGIONS as u64,
            remedy: "use fewer or larger chunks".into(),
        })
    }

    pub(super) fn numbers(&self) -> &[u16] {
        &self.0
    }

    /// Leaves them to the pool, which gives them back in `destroy`.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        release_regions(&mut control(), &self.0);
    }
}

fn release_regions(control: &mut Control, regions: &[u16]) {
    for region in regions {
        if let Some(word) = control.regions.get_mut(usize::from(*region) / 64) {
            *word &= !(1 << (region % 64));
        }
    }
}

/// A pool number, held while the pool is built.
pub(super) struct Number(u16);

static NUMBERS: Mutex<[bool; MAX_POOLS]> = Mutex::new([false; MAX_POOLS]);

impl Number {
    pub(super) fn take() -> Result<Self, MemoryError> {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = numbers.iter().position(|taken| !taken);
        match free.and_then(|n| Some((n, u16::try_from(n).ok()?))) {
            Some((at, number)) => {
                if let Some(taken) = numbers.get_mut(at) {
                    *taken = true;
                }
                Ok(Self(number))
            }
            None => Err(MemoryError::OutOfRange {
                what: "pools",
                given: MAX_POOLS as u64 + 1,
                min: 1,
                max: MAX_POOLS as u64,
                remedy: "drop pools that are not used, and their buffers".into(),
            }),
        }
    }

    pub(super) fn get(&self) -> u16 {
        self.0
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = numbers.get_mut(usize::from(self.0)) {
            *taken = false;
        }
    }
}

/// Closes its pool when the last handle is dropped.
pub(super) struct Owner(u16);

/// Makes a built pool known and gives the first handle to it.
pub(super) fn publish(inner: PoolInner, number: Number) -> Pool {
    let id = number.get();
    // The number stays taken until `destroy`.
    std::mem::forget(number);
    let inner = Box::into_raw(Box::new(inner));
    if let Some(place) = POOLS.get(usize::from(id)) {
        place.store(inner, Ordering::Release);
    }
    Pool {
        // SAFETY: from a Box.
        inner: unsafe { NonNull::new_unchecked(inner) },
        _owner: std::sync::Arc::new(Owner(id)),
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut control = control();
        sweep(&mut control);
        // SAFETY: this pool has not been destroyed: that is decided below.
        let leak: Option<Leak> = unsafe { of(self.0) }.leak();
        match leak {
            None => destroy(&mut control, self.0),
            Some(leak) => {
                control.orphans.push(self.0);
                drop(control);
                if cfg!(debug_assertions) {
                    eprintln!("closed with buffers outside: {leak}");
                }
            }
        }
    }
}

/// Frees the closed pools whose buffers have come home.
fn sweep(control: &mut Control) {
    let orphans = std::mem::take(&mut control.orphans);
    for id in orphans {
        // SAFETY: an orphan is not destroyed yet.
        if unsafe { of(id) }.leak().is_none() {
            destroy(control, id);
        } else {
            control.orphans.push(id);
        }
    }
}

/// Frees a pool that has no handle and all of whose buffers are home.
fn destroy(control: &mut Control, id: u16) {
    let Some(place) = POOLS.get(usize::from(id)) else {
        return;
    };
    let inner = place.swap(ptr::null_mut(), Ordering::AcqRel);
    if inner.is_null() {
        return;
    }
    // SAFETY: made by `publish`; no handle and no buffer is left through which anybody
    // could reach it, and `flush_slot` needs the lock that we hold.
    let inner = unsafe { Box::from_raw(inner) };
    let regions: Vec<u16> = inner.chunks.iter().map(|c| c.region).collect();
    drop(inner);
    release_regions(control, &regions);
    drop(Number(id));
}

/// Sends what a slot's caches hold home, in every pool.
pub(crate) fn flush_slot(slot: usize) {
    let mut control = control();
    for place in &POOLS {
        let pool = place.load(Ordering::Acquire);
        if !pool.is_null() {
            // SAFETY: pools are destroyed under the lock only; the caller is the slot's
            // thread.
            unsafe { (*pool).flush(slot) };
        }
    }
    sweep(&mut control);
}

/// A closed pool that waits for its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its number.
    pub id: u16,
    /// What is outside.
    pub leak: Leak,
}

/// Frees the closed pools whose buffers have come home, and tells of the others.
pub fn orphans() -> Vec<Orphan> {
    let mut control = control();
    sweep(&mut control);
    control
        .orphans
        .iter()
        .filter_map(|id| {
            // SAFETY: orphans are destroyed under the lock only.
            let leak = unsafe { of(*id) }.leak()?;
            Some(Orphan { id: *id, leak })
        })
        .collect()
}
