//! Completion queues.

use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Creates a completion queue.
    CreateCq = CREATE_CQ "create_cq", CreateCqIn + 8 => CreateCqOut;
    /// Changes moderation, event queue or size.
    ModifyCq = MODIFY_CQ "modify_cq", ModifyCqIn + 8 => PlainOut;
    /// Reads a completion queue context back.
    QueryCq = QUERY_CQ "query_cq", QueryCqIn => QueryCqOut + 8;
    /// Destroys a completion queue.
    DestroyCq = DESTROY_CQ "destroy_cq", DestroyCqIn => PlainOut;
}

layout! {
    /// Completion queue context.
    pub struct Cqc = "mlx5_ifc_cqc_bits", 64 bytes {
        /// A [`CqStatus`].
        status set_status: u8 @ 0x0 +4;
        /// `dbr_addr` is an offset into a user memory object.
        dbr_umem_valid set_dbr_umem_valid: bool @ 0x6;
        apu_cq set_apu_cq: bool @ 0x7;
        /// A [`CqeSize`].
        cqe_sz set_cqe_sz: u8 @ 0x8 +3;
        /// Collapsed: all completions go to the first entry.
        cc set_cc: bool @ 0xb;
        scqe_break_moderation_en set_scqe_break_moderation_en: bool @ 0xd;
        /// Overrun is ignored; without it a full queue is an error.
        oi set_oi: bool @ 0xe;
        /// A [`CqPeriodMode`].
        cq_period_mode set_cq_period_mode: u8 @ 0xf +2;
        cqe_comp_en set_cqe_comp_en: bool @ 0x11;
        mini_cqe_res_format set_mini_cqe_res_format: u8 @ 0x12 +2;
        /// A [`CqState`].
        st set_st: u8 @ 0x14 +4;
        cqe_compression_layout set_cqe_compression_layout: u8 @ 0x1e +2;
        /// Start of the ring in its first page, in 64-byte units.
        page_offset set_page_offset: u8 @ 0x54 +6;
        /// Number of entries, as a power of two.
        log_cq_size set_log_cq_size: u8 @ 0x63 +5;
        /// UAR whose page arms the queue.
        uar_page set_uar_page: u32 @ 0x68 +24;
        /// Microseconds that an event may be held back.
        cq_period set_cq_period: u16 @ 0x84 +12;
        /// Completions that end the wait for an event early.
        cq_max_count set_cq_max_count: u16 @ 0x90 +16;
        /// Event queue that takes the events.
        c_eqn_or_apu_element set_c_eqn_or_apu_element: u32 @ 0xa0 +32;
        /// Page size of the ring, in powers of two above 4 KiB.
        log_page_size set_log_page_size: u8 @ 0xc3 +5;
        last_notified_index set_last_notified_index: u32 @ 0x108 +24;
        last_solicit_index set_last_solicit_index: u32 @ 0x128 +24;
        consumer_counter set_consumer_counter: u32 @ 0x148 +24;
        producer_counter set_producer_counter: u32 @ 0x168 +24;
        /// Device address of the doorbell record.
        dbr_addr set_dbr_addr: u64 @ 0x1c0 +64;
    }

    /// Input of `CREATE_CQ`.
    pub struct CreateCqIn = "mlx5_ifc_create_cq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        cq_context set_cq_context: Cqc @ 0x80;
        cq_umem_valid set_cq_umem_valid: bool @ 0x2e0;
    }

    /// Output of `CREATE_CQ`.
    pub struct CreateCqOut = "mlx5_ifc_create_cq_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        cqn set_cqn: u32 @ 0x48 +24;
    }

    /// Input of `MODIFY_CQ`.
    pub struct ModifyCqIn = "mlx5_ifc_modify_cq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        cqn set_cqn: u32 @ 0x48 +24;
        /// Which fields of the context apply: [`CqFields`].
        field_select set_field_select: u32 @ 0x60 +32
            as "modify_field_select_resize_field_select";
        cq_context set_cq_context: Cqc @ 0x80;
        cq_umem_valid set_cq_umem_valid: bool @ 0x2e0;
    }

    /// Input of `QUERY_CQ`.
    pub struct QueryCqIn = "mlx5_ifc_query_cq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        cqn set_cqn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_CQ`.
    pub struct QueryCqOut = "mlx5_ifc_query_cq_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        cq_context set_cq_context: Cqc @ 0x80;
    }

    /// Input of `DESTROY_CQ`.
    pub struct DestroyCqIn = "mlx5_ifc_destroy_cq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        cqn set_cqn: u32 @ 0x48 +24;
    }
}

open_enum! {
    /// Status of a completion queue (`status`).
    pub struct CqStatus(u8) = "MLX5_CQC_STATUS_" {
        OK = 0x0;
        CQ_OVERFLOW = 0x9;
        CQ_WRITE_FAIL = 0xa;
    }

    /// State of a completion queue (`st`).
    pub struct CqState(u8) = "MLX5_CQC_ST_" {
        SOLICITED_ARMED = 0x6 as "MLX5_CQC_ST_SOLICITED_NOTIFICATION_REQUEST_ARMED";
        ARMED = 0x9 as "MLX5_CQC_ST_NOTIFICATION_REQUEST_ARMED";
        FIRED = 0xa;
    }

    /// Distance of entries (`cqe_sz`).
    pub struct CqeSize(u8) = "MLX5_CQC_CQE_SZ_" {
        BYTES_64 = 0x0 as "MLX5_CQC_CQE_SZ_64_BYTES";
        BYTES_128 = 0x1 as "MLX5_CQC_CQE_SZ_128_BYTES";
    }

    /// When the moderation period starts (`cq_period_mode`).
    pub struct CqPeriodMode(u8) = "MLX5_CQ_PERIOD_MODE_" {
        START_FROM_EQE = 0x0;
        START_FROM_CQE = 0x1;
    }

    /// Variant of `MODIFY_CQ` (`op_mod`).
    pub struct ModifyCqAction(u16) = "MLX5_MODIFY_CQ_IN_OP_MOD_" {
        MODIFY = 0x0 as "MLX5_MODIFY_CQ_IN_OP_MOD_MODIFY_CQ";
        RESIZE = 0x1 as "MLX5_MODIFY_CQ_IN_OP_MOD_RESIZE_CQ";
    }

    /// Bits of `field_select` in `MODIFY_CQ`.
    pub struct CqFields(u32) = "MLX5_MODIFY_FIELD_SELECT_MODIFY_FIELD_SELECT_" {
        CQ_PERIOD = 0x1;
        CQ_MAX_COUNT = 0x2;
        OI = 0x4;
        C_EQN = 0x8;
        CQ_PERIOD_MODE = 0x10 as "MLX5_CQ_MODIFY_PERIOD_MODE";
    }
}
