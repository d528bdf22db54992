//! Device addresses and their allocator: one per IOMMU domain, used under its lock.

use crate::{BusError, DmaLimits};
use std::collections::BTreeMap;
use std::fmt;

/// An address as the device sees it. Never zero for mapped memory: firmware does not take a page
/// at address 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

impl Iova {
    /// The address `bytes` further on, if there is one.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Lowest address handed out: keeps address 0 and the first MiB free.
const FLOOR: u64 = 1 << 20;

/// First-fit allocator of device addresses inside an IOMMU's limits.
#[derive(Debug)]
pub struct IovaAllocator {
    limits: DmaLimits,
    taken: BTreeMap<u64, u64>,
}

impl IovaAllocator {
    /// An allocator for a domain with these limits; nothing is taken.
    pub fn new(limits: DmaLimits) -> Self {
        Self {
            limits,
            taken: BTreeMap::new(),
        }
    }

    /// Number of ranges taken.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Takes `len` bytes aligned to `align` (a power of two), outside reserved ranges.
    ///
    /// # Errors
    /// [`BusError::MapLimit`] when the domain is full, [`BusError::IovaExhausted`] when no hole fits.
    pub fn take(&mut self, len: u64, align: u64) -> Result<Iova, BusError> {
        if self.taken.len() >= self.limits.max_mappings {
            return Err(BusError::MapLimit {
                limit: self.limits.max_mappings,
            });
        }
        let exhausted = || BusError::IovaExhausted {
            len,
            align,
            width: self.limits.address_bits,
            mapped: self.taken.len(),
        };
        if len == 0 || !align.is_power_of_two() {
            return Err(exhausted());
        }
        let mut obstacles: Vec<(u64, u64)> = self
            .taken
            .iter()
            .map(|(&start, &len)| (start, start.saturating_add(len)))
            .chain(self.limits.reserved.iter().map(|r| (r.start, r.end)))
            .collect();
        obstacles.sort_unstable();
        let ceiling = self.limits.ceiling();
        let mut at = align_up(FLOOR, align).ok_or_else(exhausted)?;
        for (start, end) in obstacles {
            if at.checked_add(len).is_some_and(|last| last <= start) {
                break;
            }
            if end > at {
                at = align_up(end, align).ok_or_else(exhausted)?;
            }
        }
        if at.checked_add(len).is_none_or(|last| last > ceiling) {
            return Err(exhausted());
        }
        self.taken.insert(at, len);
        Ok(Iova(at))
    }

    /// Gives back what [`take`](Self::take) handed out at `iova`; false when nothing starts there.
    pub fn give(&mut self, iova: Iova) -> bool {
        self.taken.remove(&iova.0).is_some()
    }
}

fn align_up(value: u64, align: u64) -> Option<u64> {
    value.checked_add(align - 1).map(|v| v & !(align - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn allocator(bits: u32, reserved: Vec<Range<u64>>, max: usize) -> IovaAllocator {
        IovaAllocator::new(DmaLimits {
            address_bits: bits,
            reserved,
            page_sizes: 0x1000,
            max_mappings: max,
        })
    }

    #[test]
    fn walks_around_reserved_ranges_and_never_gives_zero() {
        let mut a = allocator(
            32,
            vec![0x10_0000..0x30_0000, 0xfee0_0000..0xfef0_0000],
            100,
        );
        assert_eq!(a.take(0x1000, 0x1000).unwrap(), Iova(0x30_0000));
        assert_eq!(a.take(0x1000, 0x20_0000).unwrap(), Iova(0x40_0000));
        // The hole between the two is used again.
        assert_eq!(a.take(0x1000, 0x1000).unwrap(), Iova(0x30_1000));
        // Nothing of nearly 4 GiB fits, neither before nor behind the interrupt range.
        let big = a.take(0xff00_0000, 0x1000).unwrap_err();
        assert!(big.to_string().contains("32 bits"), "{big}");
    }

    #[test]
    fn stays_inside_the_address_width() {
        let mut a = allocator(21, vec![], 100);
        assert_eq!(a.take(0x10_0000, 0x1000).unwrap(), Iova(0x10_0000));
        assert!(matches!(
            a.take(0x1000, 0x1000),
            Err(BusError::IovaExhausted { .. })
        ));
        assert!(a.give(Iova(0x10_0000)));
        assert!(!a.give(Iova(0x10_0000)));
        assert_eq!(a.take(0x10_0000, 0x1000).unwrap(), Iova(0x10_0000));
    }

    #[test]
    fn names_the_mapping_limit() {
        let mut a = allocator(48, vec![], 1);
        a.take(0x1000, 0x1000).unwrap();
        let full = a.take(0x1000, 0x1000).unwrap_err();
        assert!(full.to_string().contains("dma_entry_limit"), "{full}");
    }

    #[test]
    fn refuses_nonsense() {
        let mut a = allocator(48, vec![], 8);
        assert!(a.take(0, 0x1000).is_err());
        assert!(a.take(0x1000, 3).is_err());
        assert!(a.take(u64::MAX, 0x1000).is_err());
        assert!(a.is_empty());
    }
}
