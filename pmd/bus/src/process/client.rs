//! The driver's end: a [`Function`] whose device is reached by messages.

use super::message::{DATA, FDS, Ids, Message, VERSION, kind};
use super::socket::Socket;
use crate::local::{limits, register_window};
use crate::{
    BusError, DmaDomain, DmaLimits, DmaSpace, Function, Identity, Interrupt, Iova, MappedWindow,
    Registers, Trap,
};
use pollux_mempool::page::system_page_size;
use pollux_mempool::{Segment, Window};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer may take. Longer than a device may take to let go of memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest register region, number of windows and of vectors that is believed (MSI-X has
/// 2,048 vectors at most).
const MAX_REGION: u64 = 1 << 32;
const MAX_WINDOWS: u64 = 64;
const MAX_VECTORS: u64 = 2048;

/// Connects a driver to the device that another process serves on the other end of `socket`.
///
/// # Errors
/// [`BusError::InUse`], or [`BusError::Peer`] when the other process is gone, silent or talks
/// nonsense.
pub fn connect(socket: OwnedFd) -> Result<Arc<dyn Function>, BusError> {
    connect_within(socket, PATIENCE)
}

/// As [`connect`], with a deadline for every answer of the connection's life.
///
/// # Errors
/// As [`connect`].
pub fn connect_within(socket: OwnedFd, patience: Duration) -> Result<Arc<dyn Function>, BusError> {
    let link = Arc::new(Link::new(Socket::new(socket)?, patience));
    let (hello, _) = link.call("hello", &Message::new(kind::HELLO, [VERSION, 0, 0]), &[])?;
    let nonsense = |what: String| BusError::Peer {
        what: "hello",
        source: Error::new(ErrorKind::InvalidData, what),
    };
    let name = hello
        .data()
        .and_then(|name| std::str::from_utf8(name).ok())
        .filter(|name| !name.is_empty() && !name.contains(char::is_control))
        .ok_or_else(|| nonsense("a name that is no text".to_owned()))?;
    let (size, vectors, count) = (hello.a, hello.b, hello.c);
    if size == 0 || size > MAX_REGION || vectors > MAX_VECTORS || count > MAX_WINDOWS {
        return Err(nonsense(format!(
            "{size:#x} register bytes, {vectors} vectors, {count} windows; at most {MAX_REGION:#x}, {MAX_VECTORS}, {MAX_WINDOWS}"
        )));
    }
    let ids = Ids::unpack(hello.d);
    let identity = Identity {
        name: name.to_owned(),
        vendor: ids.vendor,
        device: ids.device,
        emulated: ids.emulated,
        node: ids.node,
    };
    let mut windows: Vec<MappedWindow> = Vec::new();
    for index in 0..count {
        let window = fetch_window(&link, index, size)?;
        let (first, last) = (window.offset, window.offset + window.memory.len() as u64);
        let apart = |other: &MappedWindow| {
            other.offset >= last || other.offset + other.memory.len() as u64 <= first
        };
        if !windows.iter().all(apart) {
            return Err(nonsense(format!(
                "register window {index} overlaps another"
            )));
        }
        windows.push(window);
    }
    Ok(Arc::new(ProcessFunction {
        identity,
        size,
        vectors: vectors as usize,
        windows,
        domain: DmaDomain::new(Box::new(Space(Arc::clone(&link)))),
        trap: Arc::clone(&link) as Arc<dyn Trap>,
        link,
    }))
}

fn fetch_window(link: &Link, index: u64, size: u64) -> Result<MappedWindow, BusError> {
    let what = "a register window";
    let (answer, fds) = link.call(what, &Message::new(kind::WINDOW, [index, 0, 0]), &[])?;
    let nonsense = |what: String| BusError::Peer {
        what: "a register window",
        source: Error::new(ErrorKind::InvalidData, what),
    };
    let (offset, len) = (answer.a, answer.b);
    let page = system_page_size() as u64;
    let inside = offset.checked_add(len).is_some_and(|end| end <= size);
    if len == 0 || !inside || offset % page != 0 || len % page != 0 {
        return Err(nonsense(format!(
            "{offset:#x}+{len:#x} of a region of {size:#x} bytes; whole pages inside it expected"
        )));
    }
    let [fd] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|fds| nonsense(format!("{} descriptors, one expected", fds.len())))?;
    let memory = Segment::from_fd(fd, answer.c, len as usize)?.whole();
    Ok(MappedWindow { offset, memory })
}

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
    sequence: u32,
}

/// One question at a time over the socket.
struct Link {
    socket: Socket,
    patience: Duration,
    state: Mutex<State>,
}

impl Link {
    fn new(socket: Socket, patience: Duration) -> Self {
        Self {
            socket,
            patience,
            state: Mutex::new(State {
                health: Health::Up,
                sequence: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, waits for the answer, and turns a no into an error.
    fn call(
        &self,
        what: &'static str,
        question: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Message, Vec<OwnedFd>), BusError> {
        let mut state = self.lock();
        self.usable(&mut state, what)?;
        state.sequence = state.sequence.wrapping_add(1);
        let question = Message {
            sequence: state.sequence,
            ..*question
        };
        let deadline = Instant::now() + self.patience;
        let answer = self
            .socket
            .send(&question, fds, deadline)
            .and_then(|()| self.socket.receive(Some(deadline)));
        let lost = |state: &mut State, source: Error| {
            state.health = match source.kind() {
                ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => Health::Closed,
                _ => Health::Lost,
            };
            Err(BusError::Peer { what, source })
        };
        match answer {
            Err(source) => lost(&mut state, source),
            Ok(None) => lost(&mut state, closed()),
            Ok(Some((answer, fds))) => {
                if answer.kind != question.kind || answer.sequence != question.sequence {
                    let text = "an answer to another question";
                    return lost(&mut state, Error::new(ErrorKind::InvalidData, text));
                }
                answer.outcome(what, &question)?;
                Ok((answer, fds))
            }
        }
    }

    /// Sends what has no answer.
    fn post(&self, message: &Message) {
        let mut state = self.lock();
        if self.usable(&mut state, "a store").is_err() {
            return;
        }
        let deadline = Instant::now() + self.patience;
        if let Err(source) = self.socket.send(message, &[], deadline) {
            let closed = source.kind() == ErrorKind::BrokenPipe;
            state.health = if closed { Health::Closed } else { Health::Lost };
        }
    }

    fn usable(&self, state: &mut State, what: &'static str) -> Result<(), BusError> {
        if state.health == Health::Lost && self.socket.is_closed() {
            state.health = Health::Closed;
        }
        match state.health {
            Health::Up => Ok(()),
            Health::Closed => Err(BusError::Peer {
                what,
                source: closed(),
            }),
            Health::Lost => {
                let text = "it was silent or talked nonsense before";
                Err(BusError::Peer {
                    what,
                    source: Error::new(ErrorKind::NotConnected, text),
                })
            }
        }
    }

    fn is_closed(&self) -> bool {
        let mut state = self.lock();
        self.usable(&mut state, "the end").is_err() && state.health == Health::Closed
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}

impl Trap for Link {
    fn load(&self, offset: u64, bytes: &mut [u8]) {
        let mut at = offset;
        for part in bytes.chunks_mut(DATA) {
            let mut question = Message::new(kind::LOAD, [at, 0, 0]);
            question.len = part.len() as u32;
            let answer = self.call("a register load", &question, &[]);
            match answer.as_ref().ok().and_then(|(answer, _)| answer.data()) {
                Some(data) if data.len() == part.len() => part.copy_from_slice(data),
                // What a load from a pulled card gives.
                _ => part.fill(0xff),
            }
            at = at.wrapping_add(part.len() as u64);
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        for part in bytes.chunks(DATA) {
            self.post(&Message::new(kind::STORE, [at, 0, 0]).with_data(part));
            at = at.wrapping_add(part.len() as u64);
        }
    }
}

struct Space(Arc<Link>);

impl DmaSpace for Space {
    fn limits(&self) -> DmaLimits {
        limits()
    }

    fn map(&self, iova: Iova, memory: &Window) -> Result<(), BusError> {
        let segment = memory.segment();
        let fd = segment.fd().ok_or_else(|| BusError::Refused {
            what: "a mapping",
            reason: format!("segment {:?} has no file to pass on", segment.name()),
        })?;
        let offset = segment.fd_offset() + memory.segment_offset() as u64;
        let question = Message::new(kind::MAP, [iova.0, memory.len() as u64, offset]);
        self.0.call("a mapping", &question, &[fd]).map(drop)
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        match self.0.call(
            "an unmapping",
            &Message::new(kind::UNMAP, [iova.0, len, 0]),
            &[],
        ) {
            Ok(_) => Ok(()),
            // A process that closed its end has forgotten all that it had of us.
            Err(BusError::Peer { .. }) if self.0.is_closed() => Ok(()),
            Err(refused) => Err(refused),
        }
    }
}

struct ProcessFunction {
    identity: Identity,
    size: u64,
    vectors: usize,
    windows: Vec<MappedWindow>,
    domain: Arc<DmaDomain>,
    trap: Arc<dyn Trap>,
    link: Arc<Link>,
}

impl Function for ProcessFunction {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn register_size(&self) -> u64 {
        self.size
    }

    fn registers(&self, offset: u64, len: u64) -> Result<Registers, BusError> {
        register_window(&self.windows, &self.trap, self.size, offset, len)
    }

    fn domain(&self) -> &Arc<DmaDomain> {
        &self.domain
    }

    fn vectors(&self) -> usize {
        self.vectors
    }

    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError> {
        let interrupts = Interrupt::several(count, self.vectors)?;
        self.disable_interrupts()?;
        let mut first = 0;
        for part in interrupts.chunks(FDS) {
            let fds: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
            let question = Message::new(kind::ENABLE_INTERRUPTS, [first, 0, 0]);
            self.link.call("interrupts", &question, &fds)?;
            first += part.len() as u64;
        }
        Ok(interrupts)
    }

    fn disable_interrupts(&self) -> Result<(), BusError> {
        let question = Message::new(kind::DISABLE_INTERRUPTS, [0; 3]);
        self.link.call("interrupts off", &question, &[]).map(drop)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        let question = Message::new(kind::BUS_MASTER, [u64::from(on), 0, 0]);
        self.link.call("bus mastering", &question, &[]).map(drop)
    }

    fn reset(&self) -> Result<(), BusError> {
        self.link
            .call("a reset", &Message::new(kind::RESET, [0; 3]), &[])
            .map(drop)
    }
}

impl Drop for ProcessFunction {
    fn drop(&mut self) {
        let goodbye = Message::new(kind::DISCONNECT, [0; 3]);
        if self.link.call("goodbye", &goodbye, &[]).is_ok() {
            // Answered after the device forgot our memory: as good as closed.
            self.link.lock().health = Health::Closed;
        }
    }
}
