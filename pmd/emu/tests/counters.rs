//! Counters of port, vport, queues and flow entries, with packets that really pass.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use driver::{Driver, PATIENCE, words};
use pollux_emu::EmulatorConfig;
use pollux_prm::Command;
use pollux_prm::commands::counters::*;
use pollux_prm::commands::cq::*;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::port_counters::*;
use pollux_prm::commands::register::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;
use pollux_prm::commands::vport::*;
use std::sync::atomic::Ordering;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// A port on a wire that returns what it sends and drops what finds no buffer, with one queue of
/// each kind.
struct Traffic {
    world: World,
    sq_ring: usize,
    rq_ring: usize,
    record: usize,
    frames: usize,
    sent: u16,
    key: u32,
}

const FRAME: u32 = 64;

impl Traffic {
    fn new() -> Self {
        let config = EmulatorConfig::from_keys([("wire", "loop"), ("lossy", "on")]).unwrap();
        let mut driver = Driver::new(config);
        driver.bring_up();
        let mut world = World::on(driver);
        let (sq_ring, rq_ring) = (world.driver.take(4096), world.driver.take(4096));
        let (cq_ring, record) = (world.driver.take(4096), world.driver.take(4096));
        world.record = record;
        world.ring = cq_ring;
        world.cqn = world.make::<CreateCq>(world.cq_input()).cqn();
        world.ring = sq_ring;
        world.sqn = world.make::<CreateSq>(world.sq_input()).sqn();
        world.ring = rq_ring;
        world.rqn = world.make::<CreateRq>(world.rq_input()).rqn();
        let frames = world.driver.take(4096);
        let key = world.mkey << 8 | 0x5a;
        let mut traffic = Self {
            world,
            sq_ring,
            rq_ring,
            record,
            frames,
            sent: 0,
            key,
        };
        // The table of the world's TIR leads to the new queue.
        let mut input = ModifyRqt::request();
        input.set_rqtn(traffic.world.rqtn).unwrap();
        let mut mask = RqtBitmask::zeroed();
        mask.set_rqn_list(true);
        input.set_bitmask(mask);
        let mut context = Rqtc::zeroed();
        context.set_rqt_actual_size(1);
        input.set_ctx(context);
        let list = words(&[traffic.world.rqn]);
        traffic
            .world
            .driver
            .call_tail::<ModifyRqt>(&input, &list, 0)
            .unwrap();
        traffic.ready();
        traffic
    }

    fn ready(&mut self) {
        let mut input = ModifySq::request();
        input.set_sqn(self.world.sqn).unwrap();
        let mut context = Sqc::zeroed();
        context.set_state(1).unwrap();
        input.set_ctx(context);
        self.world.driver.call::<ModifySq>(&input).unwrap();
        let mut input = ModifyRq::request();
        input.set_rqn(self.world.rqn).unwrap();
        let mut context = Rqc::zeroed();
        context.set_state(1).unwrap();
        input.set_ctx(context);
        self.world.driver.call::<ModifyRq>(&input).unwrap();
    }

    fn root(&mut self) {
        let mut input = SetFlowTableRoot::request();
        input.set_table_id(self.world.table).unwrap();
        self.world.driver.call::<SetFlowTableRoot>(&input).unwrap();
    }

    /// Posts receive buffers, which all are the same.
    fn post(&mut self, count: u16) {
        let memory = &self.world.driver.memory;
        let at = self.world.driver.iova(self.frames + 2048);
        for n in 0..usize::from(count) {
            let seg = words(&[2048, self.key, (at >> 32) as u32, at as u32]);
            memory.copy_in(self.rq_ring + n * 16, &seg).unwrap();
        }
        let record = memory.word32(self.record + 64).unwrap();
        record.store_be(count.into(), Ordering::Release);
    }

    /// Sends one frame to a station, and waits until the device has taken it.
    fn send(&mut self, destination: [u8; 6]) {
        let driver = &mut self.world.driver;
        let sqn = self.world.sqn;
        driver.memory.copy_in(self.frames, &destination).unwrap();
        driver.memory.copy_in(self.frames + 12, &[8, 0]).unwrap();
        let at = driver.iova(self.frames);
        let index = self.sent;
        let ctrl = [u32::from(index) << 8 | 0xa, sqn << 8 | 3, 2 << 2, 0];
        let data = [FRAME, self.key, (at >> 32) as u32, at as u32];
        let wqe = [words(&ctrl), words(&[0; 4]), words(&data)].concat();
        let slot = self.sq_ring + usize::from(index % 64) * 64;
        driver.memory.copy_in(slot, &wqe).unwrap();
        self.sent += 1;
        let record = driver.memory.word32(self.record + 64 + 4).unwrap();
        record.store_be(self.sent.into(), Ordering::Release);
        let page = driver
            .function
            .registers(u64::from(self.world.uar) * 4096, 4096)
            .unwrap();
        let bell = u64::from(ctrl[0]) << 32 | u64::from(ctrl[1]);
        page.doorbell(0x800).unwrap().ring(bell);
        let until = Instant::now() + PATIENCE;
        let mut query = QuerySq::request();
        query.set_sqn(sqn).unwrap();
        loop {
            let taken = driver
                .call::<QuerySq>(&query)
                .unwrap()
                .sq_context()
                .wq()
                .hw_counter();
            if taken == u32::from(self.sent) && driver.emulator.wire(0).unwrap().drained {
                return;
            }
            assert!(Instant::now() < until, "the frame is not taken");
        }
    }

    fn vport(&mut self, clear: bool) -> QueryVportCounterOut {
        let mut input = QueryVportCounter::request();
        input.set_clear(clear);
        self.world.driver.call::<QueryVportCounter>(&input).unwrap()
    }

    fn env(&mut self) -> VnicDiagnostics {
        self.world
            .driver
            .call::<QueryVnicEnv>(&QueryVnicEnv::request())
            .unwrap()
            .vport_env()
    }

    fn out_of_buffer(&mut self, set: u8, clear: bool) -> u32 {
        let mut input = QueryQCounter::request();
        input.set_counter_set_id(set);
        input.set_clear(clear);
        self.world
            .driver
            .call::<QueryQCounter>(&input)
            .unwrap()
            .out_of_buffer()
    }

    fn flow(&mut self, clear: bool) -> (u64, u64) {
        let mut input = QueryFlowCounter::request();
        input
            .set_flow_counter_id(self.world.flow_counter)
            .set_clear(clear);
        let (_, tail) = self
            .world
            .driver
            .call_tail::<QueryFlowCounter>(&input, &[], 16)
            .unwrap();
        let (counter, _) = TrafficCounter::read_from_prefix(&tail).unwrap();
        (counter.packets(), counter.octets())
    }

    fn port<T: Counters>(&mut self, clear: bool) -> T {
        let mut register = Ppcnt::zeroed();
        register.set_local_port(1).set_clr(clear);
        register.set_grp(T::GROUP.0).unwrap();
        let input = register.access(RegisterAccess::READ);
        let out = self.world.driver.try_raw(&input, input.len()).unwrap();
        Ppcnt::from_access(&out).unwrap().counters()
    }
}

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL: [u8; 6] = [0xff; 6];

#[test]
fn every_counter_counts_what_it_says() {
    let mut traffic = Traffic::new();
    let refused = traffic.env().invalid_command();
    // Without a root no frame is wanted.
    traffic.send(STATION);
    assert_eq!(traffic.env().nic_receive_steering_discard(), 1);
    traffic.root();
    // One buffer for three frames.
    traffic.post(1);
    for destination in [STATION, ALL, GROUP] {
        traffic.send(destination);
    }
    let out = traffic.vport(false);
    let pair = |counter: TrafficCounter| (counter.packets(), counter.octets());
    assert_eq!(pair(out.transmitted_eth_unicast()), (2, 128));
    assert_eq!(pair(out.transmitted_eth_broadcast()), (1, 64));
    assert_eq!(pair(out.transmitted_eth_multicast()), (1, 64));
    assert_eq!(pair(out.received_eth_unicast()), (1, 64));
    assert_eq!(pair(out.received_eth_broadcast()), (0, 0));
    assert_eq!(pair(out.received_eth_multicast()), (0, 0));
    assert_eq!(
        (
            out.received_errors().packets(),
            out.transmit_errors().packets()
        ),
        (0, 0)
    );
    // Queue counters: two frames found no buffer.
    let set = traffic.world.counter;
    assert_eq!(traffic.out_of_buffer(set, true), 2);
    assert_eq!(traffic.out_of_buffer(set, false), 0);
    // The flow entry saw three.
    assert_eq!(traffic.flow(true), (3, 192));
    assert_eq!(traffic.flow(false), (0, 0));
    // The port saw four, check sequences included.
    let group: Ieee8023Counters = traffic.port(false);
    assert_eq!(
        (
            group.a_frames_transmitted_ok(),
            group.a_frames_received_ok()
        ),
        (4, 4)
    );
    assert_eq!(
        (
            group.a_octets_transmitted_ok(),
            group.a_octets_received_ok()
        ),
        (272, 272)
    );
    assert_eq!(group.a_broadcast_frames_received_ok(), 1);
    assert_eq!(group.a_multicast_frames_xmitted_ok(), 1);
    let group: Rfc2863Counters = traffic.port(false);
    assert_eq!(
        (group.if_in_ucast_pkts(), group.if_out_ucast_pkts()),
        (2, 2)
    );
    assert_eq!(
        (group.if_in_broadcast_pkts(), group.if_in_multicast_pkts()),
        (1, 1)
    );
    assert_eq!((group.if_in_octets(), group.if_in_discards()), (272, 2));
    let group: Rfc2819Counters = traffic.port(false);
    assert_eq!(
        (group.ether_stats_pkts(), group.ether_stats_octets()),
        (4, 272)
    );
    let group: Rfc3635Counters = traffic.port(false);
    assert_eq!(group.dot3stats_frame_too_longs(), 0);
    let group: PerPriorityCounters = traffic.port(false);
    assert_eq!(
        (group.rx_frames(), group.tx_frames(), group.rx_discards()),
        (4, 4, 2)
    );
    // Each reader clears for itself.
    traffic.vport(true);
    assert_eq!(pair(traffic.vport(false).transmitted_eth_unicast()), (0, 0));
    let group: Ieee8023Counters = traffic.port(true);
    assert_eq!(group.a_frames_transmitted_ok(), 4);
    let group: Ieee8023Counters = traffic.port(false);
    assert_eq!(group.a_frames_transmitted_ok(), 0);
    traffic.send(STATION);
    assert_eq!(
        pair(traffic.vport(false).transmitted_eth_unicast()),
        (1, 64)
    );
    // Refused commands are counted too.
    assert_eq!(traffic.env().invalid_command(), refused);
    traffic
        .world
        .driver
        .try_raw(&words(&[0x0801_0000, 0, 0xfffff, 0]), 16)
        .unwrap_err();
    assert_eq!(traffic.env().invalid_command(), refused + 1);
}

#[test]
fn a_queue_counts_into_the_set_it_was_moved_to() {
    let mut traffic = Traffic::new();
    traffic.root();
    let new = traffic
        .world
        .driver
        .call::<AllocQCounter>(&AllocQCounter::request())
        .unwrap();
    let (old, new) = (traffic.world.counter, new.counter_set_id());
    traffic.send(STATION);
    let mut input = ModifyRq::request();
    input.set_rqn(traffic.world.rqn).unwrap();
    input.set_rq_state(1).unwrap();
    input.set_modify_bitmask(1 << 3);
    let mut context = Rqc::zeroed();
    context.set_state(1).unwrap();
    context.set_counter_set_id(new);
    input.set_ctx(context);
    traffic.world.driver.call::<ModifyRq>(&input).unwrap();
    traffic.send(STATION);
    traffic.send(STATION);
    assert_eq!(traffic.out_of_buffer(old, false), 1);
    assert_eq!(traffic.out_of_buffer(new, false), 2);
    // The new set is in use, so it stays.
    let why = traffic
        .world
        .driver
        .try_raw(&words(&[0x0772_0000, 0, new.into(), 0]), 16);
    assert!(why.unwrap_err().text().contains("in use"));
}

#[test]
fn entries_can_be_changed_where_announced() {
    let mut traffic = Traffic::new();
    traffic.root();
    traffic.send(STATION);
    assert_eq!(traffic.flow(false), (1, 64));
    // From counting and forwarding to dropping, in one change of action, list and counters.
    let mut input = SetFlowTableEntry::request();
    input.set_table_id(traffic.world.table).unwrap();
    input.set_op_mod(1).set_modify_enable_mask(1 | 4 | 8);
    let mut context = FlowContext::zeroed();
    context.set_group_id(traffic.world.group).set_action(0x2);
    input.set_flow_context(context);
    traffic.world.driver.try_raw(input.as_bytes(), 16).unwrap();
    traffic.send(STATION);
    assert_eq!(traffic.flow(false), (1, 64));
    // A frame that a rule drops has found its rule.
    assert_eq!(traffic.env().nic_receive_steering_discard(), 0);
    let group: Ieee8023Counters = traffic.port(false);
    assert_eq!(group.a_frames_received_ok(), 2);
    // What it used is free now, and the next owner of its number starts at zero.
    let counter = traffic.world.flow_counter;
    let mut dealloc = DeallocFlowCounter::request();
    dealloc.set_flow_counter_id(counter);
    traffic
        .world
        .driver
        .call::<DeallocFlowCounter>(&dealloc)
        .unwrap();
    let alloc = AllocFlowCounter::request();
    let again = traffic
        .world
        .driver
        .call::<AllocFlowCounter>(&alloc)
        .unwrap();
    assert_eq!(again.flow_counter_id(), counter);
    assert_eq!(traffic.flow(false), (0, 0));
}
