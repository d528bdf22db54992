//! Cases of a running function: receive side dispatch, vport, counters, flow tables, registers.

use super::*;
use pollux_prm::commands::counters::*;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::register::AccessReg;
use pollux_prm::commands::tir::*;
use pollux_prm::commands::vport::*;

/// In an order in which each can be tried.
pub fn cases() -> Vec<Case> {
    vec![
        case(
            Opcode::CREATE_TIR,
            |world| {
                let mut input = CreateTir::request();
                let mut context = Tirc::zeroed();
                context.set_inline_rqn(world.rqn).unwrap();
                context.set_transport_domain(world.domain).unwrap();
                input.set_ctx(context);
                input.as_bytes().to_vec()
            },
            &[
                value("ctx.disp_type", 2),
                absent("ctx.inline_rqn", NOTHING),
                value("ctx.rx_hash_symmetric", 1),
                value("ctx.indirect_table", 1),
                value("ctx.rx_hash_fn", 7),
                absent("ctx.transport_domain", NOTHING),
                offered("ctx.rx_hash_field_selector_outer.selected_fields", 0x20),
                value("ctx.rx_hash_field_selector_outer.selected_fields", 0x14),
            ],
            &[
                "ctx.self_lb_block",
                "ctx.rx_hash_toeplitz_key",
                "ctx.rx_hash_field_selector_outer.l3_prot_type",
                "ctx.rx_hash_field_selector_outer.l4_prot_type",
            ],
        ),
        case(
            Opcode::MODIFY_TIR,
            |world| {
                let mut input = ModifyTir::request();
                input.set_tirn(world.tirn).unwrap();
                let mut mask = TirBitmask::zeroed();
                mask.set_hash(true);
                input.set_bitmask(mask);
                input.as_bytes().to_vec()
            },
            &[
                absent("tirn", NOTHING),
                value("bitmask.hash", 0),
                value("ctx.rx_hash_symmetric", 1),
                value("ctx.rx_hash_fn", 7),
                offered("ctx.rx_hash_field_selector_outer.selected_fields", 0x20),
                value("ctx.rx_hash_field_selector_outer.selected_fields", 0x14),
            ],
            &[
                "bitmask.self_lb_en",
                "ctx.self_lb_block",
                "ctx.rx_hash_toeplitz_key",
                "ctx.rx_hash_field_selector_outer.l3_prot_type",
                "ctx.rx_hash_field_selector_outer.l4_prot_type",
            ],
        ),
        case(
            Opcode::QUERY_TIR,
            |world| numbered(Opcode::QUERY_TIR, world.tirn),
            &[absent("tirn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_TIR,
            |world| {
                let input = world.tir_input();
                let tirn = world.make::<CreateTir>(input).tirn();
                numbered(Opcode::DESTROY_TIR, tirn)
            },
            &[absent("tirn", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_RQT,
            |world| world.rqt_input(),
            &[
                limit("rqt_context.rqt_max_size", 0),
                length("rqt_context.rqt_actual_size", 2),
            ],
            &[],
        ),
        case(
            Opcode::MODIFY_RQT,
            |world| {
                let mut input = ModifyRqt::request();
                input.set_rqtn(world.rqtn).unwrap();
                let mut mask = RqtBitmask::zeroed();
                mask.set_rqn_list(true);
                input.set_bitmask(mask);
                let mut context = Rqtc::zeroed();
                context.set_rqt_actual_size(2);
                input.set_ctx(context);
                [input.as_bytes(), &words(&[world.rqn, world.rqn])].concat()
            },
            &[
                absent("rqtn", NOTHING),
                value("bitmask.rqn_list", 0),
                value("ctx.rqt_actual_size", 8),
            ],
            &[],
        ),
        case(
            Opcode::QUERY_RQT,
            |world| numbered(Opcode::QUERY_RQT, world.rqtn),
            &[absent("rqtn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_RQT,
            |world| {
                let input = world.rqt_input();
                let rqtn = world.make::<CreateRqt>(input).rqtn();
                numbered(Opcode::DESTROY_RQT, rqtn)
            },
            &[absent("rqtn", NOTHING)],
            &[],
        ),
        case(Opcode::QUERY_VPORT_STATE, bare::<QueryVportState>, &[], &[]),
        case(
            Opcode::MODIFY_VPORT_STATE,
            bare::<ModifyVportState>,
            &[value("admin_state", 3)],
            &[],
        ),
        case(
            Opcode::QUERY_NIC_VPORT_CONTEXT,
            bare::<QueryNicVportContext>,
            &[value("allowed_list_type", 3)],
            &[],
        ),
        case(
            Opcode::MODIFY_NIC_VPORT_CONTEXT,
            |_| {
                let mut input = ModifyNicVportContext::request();
                let mut select = NicVportFieldSelect::zeroed();
                select.set_mtu(true).set_permanent_address(true);
                input.set_field_select(select);
                let mut context = NicVportContext::zeroed();
                let mut address = MacAddress::zeroed();
                address.set_mac([2, 0, 0, 0, 0, 9]);
                context.set_mtu(2000).set_permanent_address(address);
                input.set_nic_vport_context(context);
                input.as_bytes().to_vec()
            },
            &[
                value("nic_vport_context.mtu", 1),
                value("nic_vport_context.allowed_list_type", 1),
                value("nic_vport_context.allowed_list_size", 1),
                value("nic_vport_context.permanent_address.mac", 0x0100_0000_0001),
            ],
            &[
                // Fields that are not selected are left alone.
                "field_select",
                "nic_vport_context.promisc_uc",
                "nic_vport_context.promisc_mc",
                "nic_vport_context.promisc_all",
            ],
        ),
        case(
            Opcode::QUERY_VPORT_COUNTER,
            bare::<QueryVportCounter>,
            &[],
            &["clear"],
        ),
        case(Opcode::QUERY_VNIC_ENV, bare::<QueryVnicEnv>, &[], &[]),
        case(Opcode::ALLOC_Q_COUNTER, bare::<AllocQCounter>, &[], &[]),
        case(
            Opcode::QUERY_Q_COUNTER,
            |world| {
                let mut input = QueryQCounter::request();
                input.set_counter_set_id(world.counter);
                input.as_bytes().to_vec()
            },
            &[absent("counter_set_id", 0xee)],
            &["clear"],
        ),
        case(
            Opcode::DEALLOC_Q_COUNTER,
            |world| {
                let out = world
                    .driver
                    .call::<AllocQCounter>(&AllocQCounter::request())
                    .unwrap();
                numbered(Opcode::DEALLOC_Q_COUNTER, out.counter_set_id().into())
            },
            &[absent("counter_set_id", 0xee)],
            &[],
        ),
        case(
            Opcode::ALLOC_FLOW_COUNTER,
            bare::<AllocFlowCounter>,
            &[],
            &[],
        ),
        case(
            Opcode::QUERY_FLOW_COUNTER,
            |world| {
                let mut input = QueryFlowCounter::request();
                input.set_flow_counter_id(world.flow_counter);
                input.as_bytes().to_vec()
            },
            &[
                offered("num_of_counters", 2),
                absent("flow_counter_id", NOTHING),
            ],
            &["clear"],
        ),
        case(
            Opcode::DEALLOC_FLOW_COUNTER,
            |world| {
                let input = AllocFlowCounter::request();
                let out = world.driver.call::<AllocFlowCounter>(&input).unwrap();
                numbered(Opcode::DEALLOC_FLOW_COUNTER, out.flow_counter_id())
            },
            &[absent("flow_counter_id", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_FLOW_TABLE,
            |world| world.table_input(2),
            &[
                offered("table_type", 1),
                value("flow_table_context.table_miss_action", 7),
                limit("flow_table_context.level", 0xff),
                limit("flow_table_context.log_size", 0xff),
                value("flow_table_context.table_miss_id", 1),
            ],
            &[],
        ),
        case(
            Opcode::MODIFY_FLOW_TABLE,
            |world| {
                let mut input = ModifyFlowTable::request();
                input.set_table_id(world.table).unwrap();
                input.set_modify_field_select(1);
                let mut context = FlowTableContext::zeroed();
                context.set_table_miss_action(1).unwrap();
                context.set_table_miss_id(world.next_table).unwrap();
                input.set_flow_table_context(context);
                input.as_bytes().to_vec()
            },
            &[
                offered("modify_field_select", 2),
                offered("table_type", 1),
                absent("table_id", NOTHING),
                value("flow_table_context.table_miss_action", 7),
                absent("flow_table_context.table_miss_id", NOTHING),
            ],
            &[],
        ),
        case(
            Opcode::QUERY_FLOW_TABLE,
            |world| {
                let mut input = QueryFlowTable::request();
                input.set_table_id(world.table).unwrap();
                input.as_bytes().to_vec()
            },
            &[offered("table_type", 1), absent("table_id", NOTHING)],
            &[],
        ),
        case(
            Opcode::SET_FLOW_TABLE_ROOT,
            |world| {
                let mut input = SetFlowTableRoot::request();
                input.set_table_id(world.table).unwrap();
                input.as_bytes().to_vec()
            },
            &[offered("table_type", 1), absent("table_id", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_FLOW_TABLE,
            |world| {
                let table = world.table_input(3);
                let table = world.make::<CreateFlowTable>(table).table_id();
                let mut input = DestroyFlowTable::request();
                input.set_table_id(table).unwrap();
                input.as_bytes().to_vec()
            },
            &[offered("table_type", 1), absent("table_id", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_FLOW_GROUP,
            |world| world.group_input(4, 7),
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                value("start_flow_index", 8),
                ("end_flow_index", 16, Status::IX_ERR, Reason::Index),
                offered("match_criteria_enable", 2),
                value("match_criteria.outer_headers", 1),
            ],
            &[],
        ),
        case(
            Opcode::QUERY_FLOW_GROUP,
            |world| {
                let mut input = QueryFlowGroup::request();
                input.set_table_id(world.table).unwrap();
                input.set_group_id(world.group);
                input.as_bytes().to_vec()
            },
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                absent("group_id", NOTHING),
            ],
            &[],
        ),
        case(
            Opcode::DESTROY_FLOW_GROUP,
            |world| {
                let group = world.group_input(8, 9);
                let group = world.make::<CreateFlowGroup>(group).group_id();
                let mut input = DestroyFlowGroup::request();
                input.set_table_id(world.table).unwrap();
                input.set_group_id(group);
                input.as_bytes().to_vec()
            },
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                absent("group_id", NOTHING),
            ],
            &[],
        ),
        case(
            Opcode::SET_FLOW_TABLE_ENTRY,
            |world| world.entry_input(1),
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                value("modify_enable_mask", 1),
                ("flow_index", 9, Status::IX_ERR, Reason::Index),
                absent("flow_context.group_id", NOTHING),
                offered("flow_context.action", 0x20),
                length("flow_context.destination_list_size", 2),
                length("flow_context.flow_counter_list_size", 2),
                value("flow_context.match_value.outer_headers", 1),
            ],
            &["flow_context.flow_tag"],
        ),
        case(
            Opcode::QUERY_FLOW_TABLE_ENTRY,
            |world| {
                let mut input = QueryFlowTableEntry::request();
                input.set_table_id(world.table).unwrap();
                input.as_bytes().to_vec()
            },
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                absent("flow_index", 15),
            ],
            &[],
        ),
        case(
            Opcode::DELETE_FLOW_TABLE_ENTRY,
            |world| {
                let mut input = DeleteFlowTableEntry::request();
                input.set_table_id(world.table).unwrap();
                input.set_flow_index(1);
                input.as_bytes().to_vec()
            },
            &[
                offered("table_type", 1),
                absent("table_id", NOTHING),
                absent("flow_index", 15),
            ],
            &[],
        ),
        case(
            Opcode::ACCESS_REG,
            |_| {
                // PMTU of the port, to be read.
                [AccessReg::request().as_bytes(), &words(&[1 << 16, 0, 0, 0])]
                    .concat()
                    .tap(|b| {
                        b[7] = 1;
                        b[10..12].copy_from_slice(&0x5003u16.to_be_bytes());
                    })
            },
            &[("register_id", 0x1234, BAD_PARAM, Reason::UnknownRegister)],
            &[],
        ),
    ]
}
