//! What the device does to a frame on its way out: checksums, a VLAN tag, cutting a large send.

use super::checksum::{fold, pseudo, sum};
use super::frame::{Headers, L3, L4};

/// Writes the checksums that the WQE asks for, as far as the frame has such headers.
pub(super) fn checksums(frame: &mut [u8], l3: bool, l4: bool) {
    let headers = Headers::parse(&&*frame);
    if l3 && headers.l3 == L3::V4 {
        put(frame, headers.l3_at + 10, 0);
        let check = !fold(sum(frame, headers.l3_at, headers.l4_at));
        put(frame, headers.l3_at + 10, check);
    }
    let field = match headers.l4 {
        L4::None => return,
        L4::Udp => headers.l4_at + 6,
        L4::Tcp => headers.l4_at + 16,
    };
    if l4 && !headers.fragment {
        put(frame, field, 0);
        let end = headers.l3_at + headers.l3_len;
        let total = sum(frame, headers.l4_at, end) + pseudo(&headers, end - headers.l4_at);
        let check = match (!fold(total), headers.l4) {
            // UDP writes a sum of zero as all ones: zero means that there is none.
            (0, L4::Udp) => 0xffff,
            (check, _) => check,
        };
        put(frame, field, check);
    }
}

/// Makes a checksum that a sender left to the device: the sum from `start` to the end, in which the
/// field already has the pseudo header's, goes to `start + offset`. False when that is not inside
/// the frame.
pub(crate) fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(part) = frame.get_mut(start..) else {
        return false;
    };
    if offset + 2 > part.len() {
        return false;
    }
    // Zero stands for no checksum, in UDP alone; all ones is as right in the others.
    let check = match !fold(sum(part, 0, part.len())) {
        0 => 0xffff,
        check => check,
    };
    put(part, offset, check);
    true
}

/// Bytes of a packet's headers, those of TCP or UDP included; nothing for other packets.
pub(crate) fn header_len(frame: &[u8]) -> Option<usize> {
    // The lengths in a packet that is several in one may say more than sixteen bits can.
    let mut start: Vec<u8> = frame.iter().copied().take(256).collect();
    let shape = Headers::parse(&start.as_slice());
    let at = shape.l3_at;
    match shape.l3 {
        L3::V4 => put_be(
            &mut start,
            at + 2,
            &((frame.len().min(256) - at) as u16).to_be_bytes(),
        ),
        L3::V6 => put_be(
            &mut start,
            at + 4,
            &((frame.len().min(256) - at - 40) as u16).to_be_bytes(),
        ),
        L3::None => return None,
    }
    let headers = Headers::parse(&start.as_slice());
    match headers.l4 {
        L4::Tcp if headers.tcp_header() < 20 => None,
        L4::Tcp => Some(headers.l4_at + headers.tcp_header()),
        L4::Udp => Some(headers.l4_at + 8),
        L4::None => None,
    }
}

/// Stores a 16-bit lane as it lies in memory.
fn put(frame: &mut [u8], at: usize, lane: u16) {
    if let Some(room) = frame.get_mut(at..at + 2) {
        room.copy_from_slice(&lane.to_le_bytes());
    }
}

fn put_be(frame: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = frame.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

/// Puts a VLAN tag behind the addresses.
pub(crate) fn insert_vlan(frame: &mut Vec<u8>, tci: u16, service: bool) {
    if frame.len() < 12 {
        return;
    }
    let [a, b] = if service { [0x88, 0xa8] } else { [0x81, 0x00] };
    let [c, d] = tci.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
}

/// Makes segment `number` of a large send into `out`: headers as for a packet of its own, and at
/// most `mss` bytes of the payload. False when there is no such segment, or the headers are
/// neither TCP's nor UDP's.
pub(crate) fn segment(
    header: &[u8],
    payload: &[u8],
    mss: usize,
    number: usize,
    out: &mut Vec<u8>,
) -> bool {
    let from = number.saturating_mul(mss);
    if mss == 0 || (from >= payload.len() && number != 0) {
        return false;
    }
    let to = (from + mss).min(payload.len());
    let last = to == payload.len();
    out.clear();
    out.extend_from_slice(header);
    out.extend_from_slice(payload.get(from..to).unwrap_or_default());
    let l3_bytes = out.len();
    // The header's own length fields count the whole packet or nothing; they are set first, so
    // that the parser sees a packet.
    let shape = Headers::parse(&header);
    let at = shape.l3_at;
    match shape.l3 {
        L3::V4 => {
            put_be(out, at + 2, &((l3_bytes - at) as u16).to_be_bytes());
            let id = shape.half(at + 4).wrapping_add(number as u16);
            put_be(out, at + 4, &id.to_be_bytes());
        }
        L3::V6 => put_be(out, at + 4, &((l3_bytes - at - 40) as u16).to_be_bytes()),
        L3::None => return false,
    }
    let headers = Headers::parse(&out.as_slice());
    let l4 = headers.l4_at;
    // A header that is not whole would take its rest from the payload.
    let whole = match headers.l4 {
        L4::Tcp => headers.tcp_header() >= 20 && l4 + headers.tcp_header() <= header.len(),
        L4::Udp => l4 + 8 <= header.len(),
        L4::None => false,
    };
    if !whole {
        return false;
    }
    if headers.l4 == L4::Udp {
        put_be(out, l4 + 4, &((l3_bytes - l4) as u16).to_be_bytes());
        checksums(out, true, true);
        return true;
    }
    let sequence = headers.full(l4 + 4).wrapping_add(from as u32);
    put_be(out, l4 + 4, &sequence.to_be_bytes());
    if let Some(flags) = out.get_mut(l4 + 13) {
        if !last {
            // FIN and PSH belong to the end of the data.
            *flags &= !0x09;
        }
        if number > 0 {
            // CWR is told once.
            *flags &= !0x80;
        }
    }
    checksums(out, true, true);
    true
}

#[cfg(test)]
mod tests {
    use super::super::checksum::verify;
    use super::*;

    fn header(flags: u8) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([0x08, 0, 0x45, 0, 0, 0, 0x12, 0xff, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([
            0, 80, 1, 0, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0,
        ]);
        bytes.extend([0, 0]);
        bytes
    }

    #[test]
    fn segments_add_up_and_check() {
        let payload: Vec<u8> = (0..250u32).map(|k| k as u8).collect();
        let header = header(0x99);
        let mut collected = Vec::new();
        let mut out = Vec::new();
        let mut number = 0;
        while segment(&header, &payload, 100, number, &mut out) {
            let headers = Headers::parse(&out.as_slice());
            let verdict = verify(&out.as_slice(), &headers);
            assert!(verdict.l3_ok && verdict.l4_ok, "segment {number}");
            assert_eq!(usize::from(headers.half(16)), out.len() - 14);
            assert_eq!(headers.half(18), 0x12ff + number as u16);
            let sequence = 0xffff_fff0u32.wrapping_add(collected.len() as u32);
            assert_eq!(headers.full(38), sequence);
            let expected = [0x90, 0x10, 0x19][number];
            assert_eq!(out[47], expected, "flags of segment {number}");
            collected.extend_from_slice(&out[54..]);
            number += 1;
        }
        assert_eq!(number, 3);
        assert_eq!(collected, payload);
    }

    #[test]
    fn datagrams_are_cut_too() {
        let mut header = header(0);
        header.truncate(42);
        header[23] = 17;
        let payload = [7u8; 25];
        let mut out = Vec::new();
        let mut sizes = Vec::new();
        while segment(&header, &payload, 10, sizes.len(), &mut out) {
            let headers = Headers::parse(&out.as_slice());
            let verdict = verify(&out.as_slice(), &headers);
            assert!(verdict.l3_ok && verdict.l4_ok);
            assert_eq!(usize::from(headers.half(38)), out.len() - 34);
            sizes.push(out.len() - 42);
        }
        assert_eq!(sizes, [10, 10, 5]);
    }

    #[test]
    fn six_too() {
        let mut header = vec![2; 12];
        header.extend([0x81, 0, 0, 5, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
        header.extend([0xfd; 32]);
        header.extend([0, 80, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0]);
        header.extend([0, 0]);
        let payload = [7u8; 2500];
        let mut out = Vec::new();
        let mut sizes = Vec::new();
        while segment(&header, &payload, 1000, sizes.len(), &mut out) {
            let headers = Headers::parse(&out.as_slice());
            assert_eq!(headers.vlan, Some((5, false)));
            assert!(verify(&out.as_slice(), &headers).l4_ok);
            assert_eq!(usize::from(headers.half(22)), out.len() - 58);
            sizes.push(out.len() - header.len());
        }
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn what_is_neither_is_not_cut() {
        let mut other = header(0);
        other[23] = 1;
        assert!(!segment(&other, &[0; 10], 5, 0, &mut Vec::new()));
        // Headers that are not whole.
        let short = &header(0)[..50];
        assert!(!segment(short, &[0; 30], 5, 0, &mut Vec::new()));
        assert!(!segment(&header(0), &[0; 10], 0, 0, &mut Vec::new()));
    }

    #[test]
    fn what_a_sender_left_undone() {
        let mut frame = header(0x18);
        frame.extend([1, 2, 3]);
        frame[16..18].copy_from_slice(&[0, 43]);
        checksums(&mut frame, true, true);
        let right = frame.clone();
        // As a stack leaves it: the pseudo header's sum, not inverted.
        let headers = Headers::parse(&frame.as_slice());
        put(&mut frame, 50, fold(pseudo(&headers, 23)));
        assert!(finish_checksum(&mut frame, 34, 16));
        assert_eq!(frame, right);
        assert!(!finish_checksum(&mut frame, 58, 0));
        assert!(!finish_checksum(&mut frame, 34, 22));
        assert!(!finish_checksum(&mut frame, usize::MAX, 0));
    }

    #[test]
    fn headers_are_found_whatever_the_lengths_say() {
        for claimed in [0u16, 40, 0xffff] {
            let mut frame = header(0x18);
            frame.resize(40_000, 7);
            frame[16..18].copy_from_slice(&claimed.to_be_bytes());
            assert_eq!(header_len(&frame), Some(54));
            frame[23] = 17;
            assert_eq!(header_len(&frame), Some(42));
            frame[23] = 1;
            assert_eq!(header_len(&frame), None);
        }
        assert_eq!(header_len(&[0; 14]), None);
        assert_eq!(header_len(&[]), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            cases: 2000,
            ..proptest::prelude::ProptestConfig::default()
        })]

        /// Whatever a frame and its side information say: an answer, and pieces that end.
        #[test]
        fn nonsense_is_survived(
            mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            kind in proptest::sample::select(vec![[8u8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]]),
            first in proptest::sample::select(vec![0x45u8, 0x4f, 0x60, 0x00]),
            protocol in proptest::sample::select(vec![6u8, 17, 0, 44]),
            start in 0usize..300,
            offset in 0usize..300,
            header in 0usize..220,
            mss in 0usize..100,
        ) {
            for (at, value) in [(12, kind[0]), (13, kind[1]), (14, first), (23, protocol), (20, protocol)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            let len = bytes.len();
            let fits = start <= len && offset + 2 <= len - start;
            proptest::prop_assert_eq!(finish_checksum(&mut bytes.clone(), start, offset), fits);
            if let Some(found) = header_len(&bytes) {
                proptest::prop_assert!(found >= 42);
            }
            if let Some((header, payload)) = bytes.split_at_checked(header) {
                let mut out = Vec::new();
                let mut number = 0;
                while segment(header, payload, mss, number, &mut out) {
                    proptest::prop_assert!(out.len() <= header.len() + mss);
                    number += 1;
                    proptest::prop_assert!(number <= payload.len().max(1));
                }
            }
        }
    }

    #[test]
    fn zero_udp_sum_is_written_as_ones() {
        // Ports and payload are chosen so that everything sums to all ones before the check.
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([0; 8]);
        let ports = 0xffffu16 - 17 - 8 - 8;
        frame.extend(ports.to_be_bytes());
        frame.extend([0, 0, 0, 8, 0, 0]);
        checksums(&mut frame, true, true);
        assert_eq!(frame[40..42], [0xff, 0xff]);
        let verdict = verify(&frame.as_slice(), &Headers::parse(&frame.as_slice()));
        assert!(verdict.l3_ok && verdict.l4_ok);
    }

    #[test]
    fn tag_goes_behind_the_addresses() {
        let mut frame: Vec<u8> = (0..20).collect();
        insert_vlan(&mut frame, 0x1234, false);
        assert_eq!(frame[10..18], [10, 11, 0x81, 0, 0x12, 0x34, 12, 13]);
        insert_vlan(&mut frame, 1, true);
        assert_eq!(frame[12..16], [0x88, 0xa8, 0, 1]);
    }
}
