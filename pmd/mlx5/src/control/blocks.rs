//! Memory for firmware pages: mapped segments on the function's node, made and unmade on a thread
//! of their own, because clearing and unmapping memory takes longer than any step may.
//!
//! The control thread asks and polls ([`PageMemory`]); the thread answers in the order of asking
//! and wakes the control thread with each answer. It ends with [`PageMemory::finish`] or when the
//! control thread lets go of it.

use crate::dma::DmaMemory;
use crate::error::Error;
use crate::pages::{Came, PageBacking, PageMemory};
use pollux_bus::{DmaDomain, Interrupt};
use pollux_mempool::{FIRMWARE_PAGE, NodeId, PageChoice, Segment, SegmentRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Smallest and largest block in bytes: one hugepage, and what is unmapped in a moment.
const SMALLEST: usize = 2 << 20;
const LARGEST: usize = 64 << 20;

/// Makes blocks in one DMA domain.
pub(crate) struct Blocks {
    pub(crate) name: String,
    pub(crate) domain: Arc<DmaDomain>,
    pub(crate) node: Option<NodeId>,
    pub(crate) pages: PageChoice,
    pub(crate) backing: PageBacking,
}

impl Blocks {
    fn block(&self, pages: usize) -> Came<DmaMemory> {
        let wanted = pages.saturating_mul(FIRMWARE_PAGE).clamp(SMALLEST, LARGEST);
        let len = wanted.next_multiple_of(SMALLEST);
        let memory = match self.backing {
            PageBacking::Populated => {
                let name = format!("firmware pages of {}", self.name);
                let request = SegmentRequest::new(name, len)
                    .node(self.node)
                    .page(self.pages);
                DmaMemory::new(&self.domain, &request)
            }
            PageBacking::Untouched => Segment::reserve(len)
                .map_err(Error::from)
                .and_then(|segment| DmaMemory::of(&self.domain, &segment)),
        };
        let memory = memory.map_err(|e| e.to_string())?;
        let (base, pages) = (memory.iova().0, memory.len() / FIRMWARE_PAGE);
        Ok((memory, base, pages))
    }
}

enum Job {
    Make(usize),
    Unmap(DmaMemory),
}

/// The thread that makes blocks, as the control thread sees it.
pub(super) struct BlockMaker {
    jobs: Option<Sender<Job>>,
    made: Receiver<Came<DmaMemory>>,
    over: Arc<AtomicBool>,
    join: Option<JoinHandle<()>>,
}

impl BlockMaker {
    /// Starts the thread; each answer raises `wake`.
    ///
    /// # Errors
    /// No thread to be had.
    pub(super) fn start(blocks: Blocks, wake: Interrupt) -> Result<Self, Error> {
        let (jobs, todo) = channel();
        let (answer, made) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let join = std::thread::Builder::new()
            .name(format!("mem:{}", blocks.name))
            .spawn(move || {
                while let Ok(job) = todo.recv() {
                    match job {
                        Job::Unmap(memory) => drop(memory),
                        Job::Make(pages) => {
                            let block = if stop.load(Ordering::Acquire) {
                                Err("the port is being closed".to_owned())
                            } else {
                                blocks.block(pages)
                            };
                            // Nobody is there any more: the block goes with the answer.
                            if answer.send(block).is_err() {
                                return;
                            }
                            wake.raise();
                        }
                    }
                }
            })
            .map_err(|source| Error::Os {
                what: "thread for page memory",
                source,
            })?;
        Ok(Self {
            jobs: Some(jobs),
            made,
            over,
            join: Some(join),
        })
    }

    fn send(&self, job: Job) {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        if !matches!(sent, Some(Ok(()))) {
            tracing::trace!("the thread for page memory has ended");
        }
    }
}

impl PageMemory for BlockMaker {
    type Block = DmaMemory;

    fn ask(&mut self, pages: usize) {
        self.send(Job::Make(pages));
    }

    fn poll(&mut self) -> Option<Came<DmaMemory>> {
        self.made.try_recv().ok()
    }

    fn unmap(&mut self, block: DmaMemory) {
        self.send(Job::Unmap(block));
    }

    fn finish(&mut self) {
        self.over.store(true, Ordering::Release);
        self.jobs = None;
        if let Some(join) = self.join.take() {
            if join.join().is_err() {
                tracing::error!("the thread for page memory panicked");
            }
        }
        while self.made.try_recv().is_ok() {}
    }
}

impl Drop for BlockMaker {
    fn drop(&mut self) {
        self.finish();
    }
}
