//! The transmit queue against a device that is only bytes in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod device;

use device::{TxSetting, frame, know, push_packet, send_queue, small_pool};
use pollux_mempool::mbuf::flags;
use pollux_mempool::{Burst, Pool, PoolConfig};
use pollux_mlx5::gate::{Cause, Phase};

#[test]
fn frames_leave_in_order_with_one_doorbell_per_burst() {
    for inline_l2 in [false, true] {
        let known = know(small_pool(256));
        let setting = TxSetting {
            inline_l2,
            ..TxSetting::default()
        };
        let mut tx = send_queue(&known, setting);
        let mut packets = Burst::with_capacity(32);
        for n in 0..10 {
            push_packet(&known.pool, &mut packets, &frame(n, 60 + n as usize), &[]);
        }
        assert_eq!(tx.burst(&mut packets), 10);
        assert!(packets.is_empty());
        let sent = tx.device.turn();
        assert_eq!(tx.device.rings, 1);
        assert_eq!(sent.len(), 10);
        for (n, sent) in sent.iter().enumerate() {
            assert_eq!(sent.bytes, frame(n as u32, 60 + n));
            assert_eq!(sent.inline, if inline_l2 { 18 } else { 0 });
        }
        assert_eq!(tx.counters.packets.get(), 10);
        assert_eq!(tx.counters.bytes.get(), 10 * 60 + 45);
        // Nothing to send: no doorbell.
        assert_eq!(tx.burst(&mut packets), 0);
        assert!(tx.device.turn().is_empty());
        assert_eq!(tx.device.rings, 1);
    }
}

/// Completions are asked for once per batch, and free all that they cover.
#[test]
fn completions_are_batched_and_send_buffers_home() {
    let known = know(small_pool(512));
    let mut tx = send_queue(
        &known,
        TxSetting {
            descriptors: 256,
            ..TxSetting::default()
        },
    );
    let mut packets = Burst::with_capacity(64);
    let mut asked = 0;
    for round in 0..100 {
        for n in 0..16 {
            push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
        }
        assert_eq!(tx.burst(&mut packets), 16);
        asked += tx.device.turn().iter().filter(|s| s.completion).count();
        assert!(
            tx.pending() <= 48,
            "round {round}: {} pending",
            tx.pending()
        );
        assert_eq!(known.pool.in_use(), tx.pending());
    }
    assert_eq!(asked, 50, "one per 32 packets");
}

/// The ring fills up; what has no room stays with the caller, in order, and goes later.
#[test]
fn a_full_ring_takes_no_more_and_loses_nothing() {
    for inline_l2 in [false, true] {
        let known = know(small_pool(256));
        let setting = TxSetting {
            descriptors: 32,
            inline_l2,
            ..TxSetting::default()
        };
        let mut tx = send_queue(&known, setting);
        tx.device.hold = true;
        let mut packets = Burst::with_capacity(64);
        for n in 0..50 {
            push_packet(&known.pool, &mut packets, &frame(n, 100), &[]);
        }
        assert_eq!(tx.burst(&mut packets), 32);
        assert_eq!(tx.burst(&mut packets), 0);
        assert_eq!(tx.device.turn().len(), 32);
        assert_eq!(tx.device.complete(usize::MAX), 1);
        assert_eq!(tx.burst(&mut packets), 18);
        let sent = tx.device.turn();
        assert_eq!(sent.len(), 18);
        assert_eq!(sent[17].bytes, frame(49, 100));
    }
}

/// Rings from one block to 128 pass 2^16 with packets of one to five buffers, so that WQEs
/// lie across the ring's end.
#[test]
fn indices_wrap() {
    for descriptors in [1, 2, 8, 128] {
        for inline_l2 in [false, true] {
            let known = know(small_pool(1024));
            let mut tx = send_queue(
                &known,
                TxSetting {
                    descriptors,
                    inline_l2,
                    ..TxSetting::default()
                },
            );
            let mut packets = Burst::with_capacity(32);
            let (mut made, mut seen) = (0u32, 0u32);
            let mut blocks = 0u64;
            while blocks < 70_000 {
                while packets.room() > 0 {
                    let cuts: &[usize] = match (descriptors, made % 7) {
                        (8.., 3) => &[20, 30, 5, 9],
                        (8.., 5) => &[3, 10],
                        _ => &[],
                    };
                    push_packet(&known.pool, &mut packets, &frame(made, 100), cuts);
                    made += 1;
                }
                let before = tx.device.wqe;
                assert!(tx.burst(&mut packets) > 0);
                for sent in tx.device.turn() {
                    assert_eq!(sent.bytes, frame(seen, 100));
                    seen += 1;
                }
                blocks += u64::from(tx.device.wqe.wrapping_sub(before));
            }
            assert_eq!(tx.counters.refused.get(), 0);
            assert!(!tx.device.failed);
            assert_eq!(tx.counters.packets.get(), u64::from(seen));
        }
    }
}

/// Packets that cannot be sent are dropped and counted before anything is posted; their
/// neighbours leave, and the queue lives.
#[test]
fn a_packet_that_cannot_be_sent_costs_itself_only() {
    for inline_l2 in [false, true] {
        let known = know(Pool::new(&PoolConfig::new("packets", 600).cache(32)).unwrap());
        let stranger = small_pool(8);
        let setting = TxSetting {
            inline_l2,
            max_wqe_len: 256,
            ..TxSetting::default()
        };
        let mut tx = send_queue(&known, setting);
        let mut packets = Burst::with_capacity(64);
        let mut expected = Vec::new();
        // With 256 bytes: 16 segments, two or three of them headers.
        let most = if inline_l2 { 13 } else { 14 };
        let ones = |n: usize| vec![20; n - 1];
        let good = |packets: &mut Burst, expected: &mut Vec<Vec<u8>>, seed, len, cuts: &[usize]| {
            push_packet(&known.pool, packets, &frame(seed, len), cuts);
            expected.push(frame(seed, len));
        };
        good(&mut packets, &mut expected, 0, 64, &[]);
        push_packet(&known.pool, &mut packets, &[], &[]);
        push_packet(&known.pool, &mut packets, &frame(1, 1519), &[]);
        good(&mut packets, &mut expected, 2, 1518, &[]);
        push_packet(
            &known.pool,
            &mut packets,
            &frame(3, 20 * (most + 1)),
            &ones(most + 1),
        );
        good(&mut packets, &mut expected, 4, 20 * most, &ones(most));
        push_packet(&known.pool, &mut packets, &frame(5, 1519), &[700, 700]);
        good(&mut packets, &mut expected, 6, 1518, &[700, 700]);
        push_packet(&stranger, &mut packets, &frame(7, 64), &[]);
        // A chain whose last buffer is a stranger's.
        let mut chain = Burst::with_capacity(1);
        push_packet(&known.pool, &mut chain, &frame(8, 64), &[]);
        push_packet(&stranger, &mut packets, &frame(8, 64), &[]);
        let tail = packets.as_slice().len() - 1;
        let mut head = chain.pop_front().unwrap();
        let mut parts: Vec<_> = packets.drain().collect();
        head.push_segment(parts.remove(tail)).unwrap();
        parts.push(head);
        for mbuf in parts {
            packets.push(mbuf).unwrap();
        }
        // What the device would have to compute, and this queue cannot ask for.
        push_packet(&known.pool, &mut packets, &frame(9, 64), &[]);
        packets
            .as_mut_slice()
            .last_mut()
            .unwrap()
            .set_flags(flags::TX_TSO);
        push_packet(&known.pool, &mut packets, &frame(10, 64), &[]);
        packets
            .as_mut_slice()
            .last_mut()
            .unwrap()
            .set_flags(flags::TX_VLAN);
        let mut refused = 8;
        if inline_l2 {
            push_packet(&known.pool, &mut packets, &frame(11, 17), &[]);
            push_packet(&known.pool, &mut packets, &frame(11, 17), &[9]);
            refused += 2;
        }
        // A frame that is all header, and a header in three buffers.
        good(&mut packets, &mut expected, 12, 18, &[]);
        good(&mut packets, &mut expected, 13, 18, &[10]);
        good(&mut packets, &mut expected, 14, 64, &[1, 2]);
        let given = packets.len();
        assert_eq!(tx.burst(&mut packets), given);
        let sent: Vec<_> = tx.device.turn().into_iter().map(|s| s.bytes).collect();
        assert_eq!(sent, expected);
        assert!(!tx.device.failed);
        assert_eq!(tx.counters.refused.get(), refused);
        assert_eq!(tx.counters.packets.get(), expected.len() as u64);
        assert_eq!(tx.gate.phase(), Phase::Running);
        assert_eq!(stranger.in_use(), 0);
        assert_eq!(known.pool.in_use(), expected.len() + (most - 1) + 2 + 1 + 2);
    }
}

#[test]
fn chains_are_refused_where_they_were_not_asked_for() {
    let known = know(small_pool(64));
    let mut tx = send_queue(
        &known,
        TxSetting {
            chains: false,
            ..TxSetting::default()
        },
    );
    let mut packets = Burst::with_capacity(8);
    push_packet(&known.pool, &mut packets, &frame(0, 64), &[30]);
    push_packet(&known.pool, &mut packets, &frame(1, 64), &[]);
    assert_eq!(tx.burst(&mut packets), 2);
    assert_eq!(tx.device.turn().len(), 1);
    assert_eq!(tx.counters.refused.get(), 1);
}

/// A chain so long that a tiny ring can never hold it is refused; it must not block the queue.
#[test]
fn a_chain_longer_than_the_ring_does_not_block_it() {
    for descriptors in [1, 2, 4, 8, 16] {
        let known = know(small_pool(256));
        let mut tx = send_queue(
            &known,
            TxSetting {
                descriptors,
                ..TxSetting::default()
            },
        );
        let mut packets = Burst::with_capacity(32);
        let mut sent = 0;
        for buffers in (1..60).chain([1; 20]) {
            push_packet(
                &known.pool,
                &mut packets,
                &frame(0, 2 * buffers),
                &vec![2; buffers - 1],
            );
            for _ in 0..4 {
                tx.burst(&mut packets);
                sent += tx.device.turn().len();
            }
            assert!(
                packets.is_empty(),
                "{descriptors} blocks, {buffers} buffers"
            );
        }
        assert_eq!(sent as u64 + tx.counters.refused.get(), 79);
        assert!(!tx.device.failed && sent >= 20);
    }
}

#[test]
fn checksums_are_asked_for_by_the_packets_flags() {
    let known = know(small_pool(64));
    for (asked, bits) in [
        (0, 0),
        (flags::TX_IP_CKSUM, 0x40),
        (flags::TX_L4_CKSUM, 0x80),
        (flags::TX_IP_CKSUM | flags::TX_L4_CKSUM, 0xc0),
        // What reception left in the flags asks for nothing.
        (0xffff, 0),
    ] {
        let mut tx = send_queue(&known, TxSetting::default());
        let mut packets = Burst::with_capacity(1);
        push_packet(&known.pool, &mut packets, &frame(0, 64), &[]);
        packets.as_mut_slice()[0].set_flags(asked);
        assert_eq!(tx.burst(&mut packets), 1);
        assert_eq!(tx.device.sq.read(0usize)[20], bits);
        assert_eq!(tx.device.turn().len(), 1);
    }
}

/// One store to the doorbell page is lost; the next one carries what both were for.
#[test]
fn a_lost_doorbell_is_made_up_for_by_the_next() {
    let known = know(small_pool(64));
    let mut tx = send_queue(&known, TxSetting::default());
    let mut packets = Burst::with_capacity(8);
    for n in 0..3 {
        push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
    }
    assert_eq!(tx.burst(&mut packets), 3);
    assert!(tx.device.lose_doorbell());
    assert!(tx.device.turn().is_empty());
    push_packet(&known.pool, &mut packets, &frame(3, 64), &[]);
    assert_eq!(tx.burst(&mut packets), 1);
    let sent = tx.device.turn();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[3].bytes, frame(3, 64));
}

/// Packets of a pool in several distant chunks leave under their own chunk's key.
#[test]
fn each_buffer_leaves_under_its_own_chunks_key() {
    let known = know(Pool::new(&PoolConfig::new("scattered", 200).chunks(4).cache(8)).unwrap());
    let mut tx = send_queue(
        &known,
        TxSetting {
            descriptors: 128,
            ..TxSetting::default()
        },
    );
    let mut packets = Burst::with_capacity(32);
    for round in 0..20 {
        for n in 0..30 {
            push_packet(&known.pool, &mut packets, &frame(n, 90), &[40]);
        }
        assert_eq!(tx.burst(&mut packets), 30);
        let sent = tx.device.turn();
        assert!(!tx.device.failed, "round {round}");
        assert_eq!(sent.len(), 30);
        for (n, sent) in sent.iter().enumerate() {
            assert_eq!(sent.bytes, frame(n as u32, 90));
        }
    }
}

/// The first error is the cause; what was with the device is freed as failed once the device's
/// queue is reset, and sending goes on after that.
#[test]
fn a_failed_queue_recovers() {
    let known = know(small_pool(256));
    let mut tx = send_queue(&known, TxSetting::default());
    let mut packets = Burst::with_capacity(32);
    let mut failed = 0;
    for lap in 0..5 {
        for n in 0..20 {
            push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
        }
        assert_eq!(tx.burst(&mut packets), 20);
        // Local protection error for the first WQE, flush errors for the others.
        let first = tx.device.wqe;
        let address = tx.device.first_address();
        tx.device.fail(0x04, 0x51);
        for _ in 0..2 {
            let flush = tx.device.error(0x05, 0xf5);
            tx.device.push(&flush);
        }
        push_packet(&known.pool, &mut packets, &frame(99, 64), &[]);
        assert_eq!(tx.burst(&mut packets), 0);
        assert_eq!(packets.len(), 1, "a packet that was not taken stays");
        assert_eq!(tx.gate.phase(), Phase::Failed);
        assert_eq!(
            tx.gate.cause(),
            Some(Cause::Completion {
                syndrome: 0x04,
                vendor: 0x51,
                wqe: first
            })
        );
        assert_eq!(tx.gate.address(), Some(address));
        assert_eq!(tx.gate.failures(), lap + 1);
        let pending = tx.pending();
        assert_eq!(
            known.pool.in_use(),
            pending + 1,
            "the device may still read them"
        );
        assert!(tx.gate.was_reset());
        tx.device.reset();
        assert_eq!(tx.burst(&mut packets), 0);
        assert_eq!(tx.gate.phase(), Phase::Clean);
        failed += pending as u64;
        assert_eq!(tx.counters.failed.get(), failed);
        assert_eq!((tx.pending(), known.pool.in_use()), (0, 1));
        assert!(tx.gate.resume());
        assert_eq!(tx.burst(&mut packets), 1);
        let sent = tx.device.turn();
        assert_eq!((sent[0].wqe, &sent[0].bytes), (0, &frame(99, 64)));
        for _ in 0..50 {
            for n in 0..20 {
                push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
            }
            assert_eq!(tx.burst(&mut packets), 20);
            assert_eq!(tx.device.turn().len(), 20);
        }
    }
}

/// An error for a WQE that did not ask for a completion is noticed too.
#[test]
fn an_error_without_a_completion_due_is_noticed() {
    let known = know(small_pool(64));
    let mut tx = send_queue(&known, TxSetting::default());
    let mut packets = Burst::with_capacity(4);
    push_packet(&known.pool, &mut packets, &frame(0, 64), &[]);
    assert_eq!(tx.burst(&mut packets), 1);
    tx.device.fail(0x02, 0x68);
    assert_eq!(tx.burst(&mut packets), 0);
    assert_eq!(tx.gate.phase(), Phase::Failed);
}

#[test]
fn a_lying_device_stops_the_queue_and_nothing_else() {
    type Lie = (&'static str, fn(&mut [u8; 64]), Cause);
    let lies: [Lie; 4] = [
        (
            "an index not asked for",
            |cqe| cqe[60..62].copy_from_slice(&7u16.to_be_bytes()),
            Cause::WrongIndex {
                found: 7,
                expected: 15,
            },
        ),
        (
            "an index never posted",
            |cqe| cqe[60..62].copy_from_slice(&40_000u16.to_be_bytes()),
            Cause::WrongIndex {
                found: 40_000,
                expected: 15,
            },
        ),
        (
            "a receive completion",
            |cqe| cqe[63] |= 0x20,
            Cause::WrongOpcode { opcode: 2, wqe: 15 },
        ),
        (
            "an unknown opcode",
            |cqe| cqe[63] |= 0x90,
            Cause::WrongOpcode { opcode: 9, wqe: 15 },
        ),
    ];
    for (what, lie, cause) in lies {
        let known = know(small_pool(128));
        let mut tx = send_queue(
            &known,
            TxSetting {
                descriptors: 64,
                ..TxSetting::default()
            },
        );
        tx.device.hold = true;
        let mut packets = Burst::with_capacity(32);
        for n in 0..16 {
            push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
        }
        assert_eq!(tx.burst(&mut packets), 16);
        assert_eq!(tx.device.turn().len(), 16);
        let mut cqe = [0; 64];
        device::tail(&mut cqe, device::REQUESTER, 15, 0, tx.device.cq.count());
        lie(&mut cqe);
        tx.device.push(&cqe);
        assert_eq!(tx.burst(&mut packets), 0);
        assert_eq!(tx.gate.cause(), Some(cause), "{what}");
        assert_eq!(tx.counters.lies.get(), 1, "{what}");
        assert_eq!(
            known.pool.in_use(),
            16,
            "{what}: nothing was freed on its word"
        );
        drop(tx.queue.take());
        drop(tx.home.recv().unwrap());
        assert_eq!(known.pool.in_use(), 0, "{what}: every buffer has one owner");
    }
}

/// The same completion twice: the second one is a lie.
#[test]
fn a_repeated_completion_frees_nothing_twice() {
    let known = know(small_pool(128));
    let mut tx = send_queue(&known, TxSetting::default());
    let mut packets = Burst::with_capacity(32);
    for n in 0..17 {
        push_packet(&known.pool, &mut packets, &frame(n, 64), &[]);
    }
    assert_eq!(tx.burst(&mut packets), 17);
    assert_eq!(tx.device.turn().len(), 17);
    let mut cqe = [0; 64];
    device::tail(&mut cqe, device::REQUESTER, 16, 1, tx.device.cq.count());
    tx.device.push(&cqe);
    push_packet(&known.pool, &mut packets, &frame(0, 64), &[]);
    tx.burst(&mut packets);
    // The first one is good; the queue is empty then, so nobody looks until more is sent.
    tx.burst(&mut packets);
    assert_eq!(tx.gate.phase(), Phase::Failed);
    assert_eq!(tx.counters.lies.get(), 1);
}

#[test]
fn a_stopped_queue_is_inert_and_keeps_its_buffers_until_it_is_dropped() {
    let known = know(small_pool(128));
    let mut tx = send_queue(&known, TxSetting::default());
    let mut packets = Burst::with_capacity(16);
    for n in 0..10 {
        push_packet(&known.pool, &mut packets, &frame(n, 64), &[10]);
    }
    assert_eq!(tx.burst(&mut packets), 10);
    tx.gate.close();
    push_packet(&known.pool, &mut packets, &frame(0, 64), &[]);
    assert_eq!(tx.burst(&mut packets), 0);
    assert_eq!(packets.len(), 1);
    drop(tx.queue.take());
    let remains = tx.home.recv().unwrap();
    assert_eq!(remains.queue, 5);
    assert_eq!(known.pool.in_use(), 21);
    drop(remains);
    drop(packets);
    assert_eq!(known.pool.in_use(), 0);
}
