//! The socket's path: whose it is, who may use it, and what may be removed.

use crate::raw::{Folder, HANG};
use pollux_bus::vfio_user::{Listener, OWNER_ONLY, Stop};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn it_is_its_owners_unless_asked_otherwise() {
    let folder = Folder::new();
    for (name, wanted) in [("a", OWNER_ONLY), ("b", 0o660), ("c", 0o666)] {
        let path = folder.file(name);
        let listener = Listener::bind(&path, wanted).unwrap();
        assert_eq!(mode(&path), wanted);
        drop(listener);
        assert!(!path.exists(), "gone with its listener");
    }
}

#[test]
fn what_a_dead_server_left_is_removed() {
    let folder = Folder::new();
    let path = folder.file("stale");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path, OWNER_ONLY).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn what_is_served_or_no_socket_is_left_alone() {
    let folder = Folder::new();
    let path = folder.file("served");
    let other = UnixListener::bind(&path).unwrap();
    let error = Listener::bind(&path, OWNER_ONLY).unwrap_err().to_string();
    assert!(error.contains("served by another process"), "{error}");
    assert!(error.contains("served"), "{error}");
    UnixStream::connect(&path).unwrap();
    drop(other);

    let path = folder.file("precious");
    std::fs::write(&path, "data").unwrap();
    let error = Listener::bind(&path, OWNER_ONLY).unwrap_err().to_string();
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");

    let target = folder.file("target");
    std::fs::write(&target, "data").unwrap();
    let link = folder.file("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    Listener::bind(&link, OWNER_ONLY).unwrap_err();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "data");
}

#[test]
fn paths_that_cannot_be_are_named() {
    let folder = Folder::new();
    let long = folder.file(&"x".repeat(120));
    let missing = folder.file("no/such/folder");
    for path in [long, missing] {
        let error = Listener::bind(&path, OWNER_ONLY).unwrap_err().to_string();
        let folder = path.parent().unwrap().display().to_string();
        assert!(error.contains(&folder), "{error}");
    }
}

#[test]
fn only_its_own_path_is_removed() {
    let folder = Folder::new();
    let path = folder.file("moved");
    let first = Listener::bind(&path, OWNER_ONLY).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Listener::bind(&path, OWNER_ONLY).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
    drop(second);
    assert!(!path.exists());
}

#[test]
fn of_two_that_find_a_stale_socket_one_wins() {
    let folder = Folder::new();
    let path = folder.file("contested");
    for _ in 0..20 {
        drop(UnixListener::bind(&path).unwrap());
        let racers: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || Listener::bind(&path, OWNER_ONLY).ok())
            })
            .collect();
        let won: Vec<Listener> = racers
            .into_iter()
            .filter_map(|racer| racer.join().unwrap())
            .collect();
        assert_eq!(won.len(), 1);
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn a_raised_stop_ends_the_wait() {
    let folder = Folder::new();
    let path = folder.file("waiting");
    let listener = Listener::bind(&path, OWNER_ONLY).unwrap();
    let stop = Stop::new().unwrap();
    let its = stop.clone();
    let waiting = std::thread::spawn(move || listener.next(&its).unwrap().is_none());
    stop.raise();
    let start = std::time::Instant::now();
    assert!(waiting.join().unwrap());
    assert!(start.elapsed() < HANG);
}
