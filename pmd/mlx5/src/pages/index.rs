//! Which hugepage an address lies in: one probe of a table, whatever there is.
//!
//! Open addressing with linear probing, at most half full, in one array that grows only when
//! memory is added. Control thread only.

/// Bits of an address that are inside a hugepage of 2 MiB.
pub(super) const LOG_CHUNK: u32 = 21;

/// No chunk.
const NONE: u32 = u32::MAX;

/// From 2 MiB-aligned addresses to chunk numbers.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Upper bits of the address, and the chunk.
    slots: Vec<(u64, u32)>,
    used: usize,
}

impl Index {
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    /// Where the search for a granule begins.
    fn home(&self, granule: u64) -> usize {
        // The golden ratio spreads neighbours, which is what granules mostly are.
        let spread = granule.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & self.mask()
    }

    /// The chunk that holds `address`.
    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<u32> {
        let granule = address >> LOG_CHUNK;
        let mut at = self.home(granule);
        loop {
            match *self.slots.get(at)? {
                (_, NONE) => return None,
                (there, chunk) if there == granule => return Some(chunk),
                _ => at = (at + 1) & self.mask(),
            }
        }
    }

    /// Enters a chunk; the caller has looked that there is none.
    pub(super) fn insert(&mut self, address: u64, chunk: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            let larger = (self.slots.len() * 2).max(64);
            let old = std::mem::replace(&mut self.slots, vec![(0, NONE); larger]);
            for (granule, chunk) in old.into_iter().filter(|(_, chunk)| *chunk != NONE) {
                self.put(granule, chunk);
            }
        }
        self.put(address >> LOG_CHUNK, chunk);
        self.used += 1;
    }

    fn put(&mut self, granule: u64, chunk: u32) {
        let mut at = self.home(granule);
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.1 == NONE {
                *slot = (granule, chunk);
                return;
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Takes a chunk out; those that were pushed behind it move up.
    pub(super) fn remove(&mut self, address: u64) {
        let granule = address >> LOG_CHUNK;
        let mask = self.mask();
        let mut hole = self.home(granule);
        while let Some(&(there, chunk)) = self.slots.get(hole) {
            if chunk == NONE {
                return;
            }
            if there == granule {
                break;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(&(there, chunk)) = self.slots.get(at) else {
                return;
            };
            if chunk == NONE {
                break;
            }
            // Moves only if its search would pass the hole.
            let home = self.home(there);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(slot) = self.slots.get_mut(hole) {
                    *slot = (there, chunk);
                }
                hole = at;
            }
        }
        if let Some(slot) = self.slots.get_mut(hole) {
            *slot = (0, NONE);
        }
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever is entered and taken out, what is there is found and nothing else.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..200), 1..400)) {
            let mut index = Index::default();
            let mut map = BTreeMap::new();
            for (n, (enter, granule)) in steps.into_iter().enumerate() {
                let address = granule << LOG_CHUNK;
                if enter && !map.contains_key(&address) {
                    index.insert(address, n as u32);
                    map.insert(address, n as u32);
                } else if !enter && map.remove(&address).is_some() {
                    index.remove(address);
                }
                for granule in 0..200 {
                    let address = granule << LOG_CHUNK;
                    prop_assert_eq!(index.find(address | 0x1f_f000), map.get(&address).copied());
                }
            }
        }
    }

    #[test]
    fn nothing_is_in_an_empty_one() {
        assert_eq!(Index::default().find(0x1234_5000), None);
    }
}
