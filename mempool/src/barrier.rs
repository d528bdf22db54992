//! Barriers by name: what each orders between a driver and a device that reads and
//! writes the same memory.
//!
//! The names follow the life of a doorbell: descriptors are stored, [`dma_write`], the
//! doorbell record is stored, [`before_doorbell`], the UAR page is stored to,
//! [`flush_write_combining`] when that page is mapped write-combining. In the other
//! direction: the owner bit is read, [`after_owner`], then the rest of the completion.
//!
//! On x86-64 ordinary (write-back) stores become visible in program order, so most of
//! these only stop the compiler. A store to a write-combining page may overtake older
//! stores, hence the `sfence` there. On arm64 nothing is ordered by itself.
#![allow(unsafe_code)] // the instructions themselves; no memory is touched here

use std::sync::atomic::{Ordering, fence};

/// Orders stores to descriptors (WQEs, command mailboxes) before the store that hands
/// them over in memory (doorbell record, ownership bit).
#[inline(always)]
pub fn dma_write() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders the doorbell record before the store to the UAR page, also when that page is
/// mapped write-combining.
#[inline(always)]
pub fn before_doorbell() {
    store_fence();
}

/// Orders the read of an owner bit (or of any word that hands memory over) before all
/// reads of what it handed over.
#[inline(always)]
pub fn after_owner() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Pushes stores out of the write-combining buffers, so that a doorbell leaves now and
/// not when the buffer is needed for something else.
#[inline(always)]
pub fn flush_write_combining() {
    store_fence();
}

/// Orders everything before against everything after, loads behind stores included
/// (needed when arming an event: store the arm word, then look once more for work).
#[inline(always)]
pub fn full() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
}

#[inline(always)]
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier instruction, part of the x86-64 baseline (SSE); it touches no
    // memory and no register. `asm!` without `nomem` also stops the compiler.
    unsafe {
        core::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; touches no memory and no register.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}
