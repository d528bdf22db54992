//! The small device behind a vfio-user socket: a thread of this process serves it to one driver
//! after the other.

use super::fake::Fake;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use pollux_bus::Device;
use pollux_bus::vfio_user::{self, Listener, OWNER_ONLY, ServeOptions, Stop};
use std::collections::HashMap;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The socket of a device, which is served from its first mention on.
pub fn path(device: &Arc<Fake>) -> PathBuf {
    path_with(device, ServeOptions::default())
}

/// As [`path`], served in another way.
pub fn path_with(device: &Arc<Fake>, options: ServeOptions) -> PathBuf {
    static SERVED: Mutex<Option<HashMap<usize, PathBuf>>> = Mutex::new(None);
    let mut served = SERVED.lock().unwrap();
    let served = served.get_or_insert_default();
    let number = served.len();
    let path = served.entry(Arc::as_ptr(device) as usize);
    path.or_insert_with(|| serve(Arc::clone(device), number, options))
        .clone()
}

fn serve(device: Arc<Fake>, number: usize, options: ServeOptions) -> PathBuf {
    let name = format!("pollux-bus-{}-{number}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path, OWNER_ONLY).unwrap();
    // The server's thread ends with the process, which removes nothing: so the socket loses its
    // name now, and is reached through a descriptor of it.
    let socket = nix::fcntl::open(&path, OFlag::O_PATH, Mode::empty()).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::thread::spawn(move || {
        let device = device as Arc<dyn Device>;
        let stop = Stop::new().unwrap();
        vfio_user::serve(&listener, &device, &options, &stop, &mut |_| ())
    });
    PathBuf::from(format!("/proc/self/fd/{}", socket.into_raw_fd()))
}
