//! Virtual ports, counters, registers.

use pollux_prm::commands::counters::*;
use pollux_prm::commands::register::*;
use pollux_prm::commands::vport::*;

use crate::{Case, case};

pub fn cases() -> Vec<Case> {
    let mut all = vports();
    all.extend(counters());
    all.push(case::<AccessReg>(
        |i| {
            i.set_op_mod(RegisterAccess::READ.0)
                .set_register_id(RegisterId::PTYS.0);
            i.set_argument(0x0102_0304);
        },
        &[(0x0, "0805"), (0x6, "0001"), (0xa, "5004 01020304")],
        |o| {
            o.set_status(3).set_syndrome(0x0a0b_0c0d);
        },
        &[(0x0, "03"), (0x4, "0a0b0c0d")],
    ));
    all
}

fn vports() -> Vec<Case> {
    vec![
        case::<QueryVportState>(
            |i| {
                i.set_op_mod(VportStateKind::UPLINK.0)
                    .set_other_vport(true)
                    .set_vport_number(1);
            },
            &[(0x0, "0750"), (0x6, "0002"), (0x8, "8000 0001")],
            |o| {
                o.set_admin_state(VportAdminState::AUTO.0).unwrap();
                o.set_state(VportState::UP.0).unwrap();
            },
            &[(0xf, "21")],
        ),
        case::<ModifyVportState>(
            |i| {
                i.set_admin_state(VportAdminState::UP.0).unwrap();
            },
            &[(0x0, "0751"), (0xf, "10")],
            |_| {},
            &[],
        ),
        case::<QueryNicVportContext>(
            |i| {
                i.set_allowed_list_type(VportList::VLAN.0).unwrap();
            },
            &[(0x0, "0754"), (0xc, "02")],
            |o| {
                let mut address = MacAddress::zeroed();
                address.set_mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
                let mut context = NicVportContext::zeroed();
                context.set_min_wqe_inline_mode(1).unwrap().set_mtu(1522);
                context
                    .set_promisc_mc(true)
                    .set_allowed_list_type(1)
                    .unwrap();
                context
                    .set_allowed_list_size(2)
                    .unwrap()
                    .set_permanent_address(address);
                o.set_nic_vport_context(context);
            },
            &[
                (0x10, "01"),
                (0x10 + 0x26, "05f2"),
                // promisc_mc is bit 0x781, the list type bits 0x785 to 0x787.
                (0x10 + 0xf0, "41"),
                (0x10 + 0xf2, "0002"),
                // Two bytes are reserved before an address.
                (0x10 + 0xf4 + 2, "021122334455"),
            ],
        ),
        case::<ModifyNicVportContext>(
            |i| {
                let mut select = NicVportFieldSelect::zeroed();
                select
                    .set_promisc(true)
                    .set_addresses_list(true)
                    .set_mtu(true);
                let mut context = NicVportContext::zeroed();
                context.set_promisc_all(true).set_mtu(9022);
                i.set_field_select(select).set_nic_vport_context(context);
            },
            &[
                (0x0, "0755"),
                // Bits 0x19, 0x1b and 0x1d of the selector.
                (0xf, "54"),
                (0x100 + 0x26, "233e"),
                (0x100 + 0xf0, "20"),
            ],
            |_| {},
            &[],
        ),
        case::<QueryVportCounter>(
            |i| {
                i.set_port_num(1).unwrap().set_clear(true);
            },
            &[(0x0, "0770"), (0x9, "01"), (0x18, "80")],
            |o| {
                let mut counter = TrafficCounter::zeroed();
                counter
                    .set_packets(0x0102)
                    .set_octets(0x0304_0506_0708_090a);
                o.set_received_eth_unicast(counter)
                    .set_transmitted_eth_multicast(counter);
            },
            &[
                (0x90, "00000000 00000102 03040506 0708090a"),
                (0xc0, "00000000 00000102 03040506 0708090a"),
            ],
        ),
        case::<QueryVnicEnv>(
            |i| {
                i.set_vport_number(2);
            },
            &[(0x0, "076f"), (0xa, "0002")],
            |o| {
                let mut env = VnicDiagnostics::zeroed();
                env.set_nic_receive_steering_discard(0x11)
                    .set_cq_overrun(0x22);
                o.set_vport_env(env);
            },
            &[(0x10 + 0x17, "11"), (0x10 + 0x43, "22")],
        ),
    ]
}

fn counters() -> Vec<Case> {
    vec![
        case::<AllocQCounter>(
            |_| {},
            &[(0x0, "0771")],
            |o| {
                o.set_counter_set_id(7);
            },
            &[(0xb, "07")],
        ),
        case::<QueryQCounter>(
            |i| {
                i.set_clear(true).set_counter_set_id(7);
            },
            &[(0x0, "0773"), (0x18, "80"), (0x1f, "07")],
            |o| {
                o.set_out_of_buffer(0xffff_fffe).set_rx_write_requests(1);
            },
            &[(0x10, "00000001"), (0x30, "fffffffe")],
        ),
        case::<DeallocQCounter>(
            |i| {
                i.set_counter_set_id(7);
            },
            &[(0x0, "0772"), (0xb, "07")],
            |_| {},
            &[],
        ),
        case::<AllocFlowCounter>(
            |i| {
                i.set_flow_counter_bulk_log_size(2)
                    .unwrap()
                    .set_flow_counter_bulk(1);
            },
            &[(0x0, "0939"), (0xe, "02 01")],
            |o| {
                o.set_flow_counter_id(0x0102_0304);
            },
            &[(0x8, "01020304")],
        ),
        case::<QueryFlowCounter>(
            |i| {
                i.set_clear(true)
                    .set_num_of_counters(4)
                    .set_flow_counter_id(0x1000);
            },
            &[(0x0, "093b"), (0x18, "8000 0004 00001000")],
            |_| {},
            &[],
        ),
        case::<DeallocFlowCounter>(
            |i| {
                i.set_flow_counter_id(0x1000);
            },
            &[(0x0, "093a"), (0x8, "00001000")],
            |_| {},
            &[],
        ),
    ]
}
