//! How a pool is made: numbers checked, memory checked, then mapped and laid out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::cache::Cache;
use super::inner::{Chunk, PoolInner, UNREGISTERED};
use super::registry::{self, Number, Regions};
use super::{MAX_BUFFER, MAX_CACHE, MAX_CHUNKS, MAX_COUNT, Pool, PoolConfig};
use crate::error::MemoryError;
use crate::lcore::MAX_LCORES;
use crate::mbuf::TxOffload;
use crate::mbuf::header::{Cold, Header, Raw, State};
use crate::ring::Ring;
use crate::segment::{self, PageChoice, Segment, SegmentRequest};
use crate::topology::Topology;

const LINE: usize = 64;

/// Metadata from this size on is worth a hugepage, where data has them.
const WORTH_HUGE: usize = 128 << 10;

fn check(
    what: &'static str,
    given: usize,
    min: usize,
    max: usize,
    remedy: &str,
) -> Result<(), MemoryError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(MemoryError::OutOfRange {
        what,
        given: given as u64,
        min: min as u64,
        max: max as u64,
        remedy: remedy.into(),
    })
}

impl Pool {
    /// As [`Pool::new`], on a given topology.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn new_on(config: &PoolConfig, topology: &dyn Topology) -> Result<Self, MemoryError> {
        check("buffers of a pool", config.count, 1, MAX_COUNT, "")?;
        check(
            "cache of a pool",
            config.cache,
            0,
            MAX_CACHE.min(config.count),
            "a cache cannot exceed its pool",
        )?;
        check("data room of a buffer", config.data_room, 1, MAX_BUFFER, "")?;
        check(
            "headroom and data room of a buffer",
            config.headroom.saturating_add(config.data_room),
            1,
            MAX_BUFFER,
            "larger packets are chains of buffers",
        )?;
        check(
            "chunks of a pool",
            config.chunks,
            1,
            MAX_CHUNKS.min(config.count),
            "",
        )?;
        let layout = Layout::of(config);
        let requests: Vec<SegmentRequest> = (0..config.chunks)
            .map(|k| {
                let (_, count) = layout.part(k, config.count);
                SegmentRequest::new(config.name.clone(), count * layout.stride)
                    .page(config.page)
                    .node(config.node)
            })
            .filter(|r| r.len != 0)
            .collect();
        segment::would_fit(&requests, topology)?;

        let mut segments = Vec::with_capacity(requests.len());
        let mut gaps = Vec::new();
        for request in &requests {
            segments.push(map_apart(request, topology, &segments, &mut gaps)?);
        }
        let huge = segments.iter().all(|s: &Segment| s.page_size().is_huge());
        let metadata = map_metadata(config, &layout, huge, topology)?;
        let regions = Regions::take(segments.len())?;
        let number = Number::take()?;
        let ring = Ring::with_capacity(config.count)?;

        let chunks: Box<[Chunk]> = segments
            .iter()
            .zip(regions.numbers())
            .enumerate()
            .map(|(k, (segment, region))| {
                let (first, count) = layout.part(k, config.count);
                Chunk {
                    segment: segment.clone(),
                    iova: AtomicU64::new(UNREGISTERED),
                    lkey: AtomicU32::new(0),
                    region: *region,
                    first,
                    count,
                }
            })
            .collect();
        let base = metadata.base();
        // SAFETY: the offsets are inside the segment, which map_metadata sized by the
        // same layout.
        let (colds, caches) = unsafe { (base.add(layout.colds), base.add(layout.caches)) };
        let inner = PoolInner {
            caches,
            cache_stride: layout.cache_stride,
            cache_size: config.cache,
            cache_slots: layout.cache_slots,
            buf_len: (config.headroom + config.data_room) as u16,
            headroom: config.headroom as u16,
            id: number.get(),
            count: config.count,
            headers: base.cast(),
            colds: colds.cast(),
            ring,
            stride: layout.stride,
            chunks,
            segments: segments.into(),
            name: config.name.clone(),
            node: config.node,
            failed: AtomicU64::new(0),
            metadata,
            _gaps: gaps,
        };
        inner.lay_out();
        regions.keep();
        Ok(registry::publish(inner, number))
    }
}

/// Where everything lies, in bytes.
struct Layout {
    /// From one data room to the next: an odd number of cache lines, so that the first
    /// lines of packets spread over all cache sets.
    stride: usize,
    per_chunk: usize,
    colds: usize,
    caches: usize,
    cache_stride: usize,
    cache_slots: usize,
    metadata: usize,
}

impl Layout {
    fn of(config: &PoolConfig) -> Self {
        let lines = (config.headroom + config.data_room).div_ceil(LINE) | 1;
        let colds = config.count * size_of::<Header>();
        let caches = (colds + config.count * size_of::<Cold>()).next_multiple_of(2 * LINE);
        let cache_slots = if config.cache == 0 { 0 } else { MAX_LCORES };
        let cache_stride = Cache::stride(config.cache);
        Self {
            stride: lines * LINE,
            per_chunk: config.count.div_ceil(config.chunks),
            colds,
            caches,
            cache_stride,
            cache_slots,
            metadata: caches + cache_slots * cache_stride,
        }
    }

    /// (first buffer, number of buffers) of a chunk.
    fn part(&self, chunk: usize, count: usize) -> (usize, usize) {
        let first = (chunk * self.per_chunk).min(count);
        (first, self.per_chunk.min(count - first))
    }
}

/// How often a place away from the other chunks is looked for; a pool is one all the same.
const TRIES: usize = 64;

fn touches(segments: &[Segment], other: &Segment) -> bool {
    let (start, end) = (other.address(), other.address() + other.len());
    segments
        .iter()
        .any(|s| s.address() == end || s.address() + s.len() == start)
}

/// Maps a chunk that is nobody's neighbour: neighbours would hide a driver's mistake about chunks.
fn map_apart(
    request: &SegmentRequest,
    topology: &dyn Topology,
    segments: &[Segment],
    gaps: &mut Vec<Segment>,
) -> Result<Segment, MemoryError> {
    for _ in 0..TRIES {
        // Fills address space next to the segments there are, until the next mapping goes elsewhere.
        while gaps.len() < TRIES {
            let probe = Segment::reserve(request.len)?;
            if !touches(segments, &probe) {
                break;
            }
            gaps.push(probe);
        }
        let segment = Segment::map_on(request, topology)?;
        // Another thread may have mapped or unmapped something meanwhile.
        if !touches(segments, &segment) {
            return Ok(segment);
        }
    }
    Segment::map_on(request, topology)
}

fn map_metadata(
    config: &PoolConfig,
    layout: &Layout,
    huge: bool,
    topology: &dyn Topology,
) -> Result<Segment, MemoryError> {
    let request = SegmentRequest::new(format!("{} metadata", config.name), layout.metadata)
        .node(config.node)
        .page(PageChoice::Ordinary);
    if huge && layout.metadata >= WORTH_HUGE {
        let large = request.clone().page(PageChoice::Huge2M);
        if let Ok(segment) = Segment::map_on(&large, topology) {
            return Ok(segment);
        }
    }
    Segment::map_on(&request, topology)
}

impl PoolInner {
    /// Writes all headers, cold lines and caches, and fills the ring.
    fn lay_out(&self) {
        for (number, chunk) in (0u16..).zip(self.chunks.iter()) {
            for index in chunk.first..chunk.first + chunk.count {
                let offset = self.offset_in_chunk(index, chunk);
                // SAFETY: index < count, so header and cold line are inside their
                // arrays, and the room is inside the chunk; nobody else knows the pool.
                unsafe {
                    let header = self.headers.add(index);
                    header.write(Header {
                        base: chunk.segment.base().add(offset),
                        iova: AtomicU64::new(0),
                        next: None,
                        state: AtomicU64::new(State::plain(self.id, self.buf_len)),
                        lkey: AtomicU32::new(0),
                        pkt_len: 0,
                        data_off: self.headroom,
                        data_len: 0,
                        port: 0,
                        queue: 0,
                        packet_type: 0,
                        rss_hash: 0,
                        flags: 0,
                        vlan_tci: 0,
                        region: chunk.region,
                    });
                    self.colds.add(index).write(Cold {
                        cookie: AtomicU64::new(first_cookie()),
                        external: None::<Arc<_>>,
                        owner: None,
                        timestamp: 0,
                        tx: TxOffload::default(),
                        mark: 0,
                        vlan_outer: 0,
                        chunk: number,
                        index: index as u32,
                    });
                    self.put_ring(&Raw(header), 1);
                }
            }
        }
        // The caches are zeros, as the kernel gave them: empty.
    }
}

#[cfg(debug_assertions)]
fn first_cookie() -> u64 {
    super::inner::cookie::HOME
}

#[cfg(not(debug_assertions))]
fn first_cookie() -> u64 {
    0
}
