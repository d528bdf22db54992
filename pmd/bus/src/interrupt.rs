//! Interrupt vectors as eventfds: the driver waits on [`Interrupt`]s, the device raises them
//! through its [`InterruptLines`]. Control threads only on the driver's side.

use crate::BusError;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

/// One interrupt vector as the driver holds it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interrupt {
    fd: Arc<OwnedFd>,
}

impl Interrupt {
    /// A vector that nobody raises yet.
    ///
    /// # Errors
    /// [`BusError::Os`] when no eventfd can be had.
    pub fn new() -> Result<Self, BusError> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let fd = EventFd::from_value_and_flags(0, flags).map_err(BusError::os("eventfd"))?;
        Ok(Self {
            fd: Arc::new(fd.into()),
        })
    }

    /// A vector from an eventfd that somebody else made. Another kind of descriptor shows as raises
    /// that fail or go nowhere.
    ///
    /// # Errors
    /// [`BusError::Os`] when it cannot be made non-blocking: a raise must not stop its thread.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, BusError> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(BusError::os("O_NONBLOCK"))?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Takes the raises since the last call; zero when there were none.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match nix::unistd::read(&self.fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Raises the vector. A full counter is as good as a raise.
    pub fn raise(&self) -> bool {
        matches!(
            nix::unistd::write(&self.fd, &1u64.to_ne_bytes()),
            Ok(8) | Err(Errno::EAGAIN)
        )
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The device's side: as many lines as it has vectors, each joined to an eventfd or to nothing.
#[derive(Debug)]
pub struct InterruptLines {
    lines: RwLock<Vec<Option<Interrupt>>>,
}

impl InterruptLines {
    /// `vectors` lines, none joined.
    pub fn new(vectors: usize) -> Self {
        Self {
            lines: RwLock::new(vec![None; vectors]),
        }
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.lines
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Whether the device has no vector at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins `vector` to an eventfd, or to nothing; false when there is no such vector.
    pub fn join(&self, vector: usize, interrupt: Option<Interrupt>) -> bool {
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        match lines.get_mut(vector) {
            Some(line) => {
                *line = interrupt;
                true
            }
            None => false,
        }
    }

    /// Raises `vector`; false when nothing listens there.
    pub fn raise(&self, vector: usize) -> bool {
        let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner);
        lines
            .get(vector)
            .and_then(Option::as_ref)
            .is_some_and(Interrupt::raise)
    }
}
