//! The command line and configuration files: what is taken, and what each refusal says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use std::ffi::OsString;

use pollux::Pages;
use pollux_mempool::lcore::allowed_cpus;
use pollux_testpmd::args::cpu_list::CpuList;
use pollux_testpmd::args::options::{ForwardMode, Topology, parse_mac};
use pollux_testpmd::args::{Refusal, parse};
use pollux_testpmd::output::Mac;
use pollux_testpmd::settings::{End, Settings, fits_buffers};
use proptest::prelude::*;
use support::Folder;

fn words(line: &str) -> Vec<OsString> {
    shlex::split(line)
        .unwrap()
        .into_iter()
        .map(OsString::from)
        .collect()
}

fn settings(line: &str) -> Settings {
    Settings::new(parse(words(line)).unwrap()).unwrap()
}

fn refused(line: &str) -> String {
    match parse(words(line)) {
        Ok(a) => Settings::new(a).expect_err(line).to_string(),
        Err(Refusal::Bad(text)) => text,
        Err(Refusal::Show(text)) => panic!("{line}: {text}"),
    }
}

#[test]
fn a_line_as_dpdk_users_write_it() {
    let cpu = allowed_cpus()[0];
    let s = settings(&format!(
        "-l {cpu} -n 4 -a 'emu:ports=2,wire=pair' --no-huge --file-prefix=x --in-memory --socket-mem 64,0 \
         -- -i --forward-mode=macswap --nb-cores=1 --rxq=2 --txq 2 --rxd=1024 --txd=512 --burst=64 \
         --mbcache=512 --mbuf-size=2304 --total-num-mbufs=4096 --max-pkt-len=1518 --port-topology=chained \
         --eth-peer=1,02:00:00:00:00:09 --no-mlockall --mask-event=intr_lsc --auto-start"
    ));
    assert_eq!(s.config.devices, ["emu:ports=2,wire=pair"]);
    assert_eq!(s.config.memory.pages, Pages::Ordinary);
    assert_eq!((s.main_cpu, s.cpus.as_slice()), (cpu, &[cpu][..]));
    assert_eq!(s.config.lcores, [cpu]);
    assert!(s.interactive && s.auto_start && !s.link_events);
    assert_eq!(
        (s.mode, s.topology),
        (ForwardMode::Macswap, Topology::Chained)
    );
    let p = &s.config.port;
    assert_eq!((p.rx_queues, p.tx_queues), (2, 2));
    assert_eq!((p.rx_descriptors, p.tx_descriptors), (1024, 512));
    assert_eq!(p.mtu, Some(1500));
    let m = &s.config.memory;
    assert_eq!((m.data_room, m.headroom, m.cache), (2176, 128, 512));
    assert_eq!(m.mbufs, Some(4096));
    assert_eq!(s.burst, 64);
    assert_eq!(s.peers[0].mac, Mac([2, 0, 0, 0, 0, 9]));
    assert_eq!(s.socket_mem, [64, 0]);
}

#[test]
fn defaults() {
    let s = settings("");
    assert_eq!(
        (s.mode, s.burst, s.nb_cores, s.tx_length),
        (ForwardMode::Io, 32, 1, 64)
    );
    assert!(!s.interactive && s.link_events);
    assert_eq!(s.end, End::Enter);
    assert!(s.config.devices.is_empty());
    assert_eq!(settings("--no-pci").config.devices, ["emu:"]);
    assert_eq!(settings("-- --until-drained").end, End::Drained);
    assert_eq!(settings("-- --duration=2").end, End::Signal);
    assert!(!s.cpus.is_empty());
    // The first CPU is left to the shell where there are more.
    assert_eq!(s.cpus.contains(&s.main_cpu), allowed_cpus().len() == 1);
}

#[test]
fn refusals_say_what_was_given_what_is_allowed_and_what_to_do() {
    for (line, wanted) in [
        ("--frobnicate", &["--frobnicate", "--help"][..]),
        (
            "-- --forward-mod=io",
            &["--forward-mod", "did you mean --forward-mode"],
        ),
        (
            "--rxq=2",
            &["--rxq", "wrong side of `--`", "testpmd options after"],
        ),
        ("-- -l 0", &["-l", "wrong side of `--`"]),
        (
            "-- --forward-mode=csum",
            &["csum", "io, mac, macswap, rxonly, txonly"],
        ),
        (
            "-- --port-topology=ring",
            &["ring", "paired, chained, loop"],
        ),
        ("-- --burst=0", &["--burst=0", "1 to 512", "32 is usual"]),
        ("-- --burst=513", &["--burst=513", "1 to 512"]),
        ("-- --burst=-1", &["--burst", "-1"]),
        ("-- --burst=many", &["--burst", "many"]),
        ("-- --burst", &["--burst", "needs a value"]),
        (
            "-- --rxd=1000",
            &["--rxd=1000", "powers of two", "512 or 1024"],
        ),
        ("-- --txd=65536", &["--txd=65536", "1 to 32768"]),
        ("-- --rxq=0", &["--rxq=0", "1 to 1024"]),
        ("-- --nb-cores=4000", &["--nb-cores=4000", "-l"]),
        (
            "-- --mbuf-size=64",
            &["--mbuf-size=64", "192 to 65535", "headroom"],
        ),
        ("-- --total-num-mbufs=1", &["--total-num-mbufs=1", "64 to"]),
        ("-- --mbcache=9999", &["--mbcache=9999", "0 to 4096"]),
        (
            "-- --max-pkt-len=64",
            &["--max-pkt-len=64", "86 to 65535", "1518"],
        ),
        ("-- --txpkts=20", &["--txpkts=20", "42 to 2048"]),
        ("-- --eth-peer=0", &["--eth-peer", "no comma", "PORT,MAC"]),
        ("-- --eth-peer=0,aa", &["'aa' is no MAC address"]),
        ("-- --stats-period=0", &["--stats-period=0", "seconds"]),
        (
            "-- -i --until-drained",
            &["--until-drained", "without a shell"],
        ),
        ("-- -i --tx-first", &["--tx-first", "without a shell"]),
        ("-l 0,x", &["'x' is no CPU number", "0,2-4"]),
        ("-l 3-1", &["runs backwards", "1-3"]),
        ("-l 0-99999999", &["more than 4096"]),
        ("-l 4095", &["CPU 4095", "may run on"]),
        ("--main-lcore=4095", &["CPU 4095", "may run on"]),
        ("-a net_memif0", &["net_memif0", "emu:"]),
        ("-a emu:ports", &["emu:ports", "KEY=VALUE"]),
        ("--config=/no/such.toml", &["/no/such.toml"]),
        (
            "--config=a -- --config=b",
            &["two configuration files", "give one"],
        ),
        ("positional", &["positional"]),
    ] {
        let text = refused(line);
        for w in wanted {
            assert!(text.contains(w), "{line}: {text}");
        }
        assert!(!text.contains('\n'), "{line}: {text}");
    }
}

/// A frame that fits no buffer would be received never: the sizes are named before
/// anything starts.
#[test]
fn jumbo_frames_without_jumbo_buffers() {
    let text = refused("-- --max-pkt-len=9018");
    for w in ["MTU 9000", "9018 bytes", "holds 2048", "--mbuf-size=9146"] {
        assert!(text.contains(w), "{text}");
    }
    let s = settings("-- --max-pkt-len=9018 --mbuf-size=9146");
    assert_eq!(s.config.port.mtu, Some(9000));
    // The largest that is called allowed is allowed.
    assert!(fits_buffers(2030, 2048).is_ok());
    assert!(fits_buffers(2031, 2048).is_err());
}

#[test]
fn help_and_version_are_shown() {
    for (line, wanted) in [
        ("--help", "--no-huge"),
        ("-h", "EAL options"),
        ("--version", "pollux-testpmd"),
        ("-- --help", "--forward-mode"),
    ] {
        match parse(words(line)) {
            Err(Refusal::Show(text)) => assert!(text.contains(wanted), "{line}: {text}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn a_file_gives_what_the_line_does_not() {
    let dir = Folder::new();
    let file = dir.write(
        "t.toml",
        b"
[pollux]
devices = [\"emu:ports=4\"]
[pollux.port]
rx_queues = 2
tx_queues = 2
rx_descriptors = 256
[pollux.memory]
cache = 32
[testpmd]
forward-mode = \"mac\"
burst = 16
eth-peer = [\"0,02:00:00:00:00:07\"]
until-drained = true
rxd = 128
",
    );
    let s = settings(&format!("--config {} -- --burst=8", file.display()));
    assert_eq!(s.config.devices, ["emu:ports=4"]);
    assert_eq!(
        (s.mode, s.burst, s.end),
        (ForwardMode::Mac, 8, End::Drained)
    );
    assert_eq!(s.peers[0].mac, Mac([2, 0, 0, 0, 0, 7]));
    assert_eq!(s.config.port.rx_queues, 2);
    assert_eq!(s.config.port.rx_descriptors, 128);
    assert_eq!(s.config.memory.cache, 32);
    let s = settings(&format!("-a emu: --config {}", file.display()));
    assert_eq!(s.config.devices, ["emu:"]);
}

#[test]
fn errors_in_a_file_name_line_and_column() {
    let dir = Folder::new();
    for (text, wanted) in [
        ("[testpmd]\nburts = 3\n", &["t.toml:2:1", "burts"][..]),
        ("[pollux.port]\nrxq = 3\n", &["t.toml:2:1", "rxq"]),
        (
            "[testpmd]\nforward-mode = \"csum\"\n",
            &["t.toml:2:16", "csum", "macswap"],
        ),
        ("[testpmd]\nburst = \"x\"\n", &["t.toml:2:9"]),
        ("[nonsense]\n", &["t.toml:1:2", "nonsense"]),
        ("[testpmd\n", &["t.toml:1:"]),
        (
            "[testpmd]\neth-peer = [\"0\"]\n",
            &["t.toml:2:", "no comma"],
        ),
        ("[testpmd]\nburst = 600\n", &["--burst=600", "1 to 512"]),
        (
            "[pollux.port]\nrx_descriptors = 3\n",
            &["rx_descriptors", "powers of two"],
        ),
    ] {
        let file = dir.write("t.toml", text.as_bytes());
        let told = refused(&format!("--config {}", file.display()));
        for w in wanted {
            assert!(told.contains(w), "{text}: {told}");
        }
        assert!(!told.contains('\n'), "{told}");
    }
}

#[test]
fn cpu_lists() {
    for (text, cpus) in [
        ("0", vec![0]),
        ("0,2-4", vec![0, 2, 3, 4]),
        ("3,1,3", vec![3, 1]),
        ("5-5", vec![5]),
    ] {
        assert_eq!(text.parse::<CpuList>().unwrap().0, cpus);
    }
    for text in ["", ",", "1,", "-", "1-", "a", "1-2-3", "0x1"] {
        assert!(text.parse::<CpuList>().is_err(), "{text}");
    }
}

#[test]
fn mac_addresses() {
    assert_eq!(
        parse_mac("02:00:5e:ff:A0:1"),
        Some(Mac([2, 0, 0x5e, 0xff, 0xa0, 1]))
    );
    assert_eq!(
        parse_mac("02-00-00-00-00-01"),
        Some(Mac([2, 0, 0, 0, 0, 1]))
    );
    for bad in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "02:00:00:00:00:001",
        "+2:0:0:0:0:0",
        "::::::",
    ] {
        assert_eq!(parse_mac(bad), None, "{bad}");
    }
}

proptest! {
    /// No line of arguments brings the parser down, and each refusal is one line.
    #[test]
    fn any_arguments_are_answered(words in proptest::collection::vec("\\PC{0,12}", 0..6), dashes in any::<bool>()) {
        let mut line: Vec<OsString> = words.iter().map(OsString::from).collect();
        if dashes {
            line.insert(0, "--".into());
        }
        match parse(line) {
            Err(Refusal::Bad(text)) => prop_assert!(!text.contains('\n'), "{}", text),
            Err(Refusal::Show(_)) | Ok(_) => {}
        }
    }
}
