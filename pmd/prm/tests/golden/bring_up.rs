//! Bring-up: function, pages, UARs, event queues, protection.

use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::eq::*;
use pollux_prm::commands::hca::*;
use pollux_prm::commands::pages::*;
use pollux_prm::commands::protection::*;
use pollux_prm::event::{Eqe, EventType};

use crate::{Case, case};

pub fn cases() -> Vec<Case> {
    [
        function(),
        capabilities(),
        pages(),
        event_queues(),
        protection(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn function() -> Vec<Case> {
    vec![
        case::<EnableHca>(
            |i| {
                i.set_embedded_cpu_function(true).set_function_id(0x0102);
            },
            &[(0x0, "0104"), (0x8, "8000 0102")],
            |o| {
                o.set_status(4).set_syndrome(0xa1b2_c3d4);
            },
            &[(0x0, "04"), (0x4, "a1b2c3d4")],
        ),
        case::<DisableHca>(
            |i| {
                i.set_function_id(1);
            },
            &[(0x0, "0105"), (0xa, "0001")],
            |o| {
                o.set_status(5);
            },
            &[(0x0, "05")],
        ),
        case::<QueryIssi>(
            |_| {},
            &[(0x0, "010a")],
            |o| {
                o.set_current_issi(1).set_supported_issi_dw0(2);
            },
            &[(0xa, "0001"), (0x6c, "00000002")],
        ),
        case::<SetIssi>(
            |i| {
                i.set_current_issi(1);
            },
            &[(0x0, "010b"), (0xa, "0001")],
            |_| {},
            &[],
        ),
        case::<InitHca>(
            |i| {
                i.set_sw_owner_id([0x11; 16]);
            },
            &[(0x0, "0102"), (0x10, "11111111 11111111 11111111 11111111")],
            |_| {},
            &[],
        ),
        case::<TeardownHca>(
            |i| {
                i.set_profile(TeardownProfile::FORCE_CLOSE.0);
            },
            &[(0x0, "0103"), (0xa, "0001")],
            |o| {
                o.set_state(true);
            },
            &[(0xf, "01")],
        ),
        case::<QueryAdapter>(
            |_| {},
            &[(0x0, "0101")],
            |o| {
                let mut block = AdapterBlock::zeroed();
                block
                    .set_ieee_vendor_id(0x0002_c903)
                    .unwrap()
                    .set_vsd_vendor_id(0x15b3);
                block.set_vsd_contd_psid(*b"MT_2420110034\0\0\0");
                o.set_query_adapter_struct(block);
            },
            &[
                (0x10 + 0x18, "0002c903"),
                (0x10 + 0x1e, "15b3"),
                (0x10 + 0xf0, "4d545f32 34323031 31303033 34"),
            ],
        ),
        case::<SetDriverVersion>(
            |i| {
                let mut version = [0; 64];
                version[..9].copy_from_slice(b"Linux,a,1");
                i.set_driver_version(version);
            },
            &[(0x0, "010d"), (0x10, "4c696e75 782c612c 31")],
            |_| {},
            &[],
        ),
        case::<Nop>(|_| {}, &[(0x0, "080d")], |_| {}, &[]),
    ]
}

fn capabilities() -> Vec<Case> {
    vec![
        case::<QueryHcaCap>(
            |i| {
                i.set_op_mod(CapGroup::ETHERNET_OFFLOADS.current());
            },
            &[(0x0, "0100"), (0x6, "0003")],
            |o| {
                let mut cap = CmdHcaCap::zeroed();
                cap.set_log_max_cq_sz(22).set_log_max_cq(24).unwrap();
                cap.set_port_type(1)
                    .unwrap()
                    .set_num_ports(1)
                    .set_cmdif_checksum(3)
                    .unwrap();
                cap.set_device_frequency_khz(78_125).set_max_wqe_sz_sq(1024);
                cap.set_eth_net_offloads(true).set_nic_flow_table(true);
                o.set_group(&cap);
            },
            &[
                (0x10 + 0x19, "16"),
                (0x10 + 0x1b, "18"),
                // nic_flow_table is bit 0x1a6, port_type bits 0x1b6 and 0x1b7.
                (0x10 + 0x34, "02"),
                (0x10 + 0x36, "01 01"),
                // cmdif_checksum, then eth_net_offloads.
                (0x10 + 0x42, "c0 08"),
                (0x10 + 0x52, "0400"),
                (0x10 + 0x9c, "0001312d"),
            ],
        ),
        case::<SetHcaCap>(
            |i| {
                i.set_op_mod(CapGroup::GENERAL.set());
                let mut cap = CmdHcaCap::zeroed();
                cap.set_log_uar_page_sz(0).set_cache_line_128byte(true);
                i.set_group(&cap);
            },
            &[(0x0, "0109"), (0x10 + 0x2c, "08")],
            |_| {},
            &[],
        ),
    ]
}

fn pages() -> Vec<Case> {
    vec![
        case::<QueryPages>(
            |i| {
                i.set_op_mod(PagesKind::BOOT.0).set_function_id(3);
            },
            &[(0x0, "0107"), (0x6, "0001"), (0xa, "0003")],
            |o| {
                o.set_function_id(3).set_num_pages(0xffff_fffe);
            },
            &[(0xa, "0003"), (0xc, "fffffffe")],
        ),
        case::<ManagePages>(
            |i| {
                i.set_op_mod(PagesAction::TAKE.0)
                    .set_embedded_cpu_function(true);
                i.set_function_id(0xabcd).set_input_num_entries(50_000);
            },
            &[(0x0, "0108"), (0x6, "0002"), (0x8, "8000 abcd 0000c350")],
            |o| {
                o.set_output_num_entries(768);
            },
            &[(0x8, "00000300")],
        ),
    ]
}

fn event_queues() -> Vec<Case> {
    vec![
        case::<AllocUar>(
            |i| {
                i.set_uid(7);
            },
            &[(0x0, "0802 0007")],
            |o| {
                o.set_uar(0x0a_bcde).unwrap();
            },
            &[(0x9, "0abcde")],
        ),
        case::<DeallocUar>(
            |i| {
                i.set_uar(0x10).unwrap();
            },
            &[(0x0, "0803"), (0x9, "000010")],
            |_| {},
            &[],
        ),
        case::<CreateEq>(
            |i| {
                let mut eqc = Eqc::zeroed();
                eqc.set_log_eq_size(8)
                    .unwrap()
                    .set_uar_page(0x0123)
                    .unwrap();
                eqc.set_intr(0x0005).unwrap().set_log_page_size(2).unwrap();
                i.set_eq_context_entry(eqc);
                i.set_event_bitmask(EventType::CMD.mask());
            },
            &[
                (0x0, "0301"),
                // Log of the size and UAR share a word; then the vector, then the page size.
                (0x10 + 0xc, "08000123"),
                (0x10 + 0x16, "0005"),
                (0x10 + 0x18, "02"),
                // CMD is event 10: bit 10 of the first 64-bit word.
                (0x58, "00000000 00000400"),
            ],
            |o| {
                o.set_eq_number(0x1f);
            },
            &[(0xb, "1f")],
        ),
        case::<QueryEq>(
            |i| {
                i.set_eq_number(4);
            },
            &[(0x0, "0303"), (0xb, "04")],
            |o| {
                let mut eqc = Eqc::zeroed();
                eqc.set_status(0xa)
                    .unwrap()
                    .set_oi(true)
                    .set_st(EqState::ARMED.0)
                    .unwrap();
                eqc.set_consumer_counter(0x11_2233).unwrap();
                eqc.set_producer_counter(0x44_5566).unwrap();
                o.set_eq_context_entry(eqc);
            },
            // status and oi, then st in the low half of the third byte.
            &[
                (0x10, "a002 09"),
                (0x10 + 0x29, "112233"),
                (0x10 + 0x2d, "445566"),
            ],
        ),
        case::<DestroyEq>(
            |i| {
                i.set_eq_number(4);
            },
            &[(0x0, "0302"), (0xb, "04")],
            |_| {},
            &[],
        ),
        case::<GenEqe>(
            |i| {
                let mut eqe = Eqe::zeroed();
                eqe.set_event_type(EventType::PORT_CHANGE.0)
                    .set_event_sub_type(4)
                    .set_owner(true);
                i.set_eq_number(2).set_eqe(*eqe.bytes());
            },
            &[
                (0x0, "0304"),
                (0xb, "02"),
                (0x10, "0009 0004"),
                (0x4f, "01"),
            ],
            |_| {},
            &[],
        ),
    ]
}

fn protection() -> Vec<Case> {
    vec![
        case::<AllocPd>(
            |i| {
                i.set_uid(0x1234);
            },
            &[(0x0, "0800 1234")],
            |o| {
                o.set_pd(0x1d).unwrap();
            },
            &[(0x9, "00001d")],
        ),
        case::<DeallocPd>(
            |i| {
                i.set_pd(0x1d).unwrap();
            },
            &[(0x0, "0801"), (0x9, "00001d")],
            |_| {},
            &[],
        ),
        case::<CreateMkey>(
            |i| {
                let mut mkc = Mkc::zeroed();
                mkc.set_access_mode(AccessMode::PA)
                    .unwrap()
                    .set_lw(true)
                    .set_lr(true);
                mkc.set_qpn(0xff_ffff).unwrap().set_mkey_7_0(0x42);
                mkc.set_length64(true).set_pd(0x1d).unwrap();
                i.set_memory_key_mkey_entry(mkc);
            },
            &[
                (0x0, "0200"),
                // lw and lr are bits 0x14 and 0x15.
                (0x10 + 0x2, "0c"),
                (0x10 + 0x4, "ffffff 42"),
                (0x10 + 0xc, "80 00001d"),
            ],
            |o| {
                o.set_mkey_index(0x00_0107).unwrap();
            },
            &[(0x9, "000107")],
        ),
        case::<QueryMkey>(
            |i| {
                i.set_mkey_index(0x0107).unwrap();
            },
            &[(0x0, "0201"), (0x9, "000107")],
            |o| {
                let mut mkc = Mkc::zeroed();
                mkc.set_free(true)
                    .set_access_mode(AccessMode::MTT)
                    .unwrap()
                    .set_umr_en(true);
                mkc.set_start_addr(0x1122_3344_5566_7788).set_length(0x1000);
                mkc.set_translations_octword_size(1)
                    .set_log_page_size(12)
                    .unwrap();
                o.set_memory_key_mkey_entry(mkc);
            },
            &[
                // free is bit 1; umr_en bit 0x10 and access mode MTT bits 0x16 and 0x17.
                (0x10, "40 00 81"),
                (0x10 + 0x10, "11223344 55667788 00000000 00001000"),
                (0x10 + 0x34, "00000001"),
                (0x10 + 0x3b, "0c"),
            ],
        ),
        case::<DestroyMkey>(
            |i| {
                i.set_mkey_index(0x0107).unwrap();
            },
            &[(0x0, "0202"), (0x9, "000107")],
            |_| {},
            &[],
        ),
        case::<QuerySpecialContexts>(
            |_| {},
            &[(0x0, "0203")],
            |o| {
                o.set_dump_fill_mkey(1).set_resd_lkey(2).set_null_mkey(3);
                o.set_terminate_scatter_list_mkey(0x100)
                    .set_repeated_mkey(4);
            },
            &[(0x8, "00000001 00000002 00000003 00000100 00000004")],
        ),
        case::<AllocTransportDomain>(
            |_| {},
            &[(0x0, "0816")],
            |o| {
                o.set_transport_domain(0x5).unwrap();
            },
            &[(0x9, "000005")],
        ),
        case::<DeallocTransportDomain>(
            |i| {
                i.set_transport_domain(0x5).unwrap();
            },
            &[(0x0, "0817"), (0x9, "000005")],
            |_| {},
            &[],
        ),
    ]
}
