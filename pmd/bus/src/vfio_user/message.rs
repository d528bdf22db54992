//! Messages of the vfio-user protocol (version 0.1), as both ends see them.
//!
//! A message is a 16-byte [`Header`] and a body whose shape depends on the command. Numbers are in
//! native order, both ends run on one machine. Command numbers and body layouts are those of the
//! protocol's specification; flags and indexes within them are the kernel's, from `linux/vfio.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest run of register or configuration bytes in one message that this side takes.
pub const MAX_TRANSFER: usize = 1 << 16;

/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Longest message that is taken.
pub const MAX_MESSAGE: usize = size_of::<Header>() + size_of::<RegionAccess>() + MAX_TRANSFER;

/// Protocol version.
pub const MAJOR: u16 = 0;
/// See [`MAJOR`].
pub const MINOR: u16 = 1;

/// Command numbers.
pub mod command {
    /// [`super::Version`] and a JSON text of capabilities, ended by a zero.
    pub const VERSION: u16 = 1;
    /// [`super::DmaMap`], with or without a descriptor.
    pub const DMA_MAP: u16 = 2;
    /// [`super::DmaUnmap`].
    pub const DMA_UNMAP: u16 = 3;
    /// [`super::DeviceInfo`].
    pub const DEVICE_GET_INFO: u16 = 4;
    /// [`super::RegionInfo`], and in the answer capabilities and a descriptor.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// [`super::IrqInfo`].
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// [`super::IrqSet`], with descriptors or a byte for each vector.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// [`super::RegionAccess`]; the answer has the bytes.
    pub const REGION_READ: u16 = 9;
    /// [`super::RegionAccess`] and the bytes.
    pub const REGION_WRITE: u16 = 10;
    /// Nothing.
    pub const DEVICE_RESET: u16 = 13;
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// Which bits tell a command from an answer.
    pub const TYPE: u32 = 0xf;
    /// A command.
    pub const COMMAND: u32 = 0;
    /// An answer.
    pub const REPLY: u32 = 1;
    /// The sender wants no answer.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The answer says no; [`super::Header::error`] says why.
    pub const ERROR: u32 = 1 << 5;
}

/// How every message begins.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// Chosen by the question, repeated by the answer.
    pub id: u16,
    /// See [`command`].
    pub command: u16,
    /// Bytes of the whole message, this header included.
    pub size: u32,
    /// See [`flag`].
    pub flags: u32,
    /// An errno, in an answer that says no.
    pub error: u32,
}

/// Body of [`command::VERSION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
}

/// Body of [`command::DMA_MAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_DMA_MAP_FLAG_*`.
    pub flags: u32,
    /// Where the memory begins in the descriptor's file.
    pub offset: u64,
    /// Device address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Body of [`command::DMA_UNMAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_DMA_UNMAP_FLAG_*`.
    pub flags: u32,
    /// First device address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Body of [`command::DEVICE_GET_INFO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_DEVICE_FLAGS_*`.
    pub flags: u32,
    /// Regions.
    pub regions: u32,
    /// Kinds of interrupts.
    pub irqs: u32,
}

/// Body of [`command::DEVICE_GET_REGION_INFO`]; capabilities may follow in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    /// Room for the answer's body, and in the answer what it would need.
    pub argsz: u32,
    /// `VFIO_REGION_INFO_FLAG_*`.
    pub flags: u32,
    /// Which region.
    pub index: u32,
    /// Where the capabilities begin, counted from this structure.
    pub cap_offset: u32,
    /// Bytes of the region.
    pub size: u64,
    /// Where the region's first byte is in the file of the descriptor that comes along.
    pub offset: u64,
}

/// A region's list of areas that can be mapped: capability header, count, and then
/// [`SparseArea`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseAreas {
    /// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
    pub id: u16,
    /// Version 1.
    pub version: u16,
    /// Where the next capability begins, zero for none.
    pub next: u32,
    /// Areas that follow.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// One area that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseArea {
    /// Offset in the region.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Body of [`command::DEVICE_GET_IRQ_INFO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_IRQ_INFO_*`.
    pub flags: u32,
    /// Which kind.
    pub index: u32,
    /// Vectors of that kind.
    pub count: u32,
}

/// Body of [`command::DEVICE_SET_IRQS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure and what follows it.
    pub argsz: u32,
    /// `VFIO_IRQ_SET_*`.
    pub flags: u32,
    /// Which kind.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Vectors.
    pub count: u32,
}

/// Body of [`command::REGION_READ`] and [`command::REGION_WRITE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in the region.
    pub offset: u64,
    /// Which region.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

impl Header {
    /// The header of a command with a body of `body` bytes.
    pub fn question(id: u16, command: u16, body: usize) -> Self {
        Self {
            id,
            command,
            size: size_of::<Self>().saturating_add(body) as u32,
            flags: flag::COMMAND,
            error: 0,
        }
    }

    /// The header of the answer to this, with a body of `body` bytes.
    pub fn answer(&self, body: usize) -> Self {
        Self {
            flags: flag::REPLY,
            ..Self::question(self.id, self.command, body)
        }
    }

    /// The header of the answer that says no.
    pub fn refusal(&self, errno: u32) -> Self {
        Self {
            flags: flag::REPLY | flag::ERROR,
            error: errno,
            ..Self::question(self.id, self.command, 0)
        }
    }

    /// Whether this is an answer.
    pub fn is_answer(&self) -> bool {
        self.flags & flag::TYPE == flag::REPLY
    }
}
