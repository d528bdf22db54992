//! Receive queues.

use super::sq::Wq;
use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Creates a receive queue, in the reset state.
    CreateRq = CREATE_RQ "create_rq", CreateRqIn + 8 => CreateRqOut;
    /// Changes a receive queue's state or counter set.
    ModifyRq = MODIFY_RQ "modify_rq", ModifyRqIn + 8 => PlainOut;
    /// Reads a receive queue context back.
    QueryRq = QUERY_RQ "query_rq", QueryRqIn => QueryRqOut + 8;
    /// Destroys a receive queue.
    DestroyRq = DESTROY_RQ "destroy_rq", DestroyRqIn => PlainOut;
}

layout! {
    /// Receive queue context.
    pub struct Rqc = "mlx5_ifc_rqc_bits", 240 bytes {
        /// The reserved key may be used.
        rlky set_rlky: bool @ 0x0;
        /// Packets wait for buffers instead of being dropped.
        delay_drop_en set_delay_drop_en: bool @ 0x1;
        /// The frame check sequence is kept.
        scatter_fcs set_scatter_fcs: bool @ 0x2;
        /// VLAN tags stay in the packet (stripping is off).
        vsd set_vsd: bool @ 0x3;
        /// A [`MemRqType`].
        mem_rq_type set_mem_rq_type: u8 @ 0x4 +4;
        /// An [`RqState`].
        state set_state: u8 @ 0x8 +4;
        /// Posted WQEs are flushed with errors when the queue fails.
        flush_in_error_en set_flush_in_error_en: bool @ 0xd;
        hairpin set_hairpin: bool @ 0xe;
        /// A [`TimestampFormat`](super::sq::TimestampFormat).
        ts_format set_ts_format: u8 @ 0x1a +2;
        /// Comes back in completions where the function says so.
        user_index set_user_index: u32 @ 0x28 +24;
        /// Completion queue.
        cqn set_cqn: u32 @ 0x48 +24;
        /// Queue counter set that counts packets without a buffer.
        counter_set_id set_counter_set_id: u8 @ 0x60 +8;
        /// The shared pool, for [`MemRqType::RMP`].
        rmpn set_rmpn: u32 @ 0x88 +24;
        hairpin_peer_sq set_hairpin_peer_sq: u32 @ 0xa8 +24;
        hairpin_peer_vhca set_hairpin_peer_vhca: u16 @ 0xd0 +16;
        shampo_no_match_alignment_granularity
            set_shampo_no_match_alignment_granularity: u8 @ 0x126 +2;
        shampo_match_criteria_type set_shampo_match_criteria_type: u8 @ 0x12e +2;
        reservation_timeout set_reservation_timeout: u16 @ 0x130 +16;
        wq set_wq: Wq @ 0x180;
    }

    /// Input of `CREATE_RQ`.
    pub struct CreateRqIn = "mlx5_ifc_create_rq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        ctx set_ctx: Rqc @ 0x100;
    }

    /// Output of `CREATE_RQ`.
    pub struct CreateRqOut = "mlx5_ifc_create_rq_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        rqn set_rqn: u32 @ 0x48 +24;
    }

    /// Input of `MODIFY_RQ`.
    pub struct ModifyRqIn = "mlx5_ifc_modify_rq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        /// State that the queue is in now; the command is refused if it is not.
        rq_state set_rq_state: u8 @ 0x40 +4;
        rqn set_rqn: u32 @ 0x48 +24;
        /// Which fields apply besides the state: [`RqFields`].
        modify_bitmask set_modify_bitmask: u64 @ 0x80 +64;
        ctx set_ctx: Rqc @ 0x100;
    }

    /// Input of `QUERY_RQ`.
    pub struct QueryRqIn = "mlx5_ifc_query_rq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqn set_rqn: u32 @ 0x48 +24;
    }

    /// Output of `QUERY_RQ`.
    pub struct QueryRqOut = "mlx5_ifc_query_rq_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        rq_context set_rq_context: Rqc @ 0x100;
    }

    /// Input of `DESTROY_RQ`.
    pub struct DestroyRqIn = "mlx5_ifc_destroy_rq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        rqn set_rqn: u32 @ 0x48 +24;
    }
}

open_enum! {
    /// State of a receive queue (`state`, `rq_state`).
    pub struct RqState(u8) = "MLX5_RQC_STATE_" {
        RST = 0x0;
        RDY = 0x1;
        ERR = 0x3;
    }

    /// Whose memory a receive queue uses (`mem_rq_type`).
    pub struct MemRqType(u8) = "MLX5_RQC_MEM_RQ_TYPE_MEMORY_RQ_" {
        /// Its own ring.
        INLINE = 0x0;
        /// A pool that several queues share.
        RMP = 0x1;
    }

    /// Bits of `modify_bitmask` in `MODIFY_RQ`.
    pub struct RqFields(u64) = "MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_" {
        /// VLAN stripping.
        VSD = 0x2;
        SCATTER_FCS = 0x4;
        RQ_COUNTER_SET_ID = 0x8;
    }
}
