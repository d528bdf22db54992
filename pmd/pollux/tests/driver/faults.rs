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
    until("ledger", || port.pages().held == before + 60_000);
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

/// Numbers of the live completion queues of function 0; a started port makes those of its receive
/// queues first.
fn cqs(emulator: &pollux_emu::Emulator) -> Vec<u32> {
    let faults = emulator.faults(0).unwrap();
    // A corruption so far away that it is never met.
    let there = |cqn: &u32| faults.corrupt_cqe(*cqn, u32::MAX, [0; 64]).is_ok();
    (0..4096).filter(there).collect()
}

/// A looped port with one queue each way, whose completion queue `which` gets a completion xored
/// with `mask`; then packets must come through again, and the queues be whole.
fn breaks_and_comes_back(which: usize, mask: [u8; 64]) {
    let emulator = emulator(Model::ConnectX5, 1);
    let faults = emulator.faults(0).unwrap();
    let port = open(&emulator, 0);
    let pool = pool(1024);
    port.start(&config(&pool, 1)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let mac = port.mac().0;
    let batch =
        |from: u32| -> Vec<Vec<u8>> { (from..from + 20).map(|n| frame(mac, mac, 80, n)).collect() };
    for round in 0..3 {
        send(&mut tx, &pool, &batch(round * 20));
        assert_eq!(receive(&mut rx, 20), batch(round * 20));
    }
    faults.corrupt_cqe(cqs(&emulator)[which], 0, mask).unwrap();
    // Whatever was under way may be lost; what is sent after recovery arrives.
    let mut burst = pollux_mempool::Burst::with_capacity(32);
    let mut last = 0;
    let mut number = 1000;
    let broken = |rx: &pollux_mlx5::RxQueue| {
        let counters = rx.counters().unwrap();
        let stats = port.stats().unwrap();
        counters.lies.get() + counters.errors.get() + stats.oerrors
    };
    let (mut seen, mut good) = (false, 0);
    until("recovery", || {
        let mut mbuf = pool.alloc().expect("a buffer");
        assert!(mbuf.extend_from_slice(&frame(mac, mac, 80, number)));
        assert!(burst.push(mbuf).is_ok());
        number += 1;
        tx.burst(&mut burst);
        burst.clear();
        rx.burst(&mut burst);
        seen = seen || broken(&rx) > 0;
        for mbuf in burst.drain() {
            last = u32::from_be_bytes(mbuf.data()[14..18].try_into().unwrap());
            good += u32::from(seen);
        }
        // Long enough that every descriptor went round after the failure.
        good > 200
    });
    assert!(last > 1000);
    assert!(broken(&rx) > 0, "the broken completion was noticed");
    // The ring is as full as an idle one is: fewer than a batch of slots wait for a buffer.
    until("the rest", || {
        rx.burst(&mut burst);
        burst.clear();
        rx.posted() > 64 - 32
    });
    drop((rx, tx));
    port.close().unwrap();
    assert_empty(&emulator, 0);
    assert_eq!(pool.in_use(), 0);
}

/// The opcode, in the upper half of the last byte, becomes another.
fn opcode(change: u8) -> [u8; 64] {
    let mut mask = [0; 64];
    mask[63] = change << 4;
    mask
}

#[test]
fn a_receive_queue_with_an_impossible_completion_comes_back() {
    breaks_and_comes_back(0, opcode(0xf));
}

#[test]
fn a_send_queue_with_an_error_completion_comes_back() {
    // From "done" (0x0) to "request error" (0xd).
    breaks_and_comes_back(1, opcode(0xd));
}

#[test]
fn a_completion_for_another_index_fails_the_queue_and_it_comes_back() {
    let mut mask = [0; 64];
    mask[60] = 0x40; // WQE counter
    breaks_and_comes_back(0, mask);
    breaks_and_comes_back(1, mask);
}
