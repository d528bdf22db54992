//! Memory of a started port's queues: rings and doorbell records, in one block.
//!
//! Each ring is aligned to its own size and so is one page of the device's page list (where the
//! device's address space is too crowded for that, several). Each doorbell record has a cache
//! line of its own.

use crate::dma::{Carver, DmaMemory};
use crate::error::Error;
use pollux_bus::DmaDomain;
use pollux_mempool::{FIRMWARE_PAGE, SegmentRequest};
use std::sync::Arc;

/// Bytes kept for one doorbell record.
pub(crate) const RECORD: usize = 64;

/// Rings and records still to be handed out.
pub(crate) struct Rings {
    rings: Vec<(usize, DmaMemory)>,
    records: Carver,
}

/// Bytes of a ring in whole firmware pages; a power of two.
fn whole(bytes: usize) -> usize {
    bytes.next_power_of_two().max(FIRMWARE_PAGE)
}

impl Rings {
    /// Maps memory for rings of these sizes in bytes and for `records` doorbell records; the whole
    /// block comes with it.
    ///
    /// # Errors
    /// No memory, no device address.
    pub(crate) fn new(
        domain: &Arc<DmaDomain>,
        request: SegmentRequest,
        sizes: &[usize],
        records: usize,
    ) -> Result<(Self, DmaMemory), Error> {
        let record_bytes = (records * RECORD).next_multiple_of(FIRMWARE_PAGE);
        let mut sizes: Vec<usize> = sizes.iter().map(|bytes| whole(*bytes)).collect();
        // The largest first: no gap is needed for alignment then.
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let len = sizes.iter().sum::<usize>() + record_bytes;
        let block = DmaMemory::new(domain, &SegmentRequest { len, ..request })?;
        let aligned = 1usize << block.iova().0.trailing_zeros().min(30);
        let mut carver = Carver::new(block.clone());
        let mut rings = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            rings.push((bytes, carver.take(bytes, bytes.min(aligned))?));
        }
        let records = Carver::new(carver.take(record_bytes, FIRMWARE_PAGE)?);
        Ok((Self { rings, records }, block))
    }

    /// A ring of one of the sizes asked for; each is handed out once.
    ///
    /// # Errors
    /// No such ring is left.
    pub(crate) fn ring(&mut self, bytes: usize) -> Result<DmaMemory, Error> {
        let size = whole(bytes);
        match self.rings.iter().position(|(of, _)| *of == size) {
            Some(at) => Ok(self.rings.swap_remove(at).1),
            None => Err(Error::Setting {
                what: "ring memory in bytes",
                given: size as u64,
                allowed: "what was laid out".into(),
                remedy: "report this: a ring was forgotten in the layout".into(),
            }),
        }
    }

    /// A doorbell record, zeroed.
    ///
    /// # Errors
    /// No record is left.
    pub(crate) fn record(&mut self) -> Result<DmaMemory, Error> {
        self.records.take(RECORD, RECORD)
    }
}

/// Page list of a ring: page size as log 2 above 4 KiB, and the pages in the device's byte order.
pub(crate) fn page_list(ring: &DmaMemory) -> (u8, Vec<u8>) {
    let (iova, len) = (ring.iova().0, ring.len() as u64);
    let log = iova.trailing_zeros().min(len.trailing_zeros()).max(12);
    let pages = (0..len >> log)
        .flat_map(|page| (iova + (page << log)).to_be_bytes())
        .collect();
    ((log - 12) as u8, pages)
}
