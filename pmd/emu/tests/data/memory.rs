//! The driver's memory comes and goes under traffic.

use crate::rig::*;
use pollux_bus::Iova;
use pollux_emu::data::*;
use pollux_emu::wire::WireKind;
use pollux_prm::completion::{CqeOpcode, Syndrome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn unmap_returns_while_packets_flow_and_the_memory_is_gone_then() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    let bytes = frame(60, 9);
    let iova = a.place(&bytes);
    let stop = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (memory, stop, sent) = (Arc::clone(&a.memory), &stop, &sent);
        let mapper = scope.spawn(move || {
            let extra = segment("extra", 1 << 16);
            for round in 0..300u64 {
                let at = Iova(0x80_0000_0000 + (round << 20));
                memory.map(at, extra.whole()).unwrap();
                memory.unmap(at, 1 << 16).unwrap();
            }
            // Traffic went on in between, unless it was over first.
            until("traffic", || {
                (sent.load(Ordering::Relaxed) > 1000).then_some(())
            });
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..32 {
                sq.send(&[], &[(60, KEY, iova)]);
            }
            sq.publish();
            sq.ring(a);
            for _ in 0..32 {
                assert_eq!(until("a frame", || rcq.poll()).byte_cnt(), 60);
                assert_eq!(
                    until("a completion", || scq.poll()).opcode(),
                    CqeOpcode::REQ.0
                );
                rq.repost();
            }
            rcq.publish();
            scq.publish();
            rq.publish();
            sent.fetch_add(32, Ordering::Relaxed);
        }
        mapper.join().unwrap();
    });
}

#[test]
fn a_buffer_that_was_unmapped_is_a_protection_error() {
    let mut rig = Setup::new(vec![wire(WireKind::Null)]).start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    let extra = segment("extra", 1 << 16);
    let at = Iova(0x80_0000_0000);
    a.memory.map(at, extra.whole()).unwrap();
    sq.send(&[], &[(60, KEY, at.0 + 100)]);
    sq.publish();
    sq.ring(a);
    assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
    a.memory.unmap(at, 1 << 16).unwrap();
    sq.send(&[], &[(60, KEY, at.0 + 100)]);
    sq.publish();
    sq.ring(a);
    assert_eq!(scq.next_error().syndrome(), Syndrome::LOCAL_PROT_ERR.0);
}

#[test]
fn a_key_that_was_destroyed_or_replaced_is_refused_at_once() {
    let mut rig = Setup::new(vec![wire(WireKind::Null)]).start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
    a.port.remove_mkey(KEY >> 8).unwrap();
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(scq.next_error().syndrome(), Syndrome::LOCAL_PROT_ERR.0);
    assert!(a.port.remove_mkey(KEY >> 8).is_err());
}

#[test]
fn without_bus_mastering_a_doorbell_fails_the_queue() {
    let mut rig = Setup::new(vec![wire(WireKind::Null)]).start();
    let a = &mut rig.sides[0];
    let (mut sq, mut scq) = a.sender(4);
    a.send(&mut sq, &frame(60, 1));
    scq.next();
    a.memory.set_bus_master(false).unwrap();
    a.send(&mut sq, &frame(60, 1));
    a.settle();
    assert!(scq.poll().is_none(), "nothing was written");
    // The record could not be read, so there is no work yet; with memory back it is found.
    a.memory.set_bus_master(true).unwrap();
    a.settle();
    sq.ring(a);
    assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
}

#[test]
fn a_pool_in_several_pieces_is_reached_through_page_lists() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    // Three pieces in an order that has nothing to do with their addresses, the middle one of
    // two pages that follow each other; the key's own addresses begin in mid-page.
    let (one, at_one) = a.take(4096);
    let (_gap, _) = a.take(4096);
    let (two, at_two) = a.take(8192);
    let (three, at_three) = a.take(4096);
    let key = 0x321 << 8;
    a.port
        .set_mkey(MkeySpec {
            key,
            pd: Some(PD),
            start: 0x5000_0100,
            len: Some(4 * 4096 - 0x200),
            local_read: true,
            local_write: false,
            translation: Translation::Pages {
                pages: vec![at_three, at_two, at_two + 4096, at_one],
                log_page_size: 12,
                offset: 0x100,
            },
        })
        .unwrap();
    let bytes = frame(4 * 4096, 77);
    let places = [three, two, two + 4096, one];
    for (page, place) in places.iter().enumerate() {
        a.heap
            .copy_in(*place, &bytes[page * 4096..(page + 1) * 4096])
            .unwrap();
    }
    // Frames at starts, ends, and across every border; the first six bytes are where they are.
    for (from, len) in [
        (0x100, 60),
        (4096 - 30, 60),
        (8192 - 30, 60),
        (12288 - 700, 1400),
        (4000, 1514),
        (4 * 4096 - 0x100 - 60, 60),
    ] {
        sq.send(&[], &[(len as u32, key, 0x5000_0000 + from as u64)]);
        sq.publish();
        sq.ring(a);
        assert_eq!(
            rq.receive(&mut rcq),
            bytes[from..from + len],
            "{len} bytes from {from:#x}"
        );
        scq.next();
    }
    sq.send(&[], &[(61, key, 0x5000_0000 + 4 * 4096 - 0x100 - 60)]);
    sq.publish();
    sq.ring(a);
    assert_eq!(scq.next_error().syndrome(), Syndrome::LOCAL_PROT_ERR.0);
}

#[test]
fn a_sleeping_device_holds_up_nobody_and_wakes() {
    let setup = Setup::pair();
    let mut rig = Setup {
        idle: IdlePolicy::Adaptive,
        ..setup
    }
    .start();
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, _scq) = a.sender(6);
    let extra = segment("extra", 1 << 16);
    for round in 0..20u64 {
        // Long enough for the device to sleep.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let at = Iova(0x80_0000_0000);
        a.memory.map(at, extra.whole()).unwrap();
        let bytes = frame(70, round);
        extra.whole().copy_in(0, &bytes).unwrap();
        sq.send(&[], &[(70, KEY, at.0)]);
        sq.publish();
        sq.ring(a);
        assert_eq!(rq.receive(&mut rcq), bytes);
        a.memory.unmap(at, 1 << 16).unwrap();
    }
}

#[test]
fn a_driver_goes_and_the_next_one_finds_nothing_of_it() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let (_rq, _rcq) = b.receiver(4, 4);
    let (mut sq, mut scq) = a.sender(4);
    let second = a.port.connect(Arc::clone(&a.memory)).unwrap_err();
    assert!(second.to_string().contains("disconnect"), "{second}");
    a.port.disconnect().unwrap();
    assert!(a.port.sq_status(sq.spec.sqn).is_err());
    a.memory.clear().unwrap();
    a.send(&mut sq, &frame(60, 1));
    a.settle();
    assert!(scq.poll().is_none());
    a.memory.map(Iova(a.base), a.heap.clone()).unwrap();
    a.port.connect(Arc::clone(&a.memory)).unwrap();
    assert!(a.port.cq_status(scq.spec.cqn).is_err());
    a.port.create_cq(scq.spec.clone()).unwrap();
    // A frame that waits for a buffer does not hold up the driver that leaves.
    let mut scq = a.cq(4);
    a.port.enable_uar(UAR).unwrap();
    let spec = MkeySpec {
        key: KEY,
        pd: None,
        start: 0,
        len: None,
        local_read: true,
        local_write: true,
        translation: Translation::Physical,
    };
    a.port.set_mkey(spec).unwrap();
    let mut sq = a.sq(4, &scq);
    for seed in 0..6 {
        a.send(&mut sq, &frame(60, seed));
    }
    for _ in 0..4 {
        scq.next();
    }
    a.settle();
    assert_eq!(b.port.wire().unwrap().waiting, 1);
    a.port.destroy_sq(sq.spec.sqn).unwrap();
    assert_eq!(b.port.wire().unwrap().waiting, 0);
    b.port.disconnect().unwrap();
}
