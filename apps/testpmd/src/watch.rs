//! Looks at the ports from beside: one line when a device fails, or when the platform wants it
//! back, and word to the run that it should end. A thread of its own, because the shell may be
//! waiting for a line.

use pollux::PortWatch;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// The watching thread; it ends with this value.
#[derive(Debug)]
pub struct Watch {
    running: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Watch {
    /// Watches ports, each with its number.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(ports: Vec<(u16, PortWatch)>) -> std::io::Result<Self> {
        let running = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(AtomicBool::new(false));
        let (go_on, tell) = (Arc::clone(&running), Arc::clone(&ended));
        std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || {
                let mut ports = ports;
                while go_on.load(Ordering::Relaxed) && !ports.is_empty() {
                    ports.retain(|(number, port)| {
                        let ending = port.ending();
                        if let Some(ending) = ending {
                            let text = format!("\nPort {number}: {ending}\n");
                            // Beside the shell's own output, as DPDK's event callbacks print.
                            _ = std::io::stdout().write_all(text.as_bytes());
                            tell.store(true, Ordering::Relaxed);
                        }
                        ending.is_none()
                    });
                    std::thread::sleep(LOOK);
                }
            })?;
        Ok(Self { running, ended })
    }

    /// Whether some port should be closed.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Relaxed);
    }
}
