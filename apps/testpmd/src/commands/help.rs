//! `help`: the sections, and what each holds. Made from the command tree, so that no
//! command is missing and none is promised that does not exist.

use std::fmt::Write as _;

use clap::Command as Tree;

use crate::grammar::{tree, usage};

/// A section: its name, its title, a line about it, and the first words that belong to it.
struct Section {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    words: &'static [&'static str],
    note: &'static str,
}

const SECTIONS: [Section; 4] = [
    Section {
        name: "control",
        title: "Control forwarding:",
        about: "Start and stop forwarding.",
        words: &["start", "stop", "load", "help", "quit"],
        note: "",
    },
    Section {
        name: "display",
        title: "Display:",
        about: "Displaying port, stats and config information.",
        words: &["show", "clear"],
        note: "",
    },
    Section {
        name: "config",
        title: "Configuration:",
        about: "Configuration information.",
        words: &["set"],
        note: "Configuration changes only become active when forwarding is started/restarted.\n",
    },
    Section {
        name: "ports",
        title: "Port Operations:",
        about: "Configuring ports.",
        words: &["port"],
        note: "",
    },
];

/// The answer to `help`, without a section or with one; `None` for a section that there
/// is not.
pub fn text(section: Option<&str>) -> Option<String> {
    let Some(wanted) = section else {
        return Some(overview());
    };
    let chosen: Vec<&Section> = SECTIONS
        .iter()
        .filter(|s| wanted == "all" || wanted == s.name)
        .collect();
    if chosen.is_empty() {
        return None;
    }
    let tree = tree();
    let mut out = String::new();
    for s in chosen {
        _ = write!(
            out,
            "\n{}\n{}\n{}\n",
            s.title,
            "-".repeat(s.title.len()),
            s.note
        );
        for word in s.words {
            if let Some(command) = tree.find_subcommand(word) {
                leaves(word, command, &mut out);
            }
        }
    }
    Some(out)
}

/// The names that `help` takes.
pub fn sections() -> String {
    let names: Vec<&str> = SECTIONS.iter().map(|s| s.name).collect();
    format!("{}, all", names.join(", "))
}

fn overview() -> String {
    let mut out = String::from("\nHelp is available for the following sections:\n\n");
    let all = Section {
        name: "all",
        title: "",
        about: "All of the above sections.",
        words: &[],
        note: "",
    };
    for s in SECTIONS.iter().chain([&all]) {
        _ = writeln!(out, "    help {:<27}: {}", s.name, s.about);
    }
    out.push('\n');
    out
}

fn leaves(path: &str, command: &Tree, out: &mut String) {
    if !command.has_subcommands() || path == "start" {
        let about = command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        _ = write!(out, "{}\n    {about}.\n\n", usage(path, command));
    }
    for c in command.get_subcommands() {
        leaves(&format!("{path} {}", c.get_name()), c, out);
    }
}
