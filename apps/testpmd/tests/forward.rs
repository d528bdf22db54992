//! Streams, modes and counters over queues made for the purpose: full, empty, slow.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pollux_mempool::{Burst, Pool, PoolConfig};
use pollux_testpmd::args::options::{ForwardMode, Topology};
use pollux_testpmd::forward::counters::{Counters, Reading};
use pollux_testpmd::forward::engine::Engine;
use pollux_testpmd::forward::io::Io;
use pollux_testpmd::forward::job::{Job, Mode};
use pollux_testpmd::forward::mac::Mac;
use pollux_testpmd::forward::macswap::Macswap;
use pollux_testpmd::forward::plan::{Plan, Request, StreamPlan, plan};
use pollux_testpmd::forward::queue::{Receive, Transmit};
use pollux_testpmd::forward::rxonly::Rxonly;
use pollux_testpmd::forward::stream::{Pause, Stream, WhenFull};
use pollux_testpmd::forward::txonly::{Txonly, packet};
use pollux_testpmd::forward::verbose::Printer;
use proptest::prelude::*;
use support::{frame, swapped};

/// Gives frames from a list.
struct Source {
    pool: Pool,
    frames: VecDeque<Vec<u8>>,
}

impl Receive for Source {
    fn burst(&mut self, into: &mut Burst) -> usize {
        let mut n = 0;
        while into.room() > 0 {
            let Some(f) = self.frames.pop_front() else {
                break;
            };
            let mut mbuf = self.pool.alloc().unwrap();
            assert!(mbuf.extend_from_slice(&f));
            into.push(mbuf).unwrap();
            n += 1;
        }
        n
    }
}

/// Takes as many packets per call as its next answer says, then any number.
#[derive(Default)]
struct Sink {
    answers: VecDeque<usize>,
    got: Vec<Vec<u8>>,
    calls: usize,
}

impl Transmit for Sink {
    fn burst(&mut self, packets: &mut Burst) -> usize {
        self.calls += 1;
        let most = self.answers.pop_front().unwrap_or(usize::MAX);
        let mut n = 0;
        while n < most {
            let Some(mbuf) = packets.pop_front() else {
                break;
            };
            self.got.push(mbuf.data().to_vec());
            n += 1;
        }
        n
    }
}

fn pool(count: usize) -> Pool {
    Pool::new(
        &PoolConfig::new("test", count)
            .cache(0)
            .page(pollux_mempool::PageChoice::Ordinary),
    )
    .unwrap()
}

fn stream(pool: &Pool, frames: Vec<Vec<u8>>, answers: Vec<usize>) -> Stream<Source, Sink> {
    Stream {
        plan: StreamPlan {
            rx: (0, 0),
            tx: (1, 0),
        },
        rx: Some(Source {
            pool: pool.clone(),
            frames: frames.into(),
        }),
        tx: Some(Sink {
            answers: answers.into(),
            ..Sink::default()
        }),
        burst: Burst::with_capacity(32),
        counters: Counters::shared(),
        when_full: WhenFull::Drop,
        header: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        template: packet([2; 6], [4; 6], 64).into(),
        talk: None,
    }
}

fn frames(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|i| frame(i, 60 + i as usize)).collect()
}

fn turn(engine: &mut impl Engine, s: &mut Stream<Source, Sink>) -> usize {
    let n = engine.turn(s);
    assert!(s.burst.is_empty(), "a turn leaves nothing behind");
    n
}

fn got(s: &Stream<Source, Sink>) -> &[Vec<u8>] {
    &s.tx.as_ref().unwrap().got
}

#[test]
fn verbose_says_each_packet_in_the_format() {
    let pool = pool(64);
    let mut s = stream(
        &pool,
        vec![packet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 60)],
        vec![],
    );
    let said = Arc::new(Mutex::new(String::new()));
    let hear = said.clone();
    let printer = Printer::start(move |t| hear.lock().unwrap().push_str(t)).unwrap();
    assert!(printer.talk("mb_pool_0", 0).is_none());
    s.talk = printer.talk("mb_pool_0", 3);
    turn(&mut Io, &mut s);
    assert_eq!(turn(&mut Io, &mut s), 0);
    drop(s);
    printer.finish();
    assert_eq!(
        *said.lock().unwrap(),
        "port 0/queue 0: received 1 packets
  src=02:00:00:00:00:02 - dst=02:00:00:00:00:01 - pool=mb_pool_0 - type=0x0800 - length=60 - nb_segs=1 - sw ptype: L2_ETHER L3_IPV4 L4_UDP  - l2_len=14 - l3_len=20 - l4_len=8 - Receive queue=0x0
  ol_flags: RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN RTE_MBUF_F_RX_IP_CKSUM_UNKNOWN RTE_MBUF_F_RX_OUTER_L4_CKSUM_UNKNOWN 
port 1/queue 0: sent 1 packets
  src=02:00:00:00:00:02 - dst=02:00:00:00:00:01 - pool=mb_pool_0 - type=0x0800 - length=60 - nb_segs=1 - sw ptype: L2_ETHER L3_IPV4 L4_UDP  - l2_len=14 - l3_len=20 - l4_len=8 - Send queue=0x0
  ol_flags: 
"
    );
}

#[test]
fn io_touches_nothing() {
    let pool = pool(256);
    let mut s = stream(&pool, frames(40), vec![]);
    assert_eq!(turn(&mut Io, &mut s), 32);
    assert_eq!(turn(&mut Io, &mut s), 8);
    assert_eq!(turn(&mut Io, &mut s), 0);
    assert_eq!(got(&s), frames(40));
    let r = s.counters.read();
    assert_eq!((r.rx, r.tx, r.dropped, r.busy), (40, 40, 0, 0));
    pool.check().unwrap();
}

#[test]
fn macswap_exchanges_addresses_and_nothing_else() {
    let pool = pool(256);
    let mut input = frames(3);
    // Too short to have two addresses: forwarded as it is.
    input.push(vec![9; 11]);
    let mut s = stream(&pool, input, vec![]);
    assert_eq!(turn(&mut Macswap, &mut s), 4);
    let mut expected: Vec<Vec<u8>> = frames(3).iter().map(|f| swapped(f)).collect();
    expected.push(vec![9; 11]);
    assert_eq!(got(&s), expected);
    pool.check().unwrap();
}

#[test]
fn mac_writes_both_addresses() {
    let pool = pool(256);
    let mut s = stream(&pool, frames(2), vec![]);
    assert_eq!(turn(&mut Mac, &mut s), 2);
    for (sent, original) in got(&s).iter().zip(frames(2)) {
        assert_eq!(sent[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(sent[12..], original[12..]);
    }
}

#[test]
fn rxonly_counts_and_frees() {
    let pool = pool(64);
    let mut s = stream(&pool, frames(50), vec![]);
    s.tx = None;
    while turn(&mut Rxonly, &mut s) > 0 {}
    assert_eq!(s.counters.read().rx, 50);
    assert_eq!(s.counters.read().dropped, 0);
    pool.check().unwrap();
}

/// The packet's checksum was taken from another program.
#[test]
fn txonly_sends_what_a_receiver_accepts() {
    let p = packet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9], 64);
    assert_eq!(p.len(), 64);
    assert_eq!(p[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0]);
    assert_eq!(
        p[14..34],
        [
            0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0xee, 0x93, 198, 18, 0, 1, 198, 18, 0, 2
        ]
    );
    assert_eq!(p[34..42], [0, 9, 0, 9, 0, 30, 0, 0]);
    assert!(p[42..].iter().all(|b| *b == 0));
    assert_eq!(packet([0; 6], [0; 6], 0).len(), 42);
}

/// A pool with less than a burst gives what it has; an empty one is no panic.
#[test]
fn txonly_with_a_pool_that_runs_dry() {
    let pool = pool(70);
    let mut engine = Txonly { pool: pool.clone() };
    let mut s = stream(&pool, vec![], vec![]);
    let mut held = Burst::with_capacity(512);
    assert!(pool.alloc_bulk(&mut held, 60));
    assert_eq!(turn(&mut engine, &mut s), 10);
    assert!(pool.alloc_bulk(&mut held, 10));
    assert_eq!(turn(&mut engine, &mut s), 0);
    held.clear();
    assert_eq!(turn(&mut engine, &mut s), 32);
    assert!(got(&s).iter().all(|p| *p == packet([2; 6], [4; 6], 64)));
    assert_eq!(s.counters.read().tx, 42);
    pool.check().unwrap();
}

#[test]
fn a_full_transmit_queue_drops_and_counts() {
    let pool = pool(256);
    let mut s = stream(&pool, frames(40), vec![5, 0]);
    turn(&mut Io, &mut s);
    turn(&mut Io, &mut s);
    let r = s.counters.read();
    assert_eq!((r.rx, r.tx, r.dropped), (40, 5, 35));
    assert_eq!(got(&s), &frames(40)[..5]);
    pool.check().unwrap();
}

#[test]
fn retry_tries_again_so_often_and_keeps_the_order() {
    let pool = pool(256);
    for pause in [Pause::Spin(3), Pause::Yield] {
        let mut s = stream(&pool, frames(20), vec![5, 0, 7, 0, 8]);
        s.when_full = WhenFull::Retry { count: 4, pause };
        turn(&mut Io, &mut s);
        let r = s.counters.read();
        assert_eq!((r.rx, r.tx, r.dropped), (20, 20, 0));
        assert_eq!(got(&s), frames(20));
        assert_eq!(s.tx.as_ref().unwrap().calls, 5);
        let mut s = stream(&pool, frames(20), vec![0; 9]);
        s.when_full = WhenFull::Retry { count: 8, pause };
        turn(&mut Io, &mut s);
        assert_eq!(s.counters.read().dropped, 20);
        assert_eq!(s.tx.as_ref().unwrap().calls, 9);
    }
    pool.check().unwrap();
}

/// Clearing is a base that is subtracted: a reader never sees less than nothing.
#[test]
fn cleared_counters_never_wrap() {
    let counters = Counters::shared();
    counters.received(10);
    let base = counters.read();
    assert_eq!(counters.read().since(&base), Reading::default());
    counters.received(3);
    assert_eq!(counters.read().since(&base).rx, 3);
    // A base from later than the reading.
    let late = counters.read();
    assert_eq!(base.since(&late).rx, 0);
}

#[test]
fn readers_see_counters_grow_while_a_core_writes() {
    let counters = Counters::shared();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (counters, stop) = (counters.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                counters.received(7);
                n += 7;
            }
            n
        })
    };
    let mut last = counters.read();
    while last.rx < 70_000 {
        let base = counters.read();
        let now = counters.read();
        assert!(now.rx >= last.rx);
        assert!(now.since(&base).rx < 1 << 40);
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    assert_eq!(counters.read().rx, written);
}

/// Every way that the loop is compiled moves the same packets.
#[test]
fn every_loop_forwards_and_stops() {
    for timed in [false, true] {
        for yields in [false, true] {
            for (mode, first) in [
                (ForwardMode::Io, frames(100)),
                (
                    ForwardMode::Macswap,
                    frames(100).iter().map(|f| swapped(f)).collect(),
                ),
            ] {
                let pool = pool(256);
                let job = Job {
                    cpu: 3,
                    streams: vec![
                        stream(&pool, frames(100), vec![]),
                        stream(&pool, vec![], vec![]),
                    ],
                    mode: match mode {
                        ForwardMode::Io => Mode::Io,
                        _ => Mode::Macswap,
                    },
                    first: Some((2, Txonly { pool: pool.clone() })),
                    timed,
                    yields,
                };
                let asked = Cell::new(0);
                let done = job.run(&|| {
                    asked.set(asked.get() + 1);
                    asked.get() < 20
                });
                assert_eq!((done.cpu, done.yields), (3, yields));
                assert_eq!(done.gaps.is_some(), timed);
                let s = &done.streams[0];
                let r = s.counters.read();
                assert_eq!((r.rx, r.tx, r.dropped), (100, 100 + 64, 0));
                assert_eq!(r.busy > 0, timed);
                // The bursts of tx_first left before the first packet was forwarded.
                assert_eq!(got(s)[64..], first);
                assert_eq!(done.streams[1].counters.read().tx, 64);
                pool.check().unwrap();
            }
        }
    }
}

fn request<'a>(
    ports: &'a [u16],
    queues: u16,
    topology: Topology,
    cpus: &'a [usize],
) -> Request<'a> {
    Request {
        ports,
        rx_queues: queues,
        tx_queues: queues,
        topology,
        mode: ForwardMode::Io,
        cpus,
    }
}

/// `CPU:RXPORT/Q>TXPORT/Q,...` per core.
fn text(p: &Plan) -> String {
    p.cores
        .iter()
        .map(|c| {
            let streams: Vec<String> = c
                .streams
                .iter()
                .map(|s| format!("{}/{}>{}/{}", s.rx.0, s.rx.1, s.tx.0, s.tx.1))
                .collect();
            format!("{}:{}", c.cpu, streams.join(","))
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn streams_go_to_cores_as_users_expect() {
    use Topology::{Chained, Loop, Paired};
    for (ports, queues, topology, cpus, expected) in [
        (
            &[0u16, 1][..],
            1,
            Paired,
            &[1usize][..],
            "1:0/0>1/0,1/0>0/0",
        ),
        (&[0, 1], 1, Paired, &[1, 2, 3], "1:0/0>1/0 2:1/0>0/0"),
        (
            &[0, 1],
            2,
            Paired,
            &[1, 2],
            "1:0/0>1/0,1/0>0/0 2:0/1>1/1,1/1>0/1",
        ),
        (&[0, 1], 1, Chained, &[1], "1:0/0>1/0,1/0>0/0"),
        (&[0, 1, 2], 1, Chained, &[1], "1:0/0>1/0,1/0>2/0,2/0>0/0"),
        (&[0, 1], 1, Loop, &[1], "1:0/0>0/0,1/0>1/0"),
        (
            &[0, 1, 2, 3],
            1,
            Paired,
            &[1, 2, 3],
            "1:0/0>1/0 2:1/0>0/0 3:2/0>3/0,3/0>2/0",
        ),
        (&[4, 7], 1, Paired, &[1], "1:4/0>7/0,7/0>4/0"),
    ] {
        let p = plan(&request(ports, queues, topology, cpus));
        assert_eq!(text(&p), expected);
        assert!(p.warnings.is_empty());
    }
}

#[test]
fn odd_ports_and_uneven_queues_are_told() {
    let p = plan(&request(&[0], 1, Topology::Paired, &[1]));
    assert_eq!(text(&p), "1:0/0>0/0");
    assert!(p.warnings[0].contains("odd forward ports number"));
    let mut r = request(&[0, 1], 4, Topology::Paired, &[1]);
    r.tx_queues = 2;
    let p = plan(&r);
    assert_eq!(p.streams().count(), 4);
    assert!(
        p.warnings[0].contains("rxq=4 but txq=2"),
        "{:?}",
        p.warnings
    );
    // Nothing is unpolled when nothing is sent, and nothing unsent when nothing is polled.
    r.mode = ForwardMode::Rxonly;
    let p = plan(&r);
    assert_eq!(p.streams().count(), 8);
    assert!(p.warnings.is_empty());
    r.mode = ForwardMode::Txonly;
    assert_eq!(plan(&r).streams().count(), 4);
    assert!(
        plan(&request(&[], 1, Topology::Paired, &[1]))
            .cores
            .is_empty()
    );
    assert!(
        plan(&request(&[0, 1], 1, Topology::Paired, &[]))
            .cores
            .is_empty()
    );
}

proptest! {
    /// Each receive queue is polled by exactly one core, each transmit queue filled by one,
    /// and no core has more than one stream above another.
    #[test]
    fn every_queue_has_one_core(ports in 1u16..9, queues in 1u16..9, cores in 1usize..9, topology in
        prop_oneof![Just(Topology::Paired), Just(Topology::Chained), Just(Topology::Loop)]) {
        let ports: Vec<u16> = (0..ports).collect();
        let cpus: Vec<usize> = (0..cores).collect();
        let p = plan(&request(&ports, queues, topology, &cpus));
        let mut rx: Vec<_> = p.streams().map(|s| s.rx).collect();
        let mut tx: Vec<_> = p.streams().map(|s| s.tx).collect();
        let all = rx.len();
        prop_assert_eq!(all, ports.len() * usize::from(queues));
        rx.sort_unstable();
        rx.dedup();
        tx.sort_unstable();
        tx.dedup();
        prop_assert_eq!(rx.len(), all);
        prop_assert_eq!(tx.len(), all);
        let counts: Vec<usize> = p.cores.iter().map(|c| c.streams.len()).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(*least >= 1 && most - least <= 1);
        prop_assert!(p.cores.len() == cores.min(all));
    }
}
