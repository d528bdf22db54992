//! Arrays of descriptors in foreign memory.
#![allow(unsafe_code)] // raw access to mapped memory; bounds proven at construction

use std::fmt;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Window, Word8, Word16, Word32, Word64};
use super::{load_order, load_words, store_order, store_words, word_of};
use crate::error::MemoryError;
use crate::raw_copy;

/// A ring index: `usize`, `u32` or `u16`, reduced by the mask of the ring.
pub trait Index: Copy {
    /// The index as `usize`.
    fn index(self) -> usize;
}

impl Index for usize {
    #[inline(always)]
    fn index(self) -> usize {
        self
    }
}

impl Index for u32 {
    #[inline(always)]
    fn index(self) -> usize {
        self as usize
    }
}

impl Index for u16 {
    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }
}

/// A power-of-two array of `T`-sized cells in foreign memory.
///
/// Any index is good: it is reduced by a mask, so a free-running counter can be used as
/// it is. Offsets within a cell are type parameters and checked at compile time. Reads
/// and writes are copies; see [the module above](super) for how. The calls are those of
/// [`Row`].
pub struct Cells<T> {
    row: Row<T>,
    window: Window,
}

/// Cells whose mapping somebody else keeps: what [`Cells`] and [`CellsRef`] are to read
/// and to write.
pub struct Row<T> {
    base: NonNull<u8>,
    mask: usize,
    cell: PhantomData<fn() -> T>,
}

/// Cells borrowed, for loops: where they lie is in the value itself, so it stays in
/// registers, whatever else the loop writes to.
pub struct CellsRef<'a, T> {
    row: Row<T>,
    cells: PhantomData<&'a Cells<T>>,
}

// SAFETY: the pointer is used for atomic accesses only, and the window keeps the mapping
// alive; no T is stored in or borrowed from here.
unsafe impl<T> Send for Row<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Row<T> {}

impl<T> Clone for Cells<T> {
    fn clone(&self) -> Self {
        Self {
            row: self.row.copy(),
            window: self.window.clone(),
        }
    }
}

impl<T> fmt::Debug for Cells<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cells({} x {} bytes, {:?})",
            self.count(),
            size_of::<T>(),
            self.window
        )
    }
}

impl<T> Deref for Cells<T> {
    type Target = Row<T>;

    #[inline(always)]
    fn deref(&self) -> &Row<T> {
        &self.row
    }
}

impl<T> Deref for CellsRef<'_, T> {
    type Target = Row<T>;

    #[inline(always)]
    fn deref(&self) -> &Row<T> {
        &self.row
    }
}

impl<T> Cells<T> {
    /// `count` (a power of two) cells from `base` on, which `window` keeps mapped.
    pub(super) fn new(base: NonNull<u8>, count: usize, window: Window) -> Self {
        let row = Row {
            base,
            mask: count - 1,
            cell: PhantomData,
        };
        Self { row, window }
    }

    /// The window of exactly these cells.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The cells for a loop; see [`CellsRef`].
    #[inline(always)]
    pub fn by_ref(&self) -> CellsRef<'_, T> {
        CellsRef {
            row: self.row.copy(),
            cells: PhantomData,
        }
    }
}

impl<T> Row<T> {
    /// Another one of the same cells; whoever makes it keeps them mapped.
    #[inline(always)]
    fn copy(&self) -> Self {
        Self {
            base: self.base,
            mask: self.mask,
            cell: PhantomData,
        }
    }

    /// Number of cells, a power of two.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.mask + 1
    }

    /// Number of cells minus one.
    #[inline(always)]
    pub fn mask(&self) -> usize {
        self.mask
    }

    /// Where cell `i` starts, in bytes from the first cell.
    #[inline(always)]
    pub fn byte_offset(&self, i: impl Index) -> usize {
        (i.index() & self.mask) * size_of::<T>()
    }

    #[inline(always)]
    fn at(&self, i: impl Index) -> *mut u8 {
        // SAFETY: the masked index is below the count, and count * size_of::<T>() bytes
        // from `base` were checked to be mapped.
        unsafe { self.base.add(self.byte_offset(i)) }.as_ptr()
    }

    /// Copies cell `i` out.
    #[inline(always)]
    pub fn read(&self, i: impl Index) -> T
    where
        T: FromBytes,
    {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: a whole cell is mapped there; its base was checked to be aligned for
        // word_of(size), and cells keep that alignment. Any bits are a T (FromBytes).
        unsafe {
            load_words::<T>(self.at(i), value.as_mut_ptr().cast());
            value.assume_init()
        }
    }

    /// Copies a value into cell `i`.
    #[inline(always)]
    pub fn write(&self, i: impl Index, value: &T)
    where
        T: IntoBytes + Immutable,
    {
        // SAFETY: as for `read`; `value` has no padding (IntoBytes).
        unsafe { store_words::<T>(self.at(i), std::ptr::from_ref(value).cast()) };
    }

    /// Copies the part of cell `i` that starts at byte `OFF` and has the size of `U`.
    #[inline(always)]
    pub fn read_part<U: FromBytes, const OFF: usize>(&self, i: impl Index) -> U {
        const { assert!(OFF + size_of::<U>() <= size_of::<T>()) };
        const { assert!(word_of(OFF | size_of::<T>()) >= word_of(size_of::<U>())) };
        let mut value = MaybeUninit::<U>::uninit();
        // SAFETY: inside the cell and aligned for its words by the assertions above.
        unsafe {
            load_words::<U>(self.at(i).add(OFF), value.as_mut_ptr().cast());
            value.assume_init()
        }
    }

    /// Copies a value over the part of cell `i` that starts at byte `OFF`.
    #[inline(always)]
    pub fn write_part<U: IntoBytes + Immutable, const OFF: usize>(&self, i: impl Index, value: &U) {
        const { assert!(OFF + size_of::<U>() <= size_of::<T>()) };
        const { assert!(word_of(OFF | size_of::<T>()) >= word_of(size_of::<U>())) };
        // SAFETY: inside the cell and aligned for its words by the assertions above.
        unsafe { store_words::<U>(self.at(i).add(OFF), std::ptr::from_ref(value).cast()) };
    }

    /// A hint to fetch cell `i` into the cache.
    #[inline(always)]
    pub fn prefetch(&self, i: impl Index) {
        raw_copy::prefetch(self.at(i));
    }

    /// A hint to fetch cell `i` into the cache for writing: nobody else keeps it.
    #[inline(always)]
    pub fn prefetch_write(&self, i: impl Index) {
        raw_copy::prefetch_write(self.at(i));
    }

    /// Copies bytes into consecutive cells, starting at byte `skip` of cell `i` and going
    /// on at the first cell after the last one. At most the array's own size is copied.
    #[inline]
    pub fn copy_in(&self, i: impl Index, skip: usize, from: &[u8]) {
        let size = (self.mask + 1) * size_of::<T>();
        let start = self.byte_offset(i).wrapping_add(skip) & (size.next_power_of_two() - 1);
        let start = if start < size { start } else { 0 };
        let len = from.len().min(size);
        let first = len.min(size - start);
        // SAFETY: start + first <= size, and len - first <= start <= size; `from` holds
        // `len` bytes.
        unsafe {
            raw_copy::copy_in(from.as_ptr(), self.base.as_ptr().add(start), first);
            raw_copy::copy_in(from.as_ptr().add(first), self.base.as_ptr(), len - first);
        }
    }
}

macro_rules! cell_word {
    ($load:ident, $store:ident, $word:ident, $make:ident, $atomic:ty, $int:ty) => {
        impl<T> Row<T> {
            #[doc = concat!("Reads the `", stringify!($int), "` at byte `OFF` of cell `i`, in the CPU's byte order.")]
            #[inline(always)]
            pub fn $load<const OFF: usize>(&self, i: impl Index, order: Ordering) -> $int {
                const { assert!(OFF % size_of::<$int>() == 0 && size_of::<T>() % size_of::<$int>() == 0) };
                const { assert!(OFF + size_of::<$int>() <= size_of::<T>()) };
                // SAFETY: inside the cell and aligned, by the assertions above and the
                // alignment of the first cell; atomics may race.
                unsafe { <$atomic>::from_ptr(self.at(i).add(OFF).cast()) }.load(load_order(order))
            }

            #[doc = concat!("Writes the `", stringify!($int), "` at byte `OFF` of cell `i`, in the CPU's byte order.")]
            #[inline(always)]
            pub fn $store<const OFF: usize>(&self, i: impl Index, value: $int, order: Ordering) {
                const { assert!(OFF % size_of::<$int>() == 0 && size_of::<T>() % size_of::<$int>() == 0) };
                const { assert!(OFF + size_of::<$int>() <= size_of::<T>()) };
                // SAFETY: as for the load.
                unsafe { <$atomic>::from_ptr(self.at(i).add(OFF).cast()) }.store(value, store_order(order));
            }

        }

        impl<T> Cells<T> {
            #[doc = concat!("A handle to the `", stringify!($int), "` at byte `OFF` of cell `i`.")]
            ///
            /// # Errors
            /// [`MemoryError::Misaligned`], [`MemoryError::OutOfBounds`].
            pub fn $make<const OFF: usize>(&self, i: impl Index) -> Result<$word, MemoryError> {
                self.window.$make(self.byte_offset(i) + OFF)
            }
        }
    };
}

cell_word!(load_u8, store_u8, Word8, word8, AtomicU8, u8);
cell_word!(load_u16, store_u16, Word16, word16, AtomicU16, u16);
cell_word!(load_u32, store_u32, Word32, word32, AtomicU32, u32);
cell_word!(load_u64, store_u64, Word64, word64, AtomicU64, u64);
