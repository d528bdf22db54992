//! Where packet memory lies for one port: device address and memory key by region.
//!
//! The same buffer has another device address and another key at each adapter function, so
//! neither is kept in the buffer: a buffer carries the number of its memory region (one chunk of
//! a pool), and each port has its own table. Filled by the control thread before the queues
//! start, read by the data path; a table is never changed while a queue uses it.

/// One registered region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// What to add to an address of this process to get the device's, modulo 2^64.
    pub(crate) shift: u64,
    /// The memory key; 0 (which no key is) where nothing is registered.
    pub(crate) lkey: u32,
}

/// The regions that the device may reach. See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    entries: Vec<Region>,
}

impl Regions {
    /// A table without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters region `number`, which starts at `address` in this process and at `iova` for the
    /// device, under `lkey`. A later entry for the same number replaces the earlier one.
    pub fn add(&mut self, number: u16, address: usize, iova: u64, lkey: u32) {
        let at = usize::from(number);
        if self.entries.len() <= at {
            self.entries.resize(at + 1, Region::default());
        }
        if let Some(entry) = self.entries.get_mut(at) {
            *entry = Region {
                shift: iova.wrapping_sub(address as u64),
                lkey,
            };
        }
    }

    /// The table for a loop.
    #[inline(always)]
    pub(crate) fn by_ref(&self) -> RegionsRef<'_> {
        RegionsRef(&self.entries)
    }
}

/// A table borrowed by value, so that a loop keeps it in registers.
#[derive(Clone, Copy)]
pub(crate) struct RegionsRef<'a>(&'a [Region]);

impl RegionsRef<'_> {
    /// The region `number`; one without a key where nothing is registered.
    #[inline(always)]
    pub(crate) fn get(self, number: u16) -> Region {
        match self.0.get(usize::from(number)) {
            Some(entry) => *entry,
            None => Region { shift: 0, lkey: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_entered_and_nothing_else() {
        let mut regions = Regions::new();
        regions.add(3, 0x7000_0000, 0x1000, 0x1801);
        // A device address below the process's wraps and comes out right.
        assert_eq!(
            0x7000_0040_u64.wrapping_add(regions.by_ref().get(3).shift),
            0x1040
        );
        assert_eq!(regions.by_ref().get(3).lkey, 0x1801);
        assert_eq!(regions.by_ref().get(2).lkey, 0);
        assert_eq!(regions.by_ref().get(u16::MAX).lkey, 0);
        regions.add(3, 0x7000_0000, 0x2000, 0x1802);
        assert_eq!(regions.by_ref().get(3).lkey, 0x1802);
    }
}
