//! The receive hash: which fields, which function, which number.

use super::frame::{Headers, L3, L4};
use super::request::{Hash, HashFields};
use pollux_prm::completion::{RssHashL3, RssHashL4};

/// Longest input: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// IP protocol numbers of the two IPsec headers.
const ESP: u8 = 50;
const AH: u8 = 51;

/// A hash made ready: Toeplitz by tables over nibbles.
#[derive(Clone, Debug)]
pub(super) enum Hasher {
    None,
    Xor8(HashFields),
    Toeplitz {
        fields: HashFields,
        symmetric: bool,
        table: Box<[[u32; 16]; INPUT * 2]>,
    },
}

/// A frame's hash and what it covered, as the completion tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hashed {
    pub value: u32,
    pub l3: RssHashL3,
    pub l4: RssHashL4,
}

impl Hashed {
    pub const NONE: Self = Self {
        value: 0,
        l3: RssHashL3::NONE,
        l4: RssHashL4::NONE,
    };

    /// The completion's byte `rss_hash_type`: L3 in bits 3:2, L4 in bits 7:6.
    #[inline(always)]
    pub fn kind(self) -> u8 {
        self.l4.0 << 6 | self.l3.0 << 2
    }
}

impl Hasher {
    pub fn new(hash: &Hash) -> Self {
        match hash {
            Hash::None => Self::None,
            Hash::Xor8 { fields } => Self::Xor8(*fields),
            Hash::Toeplitz {
                fields,
                symmetric,
                key,
            } => Self::Toeplitz {
                fields: *fields,
                symmetric: *symmetric,
                table: table(key),
            },
        }
    }

    /// The hash of a frame; none when the frame has not the protocol that the fields are of.
    #[inline]
    pub fn hash(&self, headers: &Headers) -> Hashed {
        let (fields, symmetric) = match self {
            Self::None => return Hashed::NONE,
            Self::Xor8(fields) => (fields, false),
            Self::Toeplitz {
                fields, symmetric, ..
            } => (fields, *symmetric),
        };
        let Some(input) = Input::take(fields, symmetric, headers) else {
            return Hashed::NONE;
        };
        let value = match self {
            Self::Toeplitz { table, .. } => input.toeplitz(table),
            _ => input.xor8(),
        };
        Hashed {
            value,
            l3: input.l3,
            l4: input.l4,
        }
    }
}

struct Input {
    bytes: [u8; INPUT],
    len: usize,
    l3: RssHashL3,
    l4: RssHashL4,
}

impl Input {
    fn take(fields: &HashFields, symmetric: bool, headers: &Headers) -> Option<Self> {
        let (version, address) = match headers.l3 {
            L3::V4 => (false, 4),
            L3::V6 => (true, 16),
            L3::None => return None,
        };
        if version != fields.ipv6 {
            return None;
        }
        let (source, destination) = match headers.l3 {
            L3::V6 => (headers.l3_at + 8, headers.l3_at + 24),
            _ => (headers.l3_at + 12, headers.l3_at + 16),
        };
        let mut input = Self {
            bytes: [0; INPUT],
            len: 0,
            l3: RssHashL3::NONE,
            l4: RssHashL4::NONE,
        };
        let address = |at: usize| (0..address / 2).map(move |k| headers.half(at + 2 * k));
        let (to, from) = (fields.destination_ip, fields.source_ip);
        if symmetric && from && to {
            let pairs = || address(source).zip(address(destination));
            pairs().for_each(|(from, to)| input.push(from | to));
            pairs().for_each(|(from, to)| input.push(from ^ to));
        } else {
            for (_, at) in [(from, source), (to, destination)]
                .into_iter()
                .filter(|(wanted, _)| *wanted)
            {
                address(at).for_each(|half| input.push(half));
            }
        }
        if from || to {
            input.l3 = match fields.ipv6 {
                true => RssHashL3::IPV6,
                false => RssHashL3::IPV4,
            };
        }
        if fields.spi {
            // AH has it behind its lengths, ESP begins with it.
            let at = match headers.protocol {
                ESP => headers.l4_at,
                AH => headers.l4_at + 4,
                _ => return None,
            };
            if headers.fragment || at + 4 > headers.len {
                return None;
            }
            input.push(headers.half(at));
            input.push(headers.half(at + 2));
            input.l4 = RssHashL4::IPSEC;
        }
        if fields.source_port || fields.destination_port {
            let right = if fields.udp { L4::Udp } else { L4::Tcp };
            if headers.l4 != right || headers.fragment {
                return None;
            }
            let (source, destination) =
                (headers.half(headers.l4_at), headers.half(headers.l4_at + 2));
            let both = fields.source_port && fields.destination_port;
            if symmetric && both {
                input.push(source | destination);
                input.push(source ^ destination);
            } else {
                if fields.source_port {
                    input.push(source);
                }
                if fields.destination_port {
                    input.push(destination);
                }
            }
            input.l4 = if fields.udp {
                RssHashL4::UDP
            } else {
                RssHashL4::TCP
            };
        }
        Some(input)
    }

    #[inline(always)]
    fn push(&mut self, half: u16) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + 2) {
            room.copy_from_slice(&half.to_be_bytes());
            self.len += 2;
        }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn toeplitz(&self, table: &[[u32; 16]; INPUT * 2]) -> u32 {
        let mut hash = 0;
        for (byte, pair) in self.bytes().iter().zip(table.chunks_exact(2)) {
            if let [high, low] = pair {
                let [h, l] = [usize::from(byte >> 4), usize::from(byte & 15)];
                hash ^= high.get(h).copied().unwrap_or(0) ^ low.get(l).copied().unwrap_or(0);
            }
        }
        hash
    }

    fn xor8(&self) -> u32 {
        u32::from(self.bytes().iter().fold(0, |hash, byte| hash ^ byte))
    }
}

/// What each nibble at each place contributes.
fn table(key: &[u8; 40]) -> Box<[[u32; 16]; INPUT * 2]> {
    let window = |bit: usize| {
        let byte = bit / 8;
        let five = key.get(byte..byte + 5).unwrap_or_default();
        let wide = five
            .iter()
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        (wide >> (8 - bit % 8)) as u32
    };
    let mut table = Box::new([[0u32; 16]; INPUT * 2]);
    for (place, row) in table.iter_mut().enumerate() {
        for (nibble, slot) in row.iter_mut().enumerate() {
            *slot = (0..4)
                .filter(|bit| nibble >> (3 - bit) & 1 == 1)
                .fold(0, |hash, bit| hash ^ window(place * 4 + bit));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and results published with the receive-side-scaling specification.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn tcp4(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0u8; 54];
        frame[12..16].copy_from_slice(&[0x08, 0, 0x45, 0]);
        frame[17] = 40;
        frame[23] = 6;
        frame[26..30].copy_from_slice(&source);
        frame[30..34].copy_from_slice(&destination);
        frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
        frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
        frame
    }

    fn hash(fields: HashFields, symmetric: bool, frame: &[u8]) -> Hashed {
        let hash = Hash::Toeplitz {
            fields,
            symmetric,
            key: Box::new(KEY),
        };
        Hasher::new(&hash).hash(&Headers::parse(&frame))
    }

    const IPS: HashFields = HashFields {
        ipv6: false,
        udp: false,
        source_ip: true,
        destination_ip: true,
        source_port: false,
        destination_port: false,
        spi: false,
    };
    const ALL: HashFields = HashFields {
        source_port: true,
        destination_port: true,
        ..IPS
    };

    #[test]
    fn agrees_with_the_published_vectors() {
        let one = tcp4([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]);
        assert_eq!(hash(IPS, false, &one).value, 0x323e_8fc2);
        assert_eq!(hash(ALL, false, &one).value, 0x51cc_c178);
        assert_eq!(hash(ALL, false, &one).kind(), 0x44);
        let two = tcp4([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739]);
        assert_eq!(hash(IPS, false, &two).value, 0xd718_262a);
        assert_eq!(hash(ALL, false, &two).value, 0xc626_b0ea);
    }

    #[test]
    fn symmetric_means_both_ways() {
        let there = tcp4([10, 0, 0, 1], [10, 9, 0, 1], [80, 4000]);
        let back = tcp4([10, 9, 0, 1], [10, 0, 0, 1], [4000, 80]);
        assert_eq!(hash(ALL, true, &there), hash(ALL, true, &back));
        assert_ne!(
            hash(ALL, false, &there).value,
            hash(ALL, false, &back).value
        );
    }

    /// The same input as an ordinary hash of made-up addresses: or and exclusive or in the places
    /// of source and destination.
    #[test]
    fn symmetric_is_or_and_exclusive_or() {
        let frame = tcp4([10, 0x51, 0, 1], [10, 9, 0xa0, 3], [0x1234, 0xff00]);
        let made_up = tcp4([10, 0x59, 0xa0, 3], [0, 0x58, 0xa0, 2], [0xff34, 0xed34]);
        assert_eq!(
            hash(ALL, true, &frame).value,
            hash(ALL, false, &made_up).value
        );
        assert_eq!(hash(ALL, true, &frame).kind(), 0x44);
    }

    #[test]
    fn ipsec_hashes_its_index() {
        let fields = HashFields { spi: true, ..IPS };
        let mut esp = tcp4([10, 0, 0, 1], [10, 0, 0, 2], [0x0102, 0x0304]);
        esp[23] = 50;
        // Two ports in the place of the index are the same bytes.
        let tcp = tcp4([10, 0, 0, 1], [10, 0, 0, 2], [0x0102, 0x0304]);
        assert_eq!(
            hash(fields, false, &esp).value,
            hash(ALL, false, &tcp).value
        );
        assert_eq!(hash(fields, false, &esp).kind(), 0xc4);
        let mut ah = esp.clone();
        ah[23] = 51;
        ah[34..38].copy_from_slice(&[6, 4, 0, 0]);
        ah[38..42].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(hash(fields, false, &ah), hash(fields, false, &esp));
        // Whole packets of something else, and fragments, have none.
        assert_eq!(hash(fields, false, &tcp), Hashed::NONE);
        esp[20] = 0x20;
        assert_eq!(hash(fields, false, &esp), Hashed::NONE);
    }

    #[test]
    fn another_protocol_is_not_hashed() {
        let tcp = tcp4([1, 2, 3, 4], [5, 6, 7, 8], [1, 2]);
        let udp = HashFields { udp: true, ..ALL };
        assert_eq!(hash(udp, false, &tcp), Hashed::NONE);
        assert_eq!(
            hash(HashFields { ipv6: true, ..IPS }, false, &tcp),
            Hashed::NONE
        );
    }
}
