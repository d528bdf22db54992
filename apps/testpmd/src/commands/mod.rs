//! What the commands do, one file per family. Each answers on the session's screen, in
//! the words that tools know.

mod clear;
pub mod help;
mod port;
mod set;
mod show;

use std::path::Path;

use crate::grammar::{self, Command, Ports, TxFirst};
use crate::session::{Flow, Session};

pub use port::start_all;
pub use show::nic_block;

/// Command files may load others, but not for ever.
const DEEPEST: usize = 8;

/// Runs one line.
pub fn run_line(session: &mut Session, line: &str) -> Flow {
    run_nested(session, line, 0)
}

fn run_nested(session: &mut Session, line: &str, depth: usize) -> Flow {
    let flow = match grammar::parse(line) {
        Ok(None) => Flow::Continue,
        Ok(Some(Command::Load { file })) => load(session, &file, true, depth),
        Ok(Some(command)) => execute(session, command),
        Err(rejection) => {
            session.screen.line(rejection);
            Flow::Continue
        }
    };
    session.screen.flush();
    if session.screen.gone() {
        return Flow::Quit;
    }
    flow
}

/// Runs the commands of a file; `echo` shows each.
pub fn run_file(session: &mut Session, file: &Path, echo: bool) -> Flow {
    load(session, file, echo, 0)
}

fn load(session: &mut Session, file: &Path, echo: bool, depth: usize) -> Flow {
    if depth >= DEEPEST {
        session.screen.line(format!(
            "{}: command files load each other more than {DEEPEST} deep; stopped there",
            file.display()
        ));
        return Flow::Continue;
    }
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) => {
            session
                .screen
                .line(format!("Failed to open file {}: {e}", file.display()));
            return Flow::Continue;
        }
    };
    let name = file
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    for line in text.lines() {
        if echo {
            session.screen.line(format!("[{name}] {line}"));
        }
        if run_nested(session, line, depth + 1) == Flow::Quit {
            return Flow::Quit;
        }
    }
    if echo {
        session.screen.line(format!("[{name}] <End-Of-File>"));
    } else {
        session.screen.line(format!(
            "Finished reading CLI commands from {}",
            file.display()
        ));
    }
    Flow::Continue
}

fn execute(session: &mut Session, command: Command) -> Flow {
    match command {
        Command::Start(start) => {
            let bursts = match start.before {
                Some(TxFirst::TxFirst { bursts }) => bursts,
                None => 0,
            };
            session.start_forwarding(bursts);
        }
        Command::Stop => {
            session.stop_and_tell();
        }
        Command::Quit => return Flow::Quit,
        Command::Help { section } => match help::text(section.as_deref()) {
            Some(text) => session.screen.text(text),
            None => session.screen.line(format!(
                "Bad arguments\n'{}' is no section; allowed: {}",
                section.unwrap_or_default(),
                help::sections()
            )),
        },
        Command::Show(what) => show::run(session, what),
        Command::Clear(what) => clear::run(session, what),
        Command::Set(what) => set::run(session, what),
        Command::Port(what) => port::run(session, what),
        // Taken care of where files are.
        Command::Load { .. } => {}
    }
    Flow::Continue
}

impl Session {
    /// `stop`: with what was measured beside the statistics.
    pub fn stop_and_tell(&mut self) {
        let gaps = self.stop_forwarding();
        for g in gaps
            .into_iter()
            .flatten()
            .filter(|_| self.settings.poll_gaps)
        {
            self.screen.text(g);
        }
    }

    /// The ports that a command names; says so when there is none of this number.
    fn named(&mut self, which: Ports) -> Vec<u16> {
        let valid = self.valid_ports();
        match which {
            Ports::All => valid,
            Ports::One(n) if valid.contains(&n) => vec![n],
            Ports::One(n) => {
                self.screen.line(format!("Invalid port {n}"));
                Vec::new()
            }
        }
    }

    /// As [`Session::named`], and lists the ports that there are.
    fn shown(&mut self, which: Ports) -> Vec<u16> {
        let found = self.named(which);
        if found.is_empty() && which != Ports::All {
            let valid: String = self.valid_ports().iter().map(|n| format!(" {n}")).collect();
            self.screen
                .line(format!("The valid ports array is [{valid} ]"));
        }
        found
    }
}
