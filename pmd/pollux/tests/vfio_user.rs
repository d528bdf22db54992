//! Devices behind vfio-user sockets, as an application names them.
#![cfg(feature = "emu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

use pollux::{BURST, Burst, Config, Error, Pollux};
use pollux_bus::vfio_user::{self, Listener, OWNER_ONLY, ServeOptions, Stop};
use pollux_bus::{Device, Host, Identity, MappedWindow};
use pollux_emu::{Emulator, EmulatorConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest that anything may take before it counts as hung.
const HANG: Duration = Duration::from_secs(100);

/// Devices served on sockets of a folder, until dropped.
struct Served {
    folder: PathBuf,
    stop: Stop,
    servers: Vec<JoinHandle<()>>,
}

impl Served {
    fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-sockets-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let stop = Stop::new().unwrap();
        let serve = |(index, device): (usize, Arc<dyn Device>)| {
            let listener = Listener::bind(&folder.join(format!("{index}.sock")), OWNER_ONLY);
            let (listener, stop) = (listener.unwrap(), stop.clone());
            std::thread::spawn(move || {
                let options = ServeOptions::default();
                vfio_user::serve(&listener, &device, &options, &stop, &mut |_| ()).unwrap();
            })
        };
        let servers = devices.into_iter().enumerate().map(serve).collect();
        Self {
            folder,
            stop,
            servers,
        }
    }

    fn emulator(settings: &str) -> (Self, Emulator) {
        let pairs = settings
            .split(',')
            .map(|pair| pair.split_once('=').unwrap());
        let emulator = Emulator::new(EmulatorConfig::from_keys(pairs).unwrap()).unwrap();
        let devices = (0..emulator.len()).map(|index| emulator.function(index).unwrap());
        (Self::new(devices.collect()), emulator)
    }

    fn device(&self, index: usize) -> String {
        format!("vfio-user:{}/{index}.sock", self.folder.display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.raise();
        for server in self.servers.drain(..) {
            server.join().unwrap();
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn config(devices: &[&str]) -> Config {
    Config {
        devices: devices.iter().map(|&device| device.to_owned()).collect(),
        ..Config::of_device("emu:")
    }
}

#[test]
fn two_sockets_are_two_ports() {
    let (served, emulator) =
        Served::emulator("ports=2,wire0=gen,count0=3000,wire1=null,idle=yield");
    let devices = [served.device(0), served.device(1)];
    let pollux = Pollux::open(&config(&devices.each_ref().map(String::as_str))).unwrap();
    assert!(pollux.is_emulated(), "a program plays them");
    assert!(pollux.emulator().is_none(), "and it is not this one");
    for (port, device) in pollux.ports().iter().zip(&devices) {
        assert_eq!(device, &format!("vfio-user:{}", port.info().identity.name));
    }
    let (left, right) = (pollux.port(0).unwrap(), pollux.port(1).unwrap());
    left.start().unwrap();
    right.start().unwrap();
    let (mut rx, mut tx) = (left.take_rx(0).unwrap(), right.take_tx(0).unwrap());
    let (mut burst, mut sent) = (Burst::with_capacity(BURST), 0);
    let start = Instant::now();
    while sent < 3000 {
        assert!(start.elapsed() < HANG, "{sent} of 3000 packets");
        rx.burst(&mut burst);
        sent += tx.burst(&mut burst);
        std::thread::yield_now();
    }
    while emulator.wire(1).unwrap().frames_out < 3000 {
        assert!(start.elapsed() < HANG, "packets that were sent are not out");
        std::thread::yield_now();
    }
    assert_eq!(emulator.wire(0).unwrap().frames_in, 3000);
    drop((rx, tx, burst));
    pollux.close().unwrap();
    drop(pollux);
    for index in 0..2 {
        let report = emulator.report(index).unwrap();
        let left = (
            report.connected,
            report.firmware_pages,
            report.live_objects(),
        );
        assert_eq!(left, (false, 0, 0));
    }
}

#[test]
fn a_socket_that_serves_another_driver_says_so() {
    let (served, _emulator) = Served::emulator("wire=loop,idle=yield");
    let device = served.device(0);
    let first = Pollux::open(&config(&[&device])).unwrap();
    let error = Pollux::open(&config(&[&device])).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("in use") && text.contains(&device), "{text}");
    assert!(!error.is_input());
    drop(first);
    assert!(Pollux::open(&config(&[&device])).is_ok());
}

#[test]
fn a_path_without_a_server_is_a_mistake_of_the_user() {
    let path = std::env::temp_dir().join("pollux-no-such.sock");
    let device = format!("vfio-user:{}", path.display());
    let error = Pollux::open(&config(&[&device])).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unreached { .. }), "{text}");
    assert!(error.is_input());
    assert!(
        text.contains("no-such.sock") && text.contains("start the program"),
        "{text}"
    );
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn settings_belong_to_where_the_device_is_served() {
    let device = "vfio-user:/tmp/x.sock,ports=2";
    let error = Pollux::open(&config(&[device])).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ports") && error.is_input(), "{text}");
}

/// A device that is no mlx5 adapter.
struct Stranger;

impl Device for Stranger {
    fn identity(&self) -> Identity {
        Identity {
            name: "stranger".to_owned(),
            vendor: 0x8086,
            device: 0x1572,
            emulated: true,
            node: None,
        }
    }

    fn register_size(&self) -> u64 {
        0x1000
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        Vec::new()
    }

    fn vectors(&self) -> usize {
        1
    }

    fn connect(&self, _: Host) -> bool {
        true
    }

    fn disconnect(&self) {}

    fn load(&self, _: u64, _: &mut [u8]) {}

    fn store(&self, offset: u64, _: &[u8]) {
        panic!("a device of another kind was touched at {offset:#x}");
    }

    fn reset(&self) {
        panic!("a device of another kind was reset");
    }
}

#[test]
fn a_device_of_another_kind_is_left_alone() {
    let served = Served::new(vec![Arc::new(Stranger)]);
    let device = served.device(0);
    assert!(Path::new(device.strip_prefix("vfio-user:").unwrap()).exists());
    let error = Pollux::open(&config(&[&device])).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("8086:1572") && text.contains("15b3"),
        "{text}"
    );
    assert!(error.is_input());
}
