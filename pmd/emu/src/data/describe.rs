//! What a receive completion says of a frame: header types, checksums, the sum over all of it.
//!
//! [`Description::of`] reads any frame by its [`Headers`]. [`Glance`] does the same for the usual
//! ones from the first line alone: no IP, or IPv4 without tags and options.

use super::checksum;
use super::cq::Entry;
use super::frame::{Class, Frame, Headers, L3, L4, LINE};
use super::rss::Hashed;
use pollux_prm::completion::{CqeOpcode, L3HeaderType, L4HeaderType, Tail};

/// What the sum in a completion covers (capability `cqe_checksum_full`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sums {
    /// The IP packet: tags before it and padding behind it are the driver's to add.
    #[default]
    Packet,
    /// All bytes behind the addresses and the outermost EtherType.
    Frame,
}

/// What a completion says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// The sum, as it lies in memory.
    complete: u16,
    /// The byte with the check bits: L2, L3, L4 from the lowest.
    ok: u8,
    /// The byte with the header types.
    kinds: u8,
}

/// The byte with the header types.
#[inline(always)]
fn kinds(fragment: bool, l4: L4HeaderType, l3: L3HeaderType, options: bool) -> u8 {
    u8::from(fragment) << 7 | l4.0 << 4 | l3.0 << 2 | u8::from(options) << 1
}

impl Description {
    /// Of any frame.
    #[inline]
    pub fn of<F: Frame>(frame: &F, headers: &Headers, sums: Sums) -> Self {
        let verdict = checksum::verify(frame, headers);
        let complete = match sums {
            Sums::Packet => verdict.packet,
            Sums::Frame if headers.l3_at == 14 => verdict.all,
            Sums::Frame => {
                let tags = (14..headers.l3_at).step_by(2);
                let tags = tags.map(|at| u64::from(headers.half(at).to_be()));
                checksum::fold(u64::from(verdict.all) + tags.sum::<u64>())
            }
        };
        let l3 = match headers.l3 {
            L3::None => L3HeaderType::NONE,
            L3::V4 => L3HeaderType::IPV4,
            L3::V6 => L3HeaderType::IPV6,
        };
        let l4 = match headers.l4 {
            L4::None => L4HeaderType::NONE,
            L4::Udp => L4HeaderType::UDP,
            L4::Tcp => {
                let payload = headers.l3_at + headers.l3_len > headers.l4_at + headers.tcp_header();
                tcp(headers.tcp_flags() & 0x10 != 0, payload)
            }
        };
        Self {
            complete,
            ok: 1 | u8::from(verdict.l3_ok) << 1 | u8::from(verdict.l4_ok) << 2,
            kinds: kinds(headers.fragment, l4, l3, headers.options),
        }
    }

    /// The completion without what the queue adds.
    #[inline(always)]
    pub fn entry(self, hashed: Hashed, now: u64) -> Entry {
        let Self {
            complete,
            ok,
            kinds,
        } = self;
        Entry {
            body: [
                0,
                u64::from(hashed.value).to_be(),
                // Hash type at byte 16; the sum at bytes 20 and 21 as it lies in memory.
                u64::from_le(u64::from(hashed.kind()) | u64::from(complete) << 32),
                (u64::from(ok) << 24 | u64::from(kinds) << 16).to_be(),
                0,
                0,
                now.to_be(),
            ],
            tail: Tail::new(0, 0, 0, CqeOpcode::RESP_SEND, false),
        }
    }
}

#[inline(always)]
fn tcp(acknowledges: bool, payload: bool) -> L4HeaderType {
    match (acknowledges, payload) {
        (false, _) => L4HeaderType::TCP_NO_ACK,
        (true, false) => L4HeaderType::TCP_ACK_NO_DATA,
        (true, true) => L4HeaderType::TCP_ACK_AND_DATA,
    }
}

/// The first line of a frame whose headers are where they usually are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glance {
    words: [u64; LINE],
    len: usize,
    v4: bool,
}

// EtherTypes as they lie in memory.
const V4: u64 = 0x0008;
const V6: u64 = 0xdd86;
const TAG: u64 = 0x0081;
const SERVICE_TAG: u64 = 0xa888;

impl Glance {
    /// A frame's first line (zero behind its end) and length; nothing when its headers need
    /// [`Headers`].
    #[inline(always)]
    pub fn new(words: &[u64; LINE], len: usize) -> Option<Self> {
        let [_, second, ..] = *words;
        let kind = second >> 32 & 0xffff;
        let v4 = kind == V4;
        if matches!(kind, V6 | TAG | SERVICE_TAG)
            || (v4 && (second >> 48 & 0xff != 0x45 || len < 34))
        {
            return None;
        }
        Some(Self {
            words: *words,
            len,
            v4,
        })
    }

    /// Kind of the destination address.
    #[inline(always)]
    pub fn class(&self) -> Class {
        let [first, ..] = self.words;
        Class::of(first)
    }

    /// The link-layer words that rules look at: see
    /// [`frame_key`](super::steering::frame_key).
    #[inline(always)]
    pub fn link(&self) -> [u64; 2] {
        let [first, second, ..] = self.words;
        [
            first >> 48 | (second & 0xffff_ffff_ffff) << 16,
            first & 0xffff_ffff_ffff,
        ]
    }

    /// As [`Description::of`] the frame.
    #[inline(always)]
    pub fn describe<F: Frame>(&self, frame: &F, sums: Sums) -> Description {
        let [_, second, third, fourth, fifth, sixth, seventh, eighth] = self.words;
        // Bytes 14 to 33 are the IP header, what follows is its payload.
        let header = (second >> 48) + checksum::lanes(&[third, fourth]) + (fifth & 0xffff);
        let mut payload = checksum::lanes(&[fifth >> 16, sixth, seventh, eighth]);
        if self.len > LINE * 8 {
            payload += checksum::rest(frame, LINE * 8);
        }
        let all = checksum::fold(header + payload);
        if !self.v4 {
            return Description {
                complete: all,
                ok: 1,
                kinds: 0,
            };
        }
        let header = checksum::fold(header);
        let l3_ok = header == 0xffff;
        let half = |word: u64, lane: u32| ((word >> (lane * 16)) as u16).swap_bytes();
        let claimed = usize::from(half(third, 0));
        let fragment = half(third, 2) & 0x3fff;
        let protocol = (third >> 56) as u8;
        let there = self.len - 14;
        let whole = (20..=there).contains(&claimed) && fragment & 0x1fff == 0;
        let l4_len = claimed.wrapping_sub(20);
        // Subtraction in one's complement is addition of the complement.
        let padding = match (20..there).contains(&claimed) {
            true => u64::from(!checksum::fold(checksum::padding(frame, 14 + claimed))),
            false => 0,
        };
        let mut l4 = L4HeaderType::NONE;
        if whole && protocol == 17 && l4_len >= 8 {
            l4 = L4HeaderType::UDP;
        } else if whole && protocol == 6 && l4_len >= 20 {
            let shape = half(sixth, 3);
            l4 = tcp(shape & 0x10 != 0, l4_len > usize::from(shape >> 12) * 4);
        }
        let mut l4_ok = false;
        if l4 != L4HeaderType::NONE && fragment == 0 {
            let unchecked = l4 == L4HeaderType::UDP && sixth & 0xffff == 0;
            // Bytes 26 to 33 are the addresses.
            let pseudo = (fourth >> 32)
                + (fourth >> 16 & 0xffff)
                + (fifth & 0xffff)
                + (u64::from(protocol) << 8)
                + u64::from((l4_len as u16).swap_bytes());
            l4_ok = unchecked || checksum::fold(payload + pseudo + padding) == 0xffff;
        }
        Description {
            complete: match sums {
                Sums::Frame => all,
                Sums::Packet => checksum::fold(u64::from(all) + padding),
            },
            ok: 1 | u8::from(l3_ok) << 1 | u8::from(l4_ok) << 2,
            kinds: kinds(fragment != 0, l4, L3HeaderType::IPV4, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both(bytes: &[u8], sums: Sums) -> Option<(Description, Description)> {
        let mut words = [0; LINE];
        bytes.line(0, &mut words);
        let glance = Glance::new(&words, bytes.len())?;
        let headers = Headers::parse(&bytes);
        assert_eq!(glance.class(), headers.class());
        let long = Description::of(&bytes, &headers, sums);
        Some((glance.describe(&bytes, sums), long))
    }

    /// Mostly IPv4, mostly with lengths that fit, some with right checksums.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        (
            proptest::collection::vec(any::<u8>(), 14..200),
            prop_oneof![
                Just([8u8, 0]),
                Just([0x88, 0xb5]),
                Just([0x86, 0xdd]),
                Just([0x81, 0])
            ],
            prop_oneof![4 => Just(0x45u8), 1 => any::<u8>()],
            prop_oneof![Just(6u8), Just(17), any::<u8>()],
            prop_oneof![3 => Just(0u16), 1 => any::<u16>()],
            0usize..6,
            prop_oneof![3 => Just(None), 1 => any::<u16>().prop_map(Some)],
            any::<bool>(),
        )
            .prop_map(
                |(mut bytes, kind, first, protocol, fragment, padding, len, right)| {
                    bytes[12..14].copy_from_slice(&kind);
                    let there = bytes.len() - 14;
                    let claimed = len.unwrap_or(there.saturating_sub(padding) as u16);
                    if there >= 28 {
                        bytes[14] = first;
                        bytes[16..18].copy_from_slice(&claimed.to_be_bytes());
                        bytes[20..22].copy_from_slice(&fragment.to_be_bytes());
                        bytes[23] = protocol;
                        if right {
                            super::super::offload::checksums(&mut bytes, true, true);
                        }
                    }
                    bytes
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn a_glance_sees_what_a_long_look_does(bytes in frame()) {
            for sums in [Sums::Packet, Sums::Frame] {
                if let Some((short, long)) = both(&bytes, sums) {
                    prop_assert_eq!(short, long);
                }
            }
        }
    }

    #[test]
    fn a_glance_is_enough_for_the_usual() {
        let mut bytes = vec![0u8; 60];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        bytes[17] = 46;
        bytes[23] = 17;
        super::super::offload::checksums(&mut bytes, true, true);
        let (short, long) = both(&bytes, Sums::Packet).unwrap();
        assert_eq!((short, short.ok), (long, 7));
        bytes[12] = 0x88;
        assert_eq!(both(&bytes, Sums::Packet).unwrap().0.kinds, 0);
        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(both(&bytes, Sums::Frame).is_none());
    }
}
