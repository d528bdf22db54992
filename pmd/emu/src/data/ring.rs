//! A queue's ring in the driver's memory: one array of cells where the pages follow each other,
//! one per page otherwise.

use super::memory::{Access, Memory};
use super::request::RingMemory;
use super::{DataError, Kind};
use pollux_bus::{DmaFault, Iova};
use pollux_mempool::{Cells, Window};

/// The smallest page of any IOMMU.
const PIECE: u64 = 4096;

/// A resolved ring of power-of-two size.
#[derive(Debug)]
pub(super) struct Ring<T> {
    parts: Vec<Cells<T>>,
    /// Logarithm of the cells in a part.
    shift: u32,
    mask: usize,
}

impl<T> Ring<T> {
    /// The part that holds cell `index` (any number; it is masked). The index is good for the
    /// part, too.
    #[inline(always)]
    pub fn part(&self, index: usize) -> Option<&Cells<T>> {
        self.parts.get((index & self.mask) >> self.shift)
    }

    /// The ring as one array, when it is one.
    #[inline(always)]
    pub fn whole(&self) -> Option<&Cells<T>> {
        match self.parts.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Resolves `2^log_size` cells, for what the device does with them.
    pub fn resolve(
        memory: &mut Memory,
        layout: &RingMemory,
        log_size: u32,
        access: Access,
    ) -> Result<Self, DmaFault> {
        let cell = size_of::<T>() as u64;
        let bytes = cell << log_size;
        let mask = (1usize << log_size) - 1;
        let first = layout.pages.first().copied().unwrap_or(0);
        let start = first.wrapping_add(u64::from(layout.offset));
        let fault = |iova, len| DmaFault {
            iova: Iova(iova),
            len,
        };
        let page = 1u64 << layout.log_page_size;
        let together =
            layout.pages.iter().enumerate().all(|(index, at)| {
                *at == first.wrapping_add((index as u64) << layout.log_page_size)
            });
        if together {
            if let Ok(window) = memory.window(start, bytes, access) {
                let cells = cells(&window, 0, mask + 1).ok_or(fault(start, bytes))?;
                return Ok(Self {
                    parts: vec![cells],
                    shift: log_size,
                    mask,
                });
            }
        }
        // `check` saw to it that a ring over several pages starts with the first one.
        if u64::from(layout.offset) + bytes > page {
            if let Ok(ring) = Self::pieces(memory, layout, log_size, page, access) {
                return Ok(ring);
            }
        }
        // What is one page for the device may be many for the IOMMU in front of it.
        if bytes < PIECE || start % PIECE != 0 {
            return Err(fault(start, bytes));
        }
        Self::pieces(memory, layout, log_size, PIECE, access)
    }

    /// Resolves the ring in pieces of `piece` bytes, a power of two not above its page size.
    fn pieces(
        memory: &mut Memory,
        layout: &RingMemory,
        log_size: u32,
        piece: u64,
        access: Access,
    ) -> Result<Self, DmaFault> {
        let cell = size_of::<T>() as u64;
        let bytes = cell << log_size;
        let in_piece = (piece / cell) as usize;
        let mut parts = Vec::new();
        for from in (0..bytes).step_by(piece as usize) {
            // The offset is zero in a ring over several pages.
            let into = u64::from(layout.offset) + from;
            let page = layout.pages.get((into >> layout.log_page_size) as usize);
            let inside = into & ((1 << layout.log_page_size) - 1);
            let at = page.copied().unwrap_or(0).wrapping_add(inside);
            let fault = DmaFault {
                iova: Iova(at),
                len: piece,
            };
            let window = memory.window(at, piece, access)?;
            parts.push(cells(&window, 0, in_piece).ok_or(fault)?);
        }
        Ok(Self {
            parts,
            shift: in_piece.trailing_zeros(),
            mask: (1usize << log_size) - 1,
        })
    }
}

fn cells<T>(window: &Window, offset: usize, count: usize) -> Option<Cells<T>> {
    window.cells(offset, count).ok()
}

/// Checks a ring of `2^log_size` entries of `2^log_entry` bytes against its page list.
pub(super) fn check(
    kind: Kind,
    number: u32,
    layout: &RingMemory,
    log_size: u32,
    log_entry: u32,
    entries: std::ops::RangeInclusive<u32>,
) -> Result<(), DataError> {
    let needed = 1u64.checked_shl(log_size + log_entry).unwrap_or(u64::MAX);
    let there = (layout.pages.len() as u64)
        .saturating_mul(1u64.checked_shl(layout.log_page_size).unwrap_or(0))
        .saturating_sub(u64::from(layout.offset));
    let refuse = |limits| DataError::Ring {
        kind,
        number,
        needed,
        there,
        log_entry,
        limits,
    };
    if log_size > 22 || !entries.contains(&log_entry) {
        return Err(refuse(
            "at most 2^22 entries of a size that the queue knows",
        ));
    }
    if !(12..=30).contains(&layout.log_page_size) {
        return Err(refuse("pages of 4 KiB to 1 GiB"));
    }
    if needed > there {
        return Err(refuse("the pages must hold the ring"));
    }
    let page = 1u64 << layout.log_page_size;
    let together = u64::from(layout.offset) + needed <= page;
    if layout.offset % 64 != 0 || (layout.offset != 0 && !together) {
        return Err(refuse(
            "an offset is a multiple of 64 and only for a ring within one page",
        ));
    }
    if layout.pages.iter().any(|at| at % 4096 != 0) {
        return Err(refuse("page addresses are multiples of 4096"));
    }
    Ok(())
}
