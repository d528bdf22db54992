//! The receive queue against a device that is only bytes in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod device;

use device::{
    Entry, frame, know, receive_queue, receive_queue_with, small_pool, try_receive_queue,
};
use pollux_mempool::mbuf::flags;
use pollux_mempool::{Burst, Pool, PoolConfig};
use pollux_mlx5::gate::{Cause, Phase};
use pollux_mlx5::rx::packet_type;

#[test]
fn packets_come_in_order_with_all_that_is_known_of_them() {
    let known = know(small_pool(256));
    let mut rx = receive_queue(&known, 64);
    assert_eq!(rx.device.posted(), 64);
    let tagged = Entry {
        hash: 0xdead_beef,
        vlan: Some(0x2064),
        types: 0x28,
        checks: 0x07,
    };
    assert!(rx.device.deliver(&frame(1, 60), tagged));
    assert!(rx.device.deliver(&frame(2, 1514), Entry::default()));
    let mut out = Burst::with_capacity(32);
    assert_eq!(rx.burst(&mut out), 2);
    let [a, b] = out.as_slice() else {
        panic!("two packets")
    };
    assert_eq!(
        (a.data(), b.data()),
        (&frame(1, 60)[..], &frame(2, 1514)[..])
    );
    assert_eq!(
        (a.port(), a.queue(), a.nb_segs(), a.pkt_len()),
        (7, 3, 1, 60)
    );
    assert_eq!(a.headroom(), known.pool.headroom());
    assert_eq!((a.rss_hash(), a.vlan_tci()), (0xdead_beef, 0x2064));
    assert_eq!(
        a.flags(),
        flags::RX_RSS_HASH
            | flags::RX_VLAN_STRIPPED
            | flags::RX_IP_CKSUM_GOOD
            | flags::RX_L4_CKSUM_GOOD
    );
    assert_eq!(
        a.packet_type(),
        packet_type::L2_ETHER | packet_type::L3_IPV4 | packet_type::L4_UDP
    );
    assert_eq!((b.flags(), b.packet_type()), (0, packet_type::L2_ETHER));
    assert_eq!(
        (rx.counters.packets.get(), rx.counters.bytes.get()),
        (2, 1574)
    );
}

#[test]
fn an_empty_queue_gives_nothing() {
    let known = know(small_pool(128));
    let mut rx = receive_queue(&known, 64);
    let mut out = Burst::with_capacity(32);
    for _ in 0..3 {
        assert_eq!(rx.burst(&mut out), 0);
    }
    assert_eq!(rx.gate.phase(), Phase::Running);
    assert_eq!(rx.device.posted(), 64);
}

#[test]
fn a_burst_takes_no_more_than_it_has_room_for() {
    let known = know(small_pool(256));
    let mut rx = receive_queue(&known, 64);
    for n in 0..40 {
        assert!(rx.device.deliver(&frame(n, 64), Entry::default()));
    }
    let mut out = Burst::with_capacity(16);
    assert_eq!(rx.burst(&mut out), 16);
    assert_eq!(rx.burst(&mut out), 0, "the burst is full");
    out.free_front(3);
    assert_eq!(rx.burst(&mut out), 3);
    assert_eq!(out.as_slice()[15].data(), frame(18, 64));
    out.clear();
    let mut large = Burst::with_capacity(512);
    assert_eq!(rx.burst(&mut large), 21);
    assert_eq!(large.as_slice()[20].data(), frame(39, 64));
}

/// Indices pass 2^16 several times, in rings of every size up to 128, the completion queue being
/// as large as the ring or larger.
#[test]
fn indices_wrap() {
    for (descriptors, entries) in [(1, 1), (2, 8), (8, 8), (128, 128), (64, 256)] {
        let known = know(small_pool(descriptors + 200));
        let mut rx = receive_queue_with(&known, descriptors, entries);
        let mut out = Burst::with_capacity(64);
        let mut seed = 0u32;
        while seed < 150_000 {
            let first = seed;
            for _ in 0..(seed % 97).min(descriptors as u32) + 1 {
                if rx.device.posted() == 0 {
                    break;
                }
                assert!(rx.device.deliver(&frame(seed, 20), Entry::default()));
                seed += 1;
            }
            let mut next = first;
            while next < seed {
                assert!(rx.burst(&mut out) > 0);
                for mbuf in out.drain() {
                    assert_eq!(mbuf.data(), frame(next, 20));
                    next += 1;
                }
            }
        }
        assert_eq!(rx.counters.packets.get(), u64::from(seed));
        assert_eq!(rx.counters.errors.get(), 0);
    }
}

/// With the pool empty, slots stay without a buffer: the device gets none of them, and goes on
/// when there are buffers again.
#[test]
fn an_empty_pool_leaves_slots_unposted() {
    let known = know(small_pool(96));
    let mut rx = receive_queue(&known, 64);
    assert_eq!(known.pool.available(), 32);
    let mut held = Burst::with_capacity(512);
    let mut sent = 0;
    for _ in 0..4 {
        while rx.device.deliver(&frame(sent, 100), Entry::default()) {
            sent += 1;
        }
        while rx.burst(&mut held) > 0 {}
    }
    // Every buffer of the pool has come by once and is held; the device has none.
    assert_eq!((sent, held.len(), rx.device.posted()), (96, 96, 0));
    assert_eq!(known.pool.available(), 0);
    for (n, mbuf) in held.iter().enumerate() {
        assert_eq!(mbuf.data(), frame(n as u32, 100));
    }
    // 64 slots are missing a buffer, and each counts once however often it is tried.
    for _ in 0..100 {
        assert_eq!(rx.burst(&mut held), 0);
    }
    assert_eq!(rx.counters.no_buffer.get(), 64);
    // A few buffers come back: these, and no more, are posted.
    held.free_front(5);
    assert_eq!(rx.burst(&mut held), 0);
    assert_eq!(rx.device.posted(), 5);
    held.clear();
    assert_eq!(rx.burst(&mut held), 0);
    // Slots are refilled by sixteens here; fewer than that may rest.
    assert!((49..=64).contains(&rx.device.posted()));
    assert!(rx.device.deliver(&frame(sent, 100), Entry::default()));
    assert_eq!(rx.burst(&mut held), 1);
    assert_eq!(held.as_slice()[0].data(), frame(sent, 100));
    assert_eq!(rx.counters.no_buffer.get(), 64);
}

#[test]
fn a_pool_smaller_than_the_ring_still_works() {
    let known = know(small_pool(10));
    let mut rx = receive_queue(&known, 64);
    assert_eq!((rx.posted(), rx.device.posted()), (10, 10));
    let mut out = Burst::with_capacity(32);
    for n in 0..1000 {
        assert!(rx.device.deliver(&frame(n, 64), Entry::default()));
        assert_eq!(rx.burst(&mut out), 1);
        assert_eq!(out.as_slice()[0].data(), frame(n, 64));
        out.clear();
        // The freed buffer is posted by a later burst.
        assert_eq!(rx.burst(&mut out), 0);
        assert_eq!(rx.device.posted(), 10);
    }
}

/// A packet with an error of its own, or with a length its buffer does not have, is dropped
/// alone: the packets before and behind it arrive in order and the indices stay together.
#[test]
fn a_bad_packet_costs_itself_only() {
    let known = know(small_pool(256));
    let mut rx = receive_queue(&known, 32);
    let room = known.pool.data_room() as u32;
    let mut out = Burst::with_capacity(64);
    let mut seed = 0;
    let mut bad = 0;
    for round in 0..3000u32 {
        let first = seed;
        let mut good = 0;
        for k in 0..8 {
            match (round + k * 5) % 11 {
                0 => {
                    // Local length error, bad response, local access: not the queue's.
                    let syndrome = [0x01, 0x10, 0x11][k as usize % 3];
                    let cqe = rx.device.error(syndrome, 0x99);
                    rx.device.push(&cqe);
                    bad += 1;
                }
                1 => {
                    let lie = [room + 1, u32::MAX, 0, 1 << 31][k as usize % 4];
                    let cqe = rx.device.good(lie, Entry::default());
                    rx.device.push(&cqe);
                    bad += 1;
                }
                _ => {
                    assert!(rx.device.deliver(&frame(seed, 64), Entry::default()));
                    seed += 1;
                    good += 1;
                }
            }
        }
        assert_eq!(rx.burst(&mut out), good);
        for (n, mbuf) in out.drain().enumerate() {
            assert_eq!(mbuf.data(), frame(first + n as u32, 64));
        }
    }
    assert_eq!(rx.counters.errors.get(), bad);
    assert_eq!(rx.gate.phase(), Phase::Running);
    rx.burst(&mut out);
    assert_eq!(rx.device.posted(), 32, "indices stayed together");
    assert_eq!(known.pool.in_use(), 32);
}

#[test]
fn a_length_as_large_as_the_buffer_is_taken() {
    let pool = Pool::new(&PoolConfig::new("exact", 64).data_room(1518)).unwrap();
    let known = know(pool);
    let mut rx = receive_queue(&known, 8);
    assert_eq!(rx.device.segment().0, 1518);
    assert!(rx.device.deliver(&frame(1, 1518), Entry::default()));
    let mut out = Burst::with_capacity(8);
    assert_eq!(rx.burst(&mut out), 1);
    assert_eq!(out.as_slice()[0].data(), frame(1, 1518));
}

/// Entries that cannot be true stop the queue; nothing that they say is used.
#[test]
fn a_lying_device_stops_the_queue_and_nothing_else() {
    type Lie = (&'static str, fn(&mut [u8; 64]), Cause);
    let lies: [Lie; 5] = [
        (
            "an index far ahead",
            |cqe| cqe[60..62].copy_from_slice(&1000u16.to_be_bytes()),
            Cause::WrongIndex {
                found: 1000,
                expected: 2,
            },
        ),
        (
            "the index before",
            |cqe| cqe[60..62].copy_from_slice(&1u16.to_be_bytes()),
            Cause::WrongIndex {
                found: 1,
                expected: 2,
            },
        ),
        (
            "a send completion",
            |cqe| cqe[63] &= 0x0f,
            Cause::WrongOpcode { opcode: 0, wqe: 2 },
        ),
        (
            "an unknown opcode",
            |cqe| cqe[63] = cqe[63] & 0x0f | 0x90,
            Cause::WrongOpcode { opcode: 9, wqe: 2 },
        ),
        (
            "a compressed entry, which was never asked for",
            |cqe| cqe[63] |= 0x0c,
            Cause::WrongOpcode { opcode: 2, wqe: 2 },
        ),
    ];
    for (what, lie, cause) in lies {
        let known = know(small_pool(128));
        let mut rx = receive_queue(&known, 16);
        let mut out = Burst::with_capacity(32);
        for n in 0..2 {
            assert!(rx.device.deliver(&frame(n, 64), Entry::default()));
        }
        let mut cqe = rx.device.good(64, Entry::default());
        lie(&mut cqe);
        rx.device.push(&cqe);
        assert!(rx.device.deliver(&frame(9, 64), Entry::default()));
        assert_eq!(rx.burst(&mut out), 2, "{what}: what came before is good");
        assert_eq!(rx.gate.phase(), Phase::Failed, "{what}");
        assert_eq!(rx.gate.cause(), Some(cause), "{what}");
        assert_eq!(rx.burst(&mut out), 0, "{what}");
        assert_eq!(
            (rx.counters.lies.get(), rx.gate.failures()),
            (1, 1),
            "{what}"
        );
        drop(out);
        drop(rx.queue.take());
        drop(rx.home.recv().unwrap());
        assert_eq!(known.pool.in_use(), 0, "{what}: every buffer has one owner");
    }
}

/// The first error is the cause, however many echoes follow; after the device's queue was reset
/// and made ready, exactly as many buffers as descriptors are posted and packets flow.
#[test]
fn a_failed_queue_recovers_with_a_full_ring() {
    let known = know(small_pool(200));
    let mut rx = receive_queue(&known, 32);
    let mut out = Burst::with_capacity(64);
    for lap in 0..5 {
        for n in 0..7 {
            assert!(rx.device.deliver(&frame(n, 64), Entry::default()));
        }
        // Local protection error, then flush errors for all that was posted.
        let wqe = rx.device.wqe;
        let (_, _, address) = rx.device.segment();
        let cqe = rx.device.error(0x04, 0x51);
        rx.device.push(&cqe);
        while rx.device.posted() > 0 {
            let cqe = rx.device.error(0x05, 0xf5);
            rx.device.push(&cqe);
        }
        assert_eq!(rx.burst(&mut out), 7, "packets before the error are good");
        out.clear();
        assert_eq!(rx.gate.phase(), Phase::Failed);
        assert_eq!(
            rx.gate.cause(),
            Some(Cause::Completion {
                syndrome: 0x04,
                vendor: 0x51,
                wqe
            })
        );
        assert_eq!(rx.gate.address(), Some(address));
        assert_eq!(rx.gate.failures(), lap + 1);
        // Nothing moves before the control thread has reset the device's queue.
        assert_eq!(rx.burst(&mut out), 0);
        assert!(rx.gate.was_reset());
        rx.device.wqe = 0;
        assert_eq!(rx.burst(&mut out), 0);
        assert_eq!(rx.gate.phase(), Phase::Clean);
        assert_eq!(rx.device.posted(), 0, "zero while the queue becomes ready");
        assert!(rx.gate.resume());
        assert_eq!(rx.burst(&mut out), 0);
        assert_eq!(rx.gate.phase(), Phase::Running);
        assert_eq!((rx.device.posted(), rx.posted()), (32, 32));
        assert_eq!(known.pool.in_use(), 32);
        for n in 0..100 {
            assert!(rx.device.deliver(&frame(n, 64), Entry::default()));
            assert_eq!(rx.burst(&mut out), 1);
            assert_eq!(out.as_slice()[0].data(), frame(n, 64));
            out.clear();
        }
    }
}

#[test]
fn a_stopped_queue_is_inert_and_keeps_its_buffers_until_it_is_dropped() {
    let known = know(small_pool(128));
    let mut rx = receive_queue(&known, 32);
    let mut out = Burst::with_capacity(32);
    assert!(rx.device.deliver(&frame(1, 64), Entry::default()));
    rx.gate.close();
    assert_eq!(rx.burst(&mut out), 0);
    assert_eq!(known.pool.in_use(), 32);
    drop(rx.queue.take());
    let remains = rx.home.recv().unwrap();
    assert_eq!(remains.queue, 3);
    assert_eq!(known.pool.in_use(), 32, "the device may still write there");
    drop(remains);
    assert_eq!(known.pool.in_use(), 0);
}

/// Buffers of a pool in several distant chunks each carry the address and key of their own.
#[test]
fn each_buffer_has_its_own_chunks_address_and_key() {
    let pool = Pool::new(&PoolConfig::new("scattered", 120).chunks(5).cache(16)).unwrap();
    let known = know(pool);
    let mut rx = receive_queue(&known, 32);
    let mut out = Burst::with_capacity(32);
    let mut keys = std::collections::BTreeSet::new();
    let mut held = Burst::with_capacity(64);
    for n in 0..500 {
        keys.insert(rx.device.segment().1);
        // The device refuses a wrong pair of key and address by failing the test.
        assert!(rx.device.deliver(&frame(n, 200), Entry::default()));
        assert_eq!(rx.burst(&mut out), 1);
        assert_eq!(out.as_slice()[0].data(), frame(n, 200));
        out.move_to(&mut held, 1);
        if held.len() == 50 {
            held.clear();
        }
    }
    assert_eq!(keys.len(), 5);
}

#[test]
fn refuses_a_completion_queue_that_could_overrun() {
    let known = know(small_pool(64));
    let Err(refused) = try_receive_queue(&known, 32, 16) else {
        panic!("a queue of 32 with room for 16 completions")
    };
    let text = refused.to_string();
    assert!(text.contains("16") && text.contains("32"), "{text}");
}
