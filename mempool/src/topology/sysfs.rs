//! Topology from the files under `/sys` and `/proc`, and binding by `mbind(2)`.
//!
//! Used when hwloc is not built in or cannot read the machine. The root folder can be
//! given, so that other machines' trees can be looked at.
#![allow(unsafe_code)] // mbind(2) has no safe wrapper

use std::path::{Path, PathBuf};

use super::{Binding, HugepageCount, NodeId, Topology, Unpopulated, parse_ranges};
use crate::page::PageSize;

/// A machine as its `/sys` and `/proc` describe it.
#[derive(Clone, Debug)]
pub struct SysfsTopology {
    root: PathBuf,
    this_system: bool,
}

impl SysfsTopology {
    /// This machine.
    pub fn this_system() -> Self {
        Self {
            root: PathBuf::from("/"),
            this_system: true,
        }
    }

    /// A copy of some machine's `/sys` and `/proc` under `root`. Nothing is bound.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            this_system: false,
        }
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: impl AsRef<Path>) -> Option<usize> {
        self.text(path)?.trim().parse().ok()
    }

    fn node_dir(node: NodeId) -> PathBuf {
        PathBuf::from(format!("sys/devices/system/node/node{node}"))
    }

    /// A kernel without NUMA has no node folders; it is one node, number 0.
    fn has_nodes(&self) -> bool {
        self.root.join("sys/devices/system/node/node0").exists()
            || self.root.join("sys/devices/system/node/online").exists()
    }
}

/// The value in bytes of a `Key:   123 kB` line; per-node files put `Node 0` before it.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|w| *w != key).skip(1);
        words.next()?.parse::<u64>().ok()?.checked_mul(1024)
    })
}

impl Topology for SysfsTopology {
    fn source(&self) -> &'static str {
        "sysfs"
    }

    fn is_this_system(&self) -> bool {
        self.this_system
    }

    fn nodes(&self) -> Vec<NodeId> {
        let list = self
            .text("sys/devices/system/node/has_memory")
            .or_else(|| self.text("sys/devices/system/node/online"))
            .map_or_else(|| vec![0], |t| parse_ranges(&t));
        list.into_iter()
            .filter_map(|n| u32::try_from(n).ok().map(NodeId))
            .collect()
    }

    fn cpus_of_node(&self, node: NodeId) -> Vec<usize> {
        if !self.has_nodes() && node.0 == 0 {
            return self
                .text("sys/devices/system/cpu/online")
                .map_or_else(Vec::new, |t| parse_ranges(&t));
        }
        self.text(Self::node_dir(node).join("cpulist"))
            .map_or_else(Vec::new, |t| parse_ranges(&t))
    }

    fn node_of_cpu(&self, cpu: usize) -> Option<NodeId> {
        let all = self
            .text("sys/devices/system/node/online")
            .map_or_else(|| vec![0], |t| parse_ranges(&t));
        all.into_iter()
            .filter_map(|n| u32::try_from(n).ok().map(NodeId))
            .find(|n| self.cpus_of_node(*n).contains(&cpu))
    }

    fn node_of_pci(&self, address: &str) -> Option<NodeId> {
        let plain = !address.is_empty() && !address.contains(['/', '\0']) && address != "..";
        let text = plain
            .then(|| self.text(format!("sys/bus/pci/devices/{address}/numa_node")))
            .flatten()?;
        // -1: next to no node in particular.
        text.trim().parse::<u32>().ok().map(NodeId)
    }

    fn free_memory(&self, node: Option<NodeId>) -> Option<u64> {
        let whole = self.text("proc/meminfo");
        match node {
            Some(node) if self.has_nodes() => {
                let text = self.text(Self::node_dir(node).join("meminfo"))?;
                // What the kernel can drop counts as free, as in MemAvailable.
                let free = meminfo(&text, "MemFree:")?
                    + meminfo(&text, "Inactive(file):").unwrap_or(0)
                    + meminfo(&text, "SReclaimable:").unwrap_or(0) / 2;
                Some(free)
            }
            Some(node) if node.0 != 0 => None,
            _ => meminfo(&whole?, "MemAvailable:"),
        }
    }

    fn hugepages(&self, page: PageSize, node: Option<NodeId>) -> Option<HugepageCount> {
        let name = format!("hugepages-{}kB", page.bytes() >> 10);
        let system = PathBuf::from("sys/kernel/mm/hugepages").join(&name);
        let spare = |dir: &Path| {
            let may = self
                .number(dir.join("nr_overcommit_hugepages"))
                .unwrap_or(0);
            may.saturating_sub(self.number(dir.join("surplus_hugepages")).unwrap_or(0))
        };
        let total = self.number(system.join("nr_hugepages"))?;
        let free = self.number(system.join("free_hugepages"))?;
        // Reserved pages are counted as free, but promised to others already.
        let reserved = self.number(system.join("resv_hugepages")).unwrap_or(0);
        let count = HugepageCount {
            total,
            free: free.saturating_sub(reserved) + spare(&system),
        };
        match node {
            Some(node) if self.has_nodes() => {
                let dir = Self::node_dir(node).join("hugepages").join(&name);
                let on_node = self.number(dir.join("free_hugepages"))? + spare(&system);
                Some(HugepageCount {
                    total: self.number(dir.join("nr_hugepages"))?,
                    free: on_node.min(count.free),
                })
            }
            Some(node) if node.0 != 0 => None,
            _ => Some(count),
        }
    }

    fn bind_memory(&self, memory: &Unpopulated<'_>, node: NodeId) -> Binding {
        if !self.this_system {
            return Binding::Refused("not this machine's topology".into());
        }
        bind(memory, node)
    }
}

/// `mbind(MPOL_BIND)` for one node.
fn bind(memory: &Unpopulated<'_>, node: NodeId) -> Binding {
    const WORD: usize = libc::c_ulong::BITS as usize;
    const MAX_NODE: usize = 1024;
    let n = node.0 as usize;
    let mut mask = [0 as libc::c_ulong; MAX_NODE / WORD];
    let Some(word) = mask.get_mut(n / WORD) else {
        return Binding::Refused(format!("node {node} is above {MAX_NODE}"));
    };
    *word |= 1 << (n % WORD);
    // SAFETY: mbind changes where the kernel puts pages of a range, not their contents;
    // the mask outlives the call. The kernel reads one bit less than it is told.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.address(),
            memory.len(),
            libc::MPOL_BIND,
            mask.as_ptr(),
            MAX_NODE + 1,
            0,
        )
    };
    if rc == 0 {
        return Binding::Bound;
    }
    // EPERM from a container's filter, ENOSYS without NUMA, EINVAL for a node outside
    // the nodes allowed: pages come from elsewhere, and the segment says so.
    let error = std::io::Error::last_os_error();
    Binding::Refused(format!("mbind: {error}"))
}
