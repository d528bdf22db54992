//! PCI configuration space of a served function.
//!
//! Laid out as on ConnectX cards: type 0 header; PCI Express at 0x60, VPD at 0x48, MSI-X at 0x9c,
//! the vendor-specific capability at 0xc0, power management at 0x40; extended: the serial number at
//! 0x100. Register offsets and bits are those of the PCI specifications, named as in the kernel's
//! `linux/pci_regs.h`.
//!
//! Each byte has a mask of bits that a store can change; that alone makes BAR sizing work. Some
//! stores do something besides: they come back as a [`Change`], for the session to carry out.
//!
//! The vendor-specific capability is the gateway through which mlx5 software dumps a card's
//! configuration space registers: its semaphore and its counter work, so that it can be locked and
//! unlocked; every address space behind it answers "not supported" (status 0), as on a card whose
//! firmware has closed it.

use crate::Identity;
use crate::device::PciIdentity;

/// Bytes of the space.
pub const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;

const COMMAND_MEMORY: u8 = 1 << 1;
const COMMAND_MASTER: u8 = 1 << 2;

const PM: usize = 0x40;
const VPD: usize = 0x48;
const EXPRESS: usize = 0x60;
const MSIX: usize = 0x9c;
const VENDOR: usize = 0xc0;
const SERIAL: usize = 0x100;

const DEVCTL: usize = EXPRESS + 0x08;
const FLR: u8 = 0x80;
const MSIX_CONTROL: usize = MSIX + 0x02;
const MSIX_ENABLE: u8 = 0x80;
const MSIX_MASK: u8 = 0x40;

const VPD_ADDRESS: usize = VPD + 0x02;
const VPD_DATA: usize = VPD + 0x04;
const VPD_DONE: u8 = 0x80;

/// Length of the vendor-specific capability, and its registers.
const VENDOR_LEN: u8 = 0x18;
const VENDOR_COUNTER: usize = VENDOR + 0x08;
const VENDOR_SEMAPHORE: usize = VENDOR + 0x0c;
const VENDOR_ADDRESS: usize = VENDOR + 0x10;
/// In the address register: whose turn it is, and that the access failed.
const VENDOR_FLAG: u32 = 1 << 31;
const VENDOR_SYNDROME: u32 = 1 << 30;

/// Where MSI-X tables are: their own BAR, so that no register and no doorbell page is near them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptBar {
    /// Bytes of the BAR, a power of two.
    pub size: u64,
    /// Where the pending bits begin; the table is at 0.
    pub pending: u64,
}

impl InterruptBar {
    /// The number of the BAR.
    pub const INDEX: u32 = 2;

    /// Room for so many vectors, 1 to 2,048.
    pub fn new(vectors: usize) -> Self {
        let table = (vectors.max(1) as u64 * 16).next_multiple_of(0x1000);
        Self {
            size: (table + 0x1000).next_power_of_two(),
            pending: table,
        }
    }
}

/// What a store did besides changing bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bus mastering was switched.
    pub bus_master: Option<bool>,
    /// A function-level reset was asked for.
    pub reset: bool,
    /// MSI-X was switched off.
    pub interrupts_off: bool,
}

/// See the module.
pub struct ConfigSpace {
    bytes: Vec<u8>,
    /// Bits that a store changes.
    writable: Vec<u8>,
    /// State after reset.
    initial: Vec<u8>,
    vpd: Vec<u8>,
    counter: u32,
}

impl ConfigSpace {
    /// The space of a function with a register region of `registers` bytes (a power of two) and so
    /// many vectors.
    pub fn new(identity: &Identity, pci: &PciIdentity, registers: u64, vectors: usize) -> Self {
        let mut space = Self {
            bytes: vec![0; SIZE],
            writable: vec![0; SIZE],
            initial: Vec::new(),
            vpd: vpd(pci),
            counter: 0,
        };
        space.header(identity, pci, registers, vectors);
        space.power();
        space.express(pci);
        space.interrupts(vectors);
        space.vendor();
        space.set16(VPD, 0x03 | (MSIX as u16) << 8);
        space.may(VPD_ADDRESS, &0x7fff_u16.to_le_bytes());
        if let Some(serial) = pci.serial {
            // Id 3, version 1, the last of the list.
            space.set32(SERIAL, 0x0001_0003);
            space.set32(SERIAL + 4, serial as u32);
            space.set32(SERIAL + 8, (serial >> 32) as u32);
        }
        space.initial.clone_from(&space.bytes);
        space
    }

    fn header(&mut self, identity: &Identity, pci: &PciIdentity, registers: u64, vectors: usize) {
        self.set16(0x00, identity.vendor);
        self.set16(0x02, identity.device);
        // Memory, bus master, parity and system error reporting, INTx disable.
        self.may(COMMAND, &0x0546_u16.to_le_bytes());
        // A list of capabilities.
        self.set16(STATUS, 0x0010);
        self.set32(0x08, u32::from(pci.revision) | pci.class << 8);
        self.may(0x0c, &[0xff]); // cache line size: kept, means nothing
        // 64 bits, prefetchable.
        self.set32(BAR0, 0x0c);
        let mask = !(registers.max(16) - 1);
        self.may(BAR0, &(mask as u32 & !0xf).to_le_bytes());
        self.may(BAR0 + 4, &((mask >> 32) as u32).to_le_bytes());
        // 32 bits, not prefetchable.
        let mask = !(InterruptBar::new(vectors).size as u32 - 1);
        self.may(BAR2, &mask.to_le_bytes());
        self.set16(0x2c, pci.subsystem_vendor);
        self.set16(0x2e, pci.subsystem);
        self.set(0x34, &[EXPRESS as u8]);
        self.may(0x3c, &[0xff]); // interrupt line: firmware's notebook; there is no pin
    }

    fn power(&mut self) {
        // The last of the list.
        self.set16(PM, 0x0001);
        // Version 3, no PME.
        self.set16(PM + 2, 0x0003);
        // No soft reset: D3hot loses nothing.
        self.set16(PM + 4, 0x0008);
        self.may(PM + 4, &[0x03]);
    }

    fn express(&mut self, pci: &PciIdentity) {
        self.set16(EXPRESS, 0x10 | (VPD as u16) << 8);
        // Version 2, endpoint.
        self.set16(EXPRESS + 0x02, 0x0002);
        // Payload up to 512 bytes, extended tags, role-based errors, FLR.
        self.set32(EXPRESS + 0x04, 0x1000_8022);
        // Relaxed ordering, no snoop, read requests of 512 bytes.
        self.set16(DEVCTL, 0x2810);
        // All but auxiliary power and phantom functions; the reset bit reads as zero.
        self.may(DEVCTL, &0x79ff_u16.to_le_bytes());
        let link = u32::from(pci.link_speed & 0xf) | u32::from(pci.link_width & 0x3f) << 4;
        self.set32(EXPRESS + 0x0c, link);
        self.may(EXPRESS + 0x10, &[0xc3]); // ASPM, common clock, extended synch
        // Up at full speed and width, common clock.
        self.set16(EXPRESS + 0x12, link as u16 | 0x1000);
        // Completion timeout can be switched off.
        self.set32(EXPRESS + 0x24, 0x0000_0010);
        self.may(EXPRESS + 0x28, &[0x10]);
        // All speeds up to the link's.
        let speeds = ((1_u32 << pci.link_speed.clamp(1, 7)) - 1) << 1;
        self.set32(EXPRESS + 0x2c, speeds);
        self.set16(EXPRESS + 0x30, u16::from(pci.link_speed));
        self.may(EXPRESS + 0x30, &[0x0f]);
    }

    fn interrupts(&mut self, vectors: usize) {
        self.set16(MSIX, 0x11 | (VENDOR as u16) << 8);
        self.set16(MSIX_CONTROL, vectors.clamp(1, 2048) as u16 - 1);
        self.may(MSIX_CONTROL + 1, &[MSIX_ENABLE | MSIX_MASK]);
        self.set32(MSIX + 4, InterruptBar::INDEX);
        let pending = InterruptBar::new(vectors).pending as u32;
        self.set32(MSIX + 8, pending | InterruptBar::INDEX);
    }

    fn vendor(&mut self) {
        self.set16(VENDOR, 0x09 | (PM as u16) << 8);
        self.set(VENDOR + 2, &[VENDOR_LEN]);
        // The address space that was chosen; the status above it stays "not supported".
        self.may(VENDOR + 4, &0xffff_u32.to_le_bytes());
        self.may(VENDOR + 0x14, &[0xff; 4]);
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.bytes.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn set16(&mut self, at: usize, value: u16) {
        self.set(at, &value.to_le_bytes());
    }

    fn set32(&mut self, at: usize, value: u32) {
        self.set(at, &value.to_le_bytes());
    }

    fn may(&mut self, at: usize, mask: &[u8]) {
        if let Some(to) = self.writable.get_mut(at..at + mask.len()) {
            to.copy_from_slice(mask);
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn get32(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at..at + 4);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    }

    /// Whether the function answers at its BARs.
    pub fn memory_enabled(&self) -> bool {
        self.byte(COMMAND) & COMMAND_MEMORY != 0
    }

    /// Puts everything back to what it was at power-on.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.initial);
    }

    /// Reads into `bytes`; false when they are not inside the space.
    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(range) = inside(offset, bytes.len()) else {
            return false;
        };
        if touches(&range, VENDOR_COUNTER, 4) {
            // Never twice the same, and never zero, which is a free semaphore.
            self.counter = self.counter.wrapping_add(1).max(1);
            self.set32(VENDOR_COUNTER, self.counter);
        }
        match self.bytes.get(range) {
            Some(from) => bytes.copy_from_slice(from),
            None => return false,
        }
        true
    }

    /// Stores `bytes`; `None` when they are not inside the space.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Change> {
        let range = inside(offset, bytes.len())?;
        let (master, msix) = (self.master(), self.msix());
        let semaphore = self.get32(VENDOR_SEMAPHORE);
        for (at, new) in range.clone().zip(bytes) {
            let mask = self.writable.get(at).copied().unwrap_or(0);
            if let Some(byte) = self.bytes.get_mut(at) {
                *byte = *byte & !mask | new & mask;
            }
        }
        let stored = |at: usize| {
            at.checked_sub(range.start)
                .and_then(|at| bytes.get(at))
                .copied()
        };
        let stored32 = |at: usize| {
            let parts = [
                stored(at)?,
                stored(at + 1)?,
                stored(at + 2)?,
                stored(at + 3)?,
            ];
            Some(u32::from_le_bytes(parts))
        };
        if let Some(high) = stored(VPD_ADDRESS + 1) {
            self.vital(high & VPD_DONE != 0);
        }
        if let Some(owner) = stored32(VENDOR_SEMAPHORE) {
            // Taken by who comes first, freed by a zero.
            if semaphore == 0 || owner == 0 {
                self.set32(VENDOR_SEMAPHORE, owner);
            }
        }
        if let Some(address) = stored32(VENDOR_ADDRESS) {
            // Done at once, and failed: no address space is open.
            let done = (address ^ VENDOR_FLAG) | VENDOR_SYNDROME;
            self.set32(VENDOR_ADDRESS, done);
        }
        let reset = stored(DEVCTL + 1).is_some_and(|high| high & FLR != 0);
        Some(Change {
            bus_master: (self.master() != master).then(|| self.master()),
            reset,
            interrupts_off: msix && !self.msix(),
        })
    }

    fn master(&self) -> bool {
        self.byte(COMMAND) & COMMAND_MASTER != 0
    }

    fn msix(&self) -> bool {
        self.byte(MSIX_CONTROL + 1) & MSIX_ENABLE != 0
    }

    /// A VPD access: a read brings four bytes, a store is dropped. Either is done at once, which
    /// the flag says: one after a read, zero after a store.
    fn vital(&mut self, store: bool) {
        let high = self.byte(VPD_ADDRESS + 1) & !VPD_DONE;
        if store {
            return self.set(VPD_ADDRESS + 1, &[high]);
        }
        let at = usize::from(u16::from_le_bytes([self.byte(VPD_ADDRESS), high]));
        let mut data = [0; 4];
        for (to, from) in data.iter_mut().zip(self.vpd.iter().skip(at)) {
            *to = *from;
        }
        self.set(VPD_DATA, &data);
        self.set(VPD_ADDRESS + 1, &[high | VPD_DONE]);
    }
}

fn inside(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(len).filter(|end| *end <= SIZE)?;
    Some(start..end)
}

fn touches(range: &std::ops::Range<usize>, at: usize, len: usize) -> bool {
    range.start < at + len && at < range.end
}

/// Vital product data: the product's name, the read-only fields, their checksum, and the end.
fn vpd(pci: &PciIdentity) -> Vec<u8> {
    const NAME: u8 = 0x82;
    const READ_ONLY: u8 = 0x90;
    const END: u8 = 0x78;
    let tag = |out: &mut Vec<u8>, tag: u8, data: &[u8]| {
        out.push(tag);
        out.extend_from_slice(&(data.len() as u16).to_le_bytes());
        out.extend_from_slice(data);
    };
    let clipped = |text: &str, most: usize| text.bytes().take(most).collect::<Vec<u8>>();
    let mut fields = Vec::new();
    for (key, text) in &pci.vital {
        let text = clipped(text, 255);
        fields.extend_from_slice(key);
        fields.push(text.len() as u8);
        fields.extend_from_slice(&text);
    }
    // RV: one byte that makes the sum of everything up to it zero.
    fields.extend_from_slice(b"RV\x01\0");
    let mut out = Vec::new();
    tag(&mut out, NAME, &clipped(&pci.product, 0x1000));
    tag(&mut out, READ_ONLY, &fields);
    let sum = out.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(last) = out.last_mut() {
        *last = sum.wrapping_neg();
    }
    out.push(END);
    out
}
