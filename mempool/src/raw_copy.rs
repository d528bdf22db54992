//! Bulk copies between our memory and memory that somebody else may write.
//!
//! On x86-64 each load and store is one `asm!` instruction: the compiler can neither
//! split, repeat nor drop it, and what a racing writer leaves there is only a value.
//! Elsewhere relaxed atomics do the same, by words where both sides are aligned.
#![allow(unsafe_code)] // raw copies; callers in `foreign` and `mbuf` prove the bounds

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    /// From here on `rep movsb` beats 16-byte moves (its start costs some 30 cycles).
    const STRING_MOVE: usize = 1024;

    macro_rules! mover {
        ($load:ident, $store:ident, $ty:ty, $class:ident, $ld:literal, $st:literal) => {
            #[inline(always)]
            pub unsafe fn $load(p: *const u8) -> $ty {
                let v: $ty;
                // SAFETY: the caller promises that the bytes are mapped.
                unsafe {
                    asm!($ld, out($class) v, in(reg) p, options(nostack, preserves_flags, readonly));
                }
                v
            }
            #[inline(always)]
            unsafe fn $store(p: *mut u8, v: $ty) {
                // SAFETY: the caller promises that the bytes are mapped and writable.
                unsafe {
                    asm!($st, in(reg) p, in($class) v, options(nostack, preserves_flags));
                }
            }
        };
    }
    mover!(
        load16,
        store16,
        __m128i,
        xmm_reg,
        "movups {0}, [{1}]",
        "movups [{0}], {1}"
    );
    mover!(load8, store8, u64, reg, "mov {0}, [{1}]", "mov [{0}], {1}");
    mover!(
        load4,
        store4,
        u32,
        reg,
        "mov {0:e}, [{1}]",
        "mov [{0}], {1:e}"
    );
    mover!(
        load2,
        store2,
        u16,
        reg,
        "mov {0:x}, [{1}]",
        "mov [{0}], {1:x}"
    );
    mover!(
        load1,
        store1,
        u8,
        reg_byte,
        "mov {0}, [{1}]",
        "mov [{0}], {1}"
    );

    /// # Safety
    /// `len` bytes are mapped at both places.
    #[inline]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // Each width copies its first and last word; the two overlap as needed, so that
        // no size needs a loop of single bytes.
        macro_rules! ends {
            ($load:ident, $store:ident, $w:literal) => {{
                // SAFETY: $w <= len, so both words lie within the len bytes.
                unsafe {
                    let first = $load(from);
                    let last = $load(from.add(len - $w));
                    $store(to, first);
                    $store(to.add(len - $w), last);
                }
            }};
        }
        if len >= 16 {
            if len >= STRING_MOVE {
                // SAFETY: len bytes are mapped at both places; the direction flag is
                // clear by the ABI.
                unsafe {
                    asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _,
                         inout("rdi") to => _, options(nostack, preserves_flags));
                }
                return;
            }
            if len <= 64 {
                // Small packets: one branch, and all loads before the first store.
                // SAFETY: 16 <= len, and 32 <= len in the first half; the words lie within the
                // len bytes and overlap as needed.
                unsafe {
                    let (a, d) = (load16(from), load16(from.add(len - 16)));
                    if len > 32 {
                        let (b, c) = (load16(from.add(16)), load16(from.add(len - 32)));
                        store16(to.add(16), b);
                        store16(to.add(len - 32), c);
                    }
                    store16(to, a);
                    store16(to.add(len - 16), d);
                }
                return;
            }
            let mut k = 0;
            while k + 64 < len {
                // SAFETY: k + 64 <= len.
                unsafe {
                    let a = load16(from.add(k));
                    let b = load16(from.add(k + 16));
                    let c = load16(from.add(k + 32));
                    let d = load16(from.add(k + 48));
                    store16(to.add(k), a);
                    store16(to.add(k + 16), b);
                    store16(to.add(k + 32), c);
                    store16(to.add(k + 48), d);
                }
                k += 64;
            }
            while k + 16 < len {
                // SAFETY: k + 16 <= len.
                unsafe { store16(to.add(k), load16(from.add(k))) };
                k += 16;
            }
            // SAFETY: len >= 16.
            unsafe { store16(to.add(len - 16), load16(from.add(len - 16))) };
        } else if len >= 8 {
            ends!(load8, store8, 8);
        } else if len >= 4 {
            ends!(load4, store4, 4);
        } else if len >= 2 {
            ends!(load2, store2, 2);
        } else if len == 1 {
            ends!(load1, store1, 1);
        }
    }

    /// # Safety
    /// `len` bytes are mapped at `to`.
    pub unsafe fn fill(to: *mut u8, len: usize, byte: u8) {
        // SAFETY: len bytes are mapped; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte,
                 options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    pub fn prefetch(p: *const u8) {
        // SAFETY: a prefetch of any address is harmless, and SSE is baseline.
        unsafe {
            asm!("prefetcht0 [{0}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    pub fn prefetch_write(p: *const u8) {
        // SAFETY: as above; processors without this hint take it for a no-operation.
        unsafe {
            asm!("prefetchw [{0}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    /// Copies words while both places are aligned for them, then bytes.
    macro_rules! copy {
        ($(#[$doc:meta])* $name:ident, $load:ident, $store:ident) => {
            $(#[$doc])*
            pub unsafe fn $name(from: *const u8, to: *mut u8, len: usize) {
                let mut k = 0;
                // SAFETY: k + 8 <= len for words, k < len for bytes; words only at
                // multiples of 8.
                unsafe {
                    if (from as usize | to as usize) & 7 == 0 {
                        while k + 8 <= len {
                            let v: u64 = $load!(AtomicU64, u64, from.add(k));
                            $store!(AtomicU64, u64, to.add(k), v);
                            k += 8;
                        }
                    }
                    while k < len {
                        let v: u8 = $load!(AtomicU8, u8, from.add(k));
                        $store!(AtomicU8, u8, to.add(k), v);
                        k += 1;
                    }
                }
            }
        };
    }
    macro_rules! load_ours {
        ($atomic:ty, $int:ty, $at:expr) => {
            $at.cast::<$int>().read()
        };
    }
    macro_rules! load_foreign {
        ($atomic:ty, $int:ty, $at:expr) => {
            <$atomic>::from_ptr($at.cast_mut().cast()).load(Relaxed)
        };
    }
    macro_rules! store_ours {
        ($atomic:ty, $int:ty, $at:expr, $v:expr) => {
            $at.cast::<$int>().write($v)
        };
    }
    macro_rules! store_foreign {
        ($atomic:ty, $int:ty, $at:expr, $v:expr) => {
            <$atomic>::from_ptr($at.cast()).store($v, Relaxed)
        };
    }
    copy!(
        /// # Safety
        /// `len` bytes are mapped at `from`, and ours at `to`.
        copy_out, load_foreign, store_ours
    );
    copy!(
        /// # Safety
        /// `len` bytes are ours at `from`, and mapped at `to`.
        copy_in, load_ours, store_foreign
    );
    copy!(
        /// # Safety
        /// `len` bytes are mapped at both places.
        copy_across, load_foreign, store_foreign
    );

    /// # Safety
    /// `len` bytes are mapped at `to`.
    pub unsafe fn fill(to: *mut u8, len: usize, byte: u8) {
        for k in 0..len {
            // SAFETY: k < len.
            unsafe { AtomicU8::from_ptr(to.add(k)).store(byte, Relaxed) };
        }
    }

    /// # Safety
    /// 8 bytes are mapped at `p`.
    #[inline]
    pub unsafe fn load8(p: *const u8) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the caller's promise; `bytes` is ours.
        unsafe { copy_out(p, bytes.as_mut_ptr(), 8) };
        u64::from_ne_bytes(bytes)
    }

    #[inline(always)]
    pub fn prefetch(_: *const u8) {}

    #[inline(always)]
    pub fn prefetch_write(_: *const u8) {}
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use imp::{copy as copy_in, copy as copy_out, copy as copy_across};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use imp::{copy_across, copy_in, copy_out};
pub(crate) use imp::{fill, load8, prefetch, prefetch_write};
