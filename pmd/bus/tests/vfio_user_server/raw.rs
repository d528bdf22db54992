//! A server of the fake device on a socket of its own, and a client of bare bytes. Layouts are
//! written out here a second time on purpose.

use crate::fake::Fake;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use pollux_bus::Device;
use pollux_bus::vfio_user::{Event, Listener, OWNER_ONLY, ServeOptions, Stop, Trust, serve};
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const READ: u16 = 9;
pub const WRITE: u16 = 10;
pub const RESET: u16 = 13;

pub const BAR0: u32 = 0;
pub const BAR2: u32 = 2;
pub const CONFIG: u32 = 7;
pub const MSIX: u32 = 2;

/// Longest that anything may take before a test calls it hung; never a measure of speed.
pub const HANG: Duration = Duration::from_secs(60);

/// A folder that is gone with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-vfio-user-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A served fake device.
pub struct Rig {
    pub fake: Arc<Fake>,
    pub events: Arc<Mutex<Vec<Event>>>,
    path: PathBuf,
    stop: Stop,
    server: Option<JoinHandle<()>>,
    _folder: Folder,
}

impl Rig {
    pub fn new() -> Self {
        Self::trusting(Trust::Sealed)
    }

    pub fn trusting(trust: Trust) -> Self {
        let folder = Folder::new();
        let path = folder.file("device.sock");
        let listener = Listener::bind(&path, OWNER_ONLY).unwrap();
        let fake = Fake::new();
        let device = Arc::clone(&fake) as Arc<dyn Device>;
        let (stop, events) = (Stop::new().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (its_stop, its_events) = (stop.clone(), Arc::clone(&events));
        let server = std::thread::spawn(move || {
            let options = ServeOptions {
                trust,
                ..ServeOptions::default()
            };
            serve(&listener, &device, &options, &its_stop, &mut |event| {
                its_events.lock().unwrap().push(event);
            })
            .unwrap();
        });
        Self {
            fake,
            events,
            path,
            stop,
            server: Some(server),
            _folder: folder,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A connection that has said nothing.
    pub fn dial(&self) -> Raw {
        Raw::new(UnixStream::connect(&self.path).unwrap())
    }

    /// A client that was let in, with memory decoding and bus mastering on.
    pub fn client(&self) -> Raw {
        let mut raw = self.dial();
        raw.ask(VERSION, &version(), &[]).unwrap();
        raw.write(CONFIG, 4, &[0x06, 0x00]);
        raw
    }

    pub fn stop(&mut self) {
        self.stop.raise();
        self.server.take().unwrap().join().unwrap();
    }

    /// Waits until the server has said so many goodbyes, and gives the last one's event.
    pub fn departed(&self, count: usize) -> Event {
        let deadline = Instant::now() + HANG;
        loop {
            let events = self.events.lock().unwrap();
            let gone: Vec<&Event> = events
                .iter()
                .filter(|event| matches!(event, Event::Departed(_)))
                .collect();
            if gone.len() >= count {
                return gone[count - 1].clone();
            }
            drop(events);
            assert!(Instant::now() < deadline, "the client is still served");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.stop();
        }
    }
}

/// Version 0.1 and a few capabilities.
pub fn version() -> Vec<u8> {
    let mut body = vec![0, 0, 1, 0];
    body.extend_from_slice(b"{\"capabilities\":{\"max_msg_fds\":8}}\0");
    body
}

/// A client that sends what it is told.
pub struct Raw {
    pub socket: UnixStream,
    id: u16,
}

/// An answer: its body, and the descriptors that came along.
#[derive(Debug)]
pub struct Answer {
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Answer {
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body[at..at + 8].try_into().unwrap())
    }
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn map_body(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[32, flags]);
    for word in [offset, address, size] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

pub fn unmap_body(flags: u32, address: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[24, flags]);
    for word in [address, size] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

pub fn access_body(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend_from_slice(&words(&[region, count]));
    body
}

pub fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = id.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&command.to_ne_bytes());
    bytes.extend_from_slice(&words(&[size, flags, 0]));
    bytes
}

impl Raw {
    pub fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(HANG)).unwrap();
        socket.set_write_timeout(Some(HANG)).unwrap();
        Self { socket, id: 100 }
    }

    /// Sends bytes with descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let mut control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let mut done = 0;
        while done < bytes.len() {
            let slice = [IoSlice::new(&bytes[done..])];
            let fd = self.socket.as_raw_fd();
            done += sendmsg::<()>(fd, &slice, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
            control = &[];
        }
    }

    pub fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.id += 1;
        let size = 16 + body.len() as u32;
        [header(self.id, command, size, flags), body.to_vec()].concat()
    }

    pub fn ask(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, i32> {
        let message = self.message(command, 0, body);
        self.send(&message, fds);
        self.answer(self.id, command)
    }

    /// The next answer, which must be that to this question.
    pub fn answer(&mut self, id: u16, command: u16) -> Result<Answer, i32> {
        let mut fds = Vec::new();
        let mut head = [0; 16];
        let mut done = 0;
        while done < 16 {
            let (got, came) = receive(&self.socket, &mut head[done..]);
            assert_ne!(got, 0, "the server closed the connection");
            fds.extend(came);
            done += got;
        }
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(u16::from_ne_bytes([head[0], head[1]]), id);
        assert_eq!(u16::from_ne_bytes([head[2], head[3]]), command);
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body).unwrap();
        match word(8) {
            1 => Ok(Answer { body, fds }),
            0x21 => {
                assert!(body.is_empty(), "a refusal is a header");
                Err(word(12) as i32)
            }
            other => panic!("flags {other:#x}"),
        }
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let body = access_body(region, offset, count);
        let answer = self.ask(READ, &body, &[]).unwrap();
        assert_eq!(answer.body[..16], body);
        answer.body[16..].to_vec()
    }

    pub fn read32(&mut self, region: u32, offset: u64) -> u32 {
        let bytes = self.read(region, offset, 4);
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = access_body(region, offset, data.len() as u32);
        let body = [access.clone(), data.to_vec()].concat();
        let answer = self.ask(WRITE, &body, &[]).unwrap();
        assert_eq!(answer.body, access);
    }

    /// A big-endian register of the fake device.
    pub fn register(&mut self, offset: u64) -> u32 {
        u32::from_be_bytes(self.read(BAR0, offset, 4).try_into().unwrap())
    }

    /// Has the device's thread add 1 at a device address; 1 done, 2 not mapped.
    pub fn add(&mut self, iova: u64) -> u32 {
        self.write(BAR0, 0x10, &iova.to_be_bytes());
        let deadline = Instant::now() + HANG;
        loop {
            match self.register(0x18) {
                0 => assert!(Instant::now() < deadline, "the device does not answer"),
                outcome => return outcome,
            }
        }
    }

    pub fn map(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        iova: u64,
        size: u64,
    ) -> Result<(), i32> {
        let body = map_body(3, offset, iova, size);
        self.ask(DMA_MAP, &body, &[fd]).map(drop)
    }

    pub fn unmap(&mut self, iova: u64, size: u64) -> Result<(), i32> {
        self.ask(DMA_UNMAP, &unmap_body(0, iova, size), &[])
            .map(drop)
    }

    pub fn set_irqs(
        &mut self,
        [flags, index, start, count]: [u32; 4],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), i32> {
        let mut body = words(&[20 + data.len() as u32, flags, index, start, count]);
        body.extend_from_slice(data);
        self.ask(SET_IRQS, &body, fds).map(drop)
    }

    /// Asks for something harmless; whether the connection is over instead.
    pub fn is_over(&mut self) -> bool {
        use std::io::Write;
        let message = self.message(READ, 0, &access_body(CONFIG, 0, 4));
        if self.socket.write_all(&message).is_err() {
            return true;
        }
        let mut answer = [0; 36];
        self.socket.read_exact(&mut answer).is_err()
    }

    /// Whether the server has closed the connection, after whatever it still had to say.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn receive(socket: &UnixStream, bytes: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    use std::io::IoSliceMut;
    use std::os::fd::FromRawFd;
    let mut space = nix::cmsg_space!([i32; 16]);
    let mut slices = [IoSliceMut::new(bytes)];
    let fd = socket.as_fd().as_raw_fd();
    let got = recvmsg::<()>(
        fd,
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .unwrap();
    let mut fds = Vec::new();
    for part in got.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(raw) = part {
            for fd in raw {
                #[allow(unsafe_code)] // nix hands received descriptors over as plain numbers
                // SAFETY: the kernel made this descriptor for us; it is taken exactly once.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    (got.bytes, fds)
}
