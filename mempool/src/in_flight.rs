//! The buffers that a queue has given to its device, oldest first.
//!
//! A device takes descriptors in order, so what lies behind them is a queue: buffers join
//! at one end and leave at the other, many at a time, by plain copies of handles. What is
//! freed is not looked at again if it was seen to be plain when it joined: by then its
//! header has left the nearest cache.
#![allow(unsafe_code)] // spans of handles are moved by copy

use std::fmt;
use std::mem::MaybeUninit;

use crate::burst::Burst;
use crate::error::MemoryError;
use crate::mbuf::header::{Raw, State};
use crate::mbuf::{Mbuf, free_run};
use crate::pool::{self, Pool};

/// Most buffers in flight.
pub const MAX_IN_FLIGHT: usize = 1 << 16;

/// The buffers behind a queue's descriptors; see the module's text.
pub struct InFlight {
    /// A power of two of places; those of the positions from `tail` to `head` are filled.
    places: Box<[MaybeUninit<Raw>]>,
    mask: usize,
    /// Positions count for ever.
    head: usize,
    tail: usize,
    /// State of all packets from position `plain_from` on: a plain buffer's.
    plain: u64,
    /// Packets before this position may be anything. At most `head`.
    plain_from: usize,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({} of {})", self.len(), self.count())
    }
}

impl InFlight {
    /// Room for `count` packets.
    ///
    /// # Errors
    /// [`MemoryError::NotPowerOfTwo`] unless `count` is one, up to [`MAX_IN_FLIGHT`].
    pub fn new(count: usize) -> Result<Self, MemoryError> {
        if !count.is_power_of_two() || count > MAX_IN_FLIGHT {
            return Err(MemoryError::NotPowerOfTwo {
                what: "buffers in flight",
                count,
                max: MAX_IN_FLIGHT,
            });
        }
        Ok(Self {
            places: (0..count).map(|_| MaybeUninit::uninit()).collect(),
            mask: count - 1,
            head: 0,
            tail: 0,
            plain: 0,
            plain_from: 0,
        })
    }

    /// Most packets that it holds.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.mask + 1
    }

    /// Packets in flight.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.wrapping_sub(self.tail)
    }

    /// True when there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// How many more may join.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.count() - self.len()
    }

    /// The places of the `n` positions from `position` on, as two spans.
    #[inline(always)]
    fn spans(&mut self, position: usize, n: usize) -> [(*mut Raw, usize); 2] {
        let start = position & self.mask;
        let first = n.min(self.mask + 1 - start);
        let base = self.places.as_mut_ptr().cast::<Raw>();
        // SAFETY: start is inside the array.
        [(unsafe { base.add(start) }, first), (base, n - first)]
    }

    /// Lets the `n` oldest packets of a burst join (fewer, when it has fewer or there is
    /// less room); returns how many.
    #[inline]
    pub fn put_from(&mut self, burst: &mut Burst, n: usize) -> usize {
        let n = n.min(burst.len()).min(self.room());
        let (plain, mut odd) = (self.plain, 0);
        for mbuf in burst.as_slice().get(..n).unwrap_or_default() {
            odd |= mbuf.state() ^ plain;
        }
        let [(a, na), (b, nb)] = self.spans(self.head, n);
        // SAFETY: n <= burst.len(); the packets are written to free places, which own
        // them from then on.
        unsafe {
            let from = burst.take_front(n);
            a.copy_from_nonoverlapping(from, na);
            if nb != 0 {
                b.copy_from_nonoverlapping(from.add(na), nb);
            }
        }
        self.head = self.head.wrapping_add(n);
        if odd != 0 {
            self.mixed();
        }
        n
    }

    /// Not all packets that joined last are like those before.
    #[cold]
    #[inline(never)]
    fn mixed(&mut self) {
        self.plain_from = self.head;
        if self.is_empty() {
            return;
        }
        let [(last, _), _] = self.spans(self.head.wrapping_sub(1), 1);
        // SAFETY: the newest position is filled.
        let state = unsafe { *last }.state();
        if State::is_plain(state) {
            self.plain = state;
        }
    }

    /// Lets `n` buffers of a pool join as they come, headers as their last user left
    /// them; false, and nothing changed, when the pool has fewer or there is less room.
    #[inline]
    pub fn fill_from(&mut self, pool: &Pool, n: usize) -> bool {
        if n > self.room() {
            return false;
        }
        let [(a, na), (b, nb)] = self.spans(self.head, n);
        let inner = pool.inner();
        // SAFETY: both spans are free places; `get` fills all of a span or leaves
        // nothing there, and what the first one got goes back when the second fails.
        unsafe {
            if !inner.get(a, na) {
                return false;
            }
            if nb != 0 && !inner.get(b, nb) {
                inner.put(a, na);
                return false;
            }
        }
        self.head = self.head.wrapping_add(n);
        self.plain_from = self.head;
        true
    }

    /// The `n` packets that joined last (all, when there are fewer), oldest first, in two
    /// spans.
    #[inline(always)]
    pub fn newest(&mut self, n: usize) -> [&mut [Mbuf]; 2] {
        let n = n.min(self.len());
        self.lend(self.head.wrapping_sub(n), n)
    }

    /// The `n` oldest packets (all, when there are fewer), in two spans.
    #[inline(always)]
    pub fn oldest(&mut self, n: usize) -> [&mut [Mbuf]; 2] {
        let n = n.min(self.len());
        self.lend(self.tail, n)
    }

    /// The packets of `n` filled positions.
    #[inline(always)]
    fn lend(&mut self, position: usize, n: usize) -> [&mut [Mbuf]; 2] {
        // Whoever has them may share them or add to them.
        self.plain_from = self.head;
        // SAFETY: callers name filled positions; a place that is filled owns its packet,
        // and an Mbuf is no more than its Raw. The spans do not overlap.
        self.spans(position, n)
            .map(|(from, n)| unsafe { std::slice::from_raw_parts_mut(from.cast::<Mbuf>(), n) })
    }

    /// Moves the `n` oldest packets behind those of a burst (fewer, when there are fewer or
    /// the burst has less room); returns how many.
    #[inline]
    pub fn take_into(&mut self, burst: &mut Burst, n: usize) -> usize {
        let n = n.min(self.len()).min(burst.room());
        let [(a, na), (b, nb)] = self.spans(self.tail, n);
        // SAFETY: `n` positions from the tail on are filled, and the burst has room for
        // as many; the places are free afterwards.
        unsafe {
            let spare = burst.spare();
            spare.copy_from_nonoverlapping(a, na);
            if nb != 0 {
                spare.add(na).copy_from_nonoverlapping(b, nb);
            }
            burst.grow(n);
        }
        self.tail = self.tail.wrapping_add(n);
        n
    }

    /// Frees the `n` oldest packets (all, when there are fewer).
    #[inline]
    pub fn free_oldest(&mut self, n: usize) {
        let n = n.min(self.len());
        let [(a, na), (b, nb)] = self.spans(self.tail, n);
        let known = self.head.wrapping_sub(self.tail) <= self.head.wrapping_sub(self.plain_from);
        self.tail = self.tail.wrapping_add(n);
        // SAFETY: these positions were filled and are free from here on. From
        // `plain_from` on all are plain buffers of one pool: they were when they joined,
        // with one reference, and nobody had a handle since.
        unsafe {
            if known && n != 0 {
                let home = pool::of(State::pool(self.plain));
                home.put(a, na);
                if nb != 0 {
                    home.put(b, nb);
                }
            } else {
                free_run(a, na);
                free_run(b, nb);
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.free_oldest(usize::MAX);
    }
}
