//! Bring-up and teardown of the function: enabling, interface step, capabilities, adapter.
//!
//! Order: `ENABLE_HCA`, `QUERY_ISSI`, `SET_ISSI`, boot pages, capabilities, init pages,
//! `INIT_HCA`; down: `TEARDOWN_HCA`, pages back, `DISABLE_HCA`.

use super::capability::Capabilities;
use crate::command::{PlainOut, ShortOut, command};
use crate::layout::layout;
use crate::open_enum::open_enum;

command! {
    /// Wakes the function; nothing else is accepted before it.
    EnableHca = ENABLE_HCA "enable_hca", EnableHcaIn => ShortOut;
    /// Puts the function to sleep; its pages must have been taken back.
    DisableHca = DISABLE_HCA "disable_hca", DisableHcaIn => ShortOut;
    /// Asks which interface steps the firmware speaks.
    QueryIssi = QUERY_ISSI "query_issi", QueryIssiIn => QueryIssiOut;
    /// Chooses the interface step.
    SetIssi = SET_ISSI "set_issi", SetIssiIn => PlainOut;
    /// Reads one capability group; `op_mod` from [`CapGroup`](super::capability::CapGroup).
    QueryHcaCap = QUERY_HCA_CAP "query_hca_cap", QueryHcaCapIn => QueryHcaCapOut;
    /// Sets one capability group before `INIT_HCA`; `op_mod` from
    /// [`CapGroup`](super::capability::CapGroup).
    SetHcaCap = SET_HCA_CAP "set_hca_cap", SetHcaCapIn => PlainOut;
    /// Starts the function after capabilities and init pages.
    InitHca = INIT_HCA "init_hca", InitHcaIn min 16 => PlainOut;
    /// Stops the function; all objects must be gone.
    TeardownHca = TEARDOWN_HCA "teardown_hca", TeardownHcaIn => TeardownHcaOut;
    /// Reads vendor data and PSID.
    QueryAdapter = QUERY_ADAPTER "query_adapter", QueryAdapterIn => QueryAdapterOut;
    /// Tells the firmware which driver this is, where `driver_version` is announced.
    SetDriverVersion = SET_DRIVER_VERSION "set_driver_version", SetDriverVersionIn => PlainOut;
    /// Does nothing.
    Nop = NOP "nop", NopIn => PlainOut;
}

layout! {
    /// Vendor data of the adapter: board identity (PSID) in the last 16 bytes.
    pub struct AdapterBlock = "mlx5_ifc_query_adapter_param_block_bits", 256 bytes {
        ieee_vendor_id set_ieee_vendor_id: u32 @ 0xc8 +24;
        vsd_vendor_id set_vsd_vendor_id: u16 @ 0xf0 +16;
        vsd set_vsd: [u8; 208] @ 0x100;
        vsd_contd_psid set_vsd_contd_psid: [u8; 16] @ 0x780;
    }

    /// Input of `ENABLE_HCA`.
    pub struct EnableHcaIn = "mlx5_ifc_enable_hca_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
    }

    /// Input of `DISABLE_HCA`.
    pub struct DisableHcaIn = "mlx5_ifc_disable_hca_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        embedded_cpu_function set_embedded_cpu_function: bool @ 0x40;
        function_id set_function_id: u16 @ 0x50 +16;
    }

    /// Input of `QUERY_ISSI`.
    pub struct QueryIssiIn = "mlx5_ifc_query_issi_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `QUERY_ISSI`.
    pub struct QueryIssiOut = "mlx5_ifc_query_issi_out_bits", 112 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        current_issi set_current_issi: u16 @ 0x50 +16;
        /// Bit `n`: step `n` is spoken.
        supported_issi_dw0 set_supported_issi_dw0: u32 @ 0x360 +32;
    }

    /// Input of `SET_ISSI`.
    pub struct SetIssiIn = "mlx5_ifc_set_issi_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        current_issi set_current_issi: u16 @ 0x50 +16;
    }

    /// Input of `QUERY_HCA_CAP`.
    pub struct QueryHcaCapIn = "mlx5_ifc_query_hca_cap_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_function set_other_function: bool @ 0x40;
        ec_vf_function set_ec_vf_function: bool @ 0x41;
        function_id set_function_id: u16 @ 0x50 +16;
    }

    /// Output of `QUERY_HCA_CAP`.
    pub struct QueryHcaCapOut = "mlx5_ifc_query_hca_cap_out_bits", 4112 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        /// The group's layout; [`QueryHcaCapOut::group`] reads it.
        capability set_capability: [u8; 4096] @ 0x80;
    }

    /// Input of `SET_HCA_CAP`.
    pub struct SetHcaCapIn = "mlx5_ifc_set_hca_cap_in_bits", 4112 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        other_function set_other_function: bool @ 0x40;
        ec_vf_function set_ec_vf_function: bool @ 0x41;
        function_id set_function_id: u16 @ 0x50 +16;
        /// The group's layout; [`SetHcaCapIn::set_group`] writes it.
        capability set_capability: [u8; 4096] @ 0x80;
    }

    /// Input of `INIT_HCA`.
    pub struct InitHcaIn = "mlx5_ifc_init_hca_in_bits", 32 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        sw_vhca_id set_sw_vhca_id: u16 @ 0x62 +14;
        sw_owner_id set_sw_owner_id: [u8; 16] @ 0x80;
    }

    /// Input of `TEARDOWN_HCA`.
    pub struct TeardownHcaIn = "mlx5_ifc_teardown_hca_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        /// A [`TeardownProfile`].
        profile set_profile: u16 @ 0x50 +16;
    }

    /// Output of `TEARDOWN_HCA`.
    pub struct TeardownHcaOut = "mlx5_ifc_teardown_hca_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        /// Set if a forced close failed.
        state set_state: bool @ 0x7f;
    }

    /// Input of `QUERY_ADAPTER`.
    pub struct QueryAdapterIn = "mlx5_ifc_query_adapter_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `QUERY_ADAPTER`.
    pub struct QueryAdapterOut = "mlx5_ifc_query_adapter_out_bits", 272 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        query_adapter_struct set_query_adapter_struct: AdapterBlock @ 0x80;
    }

    /// Input of `SET_DRIVER_VERSION`.
    pub struct SetDriverVersionIn = "mlx5_ifc_set_driver_version_in_bits", 80 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        driver_version set_driver_version: [u8; 64] @ 0x80;
    }

    /// Input of `NOP`.
    pub struct NopIn = "mlx5_ifc_nop_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }
}

impl QueryHcaCapOut {
    /// The capability bytes as the layout of one group.
    pub fn group<T: Capabilities>(&self) -> T {
        T::read_from_prefix(&self.capability()).map_or_else(|_| T::default(), |(group, _)| group)
    }

    /// Puts one group's layout at the start of the capability bytes.
    pub fn set_group<T: Capabilities>(&mut self, group: &T) -> &mut Self {
        self.set_capability(padded(group))
    }
}

impl SetHcaCapIn {
    /// The capability bytes as the layout of one group.
    pub fn group<T: Capabilities>(&self) -> T {
        T::read_from_prefix(&self.capability()).map_or_else(|_| T::default(), |(group, _)| group)
    }

    /// Puts one group's layout at the start of the capability bytes.
    pub fn set_group<T: Capabilities>(&mut self, group: &T) -> &mut Self {
        self.set_capability(padded(group))
    }
}

/// The 4,096 capability bytes with `group` at their start.
fn padded<T: Capabilities>(group: &T) -> [u8; 4096] {
    const { assert!(T::LEN <= 4096) };
    let mut bytes = [0; 4096];
    for (to, from) in bytes.iter_mut().zip(group.as_bytes()) {
        *to = *from;
    }
    bytes
}

open_enum! {
    /// How `TEARDOWN_HCA` ends the function (`profile`).
    pub struct TeardownProfile(u16) = "MLX5_TEARDOWN_HCA_IN_PROFILE_" {
        GRACEFUL_CLOSE = 0x0;
        FORCE_CLOSE = 0x1;
        PREPARE_FAST_TEARDOWN = 0x2;
    }
}
