//! Capability groups of the function.

use crate::layout::{Layout, layout};
use crate::open_enum::open_enum;

layout! {
    /// General device capabilities (group 0).
    pub struct CmdHcaCap = "mlx5_ifc_cmd_hca_cap_bits", 256 bytes {
        page_request_disable set_page_request_disable: bool @ 0x6;
        shared_object_to_user_object_allowed set_shared_object_to_user_object_allowed: bool @ 0x10;
        vhca_resource_manager set_vhca_resource_manager: bool @ 0x1f;
        hca_cap_2 set_hca_cap_2: bool @ 0x20;
        create_lag_when_not_master_up set_create_lag_when_not_master_up: bool @ 0x21;
        dtor set_dtor: bool @ 0x22;
        event_on_vhca_state_teardown_request set_event_on_vhca_state_teardown_request: bool @ 0x23;
        event_on_vhca_state_in_use set_event_on_vhca_state_in_use: bool @ 0x24;
        event_on_vhca_state_active set_event_on_vhca_state_active: bool @ 0x25;
        event_on_vhca_state_allocated set_event_on_vhca_state_allocated: bool @ 0x26;
        event_on_vhca_state_invalid set_event_on_vhca_state_invalid: bool @ 0x27;
        vhca_id set_vhca_id: u16 @ 0x30 +16;
        log_max_srq_sz set_log_max_srq_sz: u8 @ 0x80 +8;
        log_max_qp_sz set_log_max_qp_sz: u8 @ 0x88 +8;
        event_cap set_event_cap: bool @ 0x90;
        isolate_vl_tc_new set_isolate_vl_tc_new: bool @ 0x93;
        prio_tag_required set_prio_tag_required: bool @ 0x98;
        log_max_qp set_log_max_qp: u8 @ 0x9b +5;
        ece_support set_ece_support: bool @ 0xa3;
        reg_c_preserve set_reg_c_preserve: bool @ 0xa9;
        log_max_srq set_log_max_srq: u8 @ 0xab +5;
        uplink_follow set_uplink_follow: bool @ 0xb1;
        ts_cqe_to_dest_cqn set_ts_cqe_to_dest_cqn: bool @ 0xb2;
        go_back_n set_go_back_n: bool @ 0xb9;
        max_sgl_for_optimized_performance set_max_sgl_for_optimized_performance: u8 @ 0xc0 +8;
        log_max_cq_sz set_log_max_cq_sz: u8 @ 0xc8 +8;
        relaxed_ordering_write_umr set_relaxed_ordering_write_umr: bool @ 0xd0;
        relaxed_ordering_read_umr set_relaxed_ordering_read_umr: bool @ 0xd1;
        virtio_net_device_emualtion_manager set_virtio_net_device_emualtion_manager: bool @ 0xd9;
        virtio_blk_device_emualtion_manager set_virtio_blk_device_emualtion_manager: bool @ 0xda;
        /// All `log_max_*` are powers of two.
        log_max_cq set_log_max_cq: u8 @ 0xdb +5;
        log_max_eq_sz set_log_max_eq_sz: u8 @ 0xe0 +8;
        relaxed_ordering_write set_relaxed_ordering_write: bool @ 0xe8;
        relaxed_ordering_read_pci_enabled set_relaxed_ordering_read_pci_enabled: bool @ 0xe9;
        log_max_mkey set_log_max_mkey: u8 @ 0xea +6;
        terminate_scatter_list_mkey set_terminate_scatter_list_mkey: bool @ 0xf6;
        repeated_mkey set_repeated_mkey: bool @ 0xf7;
        dump_fill_mkey set_dump_fill_mkey: bool @ 0xf8;
        fast_teardown set_fast_teardown: bool @ 0xfb;
        log_max_eq set_log_max_eq: u8 @ 0xfc +4;
        max_indirection set_max_indirection: u8 @ 0x100 +8;
        fixed_buffer_size set_fixed_buffer_size: bool @ 0x108;
        log_max_mrw_sz set_log_max_mrw_sz: u8 @ 0x109 +7;
        force_teardown set_force_teardown: bool @ 0x110;
        log_max_bsf_list_size set_log_max_bsf_list_size: u8 @ 0x112 +6;
        umr_extended_translation_offset set_umr_extended_translation_offset: bool @ 0x118;
        null_mkey set_null_mkey: bool @ 0x119;
        log_max_klm_list_size set_log_max_klm_list_size: u8 @ 0x11a +6;
        qpc_extension set_qpc_extension: bool @ 0x122;
        log_max_ra_req_dc set_log_max_ra_req_dc: u8 @ 0x12a +6;
        eth_wqe_too_small set_eth_wqe_too_small: bool @ 0x132;
        vnic_env_cq_overrun set_vnic_env_cq_overrun: bool @ 0x139;
        log_max_ra_res_dc set_log_max_ra_res_dc: u8 @ 0x13a +6;
        /// The firmware may announce that it dropped all pages of a function.
        release_all_pages set_release_all_pages: bool @ 0x145;
        must_not_use set_must_not_use: bool @ 0x146;
        roce_accl set_roce_accl: bool @ 0x149;
        log_max_ra_req_qp set_log_max_ra_req_qp: u8 @ 0x14a +6;
        log_max_ra_res_qp set_log_max_ra_res_qp: u8 @ 0x15a +6;
        end_pad set_end_pad: bool @ 0x160;
        cc_query_allowed set_cc_query_allowed: bool @ 0x161;
        cc_modify_allowed set_cc_modify_allowed: bool @ 0x162;
        start_pad set_start_pad: bool @ 0x163;
        cache_line_128byte set_cache_line_128byte: bool @ 0x164;
        rts2rts_qp_counters_set_id set_rts2rts_qp_counters_set_id: bool @ 0x169;
        vnic_env_int_rq_oob set_vnic_env_int_rq_oob: bool @ 0x16c;
        sbcam_reg set_sbcam_reg: bool @ 0x16d;
        qcam_reg set_qcam_reg: bool @ 0x16f;
        gid_table_size set_gid_table_size: u16 @ 0x170 +16;
        out_of_seq_cnt set_out_of_seq_cnt: bool @ 0x180;
        vport_counters set_vport_counters: bool @ 0x181;
        retransmission_q_counters set_retransmission_q_counters: bool @ 0x182;
        debug set_debug: bool @ 0x183;
        modify_rq_counter_set_id set_modify_rq_counter_set_id: bool @ 0x184;
        rq_delay_drop set_rq_delay_drop: bool @ 0x185;
        max_qp_cnt set_max_qp_cnt: u16 @ 0x186 +10;
        pkey_table_size set_pkey_table_size: u16 @ 0x190 +16;
        vport_group_manager set_vport_group_manager: bool @ 0x1a0;
        vhca_group_manager set_vhca_group_manager: bool @ 0x1a1;
        ib_virt set_ib_virt: bool @ 0x1a2;
        eth_virt set_eth_virt: bool @ 0x1a3;
        vnic_env_queue_counters set_vnic_env_queue_counters: bool @ 0x1a4;
        ets set_ets: bool @ 0x1a5;
        nic_flow_table set_nic_flow_table: bool @ 0x1a6;
        eswitch_manager set_eswitch_manager: bool @ 0x1a7;
        device_memory set_device_memory: bool @ 0x1a8;
        mcam_reg set_mcam_reg: bool @ 0x1a9;
        pcam_reg set_pcam_reg: bool @ 0x1aa;
        local_ca_ack_delay set_local_ca_ack_delay: u8 @ 0x1ab +5;
        port_module_event set_port_module_event: bool @ 0x1b0;
        enhanced_error_q_counters set_enhanced_error_q_counters: bool @ 0x1b1;
        ports_check set_ports_check: bool @ 0x1b2;
        disable_link_up set_disable_link_up: bool @ 0x1b4;
        beacon_led set_beacon_led: bool @ 0x1b5;
        /// A [`PortType`].
        port_type set_port_type: u8 @ 0x1b6 +2;
        /// Ports of this function.
        num_ports set_num_ports: u8 @ 0x1b8 +8;
        pps set_pps: bool @ 0x1c1;
        pps_modify set_pps_modify: bool @ 0x1c2;
        log_max_msg set_log_max_msg: u8 @ 0x1c3 +5;
        max_tc set_max_tc: u8 @ 0x1cc +4;
        temp_warn_event set_temp_warn_event: bool @ 0x1d0;
        dcbx set_dcbx: bool @ 0x1d1;
        general_notification_event set_general_notification_event: bool @ 0x1d2;
        fpga set_fpga: bool @ 0x1d5;
        rol_s set_rol_s: bool @ 0x1d6;
        rol_g set_rol_g: bool @ 0x1d7;
        wol_s set_wol_s: bool @ 0x1d9;
        wol_g set_wol_g: bool @ 0x1da;
        wol_a set_wol_a: bool @ 0x1db;
        wol_b set_wol_b: bool @ 0x1dc;
        wol_m set_wol_m: bool @ 0x1dd;
        wol_u set_wol_u: bool @ 0x1de;
        wol_p set_wol_p: bool @ 0x1df;
        stat_rate_support set_stat_rate_support: u16 @ 0x1e0 +16;
        pci_sync_for_fw_update_event set_pci_sync_for_fw_update_event: bool @ 0x1f1;
        init2_lag_tx_port_affinity set_init2_lag_tx_port_affinity: bool @ 0x1f8;
        wqe_based_flow_table_update_cap set_wqe_based_flow_table_update_cap: bool @ 0x1fb;
        /// 1: completions carry `user_index`.
        cqe_version set_cqe_version: u8 @ 0x1fc +4;
        compact_address_vector set_compact_address_vector: bool @ 0x200;
        striding_rq set_striding_rq: bool @ 0x201;
        ipoib_enhanced_offloads set_ipoib_enhanced_offloads: bool @ 0x203;
        ipoib_basic_offloads set_ipoib_basic_offloads: bool @ 0x204;
        repeated_block_disabled set_repeated_block_disabled: bool @ 0x206;
        umr_modify_entity_size_disabled set_umr_modify_entity_size_disabled: bool @ 0x207;
        umr_modify_atomic_disabled set_umr_modify_atomic_disabled: bool @ 0x208;
        umr_indirect_mkey_disabled set_umr_indirect_mkey_disabled: bool @ 0x209;
        umr_fence set_umr_fence: u8 @ 0x20a +2;
        dc_req_scat_data_cqe set_dc_req_scat_data_cqe: bool @ 0x20c;
        dc_connect_qp set_dc_connect_qp: bool @ 0x20d from "rdma-core mlx5_ifc.h";
        dc_cnak_trace set_dc_cnak_trace: bool @ 0x20e from "rdma-core mlx5_ifc.h";
        drain_sigerr set_drain_sigerr: bool @ 0x20f;
        /// A [`CmdifChecksum`].
        cmdif_checksum set_cmdif_checksum: u8 @ 0x210 +2;
        sigerr_cqe set_sigerr_cqe: bool @ 0x212;
        wq_signature set_wq_signature: bool @ 0x214;
        sctr_data_cqe set_sctr_data_cqe: bool @ 0x215;
        sho set_sho: bool @ 0x217;
        tph set_tph: bool @ 0x218;
        rf set_rf: bool @ 0x219;
        dct set_dct: bool @ 0x21a;
        qos set_qos: bool @ 0x21b;
        eth_net_offloads set_eth_net_offloads: bool @ 0x21c;
        roce set_roce: bool @ 0x21d;
        atomic set_atomic: bool @ 0x21e;
        cq_oi set_cq_oi: bool @ 0x220;
        cq_resize set_cq_resize: bool @ 0x221;
        cq_moderation set_cq_moderation: bool @ 0x222;
        cq_period_mode_modify set_cq_period_mode_modify: bool @ 0x223;
        cq_eq_remap set_cq_eq_remap: bool @ 0x226;
        pg set_pg: bool @ 0x227;
        block_lb_mc set_block_lb_mc: bool @ 0x228;
        exponential_backoff set_exponential_backoff: bool @ 0x229 from "rdma-core mlx5_ifc.h";
        scqe_break_moderation set_scqe_break_moderation: bool @ 0x22a;
        cq_period_start_from_cqe set_cq_period_start_from_cqe: bool @ 0x22b;
        cd set_cd: bool @ 0x22c;
        apm set_apm: bool @ 0x22e;
        vector_calc set_vector_calc: bool @ 0x22f;
        umr_ptr_rlky set_umr_ptr_rlky: bool @ 0x230;
        imaicl set_imaicl: bool @ 0x231;
        qp_packet_based set_qp_packet_based: bool @ 0x232;
        qkv set_qkv: bool @ 0x236;
        pkv set_pkv: bool @ 0x237;
        set_deth_sqpn set_set_deth_sqpn: bool @ 0x238;
        xrc set_xrc: bool @ 0x23c;
        ud set_ud: bool @ 0x23d;
        uc set_uc: bool @ 0x23e;
        rc set_rc: bool @ 0x23f;
        /// Doorbell pages have 4 KiB whatever the host's pages have.
        uar_4k set_uar_4k: bool @ 0x240;
        fl_rc_qp_when_roce_disabled set_fl_rc_qp_when_roce_disabled: bool @ 0x248;
        regexp_params set_regexp_params: bool @ 0x249;
        /// Size of the doorbell area in MiB, as a power of two.
        uar_sz set_uar_sz: u8 @ 0x24a +6;
        port_selection_cap set_port_selection_cap: bool @ 0x250;
        /// User memory objects exist without an owner.
        umem_uid_0 set_umem_uid_0: bool @ 0x252;
        log_pg_sz set_log_pg_sz: u8 @ 0x258 +8;
        bf set_bf: bool @ 0x260;
        driver_version set_driver_version: bool @ 0x261;
        pad_tx_eth_packet set_pad_tx_eth_packet: bool @ 0x262;
        mkey_by_name set_mkey_by_name: bool @ 0x266;
        log_bf_reg_size set_log_bf_reg_size: u8 @ 0x26b +5;
        qp_error_syndrome set_qp_error_syndrome: bool @ 0x273;
        lag_dct set_lag_dct: u8 @ 0x276 +2;
        lag_tx_port_affinity set_lag_tx_port_affinity: bool @ 0x278;
        lag_native_fdb_selection set_lag_native_fdb_selection: bool @ 0x279;
        lag_master set_lag_master: bool @ 0x27b;
        num_lag_ports set_num_lag_ports: u8 @ 0x27c +4;
        /// Bytes.
        max_wqe_sz_sq set_max_wqe_sz_sq: u16 @ 0x290 +16;
        shampo set_shampo: bool @ 0x2ab;
        max_wqe_sz_rq set_max_wqe_sz_rq: u16 @ 0x2b0 +16;
        max_flow_counter_31_16 set_max_flow_counter_31_16: u16 @ 0x2c0 +16;
        max_wqe_sz_sq_dc set_max_wqe_sz_sq_dc: u16 @ 0x2d0 +16;
        max_qp_mcg set_max_qp_mcg: u32 @ 0x2e7 +25;
        flow_counter_bulk_alloc set_flow_counter_bulk_alloc: u8 @ 0x310 +8;
        log_max_mcg set_log_max_mcg: u8 @ 0x318 +8;
        log_max_transport_domain set_log_max_transport_domain: u8 @ 0x323 +5;
        relaxed_ordering_read set_relaxed_ordering_read: bool @ 0x32a;
        log_max_pd set_log_max_pd: u8 @ 0x32b +5;
        pcie_reset_using_hotreset_method set_pcie_reset_using_hotreset_method: bool @ 0x335;
        pci_sync_for_fw_update_with_driver_unload
            set_pci_sync_for_fw_update_with_driver_unload: bool @ 0x336;
        vnic_env_cnt_steering_fail set_vnic_env_cnt_steering_fail: bool @ 0x337;
        vport_counter_local_loopback set_vport_counter_local_loopback: bool @ 0x338;
        q_counter_aggregation set_q_counter_aggregation: bool @ 0x339;
        q_counter_other_vport set_q_counter_other_vport: bool @ 0x33a;
        log_max_xrcd set_log_max_xrcd: u8 @ 0x33b +5;
        nic_receive_steering_discard set_nic_receive_steering_discard: bool @ 0x340;
        receive_discard_vport_down set_receive_discard_vport_down: bool @ 0x341;
        transmit_discard_vport_down set_transmit_discard_vport_down: bool @ 0x342;
        eq_overrun_count set_eq_overrun_count: bool @ 0x343;
        invalid_command_count set_invalid_command_count: bool @ 0x345;
        quota_exceeded_count set_quota_exceeded_count: bool @ 0x346;
        log_max_flow_counter_bulk set_log_max_flow_counter_bulk: u8 @ 0x348 +8;
        max_flow_counter_15_0 set_max_flow_counter_15_0: u16 @ 0x350 +16;
        log_max_rq set_log_max_rq: u8 @ 0x363 +5;
        log_max_sq set_log_max_sq: u8 @ 0x36b +5;
        log_max_tir set_log_max_tir: u8 @ 0x373 +5;
        log_max_tis set_log_max_tis: u8 @ 0x37b +5;
        basic_cyclic_rcv_wqe set_basic_cyclic_rcv_wqe: bool @ 0x380;
        log_max_rmp set_log_max_rmp: u8 @ 0x383 +5;
        log_max_rqt set_log_max_rqt: u8 @ 0x38b +5;
        log_max_rqt_size set_log_max_rqt_size: u8 @ 0x393 +5;
        log_max_tis_per_sq set_log_max_tis_per_sq: u8 @ 0x39b +5;
        ext_stride_num_range set_ext_stride_num_range: bool @ 0x3a0;
        roce_rw_supported set_roce_rw_supported: bool @ 0x3a1;
        log_max_current_uc_list_wr_supported set_log_max_current_uc_list_wr_supported: bool @ 0x3a2;
        log_max_stride_sz_rq set_log_max_stride_sz_rq: u8 @ 0x3a3 +5;
        log_min_stride_sz_rq set_log_min_stride_sz_rq: u8 @ 0x3ab +5;
        log_max_stride_sz_sq set_log_max_stride_sz_sq: u8 @ 0x3b3 +5;
        log_min_stride_sz_sq set_log_min_stride_sz_sq: u8 @ 0x3bb +5;
        hairpin set_hairpin: bool @ 0x3c0;
        log_max_hairpin_queues set_log_max_hairpin_queues: u8 @ 0x3c3 +5;
        log_max_hairpin_wq_data_sz set_log_max_hairpin_wq_data_sz: u8 @ 0x3cb +5;
        log_max_hairpin_num_packets set_log_max_hairpin_num_packets: u8 @ 0x3d3 +5;
        log_max_wq_sz set_log_max_wq_sz: u8 @ 0x3db +5;
        nic_vport_change_event set_nic_vport_change_event: bool @ 0x3e0;
        disable_local_lb_uc set_disable_local_lb_uc: bool @ 0x3e1;
        disable_local_lb_mc set_disable_local_lb_mc: bool @ 0x3e2;
        log_min_hairpin_wq_data_sz set_log_min_hairpin_wq_data_sz: u8 @ 0x3e3 +5;
        silent_mode set_silent_mode: bool @ 0x3e9;
        vhca_state set_vhca_state: bool @ 0x3ea;
        log_max_vlan_list set_log_max_vlan_list: u8 @ 0x3eb +5;
        log_max_current_mc_list set_log_max_current_mc_list: u8 @ 0x3f3 +5;
        log_max_current_uc_list set_log_max_current_uc_list: u8 @ 0x3fb +5;
        general_obj_types set_general_obj_types: u64 @ 0x400 +64;
        sq_ts_format set_sq_ts_format: u8 @ 0x440 +2;
        rq_ts_format set_rq_ts_format: u8 @ 0x442 +2;
        steering_format_version set_steering_format_version: u8 @ 0x444 +4;
        create_qp_start_hint set_create_qp_start_hint: u32 @ 0x448 +24;
        ats set_ats: bool @ 0x461;
        cross_vhca_rqt set_cross_vhca_rqt: bool @ 0x462;
        log_max_uctx set_log_max_uctx: u8 @ 0x463 +5;
        crypto set_crypto: bool @ 0x469;
        ipsec_offload set_ipsec_offload: bool @ 0x46a;
        log_max_umem set_log_max_umem: u8 @ 0x46b +5;
        /// If 0, `log_max_eq` holds.
        max_num_eqs set_max_num_eqs: u16 @ 0x470 +16;
        tls_tx set_tls_tx: bool @ 0x481;
        tls_rx set_tls_rx: bool @ 0x482;
        log_max_l2_table set_log_max_l2_table: u8 @ 0x483 +5;
        /// Host page size, in powers of two above 4 KiB.
        log_uar_page_sz set_log_uar_page_sz: u16 @ 0x490 +16;
        device_frequency_mhz set_device_frequency_mhz: u32 @ 0x4c0 +32;
        /// Of the internal timer and of timestamps.
        device_frequency_khz set_device_frequency_khz: u32 @ 0x4e0 +32;
        num_of_uars_per_page set_num_of_uars_per_page: u32 @ 0x520 +32;
        flex_parser_protocols set_flex_parser_protocols: u32 @ 0x540 +32;
        max_geneve_tlv_options set_max_geneve_tlv_options: u8 @ 0x560 +8;
        max_geneve_tlv_option_data_len set_max_geneve_tlv_option_data_len: u8 @ 0x56b +5;
        adv_virtualization set_adv_virtualization: bool @ 0x579;
        log_max_dci_stream_channels set_log_max_dci_stream_channels: u8 @ 0x58b +5;
        log_max_dci_errored_streams set_log_max_dci_errored_streams: u8 @ 0x593 +5;
        enhanced_cqe_compression set_enhanced_cqe_compression: bool @ 0x5b0;
        crossing_vhca_mkey set_crossing_vhca_mkey: bool @ 0x5b2;
        log_max_dek set_log_max_dek: u8 @ 0x5b3 +5;
        mini_cqe_resp_stride_index set_mini_cqe_resp_stride_index: bool @ 0x5bc;
        cqe_128_always set_cqe_128_always: bool @ 0x5bd;
        cqe_compression_128 set_cqe_compression_128: bool @ 0x5be;
        cqe_compression set_cqe_compression: bool @ 0x5bf;
        cqe_compression_timeout set_cqe_compression_timeout: u16 @ 0x5c0 +16;
        cqe_compression_max_num set_cqe_compression_max_num: u16 @ 0x5d0 +16;
        flex_parser_id_gtpu_dw_0 set_flex_parser_id_gtpu_dw_0: u8 @ 0x5e8 +4;
        tag_matching set_tag_matching: bool @ 0x5f0;
        rndv_offload_rc set_rndv_offload_rc: bool @ 0x5f1;
        rndv_offload_dc set_rndv_offload_dc: bool @ 0x5f2;
        log_tag_matching_list_sz set_log_tag_matching_list_sz: u8 @ 0x5f3 +5;
        log_max_xrq set_log_max_xrq: u8 @ 0x5fb +5;
        affiliate_nic_vport_criteria set_affiliate_nic_vport_criteria: u8 @ 0x600 +8;
        native_port_num set_native_port_num: u8 @ 0x608 +8;
        num_vhca_ports set_num_vhca_ports: u8 @ 0x610 +8;
        flex_parser_id_gtpu_teid set_flex_parser_id_gtpu_teid: u8 @ 0x618 +4;
        sw_owner_id set_sw_owner_id: bool @ 0x61e;
        max_num_of_monitor_counters set_max_num_of_monitor_counters: u16 @ 0x620 +16;
        num_ppcnt_monitor_counters set_num_ppcnt_monitor_counters: u16 @ 0x630 +16;
        max_num_sf set_max_num_sf: u16 @ 0x640 +16;
        num_q_monitor_counters set_num_q_monitor_counters: u16 @ 0x650 +16;
        sf set_sf: bool @ 0x680;
        sf_set_partition set_sf_set_partition: bool @ 0x681;
        log_max_sf set_log_max_sf: u8 @ 0x683 +5;
        apu set_apu: bool @ 0x688;
        migration set_migration: bool @ 0x68d;
        log_min_sf_size set_log_min_sf_size: u8 @ 0x690 +8;
        max_num_sf_partitions set_max_num_sf_partitions: u8 @ 0x698 +8;
        uctx_cap set_uctx_cap: u32 @ 0x6a0 +32;
        flex_parser_id_geneve_tlv_option_0 set_flex_parser_id_geneve_tlv_option_0: u8 @ 0x6c4 +4;
        flex_parser_id_icmp_dw1 set_flex_parser_id_icmp_dw1: u8 @ 0x6c8 +4;
        flex_parser_id_icmp_dw0 set_flex_parser_id_icmp_dw0: u8 @ 0x6cc +4;
        flex_parser_id_icmpv6_dw1 set_flex_parser_id_icmpv6_dw1: u8 @ 0x6d0 +4;
        flex_parser_id_icmpv6_dw0 set_flex_parser_id_icmpv6_dw0: u8 @ 0x6d4 +4;
        flex_parser_id_outer_first_mpls_over_gre
            set_flex_parser_id_outer_first_mpls_over_gre: u8 @ 0x6d8 +4;
        flex_parser_id_outer_first_mpls_over_udp_label
            set_flex_parser_id_outer_first_mpls_over_udp_label: u8 @ 0x6dc +4;
        max_num_match_definer set_max_num_match_definer: u16 @ 0x6e0 +16;
        sf_base_id set_sf_base_id: u16 @ 0x6f0 +16;
        flex_parser_id_gtpu_dw_2 set_flex_parser_id_gtpu_dw_2: u8 @ 0x700 +4;
        flex_parser_id_gtpu_first_ext_dw_0 set_flex_parser_id_gtpu_first_ext_dw_0: u8 @ 0x704 +4;
        num_total_dynamic_vf_msix set_num_total_dynamic_vf_msix: u32 @ 0x708 +24;
        dynamic_msix_table_size set_dynamic_msix_table_size: u16 @ 0x734 +12;
        min_dynamic_vf_msix_table_size set_min_dynamic_vf_msix_table_size: u8 @ 0x74c +4;
        data_direct set_data_direct: bool @ 0x752;
        max_dynamic_vf_msix_table_size set_max_dynamic_vf_msix_table_size: u16 @ 0x754 +12;
        log_max_num_header_modify_argument set_log_max_num_header_modify_argument: u8 @ 0x763 +5;
        log_header_modify_argument_granularity_offset
            set_log_header_modify_argument_granularity_offset: u8 @ 0x768 +4;
        log_header_modify_argument_granularity
            set_log_header_modify_argument_granularity: u8 @ 0x76c +4;
        log_header_modify_argument_max_alloc
            set_log_header_modify_argument_max_alloc: u8 @ 0x773 +5;
        vhca_tunnel_commands set_vhca_tunnel_commands: u64 @ 0x780 +64;
        match_definer_format_supported set_match_definer_format_supported: u64 @ 0x7c0 +64;
    }
}

open_enum! {
    /// A group of capabilities, as `QUERY_HCA_CAP` and `SET_HCA_CAP` name it in `op_mod`.
    pub struct CapGroup(u16) = "MLX5_CAP_" {
        GENERAL = 0x0;
        ETHERNET_OFFLOADS = 0x1;
        ODP = 0x2;
        ATOMIC = 0x3;
        ROCE = 0x4;
        IPOIB_OFFLOADS = 0x5;
        IPOIB_ENHANCED_OFFLOADS = 0x6;
        FLOW_TABLE = 0x7;
        ESWITCH_FLOW_TABLE = 0x8;
        ESWITCH = 0x9;
        QOS = 0xc;
        DEBUG = 0xd;
        DEV_MEM = 0xf;
        TLS = 0x11;
        VDPA_EMULATION = 0x13;
        DEV_EVENT = 0x14;
        IPSEC = 0x15;
        CRYPTO = 0x1a;
        MACSEC = 0x1f;
        GENERAL_2 = 0x20;
        PORT_SELECTION = 0x25;
        ADV_VIRTUALIZATION = 0x26;
    }

    /// What a port speaks (`port_type`).
    pub struct PortType(u8) = "MLX5_CAP_PORT_TYPE_" {
        IB = 0x0;
        ETH = 0x1;
    }

    /// Whether mailboxes are signed (`cmdif_checksum`).
    pub struct CmdifChecksum(u8) = "MLX5_CMD_HCA_CAP_CMDIF_CHECKSUM_" {
        DISABLED = 0x0;
        INITIAL_STATE = 0x1;
        ENABLED = 0x3;
    }
}

impl CapGroup {
    /// `op_mod` that asks for what is in force now.
    pub const fn current(self) -> u16 {
        self.0 << 1 | 1
    }

    /// `op_mod` that asks for the most that can be set.
    pub const fn maximum(self) -> u16 {
        self.0 << 1
    }

    /// `op_mod` of `SET_HCA_CAP`.
    pub const fn set(self) -> u16 {
        self.0 << 1
    }

    /// The group an `op_mod` of `QUERY_HCA_CAP` names, and whether it asks for the current values.
    pub const fn of_op_mod(op_mod: u16) -> (Self, bool) {
        (Self(op_mod >> 1), op_mod & 1 == 1)
    }
}

/// A capability group's layout; it starts the 4,096 bytes that the commands carry.
pub trait Capabilities: Layout {
    /// The group.
    const GROUP: CapGroup;
}

impl Capabilities for CmdHcaCap {
    const GROUP: CapGroup = CapGroup::GENERAL;
}

impl CmdHcaCap {
    /// Most flow counters, from its two parts.
    pub const fn max_flow_counter(&self) -> u32 {
        (self.max_flow_counter_31_16() as u32) << 16 | self.max_flow_counter_15_0() as u32
    }

    /// Sets both parts of the most flow counters.
    pub const fn set_max_flow_counter(&mut self, counters: u32) -> &mut Self {
        self.set_max_flow_counter_31_16((counters >> 16) as u16)
            .set_max_flow_counter_15_0(counters as u16)
    }
}
