//! Foreign memory: the only three ways to touch memory that somebody else may write.
//!
//! A device, an emulator thread or another process may change shared memory between any
//! two instructions. So no reference ever points into it; there are
//!
//! 1. **atomic words** ([`Word8`] to [`Word64`]): owner bits, doorbell records, registers;
//! 2. **typed copies** ([`Window::read`], [`Window::write`], [`Cells`]): descriptors;
//! 3. **bulk copies** ([`Window::copy_out`], [`Window::copy_in`], [`Window::copy_to`],
//!    [`Window::fill`]): packets, mailboxes.
//!
//! A [`Window`] is a range of a [`Segment`] and keeps the mapping alive. Checks happen
//! when a window, a word or a cell array is made; [`Cells`] and words then reach memory
//! without a check, a branch or a panic: an index is reduced by a mask.
//!
//! **How a typed copy is done.** As relaxed atomic loads or stores of the widest word
//! that divides the type (8 bytes for descriptors): each word is read exactly once and
//! is not torn, racing agents are no undefined behaviour, and the copy costs one plain
//! `mov` per word, straight from and to registers. A volatile copy of the whole struct
//! would be compiled to single bytes for types of alignment 1, as wire formats are, and
//! a vector copy would stall on the narrow stores that assembled the struct. Nothing
//! orders one word against another: that is what [`crate::barrier`] is for.
//!
//! **How a bulk copy is done.** On x86-64 by 16-byte loads and stores in `asm!`, which
//! the compiler can neither repeat nor assume stable, `rep movsb` when long; elsewhere by
//! relaxed atomic words or bytes.
#![allow(unsafe_code)] // raw access to mapped memory; bounds proven at construction

use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::MemoryError;
use crate::raw_copy;
use crate::segment::Segment;

mod cells;

pub use cells::{Cells, CellsRef, Index, Row};

/// A range of a segment.
///
/// Cheap to clone; keeps the mapping alive. Two windows may overlap and may be used by
/// several threads at once: every access is a copy or an atomic.
#[derive(Clone)]
pub struct Window {
    segment: Segment,
    offset: usize,
    len: usize,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Window({:?} {:#x}+{:#x})",
            self.segment.name(),
            self.offset,
            self.len
        )
    }
}

impl Window {
    pub(crate) fn new(segment: Segment, offset: usize, len: usize) -> Result<Self, MemoryError> {
        check("window", offset, len, segment.len())?;
        Ok(Self {
            segment,
            offset,
            len,
        })
    }

    pub(crate) fn whole(segment: Segment) -> Self {
        let len = segment.len();
        Self {
            segment,
            offset: 0,
            len,
        }
    }

    /// Bytes in the window.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a window of no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segment that it is part of.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Where it starts in its segment, in bytes.
    #[inline]
    pub fn segment_offset(&self) -> usize {
        self.offset
    }

    /// A part of this window; offsets count from this window's start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn window(&self, offset: usize, len: usize) -> Result<Self, MemoryError> {
        check("window", offset, len, self.len)?;
        Ok(Self {
            segment: self.segment.clone(),
            offset: self.offset + offset,
            len,
        })
    }

    /// Address of the first byte, for giving to a kernel or an address table. Reading
    /// through it is what this module is there to avoid.
    #[inline]
    pub fn address(&self) -> usize {
        self.base().as_ptr() as usize
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: offset <= segment.len() was checked when the window was made, so the
        // result stays inside (or one past) the mapping.
        unsafe { self.segment.base().add(self.offset) }
    }

    /// Pointer to `offset`, having checked that `len` bytes are there.
    #[inline]
    fn at(&self, what: &'static str, offset: usize, len: usize) -> Result<*mut u8, MemoryError> {
        check(what, offset, len, self.len)?;
        // SAFETY: offset + len <= self.len, and the window lies inside the mapping.
        Ok(unsafe { self.base().add(offset) }.as_ptr())
    }

    /// Copies one `T` out. Any alignment; words of up to 8 bytes are read whole when
    /// the address allows.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> Result<T, MemoryError> {
        let from = self.at("read", offset, size_of::<T>())?;
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: size_of::<T>() bytes are mapped at `from`, `value` has room for them,
        // and every bit pattern is a T (FromBytes).
        unsafe {
            load_any(from, value.as_mut_ptr().cast(), size_of::<T>());
            Ok(value.assume_init())
        }
    }

    /// Copies one `T` in. Any alignment; words of up to 8 bytes are written whole when
    /// the address allows.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn write<T: IntoBytes + Immutable + ?Sized>(
        &self,
        offset: usize,
        value: &T,
    ) -> Result<(), MemoryError> {
        let bytes = value.as_bytes();
        let to = self.at("write", offset, bytes.len())?;
        // SAFETY: bytes.len() bytes are mapped at `to`; `bytes` is ours.
        unsafe { store_any(to, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The window from `offset` as an array of `count` cells of type `T`.
    ///
    /// # Errors
    /// [`MemoryError::NotPowerOfTwo`] for `count`, [`MemoryError::OutOfBounds`], and
    /// [`MemoryError::Misaligned`] when `offset` is not a multiple of the widest word
    /// (up to 8 bytes) that divides the size of `T`.
    pub fn cells<T>(&self, offset: usize, count: usize) -> Result<Cells<T>, MemoryError> {
        const MAX: usize = 1 << 31;
        if !count.is_power_of_two() || count > MAX {
            return Err(MemoryError::NotPowerOfTwo {
                what: "cells",
                count,
                max: MAX,
            });
        }
        let bytes = count
            .checked_mul(size_of::<T>())
            .ok_or(MemoryError::OutOfBounds {
                what: "cells",
                offset,
                asked: usize::MAX,
                len: self.len,
            })?;
        let base = self.at("cells", offset, bytes)?;
        check_aligned("cells", base, word_of(size_of::<T>()))?;
        // SAFETY: `at` gave a pointer into the mapping, which is never null.
        let base = unsafe { NonNull::new_unchecked(base) };
        Ok(Cells::new(base, count, self.window(offset, bytes)?))
    }

    /// Copies `into.len()` bytes out.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.at("copy_out", offset, into.len())?;
        // SAFETY: `into.len()` bytes are mapped at `from`; `into` is exclusively ours.
        unsafe { raw_copy::copy_out(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `from.len()` bytes in.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let to = self.at("copy_in", offset, from.len())?;
        // SAFETY: `from.len()` bytes are mapped at `to`; `from` is ours.
        unsafe { raw_copy::copy_in(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copies `len` bytes to another window. Where the two overlap, the bytes that
    /// arrive are unspecified.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] for either side; nothing is copied then.
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        to: &Window,
        to_offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        let from = self.at("copy_to, source", offset, len)?;
        let dest = to.at("copy_to, destination", to_offset, len)?;
        // SAFETY: `len` bytes are mapped on both sides.
        unsafe { raw_copy::copy_across(from, dest, len) };
        Ok(())
    }

    /// Copies `N` words of 8 bytes out, whatever the alignment of `offset`: one load each. On
    /// big-endian machines too, the first byte is the lowest of its word.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; nothing is copied then.
    #[inline(always)]
    pub fn read_words<const N: usize>(&self, offset: usize) -> Result<[u64; N], MemoryError> {
        let from = self.at("read_words", offset, N * 8)?;
        Ok(std::array::from_fn(|k| {
            // SAFETY: k < N, and N * 8 bytes are mapped at `from`.
            u64::from_le(unsafe { raw_copy::load8(from.add(k * 8)) })
        }))
    }

    /// A hint to fetch the line at `offset` into the cache; nothing happens outside the window.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        if let Ok(at) = self.at("prefetch", offset, 1) {
            raw_copy::prefetch(at);
        }
    }

    /// As [`prefetch`](Self::prefetch), for a line that will be written.
    #[inline(always)]
    pub fn prefetch_write(&self, offset: usize) {
        if let Ok(at) = self.at("prefetch", offset, 1) {
            raw_copy::prefetch_write(at);
        }
    }

    /// Sets `len` bytes to `byte`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; nothing is written then.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), MemoryError> {
        let to = self.at("fill", offset, len)?;
        // SAFETY: `len` bytes are mapped at `to`.
        unsafe { raw_copy::fill(to, len, byte) };
        Ok(())
    }

    /// A copy of `len` bytes as a vector (control path only: it allocates).
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn to_vec(&self, offset: usize, len: usize) -> Result<Vec<u8>, MemoryError> {
        check("to_vec", offset, len, self.len)?;
        let mut bytes = vec![0; len];
        self.copy_out(offset, &mut bytes)?;
        Ok(bytes)
    }
}

#[inline]
fn check(what: &'static str, offset: usize, asked: usize, len: usize) -> Result<(), MemoryError> {
    if asked <= len && offset <= len - asked {
        Ok(())
    } else {
        Err(MemoryError::OutOfBounds {
            what,
            offset,
            asked,
            len,
        })
    }
}

#[inline]
fn check_aligned(what: &'static str, at: *const u8, align: usize) -> Result<(), MemoryError> {
    let address = at as usize;
    if address & (align - 1) == 0 {
        Ok(())
    } else {
        Err(MemoryError::Misaligned {
            what,
            offset: address as u64,
            align,
        })
    }
}

/// The widest word, up to 8 bytes, whose size divides `size`.
#[inline(always)]
const fn word_of(size: usize) -> usize {
    match size.trailing_zeros() {
        0 => 1,
        1 => 2,
        2 => 4,
        _ => 8,
    }
}

/// Any ordering given for a load becomes one that a load can have: `Release` and
/// `AcqRel` would panic in the standard library, and act as `Acquire` here.
#[inline(always)]
const fn load_order(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed => Ordering::Relaxed,
        Ordering::SeqCst => Ordering::SeqCst,
        _ => Ordering::Acquire,
    }
}

/// As [`load_order`], for a store: `Acquire` and `AcqRel` act as `Release`.
#[inline(always)]
const fn store_order(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed => Ordering::Relaxed,
        Ordering::SeqCst => Ordering::SeqCst,
        _ => Ordering::Release,
    }
}

macro_rules! word {
    ($word:ident, $atomic:ty, $int:ty, $method:ident, $bits:literal) => {
        #[doc = concat!("A word of ", $bits, " bits in foreign memory, checked and aligned once.")]
        ///
        /// Values are in the CPU's byte order, except with the `_be` calls.
        #[derive(Clone, Debug)]
        pub struct $word {
            at: NonNull<$atomic>,
            window: Window,
        }

        // SAFETY: the pointer is used for atomic accesses only, and the window keeps the
        // mapping alive.
        unsafe impl Send for $word {}
        // SAFETY: as above.
        unsafe impl Sync for $word {}

        impl $word {
            #[inline(always)]
            fn atomic(&self) -> &$atomic {
                // SAFETY: in bounds and aligned (checked when made), mapped as long as
                // `window` lives; an atomic may be written by others at any time.
                unsafe { self.at.as_ref() }
            }

            /// Reads the word. `Release` and `AcqRel` act as `Acquire`.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $int {
                self.atomic().load(load_order(order))
            }

            /// Writes the word. `Acquire` and `AcqRel` act as `Release`.
            #[inline(always)]
            pub fn store(&self, value: $int, order: Ordering) {
                self.atomic().store(value, store_order(order));
            }

            /// Writes the word and returns what was there.
            #[inline(always)]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                self.atomic().swap(value, order)
            }

            /// Adds, wrapping, and returns what was there.
            #[inline(always)]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.atomic().fetch_add(value, order)
            }

            /// Reads a word that lies there in big-endian order.
            #[inline(always)]
            pub fn load_be(&self, order: Ordering) -> $int {
                <$int>::from_be(self.load(order))
            }

            /// Writes a word in big-endian order.
            #[inline(always)]
            pub fn store_be(&self, value: $int, order: Ordering) {
                self.store(value.to_be(), order);
            }

            /// The window of just this word.
            pub fn window(&self) -> &Window {
                &self.window
            }
        }

        impl Window {
            #[doc = concat!("The word of ", $bits, " bits at `offset`.")]
            ///
            /// # Errors
            /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
            pub fn $method(&self, offset: usize) -> Result<$word, MemoryError> {
                let at = self.at(stringify!($method), offset, size_of::<$int>())?;
                check_aligned(stringify!($method), at, size_of::<$int>())?;
                Ok($word {
                    // SAFETY: a pointer into a mapping is not null.
                    at: unsafe { NonNull::new_unchecked(at.cast()) },
                    window: self.window(offset, size_of::<$int>())?,
                })
            }
        }
    };
}

word!(Word8, AtomicU8, u8, word8, "8");
word!(Word16, AtomicU16, u16, word16, "16");
word!(Word32, AtomicU32, u32, word32, "32");
word!(Word64, AtomicU64, u64, word64, "64");

/// Copies `size_of::<T>()` bytes out of foreign memory, word by word.
///
/// # Safety
/// `from` is mapped for that size and aligned for `word_of(size)`; `to` is writable for
/// that size and nobody else uses it.
#[inline(always)]
unsafe fn load_words<T>(from: *const u8, to: *mut u8) {
    let size = const { size_of::<T>() };
    macro_rules! words {
        ($atomic:ty, $int:ty) => {
            for k in (0..size).step_by(size_of::<$int>()) {
                // SAFETY: k + word <= size, because the word divides the size; alignment
                // and validity are the caller's promise.
                unsafe {
                    let w =
                        <$atomic>::from_ptr(from.add(k).cast_mut().cast()).load(Ordering::Relaxed);
                    to.add(k).cast::<$int>().write_unaligned(w);
                }
            }
        };
    }
    match const { word_of(size_of::<T>()) } {
        8 => words!(AtomicU64, u64),
        4 => words!(AtomicU32, u32),
        2 => words!(AtomicU16, u16),
        _ => words!(AtomicU8, u8),
    }
}

/// Copies `size_of::<T>()` bytes into foreign memory, word by word.
///
/// # Safety
/// `to` is mapped for that size and aligned for `word_of(size)`; `from` is readable for
/// that size, without padding.
#[inline(always)]
unsafe fn store_words<T>(to: *mut u8, from: *const u8) {
    let size = const { size_of::<T>() };
    macro_rules! words {
        ($atomic:ty, $int:ty) => {
            for k in (0..size).step_by(size_of::<$int>()) {
                // SAFETY: as in `load_words`.
                unsafe {
                    let w = from.add(k).cast::<$int>().read_unaligned();
                    <$atomic>::from_ptr(to.add(k).cast()).store(w, Ordering::Relaxed);
                }
            }
        };
    }
    match const { word_of(size_of::<T>()) } {
        8 => words!(AtomicU64, u64),
        4 => words!(AtomicU32, u32),
        2 => words!(AtomicU16, u16),
        _ => words!(AtomicU8, u8),
    }
}

/// The widest word that both the address and the size allow.
#[inline(always)]
fn word_at(at: *const u8, size: usize) -> usize {
    word_of(at as usize | size)
}

/// As [`load_words`], for any alignment and a size known late.
///
/// # Safety
/// `from` is mapped for `size` bytes; `to` is writable for them and ours alone.
#[inline]
unsafe fn load_any(from: *const u8, to: *mut u8, size: usize) {
    let step = word_at(from, size);
    let mut k = 0;
    while k < size {
        // SAFETY: k + step <= size, since step divides it, and `from + k` is a multiple
        // of step.
        unsafe {
            match step {
                8 => to.add(k).cast::<u64>().write_unaligned(
                    AtomicU64::from_ptr(from.add(k).cast_mut().cast()).load(Ordering::Relaxed),
                ),
                4 => to.add(k).cast::<u32>().write_unaligned(
                    AtomicU32::from_ptr(from.add(k).cast_mut().cast()).load(Ordering::Relaxed),
                ),
                2 => to.add(k).cast::<u16>().write_unaligned(
                    AtomicU16::from_ptr(from.add(k).cast_mut().cast()).load(Ordering::Relaxed),
                ),
                _ => to
                    .add(k)
                    .write(AtomicU8::from_ptr(from.add(k).cast_mut()).load(Ordering::Relaxed)),
            }
        }
        k += step;
    }
}

/// As [`store_words`], for any alignment and a size known late.
///
/// # Safety
/// `to` is mapped for `size` bytes; `from` is readable for them.
#[inline]
unsafe fn store_any(to: *mut u8, from: *const u8, size: usize) {
    let step = word_at(to, size);
    let mut k = 0;
    while k < size {
        // SAFETY: as in `load_any`.
        unsafe {
            match step {
                8 => AtomicU64::from_ptr(to.add(k).cast()).store(
                    from.add(k).cast::<u64>().read_unaligned(),
                    Ordering::Relaxed,
                ),
                4 => AtomicU32::from_ptr(to.add(k).cast()).store(
                    from.add(k).cast::<u32>().read_unaligned(),
                    Ordering::Relaxed,
                ),
                2 => AtomicU16::from_ptr(to.add(k).cast()).store(
                    from.add(k).cast::<u16>().read_unaligned(),
                    Ordering::Relaxed,
                ),
                _ => AtomicU8::from_ptr(to.add(k)).store(from.add(k).read(), Ordering::Relaxed),
            }
        }
        k += step;
    }
}
