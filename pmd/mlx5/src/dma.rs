//! Memory that driver and device share: a segment, its mapping in the function's DMA domain, and
//! parts of it. Control plane only; a part keeps segment and mapping alive.

use crate::error::Error;
use pollux_bus::{DmaDomain, DmaMapping, Iova};
use pollux_mempool::{MemoryError, Segment, SegmentRequest, Window};
use std::sync::Arc;

/// A range of mapped memory with its device address.
#[derive(Clone, Debug)]
pub(crate) struct DmaMemory {
    window: Window,
    iova: Iova,
    mapping: Arc<DmaMapping>,
}

impl DmaMemory {
    /// Maps a new, zeroed segment.
    ///
    /// # Errors
    /// No memory, or no device address; nothing is kept.
    pub(crate) fn new(domain: &Arc<DmaDomain>, request: &SegmentRequest) -> Result<Self, Error> {
        Self::of(domain, &Segment::map(request)?)
    }

    /// Makes a segment that is there known to the device.
    ///
    /// # Errors
    /// No device address; nothing is kept.
    pub(crate) fn of(domain: &Arc<DmaDomain>, segment: &Segment) -> Result<Self, Error> {
        let mapping = domain.map(segment)?;
        Ok(Self {
            window: segment.whole(),
            iova: mapping.iova(),
            mapping: Arc::new(mapping),
        })
    }

    /// The memory.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Device address of its first byte.
    pub(crate) fn iova(&self) -> Iova {
        self.iova
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.window.len()
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<Self, Error> {
        Ok(Self {
            window: self.window.window(offset, len)?,
            iova: Iova(self.iova.0 + offset as u64),
            mapping: Arc::clone(&self.mapping),
        })
    }
}

/// Hands out parts of one block, front to back.
#[derive(Debug)]
pub(crate) struct Carver {
    memory: DmaMemory,
    used: usize,
}

impl Carver {
    /// Over the whole of `memory`.
    pub(crate) fn new(memory: DmaMemory) -> Self {
        Self { memory, used: 0 }
    }

    /// The next `len` bytes whose device address is a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when the block is used up.
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Result<DmaMemory, Error> {
        let at = self.memory.iova.0 as usize + self.used;
        let skip = at.wrapping_neg() & (align - 1);
        let offset = self.used + skip;
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.memory.len());
        let Some(end) = end else {
            return Err(MemoryError::OutOfBounds {
                what: "part of a block",
                offset,
                asked: len,
                len: self.memory.len(),
            }
            .into());
        };
        self.used = end;
        self.memory.part(offset, len)
    }
}
