//! The table of mappings: sorted, never overlapping, and cheap to change although readers keep the
//! one before.
//!
//! A tree whose nodes versions of the table share. A change copies the nodes on one path, not all
//! mappings: a guest kernel behind a virtual IOMMU makes thousands of changes to thousands of
//! mappings.

use pollux_mempool::Window;
use std::sync::Arc;

/// Most entries or children of a node.
const FANOUT: usize = 32;

/// One mapping.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub start: u64,
    pub window: Window,
    /// The device may write it.
    pub writable: bool,
}

impl Entry {
    /// Whether all these addresses are in it.
    #[inline]
    pub fn holds(&self, iova: u64, len: u64) -> bool {
        let size = self.window.len() as u64;
        iova.checked_sub(self.start)
            .is_some_and(|offset| offset < size && len <= size - offset)
    }

    /// The last address.
    fn last(&self) -> u64 {
        self.start + (self.window.len() as u64 - 1)
    }
}

/// No node is empty, and all leaves are equally deep.
#[derive(Debug)]
enum Node {
    Leaf(Vec<Entry>),
    /// Children, each with its first address.
    Inner(Vec<(u64, Arc<Node>)>),
}

impl Node {
    fn first(&self) -> u64 {
        match self {
            Self::Leaf(entries) => entries.first().map_or(0, |entry| entry.start),
            Self::Inner(children) => children.first().map_or(0, |(first, _)| *first),
        }
    }

    /// The last entry that starts at `iova` or before it.
    fn before(&self, iova: u64) -> Option<&Entry> {
        match self {
            Self::Leaf(entries) => {
                let after = entries.partition_point(|entry| entry.start <= iova);
                entries.get(after.checked_sub(1)?)
            }
            Self::Inner(children) => {
                let after = children.partition_point(|(first, _)| *first <= iova);
                children.get(after.checked_sub(1)?)?.1.before(iova)
            }
        }
    }

    /// Where the first entry behind `iova` starts.
    fn after(&self, iova: u64) -> Option<u64> {
        match self {
            Self::Leaf(entries) => {
                let after = entries.partition_point(|entry| entry.start <= iova);
                entries.get(after).map(|entry| entry.start)
            }
            Self::Inner(children) => {
                let after = children.partition_point(|(first, _)| *first <= iova);
                let child = after.checked_sub(1).and_then(|at| children.get(at));
                child
                    .and_then(|(_, node)| node.after(iova))
                    .or_else(|| children.get(after).map(|(first, _)| *first))
            }
        }
    }

    /// The node with one more entry, and what no longer fits in it.
    fn with(&self, entry: Entry) -> (Self, Option<Self>) {
        match self {
            Self::Leaf(entries) => {
                let at = entries.partition_point(|other| other.start < entry.start);
                let mut entries = entries.clone();
                entries.insert(at, entry);
                let rest = split(&mut entries);
                (Self::Leaf(entries), rest.map(Self::Leaf))
            }
            Self::Inner(children) => {
                let after = children.partition_point(|(first, _)| *first <= entry.start);
                let at = after.saturating_sub(1);
                let mut children = children.clone();
                if let Some(child) = children.get_mut(at) {
                    let (node, more) = child.1.with(entry);
                    *child = (node.first(), Arc::new(node));
                    if let Some(more) = more {
                        children.insert(at + 1, (more.first(), Arc::new(more)));
                    }
                }
                let rest = split(&mut children);
                (Self::Inner(children), rest.map(Self::Inner))
            }
        }
    }

    /// The node without the entries that lie wholly in `first`..=`last`; `None` when none is left.
    fn without(&self, first: u64, last: u64, removed: &mut Vec<Entry>) -> Option<Self> {
        match self {
            Self::Leaf(entries) => {
                let inside = |entry: &Entry| entry.start >= first && entry.last() <= last;
                let (gone, kept): (Vec<Entry>, Vec<Entry>) =
                    entries.iter().cloned().partition(inside);
                removed.extend(gone);
                (!kept.is_empty()).then_some(Self::Leaf(kept))
            }
            Self::Inner(children) => {
                let mut kept = Vec::with_capacity(children.len());
                for (at, (start, child)) in children.iter().enumerate() {
                    // A child's entries end before the next child begins.
                    let next = children.get(at + 1);
                    let apart = *start > last || next.is_some_and(|(next, _)| *next <= first);
                    if apart {
                        kept.push((*start, Arc::clone(child)));
                    } else if let Some(node) = child.without(first, last, removed) {
                        kept.push((node.first(), Arc::new(node)));
                    }
                }
                (!kept.is_empty()).then_some(Self::Inner(kept))
            }
        }
    }
}

/// Cuts the upper half off what is too long.
fn split<T>(list: &mut Vec<T>) -> Option<Vec<T>> {
    (list.len() > FANOUT).then(|| list.split_off(FANOUT / 2))
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    root: Option<Arc<Node>>,
    len: usize,
}

impl Table {
    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry that holds all these addresses.
    pub fn find(&self, iova: u64, len: u64) -> Option<&Entry> {
        let entry = self.root.as_ref()?.before(iova)?;
        entry.holds(iova, len).then_some(entry)
    }

    /// Whether a mapping lies across an edge of `first`..=`last`.
    pub fn is_cut_by(&self, first: u64, last: u64) -> bool {
        self.find(first, 1).is_some_and(|entry| entry.start < first)
            || self.find(last, 1).is_some_and(|entry| entry.last() > last)
    }

    /// The table with one more mapping; `None` when it is empty, overlaps another or ends beyond
    /// the address space.
    pub fn with(&self, entry: Entry) -> Option<Self> {
        let len = entry.window.len() as u64;
        entry.start.checked_add(len).filter(|_| len != 0)?;
        let len = self.len + 1;
        let Some(root) = &self.root else {
            let root = Some(Arc::new(Node::Leaf(vec![entry])));
            return Some(Self { root, len });
        };
        let below = root.before(entry.start);
        let above = root.after(entry.start);
        if below.is_some_and(|other| other.last() >= entry.start)
            || above.is_some_and(|start| start <= entry.last())
        {
            return None;
        }
        let root = match root.with(entry) {
            (root, None) => root,
            (low, Some(high)) => {
                let child = |node: Node| (node.first(), Arc::new(node));
                Node::Inner(vec![child(low), child(high)])
            }
        };
        let root = Some(Arc::new(root));
        Some(Self { root, len })
    }

    /// The table without the mappings that lie wholly in `first`..=`last`, and those.
    pub fn without(&self, first: u64, last: u64) -> (Self, Vec<Entry>) {
        let mut removed = Vec::new();
        let root = self.root.as_ref();
        let mut root = root
            .and_then(|root| root.without(first, last, &mut removed))
            .map(Arc::new);
        // A root with one child is a step for nothing.
        while let Some(Node::Inner(children)) = root.as_deref() {
            match children.as_slice() {
                [(_, only)] => root = Some(Arc::clone(only)),
                _ => break,
            }
        }
        let len = self.len - removed.len();
        (Self { root, len }, removed)
    }
}
