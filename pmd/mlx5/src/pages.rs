//! Firmware pages: who holds which, and what firmware still wants.
//!
//! Firmware asks for 4 KiB pages and hands them back. A positive request is a demand, which ends
//! in GIVE or CANT_GIVE; demands are served in order and never set off against anything. A
//! negative request is a hint: the function's reclaim target becomes the larger of what remains
//! and what is asked, and TAKE is repeated until it is met or firmware returns fewer than asked.
//! "Release all" says that firmware has dropped the function's pages already: they are freed here
//! and no command is sent.
//!
//! The [`PageServer`] decides; the control thread sends what [`PageServer::next_step`] says, one
//! command at a time in the last slot, and turns to other work between two steps. A step is at most
//! [`MAX_PAGES_PER_STEP`] pages, whatever it does, and allocates nothing: addresses lie in a buffer
//! made once. Memory is mapped and unmapped on a thread of its own ([`PageMemory`]); a demand that
//! waits for it holds up no reclaim.

mod arena;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod index;
mod ledger;
mod options;
pub(crate) mod room;
mod service;

pub use ledger::{FunctionPages, PageCounts, PageMemoryReport, PageReport, StepCost, StepTimes};
pub use options::{PageBacking, PageOptions};
pub(crate) use service::{Came, Outcome, PageMemory, PageServer, Step};

use std::fmt;

/// Most pages that one MANAGE_PAGES carries: what firmware is known to return at most at once, and
/// little enough that a step is over in a fraction of a millisecond.
pub const MAX_PAGES_PER_STEP: u32 = 50_000;

/// Room for `count` addresses, all of it in memory: no step shall be the first to touch it.
pub(crate) fn touched(count: u32) -> Vec<u64> {
    // Zeros would be memory that is not there yet.
    let mut addresses = vec![u64::MAX; count as usize];
    addresses.clear();
    addresses
}

/// Whose pages they are: a function id and whether it is the embedded CPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionKey {
    /// Function id; 0 is the function itself.
    pub function: u16,
    /// The embedded CPU's function.
    pub embedded: bool,
}

impl fmt::Display for FunctionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {:#x}", self.function)?;
        if self.embedded {
            f.write_str(" of the embedded CPU")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
