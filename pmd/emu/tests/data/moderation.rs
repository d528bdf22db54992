//! Completion moderation: how many completions, or how much time, an armed queue holds its event
//! back. No test measures time: a period is either so short that it passes while a test waits, or
//! so long that what must come before it has come by then.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::WireKind;

/// The longest that the context can say, in microseconds.
const LONG: u16 = 4095;

fn null() -> Rig {
    Setup::new(vec![wire(WireKind::Null)]).start()
}

fn moderated(
    side: &mut Side,
    period: u16,
    max_count: u16,
    from_completion: bool,
) -> (Sq, Cq, DataEvent) {
    let cq = side.cq_with(6, |spec| {
        spec.moderation = Moderation {
            period,
            max_count,
            from_completion,
        };
    });
    let sq = side.sq(6, &cq);
    let event = DataEvent::Completion { cqn: cq.spec.cqn };
    (sq, cq, event)
}

/// Posts `count` frames with one doorbell, so that they are completed in one turn.
fn send_together(side: &mut Side, sq: &mut Sq, count: usize) {
    let bytes = frame(60, 1);
    let iova = side.place(&bytes);
    for _ in 0..count {
        sq.send(&[], &[(60, KEY, iova)]);
    }
    sq.publish();
    sq.ring(side);
}

#[test]
fn so_many_completions_make_an_event() {
    let mut rig = null();
    let a = &mut rig.sides[0];
    let (mut sq, mut cq, event) = moderated(a, LONG, 4, true);
    // Twelve in one turn: the fourth tells, and an unarmed queue tells no more.
    cq.arm(a, 1);
    a.settle();
    send_together(a, &mut sq, 12);
    assert_eq!(a.event(), event);
    for _ in 0..12 {
        cq.next();
    }
    a.no_event();
    assert!(!a.port.cq_status(cq.spec.cqn).unwrap().armed);
    // What the driver has not seen when it arms counts.
    send_together(a, &mut sq, 4);
    until("completions", || {
        (a.port.cq_status(cq.spec.cqn).unwrap().producer == 16).then_some(())
    });
    cq.arm(a, 2);
    assert_eq!(a.event(), event);
}

#[test]
fn the_period_ends_the_wait_for_more() {
    for from_completion in [false, true] {
        let mut rig = null();
        let a = &mut rig.sides[0];
        let (mut sq, mut cq, event) = moderated(a, 50, u16::MAX, from_completion);
        for round in 0..20 {
            cq.arm(a, round);
            a.send(&mut sq, &frame(60, 1));
            assert_eq!(a.event(), event);
            cq.next();
        }
        a.no_event();
    }
}

#[test]
fn the_first_event_of_a_queue_waits_for_no_other() {
    let mut rig = null();
    let a = &mut rig.sides[0];
    let (mut sq, mut cq, event) = moderated(a, LONG, u16::MAX, false);
    cq.arm(a, 1);
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(a.event(), event);
    cq.next();
    // The second has to keep the distance, and comes all the same.
    cq.arm(a, 2);
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(a.event(), event);
}

#[test]
fn a_period_from_the_completion_starts_anew_with_each() {
    let mut rig = null();
    let a = &mut rig.sides[0];
    let (mut sq, mut cq, event) = moderated(a, LONG, 16, true);
    cq.arm(a, 1);
    // One by one; each may be in a turn of its own, and none of the first fifteen may tell unless
    // a whole period passed without another. The sixteenth tells whatever the time.
    let start = std::time::Instant::now();
    for seed in 0..15 {
        a.send(&mut sq, &frame(60, seed));
    }
    for _ in 0..15 {
        cq.next();
    }
    let status = a.port.cq_status(cq.spec.cqn).unwrap();
    if start.elapsed() < std::time::Duration::from_micros(LONG.into()) {
        assert!(status.armed, "told before the period was over");
    }
    a.send(&mut sq, &frame(60, 99));
    assert_eq!(a.event(), event);
}

#[test]
fn one_of_the_two_alone_holds_nothing_back() {
    for (period, max_count) in [(LONG, 0), (0, 40), (LONG, 1), (0, 0)] {
        let mut rig = null();
        let a = &mut rig.sides[0];
        let (mut sq, mut cq, event) = moderated(a, period, max_count, true);
        cq.arm(a, 1);
        a.settle();
        a.send(&mut sq, &frame(60, 1));
        cq.next();
        // Told in the turn of the completion: two answers later the queue is no more armed.
        a.settle();
        let armed = a.port.cq_status(cq.spec.cqn).unwrap().armed;
        assert!(!armed, "period {period}, count {max_count}");
        assert_eq!(a.event(), event);
    }
}

#[test]
fn a_change_reaches_the_event_that_waits() {
    let mut rig = null();
    let a = &mut rig.sides[0];
    let (mut sq, mut cq, event) = moderated(a, LONG, u16::MAX, true);
    cq.arm(a, 1);
    a.send(&mut sq, &frame(60, 1));
    cq.next();
    a.port
        .modify_cq(
            cq.spec.cqn,
            CqChange {
                moderation: Moderation::default(),
                overrun_ignore: false,
            },
        )
        .unwrap();
    assert_eq!(a.event(), event);
    a.no_event();
    // From now on nothing waits.
    cq.arm(a, 2);
    a.settle();
    a.send(&mut sq, &frame(60, 1));
    assert_eq!(a.event(), event);
}

#[test]
fn events_wait_on_receive_queues_and_bursts_too() {
    let mut rig = Setup::pair().start();
    let (a, b) = rig.both();
    let rcq = b.cq_with(8, |spec| {
        spec.moderation = Moderation {
            period: LONG,
            max_count: 32,
            from_completion: true,
        };
    });
    let mut rq = b.rq(7, &rcq);
    for _ in 0..64 {
        let (at, iova) = b.take(2048);
        rq.post(&[(2048, KEY, iova)], at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    rcq.arm(b, 1);
    b.settle();
    let (mut sq, _scq) = a.sender(6);
    send_together(a, &mut sq, 40);
    assert_eq!(b.event(), DataEvent::Completion { cqn: rcq.spec.cqn });
    b.no_event();
}
