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
use std::sync::atomic::Ordering;

use crate::burst::Burst;
use crate::error::MemoryError;
use crate::lcore::{self, MAX_LCORES};
use crate::mbuf::{Mbuf, RxMeta};
use crate::segment::Segment;
use crate::topology::{self, NodeId, SysfsTopology};

mod build;
mod cache;
mod config;
mod inner;
mod registry;

pub use config::{Leak, PoolConfig, PoolStats};
pub(crate) use inner::PoolInner;
use inner::device;
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
            let cache = cache.head();
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
