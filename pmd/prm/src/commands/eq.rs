//! Doorbell pages (UARs) and event queues.

use crate::command::{PlainOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Allocates a doorbell page.
    AllocUar = ALLOC_UAR "alloc_uar", AllocUarIn => AllocUarOut;
    /// Frees a doorbell page.
    DeallocUar = DEALLOC_UAR "dealloc_uar", DeallocUarIn => PlainOut;
    /// Creates an event queue.
    CreateEq = CREATE_EQ "create_eq", CreateEqIn + 8 => CreateEqOut;
    /// Reads an event queue context back.
    QueryEq = QUERY_EQ "query_eq", QueryEqIn => QueryEqOut + 8;
    /// Destroys an event queue.
    DestroyEq = DESTROY_EQ "destroy_eq", DestroyEqIn => PlainOut;
    /// Makes the device raise a given event.
    GenEqe = GEN_EQE "gen_eqe", GenEqeIn => PlainOut;
}

layout! {
    /// Event queue context.
    pub struct Eqc = "mlx5_ifc_eqc_bits", 64 bytes {
        /// An [`EqStatus`].
        status set_status: u8 @ 0x0 +4;
        /// Collapsed: all events go to the first entry.
        ec set_ec: bool @ 0xd;
        /// Overrun is ignored.
        oi set_oi: bool @ 0xe;
        /// An [`EqState`].
        st set_st: u8 @ 0x14 +4;
        /// Start of the ring in its first page, in 64-byte units.
        page_offset set_page_offset: u8 @ 0x54 +6;
        /// Number of entries, as a power of two.
        log_eq_size set_log_eq_size: u8 @ 0x63 +5;
        /// UAR whose page holds the doorbell.
        uar_page set_uar_page: u32 @ 0x68 +24;
        /// Interrupt vector.
        intr set_intr: u16 @ 0xb4 +12;
        /// Page size of the ring, in powers of two above 4 KiB.
        log_page_size set_log_page_size: u8 @ 0xc3 +5;
        consumer_counter set_consumer_counter: u32 @ 0x148 +24;
        producer_counter set_producer_counter: u32 @ 0x168 +24;
    }

    /// Input of `ALLOC_UAR`.
    pub struct AllocUarIn = "mlx5_ifc_alloc_uar_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `ALLOC_UAR`.
    pub struct AllocUarOut = "mlx5_ifc_alloc_uar_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        uar set_uar: u32 @ 0x48 +24;
    }

    /// Input of `DEALLOC_UAR`.
    pub struct DeallocUarIn = "mlx5_ifc_dealloc_uar_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        uar set_uar: u32 @ 0x48 +24;
    }

    /// Input of `CREATE_EQ`.
    pub struct CreateEqIn = "mlx5_ifc_create_eq_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        eq_context_entry set_eq_context_entry: Eqc @ 0x80;
        event_bitmask set_event_bitmask: [u64; 4] @ 0x2c0;
    }

    /// Output of `CREATE_EQ`.
    pub struct CreateEqOut = "mlx5_ifc_create_eq_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        eq_number set_eq_number: u8 @ 0x58 +8;
    }

    /// Input of `QUERY_EQ`.
    pub struct QueryEqIn = "mlx5_ifc_query_eq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        eq_number set_eq_number: u8 @ 0x58 +8;
    }

    /// Output of `QUERY_EQ`.
    pub struct QueryEqOut = "mlx5_ifc_query_eq_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        eq_context_entry set_eq_context_entry: Eqc @ 0x80;
        event_bitmask set_event_bitmask: u64 @ 0x2c0 +64;
    }

    /// Input of `DESTROY_EQ`.
    pub struct DestroyEqIn = "mlx5_ifc_destroy_eq_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        eq_number set_eq_number: u8 @ 0x58 +8;
    }

    /// Input of `GEN_EQE`.
    pub struct GenEqeIn = "mlx5_ifc_gen_eqe_in_bits", 80 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        eq_number set_eq_number: u8 @ 0x58 +8;
        eqe set_eqe: [u8; 64] @ 0x80;
    }
}

open_enum! {
    /// State of an event queue (`st`).
    pub struct EqState(u8) = "MLX5_EQC_ST_" {
        ARMED = 0x9;
        FIRED = 0xa;
    }

    /// Status of an event queue (`status`).
    pub struct EqStatus(u8) = "MLX5_EQC_STATUS_" {
        OK = 0x0;
        EQ_WRITE_FAILURE = 0xa;
    }
}
