//! Bounded ring of small values between threads, without locks.
//!
//! Storage is a power of two, the capacity is exactly what was asked. Whether several
//! threads may be on a side is a type parameter: [`Single`] or [`Multi`]. A ring with a
//! single side is used through [`Ring::split`], whose halves cannot be cloned on that
//! side; on a multi side the ring itself can be used from any thread.
//!
//! Each call moves a whole batch: *bulk* calls all or nothing, *burst* calls as many as
//! possible. On a multi side a thread reserves positions by moving the head, copies, and
//! publishes by moving the tail, in the order of reservation; a thread whose predecessor
//! has not published yet spins shortly and then yields its CPU, so that two threads on
//! one CPU make progress. On a single side nothing waits for anything.
#![allow(unsafe_code)] // copies of reserved spans

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::error::MemoryError;
use crate::sync::{AtomicUsize, Ordering, Storage, wait_for};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Single {}
    impl Sealed for super::Multi {}
}

/// How many threads may be on one side of a ring.
pub trait Mode: sealed::Sealed + Send + Sync + 'static {
    /// True when there may be several.
    const MULTI: bool;
}

/// One thread at a time.
#[derive(Debug, Clone, Copy)]
pub struct Single;

/// Any number of threads.
#[derive(Debug, Clone, Copy)]
pub struct Multi;

impl Mode for Single {
    const MULTI: bool = false;
}

impl Mode for Multi {
    const MULTI: bool = true;
}

/// Largest capacity of a ring.
pub const MAX_CAPACITY: usize = 1 << 30;

/// A bounded ring of `T`; see the module's text.
pub struct Ring<T, P: Mode = Multi, C: Mode = Multi> {
    prod: CachePadded<Side>,
    cons: CachePadded<Side>,
    capacity: usize,
    storage: Storage<T>,
    modes: PhantomData<(P, C)>,
}

/// Positions count up for ever; their difference is a number of values.
struct Side {
    /// Next position to reserve. Used on multi sides only.
    head: AtomicUsize,
    /// Everything before it is done.
    tail: AtomicUsize,
}

impl Side {
    fn new() -> CachePadded<Self> {
        CachePadded::new(Self {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        })
    }
}

impl<T: Copy + Send, P: Mode, C: Mode> fmt::Debug for Ring<T, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} of {})", self.len(), self.capacity)
    }
}

impl<T: Copy + Send, P: Mode, C: Mode> Ring<T, P, C> {
    /// A ring that holds exactly `capacity` values.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] unless `1 <= capacity <= MAX_CAPACITY`.
    pub fn with_capacity(capacity: usize) -> Result<Self, MemoryError> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(MemoryError::OutOfRange {
                what: "ring capacity",
                given: capacity as u64,
                min: 1,
                max: MAX_CAPACITY as u64,
                remedy: String::new(),
            });
        }
        Ok(Self {
            prod: Side::new(),
            cons: Side::new(),
            capacity,
            storage: Storage::new(capacity.next_power_of_two()),
            modes: PhantomData,
        })
    }

    /// Two halves for two threads. A half of a [`Multi`] side can be cloned.
    pub fn split(self) -> (Producer<T, P, C>, Consumer<T, P, C>) {
        let ring = Arc::new(self);
        let producer = Producer {
            ring: ring.clone(),
            seen: 0,
        };
        (producer, Consumer { ring, seen: 0 })
    }

    /// Values in the ring now; another thread may change that at once.
    pub fn len(&self) -> usize {
        let taken = self.cons.tail.load(Ordering::Acquire);
        let put = self.prod.tail.load(Ordering::Acquire);
        put.wrapping_sub(taken).min(self.capacity)
    }

    /// True when there is nothing in the ring now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most that it holds.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Puts between `min` and `max` values in, or none; returns how many. `seen` is the
    /// consumers' tail as a single producer knows it.
    ///
    /// # Safety
    /// `from` holds `max` values. On a [`Single`] side nobody else puts meanwhile, and
    /// `seen` is what this function left there.
    #[inline(always)]
    pub(crate) unsafe fn put(
        &self,
        from: *const T,
        min: usize,
        max: usize,
        seen: &mut usize,
    ) -> usize {
        if P::MULTI {
            // Acquire, so that the consumers' tail read next is not older than the one
            // which allowed this head.
            let mut head = self.prod.head.load(Ordering::Acquire);
            let n = loop {
                let taken = self.cons.tail.load(Ordering::Acquire);
                let n = self.room(head, taken).min(max);
                if n < min || n == 0 {
                    return 0;
                }
                match self.prod.head.compare_exchange_weak(
                    head,
                    head.wrapping_add(n),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => break n,
                    Err(now) => head = now,
                }
            };
            // SAFETY: the exchange reserved positions head..head + n for us alone, and
            // the consumers have left them.
            unsafe { self.storage.write(head, from, n) };
            wait_for(&self.prod.tail, head);
            self.prod
                .tail
                .store(head.wrapping_add(n), Ordering::Release);
            n
        } else {
            let tail = self.prod.tail.load(Ordering::Relaxed);
            let mut n = self.room(tail, *seen).min(max);
            if n < max {
                *seen = self.cons.tail.load(Ordering::Acquire);
                n = self.room(tail, *seen).min(max);
                if n < min || n == 0 {
                    return 0;
                }
            }
            // SAFETY: a single producer owns everything between its tail and the
            // consumers' tail, one round later.
            unsafe { self.storage.write(tail, from, n) };
            self.prod
                .tail
                .store(tail.wrapping_add(n), Ordering::Release);
            n
        }
    }

    /// Takes between `min` and `first + second` values, or none; the first `first` go to
    /// `to`, the rest to `rest`. Returns how many.
    ///
    /// # Safety
    /// `to` and `rest` have room for `first` and `second` values. On a [`Single`] side
    /// nobody else takes meanwhile, and `seen` is what this function left there.
    #[inline(always)]
    pub(crate) unsafe fn take(
        &self,
        min: usize,
        (to, first): (*mut T, usize),
        (rest, second): (*mut T, usize),
        seen: &mut usize,
    ) -> usize {
        let max = first + second;
        let copy = |at: usize, n: usize| {
            let a = n.min(first);
            // SAFETY: the positions at..at + n are ours and written, as argued below;
            // the targets have room.
            unsafe {
                self.storage.read(at, to, a);
                if n > a {
                    self.storage.read(at.wrapping_add(a), rest, n - a);
                }
            }
        };
        if C::MULTI {
            let mut head = self.cons.head.load(Ordering::Acquire);
            let n = loop {
                let put = self.prod.tail.load(Ordering::Acquire);
                let n = self.filled(head, put).min(max);
                if n < min || n == 0 {
                    return 0;
                }
                match self.cons.head.compare_exchange_weak(
                    head,
                    head.wrapping_add(n),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => break n,
                    Err(now) => head = now,
                }
            };
            // The exchange reserved head..head + n, below the producers' tail.
            copy(head, n);
            wait_for(&self.cons.tail, head);
            self.cons
                .tail
                .store(head.wrapping_add(n), Ordering::Release);
            n
        } else {
            let tail = self.cons.tail.load(Ordering::Relaxed);
            let mut n = self.filled(tail, *seen).min(max);
            if n < max {
                *seen = self.prod.tail.load(Ordering::Acquire);
                n = self.filled(tail, *seen).min(max);
                if n < min || n == 0 {
                    return 0;
                }
            }
            // A single consumer owns everything between its tail and the producers'.
            copy(tail, n);
            self.cons
                .tail
                .store(tail.wrapping_add(n), Ordering::Release);
            n
        }
    }

    /// Free positions from `head` on. Never negative, by the acquire chain through the
    /// heads. A head that is older than `taken` seems to have more than there are, but
    /// its exchange fails.
    #[inline(always)]
    fn room(&self, head: usize, taken: usize) -> usize {
        taken
            .wrapping_add(self.capacity)
            .wrapping_sub(head)
            .min(self.capacity)
    }

    #[inline(always)]
    fn filled(&self, head: usize, put: usize) -> usize {
        put.wrapping_sub(head).min(self.capacity)
    }
}

macro_rules! producing {
    ([$($receiver:tt)+], $seen:expr, $ring:expr) => {
        /// Puts one value in.
        ///
        /// # Errors
        /// Gives the value back when the ring is full.
        #[inline]
        pub fn enqueue($($receiver)+, value: T) -> Result<(), T> {
            // SAFETY: one value is there; exclusive use of a single side by `&mut self`.
            match unsafe { $ring.put(&value, 1, 1, $seen) } {
                0 => Err(value),
                _ => Ok(()),
            }
        }

        /// Puts all values in, or none; true for all.
        #[inline]
        pub fn enqueue_bulk($($receiver)+, values: &[T]) -> bool {
            let n = values.len();
            // SAFETY: as for `enqueue`, with n values.
            n == 0 || unsafe { $ring.put(values.as_ptr(), n, n, $seen) } == n
        }

        /// Puts in as many of the first values as fit; returns how many.
        #[inline]
        pub fn enqueue_burst($($receiver)+, values: &[T]) -> usize {
            // SAFETY: as for `enqueue_bulk`.
            unsafe { $ring.put(values.as_ptr(), 1, values.len(), $seen) }
        }
    };
}

macro_rules! consuming {
    ([$($receiver:tt)+], $seen:expr, $ring:expr) => {
        /// Takes the oldest value.
        #[inline]
        pub fn dequeue($($receiver)+) -> Option<T> {
            let mut value = std::mem::MaybeUninit::uninit();
            let none = (std::ptr::NonNull::dangling().as_ptr(), 0);
            // SAFETY: room for one value; exclusive use of a single side by `&mut self`;
            // the value is written when one was taken.
            unsafe {
                match $ring.take(1, (value.as_mut_ptr(), 1), none, $seen) {
                    0 => None,
                    _ => Some(value.assume_init()),
                }
            }
        }

        /// Fills all of `into`, or takes nothing; true for all.
        #[inline]
        pub fn dequeue_bulk($($receiver)+, into: &mut [T]) -> bool {
            let n = into.len();
            let none = (std::ptr::NonNull::dangling().as_ptr(), 0);
            // SAFETY: room for n values, otherwise as for `dequeue`.
            n == 0 || unsafe { $ring.take(n, (into.as_mut_ptr(), n), none, $seen) } == n
        }

        /// Fills as much of `into` as there is; returns how many.
        #[inline]
        pub fn dequeue_burst($($receiver)+, into: &mut [T]) -> usize {
            let none = (std::ptr::NonNull::dangling().as_ptr(), 0);
            // SAFETY: as for `dequeue_bulk`.
            unsafe { $ring.take(1, (into.as_mut_ptr(), into.len()), none, $seen) }
        }
    };
}

impl<T: Copy + Send, C: Mode> Ring<T, Multi, C> {
    producing!([&self], &mut 0, self);
}

impl<T: Copy + Send, P: Mode> Ring<T, P, Multi> {
    consuming!([&self], &mut 0, self);
}

/// The putting half of a ring.
pub struct Producer<T, P: Mode = Single, C: Mode = Single> {
    ring: Arc<Ring<T, P, C>>,
    seen: usize,
}

/// The taking half of a ring.
pub struct Consumer<T, P: Mode = Single, C: Mode = Single> {
    ring: Arc<Ring<T, P, C>>,
    seen: usize,
}

impl<T: Copy + Send, P: Mode, C: Mode> Producer<T, P, C> {
    producing!([&mut self], &mut self.seen, self.ring);

    /// The ring, for its length and capacity.
    pub fn ring(&self) -> &Ring<T, P, C> {
        &self.ring
    }
}

impl<T: Copy + Send, P: Mode, C: Mode> Consumer<T, P, C> {
    consuming!([&mut self], &mut self.seen, self.ring);

    /// The ring, for its length and capacity.
    pub fn ring(&self) -> &Ring<T, P, C> {
        &self.ring
    }
}

impl<T, C: Mode> Clone for Producer<T, Multi, C> {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.clone(),
            seen: 0,
        }
    }
}

impl<T, P: Mode> Clone for Consumer<T, P, Multi> {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.clone(),
            seen: 0,
        }
    }
}

impl<T: Copy + Send, P: Mode, C: Mode> fmt::Debug for Producer<T, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Producer({:?})", self.ring)
    }
}

impl<T: Copy + Send, P: Mode, C: Mode> fmt::Debug for Consumer<T, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Consumer({:?})", self.ring)
    }
}
