//! Every command, every field: what is not understood, out of range or reserved is refused with a
//! status and a syndrome that names it, and changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use driver::{Driver, Refused, words};
use pollux_emu::fields::{Leaf, set_bits_at};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{CommandShape, Model, command_shapes};
use pollux_prm::Command;
use pollux_prm::command::{Opcode, Status};
use pollux_prm::commands::capability::CmdHcaCap;
use pollux_prm::commands::cq::*;
use pollux_prm::commands::eq::*;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::hca::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;
use pollux_prm::commands::vport::*;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// A value that must be refused: the field (or all fields below it), the value, the status and
/// the reason.
type Wrong = (&'static str, u64, Status, Reason);

struct Case {
    opcode: Opcode,
    /// An input that is accepted. Called once for the case.
    input: fn(&mut World) -> Vec<u8>,
    wrong: Vec<Wrong>,
    /// Fields of which every value is good.
    free: Vec<&'static str>,
}

const BAD_PARAM: Status = Status::BAD_PARAM_ERR;
const BAD_RES: Status = Status::BAD_RES_ERR;
/// A number that names nothing.
const NOTHING: u64 = 0xff_ffff;

const fn value(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_PARAM, Reason::BadValue)
}

const fn absent(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_RES, Reason::NoObject)
}

const fn limit(path: &'static str, value: u64) -> Wrong {
    (path, value, Status::LIM_ERR, Reason::Limit)
}

const fn offered(path: &'static str, value: u64) -> Wrong {
    (path, value, BAD_PARAM, Reason::NotOffered)
}

const fn address(path: &'static str) -> Wrong {
    (path, 4, BAD_PARAM, Reason::BadAddress)
}

const fn pages(path: &'static str) -> Wrong {
    (path, 1, Status::BAD_INP_LEN_ERR, Reason::PageList)
}

const fn length(path: &'static str, value: u64) -> Wrong {
    (path, value, Status::BAD_INP_LEN_ERR, Reason::InputLength)
}

fn case(
    opcode: Opcode,
    input: fn(&mut World) -> Vec<u8>,
    wrong: &[Wrong],
    free: &[&'static str],
) -> Case {
    Case {
        opcode,
        input,
        wrong: wrong.to_vec(),
        free: free.to_vec(),
    }
}

/// An input of an opcode and nothing else.
fn bare<C: Command>(_: &mut World) -> Vec<u8> {
    C::request().as_bytes().to_vec()
}

/// An input with one number in its third word, as queries and destructions have it.
fn numbered(opcode: Opcode, number: u32) -> Vec<u8> {
    words(&[u32::from(opcode.0) << 16, 0, number, 0])
}

/// All commands that are accepted by a running function, in an order in which each can be tried.
fn running() -> Vec<Case> {
    use pollux_prm::commands::counters::*;
    use pollux_prm::commands::protection::*;
    use pollux_prm::commands::register::AccessReg;
    vec![
        case(Opcode::QUERY_ISSI, bare::<QueryIssi>, &[], &[]),
        case(Opcode::QUERY_ADAPTER, bare::<QueryAdapter>, &[], &[]),
        case(Opcode::NOP, bare::<Nop>, &[], &[]),
        case(
            Opcode::QUERY_SPECIAL_CONTEXTS,
            bare::<QuerySpecialContexts>,
            &[],
            &[],
        ),
        case(
            Opcode::SET_DRIVER_VERSION,
            |_| {
                let mut input = SetDriverVersion::request();
                let mut text = [0; 64];
                text[..6].copy_from_slice(b"Linux,");
                input.set_driver_version(text);
                input.as_bytes().to_vec()
            },
            &[value("driver_version", 0x0141_4141_0000_0000)],
            &[],
        ),
        case(Opcode::QUERY_HCA_CAP, bare::<QueryHcaCap>, &[], &[]),
        case(
            Opcode::QUERY_PAGES,
            |_| words(&[0x0107_0000, 3, 0, 0]),
            &[],
            &[],
        ),
        case(
            Opcode::MANAGE_PAGES,
            |_| words(&[0x0108_0000, 2, 0, 1]),
            &[value("input_num_entries", 0)],
            &[],
        ),
        case(Opcode::ALLOC_UAR, bare::<AllocUar>, &[], &[]),
        case(
            Opcode::DEALLOC_UAR,
            |world| numbered(Opcode::DEALLOC_UAR, world.driver.uar()),
            &[absent("uar", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_EQ,
            |world| {
                let mut input = CreateEq::request();
                let mut context = Eqc::zeroed();
                context.set_log_eq_size(8).unwrap();
                context.set_uar_page(world.uar).unwrap();
                input.set_eq_context_entry(context);
                input.set_event_bitmask([1 << 9, 0, 0, 0]);
                let ring = world.driver.take(4 * 4096);
                [input.as_bytes(), &world.driver.page_list(ring, 4 * 4096)].concat()
            },
            &[
                limit("eq_context_entry.log_eq_size", 31),
                absent("eq_context_entry.uar_page", NOTHING),
                value("eq_context_entry.intr", 0xfff),
                pages("eq_context_entry.log_page_size"),
                value("event_bitmask", 1),
            ],
            &["eq_context_entry.oi"],
        ),
        case(
            Opcode::QUERY_EQ,
            |world| numbered(Opcode::QUERY_EQ, world.eqn.into()),
            &[absent("eq_number", 0xff)],
            &[],
        ),
        case(
            Opcode::DESTROY_EQ,
            |world| {
                let (eqn, _) = world.driver.eq(world.uar, 1, [0; 4], 6);
                numbered(Opcode::DESTROY_EQ, eqn.into())
            },
            &[absent("eq_number", 0xff)],
            &[],
        ),
        case(Opcode::ALLOC_PD, bare::<AllocPd>, &[], &[]),
        case(
            Opcode::DEALLOC_PD,
            |world| {
                let pd = world
                    .driver
                    .call::<AllocPd>(&AllocPd::request())
                    .unwrap()
                    .pd();
                numbered(Opcode::DEALLOC_PD, pd)
            },
            &[absent("pd", NOTHING)],
            &[],
        ),
        case(
            Opcode::ALLOC_TRANSPORT_DOMAIN,
            bare::<AllocTransportDomain>,
            &[],
            &[],
        ),
        case(
            Opcode::DEALLOC_TRANSPORT_DOMAIN,
            |world| {
                let input = AllocTransportDomain::request();
                let out = world.driver.call::<AllocTransportDomain>(&input).unwrap();
                numbered(Opcode::DEALLOC_TRANSPORT_DOMAIN, out.transport_domain())
            },
            &[absent("transport_domain", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_MKEY,
            |world| world.mkey_input(),
            &[
                value("pg_access", 1),
                offered("memory_key_mkey_entry.access_mode_1_0", 3),
                value("memory_key_mkey_entry.qpn", 1),
                value("memory_key_mkey_entry.length64", 0),
                absent("memory_key_mkey_entry.pd", NOTHING),
                value("memory_key_mkey_entry.start_addr", 4096),
                value("memory_key_mkey_entry.length", 4096),
                value("memory_key_mkey_entry.translations_octword_size", 1),
                value("memory_key_mkey_entry.log_page_size", 12),
                value("translations_octword_actual_size", 1),
            ],
            &[
                "memory_key_mkey_entry.lw",
                "memory_key_mkey_entry.lr",
                "memory_key_mkey_entry.mkey_7_0",
            ],
        ),
        case(
            Opcode::QUERY_MKEY,
            |world| numbered(Opcode::QUERY_MKEY, world.mkey),
            &[absent("mkey_index", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_MKEY,
            |world| numbered(Opcode::DESTROY_MKEY, world.mkey),
            &[absent("mkey_index", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_CQ,
            |world| world.cq_input(),
            &[
                value("cq_context.cqe_sz", 2),
                limit("cq_context.log_cq_size", 31),
                absent("cq_context.uar_page", NOTHING),
                absent("cq_context.c_eqn_or_apu_element", 0xff),
                (
                    "cq_context.log_page_size",
                    31,
                    BAD_PARAM,
                    Reason::BadAddress,
                ),
                address("cq_context.dbr_addr"),
            ],
            &["cq_context.oi"],
        ),
        case(
            Opcode::QUERY_CQ,
            |world| numbered(Opcode::QUERY_CQ, world.cqn),
            &[absent("cqn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_CQ,
            |world| {
                let input = world.cq_input();
                let cqn = world.make::<CreateCq>(input).cqn();
                numbered(Opcode::DESTROY_CQ, cqn)
            },
            &[absent("cqn", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_TIS,
            |world| world.tis_input(),
            &[
                value("ctx.prio", 1),
                absent("ctx.transport_domain", NOTHING),
            ],
            &[],
        ),
        case(
            Opcode::MODIFY_TIS,
            |world| {
                let mut input = ModifyTis::request();
                input.set_tisn(world.tisn).unwrap();
                let mut mask = TisBitmask::zeroed();
                mask.set_prio(true);
                input.set_bitmask(mask);
                let mut context = Tisc::zeroed();
                context.set_prio(4).unwrap();
                input.set_ctx(context);
                input.as_bytes().to_vec()
            },
            &[
                absent("tisn", NOTHING),
                value("bitmask.prio", 0),
                value("ctx.prio", 15),
            ],
            &[],
        ),
        case(
            Opcode::QUERY_TIS,
            |world| numbered(Opcode::QUERY_TIS, world.tisn),
            &[absent("tisn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_TIS,
            |world| {
                let input = world.tis_input();
                let tisn = world.make::<CreateTis>(input).tisn();
                numbered(Opcode::DESTROY_TIS, tisn)
            },
            &[absent("tisn", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_SQ,
            |world| world.sq_input(),
            &[
                value("ctx.min_wqe_inline_mode", 7),
                absent("ctx.cqn", NOTHING),
                value("ctx.tis_lst_sz", 2),
                absent("ctx.tis_num_0", NOTHING),
                offered("ctx.wq.wq_type", 0),
                absent("ctx.wq.pd", NOTHING),
                absent("ctx.wq.uar_page", NOTHING),
                address("ctx.wq.dbr_addr"),
                value("ctx.wq.log_wq_stride", 4),
                ("ctx.wq.log_wq_pg_sz", 31, BAD_PARAM, Reason::BadAddress),
                limit("ctx.wq.log_wq_sz", 31),
            ],
            &["ctx.flush_in_error_en", "ctx.user_index"],
        ),
        case(
            Opcode::MODIFY_SQ,
            |world| {
                let mut input = ModifySq::request();
                input.set_sqn(world.sqn).unwrap();
                let mut context = Sqc::zeroed();
                context.set_state(1).unwrap();
                input.set_ctx(context);
                input.as_bytes().to_vec()
            },
            &[
                ("sq_state", 1, Status::BAD_RES_STATE_ERR, Reason::WrongState),
                absent("sqn", NOTHING),
                value("ctx.state", 7),
            ],
            &[],
        ),
        case(
            Opcode::QUERY_SQ,
            |world| numbered(Opcode::QUERY_SQ, world.sqn),
            &[absent("sqn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_SQ,
            |world| {
                let input = world.sq_input();
                let sqn = world.make::<CreateSq>(input).sqn();
                numbered(Opcode::DESTROY_SQ, sqn)
            },
            &[absent("sqn", NOTHING)],
            &[],
        ),
        case(
            Opcode::CREATE_RQ,
            |world| world.rq_input(),
            &[
                absent("ctx.cqn", NOTHING),
                absent("ctx.counter_set_id", 0xee),
                offered("ctx.wq.wq_type", 2),
                value("ctx.wq.end_padding_mode", 2),
                absent("ctx.wq.pd", NOTHING),
                address("ctx.wq.dbr_addr"),
                limit("ctx.wq.log_wq_stride", 1),
                ("ctx.wq.log_wq_pg_sz", 31, BAD_PARAM, Reason::BadAddress),
                limit("ctx.wq.log_wq_sz", 31),
            ],
            &[
                "ctx.scatter_fcs",
                "ctx.vsd",
                "ctx.flush_in_error_en",
                "ctx.user_index",
            ],
        ),
        case(
            Opcode::MODIFY_RQ,
            |world| {
                let mut input = ModifyRq::request();
                input.set_rqn(world.rqn).unwrap();
                input.set_modify_bitmask(1 << 3);
                let mut context = Rqc::zeroed();
                context.set_state(1).unwrap();
                input.set_ctx(context);
                input.as_bytes().to_vec()
            },
            &[
                ("rq_state", 3, Status::BAD_RES_STATE_ERR, Reason::WrongState),
                absent("rqn", NOTHING),
                offered("modify_bitmask", 1),
                value("ctx.state", 2),
                absent("ctx.counter_set_id", 0xee),
            ],
            &["ctx.vsd", "ctx.scatter_fcs"],
        ),
        case(
            Opcode::QUERY_RQ,
            |world| numbered(Opcode::QUERY_RQ, world.rqn),
            &[absent("rqn", NOTHING)],
            &[],
        ),
        case(
            Opcode::DESTROY_RQ,
            |world| {
                let input = world.rq_input();
                let rqn = world.make::<CreateRq>(input).rqn();
                numbered(Opcode::DESTROY_RQ, rqn)
            },
            &[absent("rqn", NOTHING)],
            &[],
        ),
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
                offered("ctx.rx_hash_field_selector_outer.selected_fields", 0x10),
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
                offered("ctx.rx_hash_field_selector_outer.selected_fields", 0x10),
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

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Tap for Vec<u8> {}

/// Bits of an input that no leaf covers, as runs.
fn gaps(shape: &CommandShape) -> Vec<std::ops::Range<usize>> {
    let mut covered = vec![false; shape.input_len * 8];
    for (leaf, _) in &shape.leaves {
        covered[leaf.bit_offset..leaf.bit_offset + leaf.bits].fill(true);
    }
    let mut runs = Vec::new();
    let mut at = 0;
    while at < covered.len() {
        let end = (at..covered.len())
            .find(|bit| covered[*bit])
            .unwrap_or(covered.len());
        if end > at {
            runs.push(at..end);
        }
        at = end + 1;
    }
    runs
}

/// Sends a mutation, which must be refused so.
fn expect(
    driver: &mut Driver,
    what: &str,
    input: &[u8],
    room: usize,
    status: Status,
    reason: Reason,
) -> u16 {
    let objects = driver.emulator.report(0).unwrap().objects;
    let before = u16::from_be_bytes([input[0], input[1]]);
    let Err(Refused {
        status: got,
        syndrome,
    }) = driver.try_raw(input, room)
    else {
        panic!("{what}: accepted");
    };
    let (why, opcode, detail) = parts(syndrome).unwrap_or_else(|| panic!("{what}: {syndrome:#x}"));
    let text = pollux_emu::syndrome::explain(syndrome).unwrap();
    assert_eq!((got, why), (status, reason), "{what}: {text}");
    assert_eq!(opcode.0, before, "{what}");
    assert_eq!(
        driver.emulator.report(0).unwrap().objects,
        objects,
        "{what} left something behind"
    );
    detail
}

fn leaf_room() -> usize {
    8192
}

fn below(leaf: &Leaf, path: &str) -> bool {
    leaf.path
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tries every mutation of one command, then the command itself.
fn mutate(driver: &mut Driver, shape: &CommandShape, base: &[u8], wrong: &[Wrong], free: &[&str]) {
    let name = shape.opcode.to_string();
    let room = leaf_room();
    // Lengths.
    let short = if shape.opcode == Opcode::INIT_HCA {
        16
    } else {
        shape.input_len
    };
    let (status, reason) = (Status::BAD_INP_LEN_ERR, Reason::InputLength);
    let cut = &base[..short - 4];
    expect(
        driver,
        &format!("{name}: four bytes short"),
        cut,
        room,
        status,
        reason,
    );
    let long = [base, &[0; 2]].concat();
    expect(
        driver,
        &format!("{name}: two bytes long"),
        &long,
        room,
        status,
        reason,
    );
    let (status, reason) = (Status::BAD_OUTP_LEN_ERR, Reason::OutputLength);
    expect(driver, &format!("{name}: no room"), base, 8, status, reason);
    // Variant.
    let mut input = base.to_vec();
    input[6..8].copy_from_slice(&0x55u16.to_be_bytes());
    let (status, reason) = (Status::BAD_OP_ERR, Reason::UnknownVariant);
    expect(
        driver,
        &format!("{name}: variant"),
        &input,
        room,
        status,
        reason,
    );
    // Reserved bits: first and last of each gap.
    for gap in gaps(shape) {
        for bit in [gap.start, gap.end - 1] {
            let mut input = base.to_vec();
            set_bits_at(&mut input, bit, 1, 1);
            let what = format!("{name}: reserved bit {bit:#x}");
            let word = expect(driver, &what, &input, room, BAD_PARAM, Reason::ReservedBits);
            assert_eq!(usize::from(word), bit / 32, "{what}");
        }
    }
    // Fields.
    let mut used_wrong = BTreeMap::<&str, usize>::new();
    for (leaf, used) in &shape.leaves {
        if leaf.path == "opcode" || leaf.path == "op_mod" {
            continue;
        }
        let what = format!("{name}: {}", leaf.path);
        if !used {
            for value in [1, u64::MAX] {
                let mut input = base.to_vec();
                set_bits_at(&mut input, leaf.bit_offset, leaf.bits, value);
                let detail = expect(driver, &what, &input, room, BAD_PARAM, Reason::NotOffered);
                assert_eq!(detail, leaf.index, "{what}");
            }
            continue;
        }
        let mut tried = free.iter().any(|path| below(leaf, path));
        for (path, value, status, reason) in wrong.iter().filter(|(path, ..)| below(leaf, path)) {
            let mut input = base.to_vec();
            set_bits_at(&mut input, leaf.bit_offset, leaf.bits, *value);
            expect(driver, &what, &input, room, *status, *reason);
            *used_wrong.entry(path).or_default() += 1;
            tried = true;
        }
        assert!(
            tried,
            "{what} is acted on, but no test says which values are wrong"
        );
    }
    for (path, ..) in wrong {
        assert!(
            used_wrong.contains_key(path),
            "{name}: there is no field {path}"
        );
    }
    if let Err(why) = driver.try_raw(base, room) {
        panic!("{name}: the input itself is refused: {}", why.text());
    }
}

fn shapes() -> BTreeMap<u16, CommandShape> {
    command_shapes()
        .into_iter()
        .map(|shape| (shape.opcode.0, shape))
        .collect()
}

/// Commands that belong to other phases than the running one.
const ELSEWHERE: &[Opcode] = &[
    Opcode::ENABLE_HCA,
    Opcode::DISABLE_HCA,
    Opcode::SET_ISSI,
    Opcode::SET_HCA_CAP,
    Opcode::INIT_HCA,
    Opcode::TEARDOWN_HCA,
];

#[test]
fn every_command_of_a_running_function() {
    let mut world = World::new(Model::ConnectX5);
    let mut shapes = shapes();
    for case in running() {
        let shape = shapes.remove(&case.opcode.0).unwrap();
        let base = (case.input)(&mut world);
        mutate(&mut world.driver, &shape, &base, &case.wrong, &case.free);
    }
    let left: Vec<Opcode> = shapes.into_values().map(|shape| shape.opcode).collect();
    for opcode in &left {
        assert!(ELSEWHERE.contains(opcode), "{opcode} has no case");
    }
}

#[test]
fn every_command_of_bring_up_and_teardown() {
    let shapes = shapes();
    let mut driver = Driver::new(Default::default());
    let shape = |opcode: Opcode| &shapes[&opcode.0];
    let words = driver::words;
    mutate(
        &mut driver,
        shape(Opcode::ENABLE_HCA),
        &words(&[0x0104_0000, 0, 0, 0]),
        &[],
        &[],
    );
    let issi = words(&[0x010b_0000, 0, 1, 0]);
    mutate(
        &mut driver,
        shape(Opcode::SET_ISSI),
        &issi,
        &[value("current_issi", 2)],
        &[],
    );
    driver.give_pages(1);
    let mut query = QueryHcaCap::request();
    query.set_op_mod(1);
    let now = driver.call::<QueryHcaCap>(&query).unwrap();
    let mut set = SetHcaCap::request();
    set.set_capability(now.capability());
    mutate(
        &mut driver,
        shape(Opcode::SET_HCA_CAP),
        set.as_bytes(),
        &[("capability", u64::MAX, BAD_PARAM, Reason::AboveMaximum)],
        &[],
    );
    driver.give_pages(2);
    let init = words(&[0x0102_0000, 0, 0, 0, 0, 0, 0, 0]);
    mutate(&mut driver, shape(Opcode::INIT_HCA), &init, &[], &[]);
    mutate(
        &mut driver,
        shape(Opcode::TEARDOWN_HCA),
        &words(&[0x0103_0000, 0, 0, 0]),
        &[],
        &[],
    );
    while !driver.take_pages(768).is_empty() {}
    mutate(
        &mut driver,
        shape(Opcode::DISABLE_HCA),
        &words(&[0x0105_0000, 0, 0, 0]),
        &[],
        &[],
    );
}

#[test]
fn no_capability_can_be_raised_above_its_maximum() {
    let leaves = pollux_emu::fields::leaves(<CmdHcaCap as pollux_prm::Layout>::FIELDS);
    for model in Model::ALL {
        let function = pollux_emu::FunctionConfig {
            model,
            ..Default::default()
        };
        let mut driver = Driver::one(function);
        driver.call::<EnableHca>(&EnableHca::request()).unwrap();
        driver.give_pages(1);
        let most = driver
            .call::<QueryHcaCap>(&QueryHcaCap::request())
            .unwrap()
            .capability();
        let set = |driver: &mut Driver, bytes: [u8; 4096]| {
            let mut input = SetHcaCap::request();
            input.set_capability(bytes);
            driver.call::<SetHcaCap>(&input)
        };
        set(&mut driver, most).unwrap();
        for leaf in &leaves {
            let max = pollux_emu::fields::bits_at(&most, leaf.bit_offset, leaf.bits);
            if max == u64::MAX >> (64 - leaf.bits) {
                continue;
            }
            let mut bytes = most;
            set_bits_at(&mut bytes, leaf.bit_offset, leaf.bits, max + 1);
            let why = set(&mut driver, bytes).unwrap_err();
            let (reason, _, detail) = parts(why.syndrome).unwrap();
            let expected = (BAD_PARAM, Reason::AboveMaximum, leaf.index);
            assert_eq!(
                (why.status, reason, detail),
                expected,
                "{model}: {}",
                leaf.path
            );
            assert!(why.text().contains(&leaf.path), "{}", why.text());
        }
        // What was refused is not in force.
        let mut query = QueryHcaCap::request();
        query.set_op_mod(1);
        assert_eq!(
            driver.call::<QueryHcaCap>(&query).unwrap().capability(),
            most
        );
    }
}
