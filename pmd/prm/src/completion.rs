//! Completion queue entries (64 bytes).
//!
//! An entry belongs to the driver when its owner bit equals the lap of the consumer index
//! (`(index >> log_size) & 1`) and its opcode is not [`CqeOpcode::INVALID`]. The device writes
//! the last eight bytes last: the driver loads them first ([`Tail`]), then, behind an acquire,
//! the rest.

use crate::layout::layout;
use crate::open_enum::open_enum;

layout! {
    /// Completion queue entry.
    ///
    /// Fields of receive and send completions together; [`ErrorCqe`] is the form of errors.
    pub struct Cqe = "mlx5_cqe64", 64 bytes {
        /// The packet is a tunnel's.
        tunneled set_tunneled: bool @ 0x7 part "tls_outer_l3_tunneled";
        wqe_id set_wqe_id: u16 @ 0x10 +16;
        lro_tcppsh set_lro_tcppsh: bool @ 0x21 part "lro.tcppsh_abort_dupack";
        lro_min_ttl set_lro_min_ttl: u8 @ 0x28 +8 as "lro.min_ttl";
        lro_tcp_win set_lro_tcp_win: u16 @ 0x30 +16 as "lro.tcp_win";
        lro_ack_seq_num set_lro_ack_seq_num: u32 @ 0x40 +32 as "lro.ack_seq_num";
        rss_hash_result set_rss_hash_result: u32 @ 0x60 +32;
        /// L4 part of the hash: an [`RssHashL4`].
        rss_hash_l4 set_rss_hash_l4: u8 @ 0x80 +2 part "rss_hash_type";
        /// L3 part of the hash: an [`RssHashL3`].
        rss_hash_l3 set_rss_hash_l3: u8 @ 0x84 +2 part "rss_hash_type";
        ml_path set_ml_path: u8 @ 0x88 +8;
        /// One's complement sum over the packet from the L3 header on.
        check_sum set_check_sum: u16 @ 0xa0 +16;
        slid set_slid: u16 @ 0xb0 +16;
        flags_rqpn set_flags_rqpn: u32 @ 0xc0 +32;
        /// The L4 checksum was checked and is right.
        l4_ok set_l4_ok: bool @ 0xe5 part "hds_ip_ext";
        /// The L3 checksum was checked and is right.
        l3_ok set_l3_ok: bool @ 0xe6 part "hds_ip_ext";
        /// The L2 header is right.
        l2_ok set_l2_ok: bool @ 0xe7 part "hds_ip_ext";
        /// The packet is an IP fragment.
        ip_frag set_ip_frag: bool @ 0xe8 part "l4_l3_hdr_type";
        /// An [`L4HeaderType`].
        l4_hdr_type set_l4_hdr_type: u8 @ 0xe9 +3 part "l4_l3_hdr_type";
        /// An [`L3HeaderType`].
        l3_hdr_type set_l3_hdr_type: u8 @ 0xec +2 part "l4_l3_hdr_type";
        /// The packet has IPv4 options or IPv6 extension headers.
        ip_ext_opts set_ip_ext_opts: bool @ 0xee part "l4_l3_hdr_type";
        /// A VLAN tag was taken off; it is in `vlan_info`.
        vlan_stripped set_vlan_stripped: bool @ 0xef part "l4_l3_hdr_type";
        vlan_info set_vlan_info: u16 @ 0xf0 +16;
        lro_num_seg set_lro_num_seg: u8 @ 0x100 +8 part "srqn";
        /// Number of the shared receive queue, or the user index.
        srqn set_srqn: u32 @ 0x108 +24 part "srqn";
        flow_table_metadata set_flow_table_metadata: u32 @ 0x120 +32 as "ft_metadata";
        byte_cnt set_byte_cnt: u32 @ 0x160 +32;
        /// In ticks of the device clock.
        timestamp set_timestamp: u64 @ 0x180 +64 span "timestamp_h" "timestamp_l";
        /// Of a receive completion: the flow tag; of a send completion: the WQE's opcode is above.
        sop_drop_qpn set_sop_drop_qpn: u32 @ 0x1c0 +32;
        /// Opcode of the WQE that a send completion is for.
        send_opcode set_send_opcode: u8 @ 0x1c0 +8 part "sop_drop_qpn";
        /// Flow tag of a receive completion, or queue number of a send completion.
        flow_tag set_flow_tag: u32 @ 0x1c8 +24 part "sop_drop_qpn";
        /// Index of the WQE that completed.
        wqe_counter set_wqe_counter: u16 @ 0x1e0 +16;
        signature set_signature: u8 @ 0x1f0 +8;
        /// A [`CqeOpcode`].
        opcode set_opcode: u8 @ 0x1f8 +4 part "op_own";
        /// A [`CqeFormat`].
        format set_format: u8 @ 0x1fc +2 part "op_own";
        /// The sender asked for an event.
        solicited set_solicited: bool @ 0x1fe part "op_own";
        /// Lap of the producer.
        owner set_owner: bool @ 0x1ff part "op_own";
    }

    /// Completion queue entry of an error ([`CqeOpcode::REQ_ERR`], [`CqeOpcode::RESP_ERR`]).
    pub struct ErrorCqe = "mlx5_err_cqe", 64 bytes {
        srqn set_srqn: u32 @ 0x100 +32;
        /// The firmware maker's own code.
        vendor_err_synd set_vendor_err_synd: u8 @ 0x1b0 +8;
        /// A [`Syndrome`].
        syndrome set_syndrome: u8 @ 0x1b8 +8;
        /// Opcode of the WQE that failed.
        send_opcode set_send_opcode: u8 @ 0x1c0 +8 part "s_wqe_opcode_qpn";
        /// Number of the queue.
        qpn set_qpn: u32 @ 0x1c8 +24 part "s_wqe_opcode_qpn";
        /// Index of the WQE that failed.
        wqe_counter set_wqe_counter: u16 @ 0x1e0 +16;
        signature set_signature: u8 @ 0x1f0 +8;
        /// A [`CqeOpcode`].
        opcode set_opcode: u8 @ 0x1f8 +4 part "op_own";
        /// Lap of the producer.
        owner set_owner: bool @ 0x1ff part "op_own";
    }
}

open_enum! {
    /// What completed.
    pub struct CqeOpcode(u8) = "MLX5_CQE_" {
        REQ = 0x0;
        RESP_WR_IMM = 0x1;
        RESP_SEND = 0x2;
        RESP_SEND_IMM = 0x3;
        RESP_SEND_INV = 0x4;
        RESIZE_CQ = 0x5;
        NO_PACKET = 0x6;
        SIG_ERR = 0xc;
        REQ_ERR = 0xd;
        RESP_ERR = 0xe;
        /// Not written yet: how the driver leaves entries before the queue starts.
        INVALID = 0xf;
    }

    /// What else the entry carries.
    pub struct CqeFormat(u8) = "MLX5_" {
        NO_INLINE_DATA = 0x0;
        INLINE_DATA32_SEG = 0x1;
        INLINE_DATA64_SEG = 0x2;
        COMPRESSED = 0x3;
    }

    /// Why a WQE failed.
    pub struct Syndrome(u8) = "MLX5_CQE_SYNDROME_" {
        LOCAL_LENGTH_ERR = 0x1;
        LOCAL_QP_OP_ERR = 0x2;
        LOCAL_PROT_ERR = 0x4;
        /// The queue was in error already; the first error is the cause.
        WR_FLUSH_ERR = 0x5;
        MW_BIND_ERR = 0x6;
        BAD_RESP_ERR = 0x10;
        LOCAL_ACCESS_ERR = 0x11;
        REMOTE_INVAL_REQ_ERR = 0x12;
        REMOTE_ACCESS_ERR = 0x13;
        REMOTE_OP_ERR = 0x14;
        TRANSPORT_RETRY_EXC_ERR = 0x15;
        RNR_RETRY_EXC_ERR = 0x16;
        REMOTE_ABORTED_ERR = 0x22;
    }

    /// L3 header of a received packet.
    pub struct L3HeaderType(u8) = "MLX5_CQE_L3_HDR_TYPE_" {
        NONE = 0x0;
        IPV6 = 0x1;
        IPV4 = 0x2;
    }

    /// L4 header of a received packet.
    pub struct L4HeaderType(u8) = "CQE_L4_HDR_TYPE_" {
        NONE = 0x0;
        TCP_NO_ACK = 0x1;
        UDP = 0x2;
        TCP_ACK_NO_DATA = 0x3;
        TCP_ACK_AND_DATA = 0x4;
    }

    /// L3 part of what the RSS hash covered.
    pub struct RssHashL3(u8) = "CQE_RSS_" {
        NONE = 0x0 as "CQE_RSS_IP_NONE";
        IPV4 = 0x1;
        IPV6 = 0x2;
    }

    /// L4 part of what the RSS hash covered.
    pub struct RssHashL4(u8) = "CQE_RSS_L4_" {
        NONE = 0x0;
        TCP = 0x1;
        UDP = 0x2;
        IPSEC = 0x3;
    }
}

/// Byte offsets of the words that the data path loads, and masks in them.
pub mod offset {
    /// 64-bit word with `rss_hash_result` in its upper half.
    pub const RSS_HASH: usize = 8;
    /// 64-bit word with the check flags, header types and VLAN tag in its lower half
    /// ([`Headers`](super::Headers)).
    pub const HEADERS: usize = 24;
    /// 64-bit word with `byte_cnt` in its lower half.
    pub const BYTE_CNT: usize = 40;
    /// 64-bit `timestamp`.
    pub const TIMESTAMP: usize = 48;
    /// 64-bit word that the device writes last ([`Tail`](super::Tail)).
    pub const TAIL: usize = 56;
    /// The byte with opcode, format and owner.
    pub const OP_OWN: usize = 63;
}

/// The last eight bytes of an entry: everything that decides what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail(u64);

impl Tail {
    /// From a word as it was loaded from memory.
    #[inline(always)]
    pub const fn from_memory(word: u64) -> Self {
        Self(u64::from_be(word))
    }

    /// The word as it is to be stored to memory. Byte 63 goes last, if in parts.
    #[inline(always)]
    pub const fn to_memory(self) -> u64 {
        self.0.to_be()
    }

    /// From its parts: the upper 32 bits are opcode and queue of a send completion or the flow
    /// tag of a receive completion.
    #[inline(always)]
    pub const fn new(
        sop_drop_qpn: u32,
        wqe_counter: u16,
        signature: u8,
        opcode: CqeOpcode,
        owner: bool,
    ) -> Self {
        Self(
            (sop_drop_qpn as u64) << 32
                | (wqe_counter as u64) << 16
                | (signature as u64) << 8
                | ((opcode.0 & 0xf) as u64) << 4
                | owner as u64,
        )
    }

    /// Whether the driver owns the entry, `lap` being `(index >> log_size) & 1 == 1`.
    #[inline(always)]
    pub const fn is_owned(self, lap: bool) -> bool {
        (self.0 & 1 == 1) == lap && (self.0 >> 4) & 0xf != CqeOpcode::INVALID.0 as u64
    }

    /// What completed.
    #[inline(always)]
    pub const fn opcode(self) -> CqeOpcode {
        CqeOpcode((self.0 >> 4) as u8 & 0xf)
    }

    /// Whether the entry is an [`ErrorCqe`].
    #[inline(always)]
    pub const fn is_error(self) -> bool {
        matches!(self.opcode(), CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR)
    }

    /// What else the entry carries.
    #[inline(always)]
    pub const fn format(self) -> CqeFormat {
        CqeFormat((self.0 >> 2) as u8 & 3)
    }

    /// Index of the WQE that completed.
    #[inline(always)]
    pub const fn wqe_counter(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Flow tag of a receive completion, queue number of a send completion or an error.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ffff
    }

    /// Opcode of the WQE that a send completion or an error is for.
    #[inline(always)]
    pub const fn send_opcode(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

/// Check flags, header types and VLAN tag of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers(u32);

impl Headers {
    /// From the word at [`offset::HEADERS`] as it was loaded from memory.
    #[inline(always)]
    pub const fn from_memory(word: u64) -> Self {
        Self(u64::from_be(word) as u32)
    }

    /// The L2 header is right.
    #[inline(always)]
    pub const fn l2_ok(self) -> bool {
        self.0 >> 24 & 1 == 1
    }

    /// The L3 checksum was checked and is right.
    #[inline(always)]
    pub const fn l3_ok(self) -> bool {
        self.0 >> 25 & 1 == 1
    }

    /// The L4 checksum was checked and is right.
    #[inline(always)]
    pub const fn l4_ok(self) -> bool {
        self.0 >> 26 & 1 == 1
    }

    /// The packet is an IP fragment.
    #[inline(always)]
    pub const fn ip_frag(self) -> bool {
        self.0 >> 23 & 1 == 1
    }

    /// L4 header.
    #[inline(always)]
    pub const fn l4(self) -> L4HeaderType {
        L4HeaderType((self.0 >> 20) as u8 & 7)
    }

    /// L3 header.
    #[inline(always)]
    pub const fn l3(self) -> L3HeaderType {
        L3HeaderType((self.0 >> 18) as u8 & 3)
    }

    /// The tag that was taken off, if any.
    #[inline(always)]
    pub const fn vlan(self) -> Option<u16> {
        if self.0 >> 16 & 1 == 1 {
            Some(self.0 as u16)
        } else {
            None
        }
    }
}

/// `byte_cnt` in the word at [`offset::BYTE_CNT`] as it was loaded from memory.
#[inline(always)]
pub const fn byte_cnt(word: u64) -> u32 {
    u64::from_be(word) as u32
}

/// `rss_hash_result` in the word at [`offset::RSS_HASH`] as it was loaded from memory.
#[inline(always)]
pub const fn rss_hash(word: u64) -> u32 {
    u64::from_be(word) as u32
}

/// Lap of an index: the owner bit of the entry that the driver may read there.
#[inline(always)]
pub const fn lap(index: u32, log_size: u8) -> bool {
    index >> (log_size & 31) & 1 == 1
}
