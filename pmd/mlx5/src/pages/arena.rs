//! Page memory for firmware: 4 KiB pages cut from larger blocks, with their owners.
//!
//! Giving out and taking back a page is constant work (plus the search for its block among few).
//! A page is free, on its way (a GIVE carries it), or held. Control thread only.

use super::FunctionKey;
use pollux_mempool::FIRMWARE_PAGE;
use std::collections::BTreeMap;

const PAGE: u64 = FIRMWARE_PAGE as u64;

/// Where blocks come from.
pub(crate) trait PageMemory {
    /// What keeps a block mapped.
    type Block;

    /// A block of at least `pages` pages (fewer when that much is not to be had at once): its
    /// holder, its device address, its pages.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn block(&mut self, pages: usize) -> Result<(Self::Block, u64, usize), String>;
}

/// Why pages could not be had, in words.
#[derive(Debug)]
pub(crate) struct ArenaError(pub(crate) String);

const FREE: u16 = 0;
/// Set while a GIVE carries the page.
const ON_ITS_WAY: u16 = 0x8000;

struct Block<B> {
    /// Keeps the memory mapped.
    _memory: B,
    /// Owner of each page: [`FREE`], or the function's number, perhaps [`ON_ITS_WAY`].
    owners: Vec<u16>,
    /// Free pages, by index; the last one is the next to go.
    free: Vec<u32>,
}

struct Holder {
    key: FunctionKey,
    held: usize,
}

/// All page memory of one control thread.
pub(crate) struct Arena<M: PageMemory> {
    memory: M,
    /// Blocks by device address.
    blocks: BTreeMap<u64, Block<M::Block>>,
    /// Blocks that may have free pages.
    open: Vec<u64>,
    free: usize,
    /// Function number n is `holders[n - 1]`.
    holders: Vec<Holder>,
}

impl<M: PageMemory> std::fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("blocks", &self.blocks.len())
            .field("free", &self.free)
            .field("held", &self.held_total())
            .finish_non_exhaustive()
    }
}

impl<M: PageMemory> Arena<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self {
            memory,
            blocks: BTreeMap::new(),
            open: Vec::new(),
            free: 0,
            holders: Vec::new(),
        }
    }

    /// Pages that `key` holds.
    pub(crate) fn held(&self, key: FunctionKey) -> usize {
        self.holders
            .iter()
            .find(|h| h.key == key)
            .map_or(0, |h| h.held)
    }

    /// Pages that firmware holds.
    pub(crate) fn held_total(&self) -> usize {
        self.holders.iter().map(|h| h.held).sum()
    }

    /// Who holds pages, and how many.
    pub(crate) fn holders(&self) -> Vec<(FunctionKey, usize)> {
        self.holders
            .iter()
            .filter(|h| h.held > 0)
            .map(|h| (h.key, h.held))
            .collect()
    }

    /// Takes `count` pages for `key`; they are on their way until [`commit`](Self::commit) or
    /// [`cancel`](Self::cancel).
    pub(crate) fn take(&mut self, key: FunctionKey, count: u32) -> Result<Vec<u64>, ArenaError> {
        let count = count as usize;
        while self.free < count {
            self.grow(count - self.free)?;
        }
        let owner = self.number(key)? | ON_ITS_WAY;
        let mut pages = Vec::with_capacity(count);
        while pages.len() < count {
            let Some(&base) = self.open.last() else { break };
            let Some(block) = self.blocks.get_mut(&base) else {
                self.open.pop();
                continue;
            };
            let Some(index) = block.free.pop() else {
                self.open.pop();
                continue;
            };
            if let Some(page) = block.owners.get_mut(index as usize) {
                *page = owner;
            }
            self.free -= 1;
            pages.push(base + u64::from(index) * PAGE);
        }
        Ok(pages)
    }

    /// Firmware has the pages.
    pub(crate) fn commit(&mut self, pages: &[u64]) {
        for page in pages {
            let Some((_, _, owner)) = self.find(*page) else {
                continue;
            };
            if *owner & ON_ITS_WAY != 0 {
                *owner &= !ON_ITS_WAY;
                let number = *owner;
                self.count(number, 1);
            }
        }
    }

    /// Firmware has not got the pages.
    pub(crate) fn cancel(&mut self, pages: &[u64]) {
        for page in pages {
            if self
                .find(*page)
                .is_some_and(|(_, _, owner)| *owner & ON_ITS_WAY != 0)
            {
                self.free_page(*page);
            }
        }
    }

    /// Firmware has returned a page of `key`; false when `key` does not hold it.
    pub(crate) fn give_back(&mut self, key: FunctionKey, page: u64) -> bool {
        let Ok(number) = self.number(key) else {
            return false;
        };
        let held = self
            .find(page)
            .is_some_and(|(_, _, owner)| *owner == number);
        if held {
            self.count(number, -1);
            self.free_page(page);
        }
        held
    }

    /// Frees all that `key` holds; pages on their way stay so. Returns how many.
    pub(crate) fn release_all(&mut self, key: FunctionKey) -> usize {
        let Some(at) = self.holders.iter().position(|h| h.key == key) else {
            return 0;
        };
        let number = at as u16 + 1;
        let mut freed = 0;
        for (base, block) in &mut self.blocks {
            let before = freed;
            for (index, owner) in block.owners.iter_mut().enumerate() {
                if *owner == number {
                    *owner = FREE;
                    block.free.push(index as u32);
                    freed += 1;
                }
            }
            if freed > before && !self.open.contains(base) {
                self.open.push(*base);
            }
        }
        self.free += freed;
        if let Some(holder) = self.holders.get_mut(at) {
            holder.held = 0;
        }
        freed
    }

    /// Drops every block.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.open.clear();
        self.holders.clear();
        self.free = 0;
    }

    fn grow(&mut self, pages: usize) -> Result<(), ArenaError> {
        let (memory, base, pages) = self.memory.block(pages).map_err(ArenaError)?;
        // Firmware takes no page at address 0; descending, so that ascending addresses go out.
        let free: Vec<u32> = (0..pages as u32)
            .rev()
            .filter(|i| base != 0 || *i != 0)
            .collect();
        if free.is_empty() {
            return Err(ArenaError("a block without a usable page".into()));
        }
        self.free += free.len();
        let block = Block {
            _memory: memory,
            owners: vec![FREE; pages],
            free,
        };
        self.blocks.insert(base, block);
        self.open.push(base);
        Ok(())
    }

    fn number(&mut self, key: FunctionKey) -> Result<u16, ArenaError> {
        if let Some(at) = self.holders.iter().position(|h| h.key == key) {
            return Ok(at as u16 + 1);
        }
        if self.holders.len() + 1 >= usize::from(ON_ITS_WAY) {
            return Err(ArenaError(format!(
                "{} functions hold pages already",
                self.holders.len()
            )));
        }
        self.holders.push(Holder { key, held: 0 });
        Ok(self.holders.len() as u16)
    }

    fn count(&mut self, number: u16, by: isize) {
        if let Some(holder) = self.holders.get_mut(usize::from(number).wrapping_sub(1)) {
            holder.held = holder.held.saturating_add_signed(by);
        }
    }

    /// The block, index and owner of a page, if the address is one of ours.
    fn find(&mut self, page: u64) -> Option<(u64, usize, &mut u16)> {
        let (base, block) = self.blocks.range_mut(..=page).next_back()?;
        let offset = page - base;
        let index = usize::try_from(offset / PAGE).ok()?;
        if offset % PAGE != 0 {
            return None;
        }
        Some((*base, index, block.owners.get_mut(index)?))
    }

    fn free_page(&mut self, page: u64) {
        let Some((base, index, owner)) = self.find(page) else {
            return;
        };
        *owner = FREE;
        if let Some(block) = self.blocks.get_mut(&base) {
            if block.free.is_empty() && !self.open.contains(&base) {
                self.open.push(base);
            }
            block.free.push(index as u32);
            self.free += 1;
        }
    }
}
