//! The driver's end of vfio-user: a [`Function`] whose device another program plays, behind a
//! `SOCK_STREAM` Unix socket.
//!
//! Layouts are those of the vfio-user protocol, version 0.1, and of `linux/vfio.h`: region 0 holds
//! the registers, region 7 the configuration space, interrupt index 2 is MSI-X. Register pages that
//! the device offers for mapping (sparse areas) are plain memory afterwards. The rest is messages: a
//! load waits for its answer, a store is posted with the protocol's no-reply flag, as a bus posts
//! it. Memory of the driver travels as files, interrupts as eventfds, so traffic crosses no socket.
//!
//! # Lifecycle
//!
//! [`connect`] agrees on a version, looks the device over and switches its memory decoding on.
//! Dropping the function closes the sending half of the socket and waits until the device closes
//! the other one, which it does when it has forgotten the driver's memory. A program that died has
//! closed its end too. A device that is silent or answers nonsense has promised nothing: what it
//! could reach stays mapped for the life of the process, and loads read all ones, as from a card
//! that was pulled.
//!
//! # Trust
//!
//! The other end may be broken or hostile. Message ids, kinds, lengths, offsets, counts and
//! descriptors are checked where they arrive; register files must be sealed against shrinking,
//! because touching a page that its owner took away kills the process that touches it. Requests of
//! the device's own (it may ask for memory by message) are not served: all memory has a file here.
//!
//! # Why not the client of the crate `vfio_user`
//!
//! As of 0.1.7 it reads answers without looking at their error flag, so an unmapping that was refused
//! passes for done and memory is freed under a device; it waits without a deadline, takes lengths
//! from the other end for allocations and assertions, and has no posted store.

mod answer;
mod capabilities;
mod config_space;
mod link;
mod region;
mod socket;

use super::message::{DeviceInfo, DmaMap, DmaUnmap, IrqInfo, IrqSet, command};
use crate::local::{limits, register_window};
use crate::{
    BusError, DmaDomain, DmaLimits, DmaSpace, Function, Identity, Interrupt, Iova, MappedWindow,
    Registers, Trap,
};
use config_space::ConfigSpace;
use link::Link;
use pollux_mempool::Window;
use region::REGISTERS;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ,
    VFIO_DMA_MAP_FLAG_WRITE, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use zerocopy::IntoBytes;

/// How long an answer may take. Longer than a device may take to let go of memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// MSI-X has 2,048 vectors at most (PCI Local Bus 3.0, 6.8.2).
const MAX_VECTORS: u32 = 2048;

const MSIX: u32 = VFIO_PCI_MSIX_IRQ_INDEX;

/// Connects a driver to the device that a program serves on the vfio-user socket at `path`.
///
/// # Errors
/// [`BusError::Unreachable`] when nobody can be reached there, [`BusError::InUse`],
/// [`BusError::Peer`] when the program is gone, silent or talks nonsense, [`BusError::Refused`].
pub fn connect(path: impl AsRef<Path>) -> Result<Arc<dyn Function>, BusError> {
    connect_within(path, PATIENCE)
}

/// As [`connect`], with a deadline for every answer of the connection's life.
///
/// # Errors
/// As [`connect`].
pub fn connect_within(
    path: impl AsRef<Path>,
    patience: Duration,
) -> Result<Arc<dyn Function>, BusError> {
    let path = path.as_ref();
    let stream = socket::dial(path, Instant::now() + patience)?;
    connect_on(stream, &path.display().to_string(), patience)
}

/// As [`connect_within`], on a socket that is connected already; `name` is what the function is
/// called.
///
/// # Errors
/// As [`connect`].
pub fn connect_on(
    stream: UnixStream,
    name: &str,
    patience: Duration,
) -> Result<Arc<dyn Function>, BusError> {
    let mut link = Link::new(stream, patience);
    let peer = capabilities::negotiate(&link, name)?;
    link.limit(peer.max_msg_fds, peer.max_data_xfer_size);
    let link = Arc::new(link);

    let device = device_info(&link)?;
    let config = ConfigSpace::new(
        Arc::clone(&link),
        region::size(&link, VFIO_PCI_CONFIG_REGION_INDEX)?,
    )?;
    let (vendor, product) = config.ids()?;
    let (size, windows) = region::registers(&link)?;
    let vectors = vectors(&link, device.irqs)?;
    // A function whose memory decoding is off does not answer at its registers.
    config.set_memory_decoding()?;

    let limits = DmaLimits {
        page_sizes: peer.page_sizes,
        max_mappings: peer.max_dma_maps,
        ..limits()
    };
    let space = Space {
        link: Arc::clone(&link),
        limits,
    };
    Ok(Arc::new(VfioUserFunction {
        identity: Identity {
            name: name.to_owned(),
            vendor,
            device: product,
            // By its nature: whatever it hands on to, a program answers each load.
            emulated: true,
            // Where a program's threads run is not for the protocol to say.
            node: None,
        },
        size,
        vectors,
        windows,
        can_reset: device.flags & VFIO_DEVICE_FLAGS_RESET != 0,
        domain: DmaDomain::new(Box::new(space)),
        trap: Arc::new(RegisterTrap(Arc::clone(&link))),
        config,
        link,
    }))
}

fn device_info(link: &Link) -> Result<DeviceInfo, BusError> {
    const WHAT: &str = "the device's description";
    let question = DeviceInfo {
        argsz: size_of::<DeviceInfo>() as u32,
        flags: 0,
        regions: 0,
        irqs: 0,
    };
    let command = command::DEVICE_GET_INFO;
    let info: DeviceInfo = link.ask(WHAT, command, question.as_bytes())?;
    if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
        return Err(link.nonsense(WHAT, "it is no PCI device".to_owned()));
    }
    // Regions 0 to 8 have fixed meanings for a PCI device; some servers leave the last (VGA) out.
    if info.regions <= VFIO_PCI_CONFIG_REGION_INDEX {
        let text = format!("{} regions, a PCI device has at least 8", info.regions);
        return Err(link.nonsense(WHAT, text));
    }
    Ok(info)
}

fn vectors(link: &Link, irq_kinds: u32) -> Result<usize, BusError> {
    const WHAT: &str = "the device's interrupts";
    if irq_kinds <= MSIX {
        return Ok(0);
    }
    let question = IrqInfo {
        argsz: size_of::<IrqInfo>() as u32,
        flags: 0,
        index: MSIX,
        count: 0,
    };
    let command = command::DEVICE_GET_IRQ_INFO;
    let info: IrqInfo = link.ask(WHAT, command, question.as_bytes())?;
    let (index, count) = (info.index, info.count);
    if index != MSIX || count > MAX_VECTORS {
        let text = format!("{count} vectors of kind {index}; at most {MAX_VECTORS} of kind {MSIX}");
        return Err(link.nonsense(WHAT, text));
    }
    if count != 0 && info.flags & VFIO_IRQ_INFO_EVENTFD == 0 {
        return Err(link.nonsense(WHAT, "its MSI-X takes no eventfds".to_owned()));
    }
    Ok(count as usize)
}

/// Trapped registers.
struct RegisterTrap(Arc<Link>);

impl Trap for RegisterTrap {
    fn load(&self, offset: u64, bytes: &mut [u8]) {
        if region::load(&self.0, REGISTERS, offset, bytes).is_err() {
            // What a load from a pulled card gives.
            bytes.fill(0xff);
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        region::post(&self.0, REGISTERS, offset, bytes);
    }
}

struct Space {
    link: Arc<Link>,
    limits: DmaLimits,
}

impl DmaSpace for Space {
    fn limits(&self) -> DmaLimits {
        self.limits.clone()
    }

    fn map(&self, iova: Iova, memory: &Window) -> Result<(), BusError> {
        let segment = memory.segment();
        let fd = segment.fd().ok_or_else(|| BusError::Refused {
            what: "a mapping",
            reason: format!("segment {:?} has no file to pass on", segment.name()),
        })?;
        let question = DmaMap {
            argsz: size_of::<DmaMap>() as u32,
            flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
            offset: segment.fd_offset() + memory.segment_offset() as u64,
            address: iova.0,
            size: memory.len() as u64,
        };
        let question = question.as_bytes();
        self.link
            .call("a mapping", command::DMA_MAP, question, &[fd], 0..=0)
            .map(drop)
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        const WHAT: &str = "an unmapping";
        let question = DmaUnmap {
            argsz: size_of::<DmaUnmap>() as u32,
            flags: 0,
            address: iova.0,
            size: len,
        };
        // Some servers repeat the request in their answer, some do not.
        let lengths = 0..=size_of::<DmaUnmap>();
        let bytes = question.as_bytes();
        match self
            .link
            .call(WHAT, command::DMA_UNMAP, bytes, &[], lengths)
        {
            Ok(answer) => match answer.read::<DmaUnmap>(0) {
                Some(done) if (done.address, done.size) != (iova.0, len) => {
                    let (address, size) = (done.address, done.size);
                    let text = format!("{address:#x}+{size:#x} in place of {iova}+{len:#x}");
                    Err(self.link.nonsense(WHAT, text))
                }
                _ => Ok(()),
            },
            // A program that closed its end has forgotten all that it had of us.
            Err(BusError::Peer { .. }) if self.link.is_closed() => Ok(()),
            Err(refused) => Err(refused),
        }
    }
}

struct VfioUserFunction {
    identity: Identity,
    size: u64,
    vectors: usize,
    windows: Vec<MappedWindow>,
    can_reset: bool,
    domain: Arc<DmaDomain>,
    trap: Arc<dyn Trap>,
    config: ConfigSpace,
    link: Arc<Link>,
}

impl VfioUserFunction {
    /// Joins vectors from `first` on to eventfds; none given disables all.
    fn join(
        &self,
        what: &'static str,
        first: u32,
        interrupts: &[Interrupt],
    ) -> Result<(), BusError> {
        let fds: Vec<BorrowedFd<'_>> = interrupts.iter().map(AsFd::as_fd).collect();
        let data = match fds.is_empty() {
            true => VFIO_IRQ_SET_DATA_NONE,
            false => VFIO_IRQ_SET_DATA_EVENTFD,
        };
        let question = IrqSet {
            argsz: size_of::<IrqSet>() as u32,
            flags: data | VFIO_IRQ_SET_ACTION_TRIGGER,
            index: MSIX,
            start: first,
            count: fds.len() as u32,
        };
        let (command, question) = (command::DEVICE_SET_IRQS, question.as_bytes());
        self.link
            .call(what, command, question, &fds, 0..=0)
            .map(drop)
    }
}

impl Function for VfioUserFunction {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn register_size(&self) -> u64 {
        self.size
    }

    fn registers(&self, offset: u64, len: u64) -> Result<Registers, BusError> {
        register_window(&self.windows, &self.trap, self.size, offset, len)
    }

    fn domain(&self) -> &Arc<DmaDomain> {
        &self.domain
    }

    fn vectors(&self) -> usize {
        self.vectors
    }

    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError> {
        let interrupts = Interrupt::several(count, self.vectors)?;
        self.disable_interrupts()?;
        let mut first = 0;
        for part in interrupts.chunks(self.link.fds_per_message()) {
            if let Err(refused) = self.join("interrupts", first, part) {
                // Half of them enabled is a state that nobody asked for; if this fails as well,
                // the first refusal says why.
                drop(self.disable_interrupts());
                return Err(refused);
            }
            first += part.len() as u32;
        }
        Ok(interrupts)
    }

    fn disable_interrupts(&self) -> Result<(), BusError> {
        if self.vectors == 0 {
            return Ok(());
        }
        self.join("interrupts off", 0, &[])
    }

    fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        self.config.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), BusError> {
        if !self.can_reset {
            return Err(BusError::Refused {
                what: "a reset",
                reason: "the device said that it cannot be reset".to_owned(),
            });
        }
        let saved = self.config.command()?;
        self.link
            .call("a reset", command::DEVICE_RESET, &[], &[], 0..=0)?;
        // A reset clears it, and what resets a function puts it back, as the kernel does.
        self.config.set_command(saved)
    }
}

impl Drop for VfioUserFunction {
    fn drop(&mut self) {
        self.link.finish();
    }
}

/// A descriptor of our own for what another one refers to.
fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, BusError> {
    fd.try_clone().map_err(|source| BusError::Os {
        what: "dup",
        source,
    })
}
