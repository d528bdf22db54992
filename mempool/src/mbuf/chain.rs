//! Packets as chains of segments, room at both ends, shared data, external memory.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::header::{Raw, State};
use super::{ExternalBuffer, Mbuf};
use crate::error::MemoryError;
use crate::pool;

/// One segment of a packet, for reading.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    raw: Raw,
    packet: PhantomData<&'a Mbuf>,
}

impl std::fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes)", self.data().len())
    }
}

impl<'a> Segment<'a> {
    /// A handle that frees nothing.
    #[inline(always)]
    fn mbuf(&self) -> ManuallyDrop<Mbuf> {
        ManuallyDrop::new(Mbuf(self.raw))
    }

    /// Its data.
    #[inline(always)]
    pub fn data(&self) -> &'a [u8] {
        let mbuf = self.mbuf();
        let data = mbuf.data();
        // SAFETY: the segment belongs to the packet borrowed for 'a, whose bytes nobody
        // may write meanwhile.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) }
    }

    /// Bytes of data.
    #[inline(always)]
    pub fn data_len(&self) -> usize {
        self.mbuf().data_len()
    }

    /// Number of its buffer in the pool that it goes home to.
    pub fn index(&self) -> u32 {
        self.mbuf().index()
    }

    /// Process-wide number of that pool.
    pub fn pool_id(&self) -> u16 {
        self.mbuf().pool_id()
    }

    /// Device address of its first byte of data.
    #[inline(always)]
    pub fn data_iova(&self) -> u64 {
        self.mbuf().data_iova()
    }

    /// Address of its first byte of data.
    #[inline(always)]
    pub fn data_address(&self) -> u64 {
        self.mbuf().data_address()
    }

    /// Key under which the device knows its memory.
    #[inline(always)]
    pub fn lkey(&self) -> u32 {
        self.mbuf().lkey()
    }

    /// See [`Mbuf::region`].
    #[inline(always)]
    pub fn region(&self) -> u16 {
        self.mbuf().region()
    }
}

/// The segments of a packet, first to last.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    next: Option<Raw>,
    packet: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment<'a>> {
        let raw = self.next?;
        // SAFETY: a segment of a packet that is borrowed for 'a.
        self.next = unsafe { (*raw.ptr()).next };
        Some(Segment {
            raw,
            packet: PhantomData,
        })
    }
}

impl Mbuf {
    /// The segments, this one first.
    #[inline(always)]
    pub fn segments(&self) -> Segments<'_> {
        Segments {
            next: Some(self.0),
            packet: PhantomData,
        }
    }

    fn last(&self) -> Raw {
        self.segments().last().map_or(self.0, |s| s.raw)
    }

    /// Runs `f` on the last segment, which may be this one.
    fn with_last<R>(&mut self, f: impl FnOnce(&mut Mbuf) -> R) -> R {
        let mut last = ManuallyDrop::new(Mbuf(self.last()));
        f(&mut last)
    }

    fn set_segments(&mut self, segments: u8) {
        let word = self.0.state_word();
        let state = word.load(Ordering::Acquire);
        let now = State::segments(state);
        if State::refs(state) == 1 {
            // Nobody else can change the word.
            let rest = state & !(0xff * State::SEG);
            let new = u64::from(segments) * State::SEG;
            word.store(rest | new, Ordering::Relaxed);
        } else if segments >= now {
            word.fetch_add(u64::from(segments - now) * State::SEG, Ordering::Relaxed);
        } else {
            word.fetch_sub(u64::from(now - segments) * State::SEG, Ordering::Relaxed);
        }
    }

    /// Puts a packet's segments behind this one's.
    ///
    /// # Errors
    /// Gives the packet back when the chain would exceed
    /// [`MAX_SEGMENTS`](super::MAX_SEGMENTS) segments or 2^32 - 1 bytes.
    pub fn push_segment(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let mine = State::segments(self.0.state());
        let segments = mine.checked_add(State::segments(tail.0.state()));
        let len = hot!(self.pkt_len).checked_add(hot!(tail.pkt_len));
        let (Some(segments), Some(len)) = (segments, len) else {
            return Err(tail);
        };
        let last = self.last();
        let mut tail = tail;
        tail.set_segments(1);
        // SAFETY: `last` belongs to this chain, which `&mut self` owns, and has no next.
        unsafe { (*last.ptr()).next = Some(tail.into_raw()) };
        self.set_segments(segments);
        hot!(self.pkt_len = len);
        Ok(())
    }

    /// Frees all segments but the first.
    pub(super) fn drop_tail(&mut self) {
        let tail = hot!(self.next);
        hot!(self.next = None);
        self.set_segments(1);
        hot!(self.pkt_len = self.data_len() as u32);
        if let Some(tail) = tail {
            // SAFETY: cut from the chain, so owned here alone.
            unsafe { super::free_slow(tail) };
        }
    }

    /// Makes room for `n` bytes at the packet's end and returns them (their contents
    /// are unspecified); `None` when the last segment is shared or has less room.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let total = u32::try_from(n).ok()?.checked_add(hot!(self.pkt_len))?;
        let at = self.with_last(|last| {
            if n > last.tailroom() || !last.is_unique() {
                return None;
            }
            let len = last.data_len();
            // SAFETY: data_off + len + n <= buf_len.
            let at = unsafe { last.data_ptr().add(len) };
            hot!(last.data_len = (len + n) as u16);
            Some(at)
        })?;
        hot!(self.pkt_len = total);
        // SAFETY: n bytes of a room that nobody else shows; borrowed with `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(at, n) })
    }

    /// Makes room for `n` bytes before the data and returns them (their contents are
    /// unspecified); `None` when the segment is shared or its headroom is less.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let total = u32::try_from(n).ok()?.checked_add(hot!(self.pkt_len))?;
        let off = self.data_off().checked_sub(n)?;
        let len = u16::try_from(self.data_len() + n).ok()?;
        if !self.is_unique() {
            return None;
        }
        hot!(self.data_off = off as u16);
        hot!(self.data_len = len);
        hot!(self.pkt_len = total);
        // SAFETY: the n bytes lie in the room, which nobody else shows.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data_ptr(), n) })
    }

    /// Takes `n` bytes off the front of the first segment; false (and nothing done) when
    /// it has less.
    #[inline]
    pub fn adj(&mut self, n: usize) -> bool {
        if n > self.data_len() {
            return false;
        }
        hot!(self.data_off = (self.data_off() + n) as u16);
        hot!(self.data_len = (self.data_len() - n) as u16);
        hot!(self.pkt_len = hot!(self.pkt_len).wrapping_sub(n as u32));
        true
    }

    /// Takes `n` bytes off the end of the last segment; false (and nothing done) when it
    /// has less.
    #[inline]
    pub fn trim(&mut self, n: usize) -> bool {
        let done = self.with_last(|last| {
            let left = last.data_len().checked_sub(n);
            if let Some(left) = left {
                hot!(last.data_len = left as u16);
            }
            left.is_some()
        });
        if done {
            hot!(self.pkt_len = hot!(self.pkt_len).wrapping_sub(n as u32));
        }
        done
    }

    /// Copies `bytes` to the packet's end; false (and nothing done) when they do not fit
    /// in the last segment.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> bool {
        match self.append(bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Copies bytes of the packet, from `offset` on and across segments, until `into` is
    /// full or the packet ends; returns how many.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> usize {
        let (mut skip, mut done) = (offset, 0);
        for segment in self.segments() {
            let data = segment.data();
            let Some(data) = data.get(skip..) else {
                skip -= data.len();
                continue;
            };
            skip = 0;
            let Some(room) = into.get_mut(done..) else {
                break;
            };
            let n = room.len().min(data.len());
            if let (Some(to), Some(from)) = (room.get_mut(..n), data.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
        }
        done
    }

    /// The packet's bytes as a vector (it allocates).
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().flat_map(|s| s.data().to_vec()).collect()
    }

    /// A second handle that shows the same bytes, segment by segment, with headers of
    /// its own from the same pools. Neither can write the bytes while both exist. `None`
    /// when a pool is empty.
    pub fn clone_ref(&self) -> Option<Mbuf> {
        let mut whole: Option<Mbuf> = None;
        for segment in self.segments() {
            let copy = segment.mbuf().share()?;
            match &mut whole {
                None => whole = Some(copy),
                Some(head) => head.push_segment(copy).ok()?,
            }
        }
        let head = whole?;
        let (from, to) = (self.cold(), head.cold());
        // SAFETY: both cold lines are mapped; ours is read, the copy's is owned.
        unsafe {
            (*to).timestamp = (*from).timestamp;
            (*to).tx = (*from).tx;
            (*to).mark = (*from).mark;
            (*to).vlan_outer = (*from).vlan_outer;
        }
        Some(head)
    }

    /// As [`Mbuf::clone_ref`], for this segment.
    fn share(&self) -> Option<Mbuf> {
        let state = self.0.state();
        let copy = self.pool_inner().get_one()?.into_raw();
        let (from, to) = (self.0.ptr(), copy.ptr());
        let (from_cold, to_cold) = (self.cold(), self.pool_inner().cold(copy));
        // SAFETY: our header and cold line are read, the copy's are written by us, who
        // own it. The source of the bytes stays until its reference is given back.
        unsafe {
            let kind = if state & State::ATTACHED == State::EXTERNAL {
                (*to_cold).external.clone_from(&(*from_cold).external);
                State::EXTERNAL
            } else {
                let root = (*from_cold).owner.unwrap_or(self.0);
                let added =
                    root.state_word()
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |s| {
                            (State::refs(s) < u16::MAX).then_some(s + State::REF)
                        });
                if added.is_err() {
                    drop(Mbuf(copy));
                    return None;
                }
                (*to_cold).owner = Some(root);
                State::INDIRECT
            };
            (*to).base = (*from).base;
            (*to).iova.store(self.iova(), Ordering::Relaxed);
            (*to).lkey.store(self.lkey(), Ordering::Relaxed);
            (*to).region = (*from).region;
            (*to).data_off = (*from).data_off;
            (*to).data_len = (*from).data_len;
            (*to).pkt_len = u32::from((*from).data_len);
            (*to).port = (*from).port;
            (*to).queue = (*from).queue;
            (*to).packet_type = (*from).packet_type;
            (*to).rss_hash = (*from).rss_hash;
            (*to).flags = (*from).flags;
            (*to).vlan_tci = (*from).vlan_tci;
            let plain = State::plain(State::pool(state), State::buf_len(state));
            copy.state_word().store(plain | kind, Ordering::Relaxed);
        }
        Some(Mbuf(copy))
    }

    /// Makes an empty, unshared buffer of one segment show `len` bytes at `offset` of
    /// external memory, as its data. Its own room rests until the attachment ends (by
    /// [`Mbuf::detach`] or by freeing).
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when the window has less,
    /// [`MemoryError::OutOfRange`] when `len` exceeds 65,535 bytes or the buffer is a
    /// chain, shared or attached already.
    pub fn attach_external(
        &mut self,
        external: &Arc<ExternalBuffer>,
        offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        let part = external.window.window(offset, len)?;
        let short = u16::try_from(len).map_err(|_| MemoryError::OutOfRange {
            what: "bytes of one attached segment",
            given: len as u64,
            min: 0,
            max: u64::from(u16::MAX),
            remedy: "use several segments".into(),
        })?;
        let state = self.0.state();
        if !State::is_plain(state) {
            return Err(MemoryError::OutOfRange {
                what: "segments, sharers and attachments of a buffer to attach to",
                given: u64::from(State::segments(state)) + u64::from(State::refs(state)),
                min: 2,
                max: 2,
                remedy: "take a fresh buffer from the pool".into(),
            });
        }
        let (hot, cold) = (self.0.ptr(), self.cold());
        // SAFETY: the header and cold line are owned; `part` shows that the bytes exist,
        // and the Arc keeps their mapping.
        unsafe {
            (*cold).external = Some(external.clone());
            (*hot).base = part.base();
            let iova = external.iova.wrapping_add(offset as u64);
            (*hot).iova.store(iova, Ordering::Relaxed);
            (*hot).lkey.store(external.lkey, Ordering::Relaxed);
            (*hot).region = external.region;
            (*hot).data_off = 0;
            (*hot).data_len = short;
            (*hot).pkt_len = u32::from(short);
        }
        let plain = State::plain(State::pool(state), short);
        self.0
            .state_word()
            .store(plain | State::EXTERNAL, Ordering::Relaxed);
        Ok(())
    }

    /// True when the data is not in the buffer's own room.
    pub fn is_attached(&self) -> bool {
        self.0.state() & State::ATTACHED != 0
    }

    /// Ends an attachment: the buffer is empty and shows its own room again.
    pub fn detach(&mut self) {
        if self.is_attached() {
            self.drop_tail();
            // SAFETY: owned, attached, and its own room is shared with nobody.
            unsafe { pool::of(State::pool(self.0.state())).detach(self.0) };
            self.reset();
        }
    }
}
