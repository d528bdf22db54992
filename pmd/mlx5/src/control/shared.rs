//! What the control thread tells other threads without being asked.

use crate::health::Fault;
use crate::link::Link;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Called with each new state of the link.
pub(crate) type LinkCallback = Box<dyn FnMut(Link) + Send>;

/// What the control thread has met since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Event queue entries read.
    pub events: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Page requests of firmware.
    pub page_requests: u64,
    /// Commands whose completion event never came.
    pub lost_events: u64,
    /// Commands that were not answered in time.
    pub timeouts: u64,
    /// Of these, MANAGE_PAGES that were answered after all. Their pages are booked; of other
    /// commands nobody knows what they did.
    pub late_answers: u64,
    /// Interrupt vectors whose descriptor failed.
    pub lost_interrupts: u64,
    /// Events of a kind that is not used.
    pub unknown_events: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) events: AtomicU64,
    pub(super) interrupts: AtomicU64,
    pub(super) page_requests: AtomicU64,
    pub(super) lost_events: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) late_answers: AtomicU64,
    pub(super) lost_interrupts: AtomicU64,
    pub(super) unknown_events: AtomicU64,
}

/// Written by the control thread, read by all.
#[derive(Default)]
pub(crate) struct Shared {
    link: Mutex<Link>,
    /// Held while a state is stored and told, so that states are told in their order.
    callback: Mutex<Option<LinkCallback>>,
    fault: Mutex<Option<Fault>>,
    counts: Counts,
    /// Steps of page service begun so far.
    pub(super) page_steps: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The link as last told.
    pub(crate) fn link(&self) -> Link {
        *lock(&self.link)
    }

    /// Stores and tells a new state.
    pub(super) fn tell_link(&self, link: Link) {
        let mut callback = lock(&self.callback);
        *lock(&self.link) = link;
        tracing::debug!(?link, "link");
        if let Some(callback) = callback.as_mut() {
            callback(link);
        }
    }

    /// The port is closed: nobody is called any more, nothing is known.
    pub(crate) fn close(&self) {
        *lock(&self.callback) = None;
        *lock(&self.link) = Link::default();
    }

    /// Sets who is called, and tells the present state if it is known.
    pub(crate) fn on_link_change(&self, mut new: LinkCallback) {
        let mut callback = lock(&self.callback);
        let link = self.link();
        if link.up.is_some() {
            new(link);
        }
        *callback = Some(new);
    }

    /// Why the device was given up, if it was.
    pub(crate) fn fault(&self) -> Option<Fault> {
        *lock(&self.fault)
    }

    pub(super) fn set_fault(&self, fault: Fault) {
        *lock(&self.fault) = Some(fault);
    }

    pub(super) fn count(&self, which: impl Fn(&Counts) -> &AtomicU64, n: u64) {
        if n > 0 {
            which(&self.counts).fetch_add(n, Ordering::Relaxed);
        }
    }

    /// All counts now.
    pub(crate) fn counts(&self) -> EventCounts {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let c = &self.counts;
        EventCounts {
            events: get(&c.events),
            interrupts: get(&c.interrupts),
            page_requests: get(&c.page_requests),
            lost_events: get(&c.lost_events),
            timeouts: get(&c.timeouts),
            late_answers: get(&c.late_answers),
            lost_interrupts: get(&c.lost_interrupts),
            unknown_events: get(&c.unknown_events),
        }
    }
}
