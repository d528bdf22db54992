//! Pages as ranges of addresses: millions of neighbours take the room of one.

use std::collections::BTreeMap;

/// A set of page numbers (device addresses divided by the page size).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSet {
    /// Length of each range by its first page; ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    len: u64,
}

/// The pages of a list that follow each other, as (first, length).
pub(super) fn runs(list: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut rest = list;
    std::iter::from_fn(move || {
        let (&first, _) = rest.split_first()?;
        let len = rest
            .iter()
            .zip(first..)
            .take_while(|(page, next)| *page == next)
            .count();
        rest = rest.get(len..).unwrap_or_default();
        Some((first, len as u64))
    })
}

impl PageSet {
    /// Pages in the set.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Ranges that it takes to say which.
    #[cfg(test)]
    fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether any page of a run is in the set.
    pub(super) fn meets(&self, first: u64, len: u64) -> bool {
        let Some(end) = first.checked_add(len) else {
            return true;
        };
        self.ranges
            .range(..end)
            .next_back()
            .is_some_and(|(start, count)| start + count > first)
    }

    /// Adds a run; false, and nothing is changed, when one of its pages is there.
    pub(super) fn insert(&mut self, first: u64, len: u64) -> bool {
        if len == 0 || self.meets(first, len) {
            return len == 0;
        }
        let (mut start, mut count) = (first, len);
        if let Some((before, there)) = self.ranges.range(..first).next_back() {
            if before + there == first {
                (start, count) = (*before, there + len);
            }
        }
        if let Some(there) = self.ranges.remove(&(first + len)) {
            count += there;
        }
        self.ranges.insert(start, count);
        self.len += len;
        true
    }

    /// Takes a run out that is wholly there; false, and nothing is changed, when it is not.
    pub(super) fn remove(&mut self, first: u64, len: u64) -> bool {
        let Some((&start, &count)) = self.ranges.range(..=first).next_back() else {
            return len == 0;
        };
        let end = start + count;
        if first + len > end || first >= end {
            return len == 0;
        }
        if start == first {
            self.ranges.remove(&start);
        } else {
            self.ranges.insert(start, first - start);
        }
        if first + len < end {
            self.ranges.insert(first + len, end - (first + len));
        }
        self.len -= len;
        true
    }

    /// Takes out the last `most` pages, or all there are; the runs, the last pages first.
    pub(super) fn take_last(&mut self, most: u64) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        let mut left = most.min(self.len);
        while left > 0 {
            let Some((start, count)) = self.ranges.pop_last() else {
                break;
            };
            let n = count.min(left);
            if n < count {
                self.ranges.insert(start, count - n);
            }
            taken.push((start + count - n, n));
            left -= n;
            self.len -= n;
        }
        taken
    }

    /// The first page.
    pub(super) fn first(&self) -> Option<u64> {
        self.ranges.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The set is what a set of single pages would be.
        #[test]
        fn agrees_with_single_pages(
            steps in prop::collection::vec((0u8..4, 0u64..60, 1u64..20), 1..80)
        ) {
            let mut set = PageSet::default();
            let mut plain: BTreeSet<u64> = BTreeSet::new();
            for (what, first, len) in steps {
                let run = first..first + len;
                match what {
                    0 | 1 => {
                        let free = run.clone().all(|page| !plain.contains(&page));
                        prop_assert_eq!(set.insert(first, len), free);
                        if free {
                            plain.extend(run);
                        }
                    }
                    2 => {
                        let there = run.clone().all(|page| plain.contains(&page));
                        prop_assert_eq!(set.remove(first, len), there);
                        if there {
                            run.for_each(|page| { plain.remove(&page); });
                        }
                    }
                    _ => {
                        let taken = set.take_last(len);
                        for (first, len) in taken {
                            for page in (first..first + len).rev() {
                                prop_assert_eq!(plain.pop_last(), Some(page));
                            }
                        }
                    }
                }
                prop_assert_eq!(set.len(), plain.len() as u64);
                prop_assert_eq!(set.first(), plain.first().copied());
                for page in 0..90 {
                    prop_assert_eq!(set.meets(page, 1), plain.contains(&page));
                }
            }
        }
    }

    #[test]
    fn eight_million_pages_are_one_range() {
        let mut set = PageSet::default();
        for step in 0..160 {
            assert!(set.insert(1 + step * 50_000, 50_000));
        }
        assert_eq!((set.len(), set.ranges()), (8_000_000, 1));
        assert!(!set.insert(4_000_000, 1));
        assert_eq!(set.take_last(50_000), [(7_950_001, 50_000)]);
    }

    #[test]
    fn lists_fall_into_runs() {
        let list = [5, 6, 7, 3, 9, 10, 10];
        let found: Vec<_> = runs(&list).collect();
        assert_eq!(found, [(5, 3), (3, 1), (9, 2), (10, 1)]);
    }
}
