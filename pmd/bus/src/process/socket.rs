//! The socket: whole messages with descriptors, each with a deadline.

use super::message::{FDS, Message};
use crate::BusError;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, getsockopt,
    recvmsg, sendmsg, socketpair, sockopt,
};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
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
        let mut control = cmsg_space!([RawFd; FDS]);
        // One byte more than a message, so that a longer one shows.
        let mut bytes = [0; size_of::<Message>() + 1];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let (length, truncated, fds) = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let fd = self.fd.as_raw_fd();
            match recvmsg::<()>(fd, &mut slices, Some(&mut control), flags) {
                Ok(got) => {
                    let mut fds = Vec::new();
                    for part in got.cmsgs()? {
                        if let ControlMessageOwned::ScmRights(raw) = part {
                            fds.extend(raw.into_iter().map(own));
                        }
                    }
                    let cut = MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC;
                    break (got.bytes, got.flags.intersects(cut), fds);
                }
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLIN, deadline)?,
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(other) => return Err(other.into()),
            }
        };
        if length == 0 && fds.is_empty() {
            return Ok(None);
        }
        let nonsense = |what: String| Error::new(ErrorKind::InvalidData, what);
        if truncated || length != size_of::<Message>() {
            let want = size_of::<Message>();
            return Err(nonsense(format!(
                "a message of {length} bytes, {want} expected"
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

/// Takes a descriptor that came with a message.
#[allow(unsafe_code)] // nix hands received descriptors over as plain numbers
fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for us while receiving the message, nobody else
    // knows its number, and each number is turned into an owner exactly once.
    unsafe { OwnedFd::from_raw_fd(raw) }
}
