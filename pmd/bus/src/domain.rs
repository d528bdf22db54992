//! The DMA address space of one IOMMU domain, as the driver uses it.
//!
//! Functions that share an IOMMU domain share one [`DmaDomain`], and so one address allocator: a
//! segment mapped for one of them has the same device address for all. Mapping the same segment
//! again costs no second entry. Control threads only.

use crate::{BusError, Iova, IovaAllocator};
use pollux_mempool::{Segment, Window};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest alignment of device addresses that is made for its own sake.
pub const NATURAL: u64 = 1 << 30;

/// What an IOMMU (or its stand-in) accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaLimits {
    /// Width of a device address in bits (39 and 48 are common).
    pub address_bits: u32,
    /// Address ranges that must not be used (interrupt window, firmware's own mappings).
    pub reserved: Vec<Range<u64>>,
    /// Bit n set: mappings in units of 2^n bytes are possible.
    pub page_sizes: u64,
    /// Mappings that may exist at once.
    pub max_mappings: usize,
}

impl DmaLimits {
    /// First address past the end of the space.
    pub fn ceiling(&self) -> u64 {
        1u64.checked_shl(self.address_bits).unwrap_or(u64::MAX)
    }

    /// Smallest mapping unit in bytes.
    pub fn granule(&self) -> u64 {
        1u64.checked_shl(self.page_sizes.trailing_zeros())
            .unwrap_or(4096)
    }
}

/// A backing's half of a domain: it enters and removes mappings.
pub trait DmaSpace: Send + Sync {
    /// What the space accepts.
    fn limits(&self) -> DmaLimits;

    /// Makes `memory` visible to the device at `iova`, readable and writable.
    ///
    /// # Errors
    /// Whatever the backing answers; nothing is mapped then.
    fn map(&self, iova: Iova, memory: &Window) -> Result<(), BusError>;

    /// Removes the mapping that is exactly `iova`..`iova + len`. When this returns, no part of the
    /// device can still touch the memory.
    ///
    /// # Errors
    /// [`BusError::NotMapped`] for anything but one whole mapping, [`BusError::NotQuiescent`] when
    /// the device would not let go.
    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError>;
}

struct State {
    addresses: IovaAllocator,
    /// Mappings by the segment's address.
    mapped: HashMap<usize, Mapped>,
}

struct Mapped {
    iova: Iova,
    /// Number of [`DmaMapping`]s that hold it.
    holders: usize,
    /// It was taken away from them.
    revoked: bool,
}

/// One IOMMU domain: the address allocator and the mappings that are in force.
pub struct DmaDomain {
    space: Box<dyn DmaSpace>,
    limits: DmaLimits,
    state: Mutex<State>,
}

impl std::fmt::Debug for DmaDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaDomain")
            .field("limits", &self.limits)
            .field("mappings", &self.mappings())
            .finish()
    }
}

impl DmaDomain {
    /// A domain over a backing's address space; nothing is mapped.
    pub fn new(space: Box<dyn DmaSpace>) -> Arc<Self> {
        let limits = space.limits();
        let addresses = IovaAllocator::new(limits.clone());
        Arc::new(Self {
            space,
            limits,
            state: Mutex::new(State {
                addresses,
                mapped: HashMap::new(),
            }),
        })
    }

    /// What the domain accepts.
    pub fn limits(&self) -> &DmaLimits {
        &self.limits
    }

    /// Mappings in force.
    pub fn mappings(&self) -> usize {
        self.lock().addresses.len()
    }

    /// Maps a whole segment, or joins the mapping that it has already. The mapping lasts as long
    /// as the returned value.
    ///
    /// Where the space allows, the device address is a multiple of the segment's length rounded up
    /// to a power of two, at most [`NATURAL`]: page lists and memory keys then need few entries,
    /// mostly one. It is always a multiple of the segment's page size.
    ///
    /// # Errors
    /// No address left, the mapping limit, or the backing's refusal; nothing is mapped then.
    pub fn map(self: &Arc<Self>, segment: &Segment) -> Result<DmaMapping, BusError> {
        let key = segment.address();
        let len = segment.len() as u64;
        let mut state = self.lock();
        if let Some(mapped) = state.mapped.get_mut(&key) {
            mapped.holders += 1;
            let iova = mapped.iova;
            return Ok(DmaMapping {
                domain: Arc::clone(self),
                segment: segment.clone(),
                iova,
            });
        }
        let align = (segment.page_size().bytes() as u64).max(self.limits.granule());
        let natural = align.max(len.next_power_of_two().min(NATURAL));
        let iova = match state.addresses.take(len, natural) {
            // A crowded or narrow space still has room for what is aligned as it must be.
            Err(BusError::IovaExhausted { .. }) => state.addresses.take(len, align)?,
            other => other?,
        };
        if let Err(refused) = self.space.map(iova, &segment.whole()) {
            state.addresses.give(iova);
            return Err(refused);
        }
        let mapped = Mapped {
            iova,
            holders: 1,
            revoked: false,
        };
        state.mapped.insert(key, mapped);
        Ok(DmaMapping {
            domain: Arc::clone(self),
            segment: segment.clone(),
            iova,
        })
    }

    /// Takes a segment's mapping away from all who hold it, whatever the device is doing with it:
    /// from now on its accesses are refused by the IOMMU, as with a driver's fault. The address
    /// stays theirs until they let go. Does nothing for a segment that is not mapped.
    ///
    /// # Errors
    /// The backing's refusal; the mapping stays then.
    pub fn revoke(&self, segment: &Segment) -> Result<(), BusError> {
        let mut state = self.lock();
        match state.mapped.get_mut(&segment.address()) {
            Some(mapped) if !mapped.revoked => {
                self.space.unmap(mapped.iova, segment.len() as u64)?;
                mapped.revoked = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn release(&self, segment: &Segment, iova: Iova) {
        let key = segment.address();
        let mut state = self.lock();
        let Some(mapped) = state.mapped.get_mut(&key) else {
            return;
        };
        mapped.holders -= 1;
        if mapped.holders > 0 {
            return;
        }
        let revoked = mapped.revoked;
        state.mapped.remove(&key);
        if revoked {
            state.addresses.give(iova);
            return;
        }
        match self.space.unmap(iova, segment.len() as u64) {
            Ok(()) => {
                state.addresses.give(iova);
            }
            // The device may still write there: neither the address nor the memory may be used
            // again, so both are kept for the life of the process.
            Err(_) => std::mem::forget(segment.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A segment that the device can reach; unmapped when the last value for the segment goes.
#[derive(Debug)]
pub struct DmaMapping {
    domain: Arc<DmaDomain>,
    segment: Segment,
    iova: Iova,
}

impl DmaMapping {
    /// Device address of the segment's first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Device address of a window's first byte; `None` for a window of another segment.
    pub fn iova_of(&self, window: &Window) -> Option<Iova> {
        (window.segment().address() == self.segment.address())
            .then(|| Iova(self.iova.0 + window.segment_offset() as u64))
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.domain.release(&self.segment, self.iova);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mempool::{PageChoice, SegmentRequest};

    struct Anything(u32);

    impl DmaSpace for Anything {
        fn limits(&self) -> DmaLimits {
            DmaLimits {
                address_bits: self.0,
                reserved: Vec::new(),
                page_sizes: 0x1000,
                max_mappings: 100,
            }
        }

        fn map(&self, _: Iova, _: &Window) -> Result<(), BusError> {
            Ok(())
        }

        fn unmap(&self, _: Iova, _: u64) -> Result<(), BusError> {
            Ok(())
        }
    }

    fn segment(len: usize) -> Segment {
        Segment::map(&SegmentRequest::new("test", len).page(PageChoice::Ordinary)).unwrap()
    }

    #[test]
    fn addresses_are_aligned_to_the_size_where_there_is_room() {
        let domain = DmaDomain::new(Box::new(Anything(48)));
        let small = domain.map(&segment(0x1000)).unwrap();
        let large = domain.map(&segment(0x30_0000)).unwrap();
        assert_eq!(large.iova().0 % 0x40_0000, 0);
        assert_ne!(small.iova(), large.iova());
    }

    #[test]
    fn a_narrow_space_is_still_filled() {
        // 2 MiB of addresses, the first of which is kept free.
        let domain = DmaDomain::new(Box::new(Anything(21)));
        let _small = domain.map(&segment(0x1000)).unwrap();
        let large = domain.map(&segment(0xf_f000)).unwrap();
        assert_eq!(large.iova(), Iova(0x10_1000));
        assert!(matches!(
            domain.map(&segment(0x1000)),
            Err(BusError::IovaExhausted { .. })
        ));
    }
}
