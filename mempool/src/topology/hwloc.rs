//! Topology as hwloc sees it: this machine's, or a synthetic one.
//!
//! hwloc says what is where and binds memory; free memory and hugepage counters change
//! while it is loaded, so those come from the kernel's files each time.
#![allow(unsafe_code)] // hwloc takes the memory to bind as a reference

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;

use hwlocality::Topology as Hwloc;
use hwlocality::memory::binding::{MemoryBindingFlags, MemoryBindingPolicy};
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::TypeFilter;

use super::{Binding, HugepageCount, NodeId, SysfsTopology, Topology, Unpopulated};
use crate::error::MemoryError;
use crate::page::PageSize;

/// A machine as hwloc describes it.
pub struct HwlocTopology {
    hwloc: Hwloc,
    /// Counters that change; this machine only.
    files: SysfsTopology,
}

impl fmt::Debug for HwlocTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HwlocTopology")
            .field("this_system", &self.is_this_system())
            .field("nodes", &self.nodes())
            .finish_non_exhaustive()
    }
}

fn error(e: impl fmt::Display) -> MemoryError {
    MemoryError::Topology(format!("hwloc: {e}"))
}

impl HwlocTopology {
    /// This machine, with its PCI functions.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] when hwloc cannot read it.
    pub fn this_system() -> Result<Self, MemoryError> {
        let hwloc = Hwloc::builder()
            .with_io_type_filter(TypeFilter::KeepImportant)
            .map_err(error)?
            .build()
            .map_err(error)?;
        Ok(Self {
            hwloc,
            files: SysfsTopology::this_system(),
        })
    }

    /// A machine that does not exist, in hwloc's words:
    /// `NUMANode:2 Package:1 Core:4 PU:2`. Nothing is bound.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] for a description that hwloc does not understand.
    pub fn synthetic(description: &str) -> Result<Self, MemoryError> {
        let hwloc = Hwloc::builder()
            .from_synthetic(description)
            .map_err(error)?
            .build()
            .map_err(error)?;
        Ok(Self {
            hwloc,
            files: SysfsTopology::this_system(),
        })
    }

    fn node_objects(&self) -> impl Iterator<Item = (NodeId, &TopologyObject)> {
        self.hwloc
            .objects_with_type(ObjectType::NUMANode)
            .filter_map(|object| {
                let id = u32::try_from(object.os_index()?).ok()?;
                Some((NodeId(id), object))
            })
    }

    fn node_object(&self, node: NodeId) -> Option<&TopologyObject> {
        self.node_objects()
            .find(|(id, _)| *id == node)
            .map(|(_, object)| object)
    }

    /// Total bytes of a node, or of all.
    fn total_memory(&self, node: Option<NodeId>) -> Option<u64> {
        let bytes = |object: &TopologyObject| match object.attributes() {
            Some(ObjectAttributes::NUMANode(a)) => a.local_memory().map_or(0, Into::into),
            _ => 0,
        };
        match node {
            Some(node) => self.node_object(node).map(bytes),
            None => Some(self.node_objects().map(|(_, o)| bytes(o)).sum()),
        }
    }
}

impl Topology for HwlocTopology {
    fn source(&self) -> &'static str {
        "hwloc"
    }

    fn is_this_system(&self) -> bool {
        self.hwloc.is_this_system()
    }

    fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.node_objects().map(|(id, _)| id).collect();
        nodes.sort_unstable();
        nodes
    }

    fn cpus_of_node(&self, node: NodeId) -> Vec<usize> {
        self.node_object(node)
            .and_then(TopologyObject::cpuset)
            .map_or_else(Vec::new, |set| set.iter_set().map(usize::from).collect())
    }

    fn node_of_cpu(&self, cpu: usize) -> Option<NodeId> {
        self.nodes()
            .into_iter()
            .find(|node| self.cpus_of_node(*node).contains(&cpu))
    }

    fn node_of_pci(&self, address: &str) -> Option<NodeId> {
        let device = self.hwloc.pci_device_by_bus_id_string(address).ok()?;
        let Some(device) = device else {
            // hwloc keeps what it finds important only.
            return self
                .is_this_system()
                .then(|| self.files.node_of_pci(address))
                .flatten();
        };
        let near = device.first_non_io_ancestor()?.nodeset()?;
        let mut nodes = near.iter_set().map(usize::from);
        let first = nodes.next()?;
        // Next to several nodes is next to none in particular, unless there is just one.
        let only = nodes.next().is_none();
        only.then(|| u32::try_from(first).ok().map(NodeId))
            .flatten()
    }

    fn free_memory(&self, node: Option<NodeId>) -> Option<u64> {
        if self.is_this_system() {
            self.files.free_memory(node)
        } else {
            self.total_memory(node)
        }
    }

    fn hugepages(&self, page: PageSize, node: Option<NodeId>) -> Option<HugepageCount> {
        self.is_this_system()
            .then(|| self.files.hugepages(page, node))
            .flatten()
    }

    fn bind_memory(&self, memory: &Unpopulated<'_>, node: NodeId) -> Binding {
        if !self.is_this_system() {
            return Binding::Refused("not this machine's topology".into());
        }
        let Some(nodeset) = self.node_object(node).and_then(TopologyObject::nodeset) else {
            return Binding::Refused(format!("there is no node {node}"));
        };
        // SAFETY: the mapping exists as long as `memory`, is made of bytes that may be in
        // any state, and `UnsafeCell` lets anybody write them. hwloc uses the reference
        // for its address and size only.
        let area: &[UnsafeCell<MaybeUninit<u8>>] =
            unsafe { std::slice::from_raw_parts(memory.map.as_ptr().cast(), memory.len()) };
        match self.hwloc.bind_memory_area(
            area,
            nodeset,
            MemoryBindingPolicy::Bind,
            MemoryBindingFlags::STRICT,
        ) {
            Ok(()) => Binding::Bound,
            // Containers filter the call; kernels without NUMA do not have it.
            Err(e) => Binding::Refused(format!("hwloc: {e}")),
        }
    }
}
