//! The shell's language: what is understood, what is refused and in which words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use pollux_testpmd::args::options::ForwardMode;
use pollux_testpmd::grammar::{
    All, Clear, ClearPort, Command, JsonWord, Port, PortConfig, PortConfigAll, Ports, Rejection,
    RetryWord, Set, Show, ShowConfig, ShowFw, ShowPort, Start, Stats, Switch, TxFirst, complete,
    parse,
};
use pollux_testpmd::output::Mac;
use proptest::prelude::*;

#[test]
fn every_command_is_understood() {
    let tx_first = |bursts| {
        Command::Start(Start {
            before: Some(TxFirst::TxFirst { bursts }),
        })
    };
    for (line, command) in [
        ("start", Command::Start(Start { before: None })),
        ("  start   tx_first ", tx_first(1)),
        ("start tx_first 5", tx_first(5)),
        ("stop", Command::Stop),
        ("quit", Command::Quit),
        ("help", Command::Help { section: None }),
        (
            "help ports",
            Command::Help {
                section: Some("ports".into()),
            },
        ),
        (
            "show port info 0",
            Command::Show(Show::Port(ShowPort::Info {
                port: Ports::One(0),
            })),
        ),
        (
            "show port stats all",
            Command::Show(Show::Port(ShowPort::Stats { port: Ports::All })),
        ),
        (
            "show port summary all",
            Command::Show(Show::Port(ShowPort::Summary { port: Ports::All })),
        ),
        (
            "show port xstats 1",
            Command::Show(Show::Port(ShowPort::Xstats {
                port: Ports::One(1),
            })),
        ),
        (
            "show fwd stats all",
            Command::Show(Show::Fwd(Stats::Stats(All::All))),
        ),
        (
            "show config fwd",
            Command::Show(Show::Config(ShowConfig::Fwd)),
        ),
        (
            "show config rxtx",
            Command::Show(Show::Config(ShowConfig::Rxtx)),
        ),
        (
            "show config cores",
            Command::Show(Show::Config(ShowConfig::Cores)),
        ),
        (
            "show fw pages",
            Command::Show(Show::Fw(ShowFw::Pages {
                port: Ports::All,
                format: None,
            })),
        ),
        (
            "show fw pages 1 json",
            Command::Show(Show::Fw(ShowFw::Pages {
                port: Ports::One(1),
                format: Some(JsonWord::Json),
            })),
        ),
        (
            "clear fwd stats all",
            Command::Clear(Clear::Fwd(Stats::Stats(All::All))),
        ),
        (
            "clear port stats all",
            Command::Clear(Clear::Port(ClearPort::Stats { port: Ports::All })),
        ),
        (
            "clear port xstats 0",
            Command::Clear(Clear::Port(ClearPort::Xstats {
                port: Ports::One(0),
            })),
        ),
        (
            "set fwd macswap",
            Command::Set(Set::Fwd {
                mode: ForwardMode::Macswap,
                variant: None,
            }),
        ),
        (
            "set fwd io retry",
            Command::Set(Set::Fwd {
                mode: ForwardMode::Io,
                variant: Some(RetryWord::Retry),
            }),
        ),
        (
            "set promisc all off",
            Command::Set(Set::Promisc {
                port: Ports::All,
                state: Switch::Off,
            }),
        ),
        ("set burst 64", Command::Set(Set::Burst { packets: 64 })),
        ("set nbcore 2", Command::Set(Set::Nbcore { cores: 2 })),
        ("set txpkts 128", Command::Set(Set::Txpkts { length: 128 })),
        (
            "set eth-peer 1 02:00:00:00:00:09",
            Command::Set(Set::EthPeer {
                port: 1,
                mac: Mac([2, 0, 0, 0, 0, 9]),
            }),
        ),
        ("set verbose 1", Command::Set(Set::Verbose { level: 1 })),
        (
            "port start all",
            Command::Port(Port::Start { port: Ports::All }),
        ),
        (
            "port stop 0",
            Command::Port(Port::Stop {
                port: Ports::One(0),
            }),
        ),
        (
            "port close all",
            Command::Port(Port::Close { port: Ports::All }),
        ),
        (
            "port config mtu 0 9000",
            Command::Port(Port::Config(PortConfig::Mtu {
                port: 0,
                value: 9000,
            })),
        ),
        (
            "port config all rxq 4",
            Command::Port(Port::Config(PortConfig::All(PortConfigAll::Rxq {
                value: 4,
            }))),
        ),
    ] {
        assert_eq!(parse(line), Ok(Some(command)), "{line}");
    }
}

#[test]
fn empty_lines_and_comments_are_nothing() {
    for line in ["", "   ", "\t", "# start"] {
        assert_eq!(parse(line), Ok(None), "{line:?}");
    }
}

/// The first line is what tools look for, the second says what to do.
#[test]
fn mistyped_commands() {
    for (line, first, hint) in [
        ("shwo port info 0", "Command not found", "'shwo'"),
        ("sart", "Command not found", "start"),
        ("--help", "Command not found", "help all"),
        (
            "set fwd foo",
            "Bad arguments",
            "io, mac, macswap, rxonly, txonly",
        ),
        ("set", "Bad arguments", "fwd, promisc"),
        ("show port", "Bad arguments", "info, stats, summary, xstats"),
        (
            "show port cap all",
            "Bad arguments",
            "info, stats, summary, xstats",
        ),
        ("show port info", "Bad arguments", "(port_id|all)"),
        (
            "show port info none",
            "Bad arguments",
            "give a port number or all",
        ),
        ("show port info 0 1", "Bad arguments", "too many"),
        ("show port info -1", "Bad arguments", "show port info"),
        ("set burst many", "Bad arguments", "set burst (packets)"),
        ("start now", "Bad arguments", "tx_first"),
        ("start tx_first 0", "Bad arguments", "1..="),
        ("port config mtu 0", "Bad arguments", "(value)"),
        ("set promisc 0 maybe", "Bad arguments", "on, off"),
        ("set eth-peer 0 02:00", "Bad arguments", "02:00:00:00:00:01"),
        ("set fwd \"io", "Bad arguments", "quotation"),
    ] {
        let answer = parse(line).expect_err(line).to_string();
        let (a, b) = answer.split_once('\n').expect("two lines");
        assert_eq!(a, first, "{line}");
        assert!(b.contains(hint), "{line}: {b}");
        assert!(!b.contains('\n'), "{line}: {b}");
    }
}

#[test]
fn completion() {
    let words = |line: &str| complete(line).1.join(" ");
    assert_eq!(words("sh"), "show");
    assert_eq!(words("st"), "start stop");
    assert_eq!(words("show "), "port fwd config fw");
    assert_eq!(words("show fw "), "pages");
    assert_eq!(words("show port s"), "stats summary");
    assert_eq!(words("show port info a"), "all");
    assert_eq!(words("set fwd mac"), "mac macswap");
    assert_eq!(words("set fwd io r"), "retry");
    assert_eq!(words("set promisc all o"), "on off");
    assert_eq!(words("start "), "tx_first");
    assert_eq!(words("port config all "), "rxq txq rxd txd burst");
    assert_eq!(words(""), "start stop quit help show clear set port load");
    assert_eq!(words("nonsense "), "");
    assert_eq!(complete("show po").0, 5);
    // A word of several bytes before the cursor is no place to cut.
    assert_eq!(complete("show\u{3000}po").0, "show\u{3000}".len());
}

proptest! {
    /// Whatever is typed gets an answer, and a refusal is always two lines.
    #[test]
    fn anything_typed_is_answered(line in "\\PC{0,60}") {
        if let Err(refused) = parse(&line) {
            let told = matches!(refused, Rejection::NotFound(_) | Rejection::BadArguments(_));
            prop_assert!(told);
            prop_assert!(refused.to_string().lines().count() >= 2);
        }
        let (start, _) = complete(&line);
        prop_assert!(line.is_char_boundary(start));
    }

    /// Words of the language in any order, too.
    #[test]
    fn words_of_the_language_in_any_order(words in proptest::collection::vec(
        prop_oneof![Just("show"), Just("port"), Just("stats"), Just("all"), Just("set"), Just("fwd"),
            Just("start"), Just("tx_first"), Just("config"), Just("mtu"), Just("0"), Just("-1"), Just("io")], 1..6)) {
        if let Err(refused) = parse(&words.join(" ")) {
            prop_assert_eq!(refused.to_string().lines().count(), 2, "{}", refused);
        }
    }
}
