//! What a port says is its limit is accepted, and one more is refused with the numbers.
#![cfg(feature = "emu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step is a failed test

use pollux::{Burst, Config, MemoryConfig, Pages, Pollux};

#[test]
fn the_largest_mtu_is_accepted_and_carried() {
    for data_room in [512, 2048, 4096] {
        let config = Config {
            memory: MemoryConfig {
                data_room,
                pages: Pages::Ordinary,
                ..MemoryConfig::default()
            },
            ..Config::of_device("emu:ports=2,wire=pair,idle=yield")
        };
        let pollux = Pollux::open(&config).unwrap();
        let (from, to) = (pollux.port(0).unwrap(), pollux.port(1).unwrap());
        let mtu = from.max_mtu();
        let mut settings = from.settings().clone();
        settings.promiscuous = true;
        settings.mtu = Some(mtu + 1);
        let refused = from.start_with(&settings).unwrap_err().to_string();
        let (given, allowed) = ((mtu + 1).to_string(), mtu.to_string());
        assert!(
            refused.contains(&given) && refused.contains(&allowed),
            "{refused}"
        );
        settings.mtu = Some(mtu);
        from.start_with(&settings).unwrap();
        to.start_with(&settings).unwrap();
        assert_eq!(from.mtu(), mtu);
        // Header, VLAN tag and all that the MTU allows.
        let frame: Vec<u8> = (0..mtu + 18).map(|k| (k % 251) as u8).collect();
        assert!(
            frame.len() <= data_room,
            "{} bytes in {data_room}",
            frame.len()
        );
        let (mut tx, mut rx) = (from.take_tx(0).unwrap(), to.take_rx(0).unwrap());
        let mut burst = Burst::with_capacity(1);
        let mut mbuf = from.pool().alloc().unwrap();
        assert!(mbuf.extend_from_slice(&frame));
        burst.push(mbuf).unwrap();
        assert_eq!(tx.burst(&mut burst), 1);
        while rx.burst(&mut burst) == 0 {
            std::thread::yield_now();
        }
        let got: Vec<Vec<u8>> = burst.drain().map(|mbuf| mbuf.to_vec()).collect();
        assert_eq!(got, [frame], "{data_room}");
        drop((tx, rx, burst));
        pollux.close().unwrap();
    }
}
