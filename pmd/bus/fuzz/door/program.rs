//! Programs: bytes that say which messages to send, so that any bytes are a stream, and small
//! changes of the bytes are small changes of the stream.
//!
//! The first byte chooses a [`seed`], which is sent first. Records follow:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 1 | command in bits 4:0; bit 5: no reply wanted; bit 6: the size lies; bit 7: no header |
//! | 1 | descriptors: how many in bits 3:0 (see [`COUNTS`]), which in bits 7:4 (see [`Pocket`]) |
//! | 1 | length of the body |
//! | as many | the body; of a size that lies, the first byte is how much |

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Number of seeds.
pub const SEEDS: usize = 6;

const NO_REPLY: u8 = 1 << 5;
const LIES: u8 = 1 << 6;
const BARE: u8 = 1 << 7;

/// How many descriptors go along.
const COUNTS: [usize; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3, 8, 16, 17, 40];

/// Index into [`COUNTS`]: one descriptor.
const ONE: u8 = 4;
/// Kinds of [`Pocket`] for honest messages.
const MEMORY: u8 = 0;
const EVENTFD: u8 = 1 << 4;

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    op: u8,
    fds: u8,
    body: &'a [u8],
    pub command: u16,
}

impl Message<'_> {
    pub fn wants_answer(&self) -> bool {
        self.op & NO_REPLY == 0
    }

    /// Whether header and length are as they should be.
    pub fn is_framed(&self) -> bool {
        self.op & (LIES | BARE) == 0
    }

    /// What goes over the wire.
    pub fn bytes(&self, id: u16) -> Vec<u8> {
        if self.op & BARE != 0 {
            return self.body.to_vec();
        }
        let mut size = 16 + self.body.len() as u32;
        if self.op & LIES != 0 {
            let by = self.body.first().copied().unwrap_or(0x80);
            size = match by {
                0 => u32::MAX,
                by => size.wrapping_add_signed(i32::from(by as i8)),
            };
        }
        let flags: u32 = if self.op & NO_REPLY != 0 { 0x10 } else { 0 };
        let mut bytes = Vec::with_capacity(16 + self.body.len());
        bytes.extend(id.to_ne_bytes());
        bytes.extend(self.command.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(self.body);
        bytes
    }
}

/// The records of a program, those of its seed first.
pub fn messages(program: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let (first, rest) = match program {
        [first, rest @ ..] => (seed(usize::from(*first)), rest),
        [] => (&[][..], program),
    };
    records(first).chain(records(rest))
}

fn records(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let [op, fds, len, rest @ ..] = bytes else {
            return None;
        };
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        bytes = rest;
        Some(Message {
            op: *op,
            fds: *fds,
            body,
            command: u16::from(*op & 0x1f),
        })
    })
}

/// Descriptors of every kind that a client could send.
pub struct Pocket {
    memory: Segment,
    other: Vec<OwnedFd>,
    eventfd: EventFd,
}

impl Pocket {
    pub fn new() -> Self {
        let request = SegmentRequest::new("pocket", 0x10_0000).page(PageChoice::Ordinary);
        let file = |bytes| {
            let fd = memfd_create("plain", MFdFlags::MFD_CLOEXEC).unwrap();
            nix::unistd::ftruncate(&fd, bytes).unwrap();
            fd
        };
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let opened = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        Self {
            memory: Segment::map(&request).unwrap(),
            eventfd: EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap(),
            other: vec![
                file(0x10_0000),
                file(0),
                reader,
                writer,
                opened("/dev/null"),
                opened("/dev/zero"),
                opened("/proc/self/maps"),
                opened("/"),
                one.into(),
                other.into(),
            ],
        }
    }

    /// The descriptors of a message.
    pub fn take(&self, message: &Message<'_>) -> Vec<BorrowedFd<'_>> {
        let count = COUNTS[usize::from(message.fds & 0xf)];
        let kind = usize::from(message.fds >> 4);
        let one = |index: usize| match kind {
            0 => self.memory.fd().unwrap(),
            1 => self.eventfd.as_fd(),
            // A mixture.
            15 => match index % 3 {
                0 => self.memory.fd().unwrap(),
                1 => self.eventfd.as_fd(),
                _ => self.other[index % self.other.len()].as_fd(),
            },
            kind => self.other[kind % self.other.len()].as_fd(),
        };
        // A message without a byte cannot carry any.
        let bare = message.op & BARE != 0 && message.body.is_empty();
        (0..if bare { 0 } else { count }).map(one).collect()
    }
}

/// An honest beginning of a session.
pub fn seed(number: usize) -> &'static [u8] {
    use std::sync::OnceLock;
    static ALL: OnceLock<[Vec<u8>; SEEDS]> = OnceLock::new();
    &ALL.get_or_init(seeds)[number % SEEDS]
}

/// Puts records together.
#[derive(Clone, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn record(mut self, command: u8, fds: u8, words: &[u32]) -> Self {
        self.0.extend([command, fds, 4 * words.len() as u8]);
        self.0
            .extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self
    }

    fn version(mut self) -> Self {
        let text = br#"{"capabilities":{"max_msg_fds":8}}"#;
        self.0.extend([1, 0, 5 + text.len() as u8, 0, 0, 1, 0]);
        self.0.extend(text);
        self.0.push(0);
        self
    }

    /// Memory decoding and bus mastering on.
    fn switched_on(self) -> Self {
        self.record(10, 0, &[4, 0, 7, 4, 0x6])
    }

    fn map(self, at: u32, offset: u32, len: u32) -> Self {
        self.record(2, ONE | MEMORY, &[32, 3, offset, 0, at, 0, len, 0])
    }

    /// A store of eight bytes to the registers.
    fn store(self, at: u32, value: u32) -> Self {
        let big = value.swap_bytes();
        self.record(10, 0, &[at, 0, 0, 8, 0, big])
    }
}

fn seeds() -> [Vec<u8>; SEEDS] {
    let open = Writer::default().version();
    let on = open.clone().switched_on();
    let looking = open
        .clone()
        .record(4, 0, &[16, 0, 0, 0])
        .record(5, 0, &[4096, 0, 0, 0, 0, 0, 0, 0])
        .record(5, 0, &[32, 0, 7, 0, 0, 0, 0, 0])
        .record(7, 0, &[16, 0, 2, 0]);
    let mapped = on
        .clone()
        .map(0x10_0000, 0, 0x1_0000)
        .map(0x20_0000, 0x1000, 0x1000);
    let busy = mapped.clone().store(super::toy::TARGET as u32, 0x10_0000);
    let vectors = on
        .record(8, ONE | EVENTFD, &[20, 0x24, 2, 0, 1])
        .record(8, ONE | EVENTFD, &[20, 0x24, 2, 7, 1])
        .store(8, 7);
    let all = busy
        .clone()
        .record(3, 0, &[24, 0, 0x20_0000, 0, 0x1000, 0])
        .record(9, 0, &[0x40, 0, 0, 4])
        .record(9, 0, &[0, 0, 7, 64])
        .record(13, 0, &[])
        .switched_on();
    [Vec::new(), open.0, looking.0, vectors.0, busy.0, all.0]
}
