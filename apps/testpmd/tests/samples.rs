//! The sample configurations load, each through the driver's own reader.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::path::{Path, PathBuf};

use pollux_testpmd::args::options::ForwardMode;
use pollux_testpmd::args::{Arguments, parse};
use pollux_testpmd::settings::{End, Settings, read};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

fn load(name: &str) -> Settings {
    let arguments = Arguments {
        config: Some(folder().join(name)),
        ..Arguments::default()
    };
    Settings::new(arguments).unwrap()
}

#[test]
fn every_sample_loads() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let file = read(&path).unwrap();
            assert!(!file.pollux.devices.is_empty(), "{}", path.display());
            load(path.file_name().unwrap().to_str().unwrap());
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} samples");
}

#[test]
fn samples_say_what_their_comments_promise() {
    let demo = load("demo.toml");
    assert_eq!((demo.mode, demo.end), (ForwardMode::Macswap, End::Drained));
    let pair = load("pair.toml");
    assert_eq!((pair.mode, pair.tx_length), (ForwardMode::Io, 64));
    assert_eq!((pair.stats_period, pair.tx_first), (Some(1), true));
    let adapter = load("adapter.toml");
    assert_eq!(adapter.config.devices.len(), 2);
    assert!(adapter.interactive);
}

/// What a comment shows as an alternative is as good as what stands there.
#[test]
fn commented_settings_are_settings() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let on: String = text
            .lines()
            .map(|l| match l.strip_prefix("# ") {
                Some(rest) if rest.contains(" = ") => format!("{rest}\n"),
                _ => format!("{l}\n"),
            })
            .collect();
        assert_ne!(on, "");
        pollux::config::parse_toml::<pollux_testpmd::settings::File>("sample", &on)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

#[test]
fn the_line_wins_over_a_sample() {
    let line = format!(
        "--config {} -- --forward-mode=rxonly",
        folder().join("pair.toml").display()
    );
    let words = shlex::split(&line).unwrap();
    let s = Settings::new(parse(words.into_iter().map(Into::into)).unwrap()).unwrap();
    assert_eq!(s.mode, ForwardMode::Rxonly);
    assert_eq!(s.burst, 32);
}
