//! What is found while connecting: nonsense, lies, and nobody.

use crate::peer::*;
use crate::{HANG, SHORT, assert_lost, connect, liar};
use pollux_bus::{BusError, vfio_user};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Instant;

#[test]
fn nonsense_while_connecting_is_an_error() {
    let info = |flags, regions, irqs| Body::new().u32(16).u32(flags).u32(regions).u32(irqs);
    let irq = |flags, index, count| Body::new().u32(16).u32(flags).u32(index).u32(count);
    let version = |major, minor, text: &[u8]| Body::new().u16(major).u16(minor).bytes(text);
    let region = |argsz, flags, index, size| {
        let body = Body::new().u32(argsz).u32(flags).u32(index).u32(0);
        body.u64(size).u64(0)
    };
    let read = |offset, region, count| Body::new().u64(offset).u32(region).u32(count);
    let cases: Vec<(&str, u16, Option<u32>, Body)> = vec![
        ("major version", VERSION, None, version(1, 0, b"{}\0")),
        ("minor version", VERSION, None, version(0, 2, b"{}\0")),
        ("no JSON", VERSION, None, version(0, 1, b"hello\0")),
        ("no version", VERSION, None, Body::new()),
        (
            "version too long",
            VERSION,
            None,
            version(0, 1, &[b' '; 70_000]),
        ),
        ("no PCI device", GET_INFO, None, info(0b01, 9, 5)),
        ("few regions", GET_INFO, None, info(0b11, 7, 5)),
        ("short", GET_INFO, None, Body::new().u32(16).u32(0b11)),
        ("long", GET_INFO, None, info(0b11, 9, 5).u32(0)),
        ("kind of interrupt", GET_IRQ_INFO, None, irq(1, 1, 40)),
        ("vectors", GET_IRQ_INFO, None, irq(1, 2, 2049)),
        ("no eventfds", GET_IRQ_INFO, None, irq(0, 2, 40)),
        (
            "another region",
            GET_REGION_INFO,
            Some(7),
            region(32, 3, 0, 4096),
        ),
        (
            "small configuration space",
            GET_REGION_INFO,
            Some(7),
            region(32, 3, 7, 64),
        ),
        (
            "unreadable",
            GET_REGION_INFO,
            Some(7),
            region(32, 2, 7, 4096),
        ),
        (
            "no registers",
            GET_REGION_INFO,
            Some(0),
            region(32, 3, 0, 0),
        ),
        (
            "huge registers",
            GET_REGION_INFO,
            Some(0),
            region(32, 3, 0, 1 << 33),
        ),
        (
            "huge description",
            GET_REGION_INFO,
            Some(0),
            region(u32::MAX, 3, 0, 4096),
        ),
        (
            "short description",
            GET_REGION_INFO,
            Some(0),
            Body::new().u32(32).u32(3),
        ),
        (
            "another place",
            REGION_READ,
            None,
            read(8, 7, 2).u16(0x15b3),
        ),
        (
            "another region",
            REGION_READ,
            None,
            read(0, 0, 2).u16(0x15b3),
        ),
        (
            "another count",
            REGION_READ,
            None,
            read(0, 7, u32::MAX).u16(0x15b3),
        ),
        ("no data", REGION_READ, None, read(0, 7, 2)),
        ("nobody there", REGION_READ, None, read(0, 7, 2).u16(0xffff)),
    ];
    for (what, command, region, body) in cases {
        let peer = liar(
            move |question| {
                question.command == command && region.is_none_or(|region| question.u32(8) == region)
            },
            move || body.act(),
        );
        assert_lost(what, connect(&peer, SHORT));
    }
}

type Script = Box<dyn FnOnce() -> Act + Send>;

#[test]
fn bad_headers_are_errors() {
    let of = |id, command, size, flags, error| {
        move || Act::Bytes([header(id, command, size, flags, error), vec![0; 64]].concat())
    };
    // The second question's id is 1.
    let cases: Vec<(&str, Script)> = vec![
        ("another id", Box::new(of(5, GET_INFO, 32, REPLY, 0))),
        ("another command", Box::new(of(1, RESET, 32, REPLY, 0))),
        ("a request", Box::new(of(1, GET_INFO, 32, 0, 0))),
        ("a device's own request", Box::new(of(9, 11, 32, 0, 0))),
        ("another type", Box::new(of(1, GET_INFO, 32, 2, 0))),
        ("no size", Box::new(of(1, GET_INFO, 0, REPLY, 0))),
        (
            "a size below the header's",
            Box::new(of(1, GET_INFO, 15, REPLY, 0)),
        ),
        ("a huge size", Box::new(of(1, GET_INFO, u32::MAX, REPLY, 0))),
        (
            "a refusal with a body",
            Box::new(of(1, GET_INFO, 32, REPLY | ERROR, 5)),
        ),
        (
            "an answer to a store never posted",
            Box::new(of(7, REGION_WRITE, 16, REPLY | ERROR, 5)),
        ),
        ("half a header", Box::new(|| Act::Bytes(vec![1, 0, 4]))),
        (
            "half a body",
            Box::new(|| Act::Bytes(header(1, GET_INFO, 32, REPLY, 0))),
        ),
    ];
    for (what, act) in cases {
        let peer = liar(|question| question.command == GET_INFO, act);
        assert_lost(what, connect(&peer, SHORT));
    }
}

#[test]
fn too_many_descriptors_are_an_error_and_do_not_stay() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for count in [0, 2, 8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 100, 253] {
        let peer = liar(
            |question| question.command == GET_REGION_INFO && question.u32(8) == 0,
            move || Act::Answer(registers_info(SIZE, 0, &[(0x2000, 0x1000)]), count),
        );
        assert_lost("descriptors", connect(&peer, SHORT));
    }
    let deadline = Instant::now() + HANG;
    // The devices' threads end on their own; other tests open and close meanwhile.
    while open() > before + 50 {
        assert!(Instant::now() < deadline, "descriptors leak");
        std::thread::yield_now();
    }
}

#[test]
fn bad_mappable_areas_are_errors() {
    const P: u64 = 0x1000;
    let with = |file_offset, areas: &'static [(u64, u64)]| registers_info(SIZE, file_offset, areas);
    let mut loops = with(0, &[]);
    loops[32..34].copy_from_slice(&9u16.to_ne_bytes());
    loops[36..40].copy_from_slice(&32u32.to_ne_bytes());
    let mut inside = with(0, &[(0x2000, P)]);
    inside[12..16].copy_from_slice(&4u32.to_ne_bytes());
    let mut behind = with(0, &[(0x2000, P)]);
    behind[12..16].copy_from_slice(&64u32.to_ne_bytes());
    let mut far = with(0, &[(0x2000, P)]);
    far[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
    let mut more = with(0, &[(0x2000, P)]);
    more[40..44].copy_from_slice(&2u32.to_ne_bytes());
    let mut most = with(0, &[(0x2000, P)]);
    most[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
    let cases = [
        ("not on a page", with(0, &[(0x800, P)])),
        ("not whole pages", with(0, &[(0x2000, 0x800)])),
        ("nothing", with(0, &[(0x2000, 0)])),
        ("behind the region", with(0, &[(SIZE, P)])),
        ("across its end", with(0, &[(SIZE - P, 2 * P)])),
        ("wrapping", with(0, &[(u64::MAX - P + 1, P)])),
        ("wrapping length", with(0, &[(P, u64::MAX - P + 1)])),
        ("twice", with(0, &[(0x2000, P), (0x2000, P)])),
        ("overlapping", with(0, &[(0x1000, 3 * P), (0x2000, P)])),
        ("behind the file", with(SIZE, &[(0x2000, P)])),
        ("not on a page of the file", with(0x10, &[(0x2000, P)])),
        ("past any file", with(u64::MAX - P + 1, &[(0x2000, P)])),
        ("a list that loops", loops),
        ("a list inside the description", inside),
        ("a list behind the answer", behind),
        ("a list far away", far),
        ("more areas than there are", more),
        ("the most areas", most),
    ];
    for (what, body) in cases {
        let peer = liar(
            |question| question.command == GET_REGION_INFO && question.u32(8) == 0,
            move || Act::Answer(body, 1),
        );
        assert!(connect(&peer, SHORT).is_err(), "{what}");
    }
}

#[test]
fn register_files_that_can_shrink_or_cannot_be_mapped_are_refused() {
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    let plain = nix::sys::memfd::memfd_create("plain", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    let plain = plain.unwrap();
    nix::unistd::ftruncate(&plain, SIZE as i64).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for (what, fd) in [
        ("a pipe", pipe),
        ("an unsealed file", plain),
        ("a device", null),
    ] {
        let peer = liar(
            |question| question.command == GET_REGION_INFO && question.u32(8) == 0,
            move || Act::AnswerWith(registers_info(SIZE, 0, &[(0x2000, 0x1000)]), fd),
        );
        let error = connect(&peer, SHORT).err().unwrap().to_string();
        assert!(error.contains("F_SEAL_SHRINK"), "{what}: {error}");
    }
}

#[test]
fn a_region_without_a_list_is_wholly_mapped_or_not_at_all() {
    for (flags, fds, mapped) in [(0b111, 1, true), (0b011, 0, false), (0b011, 1, false)] {
        let peer = liar(
            |question| question.command == GET_REGION_INFO && question.u32(8) == 0,
            move || {
                let body = Body::new().u32(32).u32(flags).u32(0).u32(0);
                Act::Answer(body.u64(SIZE).u64(0).0, fds)
            },
        );
        let function = connect(&peer, HANG).unwrap();
        let registers = function.registers(0, SIZE).unwrap();
        assert_eq!(registers.is_mapped(), mapped);
    }
}

/// A folder for sockets, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn paths_without_a_device_say_what_to_do() {
    let folder = Folder::new("paths");
    let at = |name: &str| folder.0.join(name);
    let stale = at("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let file = at("file");
    std::fs::write(&file, "").unwrap();
    for (path, word) in [
        (at("missing"), "start the program"),
        (stale, "nobody serves it"),
        (file, "nobody serves it"),
        (at(&"long".repeat(40)), "107 bytes"),
    ] {
        let error = vfio_user::connect(&path).err().unwrap();
        assert!(matches!(error, BusError::Unreachable { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(word) && text.contains("no device at"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn a_device_that_serves_nobody_more_is_an_error_in_time() {
    let folder = Folder::new("backlog");
    let path = folder.0.join("sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    // Accepted by the kernel alone: nobody answers.
    let error = vfio_user::connect_within(&path, SHORT).err().unwrap();
    assert!(matches!(error, BusError::Peer { .. }), "{error}");
    assert!(start.elapsed() < HANG);
}
