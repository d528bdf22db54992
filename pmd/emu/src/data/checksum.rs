//! Internet checksums, taken over 16-bit lanes as they lie in memory: the result needs no byte
//! swap to be compared with, or stored into, a packet.

use super::frame::{Frame, Headers, L3, L4, LINE};

/// Adds up the lanes of some words; the result has at most 33 bits, so that many can be added.
#[inline(always)]
pub(super) fn lanes(words: &[u64]) -> u64 {
    // An add with carry for each word.
    reduce(words.iter().map(|word| u128::from(*word)).sum())
}

/// A wide sum in at most 33 bits.
#[inline(always)]
fn reduce(sum: u128) -> u64 {
    let (low, carry) = (sum as u64).overflowing_add((sum >> 64) as u64);
    (low & 0xffff_ffff) + (low >> 32) + u64::from(carry)
}

/// Adds the bytes from `from` (even) to the end of the frame.
#[inline]
pub(super) fn rest<F: Frame>(frame: &F, from: usize) -> u64 {
    let len = frame.len();
    // Wide enough for carries of any frame, and an add with carry per word.
    let mut total = 0u128;
    let mut words = [0; LINE];
    let mut at = from;
    while at < len {
        frame.line(at, &mut words);
        total += words.iter().map(|word| u128::from(*word)).sum::<u128>();
        at += LINE * 8;
    }
    reduce(total)
}

/// Adds the bytes `from..to`; `from` is even.
pub(super) fn sum(bytes: &[u8], from: usize, to: usize) -> u64 {
    rest(&bytes.get(..to).unwrap_or(bytes), from)
}

/// Adds the bytes of a frame from its L3 header on.
#[inline(always)]
fn whole<F: Frame>(frame: &F, headers: &Headers) -> u64 {
    let words = headers.words();
    if headers.l3_at != 14 || headers.len < 14 {
        return rest(frame, headers.l3_at);
    }
    let [_, second, third, fourth, fifth, sixth, seventh, eighth, ..] = *words;
    let start = second >> 48;
    let first_line = start + lanes(&[third, fourth, fifth, sixth, seventh, eighth]);
    if headers.len <= LINE * 8 {
        first_line
    } else {
        first_line + rest(frame, LINE * 8)
    }
}

/// Folds a sum to 16 bits.
#[inline(always)]
pub(super) fn fold(sum: u64) -> u16 {
    // A number plus its halves swapped has in its upper half the sum of both, carry included.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The sum of the pseudo header for an L4 part of `len` bytes.
#[inline(always)]
pub(super) fn pseudo(headers: &Headers, len: usize) -> u64 {
    let addresses = |at: usize, halves: usize| {
        (0..halves)
            .map(|k| u64::from(headers.half(at + 2 * k).to_be()))
            .sum::<u64>()
    };
    let rest = u64::from(u16::from(headers.protocol).to_be())
        + u64::from((len as u16).to_be())
        + u64::from(((len >> 16) as u16).to_be());
    rest + match headers.l3 {
        L3::V4 => addresses(headers.l3_at + 12, 4),
        L3::V6 => addresses(headers.l3_at + 8, 16),
        L3::None => 0,
    }
}

/// What the receive side finds out about a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Sum over everything from the L3 header on.
    pub all: u16,
    /// Sum over what IP says is its packet; the same as `all` where there is no IP.
    pub packet: u16,
    /// IPv4's header checksum is right (IPv6 has none and is right).
    pub l3_ok: bool,
    /// TCP's or UDP's checksum is right.
    pub l4_ok: bool,
}

/// Checks a frame's checksums.
#[inline(always)]
pub(super) fn verify<F: Frame>(frame: &F, headers: &Headers) -> Verdict {
    let l3_at = headers.l3_at;
    let all = whole(frame, headers);
    let end = l3_at + headers.l3_len;
    // Subtraction in one's complement is addition of the complement.
    let behind = match headers.l3 {
        L3::None => 0,
        _ if headers.l3_len < 20 || end >= headers.len => 0,
        _ => u64::from(!fold(padding(frame, end))),
    };
    let mut verdict = Verdict {
        all: fold(all),
        packet: fold(all + behind),
        l3_ok: false,
        l4_ok: false,
    };
    let header_sum = match headers.l3 {
        L3::None => return verdict,
        L3::V4 => {
            let halves = (headers.l4_at - l3_at) / 2;
            let total: u64 = (0..halves)
                .map(|k| u64::from(headers.half(l3_at + 2 * k).to_be()))
                .sum();
            verdict.l3_ok = fold(total) == 0xffff;
            total
        }
        L3::V6 => {
            verdict.l3_ok = true;
            let halves = (headers.l4_at - l3_at) / 2;
            (0..halves)
                .map(|k| u64::from(headers.half(l3_at + 2 * k).to_be()))
                .sum()
        }
    };
    if headers.l4 == L4::None || headers.fragment {
        return verdict;
    }
    if headers.l4 == L4::Udp && headers.l3 == L3::V4 && headers.half(headers.l4_at + 6) == 0 {
        verdict.l4_ok = true;
        return verdict;
    }
    let l4 = u64::from(verdict.packet)
        + u64::from(!fold(header_sum))
        + pseudo(headers, end - headers.l4_at);
    verdict.l4_ok = fold(l4) == 0xffff;
    verdict
}

/// Adds what follows the packet, in the lanes of the frame; it may start in mid-lane.
#[cold]
pub(super) fn padding<F: Frame>(frame: &F, from: usize) -> u64 {
    if from & 1 == 0 {
        return rest(frame, from);
    }
    let mut words = [0; LINE];
    frame.line(from, &mut words);
    let [first, ..] = words;
    ((first & 0xff) << 8) + rest(frame, from + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook way, big-endian.
    fn plain(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            total += u32::from(u16::from_be_bytes([pair[0], low]));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn sums_like_the_textbook() {
        let bytes: Vec<u8> = (0..97u32).map(|k| (k * 151 + 7) as u8).collect();
        for from in (0..20).step_by(2) {
            for to in from..bytes.len() {
                let got = fold(sum(&bytes, from, to));
                assert_eq!(got.to_be(), plain(&bytes[from..to]), "{from}..{to}");
            }
        }
    }

    /// A UDP frame whose checksums were worked out by hand: 192.168.0.1:1 to 192.168.0.2:2,
    /// payload `ab`.
    fn udp() -> Vec<u8> {
        let mut frame = vec![0xff; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0xf9, 0x7b]);
        frame.extend([192, 168, 0, 1, 192, 168, 0, 2]);
        frame.extend([0, 1, 0, 2, 0, 10, 0x1d, 0x21, b'a', b'b']);
        frame
    }

    #[test]
    fn right_and_wrong_checksums() {
        let mut bytes = udp();
        let check = |bytes: &[u8]| verify(&bytes, &Headers::parse(&bytes));
        let verdict = check(&bytes);
        assert_eq!((verdict.l3_ok, verdict.l4_ok), (true, true));
        assert_eq!(verdict.all.to_be(), plain(&bytes[14..]));
        assert_eq!(verdict.packet, verdict.all);
        // Padding belongs to the sum over all and to nothing else.
        bytes.extend([1, 2, 3]);
        let verdict = check(&bytes);
        assert_eq!((verdict.l3_ok, verdict.l4_ok), (true, true));
        assert_eq!(verdict.all.to_be(), plain(&bytes[14..]));
        assert_eq!(verdict.packet.to_be(), plain(&bytes[14..44]));
        bytes[43] ^= 1;
        assert_eq!((check(&bytes).l3_ok, check(&bytes).l4_ok), (true, false));
        bytes[43] ^= 1;
        bytes[22] ^= 1;
        assert!(!check(&bytes).l3_ok);
        bytes[22] ^= 1;
        // No UDP checksum at all is right for IPv4.
        bytes[40] = 0;
        bytes[41] = 0;
        assert!(check(&bytes).l4_ok);
    }
}
