//! What a shortage of memory is called, before and after the kernel says so.

use std::path::Path;

use super::{PageChoice, SegmentRequest};
use crate::cgroup;
use crate::error::MemoryError;
use crate::page::{HUGE_2M, PageSize, system_page_size};
use crate::topology::{HugepageCount, Topology};

/// Checks that all of these (same pages, same node) fit together, before any is mapped.
///
/// # Errors
/// As [`Segment::map`], with the sum as what is needed.
pub(crate) fn would_fit(
    requests: &[SegmentRequest],
    topology: &dyn Topology,
) -> Result<(), MemoryError> {
    let Some(request) = requests.first() else {
        return Ok(());
    };
    let page = match request.page {
        PageChoice::Huge2M => PageSize::HUGE_2M,
        PageChoice::Huge1G => PageSize::HUGE_1G,
        PageChoice::Ordinary => PageSize::ordinary(),
        // Falls back to ordinary pages; so those, or hugepages, must be there.
        PageChoice::BestEffort => {
            let pages = |page| would_fit_in(requests, request, page, topology);
            return pages(PageSize::HUGE_2M)
                .or_else(|_| pages(PageSize::HUGE_1G))
                .or_else(|_| pages(PageSize::ordinary()));
        }
    };
    would_fit_in(requests, request, page, topology)
}

fn would_fit_in(
    requests: &[SegmentRequest],
    request: &SegmentRequest,
    page: PageSize,
    topology: &dyn Topology,
) -> Result<(), MemoryError> {
    let sum = requests
        .iter()
        .try_fold(0usize, |sum, r| sum.checked_add(page.round_up(r.len)?))
        .unwrap_or(usize::MAX);
    if let Some(node) = request.node {
        if !topology.nodes().contains(&node) {
            // `map` says it better.
            return Ok(());
        }
    }
    let shortage = Shortage {
        request,
        page,
        topology,
    };
    shortage.check(sum)
}

/// Turns counters and errno values into messages that name needed, free, node, remedy.
pub(super) struct Shortage<'a> {
    pub request: &'a SegmentRequest,
    pub page: PageSize,
    pub topology: &'a dyn Topology,
}

impl Shortage<'_> {
    /// Fails at once what cannot succeed.
    pub fn check(&self, len: usize) -> Result<(), MemoryError> {
        if self.page.is_huge() {
            let count = self.count().ok_or_else(|| self.unsupported())?;
            if count.free < len / self.page.bytes() {
                return Err(self.no_hugepages(len, count));
            }
        } else if self.free().is_some_and(|free| free < len as u64) {
            return Err(self.out_of_memory(len));
        }
        if self.topology.is_this_system() {
            cgroup::check(Path::new("/"), &self.request.name, self.page, len as u64)?;
        }
        Ok(())
    }

    fn count(&self) -> Option<HugepageCount> {
        self.topology.hugepages(self.page, self.request.node)
    }

    fn free(&self) -> Option<u64> {
        self.topology.free_memory(self.request.node)
    }

    fn no_hugepages(&self, len: usize, count: HugepageCount) -> MemoryError {
        let needed = len / self.page.bytes();
        let total = count.total + needed.saturating_sub(count.free);
        MemoryError::NoHugepages {
            name: self.request.name.clone(),
            page: self.page,
            needed,
            free: count.free,
            total: count.total,
            node: self.request.node,
            remedy: format!("run: {}", self.command(total)),
        }
    }

    /// The one command that reserves `total` pages.
    fn command(&self, total: usize) -> String {
        let kb = self.page.bytes() >> 10;
        let dir = match self.request.node {
            Some(node) => format!("/sys/devices/system/node/node{node}"),
            None if self.page.bytes() == HUGE_2M && system_page_size() == 4096 => {
                return format!("sudo sysctl -w vm.nr_hugepages={total}");
            }
            None => "/sys/kernel/mm".into(),
        };
        format!("echo {total} | sudo tee {dir}/hugepages/hugepages-{kb}kB/nr_hugepages")
    }

    fn out_of_memory(&self, len: usize) -> MemoryError {
        MemoryError::OutOfMemory {
            name: self.request.name.clone(),
            needed: len as u64,
            free: self.free().unwrap_or(0),
            node: self.request.node,
            remedy: "ask for less, or free memory there".into(),
        }
    }

    pub fn unsupported(&self) -> MemoryError {
        let offered: Vec<String> = [PageSize::HUGE_2M, PageSize::HUGE_1G]
            .into_iter()
            .filter(|p| self.topology.hugepages(*p, None).is_some())
            .map(|p| p.to_string())
            .collect();
        MemoryError::PageSizeUnsupported {
            name: self.request.name.clone(),
            page: self.page,
            offered: if offered.is_empty() {
                "none".into()
            } else {
                offered.join(", ")
            },
            remedy: "ask for one of those or for ordinary pages".into(),
        }
    }

    pub fn explain(&self, len: usize, call: &'static str, error: std::io::Error) -> MemoryError {
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC | libc::EFAULT) => {
                match self.count().filter(|_| self.page.is_huge()) {
                    Some(count) => self.no_hugepages(len, count),
                    None => self.out_of_memory(len),
                }
            }
            _ => MemoryError::os(call, format!("{:?}, {len} bytes", self.request.name), error),
        }
    }
}
