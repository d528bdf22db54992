//! Flows spread over queues by tables as the Linux Ethernet driver makes them: VLAN, then address,
//! then traffic type, then one TIR for each type over one table of queues.

use crate::kernel::setup;
use crate::rig::*;
use pollux_emu::data::steering::*;
use pollux_emu::data::*;
use pollux_prm::commands::matching::FteMatchLyr24;

/// Traffic types that the driver tells apart: IP version, protocol, hash type in completions.
const TYPES: [(u8, u8, u8); 10] = [
    (4, 6, 0x44),
    (4, 17, 0x84),
    (6, 6, 0x48),
    (6, 17, 0x88),
    (4, 51, 0xc4),
    (6, 51, 0xc8),
    (4, 50, 0xc4),
    (6, 50, 0xc8),
    (4, 0, 0x04),
    (6, 0, 0x08),
];

fn header_bits(change: impl FnOnce(&mut FteMatchLyr24)) -> HeaderBits {
    let mut set = FteMatchLyr24::zeroed();
    change(&mut set);
    *set.bytes()
}

/// Tables as the driver makes them: VLAN, then address, then traffic type.
fn drivers_tables(any: u32) -> Steering {
    let forward = |to| FlowAction::Forward(vec![to]);
    let station = |mac: [u8; 6]| {
        header_bits(|set| {
            set.set_dmac(mac);
        })
    };
    let tag = |vid: Option<u16>, mask: bool| {
        header_bits(|set| {
            set.set_cvlan_tag(mask || vid.is_some());
            set.set_first_vid(if mask { 0xfff } else { vid.unwrap_or(0) })
                .unwrap();
        })
    };
    let kind = |version: u8, protocol: u8| {
        header_bits(|set| {
            set.set_ip_version(version)
                .unwrap()
                .set_ip_protocol(protocol);
        })
    };
    let on = |id| forward(FlowDestination::Table(id));
    let untagged = header_bits(|set| {
        set.set_cvlan_tag(true);
    });
    let vlan = table(
        1,
        vec![
            (tag(None, true), vec![entry(tag(Some(100), false), on(2))]),
            (untagged, vec![entry([0; 64], on(2))]),
        ],
    );
    let l2 = table(
        2,
        vec![
            (
                station([0xff; 6]),
                vec![entry(station(MAC), on(3)), entry(station([0xff; 6]), on(3))],
            ),
            (
                station([1, 0, 0, 0, 0, 0]),
                vec![entry(station([1, 0, 0, 0, 0, 0]), on(3))],
            ),
        ],
    );
    let tir = |at: usize| to_tir(10 + at as u32);
    let rules = |wanted: fn(u8) -> bool| {
        TYPES
            .iter()
            .enumerate()
            .filter(move |(_, (_, protocol, _))| wanted(*protocol))
            .map(|(at, (version, protocol, _))| entry(kind(*version, *protocol), tir(at)))
            .collect::<Vec<_>>()
    };
    let ttc = table(
        3,
        vec![
            (kind(15, 255), rules(|protocol| protocol != 0)),
            (kind(15, 0), rules(|protocol| protocol == 0)),
            ([0; 64], vec![entry([0; 64], to_tir(any))]),
        ],
    );
    Steering {
        root: Some(1),
        tables: vec![vlan, l2, ttc],
    }
}

/// A packet of a type, of one flow of many.
fn of_type(version: u8, protocol: u8, flow: u8) -> Vec<u8> {
    let mut bytes = frame(100, u64::from(flow));
    let protocol = if protocol == 0 { 1 } else { protocol };
    if version == 4 {
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..26].copy_from_slice(&[0x45, 0, 0, 86, 0, 1, 0, 0, 64, protocol, 0, 0]);
        bytes[26..34].copy_from_slice(&[10, 0, 0, flow, 10, 9, 8, 7]);
        bytes[46] = 0x50;
    } else {
        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        bytes[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 46, protocol, 64]);
        bytes[22] = 0xfd;
        bytes[37] = flow;
        bytes[66] = 0x50;
    }
    bytes
}

#[test]
fn flows_are_spread_by_the_drivers_tables() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (mut rqs, mut cqs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let cq = b.cq(7);
        let mut rq = b.rq(6, &cq);
        for _ in 0..64 {
            let (at, iova) = b.take(256);
            rq.post(&[(256, KEY, iova)], at);
        }
        rq.publish();
        rqs.push(rq);
        cqs.push(cq);
    }
    // 128 entries as the driver fills them, over the first four; the fifth takes what is left.
    let queues: Vec<u32> = (0..128).map(|k| rqs[k % 4].spec.rqn).collect();
    let table = RqtSpec { rqtn: 5, queues };
    b.port.set_rqt(table).unwrap();
    let key: Box<[u8; 40]> = Box::new(std::array::from_fn(|k| (k * 89 + 21) as u8));
    for (at, (version, protocol, _)) in TYPES.into_iter().enumerate() {
        let ports = [6, 17].contains(&protocol);
        let fields = HashFields {
            ipv6: version == 6,
            udp: protocol == 17,
            source_ip: true,
            destination_ip: true,
            source_port: ports,
            destination_port: ports,
            spi: [50, 51].contains(&protocol),
        };
        let hash = Hash::Toeplitz {
            fields,
            symmetric: true,
            key: key.clone(),
        };
        let dispatch = Dispatch::Indirect { rqtn: 5, hash };
        let tirn = 10 + at as u32;
        b.port.set_tir(TirSpec { tirn, dispatch }).unwrap();
    }
    // The driver's direct TIRs: a table of one queue, a hash over nothing.
    let one = RqtSpec {
        rqtn: 6,
        queues: vec![rqs[4].spec.rqn],
    };
    b.port.set_rqt(one).unwrap();
    let hash = Hash::Xor8 {
        fields: HashFields::default(),
    };
    let dispatch = Dispatch::Indirect { rqtn: 6, hash };
    b.port.set_tir(TirSpec { tirn: 9, dispatch }).unwrap();
    b.port.set_steering(drivers_tables(9)).unwrap();
    let (mut sq, mut scq) = a.sender(6);
    let mut receive = |bytes: &[u8]| {
        a.send(&mut sq, bytes);
        scq.next();
        let (at, cqe) = until("a queue has it", || {
            cqs.iter_mut()
                .enumerate()
                .find_map(|(at, cq)| cq.poll().map(|cqe| (at, cqe)))
        });
        cqs[at].publish();
        assert_eq!(rqs[at].bytes(&cqe), bytes);
        rqs[at].repost();
        rqs[at].publish();
        (at, cqe)
    };
    for (version, protocol, hashed) in TYPES {
        let mut seen = std::collections::BTreeSet::new();
        for flow in 0..64 {
            let (at, cqe) = receive(&of_type(version, protocol, flow));
            let kind = cqe.bytes()[16];
            assert_eq!(kind, hashed, "IPv{version}, protocol {protocol}");
            assert_eq!(at, cqe.rss_hash_result() as usize % 128 % 4);
            seen.insert(at);
        }
        assert_eq!(
            seen.len(),
            4,
            "64 flows of IPv{version}, protocol {protocol}"
        );
    }
    // Both directions of a flow meet at one queue.
    let there = of_type(4, 6, 9);
    let mut back = there.clone();
    for (one, other) in [(26..30, 30..34), (34..36, 36..38)] {
        back[one.clone()].copy_from_slice(&there[other.clone()]);
        back[other].copy_from_slice(&there[one]);
    }
    assert_eq!(receive(&there).0, receive(&back).0);
    // What is not IP is not hashed.
    let (at, cqe) = receive(&frame(60, 1));
    assert_eq!((at, cqe.rss_hash_result(), cqe.bytes()[16]), (4, 0, 0));
    // Groups and everybody; the VLAN that is let in.
    for first in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
        let mut bytes = frame(60, 1);
        bytes[..6].copy_from_slice(&first);
        assert_eq!(receive(&bytes).0, 4);
    }
    let mut tagged = of_type(4, 17, 3);
    tagged.splice(12..12, [0x81, 0, 0x20, 100]);
    assert_eq!(receive(&tagged).1.bytes()[16], 0x84);
    // Another station, another VLAN: nobody's.
    let mut other = frame(60, 2);
    other[5] ^= 1;
    let before = b.port.counters().unwrap().rx_no_destination;
    tagged[15] = 101;
    for bytes in [other, tagged] {
        a.send(&mut sq, &bytes);
        scq.next();
    }
    let now = b.port.counters().unwrap().rx_no_destination;
    assert_eq!(now, before + 2);
    assert!(cqs.iter_mut().all(|cq| cq.poll().is_none()));
}
