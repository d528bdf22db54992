//! A device in another thread publishes completions word by word, in any order, the word with
//! the owner bit last. The driver must never act on half an entry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod device;

use device::{
    Entry, TxSetting, frame, know, publish_word, push_packet, receive_queue, send_queue, small_pool,
};
use pollux_mempool::Burst;
use pollux_mlx5::gate::Phase;

const PACKETS: u32 = 60_000;

fn mix(seed: u32) -> u32 {
    let x = seed.wrapping_mul(0x85eb_ca6b) ^ 0x27d4_eb2f;
    (x ^ x >> 15).wrapping_mul(0xc2b2_ae35)
}

/// The order in which a completion's words but the last are stored.
fn order(seed: u32) -> [usize; 15] {
    let mut words = std::array::from_fn(|k| k);
    let mut state = mix(seed);
    for i in (1..words.len()).rev() {
        state = mix(state);
        words.swap(i, state as usize % (i + 1));
    }
    words
}

#[test]
fn a_half_written_receive_completion_is_never_seen() {
    let known = know(small_pool(400));
    let mut rx = receive_queue(&known, 64);
    let mut device = rx.device;
    let room = known.pool.data_room() as u32;
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for seed in 0..PACKETS {
                while device.posted() == 0 {
                    std::thread::yield_now();
                }
                // What the entry says follows from its number; a torn one cannot agree.
                let entry = Entry {
                    hash: mix(seed),
                    vlan: Some(mix(seed) as u16),
                    types: 0x28,
                    checks: 0x06,
                };
                let cqe = device.good(mix(seed) % room + 1, entry);
                for (n, word) in order(seed).into_iter().enumerate() {
                    publish_word(&device.cq, device.cqe, &cqe, word);
                    if mix(seed) % 1024 == n as u32 {
                        std::thread::yield_now();
                    }
                }
                publish_word(&device.cq, device.cqe, &cqe, 15);
                device.cqe = device.cqe.wrapping_add(1);
                device.wqe = device.wqe.wrapping_add(1);
            }
        });
        let queue = rx.queue.as_mut().unwrap();
        let mut out = Burst::with_capacity(32);
        let mut seed = 0;
        while seed < PACKETS {
            if queue.burst(&mut out) == 0 {
                assert_eq!(rx.gate.phase(), Phase::Running, "{:?}", rx.gate.cause());
                assert_eq!(rx.counters.errors.get(), 0);
                std::thread::yield_now();
            }
            for mbuf in out.drain() {
                assert_eq!(mbuf.rss_hash(), mix(seed));
                assert_eq!(mbuf.vlan_tci(), mix(seed) as u16);
                assert_eq!(mbuf.pkt_len() as u32, mix(seed) % room + 1);
                seed += 1;
            }
        }
        writer.join().unwrap();
    });
    assert_eq!(rx.counters.packets.get(), u64::from(PACKETS));
    assert_eq!(rx.counters.errors.get() + rx.counters.lies.get(), 0);
}

#[test]
fn frames_and_completions_cross_between_threads() {
    let known = know(small_pool(400));
    let mut tx = send_queue(
        &known,
        TxSetting {
            descriptors: 64,
            ..TxSetting::default()
        },
    );
    let mut device = tx.device;
    const FRAMES: u32 = 20_000;
    std::thread::scope(|scope| {
        // The record and the doorbell are read while the driver writes: the device sees whole
        // WQEs or none.
        let reader = scope.spawn(move || {
            let mut seen = 0;
            while seen < FRAMES {
                let sent = device.turn_now();
                if sent.is_empty() {
                    std::thread::yield_now();
                }
                for sent in sent {
                    assert_eq!(sent.bytes, frame(seen, 64));
                    seen += 1;
                }
                assert!(!device.failed);
            }
        });
        let queue = tx.queue.as_mut().unwrap();
        let mut packets = Burst::with_capacity(16);
        let mut made = 0;
        while made < FRAMES || !packets.is_empty() {
            while packets.room() > 0 && made < FRAMES {
                push_packet(&known.pool, &mut packets, &frame(made, 64), &[]);
                made += 1;
            }
            if queue.burst(&mut packets) == 0 {
                assert_eq!(tx.gate.phase(), Phase::Running, "{:?}", tx.gate.cause());
                std::thread::yield_now();
            }
        }
        reader.join().unwrap();
    });
    assert_eq!(tx.counters.packets.get(), u64::from(FRAMES));
}
