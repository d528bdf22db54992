//! Event queues: entries, owner bits, arming, interrupts, overflow; and the events themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::{LOG_RING, World};
use driver::{Driver, PATIENCE, Refused};
use pollux_bus::Interrupt;
use pollux_emu::faults::{CommandFault, PageDemand, Trigger};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{EmulatorConfig, Model};
use pollux_prm::Command;
use pollux_prm::command::Opcode;
use pollux_prm::commands::cq::*;
use pollux_prm::commands::eq::*;
use pollux_prm::commands::hca::Nop;
use pollux_prm::commands::port_counters::{Counters, PhyCounters, Ppcnt};
use pollux_prm::commands::register::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::vport::{QueryVportState, QueryVportStateOut};
use pollux_prm::event::*;
use std::sync::atomic::Ordering;
use std::time::Instant;
use zerocopy::IntoBytes;

const LOG: u8 = 4;

fn running() -> (Driver, u32) {
    let mut driver = Driver::new(EmulatorConfig::default());
    driver.bring_up();
    let uar = driver.uar();
    (driver, uar)
}

fn raised(interrupt: &Interrupt) -> bool {
    let until = Instant::now() + PATIENCE;
    while interrupt.take() == 0 {
        assert!(Instant::now() < until, "no interrupt");
        std::thread::yield_now();
    }
    true
}

fn query_eq(driver: &mut Driver, eqn: u8) -> Eqc {
    let mut query = QueryEq::request();
    query.set_eq_number(eqn);
    driver.call::<QueryEq>(&query).unwrap().eq_context_entry()
}

#[test]
fn command_completions_come_as_events_once_there_is_a_queue() {
    let (mut driver, uar) = running();
    let (eqn, ring) = driver.eq(uar, 3, EventType::CMD.mask(), LOG);
    // The command that made the queue is not reported by it.
    assert!(driver.event(eqn, ring, LOG).is_none());
    driver.arm_eq(eqn);
    let entry = driver.prepare(2, Nop::request().as_bytes(), 16);
    driver.post(2, &entry);
    let event = driver.wait_event(eqn, ring, LOG);
    assert_eq!(event.event_type(), EventType::CMD.0);
    assert_eq!(
        CommandEvent::from_bytes(event.event_data()).vector(),
        1 << 2
    );
    assert!(driver.poll(2).is_some(), "the event came before the answer");
    assert!(raised(&driver.interrupts[3]));
    // Disarmed: events go on, the interrupt does not.
    driver.call::<Nop>(&Nop::request()).unwrap();
    let event = driver.wait_event(eqn, ring, LOG);
    assert_eq!(CommandEvent::from_bytes(event.event_data()).vector(), 1);
    assert_eq!(driver.interrupts[3].take(), 0);
    // Not even the other vectors'.
    assert!(
        driver
            .interrupts
            .iter()
            .all(|interrupt| interrupt.take() == 0)
    );
}

#[test]
fn arming_with_events_waiting_fires_at_once() {
    let (mut driver, uar) = running();
    let (eqn, ring) = driver.eq(uar, 0, EventType::CMD.mask(), LOG);
    driver.call::<Nop>(&Nop::request()).unwrap();
    let until = Instant::now() + PATIENCE;
    while driver.emulator.report(0).unwrap().events == 0 {
        assert!(Instant::now() < until);
    }
    assert_eq!(driver.interrupts[0].take(), 0);
    driver.arm_eq(eqn);
    assert!(raised(&driver.interrupts[0]));
    driver.wait_event(eqn, ring, LOG);
    driver.arm_eq(eqn);
    let context = query_eq(&mut driver, eqn);
    // The query's own completion event has not been written when it looks.
    assert_eq!(
        (
            context.st(),
            context.producer_counter(),
            context.consumer_counter()
        ),
        (9, 1, 1)
    );
}

#[test]
fn owner_bits_change_with_each_lap() {
    let (mut driver, uar) = running();
    // Two entries: each lap is two events.
    let (eqn, ring) = driver.eq(uar, 0, EventType::CMD.mask(), 1);
    for _ in 0..9 {
        driver.call::<Nop>(&Nop::request()).unwrap();
        driver.wait_event(eqn, ring, 1);
        assert!(driver.event(eqn, ring, 1).is_none());
    }
}

#[test]
fn a_full_queue_fails_unless_told_to_overwrite() {
    for ignore in [false, true] {
        let (mut driver, uar) = running();
        let ring = driver.take(4096);
        let mut input = CreateEq::request();
        let mut context = Eqc::zeroed();
        context.set_log_eq_size(1).unwrap();
        context.set_uar_page(uar).unwrap();
        context.set_oi(ignore);
        input.set_eq_context_entry(context);
        input.set_event_bitmask(EventType::CMD.mask());
        let tail = driver.page_list(ring, 128);
        let (out, _) = driver.call_tail::<CreateEq>(&input, &tail, 0).unwrap();
        for _ in 0..4 {
            driver.call::<Nop>(&Nop::request()).unwrap();
        }
        let status = query_eq(&mut driver, out.eq_number()).status();
        assert_eq!(status, if ignore { 0 } else { 0xa });
        let report = driver.emulator.report(0).unwrap();
        assert_eq!(report.events_lost > 0, !ignore, "{report:?}");
    }
}

#[test]
fn an_event_type_has_one_queue() {
    let (mut driver, uar) = running();
    let (eqn, _) = driver.eq(uar, 0, EventType::PORT_CHANGE.mask(), LOG);
    let ring = driver.take(4096);
    let mut input = CreateEq::request();
    let mut context = Eqc::zeroed();
    context.set_log_eq_size(LOG).unwrap();
    context.set_uar_page(uar).unwrap();
    input.set_eq_context_entry(context);
    let mut both = EventType::PORT_CHANGE.mask();
    both[0] |= EventType::CQ_ERROR.mask()[0];
    input.set_event_bitmask(both);
    let tail = driver.page_list(ring, 1024);
    let Refused { syndrome, .. } = driver.call_tail::<CreateEq>(&input, &tail, 0).unwrap_err();
    assert_eq!(parts(syndrome).unwrap().0, Reason::Taken);
    // Free again once the queue is gone.
    let mut destroy = DestroyEq::request();
    destroy.set_eq_number(eqn);
    driver.call::<DestroyEq>(&destroy).unwrap();
    driver.call_tail::<CreateEq>(&input, &tail, 0).unwrap();
}

#[test]
fn an_event_can_be_lost_on_demand() {
    let (mut driver, uar) = running();
    let (eqn, ring) = driver.eq(uar, 0, EventType::CMD.mask(), LOG);
    let faults = driver.emulator.faults(0).unwrap();
    faults.command(Trigger::Opcode(Opcode::NOP.0, 1), CommandFault::DropEvent);
    driver.call::<Nop>(&Nop::request()).unwrap();
    driver.call::<Nop>(&Nop::request()).unwrap();
    driver.wait_event(eqn, ring, LOG);
    assert!(
        driver.event(eqn, ring, LOG).is_none(),
        "two events for two commands"
    );
}

#[test]
fn page_requests_wait_for_their_queue() {
    let (mut driver, uar) = running();
    driver
        .emulator
        .faults(0)
        .unwrap()
        .page_request(PageDemand::Give(7));
    driver.call::<Nop>(&Nop::request()).unwrap();
    let (eqn, ring) = driver.eq(uar, 0, EventType::PAGE_REQUEST.mask(), LOG);
    let event = driver.wait_event(eqn, ring, LOG);
    let request = PageRequestEvent::from_bytes(event.event_data());
    assert_eq!((request.count(), request.function_id()), (7, 0));
    assert!(!request.release_all() && !request.embedded_cpu_function());
}

fn link(driver: &mut Driver) -> QueryVportStateOut {
    driver
        .call::<QueryVportState>(&QueryVportState::request())
        .unwrap()
}

fn paos(driver: &mut Driver) -> Paos {
    let mut register = Paos::zeroed();
    register.set_local_port(1);
    let input = register.access(RegisterAccess::READ);
    let out = driver.try_raw(&input, input.len()).unwrap();
    Paos::from_access(&out).unwrap()
}

#[test]
fn the_link_changes_once_for_each_event() {
    let config = EmulatorConfig::from_keys([("wire", "loop")]).unwrap();
    let mut driver = Driver::new(config);
    driver.bring_up();
    let uar = driver.uar();
    let (eqn, ring) = driver.eq(uar, 0, EventType::PORT_CHANGE.mask(), LOG);
    assert_eq!(link(&mut driver).state(), 1);
    let faults = driver.emulator.faults(0).unwrap();
    for up in [false, true, false] {
        faults.link(up).unwrap();
        let event = driver.wait_event(eqn, ring, LOG);
        assert_eq!(event.event_type(), EventType::PORT_CHANGE.0);
        let expected = if up {
            PortChange::ACTIVE
        } else {
            PortChange::DOWN
        };
        assert_eq!(PortChange(event.event_sub_type()), expected);
        assert_eq!(
            PortChangeEvent::from_bytes(event.event_data()).port_num(),
            1
        );
        // Both ways of asking agree, and the speed goes with the link.
        assert_eq!(link(&mut driver).state(), u8::from(up));
        let status = if up { PortStatus::UP } else { PortStatus::DOWN };
        assert_eq!(PortStatus(paos(&mut driver).oper_status()), status);
        // The same again is no event.
        faults.link(up).unwrap();
        driver.call::<Nop>(&Nop::request()).unwrap();
        assert!(driver.event(eqn, ring, LOG).is_none());
    }
    // Down by the driver's own wish, while the wire is cut: no change.
    faults.link(true).unwrap();
    driver.wait_event(eqn, ring, LOG);
    let mut register = Paos::zeroed();
    register.set_local_port(1).set_ase(true);
    register.set_admin_status(PortStatus::DOWN.0).unwrap();
    let input = register.access(RegisterAccess::WRITE);
    driver.try_raw(&input, input.len()).unwrap();
    let event = driver.wait_event(eqn, ring, LOG);
    assert_eq!(PortChange(event.event_sub_type()), PortChange::DOWN);
    assert_eq!(link(&mut driver).state(), 0);
    // Each time that it went down was counted, until somebody cleared.
    assert_eq!(link_downs(&mut driver, false), 3);
    assert_eq!(link_downs(&mut driver, true), 3);
    assert_eq!(link_downs(&mut driver, false), 0);
}

fn link_downs(driver: &mut Driver, clear: bool) -> u32 {
    let mut register = Ppcnt::zeroed();
    register.set_local_port(1).set_clr(clear);
    register.set_grp(PhyCounters::GROUP.0).unwrap();
    let input = register.access(RegisterAccess::READ);
    let out = driver.try_raw(&input, input.len()).unwrap();
    let group: PhyCounters = Ppcnt::from_access(&out).unwrap().counters();
    group.link_down_events()
}

/// Brings the world's send queue to work and posts one WQE of 64 bytes.
fn send(world: &mut World, wqe: &[u32; 16]) {
    let mut modify = ModifySq::request();
    modify.set_sqn(world.sqn).unwrap();
    let mut context = Sqc::zeroed();
    context.set_state(1).unwrap();
    modify.set_ctx(context);
    world.driver.call::<ModifySq>(&modify).unwrap();
    let bytes = driver::words(wqe);
    world.driver.memory.copy_in(world.ring, &bytes).unwrap();
    let record = world.driver.memory.word32(world.record + 64 + 4).unwrap();
    record.store_be(1, Ordering::Release);
    let page = world
        .driver
        .function
        .registers(u64::from(world.uar) * 4096, 4096)
        .unwrap();
    page.doorbell(0x800)
        .unwrap()
        .ring(u64::from(wqe[0]) << 32 | u64::from(wqe[1]));
}

fn arm(world: &World) {
    // Sequence number 0, next completion; consumer index 0.
    world
        .driver
        .memory
        .word32(world.record + 4)
        .unwrap()
        .store_be(0, Ordering::Release);
    let page = world
        .driver
        .function
        .registers(u64::from(world.uar) * 4096, 4096)
        .unwrap();
    page.doorbell(0x20).unwrap().ring(u64::from(world.cqn));
}

/// A world whose completions have a ring of their own, and the queue of its events.
fn world(events: [u64; 4]) -> (World, u8, usize) {
    let mut world = World::new(Model::ConnectX5);
    let (eqn, ring) = world.driver.eq(world.uar, 2, events, LOG);
    // A queue pair apart, so that completions do not overwrite WQEs.
    world.ring = world.driver.take(4096);
    world.record = world.driver.take(4096);
    let mut input = world.cq_input();
    let mut context = Cqc::from_bytes(input[16..80].try_into().unwrap());
    context.set_c_eqn_or_apu_element(eqn.into());
    input[16..80].copy_from_slice(context.bytes());
    world.cqn = world.make::<CreateCq>(input).cqn();
    world.ring = world.driver.take(4096);
    let input = world.sq_input();
    world.sqn = world.make::<CreateSq>(input).sqn();
    (world, eqn, ring)
}

#[test]
fn completions_reach_their_event_queue() {
    let (mut world, eqn, ring) = world([0; 4]);
    arm(&world);
    let sqn = world.sqn;
    world.driver.arm_eq(eqn);
    // A NOP that asks for a completion.
    let mut wqe = [0; 16];
    wqe[..4].copy_from_slice(&[0, sqn << 8 | 1, 2 << 2, 0]);
    send(&mut world, &wqe);
    let event = world.driver.wait_event(eqn, ring, LOG);
    assert_eq!(event.event_type(), EventType::COMP.0);
    assert_eq!(
        CompletionEvent::from_bytes(event.event_data()).cqn(),
        world.cqn
    );
    assert!(raised(&world.driver.interrupts[2]));
    let mut query = QueryCq::request();
    query.set_cqn(world.cqn).unwrap();
    let context = world.driver.call::<QueryCq>(&query).unwrap().cq_context();
    assert_eq!((context.st(), context.producer_counter()), (0xa, 1));
    assert_eq!(context.log_cq_size(), LOG_RING);
    let mut query = QuerySq::request();
    query.set_sqn(sqn).unwrap();
    let context = world.driver.call::<QuerySq>(&query).unwrap().sq_context();
    assert_eq!(
        (
            context.state(),
            context.wq().hw_counter(),
            context.wq().sw_counter()
        ),
        (1, 1, 1)
    );
}

#[test]
fn a_wqe_that_fails_puts_its_queue_in_error_and_says_so() {
    let mut mask = EventType::WQ_CATAS_ERROR.mask();
    mask[0] |= EventType::WQ_ACCESS_ERROR.mask()[0];
    let (mut world, eqn, ring) = world(mask);
    let sqn = world.sqn;
    // SEND of 64 bytes through a key that does not exist.
    let mut wqe = [0; 16];
    wqe[..4].copy_from_slice(&[0xa, sqn << 8 | 3, 2 << 2, 0]);
    wqe[8..12].copy_from_slice(&[64, 0x00dd_dd00, 0, 0x1000]);
    send(&mut world, &wqe);
    let event = world.driver.wait_event(eqn, ring, LOG);
    let data = QueueEvent::from_bytes(event.event_data());
    assert_eq!(
        (QueueType(data.queue_type()), data.number()),
        (QueueType::SQ, sqn)
    );
    let mut query = QuerySq::request();
    query.set_sqn(sqn).unwrap();
    let state = |world: &mut World| {
        world
            .driver
            .call::<QuerySq>(&query)
            .unwrap()
            .sq_context()
            .state()
    };
    assert_eq!(state(&mut world), 3);
    // What the driver believed is no longer true: it cannot go on from there.
    let mut modify = ModifySq::request();
    modify.set_sqn(sqn).unwrap();
    modify.set_sq_state(1).unwrap();
    let mut context = Sqc::zeroed();
    context.set_state(1).unwrap();
    modify.set_ctx(context);
    let why = world.driver.call::<ModifySq>(&modify).unwrap_err();
    assert_eq!(parts(why.syndrome).unwrap().0, Reason::WrongState);
    // By way of reset it can.
    for (from, to) in [(3, 0), (0, 1)] {
        modify.set_sq_state(from).unwrap();
        context.set_state(to).unwrap();
        modify.set_ctx(context);
        world.driver.call::<ModifySq>(&modify).unwrap();
        assert_eq!(state(&mut world), to);
    }
}

#[test]
fn an_event_queue_works_on_a_mapped_page_too() {
    let (mut driver, _) = running();
    // The first page is trapped, this one is plain memory that the device looks at.
    let uar = driver.uar();
    let page = driver
        .function
        .registers(u64::from(uar) * 4096, 4096)
        .unwrap();
    assert!(page.is_mapped());
    let (eqn, ring) = driver.eq(uar, 5, EventType::CMD.mask(), LOG);
    page.store_u32(0x40, u32::from(eqn) << 24).unwrap();
    let until = Instant::now() + PATIENCE;
    while query_eq(&mut driver, eqn).st() != 9 && driver.interrupts[5].take() == 0 {
        assert!(Instant::now() < until, "not armed");
    }
    // The consumer index alone.
    while driver.event(eqn, ring, LOG).is_some() {}
    page.store_u32(0x48, u32::from(eqn) << 24 | 1).unwrap();
    let until = Instant::now() + PATIENCE;
    while query_eq(&mut driver, eqn).consumer_counter() != 1 {
        assert!(Instant::now() < until, "the consumer index is not seen");
        // The trapped page would say something else.
        std::thread::yield_now();
    }
}
