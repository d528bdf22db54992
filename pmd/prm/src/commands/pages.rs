//! Firmware pages: how many the function wants, giving and taking them.

use crate::command::command;
use crate::layout::layout;
use crate::open_enum::open_enum;

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
        /// A [`PagesKind`].
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
        /// A [`PagesAction`].
        op_mod set_op_mod: u16 @ 0x30 +16;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
        /// Pages given, or asked back.
        input_num_entries set_input_num_entries: u32 @ 0x60 +32;
    }

    /// Output of `MANAGE_PAGES`.
    pub struct ManagePagesOut = "mlx5_ifc_manage_pages_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        /// Pages that came back.
        output_num_entries set_output_num_entries: u32 @ 0x40 +32;
    }
}

open_enum! {
    /// Which pages `QUERY_PAGES` asks about (`op_mod`).
    pub struct PagesKind(u16) = "MLX5_QUERY_PAGES_IN_OP_MOD_" {
        BOOT = 0x1 as "MLX5_QUERY_PAGES_IN_OP_MOD_BOOT_PAGES";
        INIT = 0x2 as "MLX5_QUERY_PAGES_IN_OP_MOD_INIT_PAGES";
        REGULAR = 0x3 as "MLX5_QUERY_PAGES_IN_OP_MOD_REGULAR_PAGES";
    }

    /// What `MANAGE_PAGES` does (`op_mod`).
    pub struct PagesAction(u16) = "MLX5_MANAGE_PAGES_IN_OP_MOD_" {
        /// There are no pages to give.
        CANT_GIVE = 0x0 as "MLX5_MANAGE_PAGES_IN_OP_MOD_ALLOCATION_FAIL";
        /// The tail of the input lists the addresses.
        GIVE = 0x1 as "MLX5_MANAGE_PAGES_IN_OP_MOD_ALLOCATION_SUCCESS";
        /// The tail of the output lists the addresses, at most as many as asked for.
        TAKE = 0x2 as "MLX5_MANAGE_PAGES_IN_OP_MOD_HCA_RETURN_PAGES";
    }
}

/// Bytes of a firmware page, whatever the host's pages are.
pub const FIRMWARE_PAGE: usize = 4096;

impl QueryPagesOut {
    /// Pages that the function wants: zero and below are legal answers.
    pub const fn count(&self) -> i32 {
        self.num_pages() as i32
    }
}
