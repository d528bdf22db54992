//! How buffers go home: the plain ones in runs, the others one by one.

use super::header::{Raw, State};
use crate::pool;

/// Frees `n` packets, each the head of its chain.
///
/// # Safety
/// The caller owns the packets and forgets them.
#[inline]
pub(crate) unsafe fn free_run(mut from: *const Raw, mut n: usize) {
    while n > 0 {
        // SAFETY: from..from + n are `n` owned packets.
        let first = unsafe { *from };
        let state = first.state();
        let run = if State::is_plain(state) {
            let mut run = 1;
            // SAFETY: run < n.
            while run < n && unsafe { *from.add(run) }.state() == state {
                run += 1;
            }
            // SAFETY: plain buffers of one pool, ours until now.
            unsafe { pool::of(State::pool(state)).put(from, run) };
            run
        } else {
            // SAFETY: ours until now.
            unsafe { free_slow(first) };
            1
        };
        // SAFETY: run <= n.
        from = unsafe { from.add(run) };
        n -= run;
    }
}

/// Frees a packet that is a chain, shared or attached.
///
/// # Safety
/// The caller owns the packet and forgets it.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free_slow(packet: Raw) {
    let mut segment = Some(packet);
    while let Some(raw) = segment {
        // SAFETY: the head's owner owns the chain; the link is cut before the segment
        // goes anywhere.
        unsafe {
            segment = (*raw.ptr()).next.take();
            free_segment(raw);
        }
    }
}

/// Frees one buffer that is in no chain any more.
///
/// # Safety
/// The caller owns the buffer and forgets it.
unsafe fn free_segment(raw: Raw) {
    let state = raw.state();
    // SAFETY: the buffer is not home, so its pool is alive.
    let pool = unsafe { pool::of(State::pool(state)) };
    let extra = u64::from(State::segments(state).wrapping_sub(1)) * State::SEG;
    if extra != 0 {
        raw.state_word()
            .fetch_sub(extra, std::sync::atomic::Ordering::Relaxed);
    }
    // SAFETY: owned; an attached header's own room is shared with nobody.
    unsafe {
        if state & State::ATTACHED != 0 {
            pool.detach(raw);
            pool.put(&raw, 1);
        } else {
            release(raw);
        }
    }
}

/// Takes one reference from a buffer's room; the last one sends it home.
///
/// # Safety
/// The caller holds that reference and forgets it.
pub(crate) unsafe fn release(raw: Raw) {
    let before = raw
        .state_word()
        .fetch_sub(State::REF, std::sync::atomic::Ordering::AcqRel);
    if State::refs(before) == 1 {
        let id = State::pool(before);
        raw.state_word().store(
            State::made_plain(before),
            std::sync::atomic::Ordering::Relaxed,
        );
        // SAFETY: nobody else has a reference now; the pool lives, its buffer being out.
        unsafe { pool::of(id).put(&raw, 1) };
    }
}
