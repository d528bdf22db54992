//! Pools of packet buffers.
//!
//! A pool is made at once or not at all: chunks of data rooms (one segment, or several),
//! and a segment of metadata that no device needs to see. Each lcore has a cache of
//! exactly the configured size in front of a ring that all share. Caches are stacks: the
//! last buffer freed is the first one reused. A full cache sends its older half to the
//! ring, an empty one fetches half of its size; so a get of n succeeds exactly when the
//! thread's cache and the ring hold n. Threads without a slot use the ring.
//!
//! **Lifetime.** [`Pool`] is a handle; the last one closes the pool. Its memory stays
//! mapped until every buffer is home, so no order of dropping pools, ports and packets
//! can free memory under anybody. Debug builds say on stderr when a pool is closed with
//! buffers outside; [`Pool::check`] tells at any time.
#![allow(unsafe_code)] // metadata is reached by pointer

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::burst::Burst;
use crate::error::MemoryError;
use crate::lcore::{self, MAX_LCORES};
use crate::mbuf::header::{Cold, Header, Raw, State};
use crate::mbuf::{Mbuf, RxMeta};
use crate::ring::{Multi, Ring};
use crate::segment::{PageChoice, Segment};
use crate::topology::{self, NodeId, SysfsTopology};

mod build;
mod registry;

pub use registry::{Orphan, orphans};
pub(crate) use registry::{flush_slot, of};

/// Most regions (chunks of pools) in a process.
pub const MAX_REGIONS: usize = 4096;
/// Most pools in a process.
pub const MAX_POOLS: usize = 1024;
/// Most buffers in a pool.
pub const MAX_COUNT: usize = 1 << 26;
/// Largest per-lcore cache.
pub const MAX_CACHE: usize = 512;
/// Largest buffer, headroom included.
pub const MAX_BUFFER: usize = u16::MAX as usize;
/// Most chunks in a pool.
pub const MAX_CHUNKS: usize = 256;

/// What pool to make.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Name in messages.
    pub name: String,
    /// Number of buffers.
    pub count: usize,
    /// Bytes of packet that a buffer holds.
    pub data_room: usize,
    /// Bytes before the packet.
    pub headroom: usize,
    /// Buffers in each lcore's cache; 0 for none.
    pub cache: usize,
    /// The node to be on.
    pub node: Option<NodeId>,
    /// Which pages.
    pub page: PageChoice,
    /// Number of segments to spread the buffers over, at distant addresses.
    pub chunks: usize,
}

impl PoolConfig {
    /// `count` buffers of 2,048 bytes behind 128 bytes of headroom, caches of 256, any
    /// node, best-effort pages, one chunk.
    pub fn new(name: impl Into<String>, count: usize) -> Self {
        Self {
            name: name.into(),
            count,
            data_room: 2048,
            headroom: 128,
            cache: 256.min(count),
            node: None,
            page: PageChoice::BestEffort,
            chunks: 1,
        }
    }

    /// With buffers for packets of `bytes`.
    #[must_use]
    pub fn data_room(mut self, bytes: usize) -> Self {
        self.data_room = bytes;
        self
    }

    /// With `bytes` before the packet.
    #[must_use]
    pub fn headroom(mut self, bytes: usize) -> Self {
        self.headroom = bytes;
        self
    }

    /// With caches of exactly `buffers`.
    #[must_use]
    pub fn cache(mut self, buffers: usize) -> Self {
        self.cache = buffers;
        self
    }

    /// On this node.
    #[must_use]
    pub fn node(mut self, node: Option<NodeId>) -> Self {
        self.node = node;
        self
    }

    /// With these pages.
    #[must_use]
    pub fn page(mut self, page: PageChoice) -> Self {
        self.page = page;
        self
    }

    /// Spread over this many segments.
    #[must_use]
    pub fn chunks(mut self, chunks: usize) -> Self {
        self.chunks = chunks;
        self
    }

    /// How many buffers keep queues and lcores supplied: those in `descriptors` of all
    /// rings together, a burst in each lcore's hands, and what rests in the caches.
    pub fn needed(descriptors: usize, lcores: usize, burst: usize, cache: usize) -> usize {
        descriptors + lcores * (burst + cache)
    }
}

/// How many buffers are where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Buffers in the pool.
    pub count: usize,
    /// Buffers at home: in the ring or in a cache.
    pub available: usize,
    /// Buffers outside.
    pub in_use: usize,
    /// Buffers in all lcores' caches.
    pub in_caches: usize,
    /// Times that a full cache sent buffers to the ring.
    pub cache_full: u64,
    /// Times that an empty cache fetched from the ring.
    pub cache_empty: u64,
    /// Gets that found too few buffers.
    pub failed: u64,
}

/// Buffers that are outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pool {pool:?}: {outstanding} of {count} buffers are outside{}", named(.indices))]
pub struct Leak {
    /// Name of the pool.
    pub pool: String,
    /// Number of buffers outside.
    pub outstanding: usize,
    /// Buffers of the pool.
    pub count: usize,
    /// Numbers of the first few of them (debug builds).
    pub indices: Vec<u32>,
}

fn named(indices: &[u32]) -> String {
    if indices.is_empty() {
        String::new()
    } else {
        format!(", first of them {indices:?}")
    }
}

/// A pool of packet buffers; clones are handles to the same one.
#[derive(Clone)]
pub struct Pool {
    inner: NonNull<PoolInner>,
    // Closes the pool when the last handle goes.
    _owner: Arc<registry::Owner>,
}

// SAFETY: PoolInner is Sync and lives while a handle does.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// A segment of data rooms.
pub(crate) struct Chunk {
    pub segment: Segment,
    iova: AtomicU64,
    lkey: AtomicU32,
    region: u16,
    /// Number of its first buffer, and how many there are.
    first: usize,
    count: usize,
}

/// The first line of a cache; its buffers follow.
#[repr(C, align(64))]
struct Cache {
    /// Buffers in the stack. Written by the slot's thread only; read by anybody.
    len: AtomicUsize,
    full: AtomicU64,
    empty: AtomicU64,
    failed: AtomicU64,
}

const CACHE_HEAD: usize = size_of::<Cache>();

/// The pool itself.
pub(crate) struct PoolInner {
    caches: NonNull<u8>,
    cache_stride: usize,
    cache_size: usize,
    /// Slots that have a cache: all or none.
    cache_slots: usize,
    buf_len: u16,
    headroom: u16,
    id: u16,
    count: usize,
    headers: NonNull<Header>,
    colds: NonNull<Cold>,
    ring: Ring<Raw, Multi, Multi>,
    stride: usize,
    chunks: Box<[Chunk]>,
    segments: Box<[Segment]>,
    name: String,
    node: Option<NodeId>,
    /// Failed gets of threads without a cache.
    failed: AtomicU64,
    /// Keeps headers, cold lines and caches mapped.
    metadata: Segment,
    /// Address space between the chunks.
    _gaps: Vec<Segment>,
}

// SAFETY: headers and cold lines are used by buffers' owners only, a cache by its slot's
// thread (or under the registry's lock, when the slot has none), the rest is atomic or
// never changes.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

/// Debug builds mark buffers as at home or out.
#[cfg(debug_assertions)]
mod cookie {
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

    #[inline(always)]
    fn cache(&self) -> Option<&Cache> {
        let slot = lcore::slot();
        // SAFETY: slot < cache_slots, of which each has a cache there.
        (slot < self.cache_slots).then(|| unsafe { self.cache_of(slot) })
    }

    /// # Safety
    /// `slot < cache_slots`.
    #[inline(always)]
    unsafe fn cache_of(&self, slot: usize) -> &Cache {
        // SAFETY: the array has cache_slots elements of cache_stride bytes; all fields
        // are atomics.
        unsafe {
            self.caches
                .add(slot * self.cache_stride)
                .cast::<Cache>()
                .as_ref()
        }
    }

    /// Where a cache's buffers lie.
    #[inline(always)]
    fn stack(cache: &Cache) -> *mut Raw {
        // The cache's stride has room for cache_size handles behind the first line; the
        // pointer is derived from the segment's below, not from the reference.
        std::ptr::from_ref(cache)
            .cast::<u8>()
            .wrapping_add(CACHE_HEAD)
            .cast_mut()
            .cast()
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
            let len = cache.len.load(Ordering::Relaxed);
            if n <= self.cache_size.wrapping_sub(len) {
                // SAFETY: len + n <= cache_size; only this thread uses the stack.
                unsafe {
                    Self::stack(cache)
                        .add(len)
                        .copy_from_nonoverlapping(from, n)
                };
                // The last thing done with the pool: with this buffer home, it may go.
                cache.len.store(len + n, Ordering::Release);
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
    unsafe fn put_ring(&self, from: *const Raw, n: usize) {
        // SAFETY: `from` holds n handles. The ring has room for all buffers there are.
        unsafe { self.ring.put(from, n, n, &mut 0) };
    }

    /// The cache overflows: the newest half of its size stays, what is older goes.
    ///
    /// # Safety
    /// As [`PoolInner::put`]; `cache` is this thread's and holds `len`.
    #[cold]
    #[inline(never)]
    unsafe fn put_flushing(&self, cache: &Cache, len: usize, from: *const Raw, n: usize) {
        let keep = self.cache_size / 2;
        let stack = Self::stack(cache);
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
        count(&cache.full);
        cache.len.store(keep, Ordering::Release);
    }

    /// Hands out `n` plain buffers, or none. On failure the places at `to` are
    /// unspecified.
    ///
    /// # Safety
    /// `to` has room for `n` handles.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, to: *mut Raw, n: usize) -> bool {
        let done = if let Some(cache) = self.cache() {
            let len = cache.len.load(Ordering::Relaxed);
            if n <= len {
                let rest = len - n;
                // SAFETY: the stack holds len; only this thread uses it.
                unsafe { copy(Self::stack(cache).add(rest), to, n) };
                cache.len.store(rest, Ordering::Release);
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
    unsafe fn get_refilling(&self, cache: &Cache, len: usize, to: *mut Raw, n: usize) -> bool {
        let stack = Self::stack(cache);
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
            count(&cache.failed);
            return false;
        }
        count(&cache.empty);
        cache.len.store(got - need, Ordering::Release);
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

    fn offset_in_chunk(&self, index: usize, chunk: &Chunk) -> usize {
        index.wrapping_sub(chunk.first).wrapping_mul(self.stride)
    }

    /// Runs `f` on the headers of a chunk's buffers that show their own room.
    fn for_headers(&self, chunk: &Chunk, mut f: impl FnMut(&AtomicU64, &AtomicU32, usize)) {
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

    fn in_caches(&self) -> usize {
        (0..self.cache_slots)
            // SAFETY: slot < cache_slots.
            .map(|slot| unsafe { self.cache_of(slot) }.len.load(Ordering::Acquire))
            .sum()
    }

    /// Buffers at home. Exact when nobody gets or puts meanwhile.
    fn available(&self) -> usize {
        (self.in_caches() + self.ring.len()).min(self.count)
    }

    /// Sends a slot's buffers to the ring.
    ///
    /// # Safety
    /// The slot's thread calls, or the slot has none.
    unsafe fn flush(&self, slot: usize) {
        if slot < self.cache_slots {
            // SAFETY: slot < cache_slots; exclusive by the caller's promise.
            unsafe {
                let cache = self.cache_of(slot);
                let len = cache.len.load(Ordering::Relaxed);
                self.put_ring(Self::stack(cache), len);
                cache.len.store(0, Ordering::Release);
            }
        }
    }

    fn leak(&self) -> Option<Leak> {
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

/// Counts for statistics; the counter has one writer, or may lose a count.
#[inline(always)]
fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

/// The device address at `offset` of a chunk; 0 stays "not registered".
fn device(chunk: u64, offset: usize) -> u64 {
    if chunk == UNREGISTERED {
        0
    } else {
        chunk.wrapping_add(offset as u64)
    }
}

/// A chunk that no device knows. No chunk starts there: it is not page-aligned.
const UNREGISTERED: u64 = u64::MAX;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool, or nothing.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] for a number outside its range, the errors of
    /// [`Segment::map`] when memory is short; all memory is checked for before any is
    /// taken.
    pub fn new(config: &PoolConfig) -> Result<Self, MemoryError> {
        match config.node {
            Some(_) => Self::new_on(config, topology::current().as_ref()),
            // Nothing to bind, so counters are enough.
            None => Self::new_on(config, &SysfsTopology::this_system()),
        }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &PoolInner {
        // SAFETY: the pool lives while a handle does.
        unsafe { self.inner.as_ref() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// Process-wide number of the pool, as [`Mbuf::pool_id`] says it.
    pub fn id(&self) -> u16 {
        self.inner().id
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        self.inner().count
    }

    /// Bytes of packet that a fresh buffer holds.
    pub fn data_room(&self) -> usize {
        usize::from(self.inner().buf_len - self.inner().headroom)
    }

    /// Bytes before the packet in a fresh buffer.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.inner().headroom)
    }

    /// Buffers in each lcore's cache.
    pub fn cache_size(&self) -> usize {
        self.inner().cache_size
    }

    /// The node that it was asked to be on.
    pub fn node(&self) -> Option<NodeId> {
        self.inner().node
    }

    /// The segments of data rooms: what a device must be able to reach.
    pub fn chunks(&self) -> &[Segment] {
        &self.inner().segments
    }

    /// The process-wide number of a chunk, as [`Mbuf::region`] says it.
    pub fn region(&self, chunk: usize) -> Option<u16> {
        self.inner().chunks.get(chunk).map(|c| c.region)
    }

    /// The segment that holds headers and caches; devices have no business there.
    pub fn metadata(&self) -> &Segment {
        &self.inner().metadata
    }

    /// What went less well than asked: pages, binding.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for segment in self.chunks().iter().chain([self.metadata()]) {
            all.extend(segment.shortfall().map(str::to_owned));
            all.extend(segment.warnings().iter().cloned());
        }
        all
    }

    /// Says at which device address a chunk starts; buffers carry theirs from then on.
    /// Before the first traffic; false for a chunk that there is not.
    pub fn set_chunk_iova(&self, chunk: usize, iova: u64) -> bool {
        let inner = self.inner();
        let Some(chunk) = inner.chunks.get(chunk) else {
            return false;
        };
        chunk.iova.store(iova, Ordering::Relaxed);
        inner.for_headers(chunk, |word, _, offset| {
            word.store(device(iova, offset), Ordering::Relaxed);
        });
        true
    }

    /// Says under which key the device knows a chunk. Before the first traffic; false
    /// for a chunk that there is not.
    pub fn set_chunk_lkey(&self, chunk: usize, lkey: u32) -> bool {
        let inner = self.inner();
        let Some(chunk) = inner.chunks.get(chunk) else {
            return false;
        };
        chunk.lkey.store(lkey, Ordering::Relaxed);
        inner.for_headers(chunk, |_, word, _| word.store(lkey, Ordering::Relaxed));
        true
    }

    /// An empty packet of one buffer, or `None` when the pool is.
    #[inline]
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut mbuf = self.inner().get_one()?;
        mbuf.describe(self.inner().headroom, 0, RxMeta::default());
        Some(mbuf)
    }

    /// Adds `n` buffers to a burst, or none (false): too few at home, or no room. Their
    /// lengths and flags are as the last user left them; this is for who sets them all,
    /// as a receive queue does.
    #[inline]
    pub fn get_bulk(&self, burst: &mut Burst, n: usize) -> bool {
        if n > burst.room() {
            return false;
        }
        // SAFETY: room for n behind the filled part; counted when they were got.
        unsafe {
            let done = self.inner().get(burst.spare(), n);
            if done {
                burst.grow(n);
            }
            done
        }
    }

    /// As [`Pool::get_bulk`], with each buffer reset to an empty packet.
    #[inline]
    pub fn alloc_bulk(&self, burst: &mut Burst, n: usize) -> bool {
        let before = burst.len();
        let done = self.get_bulk(burst, n);
        if done {
            let headroom = self.inner().headroom;
            for mbuf in burst.iter_mut().skip(before) {
                mbuf.describe(headroom, 0, RxMeta::default());
            }
        }
        done
    }

    /// Frees all packets of a burst; each goes to its own pool.
    #[inline]
    pub fn put_bulk(&self, burst: &mut Burst) {
        burst.clear();
    }

    /// Buffers at home; exact when nobody gets or puts meanwhile.
    pub fn available(&self) -> usize {
        self.inner().available()
    }

    /// Buffers outside; exact when nobody gets or puts meanwhile.
    pub fn in_use(&self) -> usize {
        self.count() - self.available()
    }

    /// How many buffers are where, and what the caches had to do.
    pub fn stats(&self) -> PoolStats {
        let inner = self.inner();
        let in_caches = inner.in_caches();
        let available = (in_caches + inner.ring.len()).min(inner.count);
        let mut stats = PoolStats {
            count: inner.count,
            available,
            in_use: inner.count - available,
            in_caches,
            cache_full: 0,
            cache_empty: 0,
            failed: inner.failed.load(Ordering::Relaxed),
        };
        for slot in 0..inner.cache_slots {
            // SAFETY: slot < cache_slots.
            let cache = unsafe { inner.cache_of(slot) };
            stats.cache_full += cache.full.load(Ordering::Relaxed);
            stats.cache_empty += cache.empty.load(Ordering::Relaxed);
            stats.failed += cache.failed.load(Ordering::Relaxed);
        }
        stats
    }

    /// Checks that every buffer is home.
    ///
    /// # Errors
    /// [`Leak`] says how many are not, and which (debug builds).
    pub fn check(&self) -> Result<(), Leak> {
        self.inner().leak().map_or(Ok(()), Err)
    }

    /// Sends what this thread's cache holds to the ring, for others to get.
    pub fn flush_cache(&self) {
        let slot = lcore::slot();
        if slot < MAX_LCORES {
            // SAFETY: this thread's slot.
            unsafe { self.inner().flush(slot) };
        }
    }

    /// A warning when the pool cannot keep `descriptors` and `lcores` supplied.
    pub fn too_small_for(&self, descriptors: usize, lcores: usize, burst: usize) -> Option<String> {
        let needed = PoolConfig::needed(descriptors, lcores, burst, self.cache_size());
        (self.count() < needed).then(|| {
            format!(
                "pool {:?} has {} buffers, but {descriptors} descriptors and {lcores} lcores need {needed}: packets will be dropped for lack of buffers; make it {needed} or larger",
                self.name(),
                self.count()
            )
        })
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::*;

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
