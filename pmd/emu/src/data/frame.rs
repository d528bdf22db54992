//! A frame on its way from a send queue or a wire to a receive queue, and what its headers say.
//!
//! A frame is read where it lies: in the driver's memory ([`Pieces`]) or in ours ([`&[u8]`]). Its
//! first 128 bytes are brought into words once; header fields are taken from those words, two
//! bytes at a time, as all of them start at even offsets.

use pollux_mempool::{MemoryError, Window};

/// Where a frame's bytes are.
pub(super) trait Frame {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// The 8 bytes from `offset` in memory order; bytes behind the end read as zero.
    fn word(&self, offset: usize) -> u64;

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

    /// Station (false) or group address.
    fn class(&self) -> Class {
        let head = self.word(0) & 0xffff_ffff_ffff;
        if head & 1 == 0 {
            Class::Unicast
        } else if head == 0xffff_ffff_ffff {
            Class::Broadcast
        } else {
            Class::Multicast
        }
    }
}

/// Kind of a destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Unicast,
    Multicast,
    Broadcast,
}

impl Frame for &[u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn word(&self, offset: usize) -> u64 {
        let rest = self.get(offset..).unwrap_or_default();
        match rest.first_chunk::<8>() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => rest
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte)),
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

impl Piece<'_> {
    /// 8 bytes from `at`, which lie inside.
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        load(self.window, self.offset + at)
    }
}

/// 8 bytes of a window in memory order; zero when they are not there.
#[inline(always)]
pub(super) fn load(window: &Window, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    match window.copy_out(offset, &mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

/// A frame in the driver's memory: a header that stands inline in a WQE (or nothing), and one
/// buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    pub head: Piece<'a>,
    pub body: Piece<'a>,
}

impl Frame for Pieces<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.head.len + self.body.len
    }

    #[inline]
    fn word(&self, offset: usize) -> u64 {
        let (split, len) = (self.head.len, self.len());
        if offset >= split {
            let at = offset - split;
            return if offset + 8 <= len {
                self.body.load(at)
            } else {
                tail(offset, len, |byte| self.byte(byte))
            };
        }
        if offset + 8 <= split {
            return self.head.load(offset);
        }
        tail(offset, len, |byte| self.byte(byte))
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
    fn byte(&self, at: usize) -> u64 {
        let (piece, at) = match at.checked_sub(self.head.len) {
            Some(rest) => (self.body, rest),
            None => (self.head, at),
        };
        let mut byte = [0];
        if at < piece.len && piece.window.copy_out(piece.offset + at, &mut byte).is_ok() {
            let [byte] = byte;
            return u64::from(byte);
        }
        0
    }
}

#[cold]
fn tail(offset: usize, len: usize, byte: impl Fn(usize) -> u64) -> u64 {
    (offset..len.min(offset + 8))
        .rev()
        .fold(0, |word, at| word << 8 | byte(at))
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
    #[inline]
    pub fn parse<F: Frame>(frame: &F) -> Self {
        let len = frame.len();
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate().take(8) {
            *word = frame.word(index * 8);
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
            if len > 64 {
                for index in 8..WORDS {
                    if let Some(word) = headers.words.get_mut(index) {
                        *word = frame.word(index * 8);
                    }
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
    fn word_reads_zero_past_the_end() {
        let bytes: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(bytes.word(0), 0x0807_0605_0403_0201);
        assert_eq!(bytes.word(5), 0x0908_0706);
        assert_eq!(bytes.word(9), 0);
    }
}
