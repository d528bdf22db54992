//! The in-process backing: driver and device model in one address space.
//!
//! Mapped register pages are shared memory, trapped ones are calls that carry bytes, the DMA
//! address space is a [`HostMemory`] table, interrupts are eventfds.

use crate::{
    BusError, Device, DmaDomain, DmaLimits, DmaSpace, Function, Host, HostMemory, Identity,
    Interrupt, InterruptLines, Iova, MappedWindow, Registers, Trap,
};
use pollux_mempool::Window;
use std::sync::Arc;

/// Limits like those of a common server IOMMU, so that a driver meets them early.
pub(crate) fn limits() -> DmaLimits {
    // The x86 interrupt window, which every real domain reserves.
    let interrupts = 0xfee0_0000..0xfef0_0000;
    DmaLimits {
        address_bits: 48,
        reserved: vec![interrupts],
        page_sizes: 0xffff_ffff_ffff_f000,
        max_mappings: 65_535,
    }
}

struct Space(Arc<HostMemory>);

impl DmaSpace for Space {
    fn limits(&self) -> DmaLimits {
        limits()
    }

    fn map(&self, iova: Iova, memory: &Window) -> Result<(), BusError> {
        self.0.map(iova, memory.clone())
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        self.0.unmap(iova, len)
    }
}

struct DeviceTrap(Arc<dyn Device>);

impl Trap for DeviceTrap {
    fn load(&self, offset: u64, bytes: &mut [u8]) {
        self.0.load(offset, bytes);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.0.store(offset, bytes);
    }
}

struct LocalFunction {
    device: Arc<dyn Device>,
    trap: Arc<dyn Trap>,
    identity: Identity,
    windows: Vec<MappedWindow>,
    size: u64,
    memory: Arc<HostMemory>,
    lines: Arc<InterruptLines>,
    domain: Arc<DmaDomain>,
}

/// Connects a driver to a device model of this process.
///
/// # Errors
/// [`BusError::InUse`] while another driver is connected.
pub fn connect(device: Arc<dyn Device>) -> Result<Arc<dyn Function>, BusError> {
    let memory = HostMemory::new();
    let lines = Arc::new(InterruptLines::new(device.vectors()));
    let identity = device.identity();
    let host = Host {
        memory: Arc::clone(&memory),
        interrupts: Arc::clone(&lines),
    };
    if !device.connect(host) {
        return Err(BusError::InUse {
            name: identity.name,
        });
    }
    Ok(Arc::new(LocalFunction {
        trap: Arc::new(DeviceTrap(Arc::clone(&device))),
        windows: device.mapped_windows(),
        size: device.register_size(),
        domain: DmaDomain::new(Box::new(Space(Arc::clone(&memory)))),
        identity,
        memory,
        lines,
        device,
    }))
}

/// The window on a register region of `size` bytes with these mapped parts.
pub(crate) fn register_window(
    windows: &[MappedWindow],
    trap: &Arc<dyn Trap>,
    size: u64,
    offset: u64,
    len: u64,
) -> Result<Registers, BusError> {
    let refuse = |what| BusError::Window {
        offset,
        len,
        what,
        size,
    };
    let end = offset
        .checked_add(len)
        .filter(|end| *end <= size)
        .ok_or(refuse("part"))?;
    for mapped in windows {
        let first = mapped.offset;
        let last = first + mapped.memory.len() as u64;
        if offset >= first && end <= last {
            let inner = mapped
                .memory
                .window((offset - first) as usize, len as usize)?;
            return Ok(Registers::mapped(inner));
        }
        if offset < last && end > first {
            return Err(refuse("mapped or trapped area"));
        }
    }
    Ok(Registers::trapped(Arc::clone(trap), offset, len))
}

impl Function for LocalFunction {
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
        self.lines.len()
    }

    fn enable_interrupts(&self, count: usize) -> Result<Vec<Interrupt>, BusError> {
        let interrupts = Interrupt::several(count, self.lines.len())?;
        self.disable_interrupts()?;
        for (vector, interrupt) in interrupts.iter().enumerate() {
            self.lines.join(vector, Some(interrupt.clone()));
        }
        Ok(interrupts)
    }

    fn disable_interrupts(&self) -> Result<(), BusError> {
        for vector in 0..self.lines.len() {
            self.lines.join(vector, None);
        }
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        self.memory.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), BusError> {
        self.device.reset();
        Ok(())
    }
}

impl Drop for LocalFunction {
    fn drop(&mut self) {
        self.device.disconnect();
    }
}
