//! Slots: which buffer lies behind which descriptor of a queue.
//!
//! A power of two of places, each empty or holding one packet. Any index is good: it is
//! reduced by a mask, so a queue's free-running counters can be used as they are. The
//! calls for many move whole spans and have no way to panic.
#![allow(unsafe_code)] // spans of handles are moved by copy

use std::fmt;
use std::ptr;

use crate::burst::Burst;
use crate::error::MemoryError;
use crate::foreign::Index;
use crate::mbuf::header::{Raw, State};
use crate::mbuf::{Mbuf, free_slow};
use crate::pool::{self, Pool};

/// Largest number of slots.
pub const MAX_SLOTS: usize = 1 << 16;

/// The shadow of a queue; see the module's text.
pub struct Slots {
    // A power of two of them.
    places: Box<[Option<Mbuf>]>,
    mask: usize,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = self.places.iter().flatten().count();
        write!(f, "Slots({full} of {})", self.places.len())
    }
}

impl Slots {
    /// `count` empty slots.
    ///
    /// # Errors
    /// [`MemoryError::NotPowerOfTwo`] unless `count` is one, up to [`MAX_SLOTS`].
    pub fn new(count: usize) -> Result<Self, MemoryError> {
        if !count.is_power_of_two() || count > MAX_SLOTS {
            return Err(MemoryError::NotPowerOfTwo {
                what: "queue slots",
                count,
                max: MAX_SLOTS,
            });
        }
        Ok(Self {
            places: (0..count).map(|_| None).collect(),
            mask: count - 1,
        })
    }

    /// Number of slots.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.mask + 1
    }

    #[inline(always)]
    fn at(&mut self, i: impl Index) -> *mut Option<Mbuf> {
        // SAFETY: the masked index is below the count.
        unsafe { self.places.as_mut_ptr().add(i.index() & self.mask) }
    }

    /// Puts a packet in slot `i`; one that lay there is freed.
    #[inline(always)]
    pub fn put(&mut self, i: impl Index, mbuf: Mbuf) {
        // SAFETY: `at` is inside the array.
        unsafe { *self.at(i) = Some(mbuf) };
    }

    /// Takes what is in slot `i`.
    #[inline(always)]
    pub fn take(&mut self, i: impl Index) -> Option<Mbuf> {
        // SAFETY: `at` is inside the array.
        unsafe { (*self.at(i)).take() }
    }

    /// What is in slot `i`.
    #[inline(always)]
    pub fn get(&self, i: impl Index) -> Option<&Mbuf> {
        // SAFETY: the masked index is below the count.
        unsafe { (*self.places.as_ptr().add(i.index() & self.mask)).as_ref() }
    }

    /// What is in slot `i`, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, i: impl Index) -> Option<&mut Mbuf> {
        // SAFETY: `at` is inside the array, borrowed exclusively.
        unsafe { (*self.at(i)).as_mut() }
    }

    /// Runs `f` on the (at most two) spans of the slots `i..i + n`.
    #[inline(always)]
    fn spans(&mut self, i: impl Index, n: usize, mut f: impl FnMut(*mut Option<Mbuf>, usize)) {
        let n = n.min(self.mask + 1);
        let start = i.index() & self.mask;
        let first = n.min(self.mask + 1 - start);
        let base = self.places.as_mut_ptr();
        // SAFETY: start is inside the array.
        f(unsafe { base.add(start) }, first);
        if n > first {
            f(base, n - first);
        }
    }

    /// Moves the `n` oldest packets of a burst (all, when it has fewer; never more than
    /// there are slots) to the slots from `i` on; returns how many. Packets that lay
    /// there are freed.
    #[inline]
    pub fn put_many_from(&mut self, burst: &mut Burst, i: impl Index, n: usize) -> usize {
        let n = n.min(burst.len()).min(self.mask + 1);
        self.free_many(i, n);
        // SAFETY: n <= len; the packets are written to slots, which own them then.
        let mut from = unsafe { burst.take_front(n) };
        self.spans(i, n, |to, n| {
            // SAFETY: a span of empty slots, and n packets at `from`; a filled slot has
            // the bits of its handle.
            unsafe {
                to.cast::<Raw>().copy_from_nonoverlapping(from, n);
                from = from.add(n);
            }
        });
        n
    }

    /// Fills the slots `i..i + n` with buffers of a pool, as they come (headers as the
    /// last user left them); false, and nothing changed, when the pool has fewer than
    /// `n`, or `n` exceeds the slots. Packets that lay there are freed first.
    #[inline]
    pub fn fill_from(&mut self, pool: &Pool, i: impl Index, n: usize) -> bool {
        if n > self.mask + 1 {
            return false;
        }
        self.free_many(i, n);
        let start = i.index() & self.mask;
        let first = n.min(self.mask + 1 - start);
        let inner = pool.inner();
        // SAFETY: both spans are empty and inside the array; `get` fills all of a span or
        // leaves it alone (the second failing, the first is emptied again).
        unsafe {
            let base = self.places.as_mut_ptr().cast::<Raw>();
            if !inner.get(base.add(start), first) {
                self.clear_span(start, first);
                return false;
            }
            if n > first && !inner.get(base, n - first) {
                self.clear_span(0, n - first);
                inner.put(base.add(start), first);
                self.clear_span(start, first);
                return false;
            }
        }
        true
    }

    /// Marks a span as empty without freeing.
    #[inline(always)]
    fn clear_span(&mut self, start: usize, n: usize) {
        // SAFETY: callers name spans inside the array; an empty slot is all zeros.
        unsafe { ptr::write_bytes(self.places.as_mut_ptr().add(start), 0, n) };
    }

    /// Moves the packets of the slots `i..i + n` behind those of a burst, in order, up to
    /// the first empty slot or until the burst is full; returns how many.
    #[inline]
    pub fn take_many_into(&mut self, burst: &mut Burst, i: impl Index, n: usize) -> usize {
        let n = n.min(burst.room());
        let mut moved = 0;
        let mut whole = true;
        let spare = burst.spare();
        self.spans(i, n, |from, n| {
            // SAFETY: a span of slots; at most room() packets are written to `spare`.
            unsafe {
                let mut k = 0;
                while whole && k < n {
                    match (*from.add(k)).take() {
                        Some(mbuf) => spare.add(moved).write(mbuf.into_raw()),
                        None => {
                            whole = false;
                            break;
                        }
                    }
                    moved += 1;
                    k += 1;
                }
            }
        });
        // SAFETY: `moved` packets were written.
        unsafe { burst.grow(moved) };
        moved
    }

    /// Frees what is in the slots `i..i + n`.
    #[inline]
    pub fn free_many(&mut self, i: impl Index, n: usize) {
        // SAFETY: spans of slots inside the array.
        self.spans(i, n, |from, n| unsafe { free_span(from, n) });
    }
}

/// Frees and empties `n` slots: runs of plain buffers of one pool at once.
///
/// # Safety
/// `from` points to `n` slots, used by nobody else.
#[inline]
unsafe fn free_span(mut from: *mut Option<Mbuf>, mut n: usize) {
    while n > 0 {
        // SAFETY: n slots are there; a filled slot has the bits of its handle.
        unsafe {
            let run = match &*from {
                None => 1,
                Some(_) => {
                    let first = *from.cast::<Raw>();
                    let state = first.state();
                    let mut run = 1;
                    if State::is_plain(state) {
                        while run < n
                            && (*from.add(run)).is_some()
                            && (*from.add(run).cast::<Raw>()).state() == state
                        {
                            run += 1;
                        }
                        pool::of(State::pool(state)).put(from.cast::<Raw>(), run);
                    } else {
                        free_slow(first);
                    }
                    ptr::write_bytes(from, 0, run);
                    run
                }
            };
            from = from.add(run);
            n -= run;
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.free_many(0usize, self.mask + 1);
    }
}
