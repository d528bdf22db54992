//! Packets through the whole of it: contents, order, counts, filters, limits.

use crate::harness::{
    ANYBODY, Backing, Rig, frame, load, number_of, one_queue, plain, pool, pool_of, queues,
    receive, send, until,
};
use crate::on_every_backing;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use pollux_mempool::Burst;
use pollux_mlx5::MacAddress;
use std::time::Duration;

on_every_backing! {
    packets_cross_between_connectx4lx
    packets_cross_between_connectx5
    packets_cross_between_connectx6dx
    packets_cross_between_connectx7
    every_size_comes_back_byte_for_byte
    large_frames_come_back_byte_for_byte
    counters_of_queues_wrap
    both_directions_at_once
    only_own_and_broadcast_packets_come_unless_promiscuous
    several_queues_share_flows_and_keep_each_in_order
    several_send_queues_lose_nothing
    stopping_under_traffic_loses_no_buffer
    what_is_missed_is_counted_exactly
    a_small_pool_slows_down_and_loses_nothing
    the_mtu_is_what_was_asked
    a_capture_goes_through
}

fn packets_cross_between_connectx4lx(backing: Backing) {
    packets_cross_unchanged_and_are_counted(backing, "cx4lx");
}

fn packets_cross_between_connectx5(backing: Backing) {
    packets_cross_unchanged_and_are_counted(backing, "cx5");
}

fn packets_cross_between_connectx6dx(backing: Backing) {
    packets_cross_unchanged_and_are_counted(backing, "cx6dx");
}

fn packets_cross_between_connectx7(backing: Backing) {
    packets_cross_unchanged_and_are_counted(backing, "cx7");
}

fn packets_cross_unchanged_and_are_counted(backing: Backing, model: &str) {
    let rig = Rig::new(backing, &format!("ports=2,wire=pair,model={model}"));
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(1024);
    a.start(&one_queue(&pool, 64)).unwrap();
    b.start(&one_queue(&pool, 64)).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    let frames: Vec<_> = (0..500)
        .map(|n| frame(b.mac().0, a.mac().0, 60 + (n as usize * 7) % 1450, n))
        .collect();
    let got = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&mut rx, frames.len()));
        send(&mut tx, &pool, &frames);
        receiver.join().unwrap()
    });
    assert!(got == frames);
    let bytes: u64 = frames.iter().map(|f| f.len() as u64).sum();
    let (sent, received) = (a.stats().unwrap(), b.stats().unwrap());
    assert_eq!((sent.opackets, sent.obytes, sent.oerrors), (500, bytes, 0));
    assert_eq!((received.ipackets, received.ibytes), (500, bytes));
    let lost = (received.ierrors, received.imissed, received.rx_nombuf);
    assert_eq!(lost, (0, 0, 0));
    assert_eq!(
        (sent.device.tx_packets, received.device.rx_packets),
        (500, 500)
    );
    assert_eq!((sent.tx[0].packets, received.rx[0].bytes), (500, bytes));
    let (out, into) = (rig.wire(0), rig.wire(1));
    assert_eq!((out.get("out"), out.get("bytes_out")), (500, bytes));
    assert_eq!((into.get("in"), into.get("bytes_in")), (500, bytes));
    b.reset_stats().unwrap();
    assert_eq!(b.stats().unwrap().ipackets, 0);
    assert_eq!(b.stats().unwrap().device.rx_packets, 0);
    drop((tx, rx));
    for port in [a, b] {
        port.close().unwrap();
    }
    rig.assert_clean(0);
    rig.assert_clean(1);
    assert_eq!(pool.in_use(), 0);
}

fn every_size_comes_back_byte_for_byte(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(1024);
    port.start(&one_queue(&pool, 256)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    // From the header alone to the largest frame of an MTU of 1500.
    let sizes: Vec<usize> = (18..1515).collect();
    for sizes in sizes.chunks(128) {
        let frames: Vec<_> = sizes.iter().map(|len| plain(*len as u32, *len)).collect();
        send(&mut tx, &pool, &frames);
        let got = receive(&mut rx, frames.len());
        for (got, sent) in got.iter().zip(&frames) {
            assert!(got == sent, "{} bytes", sent.len());
        }
    }
    assert_eq!(port.stats().unwrap().oerrors, 0);
}

fn large_frames_come_back_byte_for_byte(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool_of(256, 9216);
    let mut config = one_queue(&pool, 64);
    config.mtu = Some(9000);
    port.start(&config).unwrap();
    assert_eq!(port.mtu(), 9000);
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    for len in [60, 1514, 1515, 4096, 8999, 9000, 9013, 9014] {
        let sent = vec![plain(len as u32, len)];
        send(&mut tx, &pool, &sent);
        assert!(receive(&mut rx, 1) == sent, "{len} bytes");
    }
}

/// Indices count modulo 2^16, rings have 1,024 descriptors: both go round.
fn counters_of_queues_wrap(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(4096);
    port.start(&one_queue(&pool, 1024)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let total = 70_000u32;
    let (mut next_out, mut next_in) = (0, 0);
    let (mut out, mut got) = (Burst::with_capacity(512), Burst::with_capacity(512));
    until("all frames have gone round", || {
        while next_out < total && out.room() > 0 {
            let Some(mut mbuf) = pool.alloc() else { break };
            assert!(mbuf.extend_from_slice(&plain(next_out, 60)));
            assert!(out.push(mbuf).is_ok());
            next_out += 1;
        }
        tx.burst(&mut out);
        rx.burst(&mut got);
        for mbuf in got.drain() {
            assert_eq!(number_of(mbuf.data()), next_in, "in order");
            next_in += 1;
        }
        next_in == total
    });
    let stats = port.stats().unwrap();
    assert_eq!((stats.ipackets, stats.opackets), (70_000, 70_000));
    assert_eq!(stats.ibytes, 70_000 * 60);
}

fn both_directions_at_once(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let ports = [rig.open(0).unwrap(), rig.open(1).unwrap()];
    let pool = pool(2048);
    for port in &ports {
        port.start(&one_queue(&pool, 128)).unwrap();
    }
    let frames: Vec<_> = (0..2000).map(|n| plain(n, 60 + n as usize % 300)).collect();
    std::thread::scope(|scope| {
        for port in &ports {
            let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
            let (pool, frames) = (&pool, &frames);
            scope.spawn(move || send(&mut tx, pool, frames));
            scope.spawn(move || assert!(receive(&mut rx, frames.len()) == *frames));
        }
    });
    for port in ports {
        let stats = port.stats().unwrap();
        assert_eq!((stats.ipackets, stats.opackets), (2000, 2000));
        port.close().unwrap();
    }
    assert_eq!(pool.in_use(), 0);
}

fn only_own_and_broadcast_packets_come_unless_promiscuous(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(1024);
    let mut config = one_queue(&pool, 64);
    config.promiscuous = false;
    a.start(&config).unwrap();
    b.start(&config).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    let other = MacAddress([2, 0xaa, 0, 0, 0, 1]);
    let own = b.mac();
    let mut number = 0;
    let mut round = |to: &[MacAddress], last: MacAddress| -> Vec<[u8; 6]> {
        let mut frames = Vec::new();
        for mac in to.iter().chain([&last]) {
            number += 1;
            frames.push(frame(mac.0, ANYBODY, 64, number));
        }
        send(&mut tx, &pool, &frames);
        // The last one is known to come; a wire keeps the order.
        let mut seen: Vec<(u32, [u8; 6])> = Vec::new();
        while seen.last().map(|(n, _)| *n) != Some(number) {
            let got = receive(&mut rx, 1);
            seen.extend(
                got.iter()
                    .map(|f| (number_of(f), f[..6].try_into().unwrap())),
            );
        }
        seen.pop();
        seen.into_iter().map(|(_, to)| to).collect()
    };
    let everybody = MacAddress::BROADCAST;
    let all = [other, own, everybody, other];
    assert_eq!(round(&all, own), [own.0, everybody.0]);
    b.set_promiscuous(true).unwrap();
    assert!(b.promiscuous());
    assert_eq!(round(&all, own), all.map(|mac| mac.0));
    b.set_promiscuous(false).unwrap();
    assert_eq!(round(&all, own), [own.0, everybody.0]);
    b.set_mac(other).unwrap();
    assert_eq!(b.mac(), other);
    assert_eq!(round(&all, other), [other.0, everybody.0, other.0]);
    for wrong in [
        MacAddress([1, 0, 0, 0, 0, 1]),
        everybody,
        MacAddress([0; 6]),
    ] {
        assert!(b.set_mac(wrong).is_err());
    }
    drop((tx, rx));
    a.close().unwrap();
    b.close().unwrap();
    drop((a, b));
    rig.assert_clean(1);
}

fn several_queues_share_flows_and_keep_each_in_order(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(4096);
    a.start(&one_queue(&pool, 64)).unwrap();
    b.start(&queues(&pool, 3, 64)).unwrap();
    let mut tx = a.take_tx(0).unwrap();
    let mut rx: Vec<_> = (0..3).map(|n| b.take_rx(n).unwrap()).collect();
    // UDP over IPv4 from many ports, four packets each; and something that is not IP.
    let udp = |flow: u16, nth: u8| {
        let mut bytes = frame(b.mac().0, ANYBODY, 14, 0);
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
    frames.push(frame(b.mac().0, ANYBODY, 64, 7));
    let mut got: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    std::thread::scope(|scope| {
        scope.spawn(|| send(&mut tx, &pool, &frames));
        let mut burst = Burst::with_capacity(32);
        until("all packets", || {
            for (number, (queue, got)) in rx.iter_mut().zip(&mut got).enumerate() {
                queue.burst(&mut burst);
                for mbuf in burst.drain() {
                    assert_eq!((mbuf.port(), mbuf.queue()), (1, number as u16));
                    got.push(mbuf.to_vec());
                }
            }
            got.iter().map(Vec::len).sum::<usize>() == frames.len()
        });
    });
    let shares: Vec<usize> = got.iter().map(Vec::len).collect();
    assert!(shares.iter().all(|share| *share > 40), "{shares:?}");
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

fn several_send_queues_lose_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(4096);
    let mut config = queues(&pool, 4, 64);
    config.rx.truncate(1);
    port.start(&config).unwrap();
    let mut rx = port.take_rx(0).unwrap();
    let mut got = std::thread::scope(|scope| {
        for queue in 0..4 {
            let mut tx = port.take_tx(queue).unwrap();
            let pool = &pool;
            scope.spawn(move || {
                let frames: Vec<_> = (0..250)
                    .map(|n| plain(queue as u32 * 1000 + n, 64))
                    .collect();
                send(&mut tx, pool, &frames);
                // The rest of the ring's buffers come home only with the queue.
                until("everything is sent", || tx.pending() < 64);
            });
        }
        receive(&mut rx, 1000)
    });
    got.sort_by_key(|f| number_of(f));
    let expected: Vec<_> = (0..4)
        .flat_map(|q| (0..250).map(move |n| plain(q * 1000 + n, 64)))
        .collect();
    assert!(got == expected);
    let stats = port.stats().unwrap();
    assert!(
        stats.tx.iter().all(|queue| queue.packets == 250),
        "{stats:?}"
    );
    drop(rx);
    port.close().unwrap();
    assert_eq!(pool.in_use(), 0);
}

fn stopping_under_traffic_loses_no_buffer(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(2048);
    for _ in 0..5 {
        port.start(&one_queue(&pool, 64)).unwrap();
        let (mut tx, mut rx) = (port.take_tx(0).unwrap(), port.take_rx(0).unwrap());
        std::thread::scope(|scope| {
            let (ready, started) = std::sync::mpsc::channel();
            let (pool, port) = (&pool, &port);
            scope.spawn(move || {
                let (mut burst, mut out) = (Burst::with_capacity(32), Burst::with_capacity(32));
                let (mut received, mut told) = (0usize, false);
                // Both ways until the port stops, and beyond.
                while port.is_started() {
                    if let Some(mut mbuf) = pool.alloc() {
                        assert!(mbuf.extend_from_slice(&plain(1, 100)));
                        drop(burst.push(mbuf));
                    }
                    tx.burst(&mut burst);
                    received += rx.burst(&mut out);
                    out.clear();
                    if received > 200 && !told {
                        told = ready.send(()).is_ok();
                    }
                }
                for _ in 0..1000 {
                    assert_eq!(rx.burst(&mut out), 0);
                }
            });
            started.recv_timeout(Duration::from_secs(60)).unwrap();
            port.stop().unwrap();
        });
        assert_eq!(pool.in_use(), 0);
    }
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn what_is_missed_is_counted_exactly(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair,lossy=on");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(2048);
    a.start(&one_queue(&pool, 512)).unwrap();
    b.start(&one_queue(&pool, 64)).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    let frames: Vec<_> = (0..300).map(|n| plain(n, 64)).collect();
    // Nobody polls: 64 find a buffer.
    send(&mut tx, &pool, &frames);
    until("all have crossed", || rig.wire(0).get("out") == 300);
    let stats = b.stats().unwrap();
    assert_eq!(
        (stats.imissed, stats.ipackets, stats.rx_nombuf),
        (236, 0, 0)
    );
    assert!(receive(&mut rx, 64) == frames[..64]);
    let stats = b.stats().unwrap();
    assert_eq!((stats.imissed, stats.ipackets), (236, 64));
    b.reset_stats().unwrap();
    assert_eq!(b.stats().unwrap().imissed, 0);
    // And on it goes.
    send(&mut tx, &pool, &frames[..10]);
    assert!(receive(&mut rx, 10) == frames[..10]);
    assert_eq!(b.stats().unwrap().imissed, 0);
}

/// Fewer buffers than descriptors: packets wait for buffers, and nothing is lost or breaks.
fn a_small_pool_slows_down_and_loses_nothing(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let (large, small) = (pool(1024), pool(48));
    a.start(&one_queue(&large, 64)).unwrap();
    b.start(&one_queue(&small, 128)).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    let frames: Vec<_> = (0..600).map(|n| plain(n, 80)).collect();
    let got = std::thread::scope(|scope| {
        scope.spawn(|| send(&mut tx, &large, &frames));
        receive(&mut rx, frames.len())
    });
    assert!(got == frames);
    assert_eq!(
        b.stats().unwrap().imissed,
        0,
        "a wire that is not lossy waits"
    );
    // The application keeps all buffers: nothing comes, nothing breaks.
    let (mut kept, mut rest) = (Burst::with_capacity(64), frames[..100].to_vec());
    let mut out = load(&large, &rest);
    until("the pool is empty", || {
        tx.burst(&mut out);
        rx.burst(&mut kept);
        kept.len() == 48
    });
    for _ in 0..100 {
        assert_eq!(rx.burst(&mut kept), 0);
    }
    assert!(b.stats().unwrap().rx_nombuf > 0);
    let mut seen: Vec<_> = kept.drain().map(|mbuf| mbuf.to_vec()).collect();
    until("the rest comes", || {
        tx.burst(&mut out);
        rx.burst(&mut kept);
        seen.extend(kept.drain().map(|mbuf| mbuf.to_vec()));
        seen.len() == 100
    });
    assert!(seen == rest);
    rest.clear();
}

fn the_mtu_is_what_was_asked(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    let pool = pool(1024);
    // Asked for at start, read back, and in force.
    let mut config = one_queue(&pool, 64);
    config.mtu = Some(1000);
    a.start(&config).unwrap();
    assert_eq!(a.mtu(), 1000);
    b.start(&config).unwrap();
    let (mut tx, mut rx) = (a.take_tx(0).unwrap(), b.take_rx(0).unwrap());
    // An MTU leaves room for one VLAN tag.
    let (fits, too_long) = (plain(1, 1018), plain(2, 1019));
    send(&mut tx, &pool, &[fits.clone(), too_long, fits.clone()]);
    assert!(receive(&mut rx, 2) == [fits.clone(), fits]);
    let stats = a.stats().unwrap();
    assert_eq!(
        (stats.opackets, stats.oerrors),
        (2, 1),
        "refused before it is written"
    );
    // Not while the port runs; at rest it is read back from the device.
    assert!(a.set_mtu(1200).unwrap_err().to_string().contains("stop"));
    drop((tx, rx));
    a.stop().unwrap();
    a.set_mtu(1200).unwrap();
    assert_eq!(a.mtu(), 1200);
    for wrong in [0, 67, a.info().max_mtu + 1, usize::MAX] {
        let refused = a.set_mtu(wrong).unwrap_err().to_string();
        assert!(refused.contains(&a.info().max_mtu.to_string()), "{refused}");
        assert_eq!(a.mtu(), 1200);
    }
    a.start(&one_queue(&pool, 64)).unwrap();
    assert_eq!(a.mtu(), 1200, "kept by a start that does not speak of it");
    a.stop().unwrap();
    // The largest that is reported is itself accepted, given buffers; one more is not.
    let room = pool_of(256, a.info().max_mtu + 18);
    let mut largest = one_queue(&room, 64);
    largest.mtu = Some(a.info().max_mtu);
    a.start(&largest).unwrap();
    a.stop().unwrap();
    let narrow = pool_of(256, 1500);
    let mut larger = one_queue(&narrow, 64);
    larger.mtu = Some(1500);
    let refused = a.start(&larger).unwrap_err().to_string();
    assert!(refused.contains("1500"), "{refused}");
}

fn a_capture_goes_through(backing: Backing) {
    let folder = std::env::temp_dir().join(format!("pollux-capture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (input, output) = (folder.join("in.pcap"), folder.join("out.pcap"));
    let frames: Vec<_> = (0..1500)
        .map(|n| plain(n, 60 + (n as usize * 13) % 1400))
        .collect();
    let mut writer = PcapWriter::new(std::fs::File::create(&input).unwrap()).unwrap();
    for bytes in &frames {
        let packet = PcapPacket::new(Duration::from_secs(1), bytes.len() as u32, bytes);
        writer.write_packet(&packet).unwrap();
    }
    drop(writer);
    let settings = format!("ports=2,in0={},out1={}", input.display(), output.display());
    let rig = Rig::new(backing, &settings);
    let (a, b) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    assert_eq!(
        rig.wire(0).get("waiting"),
        1500,
        "nothing is lost before the start"
    );
    let pool = pool(1024);
    a.start(&one_queue(&pool, 64)).unwrap();
    b.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (a.take_rx(0).unwrap(), b.take_tx(0).unwrap());
    let mut burst = Burst::with_capacity(32);
    until("the capture is through", || {
        rx.burst(&mut burst);
        tx.burst(&mut burst);
        rig.wire(1).get("out") == 1500
    });
    until("both wires have run dry", || {
        (0..2).all(|n| rig.wire(n).get("drained") == 1)
    });
    drop((rx, tx));
    a.close().unwrap();
    b.close().unwrap();
    drop((a, b, rig));
    let mut reader = PcapReader::new(std::fs::File::open(&output).unwrap()).unwrap();
    let mut written = Vec::new();
    while let Some(packet) = reader.next_packet() {
        written.push(packet.unwrap().data.into_owned());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(written == frames, "{} frames written", written.len());
}
