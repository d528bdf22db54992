//! The table of mappings: sorted, never overlapping, and cheap to change although readers keep the
//! one before.
//!
//! Mappings lie in short runs that versions of the table share. A change copies one run and the
//! list of runs, not all mappings: a guest kernel behind a virtual IOMMU makes thousands of changes
//! to thousands of mappings. A lookup is two binary searches.

use pollux_mempool::Window;
use std::sync::Arc;

/// Most mappings in a run.
const RUN: usize = 128;

/// One mapping.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub start: u64,
    pub window: Window,
    /// The device may write it.
    pub writable: bool,
}

impl Entry {
    fn holds(&self, iova: u64, len: u64) -> bool {
        let size = self.window.len() as u64;
        iova.checked_sub(self.start)
            .is_some_and(|offset| offset < size && len <= size - offset)
    }

    /// The last address.
    fn last(&self) -> u64 {
        self.start + (self.window.len() as u64 - 1)
    }
}

/// Where an entry is in one version of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    run: usize,
    entry: usize,
}

/// See the module. No run is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    runs: Vec<Arc<Vec<Entry>>>,
    len: usize,
}

fn first(run: &[Entry]) -> u64 {
    run.first().map_or(0, |entry| entry.start)
}

impl Table {
    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn at(&self, place: Place) -> Option<&Entry> {
        self.runs.get(place.run)?.get(place.entry)
    }

    /// Whether the entry there holds these addresses.
    #[inline]
    pub fn holds(&self, place: Place, iova: u64, len: u64) -> bool {
        self.at(place).is_some_and(|entry| entry.holds(iova, len))
    }

    /// The entry that holds these addresses.
    pub fn find(&self, iova: u64, len: u64) -> Option<Place> {
        let place = self.place_before(iova)?;
        self.holds(place, iova, len).then_some(place)
    }

    /// The last entry that starts at `iova` or before it.
    fn place_before(&self, iova: u64) -> Option<Place> {
        let after = self.runs.partition_point(|run| first(run) <= iova);
        let run = after.checked_sub(1)?;
        let entries = self.runs.get(run)?;
        let after = entries.partition_point(|entry| entry.start <= iova);
        let entry = after.checked_sub(1)?;
        Some(Place { run, entry })
    }

    /// The entry that holds the byte at `iova`.
    pub fn entry_at(&self, iova: u64) -> Option<&Entry> {
        self.find(iova, 1).and_then(|place| self.at(place))
    }

    /// Whether a mapping lies across an edge of `first`..=`last`.
    pub fn is_cut_by(&self, first: u64, last: u64) -> bool {
        let begins_before = |entry: &Entry| entry.start < first;
        let ends_after = |entry: &Entry| entry.last() > last;
        self.entry_at(first).is_some_and(begins_before)
            || self.entry_at(last).is_some_and(ends_after)
    }

    /// The table with one more mapping; `None` when it is empty, overlaps another or ends beyond
    /// the address space.
    pub fn with(&self, entry: Entry) -> Option<Self> {
        let len = entry.window.len() as u64;
        entry.start.checked_add(len).filter(|_| len != 0)?;
        let before = self.place_before(entry.start);
        if before
            .and_then(|place| self.at(place))
            .is_some_and(|other| other.last() >= entry.start)
        {
            return None;
        }
        // The run it goes into, and where; the next mapping is there or begins the next run.
        let (at, into) = before.map_or((0, 0), |place| (place.run, place.entry + 1));
        let next = match self.runs.get(at).and_then(|run| run.get(into)) {
            Some(next) => Some(next.start),
            None => self.runs.get(at + 1).map(|run| first(run)),
        };
        if next.is_some_and(|next| next <= entry.last()) {
            return None;
        }
        let mut runs = self.runs.clone();
        let mut run = runs.get(at).map(|run| Vec::clone(run)).unwrap_or_default();
        run.insert(into.min(run.len()), entry);
        let rest = (run.len() > RUN).then(|| Arc::new(run.split_off(RUN / 2)));
        match runs.get_mut(at) {
            Some(there) => *there = Arc::new(run),
            None => runs.push(Arc::new(run)),
        }
        if let Some(rest) = rest {
            runs.insert(at + 1, rest);
        }
        Some(Self {
            runs,
            len: self.len + 1,
        })
    }

    /// The table without the mappings that lie wholly in `first`..=`last`, and those.
    pub fn without(&self, first_byte: u64, last_byte: u64) -> (Self, Vec<Entry>) {
        let mut removed = Vec::new();
        let mut runs: Vec<Arc<Vec<Entry>>> = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let untouched =
                first(run) > last_byte || run.last().is_none_or(|entry| entry.last() < first_byte);
            let run = if untouched {
                Arc::clone(run)
            } else {
                let inside = |entry: &Entry| entry.start >= first_byte && entry.last() <= last_byte;
                let (gone, kept): (Vec<Entry>, Vec<Entry>) = run.iter().cloned().partition(inside);
                removed.extend(gone);
                Arc::new(kept)
            };
            match runs.last_mut() {
                _ if run.is_empty() => {}
                // Short neighbours are joined, so that the list of runs stays short too.
                Some(before) if before.len() + run.len() <= RUN / 2 => {
                    *before = Arc::new(before.iter().chain(run.iter()).cloned().collect());
                }
                _ => runs.push(run),
            }
        }
        let len = self.len - removed.len();
        (Self { runs, len }, removed)
    }
}
