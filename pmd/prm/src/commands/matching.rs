//! What flow groups and flow entries match on.

use crate::layout::layout;

layout! {
    /// Layers 2 to 4 of one header stack.
    pub struct FteMatchLyr24 = "mlx5_ifc_fte_match_set_lyr_2_4_bits", 64 bytes {
        /// Source address in wire order.
        smac set_smac: [u8; 6] @ 0x0 span "smac_47_16" "smac_15_0";
        ethertype set_ethertype: u16 @ 0x30 +16;
        /// Destination address in wire order.
        dmac set_dmac: [u8; 6] @ 0x40 span "dmac_47_16" "dmac_15_0";
        first_prio set_first_prio: u8 @ 0x70 +3;
        first_cfi set_first_cfi: bool @ 0x73;
        first_vid set_first_vid: u16 @ 0x74 +12;
        ip_protocol set_ip_protocol: u8 @ 0x80 +8;
        ip_dscp set_ip_dscp: u8 @ 0x88 +6;
        ip_ecn set_ip_ecn: u8 @ 0x8e +2;
        cvlan_tag set_cvlan_tag: bool @ 0x90;
        svlan_tag set_svlan_tag: bool @ 0x91;
        frag set_frag: bool @ 0x92;
        ip_version set_ip_version: u8 @ 0x93 +4;
        tcp_flags set_tcp_flags: u16 @ 0x97 +9;
        tcp_sport set_tcp_sport: u16 @ 0xa0 +16;
        tcp_dport set_tcp_dport: u16 @ 0xb0 +16;
        l4_type set_l4_type: u8 @ 0xc0 +2;
        ipv4_ihl set_ipv4_ihl: u8 @ 0xd0 +4;
        ttl_hoplimit set_ttl_hoplimit: u8 @ 0xd8 +8;
        udp_sport set_udp_sport: u16 @ 0xe0 +16;
        udp_dport set_udp_dport: u16 @ 0xf0 +16;
        /// IPv6 address, or an IPv4 address in the last four bytes.
        src_ip set_src_ip: [u8; 16] @ 0x100 as "src_ipv4_src_ipv6";
        /// IPv6 address, or an IPv4 address in the last four bytes.
        dst_ip set_dst_ip: [u8; 16] @ 0x180 as "dst_ipv4_dst_ipv6";
    }

    /// Further fields: source, second VLAN tags, tunnels, flow labels.
    pub struct FteMatchMisc = "mlx5_ifc_fte_match_set_misc_bits", 64 bytes {
        gre_c_present set_gre_c_present: bool @ 0x0;
        gre_k_present set_gre_k_present: bool @ 0x2;
        gre_s_present set_gre_s_present: bool @ 0x3;
        source_vhca_port set_source_vhca_port: u8 @ 0x4 +4;
        source_sqn set_source_sqn: u32 @ 0x8 +24;
        source_eswitch_owner_vhca_id set_source_eswitch_owner_vhca_id: u16 @ 0x20 +16;
        source_port set_source_port: u16 @ 0x30 +16;
        outer_second_prio set_outer_second_prio: u8 @ 0x40 +3;
        outer_second_cfi set_outer_second_cfi: bool @ 0x43;
        outer_second_vid set_outer_second_vid: u16 @ 0x44 +12;
        inner_second_prio set_inner_second_prio: u8 @ 0x50 +3;
        inner_second_cfi set_inner_second_cfi: bool @ 0x53;
        inner_second_vid set_inner_second_vid: u16 @ 0x54 +12;
        outer_second_cvlan_tag set_outer_second_cvlan_tag: bool @ 0x60;
        inner_second_cvlan_tag set_inner_second_cvlan_tag: bool @ 0x61;
        outer_second_svlan_tag set_outer_second_svlan_tag: bool @ 0x62;
        inner_second_svlan_tag set_inner_second_svlan_tag: bool @ 0x63;
        gre_protocol set_gre_protocol: u16 @ 0x70 +16;
        gre_key set_gre_key: u32 @ 0x80 +32;
        vxlan_vni set_vxlan_vni: u32 @ 0xa0 +24;
        bth_opcode set_bth_opcode: u8 @ 0xb8 +8;
        geneve_vni set_geneve_vni: u32 @ 0xc0 +24;
        geneve_tlv_option_0_exist set_geneve_tlv_option_0_exist: bool @ 0xde;
        geneve_oam set_geneve_oam: bool @ 0xdf;
        outer_ipv6_flow_label set_outer_ipv6_flow_label: u32 @ 0xec +20;
        inner_ipv6_flow_label set_inner_ipv6_flow_label: u32 @ 0x10c +20;
        geneve_opt_len set_geneve_opt_len: u8 @ 0x12a +6;
        geneve_protocol_type set_geneve_protocol_type: u16 @ 0x130 +16;
        bth_dst_qp set_bth_dst_qp: u32 @ 0x148 +24;
        inner_esp_spi set_inner_esp_spi: u32 @ 0x160 +32;
        outer_esp_spi set_outer_esp_spi: u32 @ 0x180 +32;
    }

    /// All that a flow can match; what comes after the inner headers belongs to tunnels and
    /// registers.
    pub struct FteMatchParam = "mlx5_ifc_fte_match_param_bits", 512 bytes {
        outer_headers set_outer_headers: FteMatchLyr24 @ 0x0;
        misc_parameters set_misc_parameters: FteMatchMisc @ 0x200;
        inner_headers set_inner_headers: FteMatchLyr24 @ 0x400;
    }
}
