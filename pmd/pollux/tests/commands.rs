//! The list of commands and registers that this driver sends, which the emulator's table quotes:
//! neither more nor less than what it sends in a life with everything in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails loudly

use pollux_bus::local;
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::{Burst, PageChoice, Pool, PoolConfig};
use pollux_mlx5::{MacAddress, OpenOptions, Port, PortConfig, RxQueueConfig, TxQueueConfig};
use pollux_prm::commands::register::RegisterAccess;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIST: &str = include_str!("../../emu/tests/exercised/pollux.txt");

fn live(settings: &[(&str, &str)], sent: &Arc<Mutex<BTreeSet<String>>>) {
    let settings = settings.iter().copied().chain([("idle", "yield")]);
    let emulator = Emulator::new(EmulatorConfig::from_keys(settings).unwrap()).unwrap();
    let names = Arc::clone(sent);
    let watcher = Box::new(move |record: &pollux_emu::observe::CommandRecord| {
        let mut names = names.lock().unwrap();
        names.insert(record.opcode.name().unwrap().to_owned());
        if let Some(register) = record.register {
            let write = record.variant == RegisterAccess::WRITE.0;
            let direction = if write { "write" } else { "read" };
            names.insert(format!("{}:{direction}", register.name().unwrap()));
        }
    });
    emulator.watch_commands(0, Some(watcher)).unwrap();
    let function = local::connect(emulator.function(0).unwrap()).unwrap();
    let options = OpenOptions {
        pages: PageChoice::Ordinary,
        ..OpenOptions::default()
    };
    let port = Port::open(function, options).unwrap();
    let config = PoolConfig::new("commands", 512).data_room(2048).cache(0);
    let pool = Pool::new(&config.page(PageChoice::Ordinary)).unwrap();
    let rx = RxQueueConfig {
        descriptors: 64,
        pool: pool.clone(),
    };
    let tx = TxQueueConfig {
        descriptors: 64,
        chains: true,
    };
    port.start(&PortConfig {
        rx: vec![rx; 2],
        tx: vec![tx; 2],
        promiscuous: false,
        ..PortConfig::default()
    })
    .unwrap();
    let (mut rx, mut tx) = (port.take_rx(0).unwrap(), port.take_tx(0).unwrap());
    port.set_promiscuous(true).unwrap();
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    let mut burst = Burst::with_capacity(32);
    let mut mbuf = pool.alloc().unwrap();
    assert!(mbuf.extend_from_slice(&frame));
    assert!(burst.push(mbuf).is_ok());
    let until = Instant::now() + Duration::from_secs(100);
    let mut got = Burst::with_capacity(32);
    while got.is_empty() {
        tx.burst(&mut burst);
        rx.burst(&mut got);
        assert!(Instant::now() < until, "the frame does not come back");
        std::thread::yield_now();
    }
    drop(got);
    port.stats().unwrap();
    port.reset_stats().unwrap();
    port.link();
    drop((rx, tx));
    port.stop().unwrap();
    port.set_mtu(1400).unwrap();
    port.set_mac(MacAddress([2, 0, 0, 0, 0, 0x42])).unwrap();
    // Why the link is down is asked only when it is.
    emulator.faults(0).unwrap().link(false).unwrap();
    while port.link().up != Some(false) {
        assert!(Instant::now() < until, "the link stays up");
        std::thread::yield_now();
    }
    port.link_trouble().unwrap();
    port.close().unwrap();
}

#[test]
fn the_list_is_what_this_driver_sends() {
    let sent = Arc::new(Mutex::new(BTreeSet::new()));
    for model in ["cx4lx", "cx5", "cx7"] {
        live(&[("wire", "loop"), ("model", model)], &sent);
    }
    let sent: BTreeSet<String> = sent.lock().unwrap().clone();
    let listed: BTreeSet<String> = LIST
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    let missing: Vec<&String> = sent.difference(&listed).collect();
    // A queue is asked about only after it failed; the tests of failures do that.
    let only_after_failures = ["QUERY_SQ", "QUERY_RQ"].map(str::to_owned);
    let idle: Vec<&String> = listed
        .difference(&sent)
        .filter(|name| !only_after_failures.contains(name))
        .collect();
    assert!(
        missing.is_empty() && idle.is_empty(),
        "pmd/emu/tests/exercised/pollux.txt lacks {missing:?} and has too many: {idle:?}"
    );
}
