//! Receive rules and the receive hash.

use crate::rig::*;
use pollux_emu::data::steering::*;
use pollux_emu::data::*;
use pollux_prm::commands::matching::FteMatchLyr24;
use std::collections::HashMap;

/// Header bits from fields.
fn bits(change: impl FnOnce(&mut FteMatchLyr24)) -> HeaderBits {
    let mut set = FteMatchLyr24::zeroed();
    change(&mut set);
    *set.bytes()
}

fn dmac(mac: [u8; 6]) -> HeaderBits {
    bits(|set| {
        set.set_dmac(mac);
    })
}

/// Queues with distinguishable TIRs 1, 2, ...
fn queues(side: &mut Side, count: u32) -> (Vec<Rq>, Vec<Cq>) {
    let (mut rqs, mut cqs) = (Vec::new(), Vec::new());
    for tirn in 1..=count {
        let cq = side.cq(7);
        let mut rq = side.rq(5, &cq);
        for _ in 0..32 {
            let (at, iova) = side.take(2048);
            rq.post(&[(2048, KEY, iova)], at);
        }
        rq.publish();
        let dispatch = Dispatch::Direct { rqn: rq.spec.rqn };
        side.port.set_tir(TirSpec { tirn, dispatch }).unwrap();
        rqs.push(rq);
        cqs.push(cq);
    }
    (rqs, cqs)
}

fn addressed(mac: [u8; 6], seed: u64) -> Vec<u8> {
    let mut bytes = frame(80, seed);
    bytes[..6].copy_from_slice(&mac);
    bytes
}

const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL: [u8; 6] = [0xff; 6];

#[test]
fn own_address_broadcast_multicast_and_then_everything() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rqs, mut cqs) = queues(b, 3);
    let (mut sq, mut scq) = a.sender(6);
    let group_bit = dmac([1, 0, 0, 0, 0, 0]);
    let exact = FlowGroup {
        mask: dmac(ALL),
        entries: vec![
            FlowEntry {
                flow_tag: 0x123456,
                counters: vec![9],
                ..entry(dmac(MAC), to_tir(1))
            },
            entry(dmac(ALL), to_tir(2)),
        ],
    };
    let groups = FlowGroup {
        mask: group_bit,
        entries: vec![entry(group_bit, to_tir(3))],
    };
    let root = FlowTable {
        id: 8,
        miss: None,
        groups: vec![exact, groups],
    };
    let mut steering = Steering {
        root: Some(8),
        tables: vec![root],
    };
    b.port.set_steering(steering.clone()).unwrap();
    for (mac, queue) in [(MAC, 0), (ALL, 1), (GROUP, 2)] {
        let bytes = addressed(mac, 1);
        a.send(&mut sq, &bytes);
        let cqe = cqs[queue].next();
        assert_eq!(rqs[queue].bytes(&cqe), bytes);
        assert_eq!(cqe.flow_tag(), if queue == 0 { 0x123456 } else { 0 });
    }
    a.send(&mut sq, &addressed(OTHER, 1));
    for _ in 0..4 {
        scq.next();
    }
    let counters = b.port.counters().unwrap();
    assert_eq!(counters.rx_no_destination, 1);
    let one = Traffic {
        frames: 1,
        bytes: 80,
    };
    assert_eq!(
        (counters.vport_rx.multicast, counters.vport_rx.broadcast),
        (one, one)
    );
    assert_eq!(counters.port_rx.unicast.frames, 2);
    assert_eq!(b.port.flow_counter(9, false).unwrap(), one);
    // Promiscuous: one more group that matches everything; the counter goes on.
    let any = FlowGroup {
        mask: [0; 64],
        entries: vec![entry([0; 64], to_tir(2))],
    };
    steering.tables[0].groups.push(any);
    b.port.set_steering(steering).unwrap();
    a.send(&mut sq, &addressed(OTHER, 1));
    cqs[1].next();
    a.send(&mut sq, &addressed(MAC, 1));
    cqs[0].next();
    assert_eq!(b.port.flow_counter(9, true).unwrap().frames, 2);
    assert_eq!(b.port.flow_counter(9, false).unwrap().frames, 0);
}

#[test]
fn every_field_can_decide() {
    let mut v4 = frame(80, 1);
    v4[6..12].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
    v4[12..16].copy_from_slice(&[0x81, 0, 0x6a, 0xbc]);
    v4[16..30].copy_from_slice(&[8, 0, 0x45, 0xb9, 0, 62, 0, 0, 0, 0, 33, 6, 0, 0]);
    v4[30..38].copy_from_slice(&[10, 1, 2, 3, 10, 4, 5, 6]);
    v4[38..42].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
    v4[50..52].copy_from_slice(&[0x51, 0x12]);
    let mut v6 = frame(80, 2);
    v6[12..22].copy_from_slice(&[0x86, 0xdd, 0x62, 0x20, 0, 0, 0, 26, 17, 44]);
    v6[54..58].copy_from_slice(&[0x55, 0x66, 0x77, 0x88]);
    let (s6, d6): (Vec<u8>, Vec<u8>) = (v6[22..38].to_vec(), v6[38..54].to_vec());
    type Set = FteMatchLyr24;
    // Name, mask, value.
    type Field = (&'static str, fn(&mut Set), fn(&mut Set));
    let is4: Vec<Field> = vec![
        (
            "smac",
            |m| {
                m.set_smac([0xff; 6]);
            },
            |v| {
                v.set_smac([1, 2, 3, 4, 5, 6]);
            },
        ),
        (
            "ethertype",
            |m| {
                m.set_ethertype(!0);
            },
            |v| {
                v.set_ethertype(0x0800);
            },
        ),
        (
            "vid",
            |m| {
                m.set_first_vid(0xfff).unwrap();
            },
            |v| {
                v.set_first_vid(0xabc).unwrap();
            },
        ),
        (
            "prio",
            |m| {
                m.set_first_prio(7).unwrap();
            },
            |v| {
                v.set_first_prio(3).unwrap();
            },
        ),
        (
            "tag",
            |m| {
                m.set_cvlan_tag(true);
                m.set_svlan_tag(true);
            },
            |v| {
                v.set_cvlan_tag(true);
            },
        ),
        (
            "version",
            |m| {
                m.set_ip_version(15).unwrap();
            },
            |v| {
                v.set_ip_version(4).unwrap();
            },
        ),
        (
            "protocol",
            |m| {
                m.set_ip_protocol(!0);
            },
            |v| {
                v.set_ip_protocol(6);
            },
        ),
        (
            "dscp",
            |m| {
                m.set_ip_dscp(63).unwrap();
            },
            |v| {
                v.set_ip_dscp(46).unwrap();
            },
        ),
        (
            "ecn",
            |m| {
                m.set_ip_ecn(3).unwrap();
            },
            |v| {
                v.set_ip_ecn(1).unwrap();
            },
        ),
        (
            "ttl",
            |m| {
                m.set_ttl_hoplimit(!0);
            },
            |v| {
                v.set_ttl_hoplimit(33);
            },
        ),
        (
            "flags",
            |m| {
                m.set_tcp_flags(0x1ff).unwrap();
            },
            |v| {
                v.set_tcp_flags(0x112).unwrap();
            },
        ),
        (
            "tcp sport",
            |m| {
                m.set_tcp_sport(!0);
            },
            |v| {
                v.set_tcp_sport(0x1122);
            },
        ),
        (
            "tcp dport",
            |m| {
                m.set_tcp_dport(!0);
            },
            |v| {
                v.set_tcp_dport(0x3344);
            },
        ),
    ];
    let is6: Vec<Field> = vec![
        (
            "no tag",
            |m| {
                m.set_cvlan_tag(true);
                m.set_svlan_tag(true);
            },
            |_| {},
        ),
        (
            "version",
            |m| {
                m.set_ip_version(15).unwrap();
            },
            |v| {
                v.set_ip_version(6).unwrap();
            },
        ),
        (
            "dscp",
            |m| {
                m.set_ip_dscp(63).unwrap();
            },
            |v| {
                v.set_ip_dscp(8).unwrap();
            },
        ),
        (
            "hops",
            |m| {
                m.set_ttl_hoplimit(!0);
            },
            |v| {
                v.set_ttl_hoplimit(44);
            },
        ),
        (
            "udp sport",
            |m| {
                m.set_udp_sport(!0);
            },
            |v| {
                v.set_udp_sport(0x5566);
            },
        ),
        (
            "udp dport",
            |m| {
                m.set_udp_dport(!0);
            },
            |v| {
                v.set_udp_dport(0x7788);
            },
        ),
    ];
    let mut cases: Vec<(String, HeaderBits, HeaderBits, bool)> = Vec::new();
    for (list, six) in [(is4, false), (is6, true)] {
        for (name, mask, value) in list {
            cases.push((name.to_owned(), bits(mask), bits(value), six));
        }
    }
    // Addresses lie in the last 32 bytes; IPv4 in the last four of its sixteen.
    let mut mask = [0; 64];
    mask[32..].fill(0xff);
    let mut four = [0; 64];
    four[44..48].copy_from_slice(&[10, 1, 2, 3]);
    four[60..].copy_from_slice(&[10, 4, 5, 6]);
    cases.push(("v4 addresses".into(), mask, four, false));
    let mut six = [0; 64];
    six[32..48].copy_from_slice(&s6);
    six[48..].copy_from_slice(&d6);
    cases.push(("v6 addresses".into(), mask, six, true));

    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rqs, mut cqs) = queues(b, 2);
    let (mut sq, mut scq) = a.sender(6);
    let (at4, at6) = (a.place(&v4), a.place(&v6));
    for (name, mask, value, six) in cases {
        let rule = FlowGroup {
            mask,
            entries: vec![entry(value, to_tir(1))],
        };
        let rest = FlowGroup {
            mask: [0; 64],
            entries: vec![entry([0; 64], to_tir(2))],
        };
        let root = FlowTable {
            id: 1,
            miss: None,
            groups: vec![rule, rest],
        };
        b.port
            .set_steering(Steering {
                root: Some(1),
                tables: vec![root],
            })
            .unwrap();
        let (right, wrong) = if six { (at6, at4) } else { (at4, at6) };
        for (iova, queue) in [(right, 0), (wrong, 1)] {
            sq.send(&[], &[(80, KEY, iova)]);
            sq.publish();
            sq.ring(a);
            scq.next();
            let cqe = until(&name, || cqs[queue].poll());
            assert_eq!(cqe.byte_cnt(), 80, "{name}");
            cqs[queue].publish();
            rqs[queue].repost();
            rqs[queue].publish();
        }
    }
}

#[test]
fn tables_chain_miss_drop_copy_and_do_not_go_in_circles() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rqs, mut cqs) = queues(b, 2);
    let (mut sq, mut scq) = a.sender(6);
    let mask = dmac(ALL);
    let on = |id| FlowAction::Forward(vec![FlowDestination::Table(id)]);
    let both = FlowAction::Forward(vec![FlowDestination::Tir(1), FlowDestination::Tir(2)]);
    let counted = |value, id, action| FlowEntry {
        counters: vec![id],
        ..entry(value, action)
    };
    let mut first = table(
        1,
        vec![(
            mask,
            vec![
                counted(dmac(MAC), 1, on(2)),
                counted(dmac(OTHER), 2, FlowAction::Drop),
                counted(dmac(GROUP), 3, on(1)),
            ],
        )],
    );
    first.miss = Some(3);
    let any = [0; 64];
    let second = table(2, vec![(any, vec![counted(any, 4, both)])]);
    let third = table(3, vec![(any, vec![counted(any, 5, to_tir(2))])]);
    let tables = vec![first, second, third];
    b.port
        .set_steering(Steering {
            root: Some(1),
            tables,
        })
        .unwrap();
    for (mac, wanted) in [
        (MAC, [1, 1]),
        (OTHER, [0, 0]),
        (GROUP, [0, 0]),
        (ALL, [0, 1]),
    ] {
        let bytes = addressed(mac, 4);
        a.send(&mut sq, &bytes);
        scq.next();
        for queue in 0..2 {
            for _ in 0..wanted[queue] {
                assert_eq!(rqs[queue].receive(&mut cqs[queue]), bytes);
            }
            assert!(cqs[queue].poll().is_none());
        }
    }
    let counters = b.port.counters().unwrap();
    assert_eq!((counters.rx_flow_drops, counters.rx_no_destination), (1, 1));
    let counts: Vec<_> = (1..=5)
        .map(|id| b.port.flow_counter(id, false).unwrap().frames)
        .collect();
    assert_eq!(counts[..2], [1, 1]);
    assert_eq!(counts[3..], [1, 1]);
    // Without a root nothing is received.
    b.port.set_steering(Steering::default()).unwrap();
    a.send(&mut sq, &addressed(MAC, 1));
    scq.next();
    assert_eq!(b.port.counters().unwrap().rx_no_destination, 2);
}

#[test]
fn large_groups_find_what_small_ones_do() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rqs, mut cqs) = queues(b, 4);
    let (mut sq, mut scq) = a.sender(6);
    let mac = |index: u32| [2, 1, 1, 1, (index >> 8) as u8, index as u8];
    let entries = (0..500)
        .map(|index| entry(dmac(mac(index)), to_tir(1 + index % 4)))
        .collect();
    let root = table(1, vec![(dmac(ALL), entries)]);
    b.port
        .set_steering(Steering {
            root: Some(1),
            tables: vec![root],
        })
        .unwrap();
    for index in (0..600).step_by(7) {
        a.send(&mut sq, &addressed(mac(index), 1));
        scq.next();
        if index < 500 {
            let queue = (index % 4) as usize;
            cqs[queue].next();
            rqs[queue].repost();
            rqs[queue].publish();
        }
    }
    assert_eq!(b.port.counters().unwrap().rx_no_destination, 14);
}

fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let mut hash = 0u32;
    for at in 0..input.len() * 8 {
        if bit(input, at) == 1 {
            let window = (0..32).fold(0u32, |word, k| word << 1 | u32::from(bit(key, at + k)));
            hash ^= window;
        }
    }
    hash
}

#[test]
fn the_hash_picks_the_queue_and_is_told() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rqs, mut cqs) = queues(b, 4);
    let (mut sq, mut scq) = a.sender(6);
    let key: [u8; 40] = std::array::from_fn(|k| (k * 73 + 11) as u8);
    let numbers: Vec<u32> = rqs.iter().map(|rq| rq.spec.rqn).collect();
    // 16 entries, unevenly.
    let order = [0usize, 1, 2, 3, 3, 3, 0, 1, 2, 2, 1, 0, 0, 0, 1, 3];
    b.port
        .set_rqt(RqtSpec {
            rqtn: 5,
            queues: order.iter().map(|k| numbers[*k]).collect(),
        })
        .unwrap();
    let fields = HashFields {
        ipv6: false,
        udp: true,
        source_ip: true,
        destination_ip: true,
        source_port: true,
        destination_port: true,
        spi: false,
    };
    let hash = Hash::Toeplitz {
        fields,
        symmetric: false,
        key: Box::new(key),
    };
    let dispatch = Dispatch::Indirect { rqtn: 5, hash };
    b.port.set_tir(TirSpec { tirn: 50, dispatch }).unwrap();
    b.port.set_steering(all_to(50)).unwrap();
    let mut seen = HashMap::new();
    for flow in 0..100u16 {
        let mut bytes = frame(60, 1);
        bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        bytes[26..34].copy_from_slice(&[10, 0, (flow >> 3) as u8, 1, 10, 9, 8, flow as u8]);
        bytes[34..36].copy_from_slice(&(flow * 3).to_be_bytes());
        a.send(&mut sq, &bytes);
        scq.next();
        let expected = toeplitz(&key, &bytes[26..38]);
        let queue = order[expected as usize % 16];
        let cqe = cqs[queue].next();
        assert_eq!(cqe.rss_hash_result(), expected, "flow {flow}: {cqe:?}");
        assert_eq!((cqe.rss_hash_l3(), cqe.rss_hash_l4()), (1, 2));
        *seen.entry(queue).or_insert(0) += 1;
        rqs[queue].repost();
        rqs[queue].publish();
    }
    assert_eq!(seen.len(), 4);
    // Another protocol takes the first entry; a new table counts at once.
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(cqs[0].next().rss_hash_result(), 0);
    b.port
        .set_rqt(RqtSpec {
            rqtn: 5,
            queues: vec![numbers[2]],
        })
        .unwrap();
    a.send(&mut sq, &frame(60, 1));
    cqs[2].next();
    b.port.remove_rqt(5).unwrap();
    a.send(&mut sq, &frame(60, 1));
    for _ in 0..3 {
        scq.next();
    }
    assert_eq!(b.port.counters().unwrap().rx_no_destination, 1);
}

#[test]
fn a_queue_that_is_not_ready_receives_nothing() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(4, 8);
    let (mut sq, mut scq) = a.sender(4);
    let state = |state| RqChange {
        state: Some(state),
        ..RqChange::default()
    };
    b.port
        .modify_rq(rq.spec.rqn, state(QueueState::Reset))
        .unwrap();
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    b.port
        .modify_rq(rq.spec.rqn, state(QueueState::Ready))
        .unwrap();
    a.send(&mut sq, &frame(60, 2));
    assert_eq!(rq.receive(&mut rcq), frame(60, 2));
    b.port.destroy_rq(rq.spec.rqn).unwrap();
    a.send(&mut sq, &frame(60, 3));
    scq.next();
    scq.next();
    assert_eq!(b.port.counters().unwrap().rx_no_destination, 2);
    assert!(rcq.poll().is_none());
}
