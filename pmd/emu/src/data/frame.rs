//! A frame on its way from a send queue or a wire to a receive queue, and what its headers say.
//!
//! A frame is read where it lies: in the driver's memory ([`Pieces`]) or in ours ([`&[u8]`]). Its
//! first 128 bytes are brought into words once; header fields are taken from those words, two
//! bytes at a time, as all of them start at even offsets.

use pollux_mempool::{MemoryError, Window};

/// Words of a frame that are brought in at once: a cache line, and all headers of most frames.
pub(super) const LINE: usize = 8;

/// Where a frame's bytes are. Words are read so that the first byte is the lowest.
pub(super) trait Frame {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// The 64 bytes from `offset`; bytes behind the end read as zero.
    fn line(&self, offset: usize, words: &mut [u64; LINE]);

    /// Copies `len` bytes from `offset` into a window.
    ///
    /// # Errors
    /// Outside the frame or the window.
    fn copy_to(
        &self,
        offset: usize,
        to: &Window,
        to_offset: usize,
        len: usize,
    ) -> Result<(), MemoryError>;

    /// Appends all bytes to a vector.
    fn append_to(&self, bytes: &mut Vec<u8>);
}

/// Zeroes what lies behind the first `len` bytes.
#[inline(always)]
pub(super) fn trimmed(words: [u64; LINE], len: usize) -> [u64; LINE] {
    const LAST: usize = (LINE - 1) * 8;
    if len >= LINE * 8 {
        words
    } else if len >= LAST {
        // The smallest packets end here: the words stay in registers.
        let [a, b, c, d, e, f, g, last] = words;
        [a, b, c, d, e, f, g, last & ((1 << ((len - LAST) * 8)) - 1)]
    } else {
        short(words, len)
    }
}

#[cold]
fn short(mut words: [u64; LINE], len: usize) -> [u64; LINE] {
    let (whole, rest) = (len / 8, len % 8);
    if let Some([partial, behind @ ..]) = words.get_mut(whole..) {
        *partial &= (1 << (rest * 8)) - 1;
        behind.fill(0);
    }
    words
}

/// Kind of a destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Unicast,
    Multicast,
    Broadcast,
}

impl Class {
    /// From the first word of a frame.
    #[inline(always)]
    pub fn of(first: u64) -> Self {
        let station = first & 0xffff_ffff_ffff;
        if station & 1 == 0 {
            Self::Unicast
        } else if station == 0xffff_ffff_ffff {
            Self::Broadcast
        } else {
            Self::Multicast
        }
    }
}

impl Frame for &[u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn line(&self, offset: usize, words: &mut [u64; LINE]) {
        let rest = self.get(offset..).unwrap_or_default();
        if let Some(line) = rest.first_chunk::<{ LINE * 8 }>() {
            for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
                *word = bytes
                    .first_chunk::<8>()
                    .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            }
            return;
        }
        words.fill(0);
        for (word, bytes) in words.iter_mut().zip(rest.chunks(8)) {
            *word = match bytes.first_chunk::<8>() {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => bytes
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
        }
    }

    #[inline]
    fn copy_to(
        &self,
        offset: usize,
        to: &Window,
        to_offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        match self.get(offset..).and_then(|rest| rest.get(..len)) {
            Some(part) => to.copy_in(to_offset, part),
            None => Err(out_of_frame(offset, len, <[u8]>::len(self))),
        }
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

/// A part of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub window: &'a Window,
    pub offset: usize,
    pub len: usize,
}

/// A frame in the driver's memory: a header that stands inline in a WQE (or nothing), and one
/// buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    pub head: Piece<'a>,
    pub body: Piece<'a>,
}

impl Frame for Pieces<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.head.len + self.body.len
    }

    #[inline]
    fn line(&self, offset: usize, words: &mut [u64; LINE]) {
        let split = self.head.len;
        let left = self.len().saturating_sub(offset);
        let read = if offset >= split {
            let at = self.body.offset + (offset - split);
            self.body.window.read_words::<LINE>(at)
        } else if offset == 0 && split < 3 * 8 {
            self.joined()
        } else {
            return self.bytewise(offset, words);
        };
        match read {
            Ok(line) => {
                *words = trimmed(line, left);
            }
            // The mapping ends less than a line behind the frame.
            Err(_) => self.bytewise(offset, words),
        }
    }

    #[inline]
    fn copy_to(
        &self,
        offset: usize,
        to: &Window,
        to_offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        let from_head = self.head.len.saturating_sub(offset).min(len);
        if from_head > 0 {
            let at = self.head.offset + offset;
            self.head.window.copy_to(at, to, to_offset, from_head)?;
        }
        let rest = len - from_head;
        if rest > 0 {
            let at = offset + from_head - self.head.len;
            if at + rest > self.body.len {
                return Err(out_of_frame(offset, len, self.len()));
            }
            self.body
                .window
                .copy_to(self.body.offset + at, to, to_offset + from_head, rest)?;
        }
        Ok(())
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        for piece in [self.head, self.body] {
            let at = bytes.len();
            bytes.resize(at + piece.len, 0);
            if let Some(room) = bytes.get_mut(at..) {
                // Both pieces were resolved before the frame was made.
                let copied = piece.window.copy_out(piece.offset, room);
                debug_assert!(copied.is_ok());
            }
        }
    }
}

impl Pieces<'_> {
    /// The first line across the two pieces, for a short inline header.
    #[inline]
    fn joined(&self) -> Result<[u64; LINE], MemoryError> {
        let split = self.head.len;
        let head = self.head.window.read_words::<3>(self.head.offset)?;
        let (whole, rest) = (split / 8, split % 8);
        let body = self.body.window.read_words::<LINE>(self.body.offset)?;
        let mut words = [0; LINE];
        for (index, word) in words.iter_mut().enumerate() {
            let from_body = |index: usize| body.get(index).copied().unwrap_or(0);
            *word = match index.checked_sub(whole) {
                None => head.get(index).copied().unwrap_or(0),
                Some(after) if rest == 0 => from_body(after),
                Some(0) => {
                    let start = head.get(index).copied().unwrap_or(0);
                    start & ((1 << (rest * 8)) - 1) | from_body(0) << (rest * 8)
                }
                Some(after) => {
                    from_body(after - 1) >> (64 - rest * 8) | from_body(after) << (rest * 8)
                }
            };
        }
        Ok(words)
    }

    #[cold]
    fn bytewise(&self, offset: usize, words: &mut [u64; LINE]) {
        let mut bytes = [0; LINE * 8];
        let left = self.len().saturating_sub(offset).min(bytes.len());
        for (at, byte) in bytes.iter_mut().enumerate().take(left) {
            let at = offset + at;
            let (piece, at) = match at.checked_sub(self.head.len) {
                Some(rest) => (&self.body, rest),
                None => (&self.head, at),
            };
            if let Ok([value]) = piece.window.read::<[u8; 1]>(piece.offset + at) {
                *byte = value;
            }
        }
        (&bytes[..]).line(0, words);
    }
}

#[cold]
fn out_of_frame(offset: usize, asked: usize, len: usize) -> MemoryError {
    MemoryError::OutOfBounds {
        what: "frame",
        offset,
        asked,
        len,
    }
}

/// L3 protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum L3 {
    None,
    V4,
    V6,
}

/// L4 protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum L4 {
    None,
    Tcp,
    Udp,
}

const WORDS: usize = 16;

/// The first 128 bytes of a frame and where its headers are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    words: [u64; WORDS],
    /// Bytes of the frame.
    pub len: usize,
    /// Where the L3 header starts.
    pub l3_at: usize,
    /// Where the L4 header starts; meaningless without one.
    pub l4_at: usize,
    /// EtherType behind all tags.
    pub ethertype: u16,
    /// Outer VLAN tag, and whether it is a service tag.
    pub vlan: Option<(u16, bool)>,
    /// L3 protocol.
    pub l3: L3,
    /// L4 protocol; none for a fragment that is not the first.
    pub l4: L4,
    /// IP protocol number behind extension headers.
    pub protocol: u8,
    /// Some fragment of a packet.
    pub fragment: bool,
    /// IPv4 options or IPv6 extension headers.
    pub options: bool,
    /// Bytes from the L3 header on that IP claims; at most what is there.
    pub l3_len: usize,
}

impl Headers {
    /// Reads the headers. Lengths that a frame claims and does not have make L4 vanish.
    #[inline(always)]
    pub fn parse<F: Frame>(frame: &F) -> Self {
        let len = frame.len();
        let mut words = [0; WORDS];
        if let Some(first) = words.first_chunk_mut::<LINE>() {
            frame.line(0, first);
        }
        let mut headers = Self {
            words,
            len,
            l3_at: 14,
            l4_at: 0,
            ethertype: 0,
            vlan: None,
            l3: L3::None,
            l4: L4::None,
            protocol: 0,
            fragment: false,
            options: false,
            l3_len: 0,
        };
        headers.ethertype = headers.half(12);
        if headers.ethertype == 0x0800 && headers.half(14) >> 8 == 0x45 {
            headers.ipv4();
        } else {
            if len > LINE * 8 {
                if let Some(second) = headers.words.last_chunk_mut::<LINE>() {
                    frame.line(LINE * 8, second);
                }
            }
            headers.uncommon();
        }
        headers
    }

    /// 16 bits at an even offset below 128, host order.
    #[inline(always)]
    pub fn half(&self, at: usize) -> u16 {
        let word = self
            .words
            .get((at >> 3) & (WORDS - 1))
            .copied()
            .unwrap_or(0);
        ((word >> ((at & 6) * 8)) as u16).swap_bytes()
    }

    /// 32 bits at an even offset below 126, host order.
    #[inline(always)]
    pub fn full(&self, at: usize) -> u32 {
        u32::from(self.half(at)) << 16 | u32::from(self.half(at + 2))
    }

    /// Kind of the destination address.
    #[inline(always)]
    pub fn class(&self) -> Class {
        let [first, ..] = self.words;
        Class::of(first)
    }

    /// The first words as they lie in memory.
    #[inline(always)]
    pub fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    #[cold]
    fn uncommon(&mut self) {
        for _ in 0..2 {
            if !matches!(self.ethertype, 0x8100 | 0x88a8) || self.l3_at + 4 > self.len {
                break;
            }
            if self.vlan.is_none() {
                self.vlan = Some((self.half(self.l3_at), self.ethertype == 0x88a8));
            }
            self.ethertype = self.half(self.l3_at + 2);
            self.l3_at += 4;
        }
        match self.ethertype {
            0x0800 => self.ipv4(),
            0x86dd => self.ipv6(),
            _ => {}
        }
    }

    #[inline(always)]
    fn ipv4(&mut self) {
        let at = self.l3_at;
        let there = self.len.saturating_sub(at);
        let first = self.half(at);
        let header = usize::from(first >> 8 & 0xf) * 4;
        let claimed = usize::from(self.half(at + 2));
        if first >> 12 != 4 || header < 20 || there < header {
            return;
        }
        self.l3 = L3::V4;
        self.options = header > 20;
        self.protocol = (self.half(at + 8) & 0xff) as u8;
        self.l3_len = claimed.min(there);
        self.l4_at = at + header;
        let fragment = self.half(at + 6) & 0x3fff;
        self.fragment = fragment != 0;
        let whole = claimed <= there && claimed >= header;
        if whole && fragment & 0x1fff == 0 {
            self.l4(claimed - header);
        }
    }

    fn ipv6(&mut self) {
        let at = self.l3_at;
        let there = self.len.saturating_sub(at);
        if there < 40 || self.half(at) >> 12 != 6 {
            return;
        }
        self.l3 = L3::V6;
        let payload = usize::from(self.half(at + 4));
        self.l3_len = (40 + payload).min(there);
        let end = at + self.l3_len;
        let mut next = (self.half(at + 6) >> 8) as u8;
        let mut l4 = at + 40;
        // Hop-by-hop, routing, fragment, destination options; the words hold no more than these.
        while matches!(next, 0 | 43 | 44 | 60) && l4 + 8 <= end && l4 + 8 <= WORDS * 8 {
            self.options = true;
            let field = self.half(l4);
            if next == 44 {
                self.fragment = true;
                if self.half(l4 + 2) & 0xfff8 != 0 {
                    self.protocol = (field >> 8) as u8;
                    self.l4_at = l4 + 8;
                    return;
                }
                l4 += 8;
            } else {
                l4 += 8 + usize::from(field & 0xff) * 8;
            }
            next = (field >> 8) as u8;
        }
        self.protocol = next;
        self.l4_at = l4;
        if 40 + payload <= there && l4 + 20 <= WORDS * 8 {
            self.l4(end.saturating_sub(l4));
        }
    }

    #[inline(always)]
    fn l4(&mut self, there: usize) {
        self.l4 = match self.protocol {
            17 if there >= 8 => L4::Udp,
            6 if there >= 20 => L4::Tcp,
            _ => L4::None,
        };
    }

    /// TCP's nine flag bits.
    #[inline(always)]
    pub fn tcp_flags(&self) -> u16 {
        self.half(self.l4_at + 12) & 0x1ff
    }

    /// TCP's header length in bytes.
    #[inline(always)]
    pub fn tcp_header(&self) -> usize {
        usize::from(self.half(self.l4_at + 12) >> 12) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mempool::{Segment, SegmentRequest};

    fn line<F: Frame>(frame: &F, offset: usize) -> [u64; LINE] {
        let mut words = [!0; LINE];
        frame.line(offset, &mut words);
        words
    }

    fn parse(bytes: &[u8]) -> Headers {
        Headers::parse(&bytes)
    }

    #[test]
    fn short_and_claiming_frames_have_no_l4() {
        for len in 0..60 {
            let mut frame = vec![0u8; len];
            for (at, byte) in [(12, 0x08), (14, 0x45), (17, 200), (23, 6)] {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            let headers = parse(&frame);
            assert_eq!(headers.l4, L4::None, "{len} bytes");
            assert_eq!(headers.l3, if len < 34 { L3::None } else { L3::V4 });
        }
    }

    #[test]
    fn two_tags_and_ipv6_with_options() {
        let mut frame = vec![0u8; 120];
        frame[12..22].copy_from_slice(&[0x88, 0xa8, 0x20, 7, 0x81, 0, 0, 9, 0x86, 0xdd]);
        frame[22] = 0x60;
        frame[26..28].copy_from_slice(&58u16.to_be_bytes());
        frame[28] = 0; // hop by hop
        frame[62] = 17;
        let headers = parse(&frame);
        assert_eq!(headers.vlan, Some((0x2007, true)));
        assert_eq!(
            (headers.l3, headers.l4, headers.options),
            (L3::V6, L4::Udp, true)
        );
        assert_eq!((headers.l3_at, headers.l4_at), (22, 70));
    }

    #[test]
    fn lines_are_the_same_wherever_the_frame_lies() {
        let window = Segment::map(&SegmentRequest::new("frames", 4096))
            .unwrap()
            .whole();
        let bytes: Vec<u8> = (0..200u8).map(|k| k.wrapping_mul(37) | 1).collect();
        for len in [1, 7, 8, 13, 60, 64, 65, 100, 127, 128, 200] {
            let whole: &[u8] = &bytes[..len];
            for split in (0..=30).chain([63, 64, 90]).filter(|split| *split < len) {
                // At the very end of the mapping, and with room behind.
                for end in [4096, 3000] {
                    let at = end - (len - split);
                    window.copy_in(at, &whole[split..]).unwrap();
                    window.copy_in(100, &whole[..split]).unwrap();
                    let frame = Pieces {
                        head: Piece {
                            window: &window,
                            offset: 100,
                            len: split,
                        },
                        body: Piece {
                            window: &window,
                            offset: at,
                            len: len - split,
                        },
                    };
                    for offset in (0..len + 9).step_by(7) {
                        let place = format!("{len} bytes, {split} inline, at {offset}");
                        assert_eq!(line(&frame, offset), line(&whole, offset), "{place}");
                    }
                }
            }
            let mut expected = [0u8; 64];
            let there = len.min(64);
            expected[..there].copy_from_slice(&whole[..there]);
            let first = line(&whole, 0).map(u64::to_le_bytes).concat();
            assert_eq!(first, expected);
        }
    }
}
