//! Flow tables, groups and entries.

use pollux_prm::commands::flow::*;
use pollux_prm::commands::matching::{FteMatchLyr24, FteMatchMisc, FteMatchParam};

use crate::{Case, case};

pub fn cases() -> Vec<Case> {
    [tables(), groups(), entries()]
        .into_iter()
        .flatten()
        .collect()
}

fn tables() -> Vec<Case> {
    vec![
        case::<CreateFlowTable>(
            |i| {
                let mut context = FlowTableContext::zeroed();
                context
                    .set_table_miss_action(MissAction::FWD.0)
                    .unwrap()
                    .set_level(5);
                context
                    .set_log_size(12)
                    .set_table_miss_id(0x0a_0b0c)
                    .unwrap();
                i.set_uid(9)
                    .set_table_type(TableType::NIC_TX.0)
                    .set_flow_table_context(context);
            },
            &[
                (0x0, "0930 0009"),
                (0x10, "01"),
                (0x18, "01 05 00 0c"),
                (0x1d, "0a0b0c"),
            ],
            |o| {
                o.set_table_id(0x12_3456).unwrap();
            },
            &[(0x9, "123456")],
        ),
        case::<ModifyFlowTable>(
            |i| {
                i.set_modify_field_select(TableFields::MISS_TABLE_ID.0);
                i.set_table_type(TableType::NIC_RX.0)
                    .set_table_id(0x12_3456)
                    .unwrap();
            },
            &[(0x0, "093c"), (0xe, "0001"), (0x15, "123456")],
            |_| {},
            &[],
        ),
        case::<QueryFlowTable>(
            |i| {
                i.set_table_type(TableType::FDB.0).set_table_id(1).unwrap();
            },
            &[(0x0, "0932"), (0x10, "04"), (0x15, "000001")],
            |o| {
                let mut context = FlowTableContext::zeroed();
                context.set_level(64).set_sw_owner_icm_root_0(0x1234);
                o.set_flow_table_context(context);
            },
            &[(0x19, "40"), (0x18 + 0x20, "00000000 00001234")],
        ),
        case::<DestroyFlowTable>(
            |i| {
                i.set_table_id(0x12_3456).unwrap();
            },
            &[(0x0, "0931"), (0x15, "123456")],
            |_| {},
            &[],
        ),
        case::<SetFlowTableRoot>(
            |i| {
                i.set_op_mod(1)
                    .set_table_id(0x12_3456)
                    .unwrap()
                    .set_underlay_qpn(2)
                    .unwrap();
            },
            &[
                (0x0, "092f"),
                (0x6, "0001"),
                (0x15, "123456"),
                (0x19, "000002"),
            ],
            |_| {},
            &[],
        ),
    ]
}

/// The fields that a plain Ethernet driver matches, each at its place.
fn headers() -> FteMatchParam {
    let mut outer = FteMatchLyr24::zeroed();
    outer
        .set_smac([0x02, 0, 0, 0, 0, 0x0a])
        .set_dmac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    outer
        .set_ethertype(0x86dd)
        .set_first_prio(5)
        .unwrap()
        .set_first_vid(0x123)
        .unwrap();
    outer
        .set_ip_protocol(17)
        .set_cvlan_tag(true)
        .set_frag(true)
        .set_ip_version(6)
        .unwrap();
    outer
        .set_tcp_flags(0x012)
        .unwrap()
        .set_udp_sport(0x1111)
        .set_udp_dport(0x2222);
    outer
        .set_tcp_sport(0x3333)
        .set_tcp_dport(0x4444)
        .set_ttl_hoplimit(64);
    let mut address = [0; 16];
    (address[0], address[15]) = (0xfe, 0x01);
    outer.set_src_ip(address);
    outer.set_dst_ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
    let mut misc = FteMatchMisc::zeroed();
    misc.set_source_sqn(0x0999).unwrap().set_source_port(0xffff);
    let mut param = FteMatchParam::zeroed();
    param.set_outer_headers(outer).set_misc_parameters(misc);
    param
}

/// `headers` at an offset, worked out from the bit positions.
macro_rules! header_rows {
    ($at:literal $(, $row:expr)* $(,)?) => {
        &[
            $($row,)*
            ($at, "02000000 000a 86dd"),
            ($at + 0x8, "02112233 4455 a123"),
            // Protocol; then cvlan_tag, frag, four bits of version, nine of TCP flags.
            ($at + 0x10, "11 00 ac 12 3333 4444"),
            ($at + 0x1b, "40 1111 2222"),
            ($at + 0x20, "fe"),
            ($at + 0x2f, "01"),
            ($at + 0x3c, "c0000201"),
            ($at + 0x41, "000999"),
            ($at + 0x46, "ffff"),
        ]
    };
}

fn groups() -> Vec<Case> {
    vec![
        case::<CreateFlowGroup>(
            |i| {
                i.set_table_type(TableType::NIC_RX.0)
                    .set_table_id(0x12_3456)
                    .unwrap();
                i.set_start_flow_index(1).set_end_flow_index(0x0fff);
                let enable = MatchCriteria::OUTER_HEADERS.0 | MatchCriteria::MISC_PARAMETERS.0;
                i.set_match_criteria_enable(enable)
                    .set_match_criteria(headers());
            },
            header_rows!(
                0x40,
                (0x0, "0933"),
                (0x15, "123456"),
                (0x1c, "00000001"),
                (0x24, "00000fff"),
                (0x3f, "03"),
            ),
            |o| {
                o.set_group_id(0x07).unwrap();
            },
            &[(0x9, "000007")],
        ),
        case::<QueryFlowGroup>(
            |i| {
                i.set_table_id(0x12_3456).unwrap().set_group_id(7);
            },
            &[(0x0, "0935"), (0x15, "123456 00000007")],
            |o| {
                o.set_start_flow_index(1)
                    .set_end_flow_index(2)
                    .set_match_criteria_enable(1);
                o.set_match_criteria(headers());
            },
            header_rows!(0x40, (0x1c, "00000001"), (0x24, "00000002"), (0x3f, "01")),
        ),
        case::<DestroyFlowGroup>(
            |i| {
                i.set_table_id(0x12_3456).unwrap().set_group_id(7);
            },
            &[(0x0, "0934"), (0x15, "123456 00000007")],
            |_| {},
            &[],
        ),
    ]
}

fn entries() -> Vec<Case> {
    vec![
        case::<SetFlowTableEntry>(
            |i| {
                i.set_op_mod(1)
                    .set_table_id(0x12_3456)
                    .unwrap()
                    .set_flow_index(0x0fff);
                i.set_modify_enable_mask(1 << EntryField::DESTINATION_LIST.0);
                let mut tag = VlanTag::zeroed();
                tag.set_ethtype(0x8100)
                    .set_prio(3)
                    .unwrap()
                    .set_vid(0x456)
                    .unwrap();
                let mut context = FlowContext::zeroed();
                context
                    .set_push_vlan(tag)
                    .set_group_id(7)
                    .set_flow_tag(0x00_beef)
                    .unwrap();
                context.set_action(FlowAction::FWD_DEST.0 | FlowAction::COUNT.0);
                context
                    .set_destination_list_size(2)
                    .unwrap()
                    .set_flow_counter_list_size(1)
                    .unwrap();
                context.set_match_value(headers());
                i.set_flow_context(context);
            },
            header_rows!(
                0x80,
                (0x0, "0936"),
                (0x6, "0001"),
                (0x15, "123456"),
                (0x1b, "04"),
                (0x20, "00000fff"),
                (0x40, "8100 6456 00000007 0000beef"),
                (0x4e, "000c"),
                (0x51, "000002"),
                (0x55, "000001"),
            ),
            |_| {},
            &[],
        ),
        case::<QueryFlowTableEntry>(
            |i| {
                i.set_table_id(0x12_3456).unwrap().set_flow_index(3);
            },
            &[(0x0, "0937"), (0x15, "123456"), (0x20, "00000003")],
            |o| {
                let mut context = FlowContext::zeroed();
                context.set_group_id(7).set_match_value(headers());
                o.set_flow_context(context);
            },
            header_rows!(0x80, (0x44, "00000007")),
        ),
        case::<DeleteFlowTableEntry>(
            |i| {
                i.set_table_id(0x12_3456).unwrap().set_flow_index(3);
            },
            &[(0x0, "0938"), (0x15, "123456"), (0x20, "00000003")],
            |_| {},
            &[],
        ),
    ]
}
