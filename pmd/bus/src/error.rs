//! What can go wrong between a driver and the function it wants to reach.

use crate::Iova;
use pollux_mempool::MemoryError;

/// Every failure of this crate. Each message says what was asked, what is there, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// A register window reaches past the region, or mixes mapped and trapped pages.
    #[error(
        "register window {offset:#x}+{len:#x} is not inside one {what} of the {size:#x}-byte region; ask for a window that lies in one"
    )]
    Window {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Which kind of area was looked for.
        what: &'static str,
        /// Size of the whole region.
        size: u64,
    },
    /// A register access that is misaligned or outside its window.
    #[error(
        "register access of {width} bytes at {offset:#x} does not fit the {len:#x}-byte window or is not aligned to its width"
    )]
    Access {
        /// Offset inside the window.
        offset: u64,
        /// Bytes accessed.
        width: usize,
        /// Length of the window.
        len: u64,
    },
    /// No device address is left for a mapping of this size.
    #[error(
        "no device address left for {len:#x} bytes aligned to {align:#x} below the IOMMU's {width} bits ({mapped} mappings present); map fewer or smaller segments"
    )]
    IovaExhausted {
        /// Bytes asked for.
        len: u64,
        /// Alignment asked for.
        align: u64,
        /// Address width of the IOMMU.
        width: u32,
        /// Mappings present.
        mapped: usize,
    },
    /// The IOMMU accepts no more mappings.
    #[error(
        "the DMA address space holds {limit} mappings and takes no more; use larger pages (1 GiB instead of 2 MiB) or raise vfio_iommu_type1's dma_entry_limit"
    )]
    MapLimit {
        /// The limit.
        limit: usize,
    },
    /// A mapping that overlaps one that is there.
    #[error("device addresses {iova}+{len:#x} overlap a mapping that is there")]
    Overlap {
        /// First address.
        iova: Iova,
        /// Bytes.
        len: u64,
    },
    /// An unmap that is not exactly one mapping.
    #[error(
        "device addresses {iova}+{len:#x} are not one whole mapping; unmap what was mapped, never a part"
    )]
    NotMapped {
        /// First address.
        iova: Iova,
        /// Bytes.
        len: u64,
    },
    /// A device that did not let go of memory in time.
    #[error(
        "the device still touches {iova}+{len:#x} {millis} ms after it was told to stop; the memory stays mapped, reset the device"
    )]
    NotQuiescent {
        /// First address.
        iova: Iova,
        /// Bytes.
        len: u64,
        /// Time waited.
        millis: u64,
    },
    /// More interrupt vectors than the function has.
    #[error("{asked} interrupt vectors asked for, the function has {there}; use at most {there}")]
    Vectors {
        /// Asked for.
        asked: usize,
        /// Present.
        there: usize,
    },
    /// The function is held by another driver.
    #[error("the function {name} is in use by another driver; close that one first")]
    InUse {
        /// The function's name.
        name: String,
    },
    /// Nobody can be reached at a socket's path.
    #[error("no device at {path}: {source}; {remedy}", path = .path.display())]
    Unreachable {
        /// The path.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The other process is gone or talks nonsense.
    #[error("the device's process does not answer ({what}): {source}")]
    Peer {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The device refused a request of the bus protocol.
    #[error("the device refused {what}: {reason}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
    /// No PCI function has this address.
    #[error(
        "there is no PCI function {address}; lspci -D -d 15b3: lists the adapters that are here"
    )]
    NoFunction {
        /// The address.
        address: String,
    },
    /// A function that another driver has.
    #[error(
        "{address} is bound to {driver}, not to vfio-pci; scripts/host bind {address} changes that (its network interface disappears meanwhile)"
    )]
    NotBound {
        /// The address.
        address: String,
        /// The driver, or that there is none.
        driver: String,
    },
    /// A function that no IOMMU stands before.
    #[error(
        "{address} is in no IOMMU group; switch VT-d or AMD-Vi on in the BIOS and boot Linux with intel_iommu=on (or amd_iommu=on)"
    )]
    NoIommu {
        /// The address.
        address: String,
    },
    /// A group that holds functions of other drivers.
    #[error(
        "IOMMU group {group} cannot be given to user space while it holds {culprits}; bind those to vfio-pci too, or unbind them"
    )]
    GroupNotViable {
        /// The group's number.
        group: u32,
        /// Addresses and drivers.
        culprits: String,
    },
    /// More memory than this user may lock.
    #[error(
        "mapping {len} bytes for the device passes the limit of {limit} bytes of locked memory; raise it (ulimit -l unlimited, or memlock in /etc/security/limits.conf)"
    )]
    LockedMemory {
        /// Bytes of this mapping.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel refused a request about a VFIO device.
    #[error("{what}: {source}; {remedy}")]
    Vfio {
        /// What was being done.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// Mapped memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl BusError {
    /// An operating-system error with what was being done.
    pub(crate) fn os(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |errno| Self::Os {
            what,
            source: errno.into(),
        }
    }
}
