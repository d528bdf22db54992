//! Bad input to the program: one line on standard error, status 2, nothing left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use support::run::run;
use support::*;

#[test]
fn one_line_and_status_2() {
    let dir = Folder::new();
    let text = dir.write("text.pcap", b"this is no capture, whatever its name says");
    let good = pcap(1, &[frame(1, 60), frame(2, 70)]);
    let cut = dir.write("cut.pcap", &good[..good.len() - 5]);
    let wifi = dir.write("wifi.pcap", &pcap(105, &[frame(1, 60)]));
    let empty = dir.write("empty.pcap", b"");
    let unknown_key = dir.write("key.toml", b"[pollux]\ndevice = [\"emu:\"]\n");
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/adapter.toml");
    let wire = |file: &std::path::Path| {
        format!(
            "-a 'emu:ports=2,wire0=pcap,in0=\"{}\"' --no-huge",
            file.display()
        )
    };
    let cases: Vec<(String, &[&str])> = vec![
        ("-a eth0".into(), &["eth0", "emu:"]),
        ("-a 0000:3b:1f.7".into(), &["no PCI function 0000:3b:1f.7", "lspci"]),
        ("-a 3b:1f.7,mprq=1".into(), &["mprq", "vf_token=UUID"]),
        ("-a 3b:1f.7,container=two".into(), &["container=two", "own, shared"]),
        ("-a vfio-user:/no/such.sock".into(), &["/no/such.sock"]),
        ("-a emu:colour=blue".into(), &["colour"]),
        ("-a emu:ports=0".into(), &["ports"]),
        ("-a emu:ports=2,wire=rope".into(), &["rope"]),
        ("-a emu:model=cx99".into(), &["cx99"]),
        ("-a emu: -a emu:".into(), &["emu"]),
        (wire(&dir.path("absent.pcap")), &["absent.pcap"]),
        (wire(&text), &["text.pcap"]),
        (wire(&cut), &["cut.pcap"]),
        (wire(&wifi), &["wifi.pcap"]),
        (wire(&empty), &["empty.pcap"]),
        ("-a 'emu:ports=2,wire1=pcap,out1=\"/no/such/dir/o.pcap\"' --no-huge".into(), &["/no/such/dir/o.pcap"]),
        ("-l 4000".into(), &["CPU 4000", "may run on"]),
        (format!("--config {}", unknown_key.display()), &["key.toml:2:1", "device"]),
        (format!("--config {adapter}"), &["0000:3b:00.0", "PCI function"]),
        ("-a emu:ports=2,wire=pair --no-huge -- --rxq=1000 --txq=1000 --rxd=64 --txd=64 --total-num-mbufs=1024".into(), &["queue"]),
        ("-- --rxd=100".into(), &["--rxd=100", "64 or 128"]),
        ("-- --max-pkt-len=9018".into(), &["9018 bytes", "--mbuf-size"]),
        ("-a emu: --no-huge -- --cmdline-file=/no/such/file".into(), &["/no/such/file"]),
        ("--log-level=a=b=c".into(), &["--log-level"]),
        ("-a emu:ports=2,wire=pair --no-huge --socket-mem=1".into(), &["--socket-mem", "MiB"]),
    ];
    for (line, wanted) in cases {
        let answer = run(&line);
        assert_eq!(answer.status, 2, "{line}: {}{}", answer.out, answer.err);
        for w in wanted {
            assert!(answer.err.contains(w), "{line}: {w}: {}", answer.err);
        }
        assert_eq!(answer.err.lines().count(), 1, "{line}: {}", answer.err);
        assert!(
            answer.err.starts_with("pollux-testpmd: "),
            "{line}: {}",
            answer.err
        );
    }
}

/// More memory than there is fails at once and says how much there is.
#[test]
fn a_pool_that_does_not_fit() {
    let answer =
        run("-a emu:ports=2,wire=pair --no-huge -- --total-num-mbufs=67108864 --mbuf-size=65535");
    assert_eq!(answer.status, 2, "{}", answer.err);
    assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
    assert!(
        answer.err.to_lowercase().contains("free") || answer.err.contains("MiB"),
        "{}",
        answer.err
    );
}

#[test]
fn help_is_no_error() {
    for line in ["--help", "-- --help", "--version"] {
        let answer = run(line);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{line}");
        assert!(!answer.out.is_empty());
    }
}
