//! A `pollux-hca` that serves functions on sockets, and what it costs while it does.

use crate::forwarder::own_program;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. Killed when dropped.
pub struct Server {
    child: Child,
    folder: PathBuf,
    functions: usize,
}

impl Server {
    /// Serves `functions` functions with these settings of a device string, with every doorbell
    /// trapped if asked.
    ///
    /// # Errors
    /// The program is not there, or does not get ready.
    pub fn start(functions: usize, settings: &str, trap_all: bool) -> Result<Self, String> {
        let program = own_program("pollux-hca")?;
        let folder = std::env::temp_dir().join(format!("pollux-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut command = Command::new(&program);
        for index in 0..functions {
            command
                .arg("--socket")
                .arg(folder.join(format!("{index}.sock")));
        }
        if trap_all {
            command.arg("--trap-all");
        }
        let mut child = command
            .args(["--device", settings])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        let output = child.stdout.take();
        let server = Self {
            child,
            folder,
            functions,
        };
        let lines = output.map(|output| BufReader::new(output).lines().map_while(Result::ok));
        match lines.is_some_and(|mut lines| lines.any(|line| line == "ready")) {
            true => Ok(server),
            false => Err(format!("{program} did not get ready")),
        }
    }

    /// The device strings of its functions.
    pub fn devices(&self) -> Vec<String> {
        let socket = |index| format!("vfio-user:{}/{index}.sock", self.folder.display());
        (0..self.functions).map(socket).collect()
    }

    /// The share of one CPU that it uses over `window`, all its threads together, in percent.
    ///
    /// # Errors
    /// The kernel's account of it cannot be read.
    pub fn cpu_percent(&self, window: Duration) -> Result<f64, String> {
        let (before, start) = (self.cpu_time()?, Instant::now());
        std::thread::sleep(window);
        let used = self.cpu_time()? - before;
        Ok(100.0 * used / start.elapsed().as_secs_f64())
    }

    /// Seconds of CPU time that its threads have used, as the scheduler counts them.
    fn cpu_time(&self) -> Result<f64, String> {
        let folder = format!("/proc/{}/task", self.child.id());
        let threads = std::fs::read_dir(&folder).map_err(|e| format!("{folder}: {e}"))?;
        let mut nanoseconds = 0;
        for thread in threads.flatten() {
            // The first number is the time on a CPU.
            let file = thread.path().join("schedstat");
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let word = text.split_whitespace().next().unwrap_or_default();
            nanoseconds += word
                .parse::<u64>()
                .map_err(|_| format!("{}: no time in '{text}'", file.display()))?;
        }
        Ok(nanoseconds as f64 / 1e9)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only for a program that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
