//! One client's connection: whole messages out of a byte stream, with the descriptors that came
//! with them.
//!
//! The length in a header is believed only up to [`MAX_MESSAGE`], and each message is read to its
//! end whatever its command is, so that the next one begins where it should. While this side waits
//! for its client it also minds the stop line, and turns away further clients.

use super::listener::Listener;
use super::message::{Header, MAX_FDS, MAX_MESSAGE};
use crate::{BusError, Interrupt, rights};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long a client may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients that may stand at the door.
const AT_DOOR: usize = 16;

/// Why a connection cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    /// The client closed its end, between two messages or within one.
    Closed { within: bool },
    /// The server is to stop.
    Stopped,
    /// The client cannot be understood or does not read.
    Nonsense(String),
}

/// Tells a server to stop, from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    line: Interrupt,
}

impl Stop {
    /// One that nobody has raised.
    ///
    /// # Errors
    /// [`BusError::Os`] when no eventfd can be had.
    pub fn new() -> Result<Self, BusError> {
        Ok(Self {
            asked: Arc::default(),
            line: Interrupt::new()?,
        })
    }

    /// Stops the servers that mind this.
    pub fn raise(&self) {
        self.asked.store(true, Ordering::Release);
        self.line.raise();
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// A whole message.
#[derive(Debug)]
pub(super) struct Incoming {
    pub header: Header,
    pub fds: Vec<OwnedFd>,
    /// Descriptors were lost, or there are too many.
    pub bad_fds: bool,
}

/// What this side minds while it waits.
pub(super) struct Watch<'a> {
    pub listener: &'a Listener,
    pub stop: &'a Stop,
    /// Clients that came while this one is served, and have not asked anything yet. One that asks
    /// is told that the device is busy; one that is still silent when this one leaves is next.
    pub door: &'a mut VecDeque<OwnedFd>,
    /// Called for each client that is turned away.
    pub turned_away: &'a mut dyn FnMut(),
}

pub(super) struct Stream {
    socket: OwnedFd,
}

impl Stream {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Who the client is: its process, if the kernel says so.
    pub fn peer(&self) -> Option<i32> {
        let credentials =
            nix::sys::socket::getsockopt(&self.socket, nix::sys::socket::sockopt::PeerCredentials);
        credentials.ok().map(|credentials| credentials.pid())
    }

    /// The next message; its body replaces what `body` holds.
    pub fn receive(&self, body: &mut Vec<u8>, watch: &mut Watch<'_>) -> Result<Incoming, Broken> {
        // A client that never pauses must not keep the server from stopping.
        if watch.stop.is_raised() {
            return Err(Broken::Stopped);
        }
        let mut fds = Vec::new();
        let mut bad_fds = false;
        let mut bytes = [0; size_of::<Header>()];
        self.fill(&mut bytes, true, &mut fds, &mut bad_fds, watch)?;
        let header = Header::read_from_bytes(&bytes)
            .map_err(|_| Broken::Nonsense("a header that cannot be read".to_owned()))?;
        let size = header.size as usize;
        if !(size_of::<Header>()..=MAX_MESSAGE).contains(&size) {
            return Err(Broken::Nonsense(format!(
                "a message of {size} bytes, {} to {MAX_MESSAGE} are possible",
                size_of::<Header>()
            )));
        }
        body.clear();
        body.resize(size - size_of::<Header>(), 0);
        self.fill(body, false, &mut fds, &mut bad_fds, watch)?;
        Ok(Incoming {
            header,
            fds,
            bad_fds,
        })
    }

    /// Fills `bytes` from the stream.
    fn fill(
        &self,
        bytes: &mut [u8],
        first: bool,
        fds: &mut Vec<OwnedFd>,
        bad_fds: &mut bool,
        watch: &mut Watch<'_>,
    ) -> Result<(), Broken> {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rights::receive(self.socket.as_fd(), rest) {
                Ok(got) => {
                    *bad_fds |= got.cut || fds.len() + got.fds.len() > MAX_FDS;
                    if !*bad_fds {
                        fds.extend(got.fds);
                    }
                    if got.len == 0 {
                        let within = !first || done != 0;
                        return Err(Broken::Closed { within });
                    }
                    done += got.len;
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN, None, watch)?,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Broken::Closed { within: true }),
                    _ => return Err(Broken::Nonsense(format!("it cannot be read: {error}"))),
                },
            }
        }
        Ok(())
    }

    /// Sends a message of these parts, with a descriptor or without. Clients expect a whole header
    /// in their first read, so all goes out in one call if it can.
    pub fn send(
        &self,
        parts: &[&[u8]],
        fd: Option<BorrowedFd<'_>>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Broken> {
        let deadline = Instant::now() + PATIENCE;
        let whole = parts.concat();
        let raw: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let mut control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let mut done = 0;
        while let Some(rest) = whole.get(done..).filter(|rest| !rest.is_empty()) {
            let slices = [IoSlice::new(rest)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &slices, control, flags, None) {
                Ok(sent) => {
                    done += sent;
                    control = &[];
                }
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, Some(deadline), watch)?,
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => {
                    return Err(Broken::Closed { within: false });
                }
                Err(errno) => {
                    return Err(Broken::Nonsense(format!("it cannot be answered: {errno}")));
                }
            }
        }
        Ok(())
    }

    /// Waits until the stream is ready.
    fn wait(
        &self,
        what: PollFlags,
        deadline: Option<Instant>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Broken> {
        loop {
            let timeout = match deadline {
                None => PollTimeout::NONE,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let text = "it does not read its answers";
                        return Err(Broken::Nonsense(text.to_owned()));
                    }
                    // Rounded up: a rest below a millisecond must not spin.
                    PollTimeout::try_from(left.as_millis().saturating_add(1))
                        .unwrap_or(PollTimeout::MAX)
                }
            };
            let mut fds = vec![
                PollFd::new(self.socket.as_fd(), what),
                PollFd::new(watch.stop.line.as_fd(), PollFlags::POLLIN),
                PollFd::new(watch.listener.as_fd(), PollFlags::POLLIN),
            ];
            let at_door = watch.door.iter();
            fds.extend(at_door.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Broken::Nonsense(format!("poll: {errno}"))),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
            let is_ready = |at: usize| ready.get(at).copied().unwrap_or(false);
            if is_ready(1) {
                return Err(Broken::Stopped);
            }
            // Its own client first: one that has left makes room for the next.
            if is_ready(0) {
                return Ok(());
            }
            for at in (0..watch.door.len()).rev() {
                if is_ready(3 + at) {
                    if let Some(socket) = watch.door.remove(at) {
                        turn_away(&socket);
                        (watch.turned_away)();
                    }
                }
            }
            if is_ready(2) {
                if let Ok(Some(socket)) = watch.listener.accept() {
                    watch.door.push_back(socket);
                    // Who stands there longest without a word gives way.
                    if watch.door.len() > AT_DOOR {
                        watch.door.pop_front();
                        (watch.turned_away)();
                    }
                }
            }
        }
    }
}

/// Answers a further client's first question with "busy".
fn turn_away(socket: &OwnedFd) {
    let mut bytes = [0; size_of::<Header>()];
    let got = rights::receive(socket.as_fd(), &mut bytes);
    if !got.is_ok_and(|got| got.len == bytes.len()) {
        return;
    }
    if let Ok(question) = Header::read_from_bytes(&bytes) {
        let busy = question.refusal(Errno::EBUSY as u32);
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let slices = [IoSlice::new(busy.as_bytes())];
        let sent = sendmsg::<()>(socket.as_raw_fd(), &slices, &[], flags, None);
        // It may be gone already, and is dropped in any case.
        debug_assert!(sent.is_ok() || sent == Err(Errno::EPIPE));
    }
}

/// Waits until a client comes; `None` when the server is to stop.
pub(super) fn next_client(listener: &Listener, stop: &Stop) -> Result<Option<OwnedFd>, BusError> {
    loop {
        let mut fds = [
            PollFd::new(stop.line.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(BusError::os("poll")(errno)),
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| fd.any() == Some(true));
        if ready(0) {
            return Ok(None);
        }
        if ready(1) {
            if let Some(socket) = listener.accept()? {
                return Ok(Some(socket));
            }
        }
    }
}
