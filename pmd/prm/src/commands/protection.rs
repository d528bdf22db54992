//! Protection domains, memory keys, transport domains.

use crate::command::{PlainOut, command};
use crate::layout::{FieldTooWide, layout};
use crate::open_enum::open_enum;

command! {
    /// Allocates a protection domain.
    AllocPd = ALLOC_PD "alloc_pd", AllocPdIn => AllocPdOut;
    /// Frees a protection domain.
    DeallocPd = DEALLOC_PD "dealloc_pd", DeallocPdIn => PlainOut;
    /// Creates a memory key; the tail holds its translation.
    CreateMkey = CREATE_MKEY "create_mkey", CreateMkeyIn + 4 => CreateMkeyOut;
    /// Reads a memory key back.
    QueryMkey = QUERY_MKEY "query_mkey", QueryMkeyIn => QueryMkeyOut;
    /// Destroys a memory key.
    DestroyMkey = DESTROY_MKEY "destroy_mkey", DestroyMkeyIn => PlainOut;
    /// Reads the reserved key and its relatives.
    QuerySpecialContexts = QUERY_SPECIAL_CONTEXTS "query_special_contexts",
        QuerySpecialContextsIn => QuerySpecialContextsOut;
    /// Allocates a transport domain.
    AllocTransportDomain = ALLOC_TRANSPORT_DOMAIN "alloc_transport_domain",
        AllocTransportDomainIn => AllocTransportDomainOut;
    /// Frees a transport domain.
    DeallocTransportDomain = DEALLOC_TRANSPORT_DOMAIN "dealloc_transport_domain",
        DeallocTransportDomainIn => PlainOut;
}

layout! {
    /// Memory key context.
    pub struct Mkc = "mlx5_ifc_mkc_bits", 64 bytes {
        /// The key exists but maps nothing yet.
        free set_free: bool @ 0x1;
        /// Upper part of [`Mkc::access_mode`].
        access_mode_4_2 set_access_mode_4_2: u8 @ 0x3 +3;
        /// Writes may be reordered on PCIe.
        relaxed_ordering_write set_relaxed_ordering_write: bool @ 0xd;
        small_fence_on_rdma_read_response set_small_fence_on_rdma_read_response: bool @ 0xf;
        /// A work request may change the key.
        umr_en set_umr_en: bool @ 0x10;
        /// Atomic access is allowed.
        a set_a: bool @ 0x11;
        /// Remote write is allowed.
        rw set_rw: bool @ 0x12;
        /// Remote read is allowed.
        rr set_rr: bool @ 0x13;
        /// Local write is allowed: what a receive buffer needs.
        lw set_lw: bool @ 0x14;
        /// Local read is allowed: what a send buffer needs.
        lr set_lr: bool @ 0x15;
        /// Lower part of [`Mkc::access_mode`].
        access_mode_1_0 set_access_mode_1_0: u8 @ 0x16 +2;
        ma_translation_mode set_ma_translation_mode: u8 @ 0x1a +2;
        /// Queue pair that alone may use the key; all ones for any.
        qpn set_qpn: u32 @ 0x20 +24;
        /// Lowest byte of the key, chosen by the driver.
        mkey_7_0 set_mkey_7_0: u8 @ 0x38 +8;
        /// The key covers the whole 64-bit space; `length` is not used.
        length64 set_length64: bool @ 0x60;
        /// Signature offload.
        bsf_en set_bsf_en: bool @ 0x61;
        sync_umr set_sync_umr: bool @ 0x62;
        expected_sigerr_count set_expected_sigerr_count: bool @ 0x65;
        en_rinval set_en_rinval: bool @ 0x67;
        /// Protection domain.
        pd set_pd: u32 @ 0x68 +24;
        /// First address as work requests give it.
        start_addr set_start_addr: u64 @ 0x80 +64;
        /// Bytes.
        length set_length: u64 @ 0xc0 +64 as "len";
        bsf_octword_size set_bsf_octword_size: u32 @ 0x100 +32;
        crossing_target_vhca_id set_crossing_target_vhca_id: u16 @ 0x180 +16;
        /// Size of the translation table, in 16-byte units.
        translations_octword_size set_translations_octword_size: u32 @ 0x1a0 +32;
        /// Reads may be reordered on PCIe.
        relaxed_ordering_read set_relaxed_ordering_read: bool @ 0x1d9;
        /// Page size of the translation, as a power of two.
        log_page_size set_log_page_size: u8 @ 0x1da +6;
    }

    /// Input of `ALLOC_PD`.
    pub struct AllocPdIn = "mlx5_ifc_alloc_pd_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `ALLOC_PD`.
    pub struct AllocPdOut = "mlx5_ifc_alloc_pd_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        pd set_pd: u32 @ 0x48 +24;
    }

    /// Input of `DEALLOC_PD`.
    pub struct DeallocPdIn = "mlx5_ifc_dealloc_pd_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        pd set_pd: u32 @ 0x48 +24;
    }

    /// Input of `CREATE_MKEY`.
    pub struct CreateMkeyIn = "mlx5_ifc_create_mkey_in_bits", 272 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        /// Page faults are allowed.
        pg_access set_pg_access: bool @ 0x60;
        mkey_umem_valid set_mkey_umem_valid: bool @ 0x61;
        data_direct set_data_direct: bool @ 0x62;
        memory_key_mkey_entry set_memory_key_mkey_entry: Mkc @ 0x80;
        /// Part of the tail that is given, in 16-byte units.
        translations_octword_actual_size set_translations_octword_actual_size: u32 @ 0x300 +32;
    }

    /// Output of `CREATE_MKEY`.
    pub struct CreateMkeyOut = "mlx5_ifc_create_mkey_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        /// Upper 24 bits of the key; the lowest byte is `mkey_7_0`.
        mkey_index set_mkey_index: u32 @ 0x48 +24;
    }

    /// Input of `QUERY_MKEY`.
    pub struct QueryMkeyIn = "mlx5_ifc_query_mkey_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        mkey_index set_mkey_index: u32 @ 0x48 +24;
        pg_access set_pg_access: bool @ 0x60;
    }

    /// Output of `QUERY_MKEY`.
    pub struct QueryMkeyOut = "mlx5_ifc_query_mkey_out_bits", 304 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        memory_key_mkey_entry set_memory_key_mkey_entry: Mkc @ 0x80;
        bsf0_klm0_pas_mtt0_1 set_bsf0_klm0_pas_mtt0_1: [u8; 16] @ 0x880;
        bsf1_klm1_pas_mtt2_3 set_bsf1_klm1_pas_mtt2_3: [u8; 16] @ 0x900;
    }

    /// Input of `DESTROY_MKEY`.
    pub struct DestroyMkeyIn = "mlx5_ifc_destroy_mkey_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        mkey_index set_mkey_index: u32 @ 0x48 +24;
    }

    /// Input of `QUERY_SPECIAL_CONTEXTS`.
    pub struct QuerySpecialContextsIn = "mlx5_ifc_query_special_contexts_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `QUERY_SPECIAL_CONTEXTS`.
    pub struct QuerySpecialContextsOut = "mlx5_ifc_query_special_contexts_out_bits", 32 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        dump_fill_mkey set_dump_fill_mkey: u32 @ 0x40 +32;
        resd_lkey set_resd_lkey: u32 @ 0x60 +32;
        null_mkey set_null_mkey: u32 @ 0x80 +32;
        terminate_scatter_list_mkey set_terminate_scatter_list_mkey: u32 @ 0xa0 +32;
        repeated_mkey set_repeated_mkey: u32 @ 0xc0 +32;
    }

    /// Input of `ALLOC_TRANSPORT_DOMAIN`.
    pub struct AllocTransportDomainIn = "mlx5_ifc_alloc_transport_domain_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// Output of `ALLOC_TRANSPORT_DOMAIN`.
    pub struct AllocTransportDomainOut = "mlx5_ifc_alloc_transport_domain_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
        transport_domain set_transport_domain: u32 @ 0x48 +24;
    }

    /// Input of `DEALLOC_TRANSPORT_DOMAIN`.
    pub struct DeallocTransportDomainIn = "mlx5_ifc_dealloc_transport_domain_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        uid set_uid: u16 @ 0x10 +16;
        op_mod set_op_mod: u16 @ 0x30 +16;
        transport_domain set_transport_domain: u32 @ 0x48 +24;
    }
}

open_enum! {
    /// What a memory key maps (`access_mode_4_2` and `access_mode_1_0`).
    pub struct AccessMode(u8) = "MLX5_MKC_ACCESS_MODE_" {
        /// Device addresses as they are.
        PA = 0x0;
        /// A list of page addresses.
        MTT = 0x1;
        KLMS = 0x2;
        KSM = 0x3;
        SW_ICM = 0x4;
        MEMIC = 0x5;
        CROSSING = 0x6;
    }
}

impl Mkc {
    /// What the key maps, from its two parts.
    pub const fn access_mode(&self) -> AccessMode {
        AccessMode(self.access_mode_4_2() << 2 | self.access_mode_1_0())
    }

    /// Sets both parts of what the key maps.
    ///
    /// # Errors
    /// [`FieldTooWide`] if the mode needs more than five bits.
    pub const fn set_access_mode(&mut self, mode: AccessMode) -> Result<&mut Self, FieldTooWide> {
        match self.set_access_mode_4_2(mode.0 >> 2) {
            Ok(mkc) => mkc.set_access_mode_1_0(mode.0 & 3),
            Err(error) => Err(error),
        }
    }
}
