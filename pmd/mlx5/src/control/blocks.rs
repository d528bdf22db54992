//! Memory for firmware pages: mapped segments on the function's node.

use crate::dma::DmaMemory;
use crate::pages::PageMemory;
use pollux_bus::DmaDomain;
use pollux_mempool::{FIRMWARE_PAGE, NodeId, PageChoice, SegmentRequest};
use std::sync::Arc;

/// Smallest and largest block in bytes: one hugepage, and little enough to be populated in a
/// moment.
const SMALLEST: usize = 2 << 20;
const LARGEST: usize = 64 << 20;

/// Makes blocks in one DMA domain.
pub(crate) struct Blocks {
    pub(crate) name: String,
    pub(crate) domain: Arc<DmaDomain>,
    pub(crate) node: Option<NodeId>,
    pub(crate) pages: PageChoice,
}

impl PageMemory for Blocks {
    type Block = DmaMemory;

    fn block(&mut self, pages: usize) -> Result<(DmaMemory, u64, usize), String> {
        let wanted = pages.saturating_mul(FIRMWARE_PAGE).clamp(SMALLEST, LARGEST);
        let len = wanted.next_multiple_of(SMALLEST);
        let request = SegmentRequest::new(format!("firmware pages of {}", self.name), len)
            .node(self.node)
            .page(self.pages);
        let memory = DmaMemory::new(&self.domain, &request).map_err(|e| e.to_string())?;
        let (iova, pages) = (memory.iova().0, memory.len() / FIRMWARE_PAGE);
        Ok((memory, iova, pages))
    }
}
