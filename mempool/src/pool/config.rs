//! What pool to make, and what is told of one.

use crate::segment::PageChoice;
use crate::topology::NodeId;

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
