//! The driver's end of vfio-user against devices that are honest, refuse, die, fall silent or lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

mod peer;

use peer::*;
use pollux_bus::{BusError, Function, vfio_user};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine's answer, short enough to wait for.
const SHORT: Duration = Duration::from_millis(400);
/// Far beyond anything that a deadline may allow.
const HANG: Duration = Duration::from_secs(60);

fn connect(peer: &Peer, patience: Duration) -> Result<Arc<dyn Function>, BusError> {
    vfio_user::connect_on(peer.socket.try_clone().unwrap(), "peer", patience)
}

/// A device that does `act` at the first question `when` is true of.
fn liar(
    mut when: impl FnMut(&Question) -> bool + Send + 'static,
    act: impl FnOnce() -> Act + Send + 'static,
) -> Peer {
    let mut act = Some(act);
    Peer::start(move |question| match when(question) {
        true => act.take().map_or(Act::Honest, |act| act()),
        false => Act::Honest,
    })
}

fn page() -> Segment {
    Segment::map(&SegmentRequest::new("page", 0x1000).page(PageChoice::Ordinary)).unwrap()
}

fn assert_lost(what: &str, connected: Result<Arc<dyn Function>, BusError>) {
    match connected {
        Err(BusError::Peer { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: believed"),
    }
}

#[test]
fn an_honest_device_is_used_as_the_protocol_says() {
    let peer = Peer::start(|_| Act::Honest);
    let function = connect(&peer, HANG).unwrap();
    let identity = function.identity();
    assert_eq!((identity.vendor, identity.device), (0x15b3, 0x1015));
    assert!(identity.emulated, "a program plays it");
    assert_eq!(identity.name, "peer");
    assert_eq!((function.register_size(), function.vectors()), (SIZE, 40));
    assert_eq!(
        peer.state.lock().unwrap().config[4],
        0b010,
        "memory decoding"
    );

    let trapped = function.registers(0, 0x2000).unwrap();
    assert!(!trapped.is_mapped());
    assert_eq!(trapped.load_u32(0).unwrap(), 0x1111_2222);
    trapped.store_u32(8, 0xdead_beef).unwrap();
    trapped.doorbell(0x10).unwrap().ring(0x0102_0304_0506_0708);
    assert_eq!(trapped.load_u32(8).unwrap(), 0xdead_beef);
    assert_eq!(trapped.load_u32(0x14).unwrap(), 0x0506_0708);

    for page in [2, 5] {
        let mapped = function.registers(page * 0x1000, 0x1000).unwrap();
        assert!(mapped.is_mapped());
        mapped.doorbell(0x800).unwrap().ring(0x42 + page);
        let window = peer.state.lock().unwrap().registers.whole();
        let at = page as usize * 0x1000 + 0x800;
        assert_eq!(u64::from_be(window.read(at).unwrap()), 0x42 + page);
    }

    let memory = page();
    let mapping = function.domain().map(&memory).unwrap();
    let expected = [(mapping.iova().0, 0x1000)];
    assert_eq!(peer.state.lock().unwrap().mapped, expected.into());
    drop(mapping);
    assert!(peer.state.lock().unwrap().mapped.is_empty());

    let interrupts = function.enable_interrupts(37).unwrap();
    let joined = peer.state.lock().unwrap().vectors[&36].try_clone().unwrap();
    nix::unistd::write(&joined, &1u64.to_ne_bytes()).unwrap();
    assert_eq!((interrupts[36].take(), interrupts[35].take()), (1, 0));
    assert_eq!(function.enable_interrupts(1).unwrap().len(), 1);
    assert_eq!(peer.state.lock().unwrap().vectors.len(), 1);
    function.disable_interrupts().unwrap();
    assert!(peer.state.lock().unwrap().vectors.is_empty());

    function.set_bus_master(true).unwrap();
    assert_eq!(peer.state.lock().unwrap().config[4], 0b110);
    function.reset().unwrap();
    let (resets, command) = {
        let state = peer.state.lock().unwrap();
        (state.resets, state.config[4])
    };
    assert_eq!(
        (resets, command),
        (1, 0b110),
        "what a reset clears is put back"
    );
    function.set_bus_master(false).unwrap();
    assert_eq!(peer.state.lock().unwrap().config[4], 0b010);

    drop(function);
    assert!(peer.state.lock().unwrap().closed, "taking leave waits");
}

#[test]
fn only_stores_are_posted() {
    let peer = Peer::start(|_| Act::Honest);
    let function = connect(&peer, HANG).unwrap();
    let registers = function.registers(0, 0x1000).unwrap();
    let before = peer.state.lock().unwrap().asked.len();
    registers.store_u32(0x40, 1).unwrap();
    registers.doorbell(0x48).unwrap().ring(2);
    assert_eq!(registers.load_u32(0x40).unwrap(), 1);
    function.set_bus_master(true).unwrap();
    let state = peer.state.lock().unwrap();
    let (posted, others): (Vec<_>, Vec<_>) = state
        .asked
        .iter()
        .partition(|(_, flags)| flags & NO_REPLY != 0);
    assert_eq!(posted, [&(REGION_WRITE, NO_REPLY); 2]);
    assert_eq!(
        state.asked[before..before + 2],
        [(REGION_WRITE, NO_REPLY); 2]
    );
    // Bus mastering's store is answered: the answer says that nothing is in flight.
    assert!(others.contains(&&(REGION_WRITE, 0)));
}

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

#[test]
fn refusals_carry_the_devices_reason() {
    let refused = |command: u16, errno| {
        liar(
            move |question| question.command == command,
            move || Act::Refuse(errno),
        )
    };
    let peer = refused(DMA_MAP, 28);
    let function = connect(&peer, HANG).unwrap();
    let error = function.domain().map(&page()).unwrap_err().to_string();
    assert!(
        error.contains("mapping") && error.contains("ENOSPC"),
        "{error}"
    );
    assert_eq!(function.domain().mappings(), 0);
    // A refusal ends nothing.
    assert!(function.domain().map(&page()).is_ok());

    let peer = refused(RESET, 0);
    let error = connect(&peer, HANG).unwrap().reset().unwrap_err();
    assert!(error.to_string().contains("no reason"), "{error}");
    let peer = refused(RESET, u32::MAX);
    let error = connect(&peer, HANG).unwrap().reset().unwrap_err();
    assert!(matches!(error, BusError::Refused { .. }), "{error}");

    let peer = refused(VERSION, 16);
    let error = connect(&peer, HANG).err().unwrap();
    assert!(matches!(error, BusError::InUse { .. }), "{error}");

    // One that says so unasked, and leaves.
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert!(send(
        &theirs,
        &header(0, VERSION, 16, REPLY | ERROR, 16),
        &[]
    ));
    drop(theirs);
    let error = vfio_user::connect_on(ours, "busy", HANG).err().unwrap();
    assert!(matches!(error, BusError::InUse { .. }), "{error}");

    let peer = refused(SET_IRQS, 22);
    let function = connect(&peer, HANG).unwrap();
    assert!(function.enable_interrupts(3).is_err());
    assert_eq!(function.enable_interrupts(3).unwrap().len(), 3);
}

#[test]
fn interrupts_are_enabled_wholly_or_not_at_all() {
    let count = AtomicUsize::new(0);
    let peer = liar(
        move |question| {
            let eventfds = question.command == SET_IRQS && !question.fds.is_empty();
            eventfds && count.fetch_add(1, Ordering::Relaxed) == 1
        },
        || Act::Refuse(12),
    );
    let function = connect(&peer, HANG).unwrap();
    let error = function.enable_interrupts(40).unwrap_err();
    assert!(error.to_string().contains("ENOMEM"), "{error}");
    assert!(peer.state.lock().unwrap().vectors.is_empty());
}

#[test]
fn a_device_that_takes_one_descriptor_gets_one_at_a_time() {
    let peer = liar(
        |question| question.command == VERSION,
        || Body::new().u16(0).u16(0).act(),
    );
    let function = connect(&peer, HANG).unwrap();
    let interrupts = function.enable_interrupts(5).unwrap();
    assert_eq!(interrupts.len(), 5);
    let state = peer.state.lock().unwrap();
    let sets = state
        .asked
        .iter()
        .filter(|(command, _)| *command == SET_IRQS);
    assert_eq!((sets.count(), state.vectors.len()), (6, 5));
}

#[test]
fn a_device_that_cannot_be_reset_is_not_asked_to() {
    let peer = liar(
        |question| question.command == GET_INFO,
        || Body::new().u32(16).u32(0b10).u32(9).u32(5).act(),
    );
    let function = connect(&peer, HANG).unwrap();
    assert!(matches!(function.reset(), Err(BusError::Refused { .. })));
    assert_eq!(peer.state.lock().unwrap().resets, 0);
}

#[test]
fn a_switch_that_does_not_move_is_an_error() {
    let peer = Peer::start(|question| {
        let command_register = question.u32_or(8) == 7 && question.u64_or(0) == 4;
        match question.command {
            REGION_READ if command_register => {
                let body = Body::new().u64(4).u32(7).u32(2);
                body.u16(0b010).act()
            }
            _ => Act::Honest,
        }
    });
    let function = connect(&peer, HANG).unwrap();
    let error = function.set_bus_master(true).unwrap_err();
    assert!(matches!(error, BusError::Refused { .. }), "{error}");
}

impl Question {
    fn u32_or(&self, at: usize) -> u32 {
        if self.body.len() < at + 4 {
            0
        } else {
            self.u32(at)
        }
    }

    fn u64_or(&self, at: usize) -> u64 {
        if self.body.len() < at + 8 {
            0
        } else {
            self.u64(at)
        }
    }
}

#[test]
fn a_refused_posted_store_does_not_confuse_later_answers() {
    let peer = Peer::start(|question| match question.flags & NO_REPLY {
        0 => Act::Honest,
        _ => Act::Refuse(22),
    });
    let function = connect(&peer, HANG).unwrap();
    let registers = function.registers(0, 0x1000).unwrap();
    for value in 0..5 {
        registers.store_u32(4, value).unwrap();
    }
    assert_eq!(registers.load_u32(0).unwrap(), 0x1111_2222);
    assert!(function.reset().is_ok());
}

#[test]
fn a_silent_device_is_an_error_and_its_memory_stays() {
    let peer = Peer::start(|question| match (question.command, question.flags) {
        (REGION_READ, _) if question.u32(8) == 0 => Act::Silence,
        _ => Act::Honest,
    });
    let function = connect(&peer, SHORT).unwrap();
    let start = Instant::now();
    let memory = page();
    let address = memory.address();
    let mapping = function.domain().map(&memory).unwrap();
    let registers = function.registers(0, 0x1000).unwrap();
    let value = registers.load_u32(0).unwrap();
    assert_eq!(value, u32::MAX, "as from a card that was pulled");
    assert!(matches!(function.reset(), Err(BusError::Peer { .. })));
    assert!(function.set_bus_master(false).is_err());
    assert!(function.enable_interrupts(1).is_err());
    registers.store_u32(0, 1).unwrap();
    // A silent program may still write there.
    drop(mapping);
    drop(memory);
    assert_eq!(function.domain().mappings(), 1);
    assert_ne!(page().address(), address);
    drop(function);
    assert!(start.elapsed() < HANG);
}

#[test]
fn an_unmapping_that_is_refused_or_about_something_else_keeps_the_memory() {
    let other = Body::new().u32(24).u32(0).u64(0x5000).u64(0x1000);
    for act in [Act::Refuse(16), other.act()] {
        let peer = liar(|question| question.command == DMA_UNMAP, move || act);
        let function = connect(&peer, SHORT).unwrap();
        let memory = page();
        let address = memory.address();
        drop(function.domain().map(&memory).unwrap());
        drop(memory);
        assert_eq!(function.domain().mappings(), 1);
        assert_ne!(page().address(), address);
    }
}

#[test]
fn a_dead_device_is_an_error_and_its_memory_comes_back() {
    let peer = liar(|question| question.command == RESET, || Act::Close);
    let function = connect(&peer, HANG).unwrap();
    let mapping = function.domain().map(&page()).unwrap();
    let error = function.reset().unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let registers = function.registers(0, 0x1000).unwrap();
    assert_eq!(registers.load_u32(0).unwrap(), u32::MAX);
    registers.store_u32(0, 1).unwrap();
    drop(mapping);
    let left = function.domain().mappings();
    assert_eq!(left, 0, "nobody is left who could touch it");

    let peer = liar(|question| question.command == VERSION, || Act::Close);
    let error = connect(&peer, HANG).err().unwrap().to_string();
    assert!(error.contains("another driver"), "{error}");
}

#[test]
fn a_device_that_does_not_read_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let peer = Peer::start(|_| Act::Honest);
        // Relays the hello and all that connecting asks, then reads nothing any more.
        let mut asked = 0;
        while let Some(question) = receive(&theirs) {
            asked += 1;
            let act = honest(&mut peer.state.lock().unwrap(), &question);
            let Act::Answer(body, fds) = act else { break };
            let size = 16 + body.len() as u32;
            let bytes = [header(question.id, question.command, size, REPLY, 0), body].concat();
            let segment = peer.state.lock().unwrap().registers.clone();
            use std::os::fd::BorrowedFd;
            let fds: Vec<BorrowedFd<'_>> = vec![segment.fd().unwrap(); fds];
            assert!(send(&theirs, &bytes, &fds));
            if question.command == REGION_READ && asked > 8 {
                break;
            }
        }
        theirs
    });
    let function = vfio_user::connect_on(ours, "deaf", SHORT).unwrap();
    let _deaf = reader.join().unwrap();
    let start = Instant::now();
    let registers = function.registers(0, 0x1000).unwrap();
    // A socket holds a few hundred kilobytes.
    for _ in 0..100_000 {
        registers.store_u32(0, 1).unwrap();
    }
    assert_eq!(registers.load_u32(0).unwrap(), u32::MAX);
    assert!(start.elapsed() < HANG);
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
