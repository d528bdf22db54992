//! Transport interfaces: TIS (send side), TIR (receive side), and RSS indirection tables.

use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Creates a transport interface (send).
    CreateTis = CREATE_TIS "create_tis", CreateTisIn => CreateTisOut;
    /// Changes a transport interface (send).
    ModifyTis = MODIFY_TIS "modify_tis", ModifyTisIn => PlainOut;
    /// Reads a transport interface (send) back.
    QueryTis = QUERY_TIS "query_tis", QueryTisIn => QueryTisOut;
    /// Destroys a transport interface (send).
    DestroyTis = DESTROY_TIS "destroy_tis", DestroyTisIn => PlainOut;
    /// Creates a transport interface (receive).
    CreateTir = CREATE_TIR "create_tir", CreateTirIn => CreateTirOut;
    /// Changes a transport interface (receive).
    ModifyTir = MODIFY_TIR "modify_tir", ModifyTirIn => PlainOut;
    /// Reads a transport interface (receive) back.
    QueryTir = QUERY_TIR "query_tir", QueryTirIn => QueryTirOut;
    /// Destroys a transport interface (receive).
    DestroyTir = DESTROY_TIR "destroy_tir", DestroyTirIn => PlainOut;
    /// Creates an indirection table.
    CreateRqt = CREATE_RQT "create_rqt", CreateRqtIn + 4 => CreateRqtOut;
    /// Changes an indirection table.
    ModifyRqt = MODIFY_RQT "modify_rqt", ModifyRqtIn + 4 => PlainOut;
    /// Reads an indirection table back.
    QueryRqt = QUERY_RQT "query_rqt", QueryRqtIn => QueryRqtOut + 4;
    /// Destroys an indirection table.
    DestroyRqt = DESTROY_RQT "destroy_rqt", DestroyRqtIn => PlainOut;
}

layout! {
    /// Transport interface send context.
    pub struct Tisc = "mlx5_ifc_tisc_bits", 160 bytes {
        strict_lag_tx_port_affinity set_strict_lag_tx_port_affinity: bool @ 0x0;
        tls_en set_tls_en: bool @ 0x1;
        lag_tx_port_affinity set_lag_tx_port_affinity: u8 @ 0x4 +4;
        /// Ethernet priority, in the upper three bits.
        prio set_prio: u8 @ 0xc +4;
        /// Transport domain.
        transport_domain set_transport_domain: u32 @ 0x128 +24;
        underlay_qpn set_underlay_qpn: u32 @ 0x148 +24;
        /// Protection domain, for offloads that need one.
        pd set_pd: u32 @ 0x168 +24;
    }

    /// Which packet fields an RSS hash reads.
    pub struct RxHashFieldSelect = "mlx5_ifc_rx_hash_field_select_bits", 4 bytes {
        /// An [`L3Protocol`]: packets of the other are not hashed.
        l3_prot_type set_l3_prot_type: bool @ 0x0;
        /// An [`L4Protocol`].
        l4_prot_type set_l4_prot_type: bool @ 0x1;
        /// Bits of [`RxHashField`].
        selected_fields set_selected_fields: u32 @ 0x2 +30;
    }

    /// Transport interface receive context.
    pub struct Tirc = "mlx5_ifc_tirc_bits", 240 bytes {
        /// A [`DispType`].
        disp_type set_disp_type: u8 @ 0x20 +4;
        tls_en set_tls_en: bool @ 0x24;
        lro_timeout_period_usecs set_lro_timeout_period_usecs: u16 @ 0x84 +16;
        /// Bits of [`PacketMerge`].
        packet_merge_mask set_packet_merge_mask: u8 @ 0x94 +4;
        /// In 256-byte units.
        lro_max_ip_payload_size set_lro_max_ip_payload_size: u8 @ 0x98 +8;
        /// Receive queue of a direct interface.
        inline_rqn set_inline_rqn: u32 @ 0xe8 +24;
        /// Both directions of a flow hash alike.
        rx_hash_symmetric set_rx_hash_symmetric: bool @ 0x100;
        tunneled_offload_en set_tunneled_offload_en: bool @ 0x102;
        /// Indirection table of an RSS interface.
        indirect_table set_indirect_table: u32 @ 0x108 +24;
        /// An [`RxHashFn`].
        rx_hash_fn set_rx_hash_fn: u8 @ 0x120 +4;
        /// Bits of [`SelfLbBlock`].
        self_lb_block set_self_lb_block: u8 @ 0x126 +2;
        /// Transport domain.
        transport_domain set_transport_domain: u32 @ 0x128 +24;
        rx_hash_toeplitz_key set_rx_hash_toeplitz_key: [u8; 40] @ 0x140;
        rx_hash_field_selector_outer set_rx_hash_field_selector_outer: RxHashFieldSelect @ 0x280;
        rx_hash_field_selector_inner set_rx_hash_field_selector_inner: RxHashFieldSelect @ 0x2a0;
    }

    /// RSS indirection table context; the tail is a list of [`RqNum`].
    pub struct Rqtc = "mlx5_ifc_rqtc_bits", 240 bytes {
        list_q_type set_list_q_type: u8 @ 0xa5 +3;
        /// Entries that the table can ever have.
        rqt_max_size set_rqt_max_size: u16 @ 0xb0 +16;
        rq_vhca_id_format set_rq_vhca_id_format: bool @ 0xc0;
        /// Entries that it has; a power of two.
        rqt_actual_size set_rqt_actual_size: u16 @ 0xd0 +16;
    }

    /// One entry of an indirection table.
    pub struct RqNum = "mlx5_ifc_rq_num_bits", 4 bytes {
        rq_num set_rq_num: u32 @ 0x8 +24;
    }

    /// Which fields `MODIFY_TIS` changes.
    pub struct TisBitmask = "mlx5_ifc_modify_tis_bitmask_bits", 8 bytes {
        lag_tx_port_affinity set_lag_tx_port_affinity: bool @ 0x3d;
        strict_lag_tx_port_affinity set_strict_lag_tx_port_affinity: bool @ 0x3e;
        prio set_prio: bool @ 0x3f;
    }

    /// Which fields `MODIFY_TIR` changes.
    pub struct TirBitmask = "mlx5_ifc_modify_tir_bitmask_bits", 8 bytes {
        self_lb_en set_self_lb_en: bool @ 0x3b;
        hash set_hash: bool @ 0x3d;
        packet_merge set_packet_merge: bool @ 0x3f;
    }

    /// Which fields `MODIFY_RQT` changes.
    pub struct RqtBitmask = "mlx5_ifc_rqt_bitmask_bits", 8 bytes {
        rqn_list set_rqn_list: bool @ 0x3f;
    }

    /// Input of `CREATE_TIS`.
    pub struct CreateTisIn = "mlx5_ifc_create_tis_in_bits", 192 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        ctx set_ctx: Tisc @ 0x100;
    }

    /// Output of `CREATE_TIS`.
    pub struct CreateTisOut = "mlx5_ifc_create_tis_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        tisn set_tisn: u32 @ 0x48 +24;
    }

    /// Input of `MODIFY_TIS`.
    pub struct ModifyTisIn = "mlx5_ifc_modify_tis_in_bits", 192 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tisn set_tisn: u32 @ 0x48 +24;
        bitmask set_bitmask: TisBitmask @ 0x80;
        ctx set_ctx: Tisc @ 0x100;
    }

    /// Input of `QUERY_TIS`.
    pub struct QueryTisIn = "mlx5_ifc_query_tis_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tisn set_tisn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_TIS`.
    pub struct QueryTisOut = "mlx5_ifc_query_tis_out_bits", 176 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        tis_context set_tis_context: Tisc @ 0x80;
    }

    /// Input of `DESTROY_TIS`.
    pub struct DestroyTisIn = "mlx5_ifc_destroy_tis_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tisn set_tisn: u32 @ 0x48 +24;
    }

    /// Input of `CREATE_TIR`.
    pub struct CreateTirIn = "mlx5_ifc_create_tir_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        ctx set_ctx: Tirc @ 0x100;
    }

    /// Output of `CREATE_TIR`.
    pub struct CreateTirOut = "mlx5_ifc_create_tir_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        icm_address_63_40 set_icm_address_63_40: u32 @ 0x8 +24;
        syndrome set_syndrome: u32 @ 0x20 +32;
        icm_address_39_32 set_icm_address_39_32: u8 @ 0x40 +8;
        tirn set_tirn: u32 @ 0x48 +24;
        icm_address_31_0 set_icm_address_31_0: u32 @ 0x60 +32;
    }

    /// Input of `MODIFY_TIR`.
    pub struct ModifyTirIn = "mlx5_ifc_modify_tir_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tirn set_tirn: u32 @ 0x48 +24;
        bitmask set_bitmask: TirBitmask @ 0x80;
        ctx set_ctx: Tirc @ 0x100;
    }

    /// Input of `QUERY_TIR`.
    pub struct QueryTirIn = "mlx5_ifc_query_tir_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tirn set_tirn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_TIR`.
    pub struct QueryTirOut = "mlx5_ifc_query_tir_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        tir_context set_tir_context: Tirc @ 0x100;
    }

    /// Input of `DESTROY_TIR`.
    pub struct DestroyTirIn = "mlx5_ifc_destroy_tir_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        tirn set_tirn: u32 @ 0x48 +24;
    }

    /// Input of `CREATE_RQT`.
    pub struct CreateRqtIn = "mlx5_ifc_create_rqt_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqt_context set_rqt_context: Rqtc @ 0x100;
    }

    /// Output of `CREATE_RQT`.
    pub struct CreateRqtOut = "mlx5_ifc_create_rqt_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        rqtn set_rqtn: u32 @ 0x48 +24;
    }

    /// Input of `MODIFY_RQT`.
    pub struct ModifyRqtIn = "mlx5_ifc_modify_rqt_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqtn set_rqtn: u32 @ 0x48 +24;
        bitmask set_bitmask: RqtBitmask @ 0x80;
        ctx set_ctx: Rqtc @ 0x100;
    }

    /// Input of `QUERY_RQT`.
    pub struct QueryRqtIn = "mlx5_ifc_query_rqt_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqtn set_rqtn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_RQT`.
    pub struct QueryRqtOut = "mlx5_ifc_query_rqt_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        rqt_context set_rqt_context: Rqtc @ 0x100;
    }

    /// Input of `DESTROY_RQT`.
    pub struct DestroyRqtIn = "mlx5_ifc_destroy_rqt_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqtn set_rqtn: u32 @ 0x48 +24;
    }
}

open_enum! {
    /// Where a TIR sends packets (`disp_type`).
    pub struct DispType(u8) = "MLX5_TIRC_DISP_TYPE_" {
        /// To `inline_rqn`.
        DIRECT = 0x0;
        /// Through `indirect_table`.
        INDIRECT = 0x1;
    }

    /// Hash of an RSS TIR (`rx_hash_fn`).
    pub struct RxHashFn(u8) = "MLX5_RX_HASH_FN_" {
        NONE = 0x0;
        INVERTED_XOR8 = 0x1;
        TOEPLITZ = 0x2;
    }

    /// Bit number in `selected_fields`.
    pub struct RxHashField(u8) = "MLX5_RX_HASH_FIELD_SELECT_SELECTED_FIELDS_" {
        SRC_IP = 0x0;
        DST_IP = 0x1;
        L4_SPORT = 0x2;
        L4_DPORT = 0x3;
        IPSEC_SPI = 0x4;
    }

    /// L3 protocol of a hash (`l3_prot_type`, one bit).
    pub struct L3Protocol(u8) = "MLX5_L3_PROT_TYPE_" {
        IPV4 = 0x0;
        IPV6 = 0x1;
    }

    /// L4 protocol of a hash (`l4_prot_type`, one bit).
    pub struct L4Protocol(u8) = "MLX5_L4_PROT_TYPE_" {
        TCP = 0x0;
        UDP = 0x1;
    }

    /// Bits of `self_lb_block`: packets of the own function that a TIR does not take.
    pub struct SelfLbBlock(u8) = "MLX5_TIRC_SELF_LB_BLOCK_BLOCK_" {
        UNICAST = 0x1;
        MULTICAST = 0x2;
    }

    /// Bits of `packet_merge_mask`.
    pub struct PacketMerge(u8) = "MLX5_TIRC_PACKET_MERGE_MASK_" {
        IPV4_LRO = 0x1;
        IPV6_LRO = 0x2;
    }
}

impl RxHashField {
    /// Its bit in `selected_fields`.
    pub const fn bit(self) -> u32 {
        1 << (self.0 & 31)
    }
}
