//! The virtual port: state, MAC addresses, MTU, promiscuous modes, counters.

use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Reads link state and administrative state.
    QueryVportState = QUERY_VPORT_STATE "query_vport_state",
        QueryVportStateIn => QueryVportStateOut;
    /// Sets the administrative state.
    ModifyVportState = MODIFY_VPORT_STATE "modify_vport_state", ModifyVportStateIn => PlainOut;
    /// Reads the context; `allowed_list_type` chooses the list.
    QueryNicVportContext = QUERY_NIC_VPORT_CONTEXT "query_nic_vport_context",
        QueryNicVportContextIn => QueryNicVportContextOut + 8;
    /// Changes the selected fields of the context.
    ModifyNicVportContext = MODIFY_NIC_VPORT_CONTEXT "modify_nic_vport_context",
        ModifyNicVportContextIn + 8 => PlainOut;
    /// Reads the traffic counters of the port.
    QueryVportCounter = QUERY_VPORT_COUNTER "query_vport_counter",
        QueryVportCounterIn => QueryVportCounterOut;
    /// Reads the diagnostic counters of the port.
    QueryVnicEnv = QUERY_VNIC_ENV "query_vnic_env", QueryVnicEnvIn => QueryVnicEnvOut;
}

layout! {
    /// One MAC address of a list.
    pub struct MacAddress = "mlx5_ifc_mac_address_layout_bits", 8 bytes {
        /// The address in wire order.
        mac set_mac: [u8; 6] @ 0x10 span "mac_addr_47_32" "mac_addr_31_0";
    }

    /// One VLAN of a list.
    pub struct VlanEntry = "mlx5_ifc_vlan_layout_bits", 8 bytes {
        vlan set_vlan: u16 @ 0x14 +12;
    }

    /// Context of a NIC virtual port; the tail is the list of [`MacAddress`] or [`VlanEntry`].
    pub struct NicVportContext = "mlx5_ifc_nic_vport_context_bits", 256 bytes {
        /// An [`InlineMode`](crate::wqe::InlineMode).
        min_wqe_inline_mode set_min_wqe_inline_mode: u8 @ 0x5 +3;
        disable_mc_local_lb set_disable_mc_local_lb: bool @ 0x1d;
        disable_uc_local_lb set_disable_uc_local_lb: bool @ 0x1e;
        roce_en set_roce_en: bool @ 0x1f;
        /// Changes raise an event, once.
        arm_change_event set_arm_change_event: bool @ 0x20;
        event_on_mtu set_event_on_mtu: bool @ 0x3b;
        event_on_promisc_change set_event_on_promisc_change: bool @ 0x3c;
        event_on_vlan_change set_event_on_vlan_change: bool @ 0x3d;
        event_on_mc_address_change set_event_on_mc_address_change: bool @ 0x3e;
        event_on_uc_address_change set_event_on_uc_address_change: bool @ 0x3f;
        vhca_id_type set_vhca_id_type: bool @ 0x40;
        affiliation_criteria set_affiliation_criteria: u8 @ 0x4c +4;
        affiliated_vhca_id set_affiliated_vhca_id: u16 @ 0x50 +16;
        sd_group set_sd_group: u8 @ 0x101 +3;
        /// Largest packet, Ethernet header included.
        mtu set_mtu: u16 @ 0x130 +16;
        system_image_guid set_system_image_guid: u64 @ 0x140 +64;
        port_guid set_port_guid: u64 @ 0x180 +64;
        node_guid set_node_guid: u64 @ 0x1c0 +64;
        qkey_violation_counter set_qkey_violation_counter: u16 @ 0x340 +16;
        /// All unicast packets are taken.
        promisc_uc set_promisc_uc: bool @ 0x780;
        /// All multicast packets are taken.
        promisc_mc set_promisc_mc: bool @ 0x781;
        /// All packets are taken.
        promisc_all set_promisc_all: bool @ 0x782;
        /// A [`VportList`].
        allowed_list_type set_allowed_list_type: u8 @ 0x785 +3;
        /// Entries of the tail.
        allowed_list_size set_allowed_list_size: u16 @ 0x794 +12;
        /// The address of the port.
        permanent_address set_permanent_address: MacAddress @ 0x7a0;
    }

    /// Which fields `MODIFY_NIC_VPORT_CONTEXT` changes.
    pub struct NicVportFieldSelect = "mlx5_ifc_modify_nic_vport_field_select_bits", 4 bytes {
        affiliation set_affiliation: bool @ 0x12;
        disable_uc_local_lb set_disable_uc_local_lb: bool @ 0x14;
        disable_mc_local_lb set_disable_mc_local_lb: bool @ 0x15;
        node_guid set_node_guid: bool @ 0x16;
        port_guid set_port_guid: bool @ 0x17;
        min_inline set_min_inline: bool @ 0x18;
        mtu set_mtu: bool @ 0x19;
        change_event set_change_event: bool @ 0x1a;
        promisc set_promisc: bool @ 0x1b;
        permanent_address set_permanent_address: bool @ 0x1c;
        addresses_list set_addresses_list: bool @ 0x1d;
        roce_en set_roce_en: bool @ 0x1e;
    }

    /// Packets and octets.
    pub struct TrafficCounter = "mlx5_ifc_traffic_counter_bits", 16 bytes {
        packets set_packets: u64 @ 0x0 +64;
        octets set_octets: u64 @ 0x40 +64;
    }

    /// Diagnostic counters of a virtual port.
    pub struct VnicDiagnostics = "mlx5_ifc_vnic_diagnostic_statistics_bits", 512 bytes {
        counter_error_queues set_counter_error_queues: u32 @ 0x0 +32;
        total_error_queues set_total_error_queues: u32 @ 0x20 +32;
        send_queue_priority_update_flow set_send_queue_priority_update_flow: u32 @ 0x40 +32;
        nic_receive_steering_discard set_nic_receive_steering_discard: u64 @ 0x80 +64;
        receive_discard_vport_down set_receive_discard_vport_down: u64 @ 0xc0 +64;
        transmit_discard_vport_down set_transmit_discard_vport_down: u64 @ 0x100 +64;
        async_eq_overrun set_async_eq_overrun: u32 @ 0x140 +32;
        comp_eq_overrun set_comp_eq_overrun: u32 @ 0x160 +32;
        invalid_command set_invalid_command: u32 @ 0x1a0 +32;
        quota_exceeded_command set_quota_exceeded_command: u32 @ 0x1c0 +32;
        internal_rq_out_of_buffer set_internal_rq_out_of_buffer: u32 @ 0x1e0 +32;
        cq_overrun set_cq_overrun: u32 @ 0x200 +32;
        eth_wqe_too_small set_eth_wqe_too_small: u32 @ 0x220 +32;
        generated_pkt_steering_fail set_generated_pkt_steering_fail: u64 @ 0x300 +64;
        handled_pkt_steering_fail set_handled_pkt_steering_fail: u64 @ 0x340 +64;
    }

    /// Input of `QUERY_VPORT_STATE`.
    pub struct QueryVportStateIn = "mlx5_ifc_query_vport_state_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
    }

    /// Output of `QUERY_VPORT_STATE`.
    pub struct QueryVportStateOut = "mlx5_ifc_query_vport_state_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        /// A [`VportAdminState`].
        admin_state set_admin_state: u8 @ 0x78 +4;
        /// A [`VportState`].
        state set_state: u8 @ 0x7c +4;
    }

    /// Input of `MODIFY_VPORT_STATE`.
    pub struct ModifyVportStateIn = "mlx5_ifc_modify_vport_state_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        admin_state set_admin_state: u8 @ 0x78 +4;
    }

    /// Input of `QUERY_NIC_VPORT_CONTEXT`.
    pub struct QueryNicVportContextIn = "mlx5_ifc_query_nic_vport_context_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        allowed_list_type set_allowed_list_type: u8 @ 0x65 +3;
    }

    /// Output of `QUERY_NIC_VPORT_CONTEXT`.
    pub struct QueryNicVportContextOut = "mlx5_ifc_query_nic_vport_context_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        nic_vport_context set_nic_vport_context: NicVportContext @ 0x80;
    }

    /// Input of `MODIFY_NIC_VPORT_CONTEXT`.
    pub struct ModifyNicVportContextIn = "mlx5_ifc_modify_nic_vport_context_in_bits", 512 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        field_select set_field_select: NicVportFieldSelect @ 0x60;
        nic_vport_context set_nic_vport_context: NicVportContext @ 0x800;
    }

    /// Input of `QUERY_VPORT_COUNTER`.
    pub struct QueryVportCounterIn = "mlx5_ifc_query_vport_counter_in_bits", 32 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        port_num set_port_num: u8 @ 0x4c +4;
        vport_number set_vport_number: u16 @ 0x50 +16;
        clear set_clear: bool @ 0xc0;
    }

    /// Output of `QUERY_VPORT_COUNTER`.
    pub struct QueryVportCounterOut = "mlx5_ifc_query_vport_counter_out_bits", 528 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        received_errors set_received_errors: TrafficCounter @ 0x80;
        transmit_errors set_transmit_errors: TrafficCounter @ 0x100;
        received_ib_unicast set_received_ib_unicast: TrafficCounter @ 0x180;
        transmitted_ib_unicast set_transmitted_ib_unicast: TrafficCounter @ 0x200;
        received_ib_multicast set_received_ib_multicast: TrafficCounter @ 0x280;
        transmitted_ib_multicast set_transmitted_ib_multicast: TrafficCounter @ 0x300;
        received_eth_broadcast set_received_eth_broadcast: TrafficCounter @ 0x380;
        transmitted_eth_broadcast set_transmitted_eth_broadcast: TrafficCounter @ 0x400;
        received_eth_unicast set_received_eth_unicast: TrafficCounter @ 0x480;
        transmitted_eth_unicast set_transmitted_eth_unicast: TrafficCounter @ 0x500;
        received_eth_multicast set_received_eth_multicast: TrafficCounter @ 0x580;
        transmitted_eth_multicast set_transmitted_eth_multicast: TrafficCounter @ 0x600;
        local_loopback set_local_loopback: TrafficCounter @ 0x680;
    }

    /// Input of `QUERY_VNIC_ENV`.
    pub struct QueryVnicEnvIn = "mlx5_ifc_query_vnic_env_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
    }

    /// Output of `QUERY_VNIC_ENV`.
    pub struct QueryVnicEnvOut = "mlx5_ifc_query_vnic_env_out_bits", 528 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        vport_env set_vport_env: VnicDiagnostics @ 0x80;
    }
}

open_enum! {
    /// Whose state `QUERY_VPORT_STATE` reads (`op_mod`).
    pub struct VportStateKind(u16) = "MLX5_VPORT_STATE_OP_MOD_" {
        VNIC_VPORT = 0x0;
        ESW_VPORT = 0x1;
        UPLINK = 0x2;
    }

    /// State of a virtual port (`state`).
    pub struct VportState(u8) = "MLX5_QUERY_VPORT_STATE_OUT_STATE_" {
        DOWN = 0x0;
        UP = 0x1;
    }

    /// Administrative state of a virtual port (`admin_state`).
    pub struct VportAdminState(u8) = "MLX5_VPORT_ADMIN_STATE_" {
        DOWN = 0x0;
        UP = 0x1;
        AUTO = 0x2;
    }

    /// Which list of the context is meant (`allowed_list_type`).
    pub struct VportList(u8) = "MLX5_NVPRT_LIST_TYPE_" {
        UC = 0x0;
        MC = 0x1;
        VLAN = 0x2;
    }
}
