//! Survives memory that its owner takes away.
//!
//! A client can shrink a file that the device has mapped, or punch holes into hugepages that nobody
//! can replace; the next access is then a SIGBUS, which ends a process. While a [`Guard`] is there for
//! a mapping, such an access finds a page of zeros instead, private to this process: the client that
//! played the trick loses what its device wrote there, and nobody else loses anything.
//!
//! The first guard installs a handler for SIGBUS. Faults outside guarded mappings go to the handler
//! that was there before.
#![allow(unsafe_code)] // a signal handler, and pages mapped over lost ones

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::BusError;
use pollux_mempool::Segment;

/// Mappings that can be guarded at once, in the whole process.
const PLACES: usize = 4096;

/// A guarded mapping. The handler reads this while others may change it, so it is all atomics; a
/// place is in use while `end` is not zero.
struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    hit: AtomicBool,
}

static GUARDED: [Place; PLACES] = [const {
    Place {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; PLACES];

/// What the process did on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLED: OnceLock<bool> = OnceLock::new();

/// Guards one mapping for as long as it lives. Must be dropped before the mapping is.
#[derive(Debug)]
pub(super) struct Guard {
    place: usize,
}

impl Guard {
    /// Guards a segment.
    ///
    /// # Errors
    /// [`BusError::MapLimit`] when too many are guarded, [`BusError::Os`] when the handler cannot be
    /// installed.
    pub fn new(segment: &Segment) -> Result<Self, BusError> {
        if !*INSTALLED.get_or_init(install) {
            return Err(BusError::Os {
                what: "a handler for SIGBUS",
                source: std::io::Error::last_os_error(),
            });
        }
        let free = |place: &Place| !place.taken.swap(true, Ordering::AcqRel);
        let index = GUARDED
            .iter()
            .position(free)
            .ok_or(BusError::MapLimit { limit: PLACES })?;
        if let Some(place) = GUARDED.get(index) {
            let page = segment.page_size().bytes();
            place.hit.store(false, Ordering::Release);
            place.page.store(page, Ordering::Release);
            place.start.store(segment.address(), Ordering::Release);
            let end = segment.address() + segment.len().next_multiple_of(page);
            // Last: it is what puts the place in use.
            place.end.store(end, Ordering::Release);
        }
        Ok(Self { place: index })
    }

    /// Whether memory was taken away.
    pub fn was_hit(&self) -> bool {
        GUARDED
            .get(self.place)
            .is_some_and(|place| place.hit.load(Ordering::Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = GUARDED.get(self.place) {
            place.end.store(0, Ordering::Release);
            place.taken.store(false, Ordering::Release);
        }
    }
}

fn install() -> bool {
    // SAFETY: a sigaction is plain data, for which all zeros is a valid value.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (zeroed(), zeroed()) };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to live sigactions; the handler calls only what a handler may call.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } == 0;
    done && BEFORE.set(before).is_ok()
}

/// Called by the kernel on the thread that touched lost memory. It may use only atomics and system
/// calls.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; for SIGBUS it holds an
    // address.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in &GUARDED {
        let end = place.end.load(Ordering::Acquire);
        let start = place.start.load(Ordering::Acquire);
        if end == 0 || !(start..end).contains(&address) {
            continue;
        }
        let page = place.page.load(Ordering::Acquire);
        if !page.is_power_of_two() {
            continue;
        }
        let first = address & !(page - 1);
        // SAFETY: the page lies in a mapping of this process that a live guard stands for, so it
        // replaces nothing but the page that cannot be had. Nothing refers to mapped memory by
        // reference; accesses by pointer find the new page as they would find any other change.
        let mapped = unsafe {
            libc::mmap(
                first as *mut libc::c_void,
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            place.hit.store(true, Ordering::Release);
            return;
        }
    }
    // Not ours: the access is made again under the handler that was there before.
    let default = || {
        // SAFETY: all zeros is the default action.
        unsafe { zeroed::<libc::sigaction>() }
    };
    let before = BEFORE.get().copied().unwrap_or_else(default);
    // SAFETY: a handler may call sigaction; `before` is what it gave us, or the default.
    unsafe { libc::sigaction(signal, &raw const before, null_mut()) };
}
