//! Send WQEs that are not one data segment behind at most a short header: several segments, inline
//! data, long inline headers, offloads, large sends. The packet is brought together in a buffer of
//! the queue, changed as the WQE asks, and sent from there.

use super::frame::Headers;
use super::memory::{AccessError, Memory, Views};
use super::offload;
use super::outlet::{Dispatched, Outlet, Sent};
use super::request::InlineMode;
use super::sq::{Control, Sq, Step, needed};
use pollux_mempool::Cells;
use pollux_prm::completion::Syndrome;
use pollux_prm::wqe::{MAX_BASIC_BLOCKS, SendOpcode};

/// Most bytes of one WQE's packet; the largest LSO of any model, with headers, is smaller.
pub(super) const MAX_GATHER: usize = 1 << 19;

/// Vendor syndromes of failed send WQEs; this model's own codes.
pub(super) mod vendor {
    /// The control segment is not this WQE's.
    pub const CONTROL: u8 = 0x61;
    /// The opcode is not for an Ethernet queue, or not announced.
    pub const OPCODE: u8 = 0x62;
    /// Segments do not fit the WQE.
    pub const SEGMENTS: u8 = 0x63;
    /// The header that has to be inline is not.
    pub const INLINE: u8 = 0x64;
    /// The queue has no TIS.
    pub const NO_WAY_OUT: u8 = 0x66;
    /// Packet lengths.
    pub const LENGTH: u8 = 0x65;
}

impl Sq {
    /// Any other WQE.
    #[cold]
    pub(super) fn composed(
        &mut self,
        control: Control,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
    ) -> Step {
        let opcode = SendOpcode(control.opcode);
        match opcode {
            SendOpcode::NOP => return Step::Done,
            _ if !self.spec.transmits => {
                return Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::NO_WAY_OUT);
            }
            SendOpcode::SEND => {}
            SendOpcode::LSO if self.features.max_lso > 0 => {}
            _ => return Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::OPCODE),
        }
        let mut wqe = std::mem::take(&mut self.wqe);
        let mut gathered = std::mem::take(&mut self.gathered);
        let step = match self.read(control, &mut wqe) {
            true => self.gather(opcode, &wqe, &mut gathered, function, outlet, sent),
            false => Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::SEGMENTS),
        };
        self.wqe = wqe;
        self.gathered = gathered;
        step
    }

    /// Copies a whole WQE out of the ring.
    fn read(&self, control: Control, wqe: &mut Vec<u8>) -> bool {
        wqe.clear();
        if usize::from(control.blocks) > MAX_BASIC_BLOCKS {
            return false;
        }
        for block in 0..control.blocks {
            let index = usize::from(self.hardware.wrapping_add(block));
            let part = self
                .reached
                .as_ref()
                .and_then(|reached| reached.ring.part(index));
            let Some(words) = part.map(|part: &Cells<[u64; 8]>| part.read(index)) else {
                return false;
            };
            wqe.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }
        wqe.truncate(control.segments * 16);
        true
    }

    fn gather(
        &mut self,
        opcode: SendOpcode,
        wqe: &[u8],
        frame: &mut Vec<u8>,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
    ) -> Step {
        let misfit = || Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::SEGMENTS);
        let (Some(flags), Some(mss), Some(size), Some(tci)) =
            (wqe.get(20), half(wqe, 22), half(wqe, 28), half(wqe, 30))
        else {
            return misfit();
        };
        frame.clear();
        let vlan = size & 0x8000 != 0;
        let inline = if vlan { 0 } else { usize::from(size) };
        let Some(header) = wqe.get(30..30 + inline) else {
            return misfit();
        };
        frame.extend_from_slice(header);
        let mut at = 32 + inline.saturating_sub(2).next_multiple_of(16);
        while at < wqe.len() {
            let (Some(count), Some(key)) = (full(wqe, at), full(wqe, at + 4)) else {
                return misfit();
            };
            if count >> 31 != 0 {
                let len = (count & 0x3ff) as usize;
                let Some(bytes) = wqe.get(at + 4..at + 4 + len) else {
                    return misfit();
                };
                frame.extend_from_slice(bytes);
                at += (4 + len).next_multiple_of(16);
                continue;
            }
            let (Some(high), Some(low)) = (full(wqe, at + 8), full(wqe, at + 12)) else {
                return misfit();
            };
            let address = u64::from(high) << 32 | u64::from(low);
            if count == 0 || frame.len() + count as usize > MAX_GATHER {
                return Step::Fail(Syndrome::LOCAL_LENGTH_ERR, vendor::LENGTH);
            }
            let Some(memory) = outlet.memories.get_mut(function) else {
                return Step::Wait;
            };
            if let Err(error) = fetch(&mut self.views, memory, key, address, count as usize, frame)
            {
                return error.into();
            }
            at += 16;
        }
        if frame.len() < 14 {
            return Step::Fail(Syndrome::LOCAL_LENGTH_ERR, vendor::LENGTH);
        }
        if self.spec.inline != InlineMode::None {
            let needed = needed(self.spec.inline, &Headers::parse(&frame.as_slice()));
            if inline < needed.min(frame.len()) {
                return Step::Fail(Syndrome::LOCAL_QP_OP_ERR, vendor::INLINE);
            }
        }
        if opcode == SendOpcode::LSO {
            return self.large(frame, inline, usize::from(mss), function, outlet, sent);
        }
        if vlan && self.features.tx_vlan_insert {
            offload::insert_vlan(frame, tci, size & 1 != 0);
        }
        if self.features.tx_checksum && flags & 0xc0 != 0 {
            offload::checksums(frame, flags & 0x40 != 0, flags & 0x80 != 0);
        }
        let headers = Headers::parse(&frame.as_slice());
        match outlet.transmit(function, &frame.as_slice(), &headers, sent) {
            Sent::Done => Step::Done,
            Sent::Wait => Step::Wait,
        }
    }

    /// Cuts a large send; goes on where it had to wait.
    fn large(
        &mut self,
        frame: &[u8],
        header: usize,
        mss: usize,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
    ) -> Step {
        let bad = Step::Fail(Syndrome::LOCAL_LENGTH_ERR, vendor::LENGTH);
        let Some((header, payload)) = frame.split_at_checked(header) else {
            return bad;
        };
        if payload.len() > self.features.max_lso as usize {
            return bad;
        }
        let mut cut = std::mem::take(&mut self.cut);
        let mut step = Step::Done;
        while offload::segment(header, payload, mss, self.segments_out, &mut cut) {
            let headers = Headers::parse(&cut.as_slice());
            match outlet.transmit(function, &cut.as_slice(), &headers, sent) {
                Sent::Done => self.segments_out += 1,
                Sent::Wait => {
                    step = Step::Wait;
                    break;
                }
            }
        }
        self.cut = cut;
        if self.segments_out == 0 && matches!(step, Step::Done) {
            bad
        } else {
            step
        }
    }
}

/// Appends the bytes behind a data segment.
fn fetch(
    views: &mut Views,
    memory: &mut Memory,
    key: u32,
    address: u64,
    len: usize,
    frame: &mut Vec<u8>,
) -> Result<(), AccessError> {
    let mut done = 0;
    while done < len {
        let (window, at, there) =
            views.find(memory, key, address.wrapping_add(done as u64), len - done)?;
        let from = frame.len();
        frame.resize(from + there, 0);
        let room = frame.get_mut(from..).unwrap_or_default();
        window
            .copy_out(at, room)
            .map_err(|_| AccessError::Unmapped)?;
        done += there;
    }
    Ok(())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|b| u16::from_be_bytes(*b))
}

fn full(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk::<4>()
        .map(|b| u32::from_be_bytes(*b))
}
