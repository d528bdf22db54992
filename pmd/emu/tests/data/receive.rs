//! Receive queues: buffers that are too few, too small, in pieces, or not there.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::{WireConfig, WireKind};
use pollux_prm::completion::{CqeOpcode, L3HeaderType, L4HeaderType, Syndrome};
use pollux_prm::wqe::INVALID_LKEY;

#[test]
fn without_buffers_a_lossless_wire_waits() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 1);
    let (mut sq, mut scq) = a.sender(6);
    let frames: Vec<_> = (0..5).map(|seed| frame(100, seed)).collect();
    for bytes in &frames {
        a.post(&mut sq, bytes);
    }
    sq.publish();
    sq.ring(a);
    assert_eq!(rq.receive(&mut rcq), frames[0]);
    scq.next();
    a.settle();
    assert!(scq.poll().is_none() && rcq.poll().is_none());
    let report = b.port.wire().unwrap();
    assert_eq!(
        (report.waiting, report.drained, report.dropped),
        (1, false, 0)
    );
    assert!(!a.port.wire().unwrap().drained);
    for want in &frames[1..] {
        let (at, iova) = b.take(2048);
        rq.post(&[(2048, KEY, iova)], at);
        rq.publish();
        assert_eq!(rq.receive(&mut rcq), *want);
        scq.next();
    }
    let report = until("all is drained", || {
        Some(b.port.wire().unwrap()).filter(|r| r.drained)
    });
    assert_eq!(
        (report.frames_in, report.bytes_in, report.dropped),
        (5, 500, 0)
    );
    assert_eq!(b.port.out_of_buffer(3, false).unwrap(), 0);
}

#[test]
fn without_buffers_a_lossy_wire_drops_and_counts_exactly() {
    let lossy = |peer| WireConfig {
        kind: WireKind::Pair { peer },
        lossy: true,
    };
    let mut rig = Setup::new(vec![lossy(1), lossy(0)]).start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 3);
    let (mut sq, mut scq) = a.sender(6);
    for seed in 0..10 {
        a.post(&mut sq, &frame(100, seed));
    }
    sq.publish();
    sq.ring(a);
    for _ in 0..10 {
        scq.next();
    }
    for seed in 0..3 {
        assert_eq!(rq.receive(&mut rcq), frame(100, seed));
    }
    assert_eq!(b.port.out_of_buffer(3, true).unwrap(), 7);
    assert_eq!(b.port.out_of_buffer(3, false).unwrap(), 0);
    assert_eq!(b.port.out_of_buffer(4, false).unwrap(), 0);
    let report = b.port.wire().unwrap();
    assert_eq!(
        (report.frames_in, report.dropped, report.waiting),
        (3, 7, 0)
    );
    let counters = b.port.counters().unwrap();
    assert_eq!(
        (counters.rx_discards, counters.port_rx.unicast.frames),
        (7, 10)
    );
    assert_eq!(counters.vport_rx.unicast.frames, 3);
}

#[test]
fn a_frame_larger_than_its_buffer_costs_one_buffer_and_is_named() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let mut rcq = b.cq(6);
    let mut rq = b.rq(4, &rcq);
    for len in [200, 128, 200] {
        let (at, iova) = b.take(256);
        rq.post(&[(len, KEY, iova)], at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, mut scq) = a.sender(6);
    let frames: Vec<_> = (0..3).map(|seed| frame(150, seed)).collect();
    for bytes in &frames {
        a.send(&mut sq, bytes);
    }
    assert_eq!(rq.receive(&mut rcq), frames[0]);
    let error = rcq.next_error();
    assert_eq!(error.opcode(), CqeOpcode::RESP_ERR.0);
    assert_eq!(error.syndrome(), Syndrome::LOCAL_LENGTH_ERR.0);
    assert_eq!((error.wqe_counter(), error.qpn()), (1, rq.spec.rqn));
    assert_eq!(
        rq.receive(&mut rcq),
        frames[2],
        "the queue goes on in order"
    );
    for _ in 0..3 {
        scq.next();
    }
    let report = b.port.wire().unwrap();
    assert_eq!(
        (report.frames_in, report.dropped, report.oversize),
        (2, 1, 1)
    );
    let named = report.oversize_first[0];
    assert_eq!(
        (named.outgoing, named.index, named.length, named.limit),
        (false, 1, 150, 128)
    );
    assert_eq!(b.port.counters().unwrap().rx_buffer_too_small, 1);
    b.no_event();
}

#[test]
fn a_buffer_in_pieces_is_filled_in_order() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let mut rcq = b.cq(6);
    let mut rq = b.rq_with(3, 6, &rcq, |_| {});
    let mut places = Vec::new();
    for _ in 0..8 {
        let (at, iova) = b.take(4096);
        rq.post(
            &[
                (50, KEY, iova + 1000),
                (14, KEY, iova),
                (100, KEY, iova + 2000),
                (0, INVALID_LKEY, 0),
            ],
            at,
        );
        places.push(at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, _scq) = a.sender(6);
    for (at, len) in places
        .into_iter()
        .zip([14usize, 50, 51, 64, 65, 163, 164, 165])
    {
        let bytes = frame(len, len as u64);
        a.send(&mut sq, &bytes);
        let cqe = rcq.next();
        if len > 164 {
            assert_eq!(cqe.opcode(), CqeOpcode::RESP_ERR.0);
            continue;
        }
        assert_eq!(cqe.byte_cnt() as usize, len);
        let mut got = b.heap.to_vec(at + 1000, 50).unwrap();
        got.extend(b.heap.to_vec(at, 14).unwrap());
        got.extend(b.heap.to_vec(at + 2000, 100).unwrap());
        assert_eq!(got[..len], bytes);
        assert!(
            got[len..].iter().all(|byte| *byte == 0),
            "nothing is written behind the frame"
        );
    }
}

#[test]
fn a_wrong_key_fails_the_queue_and_flushes_it() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let mut rcq = b.cq(6);
    let mut rq = b.rq(4, &rcq);
    let (at, iova) = b.take(2048);
    let other = KEY ^ 0x0001_0000;
    b.port
        .set_mkey(MkeySpec {
            key: other,
            pd: Some(PD),
            start: 0,
            len: None,
            local_read: true,
            local_write: false,
            translation: Translation::Physical,
        })
        .unwrap();
    rq.post(&[(2048, KEY, iova)], at);
    rq.post(&[(2048, other, iova)], at);
    rq.post(&[(2048, KEY, iova)], at);
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, mut scq) = a.sender(6);
    for seed in 0..4 {
        a.send(&mut sq, &frame(100, seed));
    }
    for _ in 0..4 {
        scq.next();
    }
    assert_eq!(rq.receive(&mut rcq), frame(100, 0));
    let error = rcq.next_error();
    assert_eq!(
        (error.syndrome(), error.wqe_counter()),
        (Syndrome::LOCAL_PROT_ERR.0, 1)
    );
    assert_eq!(rcq.next_error().syndrome(), Syndrome::WR_FLUSH_ERR.0);
    let cause = QueueFault::Completion {
        syndrome: Syndrome::LOCAL_PROT_ERR.0,
        vendor: error.vendor_err_synd(),
    };
    assert_eq!(
        b.event(),
        DataEvent::RqError {
            rqn: rq.spec.rqn,
            cause
        }
    );
    assert_eq!(
        b.port.rq_status(rq.spec.rqn).unwrap().state,
        QueueState::Error
    );
    let report = b.port.wire().unwrap();
    assert_eq!(
        (report.frames_in, report.dropped),
        (1, 3),
        "nothing is lost silently"
    );
    // What is posted in error state is flushed; after a reset exactly the ring counts again.
    rq.post(&[(2048, KEY, iova)], at);
    rq.publish();
    assert_eq!(rcq.next_error().wqe_counter(), 3);
    let change = |state| RqChange {
        state: Some(state),
        ..RqChange::default()
    };
    b.port
        .modify_rq(rq.spec.rqn, change(QueueState::Reset))
        .unwrap();
    rq.posted = 0;
    rq.post(&[(2048, KEY, iova)], at);
    rq.publish();
    b.port
        .modify_rq(rq.spec.rqn, change(QueueState::Ready))
        .unwrap();
    a.send(&mut sq, &frame(90, 7));
    assert_eq!(rq.receive(&mut rcq), frame(90, 7));
    b.no_event();
}

#[test]
fn a_record_that_claims_too_much_fails_the_queue() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rq, _rcq) = b.receiver(4, 16);
    rq.posted = 17;
    rq.publish();
    let (mut sq, mut scq) = a.sender(4);
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    let cause = QueueFault::Index;
    assert_eq!(
        b.event(),
        DataEvent::RqError {
            rqn: rq.spec.rqn,
            cause
        }
    );
    assert_eq!(b.port.wire().unwrap().dropped, 1);
}

/// A TCP or UDP frame over IPv4; checksums by the device of the sending side.
fn packet(protocol: u8, payload: usize) -> Vec<u8> {
    let header = if protocol == 6 { 20 } else { 8 };
    let mut bytes = frame(34 + header + payload, 3);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let total = (20 + header + payload) as u16;
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol]);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    if protocol == 6 {
        bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    } else {
        bytes[38..40].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
    }
    bytes
}

/// The sum that IP and its children use, over big-endian halves.
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

/// Writes right checksums into what [`packet`] made.
fn check(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let header = !ones(&bytes[14..34], 0);
    bytes[24..26].copy_from_slice(&header.to_be_bytes());
    let at = if bytes[23] == 6 { 50 } else { 40 };
    bytes[at..at + 2].fill(0);
    let len = bytes.len() - 34;
    let pseudo = u32::from(ones(&bytes[26..34], 0)) + u32::from(bytes[23]) + len as u32;
    let sum = !ones(&bytes[34..], pseudo);
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn completions_describe_the_packet() {
    let clock = DeviceClock::new(1_000_000);
    // The device looks at its clock once a turn, which may be a moment before a frame.
    let mut before = clock.now();
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, _scq) = a.sender(6);
    let mut probe = |bytes: &[u8]| {
        a.send(&mut sq, bytes);
        let cqe = rcq.next();
        assert_eq!(rq.bytes(&cqe), bytes);
        assert!(cqe.l2_ok());
        assert_eq!(
            (cqe.flags_rqpn(), cqe.srqn()),
            (rq.spec.rqn, rq.spec.user_index)
        );
        assert!(
            (before..=clock.now()).contains(&cqe.timestamp()),
            "{}",
            cqe.timestamp()
        );
        before = cqe.timestamp();
        assert_eq!(cqe.check_sum(), ones(&bytes[14..], 0));
        cqe
    };
    for payload in [0, 1, 6, 18, 100, 1000] {
        let mut udp = packet(17, payload);
        check(&mut udp);
        let cqe = probe(&udp);
        assert_eq!(cqe.l3_hdr_type(), L3HeaderType::IPV4.0);
        assert_eq!(cqe.l4_hdr_type(), L4HeaderType::UDP.0);
        assert!(cqe.l3_ok() && cqe.l4_ok(), "payload {payload}");
        udp[36] ^= 1;
        assert!(!probe(&udp).l4_ok());
        udp[36] ^= 1;
        udp[22] ^= 1;
        assert!(!probe(&udp).l3_ok());
        let mut tcp = packet(6, payload);
        check(&mut tcp);
        let cqe = probe(&tcp);
        let kind = if payload == 0 {
            L4HeaderType::TCP_ACK_NO_DATA
        } else {
            L4HeaderType::TCP_ACK_AND_DATA
        };
        assert_eq!(
            (cqe.l4_hdr_type(), cqe.l3_ok(), cqe.l4_ok()),
            (kind.0, true, true)
        );
        // A fragment has no L4 that could be checked.
        tcp[20] = 0x20;
        check(&mut tcp);
        let cqe = probe(&tcp);
        assert!(cqe.ip_frag() && cqe.l3_ok() && !cqe.l4_ok());
    }
    let cqe = probe(&frame(60, 5));
    assert_eq!((cqe.l3_hdr_type(), cqe.l4_hdr_type()), (0, 0));
    assert!(!cqe.l3_ok() && !cqe.l4_ok());
}

#[test]
fn tags_are_taken_out_and_check_sequences_appended() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, _scq) = a.sender(6);
    let mut bytes = frame(64, 5);
    bytes[12..16].copy_from_slice(&[0x81, 0, 0x20, 0x64]);
    a.send(&mut sq, &bytes);
    let cqe = rcq.next();
    assert_eq!(
        (rq.bytes(&cqe), cqe.vlan_stripped()),
        (bytes.clone(), false)
    );
    let strip = RqChange {
        vlan_strip: Some(true),
        ..RqChange::default()
    };
    b.port.modify_rq(rq.spec.rqn, strip).unwrap();
    a.send(&mut sq, &bytes);
    let cqe = rcq.next();
    let mut bare = bytes.clone();
    bare.drain(12..16);
    assert_eq!(rq.bytes(&cqe), bare);
    assert_eq!((cqe.vlan_stripped(), cqe.vlan_info()), (true, 0x2064));
    let fcs = RqChange {
        vlan_strip: Some(false),
        scatter_fcs: Some(true),
        ..RqChange::default()
    };
    b.port.modify_rq(rq.spec.rqn, fcs).unwrap();
    // A frame of zeros but for its type: its check sequence is known from elsewhere.
    a.send(&mut sq, &[0; 60]);
    let got = rq.receive(&mut rcq);
    assert_eq!(got.len(), 64);
    assert_eq!(
        got[60..],
        0x0412_8908u32.to_le_bytes(),
        "CRC-32 of 60 zero bytes"
    );
}

#[test]
fn frames_are_counted_by_length() {
    // Limits with check sequence, as the registers have them.
    let limits = [64usize, 127, 255, 511, 1023, 1518, 2047, 4095, 8191];
    for (class, limit) in limits.into_iter().enumerate() {
        assert_eq!(size_class(limit - 4), class, "{limit} bytes");
        assert_eq!(size_class(limit - 3), class + 1, "{} bytes", limit + 1);
    }
    assert_eq!((size_class(14), size_class(20_000)), (0, SIZE_CLASSES - 1));
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    let mut wanted = [0u64; SIZE_CLASSES];
    for (class, sizes) in [
        (0, vec![14, 59, 60]),
        (1, vec![61, 123]),
        (2, vec![124, 251, 200, 200]),
        (4, vec![600]),
        (5, vec![1020, 1514]),
    ] {
        for len in sizes {
            a.send(&mut sq, &frame(len, 4));
            scq.next();
            assert_eq!(rq.receive(&mut rcq).len(), len);
            wanted[class] += 1;
        }
    }
    // In one go, so that some take the short way.
    let iova = a.place(&frame(300, 1));
    for len in [100, 100, 100, 300, 300, 60, 60, 300] {
        sq.send(&[], &[(len, KEY, iova)]);
        wanted[match len {
            60 => 0,
            100 => 1,
            _ => 3,
        }] += 1;
    }
    sq.publish();
    sq.ring(a);
    for _ in 0..8 {
        rcq.next();
    }
    // What no queue got was on the wire all the same.
    b.port.set_steering(steering::Steering::default()).unwrap();
    a.send(&mut sq, &frame(700, 1));
    for _ in 0..9 {
        scq.next();
    }
    wanted[4] += 1;
    assert_eq!(b.port.counters().unwrap().rx_sizes, wanted);
}
