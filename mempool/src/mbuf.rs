//! Packet buffers.
//!
//! An [`Mbuf`] is a handle of 8 bytes that owns one buffer of a [`Pool`](crate::Pool):
//! a header of one cache line and a data room elsewhere. It comes from a pool and goes
//! home when dropped, through the thread's cache. Whoever holds it is the only one who
//! may write header and data; giving it to a driver's queue gives up both, so a buffer
//! is a slice only while software owns it. Data can be shared: [`Mbuf::clone_ref`] makes
//! a second header for the same bytes, which nobody may write while both exist.
//!
//! A packet is a chain of up to [`MAX_SEGMENTS`] buffers, the first of which holds what
//! is said of the packet. Lengths and offsets are bytes and are kept inside the buffer by
//! every call. A device that writes into a buffer which it does not own is broken; then
//! the bytes read are unspecified.
#![allow(unsafe_code)] // headers and data rooms are reached by pointer

use std::fmt;
use std::mem::{ManuallyDrop, size_of};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::pool::{self, PoolInner};
use crate::raw_copy;

/// Reads a field of the header.
macro_rules! hot {
    ($self:ident.$field:ident) => {{
        // SAFETY: the header is mapped while this handle exists, and only its owner
        // writes the plain fields. No reference to the whole header is made.
        unsafe { (*$self.0.ptr()).$field }
    }};
    ($self:ident.$field:ident = $value:expr) => {{
        let value = $value;
        // SAFETY: as for reading; `&mut self` is the owner.
        unsafe { (*$self.0.ptr()).$field = value }
    }};
}

mod chain;
mod external;
mod free;
pub(crate) mod header;

pub use chain::{Segment, Segments};
pub use external::ExternalBuffer;
pub(crate) use free::{free_run, free_slow, release};
pub use header::TxOffload;
use header::{Cold, Raw, State};

/// Most segments in a packet.
pub const MAX_SEGMENTS: u16 = 255;

/// The region of memory that no pool owns.
pub const NO_REGION: u16 = u16::MAX;

/// What is known of a packet, or asked of the device, as bits of [`Mbuf::flags`].
pub mod flags {
    /// Receive: `vlan_tci` holds a tag that was stripped.
    pub const RX_VLAN_STRIPPED: u32 = 1 << 0;
    /// Receive: `rss_hash` is valid.
    pub const RX_RSS_HASH: u32 = 1 << 1;
    /// Receive: the IP header checksum is right.
    pub const RX_IP_CKSUM_GOOD: u32 = 1 << 2;
    /// Receive: the L4 checksum is right.
    pub const RX_L4_CKSUM_GOOD: u32 = 1 << 3;
    /// Receive: the IP header checksum is wrong.
    pub const RX_IP_CKSUM_BAD: u32 = 1 << 4;
    /// Receive: the L4 checksum is wrong.
    pub const RX_L4_CKSUM_BAD: u32 = 1 << 5;
    /// Receive: `mark` is valid.
    pub const RX_MARK: u32 = 1 << 6;
    /// Receive: `timestamp` is valid.
    pub const RX_TIMESTAMP: u32 = 1 << 7;
    /// Transmit: insert `vlan_tci`.
    pub const TX_VLAN: u32 = 1 << 16;
    /// Transmit: compute the IPv4 header checksum.
    pub const TX_IP_CKSUM: u32 = 1 << 17;
    /// Transmit: compute the TCP or UDP checksum.
    pub const TX_L4_CKSUM: u32 = 1 << 18;
    /// Transmit: cut into segments of `tso_segsz`.
    pub const TX_TSO: u32 = 1 << 19;
    /// Transmit: the packet is IPv6.
    pub const TX_IPV6: u32 = 1 << 20;
}

/// What a driver says of a received packet, set in one go by [`Mbuf::received`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// Port of arrival.
    pub port: u16,
    /// Queue of arrival.
    pub queue: u16,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Packet type, the driver's encoding.
    pub packet_type: u32,
    /// RSS hash.
    pub rss_hash: u32,
    /// VLAN tag that was stripped.
    pub vlan_tci: u16,
}

/// An owned packet buffer; see the module's text.
#[repr(transparent)]
pub struct Mbuf(Raw);

// The handle is 8 bytes, and so is an optional one.
const _: () = assert!(size_of::<Option<Mbuf>>() == 8);

// SAFETY: the owner moves with the handle; counters shared with other handles are
// atomics.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference header and data can only be read, and `clone_ref`
// changes atomics only.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    #[inline(always)]
    pub(crate) fn from_raw(raw: Raw) -> Self {
        Self(raw)
    }

    #[cfg(all(test, debug_assertions))]
    pub(crate) fn raw(&self) -> Raw {
        self.0
    }

    /// The header's state word.
    #[inline(always)]
    pub(crate) fn state(&self) -> u64 {
        self.0.state()
    }

    /// Gives up ownership without freeing.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> Raw {
        ManuallyDrop::new(self).0
    }

    #[inline(always)]
    fn pool_inner(&self) -> &PoolInner {
        // SAFETY: this handle's buffer is outside.
        unsafe { pool::of(State::pool(self.0.state())) }
    }

    #[inline]
    fn cold(&self) -> *mut Cold {
        self.pool_inner().cold(self.0)
    }

    /// Bytes that this segment's buffer has, headroom included.
    #[inline(always)]
    pub fn buf_len(&self) -> usize {
        usize::from(State::buf_len(self.0.state()))
    }

    /// Bytes of data in this segment.
    #[inline(always)]
    pub fn data_len(&self) -> usize {
        usize::from(hot!(self.data_len))
    }

    /// Bytes of data in all segments.
    #[inline(always)]
    pub fn pkt_len(&self) -> usize {
        hot!(self.pkt_len) as usize
    }

    /// Number of segments.
    #[inline(always)]
    pub fn nb_segs(&self) -> u16 {
        u16::from(State::segments(self.0.state()))
    }

    /// Where data starts in the buffer.
    #[inline(always)]
    pub fn data_off(&self) -> usize {
        usize::from(hot!(self.data_off))
    }

    /// Free bytes before the data.
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        self.data_off()
    }

    /// Free bytes after the data of this segment.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.buf_len()
            .saturating_sub(self.data_off() + self.data_len())
    }

    #[inline(always)]
    fn data_ptr(&self) -> *mut u8 {
        let base = hot!(self.base).as_ptr();
        // SAFETY: data_off is at most the buffer's length (kept by every call).
        unsafe { base.add(self.data_off()) }
    }

    /// The data of this segment.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // SAFETY: data_off + data_len <= buf_len, so the bytes are inside the room, which
        // stays mapped while the handle lives; mapped memory is initialised. Software
        // owns the buffer, so nobody writes; `data_mut` needs `&mut self` and no sharer.
        unsafe { std::slice::from_raw_parts(self.data_ptr(), self.data_len()) }
    }

    /// The data of this segment for writing; `None` while it is shared.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: as for `data`; no other handle shows these bytes, and this one is
        // borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data_ptr(), self.data_len()) })
    }

    /// True when no other handle shows this segment's bytes.
    #[inline]
    pub fn is_unique(&self) -> bool {
        let state = self.0.state();
        if State::refs(state) == 1 && state & State::ATTACHED == 0 {
            return true;
        }
        self.is_unique_slow(state)
    }

    #[cold]
    fn is_unique_slow(&self, state: u64) -> bool {
        if State::refs(state) != 1 {
            return false;
        }
        // SAFETY: the cold line is mapped and written by its owner only.
        let cold = unsafe { &*self.cold() };
        match (&cold.owner, &cold.external) {
            // The owner's header may be parked, with this handle as its last sharer.
            (Some(owner), None) => State::refs(owner.state()) == 1,
            (None, Some(external)) => Arc::strong_count(external) == 1,
            _ => false,
        }
    }

    /// Device address of the buffer's first byte; 0 while the chunk is not registered.
    #[inline(always)]
    pub fn iova(&self) -> u64 {
        // SAFETY: mapped; an atomic.
        unsafe { (*self.0.ptr()).iova.load(Ordering::Relaxed) }
    }

    /// Device address of the first byte of data.
    #[inline(always)]
    pub fn data_iova(&self) -> u64 {
        self.iova().wrapping_add(self.data_off() as u64)
    }

    /// Key under which the device knows this memory.
    #[inline(always)]
    pub fn lkey(&self) -> u32 {
        // SAFETY: mapped; an atomic.
        unsafe { (*self.0.ptr()).lkey.load(Ordering::Relaxed) }
    }

    /// Process-wide number of the pool chunk that the data lies in, below
    /// [`pool::MAX_REGIONS`]; [`NO_REGION`] for external memory. A driver whose keys
    /// differ from other drivers' keeps a table by it.
    #[inline(always)]
    pub fn region(&self) -> u16 {
        hot!(self.region)
    }

    /// Address of the first byte of data, for address arithmetic with a region's table.
    #[inline(always)]
    pub fn data_address(&self) -> u64 {
        self.data_ptr() as u64
    }

    /// Address of the buffer's first byte, where the headroom starts; for the same use.
    #[inline(always)]
    pub fn room_address(&self) -> u64 {
        hot!(self.base).as_ptr() as u64
    }

    /// Index of the chunk of its pool that the buffer's own room lies in.
    pub fn chunk(&self) -> u16 {
        // SAFETY: the cold line is mapped like the header, written by its owner only.
        unsafe { (*self.cold()).chunk }
    }

    /// Number of the buffer in its pool.
    pub fn index(&self) -> u32 {
        // SAFETY: the cold line is mapped like the header, written by its owner only.
        unsafe { (*self.cold()).index }
    }

    /// Where the data starts in its chunk, in bytes from the chunk's start; `None` for
    /// external memory.
    pub fn data_offset_in_chunk(&self) -> Option<usize> {
        let pool = self.pool_inner();
        pool.chunk_of_region(self.region())
            .map(|chunk| (self.data_ptr() as usize).wrapping_sub(chunk.segment.address()))
    }

    /// The pool that it goes home to.
    pub fn pool_id(&self) -> u16 {
        State::pool(self.0.state())
    }

    /// Port of arrival, or to leave by.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        hot!(self.port)
    }

    /// Sets the port.
    #[inline(always)]
    pub fn set_port(&mut self, port: u16) {
        hot!(self.port = port);
    }

    /// Queue of arrival.
    #[inline(always)]
    pub fn queue(&self) -> u16 {
        hot!(self.queue)
    }

    /// Sets the queue.
    #[inline(always)]
    pub fn set_queue(&mut self, queue: u16) {
        hot!(self.queue = queue);
    }

    /// Bits of [`flags`].
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        hot!(self.flags)
    }

    /// Sets all bits of [`flags`].
    #[inline(always)]
    pub fn set_flags(&mut self, flags: u32) {
        hot!(self.flags = flags);
    }

    /// Packet type, the driver's encoding.
    #[inline(always)]
    pub fn packet_type(&self) -> u32 {
        hot!(self.packet_type)
    }

    /// Sets the packet type.
    #[inline(always)]
    pub fn set_packet_type(&mut self, packet_type: u32) {
        hot!(self.packet_type = packet_type);
    }

    /// RSS hash, valid with [`flags::RX_RSS_HASH`].
    #[inline(always)]
    pub fn rss_hash(&self) -> u32 {
        hot!(self.rss_hash)
    }

    /// Sets the RSS hash.
    #[inline(always)]
    pub fn set_rss_hash(&mut self, hash: u32) {
        hot!(self.rss_hash = hash);
    }

    /// VLAN tag stripped or to insert.
    #[inline(always)]
    pub fn vlan_tci(&self) -> u16 {
        hot!(self.vlan_tci)
    }

    /// Sets the VLAN tag.
    #[inline(always)]
    pub fn set_vlan_tci(&mut self, tci: u16) {
        hot!(self.vlan_tci = tci);
    }

    /// Flow mark, valid with [`flags::RX_MARK`].
    pub fn mark(&self) -> u32 {
        // SAFETY: the cold line is mapped like the header, written by its owner only.
        unsafe { (*self.cold()).mark }
    }

    /// Sets the flow mark.
    pub fn set_mark(&mut self, mark: u32) {
        // SAFETY: the cold line is mapped like the header, written by its owner only; `&mut self` is the owner.
        unsafe { (*self.cold()).mark = mark }
    }

    /// Time of arrival in the device's units, valid with [`flags::RX_TIMESTAMP`].
    pub fn timestamp(&self) -> u64 {
        // SAFETY: the cold line is mapped like the header, written by its owner only.
        unsafe { (*self.cold()).timestamp }
    }

    /// Sets the time of arrival.
    pub fn set_timestamp(&mut self, time: u64) {
        // SAFETY: the cold line is mapped like the header, written by its owner only; `&mut self` is the owner.
        unsafe { (*self.cold()).timestamp = time }
    }

    /// Header lengths for transmit offloads.
    pub fn tx_offload(&self) -> TxOffload {
        // SAFETY: the cold line is mapped like the header, written by its owner only.
        unsafe { (*self.cold()).tx }
    }

    /// Sets the header lengths for transmit offloads.
    pub fn set_tx_offload(&mut self, tx: TxOffload) {
        // SAFETY: the cold line is mapped like the header, written by its owner only; `&mut self` is the owner.
        unsafe { (*self.cold()).tx = tx }
    }

    /// Makes it an empty packet of one segment: data behind the pool's headroom, no
    /// flags. Further segments are freed; an attachment stays.
    #[inline]
    pub fn reset(&mut self) {
        if self.nb_segs() != 1 {
            self.drop_tail();
        }
        self.describe(self.pool_inner().headroom(), 0, RxMeta::default());
    }

    /// As the driver sets it when the device has filled a buffer of one segment with
    /// `len` bytes behind the pool's headroom: lengths and all that is known, in one go.
    /// A length beyond the room is cut there.
    #[inline(always)]
    pub fn received(&mut self, len: u32, meta: RxMeta) {
        self.describe(self.pool_inner().headroom(), len, meta);
    }

    /// As [`Mbuf::received`], behind a headroom that the caller knows already, which
    /// saves looking at the pool.
    #[inline(always)]
    pub fn received_at(&mut self, headroom: u16, len: u32, meta: RxMeta) {
        self.describe(headroom, len, meta);
    }

    /// Sets all of the hot line that is said of a packet of one segment.
    #[inline(always)]
    pub(crate) fn describe(&mut self, headroom: u16, len: u32, meta: RxMeta) {
        let state = self.0.state();
        debug_assert!(State::segments(state) == 1, "a chain");
        let room = State::buf_len(state);
        let (headroom, len) = if u64::from(headroom) + u64::from(len) <= u64::from(room) {
            (headroom, len)
        } else {
            cut(headroom, len, room)
        };
        // The pointer is read once: nothing tells the compiler that these stores do not
        // reach the handle itself.
        let header = self.0.ptr();
        // SAFETY: the header is mapped while this handle exists, and `&mut self` is its
        // owner; headroom + len <= room.
        unsafe {
            (*header).pkt_len = len;
            (*header).data_off = headroom;
            (*header).data_len = len as u16;
            (*header).port = meta.port;
            (*header).queue = meta.queue;
            (*header).packet_type = meta.packet_type;
            (*header).rss_hash = meta.rss_hash;
            (*header).flags = meta.flags;
            (*header).vlan_tci = meta.vlan_tci;
        }
    }

    /// A hint to fetch the header.
    #[inline(always)]
    pub fn prefetch_header(&self) {
        raw_copy::prefetch(self.0.ptr().cast());
    }

    /// A hint to fetch the first bytes of data.
    #[inline(always)]
    pub fn prefetch_data(&self) {
        raw_copy::prefetch(self.data_ptr());
    }
}

/// Headroom and length brought into a room that they exceed.
#[cold]
fn cut(headroom: u16, len: u32, room: u16) -> (u16, u32) {
    let headroom = headroom.min(room);
    (headroom, len.min(u32::from(room - headroom)))
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("pool", &self.pool_inner().name())
            .field("index", &self.index())
            .field("data_off", &self.data_off())
            .field("data_len", &self.data_len())
            .field("pkt_len", &self.pkt_len())
            .field("nb_segs", &self.nb_segs())
            .finish_non_exhaustive()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        let state = self.0.state();
        if State::is_plain(state) {
            // SAFETY: this handle owns the buffer and is gone after this.
            unsafe { pool::of(State::pool(state)).put(&self.0, 1) };
        } else {
            // SAFETY: as above.
            unsafe { free_slow(self.0) };
        }
    }
}
