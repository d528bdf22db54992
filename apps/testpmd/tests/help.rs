//! `help` knows every command.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use pollux_testpmd::commands::help;
use pollux_testpmd::grammar;

#[test]
fn overview_has_one_line_per_section() {
    assert_eq!(
        help::text(None).unwrap(),
        "
Help is available for the following sections:

    help control                    : Start and stop forwarding.
    help display                    : Displaying port, stats and config information.
    help config                     : Configuration information.
    help ports                      : Configuring ports.
    help all                        : All of the above sections.

"
    );
}

#[test]
fn a_section_shows_usage_and_purpose() {
    let control = help::text(Some("control")).unwrap();
    assert!(control.starts_with(
        "
Control forwarding:
-------------------

start
    Start packet forwarding with the current configuration.

start tx_first [bursts]
    Send bursts of packets before forwarding starts.

stop
    Stop packet forwarding, and show what it did.
"
    ));
    assert!(!control.contains("show port"));
    let ports = help::text(Some("ports")).unwrap();
    assert!(ports.contains("\nport config mtu (port_id) (value)\n"));
    let config = help::text(Some("config")).unwrap();
    assert!(config.contains("\nset fwd (io|mac|macswap|rxonly|txonly) [retry]\n"));
    assert!(help::text(Some("nonsense")).is_none());
}

#[test]
fn no_command_is_missing() {
    let all = help::text(Some("all")).unwrap();
    for command in grammar::tree().get_subcommands() {
        let name = command.get_name();
        assert!(
            all.lines()
                .any(|l| l == name || l.starts_with(&format!("{name} "))),
            "{name}"
        );
    }
}
