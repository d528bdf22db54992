//! A function's way to its driver's memory: device addresses, memory keys, and the resolved views
//! that queues keep.
//!
//! A queue resolves a key and address once and keeps the result as a [`View`] for as long as the
//! memory table and the keys stay as they are: the epoch changes with either, and the
//! queue throws its views away. The data thread lets go of all views before it says that it has
//! seen a new memory table, so that an unmap never waits for a queue.

use super::request::{MkeySpec, Translation};
use super::{DataError, Kind, MAX_MKEYS};
use pollux_bus::{DmaFault, HostMemory, HostReader, Iova};
use pollux_mempool::Window;
use std::sync::Arc;

/// Why an access by key is refused. The completion's vendor syndrome tells them apart; the codes
/// are this model's own, hardware's are not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessError {
    /// No such key, or another variant of it.
    Key = 0x51,
    /// The key belongs to another protection domain.
    Domain = 0x52,
    /// The key does not allow this direction.
    Right = 0x53,
    /// The key ends before the access does.
    Range = 0x54,
    /// The host did not map the device address.
    Unmapped = 0x55,
    /// The address is not in the table that this thread has, but there is a newer one: whoever
    /// announced the address may have mapped it first. Not an error; the access is made again.
    Stale = 0,
}

/// What an access wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A function's memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    reader: Option<HostReader>,
    asleep: bool,
    keys: Vec<Option<MkeySpec>>,
    epoch: u64,
}

impl Memory {
    /// A driver arrives.
    pub fn connect(&mut self, memory: &Arc<HostMemory>) {
        self.reader = Some(memory.reader());
        self.asleep = false;
        self.epoch += 1;
    }

    /// The driver is gone.
    pub fn disconnect(&mut self) {
        self.reader = None;
        self.clear_keys();
    }

    /// Whether a driver is there.
    pub fn is_connected(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether the host has changed its table; views must be dropped before [`renew`](Self::renew).
    #[inline(always)]
    pub fn is_stale(&self) -> bool {
        self.reader.as_ref().is_some_and(HostReader::is_stale)
    }

    /// Says that nothing resolved before is held any more, and takes the newest table.
    pub fn renew(&mut self) {
        if let Some(reader) = &mut self.reader {
            if self.asleep {
                reader.unpark();
                self.asleep = false;
            } else {
                reader.quiesce();
            }
        }
        self.epoch += 1;
    }

    /// The thread is about to sleep; views must have been dropped.
    pub fn park(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.park();
            self.asleep = true;
        }
        self.epoch += 1;
    }

    /// A window on exactly these device addresses.
    pub fn window(&mut self, iova: u64, len: u64, access: Access) -> Result<Window, DmaFault> {
        match (&mut self.reader, access) {
            (Some(reader), Access::Read) => reader.window(iova, len),
            (Some(reader), Access::Write) => reader.window_mut(iova, len),
            (None, _) => Err(DmaFault {
                iova: Iova(iova),
                len,
            }),
        }
    }

    pub fn set_key(&mut self, spec: MkeySpec) -> Result<(), DataError> {
        let index = spec.key >> 8;
        if index >= MAX_MKEYS {
            return Err(DataError::Key {
                index,
                limit: MAX_MKEYS,
            });
        }
        let index = index as usize;
        if self.keys.len() <= index {
            self.keys.resize(index + 1, None);
        }
        if let Some(slot) = self.keys.get_mut(index) {
            *slot = Some(spec);
        }
        self.epoch += 1;
        Ok(())
    }

    pub fn remove_key(&mut self, index: u32) -> Result<(), DataError> {
        let slot = self.keys.get_mut(index as usize).and_then(Option::take);
        self.epoch += 1;
        match slot {
            Some(_) => Ok(()),
            None => Err(DataError::Unknown {
                kind: Kind::Mkey,
                number: index,
            }),
        }
    }

    pub fn clear_keys(&mut self) {
        self.keys.clear();
        self.epoch += 1;
    }

    /// The largest view around `address` that one mapping and the key allow.
    fn view(
        &mut self,
        key: u32,
        address: u64,
        pd: u32,
        access: Access,
    ) -> Result<View, AccessError> {
        let spec = self
            .keys
            .get((key >> 8) as usize)
            .and_then(Option::as_ref)
            .filter(|spec| spec.key == key)
            .ok_or(AccessError::Key)?;
        if spec.pd.is_some_and(|owner| owner != pd) {
            return Err(AccessError::Domain);
        }
        let allowed = match access {
            Access::Read => spec.local_read,
            Access::Write => spec.local_write,
        };
        if !allowed {
            return Err(AccessError::Right);
        }
        let into = address.checked_sub(spec.start).ok_or(AccessError::Range)?;
        if spec.len.is_some_and(|len| into >= len) {
            return Err(AccessError::Range);
        }
        // The key's stretch around the address that is contiguous for the device:
        // `first` is the key address where it starts.
        let (iova, first, len) = match &spec.translation {
            Translation::Physical => (
                spec.start,
                spec.start,
                spec.len.unwrap_or(u64::MAX - spec.start),
            ),
            Translation::Pages {
                pages,
                log_page_size,
                offset,
            } => {
                let stretch = Stretch::around(pages, *log_page_size, into + offset)
                    .ok_or(AccessError::Range)?;
                let skip = offset.saturating_sub(stretch.from);
                let at = spec.start + stretch.from.saturating_sub(*offset);
                let len = stretch.len - skip;
                let rest = spec
                    .len
                    .map_or(len, |all| (all - (at - spec.start)).min(len));
                (stretch.iova + skip, at, rest)
            }
        };
        let target = iova
            .checked_add(address - first)
            .ok_or(AccessError::Range)?;
        let reader = self.reader.as_mut().ok_or(AccessError::Unmapped)?;
        let unmapped = if reader.is_stale() {
            AccessError::Stale
        } else {
            AccessError::Unmapped
        };
        let resolved = match access {
            Access::Read => reader.resolve(target, 1),
            Access::Write => reader.resolve_mut(target, 1),
        };
        let (window, at) = resolved.map_err(|_| unmapped)?;
        // The mapping begins `at` bytes before the address, the stretch `address - first`.
        let before = (at as u64).min(address - first);
        let after = ((window.len() - at) as u64).min(len - (address - first));
        let window = window
            .window(at - before as usize, (before + after) as usize)
            .map_err(|_| AccessError::Unmapped)?;
        Ok(View {
            key,
            start: address - before,
            len: before + after,
            window,
        })
    }
}

/// Pages of a key that follow each other in device addresses.
struct Stretch {
    /// Device address of the first byte.
    iova: u64,
    /// Where it starts, in bytes from the first page of the key.
    from: u64,
    /// Bytes.
    len: u64,
}

impl Stretch {
    /// Pages looked at in each direction; longer stretches cost another view.
    const REACH: usize = 4096;

    fn around(pages: &[u64], log_page_size: u32, at: u64) -> Option<Self> {
        let size = 1u64.checked_shl(log_page_size)?;
        let index = usize::try_from(at >> log_page_size).ok()?;
        let base = *pages.get(index)?;
        let follows = |low: u64, high: u64| low.checked_add(size) == Some(high);
        let mut first = index;
        let mut iova = base;
        while index - first < Self::REACH {
            match first.checked_sub(1).and_then(|before| pages.get(before)) {
                Some(before) if follows(*before, iova) => {
                    iova = *before;
                    first -= 1;
                }
                _ => break,
            }
        }
        let mut last = index;
        let mut end = base;
        while last - index < Self::REACH {
            match pages.get(last + 1) {
                Some(next) if follows(end, *next) => {
                    end = *next;
                    last += 1;
                }
                _ => break,
            }
        }
        Some(Self {
            iova,
            from: (first as u64) << log_page_size,
            len: ((last - first + 1) as u64) << log_page_size,
        })
    }
}

/// A stretch of a key's addresses, resolved to memory.
#[derive(Debug)]
struct View {
    key: u32,
    start: u64,
    len: u64,
    window: Window,
}

/// The views that one queue keeps. All belong to the queue's protection domain and direction.
#[derive(Debug)]
pub(super) struct Views {
    pd: u32,
    access: Access,
    epoch: u64,
    /// The one used last.
    hot: usize,
    /// Where the next one goes when all are taken.
    next: usize,
    views: Vec<View>,
}

/// The view that a queue used last.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotView<'a> {
    key: u32,
    start: u64,
    len: u64,
    pub window: &'a Window,
}

impl HotView<'_> {
    /// Where `len` bytes from `address` are in the window, if the key is this view's and all of
    /// them are there.
    #[inline(always)]
    pub fn offset(&self, key: u32, address: u64, len: usize) -> Option<usize> {
        let at = address.wrapping_sub(self.start);
        let inside = key == self.key && at < self.len && len as u64 <= self.len - at;
        inside.then_some(at as usize)
    }

    /// Hints that the bytes at `address` will be read.
    #[inline(always)]
    pub fn prefetch(&self, address: u64) {
        self.window
            .prefetch(address.wrapping_sub(self.start) as usize);
    }

    /// Hints that the bytes at `address` will be written.
    #[inline(always)]
    pub fn prefetch_write(&self, address: u64) {
        self.window
            .prefetch_write(address.wrapping_sub(self.start) as usize);
    }
}

/// Views of a queue; a pool in several segments has one each.
const VIEWS: usize = 8;

impl Views {
    pub fn new(pd: u32, access: Access) -> Self {
        Self {
            pd,
            access,
            epoch: 0,
            hot: 0,
            next: 0,
            views: Vec::with_capacity(VIEWS),
        }
    }

    /// The view used last, while it is good.
    #[inline(always)]
    pub fn hot(&self, memory: &Memory) -> Option<HotView<'_>> {
        let view = self
            .views
            .get(self.hot)
            .filter(|_| self.epoch == memory.epoch)?;
        Some(HotView {
            key: view.key,
            start: view.start,
            len: view.len,
            window: &view.window,
        })
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        self.views.clear();
        self.hot = 0;
        self.next = 0;
    }

    /// Window, offset in it, and how many of the `len` bytes (at least one, unless `len` is zero)
    /// lie there.
    #[inline(always)]
    pub fn find(
        &mut self,
        memory: &mut Memory,
        key: u32,
        address: u64,
        len: usize,
    ) -> Result<(&Window, usize, usize), AccessError> {
        if self.epoch == memory.epoch {
            if let Some(view) = self.views.get(self.hot) {
                let at = address.wrapping_sub(view.start);
                if view.key == key && at < view.len {
                    let there = (view.len - at).min(len as u64) as usize;
                    // Borrowed anew: an early return would keep `self` borrowed below.
                    return match self.views.get(self.hot) {
                        Some(view) => Ok((&view.window, at as usize, there)),
                        None => Err(AccessError::Key),
                    };
                }
            }
        }
        self.search(memory, key, address, len)
    }

    #[cold]
    fn search(
        &mut self,
        memory: &mut Memory,
        key: u32,
        address: u64,
        len: usize,
    ) -> Result<(&Window, usize, usize), AccessError> {
        if self.epoch != memory.epoch {
            self.clear();
            self.epoch = memory.epoch;
        }
        let known = self
            .views
            .iter()
            .position(|view| view.key == key && address.wrapping_sub(view.start) < view.len);
        self.hot = match known {
            Some(index) => index,
            None => {
                let view = memory.view(key, address, self.pd, self.access)?;
                if self.views.len() < VIEWS {
                    self.views.push(view);
                    self.views.len() - 1
                } else {
                    let index = self.next;
                    self.next = (index + 1) % VIEWS;
                    if let Some(slot) = self.views.get_mut(index) {
                        *slot = view;
                    }
                    index
                }
            }
        };
        let view = self.views.get(self.hot).ok_or(AccessError::Key)?;
        let at = address - view.start;
        Ok((
            &view.window,
            at as usize,
            (view.len - at).min(len as u64) as usize,
        ))
    }
}
