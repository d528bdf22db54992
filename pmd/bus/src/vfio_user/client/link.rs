//! One question at a time over the socket, and what is known of who answers.

use super::answer::Answer;
use super::socket::{Socket, nonsense};
use crate::BusError;
use crate::vfio_user::message::{Header, command, flag};
use nix::errno::Errno;
use std::io::{Error, ErrorKind};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, KnownLayout};

const HEADER: usize = size_of::<Header>();

/// Descriptors that are sent in one message at most, whatever the other end takes (the kernel's
/// own limit is 253).
const MAX_FDS: usize = 64;

/// Bytes of registers in one message; no register access is longer.
const MAX_DATA: usize = 256;

/// What is known of the other end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    /// It closed its end, and so touches nothing of ours.
    Closed,
    /// It was silent or talked nonsense; it may still touch our memory.
    Lost,
}

struct State {
    health: Health,
    id: u16,
    /// Posted stores since the last answer: each may still be answered with an error.
    posted: u32,
}

/// See the module.
pub(super) struct Link {
    socket: Socket,
    patience: Duration,
    fds_per_message: usize,
    data_per_message: usize,
    state: Mutex<State>,
}

impl Link {
    pub fn new(stream: UnixStream, patience: Duration) -> Self {
        Self {
            socket: Socket::new(stream),
            patience,
            fds_per_message: 1,
            data_per_message: MAX_DATA,
            state: Mutex::new(State {
                health: Health::Up,
                // The first message, VERSION, has id 0, which a busy device's no takes for granted.
                id: u16::MAX,
                posted: 0,
            }),
        }
    }

    /// Takes over what the other end takes per message.
    pub fn limit(&mut self, fds: u64, data: u64) {
        let least = |limit: usize, given: u64| limit.min(usize::try_from(given).unwrap_or(limit));
        self.fds_per_message = least(MAX_FDS, fds).max(1);
        self.data_per_message = least(MAX_DATA, data).max(1);
    }

    /// Descriptors that one message may carry.
    pub fn fds_per_message(&self) -> usize {
        self.fds_per_message
    }

    /// Bytes of a region that one message may carry.
    pub fn data_per_message(&self) -> usize {
        self.data_per_message
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, waits for an answer with `lengths` bytes behind its header, and turns a no into an
    /// error.
    pub fn call(
        &self,
        what: &'static str,
        command: u16,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
        lengths: RangeInclusive<usize>,
    ) -> Result<Answer, BusError> {
        let mut state = self.lock();
        self.usable(&mut state, what)?;
        let deadline = Instant::now() + self.patience;
        let header = next(&mut state, command, request, 0);
        let sent = self.socket.send(&header, request, fds, deadline);
        let answer = match sent {
            Err(source) if source.kind() != ErrorKind::BrokenPipe => Err(source),
            // Also after it closed: a busy device sends its no unasked and leaves.
            _ => self.answer(&mut state, &header, lengths, deadline),
        };
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(errno)) => Err(BusError::Refused {
                what,
                reason: reason(errno),
            }),
            Err(source) => Err(self.lose(&mut state, what, source)),
        }
    }

    /// As [`call`](Self::call), for a question that is answered with one structure.
    pub fn ask<T: FromBytes + KnownLayout + Immutable>(
        &self,
        what: &'static str,
        command: u16,
        request: &[u8],
    ) -> Result<T, BusError> {
        let len = size_of::<T>();
        let answer = self.call(what, command, request, &[], len..=len)?;
        answer
            .read(0)
            .ok_or_else(|| self.nonsense(what, "an answer that is too short".to_owned()))
    }

    /// Sends what needs no answer.
    pub fn post(&self, what: &'static str, command: u16, request: &[u8]) {
        let mut state = self.lock();
        if self.usable(&mut state, what).is_err() {
            return;
        }
        let deadline = Instant::now() + self.patience;
        let header = next(&mut state, command, request, flag::NO_REPLY);
        state.posted = state.posted.saturating_add(1);
        if let Err(source) = self.socket.send(&header, request, &[], deadline) {
            // Nobody hears of a store that was lost, as on a bus; the next load will tell.
            drop(self.lose(&mut state, what, source));
        }
    }

    /// The answer to `question`, or the errno of its refusal.
    fn answer(
        &self,
        state: &mut State,
        question: &Header,
        lengths: RangeInclusive<usize>,
        deadline: Instant,
    ) -> Result<Result<Answer, u32>, Error> {
        loop {
            let mut fds = Vec::new();
            let Some(header) = self.socket.header(&mut fds, deadline)? else {
                return Err(closed());
            };
            if !header.is_answer() {
                return Err(nonsense(format!(
                    "it sent a request of its own (command {}); only devices that reach memory through its file are served",
                    header.command
                )));
            }
            let ours = (header.id, header.command) == (question.id, question.command);
            let failed = header.flags & flag::ERROR != 0;
            // A store that nobody waits for should not be answered; some servers answer a bad one.
            let stray = header.command == command::REGION_WRITE && failed;
            let known = ours || (stray && state.posted > 0);
            if !known {
                return Err(nonsense(format!(
                    "an answer to command {} (id {}) in place of {} (id {})",
                    header.command, header.id, question.command, question.id
                )));
            }
            let size = usize::try_from(header.size).unwrap_or(usize::MAX);
            let length = size.checked_sub(HEADER);
            if failed {
                if length != Some(0) {
                    return Err(nonsense(format!("a refusal of {size} bytes, 16 expected")));
                }
                if ours {
                    state.posted = 0;
                    return Ok(Err(header.error));
                }
                state.posted -= 1;
                continue;
            }
            let Some(length) = length.filter(|length| lengths.contains(length)) else {
                return Err(nonsense(format!(
                    "an answer of {size} bytes to command {}, {} to {} expected",
                    question.command,
                    lengths.start().saturating_add(HEADER),
                    lengths.end().saturating_add(HEADER)
                )));
            };
            let mut bytes = vec![0; length];
            if !self.socket.fill(&mut bytes, &mut fds, deadline)? {
                return Err(closed());
            }
            state.posted = 0;
            return Ok(Ok(Answer { bytes, fds }));
        }
    }

    /// The error for an answer that was well-formed but makes no sense. The other end is not
    /// believed any more.
    pub fn nonsense(&self, what: &'static str, text: String) -> BusError {
        self.lose(&mut self.lock(), what, nonsense(text))
    }

    fn lose(&self, state: &mut State, what: &'static str, source: Error) -> BusError {
        // The end of a stream may be a half that was shut; only a closed socket is a promise.
        state.health = match self.socket.is_closed() {
            true => Health::Closed,
            false => Health::Lost,
        };
        BusError::Peer { what, source }
    }

    fn usable(&self, state: &mut State, what: &'static str) -> Result<(), BusError> {
        if state.health == Health::Lost && self.socket.is_closed() {
            state.health = Health::Closed;
        }
        let source = match state.health {
            Health::Up => return Ok(()),
            Health::Closed => closed(),
            Health::Lost => {
                let text = "it was silent or talked nonsense before";
                Error::new(ErrorKind::NotConnected, text)
            }
        };
        Err(BusError::Peer { what, source })
    }

    /// Whether the other end closed, and so touches nothing of ours.
    pub fn is_closed(&self) -> bool {
        let mut state = self.lock();
        self.usable(&mut state, "the end").is_err() && state.health == Health::Closed
    }

    /// Takes leave: waits until the other end has closed.
    pub fn finish(&self) {
        let mut state = self.lock();
        if state.health == Health::Up {
            let left = self.socket.finish(Instant::now() + self.patience);
            state.health = if left { Health::Closed } else { Health::Lost };
        }
    }
}

fn next(state: &mut State, command: u16, request: &[u8], flags: u32) -> Header {
    state.id = state.id.wrapping_add(1);
    Header {
        flags: flag::COMMAND | flags,
        ..Header::question(state.id, command, request.len())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}

fn reason(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(0) => "it gave no reason".to_owned(),
        Ok(number) => Errno::from_raw(number).to_string(),
        Err(_) => format!("error {errno}"),
    }
}
