//! Event queue entries.
//!
//! An entry belongs to the driver when its owner bit equals the lap of the consumer index
//! (`(index >> log_size) & 1`). The driver reads that bit first, then the rest, and returns
//! entries by writing the consumer index to the queue's doorbell page ([`crate::wqe::uar`]).

use crate::layout::layout;
use crate::open_enum::open_enum;

layout! {
    /// Event queue entry.
    pub struct Eqe = "mlx5_ifc_eqe_bits", 64 bytes {
        /// An [`EventType`].
        event_type set_event_type: u8 @ 0x8 +8;
        /// Its meaning depends on the type; [`PortChange`] for a port state change.
        event_sub_type set_event_sub_type: u8 @ 0x18 +8;
        /// The layout of this event type.
        event_data set_event_data: [u8; 28] @ 0x100;
        signature set_signature: u8 @ 0x1f0 +8;
        /// Lap of the producer.
        owner set_owner: bool @ 0x1ff;
    }

    /// Data of [`EventType::COMP`].
    pub struct CompletionEvent = "mlx5_ifc_comp_event_bits", 28 bytes {
        cqn set_cqn: u32 @ 0xc8 +24 as "cq_number";
    }

    /// Data of [`EventType::CMD`].
    pub struct CommandEvent = "mlx5_ifc_cmd_inter_comp_event_bits", 28 bytes {
        /// One bit for each command slot that has completed.
        vector set_vector: u32 @ 0x0 +32 as "command_completion_vector";
    }

    /// Data of [`EventType::PAGE_REQUEST`].
    pub struct PageRequestEvent = "mlx5_ifc_pages_req_event_bits", 28 bytes {
        /// The function is one of the embedded CPU's.
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x0
            from "mlx5_eqe_page_req.ec_function";
        /// The firmware has dropped all pages of the function; nothing is to be sent.
        release_all set_release_all: bool @ 0x1 from "mlx5_eqe_page_req.ec_function";
        function_id set_function_id: u16 @ 0x10 +16;
        /// Signed, see [`PageRequestEvent::count`].
        num_pages set_num_pages: u32 @ 0x20 +32;
    }

    /// Data of [`EventType::PORT_CHANGE`].
    pub struct PortChangeEvent = "mlx5_ifc_port_state_change_event_bits", 28 bytes {
        port_num set_port_num: u8 @ 0x40 +4;
    }

    /// Data of [`EventType::CQ_ERROR`].
    pub struct CqErrorEvent = "mlx5_ifc_cq_error_bits", 28 bytes {
        cqn set_cqn: u32 @ 0x8 +24;
        /// A [`CqErrorSyndrome`].
        syndrome set_syndrome: u8 @ 0x58 +8;
    }

    /// Data of the errors of send and receive queues: [`EventType::WQ_CATAS_ERROR`],
    /// [`EventType::WQ_INVAL_REQ_ERROR`], [`EventType::WQ_ACCESS_ERROR`] and their like.
    pub struct QueueEvent = "mlx5_ifc_qp_events_bits", 28 bytes {
        /// A [`QueueType`].
        queue_type set_queue_type: u8 @ 0xa0 +8 as "type";
        /// Number of the queue.
        number set_number: u32 @ 0xc8 +24 as "qpn_rqn_sqn";
    }

    /// Data of [`EventType::NIC_VPORT_CHANGE`].
    pub struct VportChangeEvent = "", 28 bytes {
        vport_number set_vport_number: u16 @ 0x10 +16 from "mlx5_eqe_vport_change.vport_num";
    }
}

impl PageRequestEvent {
    /// Pages wanted: above zero a demand, below zero an offer to give that many back.
    pub const fn count(&self) -> i32 {
        self.num_pages() as i32
    }
}

open_enum! {
    /// What happened.
    pub struct EventType(u8) = "MLX5_EVENT_TYPE_" {
        COMP = 0x0;
        PATH_MIG = 0x1;
        COMM_EST = 0x2;
        SQ_DRAINED = 0x3;
        CQ_ERROR = 0x4;
        WQ_CATAS_ERROR = 0x5;
        PATH_MIG_FAILED = 0x7;
        INTERNAL_ERROR = 0x8;
        PORT_CHANGE = 0x9;
        CMD = 0xa;
        PAGE_REQUEST = 0xb;
        PAGE_FAULT = 0xc;
        NIC_VPORT_CHANGE = 0xd;
        ESW_FUNCTIONS_CHANGED = 0xe;
        VHCA_STATE_CHANGE = 0xf;
        WQ_INVAL_REQ_ERROR = 0x10;
        WQ_ACCESS_ERROR = 0x11;
        SRQ_CATAS_ERROR = 0x12;
        SRQ_LAST_WQE = 0x13;
        SRQ_RQ_LIMIT = 0x14;
        GPIO_EVENT = 0x15;
        PORT_MODULE_EVENT = 0x16;
        TEMP_WARN_EVENT = 0x17;
        XRQ_ERROR = 0x18;
        REMOTE_CONFIG = 0x19;
        DB_BF_CONGESTION = 0x1a;
        STALL_EVENT = 0x1b;
        DCT_DRAINED = 0x1c;
        DCT_KEY_VIOLATION = 0x1d;
        FPGA_ERROR = 0x20;
        FPGA_QP_ERROR = 0x21;
        GENERAL_EVENT = 0x22;
        MONITOR_COUNTER = 0x24;
        PPS_EVENT = 0x25;
        DEVICE_TRACER = 0x26;
        OBJECT_CHANGE = 0x27;
    }

    /// Sub-type of [`EventType::PORT_CHANGE`].
    pub struct PortChange(u8) = "MLX5_PORT_CHANGE_SUBTYPE_" {
        DOWN = 0x1;
        ACTIVE = 0x4;
        INITIALIZED = 0x5;
        LID = 0x6;
        PKEY = 0x7;
        GUID = 0x8;
        CLIENT_REREG = 0x9;
    }

    /// Why a completion queue failed.
    pub struct CqErrorSyndrome(u8) = "MLX5_CQ_ERROR_SYNDROME_" {
        OVERRUN = 0x1 as "MLX5_CQ_ERROR_SYNDROME_CQ_OVERRUN";
        ACCESS_VIOLATION = 0x2 as "MLX5_CQ_ERROR_SYNDROME_CQ_ACCESS_VIOLATION_ERROR";
    }

    /// Kind of queue in a [`QueueEvent`].
    pub struct QueueType(u8) = "MLX5_EVENT_QUEUE_TYPE_" {
        QP = 0x0;
        RQ = 0x1;
        SQ = 0x2;
        DCT = 0x6;
    }
}

impl EventType {
    /// Its bit in `event_bitmask` of `CREATE_EQ`; the first word has types 0 to 63.
    pub const fn mask(self) -> [u64; 4] {
        let mut words = [0; 4];
        words[(self.0 >> 6) as usize] = 1 << (self.0 & 63);
        words
    }
}

/// `owner` of an entry that the driver may read, for this consumer index and queue size.
pub const fn owner(index: u32, log_size: u8) -> bool {
    index >> (log_size & 31) & 1 == 1
}
