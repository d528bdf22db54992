//! What can go wrong with memory: one enum for the crate.
//!
//! Every message says what was asked, what is there, the limit and the remedy; callers
//! print it as it is.

use crate::page::PageSize;
use crate::topology::NodeId;

/// Failure of a mapping, an access, a placement or a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// An access or a sub-window reaches beyond its memory.
    #[error("{what}: bytes {offset}..{} asked, but there are only {len}", .offset.saturating_add(*.asked))]
    OutOfBounds {
        /// The access that was tried.
        what: &'static str,
        /// First byte asked.
        offset: usize,
        /// Number of bytes asked.
        asked: usize,
        /// Number of bytes that exist.
        len: usize,
    },
    /// An offset or address is not a multiple of what the access needs.
    #[error("{what}: {offset:#x} is not a multiple of {align}")]
    Misaligned {
        /// The access that was tried.
        what: &'static str,
        /// The offset or address given.
        offset: u64,
        /// The alignment needed, in bytes.
        align: usize,
    },
    /// A count that must be a power of two is not one.
    #[error("{what}: {count} is not a power of two between 1 and {max}; the next ones are {} and {}", lower_power(*.count), higher_power(*.count))]
    NotPowerOfTwo {
        /// What is counted.
        what: &'static str,
        /// The number given.
        count: usize,
        /// The largest number allowed.
        max: usize,
    },
    /// A number is outside its range.
    #[error("{what}: {given} given, {min} to {max} allowed{}", and_do(.remedy))]
    OutOfRange {
        /// What the number is for.
        what: &'static str,
        /// The number given.
        given: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// What to do, or empty.
        remedy: String,
    },
    /// Not enough free hugepages.
    #[error(
        "{name}: {needed} hugepages of {page} needed, {free} free{} (of {total}); {remedy}",
        on(*.node)
    )]
    NoHugepages {
        /// Name of the segment.
        name: String,
        /// Size of one page.
        page: PageSize,
        /// Pages needed.
        needed: usize,
        /// Pages free on the node (or in the system).
        free: usize,
        /// Pages that exist there.
        total: usize,
        /// The node asked for.
        node: Option<NodeId>,
        /// The command that mends it.
        remedy: String,
    },
    /// The kernel has no pages of that size at all.
    #[error("{name}: this kernel offers no hugepages of {page}; it offers {offered}; {remedy}")]
    PageSizeUnsupported {
        /// Name of the segment.
        name: String,
        /// The size asked for.
        page: PageSize,
        /// The sizes there are.
        offered: String,
        /// What to do.
        remedy: String,
    },
    /// A control group limits this process to less than was asked.
    #[error(
        "{name}: {needed} bytes needed, but the {controller} control group of this process leaves {left} (limit {limit}); raise {file}"
    )]
    CgroupLimit {
        /// Name of the segment.
        name: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes left under the limit.
        left: u64,
        /// The limit in bytes.
        limit: u64,
        /// `hugetlb` or `memory`.
        controller: &'static str,
        /// The file that holds the limit.
        file: String,
    },
    /// Not enough ordinary memory.
    #[error("{name}: {needed} bytes needed, {free} free{}; {remedy}", on(*.node))]
    OutOfMemory {
        /// Name of the segment or pool.
        name: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes free on the node (or in the system).
        free: u64,
        /// The node asked for.
        node: Option<NodeId>,
        /// What to do.
        remedy: String,
    },
    /// The node does not exist or has no memory.
    #[error("NUMA node {node} asked; nodes with memory here: {allowed}")]
    NoSuchNode {
        /// The node asked for.
        node: NodeId,
        /// List of the nodes that there are.
        allowed: String,
    },
    /// The CPU does not exist or is outside the set allowed to this process.
    #[error("CPU {cpu} asked, this process may run on {allowed}; {remedy}")]
    CpuNotAllowed {
        /// The CPU asked for.
        cpu: usize,
        /// The allowed set.
        allowed: String,
        /// What to do.
        remedy: String,
    },
    /// All lcore slots are taken, or this thread has one already.
    #[error("lcore: {reason} (limit {max} slots)")]
    NoSlot {
        /// Why there is none.
        reason: String,
        /// Number of slots.
        max: usize,
    },
    /// A received mapping is shorter than the sender says.
    #[error("mapping {offset:#x}..+{len:#x} asked of a file of {size:#x} bytes")]
    FileTooShort {
        /// Offset in the file.
        offset: u64,
        /// Bytes asked.
        len: u64,
        /// Size of the file.
        size: u64,
    },
    /// The topology could not be read.
    #[error("topology: {0}")]
    Topology(String),
    /// A system call failed.
    #[error("{call} for {what}: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// What it was for, with size.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl MemoryError {
    pub(crate) fn os(
        call: &'static str,
        what: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::Os {
            call,
            what: what.into(),
            source: source.into(),
        }
    }
}

fn on(node: Option<NodeId>) -> String {
    node.map_or_else(String::new, |n| format!(" on NUMA node {n}"))
}

fn and_do(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("; {text}")
    }
}

fn lower_power(count: usize) -> usize {
    count.checked_ilog2().map_or(1, |b| 1 << b)
}

fn higher_power(count: usize) -> usize {
    count.checked_next_power_of_two().unwrap_or(1 << 63)
}
