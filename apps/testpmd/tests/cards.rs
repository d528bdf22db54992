//! Cards that are not as they should be, as whoever runs the program meets them: an exit status,
//! and one line that says what is there and what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use support::Folder;
use support::run::run;

const FORWARD: &str = "--no-huge -- --total-num-mbufs=2048 --disable-link-check";

#[test]
fn a_card_that_cannot_be_driven_is_one_line() {
    let dir = Folder::new();
    let soon = dir.write("soon.toml", b"[pollux.firmware]\nstart_ms = 300\n");
    let soon = format!("--config {}", soon.display());
    for (device, options, status, words) in [
        (
            "cap=port_type:0",
            "",
            1,
            &["InfiniBand", "LINK_TYPE_P1=2", "cold boot"][..],
        ),
        (
            "syndrome=0x10",
            "",
            1,
            &["firmware has stopped", "HIGH_TEMP_ERR", "cool"],
        ),
        (
            "starting=never",
            &soon,
            1,
            &["still initializing after", "the limit", "cold boot"],
        ),
        (
            "cmdif=4",
            "",
            1,
            &["command interface revision 4", "speaks 5"],
        ),
        (
            "cap=nic_flow_table:0",
            "",
            1,
            &["lacks nic_flow_table 0 of 1", "update its firmware"],
        ),
        ("init_pages=1073741824", "", 1, &["1073741824 pages", "MiB"]),
        (
            "device_id=0x1003",
            "",
            2,
            &["15b3:1003", "older than ConnectX-4"],
        ),
        (
            "device_id=0x020d",
            "",
            2,
            &["15b3:020d", "flash recovery", "mstflint"],
        ),
        (
            "cap=speed:1",
            "",
            2,
            &["cap=speed:1", "ConnectX-5 announces"],
        ),
    ] {
        let answer = run(&format!("-a emu:wire=loop,{device} {options} {FORWARD}"));
        assert_eq!(
            answer.status, status,
            "{device}: {}{}",
            answer.out, answer.err
        );
        assert_eq!(answer.err.lines().count(), 1, "{device}: {}", answer.err);
        for word in words {
            assert!(
                answer.err.contains(word),
                "{device}: {word}: {}",
                answer.err
            );
        }
    }
}

#[test]
fn firmware_that_is_waited_for_is_said() {
    let dir = Folder::new();
    let later = dir.write("later.toml", b"[pollux.firmware]\nstart_ms = 1200\n");
    let config = format!("--config {}", later.display());
    let answer = run(&format!("-a emu:starting=never {config} {FORWARD}"));
    assert_eq!(answer.status, 1, "{}", answer.err);
    let lines: Vec<&str> = answer.err.lines().collect();
    assert_eq!(lines.len(), 2, "{}", answer.err);
    assert!(
        lines[0].contains("emu0: firmware still initializing after 1 s, waiting 0 s more"),
        "{}",
        lines[0]
    );
    assert!(
        !answer.err.contains('\x1b'),
        "no colours in a file: {:?}",
        answer.err
    );
    let answer = run(&format!("-a emu:starting=100 {FORWARD} -i"));
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
}

#[test]
fn what_a_card_lacks_is_a_warning() {
    let device = "emu:wire=loop,device_id=0x1027,cap=vport_counters:0+max_ft_level:1";
    let answer = run(&format!("-a {device} {FORWARD} -i"));
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    for words in [
        "Warning! port 0: device id 15b3:1027 is not one that Pollux knows",
        "Warning! port 0: the adapter has no port counters",
        "one receive queue at most",
        "mlx5 adapter of unknown model",
    ] {
        assert_eq!(
            answer.out.matches(words).count(),
            1,
            "{words}: {}",
            answer.out
        );
    }
    let answer = run(&format!("-a {device} {FORWARD} --rxq=2 --txq=2 -i"));
    assert_eq!(answer.status, 2, "{}", answer.err);
    assert!(
        answer.err.contains("receive queues: 2 given, at most 1"),
        "{}",
        answer.err
    );
}

/// As DPDK's users expect: the port starts after a while, and a line says why it hears nothing.
#[test]
fn a_port_without_module_starts() {
    let answer = run(
        "-a emu:wire=loop,module=absent --no-huge -- --total-num-mbufs=2048 -i --cmdline-file=/dev/null",
    );
    assert_eq!(
        (answer.status, answer.err.as_str()),
        (0, ""),
        "{}",
        answer.out
    );
    let line = answer
        .out
        .lines()
        .find(|line| line.starts_with("Port 0: link down"));
    assert_eq!(
        line,
        Some(
            "Port 0: link down: no cable or module in the port: plug one in (status 1024). It starts all the same; what it sends before the link comes is lost"
        ),
        "{}",
        answer.out
    );
}
