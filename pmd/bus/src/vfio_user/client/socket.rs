//! The socket: bytes in order, descriptors beside them, every step with a deadline.

use crate::vfio_user::message::Header;
use crate::{BusError, rights};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket,
};
use std::io::{Error, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Descriptors that are taken with one answer; the protocol has at most one per region.
pub(super) const FDS: usize = 8;

/// Bytes that are read and thrown away at the end.
const FAREWELL: usize = 1 << 20;

/// Connects to the socket at `path`.
pub(super) fn dial(path: &Path, deadline: Instant) -> Result<UnixStream, BusError> {
    let unreachable = |source: Error, remedy| BusError::Unreachable {
        path: path.to_owned(),
        source,
        remedy,
    };
    let address = UnixAddr::new(path)
        .map_err(|errno| unreachable(errno.into(), "a socket's path has at most 107 bytes"))?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(BusError::os("socket"))?;
    loop {
        let errno = match connect(fd.as_raw_fd(), &address) {
            Ok(()) | Err(Errno::EISCONN) => return Ok(UnixStream::from(fd)),
            Err(errno) => errno,
        };
        let remedy = match errno {
            Errno::EINTR => continue,
            // The queue of drivers that wait to be served is full.
            Errno::EAGAIN if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Errno::EAGAIN => "the device serves others and takes nobody more; close those first",
            Errno::ENOENT => "start the program that serves the device, or correct the path",
            Errno::EACCES | Errno::EPERM => {
                "run as the user who serves the device, or have the socket made for this user too"
            }
            // A file that is no socket gives the same error as a socket without a server.
            Errno::ECONNREFUSED => "nobody serves it any more; start the program that does",
            Errno::EPROTOTYPE => "it is another kind of socket; a stream socket is wanted",
            _ => "look at the path",
        };
        return Err(unreachable(errno.into(), remedy));
    }
}

/// One end of the connection.
pub(super) struct Socket {
    stream: UnixStream,
}

impl Socket {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Sends one message, with descriptors beside its first byte.
    ///
    /// # Errors
    /// `BrokenPipe` when the other end is closed, `TimedOut` when it does not read.
    pub fn send(
        &self,
        header: &Header,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), Error> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let message = [header.as_bytes(), body].concat();
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let mut sent = 0;
        while let Some(rest) = message.get(sent..).filter(|rest| !rest.is_empty()) {
            let rights = [ControlMessage::ScmRights(&raw)];
            let with_fds = sent == 0 && !raw.is_empty();
            let control = if with_fds { &rights[..] } else { &[][..] };
            let bytes = [IoSlice::new(rest)];
            match sendmsg::<()>(self.stream.as_raw_fd(), &bytes, control, flags, None) {
                Ok(part) => sent += part,
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, deadline)?,
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Err(Errno::EPIPE.into()),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }

    /// Receives the header of one message; `None` when the other end is closed.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn header(
        &self,
        fds: &mut Vec<OwnedFd>,
        deadline: Instant,
    ) -> Result<Option<Header>, Error> {
        let mut bytes = [0; size_of::<Header>()];
        if !self.fill(&mut bytes, fds, deadline)? {
            return Ok(None);
        }
        Header::read_from_bytes(&bytes)
            .map(Some)
            .map_err(|_| nonsense("a header that cannot be read".to_owned()))
    }

    /// Fills `bytes` and collects descriptors; false when the other end is closed before the first.
    ///
    /// # Errors
    /// `TimedOut` after the deadline, `UnexpectedEof` in the middle of a message, `InvalidData` for
    /// more than [`FDS`] descriptors.
    pub fn fill(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let got = match rights::receive(self.stream.as_fd(), rest) {
                Ok(got) => got,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {
                        self.wait(PollFlags::POLLIN, deadline)?;
                        continue;
                    }
                    ErrorKind::Interrupted => continue,
                    ErrorKind::ConnectionReset => rights::Received::default(),
                    _ => return Err(error),
                },
            };
            fds.extend(got.fds);
            if got.cut || fds.len() > FDS {
                return Err(nonsense(format!(
                    "more than {FDS} descriptors in one message"
                )));
            }
            let part = got.len;
            if part == 0 {
                if filled == 0 {
                    return Ok(false);
                }
                let text = "it closed the connection in the middle of a message";
                return Err(Error::new(ErrorKind::UnexpectedEof, text));
            }
            filled += part;
        }
        Ok(true)
    }

    /// Closes the sending half and waits until the other end closes, or the deadline; true when
    /// it did.
    pub fn finish(&self, deadline: Instant) -> bool {
        // An error says that it is closed already, which reading will show.
        drop(self.stream.shutdown(Shutdown::Write));
        let mut fds = Vec::new();
        let mut bytes = [0; 4096];
        for _ in 0..FAREWELL / bytes.len() {
            // One byte at least: what is on its way is of no interest any more.
            match self.fill(bytes.get_mut(..1).unwrap_or_default(), &mut fds, deadline) {
                Ok(true) => fds.clear(),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Whether the other end is closed.
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let hung = |fd: &PollFd<'_>| {
            fd.revents()
                .is_some_and(|seen| seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
        };
        poll(&mut fds, PollTimeout::ZERO).is_ok() && fds.iter().any(hung)
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = "no answer within the deadline";
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        // Rounded up: a rest below a millisecond must not spin.
        let millis = left.as_millis().saturating_add(1);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.stream.as_fd(), what)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

/// What makes no sense.
pub(super) fn nonsense(what: String) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
