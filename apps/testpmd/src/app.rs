//! The program from its arguments to its exit status.
//!
//! 0: it did what it was told. 1: the device or the run failed. 2: an argument, a file or
//! a setting was bad; one line on standard error says what was given, what is allowed and
//! what to do.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

use crate::args::{self, Refusal};
use crate::commands;
use crate::drain::{Drain, Verdict};
use crate::input::{Event, Input};
use crate::progress::Progress;
use crate::screen::Screen;
use crate::session::{Flow, Session, Status};
use crate::settings::{BadSetting, End, Settings};
use crate::watch::Watch;

/// Between two looks at a run that ends by itself.
const LOOK: Duration = Duration::from_millis(2);
/// Between two looks at one that is told to end.
const IDLE_LOOK: Duration = Duration::from_millis(50);

/// A failure that ends the program.
#[derive(Debug)]
struct Failure {
    line: String,
    status: u8,
}

/// An error and its causes in one line; most of our errors name their cause themselves.
fn one_line(e: &anyhow::Error) -> String {
    let mut line = e.to_string();
    for cause in e.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        let status =
            if e.is::<BadSetting>() || e.downcast_ref().is_some_and(pollux::Error::is_input) {
                2
            } else {
                1
            };
        Self {
            line: one_line(&e),
            status,
        }
    }
}

impl From<BadSetting> for Failure {
    fn from(e: BadSetting) -> Self {
        Self {
            line: e.0,
            status: 2,
        }
    }
}

impl From<pollux::Error> for Failure {
    fn from(e: pollux::Error) -> Self {
        anyhow::Error::from(e).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self {
            line: e.to_string(),
            status: 1,
        }
    }
}

/// Runs the program.
pub fn main(line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match args::parse(line) {
        Ok(arguments) => arguments,
        Err(Refusal::Show(text)) => {
            // Help that nobody reads is no failure.
            _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(Refusal::Bad(line)) => return fail(&Failure { line, status: 2 }),
    };
    match Settings::new(arguments)
        .map_err(Failure::from)
        .and_then(run)
    {
        Ok(status) => ExitCode::from(status),
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("pollux-testpmd: {}", failure.line);
    ExitCode::from(failure.status)
}

fn run(settings: Settings) -> Result<u8, Failure> {
    log(settings.log.as_deref())?;
    // Before any thread, so that a signal never finds the program without its handler.
    let mut input = Input::new()?;
    let mut session = Session::open(settings, Screen::stdout())?;
    if session.settings.interactive {
        session.screen.line("Interactive-mode selected");
    }
    let block = session.device_block();
    session.screen.text(block);
    if !session.settings.disable_device_start {
        commands::start_all(&mut session)?;
    }
    for w in session.pollux.warnings() {
        session.screen.line(format!("Warning! {w}"));
    }
    session.screen.flush();
    if session.settings.link_events {
        watch_links(&session);
    }
    let ports = session.pollux.ports().iter();
    let watch = Watch::start(ports.map(|p| (p.info().number, p.watch())).collect())?;
    let status = work(&mut session, &mut input, &watch);
    drop(watch);
    input.restore_terminal();
    let status = status?;
    finish(session).map(|closed| status.max(closed))
}

fn log(filter: Option<&str>) -> Result<(), Failure> {
    let filter = filter.unwrap_or("warn");
    let parsed = EnvFilter::try_new(filter).map_err(|e| {
        BadSetting(format!(
            "--log-level={filter}: {e}; give error, warn, info, debug or CRATE=LEVEL"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

fn watch_links(session: &Session) {
    for port in session.pollux.ports() {
        let number = port.info().number;
        let mut known = false;
        let told = port.on_link_change(move |_| {
            // The first call tells the state that the port has already.
            if std::mem::replace(&mut known, true) {
                let text = format!("\nPort {number}: link state change event\n");
                _ = std::io::stdout().write_all(text.as_bytes());
            }
        });
        if let Err(e) = told {
            tracing::warn!(port = number, error = %e, "link changes are not reported");
        }
    }
}

/// Files, single commands, then the shell or a run without one.
fn work(session: &mut Session, input: &mut Input, watch: &Watch) -> Result<u8, Failure> {
    for (file, echo) in session.settings.command_files.clone() {
        if std::fs::metadata(&file).is_err() {
            return Err(BadSetting(format!(
                "--cmdline-file={}: no such file can be read; give a file of shell commands",
                file.display()
            ))
            .into());
        }
        if commands::run_file(session, &file, echo) == Flow::Quit {
            return Ok(0);
        }
    }
    let single = session.settings.commands.clone();
    for line in &single {
        if commands::run_line(session, line) == Flow::Quit {
            return Ok(0);
        }
    }
    if session.settings.interactive {
        if session.settings.auto_start && session.forwarding.is_none() {
            session.screen.line("Start automatic packet forwarding");
            session.start_forwarding(0);
        }
        session.screen.flush();
        return shell(session, input);
    }
    alone(session, input, watch)
}

fn shell(session: &mut Session, input: &mut Input) -> Result<u8, Failure> {
    loop {
        let flow = match input.next_line()? {
            Event::Line(line) => commands::run_line(session, &line),
            Event::End | Event::Interrupt => Flow::Quit,
        };
        if flow == Flow::Quit {
            return Ok(0);
        }
    }
}

/// Without a shell: forwards until the end that was asked for.
fn alone(session: &mut Session, input: &mut Input, watch: &Watch) -> Result<u8, Failure> {
    if session.settings.end == End::Drained {
        Drain::possible(session)?;
    }
    session
        .screen
        .line("No commandline core given, start packet forwarding");
    if session.forwarding.is_none()
        && !session.start_forwarding(u32::from(session.settings.tx_first))
    {
        session.screen.flush();
        return Ok(1);
    }
    let reads = session.settings.end == End::Enter;
    if reads {
        session.screen.line("Press enter to exit");
    }
    session.screen.flush();
    let started = Instant::now();
    let period = session.settings.stats_period.map(Duration::from_secs);
    let duration = session.settings.duration.map(Duration::from_secs);
    let mut next_stats = period.map(|p| started + p);
    let mut drain = (session.settings.end == End::Drained).then(Drain::default);
    let mut progress = session.settings.progress.then(|| Progress::new(session));
    let look = if drain.is_some() { LOOK } else { IDLE_LOOK };
    let mut status = 0;
    loop {
        if input.wait(look, reads)?.is_some() {
            break;
        }
        let now = Instant::now();
        if let Some(progress) = &mut progress {
            progress.show(session);
        }
        if next_stats.is_some_and(|at| now >= at) {
            show_statistics(session);
            next_stats = next_stats.zip(period).map(|(at, period)| at + period);
        }
        if session.screen.gone() || duration.is_some_and(|d| now >= started + d) {
            break;
        }
        // A port that fails or is taken away ends the run; its lcores have counted on.
        if watch.ended() || session.forwarding.as_ref().is_none_or(|f| f.broken()) {
            status = 1;
            break;
        }
        if let Some(drain) = &mut drain {
            if drain.look(session)? != Verdict::Wait {
                break;
            }
        }
    }
    if let Some(progress) = progress {
        progress.finish(session);
    }
    session.stop_and_tell();
    crate::drain::tell(session);
    if drain.is_some() {
        status = status.max(crate::drain::losses(session));
    }
    session.screen.flush();
    Ok(status)
}

/// Clears the screen and shows every port.
fn show_statistics(session: &mut Session) {
    session
        .screen
        .text("\x1b[2J\x1b[1;1H\nPort statistics ====================================");
    for n in session.valid_ports() {
        let block = commands::nic_block(session, n);
        session.screen.text(block);
    }
    session.screen.flush();
}

/// Stops what runs, writes the report, closes the ports, and checks that nothing is left.
fn finish(mut session: Session) -> Result<u8, Failure> {
    if session.forwarding.is_some() {
        session.stop_and_tell();
        crate::drain::tell(&mut session);
    }
    let mut status = 0;
    if let Some(path) = session.settings.json.clone() {
        crate::drain::record_wires(&mut session);
        if let Err(line) = session.report.write(&path) {
            eprintln!("pollux-testpmd: {line}");
            status = 2;
        }
    }
    session.settings.disable_link_check = true;
    let numbers = session.valid_ports();
    for n in &numbers {
        session.screen.line(format!("\nStopping port {n}..."));
        commands::run_line(&mut session, &format!("port stop {n}"));
    }
    for n in &numbers {
        session.screen.line(format!("\nShutting down port {n}..."));
        commands::run_line(&mut session, &format!("port close {n}"));
    }
    debug_assert!(session.ports.iter().all(|p| p.status == Status::Closed));
    session.ports.clear();
    match session.pollux.close() {
        Ok(report) => {
            let kept: usize = report.ports.iter().map(|p| p.pages_kept).sum();
            if kept + report.buffers_out + report.lcores_left > 0 {
                session.screen.line(format!(
                    "Left behind: {kept} firmware pages, {} packet buffers, {} lcores",
                    report.buffers_out, report.lcores_left
                ));
                status = status.max(1);
            }
        }
        Err(e) => {
            session.screen.line(e);
            status = status.max(1);
        }
    }
    session.screen.line("\nBye...");
    session.screen.flush();
    Ok(status)
}
