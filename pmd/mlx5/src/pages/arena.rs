//! Page memory for firmware: 4 KiB pages cut from hugepages, each with its owner.
//!
//! Memory comes in blocks of several hugepages (2 MiB each, here called chunks; on systems without
//! free hugepages they are made of ordinary pages). A page is handed out and given back in constant
//! time: chunks with free pages stand in a list, a chunk's free pages in a bitmap, and an address
//! finds its chunk by one probe of a table. Chunks in use are filled up before empty ones, so that
//! empty ones stay whole. Nothing is allocated unless a block is added or a new owner appears.
//!
//! An owner is a number; 0 is nobody. Control thread only.

use super::index::{Index, LOG_CHUNK};

/// Bytes of a chunk.
pub(super) const CHUNK: u64 = 1 << LOG_CHUNK;
/// Pages of a chunk.
pub(super) const CHUNK_PAGES: usize = 512;
const LOG_PAGE: u32 = 12;
const WORDS: usize = CHUNK_PAGES / 64;
const NONE: u32 = u32::MAX;
/// Addresses that are dealt with together when they come back: the pages of a word.
const TOGETHER: usize = 64;

/// Owner of a page that is with nobody.
pub(super) const FREE: u16 = 0;
/// Owner of a page about which nobody knows whether firmware has it: never given again.
pub(super) const LIMBO: u16 = u16::MAX;

/// Why an address that came back cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Not a multiple of the page size.
    Misaligned,
    /// Not in any page that is ours to give.
    NotOurs,
    /// Free: it came back before, or was never given.
    Free,
    /// With somebody else.
    Others,
}

impl Wrong {
    /// In words.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Misaligned => "misaligned",
            Self::NotOurs => "never given",
            Self::Free => "given back before, or never given",
            Self::Others => "with another function",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Full,
    Partial,
    Empty,
}

struct Chunk {
    base: u64,
    block: u32,
    /// Pages that can be handed out at all.
    usable: u16,
    free: u16,
    /// Set bits are free pages.
    map: [u64; WORDS],
    place: Place,
    before: u32,
    behind: u32,
}

struct Block<B> {
    /// Keeps the memory mapped.
    memory: B,
    chunks: Box<[u32]>,
    /// Chunks that are not empty.
    used: u32,
}

/// All page memory of one control thread; `B` keeps a block mapped.
pub(super) struct Arena<B> {
    blocks: Vec<Option<Block<B>>>,
    chunks: Vec<Chunk>,
    /// Owner of each page, chunk by chunk.
    owners: Vec<u16>,
    index: Index,
    /// Chunk numbers of blocks that were released.
    vacant: Vec<u32>,
    /// First chunk in each list.
    partial: u32,
    empty: u32,
    free: usize,
    /// Blocks all of whose chunks are empty, and pages of all blocks.
    idle_blocks: usize,
    pages: usize,
}

impl<B> Arena<B> {
    pub(super) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            chunks: Vec::new(),
            owners: Vec::new(),
            index: Index::default(),
            vacant: Vec::new(),
            partial: NONE,
            empty: NONE,
            free: 0,
            idle_blocks: 0,
            pages: 0,
        }
    }

    /// Pages that can be handed out now.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Pages of all blocks.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// Blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    /// Blocks of which no page is out.
    pub(super) fn idle_blocks(&self) -> usize {
        self.idle_blocks
    }

    /// Adds a block of `pages` pages from device address `base` on; what is not a whole, aligned
    /// chunk is left unused. Returns the usable pages; with none of them the block is dropped.
    pub(super) fn add(&mut self, memory: B, base: u64, pages: usize) -> usize {
        let end = base.saturating_add((pages as u64) << LOG_PAGE);
        let first = base.next_multiple_of(CHUNK);
        let count = (end.saturating_sub(first) >> LOG_CHUNK) as usize;
        let number = match self.blocks.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                self.blocks.push(None);
                self.blocks.len() - 1
            }
        };
        let mut chunks = Vec::with_capacity(count);
        let mut usable = 0;
        for base in (0..count as u64).map(|n| first + n * CHUNK) {
            if self.index.find(base).is_some() {
                // Two blocks at one address: the domain never does that.
                tracing::error!(base, "page memory at an address that is in use; left alone");
                continue;
            }
            let mut map = [u64::MAX; WORDS];
            // Firmware takes no page at address 0.
            if base == 0 {
                if let Some(word) = map.first_mut() {
                    *word &= !1;
                }
            }
            let free = CHUNK_PAGES as u16 - u16::from(base == 0);
            let chunk = Chunk {
                base,
                block: number as u32,
                usable: free,
                free,
                map,
                place: Place::Full,
                before: NONE,
                behind: NONE,
            };
            let at = match self.vacant.pop() {
                Some(at) => {
                    if let Some(slot) = self.chunks.get_mut(at as usize) {
                        *slot = chunk;
                    }
                    at
                }
                None => {
                    self.chunks.push(chunk);
                    self.owners.resize(self.chunks.len() * CHUNK_PAGES, FREE);
                    self.chunks.len() as u32 - 1
                }
            };
            self.index.insert(base, at);
            self.enlist(at, Place::Empty);
            chunks.push(at);
            usable += usize::from(free);
        }
        if usable > 0 {
            if let Some(slot) = self.blocks.get_mut(number) {
                *slot = Some(Block {
                    memory,
                    chunks: chunks.into(),
                    used: 0,
                });
            }
            self.idle_blocks += 1;
            self.free += usable;
            self.pages += usable;
        }
        usable
    }

    /// Takes a block of which no page is out, to be unmapped.
    pub(super) fn remove_idle(&mut self) -> Option<B> {
        let at = self
            .blocks
            .iter()
            .rposition(|block| block.as_ref().is_some_and(|block| block.used == 0))?;
        let block = self.blocks.get_mut(at)?.take()?;
        for &chunk in &block.chunks {
            self.delist(chunk);
            if let Some(there) = self.chunks.get_mut(chunk as usize) {
                self.index.remove(there.base);
                self.free -= usize::from(there.usable);
                self.pages -= usize::from(there.usable);
                // Nobody finds it, and it has nothing to hand out.
                (there.usable, there.free, there.map) = (0, 0, [0; WORDS]);
            }
            self.vacant.push(chunk);
        }
        self.idle_blocks -= 1;
        Some(block.memory)
    }

    fn list(&mut self, place: Place) -> Option<&mut u32> {
        match place {
            Place::Full => None,
            Place::Partial => Some(&mut self.partial),
            Place::Empty => Some(&mut self.empty),
        }
    }

    fn enlist(&mut self, at: u32, place: Place) {
        let head = self
            .list(place)
            .map_or(NONE, |head| std::mem::replace(head, at));
        if let Some(chunk) = self.chunks.get_mut(at as usize) {
            chunk.place = place;
            chunk.before = NONE;
            chunk.behind = head;
        }
        if let Some(behind) = self.chunks.get_mut(head as usize) {
            behind.before = at;
        }
    }

    fn delist(&mut self, at: u32) {
        let Some(chunk) = self.chunks.get_mut(at as usize) else {
            return;
        };
        let (before, behind, place) = (chunk.before, chunk.behind, chunk.place);
        if place == Place::Full {
            // In no list: its links are of another time.
            return;
        }
        chunk.place = Place::Full;
        if let Some(before) = self.chunks.get_mut(before as usize) {
            before.behind = behind;
        } else if let Some(head) = self.list(place) {
            *head = behind;
        }
        if let Some(behind) = self.chunks.get_mut(behind as usize) {
            behind.before = before;
        }
    }

    /// Puts a chunk into the list that its free pages ask for.
    fn settle(&mut self, at: u32) {
        let Some(chunk) = self.chunks.get(at as usize) else {
            return;
        };
        let place = match chunk.free {
            0 => Place::Full,
            free if free == chunk.usable => Place::Empty,
            _ => Place::Partial,
        };
        if place == chunk.place {
            return;
        }
        let (was_empty, block) = (chunk.place == Place::Empty, chunk.block as usize);
        self.delist(at);
        if place != Place::Full {
            self.enlist(at, place);
        }
        if let Some(Some(block)) = self.blocks.get_mut(block) {
            if was_empty {
                self.idle_blocks -= usize::from(block.used == 0);
                block.used += 1;
            } else if place == Place::Empty {
                block.used -= 1;
                self.idle_blocks += usize::from(block.used == 0);
            }
        }
    }

    /// Hands `count` pages to `owner` and appends their addresses to `out`; at most
    /// [`free`](Self::free).
    pub(super) fn take(&mut self, owner: u16, count: usize, out: &mut Vec<u64>) {
        let mut left = count.min(self.free);
        self.free -= left;
        while left > 0 {
            let at = if self.partial == NONE {
                self.empty
            } else {
                self.partial
            };
            let first = at as usize * CHUNK_PAGES;
            let (Some(chunk), Some(owners)) = (
                self.chunks.get_mut(at as usize),
                self.owners.get_mut(first..first + CHUNK_PAGES),
            ) else {
                return;
            };
            for ((word, bits), owners) in
                chunk.map.iter_mut().enumerate().zip(owners.chunks_mut(64))
            {
                // A whole word at once, where it is wholly free.
                if *bits == u64::MAX && left >= 64 && owners.len() == 64 {
                    let first = chunk.base + ((word as u64) << (6 + LOG_PAGE));
                    owners.fill(owner);
                    out.extend((0..64).map(|page| first + (page << LOG_PAGE)));
                    *bits = 0;
                    chunk.free -= 64;
                    left -= 64;
                    continue;
                }
                while *bits != 0 && left > 0 {
                    let bit = bits.trailing_zeros();
                    *bits &= *bits - 1;
                    if let Some(place) = owners.get_mut(bit as usize) {
                        *place = owner;
                    }
                    out.push(chunk.base + (((word as u64) << 6 | u64::from(bit)) << LOG_PAGE));
                    chunk.free -= 1;
                    left -= 1;
                }
            }
            self.settle(at);
        }
    }

    /// Frees the pages of `pages` that `owner` has, or nobody knows who; `refuse` is told of every
    /// other address. Returns how many were freed of either kind.
    pub(super) fn give_back(
        &mut self,
        owner: u16,
        pages: &[u64],
        mut refuse: impl FnMut(u64, Wrong),
    ) -> (usize, usize) {
        let (mut freed, mut unsure) = (0, 0);
        let mut rest = pages;
        while !rest.is_empty() {
            // As far as a word goes, where neighbours begin in its middle.
            let most = match rest {
                [first, next, ..] if *next == first.wrapping_add(1 << LOG_PAGE) => {
                    TOGETHER - inside(*first) % TOGETHER
                }
                _ => TOGETHER,
            };
            let (these, others) = rest.split_at(rest.len().min(most));
            rest = others;
            let known = self.look_up(owner, these);
            if known.neighbours {
                if let Some(at) = known.chunks.first() {
                    freed += self.free_word(*at, these);
                }
                continue;
            }
            for (page, at) in these.iter().zip(known.chunks) {
                match self.free_one(owner, *page, at) {
                    Ok(before) => {
                        freed += 1;
                        unsure += usize::from(before == LIMBO);
                    }
                    Err(wrong) => refuse(*page, wrong),
                }
            }
        }
        self.free += freed;
        (freed - unsure, unsure)
    }

    /// Finds the chunks of some addresses, and fetches what freeing them needs: each address lies
    /// somewhere else, and one by one each would be waited for.
    fn look_up(&self, owner: u16, pages: &[u64]) -> Known {
        let first = pages.first().copied().unwrap_or(0);
        let word = u64::from(first & ((64 << LOG_PAGE) - 1) == 0 && pages.len() == TOGETHER);
        let apart = (first..)
            .step_by(1 << LOG_PAGE)
            .zip(pages)
            .fold(word ^ 1, |apart, (next, page)| apart | (next ^ page));
        if apart == 0 {
            let at = self.index.find(first).unwrap_or(NONE);
            let from = at as usize * CHUNK_PAGES + inside(first);
            let owners = self.owners.get(from..from + TOGETHER);
            let all = owners.is_some_and(|owners| owners.iter().all(|there| *there == owner));
            return Known {
                chunks: [at; TOGETHER],
                neighbours: all && at != NONE && owner != FREE,
            };
        }
        let mut chunks = [NONE; TOGETHER];
        for (at, page) in chunks.iter_mut().zip(pages) {
            *at = self.index.find(*page).unwrap_or(NONE);
        }
        let mut sum = 0;
        for (at, page) in chunks.iter().zip(pages) {
            let at = *at as usize;
            let place = self.owners.get(at * CHUNK_PAGES + inside(*page));
            let free = self.chunks.get(at).map_or(0, |chunk| chunk.free);
            sum ^= place.copied().unwrap_or(0) ^ free;
        }
        // Loads whose values nobody uses would be left out.
        std::hint::black_box(sum);
        Known {
            chunks,
            neighbours: false,
        }
    }

    /// Frees the pages of one word of a chunk's map, all of which are out.
    fn free_word(&mut self, at: u32, pages: &[u64]) -> usize {
        let within = pages.first().map_or(0, |page| inside(*page));
        let from = at as usize * CHUNK_PAGES + within;
        let (Some(chunk), Some(owners)) = (
            self.chunks.get_mut(at as usize),
            self.owners.get_mut(from..from + pages.len()),
        ) else {
            return 0;
        };
        let Some(bits) = chunk.map.get_mut(within / 64) else {
            return 0;
        };
        owners.fill(FREE);
        *bits = u64::MAX;
        chunk.free += 64;
        self.settle(at);
        pages.len()
    }

    /// Frees a page; returns whose it was.
    #[inline]
    fn free_one(&mut self, owner: u16, page: u64, at: u32) -> Result<u16, Wrong> {
        let within = inside(page);
        let place = self.owners.get_mut(at as usize * CHUNK_PAGES + within);
        let (Some(chunk), Some(place)) = (self.chunks.get_mut(at as usize), place) else {
            return Err(misaligned(page).unwrap_or(Wrong::NotOurs));
        };
        let before = *place;
        let good = page & 0xfff == 0 && before != FREE && (before == owner || before == LIMBO);
        let Some(bits) = chunk.map.get_mut(within / 64).filter(|_| good) else {
            let wrong = match before {
                FREE => Wrong::Free,
                _ => Wrong::Others,
            };
            return Err(misaligned(page).unwrap_or(wrong));
        };
        *place = FREE;
        *bits |= 1 << (within % 64);
        chunk.free += 1;
        if chunk.place != Place::Partial || chunk.free == chunk.usable {
            self.settle(at);
        }
        Ok(before)
    }

    /// Makes pages another owner's.
    pub(super) fn pass_on(&mut self, pages: &[u64], from: u16, to: u16) {
        for page in pages {
            let Some(at) = self.index.find(*page) else {
                continue;
            };
            let inside = (*page >> LOG_PAGE) as usize & (CHUNK_PAGES - 1);
            if let Some(place) = self.owners.get_mut(at as usize * CHUNK_PAGES + inside) {
                if *place == from {
                    *place = to;
                }
            }
        }
    }

    /// One slice of freeing all that `owner` has, from chunk `from` on: at most `pages` pages (and
    /// the rest of a chunk), at most `chunks` chunks looked at. Returns the pages freed and the
    /// chunk to go on with, nothing at the end.
    pub(super) fn sweep(
        &mut self,
        owner: u16,
        from: usize,
        pages: usize,
        chunks: usize,
    ) -> (usize, Option<usize>) {
        let mut freed = 0;
        let end = self.chunks.len();
        for at in from..end {
            if freed >= pages || at - from >= chunks {
                return (freed, Some(at));
            }
            let first = at * CHUNK_PAGES;
            let (Some(chunk), Some(owners)) = (
                self.chunks.get_mut(at),
                self.owners.get_mut(first..first + CHUNK_PAGES),
            ) else {
                break;
            };
            // Nearly always all or nothing, and the look is vectorized.
            if !owners.contains(&owner) {
                continue;
            }
            let before = chunk.free;
            for (bits, owners) in chunk.map.iter_mut().zip(owners.chunks_mut(64)) {
                for (bit, place) in owners.iter_mut().enumerate() {
                    if *place == owner {
                        *place = FREE;
                        *bits |= 1 << bit;
                        chunk.free += 1;
                    }
                }
            }
            let here = usize::from(chunk.free - before);
            self.free += here;
            freed += here;
            self.settle(at as u32);
        }
        (freed, None)
    }

    /// Panics unless bitmaps, owners, counts and lists agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut free = 0;
        for (at, chunk) in self.chunks.iter().enumerate() {
            if chunk.usable == 0 {
                continue;
            }
            let owners = &self.owners[at * CHUNK_PAGES..][..CHUNK_PAGES];
            let bits: u32 = chunk.map.iter().map(|word| word.count_ones()).sum();
            assert_eq!(bits, u32::from(chunk.free), "chunk {at}");
            for (page, owner) in owners.iter().enumerate() {
                let bit = chunk.map[page / 64] >> (page % 64) & 1 == 1;
                let never = chunk.base == 0 && page == 0;
                assert_eq!(bit, *owner == FREE && !never, "page {page} of chunk {at}");
            }
            free += usize::from(chunk.free);
        }
        assert_eq!(free, self.free);
        for (head, place) in [(self.partial, Place::Partial), (self.empty, Place::Empty)] {
            let (mut at, mut before, mut steps) = (head, NONE, 0);
            while at != NONE {
                let chunk = &self.chunks[at as usize];
                assert!(
                    chunk.place == place && chunk.before == before,
                    "list of {at}"
                );
                (before, at) = (at, chunk.behind);
                steps += 1;
                assert!(steps <= self.chunks.len(), "a list in a circle");
            }
        }
    }

    /// Drops every block.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// What [`Arena::look_up`] found.
struct Known {
    /// Chunk of each address, [`NONE`] where there is none.
    chunks: [u32; TOGETHER],
    /// The addresses are those of one word of a chunk's map, in order, and all the owner's.
    neighbours: bool,
}

/// A page's place in its chunk.
#[inline]
fn inside(page: u64) -> usize {
    (page >> LOG_PAGE) as usize & (CHUNK_PAGES - 1)
}

fn misaligned(page: u64) -> Option<Wrong> {
    (page & 0xfff != 0).then_some(Wrong::Misaligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(chunks: u64) -> Arena<u64> {
        let mut arena = Arena::new();
        for n in 0..chunks {
            assert_eq!(arena.add(n, (n + 1) * CHUNK, CHUNK_PAGES), CHUNK_PAGES);
        }
        arena
    }

    fn take(arena: &mut Arena<u64>, owner: u16, count: usize) -> Vec<u64> {
        let mut out = Vec::new();
        arena.take(owner, count, &mut out);
        assert_eq!(out.len(), count);
        out
    }

    #[test]
    fn a_block_that_is_not_aligned_gives_its_whole_chunks() {
        let mut arena = Arena::new();
        assert_eq!(arena.add((), CHUNK + 4096, 1022), 0, "no whole chunk");
        assert_eq!(arena.blocks(), 0);
        assert_eq!(arena.add((), CHUNK + 4096, 1023), 512);
        let mut out = Vec::new();
        arena.take(1, 512, &mut out);
        assert_eq!((out[0], out[511]), (2 * CHUNK, 3 * CHUNK - 4096));
    }

    #[test]
    fn chunks_in_use_are_filled_before_empty_ones() {
        let mut arena = arena(3);
        let pages = take(&mut arena, 1, 600);
        assert_eq!(arena.idle_blocks(), 1);
        arena.give_back(1, &pages[..500], |page, _| panic!("{page:#x}"));
        take(&mut arena, 2, 500);
        assert_eq!(arena.idle_blocks(), 1, "the third is still whole");
        assert!(arena.remove_idle().is_some());
        assert!(arena.remove_idle().is_none());
        assert_eq!((arena.pages(), arena.free()), (1024, 424));
    }

    #[test]
    fn what_comes_back_wrongly_is_refused_by_kind() {
        let mut arena = arena(2);
        let mine = take(&mut arena, 1, 2);
        let others = take(&mut arena, 2, 1);
        let mut seen = Vec::new();
        let back = [
            mine[0],
            mine[0],
            others[0],
            mine[1] + 8,
            64 * CHUNK,
            65 * CHUNK + 1,
        ];
        let freed = arena.give_back(1, &back, |_, wrong| seen.push(wrong));
        assert_eq!(freed, (1, 0));
        let kinds = [
            Wrong::Free,
            Wrong::Others,
            Wrong::Misaligned,
            Wrong::NotOurs,
            Wrong::Misaligned,
        ];
        assert_eq!(seen, kinds);
        assert_eq!(arena.free(), 1022);
    }

    /// By words, from the middle of a word on, backwards, and mixed: it is the same.
    #[test]
    fn pages_come_back_in_any_order() {
        let mut arena = arena(8);
        for way in 0..5 {
            let mine = take(&mut arena, 1, 3000);
            let others = take(&mut arena, 2, 70);
            let mut back = mine.clone();
            match way {
                0 => {}
                1 => back.rotate_left(29),
                2 => back.reverse(),
                3 => back.sort_by_key(|page| page.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                _ => back.chunks_mut(7).for_each(<[u64]>::reverse),
            }
            let (first, rest) = back.split_at(1001);
            for part in [first, rest] {
                let freed = arena.give_back(1, part, |page, _| panic!("{page:#x}"));
                assert_eq!(freed, (part.len(), 0));
                arena.check();
            }
            let mut seen = 0;
            assert_eq!(arena.give_back(1, &mine, |_, _| seen += 1), (0, 0));
            assert_eq!(seen, 3000);
            assert_eq!(arena.give_back(2, &others, |_, _| seen += 1), (70, 0));
            assert_eq!((arena.free(), seen), (4096, 3000));
        }
    }

    #[test]
    fn a_released_block_is_forgotten_and_its_numbers_used_again() {
        let mut arena = arena(4);
        assert!(arena.remove_idle().is_some() && arena.remove_idle().is_some());
        assert_eq!(arena.free(), 1024);
        assert_eq!(arena.add(9, 100 * CHUNK, 3 * CHUNK_PAGES), 1536);
        let all = take(&mut arena, 7, 2560);
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 2560);
        assert_eq!(arena.free(), 0);
        let freed = arena.give_back(7, &all, |page, _| panic!("{page:#x}"));
        assert_eq!(freed, (2560, 0));
        assert_eq!(arena.idle_blocks(), 3);
    }

    #[test]
    fn a_sweep_goes_in_slices() {
        let mut arena = arena(10);
        take(&mut arena, 1, 2000);
        take(&mut arena, 2, 100);
        let (mut from, mut freed, mut slices) = (0, 0, 0);
        loop {
            let (n, next) = arena.sweep(1, from, 600, 4);
            assert!(n <= 600 + CHUNK_PAGES);
            freed += n;
            slices += 1;
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(freed, 2000);
        assert!(slices >= 3, "{slices}");
        assert_eq!(arena.free(), 5020);
    }
}
