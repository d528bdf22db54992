//! Objects: who uses whom, how many there may be, what a query returns, and the states of queues.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use driver::{Driver, words};
use pollux_emu::objects::Kind;
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{EmulatorConfig, Model};
use pollux_prm::Command;
use pollux_prm::command::{Opcode, Status};
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::cq::*;
use pollux_prm::commands::eq::*;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::hca::*;
use pollux_prm::commands::protection::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;
use pollux_prm::commands::vport::*;
use zerocopy::{FromBytes, IntoBytes};

/// A destruction by number, as most commands have it.
fn destroy(opcode: Opcode, number: u32) -> Vec<u8> {
    words(&[u32::from(opcode.0) << 16, 0, number, 0])
}

fn destroy_table(table: u32) -> Vec<u8> {
    let mut input = DestroyFlowTable::request();
    input.set_table_id(table).unwrap();
    input.as_bytes().to_vec()
}

fn destroy_group(table: u32, group: u32) -> Vec<u8> {
    let mut input = DestroyFlowGroup::request();
    input.set_table_id(table).unwrap();
    input.set_group_id(group);
    input.as_bytes().to_vec()
}

fn delete_entry(table: u32, index: u32) -> Vec<u8> {
    let mut input = DeleteFlowTableEntry::request();
    input.set_table_id(table).unwrap();
    input.set_flow_index(index);
    input.as_bytes().to_vec()
}

#[test]
fn what_is_used_stays_until_its_users_are_gone() {
    let mut world = World::new(Model::ConnectX5);
    // In the order in which they can go.
    let order = [
        (Kind::FlowEntry, delete_entry(world.table, 0)),
        (Kind::FlowGroup, destroy_group(world.table, world.group)),
        (Kind::FlowTable, destroy_table(world.table)),
        (Kind::FlowTable, destroy_table(world.next_table)),
        (
            Kind::FlowCounter,
            destroy(Opcode::DEALLOC_FLOW_COUNTER, world.flow_counter),
        ),
        (Kind::Tir, destroy(Opcode::DESTROY_TIR, world.tirn)),
        (Kind::Rqt, destroy(Opcode::DESTROY_RQT, world.rqtn)),
        (Kind::Rq, destroy(Opcode::DESTROY_RQ, world.rqn)),
        (
            Kind::QCounter,
            destroy(Opcode::DEALLOC_Q_COUNTER, world.counter.into()),
        ),
        (Kind::Sq, destroy(Opcode::DESTROY_SQ, world.sqn)),
        (Kind::Tis, destroy(Opcode::DESTROY_TIS, world.tisn)),
        (Kind::Cq, destroy(Opcode::DESTROY_CQ, world.cqn)),
        (Kind::Mkey, destroy(Opcode::DESTROY_MKEY, world.mkey)),
        (Kind::Pd, destroy(Opcode::DEALLOC_PD, world.pd)),
        (
            Kind::TransportDomain,
            destroy(Opcode::DEALLOC_TRANSPORT_DOMAIN, world.domain),
        ),
        (Kind::Eq, destroy(Opcode::DESTROY_EQ, world.eqn.into())),
        (Kind::Uar, destroy(Opcode::DEALLOC_UAR, world.uar)),
    ];
    // Nobody uses these.
    let free = [Kind::FlowEntry, Kind::Mkey, Kind::Sq];
    let alone = |kind: Kind, input: &[u8]| {
        free.contains(&kind) || kind == Kind::FlowTable && input[21..24] == [0, 0, 1]
    };
    let mut in_use = 0;
    for (kind, input) in &order {
        if alone(*kind, input) {
            continue;
        }
        let why = world.driver.try_raw(input, 16).unwrap_err();
        let (reason, _, detail) = parts(why.syndrome).unwrap();
        let expected = (Status::RES_BUSY, Reason::InUse, *kind as u16);
        assert_eq!(
            (why.status, reason, detail),
            expected,
            "{kind}: {}",
            why.text()
        );
        in_use += 1;
    }
    assert_eq!(in_use, 13);
    let before = world.driver.emulator.report(0).unwrap().live_objects();
    assert_eq!(before, order.len());
    for (number, (kind, input)) in order.iter().enumerate() {
        world
            .driver
            .try_raw(input, 16)
            .unwrap_or_else(|why| panic!("{kind}: {}", why.text()));
        let left = world.driver.emulator.report(0).unwrap().live_objects();
        assert_eq!(left, before - 1 - number, "{kind}");
        // It is gone: a second time there is nothing to destroy.
        let why = world.driver.try_raw(input, 16).unwrap_err();
        assert_eq!(parts(why.syndrome).unwrap().0, Reason::NoObject, "{kind}");
    }
    assert_eq!(world.driver.shut_down(), 518);
    assert_eq!(world.driver.emulator.report(0).unwrap().firmware_pages, 0);
}

/// Sets one capability of a function before it runs, and brings it up.
fn with_capability(name: &str, value: u64) -> Driver {
    use pollux_prm::Layout;
    let mut driver = Driver::new(EmulatorConfig::default());
    driver.call::<EnableHca>(&EnableHca::request()).unwrap();
    driver.give_pages(1);
    let mut query = QueryHcaCap::request();
    query.set_op_mod(CapGroup::GENERAL.current());
    let mut space = driver.call::<QueryHcaCap>(&query).unwrap().capability();
    let (mut caps, _) = CmdHcaCap::read_from_prefix(&space).unwrap();
    caps.set_value_of(name, value).unwrap();
    space[..256].copy_from_slice(caps.bytes());
    let mut set = SetHcaCap::request();
    set.set_capability(space);
    driver.call::<SetHcaCap>(&set).unwrap();
    driver.give_pages(2);
    driver.call::<InitHca>(&InitHca::request()).unwrap();
    driver
}

/// Makes objects until one is refused; how many there were.
fn fill(driver: &mut Driver, kind: Kind, input: &[u8], room: usize) -> usize {
    for count in 0..5000 {
        if let Err(why) = driver.try_raw(input, room) {
            let (reason, _, detail) = parts(why.syndrome).unwrap();
            assert_eq!(
                (why.status, reason, detail),
                (Status::NO_RES_ERR, Reason::Exhausted, kind as u16),
                "{}",
                why.text()
            );
            return count;
        }
    }
    panic!("no end of {kind}s");
}

#[test]
fn no_more_objects_than_announced() {
    let alloc = |opcode: Opcode| words(&[u32::from(opcode.0) << 16, 0, 0, 0]);
    let mut driver = with_capability("log_max_pd", 3);
    assert_eq!(fill(&mut driver, Kind::Pd, &alloc(Opcode::ALLOC_PD), 16), 8);
    let mut driver = with_capability("log_max_transport_domain", 2);
    let input = alloc(Opcode::ALLOC_TRANSPORT_DOMAIN);
    assert_eq!(fill(&mut driver, Kind::TransportDomain, &input, 16), 4);
    let mut driver = with_capability("max_qp_cnt", 5);
    assert_eq!(
        fill(
            &mut driver,
            Kind::QCounter,
            &alloc(Opcode::ALLOC_Q_COUNTER),
            16
        ),
        5
    );
    // UAR pages: as many as the region has.
    assert_eq!(
        fill(&mut driver, Kind::Uar, &alloc(Opcode::ALLOC_UAR), 16),
        0x100 - 0x10
    );
    let mut driver = with_capability("log_max_eq", 1);
    let uar = driver.uar();
    driver.eq(uar, 0, [0; 4], 4);
    driver.eq(uar, 0, [0; 4], 4);
    let mut input = CreateEq::request();
    let mut context = Eqc::zeroed();
    context.set_uar_page(uar).unwrap();
    input.set_eq_context_entry(context);
    let ring = driver.take(4096);
    let input = [input.as_bytes(), &driver.page_list(ring, 64)].concat();
    assert_eq!(fill(&mut driver, Kind::Eq, &input, 16), 0);
}

#[test]
fn no_more_queues_than_announced() {
    type Make = fn(&World) -> Vec<u8>;
    let cases: [(&str, Kind, Make); 7] = [
        ("log_max_mkey", Kind::Mkey, World::mkey_input),
        ("log_max_cq", Kind::Cq, World::cq_input),
        ("log_max_tis", Kind::Tis, World::tis_input),
        ("log_max_sq", Kind::Sq, World::sq_input),
        ("log_max_rq", Kind::Rq, World::rq_input),
        ("log_max_rqt", Kind::Rqt, World::rqt_input),
        ("log_max_tir", Kind::Tir, World::tir_input),
    ];
    for (name, kind, make) in cases {
        let mut world = World::on(with_capability(name, 2));
        let input = make(&world);
        // One is there.
        assert_eq!(fill(&mut world.driver, kind, &input, 16), 3, "{name}");
    }
}

#[test]
fn no_larger_than_announced() {
    let limit = |driver: &mut Driver, input: &[u8]| {
        let why = driver.try_raw(input, 16).unwrap_err();
        assert_eq!(
            (why.status, parts(why.syndrome).unwrap().0),
            (Status::LIM_ERR, Reason::Limit),
            "{}",
            why.text()
        );
    };
    let mut world = World::on(with_capability("log_max_cq_sz", 6));
    let mut input = world.cq_input();
    let mut context = Cqc::from_bytes(input[16..80].try_into().unwrap());
    context.set_log_cq_size(7).unwrap();
    input[16..80].copy_from_slice(context.bytes());
    limit(&mut world.driver, &input);
    let mut world = World::on(with_capability("log_max_wq_sz", 6));
    for (mut input, at) in [(world.sq_input(), 32 + 48), (world.rq_input(), 32 + 48)] {
        let mut wq = Wq::from_bytes(input[at..at + 192].try_into().unwrap());
        wq.set_log_wq_sz(7).unwrap();
        input[at..at + 192].copy_from_slice(wq.bytes());
        limit(&mut world.driver, &input);
    }
    let mut world = World::on(with_capability("log_max_eq_sz", 6));
    let mut input = CreateEq::request();
    let mut context = Eqc::zeroed();
    context.set_log_eq_size(7).unwrap();
    context.set_uar_page(world.uar).unwrap();
    input.set_eq_context_entry(context);
    let input = [input.as_bytes(), &world.page(), &world.page()].concat();
    limit(&mut world.driver, &input);
    let mut world = World::on(with_capability("log_max_rqt_size", 2));
    let mut input = world.rqt_input();
    let mut context = Rqtc::from_bytes(input[32..272].try_into().unwrap());
    context.set_rqt_max_size(8);
    input[32..272].copy_from_slice(context.bytes());
    limit(&mut world.driver, &input);
    for (name, list) in [
        ("log_max_current_uc_list", 0u8),
        ("log_max_current_mc_list", 1),
        ("log_max_vlan_list", 2),
    ] {
        let mut driver = with_capability(name, 1);
        for (count, good) in [(2u16, true), (3, false)] {
            let mut input = ModifyNicVportContext::request();
            let mut select = NicVportFieldSelect::zeroed();
            select.set_addresses_list(true);
            input.set_field_select(select);
            let mut context = NicVportContext::zeroed();
            context.set_allowed_list_type(list).unwrap();
            context.set_allowed_list_size(count).unwrap();
            input.set_nic_vport_context(context);
            let input = [input.as_bytes(), &vec![2; usize::from(count) * 8]].concat();
            if good {
                driver.try_raw(&input, 16).unwrap();
            } else {
                limit(&mut driver, &input);
            }
        }
    }
}

#[test]
fn queries_return_what_was_set() {
    let mut world = World::new(Model::ConnectX5);
    let page = world.page();
    // Completion queue: the context as given, then its page list.
    let mut query = QueryCq::request();
    query.set_cqn(world.cqn).unwrap();
    let (out, tail) = world.driver.call_tail::<QueryCq>(&query, &[], 8).unwrap();
    let given = Cqc::from_bytes(world.cq_input()[16..80].try_into().unwrap());
    let mut got = out.cq_context();
    got.set_st(0).unwrap();
    assert_eq!((got, tail), (given, page.clone()));
    // Receive queue.
    let mut query = QueryRq::request();
    query.set_rqn(world.rqn).unwrap();
    let (out, tail) = world.driver.call_tail::<QueryRq>(&query, &[], 8).unwrap();
    let given = Rqc::from_bytes(world.rq_input()[32..272].try_into().unwrap());
    assert_eq!((out.rq_context(), tail), (given, page));
    // Memory key.
    let mut query = QueryMkey::request();
    query.set_mkey_index(world.mkey).unwrap();
    let out = world.driver.call::<QueryMkey>(&query).unwrap();
    let given = Mkc::from_bytes(world.mkey_input()[16..80].try_into().unwrap());
    assert_eq!(out.memory_key_mkey_entry(), given);
    // Transport interfaces and the table between them.
    let mut query = QueryTis::request();
    query.set_tisn(world.tisn).unwrap();
    let out = world.driver.call::<QueryTis>(&query).unwrap();
    assert_eq!(out.tis_context().transport_domain(), world.domain);
    let mut query = QueryTir::request();
    query.set_tirn(world.tirn).unwrap();
    let out = world.driver.call::<QueryTir>(&query).unwrap();
    let given = Tirc::from_bytes(world.tir_input()[32..272].try_into().unwrap());
    assert_eq!(out.tir_context(), given);
    let mut query = QueryRqt::request();
    query.set_rqtn(world.rqtn).unwrap();
    let (out, tail) = world.driver.call_tail::<QueryRqt>(&query, &[], 4).unwrap();
    assert_eq!(out.rqt_context().rqt_max_size(), 4);
    assert_eq!(tail, words(&[world.rqn]));
    // Flow table, group, entry.
    let mut query = QueryFlowTable::request();
    query.set_table_id(world.next_table).unwrap();
    let out = world.driver.call::<QueryFlowTable>(&query).unwrap();
    assert_eq!(out.flow_table_context().level(), 1);
    let mut query = QueryFlowGroup::request();
    query.set_table_id(world.table).unwrap();
    query.set_group_id(world.group);
    let out = world.driver.call::<QueryFlowGroup>(&query).unwrap();
    assert_eq!((out.start_flow_index(), out.end_flow_index()), (0, 3));
    let mut query = QueryFlowTableEntry::request();
    query.set_table_id(world.table).unwrap();
    let (out, tail) = world
        .driver
        .call_tail::<QueryFlowTableEntry>(&query, &[], 16)
        .unwrap();
    let given = world.entry_input(0);
    assert_eq!(out.flow_context().bytes()[..], given[64..832]);
    assert_eq!(tail, given[832..]);
    // Vport: MAC, MTU, lists.
    let query = QueryNicVportContext::request();
    let context = world
        .driver
        .call::<QueryNicVportContext>(&query)
        .unwrap()
        .nic_vport_context();
    assert_eq!(
        context.permanent_address().mac(),
        world.driver.emulator.mac(0).unwrap()
    );
    assert_eq!((context.mtu(), context.min_wqe_inline_mode()), (1522, 0));
}

#[test]
fn vport_settings_are_kept_and_forgotten_with_the_function() {
    let mut world = World::new(Model::ConnectX4Lx);
    let mut input = ModifyNicVportContext::request();
    let mut select = NicVportFieldSelect::zeroed();
    select
        .set_mtu(true)
        .set_promisc(true)
        .set_permanent_address(true)
        .set_addresses_list(true);
    input.set_field_select(select);
    let mut mac = MacAddress::zeroed();
    mac.set_mac([2, 9, 8, 7, 6, 5]);
    let mut context = NicVportContext::zeroed();
    context
        .set_mtu(9000)
        .set_promisc_all(true)
        .set_permanent_address(mac);
    context.set_allowed_list_type(1).unwrap();
    context.set_allowed_list_size(2).unwrap();
    input.set_nic_vport_context(context);
    let list = [*mac.bytes(), *mac.bytes()].concat();
    world
        .driver
        .call_tail::<ModifyNicVportContext>(&input, &list, 0)
        .unwrap();
    let mut query = QueryNicVportContext::request();
    query.set_allowed_list_type(1).unwrap();
    let (out, tail) = world
        .driver
        .call_tail::<QueryNicVportContext>(&query, &[], 16)
        .unwrap();
    let got = out.nic_vport_context();
    assert_eq!(
        (got.mtu(), got.promisc_all(), got.permanent_address()),
        (9000, true, mac)
    );
    assert_eq!((got.allowed_list_size(), tail), (2, list));
    // The oldest model wants headers inline.
    assert_eq!(got.min_wqe_inline_mode(), 1);
    world.driver.function.reset().unwrap();
    world.driver.start_queue();
    world.driver.bring_up();
    let out = world.driver.call::<QueryNicVportContext>(&query).unwrap();
    let got = out.nic_vport_context();
    assert_eq!(
        (got.mtu(), got.promisc_all(), got.allowed_list_size()),
        (1522, false, 0)
    );
    assert_eq!(
        got.permanent_address().mac(),
        world.driver.emulator.mac(0).unwrap()
    );
}

#[test]
fn queues_move_between_states_by_the_rules() {
    let mut world = World::new(Model::ConnectX5);
    let (rqn, sqn) = (world.rqn, world.sqn);
    let rq = |driver: &mut Driver, from: u8, to: u8| {
        let mut input = ModifyRq::request();
        input.set_rqn(rqn).unwrap();
        input.set_rq_state(from).unwrap();
        let mut context = Rqc::zeroed();
        context.set_state(to).unwrap();
        input.set_ctx(context);
        driver.call::<ModifyRq>(&input).map(drop)
    };
    let sq = |driver: &mut Driver, from: u8, to: u8| {
        let mut input = ModifySq::request();
        input.set_sqn(sqn).unwrap();
        input.set_sq_state(from).unwrap();
        let mut context = Sqc::zeroed();
        context.set_state(to).unwrap();
        input.set_ctx(context);
        driver.call::<ModifySq>(&input).map(drop)
    };
    let (reset, ready, error) = (0, 1, 3);
    let driver = &mut world.driver;
    let steps: [(u8, u8, bool); 12] = [
        (reset, reset, true),
        (ready, ready, false),
        (reset, ready, true),
        (reset, ready, false),
        (ready, ready, true),
        (ready, error, true),
        (error, ready, false),
        (ready, reset, false),
        (error, error, true),
        (error, reset, true),
        (reset, error, true),
        (error, reset, true),
    ];
    for (number, (from, to, good)) in steps.into_iter().enumerate() {
        for (what, result) in [("RQ", rq(driver, from, to)), ("SQ", sq(driver, from, to))] {
            match result {
                Ok(()) => assert!(good, "{what}, step {number}: {from} to {to} was accepted"),
                Err(why) => {
                    assert!(!good, "{what}, step {number}: {}", why.text());
                    let reason = parts(why.syndrome).unwrap().0;
                    assert_eq!(
                        (why.status, reason),
                        (Status::BAD_RES_STATE_ERR, Reason::WrongState)
                    );
                }
            }
        }
    }
}

#[test]
fn flow_entries_are_checked_against_the_tables() {
    let mut world = World::new(Model::ConnectX5);
    let refuse = |world: &mut World, input: Vec<u8>, status: Status, reason: Reason| {
        let why = world.driver.try_raw(&input, 16).unwrap_err();
        assert_eq!(
            (why.status, parts(why.syndrome).unwrap().0),
            (status, reason),
            "{}",
            why.text()
        );
    };
    // An index that is taken, a group that overlaps.
    let again = world.entry_input(0);
    refuse(&mut world, again, Status::BAD_RES_STATE_ERR, Reason::Taken);
    let overlap = world.group_input(3, 5);
    refuse(
        &mut world,
        overlap,
        Status::BAD_RES_STATE_ERR,
        Reason::Taken,
    );
    // Destinations: a table that is not above, a TIR that is not there, a vport.
    let to = |world: &World, kind: u8, number: u32| {
        let mut input = world.entry_input(1);
        let at = input.len() - 16;
        input[at..at + 4].copy_from_slice(&(u32::from(kind) << 24 | number).to_be_bytes());
        input
    };
    let own = to(&world, 1, world.table);
    refuse(&mut world, own, Status::BAD_PARAM_ERR, Reason::BadValue);
    let nowhere = to(&world, 2, 0xabcdef);
    refuse(&mut world, nowhere, Status::BAD_RES_ERR, Reason::NoObject);
    let vport = to(&world, 0, 1);
    refuse(&mut world, vport, Status::BAD_PARAM_ERR, Reason::NotOffered);
    let above = to(&world, 1, world.next_table);
    world.driver.try_raw(&above, 16).unwrap();
    // The table that the entry points at is in use now.
    let next = destroy_table(world.next_table);
    refuse(&mut world, next.clone(), Status::RES_BUSY, Reason::InUse);
    world
        .driver
        .try_raw(&delete_entry(world.table, 1), 16)
        .unwrap();
    world.driver.try_raw(&next, 16).unwrap();
}

#[test]
fn self_loopback_is_kept_where_it_can_be_changed() {
    for (model, offered) in [(Model::ConnectX5, true), (Model::ConnectX4Lx, false)] {
        let mut world = World::new(model);
        let mut input = ModifyTir::request();
        input.set_tirn(world.tirn).unwrap();
        let mut mask = TirBitmask::zeroed();
        mask.set_self_lb_en(true);
        input.set_bitmask(mask);
        let mut context = Tirc::zeroed();
        context.set_self_lb_block(3).unwrap();
        input.set_ctx(context);
        match world.driver.call::<ModifyTir>(&input) {
            Ok(_) => assert!(offered, "{model}"),
            Err(why) => {
                assert!(!offered, "{model}: {}", why.text());
                assert_eq!(parts(why.syndrome).unwrap().0, Reason::NotOffered);
            }
        }
        let mut query = QueryTir::request();
        query.set_tirn(world.tirn).unwrap();
        let block = world
            .driver
            .call::<QueryTir>(&query)
            .unwrap()
            .tir_context()
            .self_lb_block();
        assert_eq!(block, if offered { 3 } else { 0 });
    }
}

#[test]
fn moderation_is_changed_by_field() {
    for model in Model::ALL {
        let mut world = World::new(model);
        let modify = |world: &mut World, select: u32, context: Cqc| {
            let mut input = ModifyCq::request();
            input.set_cqn(world.cqn).unwrap().set_field_select(select);
            input.set_cq_context(context);
            world.driver.call::<ModifyCq>(&input)
        };
        let query = |world: &mut World| {
            let mut input = QueryCq::request();
            input.set_cqn(world.cqn).unwrap();
            let (out, _) = world.driver.call_tail::<QueryCq>(&input, &[], 64).unwrap();
            let context = out.cq_context();
            (
                context.cq_period(),
                context.cq_max_count(),
                context.cq_period_mode(),
                context.oi(),
            )
        };
        let mut context = Cqc::zeroed();
        context.set_cq_period(100).unwrap();
        context.set_cq_max_count(64).set_oi(true);
        context.set_cq_period_mode(1).unwrap();
        // Each bit takes its own field and leaves the others.
        modify(&mut world, CqFields::CQ_PERIOD.0, context).unwrap();
        assert_eq!(query(&mut world), (100, 0, 0, false));
        modify(&mut world, CqFields::CQ_MAX_COUNT.0, context).unwrap();
        assert_eq!(query(&mut world), (100, 64, 0, false));
        modify(&mut world, CqFields::OI.0, context).unwrap();
        assert_eq!(query(&mut world), (100, 64, 0, true));
        let mode = modify(&mut world, CqFields::CQ_PERIOD_MODE.0, context);
        if model == Model::ConnectX4Lx {
            let why = mode.unwrap_err();
            assert_eq!(parts(why.syndrome).unwrap().0, Reason::NotOffered);
            assert_eq!(query(&mut world), (100, 64, 0, true));
        } else {
            mode.unwrap();
            assert_eq!(query(&mut world), (100, 64, 1, true));
        }
        // Another size is another capability.
        let mut resize = ModifyCq::request();
        resize.set_cqn(world.cqn).unwrap().set_op_mod(1);
        let why = world.driver.call::<ModifyCq>(&resize).unwrap_err();
        assert_eq!(why.status, Status::BAD_OP_ERR);
    }
}
