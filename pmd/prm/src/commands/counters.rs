//! Counter objects: queue counters and flow counters.

use crate::command::{PlainOut, command};
use crate::layout::layout;

command! {
    /// Allocates a queue counter set.
    AllocQCounter = ALLOC_Q_COUNTER "alloc_q_counter", AllocQCounterIn => AllocQCounterOut;
    /// Reads a queue counter set.
    QueryQCounter = QUERY_Q_COUNTER "query_q_counter", QueryQCounterIn => QueryQCounterOut;
    /// Frees a queue counter set.
    DeallocQCounter = DEALLOC_Q_COUNTER "dealloc_q_counter", DeallocQCounterIn => PlainOut;
    /// Allocates flow counters.
    AllocFlowCounter = ALLOC_FLOW_COUNTER "alloc_flow_counter",
        AllocFlowCounterIn => AllocFlowCounterOut;
    /// Reads flow counters; the tail is a list of
    /// [`TrafficCounter`](super::vport::TrafficCounter).
    QueryFlowCounter = QUERY_FLOW_COUNTER "query_flow_counter",
        QueryFlowCounterIn => QueryFlowCounterOut + 16;
    /// Frees a flow counter.
    DeallocFlowCounter = DEALLOC_FLOW_COUNTER "dealloc_flow_counter",
        DeallocFlowCounterIn => PlainOut;
}

layout! {
    /// Input of `ALLOC_Q_COUNTER`.
    pub struct AllocQCounterIn = "mlx5_ifc_alloc_q_counter_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `ALLOC_Q_COUNTER`.
    pub struct AllocQCounterOut = "mlx5_ifc_alloc_q_counter_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        counter_set_id set_counter_set_id: u8 @ 0x58 +8;
    }

    /// Input of `QUERY_Q_COUNTER`.
    pub struct QueryQCounterIn = "mlx5_ifc_query_q_counter_in_bits", 32 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_vport set_other_vport: bool @ 0x40;
        vport_number set_vport_number: u16 @ 0x50 +16;
        clear set_clear: bool @ 0xc0;
        aggregate set_aggregate: bool @ 0xc1;
        counter_set_id set_counter_set_id: u8 @ 0xf8 +8;
    }

    /// Output of `QUERY_Q_COUNTER`.
    pub struct QueryQCounterOut = "mlx5_ifc_query_q_counter_out_bits", 256 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        rx_write_requests set_rx_write_requests: u32 @ 0x80 +32;
        rx_read_requests set_rx_read_requests: u32 @ 0xc0 +32;
        rx_atomic_requests set_rx_atomic_requests: u32 @ 0x100 +32;
        rx_dct_connect set_rx_dct_connect: u32 @ 0x140 +32;
        out_of_buffer set_out_of_buffer: u32 @ 0x180 +32;
        out_of_sequence set_out_of_sequence: u32 @ 0x1c0 +32;
        duplicate_request set_duplicate_request: u32 @ 0x200 +32;
        rnr_nak_retry_err set_rnr_nak_retry_err: u32 @ 0x240 +32;
        packet_seq_err set_packet_seq_err: u32 @ 0x280 +32;
        implied_nak_seq_err set_implied_nak_seq_err: u32 @ 0x2c0 +32;
        local_ack_timeout_err set_local_ack_timeout_err: u32 @ 0x300 +32;
        req_rnr_retries_exceeded set_req_rnr_retries_exceeded: u32 @ 0x380 +32;
        resp_local_length_error set_resp_local_length_error: u32 @ 0x3c0 +32;
        req_local_length_error set_req_local_length_error: u32 @ 0x3e0 +32;
        resp_local_qp_error set_resp_local_qp_error: u32 @ 0x400 +32;
        local_operation_error set_local_operation_error: u32 @ 0x420 +32;
        resp_local_protection set_resp_local_protection: u32 @ 0x440 +32;
        req_local_protection set_req_local_protection: u32 @ 0x460 +32;
        resp_cqe_error set_resp_cqe_error: u32 @ 0x480 +32;
        req_cqe_error set_req_cqe_error: u32 @ 0x4a0 +32;
        req_mw_binding set_req_mw_binding: u32 @ 0x4c0 +32;
        req_bad_response set_req_bad_response: u32 @ 0x4e0 +32;
        req_remote_invalid_request set_req_remote_invalid_request: u32 @ 0x500 +32;
        resp_remote_invalid_request set_resp_remote_invalid_request: u32 @ 0x520 +32;
        req_remote_access_errors set_req_remote_access_errors: u32 @ 0x540 +32;
        resp_remote_access_errors set_resp_remote_access_errors: u32 @ 0x560 +32;
        req_remote_operation_errors set_req_remote_operation_errors: u32 @ 0x580 +32;
        req_transport_retries_exceeded set_req_transport_retries_exceeded: u32 @ 0x5a0 +32;
        cq_overflow set_cq_overflow: u32 @ 0x5c0 +32;
        resp_cqe_flush_error set_resp_cqe_flush_error: u32 @ 0x5e0 +32;
        req_cqe_flush_error set_req_cqe_flush_error: u32 @ 0x600 +32;
        roce_adp_retrans set_roce_adp_retrans: u32 @ 0x640 +32;
        roce_adp_retrans_to set_roce_adp_retrans_to: u32 @ 0x660 +32;
        roce_slow_restart set_roce_slow_restart: u32 @ 0x680 +32;
        roce_slow_restart_cnps set_roce_slow_restart_cnps: u32 @ 0x6a0 +32;
        roce_slow_restart_trans set_roce_slow_restart_trans: u32 @ 0x6c0 +32;
    }

    /// Input of `DEALLOC_Q_COUNTER`.
    pub struct DeallocQCounterIn = "mlx5_ifc_dealloc_q_counter_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        counter_set_id set_counter_set_id: u8 @ 0x58 +8;
    }

    /// Input of `ALLOC_FLOW_COUNTER`.
    pub struct AllocFlowCounterIn = "mlx5_ifc_alloc_flow_counter_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        flow_counter_bulk_log_size set_flow_counter_bulk_log_size: u8 @ 0x73 +5;
        flow_counter_bulk set_flow_counter_bulk: u8 @ 0x78 +8;
    }

    /// Output of `ALLOC_FLOW_COUNTER`.
    pub struct AllocFlowCounterOut = "mlx5_ifc_alloc_flow_counter_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        flow_counter_id set_flow_counter_id: u32 @ 0x40 +32;
    }

    /// Input of `QUERY_FLOW_COUNTER`.
    pub struct QueryFlowCounterIn = "mlx5_ifc_query_flow_counter_in_bits", 32 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        clear set_clear: bool @ 0xc0;
        num_of_counters set_num_of_counters: u16 @ 0xd0 +16;
        flow_counter_id set_flow_counter_id: u32 @ 0xe0 +32;
    }

    /// Output of `QUERY_FLOW_COUNTER`.
    pub struct QueryFlowCounterOut = "mlx5_ifc_query_flow_counter_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
    }

    /// Input of `DEALLOC_FLOW_COUNTER`.
    pub struct DeallocFlowCounterIn = "mlx5_ifc_dealloc_flow_counter_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        flow_counter_id set_flow_counter_id: u32 @ 0x40 +32;
    }
}
