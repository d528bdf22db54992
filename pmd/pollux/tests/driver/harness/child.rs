//! A second process for the device: the test binary starts itself again with one hidden test
//! selected, which serves each function on a socket of its own, over the messages of the process
//! backing or over vfio-user, and answers lines on another.

use super::control;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use pollux_bus::vfio_user::{self, Listener, OWNER_ONLY, ServeOptions, Stop};
use pollux_bus::{BusError, Device, Function, process};
use pollux_emu::Emulator;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Names the folder of the sockets; set for the child only.
const FOLDER: &str = "POLLUX_TEST_DEVICE_FOLDER";
/// The emulator's settings, for the child.
const SETTINGS: &str = "POLLUX_TEST_DEVICE_SETTINGS";

/// The way to reach the child's functions, for the child.
const WAY: &str = "POLLUX_TEST_DEVICE_WAY";

/// How a driver reaches the child's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Messages,
    VfioUser,
}

/// A child that plays the devices. Killed when dropped.
pub struct DeviceProcess {
    way: Way,
    child: Mutex<Child>,
    folder: PathBuf,
    control: Mutex<BufReader<UnixStream>>,
}

fn function_socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("function{index}"))
}

fn packet_socket() -> OwnedFd {
    socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap()
}

/// Tries again until the child is there.
fn patiently<T, E: std::fmt::Debug>(mut step: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match step() {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl DeviceProcess {
    pub fn start(way: Way, settings: &str) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("pollux-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "harness::device_process",
                "--ignored",
                "--nocapture",
            ])
            .env(FOLDER, &folder)
            .env(SETTINGS, settings)
            .env(WAY, format!("{way:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let control = patiently(|| UnixStream::connect(folder.join("control")));
        control
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let control = Mutex::new(BufReader::new(control));
        Self {
            way,
            child: Mutex::new(child),
            folder,
            control,
        }
    }

    /// Connects to a function.
    pub fn connect(&self, index: usize) -> Result<Arc<dyn Function>, BusError> {
        let path = function_socket(&self.folder, index);
        match self.way {
            Way::Messages => {
                let address = UnixAddr::new(&path).unwrap();
                process::connect(patiently(|| {
                    let socket = packet_socket();
                    nix::sys::socket::connect(socket.as_raw_fd(), &address).map(|()| socket)
                }))
            }
            Way::VfioUser => vfio_user::connect(path),
        }
    }

    /// Has the child do one line of [`control`].
    pub fn ask(&self, line: &str) -> String {
        let mut control = self.control.lock().unwrap();
        writeln!(control.get_mut(), "{line}").unwrap();
        let mut answer = String::new();
        control.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "the device's process is gone");
        answer.trim_end().to_owned()
    }

    /// Ends the child at once, as a crash would.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        // Killing one that has ended is an error that changes nothing.
        drop(child.kill());
        drop(child.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// The child's whole life; returns at once in the parent.
pub fn serve(make: impl FnOnce(&str) -> Arc<Emulator>) {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let folder = PathBuf::from(folder);
    let emulator = make(&std::env::var(SETTINGS).unwrap());
    let vfio_user = std::env::var(WAY).unwrap() == format!("{:?}", Way::VfioUser);
    for index in 0..emulator.len() {
        let path = function_socket(&folder, index);
        let device = emulator.function(index).unwrap();
        match vfio_user {
            true => serve_vfio_user(&path, device),
            false => serve_messages(&path, device),
        }
    }
    // Nobody outlives the parent: its end of the pipe closes with it.
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        drop(std::io::stdin().read_to_end(&mut rest));
        std::process::exit(0);
    });
    let listener = UnixListener::bind(folder.join("control")).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() != 0 {
        let answer = control::run(&emulator, line.trim_end());
        assert!(!answer.contains('\n'), "{answer}");
        writeln!(stream, "{answer}").unwrap();
        line.clear();
    }
}

fn serve_messages(path: &Path, device: Arc<dyn Device>) {
    let socket = packet_socket();
    bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&socket, Backlog::MAXCONN).unwrap();
    // The standard library accepts on any kind of Unix socket.
    let listener = UnixListener::from(socket);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let socket = OwnedFd::from(connection.unwrap());
            let device = Arc::clone(&device);
            // A driver may be refused while another is served.
            std::thread::spawn(move || process::serve(&socket, &device));
        }
    });
}

fn serve_vfio_user(path: &Path, device: Arc<dyn Device>) {
    let listener = Listener::bind(path, OWNER_ONLY).unwrap();
    std::thread::spawn(move || {
        let stop = Stop::new().unwrap();
        let options = ServeOptions::default();
        vfio_user::serve(&listener, &device, &options, &stop, &mut |_| ())
    });
}
