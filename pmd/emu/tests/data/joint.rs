//! Joints and links: loop, pair, null, frames that are too large, ports that are down.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::{GenConfig, WireConfig, WireKind};
use pollux_prm::wqe::{CtrlFlags, SendOpcode};

#[test]
fn a_loop_returns_frames_to_their_sender() {
    let mut rig = Setup::new(vec![wire(WireKind::Loop)]).start();
    let a = &mut rig.sides[0];
    let (rq, mut rcq) = a.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    for seed in 0..20 {
        let bytes = frame(60 + seed as usize, seed);
        a.send(&mut sq, &bytes);
        assert_eq!(rq.receive(&mut rcq), bytes);
        scq.next();
    }
    let report = a.port.wire().unwrap();
    assert_eq!(
        (report.frames_in, report.frames_out, report.drained),
        (20, 20, true)
    );
}

#[test]
fn both_directions_of_a_pair_at_once() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (arq, mut arcq) = a.receiver(6, 64);
    let (brq, mut brcq) = b.receiver(6, 64);
    let (mut asq, _ascq) = a.sender(6);
    let (mut bsq, _bscq) = b.sender(6);
    for seed in 0..30 {
        a.post(&mut asq, &frame(100, seed));
        b.post(&mut bsq, &frame(200, seed));
    }
    asq.publish();
    bsq.publish();
    asq.ring(a);
    bsq.ring(b);
    for seed in 0..30 {
        assert_eq!(brq.receive(&mut brcq), frame(100, seed));
        assert_eq!(arq.receive(&mut arcq), frame(200, seed));
    }
}

#[test]
fn frames_over_the_limit_are_counted_and_named_on_both_sides() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 8);
    let (mut sq, mut scq) = a.sender(6);
    a.port
        .set_link(LinkSpec {
            up: true,
            max_frame: 1000,
        })
        .unwrap();
    b.port
        .set_link(LinkSpec {
            up: true,
            max_frame: 500,
        })
        .unwrap();
    for len in [500, 501, 1000, 1001, 60] {
        a.send(&mut sq, &frame(len, 1));
        scq.next();
    }
    assert_eq!(rq.receive(&mut rcq).len(), 500);
    assert_eq!(rq.receive(&mut rcq).len(), 60);
    let sent = a.port.wire().unwrap();
    assert_eq!((sent.frames_out, sent.oversize), (4, 1));
    let named = sent.oversize_first[0];
    assert_eq!(
        (named.outgoing, named.index, named.length, named.limit),
        (true, 3, 1001, 1000)
    );
    let got = b.port.wire().unwrap();
    assert_eq!((got.frames_in, got.dropped, got.oversize), (2, 2, 2));
    let lengths: Vec<_> = got
        .oversize_first
        .iter()
        .map(|o| (o.index, o.length))
        .collect();
    assert_eq!(lengths, [(1, 501), (2, 1000)]);
    assert_eq!(b.port.counters().unwrap().rx_too_long, 2);
    assert_eq!(a.port.counters().unwrap().tx_discards, 1);
}

#[test]
fn a_link_is_up_when_both_ends_and_the_cable_are() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    assert!(a.port.link_up().unwrap() && b.port.link_up().unwrap());
    let down = LinkSpec {
        up: false,
        max_frame: 1518,
    };
    let up = LinkSpec { up: true, ..down };
    b.port.set_link(down).unwrap();
    assert_eq!(a.event(), DataEvent::Link { up: false });
    assert_eq!(b.event(), DataEvent::Link { up: false });
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    assert_eq!(a.port.counters().unwrap().tx_discards, 1);
    a.port.set_wire(false).unwrap();
    b.port.set_link(up).unwrap();
    a.no_event();
    a.port.set_wire(true).unwrap();
    assert_eq!(a.event(), DataEvent::Link { up: true });
    assert_eq!(b.event(), DataEvent::Link { up: true });
    b.no_event();
    a.send(&mut sq, &frame(60, 2));
    assert_eq!(rq.receive(&mut rcq), frame(60, 2));
    let report = a.port.wire().unwrap();
    assert_eq!((report.up, report.frames_out), (true, 1));
}

#[test]
fn joints_that_lead_nowhere_are_refused() {
    let pair = |peer| wire(WireKind::Pair { peer });
    let refused = |wires: Vec<WireConfig>| {
        let functions = wires
            .into_iter()
            .map(|wire| DataFunction {
                uars: segment("uars", 4096).whole(),
                first_uar: 0,
                log_bf_reg_size: 9,
                features: Features::default(),
                frequency_khz: 1,
                wire,
                events: Box::new(|_| {}),
            })
            .collect();
        let idle = IdlePolicy::Yield;
        match DataPlane::start(DataPlaneConfig {
            strict: true,
            cpu: None,
            idle,
            functions,
        }) {
            Ok(_) => panic!("was accepted"),
            Err(error) => error.to_string(),
        }
    };
    assert!(refused(vec![pair(1)]).contains("there are 1"));
    assert!(refused(vec![pair(0)]).contains("loop wire"));
    assert!(refused(vec![pair(1), pair(2), pair(1)]).contains("pair both"));
    assert!(refused(vec![pair(1), wire(WireKind::Null)]).contains("pair both"));
    let generate = |config| refused(vec![wire(WireKind::Gen(config))]);
    let base = GenConfig::default();
    assert!(
        generate(GenConfig {
            sizes: vec![],
            ..base.clone()
        })
        .contains("sizes=[60]")
    );
    assert!(
        generate(GenConfig {
            sizes: vec![59],
            ..base.clone()
        })
        .contains("59")
    );
    assert!(generate(GenConfig { flows: 0, ..base }).contains("1 to 4096"));
}

fn features() -> Features {
    Features {
        tx_checksum: true,
        rx_checksum_full: false,
        tx_vlan_insert: true,
        max_lso: 1 << 18,
    }
}

/// The sum over big-endian halves.
fn ones(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A TCP packet without checksums.
fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = frame(54 + payload, 8);
    let total = (40 + payload).min(0xffff) as u16;
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..26].copy_from_slice(&[0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, 0x18]);
    bytes[50..52].copy_from_slice(&[0, 0]);
    bytes
}

#[test]
fn checksums_and_tags_are_written_where_announced() {
    for announced in [true, false] {
        let features = if announced {
            features()
        } else {
            Features::default()
        };
        let mut rig = Setup {
            features,
            ..Setup::pair()
        }
        .start();
        let (a, b) = rig.both();
        let (rq, mut rcq) = b.receiver(6, 64);
        let (mut sq, mut scq) = a.sender(6);
        let bytes = tcp(31);
        let iova = a.place(&bytes);
        let data = [(bytes.len() as u32, KEY, iova)];
        let both = [0, (0xc0u32 << 24).to_be(), 0, 0];
        sq.send_with(SendOpcode::SEND, CtrlFlags::CQ_UPDATE, both, &[], &data);
        let tag = [0, 0, 0, (0x8000_2123u32).to_be()];
        sq.send_with(SendOpcode::SEND, CtrlFlags::CQ_UPDATE, tag, &[], &data);
        sq.publish();
        sq.ring(a);
        let cqe = rcq.next();
        let got = rq.bytes(&cqe);
        assert_eq!((cqe.l3_ok(), cqe.l4_ok()), (announced, announced));
        if announced {
            assert_eq!(ones(&got[14..34], 0), 0xffff);
            let len = (got.len() - 34) as u32;
            let pseudo = u32::from(ones(&got[26..34], 0)) + 6 + len;
            assert_eq!(ones(&got[34..], pseudo), 0xffff);
        } else {
            assert_eq!(got, bytes);
        }
        scq.next();
        if announced {
            let got = rq.receive(&mut rcq);
            assert_eq!(got[12..16], [0x81, 0, 0x21, 0x23]);
            assert_eq!(got[16..], bytes[12..]);
        }
    }
}

#[test]
fn a_large_send_is_cut_and_waits_for_buffers_in_the_middle() {
    let mut rig = Setup {
        features: features(),
        ..Setup::pair()
    }
    .start();
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 3);
    let (mut sq, mut scq) = a.sender(6);
    let bytes = tcp(10_000);
    let iova = a.place(&bytes[54..]);
    let mss = [0, 1448u32.to_be(), 0, 0];
    let data = [(5000, KEY, iova), (5000, KEY, iova + 5000)];
    sq.send_with(
        SendOpcode::LSO,
        CtrlFlags::CQ_UPDATE,
        mss,
        &bytes[..54],
        &data,
    );
    sq.publish();
    sq.ring(a);
    let mut payload: Vec<u8> = Vec::new();
    for number in 0..7u16 {
        if number >= 3 {
            a.settle();
            assert!(rcq.poll().is_none() && scq.poll().is_none());
            let (at, iova) = b.take(2048);
            rq.post(&[(2048, KEY, iova)], at);
            rq.publish();
        }
        let cqe = rcq.next();
        assert!(cqe.l3_ok() && cqe.l4_ok(), "segment {number}");
        let got = rq.bytes(&cqe);
        let sequence = u32::from_be_bytes(bytes[38..42].try_into().unwrap());
        let now = u32::from_be_bytes(got[38..42].try_into().unwrap());
        assert_eq!(now, sequence.wrapping_add(payload.len() as u32));
        assert_eq!(u16::from_be_bytes([got[18], got[19]]), 0x1234 + number);
        let push = if number == 6 { 0x18 } else { 0x10 };
        assert_eq!(got[47], push);
        payload.extend(&got[54..]);
    }
    assert_eq!(payload, bytes[54..]);
    assert_eq!(scq.next().send_opcode(), SendOpcode::LSO.0);
    // Too large, and without a header to repeat.
    sq.send_with(SendOpcode::LSO, CtrlFlags::NONE, mss, &[], &data);
    sq.publish();
    sq.ring(a);
    assert_eq!(scq.next_error().syndrome(), 1);
}

#[test]
fn a_generator_makes_the_same_frames_for_the_same_seed() {
    let collect = |seed| {
        let config = GenConfig {
            sizes: vec![60, 64, 1514],
            flows: 5,
            count: Some(100),
            rate: Some(1_000_000),
            seed,
            destination: Some(MAC),
        };
        let mut rig = Setup::new(vec![wire(WireKind::Gen(config))]).start();
        let a = &mut rig.sides[0];
        a.settle();
        let before = a.port.wire().unwrap();
        assert_eq!(
            (before.waiting, before.frames_in, before.dropped),
            (100, 0, 0)
        );
        let (mut rq, mut rcq) = a.receiver(5, 32);
        let mut frames = Vec::new();
        for _ in 0..100 {
            let cqe = rcq.next();
            assert!(cqe.l3_ok() && cqe.l4_ok());
            frames.push(rq.bytes(&cqe));
            rq.repost();
            rq.publish();
        }
        a.settle();
        assert!(rcq.poll().is_none(), "no more than were asked for");
        let report = a.port.wire().unwrap();
        assert_eq!(
            (report.frames_in, report.waiting, report.drained),
            (100, 0, true)
        );
        frames
    };
    let one = collect(1);
    assert_eq!(one, collect(1));
    assert_ne!(one, collect(2));
    let mut sizes: Vec<_> = one.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert_eq!(sizes, [60, 64, 1514]);
    let mut flows: Vec<_> = one.iter().map(|bytes| bytes[34..36].to_vec()).collect();
    flows.sort_unstable();
    flows.dedup();
    assert_eq!(flows.len(), 5);
}
