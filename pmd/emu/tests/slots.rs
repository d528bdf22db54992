//! The command queue: malformed entries, several in flight, held and delayed answers, faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::{Driver, PATIENCE, words};
use pollux_emu::faults::{CommandFault, PageDemand, Trigger};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{EmulatorConfig, FunctionConfig, Model};
use pollux_prm::Command;
use pollux_prm::command::{Opcode, Status};
use pollux_prm::command_queue::{CommandEntry, DeliveryStatus, Mailbox};
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::eq::{AllocUar, DeallocUar};
use pollux_prm::commands::hca::*;
use pollux_prm::commands::pages::QueryPages;
use pollux_prm::commands::protection::*;
use pollux_prm::event::{EventType, PageRequestEvent};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

fn fresh() -> Driver {
    Driver::new(EmulatorConfig::default())
}

/// A QUERY_ISSI: short input, output with one mailbox.
const QUERY: [u32; 4] = [0x010a_0000, 0, 0, 0];
const QUERY_ROOM: usize = 112;

fn still_works(driver: &mut Driver, what: &str) {
    let out = driver.raw(&words(&QUERY), QUERY_ROOM);
    // Sleeping or awake, it answers.
    assert!(
        out[0] == 0 || out[0] == Status::BAD_SYS_STATE_ERR.0,
        "{what}: {:x}",
        out[0]
    );
}

fn set_byte(bytes: &mut [u8], at: usize, value: u8) {
    bytes[at] = value;
}

#[test]
fn malformed_entries_go_back_with_their_delivery_status() {
    type Mutation = fn(&mut CommandEntry);
    let cases: &[(&str, Mutation, DeliveryStatus)] = &[
        (
            "type",
            |e| {
                e.set_entry_type(3);
            },
            DeliveryStatus::BAD_DESCRIPTOR,
        ),
        (
            "reserved",
            |e| set_byte(e.bytes_mut(), 1, 1),
            DeliveryStatus::RESERVED_NOT_CLEAR,
        ),
        (
            "status",
            |e| {
                e.set_status(1).unwrap();
            },
            DeliveryStatus::RESERVED_NOT_CLEAR,
        ),
        (
            "no input",
            |e| {
                e.set_input_length(0);
            },
            DeliveryStatus::INPUT_LENGTH_ERROR,
        ),
        (
            "short input",
            |e| {
                e.set_input_length(7);
            },
            DeliveryStatus::INPUT_LENGTH_ERROR,
        ),
        (
            "endless input",
            |e| {
                e.set_input_length(u32::MAX);
            },
            DeliveryStatus::INPUT_LENGTH_ERROR,
        ),
        (
            "input longer than its mailboxes",
            |e| {
                e.set_input_length(4096);
            },
            DeliveryStatus::INPUT_LENGTH_ERROR,
        ),
        (
            "no output",
            |e| {
                e.set_output_length(0);
            },
            DeliveryStatus::OUTPUT_LENGTH_ERROR,
        ),
        (
            "endless output",
            |e| {
                e.set_output_length(u32::MAX);
            },
            DeliveryStatus::OUTPUT_LENGTH_ERROR,
        ),
        (
            "output longer than its mailboxes",
            |e| {
                e.set_output_length(4096);
            },
            DeliveryStatus::OUTPUT_LENGTH_ERROR,
        ),
        (
            "input pointer",
            |e| {
                e.set_input_mailbox(e.input_mailbox() + 64);
            },
            DeliveryStatus::INPUT_POINTER_ALIGNMENT,
        ),
        (
            "output pointer",
            |e| {
                e.set_output_mailbox(e.output_mailbox() + 8);
            },
            DeliveryStatus::OUTPUT_POINTER_ALIGNMENT,
        ),
        (
            "token",
            |e| {
                e.set_token(e.token() ^ 1);
            },
            DeliveryStatus::TOKEN_ERROR,
        ),
        (
            "input nowhere",
            |e| {
                e.set_input_mailbox(0xdead_0000_0000);
            },
            DeliveryStatus::FIRMWARE_ERROR,
        ),
        (
            "output nowhere",
            |e| {
                e.set_output_mailbox(0xdead_0000_0000);
            },
            DeliveryStatus::FIRMWARE_ERROR,
        ),
    ];
    let mut driver = fresh();
    // 80 bytes of input and 112 of output: a mailbox each.
    let input = words(&[0x010d_0000; 20]);
    for (what, mutation, expected) in cases {
        let mut entry = driver.prepare(0, &input, QUERY_ROOM);
        mutation(&mut entry);
        entry.sign();
        driver.post(0, &entry);
        let back = driver.wait(0);
        assert_eq!(DeliveryStatus(back.status()), *expected, "{what}");
        assert!(back.is_signed(), "{what}");
        still_works(&mut driver, what);
    }
    let report = driver.emulator.report(0).unwrap();
    assert_eq!(report.undelivered, cases.len() as u64);
    assert_eq!(report.commands, cases.len() as u64);
}

#[test]
fn signatures_are_checked_where_there_are_any() {
    let mut driver = fresh();
    let input = words(&[0x010d_0000; 20]);
    let send = |driver: &mut Driver, entry: &CommandEntry| {
        driver.post(0, entry);
        DeliveryStatus(driver.wait(0).status())
    };
    // The entry's.
    let mut entry = driver.prepare(0, &input, QUERY_ROOM);
    entry.set_signature(entry.signature() ^ 0x10);
    assert_eq!(send(&mut driver, &entry), DeliveryStatus::SIGNATURE_ERROR);
    let entry = *driver.prepare(0, &input, QUERY_ROOM).set_signature(0);
    assert_eq!(send(&mut driver, &entry), DeliveryStatus::OK);
    // The mailbox's: over its control part and over all of it.
    let at = Driver::first_mailbox(0, false);
    for offset in [3, 540] {
        let entry = driver.prepare(0, &input, QUERY_ROOM);
        let mut mailbox: [u8; 576] = driver.memory.read(at).unwrap();
        mailbox[offset] ^= 0x20;
        driver.memory.copy_in(at, &mailbox).unwrap();
        assert_eq!(
            send(&mut driver, &entry),
            DeliveryStatus::SIGNATURE_ERROR,
            "{offset}"
        );
    }
    let entry = driver.prepare(0, &input, QUERY_ROOM);
    unsign(&mut driver, at);
    assert_eq!(send(&mut driver, &entry), DeliveryStatus::OK);
}

fn unsign(driver: &mut Driver, at: usize) {
    let mut mailbox = Mailbox::from_bytes(driver.memory.read(at).unwrap());
    mailbox.set_ctrl_signature(0).set_signature(0);
    driver.memory.copy_in(at, mailbox.bytes()).unwrap();
}

#[test]
fn signatures_are_demanded_when_switched_on() {
    let mut driver = fresh();
    driver.call::<EnableHca>(&EnableHca::request()).unwrap();
    driver.give_pages(1);
    let mut query = QueryHcaCap::request();
    query.set_op_mod(CapGroup::GENERAL.current());
    let mut space = driver.call::<QueryHcaCap>(&query).unwrap().capability();
    let (mut caps, _) = CmdHcaCap::read_from_prefix(&space).unwrap();
    caps.set_cmdif_checksum(3).unwrap();
    space[..256].copy_from_slice(caps.bytes());
    let mut set = SetHcaCap::request();
    set.set_capability(space);
    driver.call::<SetHcaCap>(&set).unwrap();
    // Signed ones pass, unsigned ones do not.
    still_works(&mut driver, "signed");
    let entry = *driver
        .prepare(0, &words(&QUERY), QUERY_ROOM)
        .set_signature(0);
    driver.post(0, &entry);
    assert_eq!(
        DeliveryStatus(driver.wait(0).status()),
        DeliveryStatus::SIGNATURE_ERROR
    );
    let entry = driver.prepare(0, set.as_bytes(), 16);
    unsign(&mut driver, Driver::first_mailbox(0, false));
    driver.post(0, &entry);
    assert_eq!(
        DeliveryStatus(driver.wait(0).status()),
        DeliveryStatus::SIGNATURE_ERROR
    );
}

#[test]
fn mailboxes_out_of_order_or_with_reserved_bits_are_refused() {
    let mut driver = fresh();
    // Three mailboxes of input.
    let mut input = words(&[0x0109_0000; 4]);
    input.resize(16 + 3 * 512, 0);
    let second = Driver::first_mailbox(0, false) + 1024;
    type Mutation = fn(&mut Mailbox);
    let cases: [(&str, Mutation, DeliveryStatus); 4] = [
        (
            "number",
            |m| {
                m.set_block_number(2);
            },
            DeliveryStatus::BAD_BLOCK_NUMBER,
        ),
        (
            "token",
            |m| {
                m.set_token(m.token() ^ 2);
            },
            DeliveryStatus::TOKEN_ERROR,
        ),
        (
            "reserved",
            |m| set_byte(m.bytes_mut(), 520, 1),
            DeliveryStatus::RESERVED_NOT_CLEAR,
        ),
        (
            "end",
            |m| {
                m.set_next_pointer(0);
            },
            DeliveryStatus::INPUT_LENGTH_ERROR,
        ),
    ];
    for (what, mutation, expected) in cases {
        let entry = driver.prepare(0, &input, 16);
        let mut mailbox = Mailbox::from_bytes(driver.memory.read(second).unwrap());
        mutation(&mut mailbox);
        mailbox.sign();
        driver.memory.copy_in(second, mailbox.bytes()).unwrap();
        driver.post(0, &entry);
        assert_eq!(DeliveryStatus(driver.wait(0).status()), expected, "{what}");
    }
    still_works(&mut driver, "after all");
}

#[test]
fn doorbells_without_a_command_do_nothing() {
    let mut driver = fresh();
    // No entry is the device's, and slot 31 lies beyond what was written.
    driver.registers().store_u32(0x18, 1 | 1 << 31).unwrap();
    let until = Instant::now() + PATIENCE;
    while driver.emulator.report(0).unwrap().stray_doorbells < 2 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    still_works(&mut driver, "after stray doorbells");
    let report = driver.emulator.report(0).unwrap();
    assert_eq!((report.stray_doorbells, report.commands), (2, 1));
}

#[test]
fn several_commands_fly_at_once() {
    let mut driver = fresh();
    driver.bring_up();
    for slot in 0..4 {
        let entry = driver.prepare(slot, AllocPd::request().as_bytes(), 16);
        driver.memory.copy_in(slot * 64, entry.bytes()).unwrap();
    }
    driver.registers().store_u32(0x18, 0xf).unwrap();
    let mut numbers: Vec<u32> = (0..4)
        .map(|slot| {
            let entry = driver.wait(slot);
            let out = driver.output(slot, &entry);
            u32::from_be_bytes(out[8..12].try_into().unwrap())
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

#[test]
fn a_delayed_answer_does_not_keep_others() {
    let mut driver = fresh();
    driver.call::<EnableHca>(&EnableHca::request()).unwrap();
    let faults = driver.emulator.faults(0).unwrap();
    let delay = Duration::from_millis(300);
    faults.command(
        Trigger::Opcode(Opcode::NOP.0, 1),
        CommandFault::Delay(delay),
    );
    let start = Instant::now();
    let entry = driver.prepare(1, Nop::request().as_bytes(), 16);
    driver.post(1, &entry);
    driver.call::<QueryIssi>(&QueryIssi::request()).unwrap();
    assert!(driver.poll(1).is_none(), "the delayed one came first");
    let entry = driver.wait(1);
    assert!(start.elapsed() >= delay);
    assert_eq!(driver.output(1, &entry)[..8], [0; 8]);
    assert_eq!(faults.armed(), 0);
}

#[test]
fn faults_hit_the_command_they_wait_for() {
    let mut driver = fresh();
    driver.bring_up();
    let faults = driver.emulator.faults(0).unwrap();
    // The third command from now: refused with what the test chose, not executed.
    let fail = CommandFault::Fail {
        status: Status::NO_RES_ERR.0,
        syndrome: 0x1234_5678,
    };
    faults.command(Trigger::Command(3), fail);
    let pd = AllocPd::request();
    driver.call::<AllocPd>(&pd).unwrap();
    driver.call::<AllocPd>(&pd).unwrap();
    let why = driver.call::<AllocPd>(&pd).unwrap_err();
    assert_eq!(
        (why.status, why.syndrome),
        (Status::NO_RES_ERR, 0x1234_5678)
    );
    assert_eq!(driver.emulator.report(0).unwrap().live_objects(), 2);
    // Not delivered.
    faults.command(Trigger::Every, CommandFault::Undelivered { status: 0x6 });
    let entry = driver.prepare(0, pd.as_bytes(), 16);
    driver.post(0, &entry);
    assert_eq!(
        DeliveryStatus(driver.wait(0).status()),
        DeliveryStatus::FIRMWARE_ERROR
    );
    faults.disarm();
    // Executed, never answered; the slot is lost, the others work.
    faults.command(
        Trigger::Opcode(Opcode::ALLOC_PD.0, 1),
        CommandFault::DropAnswer,
    );
    let entry = driver.prepare(2, pd.as_bytes(), 16);
    driver.post(2, &entry);
    // A later command in a lower slot may overtake it: wait until it was executed.
    for _ in 0..5_000 {
        if driver.emulator.report(0).unwrap().live_objects() == 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    driver.call::<AllocPd>(&pd).unwrap();
    assert!(driver.poll(2).is_none());
    assert_eq!(driver.emulator.report(0).unwrap().live_objects(), 4);
    let report = driver.emulator.report(0).unwrap();
    assert_eq!(report.faults, 3);
}

/// A function that has room for 16 objects, and its event queue for page requests (which with its
/// UAR page are two of them).
fn tight() -> (Driver, u8, usize) {
    let mut driver = Driver::one(FunctionConfig {
        init_pages: 32,
        spare_pages: 1,
        ..Default::default()
    });
    driver.bring_up();
    let uar = driver.uar();
    let (eqn, ring) = driver.eq(uar, 1, EventType::PAGE_REQUEST.mask(), 4);
    (driver, eqn, ring)
}

fn page_request(driver: &mut Driver, eqn: u8, ring: usize) -> PageRequestEvent {
    let event = driver.wait_event(eqn, ring, 4);
    assert_eq!(event.event_type(), EventType::PAGE_REQUEST.0);
    PageRequestEvent::from_bytes(event.event_data())
}

/// Posts an ALLOC_PD in slot 1 which has to wait for pages.
fn hold(driver: &mut Driver, eqn: u8, ring: usize) -> i32 {
    for _ in 2..16 {
        driver.call::<AllocPd>(&AllocPd::request()).unwrap();
    }
    let entry = driver.prepare(1, AllocPd::request().as_bytes(), 16);
    driver.post(1, &entry);
    let count = page_request(driver, eqn, ring).count();
    assert!(count > 0, "{count}");
    assert!(driver.poll(1).is_none(), "answered without pages");
    assert!(driver.emulator.report(0).unwrap().holding);
    count
}

#[test]
fn a_command_waits_until_pages_come() {
    let (mut driver, eqn, ring) = tight();
    let count = hold(&mut driver, eqn, ring);
    let mut query = QueryPages::request();
    query.set_op_mod(3);
    assert_eq!(
        driver.call::<QueryPages>(&query).unwrap().num_pages() as i32,
        count
    );
    // Other commands go on meanwhile, and fewer pages than asked for are enough here.
    driver.give(1);
    let entry = driver.wait(1);
    assert_eq!(driver.output(1, &entry)[..8], [0; 8]);
    assert!(!driver.emulator.report(0).unwrap().holding);
    assert_eq!(driver.emulator.report(0).unwrap().live_objects(), 17);
}

#[test]
fn a_command_is_refused_when_pages_cannot_be_given() {
    let (mut driver, eqn, ring) = tight();
    hold(&mut driver, eqn, ring);
    // CANT_GIVE.
    driver.try_raw(&words(&[0x0108_0000, 0, 0, 0]), 16).unwrap();
    let entry = driver.wait(1);
    let out = driver.output(1, &entry);
    assert_eq!(Status(out[0]), Status::NO_RES_ERR);
    let syndrome = u32::from_be_bytes(out[4..8].try_into().unwrap());
    assert_eq!(parts(syndrome).unwrap().0, Reason::PagesDenied);
    // Asked again, the firmware asks again.
    let entry = driver.prepare(1, AllocPd::request().as_bytes(), 16);
    driver.post(1, &entry);
    let count = page_request(&mut driver, eqn, ring).count();
    driver.give(count as usize);
    let entry = driver.wait(1);
    assert_eq!(driver.output(1, &entry)[..8], [0; 8]);
}

#[test]
fn page_requests_on_demand() {
    let (mut driver, eqn, ring) = tight();
    let faults = driver.emulator.faults(0).unwrap();
    let held = |driver: &Driver| driver.emulator.report(0).unwrap().firmware_pages;
    faults.page_request(PageDemand::Give(10));
    assert_eq!(page_request(&mut driver, eqn, ring).count(), 10);
    driver.give(10);
    assert_eq!(held(&driver), 48);
    // A hint that is not meant: what is idle goes, in as many steps as the driver likes.
    faults.page_request(PageDemand::Hint(30));
    assert_eq!(page_request(&mut driver, eqn, ring).count(), -30);
    assert_eq!(driver.take_pages(4).len(), 4);
    assert_eq!(driver.take_pages(26).len(), 6);
    assert_eq!(driver.take_pages(26).len(), 0);
    // One that is.
    faults.page_request(PageDemand::Take(5));
    assert_eq!(page_request(&mut driver, eqn, ring).count(), -5);
    assert_eq!(driver.take_pages(30).len(), 5);
    assert_eq!(held(&driver), 33);
    // Dropping all needs the driver's consent, which this one did not give.
    faults.page_request(PageDemand::ReleaseAll);
    driver.call::<QueryIssi>(&QueryIssi::request()).unwrap();
    assert_eq!(held(&driver), 33);
    assert!(driver.event(eqn, ring, 4).is_none());
}

#[test]
fn all_pages_can_be_dropped_with_consent() {
    let mut driver = fresh();
    driver.call::<EnableHca>(&EnableHca::request()).unwrap();
    driver.give_pages(1);
    let mut query = QueryHcaCap::request();
    query.set_op_mod(CapGroup::GENERAL.current());
    let mut space = driver.call::<QueryHcaCap>(&query).unwrap().capability();
    let (mut caps, _) = CmdHcaCap::read_from_prefix(&space).unwrap();
    assert!(!caps.release_all_pages());
    caps.set_release_all_pages(true);
    space[..256].copy_from_slice(caps.bytes());
    let mut set = SetHcaCap::request();
    set.set_capability(space);
    driver.call::<SetHcaCap>(&set).unwrap();
    driver.give_pages(2);
    driver.call::<InitHca>(&InitHca::request()).unwrap();
    let uar = driver.uar();
    let (eqn, ring) = driver.eq(uar, 1, EventType::PAGE_REQUEST.mask(), 4);
    driver
        .emulator
        .faults(0)
        .unwrap()
        .page_request(PageDemand::ReleaseAll);
    let event = page_request(&mut driver, eqn, ring);
    assert!(event.release_all());
    assert_eq!(driver.emulator.report(0).unwrap().firmware_pages, 0);
    // A TAKE that was under way finds nothing.
    assert_eq!(driver.take_pages(10).len(), 0);
}

#[test]
fn a_killed_function_reads_all_ones_and_says_nothing() {
    let mut driver = fresh();
    let faults = driver.emulator.faults(0).unwrap();
    faults.kill().unwrap();
    for register in [0x0, 0x14, 0x1fc, 0x230, 0x1010] {
        assert_eq!(driver.registers().load_u32(register).unwrap(), u32::MAX);
    }
    let entry = driver.prepare(0, EnableHca::request().as_bytes(), 16);
    driver.post(0, &entry);
    std::thread::sleep(Duration::from_millis(50));
    assert!(driver.poll(0).is_none());
    faults.revive().unwrap();
    assert_ne!(driver.registers().load_u32(0).unwrap(), u32::MAX);
    // The doorbell was lost; another one finds the entry.
    driver.registers().store_u32(0x18, 1).unwrap();
    let entry = driver.wait(0);
    assert_eq!(driver.output(0, &entry)[..8], [0; 8]);
}

#[test]
fn reset_forgets_everything_but_who_it_is() {
    let mut driver = Driver::one(FunctionConfig {
        model: Model::ConnectX7,
        ..Default::default()
    });
    driver.bring_up();
    driver.uar();
    let revision = driver.registers().load_u32(0).unwrap();
    driver.function.reset().unwrap();
    // Starting, and closed until the driver gives a queue.
    assert_eq!(driver.registers().load_u32(0x14).unwrap() >> 8 & 7, 1);
    let until = Instant::now() + PATIENCE;
    while driver.registers().load_u32(0x1fc).unwrap() != 0 {
        assert!(Instant::now() < until);
    }
    driver.start_queue();
    assert_eq!(driver.registers().load_u32(0x14).unwrap() >> 8 & 7, 0);
    assert_eq!(driver.registers().load_u32(0).unwrap(), revision);
    // Pages, objects and phase are gone.
    let why = driver.call::<AllocUar>(&AllocUar::request()).unwrap_err();
    assert_eq!(parts(why.syndrome).unwrap().0, Reason::WrongPhase);
    let report = driver.emulator.report(0).unwrap();
    assert_eq!((report.firmware_pages, report.live_objects()), (0, 0));
    driver.bring_up();
    let uar = driver.uar();
    assert_eq!(uar, 0x10);
    let mut dealloc = DeallocUar::request();
    dealloc.set_uar(uar).unwrap();
    driver.call::<DeallocUar>(&dealloc).unwrap();
    assert_eq!(driver.shut_down(), 518);
}

#[test]
fn a_driver_that_vanishes_leaves_nothing_to_the_next() {
    let mut driver = fresh();
    driver.bring_up();
    driver.uar();
    let Driver {
        emulator,
        function,
        registers,
        mapping,
        ..
    } = driver;
    // A second driver is refused while the first is there.
    assert!(pollux_bus::local::connect(emulator.function(0).unwrap()).is_err());
    drop((function, registers, mapping));
    let report = emulator.report(0).unwrap();
    assert!(!report.connected);
    // What it left behind can be read, until the next one comes.
    assert_eq!((report.firmware_pages, report.live_objects()), (518, 1));
    let mut driver = Driver::on(emulator, 32 << 20);
    let report = driver.emulator.report(0).unwrap();
    assert_eq!(
        (
            report.firmware_pages,
            report.live_objects(),
            report.commands
        ),
        (0, 0, 0)
    );
    driver.bring_up();
    assert_eq!(driver.shut_down(), 518);
}
