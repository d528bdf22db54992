//! The client's memory: each file mapped once, ranges of it entered in the [`HostMemory`] table.
//!
//! A guest kernel behind a virtual IOMMU maps and unmaps single pages, thousands of them, all from
//! a few files that are its RAM. So a file is mapped whole when it is first seen, known by device
//! and inode, and let go with its last range. Descriptors are not kept.
//!
//! A file that its owner can shrink takes pages from under the device, and one on a file system that
//! its owner plays may never come up with them. Only memory files that are sealed against shrinking
//! are taken ([`Trust::Sealed`]), unless whoever runs the server trusts its clients. Pages that are
//! lost all the same are guarded against ([`Guard`]).

use super::guard::Guard;
use super::message::DmaMap;
use crate::{BusError, HostMemory, Iova};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use pollux_mempool::Segment;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::{VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE};

/// Ranges that a client may have mapped at once, as many as a host's IOMMU takes by default.
pub const MAX_RANGES: usize = 65_535;

/// Files that a client may have mapped at once; one that has grown counts again. Each costs a
/// descriptor, which all functions of a process share.
pub const MAX_FILES: usize = 128;

/// Which memory of a client is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Memory files sealed against shrinking, as QEMU's `memory-backend-memfd` makes them.
    #[default]
    Sealed,
    /// Any file. One whose file system does not answer can hold up the device's threads.
    Anything,
}

/// Device and inode of a file.
type Key = (u64, u64);

struct MappedFile {
    // Guards are dropped before what they guard.
    guard: Guard,
    segment: Segment,
    /// Mappings from before the file grew; ranges of then are still in them.
    older: Vec<(Guard, Segment)>,
    ranges: usize,
}

/// What a client has mapped.
pub(super) struct GuestMemory {
    table: Arc<HostMemory>,
    trust: Trust,
    files: HashMap<Key, MappedFile>,
    /// The file of each range, by its first device address.
    owners: HashMap<u64, Key>,
}

fn refused(reason: impl Into<String>) -> BusError {
    BusError::Refused {
        what: "a mapping",
        reason: reason.into(),
    }
}

impl GuestMemory {
    pub fn new(table: Arc<HostMemory>, trust: Trust) -> Self {
        Self {
            table,
            trust,
            files: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    /// Makes a part of the file visible to the device, for reading or for both.
    ///
    /// # Errors
    /// [`BusError::Overlap`], [`BusError::MapLimit`], [`BusError::Memory`] when the file is too
    /// short, [`BusError::Refused`] for a file that is not taken.
    pub fn map(&mut self, range: &DmaMap, fd: OwnedFd) -> Result<(), BusError> {
        let (iova, len, offset) = (range.address, range.size, range.offset);
        // The table knows nothing that may only be written; it is read and written then.
        if range.flags & (VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE) == 0 {
            return Err(refused("it may be neither read nor written"));
        }
        if self.owners.len() >= MAX_RANGES {
            return Err(BusError::MapLimit { limit: MAX_RANGES });
        }
        let size = usize::try_from(len).map_err(|_| refused("more than fits the address space"))?;
        let stat = fstat(&fd).map_err(BusError::os("fstat of the memory's file"))?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(refused("its descriptor is no file"));
        }
        if self.trust == Trust::Sealed {
            let sealed = fcntl(&fd, FcntlArg::F_GET_SEALS).is_ok_and(|seals| {
                SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK)
            });
            if !sealed {
                return Err(refused(
                    "its file can be shrunk under the device; use sealed memory (QEMU: memory-backend-memfd,share=on) or let the server trust its clients",
                ));
            }
        }
        let key = (stat.st_dev, stat.st_ino);
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let end = offset.checked_add(len).filter(|end| *end <= length);
        let end = end.ok_or_else(|| {
            refused(format!(
                "{len:#x} bytes at {offset:#x} of a file that has {length:#x}"
            ))
        })?;
        let place =
            usize::try_from(offset).map_err(|_| refused("an offset beyond the address space"))?;
        let segment = self.segment(key, end, length, fd)?;
        let entered = segment.window(place, size).map_err(BusError::from);
        let entered = entered.and_then(|window| {
            if range.flags & VFIO_DMA_MAP_FLAG_WRITE == 0 {
                self.table.map_read_only(Iova(iova), window)
            } else {
                self.table.map(Iova(iova), window)
            }
        });
        match (entered, self.files.get_mut(&key)) {
            (Ok(()), Some(file)) => {
                file.ranges += 1;
                self.owners.insert(iova, key);
                Ok(())
            }
            (Err(error), Some(file)) if file.ranges == 0 => {
                self.files.remove(&key);
                Err(error)
            }
            (outcome, _) => outcome,
        }
    }

    /// The mapping of a whole file, entered among the files.
    fn segment(
        &mut self,
        key: Key,
        end: u64,
        length: u64,
        fd: OwnedFd,
    ) -> Result<Segment, BusError> {
        if let Some(file) = self.files.get(&key) {
            if end <= file.segment.len() as u64 {
                return Ok(file.segment.clone());
            }
        }
        let mapped = |file: &MappedFile| 1 + file.older.len();
        if self.files.values().map(mapped).sum::<usize>() >= MAX_FILES {
            return Err(BusError::MapLimit { limit: MAX_FILES });
        }
        // New, or grown since it was mapped.
        let whole = usize::try_from(length).map_err(|_| refused("its file is too large"))?;
        let segment = Segment::from_fd(fd, 0, whole)?;
        let guard = Guard::new(&segment)?;
        match self.files.get_mut(&key) {
            Some(file) => {
                let guard = std::mem::replace(&mut file.guard, guard);
                let before = std::mem::replace(&mut file.segment, segment.clone());
                file.older.push((guard, before));
            }
            None => {
                let file = MappedFile {
                    guard,
                    segment: segment.clone(),
                    older: Vec::new(),
                    ranges: 0,
                };
                self.files.insert(key, file);
            }
        }
        Ok(segment)
    }

    /// Whether the client has taken pages away that the device touched.
    pub fn was_taken_away(&self) -> bool {
        let hit = |file: &MappedFile| {
            file.guard.was_hit() || file.older.iter().any(|(guard, _)| guard.was_hit())
        };
        self.files.values().any(hit)
    }

    /// Removes all ranges in `first`..=`last`; none there is no error. When this returns, no device
    /// thread touches them.
    ///
    /// # Errors
    /// As [`HostMemory::unmap_within`].
    pub fn unmap(&mut self, first: u64, last: u64) -> Result<usize, BusError> {
        let removed = self.table.unmap_within(first, last)?;
        for (iova, _) in &removed {
            let Some(key) = self.owners.remove(&iova.0) else {
                continue;
            };
            if let Some(file) = self.files.get_mut(&key) {
                file.ranges -= 1;
                if file.ranges == 0 {
                    self.files.remove(&key);
                }
            }
        }
        Ok(removed.len())
    }
}
