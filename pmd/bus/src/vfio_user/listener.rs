//! The socket that clients find by its path.
//!
//! Made for its owner only unless asked otherwise: the mode is set on the socket before it has a
//! name, so that no moment exists in which others could connect. A socket that a dead server left
//! is removed; one that is served is not, and neither is anything that is no socket. Dropping the
//! listener removes the path, if it still leads to this socket.

use super::stream::{Stop, next_client};
use crate::BusError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode of a socket that only its owner may use.
pub const OWNER_ONLY: u32 = 0o600;

/// Clients that may wait to be let in.
const WAITING: i32 = 16;

/// A bound socket that listens.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path, so that nobody else's is removed.
    inode: (u64, u64),
}

fn failed(what: &'static str, path: &Path, source: impl Into<Error>) -> BusError {
    let source = source.into();
    BusError::Os {
        what,
        source: Error::new(source.kind(), format!("{}: {source}", path.display())),
    }
}

fn refused(path: &Path, why: &str) -> BusError {
    BusError::Refused {
        what: "the socket path",
        reason: format!("{} {why}", path.display()),
    }
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )
}

impl Listener {
    /// Binds to `path`, with the access bits `mode` ([`OWNER_ONLY`] where nothing else is wanted).
    ///
    /// # Errors
    /// [`BusError::Refused`] when another server is there, or something that is no socket;
    /// [`BusError::Os`] when the path is too long, its folder is missing or not writable.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, BusError> {
        let address = UnixAddr::new(path)
            .map_err(|errno| failed("the socket path (at most 107 bytes)", path, errno))?;
        let socket = stream_socket().map_err(BusError::os("socket"))?;
        fchmod(&socket, Mode::from_bits_truncate(mode))
            .map_err(BusError::os("fchmod of a socket"))?;
        // Two servers that find the same stale socket must not both remove it.
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let opened =
            File::open(folder).map_err(|why| failed("the socket's folder", folder, why))?;
        let alone = Flock::lock(opened, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed("locking the socket's folder", folder, errno))?;
        if let Err(errno) = bind(socket.as_raw_fd(), &address) {
            if errno != Errno::EADDRINUSE {
                return Err(failed("binding the socket", path, errno));
            }
            remove_stale(path, &address)?;
            bind(socket.as_raw_fd(), &address)
                .map_err(|errno| failed("binding the socket", path, errno))?;
        }
        let seen = std::fs::symlink_metadata(path)
            .map_err(|why| failed("looking at the socket", path, why))?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            inode: (seen.dev(), seen.ino()),
        };
        if seen.permissions().mode() & 0o777 != mode & 0o777 {
            // The umask took bits away that were asked for.
            std::fs::set_permissions(path, Permissions::from_mode(mode & 0o777))
                .map_err(|why| failed("the socket's mode", path, why))?;
        }
        let backlog = Backlog::new(WAITING).map_err(BusError::os("listen"))?;
        listen(&listener.socket, backlog).map_err(BusError::os("listen"))?;
        drop(alone);
        Ok(listener)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next client, for protocols other than vfio-user; `None` when `stop` is raised.
    ///
    /// # Errors
    /// [`BusError::Os`] when the listening socket fails.
    pub fn next(&self, stop: &Stop) -> Result<Option<UnixStream>, BusError> {
        next_client(self, stop).map(|client| client.map(UnixStream::from))
    }

    /// The next client, if one waits.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, BusError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(&self.socket, flags) {
            Ok(client) => Ok(Some(client)),
            // One that left again, or was never there, is no failure of ours.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            // This process or the machine is short of something: try again, a little later.
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(None)
            }
            Err(errno) => Err(BusError::os("accept")(errno)),
        }
    }
}

/// Removes what a dead server left at `path`.
fn remove_stale(path: &Path, address: &UnixAddr) -> Result<(), BusError> {
    let seen = match std::fs::symlink_metadata(path) {
        Ok(seen) => seen,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(failed("looking at the socket", path, why)),
    };
    if !seen.file_type().is_socket() {
        return Err(refused(
            path,
            "is there and is no socket; it is left alone, give another path or remove it",
        ));
    }
    let probe = stream_socket().map_err(BusError::os("socket"))?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => {
            std::fs::remove_file(path).map_err(|why| failed("removing a stale socket", path, why))
        }
        Err(errno @ (Errno::EACCES | Errno::EPERM)) => {
            Err(failed("asking whether the socket is served", path, errno))
        }
        // Connected, or the other's queue is full, or it is a socket of another kind.
        _ => Err(refused(
            path,
            "is served by another process; end that one first or give another path",
        )),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|seen| (seen.dev(), seen.ino()) == self.inode);
        if ours {
            // A folder that has become read-only leaves a stale socket; the next server removes it.
            drop(std::fs::remove_file(&self.path));
        }
    }
}
