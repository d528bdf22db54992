//! Capability groups of Ethernet offloads and NIC flow tables.

use super::capability::{CapGroup, Capabilities};
use crate::layout::layout;

layout! {
    /// Ethernet offloads (group 1).
    pub struct EthernetOffloadCaps = "mlx5_ifc_per_protocol_networking_offload_caps_bits", 256 bytes {
        /// Checksums are checked and written.
        csum_cap set_csum_cap: bool @ 0x0;
        /// VLAN tags are stripped and inserted.
        vlan_cap set_vlan_cap: bool @ 0x1;
        lro_cap set_lro_cap: bool @ 0x2;
        lro_psh_flag set_lro_psh_flag: bool @ 0x3;
        lro_time_stamp set_lro_time_stamp: bool @ 0x4;
        wqe_vlan_insert set_wqe_vlan_insert: bool @ 0x7;
        /// `self_lb_block` of an interface can be changed.
        self_lb_en_modifiable set_self_lb_en_modifiable: bool @ 0x8;
        self_lb_mc set_self_lb_mc: bool @ 0x9 from "DPDK mlx5_prm.h";
        self_lb_uc set_self_lb_uc: bool @ 0xa from "DPDK mlx5_prm.h";
        /// Most bytes of a large send, as a power of two; 0 if there is none.
        max_lso_cap set_max_lso_cap: u8 @ 0xb +5;
        multi_pkt_send_wqe set_multi_pkt_send_wqe: u8 @ 0x10 +2;
        /// An [`InlineCapability`](crate::wqe::InlineCapability).
        wqe_inline_mode set_wqe_inline_mode: u8 @ 0x12 +2;
        /// Indirection tables exist.
        rss_ind_tbl_cap set_rss_ind_tbl_cap: u8 @ 0x14 +4;
        reg_umr_sq set_reg_umr_sq: bool @ 0x18;
        scatter_fcs set_scatter_fcs: bool @ 0x19;
        enhanced_multi_pkt_send_wqe set_enhanced_multi_pkt_send_wqe: bool @ 0x1a;
        tunnel_lso_const_out_ip_id set_tunnel_lso_const_out_ip_id: bool @ 0x1b;
        tunnel_lro_gre set_tunnel_lro_gre: bool @ 0x1c;
        tunnel_lro_vxlan set_tunnel_lro_vxlan: bool @ 0x1d;
        tunnel_stateless_gre set_tunnel_stateless_gre: bool @ 0x1e;
        tunnel_stateless_vxlan set_tunnel_stateless_vxlan: bool @ 0x1f;
        swp set_swp: bool @ 0x20;
        swp_csum set_swp_csum: bool @ 0x21;
        swp_lso set_swp_lso: bool @ 0x22;
        cqe_checksum_full set_cqe_checksum_full: bool @ 0x23;
        tunnel_stateless_geneve_tx set_tunnel_stateless_geneve_tx: bool @ 0x24;
        tunnel_stateless_mpls_over_udp set_tunnel_stateless_mpls_over_udp: bool @ 0x25;
        tunnel_stateless_mpls_over_gre set_tunnel_stateless_mpls_over_gre: bool @ 0x26;
        tunnel_stateless_vxlan_gpe set_tunnel_stateless_vxlan_gpe: bool @ 0x27;
        tunnel_stateless_ipv4_over_vxlan set_tunnel_stateless_ipv4_over_vxlan: bool @ 0x28;
        tunnel_stateless_ip_over_ip set_tunnel_stateless_ip_over_ip: bool @ 0x29;
        insert_trailer set_insert_trailer: bool @ 0x2a;
        tunnel_stateless_ip_over_ip_rx set_tunnel_stateless_ip_over_ip_rx: bool @ 0x2c;
        tunnel_stateless_ip_over_ip_tx set_tunnel_stateless_ip_over_ip_tx: bool @ 0x2d;
        max_vxlan_udp_ports set_max_vxlan_udp_ports: u8 @ 0x30 +8;
        swp_csum_l4_partial set_swp_csum_l4_partial: bool @ 0x38;
        max_geneve_opt_len set_max_geneve_opt_len: bool @ 0x3e;
        tunnel_stateless_geneve_rx set_tunnel_stateless_geneve_rx: bool @ 0x3f;
        lro_min_mss_size set_lro_min_mss_size: u16 @ 0x50 +16;
        lro_timer_supported_periods set_lro_timer_supported_periods: [u32; 4] @ 0x180;
    }

    /// Fields that a flow table can match.
    pub struct FlowTableFields = "mlx5_ifc_flow_table_fields_supported_bits", 16 bytes {
        outer_dmac set_outer_dmac: bool @ 0x0;
        outer_smac set_outer_smac: bool @ 0x1;
        outer_ether_type set_outer_ether_type: bool @ 0x2;
        outer_ip_version set_outer_ip_version: bool @ 0x3;
        outer_first_prio set_outer_first_prio: bool @ 0x4;
        outer_first_cfi set_outer_first_cfi: bool @ 0x5;
        outer_first_vid set_outer_first_vid: bool @ 0x6;
        outer_ipv4_ttl set_outer_ipv4_ttl: bool @ 0x7;
        outer_second_prio set_outer_second_prio: bool @ 0x8;
        outer_second_cfi set_outer_second_cfi: bool @ 0x9;
        outer_second_vid set_outer_second_vid: bool @ 0xa;
        outer_sip set_outer_sip: bool @ 0xc;
        outer_dip set_outer_dip: bool @ 0xd;
        outer_frag set_outer_frag: bool @ 0xe;
        outer_ip_protocol set_outer_ip_protocol: bool @ 0xf;
        outer_ip_ecn set_outer_ip_ecn: bool @ 0x10;
        outer_ip_dscp set_outer_ip_dscp: bool @ 0x11;
        outer_udp_sport set_outer_udp_sport: bool @ 0x12;
        outer_udp_dport set_outer_udp_dport: bool @ 0x13;
        outer_tcp_sport set_outer_tcp_sport: bool @ 0x14;
        outer_tcp_dport set_outer_tcp_dport: bool @ 0x15;
        outer_tcp_flags set_outer_tcp_flags: bool @ 0x16;
        outer_gre_protocol set_outer_gre_protocol: bool @ 0x17;
        outer_gre_key set_outer_gre_key: bool @ 0x18;
        outer_vxlan_vni set_outer_vxlan_vni: bool @ 0x19;
        outer_geneve_vni set_outer_geneve_vni: bool @ 0x1a;
        outer_geneve_oam set_outer_geneve_oam: bool @ 0x1b;
        outer_geneve_protocol_type set_outer_geneve_protocol_type: bool @ 0x1c;
        outer_geneve_opt_len set_outer_geneve_opt_len: bool @ 0x1d;
        source_vhca_port set_source_vhca_port: bool @ 0x1e;
        source_eswitch_port set_source_eswitch_port: bool @ 0x1f;
        inner_dmac set_inner_dmac: bool @ 0x20;
        inner_smac set_inner_smac: bool @ 0x21;
        inner_ether_type set_inner_ether_type: bool @ 0x22;
        inner_ip_version set_inner_ip_version: bool @ 0x23;
        inner_first_prio set_inner_first_prio: bool @ 0x24;
        inner_first_cfi set_inner_first_cfi: bool @ 0x25;
        inner_first_vid set_inner_first_vid: bool @ 0x26;
        inner_second_prio set_inner_second_prio: bool @ 0x28;
        inner_second_cfi set_inner_second_cfi: bool @ 0x29;
        inner_second_vid set_inner_second_vid: bool @ 0x2a;
        inner_sip set_inner_sip: bool @ 0x2c;
        inner_dip set_inner_dip: bool @ 0x2d;
        inner_frag set_inner_frag: bool @ 0x2e;
        inner_ip_protocol set_inner_ip_protocol: bool @ 0x2f;
        inner_ip_ecn set_inner_ip_ecn: bool @ 0x30;
        inner_ip_dscp set_inner_ip_dscp: bool @ 0x31;
        inner_udp_sport set_inner_udp_sport: bool @ 0x32;
        inner_udp_dport set_inner_udp_dport: bool @ 0x33;
        inner_tcp_sport set_inner_tcp_sport: bool @ 0x34;
        inner_tcp_dport set_inner_tcp_dport: bool @ 0x35;
        inner_tcp_flags set_inner_tcp_flags: bool @ 0x36;
        geneve_tlv_option_0_data set_geneve_tlv_option_0_data: bool @ 0x40;
        geneve_tlv_option_0_exist set_geneve_tlv_option_0_exist: bool @ 0x41;
        outer_first_mpls_over_udp set_outer_first_mpls_over_udp: u8 @ 0x45 +4;
        outer_first_mpls_over_gre set_outer_first_mpls_over_gre: u8 @ 0x49 +4;
        inner_first_mpls set_inner_first_mpls: u8 @ 0x4d +4;
        outer_first_mpls set_outer_first_mpls: u8 @ 0x51 +4;
        outer_esp_spi set_outer_esp_spi: bool @ 0x57;
        bth_dst_qp set_bth_dst_qp: bool @ 0x5a;
        metadata_reg_c_7 set_metadata_reg_c_7: bool @ 0x78;
        metadata_reg_c_6 set_metadata_reg_c_6: bool @ 0x79;
        metadata_reg_c_5 set_metadata_reg_c_5: bool @ 0x7a;
        metadata_reg_c_4 set_metadata_reg_c_4: bool @ 0x7b;
        metadata_reg_c_3 set_metadata_reg_c_3: bool @ 0x7c;
        metadata_reg_c_2 set_metadata_reg_c_2: bool @ 0x7d;
        metadata_reg_c_1 set_metadata_reg_c_1: bool @ 0x7e;
        metadata_reg_c_0 set_metadata_reg_c_0: bool @ 0x7f;
    }

    /// Properties of one kind of flow table.
    pub struct FlowTableProps = "mlx5_ifc_flow_table_prop_layout_bits", 64 bytes {
        ft_support set_ft_support: bool @ 0x0;
        flow_tag set_flow_tag: bool @ 0x1 from "rdma-core mlx5_ifc.h";
        flow_counter set_flow_counter: bool @ 0x2;
        flow_modify_en set_flow_modify_en: bool @ 0x3;
        modify_root set_modify_root: bool @ 0x4;
        identified_miss_table_mode set_identified_miss_table_mode: bool @ 0x5;
        flow_table_modify set_flow_table_modify: bool @ 0x6;
        reformat set_reformat: bool @ 0x7;
        decap set_decap: bool @ 0x8;
        reset_root_to_default set_reset_root_to_default: bool @ 0x9;
        pop_vlan set_pop_vlan: bool @ 0xa;
        push_vlan set_push_vlan: bool @ 0xb;
        pop_vlan_2 set_pop_vlan_2: bool @ 0xd;
        push_vlan_2 set_push_vlan_2: bool @ 0xe;
        reformat_and_vlan_action set_reformat_and_vlan_action: bool @ 0xf;
        sw_owner set_sw_owner: bool @ 0x11;
        reformat_l3_tunnel_to_l2 set_reformat_l3_tunnel_to_l2: bool @ 0x12;
        reformat_l2_to_l3_tunnel set_reformat_l2_to_l3_tunnel: bool @ 0x13;
        reformat_and_modify_action set_reformat_and_modify_action: bool @ 0x14;
        ignore_flow_level set_ignore_flow_level: bool @ 0x15;
        table_miss_action_domain set_table_miss_action_domain: bool @ 0x17;
        termination_table set_termination_table: bool @ 0x18;
        reformat_and_fwd_to_table set_reformat_and_fwd_to_table: bool @ 0x19;
        ipsec_encrypt set_ipsec_encrypt: bool @ 0x1c;
        ipsec_decrypt set_ipsec_decrypt: bool @ 0x1d;
        sw_owner_v2 set_sw_owner_v2: bool @ 0x1e;
        termination_table_raw_traffic set_termination_table_raw_traffic: bool @ 0x20;
        log_max_ft_size set_log_max_ft_size: u8 @ 0x22 +6;
        log_max_modify_header_context set_log_max_modify_header_context: u8 @ 0x28 +8;
        max_modify_header_actions set_max_modify_header_actions: u8 @ 0x30 +8;
        max_ft_level set_max_ft_level: u8 @ 0x38 +8;
        reformat_add_esp_trasport set_reformat_add_esp_trasport: bool @ 0x40;
        reformat_l2_to_l3_esp_tunnel set_reformat_l2_to_l3_esp_tunnel: bool @ 0x41;
        reformat_add_esp_transport_over_udp set_reformat_add_esp_transport_over_udp: bool @ 0x42;
        reformat_del_esp_trasport set_reformat_del_esp_trasport: bool @ 0x43;
        reformat_l3_esp_tunnel_to_l2 set_reformat_l3_esp_tunnel_to_l2: bool @ 0x44;
        reformat_del_esp_transport_over_udp set_reformat_del_esp_transport_over_udp: bool @ 0x45;
        execute_aso set_execute_aso: bool @ 0x46;
        reformat_insert set_reformat_insert: bool @ 0x62;
        reformat_remove set_reformat_remove: bool @ 0x63;
        macsec_encrypt set_macsec_encrypt: bool @ 0x64;
        macsec_decrypt set_macsec_decrypt: bool @ 0x65;
        reformat_add_macsec set_reformat_add_macsec: bool @ 0x68;
        reformat_remove_macsec set_reformat_remove_macsec: bool @ 0x69;
        reparse set_reparse: bool @ 0x6a;
        cross_vhca_object set_cross_vhca_object: bool @ 0x6c;
        reformat_l2_to_l3_audp_tunnel set_reformat_l2_to_l3_audp_tunnel: bool @ 0x6d;
        reformat_l3_audp_tunnel_to_l2 set_reformat_l3_audp_tunnel_to_l2: bool @ 0x6e;
        ignore_flow_level_rtc_valid set_ignore_flow_level_rtc_valid: bool @ 0x6f;
        log_max_ft_num set_log_max_ft_num: u8 @ 0x78 +8;
        log_max_flow_counter set_log_max_flow_counter: u8 @ 0x90 +8;
        log_max_destination set_log_max_destination: u8 @ 0x98 +8;
        log_max_flow set_log_max_flow: u8 @ 0xb8 +8;
        ft_field_support set_ft_field_support: FlowTableFields @ 0x100;
        ft_field_bitmask_support set_ft_field_bitmask_support: FlowTableFields @ 0x180;
    }

    /// NIC flow tables (group 7).
    pub struct FlowTableNicCap = "mlx5_ifc_flow_table_nic_cap_bits", 4096 bytes {
        nic_rx_multi_path_tirs set_nic_rx_multi_path_tirs: bool @ 0x0;
        nic_rx_multi_path_tirs_fts set_nic_rx_multi_path_tirs_fts: bool @ 0x1;
        allow_sniffer_and_nic_rx_shared_tir set_allow_sniffer_and_nic_rx_shared_tir: bool @ 0x2;
        sw_owner_reformat_supported set_sw_owner_reformat_supported: bool @ 0x7;
        encap_general_header set_encap_general_header: bool @ 0x20;
        log_max_packet_reformat_context set_log_max_packet_reformat_context: u8 @ 0x2b +5;
        max_encap_header_size set_max_encap_header_size: u16 @ 0x36 +10;
        flow_table_properties_nic_receive
            set_flow_table_properties_nic_receive: FlowTableProps @ 0x200;
        flow_table_properties_nic_receive_rdma
            set_flow_table_properties_nic_receive_rdma: FlowTableProps @ 0x400;
        flow_table_properties_nic_receive_sniffer
            set_flow_table_properties_nic_receive_sniffer: FlowTableProps @ 0x600;
        flow_table_properties_nic_transmit
            set_flow_table_properties_nic_transmit: FlowTableProps @ 0x800;
        flow_table_properties_nic_transmit_rdma
            set_flow_table_properties_nic_transmit_rdma: FlowTableProps @ 0xa00;
        flow_table_properties_nic_transmit_sniffer
            set_flow_table_properties_nic_transmit_sniffer: FlowTableProps @ 0xc00;
        sw_steering_nic_rx_action_drop_icm_address
            set_sw_steering_nic_rx_action_drop_icm_address: u64 @ 0x2000 +64;
        sw_steering_nic_tx_action_drop_icm_address
            set_sw_steering_nic_tx_action_drop_icm_address: u64 @ 0x2040 +64;
        sw_steering_nic_tx_action_allow_icm_address
            set_sw_steering_nic_tx_action_allow_icm_address: u64 @ 0x2080 +64;
    }
}

impl Capabilities for EthernetOffloadCaps {
    const GROUP: CapGroup = CapGroup::ETHERNET_OFFLOADS;
}

impl Capabilities for FlowTableNicCap {
    const GROUP: CapGroup = CapGroup::FLOW_TABLE;
}
