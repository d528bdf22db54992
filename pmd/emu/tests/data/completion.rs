//! Completion queues: arming, overrun, entries of both sizes, corrupted entries.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::WireKind;
use pollux_prm::completion::CqeOpcode;

fn null() -> Setup {
    Setup::new(vec![wire(WireKind::Null)])
}

#[test]
fn an_armed_queue_tells_of_one_completion() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    let completion = DataEvent::Completion { cqn: scq.spec.cqn };
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    a.no_event();
    scq.arm(a, 1);
    a.settle();
    assert!(a.port.cq_status(scq.spec.cqn).unwrap().armed);
    a.no_event();
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(a.event(), completion);
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    scq.next();
    a.no_event();
}

#[test]
fn arming_behind_the_producer_tells_at_once() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, scq) = a.sender(4);
    a.send(&mut sq, &frame(60, 1));
    until("the completion", || {
        (a.port.cq_status(scq.spec.cqn).unwrap().producer == 1).then_some(())
    });
    scq.arm(a, 1);
    assert_eq!(a.event(), DataEvent::Completion { cqn: scq.spec.cqn });
    assert!(!a.port.cq_status(scq.spec.cqn).unwrap().armed);
}

#[test]
fn a_strict_device_arms_by_the_doorbell_only() {
    for strict in [true, false] {
        let mut rig = Setup { strict, ..null() }.start();
        let a = &mut rig.sides[0];
        let (mut sq, mut scq) = a.sender(4);
        scq.write_arm(1);
        a.settle();
        assert_eq!(a.port.cq_status(scq.spec.cqn).unwrap().armed, !strict);
        a.send(&mut sq, &frame(60, 1));
        scq.next();
        if strict {
            a.no_event();
        } else {
            assert_eq!(a.event(), DataEvent::Completion { cqn: scq.spec.cqn });
        }
    }
}

#[test]
fn an_overrun_fails_the_completion_queue_and_its_work_queue() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let scq = a.cq(2);
    let mut sq = a.sq(4, &scq);
    let iova = a.place(&frame(60, 1));
    for _ in 0..6 {
        sq.send(&[], &[(60, KEY, iova)]);
    }
    sq.publish();
    sq.ring(a);
    assert_eq!(
        a.event(),
        DataEvent::CqError {
            cqn: scq.spec.cqn,
            syndrome: 1
        }
    );
    let cause = QueueFault::CompletionQueue;
    assert_eq!(
        a.event(),
        DataEvent::SqError {
            sqn: sq.spec.sqn,
            cause
        }
    );
    let status = a.port.cq_status(scq.spec.cqn).unwrap();
    assert_eq!(
        (status.error, status.producer, status.consumer),
        (true, 4, 0)
    );
    // Room that comes too late does not heal it.
    let mut scq = scq;
    for _ in 0..4 {
        scq.next();
    }
    sq.ring(a);
    a.settle();
    assert!(scq.poll().is_none());
    a.no_event();
}

#[test]
fn a_receive_queue_fails_with_its_completion_queue() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let rcq = b.cq(1);
    let mut rq = b.rq(4, &rcq);
    for _ in 0..4 {
        let (at, iova) = b.take(2048);
        rq.post(&[(2048, KEY, iova)], at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, mut scq) = a.sender(4);
    for seed in 0..4 {
        a.send(&mut sq, &frame(60, seed));
    }
    for _ in 0..4 {
        scq.next();
    }
    assert_eq!(
        b.event(),
        DataEvent::CqError {
            cqn: rcq.spec.cqn,
            syndrome: 1
        }
    );
    let cause = QueueFault::CompletionQueue;
    assert_eq!(
        b.event(),
        DataEvent::RqError {
            rqn: rq.spec.rqn,
            cause
        }
    );
    let report = b.port.wire().unwrap();
    assert_eq!((report.frames_in, report.dropped), (2, 2));
}

#[test]
fn overruns_may_be_ignored() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let scq = a.cq_with(2, |spec| spec.overrun_ignore = true);
    let mut sq = a.sq(4, &scq);
    let iova = a.place(&frame(60, 1));
    for _ in 0..9 {
        sq.send(&[], &[(60, KEY, iova)]);
    }
    sq.publish();
    sq.ring(a);
    until("all is sent", || {
        (a.port.cq_status(scq.spec.cqn).unwrap().producer == 9).then_some(())
    });
    a.no_event();
    let mut scq = scq;
    scq.consumer = 8;
    assert_eq!(scq.next().wqe_counter(), 8);
}

#[test]
fn entries_of_128_bytes_lie_in_the_second_half() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let mut scq = a.cq_with(3, |spec| spec.log_entry = 7);
    let mut sq = a.sq(4, &scq);
    for round in 0..20 {
        a.send(&mut sq, &frame(60, round));
        assert_eq!(scq.next().wqe_counter(), round as u16);
    }
    assert!(
        a.heap.to_vec(scq.at, 64).unwrap()[..63]
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn rings_on_scattered_pages() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    // Every second page, backwards: nothing is contiguous.
    let scatter = |side: &mut Side, ring: &mut RingMemory| {
        let (_, iova) = side.take(ring.pages.len() * 2 * 4096);
        let count = ring.pages.len() as u64;
        ring.pages = (0..count)
            .map(|page| iova + (count - 1 - page) * 8192)
            .collect();
    };
    let (rq, mut rcq) = b.receiver(6, 64);
    let cq = a.cq(8);
    let mut sq = a.sq(8, &cq);
    a.port.destroy_sq(sq.spec.sqn).unwrap();
    scatter(a, &mut sq.spec.ring);
    a.port.create_sq(sq.spec.clone()).unwrap();
    let mut cq = cq;
    for round in 0..600u16 {
        let bytes = frame(60, u64::from(round));
        let iova = a.base + 7 * (1 << 20);
        a.heap.copy_in(7 << 20, &bytes).unwrap();
        let index = sq.send(&[], &[(60, KEY, iova)]);
        // The WQE was written where a contiguous ring would be; bring it to its page.
        let block = usize::from(index) & 255;
        let wqe = a.heap.to_vec(sq.at + block * 64, 64).unwrap();
        let page = sq.spec.ring.pages[block / 64] - a.base;
        a.heap
            .copy_in(page as usize + block % 64 * 64, &wqe)
            .unwrap();
        sq.publish();
        sq.ring(a);
        assert_eq!(rq.receive(&mut rcq), bytes);
        assert_eq!(cq.next().wqe_counter(), round);
        b.heap.word32(rq.record_at).unwrap().store(
            u32::from(round.wrapping_add(65)).to_be(),
            std::sync::atomic::Ordering::Release,
        );
    }
}

#[test]
fn rings_and_buffers_of_many_mappings() {
    let setup = Setup {
        piecemeal: true,
        ..Setup::pair()
    };
    let mut rig = setup.start();
    let (a, b) = rig.both();
    // Each ring has one page for the device and many for the IOMMU; frames lie across its pages.
    let (mut rq, mut rcq) = b.receiver(9, 512);
    let (mut sq, mut scq) = a.sender(8);
    let at = (7 << 20) + 3000;
    for round in 0..600u16 {
        let bytes = frame(1500, u64::from(round));
        a.heap.copy_in(at, &bytes).unwrap();
        sq.send(&[], &[(1500, KEY, a.base + at as u64)]);
        sq.publish();
        sq.ring(a);

        assert_eq!(rq.receive(&mut rcq), bytes);
        assert_eq!(scq.next().wqe_counter(), round);
        rq.repost();
        rq.publish();
    }
}

#[test]
fn a_corrupted_entry_is_the_one_that_was_asked_for() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    let mut mask = [0; 64];
    mask[63] = 0xd0;
    a.port.corrupt_cqe(scq.spec.cqn, 1, mask).unwrap();
    for seed in 0..3 {
        a.send(&mut sq, &frame(60, seed));
    }
    let opcodes: Vec<_> = (0..3).map(|_| scq.next().opcode()).collect();
    assert_eq!(
        opcodes,
        [CqeOpcode::REQ.0, CqeOpcode::REQ_ERR.0, CqeOpcode::REQ.0]
    );
}
