//! Page sizes: the firmware's, the system's, and those of hugepages.

use std::fmt;
use std::sync::OnceLock;

/// Bytes in one page as the adapter's firmware counts them (4 KiB, whatever the CPU's
/// page size is; MANAGE_PAGES and the page lists of queue contexts use this unit).
pub const FIRMWARE_PAGE: usize = 4096;

/// Size of a 2 MiB hugepage in bytes.
pub const HUGE_2M: usize = 2 << 20;
/// Size of a 1 GiB hugepage in bytes.
pub const HUGE_1G: usize = 1 << 30;

/// Bytes in an ordinary page of this system (4 KiB on x86-64; 4, 16 or 64 KiB on arm64).
pub fn system_page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| n.is_power_of_two())
            .unwrap_or(4096)
    })
}

/// The size of the pages under a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(usize);

impl PageSize {
    /// 2 MiB hugepages.
    pub const HUGE_2M: Self = Self(HUGE_2M);
    /// 1 GiB hugepages.
    pub const HUGE_1G: Self = Self(HUGE_1G);

    /// Ordinary pages of this system.
    pub fn ordinary() -> Self {
        Self(system_page_size())
    }

    /// A page size read from the kernel; `None` unless it is a power of two.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        bytes.is_power_of_two().then_some(Self(bytes))
    }

    /// Bytes in one page.
    pub const fn bytes(self) -> usize {
        self.0
    }

    /// True for pages larger than the system's ordinary ones.
    pub fn is_huge(self) -> bool {
        self.0 > system_page_size()
    }

    /// `len` rounded up to whole pages; `None` when that exceeds the address space.
    pub const fn round_up(self, len: usize) -> Option<usize> {
        match len.checked_add(self.0 - 1) {
            Some(n) => Some(n & !(self.0 - 1)),
            None => None,
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}
