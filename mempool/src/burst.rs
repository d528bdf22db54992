//! Bursts: packet buffers by the batch, as queues and pools pass them.
//!
//! A [`Burst`] has its capacity from the start and never allocates again. It is first
//! in, first out. What is left in it is freed when it is dropped or cleared.
#![allow(unsafe_code)] // an array of which a middle part is filled

use std::fmt;
use std::mem::MaybeUninit;

use crate::error::MemoryError;
use crate::mbuf::header::Raw;
use crate::mbuf::{Mbuf, free_run};

/// Most packets in a burst.
pub const MAX_BURST: usize = 512;

/// A batch of packets.
pub struct Burst {
    // Filled from `start` on, `len` of them; start + len <= slots.len().
    slots: Box<[MaybeUninit<Mbuf>]>,
    start: usize,
    len: usize,
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Burst({} of {})", self.len, self.slots.len())
    }
}

impl Burst {
    /// An empty burst for up to `capacity` packets (at least 1, at most [`MAX_BURST`];
    /// other numbers are brought into that range).
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MAX_BURST);
        Self {
            slots: (0..capacity).map(|_| MaybeUninit::uninit()).collect(),
            start: 0,
            len: 0,
        }
    }

    /// As [`Burst::with_capacity`], refusing other numbers: for what a user gives.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn try_with_capacity(capacity: usize) -> Result<Self, MemoryError> {
        if (1..=MAX_BURST).contains(&capacity) {
            return Ok(Self::with_capacity(capacity));
        }
        Err(MemoryError::OutOfRange {
            what: "burst size",
            given: capacity as u64,
            min: 1,
            max: MAX_BURST as u64,
            remedy: String::new(),
        })
    }

    /// Packets in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that it holds.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many more it can take.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    #[inline(always)]
    fn first(&self) -> *const Mbuf {
        // SAFETY: start <= slots.len().
        unsafe { self.slots.as_ptr().add(self.start).cast() }
    }

    #[inline(always)]
    fn first_mut(&mut self) -> *mut Mbuf {
        // SAFETY: start <= slots.len().
        unsafe { self.slots.as_mut_ptr().add(self.start).cast() }
    }

    /// The packets, oldest first.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Mbuf] {
        // SAFETY: `len` slots from `start` on are filled.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }

    /// The packets, oldest first.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [Mbuf] {
        // SAFETY: as for `as_slice`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first_mut(), self.len) }
    }

    /// The packets, oldest first.
    #[inline(always)]
    pub fn iter(&self) -> std::slice::Iter<'_, Mbuf> {
        self.as_slice().iter()
    }

    /// The packets, oldest first.
    #[inline(always)]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Mbuf> {
        self.as_mut_slice().iter_mut()
    }

    /// Moves the packets to the array's start, so that all free room is behind them.
    #[inline]
    fn compact(&mut self) {
        if self.start != 0 {
            let base = self.slots.as_mut_ptr();
            // SAFETY: both ranges lie in the array; they may overlap.
            unsafe { base.add(self.start).copy_to(base, self.len) };
            self.start = 0;
        }
    }

    /// Puts a packet behind the others.
    ///
    /// # Errors
    /// Gives it back when the burst is full.
    #[inline(always)]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.start + self.len == self.slots.len() {
            if self.len == self.slots.len() {
                return Err(mbuf);
            }
            self.compact();
        }
        // SAFETY: start + len < slots.len(), and that slot is not filled.
        unsafe { self.first_mut().add(self.len).write(mbuf) };
        self.len += 1;
        Ok(())
    }

    /// Takes the oldest packet.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<Mbuf> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the first slot is filled; it leaves the filled part.
        let mbuf = unsafe { self.first().read() };
        self.len -= 1;
        self.start = if self.len == 0 { 0 } else { self.start + 1 };
        Some(mbuf)
    }

    /// Takes the packets out, oldest first; those not taken are freed.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        Drain { burst: self }
    }

    /// Frees all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Frees the newest packets, until `len` are left.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            let n = self.len - len;
            self.len = len;
            // SAFETY: these n slots were filled, and have left the filled part.
            unsafe { free_run(self.first().add(len).cast::<Raw>(), n) };
        }
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// Frees the oldest `n` packets, or all when there are fewer.
    #[inline]
    pub fn free_front(&mut self, n: usize) {
        let n = n.min(self.len);
        let from = self.first();
        self.start += n;
        self.len -= n;
        // SAFETY: these n slots were filled, and have left the filled part.
        unsafe { free_run(from.cast::<Raw>(), n) };
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// Moves up to `n` of the oldest packets behind those of another burst; returns how
    /// many.
    #[inline]
    pub fn move_to(&mut self, to: &mut Burst, n: usize) -> usize {
        let n = n.min(self.len).min(to.room());
        // SAFETY: the first n slots are filled; `spare` has room for n.
        unsafe {
            let from = self.take_front(n);
            to.spare().copy_from_nonoverlapping(from, n);
            to.grow(n);
        }
        n
    }

    /// Where the next `room()` packets go.
    #[inline(always)]
    pub(crate) fn spare(&mut self) -> *mut Raw {
        self.compact();
        // SAFETY: start + len <= slots.len().
        unsafe { self.first_mut().add(self.len) }.cast()
    }

    /// Counts `n` packets that were written to `spare`.
    ///
    /// # Safety
    /// They were, and `n <= room()`.
    #[inline(always)]
    pub(crate) unsafe fn grow(&mut self, n: usize) {
        self.len += n;
    }

    /// Gives up the first `n` packets and says where they lie, until the next change.
    ///
    /// # Safety
    /// `n <= len`; the caller takes them over.
    #[inline(always)]
    pub(crate) unsafe fn take_front(&mut self, n: usize) -> *const Raw {
        let from = self.first();
        self.len -= n;
        self.start = if self.len == 0 { 0 } else { self.start + n };
        from.cast()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<'a> IntoIterator for &'a Burst {
    type Item = &'a Mbuf;
    type IntoIter = std::slice::Iter<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Burst {
    type Item = &'a mut Mbuf;
    type IntoIter = std::slice::IterMut<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// Takes packets out of a burst, oldest first; those not taken are freed.
#[derive(Debug)]
pub struct Drain<'a> {
    burst: &'a mut Burst,
}

impl Iterator for Drain<'_> {
    type Item = Mbuf;

    #[inline(always)]
    fn next(&mut self) -> Option<Mbuf> {
        self.burst.pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.burst.len, Some(self.burst.len))
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.burst.clear();
    }
}
