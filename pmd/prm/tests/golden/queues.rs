//! Completion, send and receive queues, TIS, TIR, RQT.

use pollux_prm::commands::cq::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;

use crate::{Case, case};

pub fn cases() -> Vec<Case> {
    [completion(), send(), receive(), interfaces(), indirection()]
        .into_iter()
        .flatten()
        .collect()
}

fn completion() -> Vec<Case> {
    vec![
        case::<CreateCq>(
            |i| {
                let mut cqc = Cqc::zeroed();
                cqc.set_cqe_sz(1)
                    .unwrap()
                    .set_oi(true)
                    .set_cq_period_mode(1)
                    .unwrap();
                cqc.set_log_cq_size(10)
                    .unwrap()
                    .set_uar_page(0x00_0456)
                    .unwrap();
                cqc.set_cq_period(0xabc).unwrap().set_cq_max_count(0x1234);
                cqc.set_c_eqn_or_apu_element(5)
                    .set_log_page_size(3)
                    .unwrap();
                cqc.set_dbr_addr(0x1122_3344_5566_7788);
                i.set_cq_context(cqc).set_cq_umem_valid(true);
            },
            &[
                (0x0, "0400"),
                // cqe_sz is the top of byte 1, oi bit 0x0e; the period mode's low bit is 0x10.
                (0x10 + 0x1, "22 80"),
                (0x10 + 0xc, "0a000456"),
                (0x10 + 0x10, "0abc 1234 00000005"),
                (0x10 + 0x18, "03"),
                (0x10 + 0x38, "11223344 55667788"),
                (0x5c, "80"),
            ],
            |o| {
                o.set_cqn(0x00_0481).unwrap();
            },
            &[(0x9, "000481")],
        ),
        case::<ModifyCq>(
            |i| {
                i.set_op_mod(ModifyCqAction::RESIZE.0)
                    .set_cqn(0x0481)
                    .unwrap();
                i.set_field_select(CqFields::CQ_PERIOD.0 | CqFields::CQ_MAX_COUNT.0);
                let mut cqc = Cqc::zeroed();
                cqc.set_cq_period(16).unwrap().set_cq_max_count(32);
                i.set_cq_context(cqc);
            },
            &[
                (0x0, "0403"),
                (0x6, "0001"),
                (0x9, "000481 00000003"),
                (0x10 + 0x10, "0010 0020"),
            ],
            |_| {},
            &[],
        ),
        case::<QueryCq>(
            |i| {
                i.set_cqn(0x0481).unwrap();
            },
            &[(0x0, "0402"), (0x9, "000481")],
            |o| {
                let mut cqc = Cqc::zeroed();
                cqc.set_status(CqStatus::CQ_OVERFLOW.0)
                    .unwrap()
                    .set_st(CqState::FIRED.0)
                    .unwrap();
                cqc.set_consumer_counter(0x01_0203).unwrap();
                cqc.set_producer_counter(0x04_0506).unwrap();
                o.set_cq_context(cqc);
            },
            &[
                (0x10, "9000 0a"),
                (0x10 + 0x29, "010203"),
                (0x10 + 0x2d, "040506"),
            ],
        ),
        case::<DestroyCq>(
            |i| {
                i.set_uid(1).set_cqn(0x0481).unwrap();
            },
            &[(0x0, "0401 0001"), (0x9, "000481")],
            |_| {},
            &[],
        ),
    ]
}

/// A ring with every field that an Ethernet queue uses.
fn ring() -> Wq {
    let mut wq = Wq::zeroed();
    wq.set_wq_type(WqType::CYCLIC.0)
        .unwrap()
        .set_end_padding_mode(1)
        .unwrap();
    wq.set_pd(0x1d)
        .unwrap()
        .set_uar_page(0x0456)
        .unwrap()
        .set_dbr_addr(0x0000_0007_ab12_2040);
    wq.set_log_wq_stride(6)
        .unwrap()
        .set_log_wq_pg_sz(2)
        .unwrap()
        .set_log_wq_sz(10)
        .unwrap();
    wq
}

fn send() -> Vec<Case> {
    vec![
        case::<CreateSq>(
            |i| {
                let mut sqc = Sqc::zeroed();
                sqc.set_flush_in_error_en(true)
                    .set_min_wqe_inline_mode(1)
                    .unwrap();
                sqc.set_user_index(0xff_ffff)
                    .unwrap()
                    .set_cqn(0x0481)
                    .unwrap();
                sqc.set_tis_lst_sz(1)
                    .set_tis_num_0(0x77)
                    .unwrap()
                    .set_wq(ring());
                sqc.set_ts_format(1).unwrap();
                i.set_ctx(sqc);
            },
            &[
                (0x0, "0904"),
                // flush_in_error_en is bit 3, min_wqe_inline_mode bits 5 to 7; ts_format bit 0x1a.
                (0x20, "11 00 00 10"),
                (0x20 + 0x5, "ffffff"),
                (0x20 + 0x9, "000481"),
                (0x20 + 0x20, "0001"),
                (0x20 + 0x2d, "000077"),
                // The ring: cyclic and end padding, protection domain, UAR, record, sizes.
                (0x50, "12"),
                (0x50 + 0x9, "00001d"),
                (0x50 + 0xd, "000456"),
                (0x50 + 0x10, "00000007 ab122040"),
                (0x50 + 0x21, "06 02 0a"),
            ],
            |o| {
                o.set_sqn(0x00_0999).unwrap();
            },
            &[(0x9, "000999")],
        ),
        case::<ModifySq>(
            |i| {
                i.set_sq_state(SqState::RST.0)
                    .unwrap()
                    .set_sqn(0x0999)
                    .unwrap();
                i.set_modify_bitmask(1);
                let mut sqc = Sqc::zeroed();
                sqc.set_state(SqState::RDY.0)
                    .unwrap()
                    .set_packet_pacing_rate_limit_index(0x0102);
                i.set_ctx(sqc);
            },
            &[
                (0x0, "0905"),
                (0x9, "000999"),
                (0x10, "00000000 00000001"),
                (0x20 + 0x1, "10"),
                (0x20 + 0x1e, "0102"),
            ],
            |_| {},
            &[],
        ),
        case::<QuerySq>(
            |i| {
                i.set_sqn(0x0999).unwrap();
            },
            &[(0x0, "0907"), (0x9, "000999")],
            |o| {
                let mut sqc = Sqc::zeroed();
                sqc.set_state(SqState::ERR.0).unwrap();
                let mut wq = Wq::zeroed();
                wq.set_hw_counter(0x11).set_sw_counter(0x12);
                sqc.set_wq(wq);
                o.set_sq_context(sqc);
            },
            &[(0x21, "30"), (0x50 + 0x18, "00000011 00000012")],
        ),
        case::<DestroySq>(
            |i| {
                i.set_sqn(0x0999).unwrap();
            },
            &[(0x0, "0906"), (0x9, "000999")],
            |_| {},
            &[],
        ),
    ]
}

fn receive() -> Vec<Case> {
    vec![
        case::<CreateRq>(
            |i| {
                let mut rqc = Rqc::zeroed();
                rqc.set_vsd(true).set_mem_rq_type(MemRqType::RMP.0).unwrap();
                rqc.set_flush_in_error_en(true)
                    .set_user_index(0x12)
                    .unwrap();
                rqc.set_cqn(0x0482)
                    .unwrap()
                    .set_counter_set_id(0x21)
                    .set_rmpn(3)
                    .unwrap();
                rqc.set_wq(ring());
                i.set_ctx(rqc);
            },
            &[
                (0x0, "0908"),
                // vsd is bit 3, the memory type bits 4 to 7, flush_in_error_en bit 0x0d.
                (0x20, "11 04"),
                (0x20 + 0x5, "000012"),
                (0x20 + 0x9, "000482"),
                (0x20 + 0xc, "21"),
                (0x20 + 0x11, "000003"),
                (0x50, "12"),
                (0x50 + 0x9, "00001d"),
                (0x50 + 0xd, "000456"),
                (0x50 + 0x10, "00000007 ab122040"),
                (0x50 + 0x21, "06 02 0a"),
            ],
            |o| {
                o.set_rqn(0xaa).unwrap();
            },
            &[(0x9, "0000aa")],
        ),
        case::<ModifyRq>(
            |i| {
                i.set_rq_state(RqState::RDY.0)
                    .unwrap()
                    .set_rqn(0xaa)
                    .unwrap();
                i.set_modify_bitmask(RqFields::VSD.0 | RqFields::RQ_COUNTER_SET_ID.0);
                let mut rqc = Rqc::zeroed();
                rqc.set_state(RqState::ERR.0).unwrap().set_counter_set_id(9);
                i.set_ctx(rqc);
            },
            &[
                (0x0, "0909"),
                (0x8, "10 0000aa"),
                (0x10, "00000000 0000000a"),
                (0x21, "30"),
                (0x2c, "09"),
            ],
            |_| {},
            &[],
        ),
        case::<QueryRq>(
            |i| {
                i.set_rqn(0xaa).unwrap();
            },
            &[(0x0, "090b"), (0x9, "0000aa")],
            |o| {
                let mut rqc = Rqc::zeroed();
                rqc.set_rlky(true).set_state(RqState::RDY.0).unwrap();
                o.set_rq_context(rqc);
            },
            &[(0x20, "80 10")],
        ),
        case::<DestroyRq>(
            |i| {
                i.set_rqn(0xaa).unwrap();
            },
            &[(0x0, "090a"), (0x9, "0000aa")],
            |_| {},
            &[],
        ),
    ]
}

fn interfaces() -> Vec<Case> {
    vec![
        case::<CreateTis>(
            |i| {
                let mut tisc = Tisc::zeroed();
                tisc.set_prio(6)
                    .unwrap()
                    .set_transport_domain(5)
                    .unwrap()
                    .set_pd(0x1d)
                    .unwrap();
                i.set_ctx(tisc);
            },
            &[
                (0x0, "0912"),
                (0x21, "06"),
                (0x45, "000005"),
                (0x4d, "00001d"),
            ],
            |o| {
                o.set_tisn(0x77).unwrap();
            },
            &[(0x9, "000077")],
        ),
        case::<ModifyTis>(
            |i| {
                let mut bits = TisBitmask::zeroed();
                bits.set_prio(true);
                i.set_tisn(0x77).unwrap().set_bitmask(bits);
            },
            &[(0x0, "0913"), (0x9, "000077"), (0x17, "01")],
            |_| {},
            &[],
        ),
        case::<QueryTis>(
            |i| {
                i.set_tisn(0x77).unwrap();
            },
            &[(0x0, "0915"), (0x9, "000077")],
            |o| {
                let mut tisc = Tisc::zeroed();
                tisc.set_transport_domain(5).unwrap();
                o.set_tis_context(tisc);
            },
            &[(0x35, "000005")],
        ),
        case::<DestroyTis>(
            |i| {
                i.set_tisn(0x77).unwrap();
            },
            &[(0x0, "0914"), (0x9, "000077")],
            |_| {},
            &[],
        ),
        case::<CreateTir>(
            |i| {
                let mut tirc = Tirc::zeroed();
                tirc.set_disp_type(DispType::INDIRECT.0)
                    .unwrap()
                    .set_indirect_table(0x44)
                    .unwrap();
                tirc.set_lro_timeout_period_usecs(0x1234)
                    .set_packet_merge_mask(3)
                    .unwrap();
                tirc.set_lro_max_ip_payload_size(0xff)
                    .set_inline_rqn(0xaa)
                    .unwrap();
                tirc.set_rx_hash_symmetric(true)
                    .set_rx_hash_fn(RxHashFn::TOEPLITZ.0)
                    .unwrap();
                tirc.set_self_lb_block(3)
                    .unwrap()
                    .set_transport_domain(5)
                    .unwrap();
                let mut key = [0; 40];
                (key[0], key[39]) = (0x2c, 0xb7);
                tirc.set_rx_hash_toeplitz_key(key);
                let mut select = RxHashFieldSelect::zeroed();
                let fields = RxHashField::SRC_IP.bit() | RxHashField::L4_DPORT.bit();
                select
                    .set_l4_prot_type(true)
                    .set_selected_fields(fields)
                    .unwrap();
                tirc.set_rx_hash_field_selector_outer(select);
                i.set_ctx(tirc);
            },
            &[
                (0x0, "0900"),
                (0x20 + 0x4, "10"),
                // The LRO time-out is bits 0x84 to 0x93.
                (0x20 + 0x10, "01 23 43 ff"),
                (0x20 + 0x1d, "0000aa"),
                (0x20 + 0x20, "80 000044"),
                (0x20 + 0x24, "23 000005"),
                (0x20 + 0x28, "2c"),
                (0x20 + 0x4f, "b7"),
                (0x20 + 0x50, "40000009"),
            ],
            |o| {
                o.set_tirn(0x66).unwrap().set_icm_address_31_0(0xabcd);
            },
            &[(0x9, "000066 0000abcd")],
        ),
        case::<ModifyTir>(
            |i| {
                let mut bits = TirBitmask::zeroed();
                bits.set_hash(true).set_self_lb_en(true);
                i.set_tirn(0x66).unwrap().set_bitmask(bits);
            },
            &[(0x0, "0901"), (0x9, "000066"), (0x17, "14")],
            |_| {},
            &[],
        ),
        case::<QueryTir>(
            |i| {
                i.set_tirn(0x66).unwrap();
            },
            &[(0x0, "0903"), (0x9, "000066")],
            |o| {
                let mut tirc = Tirc::zeroed();
                tirc.set_inline_rqn(0xaa).unwrap();
                o.set_tir_context(tirc);
            },
            &[(0x3d, "0000aa")],
        ),
        case::<DestroyTir>(
            |i| {
                i.set_tirn(0x66).unwrap();
            },
            &[(0x0, "0902"), (0x9, "000066")],
            |_| {},
            &[],
        ),
    ]
}

fn indirection() -> Vec<Case> {
    vec![
        case::<CreateRqt>(
            |i| {
                let mut rqtc = Rqtc::zeroed();
                rqtc.set_rqt_max_size(512).set_rqt_actual_size(128);
                i.set_rqt_context(rqtc);
            },
            &[(0x0, "0916"), (0x36, "0200"), (0x3a, "0080")],
            |o| {
                o.set_rqtn(0x44).unwrap();
            },
            &[(0x9, "000044")],
        ),
        case::<ModifyRqt>(
            |i| {
                let mut bits = RqtBitmask::zeroed();
                bits.set_rqn_list(true);
                let mut rqtc = Rqtc::zeroed();
                rqtc.set_rqt_actual_size(2);
                i.set_rqtn(0x44).unwrap().set_bitmask(bits).set_ctx(rqtc);
            },
            &[(0x0, "0917"), (0x9, "000044"), (0x17, "01"), (0x3a, "0002")],
            |_| {},
            &[],
        ),
        case::<QueryRqt>(
            |i| {
                i.set_rqtn(0x44).unwrap();
            },
            &[(0x0, "0919"), (0x9, "000044")],
            |o| {
                let mut rqtc = Rqtc::zeroed();
                rqtc.set_rqt_actual_size(2);
                o.set_rqt_context(rqtc);
            },
            &[(0x3a, "0002")],
        ),
        case::<DestroyRqt>(
            |i| {
                i.set_rqtn(0x44).unwrap();
            },
            &[(0x0, "0918"), (0x9, "000044")],
            |_| {},
            &[],
        ),
    ]
}
