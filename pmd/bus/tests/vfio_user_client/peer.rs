//! A vfio-user device that does as its script says: honest where the script says nothing. The
//! layouts are written out here from the protocol's text, not taken from the code under test.

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const RESET: u16 = 13;

pub const REPLY: u32 = 1;
pub const NO_REPLY: u32 = 16;
pub const ERROR: u32 = 32;

/// Bytes of registers; pages 2 and 5 are mapped.
pub const SIZE: u64 = 0x6000;
pub const VECTORS: u32 = 40;

/// What a driver asked.
#[derive(Debug)]
pub struct Question {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Question {
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body[at..at + 8].try_into().unwrap())
    }
}

/// What the script does with a question.
pub enum Act {
    /// As an honest device does.
    Honest,
    /// A well-formed answer with this body and so many descriptors of the register file.
    Answer(Vec<u8>, usize),
    /// A well-formed answer with this body and a descriptor.
    AnswerWith(Vec<u8>, OwnedFd),
    /// A well-formed refusal.
    Refuse(u32),
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing, with the socket open.
    Silence,
    /// Closes the socket.
    Close,
}

/// Numbers after each other, in the machine's byte order.
#[derive(Clone, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn act(self) -> Act {
        Act::Answer(self.0, 0)
    }
}

/// A header; `size` counts it.
pub fn header(id: u16, command: u16, size: u32, flags: u32, error: u32) -> Vec<u8> {
    let body = Body::new().u16(id).u16(command);
    body.u32(size).u32(flags).u32(error).0
}

/// The register region's description with these mappable areas.
pub fn registers_info(size: u64, file_offset: u64, areas: &[(u64, u64)]) -> Vec<u8> {
    let mut body = Body::new()
        .u32(32 + 16 + 16 * areas.len() as u32)
        .u32(0b1111)
        .u32(0)
        .u32(32)
        .u64(size)
        .u64(file_offset)
        .u16(1)
        .u16(1)
        .u32(0)
        .u32(areas.len() as u32)
        .u32(0);
    for (offset, len) in areas {
        body = body.u64(*offset).u64(*len);
    }
    body.0
}

/// What the device holds; shared with the test.
pub struct State {
    pub registers: Segment,
    pub config: Vec<u8>,
    pub trapped: BTreeMap<u64, u8>,
    /// Device address to length.
    pub mapped: BTreeMap<u64, u64>,
    pub vectors: BTreeMap<u32, OwnedFd>,
    pub resets: u32,
    /// (command, flags) of each question.
    pub asked: Vec<(u16, u32)>,
    pub closed: bool,
}

/// The test's end of a device.
pub struct Peer {
    pub state: Arc<Mutex<State>>,
    pub socket: UnixStream,
}

impl Peer {
    /// A device whose script is asked first, on a thread of its own.
    pub fn start(script: impl FnMut(&Question) -> Act + Send + 'static) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let request = SegmentRequest::new("peer", SIZE as usize).page(PageChoice::Ordinary);
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xb3, 0x15, 0x15, 0x10]);
        let state = Arc::new(Mutex::new(State {
            registers: Segment::map(&request).unwrap(),
            config,
            trapped: BTreeMap::from([(0, 0x11), (1, 0x11), (2, 0x22), (3, 0x22)]),
            mapped: BTreeMap::new(),
            vectors: BTreeMap::new(),
            resets: 0,
            asked: Vec::new(),
            closed: false,
        }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            play(&theirs, &shared, script);
            // In this order, as an honest device lets go before it closes.
            shared.lock().unwrap().closed = true;
            drop(theirs);
        });
        Self { state, socket }
    }
}

fn play(
    socket: &UnixStream,
    state: &Mutex<State>,
    mut script: impl FnMut(&Question) -> Act + Send + 'static,
) {
    while let Some(question) = receive(socket) {
        let entry = (question.command, question.flags);
        state.lock().unwrap().asked.push(entry);
        let mut act = script(&question);
        if matches!(act, Act::Honest) {
            act = honest(&mut state.lock().unwrap(), &question);
            if question.flags & NO_REPLY != 0 {
                continue;
            }
        }
        let (id, command) = (question.id, question.command);
        let answer = |body: &[u8]| {
            let size = 16 + body.len() as u32;
            [&header(id, command, size, REPLY, 0), body].concat()
        };
        let sent = match act {
            Act::Honest | Act::Silence => true,
            Act::Answer(body, fds) => {
                let segment = state.lock().unwrap().registers.clone();
                send(socket, &answer(&body), &vec![segment.fd().unwrap(); fds])
            }
            Act::AnswerWith(body, fd) => send(socket, &answer(&body), &[fd.as_fd()]),
            Act::Refuse(errno) => send(socket, &header(id, command, 16, REPLY | ERROR, errno), &[]),
            Act::Bytes(bytes) => send(socket, &bytes, &[]),
            Act::Close => return,
        };
        if !sent {
            return;
        }
    }
}

/// What an honest device does.
pub fn honest(state: &mut State, question: &Question) -> Act {
    match question.command {
        VERSION => Body::new()
            .u16(0)
            .u16(1)
            .bytes(br#"{"capabilities":{"max_msg_fds":16,"pgsizes":4096}}"#)
            .bytes(&[0])
            .act(),
        GET_INFO => Body::new().u32(16).u32(0b11).u32(9).u32(5).act(),
        GET_REGION_INFO => match question.u32(8) {
            0 => Act::Answer(
                registers_info(SIZE, 0, &[(0x2000, 0x1000), (0x5000, 0x1000)]),
                1,
            ),
            index => {
                let size = if index == 7 { 4096 } else { 0 };
                let body = Body::new().u32(32).u32(0b11).u32(index).u32(0);
                body.u64(size).u64(0).act()
            }
        },
        GET_IRQ_INFO => {
            let body = Body::new().u32(16).u32(0b1).u32(question.u32(8));
            body.u32(VECTORS).act()
        }
        DMA_MAP => {
            assert_eq!(question.fds.len(), 1);
            state.mapped.insert(question.u64(16), question.u64(24));
            Body::new().act()
        }
        DMA_UNMAP => match state.mapped.remove(&question.u64(8)) {
            Some(len) if len == question.u64(16) => Act::Answer(question.body.clone(), 0),
            _ => Act::Refuse(2),
        },
        SET_IRQS => {
            let (flags, start, count) = (question.u32(4), question.u32(12), question.u32(16));
            match (flags, count as usize) {
                (0b10_0001, 0) => state.vectors.clear(),
                (0b10_0100, count) if count == question.fds.len() => {
                    for (vector, fd) in (start..).zip(&question.fds) {
                        let fd = fd.try_clone().unwrap();
                        state.vectors.insert(vector, fd);
                    }
                }
                _ => return Act::Refuse(22),
            }
            Body::new().act()
        }
        REGION_READ | REGION_WRITE => {
            let (offset, region) = (question.u64(0), question.u32(8));
            let count = question.u32(12) as usize;
            let data = &question.body[16..];
            let mut echo = Body::new().u64(offset).u32(region).u32(count as u32).0;
            let config = &mut state.config;
            match (question.command, region) {
                (REGION_READ, 7) => echo.extend(&config[offset as usize..][..count]),
                (REGION_READ, _) => {
                    let byte = |at| state.trapped.get(&at).copied().unwrap_or(0);
                    echo.extend((offset..).take(count).map(byte));
                }
                (_, 7) => config[offset as usize..][..count].copy_from_slice(data),
                _ => state.trapped.extend((offset..).zip(data.iter().copied())),
            }
            Act::Answer(echo, 0)
        }
        RESET => {
            state.resets += 1;
            state.config[4..6].fill(0);
            Body::new().act()
        }
        other => panic!("command {other}"),
    }
}

/// One message; `None` at the end.
pub fn receive(socket: &UnixStream) -> Option<Question> {
    let mut fds = Vec::new();
    let head = exactly(socket, 16, &mut fds)?;
    let number = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_ne_bytes(head[at..at + 2].try_into().unwrap());
    let body = exactly(socket, number(4) as usize - 16, &mut fds)?;
    Some(Question {
        id: half(0),
        command: half(2),
        flags: number(8),
        body,
        fds,
    })
}

fn exactly(socket: &UnixStream, len: usize, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let mut control = nix::cmsg_space!([RawFd; 253]);
        let mut slices = [IoSliceMut::new(&mut bytes[filled..])];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let raw = socket.as_raw_fd();
        let got = recvmsg::<()>(raw, &mut slices, Some(&mut control), flags).ok()?;
        for part in got.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = part {
                #[allow(unsafe_code)] // nix hands received descriptors over as plain numbers
                // SAFETY: just made for us by the kernel, each taken once.
                fds.extend(
                    raw.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
        match got.bytes {
            0 => return None,
            part => filled += part,
        }
    }
    Some(bytes)
}

/// Whether all could be sent.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        flags,
        None,
    );
    sent == Ok(bytes.len())
}
