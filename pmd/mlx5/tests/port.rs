//! Starting and stopping a port against a device that is a script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails loudly

mod firmware;

use firmware::{Firmware, Verdict};
use pollux_mempool::{Burst, PageChoice, Pool, PoolConfig};
use pollux_mlx5::{Error, MacAddress, OpenOptions, Port, PortConfig, RxQueueConfig, TxQueueConfig};
use std::sync::Arc;
use std::time::Duration;

fn open(firmware: &Arc<Firmware>) -> Port {
    let options = OpenOptions {
        command_deadline: Duration::from_secs(100),
        pages: PageChoice::Ordinary,
        ..OpenOptions::default()
    };
    Port::open(firmware.connect(), options).unwrap()
}

fn pool(count: usize) -> Pool {
    let config = PoolConfig::new("test", count).page(PageChoice::Ordinary);
    Pool::new(&config.cache(0)).unwrap()
}

fn config(pool: &Pool, queues: usize) -> PortConfig {
    let rx = RxQueueConfig {
        descriptors: 64,
        pool: pool.clone(),
    };
    let tx = TxQueueConfig {
        descriptors: 64,
        chains: false,
    };
    PortConfig {
        rx: vec![rx; queues],
        tx: vec![tx; queues],
        ..PortConfig::default()
    }
}

/// Kinds of objects alive, by the opcode that creates them; without those of bring-up.
fn alive(firmware: &Firmware) -> Vec<(u16, usize)> {
    let state = firmware.state.lock().unwrap();
    let kinds = state.objects.live.iter().filter(|(kind, live)| {
        !matches!(**kind, 0x301 | 0x771 | 0x800 | 0x802 | 0x816) && !live.is_empty()
    });
    kinds.map(|(kind, live)| (*kind, live.len())).collect()
}

fn close(firmware: &Firmware, port: &Port) {
    port.close().unwrap();
    let state = firmware.state.lock().unwrap();
    assert_eq!(state.objects.faults, [] as [String; 0]);
    assert_eq!(state.objects.count(), 0, "{:?}", state.objects.live);
    assert!(state.objects.pages.is_empty());
}

#[test]
fn start_makes_queues_and_stop_unmakes_them() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    for queues in [1, 3] {
        port.start(&config(&pool, queues)).unwrap();
        assert!(port.is_started());
        let receive = if queues == 1 {
            (1, 0, 1, 2, 2)
        } else {
            (7, 1, 2, 5, 9)
        };
        let (tirs, rqts, tables, groups, entries) = receive;
        let mut expected = vec![
            (0x200, 1),          // memory key of the pool's one chunk
            (0x400, 2 * queues), // completion queues
            (0x900, tirs),
            (0x904, queues),
            (0x908, queues),
            (0x912, 1),
            (0x916, rqts),
            (0x930, tables),
            (0x933, groups),
            (0x936, entries),
        ];
        expected.retain(|(_, n)| *n > 0);
        assert_eq!(alive(&firmware), expected);
        assert_eq!(pool.in_use(), 64 * queues, "every descriptor has a buffer");
        port.stop().unwrap();
        port.stop().unwrap();
        assert_eq!(alive(&firmware), []);
        assert_eq!(pool.in_use(), 0);
        assert!(!port.is_started());
    }
    close(&firmware, &port);
}

#[test]
fn closing_a_started_port_stops_it() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    port.start(&config(&pool, 2)).unwrap();
    close(&firmware, &port);
    assert_eq!(pool.in_use(), 0);
    assert!(
        port.start(&config(&pool, 1))
            .unwrap_err()
            .to_string()
            .contains("closed")
    );
}

#[test]
fn queues_are_taken_once() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    assert!(
        port.take_rx(0)
            .unwrap_err()
            .to_string()
            .contains("not started")
    );
    port.start(&config(&pool, 1)).unwrap();
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    assert!(
        port.take_rx(0)
            .unwrap_err()
            .to_string()
            .contains("taken already")
    );
    assert!(
        port.take_tx(0)
            .unwrap_err()
            .to_string()
            .contains("taken already")
    );
    assert!(
        port.take_rx(1)
            .unwrap_err()
            .to_string()
            .contains("no such queue")
    );
    assert!(
        port.start(&config(&pool, 1))
            .unwrap_err()
            .to_string()
            .contains("started")
    );
    drop((rx, tx));
    close(&firmware, &port);
}

#[test]
fn a_queue_that_is_out_becomes_inert_and_outlives_its_port() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    port.start(&config(&pool, 1)).unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    port.stop().unwrap();
    assert_eq!(alive(&firmware), [], "the device's half is gone");
    let mut burst = Burst::with_capacity(32);
    assert_eq!(rx.burst(&mut burst), 0);
    let packet = pool.alloc().unwrap();
    assert!(burst.push(packet).is_ok());
    assert_eq!(tx.burst(&mut burst), 0);
    assert_eq!(burst.len(), 1, "an inert queue takes nothing");
    // Another start uses other memory and another doorbell page.
    port.start(&config(&pool, 1)).unwrap();
    port.stop().unwrap();
    close(&firmware, &port);
    drop(port);
    assert_eq!(
        pool.in_use(),
        65,
        "its buffers are the queue's until it is dropped"
    );
    drop((rx, tx, burst));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn buffers_of_a_dropped_queue_stay_until_the_device_has_let_go() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    port.start(&config(&pool, 1)).unwrap();
    drop(port.take_rx(0).unwrap());
    assert_eq!(pool.in_use(), 64);
    port.stop().unwrap();
    assert_eq!(pool.in_use(), 0);
    close(&firmware, &port);
}

#[test]
fn a_refusal_at_any_command_of_a_start_leaves_nothing() {
    let firmware = Firmware::new();
    let pool = pool(256);
    let port = open(&firmware);
    // The first start has more to do: it allocates the doorbell pages, which stay.
    port.start(&config(&pool, 2)).unwrap();
    port.stop().unwrap();
    let before = firmware.opcodes().len();
    port.start(&config(&pool, 2)).unwrap();
    let commands = firmware.opcodes().split_off(before);
    port.stop().unwrap();
    let commands = commands.iter().filter(|o| !asks_link(**o)).count();
    for victim in 0..commands {
        let mut seen = 0;
        firmware.script(move |c| {
            // Questions about the link belong to no start.
            if asks_link(c.opcode) {
                return Verdict::Do;
            }
            seen += 1;
            if seen - 1 == victim {
                Verdict::Refuse(0x3, 0x77)
            } else {
                Verdict::Do
            }
        });
        let result = port.start(&config(&pool, 2));
        firmware.no_script();
        let error = result.unwrap_err().to_string();
        assert!(error.contains("0x77"), "{victim}: {error}");
        assert_eq!(alive(&firmware), [], "after command {victim} was refused");
        assert_eq!(pool.in_use(), 0, "after command {victim} was refused");
    }
    port.start(&config(&pool, 2)).unwrap();
    close(&firmware, &port);
}

/// Questions about the link: port state, and ACCESS_REG, of which a start needs one to switch the
/// port on; its refusal is tried elsewhere.
fn asks_link(opcode: u16) -> bool {
    matches!(opcode, 0x750 | 0x805)
}

#[test]
fn a_refusal_when_stopping_keeps_buffers_until_the_device_is_cut_off() {
    let pool = pool(256);
    // Destroying a CQ, an RQ, a key, a flow entry.
    for opcode in [0x401, 0x90a, 0x202, 0x938] {
        let firmware = Firmware::new();
        let port = open(&firmware);
        port.start(&config(&pool, 1)).unwrap();
        firmware.script(move |c| match c.opcode == opcode && c.nth == 0 {
            true => Verdict::Refuse(0x6, 0x99),
            false => Verdict::Do,
        });
        let error = port.stop().unwrap_err().to_string();
        assert!(
            error.contains("0x99") && error.contains("resource busy"),
            "{error}"
        );
        assert!(!port.is_started());
        assert_eq!(pool.in_use(), 64, "the device may still write into them");
        // The port can be used again nevertheless.
        port.start(&config(&pool, 1)).unwrap();
        port.stop().unwrap();
        assert!(
            port.close().unwrap().reset,
            "something is still alive there"
        );
        assert_eq!(pool.in_use(), 0);
        assert_eq!(firmware.state.lock().unwrap().resets, 1);
    }
}

#[test]
fn the_same_bad_start_gives_the_same_error_twice() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    let with = |change: fn(&mut PortConfig)| {
        let mut config = config(&pool, 1);
        change(&mut config);
        config
    };
    let cases = [
        (
            with(|c| c.rx[0].descriptors = 100),
            "powers of two from 32 to 32768 allowed; for instance 128",
        ),
        (with(|c| c.rx[0].descriptors = 16), "for instance 32"),
        (
            with(|c| c.tx[0].descriptors = 1 << 16),
            "for instance 32768",
        ),
        (
            with(|c| c.mtu = Some(9000)),
            "9018 or more for an MTU of 9000",
        ),
        (with(|c| c.mtu = Some(20)), "68 to 9956"),
        (
            with(|c| {
                c.rx.clear();
                c.tx.clear();
            }),
            "1 or more",
        ),
        (with(|c| c.tx = vec![c.tx[0]; 2000]), "at most 1024"),
    ];
    let before = firmware.opcodes().len();
    for (config, part) in &cases {
        let errors: Vec<String> = (0..2)
            .map(|_| port.start(config).unwrap_err().to_string())
            .collect();
        assert!(errors[0].contains(part), "{}", errors[0]);
        assert_eq!(errors[0], errors[1]);
    }
    let asked: Vec<u16> = firmware.opcodes()[before..].to_vec();
    assert!(
        asked.iter().all(|o| matches!(o, 0x750 | 0x805)),
        "nothing was made: {asked:x?}"
    );
    port.start(&config(&pool, 1)).unwrap();
    close(&firmware, &port);
}

#[test]
fn a_pool_in_several_chunks_has_a_key_for_each() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let wide = Pool::new(
        &PoolConfig::new("wide", 256)
            .page(PageChoice::Ordinary)
            .chunks(3),
    )
    .unwrap();
    let mut config = config(&wide, 1);
    config.pools = vec![wide.clone(), pool(32)];
    port.start(&config).unwrap();
    let log = firmware.state.lock().unwrap().log.clone();
    let keys: Vec<_> = log.iter().filter(|c| c.opcode == 0x200).collect();
    assert_eq!(keys.len(), 4);
    for key in &keys {
        let context = &key.input[16..80];
        let word = |at: usize| u64::from_be_bytes(context[at..at + 8].try_into().unwrap());
        let (start, len) = (word(16), word(24));
        assert!(len > 0 && start % 4096 == 0);
        assert_eq!(context[2] >> 2 & 3, 3, "local read and write");
        assert_eq!(context[2] & 3, 1, "page list");
        let page = u64::from_be_bytes(key.input[272..280].try_into().unwrap());
        // The adapter has no page access rights (`pg`), so entries are bare addresses.
        assert_eq!(page, start, "one page covers it");
        let log = context[59] & 0x3f;
        assert!(1 << log >= len && start % (1 << log) == 0);
    }
    close(&firmware, &port);
}

#[test]
fn settings_are_kept_over_restarts() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    assert_eq!((port.mtu(), port.info().max_mtu), (1500, 9956));
    assert_eq!(port.mac(), MacAddress([2, 0, 0, 0, 0, 7]));
    let mac = MacAddress([2, 0, 0, 0, 0, 9]);
    assert!(port.set_mac(MacAddress::BROADCAST).is_err());
    assert!(
        port.set_promiscuous(true)
            .unwrap_err()
            .to_string()
            .contains("stopped")
    );
    port.start(&config(&pool, 1)).unwrap();
    port.set_mac(mac).unwrap();
    port.set_promiscuous(true).unwrap();
    port.set_promiscuous(true).unwrap();
    assert!(port.promiscuous());
    assert!(matches!(port.set_mtu(1400), Err(Error::State { .. })));
    assert_eq!(
        alive(&firmware).last(),
        Some(&(0x936, 3)),
        "own, broadcast, everything"
    );
    port.set_promiscuous(false).unwrap();
    assert_eq!(alive(&firmware).last(), Some(&(0x936, 2)));
    port.stop().unwrap();
    port.start(&config(&pool, 1)).unwrap();
    assert_eq!(port.mac(), mac);
    let state = firmware.state.lock().unwrap();
    let entries: Vec<&[u8]> = state
        .log
        .iter()
        .filter(|c| c.opcode == 0x936)
        .map(|c| &c.input[64 + 64 + 8..64 + 64 + 14])
        .collect();
    assert_eq!(entries[entries.len() - 2..], [&mac.0[..], &[0xff; 6][..]]);
    drop(state);
    close(&firmware, &port);
}

#[test]
fn statistics_do_not_wrap_and_can_be_reset_at_any_time() {
    let firmware = Firmware::new();
    let port = open(&firmware);
    let pool = pool(256);
    let counter = |n: u32| {
        move |c: &firmware::Command| match c.opcode {
            0x773 => {
                let mut answer = vec![0; 256];
                answer[48..52].copy_from_slice(&n.to_be_bytes());
                Verdict::Answer(answer)
            }
            0x770 => {
                let mut answer = vec![0; 528];
                answer[16 + 128..16 + 136].copy_from_slice(&u64::from(n).to_be_bytes());
                Verdict::Answer(answer)
            }
            _ => Verdict::Do,
        }
    };
    firmware.script(counter(0xffff_fff0));
    port.start(&config(&pool, 1)).unwrap();
    let stats = port.stats().unwrap();
    assert_eq!(
        (stats.imissed, stats.ipackets, stats.rx.len()),
        (0xffff_fff0, 0, 1)
    );
    assert_eq!(stats.device.rx_packets, 0xffff_fff0);
    port.reset_stats().unwrap();
    assert_eq!(port.stats().unwrap().imissed, 0);
    // The device's 32 bits go round.
    firmware.script(counter(0x10));
    assert_eq!(port.stats().unwrap().imissed, 0x20);
    assert_eq!(
        port.stats().unwrap().device.rx_packets,
        0,
        "a value that went back is no gain"
    );
    port.stop().unwrap();
    assert_eq!(
        port.stats().unwrap().imissed,
        0x20,
        "readable while stopped"
    );
    firmware.no_script();
    close(&firmware, &port);
}

#[test]
fn an_emulated_board_shows_over_a_bus_that_is_real() {
    for (board, emulated) in [
        ("PLX_0000000359", true),
        ("MT_0000000359", false),
        ("", false),
    ] {
        let firmware = Firmware::new();
        firmware.state.lock().unwrap().emulated = false;
        firmware.script(move |c| match c.opcode {
            // QUERY_ADAPTER: the board's name is the last 16 of 256 bytes behind the header.
            0x101 => {
                let mut answer = vec![0; 16 + 256];
                answer[256..256 + board.len()].copy_from_slice(board.as_bytes());
                Verdict::Answer(answer)
            }
            _ => Verdict::Do,
        });
        let port = open(&firmware);
        assert_eq!(port.info().board, board);
        assert_eq!(port.info().identity.emulated, emulated, "{board:?}");
    }
}
