//! Send queues, and the work queue part that send and receive queues share.

use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Creates a send queue, in the reset state.
    CreateSq = CREATE_SQ "create_sq", CreateSqIn + 8 => CreateSqOut;
    /// Changes a send queue's state or rate limit.
    ModifySq = MODIFY_SQ "modify_sq", ModifySqIn + 8 => PlainOut;
    /// Reads a send queue context back.
    QuerySq = QUERY_SQ "query_sq", QuerySqIn => QuerySqOut + 8;
    /// Destroys a send queue.
    DestroySq = DESTROY_SQ "destroy_sq", DestroySqIn => PlainOut;
}

layout! {
    /// The ring of a send or receive queue.
    pub struct Wq = "mlx5_ifc_wq_bits", 192 bytes {
        /// A [`WqType`].
        wq_type set_wq_type: u8 @ 0x0 +4;
        wq_signature set_wq_signature: bool @ 0x4;
        /// An [`EndPadding`].
        end_padding_mode set_end_padding_mode: u8 @ 0x5 +2;
        cd_slave set_cd_slave: bool @ 0x7;
        hds_skip_first_sge set_hds_skip_first_sge: bool @ 0x20;
        log2_hds_buf_size set_log2_hds_buf_size: u8 @ 0x21 +3;
        /// Start of the ring in its first page, in 64-byte units.
        page_offset set_page_offset: u8 @ 0x2b +5;
        /// Low-water mark: fewer receive WQEs raise an event.
        lwm set_lwm: u16 @ 0x30 +16;
        /// Protection domain.
        pd set_pd: u32 @ 0x48 +24;
        /// UAR whose page rings the queue.
        uar_page set_uar_page: u32 @ 0x68 +24;
        /// Device address of the doorbell record.
        dbr_addr set_dbr_addr: u64 @ 0x80 +64;
        /// Index of the device.
        hw_counter set_hw_counter: u32 @ 0xc0 +32;
        /// Index that the device last read from the record.
        sw_counter set_sw_counter: u32 @ 0xe0 +32;
        /// Bytes of one entry, as a power of two.
        log_wq_stride set_log_wq_stride: u8 @ 0x10c +4;
        /// Page size of the ring, in powers of two above 4 KiB.
        log_wq_pg_sz set_log_wq_pg_sz: u8 @ 0x113 +5;
        /// Number of entries, as a power of two.
        log_wq_sz set_log_wq_sz: u8 @ 0x11b +5;
        /// `dbr_addr` is an offset into a user memory object.
        dbr_umem_valid set_dbr_umem_valid: bool @ 0x120;
        /// The ring lies in a user memory object; there is no page list.
        wq_umem_valid set_wq_umem_valid: bool @ 0x121;
        log_hairpin_num_packets set_log_hairpin_num_packets: u8 @ 0x123 +5;
        log_hairpin_data_sz set_log_hairpin_data_sz: u8 @ 0x12b +5;
        log_wqe_num_of_strides set_log_wqe_num_of_strides: u8 @ 0x134 +4;
        two_byte_shift_en set_two_byte_shift_en: bool @ 0x138;
        log_wqe_stride_size set_log_wqe_stride_size: u8 @ 0x13d +3;
        dbr_umem_id set_dbr_umem_id: u32 @ 0x140 +32;
        wq_umem_id set_wq_umem_id: u32 @ 0x160 +32;
        wq_umem_offset set_wq_umem_offset: u64 @ 0x180 +64;
        headers_mkey set_headers_mkey: u32 @ 0x1c0 +32;
        shampo_enable set_shampo_enable: bool @ 0x1e0;
        log_reservation_size set_log_reservation_size: u8 @ 0x1e5 +3;
        log_max_num_of_packets_per_reservation
            set_log_max_num_of_packets_per_reservation: u8 @ 0x1ed +3;
        log_headers_entry_size set_log_headers_entry_size: u8 @ 0x1f6 +2;
        log_headers_buffer_entry_num set_log_headers_buffer_entry_num: u8 @ 0x1fc +4;
    }

    /// Send queue context.
    pub struct Sqc = "mlx5_ifc_sqc_bits", 240 bytes {
        /// The reserved key may be used.
        rlky set_rlky: bool @ 0x0;
        /// The queue may wait for others.
        cd_master set_cd_master: bool @ 0x1;
        fre set_fre: bool @ 0x2;
        /// Posted WQEs are flushed with errors when the queue fails.
        flush_in_error_en set_flush_in_error_en: bool @ 0x3;
        /// Multi-packet WQEs may be posted.
        allow_multi_pkt_send_wqe set_allow_multi_pkt_send_wqe: bool @ 0x4;
        /// An [`InlineMode`](crate::wqe::InlineMode).
        min_wqe_inline_mode set_min_wqe_inline_mode: u8 @ 0x5 +3;
        /// An [`SqState`].
        state set_state: u8 @ 0x8 +4;
        /// Key registrations may be posted.
        reg_umr set_reg_umr: bool @ 0xc;
        allow_swp set_allow_swp: bool @ 0xd;
        hairpin set_hairpin: bool @ 0xe;
        non_wire set_non_wire: bool @ 0xf;
        /// A [`TimestampFormat`].
        ts_format set_ts_format: u8 @ 0x1a +2;
        /// Comes back in completions where the function says so.
        user_index set_user_index: u32 @ 0x28 +24;
        /// Completion queue.
        cqn set_cqn: u32 @ 0x48 +24;
        hairpin_peer_rq set_hairpin_peer_rq: u32 @ 0x68 +24;
        hairpin_peer_vhca set_hairpin_peer_vhca: u16 @ 0x90 +16;
        ts_cqe_to_dest_cqn set_ts_cqe_to_dest_cqn: u32 @ 0xc8 +24;
        /// Rate limit, 0 for none.
        packet_pacing_rate_limit_index set_packet_pacing_rate_limit_index: u16 @ 0xf0 +16;
        /// Number of transport interfaces: 1.
        tis_lst_sz set_tis_lst_sz: u16 @ 0x100 +16;
        qos_queue_group_id set_qos_queue_group_id: u16 @ 0x110 +16;
        /// The transport interface.
        tis_num_0 set_tis_num_0: u32 @ 0x168 +24;
        wq set_wq: Wq @ 0x180;
    }

    /// Input of `CREATE_SQ`.
    pub struct CreateSqIn = "mlx5_ifc_create_sq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        ctx set_ctx: Sqc @ 0x100;
    }

    /// Output of `CREATE_SQ`.
    pub struct CreateSqOut = "mlx5_ifc_create_sq_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        sqn set_sqn: u32 @ 0x48 +24;
    }

    /// Input of `MODIFY_SQ`.
    pub struct ModifySqIn = "mlx5_ifc_modify_sq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        /// State that the queue is in now; the command is refused if it is not.
        sq_state set_sq_state: u8 @ 0x40 +4;
        sqn set_sqn: u32 @ 0x48 +24;
        /// Which fields apply besides the state: bit 0 the rate limit.
        modify_bitmask set_modify_bitmask: u64 @ 0x80 +64;
        ctx set_ctx: Sqc @ 0x100;
    }

    /// Input of `QUERY_SQ`.
    pub struct QuerySqIn = "mlx5_ifc_query_sq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        sqn set_sqn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_SQ`.
    pub struct QuerySqOut = "mlx5_ifc_query_sq_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        sq_context set_sq_context: Sqc @ 0x100;
    }

    /// Input of `DESTROY_SQ`.
    pub struct DestroySqIn = "mlx5_ifc_destroy_sq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        sqn set_sqn: u32 @ 0x48 +24;
    }
}

open_enum! {
    /// State of a send queue (`state`, `sq_state`).
    pub struct SqState(u8) = "MLX5_SQC_STATE_" {
        RST = 0x0;
        RDY = 0x1;
        ERR = 0x3;
    }

    /// Shape of a ring (`wq_type`).
    pub struct WqType(u8) = "MLX5_WQ_TYPE_" {
        LINKED_LIST = 0x0;
        CYCLIC = 0x1;
        LINKED_LIST_STRIDING_RQ = 0x2;
        CYCLIC_STRIDING_RQ = 0x3;
    }

    /// Whether received data is padded to a cache line (`end_padding_mode`).
    pub struct EndPadding(u8) = "MLX5_WQ_END_PAD_MODE_" {
        NONE = 0x0;
        ALIGN = 0x1;
    }

    /// What clock completions show (`ts_format`).
    pub struct TimestampFormat(u8) = "MLX5_TIMESTAMP_FORMAT_" {
        FREE_RUNNING = 0x0;
        DEFAULT = 0x1;
        REAL_TIME = 0x2;
    }
}
