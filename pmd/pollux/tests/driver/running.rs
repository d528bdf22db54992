//! What befalls a running port: page requests, link changes, failing queues.

use crate::harness::{
    Answer, Backing, Rig, load, number_of, one_queue, plain, pool, receive, send, until,
};
use crate::on_every_backing;
use pollux_mempool::Burst;
use pollux_mlx5::{Cause, OpenOptions, Port, QueueFailure};
use std::ops::Range;
use std::sync::mpsc::channel;
use std::time::Duration;

on_every_backing! {
    firmware_gets_and_returns_pages_while_packets_move
    released_pages_are_freed_without_a_command
    a_cut_wire_is_told_and_so_is_a_mended_one
    each_state_of_the_link_is_told_once
    a_link_that_cannot_be_asked_is_unknown
    a_receive_queue_with_an_impossible_completion_comes_back
    a_send_queue_with_an_error_completion_comes_back
    a_completion_for_another_index_fails_the_queue_and_it_comes_back
    a_lost_doorbell_is_made_good_by_the_next
    memory_taken_away_fails_the_queue_by_name
    memory_taken_from_under_posted_buffers_fails_the_receive_queue_by_name
}

fn firmware_gets_and_returns_pages_while_packets_move(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let held = || rig.report(0).get("pages") as usize;
    let before = held();
    let mut turn = {
        let mut number = 0;
        let pool = &pool;
        move || {
            number += 1;
            send(&mut tx, pool, &[plain(number, 64)]);
            assert_eq!(number_of(&receive(&mut rx, 1)[0]), number);
        }
    };
    // More than one step takes.
    rig.ask("demand 0 give 60000");
    until("given", || {
        turn();
        held() == before + 60_000 && port.pages().held == before + 60_000
    });
    rig.ask("demand 0 take 60000");
    until("taken", || {
        turn();
        held() == before && port.pages().held == before
    });
    assert_eq!(port.pages().unknown, 0);
    drop(turn);
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
    drop(port);
    rig.assert_clean(0);
}

fn released_pages_are_freed_without_a_command(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    rig.ask("demand 0 give 1000");
    until("given", || port.pages().held > 1000);
    let commands = rig.report(0).get("commands");
    rig.ask("demand 0 release");
    until("released", || rig.report(0).get("faults") >= 2);
    // Either the driver has not allowed it and the device drops the request, or the pages are
    // gone on both sides; at the end nothing is left in either case.
    until("both agree", || {
        port.pages().held as u64 == rig.report(0).get("pages")
    });
    assert_eq!(rig.report(0).get("commands"), commands);
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn a_cut_wire_is_told_and_so_is_a_mended_one(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair,speed=25000");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(512);
    a.start(&one_queue(&pool, 64)).unwrap();
    b.start(&one_queue(&pool, 64)).unwrap();
    let (tell, told) = channel();
    a.on_link_change(move |link| tell.send(link).unwrap())
        .unwrap();
    let wait_for = |up: bool| {
        while told.recv_timeout(Duration::from_secs(60)).unwrap().up != Some(up) {}
        assert_eq!(a.link().up, Some(up));
    };
    wait_for(true);
    assert_eq!(a.link().speed_mbps, 25_000);
    for _ in 0..3 {
        rig.ask("link 0 down");
        wait_for(false);
        rig.ask("link 0 up");
        wait_for(true);
    }
    // The other end sees it too.
    rig.ask("link 0 down");
    wait_for(false);
    until("the peer's link is down", || b.link().up == Some(false));
    // Packets wait in the ring, and cross when the wire is whole again.
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    rig.ask("link 0 up");
    wait_for(true);
    send(&mut tx, &pool, &[plain(5, 64)]);
    assert_eq!(number_of(&receive(&mut rx, 1)[0]), 5);
}

/// Whatever the time between probe, start, listening and change: the listener's last word is the
/// state, and it never hears the same twice in a row.
fn each_state_of_the_link_is_told_once(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(512);
    for start_first in [true, false] {
        let (tell, told) = channel();
        let listen = || {
            let tell = tell.clone();
            a.on_link_change(move |link| tell.send(link).unwrap())
                .unwrap();
        };
        if start_first {
            a.start(&one_queue(&pool, 64)).unwrap();
            b.start(&one_queue(&pool, 64)).unwrap();
            listen();
        } else {
            listen();
            a.start(&one_queue(&pool, 64)).unwrap();
            b.start(&one_queue(&pool, 64)).unwrap();
        }
        let mut heard = Vec::new();
        until("up is told", || {
            heard.extend(told.try_iter());
            heard.last().is_some_and(|link| link.up == Some(true))
        });
        for up in [false, true, false, true, false] {
            rig.ask(if up { "link 0 up" } else { "link 0 down" });
        }
        until("down is told", || {
            heard.extend(told.try_iter());
            heard.last().is_some_and(|link| link.up == Some(false)) && a.link().up == Some(false)
        });
        for pair in heard.windows(2) {
            assert_ne!(pair[0], pair[1], "{heard:?}");
        }
        rig.ask("link 0 up");
        until("up is told", || {
            heard.extend(told.try_iter());
            heard.last().is_some_and(|link| link.up == Some(true))
        });
        a.stop().unwrap();
        b.stop().unwrap();
    }
}

fn a_link_that_cannot_be_asked_is_unknown(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    until("the link is up", || port.link().up == Some(true));
    rig.ask("arm 0 all fail:5:1");
    rig.ask("link 0 down");
    until("the old state is forgotten", || port.link().up.is_none());
    rig.ask("disarm 0");
    rig.ask("link 0 up");
    until("the link is up", || port.link().up == Some(true));
}

/// A looped port with one queue each way, whose completion queue `which` (receive queues come
/// first) gets a completion with `mask` over byte `at`; then packets must come through again, and
/// the queues be whole.
fn breaks_and_comes_back(backing: Backing, which: usize, at: usize, mask: u8) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(1024);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let batch = |from: u32| -> Vec<Vec<u8>> { (from..from + 20).map(|n| plain(n, 80)).collect() };
    for round in 0..3 {
        send(&mut tx, &pool, &batch(round * 20));
        assert!(receive(&mut rx, 20) == batch(round * 20));
    }
    let cqs = rig.ask("cqs 0");
    let cq = cqs.split(',').nth(which).unwrap();
    rig.ask(&format!("corrupt 0 {cq} 0 {at} {mask}"));
    // Whatever was under way may be lost; what is sent after recovery arrives.
    let mut burst = Burst::with_capacity(32);
    let (mut last, mut number) = (0, 1000);
    let (mut seen, mut good) = (false, 0);
    let counters = std::sync::Arc::clone(rx.counters().unwrap());
    let broken = || counters.lies.get() + counters.errors.get() + port.stats().unwrap().oerrors > 0;
    until("recovery", || {
        let mut mbuf = pool.alloc().expect("a buffer");
        assert!(mbuf.extend_from_slice(&plain(number, 80)));
        assert!(burst.push(mbuf).is_ok());
        number += 1;
        tx.burst(&mut burst);
        burst.clear();
        rx.burst(&mut burst);
        seen = seen || broken();
        for mbuf in burst.drain() {
            last = number_of(mbuf.data());
            good += u32::from(seen);
        }
        // Long enough that every descriptor went round after the failure.
        good > 200
    });
    assert!(last > 1000);
    // The ring is as full as an idle one is: fewer than a batch of slots wait for a buffer.
    until("the rest", || {
        rx.burst(&mut burst);
        burst.clear();
        rx.posted() > 64 - 32
    });
    drop((rx, tx));
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
    assert_eq!(pool.in_use(), 0);
}

/// The opcode is in the upper half of the last byte.
fn a_receive_queue_with_an_impossible_completion_comes_back(backing: Backing) {
    breaks_and_comes_back(backing, 0, 63, 0xf0);
}

/// From "done" (0x0) to "request error" (0xd).
fn a_send_queue_with_an_error_completion_comes_back(backing: Backing) {
    breaks_and_comes_back(backing, 1, 63, 0xd0);
}

/// Byte 60 is the upper half of the WQE counter.
fn a_completion_for_another_index_fails_the_queue_and_it_comes_back(backing: Backing) {
    breaks_and_comes_back(backing, 0, 60, 0x40);
    breaks_and_comes_back(backing, 1, 60, 0x40);
}

fn a_lost_doorbell_is_made_good_by_the_next(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    send(&mut tx, &pool, &[plain(1, 64)]);
    receive(&mut rx, 1);
    let sqs = rig.ask("sqs 0");
    rig.ask(&format!("doorbells 0 {sqs} 1"));
    let (mut number, mut got) = (2, Vec::new());
    let mut burst = Burst::with_capacity(32);
    send(&mut tx, &pool, &[plain(2, 64)]);
    // The device answers between two looks at its doorbells: after two answers it has lost this one.
    // A ring full of packets behind one lost doorbell would never see another.
    rig.ask("go 0");
    rig.ask("go 0");
    assert_eq!(rx.burst(&mut burst), 0);
    until("packets come again", || {
        number += 1;
        send(&mut tx, &pool, &[plain(number, 64)]);
        rx.burst(&mut burst);
        got.extend(burst.drain().map(|mbuf| number_of(mbuf.data())));
        got.len() > 4
    });
    assert!(
        got.iter().copied().eq(2..2 + got.len() as u32),
        "none is missing: {got:?}"
    );
    assert_eq!(port.stats().unwrap().oerrors, 0);
}

/// The driver names queue, cause and an address among those that were taken away.
fn assert_told(failure: &QueueFailure, queue: &str, inside: &Range<u64>) {
    println!("failure: {failure}");
    let address = failure.address.unwrap();
    assert!(inside.contains(&address), "{failure}");
    assert!(
        matches!(failure.cause, Cause::Completion { syndrome: 4, .. }),
        "{failure}"
    );
    let text = failure.to_string();
    assert!(
        text.contains(queue) && text.contains(&format!("{address:#x}")),
        "{text}"
    );
}

/// The device reports it too, as it saw it.
fn assert_reported(report: &Answer, before: u64, inside: &Range<u64>) {
    assert!(report.get("dma_faults") > before, "{report}");
    let seen = report.text("dma_fault").trim_start_matches("0x").to_owned();
    let seen = u64::from_str_radix(&seen, 16).unwrap();
    assert!(inside.contains(&seen), "{report}");
}

fn memory_taken_away_fails_the_queue_by_name(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let function = rig.connect(0).unwrap();
    let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    send(&mut tx, &pool, &[plain(1, 64)]);
    receive(&mut rx, 1);
    assert_eq!((tx.failure(), rx.failure()), (None, None));
    let chunk = pool.chunks()[0].clone();
    let first = function.domain().map(&chunk).unwrap().iova().0;
    let before = rig.report(0).get("dma_faults");
    function.domain().revoke(&chunk).unwrap();
    // Under traffic: what the device has in its hands fails, and what follows it.
    let (mut out, mut back) = (Burst::with_capacity(4), Burst::with_capacity(32));
    let mut failure = None;
    until("the queue fails and says where", || {
        if out.is_empty() {
            out = load(&pool, &[plain(2, 64)]);
        }
        tx.burst(&mut out);
        rx.burst(&mut back);
        back.clear();
        failure = tx.failure().filter(|failure| failure.address.is_some());
        failure.is_some()
    });
    let inside = first..first + chunk.len() as u64;
    assert_told(&failure.unwrap(), "TX queue 0", &inside);
    assert_reported(&rig.report(0), before, &inside);
    // The control plane is whole, and the end is clean.
    port.stats().unwrap();
    let closed = port.close().unwrap();
    assert_eq!((closed.pages_kept, closed.reset), (0, false));
    drop((out, back, rx, tx));
    assert_eq!(pool.in_use(), 0);
    drop(port);
    assert_eq!(function.domain().mappings(), 0);
}

/// What arrives finds buffers that the device cannot reach, though the driver has posted them.
fn memory_taken_from_under_posted_buffers_fails_the_receive_queue_by_name(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, function) = (rig.open(0).unwrap(), rig.connect(1).unwrap());
    let b = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let (whole, taken) = (pool(512), pool(512));
    a.start(&one_queue(&whole, 64)).unwrap();
    b.start(&one_queue(&taken, 64)).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    send(&mut tx, &whole, &[plain(1, 64)]);
    receive(&mut rx, 1);
    let chunk = taken.chunks()[0].clone();
    let first = function.domain().map(&chunk).unwrap().iova().0;
    let inside = first..first + chunk.len() as u64;
    let before = rig.report(1).get("dma_faults");
    function.domain().revoke(&chunk).unwrap();
    let (mut out, mut back) = (Burst::with_capacity(4), Burst::with_capacity(32));
    let mut failure = None;
    until("the queue fails and says where", || {
        if out.is_empty() {
            out = load(&whole, &[plain(2, 64)]);
        }
        tx.burst(&mut out);
        assert_eq!(rx.burst(&mut back), 0, "nothing can have been written");
        failure = rx.failure().filter(|failure| failure.address.is_some());
        failure.is_some()
    });
    assert_told(&failure.unwrap(), "RX queue 0", &inside);
    assert_reported(&rig.report(1), before, &inside);
    // The sender is none the worse, and both end clean.
    assert_eq!(tx.failure(), None);
    drop((out, back, rx, tx));
    for port in [a, b] {
        let closed = port.close().unwrap();
        assert_eq!((closed.pages_kept, closed.reset), (0, false));
    }
    assert_eq!((whole.in_use(), taken.in_use()), (0, 0));
    assert_eq!(function.domain().mappings(), 0);
}
