//! Opening, starting, stopping and closing, whole and in every order.

use crate::harness::{Backing, Rig, one_queue, plain, pool, queues, receive, send, until};
use crate::on_every_backing;
use pollux_mlx5::{OpenOptions, Port, PortConfig};

on_every_backing! {
    opens_and_closes_and_leaves_nothing
    a_connectx4lx_opens_and_starts
    a_connectx5_opens_and_starts
    a_connectx6dx_opens_and_starts
    a_connectx7_opens_and_starts
    signed_answers_are_taken
    says_what_it_is
    a_function_without_address_makes_one_up
    starts_and_stops_and_leaves_nothing
    a_second_start_is_refused_and_changes_nothing
    each_queue_is_handed_out_once_per_start
    stop_and_close_may_be_repeated
    a_queue_that_is_out_is_inert_after_stop
    queues_may_be_dropped_after_close
    dropping_the_port_closes_it
    two_drivers_do_not_get_one_function
    pool_and_packets_may_go_in_any_order
}

fn opens_and_closes_and_leaves_nothing(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair");
    for round in 0..3 {
        let function = rig.connect(0).unwrap();
        let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
        let report = rig.report(0);
        assert!(report.get("pages") > 0, "{report}");
        assert!(report.get("objects") > 0, "{report}");
        assert_eq!(report.get("refused"), 0, "round {round}: {report}");
        let closed = port.close().unwrap();
        assert_eq!((closed.pages_kept, closed.reset), (0, false));
        assert!(closed.pages_given > 0);
        assert_eq!(function.domain().mappings(), 0, "round {round}");
        drop(port);
        drop(function);
        rig.assert_clean(0);
    }
    // Both functions at once, closed in the order of opening.
    let (first, second) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    assert_ne!(first.info().mac, second.info().mac);
    drop(first);
    assert!(rig.report(1).get("pages") > 0);
    drop(second);
    rig.assert_clean(0);
    rig.assert_clean(1);
}

fn a_connectx4lx_opens_and_starts(backing: Backing) {
    opens_and_starts(backing, "cx4lx", "ConnectX-4 Lx");
}

fn a_connectx5_opens_and_starts(backing: Backing) {
    opens_and_starts(backing, "cx5", "ConnectX-5");
}

fn a_connectx6dx_opens_and_starts(backing: Backing) {
    opens_and_starts(backing, "cx6dx", "ConnectX-6 Dx");
}

fn a_connectx7_opens_and_starts(backing: Backing) {
    opens_and_starts(backing, "cx7", "ConnectX-7");
}

fn opens_and_starts(backing: Backing, model: &str, name: &str) {
    let rig = Rig::new(backing, &format!("model={model},wire=loop"));
    let port = rig.open(0).unwrap();
    assert_eq!(port.info().model, name);
    let pool = pool(256);
    port.start(&one_queue(&pool, 64)).unwrap();
    port.stop().unwrap();
    assert_eq!(rig.report(0).get("refused"), 0, "{}", rig.report(0));
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn signed_answers_are_taken(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let options = OpenOptions {
        command_signatures: true,
        ..OpenOptions::default()
    };
    let port = Port::open(rig.connect(0).unwrap(), options).unwrap();
    let pool = pool(512);
    port.start(&queues(&pool, 2, 64)).unwrap();
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn says_what_it_is(backing: Backing) {
    let rig = Rig::new(
        backing,
        "model=cx5,mac=02:11:22:33:44:55,firmware=16.35.2000",
    );
    let port = rig.open(0).unwrap();
    let info = port.info();
    assert_eq!(info.mac.0, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(port.mac(), info.mac);
    assert_eq!(info.firmware.to_string(), "16.35.2000");
    assert_eq!(info.identity.vendor, 0x15b3);
    assert!(info.identity.emulated);
    assert!(info.max_mtu >= 9000, "{}", info.max_mtu);
    assert!(info.max_rx_queues >= 1 && info.max_tx_queues >= 1);
    assert!(info.rx_descriptors.max >= 1024 && info.tx_descriptors.max >= 1024);
}

fn a_function_without_address_makes_one_up(backing: Backing) {
    let rig = Rig::new(backing, "ports=2,wire=pair,mac0=00:00:00:00:00:00");
    let (bare, given) = (rig.open(0).unwrap(), rig.open(1).unwrap());
    assert!(bare.info().mac_made_up && !given.info().mac_made_up);
    let mac = bare.info().mac;
    assert_eq!(
        mac.0[0] & 3,
        2,
        "{mac}: locally administered, of one station"
    );
    // The device knows it too: packets to it come in without promiscuous mode.
    let pool = pool(256);
    let config = PortConfig {
        promiscuous: false,
        ..one_queue(&pool, 64)
    };
    bare.start(&config).unwrap();
    given.start(&config).unwrap();
    let (mut rx, mut tx) = (bare.take_rx(0).unwrap(), given.take_tx(0).unwrap());
    let mut frame = plain(7, 64);
    frame[..6].copy_from_slice(&mac.0);
    send(&mut tx, &pool, &[frame.clone()]);
    assert_eq!(receive(&mut rx, 1), [frame]);
    drop((bare, given));
    // Firmware that does not let it: the remedy is the owner's.
    rig.ask("arm 0 opcode:0x755:1 fail:3:0x1234");
    let error = rig.open(0).unwrap_err().to_string();
    assert!(
        error.contains("no MAC address") && error.contains("ip link set"),
        "{error}"
    );
    let report = rig.report(0);
    let left = ["connected", "pages", "objects"].map(|key| report.get(key));
    assert_eq!(left, [0; 3], "{report}");
}

fn starts_and_stops_and_leaves_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let function = rig.connect(0).unwrap();
    let port = Port::open(function.clone(), OpenOptions::default()).unwrap();
    let idle = rig.report(0).text("kinds").to_owned();
    let mappings = function.domain().mappings();
    let pool = pool(2048);
    for round in 0..4 {
        let mut config = one_queue(&pool, 64 << round);
        config.promiscuous = round % 2 == 0;
        port.start(&config).unwrap();
        assert!(port.is_started());
        until("buffers are posted", || pool.in_use() >= 64 << round);
        port.stop().unwrap();
        assert!(!port.is_started());
        assert_eq!(pool.in_use(), 0, "round {round}");
    }
    // UAR pages may be kept for the next start, nothing else.
    let left = |kinds: &str| -> Vec<String> {
        kinds
            .split(',')
            .filter(|kind| !kind.starts_with("Uar"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(left(rig.report(0).text("kinds")), left(&idle));
    port.close().unwrap();
    assert_eq!(function.domain().mappings(), 0, "at first {mappings}");
    drop((port, function));
    rig.assert_clean(0);
}

fn a_second_start_is_refused_and_changes_nothing(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let before = rig.report(0).text("kinds").to_owned();
    let refused = port.start(&one_queue(&pool, 64)).unwrap_err().to_string();
    assert!(refused.contains("stop it first"), "{refused}");
    assert_eq!(rig.report(0).text("kinds"), before);
    port.take_rx(0).unwrap();
    port.stop().unwrap();
    port.start(&one_queue(&pool, 128)).unwrap();
    port.close().unwrap();
    let closed = port.start(&one_queue(&pool, 64)).unwrap_err().to_string();
    assert!(closed.contains("closed"), "{closed}");
    drop(port);
    rig.assert_clean(0);
}

fn each_queue_is_handed_out_once_per_start(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    assert!(port.take_rx(0).is_err(), "not started");
    for _ in 0..2 {
        port.start(&one_queue(&pool, 64)).unwrap();
        let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
        for error in [port.take_rx(0).unwrap_err(), port.take_tx(0).unwrap_err()] {
            assert!(error.to_string().contains("taken"), "{error}");
        }
        for error in [port.take_rx(1).unwrap_err(), port.take_tx(1).unwrap_err()] {
            assert!(error.to_string().contains("no such queue"), "{error}");
        }
        drop((rx, tx));
        assert!(
            port.take_rx(0).is_err(),
            "dropped is not given back for another core"
        );
        port.stop().unwrap();
    }
}

fn stop_and_close_may_be_repeated(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    port.stop().unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    port.stop().unwrap();
    port.stop().unwrap();
    port.close().unwrap();
    port.close().unwrap();
    port.stop().unwrap();
    assert!(port.stats().is_err());
    assert!(port.set_promiscuous(true).is_err());
    assert_eq!(port.link().up, None);
    drop(port);
    rig.assert_clean(0);
}

fn a_queue_that_is_out_is_inert_after_stop(backing: Backing) {
    use crate::harness::{load, plain};
    use pollux_mempool::Burst;

    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    let mut out = load(&pool, &[plain(1, 60)]);
    assert_eq!(tx.burst(&mut out), 1);
    let mut got = Burst::with_capacity(8);
    until("the frame is back", || rx.burst(&mut got) == 1);
    // A frame is on its way when the port stops.
    let mut last = load(&pool, &[plain(2, 60)]);
    assert_eq!(tx.burst(&mut last), 1);
    port.stop().unwrap();
    let mut more = load(&pool, &[plain(3, 60)]);
    for _ in 0..100 {
        assert_eq!(rx.burst(&mut got), 0);
        assert_eq!(tx.burst(&mut more), 0);
    }
    assert_eq!(
        more.len(),
        1,
        "a packet that is not taken stays the caller's"
    );
    // The next start gives new queues; the old ones stay inert beside them.
    port.start(&one_queue(&pool, 64)).unwrap();
    let (mut new_rx, mut new_tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    assert_eq!(tx.burst(&mut more), 0);
    assert_eq!(new_tx.burst(&mut more), 1);
    until("the frame is back", || new_rx.burst(&mut got) == 1);
    assert_eq!(rx.burst(&mut got), 0);
    drop((rx, tx));
    port.stop().unwrap();
    drop((new_rx, new_tx));
    got.clear();
    assert_eq!(pool.in_use(), 0);
    pool.check().unwrap();
    drop(port);
    rig.assert_clean(0);
}

fn queues_may_be_dropped_after_close(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let pool = pool(512);
    let port = rig.open(0).unwrap();
    port.start(&one_queue(&pool, 64)).unwrap();
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    port.close().unwrap();
    drop(port);
    rig.assert_clean(0);
    // Nobody has to wait for them.
    rig.open(0).unwrap().close().unwrap();
    // On another thread, as an lcore would.
    std::thread::spawn(move || drop((rx, tx))).join().unwrap();
    assert_eq!(pool.in_use(), 0);
    rig.open(0).unwrap().close().unwrap();
}

fn dropping_the_port_closes_it(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let pool = pool(512);
    let port = rig.open(0).unwrap();
    port.start(&one_queue(&pool, 64)).unwrap();
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    drop(port);
    rig.assert_clean(0);
    drop((rx, tx));
    pool.check().unwrap();
}

fn two_drivers_do_not_get_one_function(backing: Backing) {
    let rig = Rig::new(backing, "wire=loop");
    let port = rig.open(0).unwrap();
    let refused = rig.open(0).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    // The first one is none the worse.
    let pool = pool(512);
    port.start(&one_queue(&pool, 64)).unwrap();
    drop(port);
    rig.assert_clean(0);
    rig.open(0).unwrap();
}

/// No order of letting go can free memory under device or application.
fn pool_and_packets_may_go_in_any_order(backing: Backing) {
    use crate::harness::{load, plain};
    use pollux_mempool::Burst;

    let rig = Rig::new(backing, "wire=loop");
    for order in 0..4 {
        let pool = pool(512);
        let port = rig.open(0).unwrap();
        port.start(&one_queue(&pool, 64)).unwrap();
        let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
        let mut out = load(&pool, &[plain(7, 200)]);
        let mut got = Burst::with_capacity(4);
        tx.burst(&mut out);
        until("the frame is back", || rx.burst(&mut got) == 1);
        let whole = plain(7, 200);
        match order {
            0 => drop((pool, port, rx, tx)),
            1 => drop((rx, pool, tx, port)),
            2 => drop((port, pool, rx, tx)),
            _ => drop((tx, rx, port, pool)),
        }
        assert!(
            got.iter().all(|mbuf| mbuf.data() == whole),
            "the packet outlives all"
        );
        got.clear();
        rig.assert_clean(0);
    }
}
