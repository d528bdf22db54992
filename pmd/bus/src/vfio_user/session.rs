//! One client's session: what each command does. Every number from the client is checked here.

use super::config_space::{self, Change, ConfigSpace, InterruptBar};
use super::memory::GuestMemory;
use super::message::{
    DeviceInfo, DmaMap, DmaUnmap, IrqInfo, IrqSet, MAX_TRANSFER, RegionAccess, RegionInfo,
    SparseArea, SparseAreas,
};
use super::server::ServeOptions;
use crate::{BusError, Device, Host, HostMemory, Interrupt, InterruptLines, MappedWindow};
use nix::errno::Errno;
use pollux_mempool::Window;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ,
    VFIO_DMA_MAP_FLAG_WRITE, VFIO_DMA_UNMAP_FLAG_ALL, VFIO_IRQ_INFO_EVENTFD,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_TYPE_MASK, VFIO_IRQ_SET_DATA_BOOL,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_IRQ_SET_DATA_TYPE_MASK,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Kinds of interrupts that are described. Those after MSI-X (errors, requests to release) are not
/// there, and QEMU takes that without a word; described as empty they would make it warn.
const IRQS: u32 = VFIO_PCI_MSIX_IRQ_INDEX + 1;

/// Why a command is refused.
#[derive(Debug)]
pub(super) struct No {
    pub errno: Errno,
    /// Empty where there is nothing to say.
    pub why: String,
}

impl No {
    pub fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self {
            errno,
            why: why.into(),
        }
    }

    /// The answer of a kernel to who asks for something that this device does not have. Honest
    /// clients ask so: nothing for a log.
    pub fn absent() -> Self {
        Self::new(Errno::EINVAL, "")
    }
}

impl From<BusError> for No {
    fn from(error: BusError) -> Self {
        let errno = match &error {
            BusError::Overlap { .. } => Errno::EEXIST,
            BusError::MapLimit { .. } => Errno::ENOSPC,
            BusError::NotQuiescent { .. } | BusError::InUse { .. } => Errno::EBUSY,
            BusError::Os { source, .. } => {
                source.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
            }
            _ => Errno::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

/// The body of an answer, in pieces, and the memory whose descriptor goes with it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub parts: Vec<Vec<u8>>,
    pub window: Option<Window>,
}

impl Answer {
    fn of<T: IntoBytes + Immutable>(body: &T) -> Self {
        Self {
            parts: vec![body.as_bytes().to_vec()],
            window: None,
        }
    }
}

/// A connected client. Dropping it disconnects the device.
pub(super) struct Session<'a> {
    device: &'a Arc<dyn Device>,
    host: Host,
    windows: Vec<MappedWindow>,
    /// The client may map these; all lie in one file, at the same distance from their place in the
    /// region.
    shared: Vec<MappedWindow>,
    /// Where the region's first byte would be in that file.
    file_offset: u64,
    config: ConfigSpace,
    memory: GuestMemory,
    registers: u64,
    bar: InterruptBar,
    /// The MSI-X table as the client wrote it. It means nothing: vectors are joined by command.
    table: Vec<u8>,
}

fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, No> {
    body_and_rest(bytes).and_then(|(body, rest)| match rest.len() {
        0 => Ok(body),
        more => Err(No::new(
            Errno::EINVAL,
            format!("a body that is {more} bytes too long"),
        )),
    })
}

fn body_and_rest<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), No> {
    T::read_from_prefix(bytes).map_err(|_| {
        No::new(
            Errno::EINVAL,
            format!(
                "a body of {} bytes, {} expected",
                bytes.len(),
                size_of::<T>()
            ),
        )
    })
}

impl<'a> Session<'a> {
    /// Lets a client in.
    pub fn begin(device: &'a Arc<dyn Device>, options: &ServeOptions) -> Result<Self, No> {
        let identity = device.identity();
        let vectors = device.vectors();
        let host = Host {
            memory: HostMemory::new(),
            interrupts: Arc::new(InterruptLines::latching(vectors)),
        };
        let windows = device.mapped_windows();
        let (shared, file_offset) = match options.trap_all {
            true => (Vec::new(), 0),
            false => mappable(&windows),
        };
        if !device.connect(host.clone()) {
            return Err(BusError::InUse {
                name: identity.name,
            }
            .into());
        }
        let registers = device.register_size().max(0x1000).next_power_of_two();
        let bar = InterruptBar::new(vectors);
        Ok(Self {
            config: ConfigSpace::new(&identity, &device.pci(), registers, vectors),
            memory: GuestMemory::new(Arc::clone(&host.memory), options.trust),
            table: vec![0; bar.pending as usize],
            device,
            host,
            windows,
            shared,
            file_offset,
            registers,
            bar,
        })
    }

    /// Whether the client has taken memory away that the device used.
    pub fn lost_memory(&self) -> bool {
        self.memory.was_taken_away()
    }

    /// Bytes of a region; zero for those that are not there.
    fn region_size(&self, index: u32) -> u64 {
        match index {
            VFIO_PCI_BAR0_REGION_INDEX => self.registers,
            InterruptBar::INDEX => self.bar.size,
            VFIO_PCI_CONFIG_REGION_INDEX => config_space::SIZE as u64,
            _ => 0,
        }
    }

    pub fn device_info(&self, bytes: &[u8]) -> Result<Answer, No> {
        let asked: DeviceInfo = body(bytes)?;
        Ok(Answer::of(&DeviceInfo {
            argsz: size_of_val(&asked) as u32,
            flags: VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
            regions: VFIO_PCI_NUM_REGIONS,
            irqs: IRQS,
        }))
    }

    pub fn region_info(&self, bytes: &[u8]) -> Result<Answer, No> {
        // Some clients send room for the answer.
        let (asked, _): (RegionInfo, _) = body_and_rest(bytes)?;
        let index = asked.index;
        if index >= VFIO_PCI_NUM_REGIONS {
            return Err(No::new(Errno::EINVAL, format!("region {index}")));
        }
        let plain = size_of::<RegionInfo>() as u32;
        if asked.argsz < plain {
            return Err(No::new(
                Errno::EINVAL,
                format!("room for {} bytes, {plain} needed", asked.argsz),
            ));
        }
        let size = self.region_size(index);
        let mut info = RegionInfo {
            argsz: plain,
            flags: 0,
            index,
            cap_offset: 0,
            size,
            offset: 0,
        };
        if size != 0 {
            info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        }
        let shared = self.shared.first();
        let Some(first) = shared.filter(|_| index == VFIO_PCI_BAR0_REGION_INDEX) else {
            return Ok(Answer::of(&info));
        };
        let areas = SparseAreas {
            id: VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16,
            version: 1,
            next: 0,
            count: self.shared.len() as u32,
            reserved: 0,
        };
        let mut capability = areas.as_bytes().to_vec();
        for window in &self.shared {
            let area = SparseArea {
                offset: window.offset,
                size: window.memory.len() as u64,
            };
            capability.extend_from_slice(area.as_bytes());
        }
        info.flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
        info.cap_offset = plain;
        info.offset = self.file_offset;
        info.argsz = plain + capability.len() as u32;
        // Without room for the list the answer says how much is needed.
        if asked.argsz < info.argsz {
            return Ok(Answer::of(&info));
        }
        Ok(Answer {
            parts: vec![info.as_bytes().to_vec(), capability],
            window: Some(first.memory.clone()),
        })
    }

    pub fn irq_info(&self, bytes: &[u8]) -> Result<Answer, No> {
        let asked: IrqInfo = body(bytes)?;
        let index = asked.index;
        if index >= IRQS {
            return Err(No::absent());
        }
        let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
        // Not NORESIZE: vectors can be joined one by one.
        Ok(Answer::of(&IrqInfo {
            argsz: size_of_val(&asked) as u32,
            flags: if msix { VFIO_IRQ_INFO_EVENTFD } else { 0 },
            index,
            count: self.vectors(index),
        }))
    }

    fn vectors(&self, index: u32) -> u32 {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => self.host.interrupts.len() as u32,
            _ => 0,
        }
    }

    pub fn set_irqs(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, No> {
        let no = |why: String| Err(No::new(Errno::EINVAL, why));
        let (set, data): (IrqSet, _) = body_and_rest(bytes)?;
        if set.index >= IRQS {
            return no(format!("interrupts of kind {}", set.index));
        }
        let there = self.vectors(set.index);
        let (start, count) = (set.start, set.count);
        if start.checked_add(count).is_none_or(|end| end > there) {
            return no(format!("vectors {start}+{count} of {there}"));
        }
        let action = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
        if action != VFIO_IRQ_SET_ACTION_TRIGGER {
            return no(format!(
                "interrupt action {action:#x}; vectors cannot be masked here"
            ));
        }
        let kind = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
        if kind != VFIO_IRQ_SET_DATA_EVENTFD && !fds.is_empty() {
            return no(format!("{} descriptors without eventfd data", fds.len()));
        }
        let vectors = start as usize..(start + count) as usize;
        let lines = &self.host.interrupts;
        match kind {
            VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => {
                for vector in vectors {
                    lines.join(vector, None);
                }
            }
            VFIO_IRQ_SET_DATA_EVENTFD => {
                if fds.len() != count as usize {
                    return no(format!("{} descriptors for {count} vectors", fds.len()));
                }
                // All or none.
                let interrupts = fds
                    .into_iter()
                    .map(Interrupt::from_fd)
                    .collect::<Result<Vec<_>, _>>()?;
                for (vector, interrupt) in vectors.zip(interrupts) {
                    lines.join(vector, Some(interrupt));
                }
            }
            VFIO_IRQ_SET_DATA_NONE if count == 0 => {
                for vector in 0..lines.len() {
                    lines.join(vector, None);
                }
            }
            VFIO_IRQ_SET_DATA_NONE => {
                for vector in vectors {
                    lines.raise(vector);
                }
            }
            VFIO_IRQ_SET_DATA_BOOL => {
                if data.len() != count as usize {
                    return no(format!("{} bytes for {count} vectors", data.len()));
                }
                for (vector, _) in vectors.zip(data).filter(|(_, raise)| **raise != 0) {
                    lines.raise(vector);
                }
            }
            other => return no(format!("interrupt data {other:#x}")),
        }
        Ok(Answer::default())
    }

    pub fn map(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, No> {
        let map: DmaMap = body(bytes)?;
        let no = |why: String| Err(No::new(Errno::EINVAL, why));
        let access = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
        if map.flags & !access != 0 {
            return no(format!("mapping flags {:#x}", map.flags));
        }
        if map.size == 0 || map.address.checked_add(map.size - 1).is_none() {
            return no(format!(
                "a mapping of {:#x} bytes at {:#x}",
                map.size, map.address
            ));
        }
        let mut fds = fds.into_iter();
        match (fds.next(), fds.len()) {
            // Not memory that can be shared: a ROM, another device's registers. The device cannot
            // reach it; whatever it aims there fails like any access outside the table.
            (None, _) => Ok(Answer::default()),
            (Some(_), more @ 1..) => no(format!("{} descriptors with a mapping", more + 1)),
            (Some(fd), 0) => {
                self.memory.map(&map, fd)?;
                Ok(Answer::default())
            }
        }
    }

    pub fn unmap(&mut self, bytes: &[u8]) -> Result<Answer, No> {
        let unmap: DmaUnmap = body(bytes)?;
        let (first, last) = if unmap.flags == VFIO_DMA_UNMAP_FLAG_ALL {
            (0, u64::MAX)
        } else if unmap.flags != 0 {
            return Err(No::new(
                Errno::EOPNOTSUPP,
                format!("unmapping flags {:#x}", unmap.flags),
            ));
        } else {
            let last = unmap.size.checked_sub(1);
            let last = last.and_then(|rest| unmap.address.checked_add(rest));
            let last = last.ok_or_else(|| {
                let (size, address) = (unmap.size, unmap.address);
                No::new(
                    Errno::EINVAL,
                    format!("an unmapping of {size:#x} bytes at {address:#x}"),
                )
            })?;
            (unmap.address, last)
        };
        self.memory.unmap(first, last)?;
        Ok(Answer::of(&unmap))
    }

    fn access(&self, access: &RegionAccess) -> Result<(), No> {
        let size = self.region_size(access.region);
        let count = u64::from(access.count);
        let inside = access
            .offset
            .checked_add(count)
            .is_some_and(|end| end <= size);
        if inside && count != 0 && count <= MAX_TRANSFER as u64 {
            return Ok(());
        }
        Err(No::new(
            Errno::EINVAL,
            format!(
                "{count} bytes at {:#x} of region {}, which has {size:#x}",
                access.offset, access.region
            ),
        ))
    }

    pub fn read(&mut self, bytes: &[u8]) -> Result<Answer, No> {
        let access: RegionAccess = body(bytes)?;
        self.access(&access)?;
        let mut data = vec![0; access.count as usize];
        match access.region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.config.read(access.offset, &mut data);
            }
            // Nobody answers: what a bus reads then.
            _ if !self.config.memory_enabled() => data.fill(0xff),
            VFIO_PCI_BAR0_REGION_INDEX => self.load(access.offset, &mut data),
            _ => self.load_table(access.offset, &mut data),
        }
        Ok(Answer {
            parts: vec![access.as_bytes().to_vec(), data],
            window: None,
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<Answer, No> {
        let (access, data): (RegionAccess, _) = body_and_rest(bytes)?;
        if data.len() as u64 != u64::from(access.count) {
            return Err(No::new(
                Errno::EINVAL,
                format!("{} bytes with a store of {}", data.len(), access.count),
            ));
        }
        self.access(&access)?;
        match access.region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                if let Some(change) = self.config.write(access.offset, data) {
                    self.change(change)?;
                }
            }
            _ if !self.config.memory_enabled() => {}
            VFIO_PCI_BAR0_REGION_INDEX => self.store(access.offset, data),
            _ => self.store_table(access.offset, data),
        }
        Ok(Answer::of(&access))
    }

    fn change(&mut self, change: Change) -> Result<(), No> {
        if change.reset {
            return self.function_reset();
        }
        if change.interrupts_off {
            self.host.interrupts.forget_latched();
        }
        if let Some(on) = change.bus_master {
            self.host.memory.set_bus_master(on)?;
        }
        Ok(())
    }

    pub fn reset(&mut self, bytes: &[u8]) -> Result<Answer, No> {
        if !bytes.is_empty() {
            return Err(No::new(Errno::EINVAL, "a reset with a body"));
        }
        self.function_reset().map(|()| Answer::default())
    }

    fn function_reset(&mut self) -> Result<(), No> {
        self.config.reset();
        self.table.fill(0);
        // First, so that nothing of what the device still does is seen after it.
        let quiet = self.host.memory.set_bus_master(false);
        self.device.reset();
        self.host.interrupts.forget_latched();
        Ok(quiet?)
    }

    /// The mapped window at `offset`, or the bytes until the next one.
    fn piece(&self, offset: u64) -> Result<(&MappedWindow, usize), u64> {
        let mut until = u64::MAX;
        for window in &self.windows {
            let into = offset.wrapping_sub(window.offset);
            if offset >= window.offset && into < window.memory.len() as u64 {
                return Ok((window, into as usize));
            }
            if window.offset > offset {
                until = until.min(window.offset);
            }
        }
        Err(until)
    }

    fn load(&self, offset: u64, data: &mut [u8]) {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let len = match self.piece(at) {
                Ok((window, into)) => rest.len().min(window.memory.len() - into),
                Err(until) => rest
                    .len()
                    .min(usize::try_from(until - at).unwrap_or(usize::MAX)),
            };
            let (part, more) = rest.split_at_mut(len);
            match self.piece(at) {
                // The window has these bytes, as was just seen.
                Ok((window, into)) => drop(window.memory.copy_out(into, part)),
                Err(_) => self.device.load(at, part),
            }
            rest = more;
            at += len as u64;
        }
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (len, window) = match self.piece(at) {
                Ok((window, into)) => {
                    let len = rest.len().min(window.memory.len() - into);
                    (len, Some((&window.memory, into)))
                }
                Err(until) => {
                    let len = usize::try_from(until - at).unwrap_or(usize::MAX);
                    (rest.len().min(len), None)
                }
            };
            let (part, more) = rest.split_at(len);
            match window {
                Some((memory, into)) => store_shared(memory, into, part),
                None => self.device.store(at, part),
            }
            rest = more;
            at += len as u64;
        }
    }

    fn load_table(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset as usize..).zip(data) {
            let pending = at.checked_sub(self.table.len());
            *byte = match pending {
                None => self.table.get(at).copied().unwrap_or(0),
                Some(octet) => (0..8).fold(0, |bits, bit| {
                    bits | u8::from(self.host.interrupts.is_latched(octet * 8 + bit)) << bit
                }),
            };
        }
    }

    fn store_table(&mut self, offset: u64, data: &[u8]) {
        for (at, new) in (offset as usize..).zip(data) {
            if let Some(byte) = self.table.get_mut(at) {
                *byte = *new;
            }
        }
    }
}

/// A store into pages that the device watches: in one piece where its width allows, as the
/// device takes a doorbell in one piece.
fn store_shared(memory: &Window, at: usize, data: &[u8]) {
    if let Ok(bytes) = <[u8; 8]>::try_from(data) {
        if let Ok(word) = memory.word64(at) {
            return word.store(u64::from_ne_bytes(bytes), Ordering::Release);
        }
    }
    if let Ok(bytes) = <[u8; 4]>::try_from(data) {
        if let Ok(word) = memory.word32(at) {
            return word.store(u32::from_ne_bytes(bytes), Ordering::Release);
        }
    }
    // The caller has found these bytes in the window.
    drop(memory.copy_in(at, data));
}

/// The windows that can be offered: those in the first one's file, at the same distance between
/// file and region. A region has one descriptor.
fn mappable(windows: &[MappedWindow]) -> (Vec<MappedWindow>, u64) {
    let place = |window: &MappedWindow| {
        let segment = window.memory.segment();
        segment.fd()?;
        (segment.fd_offset() + window.memory.segment_offset() as u64).checked_sub(window.offset)
    };
    let Some((first, offset)) = windows
        .iter()
        .find_map(|window| place(window).map(|offset| (window, offset)))
    else {
        return (Vec::new(), 0);
    };
    let segment = first.memory.segment();
    let shared = windows.iter().filter(|window| {
        window.memory.segment().same_mapping(segment) && place(window) == Some(offset)
    });
    (shared.cloned().collect(), offset)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // First, since it frees a device thread that stands still in a raise.
        for vector in 0..self.host.interrupts.len() {
            self.host.interrupts.join(vector, None);
        }
        self.device.disconnect();
    }
}
