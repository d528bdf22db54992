//! The message backing against an other end that dies, falls silent or lies. A raw socket stands
//! in for it. The message layout is written out here a second time on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

#[allow(dead_code)] // only the device's control side is used here
mod fake;

use fake::Fake;
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use pollux_bus::process::{self, Ending};
use pollux_bus::{BusError, Device, Function};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BYTES: usize = 48 + 256;
/// Long enough for a loaded machine's answer, short enough to wait for.
const SHORT: Duration = Duration::from_millis(400);
/// Far beyond anything that a deadline may allow.
const HANG: Duration = Duration::from_secs(60);

const HELLO: u32 = 1;
const WINDOW: u32 = 2;
const LOAD: u32 = 3;
const MAP: u32 = 5;
const ENABLE: u32 = 8;

#[derive(Clone)]
struct Raw([u8; BYTES]);

impl Raw {
    fn new(kind: u32, words: [u64; 4]) -> Self {
        let mut raw = Self([0; BYTES]);
        raw.word32(0, kind);
        for (i, word) in words.into_iter().enumerate() {
            raw.0[16 + 8 * i..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        raw
    }

    fn word32(&mut self, at: usize, value: u32) {
        self.0[4 * at..][..4].copy_from_slice(&value.to_ne_bytes());
    }

    fn read32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[4 * at..][..4].try_into().unwrap())
    }

    fn name(mut self, name: &[u8]) -> Self {
        self.word32(3, name.len() as u32);
        self.0[48..48 + name.len().min(256)].copy_from_slice(&name[..name.len().min(256)]);
        self
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .unwrap();
}

fn receive(socket: &OwnedFd) -> Option<Raw> {
    let mut raw = Raw([0; BYTES]);
    match recv(socket.as_raw_fd(), &mut raw.0, MsgFlags::empty()) {
        Ok(BYTES) => Some(raw),
        Ok(0) | Err(nix::errno::Errno::ECONNRESET) => None,
        other => panic!("{other:?}"),
    }
}

/// A device's end that answers with what `answer` makes of each question.
fn liar(
    answer: impl Fn(&Raw) -> Option<(Vec<u8>, Option<Segment>)> + Send + 'static,
) -> Result<Arc<dyn Function>, BusError> {
    let (ours, theirs) = process::pair().unwrap();
    std::thread::spawn(move || {
        while let Some(question) = receive(&theirs) {
            // No answer is silence, with the socket open.
            if let Some((bytes, segment)) = answer(&question) {
                let fds: Vec<_> = segment.iter().filter_map(Segment::fd).collect();
                send(&theirs, &bytes, &fds);
            }
        }
    });
    process::connect_within(ours, SHORT)
}

fn to(question: &Raw, mut answer: Raw) -> Option<(Vec<u8>, Option<Segment>)> {
    answer.word32(1, question.read32(1));
    Some((answer.0.to_vec(), None))
}

fn page() -> Segment {
    Segment::map(&SegmentRequest::new("page", 0x1000).page(PageChoice::Ordinary)).unwrap()
}

#[test]
fn nonsense_at_hello_is_an_error() {
    let good = || Raw::new(HELLO, [0x4000, 4, 0, 0]).name(b"x");
    let cases: Vec<(&str, Raw)> = vec![
        ("no registers", Raw::new(HELLO, [0, 4, 0, 0]).name(b"x")),
        (
            "huge region",
            Raw::new(HELLO, [u64::MAX, 4, 0, 0]).name(b"x"),
        ),
        (
            "vectors",
            Raw::new(HELLO, [0x4000, u64::MAX, 0, 0]).name(b"x"),
        ),
        (
            "windows",
            Raw::new(HELLO, [0x4000, 4, 1 << 40, 0]).name(b"x"),
        ),
        ("no name", Raw::new(HELLO, [0x4000, 4, 0, 0])),
        (
            "name is no text",
            Raw::new(HELLO, [0x4000, 4, 0, 0]).name(&[0xff, 0xfe]),
        ),
        (
            "name with controls",
            Raw::new(HELLO, [0x4000, 4, 0, 0]).name(b"a\x1b[2Jb"),
        ),
        ("name length", {
            let mut raw = good();
            raw.word32(3, 10_000);
            raw
        }),
        ("another kind", Raw::new(LOAD, [0x4000, 4, 0, 0]).name(b"x")),
    ];
    for (what, answer) in cases {
        let refused = liar(move |question| to(question, answer.clone())).err();
        assert!(
            matches!(refused, Some(BusError::Peer { .. })),
            "{what}: {refused:?}"
        );
    }
    assert!(
        liar(move |question| to(question, good())).is_ok(),
        "the honest one is believed"
    );
}

#[test]
fn wrong_sizes_and_stale_answers_are_errors() {
    let good = Raw::new(HELLO, [0x4000, 4, 0, 0]).name(b"x");
    let short = liar({
        let good = good.clone();
        move |question| to(question, good.clone()).map(|(bytes, _)| (bytes[..40].to_vec(), None))
    });
    assert!(matches!(short.err(), Some(BusError::Peer { .. })));
    let long = liar({
        let good = good.clone();
        move |question| {
            to(question, good.clone()).map(|(mut bytes, _)| {
                bytes.push(0);
                (bytes, None)
            })
        }
    });
    assert!(matches!(long.err(), Some(BusError::Peer { .. })));
    let stale = liar(move |question| {
        let mut answer = good.clone();
        answer.word32(1, question.read32(1).wrapping_sub(1));
        Some((answer.0.to_vec(), None))
    });
    assert!(matches!(stale.err(), Some(BusError::Peer { .. })));
}

#[test]
fn bad_register_windows_are_errors() {
    // offset, length, offset in the file, descriptor given
    let cases = [
        (0x1000, 0x1000, 0, false), // no descriptor
        (0x800, 0x1000, 0, true),   // not on a page
        (0x1000, 0x800, 0, true),   // not whole pages
        (0x1000, 0, 0, true),       // nothing
        (0x4000, 0x1000, 0, true),  // behind the region
        (u64::MAX - 0xfff, 0x1000, 0, true),
        (0x1000, 0x2000, 0, true),      // more than the file has
        (0x1000, 0x1000, 0x1000, true), // behind the file
        (0x1000, 0x1000, 0x10, true),   // not on a page of the file
    ];
    for (offset, len, file_offset, with_fd) in cases {
        let function = liar(move |question| match question.read32(0) {
            HELLO => to(question, Raw::new(HELLO, [0x4000, 4, 1, 0]).name(b"x")),
            _ => to(question, Raw::new(WINDOW, [offset, len, file_offset, 0]))
                .map(|(bytes, _)| (bytes, with_fd.then(page))),
        });
        assert!(
            function.is_err(),
            "{offset:#x}+{len:#x} at {file_offset:#x}, fd {with_fd}"
        );
    }
    let overlapping = liar(move |question| match question.read32(0) {
        HELLO => to(question, Raw::new(HELLO, [0x4000, 4, 2, 0]).name(b"x")),
        _ => to(question, Raw::new(WINDOW, [0x1000, 0x1000, 0, 0]))
            .map(|(bytes, _)| (bytes, Some(page()))),
    });
    assert!(overlapping.err().unwrap().to_string().contains("overlaps"));
}

#[test]
fn a_silent_device_is_an_error_and_its_memory_stays() {
    let function = liar(move |question| match question.read32(0) {
        HELLO => to(question, Raw::new(HELLO, [0x4000, 4, 0, 0]).name(b"x")),
        MAP => to(question, Raw::new(MAP, [0; 4])),
        _ => None,
    })
    .unwrap();
    let start = Instant::now();
    let memory = page();
    let address = memory.address();
    let mapping = function.domain().map(&memory).unwrap();
    let registers = function.registers(0, 0x1000).unwrap();
    assert_eq!(
        registers.load_u32(0).unwrap(),
        u32::MAX,
        "as from a card that was pulled"
    );
    assert!(matches!(function.reset(), Err(BusError::Peer { .. })));
    assert!(function.set_bus_master(false).is_err());
    registers.store_u32(0, 1).unwrap();
    // A silent process may still write there.
    drop(mapping);
    drop(memory);
    assert_eq!(function.domain().mappings(), 1);
    assert_ne!(page().address(), address);
    drop(function);
    assert!(start.elapsed() < HANG);
}

#[test]
fn a_dead_device_is_an_error_and_its_memory_comes_back() {
    let (ours, theirs) = process::pair().unwrap();
    drop(theirs);
    let refused = process::connect(ours).err().unwrap();
    assert!(matches!(refused, BusError::Peer { .. }), "{refused}");

    let good = Raw::new(HELLO, [0x4000, 4, 0, 0]).name(b"x");
    let (ours, theirs) = process::pair().unwrap();
    let dying = std::thread::spawn(move || {
        for answer in [good, Raw::new(MAP, [0; 4])] {
            let question = receive(&theirs).unwrap();
            let (bytes, _) = to(&question, answer).unwrap();
            send(&theirs, &bytes, &[]);
        }
    });
    let function = process::connect(ours).unwrap();
    let mapping = function.domain().map(&page()).unwrap();
    dying.join().unwrap();
    let registers = function.registers(0, 0x1000).unwrap();
    assert_eq!(registers.load_u32(0).unwrap(), u32::MAX);
    let error = function.reset().unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    drop(mapping);
    assert_eq!(
        function.domain().mappings(),
        0,
        "nobody is left who could touch it"
    );
}

/// A driver's end made of a raw socket, with the hello already done.
fn raw_driver(device: &Arc<Fake>) -> (OwnedFd, std::thread::JoinHandle<Result<Ending, BusError>>) {
    let (ours, theirs) = process::pair().unwrap();
    let device = Arc::clone(device) as Arc<dyn Device>;
    let server = std::thread::spawn(move || process::serve(&theirs, &device));
    assert_eq!(ask(&ours, Raw::new(HELLO, [1, 0, 0, 0]), &[]), 0);
    (ours, server)
}

/// The status of the answer.
fn ask(socket: &OwnedFd, question: Raw, fds: &[BorrowedFd<'_>]) -> u32 {
    send(socket, &question.0, fds);
    receive(socket).unwrap().read32(2)
}

#[test]
fn the_device_refuses_nonsense_and_goes_on() {
    let device = Fake::new();
    let (socket, server) = raw_driver(&device);
    let segment = page();
    let fd = segment.fd().unwrap();
    let kind = |kind, words| Raw::new(kind, words);
    let mut wide = kind(LOAD, [0; 4]);
    wide.word32(3, 257);
    let refused: Vec<(&str, Raw, Vec<BorrowedFd<'_>>)> = vec![
        ("unknown kind", kind(99, [0; 4]), vec![]),
        ("second hello", kind(HELLO, [1, 0, 0, 0]), vec![]),
        ("window index", kind(WINDOW, [2, 0, 0, 0]), vec![]),
        ("window index", kind(WINDOW, [u64::MAX, 0, 0, 0]), vec![]),
        ("load of nothing", kind(LOAD, [0; 4]), vec![]),
        ("load too wide", wide, vec![]),
        (
            "mapping without file",
            kind(MAP, [0x10_0000, 0x1000, 0, 0]),
            vec![],
        ),
        (
            "mapping with two",
            kind(MAP, [0x10_0000, 0x1000, 0, 0]),
            vec![fd, fd],
        ),
        (
            "mapping of nothing",
            kind(MAP, [0x10_0000, 0, 0, 0]),
            vec![fd],
        ),
        (
            "mapping past the file",
            kind(MAP, [0x10_0000, 0x2000, 0, 0]),
            vec![fd],
        ),
        (
            "mapping past the file",
            kind(MAP, [0x10_0000, 0x1000, 0x1000, 0]),
            vec![fd],
        ),
        (
            "mapping off a page",
            kind(MAP, [0x10_0000, 0x800, 0x800, 0]),
            vec![fd],
        ),
        (
            "mapping that wraps",
            kind(MAP, [u64::MAX - 0xfff, 0x1000, 0, 0]),
            vec![fd],
        ),
        (
            "mapping beyond 48 bits",
            kind(MAP, [1 << 48, 0x1000, 0, 0]),
            vec![fd],
        ),
        (
            "mapping of all",
            kind(MAP, [0x10_0000, u64::MAX, 0, 0]),
            vec![fd],
        ),
        ("bus mastering", kind(7, [2, 0, 0, 0]), vec![]),
        ("no vector", kind(ENABLE, [0; 4]), vec![]),
        (
            "vector behind the last",
            kind(ENABLE, [40, 0, 0, 0]),
            vec![fd],
        ),
        ("vector number", kind(ENABLE, [u64::MAX, 0, 0, 0]), vec![fd]),
    ];
    for (what, question, fds) in refused {
        assert_ne!(ask(&socket, question, &fds), 0, "{what}");
    }
    assert_eq!(device.host().unwrap().memory.mappings(), 0);
    // Only eventfds: a store into anything else might never return.
    let (_reader, writer) = nix::unistd::pipe().unwrap();
    assert_ne!(
        ask(&socket, Raw::new(ENABLE, [3, 0, 0, 0]), &[writer.as_fd()]),
        0
    );
    // Neither does one whose counter is full.
    let full = nix::sys::eventfd::EventFd::from_value(0).unwrap();
    full.write(u64::MAX - 1).unwrap();
    assert_eq!(
        ask(&socket, Raw::new(ENABLE, [3, 0, 0, 0]), &[full.as_fd()]),
        0
    );
    for _ in 0..10_000 {
        device.host().unwrap().interrupts.raise(3);
    }
    let mut load = Raw::new(LOAD, [0; 4]);
    load.word32(3, 4);
    send(&socket, &load.0, &[]);
    assert_eq!(
        receive(&socket).unwrap().0[48..52],
        [0x11, 0x11, 0x22, 0x22]
    );
    drop(socket);
    assert_eq!(server.join().unwrap().unwrap(), Ending::Vanished);
    assert_eq!(device.disconnects.load(Ordering::SeqCst), 1);
}

#[test]
fn a_driver_that_vanishes_is_disconnected() {
    let device = Fake::new();
    let (socket, server) = raw_driver(&device);
    let segment = page();
    let map = Raw::new(MAP, [0x10_0000, 0x1000, 0, 0]);
    assert_eq!(ask(&socket, map, &[segment.fd().unwrap()]), 0);
    drop(socket);
    assert_eq!(server.join().unwrap().unwrap(), Ending::Vanished);
    assert!(device.host().is_none());
    assert!(process::pair().is_ok());
    let (_, server) = raw_driver(&device);
    assert_eq!(
        server.join().unwrap().unwrap(),
        Ending::Vanished,
        "the next one gets in"
    );
}

#[test]
fn a_garbled_message_ends_the_connection() {
    let device = Fake::new();
    let (socket, server) = raw_driver(&device);
    send(&socket, b"hello there", &[]);
    assert!(matches!(server.join().unwrap(), Err(BusError::Peer { .. })));
    assert!(device.host().is_none());
}

#[test]
fn other_versions_and_early_questions_are_refused() {
    let device = Fake::new();
    for question in [Raw::new(HELLO, [2, 0, 0, 0]), Raw::new(LOAD, [0; 4])] {
        let (ours, theirs) = process::pair().unwrap();
        let served: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
        let server = std::thread::spawn(move || process::serve(&theirs, &served));
        assert_ne!(ask(&ours, question, &[]), 0);
        assert!(server.join().unwrap().is_err());
        assert!(device.host().is_none());
    }
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let refused = process::connect(stream.into()).err().unwrap();
    assert!(refused.to_string().contains("SOCK_SEQPACKET"), "{refused}");
}

/// Descriptors beyond those that a message may carry must not stay open in the device's process.
#[test]
fn descriptors_that_are_refused_are_closed() {
    let device = Fake::new();
    let (socket, server) = raw_driver(&device);
    let (mut witness, given) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds = vec![given.as_fd(); 200];
    send(&socket, &Raw::new(ENABLE, [0; 4]).0, &fds);
    assert!(server.join().unwrap().is_err());
    drop(fds);
    drop(given);
    let error = std::io::Write::write_all(&mut witness, b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}
