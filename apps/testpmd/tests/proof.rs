//! The judge of captures, judged: it accepts what is right, and each single fault is seen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use support::*;

struct Answer {
    status: i32,
    out: String,
    err: String,
}

fn proof(args: &[&str], files: &[&Path]) -> Answer {
    let output = Command::new(program("capture-proof"))
        .args(args)
        .args(files)
        .output()
        .unwrap();
    Answer {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn frames(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths
        .iter()
        .enumerate()
        .map(|(i, n)| frame(i as u32, *n))
        .collect()
}

fn swap_all(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.iter().map(|p| swapped(p)).collect()
}

#[test]
fn accepts_swapped_addresses_over_both_formats() {
    let dir = Folder::new();
    let input = frames(&[60, 61, 1514, 42, 64]);
    let a = dir.write("a.pcap", &pcap(1, &input));
    let b = dir.write("b.pcapng", &pcapng(&swap_all(&input)));
    let answer = proof(&[], &[&a, &b]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    assert!(answer.out.contains("proven: every packet"));
    let digests: Vec<&str> = answer
        .out
        .lines()
        .filter_map(|l| l.split("sha256 ").nth(1))
        .collect();
    assert_eq!(digests.len(), 3);
    assert_eq!(digests[1], digests[2]);
    assert_ne!(digests[0], digests[1]);
    assert!(answer.out.contains("5 packets"));
    assert!(answer.out.contains("1741 bytes"));
    let big = dir.write("c.pcap", &pcap_big_endian(&input));
    assert_eq!(proof(&[], &[&big, &b]).status, 0);
}

/// SHA-256 of the length (0e 00 00 00) and 14 bytes 00..0d, taken from another program.
#[test]
fn digest_is_the_documented_one() {
    let dir = Folder::new();
    let a = dir.write("a.pcap", &pcap(1, &[(0..14).collect()]));
    let answer = proof(&["--transform=none"], &[&a, &a]);
    assert!(
        answer
            .out
            .contains("7fc41151539c55fc4f8f89e1963c2edf4bdbc1d0e2513b35fbe2d1672292f6c0"),
        "{}",
        answer.out
    );
}

#[test]
fn each_fault_is_named() {
    let dir = Folder::new();
    let input = frames(&[60, 70, 80, 90]);
    let good = swap_all(&input);
    let a = dir.write("a.pcap", &pcap(1, &input));
    let check = |name: &str, packets: &[Vec<u8>], wanted: &str| {
        let b = dir.write(name, &pcap(1, packets));
        let answer = proof(&["--transform", "macswap"], &[&a, &b]);
        assert_eq!(answer.status, 1, "{name}: {}", answer.out);
        assert!(answer.err.contains(wanted), "{name}: {}", answer.err);
        assert_eq!(answer.err.lines().count(), 1, "{name}");
        assert!(answer.out.contains("NOT proven"), "{name}");
    };
    let mut p = good.clone();
    p[2][79] ^= 1;
    check("bit", &p, "packet 3 (in the output 3) differs at byte 79");
    check(
        "unswapped",
        &input,
        "packet 1 (in the output 1) differs at byte 5",
    );
    let mut p = good.clone();
    p.swap(1, 2);
    check(
        "order",
        &p,
        "packet 2 (in the output 2) has 80 bytes, 70 expected",
    );
    check("short", &good[..3], "ends before packet 4");
    let mut p = good.clone();
    p.push(good[0].clone());
    check("extra", &p, "goes on with packet 5");
    let mut p = good.clone();
    p[0].pop();
    check(
        "cut",
        &p,
        "packet 1 (in the output 1) has 59 bytes, 60 expected",
    );
    let mut p = good.clone();
    p.remove(1);
    check(
        "lost",
        &p,
        "packet 2 (in the output 2) has 80 bytes, 70 expected",
    );
}

#[test]
fn named_packets_may_be_missing_only_when_they_are_too_large() {
    let dir = Folder::new();
    let input = frames(&[60, 9000, 80, 9001]);
    let a = dir.write("a.pcap", &pcap(1, &input));
    let kept = [swapped(&input[0]), swapped(&input[2])];
    let b = dir.write("b.pcap", &pcap(1, &kept));
    let answer = proof(&["--allow-skipped", "2,4"], &[&a, &b]);
    assert_eq!(answer.status, 0, "{}", answer.err);
    assert!(answer.out.contains("packet 2 of 9000 bytes"));
    assert!(answer.out.contains("except the 2 named above"));
    let report = |limit: u32, count: u32| {
        let text = format!(
            r#"{{"wires":[{{"input":{:?},"oversize_limit":{limit},"oversize_count":{count}}},
                {{"input":"/other.pcap","oversize_limit":1,"oversize_count":1}},{{"port":1}}]}}"#,
            a.to_str().unwrap()
        );
        let path = dir.write("report.json", text.as_bytes());
        proof(&["--report", path.to_str().unwrap()], &[&a, &b])
    };
    let answer = report(1518, 2);
    assert_eq!(answer.status, 0, "{}", answer.err);
    assert!(answer.out.contains("packet 4 of 9001 bytes"));
    let answer = report(1518, 3);
    assert_eq!(answer.status, 1);
    assert!(
        answer
            .err
            .contains("2 packets of the input are longer than 1518 bytes, but 3 were reported")
    );
    assert_eq!(report(9000, 1).status, 1);
    assert_eq!(proof(&["--allow-skipped", "4"], &[&a, &b]).status, 1);
    // An ordinary packet is not excused by calling it large.
    let c = dir.write(
        "c.pcap",
        &pcap(1, &[swapped(&input[1]), swapped(&input[2])]),
    );
    let answer = proof(&["--allow-skipped", "1,4"], &[&a, &c]);
    assert_eq!(answer.status, 1);
    assert!(
        answer
            .err
            .contains("packet 1 of 60 bytes is named as too large")
    );
    let answer = proof(&["--allow-skipped", "2,4,77"], &[&a, &b]);
    assert!(answer.err.contains("packet 77"));
    assert_eq!(answer.status, 1);
}

#[test]
fn bad_files_get_one_line_and_status_2() {
    let dir = Folder::new();
    let good = pcap(1, &frames(&[60, 70]));
    let ok = dir.write("ok.pcap", &good);
    let mut ng = pcapng(&frames(&[60, 70]));
    let unknown_interface = {
        let mut f = pcapng_section();
        f.extend(pcapng_interface(1, 0));
        f.extend(pcapng_packet(1, 4, 4, &[0; 4]));
        f
    };
    let longer_than_block = {
        let mut f = pcapng_section();
        f.extend(pcapng_interface(1, 0));
        f.extend(pcapng_packet(0, 400, 400, &[0; 4]));
        f
    };
    let mut huge = pcap(1, &[]);
    huge.extend([0; 8]);
    huge.extend(0x7fff_ffffu32.to_le_bytes());
    huge.resize(17 << 20, 0xff);
    let cut_ng = ng.len() - 7;
    ng.truncate(cut_ng);
    let cases: Vec<(PathBuf, &str)> = vec![
        (dir.path("absent.pcap"), "No such file"),
        (dir.write("empty.pcap", b""), "the file is empty"),
        (
            dir.write("text.pcap", &b"hello, this is no capture".repeat(9)),
            "neither pcap nor pcapng",
        ),
        (
            dir.write("short.pcap", &good[..20]),
            "cut off or damaged after 0 whole packets",
        ),
        (
            dir.write("cut.pcap", &good[..good.len() - 1]),
            "cut off or damaged after 1 whole packets",
        ),
        (
            dir.write("cut.pcapng", &ng),
            "cut off or damaged after 1 whole packets",
        ),
        (
            dir.write("wifi.pcap", &pcap(105, &frames(&[60]))),
            "not Ethernet",
        ),
        (
            dir.write("if.pcapng", &unknown_interface),
            "interface 1, of 1 described",
        ),
        (
            dir.write("len.pcapng", &longer_than_block),
            "cut off or damaged after 0 whole packets, in the block at byte 48",
        ),
        (dir.write("huge.pcap", &huge), "a block of more than 16 MiB"),
        (std::env::temp_dir(), "director"),
    ];
    for (file, wanted) in cases {
        for files in [[&file, &ok], [&ok, &file]] {
            let answer = proof(&[], &[files[0], files[1]]);
            assert_eq!(answer.status, 2, "{}: {}", file.display(), answer.out);
            assert!(answer.err.contains(wanted), "{}", answer.err);
            assert!(
                answer.err.contains(file.to_str().unwrap()),
                "{}",
                answer.err
            );
            assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
        }
    }
    for (args, files, wanted) in [
        (vec![], vec![&ok], "only one file"),
        (vec!["--transform=rot13"], vec![&ok, &ok], "macswap, none"),
        (vec!["--allow-skipped=0"], vec![&ok, &ok], "counted from 1"),
        (vec!["--allow-skipped=x"], vec![&ok, &ok], "--allow-skipped"),
        (
            vec!["--report=/nonexistent.json"],
            vec![&ok, &ok],
            "/nonexistent.json",
        ),
        (vec!["--frobnicate"], vec![&ok, &ok], "--frobnicate"),
    ] {
        let files: Vec<&Path> = files.iter().map(|p| p.as_path()).collect();
        let answer = proof(&args, &files);
        assert_eq!(answer.status, 2, "{args:?}");
        assert!(answer.err.contains(wanted), "{args:?}: {}", answer.err);
        assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
    }
}

#[test]
fn inspection() {
    let dir = Folder::new();
    let a = dir.write("a.pcap", &pcap(1, &frames(&[60, 100, 1514])));
    let mut ng = pcapng_section();
    ng.extend(pcapng_interface(1, 64));
    ng.extend(pcapng_simple(1000, &frame(1, 64)));
    ng.extend(pcapng_simple(42, &frame(2, 42)));
    let b = dir.write("b.pcapng", &ng);
    let answer = proof(&["--inspect"], &[&a, &b]);
    assert_eq!(answer.status, 0, "{}", answer.err);
    let lines: Vec<&str> = answer.out.lines().collect();
    assert!(
        lines[0]
            .contains("pcap, 3 packets, 1674 bytes, length min 60 mean 558.0 max 1514, link type"),
        "{}",
        lines[0]
    );
    // The first packet's block holds 64 of its 1000 bytes; the second's padding does not count.
    assert!(
        lines[1].contains("pcapng, 2 packets, 106 bytes, length min 42 mean 53.0 max 64"),
        "{}",
        lines[1]
    );
    assert!(lines[1].contains("1 packets cut short"), "{}", lines[1]);
}

#[test]
fn several_outputs_follow_one_another() {
    let dir = Folder::new();
    let input = frames(&[60, 70, 80]);
    let good = swap_all(&input);
    let a = dir.write("a.pcap", &pcap(1, &input));
    let b = dir.write("b.pcap", &pcap(1, &good[..1]));
    let c = dir.write("c.pcapng", &pcapng(&good[1..]));
    let empty = dir.write("d.pcap", &pcap(1, &[]));
    assert_eq!(proof(&[], &[&a, &b, &empty, &c]).status, 0);
    assert_eq!(proof(&[], &[&a, &c, &b]).status, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any damage to a file is told in one line; nothing panics or hangs.
    #[test]
    fn damaged_files(at in 0usize..400, value in any::<u8>(), cut in 0usize..400, ng in any::<bool>()) {
        use pollux_testpmd::proof::capture::Capture;
        let dir = Folder::new();
        let packets = frames(&[60, 61, 62, 63]);
        let mut file = if ng { pcapng(&packets) } else { pcap(1, &packets) };
        if let Some(b) = file.get_mut(at) {
            *b = value;
        }
        file.truncate(file.len() - cut.min(file.len()) / 2);
        let path = dir.write("x", &file);
        let told = Capture::open(&path).and_then(|mut c| c.summary());
        match told {
            Ok(s) => prop_assert!(s.packets <= 4),
            Err(e) => prop_assert_eq!(e.to_string().lines().count(), 1),
        }
    }
}
