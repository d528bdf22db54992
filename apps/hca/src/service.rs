//! The threads that serve: one for each function's socket, one for the control socket.

use crate::control;
use crate::settings::{CommandLog, Settings};
use pollux_bus::vfio_user::{
    Ending, Event, Listener, OWNER_ONLY, ServeOptions, Stop, Trust, serve,
};
use pollux_bus::{BusError, Device};
use pollux_emu::observe::CommandRecord;
use pollux_emu::{EmuError, Emulator};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Refusals of one client that are logged.
const REFUSALS: u64 = 16;

/// How long threads may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing, or not everything, could be served.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The emulator could not be made.
    #[error(transparent)]
    Emulator(#[from] EmuError),
    /// A socket could not be had, or failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A fault that was ordered at the start makes no sense.
    #[error("fault {line:?}: {why}")]
    Fault {
        /// The order.
        line: String,
        /// What is wrong with it.
        why: String,
    },
    /// The log of commands cannot be written.
    #[error("{path}: {source}; give a file that can be written", path = .path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A client holds a thread in the kernel.
    #[error("a socket's thread does not end within {seconds} s; its client holds it up")]
    Stuck {
        /// Time waited.
        seconds: u64,
    },
    /// A thread could not be started.
    #[error("no thread for {what}: {source}")]
    Thread {
        /// What it was for.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
}

impl ServiceError {
    /// Whether what was asked for cannot be, as opposed to something that failed.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Emulator(error) => matches!(
                error,
                EmuError::Key { .. }
                    | EmuError::Value { .. }
                    | EmuError::Combination { .. }
                    | EmuError::Function { .. }
            ),
            Self::Log { .. } | Self::Fault { .. } => true,
            Self::Bus(_) | Self::Thread { .. } | Self::Stuck { .. } => false,
        }
    }
}

/// A running emulator and its sockets.
pub struct Service {
    /// The emulator.
    pub emulator: Arc<Emulator>,
    stop: Stop,
    threads: Vec<JoinHandle<Result<(), BusError>>>,
}

impl Service {
    /// Makes the emulator, binds all sockets, and starts to serve. Binds all or none.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn start(settings: &Settings) -> Result<Self, ServiceError> {
        let mut listeners = Vec::new();
        for path in &settings.sockets {
            listeners.push(Listener::bind(path, settings.mode)?);
        }
        let control = settings
            .control
            .as_ref()
            .map(|path| Listener::bind(path, OWNER_ONLY))
            .transpose()?;
        let emulator = Arc::new(Emulator::new(settings.emulator.clone())?);
        for line in &settings.faults {
            if let Err(why) = pollux_emu::control::run(&emulator, line) {
                let line = line.clone();
                return Err(ServiceError::Fault { line, why });
            }
        }
        if let Some(log) = &settings.commands {
            log_commands(&emulator, log)?;
        }
        let mut service = Self {
            emulator,
            stop: Stop::new()?,
            threads: Vec::new(),
        };
        let trust = if settings.trust_memory {
            Trust::Anything
        } else {
            Trust::Sealed
        };
        for (number, listener) in listeners.into_iter().enumerate() {
            let device = service.emulator.function(number)?;
            let stop = service.stop.clone();
            let options = ServeOptions {
                trust,
                trap_all: settings.trap_all,
            };
            let name = format!("emu{number} socket");
            service.spawn(name, move || {
                function(number, &listener, &device, options, &stop)
            })?;
        }
        if let Some(listener) = control {
            let emulator = Arc::clone(&service.emulator);
            let stop = service.stop.clone();
            service.spawn("control socket".to_owned(), move || {
                listen(&listener, &emulator, &stop)
            })?;
        }
        Ok(service)
    }

    fn spawn(
        &mut self,
        what: String,
        run: impl FnOnce() -> Result<(), BusError> + Send + 'static,
    ) -> Result<(), ServiceError> {
        let builder = std::thread::Builder::new().name(what.clone());
        let thread = builder
            .spawn(run)
            .map_err(|source| ServiceError::Thread { what, source })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Shows all clients out and removes the sockets.
    ///
    /// # Errors
    /// The first socket that had failed before.
    pub fn stop(mut self) -> Result<Arc<Emulator>, ServiceError> {
        self.stop.raise();
        let mut outcome = Ok(());
        let start = Instant::now();
        for thread in std::mem::take(&mut self.threads) {
            while !thread.is_finished() {
                if start.elapsed() > PATIENCE {
                    let seconds = PATIENCE.as_secs();
                    return Err(ServiceError::Stuck { seconds });
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = outcome.and(Err(error)),
                Err(_) => tracing::error!("a thread that served a socket panicked"),
            }
        }
        outcome?;
        Ok(Arc::clone(&self.emulator))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.raise();
    }
}

/// Has all functions' commands written down, one line each.
fn log_commands(emulator: &Emulator, log: &CommandLog) -> Result<(), ServiceError> {
    let out: Box<dyn Write + Send> = match log {
        CommandLog::Stderr => Box::new(std::io::stderr()),
        CommandLog::File(path) => {
            let file = File::create(path).map_err(|source| ServiceError::Log {
                path: path.clone(),
                source,
            })?;
            Box::new(file)
        }
    };
    let out = Arc::new(Mutex::new(out));
    for number in 0..emulator.len() {
        let out = Arc::clone(&out);
        // A full disk must not stop the device; it is said once.
        let mut well = true;
        let watcher = move |record: &CommandRecord| {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let written = writeln!(out, "emu{number} {record}");
            if let (Err(why), true) = (&written, well) {
                tracing::error!(%why, "the log of commands");
            }
            well = written.is_ok();
        };
        emulator.watch_commands(number, Some(Box::new(watcher)))?;
    }
    Ok(())
}

fn function(
    number: usize,
    listener: &Listener,
    device: &Arc<dyn Device>,
    options: ServeOptions,
    stop: &Stop,
) -> Result<(), BusError> {
    let path: PathBuf = listener.path().to_owned();
    let mut refusals: u64 = 0;
    let outcome = serve(listener, device, &options, stop, &mut |event| match event {
        Event::Arrived(process) => {
            refusals = 0;
            tracing::info!(function = number, ?process, "a client came");
        }
        Event::TurnedAway => {
            tracing::warn!(function = number, "a second client was turned away");
        }
        Event::Refused { command, why } => {
            refusals += 1;
            match refusals {
                ..REFUSALS => tracing::warn!(function = number, command, %why, "refused"),
                REFUSALS => {
                    tracing::warn!(function = number, command, %why, "refused, and no more of it from this client");
                }
                // Whoever sends rubbish shall not fill the disk with it.
                _ => {}
            }
        }
        Event::Departed(Ending::ShownOut(why)) => {
            tracing::warn!(function = number, %why, "the client was shown out");
        }
        Event::Departed(ending) => {
            tracing::info!(function = number, ?ending, "the client is gone");
        }
    });
    if let Err(error) = &outcome {
        tracing::error!(function = number, socket = %path.display(), %error, "no longer served");
    }
    outcome
}

/// Serves the control socket.
fn listen(listener: &Listener, emulator: &Emulator, stop: &Stop) -> Result<(), BusError> {
    while let Some(stream) = listener.next(stop)? {
        if let Err(why) = control::serve(emulator, stream) {
            tracing::warn!(%why, "a client of the control socket was let go");
        }
    }
    Ok(())
}
