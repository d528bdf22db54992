//! Memory keys: the device's permission to reach a range of device addresses.
//!
//! One key for each mapped segment. Keys have a page list (access mode MTT), as rdma-core makes
//! them for a function under VFIO: with the length in the key, an address outside the segment is
//! refused by the device itself. (The Linux driver uses one key over all physical addresses; that
//! would let a damaged descriptor reach everything the IOMMU maps.) Because a mapping's device
//! address is aligned to its size, the list has one page, up to 2 GiB.

use crate::control::Control;
use crate::error::Error;
use crate::stack::Stack;
use pollux_bus::DmaMapping;
use pollux_prm::command::Command;
use pollux_prm::commands::protection::{AccessMode, CreateMkey, DestroyMkey, Mkc};

/// Largest page of a key's list, log 2 (five bits of `log_page_size`, as rdma-core uses them).
const MAX_LOG_PAGE: u32 = 31;
/// Smallest.
const MIN_LOG_PAGE: u32 = 12;
/// Most pages in a list: what a command slot's mailboxes hold.
const MAX_PAGES: u64 = 512;
/// No queue pair is bound to the key.
const ANY_QPN: u32 = 0xff_ffff;

/// How a range is cut into pages: their size (log 2), and how many.
fn pages(iova: u64, len: u64) -> (u32, u64) {
    let cover = u64::BITS - len.saturating_sub(1).leading_zeros();
    let log = iova
        .trailing_zeros()
        .min(cover)
        .clamp(MIN_LOG_PAGE, MAX_LOG_PAGE);
    (log, len.div_ceil(1 << log))
}

/// Makes a key for a mapping: local read and write, in protection domain `pd`. The low byte of
/// the key is `variant`. With `page_access` (the capability `pg`) each entry of the list says what
/// may be done with its page, and has to; without, entries are bare addresses, as the Linux driver
/// has it. The key's undo is pushed.
///
/// # Errors
/// A segment in too many pieces, or firmware's refusal.
pub(crate) fn create(
    control: &Control,
    stack: &mut Stack,
    pd: u32,
    mapping: &DmaMapping,
    variant: u8,
    page_access: bool,
) -> Result<u32, Error> {
    let (iova, len) = (mapping.iova().0, mapping.segment().len() as u64);
    let (log_page, count) = pages(iova, len);
    if count > MAX_PAGES {
        return Err(Error::Setting {
            what: "pages of one memory key",
            given: count,
            allowed: format!("1 to {MAX_PAGES}"),
            remedy: "use hugepages or smaller pools: the device's address space is crowded".into(),
        });
    }
    // Two page addresses in one octword of 16 bytes.
    let octwords = count.div_ceil(2) as u32;
    let mut context = Mkc::zeroed();
    context.set_access_mode(AccessMode::MTT)?;
    context.set_lr(true).set_lw(true);
    context.set_qpn(ANY_QPN)?;
    context.set_pd(pd)?;
    context.set_mkey_7_0(variant);
    context.set_start_addr(iova).set_length(len);
    context.set_translations_octword_size(octwords);
    context.set_log_page_size(log_page as u8)?;
    let mut input = CreateMkey::request();
    input
        .set_pg_access(page_access)
        .set_memory_key_mkey_entry(context)
        .set_translations_octword_actual_size(octwords);
    let access = if page_access { READ_WRITE } else { 0 };
    let mut tail = Vec::with_capacity(octwords as usize * 16);
    for page in 0..count {
        tail.extend(((iova + (page << log_page)) | access).to_be_bytes());
    }
    tail.resize(octwords as usize * 16, 0);
    let index = control
        .execute_with::<CreateMkey>(&input, &tail)?
        .mkey_index();
    let mut destroy = DestroyMkey::request();
    destroy.set_mkey_index(index)?;
    stack.destroy::<DestroyMkey>("memory key", destroy);
    Ok(index << 8 | u32::from(variant))
}

/// The page may be read and written (low bits of a list entry).
const READ_WRITE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_range_is_one_page() {
        assert_eq!(pages(0x4000_0000, 0x4000_0000), (30, 1));
        assert_eq!(pages(0x40_0000, 0x30_0000), (22, 1));
        assert_eq!(pages(0x1000, 0x1000), (12, 1));
        assert_eq!(pages(0x10_0000, 17), (12, 1));
    }

    #[test]
    fn a_badly_aligned_range_is_several() {
        assert_eq!(pages(0x20_1000, 0x20_0000), (12, 512));
        assert_eq!(pages(0x60_0000, 0x40_0001), (21, 3));
        // Larger than the largest page.
        assert_eq!(pages(1 << 40, 5 << 30), (31, 3));
    }
}
