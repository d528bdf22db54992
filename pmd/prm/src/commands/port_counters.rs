//! Port counters: the PPCNT register and its groups.

use super::register::{Register, RegisterId};
use crate::layout::{Layout, layout};
use crate::open_enum::open_enum;

layout! {
    /// Port counter register (PPCNT); `counter_set` is the layout of group `grp`.
    pub struct Ppcnt = "mlx5_ifc_ppcnt_reg_bits", 256 bytes {
        swid set_swid: u8 @ 0x0 +8;
        local_port set_local_port: u8 @ 0x8 +8;
        pnat set_pnat: u8 @ 0x10 +2;
        /// A [`CounterGroup`].
        grp set_grp: u8 @ 0x1a +6;
        /// Clear after reading.
        clr set_clr: bool @ 0x20;
        plane_ind set_plane_ind: u8 @ 0x34 +4;
        /// Priority or traffic class, in groups that are kept for each.
        prio_tc set_prio_tc: u8 @ 0x3b +5;
        /// The group's own layout.
        counter_set set_counter_set: [u8; 248] @ 0x40;
    }

    /// IEEE 802.3 counters (group 0).
    pub struct Ieee8023Counters = "mlx5_ifc_eth_802_3_cntrs_grp_data_layout_bits", 248 bytes {
        a_frames_transmitted_ok set_a_frames_transmitted_ok: u64 @ 0x0 +64
            span "a_frames_transmitted_ok_high" "a_frames_transmitted_ok_low";
        a_frames_received_ok set_a_frames_received_ok: u64 @ 0x40 +64
            span "a_frames_received_ok_high" "a_frames_received_ok_low";
        a_frame_check_sequence_errors set_a_frame_check_sequence_errors: u64 @ 0x80 +64
            span "a_frame_check_sequence_errors_high" "a_frame_check_sequence_errors_low";
        a_alignment_errors set_a_alignment_errors: u64 @ 0xc0 +64
            span "a_alignment_errors_high" "a_alignment_errors_low";
        a_octets_transmitted_ok set_a_octets_transmitted_ok: u64 @ 0x100 +64
            span "a_octets_transmitted_ok_high" "a_octets_transmitted_ok_low";
        a_octets_received_ok set_a_octets_received_ok: u64 @ 0x140 +64
            span "a_octets_received_ok_high" "a_octets_received_ok_low";
        a_multicast_frames_xmitted_ok set_a_multicast_frames_xmitted_ok: u64 @ 0x180 +64
            span "a_multicast_frames_xmitted_ok_high" "a_multicast_frames_xmitted_ok_low";
        a_broadcast_frames_xmitted_ok set_a_broadcast_frames_xmitted_ok: u64 @ 0x1c0 +64
            span "a_broadcast_frames_xmitted_ok_high" "a_broadcast_frames_xmitted_ok_low";
        a_multicast_frames_received_ok set_a_multicast_frames_received_ok: u64 @ 0x200 +64
            span "a_multicast_frames_received_ok_high" "a_multicast_frames_received_ok_low";
        a_broadcast_frames_received_ok set_a_broadcast_frames_received_ok: u64 @ 0x240 +64
            span "a_broadcast_frames_received_ok_high" "a_broadcast_frames_received_ok_low";
        a_in_range_length_errors set_a_in_range_length_errors: u64 @ 0x280 +64
            span "a_in_range_length_errors_high" "a_in_range_length_errors_low";
        a_out_of_range_length_field set_a_out_of_range_length_field: u64 @ 0x2c0 +64
            span "a_out_of_range_length_field_high" "a_out_of_range_length_field_low";
        a_frame_too_long_errors set_a_frame_too_long_errors: u64 @ 0x300 +64
            span "a_frame_too_long_errors_high" "a_frame_too_long_errors_low";
        a_symbol_error_during_carrier set_a_symbol_error_during_carrier: u64 @ 0x340 +64
            span "a_symbol_error_during_carrier_high" "a_symbol_error_during_carrier_low";
        a_mac_control_frames_transmitted set_a_mac_control_frames_transmitted: u64 @ 0x380 +64
            span "a_mac_control_frames_transmitted_high" "a_mac_control_frames_transmitted_low";
        a_mac_control_frames_received set_a_mac_control_frames_received: u64 @ 0x3c0 +64
            span "a_mac_control_frames_received_high" "a_mac_control_frames_received_low";
        a_unsupported_opcodes_received set_a_unsupported_opcodes_received: u64 @ 0x400 +64
            span "a_unsupported_opcodes_received_high" "a_unsupported_opcodes_received_low";
        a_pause_mac_ctrl_frames_received set_a_pause_mac_ctrl_frames_received: u64 @ 0x440 +64
            span "a_pause_mac_ctrl_frames_received_high" "a_pause_mac_ctrl_frames_received_low";
        a_pause_mac_ctrl_frames_transmitted set_a_pause_mac_ctrl_frames_transmitted: u64 @ 0x480 +64
            span "a_pause_mac_ctrl_frames_transmitted_high"
            "a_pause_mac_ctrl_frames_transmitted_low";
    }

    /// RFC 2863 counters (group 1).
    pub struct Rfc2863Counters = "mlx5_ifc_eth_2863_cntrs_grp_data_layout_bits", 248 bytes {
        if_in_octets set_if_in_octets: u64 @ 0x0 +64 span "if_in_octets_high" "if_in_octets_low";
        if_in_ucast_pkts set_if_in_ucast_pkts: u64 @ 0x40 +64
            span "if_in_ucast_pkts_high" "if_in_ucast_pkts_low";
        if_in_discards set_if_in_discards: u64 @ 0x80 +64
            span "if_in_discards_high" "if_in_discards_low";
        if_in_errors set_if_in_errors: u64 @ 0xc0 +64 span "if_in_errors_high" "if_in_errors_low";
        if_in_unknown_protos set_if_in_unknown_protos: u64 @ 0x100 +64
            span "if_in_unknown_protos_high" "if_in_unknown_protos_low";
        if_out_octets set_if_out_octets: u64 @ 0x140 +64
            span "if_out_octets_high" "if_out_octets_low";
        if_out_ucast_pkts set_if_out_ucast_pkts: u64 @ 0x180 +64
            span "if_out_ucast_pkts_high" "if_out_ucast_pkts_low";
        if_out_discards set_if_out_discards: u64 @ 0x1c0 +64
            span "if_out_discards_high" "if_out_discards_low";
        if_out_errors set_if_out_errors: u64 @ 0x200 +64
            span "if_out_errors_high" "if_out_errors_low";
        if_in_multicast_pkts set_if_in_multicast_pkts: u64 @ 0x240 +64
            span "if_in_multicast_pkts_high" "if_in_multicast_pkts_low";
        if_in_broadcast_pkts set_if_in_broadcast_pkts: u64 @ 0x280 +64
            span "if_in_broadcast_pkts_high" "if_in_broadcast_pkts_low";
        if_out_multicast_pkts set_if_out_multicast_pkts: u64 @ 0x2c0 +64
            span "if_out_multicast_pkts_high" "if_out_multicast_pkts_low";
        if_out_broadcast_pkts set_if_out_broadcast_pkts: u64 @ 0x300 +64
            span "if_out_broadcast_pkts_high" "if_out_broadcast_pkts_low";
    }

    /// RFC 2819 counters (group 2).
    pub struct Rfc2819Counters = "mlx5_ifc_eth_2819_cntrs_grp_data_layout_bits", 248 bytes {
        ether_stats_drop_events set_ether_stats_drop_events: u64 @ 0x0 +64
            span "ether_stats_drop_events_high" "ether_stats_drop_events_low";
        ether_stats_octets set_ether_stats_octets: u64 @ 0x40 +64
            span "ether_stats_octets_high" "ether_stats_octets_low";
        ether_stats_pkts set_ether_stats_pkts: u64 @ 0x80 +64
            span "ether_stats_pkts_high" "ether_stats_pkts_low";
        ether_stats_broadcast_pkts set_ether_stats_broadcast_pkts: u64 @ 0xc0 +64
            span "ether_stats_broadcast_pkts_high" "ether_stats_broadcast_pkts_low";
        ether_stats_multicast_pkts set_ether_stats_multicast_pkts: u64 @ 0x100 +64
            span "ether_stats_multicast_pkts_high" "ether_stats_multicast_pkts_low";
        ether_stats_crc_align_errors set_ether_stats_crc_align_errors: u64 @ 0x140 +64
            span "ether_stats_crc_align_errors_high" "ether_stats_crc_align_errors_low";
        ether_stats_undersize_pkts set_ether_stats_undersize_pkts: u64 @ 0x180 +64
            span "ether_stats_undersize_pkts_high" "ether_stats_undersize_pkts_low";
        ether_stats_oversize_pkts set_ether_stats_oversize_pkts: u64 @ 0x1c0 +64
            span "ether_stats_oversize_pkts_high" "ether_stats_oversize_pkts_low";
        ether_stats_fragments set_ether_stats_fragments: u64 @ 0x200 +64
            span "ether_stats_fragments_high" "ether_stats_fragments_low";
        ether_stats_jabbers set_ether_stats_jabbers: u64 @ 0x240 +64
            span "ether_stats_jabbers_high" "ether_stats_jabbers_low";
        ether_stats_collisions set_ether_stats_collisions: u64 @ 0x280 +64
            span "ether_stats_collisions_high" "ether_stats_collisions_low";
        ether_stats_pkts64octets set_ether_stats_pkts64octets: u64 @ 0x2c0 +64
            span "ether_stats_pkts64octets_high" "ether_stats_pkts64octets_low";
        ether_stats_pkts65to127octets set_ether_stats_pkts65to127octets: u64 @ 0x300 +64
            span "ether_stats_pkts65to127octets_high" "ether_stats_pkts65to127octets_low";
        ether_stats_pkts128to255octets set_ether_stats_pkts128to255octets: u64 @ 0x340 +64
            span "ether_stats_pkts128to255octets_high" "ether_stats_pkts128to255octets_low";
        ether_stats_pkts256to511octets set_ether_stats_pkts256to511octets: u64 @ 0x380 +64
            span "ether_stats_pkts256to511octets_high" "ether_stats_pkts256to511octets_low";
        ether_stats_pkts512to1023octets set_ether_stats_pkts512to1023octets: u64 @ 0x3c0 +64
            span "ether_stats_pkts512to1023octets_high" "ether_stats_pkts512to1023octets_low";
        ether_stats_pkts1024to1518octets set_ether_stats_pkts1024to1518octets: u64 @ 0x400 +64
            span "ether_stats_pkts1024to1518octets_high" "ether_stats_pkts1024to1518octets_low";
        ether_stats_pkts1519to2047octets set_ether_stats_pkts1519to2047octets: u64 @ 0x440 +64
            span "ether_stats_pkts1519to2047octets_high" "ether_stats_pkts1519to2047octets_low";
        ether_stats_pkts2048to4095octets set_ether_stats_pkts2048to4095octets: u64 @ 0x480 +64
            span "ether_stats_pkts2048to4095octets_high" "ether_stats_pkts2048to4095octets_low";
        ether_stats_pkts4096to8191octets set_ether_stats_pkts4096to8191octets: u64 @ 0x4c0 +64
            span "ether_stats_pkts4096to8191octets_high" "ether_stats_pkts4096to8191octets_low";
        ether_stats_pkts8192to10239octets set_ether_stats_pkts8192to10239octets: u64 @ 0x500 +64
            span "ether_stats_pkts8192to10239octets_high"
            "ether_stats_pkts8192to10239octets_low";
    }

    /// RFC 3635 counters (group 3).
    pub struct Rfc3635Counters = "mlx5_ifc_eth_3635_cntrs_grp_data_layout_bits", 248 bytes {
        dot3stats_alignment_errors set_dot3stats_alignment_errors: u64 @ 0x0 +64
            span "dot3stats_alignment_errors_high" "dot3stats_alignment_errors_low";
        dot3stats_fcs_errors set_dot3stats_fcs_errors: u64 @ 0x40 +64
            span "dot3stats_fcs_errors_high" "dot3stats_fcs_errors_low";
        dot3stats_single_collision_frames set_dot3stats_single_collision_frames: u64 @ 0x80 +64
            span "dot3stats_single_collision_frames_high"
            "dot3stats_single_collision_frames_low";
        dot3stats_multiple_collision_frames set_dot3stats_multiple_collision_frames: u64 @ 0xc0 +64
            span "dot3stats_multiple_collision_frames_high"
            "dot3stats_multiple_collision_frames_low";
        dot3stats_sqe_test_errors set_dot3stats_sqe_test_errors: u64 @ 0x100 +64
            span "dot3stats_sqe_test_errors_high" "dot3stats_sqe_test_errors_low";
        dot3stats_deferred_transmissions set_dot3stats_deferred_transmissions: u64 @ 0x140 +64
            span "dot3stats_deferred_transmissions_high" "dot3stats_deferred_transmissions_low";
        dot3stats_late_collisions set_dot3stats_late_collisions: u64 @ 0x180 +64
            span "dot3stats_late_collisions_high" "dot3stats_late_collisions_low";
        dot3stats_excessive_collisions set_dot3stats_excessive_collisions: u64 @ 0x1c0 +64
            span "dot3stats_excessive_collisions_high" "dot3stats_excessive_collisions_low";
        dot3stats_internal_mac_transmit_errors
            set_dot3stats_internal_mac_transmit_errors: u64 @ 0x200 +64
            span "dot3stats_internal_mac_transmit_errors_high"
            "dot3stats_internal_mac_transmit_errors_low";
        dot3stats_carrier_sense_errors set_dot3stats_carrier_sense_errors: u64 @ 0x240 +64
            span "dot3stats_carrier_sense_errors_high" "dot3stats_carrier_sense_errors_low";
        dot3stats_frame_too_longs set_dot3stats_frame_too_longs: u64 @ 0x280 +64
            span "dot3stats_frame_too_longs_high" "dot3stats_frame_too_longs_low";
        dot3stats_internal_mac_receive_errors
            set_dot3stats_internal_mac_receive_errors: u64 @ 0x2c0 +64
            span "dot3stats_internal_mac_receive_errors_high"
            "dot3stats_internal_mac_receive_errors_low";
        dot3stats_symbol_errors set_dot3stats_symbol_errors: u64 @ 0x300 +64
            span "dot3stats_symbol_errors_high" "dot3stats_symbol_errors_low";
        dot3control_in_unknown_opcodes set_dot3control_in_unknown_opcodes: u64 @ 0x340 +64
            span "dot3control_in_unknown_opcodes_high" "dot3control_in_unknown_opcodes_low";
        dot3in_pause_frames set_dot3in_pause_frames: u64 @ 0x380 +64
            span "dot3in_pause_frames_high" "dot3in_pause_frames_low";
        dot3out_pause_frames set_dot3out_pause_frames: u64 @ 0x3c0 +64
            span "dot3out_pause_frames_high" "dot3out_pause_frames_low";
    }

    /// Extended Ethernet counters (group 5).
    pub struct ExtendedCounters = "mlx5_ifc_eth_extended_cntrs_grp_data_layout_bits", 248 bytes {
        port_transmit_wait set_port_transmit_wait: u64 @ 0x0 +64
            span "port_transmit_wait_high" "port_transmit_wait_low";
        rx_buffer_almost_full set_rx_buffer_almost_full: u64 @ 0x140 +64
            span "rx_buffer_almost_full_high" "rx_buffer_almost_full_low";
        rx_buffer_full set_rx_buffer_full: u64 @ 0x180 +64
            span "rx_buffer_full_high" "rx_buffer_full_low";
        rx_icrc_encapsulated set_rx_icrc_encapsulated: u64 @ 0x1c0 +64
            span "rx_icrc_encapsulated_high" "rx_icrc_encapsulated_low";
    }

    /// Counters of one priority (group 0x10).
    pub struct PerPriorityCounters = "mlx5_ifc_eth_per_prio_grp_data_layout_bits", 248 bytes {
        rx_octets set_rx_octets: u64 @ 0x0 +64 span "rx_octets_high" "rx_octets_low";
        rx_frames set_rx_frames: u64 @ 0x100 +64 span "rx_frames_high" "rx_frames_low";
        tx_octets set_tx_octets: u64 @ 0x140 +64 span "tx_octets_high" "tx_octets_low";
        tx_frames set_tx_frames: u64 @ 0x240 +64 span "tx_frames_high" "tx_frames_low";
        rx_pause set_rx_pause: u64 @ 0x280 +64 span "rx_pause_high" "rx_pause_low";
        rx_pause_duration set_rx_pause_duration: u64 @ 0x2c0 +64
            span "rx_pause_duration_high" "rx_pause_duration_low";
        tx_pause set_tx_pause: u64 @ 0x300 +64 span "tx_pause_high" "tx_pause_low";
        tx_pause_duration set_tx_pause_duration: u64 @ 0x340 +64
            span "tx_pause_duration_high" "tx_pause_duration_low";
        rx_pause_transition set_rx_pause_transition: u64 @ 0x380 +64
            span "rx_pause_transition_high" "rx_pause_transition_low";
        rx_discards set_rx_discards: u64 @ 0x3c0 +64 span "rx_discards_high" "rx_discards_low";
        device_stall_minor_watermark_cnt set_device_stall_minor_watermark_cnt: u64 @ 0x400 +64
            span "device_stall_minor_watermark_cnt_high" "device_stall_minor_watermark_cnt_low";
        device_stall_critical_watermark_cnt set_device_stall_critical_watermark_cnt: u64 @ 0x440 +64
            span "device_stall_critical_watermark_cnt_high"
            "device_stall_critical_watermark_cnt_low";
    }

    /// Physical layer counters (group 0x12), of which errors of the line are left out.
    pub struct PhyCounters = "mlx5_ifc_phys_layer_cntrs_bits", 248 bytes {
        /// Milliseconds.
        time_since_last_clear set_time_since_last_clear: u64 @ 0x0 +64
            span "time_since_last_clear_high" "time_since_last_clear_low";
        symbol_errors set_symbol_errors: u64 @ 0x40 +64
            span "symbol_errors_high" "symbol_errors_low";
        link_down_events set_link_down_events: u32 @ 0x600 +32;
        successful_recovery_events set_successful_recovery_events: u32 @ 0x620 +32;
    }

    /// Physical layer statistics (group 0x16).
    pub struct PhyStatistics = "mlx5_ifc_phys_layer_statistical_cntrs_bits", 248 bytes {
        time_since_last_clear set_time_since_last_clear: u64 @ 0x0 +64
            span "time_since_last_clear_high" "time_since_last_clear_low";
        phy_received_bits set_phy_received_bits: u64 @ 0x40 +64
            span "phy_received_bits_high" "phy_received_bits_low";
        phy_symbol_errors set_phy_symbol_errors: u64 @ 0x80 +64
            span "phy_symbol_errors_high" "phy_symbol_errors_low";
        phy_corrected_bits set_phy_corrected_bits: u64 @ 0xc0 +64
            span "phy_corrected_bits_high" "phy_corrected_bits_low";
        phy_corrected_bits_lane0 set_phy_corrected_bits_lane0: u64 @ 0x100 +64
            span "phy_corrected_bits_lane0_high" "phy_corrected_bits_lane0_low";
        phy_corrected_bits_lane1 set_phy_corrected_bits_lane1: u64 @ 0x140 +64
            span "phy_corrected_bits_lane1_high" "phy_corrected_bits_lane1_low";
        phy_corrected_bits_lane2 set_phy_corrected_bits_lane2: u64 @ 0x180 +64
            span "phy_corrected_bits_lane2_high" "phy_corrected_bits_lane2_low";
        phy_corrected_bits_lane3 set_phy_corrected_bits_lane3: u64 @ 0x1c0 +64
            span "phy_corrected_bits_lane3_high" "phy_corrected_bits_lane3_low";
    }
}

open_enum! {
    /// Counter group of PPCNT (`grp`).
    pub struct CounterGroup(u8) = "MLX5_" {
        IEEE_802_3 = 0x0 as "MLX5_IEEE_802_3_COUNTERS_GROUP";
        RFC_2863 = 0x1 as "MLX5_RFC_2863_COUNTERS_GROUP";
        RFC_2819 = 0x2 as "MLX5_RFC_2819_COUNTERS_GROUP";
        RFC_3635 = 0x3 as "MLX5_RFC_3635_COUNTERS_GROUP";
        EXTENDED = 0x5 as "MLX5_ETHERNET_EXTENDED_COUNTERS_GROUP";
        PER_PRIORITY = 0x10 as "MLX5_PER_PRIORITY_COUNTERS_GROUP";
        PER_TRAFFIC_CLASS = 0x11 as "MLX5_PER_TRAFFIC_CLASS_COUNTERS_GROUP";
        PHYSICAL_LAYER = 0x12 as "MLX5_PHYSICAL_LAYER_COUNTERS_GROUP";
        PER_TRAFFIC_CLASS_CONGESTION = 0x13 as "MLX5_PER_TRAFFIC_CLASS_CONGESTION_GROUP";
        PHYSICAL_LAYER_STATISTICAL = 0x16 as "MLX5_PHYSICAL_LAYER_STATISTICAL_GROUP";
    }
}

impl Register for Ppcnt {
    const ID: RegisterId = RegisterId::PPCNT;
}

/// The layout of one counter group.
pub trait Counters: Layout {
    /// The group.
    const GROUP: CounterGroup;
}

impl Ppcnt {
    /// The counters as the layout of one group.
    pub fn counters<T: Counters>(&self) -> T {
        const { assert!(T::LEN <= 248) };
        T::read_from_prefix(&self.counter_set()).map_or_else(|_| T::default(), |(set, _)| set)
    }

    /// Puts the counters of one group in, and its number.
    pub fn set_counters<T: Counters>(&mut self, counters: &T) -> &mut Self {
        const { assert!(T::LEN <= 248) };
        let mut bytes = [0; 248];
        for (to, from) in bytes.iter_mut().zip(counters.as_bytes()) {
            *to = *from;
        }
        // Group numbers have six bits.
        crate::layout::carried(self.set_grp(T::GROUP.0 & 0x3f));
        self.set_counter_set(bytes)
    }
}

impl Counters for Ieee8023Counters {
    const GROUP: CounterGroup = CounterGroup::IEEE_802_3;
}

impl Counters for Rfc2863Counters {
    const GROUP: CounterGroup = CounterGroup::RFC_2863;
}

impl Counters for Rfc2819Counters {
    const GROUP: CounterGroup = CounterGroup::RFC_2819;
}

impl Counters for Rfc3635Counters {
    const GROUP: CounterGroup = CounterGroup::RFC_3635;
}

impl Counters for ExtendedCounters {
    const GROUP: CounterGroup = CounterGroup::EXTENDED;
}

impl Counters for PerPriorityCounters {
    const GROUP: CounterGroup = CounterGroup::PER_PRIORITY;
}

impl Counters for PhyCounters {
    const GROUP: CounterGroup = CounterGroup::PHYSICAL_LAYER;
}

impl Counters for PhyStatistics {
    const GROUP: CounterGroup = CounterGroup::PHYSICAL_LAYER_STATISTICAL;
}
