//! Interrupt vectors as eventfds: the driver waits on [`Interrupt`]s, the device raises them
//! through its [`InterruptLines`]. Control threads only on the driver's side.

use crate::BusError;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

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

    /// `count` of them, for a function that has `there`.
    ///
    /// # Errors
    /// [`BusError::Vectors`] when it has fewer; as [`new`](Self::new).
    pub(crate) fn several(count: usize, there: usize) -> Result<Vec<Self>, BusError> {
        if count > there {
            return Err(BusError::Vectors {
                asked: count,
                there,
            });
        }
        (0..count).map(|_| Self::new()).collect()
    }

    /// A vector from an eventfd that somebody else made.
    ///
    /// # Errors
    /// [`BusError::Refused`] for a descriptor of another kind: a store into it could do anything,
    /// such as never return. [`BusError::Os`] when it cannot be made non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, BusError> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let kind = std::fs::read_link(&link).map_err(|source| BusError::Os {
            what: "the kind of a descriptor (/proc/self/fd)",
            source,
        })?;
        if kind != Path::new("anon_inode:[eventfd]") {
            return Err(BusError::Refused {
                what: "an interrupt",
                reason: format!("{} is no eventfd", kind.display()),
            });
        }
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(BusError::os("O_NONBLOCK"))?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// A vector over a descriptor of any kind, as a driver may wait on one that can also hang up.
    /// Never for a descriptor that the device's side sent: see [`from_fd`](Self::from_fd).
    ///
    /// # Errors
    /// [`BusError::Os`] when it cannot be made non-blocking.
    pub fn from_any(fd: OwnedFd) -> Result<Self, BusError> {
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

    /// Lets a raise go on that stands still, without standing still here.
    fn unstick(&self) {
        if fcntl(&self.fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
            self.take();
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

/// How long a raise may take before its eventfd is taken for a trap.
const STUCK: Duration = Duration::from_millis(200);

/// One line of the device's side.
#[derive(Debug, Default)]
struct Line {
    interrupt: Option<Interrupt>,
    /// Raised while nothing was joined.
    latched: AtomicBool,
}

/// The device's side: as many lines as it has vectors, each joined to an eventfd or to nothing.
#[derive(Debug)]
pub struct InterruptLines {
    lines: RwLock<Vec<Line>>,
    latching: bool,
}

impl InterruptLines {
    /// `vectors` lines, none joined. A raise of a line that is joined to nothing is lost.
    pub fn new(vectors: usize) -> Self {
        let lines = (0..vectors).map(|_| Line::default()).collect();
        Self {
            lines: RwLock::new(lines),
            latching: false,
        }
    }

    /// As [`new`](Self::new), but such a raise is kept and made when the line is joined: for
    /// backings whose driver takes all lines away for a moment when it adds one.
    pub fn latching(vectors: usize) -> Self {
        Self {
            latching: true,
            ..Self::new(vectors)
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Line>> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines, for changing them.
    ///
    /// Whoever gave an eventfd can make it blocking and fill its counter, and a raise then stands
    /// still with the lines in its hands. That must not hold the session up that is to end for
    /// it: after a while the counters are emptied, which lets such a raise go on.
    fn write(&self) -> RwLockWriteGuard<'_, Vec<Line>> {
        let start = Instant::now();
        loop {
            match self.lines.try_write() {
                Ok(lines) => return lines,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            if start.elapsed() > STUCK {
                for interrupt in self
                    .read()
                    .iter()
                    .filter_map(|line| line.interrupt.as_ref())
                {
                    interrupt.unstick();
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether the device has no vector at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins `vector` to an eventfd, or to nothing; false when there is no such vector. A raise
    /// that was kept is made now.
    pub fn join(&self, vector: usize, interrupt: Option<Interrupt>) -> bool {
        let mut lines = self.write();
        let Some(line) = lines.get_mut(vector) else {
            return false;
        };
        if let Some(interrupt) = &interrupt {
            if std::mem::take(line.latched.get_mut()) {
                interrupt.raise();
            }
        }
        line.interrupt = interrupt;
        true
    }

    /// Whether a raise of `vector` is kept.
    pub fn is_latched(&self, vector: usize) -> bool {
        let lines = self.read();
        let line = lines.get(vector);
        line.is_some_and(|line| line.latched.load(Ordering::Acquire))
    }

    /// Forgets all raises that were kept.
    pub fn forget_latched(&self) {
        for line in self.read().iter() {
            line.latched.store(false, Ordering::Release);
        }
    }

    /// Raises `vector`; false when nothing listens there, now or later.
    pub fn raise(&self, vector: usize) -> bool {
        let lines = self.read();
        let Some(line) = lines.get(vector) else {
            return false;
        };
        match &line.interrupt {
            Some(interrupt) => interrupt.raise(),
            None => {
                line.latched.store(self.latching, Ordering::Release);
                self.latching
            }
        }
    }
}
