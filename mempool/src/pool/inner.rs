//! The pool itself: buffers at home and outside, caches in front of the ring.
#![allow(unsafe_code)] // metadata is reached by pointer

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Leak;
use super::cache::{Cache, count};
use crate::lcore;
use crate::mbuf::Mbuf;
use crate::mbuf::header::{Cold, Header, Raw, State};
use crate::ring::{Multi, Ring};
use crate::segment::Segment;
use crate::topology::NodeId;

/// A segment of data rooms.
pub(crate) struct Chunk {
    pub segment: Segment,
    pub(super) iova: AtomicU64,
    pub(super) lkey: AtomicU32,
    pub(super) region: u16,
    /// Number of its first buffer, and how many there are.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// The pool itself.
pub(crate) struct PoolInner {
    pub(super) caches: NonNull<u8>,
    pub(super) cache_stride: usize,
    pub(super) cache_size: usize,
    /// Slots that have a cache: all or none.
    pub(super) cache_slots: usize,
    pub(super) buf_len: u16,
    pub(super) headroom: u16,
    pub(super) id: u16,
    pub(super) count: usize,
    pub(super) headers: NonNull<Header>,
    pub(super) colds: NonNull<Cold>,
    pub(super) ring: Ring<Raw, Multi, Multi>,
    pub(super) stride: usize,
    pub(super) chunks: Box<[Chunk]>,
    pub(super) segments: Box<[Segment]>,
    pub(super) name: String,
    pub(super) node: Option<NodeId>,
    /// Failed gets of threads without a cache.
    pub(super) failed: AtomicU64,
    /// Keeps headers, cold lines and caches mapped.
    pub(super) metadata: Segment,
    /// Address space between the chunks.
    pub(super) _gaps: Vec<Segment>,
}

// SAFETY: headers and cold lines are used by buffers' owners only, a cache by its slot's
// thread (or under the registry's lock, when the slot has none), the rest is atomic or
// never changes.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

/// Debug builds mark buffers as at home or out.
#[cfg(debug_assertions)]
pub(super) mod cookie {
    pub const HOME: u64 = 0x484f_4d45_0b0f_f1ce;
    pub const OUT: u64 = 0x4f55_5421_dead_10cc;
}

impl PoolInner {
    #[inline(always)]
    pub(crate) fn headroom(&self) -> u16 {
        self.headroom
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The cold line of one of this pool's buffers.
    #[inline(always)]
    pub(crate) fn cold(&self, raw: Raw) -> *mut Cold {
        // SAFETY: a buffer of this pool: its header lies in the array of headers, and the
        // cold line of the same number in the other array.
        unsafe {
            let index = raw.ptr().offset_from(self.headers.as_ptr());
            self.colds.as_ptr().offset(index)
        }
    }

    pub(crate) fn chunk_of_region(&self, region: u16) -> Option<&Chunk> {
        self.chunks.iter().find(|c| c.region == region)
    }

    /// This thread's cache.
    #[inline(always)]
    fn cache(&self) -> Option<Cache> {
        let slot = lcore::slot();
        // SAFETY: slot < cache_slots.
        (slot < self.cache_slots).then(|| unsafe { self.cache_of(slot) })
    }

    /// # Safety
    /// `slot < cache_slots`.
    #[inline(always)]
    pub(super) unsafe fn cache_of(&self, slot: usize) -> Cache {
        // SAFETY: the array has cache_slots elements of cache_stride bytes.
        unsafe { Cache::at(self.caches.add(slot * self.cache_stride)) }
    }

    #[cfg(debug_assertions)]
    fn mark(&self, raws: *const Raw, n: usize, from: u64, to: u64) {
        for k in 0..n {
            // SAFETY: the caller of `put` or `get` gave n handles of this pool.
            unsafe {
                let raw = *raws.add(k);
                let cold = self.cold(raw);
                let was = (*cold).cookie.swap(to, Ordering::AcqRel);
                assert!(
                    was == from,
                    "pool {:?}: buffer {} {} (cookie {was:#x})",
                    self.name,
                    (*cold).index,
                    match was {
                        cookie::HOME => "is freed twice",
                        cookie::OUT => "is handed out twice",
                        _ => "has a damaged header",
                    }
                );
            }
        }
    }

    /// Takes plain buffers back.
    ///
    /// # Safety
    /// `from` points to `n` plain buffers of this pool, which the caller owns and
    /// forgets.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, from: *const Raw, n: usize) {
        #[cfg(debug_assertions)]
        self.mark(from, n, cookie::OUT, cookie::HOME);
        if let Some(cache) = self.cache() {
            let len = cache.len();
            if n <= self.cache_size.wrapping_sub(len) {
                // SAFETY: len + n <= cache_size; only this thread uses the stack.
                unsafe { cache.stack().add(len).copy_from_nonoverlapping(from, n) };
                cache.set_len(len + n);
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.put_flushing(cache, len, from, n) };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.put_ring(from, n) };
        }
    }

    /// # Safety
    /// As [`PoolInner::put`].
    #[inline(always)]
    pub(super) unsafe fn put_ring(&self, from: *const Raw, n: usize) {
        // SAFETY: `from` holds n handles. The ring has room for all buffers there are.
        unsafe { self.ring.put(from, n, n, &mut 0) };
    }

    /// The cache overflows: the newest half of its size stays, what is older goes.
    ///
    /// # Safety
    /// As [`PoolInner::put`]; `cache` is this thread's and holds `len`.
    #[cold]
    #[inline(never)]
    unsafe fn put_flushing(&self, cache: Cache, len: usize, from: *const Raw, n: usize) {
        let keep = self.cache_size / 2;
        let stack = cache.stack();
        // SAFETY: only this thread uses the stack, of cache_size places. First branch:
        // keep <= n. Second: n < keep and len + n > cache_size >= keep, so
        // 0 < out < len and len - out + n = keep.
        unsafe {
            if n >= keep {
                self.put_ring(stack, len);
                self.put_ring(from, n - keep);
                stack.copy_from_nonoverlapping(from.add(n - keep), keep);
            } else {
                let out = len + n - keep;
                self.put_ring(stack, out);
                stack.add(out).copy_to(stack, len - out);
                stack.add(len - out).copy_from_nonoverlapping(from, n);
            }
        }
        count(&cache.head().full);
        cache.set_len(keep);
    }

    /// Hands out `n` plain buffers, or none. On failure the places at `to` are
    /// unspecified.
    ///
    /// # Safety
    /// `to` has room for `n` handles.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, to: *mut Raw, n: usize) -> bool {
        let done = if let Some(cache) = self.cache() {
            let len = cache.len();
            if n <= len {
                let rest = len - n;
                // SAFETY: the stack holds len; only this thread uses it.
                unsafe { copy(cache.stack().add(rest), to, n) };
                cache.set_len(rest);
                true
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.get_refilling(cache, len, to, n) }
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.get_ring(to, n) }
        };
        #[cfg(debug_assertions)]
        if done {
            self.mark(to, n, cookie::HOME, cookie::OUT);
        }
        done
    }

    /// # Safety
    /// As [`PoolInner::get`].
    #[inline(always)]
    unsafe fn get_ring(&self, to: *mut Raw, n: usize) -> bool {
        // SAFETY: room for n; nothing goes to the second target.
        let got = n == 0 || unsafe { self.ring.take(n, (to, n), (to, 0), &mut 0) } == n;
        if !got {
            count(&self.failed);
        }
        got
    }

    /// The cache is short: what it has, then the ring, which also fills half the cache.
    ///
    /// # Safety
    /// As [`PoolInner::get`]; `cache` is this thread's and holds `len < n`.
    #[cold]
    #[inline(never)]
    unsafe fn get_refilling(&self, cache: Cache, len: usize, to: *mut Raw, n: usize) -> bool {
        let stack = cache.stack();
        let need = n - len;
        // SAFETY: room for n at `to`. The stack's len handles are copied before the ring
        // writes over them; when it has too few, the stack is as it was.
        let got = unsafe {
            to.copy_from_nonoverlapping(stack, len);
            let half = self.cache_size / 2;
            self.ring
                .take(need, (to.add(len), need), (stack, half), &mut 0)
        };
        if got < need {
            count(&cache.head().failed);
            return false;
        }
        count(&cache.head().empty);
        cache.set_len(got - need);
        true
    }

    /// One buffer, its header as the last user left it.
    #[inline]
    pub(crate) fn get_one(&self) -> Option<Mbuf> {
        let mut raw = std::mem::MaybeUninit::<Raw>::uninit();
        // SAFETY: room for one; written when one was got.
        unsafe {
            self.get(raw.as_mut_ptr(), 1)
                .then(|| Mbuf::from_raw(raw.assume_init()))
        }
    }

    /// Ends an attachment: the header shows its own room again.
    ///
    /// # Safety
    /// The caller owns the buffer; it is one of this pool's and attached.
    pub(crate) unsafe fn detach(&self, raw: Raw) {
        let cold = self.cold(raw);
        // SAFETY: the owner's header and cold line.
        let (external, owner) = unsafe {
            self.restore(raw);
            raw.state_word()
                .store(State::plain(self.id, self.buf_len), Ordering::Relaxed);
            ((*cold).external.take(), (*cold).owner.take())
        };
        // Runs the free callback, when this was the last that showed it.
        drop(external);
        if let Some(owner) = owner {
            // SAFETY: the reference that the attachment held.
            unsafe { crate::mbuf::release(owner) };
        }
    }

    /// Points a header at its own room.
    ///
    /// # Safety
    /// The caller owns the buffer, which is one of this pool's.
    unsafe fn restore(&self, raw: Raw) {
        // SAFETY: the owner's header and cold line.
        unsafe {
            let cold = self.cold(raw);
            let Some(chunk) = self.chunks.get(usize::from((*cold).chunk)) else {
                return;
            };
            let offset = self.offset_in_chunk((*cold).index as usize, chunk);
            let hot = raw.ptr();
            (*hot).base = chunk.segment.base().add(offset);
            let iova = chunk.iova.load(Ordering::Relaxed);
            (*hot).iova.store(device(iova, offset), Ordering::Relaxed);
            (*hot)
                .lkey
                .store(chunk.lkey.load(Ordering::Relaxed), Ordering::Relaxed);
            (*hot).region = chunk.region;
        }
    }

    pub(super) fn offset_in_chunk(&self, index: usize, chunk: &Chunk) -> usize {
        index.wrapping_sub(chunk.first).wrapping_mul(self.stride)
    }

    /// Runs `f` on the headers of a chunk's buffers that show their own room.
    pub(super) fn for_headers(
        &self,
        chunk: &Chunk,
        mut f: impl FnMut(&AtomicU64, &AtomicU32, usize),
    ) {
        for index in chunk.first..chunk.first + chunk.count {
            // SAFETY: index < count; only atomics of the header are touched.
            unsafe {
                let raw = Raw(self.headers.add(index));
                if raw.state() & State::ATTACHED == 0 {
                    let hot = raw.ptr();
                    f(
                        &(*hot).iova,
                        &(*hot).lkey,
                        self.offset_in_chunk(index, chunk),
                    );
                }
            }
        }
    }

    pub(super) fn in_caches(&self) -> usize {
        (0..self.cache_slots)
            // SAFETY: slot < cache_slots.
            .map(|slot| unsafe { self.cache_of(slot) }.len())
            .sum()
    }

    /// Buffers at home. Exact when nobody gets or puts meanwhile.
    pub(super) fn available(&self) -> usize {
        (self.in_caches() + self.ring.len()).min(self.count)
    }

    /// Sends a slot's buffers to the ring.
    ///
    /// # Safety
    /// The slot's thread calls, or the slot has none.
    pub(super) unsafe fn flush(&self, slot: usize) {
        if slot < self.cache_slots {
            // SAFETY: slot < cache_slots; exclusive by the caller's promise.
            unsafe {
                let cache = self.cache_of(slot);
                let len = cache.len();
                self.put_ring(cache.stack(), len);
                cache.set_len(0);
            }
        }
    }

    pub(super) fn leak(&self) -> Option<Leak> {
        let outstanding = self.count - self.available();
        (outstanding != 0).then(|| Leak {
            pool: self.name.clone(),
            outstanding,
            count: self.count,
            indices: self.outside(),
        })
    }

    #[cfg(debug_assertions)]
    fn outside(&self) -> Vec<u32> {
        const FIRST: usize = 8;
        (0..self.count)
            .filter(|index| {
                // SAFETY: index < count; an atomic.
                let cookie = unsafe { &(*self.colds.as_ptr().add(*index)).cookie };
                cookie.load(Ordering::Acquire) == cookie::OUT
            })
            .filter_map(|index| u32::try_from(index).ok())
            .take(FIRST)
            .collect()
    }

    #[cfg(not(debug_assertions))]
    fn outside(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Copies handles; single ones without a call.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const Raw, to: *mut Raw, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if n == 1 {
            *to = *from;
        } else {
            to.copy_from_nonoverlapping(from, n);
        }
    }
}

/// The device address at `offset` of a chunk; 0 stays "not registered".
pub(super) fn device(chunk: u64, offset: usize) -> u64 {
    if chunk == UNREGISTERED {
        0
    } else {
        chunk.wrapping_add(offset as u64)
    }
}

/// A chunk that no device knows. No chunk starts there: it is not page-aligned.
pub(super) const UNREGISTERED: u64 = u64::MAX;

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::*;
    use crate::pool::{Pool, PoolConfig};
    use crate::segment::PageChoice;

    fn pool() -> Pool {
        Pool::new(&PoolConfig::new("p", 4).page(PageChoice::Ordinary).cache(0)).unwrap()
    }

    #[test]
    #[should_panic(expected = "buffer 0 is freed twice")]
    fn a_buffer_freed_twice_is_named() {
        let pool = pool();
        let raw = pool.alloc().unwrap().into_raw();
        drop(Mbuf::from_raw(raw));
        drop(Mbuf::from_raw(raw));
    }

    #[test]
    #[should_panic(expected = "buffer 0 is handed out twice")]
    fn a_buffer_in_the_ring_twice_is_named() {
        let pool = pool();
        let raw = pool.alloc().unwrap().into_raw();
        // SAFETY: deliberately not: the buffer is put where free ones are, while out.
        unsafe { pool.inner().put_ring(&raw, 1) };
        let all: Vec<Option<Mbuf>> = (0..4).map(|_| pool.alloc()).collect();
        // Not reached.
        std::mem::forget(all);
    }

    #[test]
    #[should_panic(expected = "has a damaged header")]
    fn a_damaged_header_is_named() {
        let pool = pool();
        let mbuf = pool.alloc().unwrap();
        // SAFETY: the cold line is mapped; an atomic.
        unsafe { &(*pool.inner().cold(mbuf.raw())).cookie }.store(7, Ordering::Relaxed);
    }
}
