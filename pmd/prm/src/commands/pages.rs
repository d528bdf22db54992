//! Firmware pages: how many the function wants, giving and taking them.

use crate::command::command;
use crate::layout::layout;

command! {
    /// Asks how many pages the function wants now; the count is signed.
    QueryPages = QUERY_PAGES "query_pages", QueryPagesIn => QueryPagesOut;
    /// Gives pages, refuses to, or takes them back.
    ManagePages = MANAGE_PAGES "manage_pages", ManagePagesIn + 8 => ManagePagesOut + 8;
}

layout! {
    /// Input of `QUERY_PAGES`.
    pub struct QueryPagesIn = "mlx5_ifc_query_pages_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
    }

    /// Output of `QUERY_PAGES`.
    pub struct QueryPagesOut = "mlx5_ifc_query_pages_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
        /// A signed count: read it with `as i32`.
        num_pages set_num_pages: u32 @ 0x60 +32;
    }

    /// Input of `MANAGE_PAGES`.
    pub struct ManagePagesIn = "mlx5_ifc_manage_pages_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
        input_num_entries set_input_num_entries: u32 @ 0x60 +32;
    }

    /// Output of `MANAGE_PAGES`.
    pub struct ManagePagesOut = "mlx5_ifc_manage_pages_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        output_num_entries set_output_num_entries: u32 @ 0x40 +32;
    }
}
