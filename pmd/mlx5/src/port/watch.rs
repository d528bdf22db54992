//! What ends a port from outside: its device fails, or the platform wants the function back.

use crate::control::Control;
use crate::health::Fault;
use pollux_bus::Interrupt;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a port should be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The device was given up; commands fail, queues are inert.
    Failed(Fault),
    /// The function is being unbound or pulled. It still works; whoever asked waits until the port
    /// is closed.
    WantedBack,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(fault) => write!(f, "the device has failed: {fault}"),
            Self::WantedBack => f.write_str(
                "the platform wants the adapter back (unbound or pulled), close the port",
            ),
        }
    }
}

/// Looks at a port's end without holding the port. Cheap to clone; any thread but one that polls
/// queues may look.
#[derive(Clone)]
pub struct PortWatch {
    control: Control,
    removal: Option<Interrupt>,
    wanted: Arc<AtomicBool>,
}

impl fmt::Debug for PortWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortWatch")
            .field("ending", &self.ending())
            .finish()
    }
}

impl PortWatch {
    pub(super) fn new(control: Control, removal: Option<Interrupt>) -> Self {
        Self {
            control,
            removal,
            wanted: Arc::default(),
        }
    }

    /// Why the port should be closed, if it should.
    pub fn ending(&self) -> Option<Ending> {
        if let Some(fault) = self.control.shared().fault() {
            return Some(Ending::Failed(fault));
        }
        // Once asked, the platform need not ask again.
        if self
            .removal
            .as_ref()
            .is_some_and(|removal| removal.take() > 0)
        {
            self.wanted.store(true, Ordering::Relaxed);
        }
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted.then_some(Ending::WantedBack)
    }
}
