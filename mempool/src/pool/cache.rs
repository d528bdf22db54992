//! One lcore's cache: a stack of buffers behind a line of counters.
#![allow(unsafe_code)] // lies in mapped memory, reached by pointer

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::mbuf::header::Raw;

/// The first line; the handles follow.
#[repr(C, align(64))]
pub(super) struct Head {
    /// Buffers in the stack.
    len: AtomicUsize,
    /// Times that it overflowed, was short, and could not be filled.
    pub full: AtomicU64,
    pub empty: AtomicU64,
    pub failed: AtomicU64,
}

/// Where a cache lies. Its stack is its slot's thread's; anybody may read the head.
#[derive(Clone, Copy)]
pub(super) struct Cache(NonNull<Head>);

impl Cache {
    /// Bytes that a cache of `size` buffers takes. Two lines apart from the next, since
    /// CPUs fetch lines in pairs.
    pub const fn stride(size: usize) -> usize {
        (size_of::<Head>() + size * size_of::<Raw>()).next_multiple_of(128)
    }

    /// The cache at `at`.
    ///
    /// # Safety
    /// `stride` bytes are mapped there, aligned to 64, and zero or a cache: a cache of
    /// zeros is an empty one.
    #[inline(always)]
    pub unsafe fn at(at: NonNull<u8>) -> Self {
        Self(at.cast())
    }

    #[inline(always)]
    pub fn head(&self) -> &Head {
        // SAFETY: mapped while the pool is; all fields are atomics.
        unsafe { self.0.as_ref() }
    }

    /// Where the handles lie.
    #[inline(always)]
    pub fn stack(self) -> *mut Raw {
        // SAFETY: the stack starts behind the head, in the same mapping.
        unsafe { self.0.as_ptr().add(1).cast() }
    }

    /// Buffers in the stack; acquire, for who is not its thread.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head().len.load(Ordering::Acquire)
    }

    /// Sets the number of buffers: the last thing done with a pool by a put, since with
    /// the buffer home the pool may go.
    #[inline(always)]
    pub fn set_len(&self, len: usize) {
        self.head().len.store(len, Ordering::Release);
    }
}

/// Counts for statistics; the counter has one writer, or may lose a count.
#[inline(always)]
pub(super) fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}
