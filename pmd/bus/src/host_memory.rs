//! The device's view of its driver's memory: the table that stands in for an IOMMU.
//!
//! A backing maps and unmaps; the device's threads look addresses up. An unmap (or bus mastering
//! switched off) returns only when no device thread can still touch the memory. That is proved by
//! generations: each thread registers a [`HostReader`], and says at a point where it holds nothing
//! resolved that it has seen the newest table ([`HostReader::quiesce`]). A thread that sleeps
//! parks its reader first, so that nobody waits for a sleeper.

mod table;

use crate::{BusError, Iova};
use crossbeam_utils::CachePadded;
use pollux_mempool::Window;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Entry, Table};

/// How long an unmap waits for the device's threads.
const PATIENCE: Duration = Duration::from_secs(5);

/// A device address that is not mapped, or not as far as was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device address {iova}+{len:#x} is not mapped, or not for this access")]
pub struct DmaFault {
    /// First address of the access.
    pub iova: Iova,
    /// Its length.
    pub len: u64,
}

/// Accesses that were refused, as an IOMMU reports them: how many, and where the last one was.
#[derive(Debug, Default)]
pub struct FaultLog {
    count: AtomicU64,
    last: AtomicU64,
}

impl FaultLog {
    #[cold]
    fn note(&self, iova: u64) {
        self.last.store(iova, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// How many accesses were refused.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Where the last one began.
    pub fn last(&self) -> Option<Iova> {
        (self.count() > 0).then(|| Iova(self.last.load(Ordering::Relaxed)))
    }
}

/// Generation value of a reader that sleeps and holds nothing.
const PARKED: u64 = u64::MAX;

#[derive(Debug)]
struct ReaderState {
    seen: CachePadded<AtomicU64>,
    gone: AtomicBool,
}

#[derive(Debug)]
struct Tables {
    mapped: Arc<Table>,
    /// What readers see: `mapped`, or nothing while bus mastering is off.
    visible: Arc<Table>,
    bus_master: bool,
    readers: Vec<Arc<ReaderState>>,
}

/// The driver's memory by device address, shared by a backing and the device's threads.
#[derive(Debug)]
pub struct HostMemory {
    generation: CachePadded<AtomicU64>,
    tables: Mutex<Tables>,
    faults: Arc<FaultLog>,
}

impl Default for HostMemory {
    fn default() -> Self {
        Self {
            generation: CachePadded::new(AtomicU64::new(1)),
            tables: Mutex::new(Tables {
                mapped: Arc::default(),
                visible: Arc::default(),
                bus_master: false,
                readers: Vec::new(),
            }),
            faults: Arc::default(),
        }
    }
}

impl HostMemory {
    /// An empty table with bus mastering off.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What readers were refused; outlives the table.
    pub fn faults(&self) -> Arc<FaultLog> {
        Arc::clone(&self.faults)
    }

    /// Mappings in force.
    pub fn mappings(&self) -> usize {
        self.lock().mapped.len()
    }

    /// Enters a mapping.
    ///
    /// # Errors
    /// [`BusError::Overlap`] with one that is there, or past the end of the address space.
    pub fn map(&self, iova: Iova, memory: Window) -> Result<(), BusError> {
        self.enter(iova, memory, true)
    }

    /// Enters a mapping that the device may not write.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_read_only(&self, iova: Iova, memory: Window) -> Result<(), BusError> {
        self.enter(iova, memory, false)
    }

    fn enter(&self, iova: Iova, memory: Window, writable: bool) -> Result<(), BusError> {
        let len = memory.len() as u64;
        let mut tables = self.lock();
        let entry = Entry {
            start: iova.0,
            window: memory,
            writable,
        };
        let next = tables.mapped.with(entry);
        let next = next.ok_or(BusError::Overlap { iova, len })?;
        self.publish(&mut tables, next);
        Ok(())
    }

    /// Removes the mapping that is exactly `iova`..`iova + len`, and waits until no reader can
    /// still touch it.
    ///
    /// # Errors
    /// [`BusError::NotMapped`], or [`BusError::NotQuiescent`] when a reader does not move on; the
    /// mapping is out of the table then, but its memory must not be reused.
    pub fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        let (generation, readers) = {
            let mut tables = self.lock();
            let last = iova.0.saturating_add(len).saturating_sub(1);
            let whole = |entry: &Entry| entry.start == iova.0 && entry.window.len() as u64 == len;
            if !tables.mapped.find(iova.0, 1).is_some_and(whole) {
                return Err(BusError::NotMapped { iova, len });
            }
            let (next, _) = tables.mapped.without(iova.0, last);
            self.publish(&mut tables, next)
        };
        wait_for(&readers, generation, iova, len)
    }

    /// Removes all mappings that lie wholly in `first`..=`last`, none or many, and waits as
    /// [`unmap`](Self::unmap) does. What was removed is handed back: first address and memory.
    ///
    /// # Errors
    /// [`BusError::NotMapped`] when the range cuts through a mapping, nothing is removed then;
    /// [`BusError::NotQuiescent`] as with [`unmap`](Self::unmap).
    pub fn unmap_within(&self, first: u64, last: u64) -> Result<Vec<(Iova, Window)>, BusError> {
        let len = last.saturating_sub(first).saturating_add(1);
        let iova = Iova(first);
        let (removed, generation, readers) = {
            let mut tables = self.lock();
            if tables.mapped.is_cut_by(first, last) {
                return Err(BusError::NotMapped { iova, len });
            }
            let (next, removed) = tables.mapped.without(first, last);
            if removed.is_empty() {
                return Ok(Vec::new());
            }
            let removed: Vec<(Iova, Window)> = removed
                .into_iter()
                .map(|entry| (Iova(entry.start), entry.window))
                .collect();
            let (generation, readers) = self.publish(&mut tables, next);
            (removed, generation, readers)
        };
        wait_for(&readers, generation, iova, len)?;
        Ok(removed)
    }

    /// Removes every mapping, waiting as [`unmap`](Self::unmap) does.
    ///
    /// # Errors
    /// [`BusError::NotQuiescent`] when a reader does not move on.
    pub fn clear(&self) -> Result<(), BusError> {
        let (generation, readers) = {
            let mut tables = self.lock();
            self.publish(&mut tables, Table::default())
        };
        wait_for(&readers, generation, Iova(0), u64::MAX)
    }

    /// Lets the device reach memory, or not; switching off waits as [`unmap`](Self::unmap) does.
    ///
    /// # Errors
    /// [`BusError::NotQuiescent`] when a reader does not move on.
    pub fn set_bus_master(&self, on: bool) -> Result<(), BusError> {
        let (generation, readers) = {
            let mut tables = self.lock();
            tables.bus_master = on;
            let same = Table::clone(&tables.mapped);
            self.publish(&mut tables, same)
        };
        wait_for(&readers, generation, Iova(0), u64::MAX)
    }

    /// Whether the device may reach memory.
    pub fn bus_master(&self) -> bool {
        self.lock().bus_master
    }

    /// Registers a device thread. The reader starts awake, with the newest table.
    pub fn reader(self: &Arc<Self>) -> HostReader {
        let mut tables = self.lock();
        let generation = self.generation.load(Ordering::SeqCst);
        let state = Arc::new(ReaderState {
            seen: CachePadded::new(AtomicU64::new(generation)),
            gone: AtomicBool::new(false),
        });
        tables
            .readers
            .retain(|reader| !reader.gone.load(Ordering::Acquire));
        tables.readers.push(Arc::clone(&state));
        let table = Arc::clone(&tables.visible);
        drop(tables);
        HostReader {
            memory: Arc::clone(self),
            state,
            table,
            generation,
            last: None,
        }
    }

    fn publish(&self, tables: &mut Tables, next: Table) -> (u64, Vec<Arc<ReaderState>>) {
        tables.mapped = Arc::new(next);
        tables.visible = if tables.bus_master {
            Arc::clone(&tables.mapped)
        } else {
            Arc::default()
        };
        let generation = self.generation.load(Ordering::Relaxed) + 1;
        self.generation.store(generation, Ordering::SeqCst);
        tables
            .readers
            .retain(|reader| !reader.gone.load(Ordering::Acquire));
        (generation, tables.readers.clone())
    }
}

fn wait_for(
    readers: &[Arc<ReaderState>],
    generation: u64,
    iova: Iova,
    len: u64,
) -> Result<(), BusError> {
    let start = Instant::now();
    // Pairs with the fence in `HostReader::unpark`: either we see the reader awake, or it takes
    // the new table.
    fence(Ordering::SeqCst);
    for reader in readers {
        let backoff = crossbeam_utils::Backoff::new();
        loop {
            let seen = reader.seen.load(Ordering::Acquire);
            // PARKED is larger than any generation.
            if seen >= generation || reader.gone.load(Ordering::Acquire) {
                break;
            }
            if start.elapsed() > PATIENCE {
                let millis = PATIENCE.as_millis() as u64;
                return Err(BusError::NotQuiescent { iova, len, millis });
            }
            backoff.snooze();
        }
    }
    Ok(())
}

/// One device thread's view of the driver's memory. Everything resolved through it is valid until
/// the next [`quiesce`](Self::quiesce) that reports a change, or [`park`](Self::park).
#[derive(Debug)]
pub struct HostReader {
    memory: Arc<HostMemory>,
    state: Arc<ReaderState>,
    table: Arc<Table>,
    generation: u64,
    /// What the last lookup found: neighbouring accesses hit the same mapping nearly always.
    last: Option<Entry>,
}

impl HostReader {
    /// Says that the thread holds nothing it resolved before, and takes the newest table. True
    /// when the table changed: cached resolutions must be made anew.
    #[inline]
    pub fn quiesce(&mut self) -> bool {
        if self.memory.generation.load(Ordering::Acquire) == self.generation {
            return false;
        }
        self.refresh();
        true
    }

    /// Whether [`quiesce`](Self::quiesce) would take a newer table: what was resolved before must be
    /// dropped first.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.memory.generation.load(Ordering::Acquire) != self.generation
    }

    #[cold]
    fn refresh(&mut self) {
        let tables = self.memory.lock();
        self.generation = self.memory.generation.load(Ordering::SeqCst);
        self.table = Arc::clone(&tables.visible);
        drop(tables);
        self.last = None;
        // The old table's windows are let go before the unmapper is told.
        self.state.seen.store(self.generation, Ordering::Release);
    }

    /// Changes whenever a resolution may have become invalid.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The thread is about to sleep and will touch nothing until [`unpark`](Self::unpark).
    pub fn park(&mut self) {
        // A sleeper must not keep the driver's memory mapped.
        self.table = Arc::default();
        self.generation = 0;
        self.last = None;
        self.state.seen.store(PARKED, Ordering::Release);
    }

    /// The thread is back, with the newest table; everything resolved before is void.
    pub fn unpark(&mut self) {
        self.state.seen.store(0, Ordering::SeqCst);
        // Pairs with the fence in `wait_for`.
        fence(Ordering::SeqCst);
        self.refresh();
    }

    #[inline]
    fn entry(&mut self, iova: u64, len: u64) -> Result<&Entry, DmaFault> {
        let fault = DmaFault {
            iova: Iova(iova),
            len,
        };
        let holds = |entry: &Entry| entry.holds(iova, len);
        if !self.last.as_ref().is_some_and(holds) {
            let Some(found) = self.table.find(iova, len) else {
                self.memory.faults.note(iova);
                return Err(fault);
            };
            self.last = Some(found.clone());
        }
        self.last.as_ref().ok_or(fault)
    }

    /// The mapped window that holds `iova`..`iova + len`, and the offset of `iova` in it, for
    /// reading.
    ///
    /// # Errors
    /// [`DmaFault`] when the range is not inside one mapping.
    #[inline]
    pub fn resolve(&mut self, iova: u64, len: u64) -> Result<(&Window, usize), DmaFault> {
        let entry = self.entry(iova, len)?;
        Ok((&entry.window, (iova - entry.start) as usize))
    }

    /// As [`resolve`](Self::resolve), for writing.
    ///
    /// # Errors
    /// [`DmaFault`] when the range is not inside one mapping that the device may write.
    #[inline]
    pub fn resolve_mut(&mut self, iova: u64, len: u64) -> Result<(&Window, usize), DmaFault> {
        let writable = self.entry(iova, len)?.writable;
        if !writable {
            self.memory.faults.note(iova);
            return Err(DmaFault {
                iova: Iova(iova),
                len,
            });
        }
        let entry = self.entry(iova, len)?;
        Ok((&entry.window, (iova - entry.start) as usize))
    }

    /// A window on exactly `iova`..`iova + len` for reading, to be kept until the generation
    /// changes.
    ///
    /// # Errors
    /// [`DmaFault`] when the range is not inside one mapping.
    pub fn window(&mut self, iova: u64, len: u64) -> Result<Window, DmaFault> {
        let resolved = self.resolve(iova, len)?;
        part(resolved, iova, len)
    }

    /// As [`window`](Self::window), for writing.
    ///
    /// # Errors
    /// As [`resolve_mut`](Self::resolve_mut).
    pub fn window_mut(&mut self, iova: u64, len: u64) -> Result<Window, DmaFault> {
        let resolved = self.resolve_mut(iova, len)?;
        part(resolved, iova, len)
    }

    /// Copies out of the driver's memory, across mappings where they touch.
    ///
    /// # Errors
    /// [`DmaFault`] at the first byte that is not mapped; what came before it was copied.
    pub fn copy_out(&mut self, iova: u64, bytes: &mut [u8]) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < bytes.len() {
            let (window, offset, part) = self.piece(iova, done, bytes.len(), false)?;
            let Some(target) = bytes.get_mut(done..done + part) else {
                break;
            };
            window
                .copy_out(offset, target)
                .map_err(|_| fault_at(iova, done, part))?;
            done += part;
        }
        Ok(())
    }

    /// Copies into the driver's memory, across mappings where they touch.
    ///
    /// # Errors
    /// [`DmaFault`] at the first byte that is not mapped for writing; what came before it was
    /// copied.
    pub fn copy_in(&mut self, iova: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < bytes.len() {
            let (window, offset, part) = self.piece(iova, done, bytes.len(), true)?;
            let Some(source) = bytes.get(done..done + part) else {
                break;
            };
            window
                .copy_in(offset, source)
                .map_err(|_| fault_at(iova, done, part))?;
            done += part;
        }
        Ok(())
    }

    fn piece(
        &mut self,
        iova: u64,
        done: usize,
        len: usize,
        write: bool,
    ) -> Result<(Window, usize, usize), DmaFault> {
        let at = iova
            .checked_add(done as u64)
            .ok_or(fault_at(iova, done, len - done))?;
        let (window, offset) = match write {
            true => self.resolve_mut(at, 1)?,
            false => self.resolve(at, 1)?,
        };
        let part = (window.len() - offset).min(len - done);
        Ok((window.clone(), offset, part))
    }
}

fn part((window, offset): (&Window, usize), iova: u64, len: u64) -> Result<Window, DmaFault> {
    let fault = |_| DmaFault {
        iova: Iova(iova),
        len,
    };
    window.window(offset, len as usize).map_err(fault)
}

fn fault_at(iova: u64, done: usize, len: usize) -> DmaFault {
    DmaFault {
        iova: Iova(iova.wrapping_add(done as u64)),
        len: len as u64,
    }
}

impl Drop for HostReader {
    fn drop(&mut self) {
        self.state.gone.store(true, Ordering::Release);
    }
}
