//! What a completion says of a packet's headers, as an [`Mbuf`](pollux_mempool::Mbuf) carries it.

use pollux_mempool::mbuf::flags;

/// Values of [`Mbuf::packet_type`](pollux_mempool::Mbuf::packet_type): one field of four bits per
/// layer.
pub mod packet_type {
    /// An Ethernet frame.
    pub const L2_ETHER: u32 = 0x1;
    /// IPv4, with or without options.
    pub const L3_IPV4: u32 = 0x90;
    /// IPv6, with or without extension headers.
    pub const L3_IPV6: u32 = 0xe0;
    /// TCP.
    pub const L4_TCP: u32 = 0x100;
    /// UDP.
    pub const L4_UDP: u32 = 0x200;
    /// A fragment; what it carries is not known.
    pub const L4_FRAGMENT: u32 = 0x300;
}

/// Packet types by byte 29 of a completion, shifted right by two: L3 in bits 0..2, L4 in bits
/// 2..5, fragment in bit 5.
static TYPES: [u32; 64] = types();

const fn types() -> [u32; 64] {
    use packet_type::{L2_ETHER, L3_IPV4, L3_IPV6, L4_FRAGMENT, L4_TCP, L4_UDP};
    let mut table = [0; 64];
    let mut i = 0;
    while i < table.len() {
        let l3 = match i & 3 {
            1 => L3_IPV6,
            2 => L3_IPV4,
            _ => 0,
        };
        let l4 = match (i >> 2) & 7 {
            _ if l3 == 0 => 0,
            _ if i >> 5 == 1 => L4_FRAGMENT,
            1 | 3 | 4 => L4_TCP,
            2 => L4_UDP,
            _ => 0,
        };
        table[i] = L2_ETHER | l3 | l4;
        i += 1;
    }
    table
}

/// Bytes 28 to 31 of a completion, in the CPU's order: check bits, header types, VLAN tag.
#[derive(Clone, Copy)]
pub(super) struct HeaderWord(pub(super) u32);

impl HeaderWord {
    /// From the completion's word at `offset::HEADERS` as it was loaded from memory.
    #[inline(always)]
    pub(super) fn from_memory(word: u64) -> Self {
        Self(u64::from_be(word) as u32)
    }

    #[inline(always)]
    pub(super) fn packet_type(self) -> u32 {
        TYPES[(self.0 >> 18 & 0x3f) as usize]
    }

    /// The flags that follow from this word and the hash, without a branch.
    #[inline(always)]
    pub(super) fn flags(self, hash: u32) -> u32 {
        // Check bits 25 (L3) and 26 (L4), VLAN bit 16; shifted to where the flags are.
        const _: () = assert!(
            flags::RX_VLAN_STRIPPED == 1
                && flags::RX_RSS_HASH == 1 << 1
                && flags::RX_IP_CKSUM_GOOD == 1 << 2
                && flags::RX_L4_CKSUM_GOOD == 1 << 3
        );
        let word = self.0;
        word >> 23 & (flags::RX_IP_CKSUM_GOOD | flags::RX_L4_CKSUM_GOOD)
            | word >> 16 & flags::RX_VLAN_STRIPPED
            | u32::from(hash != 0) << 1
    }

    #[inline(always)]
    pub(super) fn vlan(self) -> u16 {
        self.0 as u16
    }
}

#[cfg(test)]
mod tests {
    use super::packet_type::*;
    use super::*;

    #[test]
    fn names_headers() {
        let of = |byte29: u32| HeaderWord(byte29 << 16).packet_type();
        assert_eq!(of(0), L2_ETHER);
        // IPv4 is 2, UDP is 2: 0b0_010_10_00.
        assert_eq!(of(0x28), L2_ETHER | L3_IPV4 | L4_UDP);
        // IPv6 is 1, TCP without acknowledgement 1, with and without data 4 and 3.
        for tcp in [0x14, 0x34, 0x44] {
            assert_eq!(of(tcp), L2_ETHER | L3_IPV6 | L4_TCP);
        }
        assert_eq!(of(0xa8), L2_ETHER | L3_IPV4 | L4_FRAGMENT);
        // An L4 type without an L3 one means nothing.
        assert_eq!(of(0x20), L2_ETHER);
    }

    #[test]
    fn flags_follow_their_bits() {
        let word = HeaderWord(0x0601_0064);
        assert_eq!(
            word.flags(0),
            flags::RX_IP_CKSUM_GOOD | flags::RX_L4_CKSUM_GOOD | flags::RX_VLAN_STRIPPED
        );
        assert_eq!(word.vlan(), 100);
        assert_eq!(HeaderWord(0x0100_0000).flags(9), flags::RX_RSS_HASH);
        assert_eq!(HeaderWord(0x0200_0000).flags(0), flags::RX_IP_CKSUM_GOOD);
    }
}
