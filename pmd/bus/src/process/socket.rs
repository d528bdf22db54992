//! The socket: whole messages with descriptors, each with a deadline.

use super::message::{FDS, Message};
use crate::{BusError, rights};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, getsockopt, sendmsg, socketpair,
    sockopt,
};
use std::io::{Error, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// A connected pair of sockets: one end for [`connect`](super::connect), one for
/// [`serve`](super::serve). Both close on exec.
///
/// # Errors
/// [`BusError::Os`] when the process has no descriptor left.
pub fn pair() -> Result<(OwnedFd, OwnedFd), BusError> {
    socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(BusError::os("socketpair"))
}

/// One end of the connection.
pub(super) struct Socket {
    fd: OwnedFd,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> Result<Self, BusError> {
        let found = getsockopt(&fd, sockopt::SockType).map_err(BusError::os("SO_TYPE"))?;
        if found != SockType::SeqPacket {
            return Err(BusError::Refused {
                what: "the socket",
                reason: format!("it is a {found:?} socket; use a SOCK_SEQPACKET pair"),
            });
        }
        Ok(Self { fd })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// `BrokenPipe` when the other end is closed, `TimedOut` when it does not read.
    pub fn send(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), Error> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            let bytes = [IoSlice::new(message.as_bytes())];
            match sendmsg::<()>(self.fd.as_raw_fd(), &bytes, control, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, Some(deadline))?,
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Err(Errno::EPIPE.into()),
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Receives one message with at most [`FDS`] descriptors; `None` when the other end is closed.
    ///
    /// # Errors
    /// `TimedOut` after the deadline, `InvalidData` for anything that is not one whole message.
    pub fn receive(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<(Message, Vec<OwnedFd>)>, Error> {
        // One byte more than a message, so that a longer one shows.
        let mut bytes = [0; size_of::<Message>() + 1];
        let got = loop {
            match rights::receive(self.fd.as_fd(), &mut bytes) {
                Ok(got) => break got,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN, deadline)?,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(error),
                },
            }
        };
        let (length, fds) = (got.len, got.fds);
        if length == 0 && fds.is_empty() {
            return Ok(None);
        }
        let nonsense = |what: String| Error::new(ErrorKind::InvalidData, what);
        if got.cut || length != size_of::<Message>() {
            let want = size_of::<Message>();
            return Err(nonsense(format!(
                "a message of {length} bytes, {want} expected"
            )));
        }
        if fds.len() > FDS {
            return Err(nonsense(format!(
                "{} descriptors with a message, at most {FDS}",
                fds.len()
            )));
        }
        let message = Message::read_from_prefix(&bytes)
            .map(|(message, _)| message)
            .map_err(|_| nonsense("a message that cannot be read".to_owned()))?;
        Ok(Some((message, fds)))
    }

    /// Whether the other end is closed.
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::empty())];
        let hung = |fd: &PollFd<'_>| {
            fd.revents()
                .is_some_and(|seen| seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
        };
        poll(&mut fds, PollTimeout::ZERO).is_ok() && fds.iter().any(hung)
    }

    fn wait(&self, what: PollFlags, deadline: Option<Instant>) -> Result<(), Error> {
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        "no answer within the deadline",
                    ));
                }
                // Rounded up: a rest below a millisecond must not spin.
                let millis = left.as_millis().saturating_add(1);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut [PollFd::new(self.fd.as_fd(), what)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}
