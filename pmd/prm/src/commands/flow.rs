//! Flow tables, groups and entries.

use super::matching::FteMatchParam;
use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Creates a flow table.
    CreateFlowTable = CREATE_FLOW_TABLE "create_flow_table",
        CreateFlowTableIn => CreateFlowTableOut;
    /// Changes a flow table's miss action.
    ModifyFlowTable = MODIFY_FLOW_TABLE "modify_flow_table", ModifyFlowTableIn => PlainOut;
    /// Reads a flow table back.
    QueryFlowTable = QUERY_FLOW_TABLE "query_flow_table", QueryFlowTableIn => QueryFlowTableOut;
    /// Destroys a flow table.
    DestroyFlowTable = DESTROY_FLOW_TABLE "destroy_flow_table", DestroyFlowTableIn => PlainOut;
    /// Makes a table the first one that packets meet.
    SetFlowTableRoot = SET_FLOW_TABLE_ROOT "set_flow_table_root", SetFlowTableRootIn => PlainOut;
    /// Creates a group of entries with one mask.
    CreateFlowGroup = CREATE_FLOW_GROUP "create_flow_group",
        CreateFlowGroupIn => CreateFlowGroupOut;
    /// Reads a group back.
    QueryFlowGroup = QUERY_FLOW_GROUP "query_flow_group", QueryFlowGroupIn => QueryFlowGroupOut;
    /// Destroys a group.
    DestroyFlowGroup = DESTROY_FLOW_GROUP "destroy_flow_group", DestroyFlowGroupIn => PlainOut;
    /// Creates or changes an entry.
    SetFlowTableEntry = SET_FLOW_TABLE_ENTRY "set_fte", SetFlowTableEntryIn + 8 => PlainOut;
    /// Reads an entry back.
    QueryFlowTableEntry = QUERY_FLOW_TABLE_ENTRY "query_fte",
        QueryFlowTableEntryIn => QueryFlowTableEntryOut + 8;
    /// Deletes an entry.
    DeleteFlowTableEntry = DELETE_FLOW_TABLE_ENTRY "delete_fte", DeleteFlowTableEntryIn => PlainOut;
}

layout! {
    /// Flow table context.
    pub struct FlowTableContext = "mlx5_ifc_flow_table_context_bits", 40 bytes {
        reformat_en set_reformat_en: bool @ 0x0;
        decap_en set_decap_en: bool @ 0x1;
        /// Software steering owns the table.
        sw_owner set_sw_owner: bool @ 0x2;
        termination_table set_termination_table: bool @ 0x3;
        /// A [`MissAction`].
        table_miss_action set_table_miss_action: u8 @ 0x4 +4;
        /// Packets go from lower levels to higher ones only.
        level set_level: u8 @ 0x8 +8;
        rtc_valid set_rtc_valid: bool @ 0x10;
        /// Number of entries, as a power of two.
        log_size set_log_size: u8 @ 0x18 +8;
        /// Table for [`MissAction::FWD`].
        table_miss_id set_table_miss_id: u32 @ 0x28 +24;
        lag_master_next_table_id set_lag_master_next_table_id: u32 @ 0x48 +24;
        sw_owner_icm_root_1 set_sw_owner_icm_root_1: u64 @ 0xc0 +64 as "sws.sw_owner_icm_root_1";
        sw_owner_icm_root_0 set_sw_owner_icm_root_0: u64 @ 0x100 +64 as "sws.sw_owner_icm_root_0";
    }

    /// A VLAN tag to push.
    pub struct VlanTag = "mlx5_ifc_vlan_bits", 4 bytes {
        ethtype set_ethtype: u16 @ 0x0 +16;
        prio set_prio: u8 @ 0x10 +3;
        cfi set_cfi: bool @ 0x13;
        vid set_vid: u16 @ 0x14 +12;
    }

    /// One destination of a flow entry.
    pub struct Destination = "mlx5_ifc_dest_format_struct_bits", 8 bytes {
        /// A [`DestinationType`].
        destination_type set_destination_type: u8 @ 0x0 +8;
        /// Number of the table, interface or port.
        destination_id set_destination_id: u32 @ 0x8 +24;
        destination_eswitch_owner_vhca_id_valid
            set_destination_eswitch_owner_vhca_id_valid: bool @ 0x20;
        packet_reformat set_packet_reformat: bool @ 0x21;
        destination_table_type set_destination_table_type: u8 @ 0x28 +8;
        destination_eswitch_owner_vhca_id set_destination_eswitch_owner_vhca_id: u16 @ 0x30 +16;
    }

    /// One counter of a flow entry; stands after the destinations.
    pub struct CounterEntry = "mlx5_ifc_flow_counter_list_bits", 8 bytes {
        flow_counter_id set_flow_counter_id: u32 @ 0x0 +32;
    }

    /// Flow entry context; the tail is the list of [`Destination`] and [`CounterEntry`].
    pub struct FlowContext = "mlx5_ifc_flow_context_bits", 768 bytes {
        push_vlan set_push_vlan: VlanTag @ 0x0;
        /// Group whose mask the entry has.
        group_id set_group_id: u32 @ 0x20 +32;
        /// Comes back in completions.
        flow_tag set_flow_tag: u32 @ 0x48 +24;
        /// Bits of [`FlowAction`].
        action set_action: u16 @ 0x70 +16;
        extended_destination set_extended_destination: bool @ 0x80;
        uplink_hairpin_en set_uplink_hairpin_en: bool @ 0x81;
        flow_source set_flow_source: u8 @ 0x82 +2;
        encrypt_decrypt_type set_encrypt_decrypt_type: u8 @ 0x84 +4;
        /// Destinations at the start of the tail.
        destination_list_size set_destination_list_size: u32 @ 0x88 +24;
        /// Counters after them.
        flow_counter_list_size set_flow_counter_list_size: u32 @ 0xa8 +24;
        packet_reformat_id set_packet_reformat_id: u32 @ 0xc0 +32;
        modify_header_id set_modify_header_id: u32 @ 0xe0 +32;
        push_vlan_2 set_push_vlan_2: VlanTag @ 0x100;
        encrypt_decrypt_obj_id set_encrypt_decrypt_obj_id: u32 @ 0x120 +32;
        /// Read under the mask of the group.
        match_value set_match_value: FteMatchParam @ 0x200;
    }

    /// Input of `CREATE_FLOW_TABLE`.
    pub struct CreateFlowTableIn = "mlx5_ifc_create_flow_table_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        /// A [`TableType`].
        table_type set_table_type: u8 @ 0x80 +8;
        flow_table_context set_flow_table_context: FlowTableContext @ 0xc0;
    }

    /// Output of `CREATE_FLOW_TABLE`.
    pub struct CreateFlowTableOut = "mlx5_ifc_create_flow_table_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        icm_address_63_40 set_icm_address_63_40: u32 @ 0x8 +24;
        syndrome set_syndrome: u32 @ 0x20 +32;
        icm_address_39_32 set_icm_address_39_32: u8 @ 0x40 +8;
        table_id set_table_id: u32 @ 0x48 +24;
        icm_address_31_0 set_icm_address_31_0: u32 @ 0x60 +32;
    }

    /// Input of `MODIFY_FLOW_TABLE`.
    pub struct ModifyFlowTableIn = "mlx5_ifc_modify_flow_table_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        /// Bits of [`TableFields`].
        modify_field_select set_modify_field_select: u16 @ 0x70 +16;
        /// A [`TableType`].
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        flow_table_context set_flow_table_context: FlowTableContext @ 0xc0;
    }

    /// Input of `QUERY_FLOW_TABLE`.
    pub struct QueryFlowTableIn = "mlx5_ifc_query_flow_table_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
    }

    /// Output of `QUERY_FLOW_TABLE`.
    pub struct QueryFlowTableOut = "mlx5_ifc_query_flow_table_out_bits", 64 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        flow_table_context set_flow_table_context: FlowTableContext @ 0xc0;
    }

    /// Input of `DESTROY_FLOW_TABLE`.
    pub struct DestroyFlowTableIn = "mlx5_ifc_destroy_flow_table_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
    }

    /// Input of `SET_FLOW_TABLE_ROOT`.
    pub struct SetFlowTableRootIn = "mlx5_ifc_set_flow_table_root_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_of_other_vport set_table_of_other_vport: bool @ 0x8f;
        table_vport_number set_table_vport_number: u16 @ 0x90 +16;
        table_id set_table_id: u32 @ 0xa8 +24;
        underlay_qpn set_underlay_qpn: u32 @ 0xc8 +24;
        table_eswitch_owner_vhca_id_valid set_table_eswitch_owner_vhca_id_valid: bool @ 0xe0;
        table_eswitch_owner_vhca_id set_table_eswitch_owner_vhca_id: u16 @ 0xf0 +16;
    }

    /// Input of `CREATE_FLOW_GROUP`.
    pub struct CreateFlowGroupIn = "mlx5_ifc_create_flow_group_in_bits", 1024 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        /// A [`TableType`].
        table_type set_table_type: u8 @ 0x80 +8;
        group_type set_group_type: u8 @ 0x8c +4;
        table_id set_table_id: u32 @ 0xa8 +24;
        source_eswitch_owner_vhca_id_valid set_source_eswitch_owner_vhca_id_valid: bool @ 0xc0;
        /// First entry of the group.
        start_flow_index set_start_flow_index: u32 @ 0xe0 +32;
        /// Last entry of the group, itself included.
        end_flow_index set_end_flow_index: u32 @ 0x120 +32;
        match_definer_id set_match_definer_id: u16 @ 0x150 +16;
        /// Bits of [`MatchCriteria`].
        match_criteria_enable set_match_criteria_enable: u8 @ 0x1f8 +8;
        match_criteria set_match_criteria: FteMatchParam @ 0x200;
    }

    /// Output of `CREATE_FLOW_GROUP`.
    pub struct CreateFlowGroupOut = "mlx5_ifc_create_flow_group_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        group_id set_group_id: u32 @ 0x48 +24;
    }

    /// Input of `QUERY_FLOW_GROUP`.
    pub struct QueryFlowGroupIn = "mlx5_ifc_query_flow_group_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        group_id set_group_id: u32 @ 0xc0 +32;
    }

    /// Output of `QUERY_FLOW_GROUP`.
    pub struct QueryFlowGroupOut = "mlx5_ifc_query_flow_group_out_bits", 1024 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        start_flow_index set_start_flow_index: u32 @ 0xe0 +32;
        end_flow_index set_end_flow_index: u32 @ 0x120 +32;
        match_criteria_enable set_match_criteria_enable: u8 @ 0x1f8 +8;
        match_criteria set_match_criteria: FteMatchParam @ 0x200;
    }

    /// Input of `DESTROY_FLOW_GROUP`.
    pub struct DestroyFlowGroupIn = "mlx5_ifc_destroy_flow_group_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        group_id set_group_id: u32 @ 0xc0 +32;
    }

    /// Input of `SET_FLOW_TABLE_ENTRY`.
    pub struct SetFlowTableEntryIn = "mlx5_ifc_set_fte_in_bits", 832 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        /// A [`TableType`].
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        ignore_flow_level set_ignore_flow_level: bool @ 0xc0;
        /// Bits numbered by [`EntryField`]; `op_mod` 1 changes an entry, 0 makes one.
        modify_enable_mask set_modify_enable_mask: u8 @ 0xd8 +8;
        /// Place of the entry in the table.
        flow_index set_flow_index: u32 @ 0x100 +32;
        flow_context set_flow_context: FlowContext @ 0x200;
    }

    /// Input of `QUERY_FLOW_TABLE_ENTRY`.
    pub struct QueryFlowTableEntryIn = "mlx5_ifc_query_fte_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        flow_index set_flow_index: u32 @ 0x100 +32;
    }

    /// Output of `QUERY_FLOW_TABLE_ENTRY`.
    pub struct QueryFlowTableEntryOut = "mlx5_ifc_query_fte_out_bits", 832 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        flow_context set_flow_context: FlowContext @ 0x200;
    }

    /// Input of `DELETE_FLOW_TABLE_ENTRY`.
    pub struct DeleteFlowTableEntryIn = "mlx5_ifc_delete_fte_in_bits", 64 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        table_type set_table_type: u8 @ 0x80 +8;
        table_id set_table_id: u32 @ 0xa8 +24;
        flow_index set_flow_index: u32 @ 0x100 +32;
    }
}

open_enum! {
    /// Where a flow table stands (`table_type`).
    pub struct TableType(u8) = "MLX5_FLOW_TABLE_TYPE_" {
        NIC_RX = 0x0;
        NIC_TX = 0x1;
        ESW_EGRESS_ACL = 0x2;
        ESW_INGRESS_ACL = 0x3;
        FDB = 0x4;
        SNIFFER_RX = 0x5;
        SNIFFER_TX = 0x6;
    }

    /// What happens to packets that no entry matches (`table_miss_action`).
    pub struct MissAction(u8) = "MLX5_FLOW_TABLE_MISS_ACTION_" {
        /// The default of the table's place.
        DEF = 0x0;
        /// They go on to `table_miss_id`.
        FWD = 0x1;
        SWITCH_DOMAIN = 0x2;
    }

    /// Bits of `action`.
    pub struct FlowAction(u16) = "MLX5_FLOW_CONTEXT_ACTION_" {
        ALLOW = 0x1;
        DROP = 0x2;
        FWD_DEST = 0x4;
        COUNT = 0x8;
        PACKET_REFORMAT = 0x10;
        DECAP = 0x20;
        MOD_HDR = 0x40;
        VLAN_POP = 0x80;
        VLAN_PUSH = 0x100;
        VLAN_POP_2 = 0x400;
        VLAN_PUSH_2 = 0x800;
        CRYPTO_DECRYPT = 0x1000;
        CRYPTO_ENCRYPT = 0x2000;
        EXECUTE_ASO = 0x4000;
    }

    /// Kind of a destination (`destination_type`).
    pub struct DestinationType(u8) = "MLX5_IFC_FLOW_DESTINATION_TYPE_" {
        VPORT = 0x0;
        FLOW_TABLE = 0x1;
        TIR = 0x2;
        FLOW_SAMPLER = 0x6;
        UPLINK = 0x8;
        TABLE_TYPE = 0xa;
    }

    /// Bit number in `modify_enable_mask` of `SET_FLOW_TABLE_ENTRY`.
    pub struct EntryField(u8) = "MLX5_SET_FTE_MODIFY_ENABLE_MASK_" {
        ACTION = 0x0;
        FLOW_TAG = 0x1;
        DESTINATION_LIST = 0x2;
        FLOW_COUNTERS = 0x3;
        IPSEC_OBJ_ID = 0x4;
    }

    /// Bits of `match_criteria_enable`.
    pub struct MatchCriteria(u8) = "MLX5_MATCH_" {
        OUTER_HEADERS = 0x1;
        MISC_PARAMETERS = 0x2;
        INNER_HEADERS = 0x4;
        MISC_PARAMETERS_2 = 0x8;
        MISC_PARAMETERS_3 = 0x10;
        MISC_PARAMETERS_4 = 0x20;
        MISC_PARAMETERS_5 = 0x40;
    }

    /// Bits of `modify_field_select` in `MODIFY_FLOW_TABLE`.
    pub struct TableFields(u16) = "MLX5_MODIFY_FLOW_TABLE_" {
        MISS_TABLE_ID = 0x1;
        LAG_NEXT_TABLE_ID = 0x8000;
    }
}
