//! A connection's life: honest use, refusals, silence and death.

use crate::peer::*;
use crate::{HANG, SHORT, connect, liar, page};
use pollux_bus::{BusError, vfio_user};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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
