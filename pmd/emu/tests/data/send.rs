//! Send queues: every way to say where a packet is, and every way to say it wrong.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::WireKind;
use pollux_prm::completion::{CqeOpcode, Syndrome};
use pollux_prm::wqe::{CtrlFlags, DataSeg, SendOpcode};

const PROTECTION: u8 = Syndrome::LOCAL_PROT_ERR.0;
const OPERATION: u8 = Syndrome::LOCAL_QP_OP_ERR.0;
const LENGTH: u8 = Syndrome::LOCAL_LENGTH_ERR.0;
const FLUSH: u8 = Syndrome::WR_FLUSH_ERR.0;

#[test]
fn frames_arrive_byte_for_byte_in_every_shape() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(8);
    let mut expected = Vec::new();
    for len in [14, 15, 59, 60, 64, 65, 127, 128, 129, 1514] {
        let bytes = frame(len, len as u64);
        // Whole in one segment; with inline headers of several sizes; in pieces of all kinds.
        for inline in [0, 1, 2, 3, 14, 16, 18, 34, 70] {
            if inline >= len {
                continue;
            }
            let iova = a.place(&bytes[inline..]);
            sq.send(&bytes[..inline], &[((len - inline) as u32, KEY, iova)]);
            expected.push(bytes.clone());
        }
        let iova = a.place(&bytes);
        let cut = len as u64 / 3;
        sq.send(
            &[],
            &[
                (cut as u32, KEY, iova),
                (1, KEY, iova + cut),
                ((len as u64 - cut - 1) as u32, KEY, iova + cut + 1),
            ],
        );
        expected.push(bytes);
        sq.publish();
        sq.ring(a);
        for (index, want) in expected.drain(..).enumerate() {
            let got = rq.receive(&mut rcq);
            assert_eq!(got, want, "frame {index} of length {len}");
            let cqe = scq.next();
            assert_eq!(cqe.opcode(), CqeOpcode::REQ.0);
            assert_eq!(cqe.send_opcode(), SendOpcode::SEND.0);
            assert_eq!(cqe.flow_tag(), sq.spec.sqn);
        }
        // Buffers that were used are good for the next round.
        rq.posted = rcq.consumer as u16 + 64;
        rq.publish();
    }
}

#[test]
fn inline_data_segments_and_wqes_around_the_ring_end() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(3);
    for round in 0..40u64 {
        let bytes = frame(150 + round as usize, round);
        let tail = a.place(&bytes[100..]);
        let mut wqe = sq
            .control(SendOpcode::SEND, 0, CtrlFlags::CQ_UPDATE)
            .to_vec();
        wqe.extend([0; 16]);
        wqe.extend((0x8000_0000u32 | 100).to_be_bytes());
        wqe.extend(&bytes[..100]);
        wqe.resize(wqe.len().next_multiple_of(16), 0);
        wqe.extend(crate::queues::bytes(DataSeg::words(
            bytes.len() as u32 - 100,
            KEY,
            tail,
        )));
        wqe[7] = (wqe.len() / 16) as u8;
        let index = sq.wqe(&wqe);
        sq.publish();
        sq.ring(a);
        assert_eq!(rq.receive(&mut rcq), bytes);
        assert_eq!(scq.next().wqe_counter(), index);
    }
}

#[test]
fn completions_come_only_when_asked_for() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (_rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    let bytes = frame(80, 1);
    let iova = a.place(&bytes);
    let data = [(80, KEY, iova)];
    let flags = [
        CtrlFlags::NONE,
        CtrlFlags(4),
        CtrlFlags::CQ_UPDATE,
        CtrlFlags::CQ_UPDATE_AND_EQE,
    ];
    for flag in flags {
        sq.send_with(SendOpcode::SEND, flag, [0; 4], &[], &data);
    }
    let nop = sq.control(SendOpcode::NOP, 1, CtrlFlags::CQ_UPDATE);
    sq.wqe(&nop);
    sq.publish();
    sq.ring(a);
    let counters: Vec<u16> = (0..3).map(|_| scq.next().wqe_counter()).collect();
    assert_eq!(counters, [2, 3, 4]);
    for _ in 0..4 {
        rcq.next();
    }
    a.settle();
    assert!(
        scq.poll().is_none() && rcq.poll().is_none(),
        "a NOP sends nothing"
    );
    let counters = a.port.counters().unwrap();
    assert_eq!(
        counters.vport_tx.unicast,
        Traffic {
            frames: 4,
            bytes: 320
        }
    );
    assert_eq!(
        b.port.counters().unwrap().vport_rx.unicast,
        Traffic {
            frames: 4,
            bytes: 320
        }
    );
}

/// Posts something wrong between good frames and looks at what becomes of all of them.
fn fails(
    what: &str,
    syndrome: u8,
    setup: impl FnOnce(&mut Side, &mut SqSpec),
    wrong: impl FnOnce(&mut Side, &mut Sq),
) -> u8 {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let mut scq = a.cq(6);
    let mut spec = None;
    let mut sq = a.sq_with(6, &scq, |given| spec = Some(given.clone()));
    let mut changed = spec.unwrap();
    setup(a, &mut changed);
    a.port.destroy_sq(sq.spec.sqn).unwrap();
    a.port.create_sq(changed.clone()).unwrap();
    sq.spec = changed;
    let inline = if sq.spec.inline == InlineMode::None {
        0
    } else {
        18
    };
    let good = |a: &mut Side, sq: &mut Sq, seed| {
        let bytes = frame(100, seed);
        let iova = a.place(&bytes[inline..]);
        sq.send(&bytes[..inline], &[((100 - inline) as u32, KEY, iova)]);
        bytes
    };
    let first = good(a, &mut sq, 1);
    let index = sq.posted;
    wrong(a, &mut sq);
    let after = sq.posted;
    good(a, &mut sq, 2);
    sq.publish();
    sq.ring(a);
    assert_eq!(rq.receive(&mut rcq), first, "{what}: the frame before");
    assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
    let error = scq.next_error();
    assert_eq!(error.syndrome(), syndrome, "{what}: {error:?}");
    assert_eq!(
        (error.wqe_counter(), error.qpn()),
        (index, sq.spec.sqn),
        "{what}"
    );
    let vendor = error.vendor_err_synd();
    let flushed = scq.next_error();
    assert_eq!(
        (flushed.syndrome(), flushed.wqe_counter()),
        (FLUSH, after),
        "{what}"
    );
    let cause = QueueFault::Completion { syndrome, vendor };
    assert_eq!(
        a.event(),
        DataEvent::SqError {
            sqn: sq.spec.sqn,
            cause
        },
        "{what}"
    );
    let status = a.port.sq_status(sq.spec.sqn).unwrap();
    assert_eq!(status.state, QueueState::Error, "{what}");
    assert_eq!(status.hardware_index, sq.posted, "{what}: all taken");
    // What is posted now is flushed too; after a reset the queue works as new.
    good(a, &mut sq, 3);
    sq.publish();
    sq.ring(a);
    assert_eq!(scq.next_error().syndrome(), FLUSH, "{what}");
    assert_eq!(a.port.counters().unwrap().tx_errors, 3, "{what}");
    a.no_event();
    a.port.modify_sq(sq.spec.sqn, QueueState::Reset).unwrap();
    sq.posted = 0;
    sq.publish();
    a.port.modify_sq(sq.spec.sqn, QueueState::Ready).unwrap();
    let last = good(a, &mut sq, 4);
    sq.publish();
    sq.ring(a);
    assert_eq!(rq.receive(&mut rcq), last, "{what}: after recovery");
    assert_eq!(scq.next().wqe_counter(), 0);
    vendor
}

fn wrong_key(what: &str, change: impl FnOnce(&mut MkeySpec), address: u64, len: u32) -> u8 {
    let key = 0x777 << 8 | 1;
    fails(
        what,
        PROTECTION,
        |a, _| {
            let mut spec = MkeySpec {
                key,
                pd: Some(PD),
                start: a.base,
                len: Some(0x1000),
                local_read: true,
                local_write: false,
                translation: Translation::Physical,
            };
            change(&mut spec);
            a.port.set_mkey(spec).unwrap();
        },
        |a, sq| {
            let base = a.base;
            sq.send(&[], &[(len, key, base + address)]);
        },
    )
}

#[test]
fn accesses_outside_a_key_are_refused_and_the_queue_recovers() {
    let mut vendors = vec![
        wrong_key("another variant", |spec| spec.key ^= 1, 0, 64),
        wrong_key("another domain", |spec| spec.pd = Some(PD + 1), 0, 64),
        wrong_key("no right to read", |spec| spec.local_read = false, 0, 64),
        wrong_key("past the end", |_| {}, 0xfc1, 64),
        wrong_key("elsewhere", |spec| spec.start = 0x10_0000, 0, 64),
    ];
    vendors.sort_unstable();
    vendors.dedup();
    assert_eq!(
        vendors.len(),
        4,
        "two of the five are out of range: {vendors:x?}"
    );
    let unmapped = wrong_key(
        "not mapped",
        |spec| (spec.start, spec.len) = (0, None),
        1 << 40,
        64,
    );
    assert!(!vendors.contains(&unmapped));
    // No such key at all.
    fails(
        "no key",
        PROTECTION,
        |_, _| {},
        |a, sq| {
            let base = a.base;
            sq.send(&[], &[(64, 0x9999 << 8, base)]);
        },
    );
    // The second segment of two is as wrong as the first.
    fails(
        "second segment",
        PROTECTION,
        |_, _| {},
        |a, sq| {
            let base = a.base;
            sq.send(&[], &[(64, KEY, base), (64, KEY ^ 3, base)]);
        },
    );
}

#[test]
fn malformed_wqes_are_refused() {
    let plain = |_: &mut Side, _: &mut SqSpec| {};
    fails("opcode", OPERATION, plain, |a, sq| {
        let data = [(64, KEY, a.base)];
        sq.send_with(SendOpcode::RDMA_WRITE, CtrlFlags::NONE, [0; 4], &[], &data);
    });
    fails("LSO that is not announced", OPERATION, plain, |a, sq| {
        let data = [(64, KEY, a.base)];
        sq.send_with(SendOpcode::LSO, CtrlFlags::NONE, [0; 4], &[0; 54], &data);
    });
    let tamper = |what: &str, at: usize, value: u8| {
        fails(what, OPERATION, plain, |a, sq| {
            let iova = a.base;
            let index = sq.send(&[], &[(64, KEY, iova)]);
            a.heap
                .write(sq.at + usize::from(index) * 64 + at, &value)
                .unwrap();
        });
    };
    tamper("another queue's number", 6, 0xfe);
    tamper("another index", 2, 0x55);
    tamper("an opcode modifier", 0, 1);
    tamper("more segments than posted", 7, 0x3f);
    tamper("no segments", 7, 0);
    fails("inline header past the WQE", OPERATION, plain, |a, sq| {
        let data = [(64, KEY, a.base)];
        let eth = [0, 0, 0, (200u32 << 16).to_be()];
        sq.send_with(SendOpcode::SEND, CtrlFlags::NONE, eth, &[], &data);
    });
    fails("too short for Ethernet", LENGTH, plain, |a, sq| {
        let iova = a.base;
        sq.send(&[], &[(13, KEY, iova)]);
    });
    fails("segment of no bytes", LENGTH, plain, |a, sq| {
        let iova = a.base;
        sq.send(&[], &[(0, KEY, iova)]);
    });
    fails("segment of a gigabyte", LENGTH, plain, |a, sq| {
        let iova = a.base;
        sq.send(&[], &[(1 << 30, KEY, iova)]);
    });
    fails("nothing but a header", LENGTH, plain, |_, sq| {
        sq.send(&[], &[]);
    });
}

#[test]
fn the_inline_header_is_insisted_on() {
    let mode = |mode| move |_: &mut Side, spec: &mut SqSpec| spec.inline = mode;
    let inline = |len: usize, tag: bool, ip: bool| {
        move |a: &mut Side, sq: &mut Sq| {
            let mut bytes = frame(100, 5);
            if tag {
                bytes[12..14].copy_from_slice(&[0x81, 0]);
            }
            if ip {
                bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17]);
            }
            let iova = a.place(&bytes[len..]);
            sq.send(&bytes[..len], &[((100 - len) as u32, KEY, iova)]);
        }
    };
    fails(
        "nothing inline",
        OPERATION,
        mode(InlineMode::L2),
        inline(0, false, false),
    );
    fails(
        "13 of 14 bytes",
        OPERATION,
        mode(InlineMode::L2),
        inline(13, false, false),
    );
    fails(
        "tag not inline",
        OPERATION,
        mode(InlineMode::L2),
        inline(17, true, false),
    );
    fails(
        "IP not inline",
        OPERATION,
        mode(InlineMode::Ip),
        inline(33, false, true),
    );
    fails(
        "UDP not inline",
        OPERATION,
        mode(InlineMode::TcpUdp),
        inline(41, false, true),
    );
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (_rq, mut rcq) = b.receiver(6, 64);
    let mut scq = a.cq(6);
    for (mode, len) in [
        (InlineMode::L2, 14),
        (InlineMode::Ip, 34),
        (InlineMode::TcpUdp, 42),
    ] {
        let mut sq = a.sq_with(6, &scq, |spec| spec.inline = mode);
        inline(len, false, true)(a, &mut sq);
        sq.publish();
        sq.ring(a);
        assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0, "{mode:?}");
        rcq.next();
    }
}

#[test]
fn a_record_that_claims_too_much_fails_the_queue() {
    let mut rig = Setup::new(vec![wire(WireKind::Null)]).start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    sq.posted = 17;
    sq.publish();
    sq.ring(a);
    let cause = QueueFault::Index;
    assert_eq!(
        a.event(),
        DataEvent::SqError {
            sqn: sq.spec.sqn,
            cause
        }
    );
    a.settle();
    assert!(scq.poll().is_none());
}

#[test]
fn counters_pass_two_to_the_sixteenth() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    let bytes = frame(60, 9);
    let iova = a.place(&bytes);
    let mut left = 70_000u32;
    while left > 0 {
        let burst = left.min(64);
        for _ in 0..burst {
            sq.send(&[], &[(60, KEY, iova)]);
        }
        sq.publish();
        sq.ring(a);
        for _ in 0..burst {
            let index = rcq.consumer as u16;
            let cqe = until("a frame", || rcq.poll());
            assert_eq!(cqe.wqe_counter(), index);
            assert_eq!(until("a completion", || scq.poll()).wqe_counter(), index);
            rq.repost();
        }
        rcq.publish();
        scq.publish();
        rq.publish();
        left -= burst;
    }
    assert_eq!(a.port.wire().unwrap().frames_out, 70_000);
    assert_eq!(b.port.counters().unwrap().vport_rx.unicast.frames, 70_000);
}

#[test]
fn queues_in_reset_take_nothing_and_unknown_objects_are_named() {
    let mut rig = Setup::new(vec![wire(WireKind::Null)]).start();
    let a = &mut rig.sides[0];
    let scq = a.cq(4);
    let mut sq = a.sq_with(4, &scq, |spec| spec.state = QueueState::Reset);
    let bytes = frame(60, 1);
    a.send(&mut sq, &bytes);
    a.settle();
    assert_eq!(a.port.sq_status(sq.spec.sqn).unwrap().software_index, 0);
    let exists = a.port.create_sq(sq.spec.clone()).unwrap_err();
    assert!(
        matches!(exists, DataError::Exists { kind: Kind::Sq, .. }),
        "{exists}"
    );
    let mut orphan = sq.spec.clone();
    (orphan.sqn, orphan.cqn) = (0x99, 0x999);
    let unknown = a.port.create_sq(orphan).unwrap_err();
    assert_eq!(unknown.to_string(), "completion queue 0x999 does not exist");
    let mut small = sq.spec.clone();
    (small.sqn, small.log_size) = (0x99, 10);
    let ring = a.port.create_sq(small).unwrap_err();
    assert!(ring.to_string().contains("needs 65536 bytes"), "{ring}");
    let mut unmapped = sq.spec.clone();
    (unmapped.sqn, unmapped.ring.pages) = (0x99, vec![0x1000]);
    assert!(matches!(
        a.port.create_sq(unmapped),
        Err(DataError::Memory { .. })
    ));
    assert!(a.port.destroy_sq(0x99).is_err());
    a.port.destroy_sq(sq.spec.sqn).unwrap();
    assert!(a.port.sq_status(sq.spec.sqn).is_err());
}
