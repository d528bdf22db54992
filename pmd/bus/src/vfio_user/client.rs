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

mod capabilities;
mod config_space;
mod link;
mod message;
mod region;
mod socket;

use crate::local::{limits, register_window};
use crate::{
    BusError, DmaDomain, DmaLimits, DmaSpace, Function, Identity, Interrupt, Iova, MappedWindow,
    Registers, Trap,
};
use config_space::ConfigSpace;
use link::Link;
use message::{Request, command, irq_set};
use pollux_mempool::Window;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer may take. Longer than a device may take to let go of memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// MSI-X has 2,048 vectors at most (PCI Local Bus 3.0, 6.8.2).
const MAX_VECTORS: u32 = 2048;

/// Index of MSI-X among the interrupt kinds of a PCI device (`linux/vfio.h`).
const MSIX: u32 = 2;

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
    let config = ConfigSpace::new(Arc::clone(&link), region::size(&link, region::CONFIG)?)?;
    let (vendor, product) = config.ids()?;
    let (size, windows) = region::registers(&link)?;
    let vectors = vectors(&link, device.irq_kinds)?;
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
        can_reset: device.can_reset,
        domain: DmaDomain::new(Box::new(space)),
        trap: Arc::new(RegisterTrap(Arc::clone(&link))),
        config,
        link,
    }))
}

/// What is believed of DEVICE_GET_INFO's answer.
struct DeviceInfo {
    can_reset: bool,
    irq_kinds: u32,
}

fn device_info(link: &Link) -> Result<DeviceInfo, BusError> {
    const WHAT: &str = "the device's description";
    const RESET: u32 = 1 << 0;
    const PCI: u32 = 1 << 1;
    let question = Request::new().u32(16).u32(0).u32(0).u32(0);
    let answer = link.call(WHAT, command::DEVICE_GET_INFO, &question, &[], 16..=16)?;
    let (flags, regions, irq_kinds) = (answer.u32(4), answer.u32(8), answer.u32(12));
    if flags & PCI == 0 {
        return Err(link.nonsense(WHAT, "it is no PCI device".to_owned()));
    }
    // Regions 0 to 8 have fixed meanings for a PCI device; some servers leave the last (VGA) out.
    if regions <= region::CONFIG {
        let text = format!("{regions} regions, a PCI device has at least 8");
        return Err(link.nonsense(WHAT, text));
    }
    Ok(DeviceInfo {
        can_reset: flags & RESET != 0,
        irq_kinds,
    })
}

fn vectors(link: &Link, irq_kinds: u32) -> Result<usize, BusError> {
    const WHAT: &str = "the device's interrupts";
    const EVENTFD: u32 = 1 << 0;
    if irq_kinds <= MSIX {
        return Ok(0);
    }
    let question = Request::new().u32(16).u32(0).u32(MSIX).u32(0);
    let answer = link.call(WHAT, command::DEVICE_GET_IRQ_INFO, &question, &[], 16..=16)?;
    let (flags, index, count) = (answer.u32(4), answer.u32(8), answer.u32(12));
    if index != MSIX || count > MAX_VECTORS {
        let text = format!("{count} vectors of kind {index}; at most {MAX_VECTORS} of kind {MSIX}");
        return Err(link.nonsense(WHAT, text));
    }
    if count != 0 && flags & EVENTFD == 0 {
        return Err(link.nonsense(WHAT, "its MSI-X takes no eventfds".to_owned()));
    }
    Ok(count as usize)
}

/// Trapped registers.
struct RegisterTrap(Arc<Link>);

impl Trap for RegisterTrap {
    fn load(&self, offset: u64, bytes: &mut [u8]) {
        if region::load(&self.0, region::REGISTERS, offset, bytes).is_err() {
            // What a load from a pulled card gives.
            bytes.fill(0xff);
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        region::post(&self.0, region::REGISTERS, offset, bytes);
    }
}

struct Space {
    link: Arc<Link>,
    limits: DmaLimits,
}

/// Readable and writable by the device (DMA_MAP's flags).
const READ_WRITE: u32 = 0b11;

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
        let offset = segment.fd_offset() + memory.segment_offset() as u64;
        let question = Request::new().u32(32).u32(READ_WRITE);
        let question = question.u64(offset).u64(iova.0).u64(memory.len() as u64);
        self.link
            .call("a mapping", command::DMA_MAP, &question, &[fd], 0..=0)
            .map(drop)
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        const WHAT: &str = "an unmapping";
        let question = Request::new().u32(24).u32(0).u64(iova.0).u64(len);
        // Some servers repeat the request in their answer, some do not.
        match self
            .link
            .call(WHAT, command::DMA_UNMAP, &question, &[], 0..=24)
        {
            Ok(answer)
                if answer.len() == 24 && (answer.u64(8), answer.u64(16)) != (iova.0, len) =>
            {
                let text = format!(
                    "{:#x}+{:#x} unmapped in place of {iova}+{len:#x}",
                    answer.u64(8),
                    answer.u64(16)
                );
                Err(self.link.nonsense(WHAT, text))
            }
            Ok(_) => Ok(()),
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
    fn join(&self, first: u32, interrupts: &[Interrupt]) -> Result<(), BusError> {
        let fds: Vec<BorrowedFd<'_>> = interrupts.iter().map(AsFd::as_fd).collect();
        let question = Request::new()
            .u32(20)
            .u32(irq_set::EVENTFDS | irq_set::TRIGGER)
            .u32(MSIX)
            .u32(first)
            .u32(interrupts.len() as u32);
        self.link
            .call(
                "interrupts",
                command::DEVICE_SET_IRQS,
                &question,
                &fds,
                0..=0,
            )
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
        if count > self.vectors {
            return Err(BusError::Vectors {
                asked: count,
                there: self.vectors,
            });
        }
        self.disable_interrupts()?;
        let interrupts = (0..count)
            .map(|_| Interrupt::new())
            .collect::<Result<Vec<_>, _>>()?;
        let mut first = 0;
        for part in interrupts.chunks(self.link.fds_per_message()) {
            if let Err(refused) = self.join(first, part) {
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
        let question = Request::new()
            .u32(20)
            .u32(irq_set::NO_DATA | irq_set::TRIGGER)
            .u32(MSIX)
            .u32(0)
            .u32(0);
        self.link
            .call(
                "interrupts off",
                command::DEVICE_SET_IRQS,
                &question,
                &[],
                0..=0,
            )
            .map(drop)
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
            .call(
                "a reset",
                command::DEVICE_RESET,
                &Request::new(),
                &[],
                0..=0,
            )
            .map(drop)?;
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
