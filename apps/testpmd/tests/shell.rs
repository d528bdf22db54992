//! The shell over a pipe, as tools drive it: prompts, answers word for word, the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::Folder;
use support::run::{Session, run};

const PAIR: &str = "-a emu:ports=2,wire=pair --no-huge";

fn shell(options: &str) -> Session {
    let mut s = Session::start(&format!("{PAIR} -- -i --total-num-mbufs=4096 {options}"));
    s.expect("testpmd> ");
    s
}

/// The word behind a label.
fn value(text: &str, label: &str) -> u64 {
    let at = text
        .find(label)
        .unwrap_or_else(|| panic!("{label}: {text}"));
    text[at + label.len()..]
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn a_whole_session() {
    let mut s = shell("");
    // An empty line brings the prompt again.
    assert_eq!(s.ask(""), "");
    assert_eq!(s.ask("stop"), "Packet forwarding not started\n");
    assert_eq!(
        s.ask("set fwd macswap"),
        "Set macswap packet forwarding mode\n"
    );
    assert_eq!(
        s.ask("set fwd io retry"),
        "Set io packet forwarding mode with retry\n"
    );
    assert_eq!(s.ask("set fwd io"), "Set io packet forwarding mode\n");
    assert_eq!(
        s.ask("set burst 16"),
        "Number of packets per burst set to 16\n"
    );
    assert!(
        s.ask("set burst 4096")
            .contains("nb pkt per burst: 4096 > 512")
    );
    assert!(s.ask("set nbcore 99").contains("nb fwd cores 99 > "));
    assert_eq!(s.ask("set verbose 0"), "Change verbose level from 0 to 0\n");
    let started = s.ask("start tx_first");
    assert!(started.starts_with("io packet forwarding - ports=2 - cores=1 - streams=2 - NUMA support enabled, MP allocation mode: native\nLogical Core "), "{started}");
    assert!(started.contains("-> TX P=1/Q=0 (socket 0) peer=02:00:00:00:00:01\n"));
    assert!(started.contains("  io packet forwarding packets/burst=16\n"));
    assert_eq!(s.ask("start"), "Packet forwarding already started\n");
    assert_eq!(
        s.ask("port stop all"),
        "Stopping ports...\nPlease remove port 0 from forwarding configuration.\n\
         Please remove port 1 from forwarding configuration.\nDone\n"
    );
    // Packets go round: wait until some have.
    while value(
        &s.ask("show fwd stats all"),
        "all ports+++++++++++++++\n  RX-packets:",
    ) < 1000
    {}
    let stats = s.ask("show port stats all");
    assert_eq!(stats.matches("NIC statistics for port").count(), 2);
    assert!(value(&stats, "RX-packets:") > 0);
    let stopped = s.ask("stop");
    assert!(stopped.starts_with("Telling cores to stop...\nWaiting for lcores to finish...\n\n  ---------------------- Forward statistics for port 0  ----------------------\n"), "{stopped}");
    assert!(stopped.contains("\n\nDone.\n"), "{stopped}");
    assert!(value(&stopped, "RX-packets:") > 0);
    assert_eq!(
        s.ask("shwo"),
        "Command not found\n'shwo' is no command; did you mean show? `help all` lists the commands\n"
    );
    assert!(s.ask("set fwd csum").starts_with("Bad arguments\n"));
    assert_eq!(
        s.ask("show port info 9"),
        "Invalid port 9\nThe valid ports array is [ 0 1 ]\n"
    );
    assert!(s.ask("help").contains("help control"));
    let summary = s.ask("show port summary all");
    assert!(
        summary.starts_with("Number of available ports: 2\nPort MAC Address"),
        "{summary}"
    );
    assert_eq!(summary.lines().count(), 4);
    assert_eq!(
        s.ask("clear port stats 0"),
        "\n  NIC statistics for port 0 cleared\n"
    );
    assert_eq!(value(&s.ask("show port stats 0"), "RX-packets:"), 0);
    assert!(s.ask("port stop all").ends_with("Done\n"));
    assert!(s.ask("start").contains("Not all ports were started"));
    assert!(s.ask("port start all").ends_with("Done\n"));
    assert!(s.ask("port start 0").contains("Port 0 is now not stopped"));
    assert!(s.ask("port close 0").contains("Please stop port 0 first"));
    s.ask("port stop 0");
    assert!(s.ask("port close 0").contains("Port 0 is closed\nDone\n"));
    assert_eq!(
        s.ask("show port info 0"),
        "Invalid port 0\nThe valid ports array is [ 1 ]\n"
    );
    s.say("quit");
    let end = s.finish();
    assert_eq!(end.status, 0, "{}", end.out);
    assert!(end.out.ends_with("\nStopping port 1...\nStopping ports...\nDone\n\nShutting down port 1...\nClosing ports...\nPort 1 is closed\nDone\n\nBye...\n"), "{}", end.out);
}

/// Clearing while packets move, then stopping: no number below nothing.
#[test]
fn clearing_during_a_run_never_wraps() {
    let mut s = shell("--forward-mode=io");
    s.ask("start tx_first 4");
    for _ in 0..5 {
        s.ask("clear fwd stats all");
        s.ask("clear port stats all");
        let shown = s.ask("show fwd stats all");
        assert!(!shown.contains("18446744"), "{shown}");
    }
    s.ask("clear port stats all");
    let stopped = s.ask("stop");
    for word in stopped.split_whitespace() {
        if let Ok(n) = word.parse::<u64>() {
            assert!(n < 1 << 48, "{stopped}");
        }
    }
}

/// What was asked for is what the device has, and what it has is shown.
#[test]
fn mtu_is_applied_and_read_back() {
    let mut s = shell("--max-pkt-len=1418");
    let mtu = |s: &mut Session| value(&s.ask("show port info 0"), "\nMTU: ");
    assert_eq!(mtu(&mut s), 1400);
    assert!(
        s.ask("port config mtu 0 1300")
            .contains("stop port 0 first")
    );
    s.ask("port stop all");
    assert_eq!(s.ask("port config mtu 0 1300"), "");
    assert_eq!(mtu(&mut s), 1300);
    s.ask("port start all");
    assert_eq!(mtu(&mut s), 1300);
    s.ask("port stop all");
    // A frame that fits no buffer: sizes named, nothing changed.
    let refused = s.ask("port config mtu 0 9000");
    for part in ["MTU 9000", "9018 bytes", "holds 2048"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(
        s.ask("port config mtu 0 10")
            .contains("MTU (10) < device min MTU (68)")
    );
    assert!(
        s.ask("port config mtu 0 65536")
            .contains("> device max MTU")
    );
    assert!(s.ask("port config mtu 9 1500").contains("Invalid port 9"));
    assert_eq!(mtu(&mut s), 1300);
    assert!(s.ask("port start all").ends_with("Done\n"));
}

/// A start that fails leaves nothing half done: the second try fails alike, and a port that
/// can be had starts.
#[test]
fn a_failed_start_can_be_tried_again() {
    let mut s = Session::start(
        "-a emu:ports=1,wire=loop --no-huge -- -i --rxq=1024 --txq=1024 --rxd=64 --txd=64 --total-num-mbufs=1024 --disable-device-start",
    );
    s.expect("testpmd> ");
    let first = s.ask("port start all");
    assert!(first.contains("Fail to start port 0"), "{first}");
    assert_eq!(s.ask("port start all"), first);
    let refused = s.ask("port config all rxq 5000");
    assert!(
        refused.contains("5000 receive queues given, 1 to "),
        "{refused}"
    );
    let refused = s.ask("port config all rxd 100");
    assert!(
        refused.contains("100 receive descriptors given, powers of two"),
        "{refused}"
    );
    assert_eq!(s.ask("port config all rxq 1"), "");
    assert_eq!(s.ask("port config all txq 1"), "");
    let started = s.ask("port start all");
    assert!(started.ends_with("Done\n"), "{started}");
    s.say("quit");
    let end = s.finish();
    assert_eq!(end.status, 0, "{}", end.out);
    assert!(!end.out.contains("Left behind"), "{}", end.out);
}

#[test]
fn promiscuous_mode_is_set_and_shown() {
    let mut s = shell("");
    let mode = |s: &mut Session| {
        let info = s.ask("show port info 1");
        info.lines()
            .find_map(|l| l.strip_prefix("Promiscuous mode: ").map(str::to_owned))
            .unwrap()
    };
    assert_eq!(mode(&mut s), "enabled");
    assert_eq!(s.ask("set promisc all off"), "");
    assert_eq!(mode(&mut s), "disabled");
    s.ask("port stop all");
    s.ask("port start all");
    assert_eq!(mode(&mut s), "disabled");
    s.ask("set promisc 1 on");
    assert_eq!(mode(&mut s), "enabled");
}

#[test]
fn txonly_and_rxonly() {
    let mut s = shell("--forward-mode=txonly --record-core-cycles --txpkts=100");
    let started = s.ask("start");
    assert!(
        started.contains("  packet len=100 - nb packet segments=1\n"),
        "{started}"
    );
    while value(&s.ask("show port stats 0"), "TX-packets:") < 1000 {}
    let stopped = s.ask("stop");
    // The cycles are per packet sent: nothing was received by the mode.
    assert!(stopped.contains("total txonly packets="), "{stopped}");
    assert!(!stopped.contains("packets=0)"), "{stopped}");
    s.ask("set fwd rxonly");
    s.ask("set verbose 1");
    s.ask("start tx_first");
    while value(&s.ask("show port stats 0"), "RX-packets:") == 0 {}
    s.ask("stop");
    s.say("quit");
    let end = s.finish();
    assert_eq!(end.status, 0);
    assert!(end.out.contains("received"), "{}", end.out);
    assert!(end.out.contains("src=") && end.out.contains("ol_flags: RTE_MBUF_F_RX_"));
}

/// SIGINT while packets move: statistics, ports closed, nothing left behind.
#[test]
fn ctrl_c_stops_cleanly() {
    for interactive in [true, false] {
        let options = if interactive {
            "-i"
        } else {
            "--tx-first --stats-period=1"
        };
        let mut s = Session::start(&format!("{PAIR} -- {options} --total-num-mbufs=4096"));
        if interactive {
            s.expect("testpmd> ");
            s.ask("start tx_first");
        } else {
            s.expect("Port statistics ====================================");
        }
        kill(Pid::from_raw(s.pid()), Signal::SIGINT).unwrap();
        let end = s.finish();
        assert_eq!(end.status, 0, "{}{}", end.out, end.err);
        for part in [
            "Telling cores to stop...",
            "Accumulated forward statistics for all ports",
            "Port 0 is closed",
            "Port 1 is closed",
            "Bye...",
        ] {
            assert!(end.out.contains(part), "{part}: {}", end.out);
        }
        assert!(!end.out.contains("Left behind"), "{}", end.out);
    }
}

#[test]
fn the_end_of_the_input_is_the_end() {
    let end = run(&format!("{PAIR} -- -i --total-num-mbufs=4096"));
    assert_eq!(end.status, 0);
    assert!(
        end.out.contains("testpmd> \nStopping port 0...\n"),
        "{}",
        end.out
    );
    let end = run(&format!("{PAIR} -- --total-num-mbufs=4096 --tx-first"));
    assert_eq!(end.status, 0);
    for part in [
        "No commandline core given, start packet forwarding\n",
        "Press enter to exit\n",
        "Telling cores to stop...\n",
        "Bye...\n",
    ] {
        assert!(end.out.contains(part), "{part}: {}", end.out);
    }
}

/// One grammar for the shell, for files and for the command line.
#[test]
fn commands_from_files_and_from_the_line() {
    let dir = Folder::new();
    let inner = dir.write("inner", b"set fwd mac\n");
    let loops = dir.path("loops");
    std::fs::write(&loops, format!("load {}\n", loops.display())).unwrap();
    let outer = dir.write(
        "outer",
        format!(
            "# a comment\nset burst 8\nload {}\nnonsense\n",
            inner.display()
        )
        .as_bytes(),
    );
    let end = run(&format!(
        "{PAIR} -- -i --total-num-mbufs=4096 --cmdline-file={} --cmdline-file-noecho={} --cmd 'show config fwd' --cmd 'load {}'",
        outer.display(),
        inner.display(),
        loops.display()
    ));
    assert_eq!(end.status, 0, "{}", end.err);
    let wanted = "[outer] # a comment\n[outer] set burst 8\nNumber of packets per burst set to 8\n[outer] load ";
    assert!(end.out.contains(wanted), "{}", end.out);
    assert!(
        end.out.contains(
            "[inner] set fwd mac\nSet mac packet forwarding mode\n[inner] <End-Of-File>\n"
        )
    );
    assert!(end.out.contains("[outer] nonsense\nCommand not found\n"));
    assert!(end.out.contains("Finished reading CLI commands from"));
    assert!(end.out.contains("mac packet forwarding - ports=2"));
    assert!(end.out.contains("load each other more than"));
}
