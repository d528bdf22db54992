//! Cases of a running function: bring-up queries, pages, doorbell pages, event queues, protection,
//! completion, send and receive queues.

use super::*;
use pollux_prm::commands::cq::*;
use pollux_prm::commands::eq::*;
use pollux_prm::commands::protection::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;

/// In an order in which each can be tried.
pub fn cases() -> Vec<Case> {
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
            // Pages may be given for any function.
            &["embedded_cpu_function", "function_id"],
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
                value("cq_context.cq_period_mode", 2),
            ],
            &[
                "cq_context.oi",
                "cq_context.cq_period",
                "cq_context.cq_max_count",
            ],
        ),
        case(
            Opcode::MODIFY_CQ,
            |world| {
                let mut input = ModifyCq::request();
                input.set_cqn(world.cqn).unwrap();
                input.set_field_select(CqFields::CQ_PERIOD.0 | CqFields::CQ_MAX_COUNT.0);
                let mut context = Cqc::zeroed();
                context.set_cq_period(16).unwrap();
                context.set_cq_max_count(32);
                input.set_cq_context(context);
                input.as_bytes().to_vec()
            },
            &[
                absent("cqn", NOTHING),
                value("field_select", 0),
                offered("field_select", CqFields::C_EQN.0.into()),
            ],
            &[
                "cq_context.oi",
                "cq_context.cq_period_mode",
                "cq_context.cq_period",
                "cq_context.cq_max_count",
            ],
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
    ]
}
