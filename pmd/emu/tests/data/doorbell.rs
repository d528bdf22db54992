//! Doorbells: when records are read, doorbells that are lost or go astray, pages.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::WireKind;
use pollux_prm::wqe::uar;

fn null() -> Setup {
    Setup::new(vec![wire(WireKind::Null)])
}

#[test]
fn a_strict_device_reads_a_send_record_only_after_the_doorbell() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.post(&mut sq, &frame(60, 1));
    sq.publish();
    a.settle();
    assert!(scq.poll().is_none(), "no doorbell was rung");
    sq.ring(a);
    assert_eq!(scq.next().wqe_counter(), 0);
    assert_eq!(a.doorbell_word(UAR, uar::SEND), 0, "the store was taken");
}

#[test]
fn a_sampling_device_reads_it_by_itself() {
    let mut rig = Setup {
        strict: false,
        ..null()
    }
    .start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.post(&mut sq, &frame(60, 1));
    sq.publish();
    assert_eq!(scq.next().wqe_counter(), 0);
}

#[test]
fn a_lost_doorbell_is_made_up_for_by_the_next() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.port.ignore_doorbells(sq.spec.sqn, 2).unwrap();
    for seed in 0..2 {
        a.send(&mut sq, &frame(60, seed));
        a.settle();
        assert!(scq.poll().is_none());
    }
    a.send(&mut sq, &frame(60, 2));
    let counters: Vec<_> = (0..3).map(|_| scq.next().wqe_counter()).collect();
    assert_eq!(counters, [0, 1, 2]);
}

#[test]
fn every_register_of_the_page_rings_and_no_other_place_does() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    for register in 0..8 {
        a.post(&mut sq, &frame(60, register));
        sq.publish();
        sq.ring_at(a, uar::SEND + register as usize * 0x100);
        scq.next();
    }
    a.post(&mut sq, &frame(60, 9));
    sq.publish();
    sq.ring_at(a, 0x808);
    a.settle();
    assert!(scq.poll().is_none());
}

#[test]
fn doorbells_on_foreign_pages_and_for_nobody_are_counted_and_dropped() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    a.port.enable_uar(6).unwrap();
    let (mut sq, mut scq) = a.sender(4);
    // Another queue makes the device look at the other page.
    let other_cq = a.cq(4);
    let _other = a.sq_with(4, &other_cq, |spec| spec.uar = 6);
    a.post(&mut sq, &frame(60, 1));
    sq.publish();
    a.store_doorbell(6, uar::SEND, u64::from(sq.spec.sqn) << 8 | 3);
    until("the doorbell is taken", || {
        (a.doorbell_word(6, uar::SEND) == 0).then_some(())
    });
    a.store_doorbell(UAR, uar::SEND, 0xdead << 8 | 3);
    until("the doorbell is taken", || {
        (a.doorbell_word(UAR, uar::SEND) == 0).then_some(())
    });
    a.settle();
    assert!(scq.poll().is_none());
    assert_eq!(a.port.counters().unwrap().stray_doorbells, 2);
    sq.ring(a);
    scq.next();
}

#[test]
fn pages_count_only_while_they_are_allocated() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.port.disable_uar(UAR).unwrap();
    a.send(&mut sq, &frame(60, 1));
    a.settle();
    assert!(scq.poll().is_none());
    // A new owner of the page does not inherit the old one's doorbell.
    a.port.enable_uar(UAR).unwrap();
    a.settle();
    assert!(scq.poll().is_none());
    sq.ring(a);
    scq.next();
}

#[test]
fn trapped_pages_ring_by_call() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    a.port.enable_uar(1).unwrap();
    let scq = a.cq_with(4, |spec| spec.uar = 1);
    let mut scq = scq;
    let mut sq = a.sq_with(4, &scq, |spec| spec.uar = 1);
    a.post(&mut sq, &frame(60, 1));
    sq.publish();
    a.port.ring(1, 0x800, u64::from(sq.spec.sqn) << 8 | 3);
    scq.next();
    scq.write_arm(1);
    a.port.ring(1, 0x20, u64::from(scq.spec.cqn));
    a.settle();
    a.post(&mut sq, &frame(60, 1));
    sq.publish();
    a.port.ring(1, 0x800, u64::from(sq.spec.sqn) << 8 | 3);
    assert_eq!(a.event(), DataEvent::Completion { cqn: scq.spec.cqn });
}

#[test]
fn event_queue_doorbells_on_mapped_pages_are_told() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    a.port.watch_eq(UAR, true).unwrap();
    // 32-bit stores; the 64-bit store of the rig covers the word and its neighbour.
    a.store_doorbell(UAR, uar::EQ_ARM, 0x0500_0007 << 32);
    let event = DataEvent::EqDoorbell {
        uar: UAR,
        offset: 0x40,
        value: 0x0500_0007,
    };
    assert_eq!(a.event(), event);
    a.store_doorbell(UAR, uar::EQ_CONSUMER, 0x0500_0008 << 32);
    let event = DataEvent::EqDoorbell {
        uar: UAR,
        offset: 0x48,
        value: 0x0500_0008,
    };
    assert_eq!(a.event(), event);
    a.port.watch_eq(UAR, false).unwrap();
    a.store_doorbell(UAR, uar::EQ_ARM, 0x0500_0009 << 32);
    a.no_event();
}

#[test]
fn many_queues_on_many_pages() {
    let mut rig = null().start();
    let a = &mut rig.sides[0];
    let mut queues = Vec::new();
    for index in 0..24 {
        let page = 4 + index % 8;
        a.port.enable_uar(page).unwrap();
        let cq = a.cq_with(4, |spec| spec.uar = page);
        let sq = a.sq_with(4, &cq, |spec| spec.uar = page);
        queues.push((sq, cq));
    }
    let iova = a.place(&frame(60, 1));
    for round in 0..50u16 {
        for (sq, cq) in &mut queues {
            sq.send(&[], &[(60, KEY, iova)]);
            sq.publish();
            sq.ring(a);
            assert_eq!(cq.next().wqe_counter(), round);
        }
    }
    assert_eq!(a.port.wire().unwrap().frames_out, 24 * 50);
}
