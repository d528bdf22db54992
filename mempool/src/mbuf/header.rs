//! The metadata of a packet buffer: one hot cache line, one cold one.
//!
//! Hot lines of a pool form one array, cold lines another, data rooms a third; so a
//! burst touches consecutive hot lines, and no cache set is favoured. The device sees
//! data rooms only: metadata lies in a segment of its own.
#![allow(unsafe_code)] // headers are reached by pointer; see `Raw`

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::external::ExternalBuffer;

/// The hot line. Which thread may write it: the one that owns the buffer; `state`,
/// `iova` and `lkey` are atomics because others may too.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// First byte of the buffer (the headroom starts there).
    pub base: NonNull<u8>,
    /// Device address of that byte.
    pub iova: AtomicU64,
    /// Next segment of the packet.
    pub next: Option<Raw>,
    /// [`State`] fields in one word, so that one comparison tells a plain buffer.
    pub state: AtomicU64,
    /// Key under which the device knows the chunk.
    pub lkey: AtomicU32,
    /// Bytes in all segments (meaningful in the first).
    pub pkt_len: u32,
    /// Where data starts, from `base`.
    pub data_off: u16,
    /// Bytes of data in this segment.
    pub data_len: u16,
    pub port: u16,
    pub queue: u16,
    pub packet_type: u32,
    pub rss_hash: u32,
    pub flags: u32,
    pub vlan_tci: u16,
    /// Process-wide number of the registered memory that the data lies in.
    pub region: u16,
}

const _: () = assert!(size_of::<Header>() == 64);

/// The cold line: written when a buffer is attached, and for what few packets need.
#[repr(C, align(64))]
pub(crate) struct Cold {
    /// Debug builds: tells a free buffer from one in use.
    pub cookie: AtomicU64,
    /// Memory that is not the pool's.
    pub external: Option<Arc<ExternalBuffer>>,
    /// The buffer whose data this header shows.
    pub owner: Option<Raw>,
    pub timestamp: u64,
    pub tx: TxOffload,
    pub mark: u32,
    pub vlan_outer: u16,
    pub chunk: u16,
    /// Number of the buffer in its pool.
    pub index: u32,
}

const _: () = assert!(size_of::<Cold>() == 64);

/// What the device shall compute for a packet to send: header lengths in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TxOffload {
    /// Ethernet header with its tags.
    pub l2_len: u8,
    /// Bytes of L4 header.
    pub l4_len: u8,
    /// Bytes of L3 header.
    pub l3_len: u16,
    /// Payload of each segment that the device shall cut; 0 for none.
    pub tso_segsz: u16,
    /// Outer L2 and L3 of a tunnel, in bytes.
    pub outer_l2_len: u8,
    /// Outer L3 header, in bytes.
    pub outer_l3_len: u8,
}

/// Fields of [`Header::state`], from bit 0: references to the data (16), segments (8),
/// attachment (8), pool (16), bytes from `base` that may be used (16).
pub(crate) struct State;

impl State {
    pub const REF: u64 = 1;
    pub const SEG: u64 = 1 << 16;
    /// The header shows another buffer's data.
    pub const INDIRECT: u64 = 1 << 24;
    /// The header shows memory that is not the pool's.
    pub const EXTERNAL: u64 = 2 << 24;
    pub const ATTACHED: u64 = 0xff << 24;

    /// A buffer as it lies in its pool: one reference, one segment, nothing attached.
    #[inline(always)]
    pub const fn plain(pool: u16, buf_len: u16) -> u64 {
        Self::REF | Self::SEG | (pool as u64) << 32 | (buf_len as u64) << 48
    }

    /// The same pool and length, plain.
    #[inline(always)]
    pub const fn made_plain(state: u64) -> u64 {
        state >> 32 << 32 | Self::REF | Self::SEG
    }

    #[inline(always)]
    pub const fn refs(state: u64) -> u16 {
        state as u16
    }

    #[inline(always)]
    pub const fn segments(state: u64) -> u8 {
        (state >> 16) as u8
    }

    #[inline(always)]
    pub const fn pool(state: u64) -> u16 {
        (state >> 32) as u16
    }

    #[inline(always)]
    pub const fn buf_len(state: u64) -> u16 {
        (state >> 48) as u16
    }

    #[inline(always)]
    pub const fn is_plain(state: u64) -> bool {
        state as u32 == (Self::REF | Self::SEG) as u32
    }
}

/// A buffer without an owner's guarantees: what rings, caches and chains hold.
///
/// Invariant: points to a header of a live pool. A pool's memory stays mapped until all
/// its buffers are home, so whoever holds a `Raw` of a buffer that is not home may read
/// its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Raw(pub NonNull<Header>);

// SAFETY: a number by itself; what may be done with the header is the owner's business.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    #[inline(always)]
    pub fn ptr(self) -> *mut Header {
        self.0.as_ptr()
    }

    #[inline(always)]
    pub fn state_word(&self) -> &AtomicU64 {
        // SAFETY: the header is mapped (invariant), and only ever used as an atomic.
        unsafe { &(*self.0.as_ptr()).state }
    }

    /// The state; acquire, so that what a former sharer read is over when its reference
    /// is seen gone.
    #[inline(always)]
    pub fn state(&self) -> u64 {
        self.state_word().load(Ordering::Acquire)
    }
}
