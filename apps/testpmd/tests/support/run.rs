//! The forwarder as a program: started, spoken to over a pipe, signalled, waited for.
#![allow(dead_code)] // each test program uses its own part

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::program;

/// Far more than anything here takes; a hang is a failure, not a wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a finished run left.
pub struct Answer {
    pub status: i32,
    pub out: String,
    pub err: String,
}

/// Runs to the end without input. `line` is split as a shell would.
pub fn run(line: &str) -> Answer {
    let mut s = Session::start(line);
    s.close();
    s.finish()
}

/// A running forwarder.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
    errors: std::thread::JoinHandle<String>,
    seen: String,
    /// How much of `seen` earlier calls have looked at.
    read: usize,
}

impl Session {
    pub fn start(line: &str) -> Self {
        Self::start_with(Command::new(program("pollux-testpmd")), line)
    }

    /// Under a program that changes something first, e.g. `taskset`.
    pub fn start_under(prefix: &[&str], line: &str) -> Self {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(program("pollux-testpmd"));
        Self::start_with(command, line)
    }

    fn start_with(mut command: Command, line: &str) -> Self {
        let mut child = command
            .args(shlex::split(line).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, output) = channel();
        let mut out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = std::io::Read::read(&mut out, &mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        let err = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            BufReader::new(err)
                .lines()
                .map_while(Result::ok)
                .map(|l| l + "\n")
                .collect()
        });
        Self {
            input: child.stdin.take(),
            child,
            output,
            errors,
            seen: String::new(),
            read: 0,
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Types a line.
    pub fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for `text` behind what was looked at before; returns what came up to its end.
    pub fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen[self.read..].find(text) {
                let end = self.read + at + text.len();
                let found = self.seen[self.read..end].to_owned();
                self.read = end;
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no {text:?} in {:?}", &self.seen[self.read..])
                }
            }
        }
    }

    /// Types a command and returns its answer, up to the next prompt.
    pub fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.expect(&format!("{command}\n"));
        let answer = self.expect("testpmd> ");
        answer.strip_suffix("testpmd> ").unwrap().to_owned()
    }

    /// Ends the input.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Answer {
        let status = self.wait();
        while let Ok(bytes) = self.output.recv() {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        Answer {
            status: status.code().expect("ended by a signal"),
            out: std::mem::take(&mut self.seen),
            err: std::mem::replace(&mut self.errors, std::thread::spawn(String::new))
                .join()
                .unwrap(),
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("does not end; so far: {}", self.seen);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A test that failed leaves no process behind.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Compares with the other program.
pub fn proven(input: &Path, output: &Path, more: &[&str]) -> Answer {
    let done = Command::new(program("capture-proof"))
        .arg(input)
        .arg(output)
        .args(more)
        .output()
        .unwrap();
    Answer {
        status: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}
