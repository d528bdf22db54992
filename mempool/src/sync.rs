//! Atomics and cells as the ring uses them: the real ones, or loom's under `--cfg loom`.
#![allow(unsafe_code)] // cells whose exclusive use the ring's positions prove

use std::mem::MaybeUninit;

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::cell::UnsafeCell;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

/// Turns of a spin loop before the CPU is offered to others. Whoever is waited for may
/// need this very CPU.
#[cfg(not(loom))]
const SPINS: u32 = 256;

/// Waits until `word` is `value`, with acquire ordering.
#[inline]
pub(crate) fn wait_for(word: &AtomicUsize, value: usize) {
    #[cfg(not(loom))]
    {
        let mut turns = 0;
        while word.load(Ordering::Acquire) != value {
            if turns < SPINS {
                turns += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
    #[cfg(loom)]
    while word.load(Ordering::Acquire) != value {
        loom::thread::yield_now();
    }
}

/// Storage of a ring: a power of two of cells, spans of which are copied in and out.
pub(crate) struct Storage<T> {
    cells: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: cells are reached through `write` and `read` only, whose callers own the span
// that they name; values move between threads, hence T: Send.
unsafe impl<T: Send> Send for Storage<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Storage<T> {}

impl<T: Copy> Storage<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            cells: (0..count)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
        }
    }

    /// Copies `n` values into the cells from position `at` on, wrapping.
    ///
    /// # Safety
    /// `n` is at most the count, `from` holds `n` values, and nobody else uses these
    /// cells meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, at: usize, from: *const T, n: usize) {
        let mask = self.cells.len().wrapping_sub(1);
        #[cfg(not(loom))]
        {
            let start = at & mask;
            let first = mask + 1 - start;
            let base = self.cells.as_ptr().cast_mut().cast::<T>();
            // SAFETY: start + first = count >= n; UnsafeCell and MaybeUninit have T's
            // layout; exclusive use is the caller's promise.
            unsafe {
                if n <= first {
                    base.add(start).copy_from_nonoverlapping(from, n);
                } else {
                    base.add(start).copy_from_nonoverlapping(from, first);
                    base.copy_from_nonoverlapping(from.add(first), n - first);
                }
            }
        }
        #[cfg(loom)]
        for k in 0..n {
            if let Some(cell) = self.cells.get(at.wrapping_add(k) & mask) {
                // SAFETY: the caller's promise, which loom checks.
                cell.with_mut(|p| unsafe {
                    (*p).write(*from.add(k));
                });
            }
        }
    }

    /// Copies `n` values out of the cells from position `at` on, wrapping.
    ///
    /// # Safety
    /// `n` is at most the count, `to` has room for `n` values, these cells were written,
    /// and nobody writes them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, at: usize, to: *mut T, n: usize) {
        let mask = self.cells.len().wrapping_sub(1);
        #[cfg(not(loom))]
        {
            let start = at & mask;
            let first = mask + 1 - start;
            let base = self.cells.as_ptr().cast::<T>();
            // SAFETY: as in `write`.
            unsafe {
                if n <= first {
                    to.copy_from_nonoverlapping(base.add(start), n);
                } else {
                    to.copy_from_nonoverlapping(base.add(start), first);
                    to.add(first).copy_from_nonoverlapping(base, n - first);
                }
            }
        }
        #[cfg(loom)]
        for k in 0..n {
            if let Some(cell) = self.cells.get(at.wrapping_add(k) & mask) {
                // SAFETY: the caller's promise, which loom checks.
                cell.with(|p| unsafe { to.add(k).write((*p).assume_init()) });
            }
        }
    }
}
