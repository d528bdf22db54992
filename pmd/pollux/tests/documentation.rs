//! What `docs/adapter.md` promises is there: each message that it quotes, and each option of
//! `scripts/host` that it shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step is a failed test

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All of a folder's Rust files, as one text on one line, so that a message may be broken there.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// First cells of the tables in the sections about messages, in backticks.
fn messages(page: &str) -> Vec<String> {
    let (_, part) = page.split_once("## When it does not start").unwrap();
    part.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once("` |"))
        .map(|(message, _)| message.to_owned())
        .collect()
}

#[test]
fn every_message_of_the_page_is_in_the_source() {
    let mut text = String::new();
    for folder in [
        "pmd/bus/src",
        "pmd/mlx5/src",
        "pmd/pollux/src",
        "mempool/src",
        "apps/testpmd/src",
    ] {
        sources(&root().join(folder), &mut text);
    }
    let page = std::fs::read_to_string(root().join("docs/adapter.md")).unwrap();
    let messages = messages(&page);
    assert!(messages.len() > 25, "{}", messages.len());
    // Said by the C library.
    let system = ["Permission denied", "Device or resource busy"];
    for message in &messages {
        let mut checked = 0;
        for part in message.split("...") {
            let part = part.trim_matches([' ', ':', ',', ';']);
            // Words, and not what stands between two of them.
            if part.len() < 4 || system.contains(&part) {
                continue;
            }
            assert!(text.contains(part), "{message:?}: {part:?} is in no source");
            checked += 1;
        }
        assert!(checked > 0, "{message:?} says nothing");
    }
}

#[test]
fn every_command_of_the_page_is_one() {
    let page = std::fs::read_to_string(root().join("docs/adapter.md")).unwrap();
    let script = std::fs::read_to_string(root().join("scripts/host")).unwrap();
    let mut seen = 0;
    for line in page.split("scripts/host ").skip(1) {
        let end = line.find(['`', '\n']).unwrap();
        let words = line[..end].split_whitespace();
        for word in words.filter(|word| word.starts_with("--")) {
            assert!(script.contains(&format!("    {word})")), "{word}");
        }
        let command = line.split([' ', '`', '\n']).next().unwrap();
        assert!(
            ["check", "hugepages", "bind", "unbind"].contains(&command),
            "{command}"
        );
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}
