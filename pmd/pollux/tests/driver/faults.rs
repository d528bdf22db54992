//! Faults of a running function: pages, link, health, failed queues.

use crate::world::{assert_empty, config, emulator, frame, open, pool, receive, send, until};
use pollux_emu::Model;
use pollux_emu::faults::PageDemand;
use pollux_mlx5::{Error, Fault};
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn firmware_gets_and_returns_pages_while_packets_move() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let port = open(&emulator, 0);
    let held = || emulator.report(0).unwrap().firmware_pages;
    let before = held();
    faults.page_request(PageDemand::Give(60_000));
    until("given", || held() == before + 60_000);
    assert_eq!(port.pages().held, before + 60_000);
    faults.page_request(PageDemand::Take(60_000));
    until("taken", || held() == before);
    until("ledger", || port.pages().held == before);
    assert_eq!(port.pages().unknown, 0);
    port.close().unwrap();
    assert_empty(&emulator, 0);
}

#[test]
fn a_cut_wire_is_told_and_so_is_a_mended_one() {
    let emulator = emulator(Model::ConnectX5, 2);
    let faults = emulator.faults(0).unwrap();
    let (a, b) = (open(&emulator, 0), open(&emulator, 1));
    let pool = pool(512);
    a.start(&config(&pool, 1)).unwrap();
    b.start(&config(&pool, 1)).unwrap();
    let (tell, told) = channel();
    a.on_link_change(move |link| tell.send(link.up).unwrap())
        .unwrap();
    let wait_for = |up: bool| {
        while told.recv_timeout(Duration::from_secs(20)).unwrap() != Some(up) {}
        assert_eq!(a.link().up, Some(up));
    };
    wait_for(true);
    faults.link(false).unwrap();
    wait_for(false);
    faults.link(true).unwrap();
    wait_for(true);
    a.close().unwrap();
    b.close().unwrap();
}

#[test]
fn a_killed_function_is_given_up_and_its_revival_starts_afresh() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let port = open(&emulator, 0);
    let pool = pool(512);
    port.start(&config(&pool, 1)).unwrap();
    let (mut rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    until("the link is known", || port.link().up == Some(true));
    faults.kill().unwrap();
    until("noticed", || port.fault() == Some(Fault::NotAnswering));
    assert_eq!(port.link().up, None);
    assert!(port.stats().is_err());
    let mut burst = pollux_mempool::Burst::with_capacity(32);
    assert_eq!(rx.burst(&mut burst), 0);
    assert!(matches!(port.close(), Err(Error::Close { .. })));
    drop((rx, tx, port));
    assert_eq!(pool.in_use(), 0);
    faults.revive().unwrap();
    let port = open(&emulator, 0);
    port.start(&config(&pool, 1)).unwrap();
    port.close().unwrap();
    assert_empty(&emulator, 0);
}

/// Completion queue numbers of a started port are not public; the emulator hands them out in
/// order, and the recovery below works for whichever queue is hit.
fn first_cq(emulator: &pollux_emu::Emulator) -> u32 {
    (0..1 << 16)
        .find(|cqn| {
            emulator
                .faults(0)
                .unwrap()
                .corrupt_cqe(*cqn, u32::MAX, [0; 64])
                .is_ok()
        })
        .unwrap()
}

#[test]
fn a_queue_with_a_broken_completion_comes_back() {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let port = open(&emulator, 0);
    let pool = pool(1024);
    port.start(&config(&pool, 1)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let mac = port.mac().0;
    let batch =
        |from: u32| -> Vec<Vec<u8>> { (from..from + 20).map(|n| frame(mac, mac, 80, n)).collect() };
    send(&mut tx, &pool, &batch(0));
    assert_eq!(receive(&mut rx, 20), batch(0));
    // The receive queue's completion queue is the first that was made. Its opcode becomes one
    // that a receive queue never gets.
    let mut mask = [0; 64];
    mask[63] = 0xf0;
    faults.corrupt_cqe(first_cq(&emulator), 0, mask).unwrap();
    send(&mut tx, &pool, &batch(100));
    // Whatever was under way may be lost; what is sent after recovery arrives.
    let mut burst = pollux_mempool::Burst::with_capacity(32);
    let mut last = Vec::new();
    let mut number = 1000;
    until("recovery", || {
        send(&mut tx, &pool, &[frame(mac, mac, 80, number)]);
        number += 1;
        rx.burst(&mut burst);
        for mbuf in burst.drain() {
            last = mbuf.to_vec();
        }
        last.get(14..18)
            .is_some_and(|n| u32::from_be_bytes(n.try_into().unwrap()) > 1000)
    });
    let counters = rx.counters().unwrap();
    assert!(
        counters.lies.get() + counters.errors.get() > 0,
        "the broken one was noticed"
    );
    drop((rx, tx));
    port.close().unwrap();
    assert_empty(&emulator, 0);
    assert_eq!(pool.in_use(), 0);
}
