//! Packets through the whole of it.

use crate::world::{assert_empty, config, emulator, frame, open, pool, receive, send, until};
use pollux_emu::Model;
use pollux_mlx5::MacAddress;

const MODELS: [Model; 4] = [
    Model::ConnectX4Lx,
    Model::ConnectX5,
    Model::ConnectX6Dx,
    Model::ConnectX7,
];

#[test]
fn packets_cross_a_wire_unchanged_and_are_counted() {
    for model in MODELS {
        let emulator = emulator(model, 2);
        let (a, b) = (open(&emulator, 0), open(&emulator, 1));
        let pool = pool(1024);
        a.start(&config(&pool, 1)).unwrap();
        b.start(&config(&pool, 1)).unwrap();
        let mut tx = a.take_tx(0).unwrap();
        let mut rx = b.take_rx(0).unwrap();
        let frames: Vec<_> = (0..500)
            .map(|n| frame(b.mac().0, a.mac().0, 60 + (n as usize * 7) % 1450, n))
            .collect();
        let got = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&mut rx, frames.len()));
            send(&mut tx, &pool, &frames);
            receiver.join().unwrap()
        });
        assert_eq!(got, frames);
        let bytes: u64 = frames.iter().map(|f| f.len() as u64).sum();
        let (sent, received) = (a.stats().unwrap(), b.stats().unwrap());
        assert_eq!((sent.opackets, sent.obytes, sent.oerrors), (500, bytes, 0));
        assert_eq!((received.ipackets, received.ibytes), (500, bytes));
        assert_eq!(
            (received.ierrors, received.imissed, received.rx_nombuf),
            (0, 0, 0)
        );
        assert_eq!(
            (sent.device.tx_packets, received.device.rx_packets),
            (500, 500)
        );
        assert_eq!(sent.tx[0].packets, 500);
        b.reset_stats().unwrap();
        assert_eq!(b.stats().unwrap().ipackets, 0);
        drop((tx, rx));
        for (number, port) in [&a, &b].into_iter().enumerate() {
            port.close().unwrap();
            assert_empty(&emulator, number);
        }
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn only_own_and_broadcast_packets_come_unless_promiscuous() {
    let emulator = emulator(Model::ConnectX5, 2);
    let (a, b) = (open(&emulator, 0), open(&emulator, 1));
    let pool = pool(1024);
    a.start(&config(&pool, 1)).unwrap();
    b.start(&config(&pool, 1)).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    let other = MacAddress([2, 0xaa, 0, 0, 0, 1]);
    let own = b.mac();
    let mut number = 0;
    let mut round = |to: &[MacAddress], last: MacAddress| -> Vec<[u8; 6]> {
        let mut frames = Vec::new();
        for mac in to.iter().chain([&last]) {
            number += 1;
            frames.push(frame(mac.0, a.mac().0, 64, number));
        }
        send(&mut tx, &pool, &frames);
        // The last one is known to come; a wire keeps the order.
        let mut seen: Vec<[u8; 6]> = Vec::new();
        while seen.last() != Some(&last.0) {
            let got = receive(&mut rx, 1);
            seen.extend(got.iter().map(|f| <[u8; 6]>::try_from(&f[..6]).unwrap()));
        }
        seen.pop();
        seen
    };
    let all = [other, own, MacAddress::BROADCAST, other];
    assert_eq!(round(&all, own), [own.0, MacAddress::BROADCAST.0]);
    b.set_promiscuous(true).unwrap();
    assert_eq!(round(&all, own), all.map(|mac| mac.0));
    b.set_promiscuous(false).unwrap();
    assert_eq!(round(&all, own), [own.0, MacAddress::BROADCAST.0]);
    b.set_mac(other).unwrap();
    assert_eq!(
        round(&all, other),
        [other.0, MacAddress::BROADCAST.0, other.0]
    );
    drop((tx, rx));
    a.close().unwrap();
    b.close().unwrap();
    assert_empty(&emulator, 1);
}

#[test]
fn several_queues_share_flows_and_keep_each_in_order() {
    let emulator = emulator(Model::ConnectX5, 2);
    let (a, b) = (open(&emulator, 0), open(&emulator, 1));
    let pool = pool(4096);
    a.start(&config(&pool, 1)).unwrap();
    b.start(&config(&pool, 3)).unwrap();
    let mut tx = a.take_tx(0).unwrap();
    let mut rx: Vec<_> = (0..3).map(|n| b.take_rx(n).unwrap()).collect();
    // UDP over IPv4 from many ports, four packets each; and something that is not IP.
    let udp = |flow: u16, nth: u8| {
        let mut bytes = frame(b.mac().0, a.mac().0, 14, 0);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes.extend([
            0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        bytes.extend(flow.to_be_bytes());
        bytes.extend([0, 53, 0, 26, 0, 0]);
        bytes.extend([nth; 18]);
        bytes
    };
    let mut frames: Vec<_> = (0..4)
        .flat_map(|n| (0..100).map(move |f| udp(f, n)))
        .collect();
    frames.push(frame(b.mac().0, a.mac().0, 64, 7));
    let mut got: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    std::thread::scope(|scope| {
        scope.spawn(|| send(&mut tx, &pool, &frames));
        let mut burst = pollux_mempool::Burst::with_capacity(32);
        until("all packets", || {
            for (queue, got) in rx.iter_mut().zip(&mut got) {
                queue.burst(&mut burst);
                for mbuf in burst.drain() {
                    got.push(mbuf.to_vec());
                }
            }
            got.iter().map(Vec::len).sum::<usize>() == frames.len()
        });
    });
    assert!(
        got.iter().all(|queue| queue.len() > 40),
        "{:?}",
        got.iter().map(Vec::len)
    );
    assert!(
        got[0].contains(&frames[400]),
        "what is not IP goes to the first queue"
    );
    for flow in 0..100u16 {
        let of_flow = |f: &&Vec<u8>| f[12..14] == [8, 0] && f[34..36] == flow.to_be_bytes();
        let homes: Vec<_> = got
            .iter()
            .filter(|q| q.iter().any(|f| of_flow(&f)))
            .collect();
        assert_eq!(homes.len(), 1, "a flow stays in one queue");
        let order: Vec<u8> = homes[0].iter().filter(of_flow).map(|f| f[42]).collect();
        assert_eq!(order, [0, 1, 2, 3]);
    }
    drop((tx, rx));
    a.close().unwrap();
    b.close().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn stopping_under_traffic_loses_no_buffer() {
    let emulator = emulator(Model::ConnectX6Dx, 1);
    let port = open(&emulator, 0);
    let pool = pool(2048);
    for _ in 0..10 {
        port.start(&config(&pool, 1)).unwrap();
        let (mut tx, mut rx) = (port.take_tx(0).unwrap(), port.take_rx(0).unwrap());
        let mac = port.mac().0;
        std::thread::scope(|scope| {
            let (ready, started) = std::sync::mpsc::channel();
            let pool = &pool;
            scope.spawn(move || {
                let mut burst = pollux_mempool::Burst::with_capacity(32);
                let mut out = pollux_mempool::Burst::with_capacity(32);
                let mut received = 0usize;
                let mut idle = 0;
                // Until the port stops, both ways; an inert queue moves nothing.
                while idle < 10_000 {
                    if let Some(mut mbuf) = pool.alloc() {
                        assert!(mbuf.extend_from_slice(&frame(mac, mac, 100, 1)));
                        // No room is as good: the burst is full.
                        drop(burst.push(mbuf));
                    }
                    tx.burst(&mut burst);
                    let got = rx.burst(&mut out);
                    received += got;
                    out.clear();
                    if received > 200 {
                        // The other side listens once.
                        ready.send(()).ok();
                        idle = if got == 0 { idle + 1 } else { 0 };
                    }
                }
            });
            started.recv().unwrap();
            port.stop().unwrap();
        });
        assert_eq!(pool.in_use(), 0);
    }
    port.close().unwrap();
    assert_empty(&emulator, 0);
}
