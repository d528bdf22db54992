//! Registers, trapped and mapped, as messages reach them.

use crate::raw::{
    Answer, BAR0, BAR2, CONFIG, GET_INFO, GET_IRQ_INFO, GET_REGION_INFO, MSIX, READ, RESET, Rig,
    WRITE, access_body, words,
};
use pollux_bus::vfio_user::Event;
use pollux_mempool::Segment;
use std::sync::atomic::Ordering;

fn info(rig: &Rig, index: u32, room: u32) -> Answer {
    let mut client = rig.client();
    let body = [words(&[room, 0, index, 0]), vec![0; 16]].concat();
    client.ask(GET_REGION_INFO, &body, &[]).unwrap()
}

#[test]
fn the_device_is_described() {
    let rig = Rig::new();
    let mut client = rig.client();
    let answer = client.ask(GET_INFO, &words(&[16, 0, 0, 0]), &[]).unwrap();
    // PCI, can be reset; nine regions; INTx, MSI and MSI-X.
    assert_eq!(answer.body, words(&[16, 3, 9, 3]));
    for (index, flags, count) in [(0, 0, 0), (1, 0, 0), (MSIX, 1, 40)] {
        let answer = client
            .ask(GET_IRQ_INFO, &words(&[16, 0, index, 0]), &[])
            .unwrap();
        assert_eq!(answer.body, words(&[16, flags, index, count]));
    }
    let error = client.ask(GET_IRQ_INFO, &words(&[16, 0, 3, 0]), &[]);
    assert_eq!(error.unwrap_err(), libc::EINVAL);
    // QEMU asks so, and means no harm.
    let events = rig.events.lock().unwrap();
    let refused = |event: &Event| matches!(event, Event::Refused { .. });
    assert!(!events.iter().any(refused), "{events:?}");
}

#[test]
fn regions_have_sizes_and_the_registers_can_be_mapped() {
    let rig = Rig::new();
    for (index, size) in [
        (1, 0),
        (BAR2, 0x2000),
        (3, 0),
        (6, 0),
        (CONFIG, 0x1000),
        (8, 0),
    ] {
        let answer = info(&rig, index, 32);
        assert_eq!(
            (answer.u32(0), answer.u64(16)),
            (32, size),
            "region {index}"
        );
        let access = if size == 0 { 0 } else { 3 };
        assert_eq!(answer.u32(4), access, "region {index}");
    }
    // 0x6000 bytes of registers are a BAR of 0x8000.
    let short = info(&rig, BAR0, 32);
    assert_eq!(short.u64(16), 0x8000);
    assert_eq!(short.u32(0), 32 + 16 + 2 * 16, "room that the list needs");
    assert!(short.fds.is_empty());
    let whole = info(&rig, BAR0, 80);
    assert_eq!(whole.fds.len(), 1);
    assert_eq!(whole.u32(4), 3 | 4 | 8);
    assert_eq!((whole.u32(12), whole.u64(24)), (32, 0));
    assert_eq!(words(&[0x1_0001, 0, 2, 0]), whole.body[32..48]);
    let areas = [48, 56, 64, 72].map(|at| whole.u64(at));
    assert_eq!(areas, [0x2000, 0x1000, 0x5000, 0x1000]);
}

#[test]
fn a_mapped_page_is_the_devices_own() {
    let rig = Rig::new();
    let mut whole = info(&rig, BAR0, 80);
    let fd = whole.fds.pop().expect("a descriptor");
    let at = whole.u64(24) + whole.u64(64);
    let page = Segment::from_fd(fd, at, 0x1000).unwrap().whole();
    page.word64(0)
        .unwrap()
        .store(77_u64.to_be(), Ordering::Release);
    assert_eq!(rig.fake.look(1), 77);
    // By message, too.
    let mut client = rig.client();
    assert_eq!(client.read(BAR0, 0x5000, 8), 77_u64.to_be_bytes());
    client.write(BAR0, 0x5000, &78_u64.to_be_bytes());
    assert_eq!(rig.fake.look(1), 78);
    client.write(BAR0, 0x2004, &9_u32.to_be_bytes());
    assert_eq!(rig.fake.look(0), 9);
}

#[test]
fn accesses_may_cross_from_trapped_to_mapped() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.write(BAR0, 0x1ffc, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(rig.fake.look(0) >> 32, 0x0506_0708);
    assert_eq!(client.read(BAR0, 0x1ffc, 8), [0, 0, 0, 0, 5, 6, 7, 8]);
    let all = client.read(BAR0, 0, 0x8000);
    assert_eq!(all[..4], 0x1111_2222_u32.to_be_bytes());
    assert_eq!(all[0x2000..0x2004], [5, 6, 7, 8]);
}

#[test]
fn registers_answer_only_while_memory_is_enabled() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.write(BAR0, 4, &5_u32.to_be_bytes());
    assert_eq!(client.register(4), 5);
    client.write(CONFIG, 4, &[0x04, 0x00]);
    assert_eq!(client.register(4), u32::MAX);
    client.write(BAR0, 4, &6_u32.to_be_bytes());
    client.write(CONFIG, 4, &[0x06, 0x00]);
    assert_eq!(client.register(4), 5, "the store went nowhere");
}

#[test]
fn resets_reach_the_device() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.write(BAR0, 4, &5_u32.to_be_bytes());
    client.ask(RESET, &[], &[]).unwrap();
    // Command register, BARs: as after power-on.
    assert_eq!(client.read(CONFIG, 4, 2), [0, 0]);
    client.write(CONFIG, 4, &[0x06, 0x00]);
    assert_eq!((client.register(0x0c), client.register(4)), (1, 0));
    // Function-level reset: device control of the PCI Express capability.
    client.write(CONFIG, 0x68, &0x8000_u16.to_le_bytes());
    client.write(CONFIG, 4, &[0x06, 0x00]);
    assert_eq!(client.register(0x0c), 2);
    assert_eq!(client.ask(RESET, &[0; 4], &[]).unwrap_err(), libc::EINVAL);
}

#[test]
fn accesses_outside_regions_are_refused() {
    let rig = Rig::new();
    let mut client = rig.client();
    for (region, offset, count) in [
        (BAR0, 0x8000, 1),
        (BAR0, 0x7fff, 2),
        (BAR0, u64::MAX, 1),
        (BAR0, u64::MAX - 3, 8),
        (BAR0, 0, 0),
        (1, 0, 4),
        (BAR2, 0x2000, 4),
        (CONFIG, 0xffe, 4),
        (CONFIG, 0x1000, 1),
        (8, 0, 1),
        (9, 0, 4),
        (u32::MAX, 0, 4),
        (CONFIG, 0, u32::MAX),
        (BAR0, 0, 0x1_0001),
    ] {
        let body = access_body(region, offset, count);
        let read = client.ask(READ, &body, &[]);
        assert_eq!(
            read.unwrap_err(),
            libc::EINVAL,
            "read {region} {offset:#x}+{count:#x}"
        );
        if count <= 8 {
            let body = [body, vec![0; count as usize]].concat();
            let write = client.ask(WRITE, &body, &[]);
            assert_eq!(
                write.unwrap_err(),
                libc::EINVAL,
                "write {region} {offset:#x}+{count:#x}"
            );
        }
    }
    // The server is well.
    assert_eq!(client.register(0), 0x1111_2222);
}

#[test]
fn interrupt_tables_hold_what_is_stored_and_nothing_else_happens() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.write(
        BAR2,
        16,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 0, 0, 0],
    );
    assert_eq!(client.read(BAR2, 16, 4), [1, 2, 3, 4]);
    // Pending bits are the device's.
    client.write(BAR2, 0x1000, &[0xff; 8]);
    assert_eq!(client.read(BAR2, 0x1000, 8), [0; 8]);
    client.write(BAR0, 8, &9_u32.to_be_bytes());
    assert_eq!(client.read(BAR2, 0x1000, 8), [0, 2, 0, 0, 0, 0, 0, 0]);
}
