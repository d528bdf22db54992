//! The device's end: questions of one driver, answered by a [`Device`].

use super::message::{FDS, Ids, Message, VERSION, kind};
use super::socket::Socket;
use crate::local::limits;
use crate::{BusError, Device, Host, HostMemory, Interrupt, InterruptLines, Iova, MappedWindow};
use pollux_mempool::Segment;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a driver may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The driver said goodbye. The socket can serve the next one, if the driver's side kept it.
    Goodbye,
    /// The driver's end was closed without a word; its process probably died.
    Vanished,
}

/// Serves one driver on `socket` with `device`, until it leaves. Runs on the caller's thread.
/// Whatever happens, the device is disconnected and has forgotten the driver's memory before this
/// returns.
///
/// # Errors
/// [`BusError::InUse`] when another driver holds the device, [`BusError::Peer`] when this one
/// talks nonsense or does not read its answers, [`BusError::Refused`] for the wrong kind of
/// socket.
pub fn serve(socket: &OwnedFd, device: &Arc<dyn Device>) -> Result<Ending, BusError> {
    let own = socket.try_clone().map_err(|source| BusError::Os {
        what: "dup",
        source,
    })?;
    let socket = Socket::new(own)?;
    let answer = |answer: &Message, fds: &[BorrowedFd<'_>]| {
        socket
            .send(answer, fds, Instant::now() + PATIENCE)
            .map_err(|source| BusError::Peer {
                what: "answering the driver",
                source,
            })
    };
    let waiting = |source| BusError::Peer {
        what: "waiting for the driver",
        source,
    };

    let Some((hello, _)) = socket.receive(None).map_err(waiting)? else {
        return Ok(Ending::Vanished);
    };
    let session = match Session::begin(device, &hello) {
        Ok(session) => session,
        Err(refused) => {
            answer(&hello.refusal(&refused), &[])?;
            return Err(refused);
        }
    };
    answer(&session.hello(&hello), &[])?;

    while let Some((question, fds)) = socket.receive(None).map_err(waiting)? {
        match question.kind {
            // Posted: nobody waits for an answer, and nobody hears of a bad one.
            kind::STORE => session.store(&question),
            kind::WINDOW => match session.window(&question) {
                Ok((window, fd)) => answer(&window, &[fd])?,
                Err(refused) => answer(&question.refusal(&refused), &[])?,
            },
            kind::DISCONNECT => {
                // The answer says that the device has forgotten the driver's memory.
                drop(session);
                answer(&question.answer(), &[])?;
                return Ok(Ending::Goodbye);
            }
            _ => match session.serve(&question, fds) {
                Ok(served) => answer(&served, &[])?,
                Err(refused) => answer(&question.refusal(&refused), &[])?,
            },
        }
    }
    Ok(Ending::Vanished)
}

fn nonsense(reason: impl Into<String>) -> BusError {
    BusError::Refused {
        what: "the question",
        reason: reason.into(),
    }
}

/// A connected driver. Dropping it disconnects the device.
struct Session<'a> {
    device: &'a Arc<dyn Device>,
    host: Host,
    windows: Vec<MappedWindow>,
}

impl<'a> Session<'a> {
    fn begin(device: &'a Arc<dyn Device>, question: &Message) -> Result<Self, BusError> {
        if question.kind != kind::HELLO {
            return Err(nonsense(format!("kind {} before hello", question.kind)));
        }
        if question.a != VERSION {
            return Err(nonsense(format!(
                "protocol version {}, this device speaks {VERSION}; use matching builds",
                question.a
            )));
        }
        let windows = device.mapped_windows();
        let host = Host {
            memory: HostMemory::new(),
            interrupts: Arc::new(InterruptLines::new(device.vectors())),
        };
        if !device.connect(host.clone()) {
            return Err(BusError::InUse {
                name: device.identity().name,
            });
        }
        Ok(Self {
            device,
            host,
            windows,
        })
    }

    fn hello(&self, question: &Message) -> Message {
        let identity = self.device.identity();
        let ids = Ids {
            vendor: identity.vendor,
            device: identity.device,
            emulated: identity.emulated,
            node: identity.node,
        };
        Message {
            a: self.device.register_size(),
            b: self.host.interrupts.len() as u64,
            c: self.windows.len() as u64,
            d: ids.pack(),
            ..question.answer().with_data(identity.name.as_bytes())
        }
    }

    fn window(&self, question: &Message) -> Result<(Message, BorrowedFd<'_>), BusError> {
        let index = usize::try_from(question.a).unwrap_or(usize::MAX);
        let window = self.windows.get(index).ok_or_else(|| {
            nonsense(format!("register window {index} of {}", self.windows.len()))
        })?;
        let segment = window.memory.segment();
        let fd = segment
            .fd()
            .ok_or_else(|| nonsense(format!("register window {index} has no file to pass on")))?;
        let answer = Message {
            a: window.offset,
            b: window.memory.len() as u64,
            c: segment.fd_offset() + window.memory.segment_offset() as u64,
            ..question.answer()
        };
        Ok((answer, fd))
    }

    fn store(&self, question: &Message) {
        if let Some(data) = question.data() {
            self.device.store(question.a, data);
        }
    }

    fn serve(&self, question: &Message, fds: Vec<OwnedFd>) -> Result<Message, BusError> {
        let (iova, len) = (Iova(question.a), question.b);
        match question.kind {
            kind::LOAD => {
                let mut answer = question.answer();
                answer.len = question.len;
                let wanted = question.len as usize;
                let bytes = answer
                    .data
                    .get_mut(..wanted)
                    .filter(|bytes| !bytes.is_empty());
                let bytes = bytes.ok_or_else(|| nonsense(format!("a load of {wanted} bytes")))?;
                self.device.load(question.a, bytes);
                return Ok(answer);
            }
            kind::MAP => self.map(question, fds)?,
            kind::UNMAP => self.host.memory.unmap(iova, len)?,
            kind::BUS_MASTER => match question.a {
                0 => self.host.memory.set_bus_master(false)?,
                1 => self.host.memory.set_bus_master(true)?,
                other => return Err(nonsense(format!("bus mastering {other}; 0 or 1"))),
            },
            kind::ENABLE_INTERRUPTS => self.enable(question.a, fds)?,
            kind::DISABLE_INTERRUPTS => self.disable(),
            kind::RESET => self.device.reset(),
            other => return Err(nonsense(format!("kind {other}"))),
        }
        Ok(question.answer())
    }

    fn map(&self, question: &Message, fds: Vec<OwnedFd>) -> Result<(), BusError> {
        let limit = limits().max_mappings;
        if self.host.memory.mappings() >= limit {
            return Err(BusError::MapLimit { limit });
        }
        let [fd] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|fds| nonsense(format!("{} descriptors with a mapping, one", fds.len())))?;
        let len = usize::try_from(question.b).map_err(|_| nonsense("a mapping too large"))?;
        let ceiling = limits().ceiling();
        if question
            .a
            .checked_add(question.b)
            .is_none_or(|end| end > ceiling)
        {
            return Err(nonsense(format!("a mapping that ends beyond {ceiling:#x}")));
        }
        let segment = Segment::from_fd(fd, question.c, len)?;
        self.host.memory.map(Iova(question.a), segment.whole())
    }

    fn enable(&self, first: u64, fds: Vec<OwnedFd>) -> Result<(), BusError> {
        let there = self.host.interrupts.len();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let asked = first.saturating_add(fds.len());
        if asked > there || fds.is_empty() || fds.len() > FDS {
            return Err(nonsense(format!("vectors {first}..{asked} of {there}")));
        }
        for (vector, fd) in (first..).zip(fds) {
            self.host
                .interrupts
                .join(vector, Some(Interrupt::from_fd(fd)?));
        }
        Ok(())
    }

    fn disable(&self) {
        for vector in 0..self.host.interrupts.len() {
            self.host.interrupts.join(vector, None);
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.device.disconnect();
        self.disable();
    }
}
