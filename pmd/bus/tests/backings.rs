//! What every backing must do, checked with one small device model: each test runs over the
//! in-process backing, over the one with messages, and over vfio-user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

mod fake;
mod served;

use fake::{Fake, SIZE, VECTORS};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pollux_bus::process::{self, Ending};
use pollux_bus::{BusError, Device, Function, Interrupt, Registers, local, vfio_user};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Connect = fn(&Arc<Fake>) -> Result<Arc<dyn Function>, BusError>;

fn local(device: &Arc<Fake>) -> Result<Arc<dyn Function>, BusError> {
    local::connect(Arc::clone(device) as Arc<dyn Device>)
}

fn messages(device: &Arc<Fake>) -> Result<Arc<dyn Function>, BusError> {
    let (ours, theirs) = process::pair().unwrap();
    let device = Arc::clone(device) as Arc<dyn Device>;
    std::thread::spawn(move || process::serve(&theirs, &device));
    process::connect(ours)
}

/// As a program that serves the device does it: one listener for all drivers.
fn vfio_user(device: &Arc<Fake>) -> Result<Arc<dyn Function>, BusError> {
    vfio_user::connect(served::path(device))
}

/// One test per backing.
macro_rules! on_every_backing {
    ($($name:ident)*) => {
        mod local_backing { $(#[test] fn $name() { super::$name(super::local); })* }
        mod process_backing { $(#[test] fn $name() { super::$name(super::messages); })* }
        mod vfio_user_backing { $(#[test] fn $name() { super::$name(super::vfio_user); })* }
    };
}

on_every_backing! {
    tells_who_it_is
    carries_trapped_registers
    mapped_registers_are_memory
    refuses_windows_that_cross
    refuses_misaligned_and_outside_accesses
    raises_each_enabled_vector
    refuses_more_vectors_than_there_are
    the_device_reaches_mapped_memory_only
    bus_mastering_off_refuses_dma
    shares_one_mapping_per_segment
    an_unmapped_segment_is_out_of_reach
    unmap_waits_until_the_device_lets_go
    resets
    one_driver_at_a_time
}

fn segment(len: usize) -> Segment {
    Segment::map(&SegmentRequest::new("test", len).page(PageChoice::Ordinary)).unwrap()
}

fn control(function: &Arc<dyn Function>) -> Registers {
    function.registers(0, 0x1000).unwrap()
}

/// Asks the device to add 1 at a device address; whether it could.
fn add(registers: &Registers, iova: u64) -> bool {
    registers.doorbell(0x10).unwrap().ring(iova);
    loop {
        match registers.load_u32(0x18).unwrap() {
            0 => std::thread::yield_now(),
            outcome => return outcome == 1,
        }
    }
}

fn arrives(interrupt: &Interrupt) -> bool {
    let mut fds = [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(5000u16)).unwrap() == 1
}

fn tells_who_it_is(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let (found, there) = (function.identity(), Fake::new().identity());
    assert_eq!((found.vendor, found.device), (there.vendor, there.device));
    // Names and nodes are not for PCI to say: a vfio-user function is named after its socket.
    if !found.name.starts_with('/') {
        assert_eq!(found, &there);
    }
    // A BAR is a power of two.
    let sizes = [SIZE, SIZE.next_power_of_two()];
    assert!(sizes.contains(&function.register_size()));
    assert_eq!(function.vectors(), VECTORS);
    assert!(function.identity().to_string().contains("EMULATED"));
}

fn carries_trapped_registers(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    assert!(!registers.is_mapped());
    assert_eq!(registers.load_u32(0).unwrap(), 0x1111_2222);
    registers.store_u32(4, 0xdead_beef).unwrap();
    assert_eq!(registers.load_u32(4).unwrap(), 0xdead_beef);
    let mut bytes = [0; 8];
    registers.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x11, 0x11, 0x22, 0x22, 0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(
        registers.load_u32(0x800).unwrap(),
        0,
        "no register reads as zero"
    );
    assert!(!registers.doorbell(0x10).unwrap().is_mapped());
}

fn mapped_registers_are_memory(connect: Connect) {
    let device = Fake::new();
    let function = connect(&device).unwrap();
    for (page, offset) in [(0, 0x2000), (1, 0x5000)] {
        let registers = function.registers(offset, 0x1000).unwrap();
        assert!(registers.is_mapped());
        let doorbell = registers.doorbell(0).unwrap();
        assert!(doorbell.is_mapped());
        doorbell.ring(0x0102_0304_0506_0708 + offset);
        assert_eq!(device.look(page), 0x0102_0304_0506_0708 + offset);
        assert_eq!(registers.load_u32(0).unwrap(), 0x0102_0304);
    }
}

fn refuses_windows_that_cross(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let size = function.register_size();
    for (offset, len) in [
        (0x1000, 0x1001),  // from trapped into mapped
        (0x2800, 0x1000),  // from mapped into trapped
        (0x1fff, 0x2000),  // around a mapped page
        (size - 4, 8),     // past the end
        (size, 1),         // behind the end
        (u64::MAX - 1, 2), // no such place
        (8, u64::MAX),     // wraps
    ] {
        let refused = function.registers(offset, len).err();
        assert!(
            matches!(refused, Some(BusError::Window { .. })),
            "{offset:#x}+{len:#x}"
        );
    }
    assert!(function.registers(0x1000, 0x1000).is_ok());
    assert!(function.registers(0x2ff8, 8).is_ok());
}

fn refuses_misaligned_and_outside_accesses(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    for registers in [
        function.registers(0, 0x10).unwrap(),
        function.registers(0x2000, 0x10).unwrap(),
    ] {
        for offset in [1, 2, 3, 0x0d, 0x10, u64::MAX - 3, u64::MAX] {
            assert!(matches!(
                registers.load_u32(offset),
                Err(BusError::Access { .. })
            ));
            assert!(matches!(
                registers.store_u32(offset, 0),
                Err(BusError::Access { .. })
            ));
        }
        for offset in [4, 0x0c, 0x10] {
            assert!(registers.doorbell(offset).is_err(), "{offset:#x}");
        }
        assert!(registers.copy_out(0, &mut [0; 6]).is_err());
        assert!(registers.copy_out(0, &mut [0; 20]).is_err());
    }
}

fn raises_each_enabled_vector(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    // All of them: more than one message carries.
    let interrupts = function.enable_interrupts(VECTORS).unwrap();
    assert_eq!(interrupts.len(), VECTORS);
    for (vector, interrupt) in interrupts.iter().enumerate() {
        registers.store_u32(8, vector as u32).unwrap();
        assert!(arrives(interrupt), "vector {vector}");
        assert_eq!(interrupt.take(), 1);
    }
    assert!(interrupts.iter().all(|interrupt| interrupt.take() == 0));

    // Enabling fewer replaces all; the old ones stay silent.
    let fewer = function.enable_interrupts(2).unwrap();
    registers.store_u32(8, 5).unwrap();
    registers.store_u32(8, 1).unwrap();
    assert!(arrives(&fewer[1]));
    assert_eq!(
        (fewer[0].take(), interrupts[5].take(), interrupts[1].take()),
        (0, 0, 0)
    );

    function.disable_interrupts().unwrap();
    registers.store_u32(8, 0).unwrap();
    registers.load_u32(0).unwrap();
    assert_eq!(fewer[0].take(), 0);
}

fn refuses_more_vectors_than_there_are(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let refused = function.enable_interrupts(VECTORS + 1).unwrap_err();
    assert!(
        matches!(
            refused,
            BusError::Vectors {
                asked: 41,
                there: 40
            }
        ),
        "{refused}"
    );
}

fn the_device_reaches_mapped_memory_only(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    function.set_bus_master(true).unwrap();
    let memory = segment(0x3000);
    let mapping = function.domain().map(&memory).unwrap();
    assert!(mapping.iova().0 != 0);
    let window = memory.window(0x1000, 0x1000).unwrap();
    let iova = mapping.iova_of(&window).unwrap();
    assert_eq!(iova.0, mapping.iova().0 + 0x1000);
    window.write(8, &41u32.to_be()).unwrap();
    assert!(add(&registers, iova.0 + 8));
    assert_eq!(u32::from_be(window.read(8).unwrap()), 42);
    // The last word that is mapped, and the first that is not wholly.
    assert!(add(&registers, mapping.iova().0 + 0x3000 - 4));
    assert!(!add(&registers, mapping.iova().0 + 0x3000 - 3));
    assert!(!add(&registers, mapping.iova().0 - 1));
    assert!(!add(&registers, u64::MAX));
    assert!(mapping.iova_of(&segment(0x1000).whole()).is_none());
}

fn bus_mastering_off_refuses_dma(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    let memory = segment(0x1000);
    let mapping = function.domain().map(&memory).unwrap();
    assert!(!add(&registers, mapping.iova().0), "off at first");
    function.set_bus_master(true).unwrap();
    assert!(add(&registers, mapping.iova().0));
    function.set_bus_master(false).unwrap();
    assert!(!add(&registers, mapping.iova().0));
    function.set_bus_master(true).unwrap();
    assert!(
        add(&registers, mapping.iova().0),
        "mappings outlive the switch"
    );
    assert_eq!(u32::from_be(memory.whole().read(0).unwrap()), 2);
}

fn shares_one_mapping_per_segment(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    function.set_bus_master(true).unwrap();
    let domain = function.domain();
    let (one, other) = (segment(0x1000), segment(0x1000));
    let first = domain.map(&one).unwrap();
    let again = domain.map(&one.clone()).unwrap();
    let second = domain.map(&other).unwrap();
    assert_eq!(first.iova(), again.iova());
    assert_ne!(first.iova(), second.iova());
    assert_eq!(domain.mappings(), 2);
    drop(first);
    assert_eq!(domain.mappings(), 2);
    assert!(add(&registers, again.iova().0), "one holder is left");
    let iova = again.iova().0;
    drop(again);
    assert_eq!(domain.mappings(), 1);
    assert!(!add(&registers, iova));
}

fn an_unmapped_segment_is_out_of_reach(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    function.set_bus_master(true).unwrap();
    for _ in 0..20 {
        let memory = segment(0x1000);
        let mapping = function.domain().map(&memory).unwrap();
        let iova = mapping.iova().0;
        assert!(add(&registers, iova));
        drop(mapping);
        assert!(!add(&registers, iova));
        assert_eq!(u32::from_be(memory.whole().read(0).unwrap()), 1);
    }
    assert_eq!(function.domain().mappings(), 0);
}

fn unmap_waits_until_the_device_lets_go(connect: Connect) {
    let device = Fake::new();
    let function = connect(&device).unwrap();
    let registers = control(&function);
    function.set_bus_master(true).unwrap();
    let memory = segment(0x1000);
    let mapping = function.domain().map(&memory).unwrap();
    registers.store_u32(0x1c, 1).unwrap();
    while registers.load_u32(0x18).unwrap() != 3 {
        std::thread::yield_now();
    }
    // The device's thread holds what it resolved until it is told otherwise, which happens from
    // its own side while the driver waits.
    let releaser = std::thread::spawn({
        let device = Arc::clone(&device);
        let host = device.host().unwrap();
        move || {
            // The mapping leaves the table at once; only then may the holder let go.
            while host.memory.mappings() != 0 {
                std::thread::yield_now();
            }
            device.store(0x1c, &0u32.to_be_bytes());
        }
    });
    drop(mapping);
    // Had the device not let go in time, the address would still count as taken.
    assert_eq!(function.domain().mappings(), 0);
    releaser.join().unwrap();
}

fn resets(connect: Connect) {
    let function = connect(&Fake::new()).unwrap();
    let registers = control(&function);
    registers.store_u32(4, 7).unwrap();
    function.reset().unwrap();
    assert_eq!(registers.load_u32(4).unwrap(), 0);
    assert_eq!(registers.load_u32(0x0c).unwrap(), 1);
}

fn one_driver_at_a_time(connect: Connect) {
    let device = Fake::new();
    let first = connect(&device).unwrap();
    let refused = connect(&device).err().unwrap();
    assert!(matches!(refused, BusError::InUse { .. }), "{refused}");
    assert!(
        refused.to_string().contains(&first.identity().name),
        "{refused}"
    );
    // The refused one must not have taken the first one's connection away.
    assert_eq!(device.disconnects.load(Ordering::SeqCst), 0);
    assert!(device.host().is_some());
    let memory = segment(0x1000);
    let mapping = first.domain().map(&memory).unwrap();
    drop(first);
    assert_eq!(device.disconnects.load(Ordering::SeqCst), 1);
    assert!(device.host().is_none());
    // A mapping may outlive its function.
    drop(mapping);
    let second = connect(&device).unwrap();
    assert_eq!(control(&second).load_u32(0).unwrap(), 0x1111_2222);
}

#[test]
fn goodbye_leaves_the_socket_to_the_next_driver() {
    let device: Arc<dyn Device> = Fake::new();
    let (ours, theirs) = process::pair().unwrap();
    let server = std::thread::spawn(move || {
        let first = process::serve(&theirs, &device);
        let second = process::serve(&theirs, &device);
        (first.unwrap(), second.unwrap())
    });
    drop(process::connect(ours.try_clone().unwrap()).unwrap());
    let function = process::connect(ours).unwrap();
    assert_eq!(control(&function).load_u32(0).unwrap(), 0x1111_2222);
    drop(function);
    assert_eq!(server.join().unwrap(), (Ending::Goodbye, Ending::Goodbye));
}

#[test]
fn a_vfio_user_server_can_keep_every_page_to_itself() {
    let device = Fake::new();
    let options = vfio_user::ServeOptions {
        trap_all: true,
        ..vfio_user::ServeOptions::default()
    };
    let function = vfio_user::connect(served::path_with(&device, options)).unwrap();
    let registers = function.registers(0x2000, 0x1000).unwrap();
    assert!(!registers.is_mapped());
    registers.doorbell(8).unwrap().ring(0x1122_3344_5566_7788);
    assert_eq!(registers.load_u32(8).unwrap(), 0x1122_3344);
    registers.doorbell(0).unwrap().ring(42);
    // Behind the store, so that it has arrived.
    assert_eq!(registers.load_u32(4).unwrap(), 42);
    assert_eq!(device.look(0), 42);
}
