//! A vfio-user server whose door is beaten on: a toy device served to whoever comes, and a second
//! one in the same process, driven honestly, that must notice nothing.
//!
//! Used by the fuzz target and by the test of the same kind that every compiler can run.

mod program;
mod toy;

use nix::fcntl::OFlag;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::Mode;
use pollux_bus::vfio_user::{self, Listener, OWNER_ONLY, ServeOptions, Stop};
use pollux_bus::{Device, DmaMapping, Function};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use program::{Message, Pocket};
use std::io::{ErrorKind, IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use toy::Toy;

#[allow(unused_imports)] // the fuzz target makes its own programs
pub use program::{SEEDS, seed};

/// Longest that anything may take before it counts as hung.
const HANG: Duration = Duration::from_secs(60);

/// A message's header, as far as it is looked at.
const HEADER: usize = 16;

/// What a stream met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Questions that were answered well.
    pub done: usize,
    /// Questions that were refused.
    pub refused: usize,
    /// The server closed the connection first.
    pub shown_out: bool,
}

struct Served {
    toy: Arc<Toy>,
    path: PathBuf,
    /// The path's descriptor.
    _socket: OwnedFd,
    server: JoinHandle<()>,
}

impl Served {
    fn new(name: &str) -> Self {
        let file = format!("pollux-door-{name}-{}.sock", std::process::id());
        let file = std::env::temp_dir().join(file);
        let listener = Listener::bind(&file, OWNER_ONLY).unwrap();
        // Nobody removes it when a fuzzer ends, so it loses its name now and is reached through a
        // descriptor.
        let socket = nix::fcntl::open(&file, OFlag::O_PATH, Mode::empty()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let toy = Toy::new();
        let device = Arc::clone(&toy) as Arc<dyn Device>;
        let server = std::thread::spawn(move || {
            let stop = Stop::new().unwrap();
            let options = ServeOptions::default();
            vfio_user::serve(&listener, &device, &options, &stop, &mut |_| ()).unwrap();
        });
        Self {
            toy,
            path: PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd())),
            _socket: socket,
            server,
        }
    }
}

/// See the module.
pub struct Door {
    beaten: Served,
    quiet: Served,
    function: Arc<dyn Function>,
    memory: Segment,
    mapping: DmaMapping,
    pocket: Pocket,
}

impl Door {
    pub fn new() -> Self {
        let (beaten, quiet) = (Served::new("beaten"), Served::new("quiet"));
        let function = vfio_user::connect(&quiet.path).unwrap();
        function.set_bus_master(true).unwrap();
        let request = SegmentRequest::new("witness", 0x1000).page(PageChoice::Ordinary);
        let memory = Segment::map(&request).unwrap();
        let mapping = function.domain().map(&memory).unwrap();
        Self {
            beaten,
            quiet,
            function,
            memory,
            mapping,
            pocket: Pocket::new(),
        }
    }

    /// Sends what a program says over a connection of its own. Each well-framed question must be
    /// answered, whatever it asks; the server must live and have forgotten the client.
    pub fn feed(&self, program: &[u8]) -> Outcome {
        let before = self.beaten.toy.connects.load(Ordering::SeqCst);
        let socket = UnixStream::connect(&self.beaten.path).unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        socket.set_write_timeout(Some(HANG)).unwrap();
        let mut outcome = Outcome::default();
        let mut id = 0_u16;
        for message in program::messages(program) {
            id = id.wrapping_add(1);
            let Some(framed) = self.send(&socket, &message, id) else {
                outcome.shown_out = true;
                break;
            };
            if !framed {
                // The server reads frames that nobody meant from here on: no answer can be
                // foretold. It still must come to an end.
                break;
            }
            if !message.wants_answer() {
                continue;
            }
            match answer(&socket, id, message.command) {
                Some(true) => outcome.done += 1,
                Some(false) => outcome.refused += 1,
                None => {
                    outcome.shown_out = true;
                    break;
                }
            }
        }
        // Fails when the server closed already.
        drop(socket.shutdown(Shutdown::Write));
        drain(socket);
        assert!(!self.beaten.server.is_finished(), "the server died");
        // A client that was let in is gone from the device, with all that it gave.
        let toy = &self.beaten.toy;
        let after = toy.connects.load(Ordering::SeqCst);
        assert!(after <= before + 1);
        let start = Instant::now();
        while toy.disconnects.load(Ordering::SeqCst) != after {
            assert!(start.elapsed() < HANG, "the device still has its client");
            std::thread::yield_now();
        }
        outcome
    }

    /// Whether the message was framed as it should be; `None` when the server has closed.
    fn send(&self, socket: &UnixStream, message: &Message<'_>, id: u16) -> Option<bool> {
        let bytes = message.bytes(id);
        let fds = self.pocket.take(message);
        let raw: Vec<_> = fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let mut control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let slices = [IoSlice::new(rest)];
            let flags = MsgFlags::MSG_NOSIGNAL;
            let sent = sendmsg::<()>(socket.as_raw_fd(), &slices, control, flags, None).ok()?;
            rest = &rest[sent..];
            control = &[];
        }
        Some(message.is_framed())
    }

    /// The other function goes on as if nothing were: registers, memory and device are its own.
    pub fn witness(&self) {
        let registers = self.function.registers(0, 0x1000).unwrap();
        let seen = registers.load_u32(0x40).unwrap();
        assert_eq!(seen, 0x4041_4243, "registers of the other function");
        let mapped = self.function.registers(0x2000, 0x1000).unwrap();
        mapped.doorbell(0).unwrap().ring(0x1234_5678_9abc_def0);
        assert_eq!(self.quiet.toy.look(), 0x1234_5678_9abc_def0);
        let count = || self.memory.whole().read::<u32>(0).unwrap();
        let before = count();
        let target = registers.doorbell(toy::TARGET).unwrap();
        target.ring(self.mapping.iova().0);
        let start = Instant::now();
        while count() == before {
            assert!(start.elapsed() < HANG, "the other device stands still");
            std::thread::yield_now();
        }
        target.ring(0);
        assert!(!self.quiet.server.is_finished(), "the other server died");
        assert_eq!(self.quiet.toy.disconnects.load(Ordering::SeqCst), 0);
    }
}

/// The answer to question `id`: whether it was done; `None` at the end of the stream.
fn answer(socket: &UnixStream, id: u16, command: u16) -> Option<bool> {
    let mut header = [0; HEADER];
    if !fill(socket, &mut header) {
        return None;
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!(
        (half(0), half(2)),
        (id, command),
        "an answer to another question"
    );
    let (size, flags, error) = (word(4) as usize, word(8), word(12));
    match flags {
        0x01 => assert_eq!(error, 0),
        0x21 => assert!(size == HEADER && error != 0, "a refusal without its reason"),
        other => panic!("flags {other:#x}"),
    }
    let mut body = vec![0; size.checked_sub(HEADER).expect("a whole header")];
    assert!(fill(socket, &mut body), "an answer that ends within");
    Some(flags == 0x01)
}

/// False at the end of the stream.
fn fill(mut socket: &UnixStream, bytes: &mut [u8]) -> bool {
    match socket.read_exact(bytes) {
        Ok(()) => true,
        Err(error) => {
            let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(closed.contains(&error.kind()), "the server hangs: {error}");
            false
        }
    }
}

/// Reads to the end, which must come.
fn drain(mut socket: UnixStream) {
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the server hangs: {error}"),
        }
    }
}
