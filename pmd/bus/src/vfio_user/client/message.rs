//! Messages as they are on the wire: a 16-byte header, fields behind it, all in the byte order of
//! the machine (both ends run on it).

use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands that a driver's end sends (vfio-user, "Commands").
pub(super) mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

/// Flags of DEVICE_SET_IRQS (`VFIO_IRQ_SET_*` in `linux/vfio.h`).
pub(super) mod irq_set {
    pub const NO_DATA: u32 = 1 << 0;
    pub const EVENTFDS: u32 = 1 << 2;
    pub const TRIGGER: u32 = 1 << 5;
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    /// Chosen by who asks, repeated in the answer.
    pub id: u16,
    pub command: u16,
    /// Bytes of the whole message, this header included.
    pub size: u32,
    pub flags: u32,
    /// An errno, in an answer whose error flag is set; 0 says nothing.
    pub error: u32,
}

impl Header {
    pub const BYTES: usize = size_of::<Self>();

    /// Values of the flags' type field (bits 3:0).
    pub const REPLY: u32 = 1;
    const TYPE: u32 = 0xf;
    /// Flag: the sender wants no answer.
    pub const NO_REPLY: u32 = 1 << 4;
    /// Flag: the command failed.
    pub const ERROR: u32 = 1 << 5;

    pub fn is_reply(&self) -> bool {
        self.flags & Self::TYPE == Self::REPLY
    }

    pub fn is_error(&self) -> bool {
        self.flags & Self::ERROR != 0
    }
}

const _: () = assert!(Header::BYTES == 16);

/// The fields behind the header of a question, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Request(Vec<u8>);

impl Request {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What is behind the header of an answer, by offset, and the descriptors that came with it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Answer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes from `at` on; none behind the end.
    pub fn tail(&self, at: usize) -> &[u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    /// A field of an answer whose length was checked; 0 where there is none.
    pub fn u16(&self, at: usize) -> u16 {
        self.array(at).map_or(0, u16::from_ne_bytes)
    }

    /// As [`u16`](Self::u16).
    pub fn u32(&self, at: usize) -> u32 {
        self.array(at).map_or(0, u32::from_ne_bytes)
    }

    /// As [`u16`](Self::u16).
    pub fn u64(&self, at: usize) -> u64 {
        self.array(at).map_or(0, u64::from_ne_bytes)
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let end = at.checked_add(N)?;
        self.bytes.get(at..end)?.try_into().ok()
    }
}
