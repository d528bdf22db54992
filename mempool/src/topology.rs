//! Where memory and CPUs are: NUMA nodes, their CPUs and their free pages.
//!
//! [`Topology`] is what placement needs to know; [`current`] gives the one of this
//! machine, read once. A topology that does not describe this system (a synthetic one,
//! or files of another machine) answers questions but never binds anything.

use std::fmt;
use std::sync::{Arc, OnceLock};

use memmap2::MmapRaw;

use crate::page::PageSize;

#[cfg(feature = "hwloc")]
mod hwloc;
mod sysfs;

#[cfg(feature = "hwloc")]
pub use hwloc::HwlocTopology;
pub use sysfs::SysfsTopology;

/// A NUMA node by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Hugepages of one size, on one node or in the whole system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugepageCount {
    /// Pages that exist.
    pub total: usize,
    /// Pages that a new mapping can have.
    pub free: usize,
}

/// What became of a request to bind memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The kernel will place the pages on the node, or fail.
    Bound,
    /// Not bound, and why: pages may lie anywhere.
    Refused(String),
}

/// What placement needs to know of a machine.
pub trait Topology: fmt::Debug + Send + Sync {
    /// Where the knowledge comes from, for banners: `hwloc`, `sysfs`.
    fn source(&self) -> &'static str;

    /// False for a synthetic or foreign topology: nothing is bound then.
    fn is_this_system(&self) -> bool;

    /// The nodes that have memory, ascending.
    fn nodes(&self) -> Vec<NodeId>;

    /// The CPUs next to a node, ascending; empty for an unknown node.
    fn cpus_of_node(&self, node: NodeId) -> Vec<usize>;

    /// The node next to a CPU.
    fn node_of_cpu(&self, cpu: usize) -> Option<NodeId>;

    /// The node next to a PCI function, `0000:3b:00.0`; `None` when there is no such
    /// function or it is next to no node in particular.
    fn node_of_pci(&self, address: &str) -> Option<NodeId>;

    /// Bytes of ordinary memory that can be had on a node, or in the system.
    fn free_memory(&self, node: Option<NodeId>) -> Option<u64>;

    /// Hugepages on a node, or in the system; `None` when the kernel has none of that
    /// size.
    fn hugepages(&self, page: PageSize, node: Option<NodeId>) -> Option<HugepageCount>;

    /// Binds mapped, not yet populated memory to a node. A kernel or container that does
    /// not let this process bind is no error: [`Binding::Refused`].
    fn bind_memory(&self, memory: &Unpopulated<'_>, node: NodeId) -> Binding;

    /// The node that memory for `wanted` comes from: that node, or the first one with
    /// memory when none is wanted or the machine does not tell. Everything that is kept
    /// by node (pools, statistics) uses this one key.
    fn home(&self, wanted: Option<NodeId>) -> NodeId {
        let nodes = self.nodes();
        wanted
            .filter(|node| nodes.contains(node))
            .or_else(|| nodes.first().copied())
            .unwrap_or(NodeId(0))
    }
}

/// A fresh mapping without pages, to be bound.
#[derive(Debug)]
pub struct Unpopulated<'a> {
    map: &'a MmapRaw,
}

impl<'a> Unpopulated<'a> {
    pub(crate) fn new(map: &'a MmapRaw) -> Self {
        Self { map }
    }

    /// Address of its first byte.
    pub fn address(&self) -> usize {
        self.map.as_ptr() as usize
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never true: a mapping has at least one page.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }
}

/// The topology of this machine, read at the first call: by hwloc where it is built in
/// and works, else from the kernel's files.
pub fn current() -> Arc<dyn Topology> {
    static CURRENT: OnceLock<Arc<dyn Topology>> = OnceLock::new();
    CURRENT
        .get_or_init(|| {
            #[cfg(feature = "hwloc")]
            if let Ok(topology) = HwlocTopology::this_system() {
                return Arc::new(topology);
            }
            Arc::new(SysfsTopology::this_system())
        })
        .clone()
}

/// A list of numbers as the kernel prints it: `0-3,8`.
pub fn ranges(numbers: &[usize]) -> String {
    let mut out = String::new();
    let mut rest = numbers;
    while let Some((&first, _)) = rest.split_first() {
        let run = rest
            .iter()
            .enumerate()
            .take_while(|(i, n)| first.checked_add(*i) == Some(**n))
            .count();
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(&first.to_string());
        if run > 1 {
            out.push_str(&format!("-{}", first + run - 1));
        }
        rest = rest.get(run..).unwrap_or(&[]);
    }
    if out.is_empty() {
        out.push_str("none");
    }
    out
}

/// Reads a list as the kernel prints it: `0-3,8`.
pub(crate) fn parse_ranges(text: &str) -> Vec<usize> {
    /// More CPUs or nodes than any kernel is built for.
    const MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend((first..=last).take(MAX));
        }
    }
    numbers
}

/// The nodes as a list for messages.
pub(crate) fn node_list(nodes: &[NodeId]) -> String {
    ranges(&nodes.iter().map(|n| n.0 as usize).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_prints_them() {
        assert_eq!(parse_ranges("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_ranges("\n"), [0usize; 0]);
        assert_eq!(ranges(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(ranges(&[5]), "5");
        assert_eq!(ranges(&[]), "none");
    }
}
