//! The host's half of a reclaim without a device: what a step costs whichever thread does it. For
//! measurements only.
//!
//! A [`HostSide`] is a page server whose pages are all with firmware, and the answers that firmware
//! would give, lying ready in mailboxes of their own. [`HostSide::step`] does what the control
//! thread does for one TAKE: decide, fill the mailboxes of the answer, read the answer, and book.

use super::service::{Came, PageMemory, PageServer, Step};
use super::{FunctionKey, PageOptions};
use crate::command::Chain;
use crate::dma::{Carver, DmaMemory};
use crate::error::Error;
use pollux_bus::{BusError, DmaDomain, DmaLimits, DmaSpace, Iova};
use pollux_mempool::{PageChoice, SegmentRequest, Window};
use pollux_prm::command_queue::{INLINE, MAILBOX_ALIGN, mailboxes};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// An address space without a device behind it.
struct Nowhere;

impl DmaSpace for Nowhere {
    fn limits(&self) -> DmaLimits {
        DmaLimits {
            address_bits: 48,
            reserved: Vec::new(),
            page_sizes: 0x1000,
            max_mappings: usize::MAX,
        }
    }

    fn map(&self, _: Iova, _: &Window) -> Result<(), BusError> {
        Ok(())
    }

    fn unmap(&self, _: Iova, _: u64) -> Result<(), BusError> {
        Ok(())
    }
}

/// Addresses with nothing behind them.
struct Addresses {
    next: u64,
    made: VecDeque<usize>,
}

impl PageMemory for Addresses {
    type Block = ();

    fn ask(&mut self, pages: usize) {
        self.made.push_back(pages.next_multiple_of(512));
    }

    fn poll(&mut self) -> Option<Came<()>> {
        let pages = self.made.pop_front()?;
        let base = self.next;
        self.next += (pages as u64) << 12;
        Some(Ok(((), base, pages)))
    }

    fn unmap(&mut self, (): ()) {}

    fn finish(&mut self) {}
}

/// What one step cost.
#[derive(Clone, Copy, Debug)]
pub struct HostStep {
    /// Pages taken back.
    pub pages: usize,
    /// Mailboxes filled and read.
    pub mailboxes: usize,
    /// Time.
    pub time: Duration,
}

/// See the module.
pub struct HostSide {
    server: PageServer<Addresses>,
    /// The mailboxes of the slot.
    slot: Chain,
    /// An answer for each step, and its pages.
    answers: VecDeque<(Chain, usize)>,
    returned: Vec<u64>,
}

const FUNCTION: FunctionKey = FunctionKey {
    function: 0,
    embedded: false,
};

fn chain(domain: &std::sync::Arc<DmaDomain>, pages: usize) -> Result<Chain, Error> {
    let bytes = INLINE + 8 * pages;
    let room = (mailboxes(bytes) + 1) * MAILBOX_ALIGN;
    let request = SegmentRequest::new("mailboxes", room).page(PageChoice::BestEffort);
    let mut carver = Carver::new(DmaMemory::new(domain, &request)?);
    Chain::new(&mut carver, bytes)
}

impl HostSide {
    /// Firmware holds `pages` pages and offers all of them, to be taken back `limit` at a time; in
    /// the order of their addresses, or in none.
    ///
    /// # Errors
    /// No memory for the mailboxes.
    pub fn new(pages: u32, limit: u32, shuffled: bool) -> Result<Self, Error> {
        let options = PageOptions {
            give_limit: limit,
            take_limit: limit,
            release_interval: None,
            ..PageOptions::default()
        };
        let memory = Addresses {
            next: 1 << 30,
            made: VecDeque::new(),
        };
        let domain = DmaDomain::new(Box::new(Nowhere));
        let mut server = PageServer::new(memory, options);
        server.request(FUNCTION, false, i32::try_from(pages).unwrap_or(i32::MAX));
        let mut given = Vec::with_capacity(pages as usize);
        // Memory that was asked for has come by the next call.
        let mut idle = 0;
        while given.len() < pages as usize && idle < 1000 {
            match server.next_step() {
                Some(Step::Give(_)) => {
                    given.extend_from_slice(server.outgoing());
                    server.gave(Ok(()));
                    idle = 0;
                }
                _ => idle += 1,
            }
        }
        if shuffled {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            for at in (1..given.len()).rev() {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                given.swap(at, state as usize % (at + 1));
            }
        }
        let mut answers = VecDeque::new();
        for part in given.chunks(limit as usize) {
            let answer = chain(&domain, part.len())?;
            answer.fill_words(part, 1)?;
            answers.push_back((answer, part.len()));
        }
        server.request(
            FUNCTION,
            false,
            i32::try_from(pages).map_or(i32::MIN, |pages| -pages),
        );
        Ok(Self {
            server,
            slot: chain(&domain, limit as usize)?,
            answers,
            returned: Vec::with_capacity(limit as usize),
        })
    }

    /// One step; nothing when all pages are back.
    ///
    /// # Errors
    /// Mailboxes that cannot be reached.
    pub fn step(&mut self) -> Result<Option<HostStep>, Error> {
        let Some((answer, there)) = self.answers.pop_front() else {
            return Ok(None);
        };
        let began = Instant::now();
        let Some(Step::Take { count, .. }) = self.server.next_step() else {
            return Ok(None);
        };
        let bytes = INLINE + 8 * count as usize;
        self.slot.clear(bytes, 1)?;
        self.returned.clear();
        let pages = there.min(count as usize);
        let read = answer.read_words(&mut self.returned, pages, None)?;
        if let Err(what) = read {
            tracing::error!(what, "an answer of our own making");
        }
        self.server.took(Ok(&self.returned));
        let time = began.elapsed();
        Ok(Some(HostStep {
            pages,
            mailboxes: mailboxes(bytes),
            time,
        }))
    }

    /// Pages that firmware still holds.
    pub fn held(&self) -> usize {
        self.server.held()
    }
}
