//! A testpmd (ours or DPDK's) driven over a pipe: both speak the same commands, so both are
//! measured by the same code in the same way.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long any one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running testpmd. Killed when dropped.
pub struct Forwarder {
    child: Child,
    input: ChildStdin,
    lines: Receiver<(Instant, String)>,
    name: String,
    started: Instant,
}

/// Packets received on all ports, and when that was read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// When the counter was printed.
    pub at: Instant,
    /// Sum over all ports.
    pub packets: u64,
}

impl Forwarder {
    /// Starts a program with a shell on its standard input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &str, args: &[&str]) -> Result<Self, String> {
        let started = Instant::now();
        // A peer that writes to a pipe holds its lines back; this asks its C library not to.
        let mut child = Command::new("stdbuf")
            .args(["-oL", program])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{program}: no pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            input,
            lines,
            name: program.to_owned(),
            started,
        })
    }

    /// When the program was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types one command.
    ///
    /// # Errors
    /// The program is gone.
    pub fn command(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.input, "{line}")
            .and_then(|()| self.input.flush())
            .map_err(|e| format!("{}: '{line}': {e}", self.name))
    }

    fn next_with(&self, wanted: &str) -> Result<(Instant, String), String> {
        let deadline = Instant::now() + PATIENCE;
        while let Ok((at, line)) = self
            .lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if line.contains(wanted) {
                return Ok((at, line));
            }
        }
        Err(format!("{}: no line with '{wanted}' came", self.name))
    }

    /// Reads the receive counters of `ports` ports.
    ///
    /// # Errors
    /// No statistics came.
    pub fn received(&mut self, ports: usize) -> Result<Reading, String> {
        self.command("show port stats all")?;
        let mut reading = Reading {
            at: Instant::now(),
            packets: 0,
        };
        for _ in 0..ports {
            let (at, line) = self.next_with("RX-packets:")?;
            let count = line
                .split_whitespace()
                .nth(1)
                .and_then(|word| word.parse::<u64>().ok());
            reading.at = at;
            reading.packets += count.ok_or_else(|| format!("{}: odd line '{line}'", self.name))?;
        }
        Ok(reading)
    }

    /// Packets per second received on all ports, over `window`.
    ///
    /// # Errors
    /// No statistics came, or no packet moved.
    pub fn rate(&mut self, ports: usize, window: Duration) -> Result<f64, String> {
        let before = self.received(ports)?;
        std::thread::sleep(window);
        let after = self.received(ports)?;
        let packets = after.packets.saturating_sub(before.packets);
        if packets == 0 {
            return Err(format!("{}: no packet moved in {window:?}", self.name));
        }
        Ok(packets as f64 / (after.at - before.at).as_secs_f64())
    }

    /// Leaves the program by its own command, and waits for it.
    ///
    /// # Errors
    /// It does not end, or ends with an error.
    pub fn quit(mut self) -> Result<(), String> {
        self.command("stop")?;
        self.command("quit")?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: {status}", self.name)),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(e) => return Err(format!("{}: {e}", self.name)),
            }
        }
        Err(format!("{}: does not end", self.name))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Both fail only for a program that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Path of our own testpmd, built beside this program.
///
/// # Errors
/// It is not there.
pub fn own_testpmd() -> Result<String, String> {
    own_program("pollux-testpmd")
}

/// Path of a program built beside this one.
///
/// # Errors
/// It is not there.
pub fn own_program(name: &str) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = own.with_file_name(name);
    if path.exists() {
        Ok(path.display().to_string())
    } else {
        Err(format!(
            "{} is missing; build it first: cargo build --release",
            path.display()
        ))
    }
}

/// Path of DPDK's testpmd, if one is installed.
pub fn dpdk_testpmd() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("dpdk-testpmd"))
        .find(|file| file.exists())
        .map(|file| file.display().to_string())
}
