//! Pools, caches and packet buffers through the public API.
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pollux_mempool::mbuf::{ExternalBuffer, NO_REGION, flags};
use pollux_mempool::pool::{self, Leak};
use pollux_mempool::{
    Burst, InFlight, Lcore, Mbuf, MemoryError, PageChoice, Pool, PoolConfig, RxMeta, Segment,
    SegmentRequest,
};

fn config(count: usize) -> PoolConfig {
    PoolConfig::new("test", count).page(PageChoice::Ordinary)
}

fn pool(count: usize, cache: usize) -> Pool {
    Pool::new(&config(count).cache(cache)).unwrap()
}

#[test]
fn a_fresh_buffer_is_an_empty_packet() {
    let pool = Pool::new(&config(4).data_room(1500).headroom(64)).unwrap();
    let m = pool.alloc().unwrap();
    assert_eq!(m.data(), b"");
    assert_eq!((m.headroom(), m.tailroom(), m.buf_len()), (64, 1500, 1564));
    assert_eq!((m.pkt_len(), m.nb_segs(), m.flags()), (0, 1, 0));
    assert_eq!(pool.in_use(), 1);
    drop(m);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn an_optional_handle_is_eight_bytes() {
    assert_eq!(size_of::<Option<Mbuf>>(), 8);
}

#[test]
fn data_grows_and_shrinks_at_both_ends() {
    let pool = pool(2, 0);
    let mut m = pool.alloc().unwrap();
    m.append(4).unwrap().copy_from_slice(b"body");
    m.prepend(5).unwrap().copy_from_slice(b"head ");
    assert!(m.extend_from_slice(b" tail"));
    assert_eq!(m.data(), b"head body tail");
    assert_eq!(m.pkt_len(), 14);
    assert_eq!(m.headroom(), 123);
    assert!(m.adj(5));
    assert!(m.trim(5));
    assert_eq!(m.data(), b"body");
    m.data_mut().unwrap()[0] = b'B';
    assert_eq!(m.data(), b"Body");
    // What does not fit changes nothing.
    assert!(m.prepend(129).is_none());
    assert!(m.append(2045).is_none());
    assert!(m.append(usize::MAX).is_none());
    assert!(!m.adj(5) && !m.trim(5));
    assert_eq!(m.data(), b"Body");
    assert!(m.append(2044).is_some());
    assert_eq!((m.tailroom(), m.pkt_len()), (0, 2048));
    m.reset();
    assert_eq!((m.pkt_len(), m.headroom()), (0, 128));
}

#[test]
fn what_the_driver_says_is_kept() {
    let pool = pool(1, 0);
    let mut m = pool.alloc().unwrap();
    let meta = RxMeta {
        port: 3,
        queue: 7,
        flags: flags::RX_RSS_HASH | flags::RX_VLAN_STRIPPED,
        packet_type: 0x111,
        rss_hash: 0xdead_beef,
        vlan_tci: 42,
    };
    m.received(1514, meta);
    assert_eq!((m.port(), m.queue(), m.vlan_tci()), (3, 7, 42));
    assert_eq!((m.rss_hash(), m.packet_type()), (0xdead_beef, 0x111));
    assert_eq!((m.data_len(), m.pkt_len(), m.headroom()), (1514, 1514, 128));
    // A device that claims more than the buffer holds is cut.
    m.received(u32::MAX, meta);
    assert_eq!((m.data_len(), m.pkt_len()), (2048, 2048));
}

#[test]
fn a_get_succeeds_exactly_when_cache_and_ring_hold_enough() {
    let _lcore = Lcore::register().unwrap();
    for cache in [0, 1, 2, 7, 32, 100] {
        let pool = pool(100, cache);
        let mut burst = Burst::with_capacity(128);
        for n in 0..=100 {
            assert!(pool.get_bulk(&mut burst, n), "{n} of 100, cache {cache}");
            assert_eq!(burst.len(), n);
            // With n outside, 100 - n are there and not one more.
            let mut more = Burst::with_capacity(128);
            assert!(!pool.get_bulk(&mut more, 101 - n));
            assert!(more.is_empty());
            assert!(pool.get_bulk(&mut more, 100 - n));
            drop(more);
            burst.clear();
        }
        assert_eq!(pool.available(), 100);
        assert!(!pool.get_bulk(&mut burst, 101));
        assert!(pool.stats().failed > 0);
    }
}

#[test]
fn a_burst_without_room_gets_nothing() {
    let pool = pool(8, 0);
    let mut burst = Burst::with_capacity(4);
    assert!(pool.get_bulk(&mut burst, 3));
    assert!(!pool.get_bulk(&mut burst, 2));
    assert_eq!((burst.len(), pool.in_use()), (3, 3));
}

#[test]
fn the_last_freed_is_the_first_reused() {
    let _lcore = Lcore::register().unwrap();
    let pool = pool(64, 16);
    let mut held: Vec<Mbuf> = (0..40).map(|_| pool.alloc().unwrap()).collect();
    for _ in 0..100 {
        let m = held.pop().unwrap();
        let index = m.index();
        drop(m);
        let again = pool.alloc().unwrap();
        assert_eq!(again.index(), index);
        held.insert(0, again);
    }
    // Also when the cache overflows on the way: the newest stay.
    let order: Vec<u32> = held.iter().map(Mbuf::index).collect();
    for m in held.drain(..) {
        drop(m);
    }
    for expect in order.iter().rev().take(8) {
        let m = pool.alloc().unwrap();
        assert_eq!(m.index(), *expect);
        held.push(m);
    }
}

#[test]
fn a_cache_holds_exactly_what_was_configured() {
    let _lcore = Lcore::register().unwrap();
    for cache in [1, 2, 3, 8, 64, 512] {
        let pool = pool(2048, cache);
        let mut held: Vec<Mbuf> = (0..1500).map(|_| pool.alloc().unwrap()).collect();
        let mut most = 0;
        while let Some(m) = held.pop() {
            drop(m);
            most = most.max(pool.stats().in_caches);
        }
        assert_eq!(most, cache);
    }
}

#[test]
fn flushes_are_rare_and_by_half() {
    let _lcore = Lcore::register().unwrap();
    let pool = pool(4096, 256);
    let held: Vec<Mbuf> = (0..4000).map(|_| pool.alloc().unwrap()).collect();
    let fetched = pool.stats().cache_empty;
    // Half a cache at a time (and the one that was asked for).
    assert!((31..=32).contains(&fetched), "{fetched}");
    drop(held);
    let sent = pool.stats().cache_full;
    assert!((29..=31).contains(&sent), "{sent}");
}

#[test]
fn a_thread_without_slot_uses_the_ring() {
    let pool = pool(64, 32);
    let m = pool.alloc().unwrap();
    drop(m);
    assert_eq!(pool.stats().in_caches, 0);
    assert_eq!(pool.available(), 64);
}

#[test]
fn a_leaving_lcore_sends_its_cache_home() {
    let pool = pool(64, 32);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _lcore = Lcore::register().unwrap();
            drop(pool.alloc().unwrap());
            assert!(pool.stats().in_caches > 0);
        });
    });
    assert_eq!(pool.stats().in_caches, 0);
    let mut burst = Burst::with_capacity(64);
    assert!(pool.get_bulk(&mut burst, 64));
}

#[test]
fn a_pool_lives_until_its_last_buffer_is_home() {
    let pool = pool(16, 8);
    let segment = pool.chunks()[0].clone();
    let id = pool.id();
    let mut m = pool.alloc().unwrap();
    drop(pool);
    assert!(
        pool::orphans()
            .iter()
            .any(|o| o.id == id && o.leak.outstanding == 1)
    );
    m.append(3).unwrap().copy_from_slice(b"abc");
    assert_eq!(m.data(), b"abc");
    drop(m);
    assert!(pool::orphans().iter().all(|o| o.id != id));
    drop(segment);
}

#[test]
fn leaks_are_named() {
    let pool = pool(16, 0);
    let m = pool.alloc().unwrap();
    let index = m.index();
    let Leak {
        outstanding,
        count,
        indices,
        ..
    } = pool.check().unwrap_err();
    assert_eq!((outstanding, count), (1, 16));
    if cfg!(debug_assertions) {
        assert_eq!(indices, [index]);
    }
    drop(m);
    assert!(pool.check().is_ok());
}

#[test]
fn scattered_chunks_each_have_their_own_address_and_key() {
    let pool = Pool::new(&config(100).chunks(3).cache(0)).unwrap();
    assert_eq!(pool.chunks().len(), 3);
    for (k, iova) in [(0, 0x1000_0000u64), (1, 0x9_0000_0000), (2, 0x5000_0000)] {
        assert!(pool.set_chunk_iova(k, iova));
        assert!(pool.set_chunk_lkey(k, 0x100 + k as u32));
    }
    assert!(!pool.set_chunk_iova(3, 0));
    let regions: HashSet<u16> = (0..3).map(|k| pool.region(k).unwrap()).collect();
    assert_eq!(regions.len(), 3);
    let mut burst = Burst::with_capacity(100);
    assert!(pool.alloc_bulk(&mut burst, 100));
    let mut seen = [0; 3];
    let mut places = HashSet::new();
    for m in burst.iter_mut() {
        let k = usize::from(m.chunk());
        seen[k] += 1;
        let offset = m.data_offset_in_chunk().unwrap();
        assert!(offset >= 128 && offset + 2048 <= pool.chunks()[k].len());
        assert!(places.insert((k, offset)));
        assert_eq!(m.lkey(), 0x100 + k as u32);
        assert_eq!(Some(m.region()), pool.region(k));
        let base = [0x1000_0000u64, 0x9_0000_0000, 0x5000_0000][k];
        assert_eq!(m.data_iova(), base + offset as u64);
        // The bytes are where the segment says.
        m.append(4).unwrap().copy_from_slice(&m_index(k, offset));
        let there = pool.chunks()[k].whole().to_vec(offset, 4).unwrap();
        assert_eq!(there, m_index(k, offset));
    }
    assert!(seen.iter().all(|n| *n >= 32), "{seen:?}");
    assert_apart(&pool);
}

/// Where the chunks are, in order; no two are neighbours.
fn assert_apart(pool: &Pool) {
    let spans = spans(pool);
    assert!(spans.windows(2).all(|w| w[0].1 < w[1].0), "{spans:x?}");
}

fn spans(pool: &Pool) -> Vec<(usize, usize)> {
    let chunks = pool.chunks().iter();
    let mut spans: Vec<(usize, usize)> = chunks
        .map(|c| (c.address(), c.address() + c.len()))
        .collect();
    spans.sort_unstable();
    spans
}

#[test]
fn chunks_stay_apart_while_others_map_memory() {
    let stop = AtomicBool::new(false);
    let made = || Pool::new(&config(100).chunks(3).cache(0)).unwrap();
    let close = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(made());
                }
            });
        }
        let all = (0..200).map(|_| spans(&made()));
        let close: Vec<_> = all
            .filter(|spans| spans.windows(2).any(|w| w[0].1 >= w[1].0))
            .collect();
        stop.store(true, Ordering::Relaxed);
        close
    });
    assert!(close.is_empty(), "{close:x?}");
}

fn m_index(k: usize, offset: usize) -> [u8; 4] {
    ((k << 28 | offset) as u32).to_be_bytes()
}

#[test]
fn chains() {
    let pool = pool(8, 0);
    let mut head = pool.alloc().unwrap();
    assert!(head.extend_from_slice(b"one "));
    for text in [&b"two "[..], b"three"] {
        let mut m = pool.alloc().unwrap();
        assert!(m.extend_from_slice(text));
        head.push_segment(m).unwrap();
    }
    assert_eq!(
        (head.nb_segs(), head.pkt_len(), head.data_len()),
        (3, 13, 4)
    );
    assert_eq!(head.to_vec(), b"one two three");
    let lens: Vec<usize> = head.segments().map(|s| s.data_len()).collect();
    assert_eq!(lens, [4, 4, 5]);
    let mut part = [0; 5];
    assert_eq!(head.copy_out(6, &mut part), 5);
    assert_eq!(&part, b"o thr");
    assert_eq!(head.copy_out(13, &mut part), 0);
    // Ends of the packet, not of the first segment.
    assert!(head.extend_from_slice(b"!"));
    assert!(head.trim(2));
    assert!(!head.trim(5));
    assert_eq!(head.to_vec(), b"one two thre");
    assert_eq!(head.pkt_len(), 12);
    assert_eq!(pool.in_use(), 3);
    head.reset();
    assert_eq!((pool.in_use(), head.nb_segs()), (1, 1));
    drop(head);
    assert!(pool.check().is_ok());
}

#[test]
fn a_chain_has_a_limit() {
    let pool = pool(300, 0);
    let mut head = pool.alloc().unwrap();
    for _ in 1..255 {
        head.push_segment(pool.alloc().unwrap()).unwrap();
    }
    let refused = head.push_segment(pool.alloc().unwrap());
    assert_eq!(refused.unwrap_err().nb_segs(), 1);
    assert_eq!(head.nb_segs(), 255);
    drop(head);
    assert!(pool.check().is_ok());
}

#[test]
fn shared_bytes_cannot_be_written() {
    let pool = pool(8, 0);
    let mut a = pool.alloc().unwrap();
    assert!(a.extend_from_slice(b"shared"));
    let mut b = a.clone_ref().unwrap();
    assert_eq!(b.data(), b"shared");
    assert_eq!(b.data().as_ptr(), a.data().as_ptr());
    assert_eq!(b.data_iova(), a.data_iova());
    assert!(a.data_mut().is_none() && b.data_mut().is_none());
    assert!(a.append(1).is_none() && b.prepend(1).is_none());
    // Each has its own header.
    assert!(b.adj(2));
    assert_eq!((a.data(), b.data()), (&b"shared"[..], &b"ared"[..]));
    let c = b.clone_ref().unwrap();
    assert_eq!(pool.in_use(), 3);
    // The original's buffer stays away while its bytes are shown.
    drop(a);
    assert_eq!(pool.in_use(), 3);
    assert_eq!(c.data(), b"ared");
    drop(c);
    assert_eq!(pool.in_use(), 2);
    // The last sharer may write.
    b.data_mut().unwrap()[0] = b'A';
    assert_eq!(b.data(), b"Ared");
    drop(b);
    assert!(pool.check().is_ok());
    // And the next user finds plain buffers.
    let mut all = Burst::with_capacity(8);
    assert!(pool.alloc_bulk(&mut all, 8));
    let rooms: HashSet<u64> = all.iter().map(Mbuf::data_address).collect();
    assert_eq!(rooms.len(), 8);
    assert!(
        all.iter_mut()
            .all(|m| m.data_mut().is_some() && !m.is_attached())
    );
}

#[test]
fn a_shared_chain_keeps_its_shape() {
    let pool = pool(8, 0);
    let mut a = pool.alloc().unwrap();
    assert!(a.extend_from_slice(b"12"));
    let mut tail = pool.alloc().unwrap();
    assert!(tail.extend_from_slice(b"345"));
    a.push_segment(tail).unwrap();
    let b = a.clone_ref().unwrap();
    assert_eq!(
        (b.to_vec(), b.nb_segs(), b.pkt_len()),
        (b"12345".to_vec(), 2, 5)
    );
    // A segment pushed while shared is the original's alone.
    a.push_segment(pool.alloc().unwrap()).unwrap();
    assert_eq!((a.nb_segs(), b.nb_segs()), (3, 2));
    drop(a);
    assert_eq!(b.to_vec(), b"12345");
    drop(b);
    assert!(pool.check().is_ok());
}

#[test]
fn a_clone_needs_a_buffer() {
    let pool = pool(3, 0);
    let mut a = pool.alloc().unwrap();
    a.push_segment(pool.alloc().unwrap()).unwrap();
    assert!(a.clone_ref().is_none());
    assert!(a.data_mut().is_some());
    assert_eq!(pool.in_use(), 2);
}

#[test]
fn external_memory_is_freed_with_its_last_packet() {
    let pool = pool(8, 0);
    let outside =
        Segment::map(&SegmentRequest::new("outside", 4096).page(PageChoice::Ordinary)).unwrap();
    outside.whole().copy_in(100, b"external").unwrap();
    let freed = Arc::new(AtomicUsize::new(0));
    let count = freed.clone();
    let external = Arc::new(
        ExternalBuffer::new(outside.window(64, 1000).unwrap(), move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap()
        .device_address(0x7000, 9),
    );
    let mut a = pool.alloc().unwrap();
    a.attach_external(&external, 36, 8).unwrap();
    assert_eq!(a.data(), b"external");
    assert_eq!(
        (a.data_iova(), a.lkey(), a.region()),
        (0x7000 + 36, 9, NO_REGION)
    );
    assert!(a.data_offset_in_chunk().is_none());
    assert!(
        a.attach_external(&external, 0, 1).is_err(),
        "attached already"
    );
    let mut b = pool.alloc().unwrap();
    assert!(matches!(
        b.attach_external(&external, 999, 2),
        Err(MemoryError::OutOfBounds { .. })
    ));
    drop((external, outside));
    let c = a.clone_ref().unwrap();
    assert!(a.data_mut().is_none());
    drop(a);
    assert_eq!(c.data(), b"external");
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    drop(c);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    drop(b);
    assert!(pool.check().is_ok());
}

#[test]
fn detaching_gives_the_own_room_back() {
    let pool = pool(1, 0);
    assert!(pool.set_chunk_iova(0, 0x4000));
    let mut m = pool.alloc().unwrap();
    let own = (m.data_address(), m.data_iova(), m.region());
    let other = Segment::map(&SegmentRequest::new("x", 64).page(PageChoice::Ordinary)).unwrap();
    let external = Arc::new(ExternalBuffer::new(other.whole(), || ()).unwrap());
    m.attach_external(&external, 0, 64).unwrap();
    assert_ne!(m.data_address(), own.0);
    m.detach();
    assert_eq!((m.data_address(), m.data_iova(), m.region()), own);
    assert_eq!((m.pkt_len(), m.tailroom()), (0, 2048));
    assert_eq!(Arc::strong_count(&external), 1);
}

#[test]
fn a_burst_is_first_in_first_out() {
    let pool = pool(16, 0);
    let mut burst = Burst::with_capacity(4);
    let mut next = 0u16;
    let mut expect = 0u16;
    for round in 0..50 {
        for _ in 0..(round % 5) {
            let mut m = pool.alloc().unwrap();
            m.set_port(next);
            match burst.push(m) {
                Ok(()) => next += 1,
                Err(back) => assert_eq!((back.port(), burst.len()), (next, 4)),
            }
        }
        let ports: Vec<u16> = burst.iter().map(Mbuf::port).collect();
        assert!(ports.iter().copied().eq(expect..next));
        for _ in 0..(round % 3) {
            if let Some(m) = burst.pop_front() {
                assert_eq!(m.port(), expect);
                expect += 1;
            }
        }
    }
    burst.truncate(1);
    assert!(burst.len() <= 1);
    drop(burst);
    assert!(pool.check().is_ok());
}

#[test]
fn bursts_of_several_pools_go_home_each_to_its_own() {
    let (a, b) = (pool(8, 0), pool(8, 0));
    let mut burst = Burst::with_capacity(16);
    for k in 0..14 {
        let from = if k % 3 == 0 { &a } else { &b };
        if let Some(m) = from.alloc() {
            burst.push(m).unwrap();
        }
    }
    assert_eq!(a.in_use() + b.in_use(), burst.len());
    let mut other = Burst::with_capacity(3);
    assert_eq!(burst.move_to(&mut other, 10), 3);
    burst.free_front(2);
    a.put_bulk(&mut burst);
    other.drain().next();
    assert_eq!((a.in_use(), b.in_use()), (0, 0));
}

/// Numbers of the packets in two spans.
fn numbers([a, b]: [&mut [Mbuf]; 2]) -> Vec<u32> {
    a.iter().chain(&*b).map(Mbuf::index).collect()
}

#[test]
fn in_flight_keeps_order_over_its_end() {
    let pool = pool(64, 0);
    let mut flying = InFlight::new(8).unwrap();
    assert!(InFlight::new(6).is_err() && InFlight::new(0).is_err());
    let mut burst = Burst::with_capacity(16);
    let mut back = Burst::with_capacity(16);
    for _ in 0..50 {
        assert!(pool.alloc_bulk(&mut burst, 5));
        let order: Vec<u32> = burst.iter().map(Mbuf::index).collect();
        assert_eq!(flying.put_from(&mut burst, 9), 5);
        assert_eq!((flying.len(), flying.room()), (5, 3));
        assert!(burst.is_empty());
        assert_eq!(numbers(flying.oldest(9)), order);
        assert_eq!(numbers(flying.newest(2)), order[3..]);
        assert_eq!(flying.take_into(&mut back, 3), 3);
        assert_eq!(flying.take_into(&mut back, 8), 2);
        assert_eq!(back.iter().map(Mbuf::index).collect::<Vec<_>>(), order);
        back.clear();
    }
    assert!(flying.is_empty());
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn in_flight_takes_what_it_has_room_for() {
    let pool = pool(32, 0);
    let mut flying = InFlight::new(8).unwrap();
    assert!(!flying.fill_from(&pool, 9));
    assert!(flying.fill_from(&pool, 5));
    assert!(!flying.fill_from(&pool, 4));
    assert_eq!((flying.len(), pool.in_use()), (5, 5));
    let mut burst = Burst::with_capacity(6);
    assert!(pool.alloc_bulk(&mut burst, 6));
    assert_eq!(flying.put_from(&mut burst, 6), 3);
    assert_eq!((flying.room(), burst.len()), (0, 3));
    assert_eq!(flying.put_from(&mut burst, 6), 0);
    assert!(!flying.fill_from(&pool, 1));
    // A burst with less room.
    assert_eq!(flying.take_into(&mut burst, 8), 3);
    flying.free_oldest(2);
    assert_eq!((flying.len(), pool.in_use()), (3, 9));
    drop((flying, burst));
    assert!(pool.check().is_ok());
}

#[test]
fn in_flight_is_left_alone_by_a_failed_fill() {
    let pool = pool(9, 0);
    let mut flying = InFlight::new(8).unwrap();
    for _ in 0..8 {
        assert!(flying.fill_from(&pool, 3));
        assert!(flying.fill_from(&pool, 3));
        assert_eq!((flying.len(), pool.in_use()), (6, 6));
        let mut rest = Burst::with_capacity(2);
        assert!(pool.get_bulk(&mut rest, 2));
        assert!(
            !flying.fill_from(&pool, 2),
            "one is left, two are asked for"
        );
        assert_eq!((flying.len(), pool.in_use()), (6, 8));
        flying.free_oldest(usize::MAX);
        drop(rest);
        assert!(flying.fill_from(&pool, 1));
        flying.free_oldest(1);
        assert_eq!(pool.in_use(), 0);
    }
}

/// Packets of several pools, chains and shared ones, in any order, each freed once and to its
/// own pool; plain ones between them are not taken for what their neighbours are.
#[test]
fn in_flight_frees_mixed_packets() {
    let (a, b) = (pool(256, 0), pool(256, 0));
    let mut flying = InFlight::new(32).unwrap();
    let mut burst = Burst::with_capacity(32);
    let mut kept = std::collections::VecDeque::new();
    for i in 0u32..4000 {
        // Long plain stretches of one pool, then mixed ones.
        let plain = i / 100 % 2 == 0;
        let from = match (plain, i / 200 % 2, i % 5) {
            (true, 0, _) | (false, _, 0..3) => &a,
            _ => &b,
        };
        let mut m = from.alloc().unwrap();
        if !plain {
            match i % 4 {
                1 => m.push_segment(b.alloc().unwrap()).unwrap(),
                2 => kept.extend(m.clone_ref()),
                _ => {}
            }
        }
        assert!(burst.push(m).is_ok());
        let n = 1 + i as usize % 3;
        if burst.len() >= n {
            flying.put_from(&mut burst, n);
        }
        if i % 6 == 5 {
            // Those that are lent may become anything.
            let [first, second] = flying.oldest(2);
            for m in first.iter_mut().chain(second) {
                if i % 12 == 5 {
                    kept.extend(m.clone_ref());
                }
            }
        }
        while flying.len() > 20 {
            flying.free_oldest(i as usize % 7 + 1);
        }
        while kept.len() > 10 {
            kept.pop_front();
        }
    }
    drop((flying, burst, kept));
    assert_eq!((a.in_use(), b.in_use()), (0, 0));
    assert!(a.check().is_ok() && b.check().is_ok());
}

#[test]
fn numbers_outside_their_range_are_refused() {
    let bad = [
        config(0),
        config(1 << 27),
        config(1024).cache(513),
        config(10).cache(11),
        config(10).data_room(0),
        config(10).data_room(65_535),
        config(10).headroom(65_535),
        config(10).chunks(0),
        config(10).chunks(11),
    ];
    for c in bad {
        let e = Pool::new(&c).unwrap_err();
        assert!(matches!(e, MemoryError::OutOfRange { .. }), "{e}");
    }
}

#[test]
fn a_pool_larger_than_memory_fails_at_once_and_keeps_nothing() {
    let big = PoolConfig::new("too-large", pool::MAX_COUNT)
        .page(PageChoice::Ordinary)
        .data_room(60_000)
        .chunks(3);
    let e = Pool::new(&big).unwrap_err();
    let MemoryError::OutOfMemory {
        name, needed, free, ..
    } = &e
    else {
        panic!("{e}");
    };
    assert_eq!(name, "too-large");
    assert!(*needed > 60_000 << 26 && *free < *needed);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("too-large"));
}

#[test]
fn a_pool_no_larger_than_the_rings_is_warned_about() {
    let pool = pool(1024, 256);
    let text = pool.too_small_for(1024, 2, 32).unwrap();
    assert!(text.contains("1600"), "{text}");
    assert!(pool.too_small_for(256, 1, 32).is_none());
    // And an empty one is no disaster.
    let mut burst = Burst::with_capacity(512);
    let mut rest = Burst::with_capacity(512);
    assert!(pool.get_bulk(&mut burst, 512) && pool.get_bulk(&mut rest, 512));
    assert!(pool.alloc().is_none());
    assert!(!InFlight::new(8).unwrap().fill_from(&pool, 1));
}

#[test]
fn buffers_move_between_threads() {
    let pool = pool(256, 32);
    let (tx, rx) = std::sync::mpsc::channel::<Mbuf>();
    std::thread::scope(|s| {
        let pool = &pool;
        s.spawn(move || {
            let _lcore = Lcore::register().unwrap();
            let mut sent = 0u16;
            while sent < 5000 {
                if let Some(mut m) = pool.alloc() {
                    assert!(m.extend_from_slice(&sent.to_be_bytes()));
                    tx.send(m).unwrap();
                    sent += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        s.spawn(move || {
            let _lcore = Lcore::register().unwrap();
            for expect in 0u16..5000 {
                let m = rx.recv().unwrap();
                assert_eq!(m.data(), expect.to_be_bytes());
            }
        });
    });
    assert!(pool.check().is_ok());
}
