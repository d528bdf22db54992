//! Captures through the whole program: in by a wire, through the adapter, a core, and out
//! again; judged by the other parser.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use std::path::Path;

use pollux_mempool::lcore::allowed_cpus;
use support::run::{Answer, Session, proven, run};
use support::*;

fn device(input: &Path, output: &Path) -> String {
    format!(
        "-a 'emu:ports=2,wire0=pcap,in0=\"{}\",wire1=pcap,out1=\"{}\"' --no-huge",
        input.display(),
        output.display()
    )
}

fn mixed(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| frame(i, [60, 64, 61, 1514, 590, 128, 43][i as usize % 7]))
        .collect()
}

fn lossless(answer: &Answer, packets: usize) {
    assert_eq!(answer.status, 0, "{}{}", answer.out, answer.err);
    let line = format!("RX-packets: {packets:<14} RX-dropped: 0             RX-total: {packets}");
    assert!(answer.out.contains(&line), "{}", answer.out);
    assert!(answer.out.trim_end().ends_with("Bye..."), "{}", answer.out);
    assert!(!answer.out.contains("Left behind"), "{}", answer.out);
}

#[test]
fn macswap_from_pcap_to_pcapng() {
    let dir = Folder::new();
    let input = dir.write("in.pcap", &pcap(1, &mixed(3000)));
    let output = dir.path("out.pcapng");
    let report = dir.path("report.json");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --total-num-mbufs=4096 --until-drained --progress --poll-gaps --json={}",
        device(&input, &output),
        report.display()
    ));
    lossless(&answer, 3000);
    for part in [
        "EMULATED",
        "firmware",
        "MAC 02:",
        "on 4 KiB pages",
        "No commandline core given, start packet forwarding",
        "macswap packet forwarding with retry - ports=2 - cores=1 - streams=2",
        "poll gaps on core",
        "p99.9",
        "packets per second",
    ] {
        assert!(answer.out.contains(part), "{part}: {}", answer.out);
    }
    let proof = proven(&input, &output, &["--report", report.to_str().unwrap()]);
    assert_eq!(proof.status, 0, "{}{}", proof.out, proof.err);
    assert!(proof.out.contains("3000 packets"));
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(json["emulated"], true);
    assert_eq!(json["mode"], "macswap");
    assert_eq!(json["run"]["rx_packets"], 3000);
    assert_eq!(json["run"]["tx_packets"], 3000);
    assert_eq!(json["wires"][0]["frames_in"], 3000);
    assert_eq!(json["wires"][1]["frames_out"], 3000);
    assert_eq!(json["wires"][0]["input"], input.to_str().unwrap());
    assert!(json["run"]["packets_per_second"].as_f64().unwrap() > 0.0);
    assert!(json["run"]["poll_gaps"][0]["count"].as_u64().unwrap() > 0);
}

#[test]
fn io_from_pcapng_to_pcap() {
    let dir = Folder::new();
    let input = dir.write("in.pcapng", &pcapng(&mixed(500)));
    let output = dir.path("out.pcap");
    let answer = run(&format!(
        "{} -- --forward-mode=io --until-drained --burst=1 --rxd=64 --txd=64",
        device(&input, &output)
    ));
    lossless(&answer, 500);
    let proof = proven(&input, &output, &["--transform=none"]);
    assert_eq!(proof.status, 0, "{}{}", proof.out, proof.err);
}

/// One CPU for shell, emulator and forwarding: it yields, says so, and loses nothing.
#[test]
fn one_cpu_is_enough() {
    let dir = Folder::new();
    let input = dir.write("in.pcap", &pcap(1, &mixed(700)));
    let output = dir.path("out.pcap");
    let cpu = allowed_cpus()[0].to_string();
    let mut s = Session::start_under(
        &["taskset", "-c", &cpu],
        &format!(
            "{} -- --forward-mode=macswap --until-drained",
            device(&input, &output)
        ),
    );
    s.close();
    let answer = s.finish();
    lossless(&answer, 700);
    let said = format!("Logical Core {cpu} shares its CPU with the emulator");
    assert!(answer.out.contains(&said), "{}", answer.out);
    assert_eq!(proven(&input, &output, &[]).status, 0);
}

/// Frames beyond the port's size are counted and named, and nothing else is missing.
#[test]
fn oversize_packets_are_named() {
    let dir = Folder::new();
    let mut packets = mixed(40);
    packets.insert(7, frame(1000, 5000));
    packets.insert(20, frame(1001, 9000));
    let input = dir.write("in.pcap", &pcap(1, &packets));
    let output = dir.path("out.pcap");
    let report = dir.path("report.json");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --until-drained --json={}",
        device(&input, &output),
        report.display()
    ));
    lossless(&answer, 40);
    assert!(
        answer.out.contains("2 packets of the wire were longer"),
        "{}",
        answer.out
    );
    assert!(
        answer.out.contains("8 (5000 bytes), 21 (9000 bytes)"),
        "{}",
        answer.out
    );
    assert_eq!(proven(&input, &output, &[]).status, 1);
    let proof = proven(&input, &output, &["--report", report.to_str().unwrap()]);
    assert_eq!(proof.status, 0, "{}{}", proof.out, proof.err);
    assert!(
        proof
            .out
            .contains("packet 21 of 9000 bytes, named as too large")
    );
}

/// Jumbo frames go through where MTU and buffers are made for them.
#[test]
fn jumbo_frames() {
    let dir = Folder::new();
    let packets: Vec<Vec<u8>> = (0..50).map(|i| frame(i, 9000 + i as usize % 15)).collect();
    let input = dir.write("in.pcap", &pcap(1, &packets));
    let output = dir.path("out.pcap");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --until-drained --max-pkt-len=9018 --mbuf-size=9200",
        device(&input, &output)
    ));
    lossless(&answer, 50);
    assert_eq!(proven(&input, &output, &[]).status, 0);
}

/// Several queues on several cores: every packet comes out once, its addresses swapped.
/// Order holds within a flow only, so the judge is a sorted list.
#[test]
fn two_queues() {
    let dir = Folder::new();
    let packets: Vec<Vec<u8>> = (0..400u32)
        .map(|i| {
            let mut f = pollux_testpmd::forward::txonly::packet([2; 6], [4; 6], 100);
            // Another source port and content for each.
            f[34..36].copy_from_slice(&(1000 + i as u16).to_be_bytes());
            f[96..100].copy_from_slice(&i.to_be_bytes());
            f
        })
        .collect();
    let input = dir.write("in.pcap", &pcap(1, &packets));
    let output = dir.path("out.pcap");
    let report = dir.path("report.json");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --until-drained --rxq=2 --txq=2 --json={}",
        device(&input, &output),
        report.display()
    ));
    lossless(&answer, 400);
    assert!(answer.out.contains("streams=4"), "{}", answer.out);
    for queue in ["Queue= 0 ->", "Queue= 1 ->"] {
        let section = format!("Forward Stats for RX Port= 0/{queue}");
        assert!(
            answer.out.contains(&section),
            "both queues get packets: {}",
            answer.out
        );
    }
    let mut expected: Vec<Vec<u8>> = packets.iter().map(|p| swapped(p)).collect();
    let mut found = Vec::new();
    let mut capture = pollux_testpmd::proof::capture::Capture::open(&output).unwrap();
    while capture.next_packet().unwrap().is_some() {
        found.push(capture.bytes().to_vec());
    }
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

/// A pool that does not even fill the rings: said, with the number needed, and survived.
#[test]
fn a_pool_no_larger_than_the_rings() {
    let dir = Folder::new();
    let input = dir.write("in.pcap", &pcap(1, &mixed(300)));
    let output = dir.path("out.pcap");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --until-drained --total-num-mbufs=128 --mbcache=0 --rxd=256 --txd=256",
        device(&input, &output)
    ));
    assert!(answer.out.contains("Warning!"), "{}", answer.out);
    assert!(answer.out.contains("need"), "{}", answer.out);
    assert!(
        answer.out.trim_end().ends_with("Bye..."),
        "{}{}",
        answer.out,
        answer.err
    );
    assert!(!answer.err.contains("panicked"), "{}", answer.err);
}

/// Real captures, where a folder with some is named.
#[test]
fn real_capture_of_a_registry_package() {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|h| h + "/.cargo"))
        .unwrap_or_default();
    let asset = "pcap-parser-0.17.0/assets/wireshark_samples-test.pcapng";
    let found = std::fs::read_dir(Path::new(&home).join("registry/src"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path().join(asset))
        .find(|p| p.is_file());
    // Vendored builds keep no registry; the demo looks for it through cargo.
    let Some(input) = found else {
        eprintln!("not run: {asset} is not in the registry's folder");
        return;
    };
    let dir = Folder::new();
    let output = dir.path("out.pcapng");
    let answer = run(&format!(
        "{} -- --forward-mode=macswap --until-drained",
        device(&input, &output)
    ));
    lossless(&answer, 5898);
    let proof = proven(&input, &output, &[]);
    assert_eq!(proof.status, 0, "{}{}", proof.out, proof.err);
}
