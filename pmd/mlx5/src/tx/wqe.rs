//! Writing send WQEs: control segment, Ethernet segment, data segments.

use super::TxParts;
use crate::regions::RegionsRef;
use pollux_mempool::mbuf::flags;
use pollux_mempool::{Cells, CellsRef, Mbuf, MemoryError};
use pollux_prm::wqe::{CtrlFlags, DataSeg, INLINE_L2, SEGMENT, SendOpcode};
use std::sync::atomic::Ordering;

/// Segments that one basic block holds.
const PER_BLOCK: usize = 4;

/// Largest WQE in segments: the field has six bits.
const MAX_SEGMENTS: usize = 63;

/// Where a WQE says how many bytes of the packet stand in it, a 16-bit field.
const INLINE_SIZE: usize = 28;

/// What the queue cannot compute for a packet.
const UNSUPPORTED: u32 = flags::TX_VLAN | flags::TX_TSO;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It stands in one block of the ring, in so many 16-byte segments.
    Block { segments: u16, bytes: u32 },
    /// It stands in the ring, in so many 16-byte segments.
    Chain { segments: u16, bytes: u32 },
    /// The ring has no room for it now.
    NoRoom,
    /// It cannot be sent, now or later.
    Refused,
}

/// The send ring, written but never read.
pub(super) struct Writer {
    blocks: Cells<[u64; 8]>,
    segments: Cells<[u64; 2]>,
    /// Queue number in bits 8..32.
    qpn: u32,
    /// Longest frame in bytes.
    max_len: usize,
    /// Longest WQE in segments.
    max_segments: usize,
}

/// Basic blocks of a WQE of `segments`.
#[inline(always)]
pub(super) fn blocks_of(segments: u16) -> u16 {
    segments.wrapping_add(PER_BLOCK as u16 - 1) / PER_BLOCK as u16
}

impl Writer {
    /// `most_blocks` is the longest WQE for which the ring finds room sooner or later.
    pub(super) fn new(parts: &TxParts, most_blocks: usize) -> Result<Self, MemoryError> {
        let ring = parts.sq.window();
        let count = parts.sq.count();
        Ok(Self {
            blocks: ring.cells(0, count)?,
            segments: ring.cells(0, count * PER_BLOCK)?,
            qpn: parts.sqn << 8,
            max_len: parts.max_len,
            max_segments: MAX_SEGMENTS
                .min(parts.max_wqe_len / SEGMENT)
                .min(most_blocks * PER_BLOCK),
        })
    }

    /// The first eight bytes of the WQE at `block`, in the CPU's order; also what rings the
    /// doorbell.
    #[inline(always)]
    pub(super) fn head_word(&self, block: u16, segments: u16) -> u64 {
        head_word(self.qpn, block, segments)
    }

    /// Makes the WQE at `block` ask for a completion. Before the doorbell only.
    #[inline(always)]
    pub(super) fn ask(&self, block: u16) {
        let word = u32::from(CtrlFlags::CQ_UPDATE.0).to_be();
        self.blocks.store_u32::<8>(block, word, Ordering::Relaxed);
    }

    /// The device address in the first data segment of the WQE at `block`, as it was written.
    pub(super) fn address(&self, block: u16) -> u64 {
        // A header that is inlined takes one more segment.
        let size = u32::from_be(
            self.blocks
                .load_u32::<INLINE_SIZE>(block, Ordering::Relaxed),
        );
        let at = usize::from(block) * PER_BLOCK + if size >> 16 != 0 { 3 } else { 2 };
        let [_, address] = self.segments.read(at);
        u64::from_be(address)
    }

    /// The ring for a loop that writes many WQEs.
    #[inline(always)]
    pub(super) fn pen<'a>(&'a self, regions: RegionsRef<'a>) -> Pen<'a> {
        Pen {
            writer: self,
            blocks: self.blocks.by_ref(),
            regions,
            qpn: self.qpn,
            max_len: self.max_len,
        }
    }
}

/// What a loop needs of a [`Writer`], by value.
pub(super) struct Pen<'a> {
    writer: &'a Writer,
    blocks: CellsRef<'a, [u64; 8]>,
    regions: RegionsRef<'a>,
    qpn: u32,
    max_len: usize,
}

impl Pen<'_> {
    /// Writes a packet's WQE at `block`, where `free` blocks are free. Nothing is written unless
    /// it can be sent whole.
    #[inline(always)]
    pub(super) fn write<const INLINE: bool, const CHAINS: bool>(
        &self,
        block: u16,
        free: u16,
        mbuf: &Mbuf,
    ) -> Written {
        if mbuf.nb_segs() != 1 {
            if !CHAINS {
                return Written::Refused;
            }
            return self
                .writer
                .write_chain::<INLINE>(block, free, mbuf, self.regions);
        }
        let length = mbuf.data_len();
        let asked = mbuf.flags();
        let region = self.regions.get(mbuf.region());
        if length.wrapping_sub(1) >= self.max_len || asked & UNSUPPORTED != 0 || region.lkey == 0 {
            return Written::Refused;
        }
        let address = mbuf.data_address().wrapping_add(region.shift);
        let eth = ethernet(asked);
        if INLINE {
            let Some((header, rest)) = mbuf.data().split_first_chunk::<INLINE_L2>() else {
                return Written::Refused;
            };
            if free == 0 {
                return Written::NoRoom;
            }
            let [start, a, b] = inline_words(header);
            // A data segment of no bytes would stand for 2 GiB.
            let segments = if rest.is_empty() { 3 } else { 4 };
            let [c, d] = DataSeg::halves(
                rest.len() as u32,
                region.lkey,
                address.wrapping_add(INLINE_L2 as u64),
            );
            let head = head_word(self.qpn, block, segments).to_be();
            let wqe = [head, 0, eth, start, a, b, c, d];
            self.blocks.write(block, &wqe);
            Written::Block {
                segments,
                bytes: length as u32,
            }
        } else {
            if free == 0 {
                return Written::NoRoom;
            }
            let [a, b] = DataSeg::halves(length as u32, region.lkey, address);
            let wqe = [head_word(self.qpn, block, 3).to_be(), 0, eth, 0, a, b];
            self.blocks.write_part::<[u64; 6], 0>(block, &wqe);
            Written::Block {
                segments: 3,
                bytes: length as u32,
            }
        }
    }
}

impl Writer {
    /// As [`Pen::write`], for a packet of several buffers.
    #[inline(never)]
    fn write_chain<const INLINE: bool>(
        &self,
        block: u16,
        free: u16,
        mbuf: &Mbuf,
        regions: RegionsRef<'_>,
    ) -> Written {
        let mut skip = if INLINE { INLINE_L2 } else { 0 };
        let first = if INLINE { 3 } else { 2 };
        // Look before writing: how many data segments, how many bytes, all memory known?
        let mut segments = first;
        let mut length = 0;
        let mut to_skip = skip;
        for part in mbuf.segments() {
            let bytes = part.data_len();
            length += bytes;
            if bytes > to_skip {
                if regions.get(part.region()).lkey == 0 {
                    return Written::Refused;
                }
                segments += 1;
            }
            to_skip = to_skip.saturating_sub(bytes);
        }
        let asked = mbuf.flags();
        if length.wrapping_sub(1) >= self.max_len
            || to_skip != 0
            || segments > self.max_segments
            || asked & UNSUPPORTED != 0
        {
            return Written::Refused;
        }
        let segments = segments as u16;
        if blocks_of(segments) > free {
            return Written::NoRoom;
        }
        let mut at = usize::from(block) * PER_BLOCK;
        self.segments
            .write(at, &[self.head_word(block, segments).to_be(), 0]);
        let mut start = 0;
        if INLINE {
            let mut header = [0; INLINE_L2];
            if mbuf.copy_out(0, &mut header) != INLINE_L2 {
                return Written::Refused;
            }
            let [first, a, b] = inline_words(&header);
            start = first;
            self.segments.write(at + 2, &[a, b]);
        }
        self.segments.write(at + 1, &[ethernet(asked), start]);
        at += first;
        for part in mbuf.segments() {
            let bytes = part.data_len();
            if bytes > skip {
                let region = regions.get(part.region());
                let address = part.data_address().wrapping_add(region.shift);
                let segment = DataSeg::halves(
                    (bytes - skip) as u32,
                    region.lkey,
                    address.wrapping_add(skip as u64),
                );
                self.segments.write(at, &segment);
                at += 1;
            }
            skip = skip.saturating_sub(bytes);
        }
        Written::Chain {
            segments,
            bytes: length as u32,
        }
    }
}

#[inline(always)]
fn head_word(qpn: u32, block: u16, segments: u16) -> u64 {
    let index = u32::from(block) << 8 | u32::from(SendOpcode::SEND.0);
    u64::from(index) << 32 | u64::from(qpn | u32::from(segments))
}

/// The first eight bytes of an Ethernet segment: only the checksums to compute (bits 6 and 7 of
/// byte 4).
#[inline(always)]
fn ethernet(asked: u32) -> u64 {
    const _: () = assert!(flags::TX_IP_CKSUM == 1 << 17 && flags::TX_L4_CKSUM == 1 << 18);
    let checksums = asked >> 11 & 0xc0;
    u64::from(checksums << 24).to_be()
}

/// The second eight bytes of an Ethernet segment, and the 16 behind it: size of the inline
/// header and its bytes.
#[inline(always)]
fn inline_words(header: &[u8; INLINE_L2]) -> [u64; 3] {
    let [h0, h1, rest @ ..] = header;
    let [size0, size1] = (INLINE_L2 as u16).to_be_bytes();
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        u64::from_ne_bytes(word)
    };
    let (a, b) = rest.split_at(8);
    [
        u64::from_ne_bytes([0, 0, 0, 0, size0, size1, *h0, *h1]),
        word(a),
        word(b),
    ]
}
