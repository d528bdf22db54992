//! Segments: mapped memory, populated at once, bound to a node, gone with the process.
//!
//! A segment is made by [`Segment::map`] (own memory, a memfd that can be passed to
//! another process), [`Segment::from_fd`] (a mapping that somebody passed to us) or
//! [`Segment::reserve`] (address space only). Clones share the mapping; the last one, or
//! the last [`Window`] of it, unmaps. Because the file is anonymous, a killed process
//! leaves nothing behind.
//!
//! Order of work: check counters and limits, create, map, bind, allocate, populate. Each
//! step undoes itself on failure, and no page is touched that the kernel did not grant,
//! so a shortage is an error and never a SIGBUS. Control path only.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag};
use nix::sys::memfd::MFdFlags;

use crate::error::MemoryError;
use crate::foreign::Window;
use crate::page::{HUGE_1G, HUGE_2M, PageSize};
use crate::topology::{self, Binding, NodeId, SysfsTopology, Topology, Unpopulated, node_list};

mod shortage;

use shortage::Shortage;
pub(crate) use shortage::would_fit;

/// Which pages to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PageChoice {
    /// The system's ordinary pages.
    Ordinary,
    /// 2 MiB hugepages, or fail.
    Huge2M,
    /// 1 GiB hugepages, or fail.
    Huge1G,
    /// The largest hugepages that are free and not mostly wasted, else ordinary pages
    /// with a [`Segment::shortfall`]. Lengths below 1 MiB get ordinary pages as a matter
    /// of course.
    #[default]
    BestEffort,
}

/// What to map.
#[derive(Clone, Debug)]
pub struct SegmentRequest {
    /// Bytes needed; rounded up to whole pages.
    pub len: usize,
    /// Which pages.
    pub page: PageChoice,
    /// The node to be on; `None` lets the kernel choose.
    pub node: Option<NodeId>,
    /// Name in messages and in `/proc/PID/maps`.
    pub name: String,
}

impl SegmentRequest {
    /// `len` bytes, best-effort pages, no particular node.
    pub fn new(name: impl Into<String>, len: usize) -> Self {
        Self {
            len,
            page: PageChoice::default(),
            node: None,
            name: name.into(),
        }
    }

    /// With these pages.
    #[must_use]
    pub fn page(mut self, page: PageChoice) -> Self {
        self.page = page;
        self
    }

    /// On this node.
    #[must_use]
    pub fn node(mut self, node: Option<NodeId>) -> Self {
        self.node = node;
        self
    }
}

struct Mapping {
    map: MmapRaw,
    base: NonNull<u8>,
    len: usize,
    page: PageSize,
    node: Option<NodeId>,
    fd: Option<OwnedFd>,
    fd_offset: u64,
    name: String,
    shortfall: Option<String>,
    warnings: Vec<String>,
    // Behind the map and the file.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

// `MmapRaw` is Send + Sync: it owns address space and gives no reference into it. `base`
// is a copy of its pointer, so Mapping needs (and has) the same.
#[allow(unsafe_code)]
// SAFETY: see above; all access goes through `foreign` or a buffer's owner.
unsafe impl Send for Mapping {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A mapping, shared by its clones and windows.
#[derive(Clone)]
pub struct Segment {
    inner: Arc<Mapping>,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.inner.name)
            .field("len", &self.inner.len)
            .field("page", &self.inner.page)
            .field("node", &self.inner.node)
            .finish_non_exhaustive()
    }
}

impl Segment {
    /// Maps, binds and populates memory, zeroed.
    ///
    /// # Errors
    /// Nothing is kept on any of them: [`MemoryError::NoHugepages`],
    /// [`MemoryError::PageSizeUnsupported`], [`MemoryError::OutOfMemory`],
    /// [`MemoryError::CgroupLimit`], [`MemoryError::NoSuchNode`],
    /// [`MemoryError::OutOfRange`] (length 0 or beyond the address space),
    /// [`MemoryError::Os`].
    pub fn map(request: &SegmentRequest) -> Result<Self, MemoryError> {
        match request.node {
            Some(_) => Self::map_on(request, topology::current().as_ref()),
            // Nothing to bind, so counters are enough.
            None => Self::map_on(request, &SysfsTopology::this_system()),
        }
    }

    /// As [`Segment::map`], on a given topology.
    ///
    /// # Errors
    /// As [`Segment::map`].
    pub fn map_on(request: &SegmentRequest, topology: &dyn Topology) -> Result<Self, MemoryError> {
        let max = isize::MAX as usize - HUGE_1G;
        if request.len == 0 || request.len > max {
            return Err(MemoryError::OutOfRange {
                what: "segment length",
                given: request.len as u64,
                min: 1,
                max: max as u64,
                remedy: String::new(),
            });
        }
        if let Some(node) = request.node {
            let nodes = topology.nodes();
            if !nodes.contains(&node) {
                return Err(MemoryError::NoSuchNode {
                    node,
                    allowed: node_list(&nodes),
                });
            }
        }
        match request.page {
            PageChoice::Ordinary => map_pages(request, PageSize::ordinary(), topology),
            PageChoice::Huge2M => map_pages(request, PageSize::HUGE_2M, topology),
            PageChoice::Huge1G => map_pages(request, PageSize::HUGE_1G, topology),
            PageChoice::BestEffort => best_effort(request, topology),
        }
        .map(|inner| Self {
            inner: Arc::new(inner),
        })
    }

    /// Maps `len` bytes at `offset` of a file that was passed to us: shared memory, a
    /// region of a VFIO device. Nothing is populated.
    ///
    /// # Errors
    /// [`MemoryError::Misaligned`] when `offset` is not a multiple of the page size,
    /// [`MemoryError::FileTooShort`] (touching what a file does not have would be a
    /// SIGBUS), [`MemoryError::OutOfRange`] for length 0, [`MemoryError::Os`].
    pub fn from_fd(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, MemoryError> {
        Self::from_owned_fd(fd, offset, len, None)
    }

    /// As [`from_fd`](Self::from_fd), for a file that somebody else must keep usable: `owner` is let
    /// go of when the last clone and window of the segment is.
    ///
    /// # Errors
    /// As there.
    pub fn from_owned_fd(
        fd: OwnedFd,
        offset: u64,
        len: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, MemoryError> {
        let what = || format!("{len} bytes at {offset:#x} of a received file");
        let stat = nix::sys::stat::fstat(&fd).map_err(|e| MemoryError::os("fstat", what(), e))?;
        let page = page_size_of(&fd);
        if offset % page.bytes() as u64 != 0 {
            return Err(MemoryError::Misaligned {
                what: "mapping offset",
                offset,
                align: page.bytes(),
            });
        }
        let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let end = offset.checked_add(len as u64);
        if regular && end.is_none_or(|end| end > size) {
            return Err(MemoryError::FileTooShort {
                offset,
                len: len as u64,
                size,
            });
        }
        let map_len = page
            .round_up(len)
            .filter(|n| *n != 0 && *n <= isize::MAX as usize)
            .ok_or(MemoryError::OutOfRange {
                what: "mapping length",
                given: len as u64,
                min: 1,
                max: isize::MAX as u64,
                remedy: String::new(),
            })?;
        let map = MmapOptions::new()
            .offset(offset)
            .len(map_len)
            .map_raw(fd.as_raw_fd())
            .map_err(|e| MemoryError::os("mmap", what(), e))?;
        let mut warnings = Vec::new();
        if regular && !is_sealed(&fd) {
            warnings.push("the file's owner can shrink it under us (no F_SEAL_SHRINK)".into());
        }
        let mut mapping = Mapping::new(map, page, "received".into())?;
        mapping.len = len;
        mapping.fd = Some(fd);
        mapping.fd_offset = offset;
        mapping.warnings = warnings;
        mapping._owner = owner;
        Ok(Self {
            inner: Arc::new(mapping),
        })
    }

    /// Reserves address space: private, readable and writable, without any page behind
    /// it until touched, and not counted against the overcommit limit.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] for length 0, [`MemoryError::Os`].
    pub fn reserve(len: usize) -> Result<Self, MemoryError> {
        let page = PageSize::ordinary();
        let whole = page
            .round_up(len)
            .filter(|n| *n != 0 && *n <= isize::MAX as usize)
            .ok_or(MemoryError::OutOfRange {
                what: "reservation length",
                given: len as u64,
                min: 1,
                max: isize::MAX as u64,
                remedy: String::new(),
            })?;
        Self::private(whole, page, "reserved").map(|inner| Self {
            inner: Arc::new(inner),
        })
    }

    /// Private memory, nothing behind it until touched.
    fn private(len: usize, page: PageSize, name: &str) -> Result<Mapping, MemoryError> {
        let mut options = MmapOptions::new();
        options.len(len);
        if !cfg!(miri) {
            options.no_reserve_swap();
        }
        let map = options
            .map_anon()
            .map_err(|e| MemoryError::os("mmap", format!("{name}, {len} bytes"), e))?;
        Mapping::new(MmapRaw::from(map), page, name.into())
    }

    /// Bytes that can be used.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Never true: a segment has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// The pages under it.
    pub fn page_size(&self) -> PageSize {
        self.inner.page
    }

    /// The node that it is bound to.
    pub fn node(&self) -> Option<NodeId> {
        self.inner.node
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The file behind it, for passing to another process; `None` for a reservation.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd.as_ref().map(AsFd::as_fd)
    }

    /// Where in that file the segment starts, in bytes.
    pub fn fd_offset(&self) -> u64 {
        self.inner.fd_offset
    }

    /// Address of the first byte, for giving to a kernel or an address table.
    pub fn address(&self) -> usize {
        self.inner.base.as_ptr() as usize
    }

    /// Why [`PageChoice::BestEffort`] ended on ordinary pages: what it costs and the
    /// command that mends it.
    pub fn shortfall(&self) -> Option<&str> {
        self.inner.shortfall.as_deref()
    }

    /// What went less well than asked, without being an error (memory not bound in a
    /// container, a received file that can shrink).
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The window of the whole segment.
    pub fn whole(&self) -> Window {
        Window::whole(self.clone())
    }

    /// A window of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn window(&self, offset: usize, len: usize) -> Result<Window, MemoryError> {
        Window::new(self.clone(), offset, len)
    }

    /// True for two handles of one mapping.
    pub fn same_mapping(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.inner.base
    }
}

impl Mapping {
    fn new(map: MmapRaw, page: PageSize, name: String) -> Result<Self, MemoryError> {
        let base = NonNull::new(map.as_mut_ptr()).ok_or_else(|| {
            MemoryError::os("mmap", name.clone(), std::io::Error::from(Errno::EFAULT))
        })?;
        Ok(Self {
            base,
            len: map.len(),
            map,
            page,
            node: None,
            fd: None,
            fd_offset: 0,
            name,
            shortfall: None,
            warnings: Vec::new(),
            _owner: None,
        })
    }
}

/// Below this, best effort does not spend a hugepage.
const WORTH_HUGE: usize = 1 << 20;

fn best_effort(request: &SegmentRequest, topology: &dyn Topology) -> Result<Mapping, MemoryError> {
    if request.len < WORTH_HUGE {
        return map_pages(request, PageSize::ordinary(), topology);
    }
    // 1 GiB pages only where at most an eighth is wasted.
    let wasted = request.len.wrapping_neg() & (HUGE_1G - 1);
    let sizes: &[PageSize] = if wasted <= request.len / 8 {
        &[PageSize::HUGE_1G, PageSize::HUGE_2M]
    } else {
        &[PageSize::HUGE_2M]
    };
    let mut reason = None;
    for &page in sizes {
        match map_pages(request, page, topology) {
            Ok(mapping) => return Ok(mapping),
            Err(e) => reason = Some(e),
        }
    }
    let mut mapping = map_pages(request, PageSize::ordinary(), topology)?;
    mapping.shortfall = reason.map(|e| {
        format!(
            "{e} (going on with {} pages: more TLB misses, up to twice the cycles per packet)",
            PageSize::ordinary()
        )
    });
    Ok(mapping)
}

fn map_pages(
    request: &SegmentRequest,
    page: PageSize,
    topology: &dyn Topology,
) -> Result<Mapping, MemoryError> {
    let shortage = Shortage {
        request,
        page,
        topology,
    };
    let len = page.round_up(request.len).ok_or(MemoryError::OutOfRange {
        what: "segment length",
        given: request.len as u64,
        min: 1,
        max: isize::MAX as u64,
        remedy: String::new(),
    })?;
    shortage.check(len)?;
    if cfg!(miri) {
        // The interpreter has no memfd; memory that nobody shares will do.
        return Segment::private(len, page, &request.name);
    }

    let fd = create(request, page, len).map_err(|(call, e)| match e {
        Errno::EINVAL | Errno::ENODEV if page.is_huge() && call == "memfd_create" => {
            shortage.unsupported()
        }
        e => MemoryError::os(call, format!("{:?}, {len} bytes", request.name), e),
    })?;
    let map = MmapOptions::new()
        .len(len)
        .map_raw(fd.as_raw_fd())
        .map_err(|e| shortage.explain(len, "mmap", e))?;
    let mut mapping = Mapping::new(map, page, request.name.clone())?;
    if let Some(node) = request.node {
        if topology.is_this_system() {
            match topology.bind_memory(&Unpopulated::new(&mapping.map), node) {
                Binding::Bound => mapping.node = Some(node),
                Binding::Refused(why) => mapping.warnings.push(format!(
                    "{:?} is not bound to node {node}: {why}",
                    request.name
                )),
            }
        } else {
            mapping.node = Some(node);
        }
    }
    allocate(&fd, len).map_err(|e| shortage.explain(len, "fallocate", e.into()))?;
    populate(&mapping.map).map_err(|e| shortage.explain(len, "madvise", e))?;
    // Packet memory in a core dump helps nobody; refusal costs nothing.
    drop(mapping.map.advise(Advice::DontDump));
    mapping.fd = Some(fd);
    Ok(mapping)
}

fn create(
    request: &SegmentRequest,
    page: PageSize,
    len: usize,
) -> Result<OwnedFd, (&'static str, Errno)> {
    let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    if page.is_huge() {
        flags |= MFdFlags::MFD_HUGETLB;
        flags |= match page.bytes() {
            HUGE_1G => MFdFlags::MFD_HUGE_1GB,
            HUGE_2M => MFdFlags::MFD_HUGE_2MB,
            _ => MFdFlags::empty(),
        };
    }
    // The kernel's limit is 249 bytes, without zeros.
    let name: String = request
        .name
        .chars()
        .map(|c| if c.is_ascii_graphic() { c } else { '_' })
        .take(249)
        .collect();
    let fd =
        nix::sys::memfd::memfd_create(name.as_str(), flags).map_err(|e| ("memfd_create", e))?;
    let size = libc::off_t::try_from(len).map_err(|_| ("ftruncate", Errno::EFBIG))?;
    nix::unistd::ftruncate(&fd, size).map_err(|e| ("ftruncate", e))?;
    // Whoever gets the descriptor must not be able to pull pages from under us.
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    nix::fcntl::fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|e| ("F_ADD_SEALS", e))?;
    Ok(fd)
}

fn allocate(fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| Errno::EFBIG)?;
    loop {
        match nix::fcntl::fallocate(fd, FallocateFlags::empty(), 0, len) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

fn populate(map: &MmapRaw) -> std::io::Result<()> {
    match map.advise(Advice::PopulateWrite) {
        // Kernels before 5.14: the pages exist already, only the page tables fill later.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

fn page_size_of(fd: &OwnedFd) -> PageSize {
    nix::sys::statfs::fstatfs(fd)
        .ok()
        .filter(|s| s.filesystem_type() == nix::sys::statfs::HUGETLBFS_MAGIC)
        .and_then(|s| usize::try_from(s.block_size()).ok())
        .and_then(PageSize::from_bytes)
        .unwrap_or_else(PageSize::ordinary)
}

fn is_sealed(fd: &OwnedFd) -> bool {
    nix::fcntl::fcntl(fd, FcntlArg::F_GET_SEALS)
        .is_ok_and(|s| SealFlag::from_bits_truncate(s).contains(SealFlag::F_SEAL_SHRINK))
}
