//! Work queue entries, doorbell records and the doorbell page.
//!
//! A send WQE is a row of 16-byte segments in a ring of 64-byte basic blocks: control, Ethernet
//! (with the packet's first bytes inline where the device asks for them), data pointers. A
//! receive WQE is a row of data segments, as many as the stride holds.
//!
//! The `words` functions make whole segments as words in memory order: a burst stores them as
//! they are, with no further check or byte swap. They cut arguments to their field's width; the
//! caller sees to it that nothing is lost.
//!
//! To post: WQEs, barrier, doorbell record, barrier, store to the doorbell page.

use crate::layout::layout;
use crate::open_enum::open_enum;

layout! {
    /// Control segment: the first 16 bytes of a send WQE.
    pub struct CtrlSeg = "mlx5_wqe_ctrl_seg", 16 bytes {
        opmod set_opmod: u8 @ 0x0 +8 part "opmod_idx_opcode";
        /// Index of the WQE's first basic block.
        wqe_index set_wqe_index: u16 @ 0x8 +16 part "opmod_idx_opcode";
        /// A [`SendOpcode`].
        opcode set_opcode: u8 @ 0x18 +8 part "opmod_idx_opcode";
        /// Number of the send queue.
        qpn set_qpn: u32 @ 0x20 +24 part "qpn_ds";
        /// Size of the WQE in 16-byte segments.
        ds set_ds: u8 @ 0x3a +6 part "qpn_ds";
        signature set_signature: u8 @ 0x40 +8;
        fence set_fence: u8 @ 0x58 +3 part "fm_ce_se";
        /// When to complete: a [`CompletionMode`].
        completion set_completion: u8 @ 0x5c +2 part "fm_ce_se";
        solicited set_solicited: bool @ 0x5e part "fm_ce_se";
        immediate set_immediate: u32 @ 0x60 +32 as "imm";
    }

    /// Ethernet segment: the second 16 bytes of a send WQE, up to where inline data goes on.
    pub struct EthSeg = "mlx5_wqe_eth_seg", 16 bytes {
        swp_outer_l4_offset set_swp_outer_l4_offset: u8 @ 0x0 +8;
        swp_outer_l3_offset set_swp_outer_l3_offset: u8 @ 0x8 +8;
        swp_inner_l4_offset set_swp_inner_l4_offset: u8 @ 0x10 +8;
        swp_inner_l3_offset set_swp_inner_l3_offset: u8 @ 0x18 +8;
        /// Write the L4 checksum.
        l4_csum set_l4_csum: bool @ 0x20 part "cs_flags";
        /// Write the L3 checksum.
        l3_csum set_l3_csum: bool @ 0x21 part "cs_flags";
        l4_inner_csum set_l4_inner_csum: bool @ 0x22 part "cs_flags";
        l3_inner_csum set_l3_inner_csum: bool @ 0x23 part "cs_flags";
        swp_flags set_swp_flags: u8 @ 0x28 +8;
        /// Payload of each segment that LSO makes.
        mss set_mss: u16 @ 0x30 +16;
        flow_table_metadata set_flow_table_metadata: u32 @ 0x40 +32;
        /// Insert the tag in `vlan_tci`; then there is no inline header.
        insert_vlan set_insert_vlan: bool @ 0x60 part "insert.type";
        /// The inserted tag is a service tag.
        insert_svlan set_insert_svlan: bool @ 0x6f part "insert.type";
        /// Bytes of the packet that stand in the WQE, the first two in this segment.
        inline_hdr_sz set_inline_hdr_sz: u16 @ 0x60 +16 as "inline_hdr.sz";
        inline_hdr_start set_inline_hdr_start: [u8; 2] @ 0x70 as "inline_hdr.start";
        vlan_tci set_vlan_tci: u16 @ 0x70 +16 as "insert.vlan_tci";
    }

    /// Data segment: a piece of memory to send from or to receive into.
    pub struct DataSeg = "mlx5_wqe_data_seg", 16 bytes {
        /// Bytes; in a receive queue 0 means 2 GiB.
        byte_count set_byte_count: u32 @ 0x0 +32;
        lkey set_lkey: u32 @ 0x20 +32;
        addr set_addr: u64 @ 0x40 +64;
    }

    /// Inline data segment: its bytes follow, filled up to 16.
    pub struct InlineSeg = "mlx5_wqe_inline_seg", 4 bytes {
        /// Always set; tells it from a data segment.
        inline set_inline: bool @ 0x0 part "byte_count";
        byte_count set_byte_count: u16 @ 0x16 +10 part "byte_count";
    }
}

open_enum! {
    /// What a send WQE does.
    pub struct SendOpcode(u8) = "MLX5_OPCODE_" {
        NOP = 0x0;
        SEND_INVAL = 0x1;
        RDMA_WRITE = 0x8;
        RDMA_WRITE_IMM = 0x9;
        SEND = 0xa;
        SEND_IMM = 0xb;
        /// Large send: the device cuts the packet.
        LSO = 0xe;
        RDMA_READ = 0x10;
        UMR = 0x25;
        ENHANCED_MPSW = 0x29;
    }

    /// When a send WQE writes a completion.
    pub struct CompletionMode(u8) = "MLX5_WQE_CTRL_" {
        /// Only if it fails.
        ON_ERROR = 0x0 from "kernel qp.h: no MLX5_WQE_CTRL flag";
        /// Always.
        ALWAYS = 0x2 from "kernel qp.h: MLX5_WQE_CTRL_CQ_UPDATE >> 2";
        /// Always, with an event.
        ALWAYS_AND_EVENT = 0x3 from "kernel qp.h: MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE >> 2";
    }

    /// Values of a control segment's `fm_ce_se` byte.
    pub struct CtrlFlags(u8) = "MLX5_WQE_CTRL_" {
        NONE = 0x0 from "kernel qp.h: no flag";
        SOLICITED = 0x2;
        CQ_UPDATE = 0x8;
        CQ_UPDATE_AND_EQE = 0xc;
        INITIATOR_SMALL_FENCE = 0x20;
    }

    /// Bits of an Ethernet segment's `cs_flags` byte.
    pub struct ChecksumFlags(u8) = "MLX5_ETH_WQE_" {
        NONE = 0x0 from "kernel qp.h: no flag";
        L3_INNER_CSUM = 0x10;
        L4_INNER_CSUM = 0x20;
        L3_CSUM = 0x40;
        L4_CSUM = 0x80;
    }

    /// How many headers of a packet must stand in its WQE (`min_wqe_inline_mode` of the virtual
    /// port and the send queue).
    pub struct InlineMode(u8) = "MLX5_INLINE_MODE_" {
        NONE = 0x0;
        L2 = 0x1;
        IP = 0x2;
        TCP_UDP = 0x3;
    }

    /// Who says how much must be inline (`wqe_inline_mode` of the Ethernet capabilities).
    pub struct InlineCapability(u8) = "MLX5_CAP_INLINE_MODE_" {
        /// Always [`InlineMode::L2`].
        L2 = 0x0;
        /// The virtual port's context does.
        VPORT_CONTEXT = 0x1;
        /// Nothing must be.
        NOT_REQUIRED = 0x2;
    }
}

/// Bytes of a basic block of the send ring.
pub const BASIC_BLOCK: usize = 64;
/// Bytes of a segment.
pub const SEGMENT: usize = 16;
/// Most basic blocks of one WQE (`max_wqe_sz_sq` 1024).
pub const MAX_BASIC_BLOCKS: usize = 16;
/// Bytes of the packet that [`InlineMode::L2`] puts into the WQE: Ethernet header and one tag.
pub const INLINE_L2: usize = 18;
/// The key that no memory has: a data segment with it ends a receive WQE's list.
pub const INVALID_LKEY: u32 = 0x100;

/// Makes a segment's 16 bytes from four words in host order.
#[inline(always)]
const fn words(a: u32, b: u32, c: u32, d: u32) -> [u32; 4] {
    [a.to_be(), b.to_be(), c.to_be(), d.to_be()]
}

/// Two words in memory order as one, the first at the lower address.
#[inline(always)]
const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        (second as u64) << 32 | first as u64
    } else {
        (first as u64) << 32 | second as u64
    }
}

impl CtrlSeg {
    /// The segment in memory order.
    ///
    /// `index` counts basic blocks, `qpn` has 24 bits, `ds` counts 16-byte segments (6 bits).
    #[inline(always)]
    pub const fn words(
        opmod: u8,
        index: u16,
        opcode: SendOpcode,
        qpn: u32,
        ds: u8,
        fm_ce_se: CtrlFlags,
    ) -> [u32; 4] {
        words(
            (opmod as u32) << 24 | (index as u32) << 8 | opcode.0 as u32,
            qpn << 8 | (ds & 0x3f) as u32,
            fm_ce_se.0 as u32,
            0,
        )
    }
}

/// The first eight bytes of a control segment in memory order: what the doorbell store carries.
#[inline(always)]
pub const fn doorbell(ctrl: [u32; 4]) -> u64 {
    pair(ctrl[0], ctrl[1])
}

impl EthSeg {
    /// The segment in memory order; with `inline_size` 0 nothing of the packet is inline and
    /// `inline_start` is not read.
    #[inline(always)]
    pub const fn words(
        checksums: ChecksumFlags,
        mss: u16,
        inline_size: u16,
        inline_start: [u8; 2],
    ) -> [u32; 4] {
        words(
            0,
            (checksums.0 as u32) << 24 | mss as u32,
            0,
            (inline_size as u32) << 16 | u16::from_be_bytes(inline_start) as u32,
        )
    }

    /// The segment in memory order, the device inserting a VLAN tag.
    #[inline(always)]
    pub const fn words_vlan(checksums: ChecksumFlags, mss: u16, vlan_tci: u16) -> [u32; 4] {
        words(
            0,
            (checksums.0 as u32) << 24 | mss as u32,
            0,
            1 << 31 | vlan_tci as u32,
        )
    }
}

impl DataSeg {
    /// The segment in memory order.
    #[inline(always)]
    pub const fn words(byte_count: u32, lkey: u32, addr: u64) -> [u32; 4] {
        words(byte_count, lkey, (addr >> 32) as u32, addr as u32)
    }

    /// The segment in memory order, as two words of 64 bits.
    #[inline(always)]
    pub const fn halves(byte_count: u32, lkey: u32, addr: u64) -> [u64; 2] {
        [
            ((byte_count as u64) << 32 | lkey as u64).to_be(),
            addr.to_be(),
        ]
    }
}

/// Doorbell records: words in host memory by which the driver tells its indices.
pub mod record {
    /// Bytes of the record of a send queue, receive queue or completion queue.
    pub const LEN: usize = 8;
    /// Word of a queue record with the receive counter.
    pub const RECEIVE: usize = 0;
    /// Word of a queue record with the send counter.
    pub const SEND: usize = 1;
    /// Word of a completion queue record with the consumer index.
    pub const CQ_CONSUMER: usize = 0;
    /// Word of a completion queue record with the arm request.
    pub const CQ_ARM: usize = 1;

    /// A send or receive counter in memory order: basic blocks, or receive WQEs, ever posted.
    #[inline(always)]
    pub const fn counter(posted: u16) -> u32 {
        (posted as u32).to_be()
    }

    /// A completion queue's consumer index in memory order (24 bits).
    #[inline(always)]
    pub const fn cq_consumer(index: u32) -> u32 {
        (index & 0xff_ffff).to_be()
    }

    /// An arm request in memory order: the count of arms so far (two bits), whether only
    /// solicited completions shall raise the event, and the consumer index.
    #[inline(always)]
    pub const fn cq_arm(count: u32, solicited_only: bool, index: u32) -> u32 {
        ((count & 3) << 28 | (solicited_only as u32) << 24 | index & 0xff_ffff).to_be()
    }
}

/// The doorbell page of a UAR: offsets of its doorbells, and what is stored there.
pub mod uar {
    /// Bytes of a page as the firmware counts UARs, unless `uar_4k` says otherwise.
    pub const PAGE: usize = 4096;
    /// Completion queue arm: 64 bits.
    pub const CQ_ARM: usize = 0x20;
    /// Event queue consumer index, with arm: 32 bits.
    pub const EQ_ARM: usize = 0x40;
    /// Event queue consumer index, without arm: 32 bits.
    pub const EQ_CONSUMER: usize = 0x48;
    /// First send doorbell (BlueFlame register): the first eight bytes of the control segment.
    pub const SEND: usize = 0x800;

    /// The store that arms a completion queue, in memory order; `arm` is the record's word
    /// ([`record::cq_arm`](super::record::cq_arm)).
    #[inline(always)]
    pub const fn cq_arm(arm: u32, cqn: u32) -> u64 {
        super::pair(arm, cqn.to_be())
    }

    /// The store that returns event queue entries, in memory order.
    #[inline(always)]
    pub const fn eq_consumer(eqn: u8, index: u32) -> u32 {
        ((eqn as u32) << 24 | index & 0xff_ffff).to_be()
    }
}
