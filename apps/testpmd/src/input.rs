//! Where commands come from: a terminal with editing, completion and history, or any
//! other input, line by line; and signals, which come in between.
//!
//! Reading blocks, so it has a thread of its own ("input"), which reads one line each time
//! it is asked to: the answer to a command is complete before the next prompt appears.
//! Another thread ("signals") waits for SIGINT and SIGTERM. Both end with the process.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::grammar;

/// The prompt that tools wait for.
pub const PROMPT: &str = "testpmd> ";

/// Something happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A line came.
    Line(String),
    /// The input ended.
    End,
    /// The user or the system wants the program to end.
    Interrupt,
}

/// How lines are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// With editing.
    Editor,
    /// A terminal that a tool drives: it sees exactly the bytes of the prompt, and echoes
    /// by itself.
    PlainTerminal,
    /// A file or pipe: lines are echoed, as a terminal would do.
    Pipe,
}

impl Style {
    /// Looks at standard input and output. Terminals of the `vt` family are what serial
    /// consoles and remote-control tools announce; these search the output for the prompt,
    /// which an editor would decorate.
    pub fn detect() -> Self {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if !std::io::stdin().is_terminal() {
            return Self::Pipe;
        }
        let term = std::env::var("TERM").unwrap_or_default();
        let plain = term.is_empty()
            || term.starts_with("vt")
            || matches!(
                term.as_str(),
                "dumb" | "unknown" | "ansi" | "cons25" | "emacs"
            );
        if terminal && !plain {
            Self::Editor
        } else {
            Self::PlainTerminal
        }
    }
}

/// Lines and signals.
#[derive(Debug)]
pub struct Input {
    events: Receiver<Event>,
    sender: Sender<Event>,
    ask: Option<Sender<()>>,
    style: Style,
    terminal: Option<Termios>,
}

impl Input {
    /// Watches for signals; nothing is read yet.
    ///
    /// # Errors
    /// The system refuses the handlers or the thread.
    pub fn new() -> std::io::Result<Self> {
        let (sender, events) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let on_signal = sender.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for _ in signals.forever() {
                    if on_signal.send(Event::Interrupt).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            events,
            sender,
            ask: None,
            style: Style::detect(),
            terminal: tcgetattr(std::io::stdin()).ok(),
        })
    }

    /// How lines are read.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Asks for the next line and waits for it, or for a signal. Shows the prompt; what is
    /// on the screen must have been flushed.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn next_line(&mut self) -> std::io::Result<Event> {
        self.start_reading()?;
        if self.style != Style::Editor {
            show(PROMPT);
        }
        if self.ask.as_ref().is_some_and(|ask| ask.send(()).is_err()) {
            return Ok(Event::End);
        }
        let event = self.events.recv().unwrap_or(Event::End);
        if let (Style::Pipe, Event::Line(line)) = (self.style, &event) {
            show(&format!("{line}\n"));
        }
        Ok(event)
    }

    /// Waits so long for any input or a signal; `None` when nothing came. `read` says
    /// whether input counts.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn wait(&mut self, time: Duration, read: bool) -> std::io::Result<Option<Event>> {
        if read && self.ask.is_none() {
            self.style = match self.style {
                Style::Editor => Style::PlainTerminal,
                other => other,
            };
            self.start_reading()?;
            if let Some(ask) = &self.ask {
                // A reader that has ended said so by an event.
                _ = ask.send(());
            }
        }
        match self.events.recv_timeout(time) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Ok(Some(Event::End)),
        }
    }

    /// Leaves the terminal as it was found, even if the editor is in the middle of a line.
    pub fn restore_terminal(&self) {
        if let Some(before) = &self.terminal {
            // Nothing more can be done for a terminal that refuses.
            _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, before);
        }
    }

    fn start_reading(&mut self) -> std::io::Result<()> {
        if self.ask.is_some() {
            return Ok(());
        }
        let (ask, asked) = channel();
        let (events, style) = (self.sender.clone(), self.style);
        std::thread::Builder::new()
            .name("input".into())
            .spawn(move || match style {
                Style::Editor => edit(&asked, &events),
                Style::PlainTerminal | Style::Pipe => read(&asked, &events),
            })?;
        self.ask = Some(ask);
        Ok(())
    }
}

fn show(text: &str) {
    let mut out = std::io::stdout();
    // A reader that went away is noticed by the screen at the next answer.
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn read(asked: &Receiver<()>, events: &Sender<Event>) {
    let mut input = std::io::stdin().lock();
    while asked.recv().is_ok() {
        let mut bytes = Vec::new();
        let event = match input.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => Event::End,
            Ok(_) => {
                let line = String::from_utf8_lossy(&bytes);
                Event::Line(line.trim_end_matches(['\n', '\r']).to_owned())
            }
        };
        let last = event == Event::End;
        if events.send(event).is_err() || last {
            return;
        }
    }
}

fn edit(asked: &Receiver<()>, events: &Sender<Event>) {
    let config = Config::builder()
        .auto_add_history(true)
        .bracketed_paste(false)
        .build();
    let Ok(mut editor) = Editor::<Words, FileHistory>::with_config(config) else {
        return read(asked, events);
    };
    editor.set_helper(Some(Words));
    let history = history_file();
    if let Some(file) = &history {
        // The first time there is none.
        drop(editor.load_history(file));
    }
    while asked.recv().is_ok() {
        let event = match editor.readline(PROMPT) {
            Ok(line) => Event::Line(line),
            Err(ReadlineError::Interrupted) => Event::Interrupt,
            Err(_) => Event::End,
        };
        if let Some(file) = &history {
            // History is a comfort; a home that cannot be written does without.
            drop(editor.save_history(file));
        }
        let last = event == Event::End;
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// `$XDG_STATE_HOME/pollux/testpmd_history`, made if it is not there.
fn history_file() -> Option<PathBuf> {
    let state = match std::env::var_os("XDG_STATE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".local/state"),
    };
    let folder = state.join("pollux");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("testpmd_history"))
}

/// Completion by the command tree.
struct Words;

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..pos).unwrap_or(line);
        let (start, words) = grammar::complete(before);
        let candidates = words
            .into_iter()
            .map(|w| Pair {
                replacement: format!("{w} "),
                display: w,
            })
            .collect();
        Ok((start, candidates))
    }
}

impl Hinter for Words {
    type Hint = String;
}
impl Highlighter for Words {}
impl Validator for Words {}
impl Helper for Words {}
