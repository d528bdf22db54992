//! Firmware pages: QUERY_PAGES, MANAGE_PAGES, and the ledgers.
//!
//! The firmware asks for boot pages after ENABLE_HCA and for init pages before INIT_HCA. A part of
//! the latter is for objects; when more objects live than fit, it raises a page request and holds
//! the command that made it short until pages come, or refuses it when the driver cannot give.
//! When objects have gone it hints that pages can be taken back. After TEARDOWN_HCA everything can.
//!
//! Requests can come for other functions too, which exist as far as pages are concerned: each has
//! a ledger. How many there are, and how the firmware answers, is what tests ask for
//! ([`PageManners`]).

use super::page_set::{PageSet, runs};
use super::{AWAKE, Answer, Call, Firmware, Spec, Stop, command, ensure};
use crate::events::Event;
use crate::faults::{PageDemand, PageLie, PageOwner};
use crate::syndrome::{Phase, Reason};
use pollux_prm::command::Opcode;
use pollux_prm::commands::pages::*;
use std::collections::BTreeMap;

const LOG_PAGE: u32 = 12;
/// Objects whose contexts one page holds.
const OBJECTS_PER_PAGE: u64 = 16;
/// Pages that one request asks for at least.
const REQUEST: u64 = 32;
/// Pages that must be idle before the firmware offers any back.
const IDLE: u64 = 128;

const CANT_GIVE: u16 = 0;
const GIVE: u16 = 1;
const TAKE: u16 = 2;
const BOOT: u16 = 1;
const INIT: u16 = 2;
const REGULAR: u16 = 3;

/// The pages of one function.
#[derive(Clone, Debug, Default)]
struct Holding {
    set: PageSet,
    /// Pages asked for by QUERY_PAGES or a request and not given yet.
    owed: u64,
    /// A hint to take pages back that is not answered yet.
    offered: u64,
    /// Pages that the firmware lets go of although it needs them.
    released: u64,
}

/// What the firmware has and wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    /// All pages, whoever has them.
    all: PageSet,
    holdings: BTreeMap<PageOwner, Holding>,
    /// The driver said that it cannot give; held commands fail.
    denied: bool,
    /// Boot pages, and init pages, were complete once.
    boot_done: bool,
    init_done: bool,
    /// More pages came since the held commands were tried last.
    pub(crate) news: bool,
}

impl Pages {
    /// Pages that the firmware has.
    pub(crate) fn held(&self) -> usize {
        self.all.len() as usize
    }

    /// Pages by function.
    pub(crate) fn by_function(&self) -> BTreeMap<PageOwner, u64> {
        self.holdings
            .iter()
            .map(|(owner, holding)| (*owner, holding.set.len()))
            .filter(|(_, pages)| *pages > 0)
            .collect()
    }

    /// Pages that were asked for and not given.
    fn owed(&self) -> u64 {
        self.holdings.values().map(|holding| holding.owed).sum()
    }

    fn of(&mut self, owner: PageOwner) -> &mut Holding {
        self.holdings.entry(owner).or_default()
    }

    /// The function's own.
    fn own(&mut self) -> &mut Holding {
        self.of(PageOwner::OWN)
    }
}

pub(super) fn commands() -> Vec<Spec> {
    let of = ["input_num_entries", "function_id", "embedded_cpu_function"];
    vec![
        command::<QueryPages>(AWAKE, &[], query).variants(&[BOOT, INIT, REGULAR]),
        command::<ManagePages>(AWAKE, &of, manage).variants(&[CANT_GIVE, GIVE, TAKE]),
    ]
}

impl Firmware {
    /// Whether all pages that INIT_HCA needs are there.
    pub(super) fn init_pages_given(&self) -> bool {
        self.pages.boot_done && self.pages.init_done
    }

    /// Whether boot pages are there.
    pub(super) fn boot_pages_given(&self) -> bool {
        self.pages.boot_done
    }

    /// Whether a command waits because pages are owed.
    pub(super) fn waits_for_pages(&self, opcode: u16) -> bool {
        let about_pages = [Opcode::QUERY_PAGES.0, Opcode::MANAGE_PAGES.0].contains(&opcode);
        self.manners.holds && !about_pages && self.phase == Phase::Running && self.pages.owed() > 0
    }

    /// Pages that the firmware needs for itself and `objects` objects.
    fn need_for(&self, objects: u64) -> u64 {
        let core = u64::from(self.character.boot_pages) + u64::from(self.character.init_pages);
        let spare = u64::from(self.character.spare_pages);
        core + objects.div_ceil(OBJECTS_PER_PAGE).saturating_sub(spare)
    }

    /// Makes sure that there are pages for `count` more objects.
    pub(super) fn charge(&mut self, count: u64) -> Result<(), Stop> {
        let need = self.need_for(self.objects.len() as u64 + count);
        let held = self.pages.own().set.len();
        if need <= held {
            return Ok(());
        }
        if std::mem::take(&mut self.pages.denied) {
            return Err(Stop::because(Reason::PagesDenied));
        }
        if self.pages.own().owed == 0 {
            let ask = (need - held).max(REQUEST);
            self.pages.own().owed = ask;
            self.raise(PageOwner::OWN, ask as i32, false);
        }
        Err(Stop::Hold)
    }

    fn raise(&mut self, owner: PageOwner, count: i32, release_all: bool) {
        self.events.push(Event::PageRequest {
            owner,
            count,
            release_all,
        });
    }

    /// Offers pages back when many are idle.
    pub(super) fn relieve(&mut self) {
        let need = self.need_for(self.objects.len() as u64);
        let own = self.pages.own();
        let idle = own.set.len().saturating_sub(need);
        if self.phase == Phase::Running && own.offered == 0 && idle >= IDLE {
            self.pages.own().offered = idle;
            self.raise(PageOwner::OWN, -(idle as i32), false);
        }
    }

    /// Whether the driver lets the firmware drop all pages of a function.
    pub(crate) fn may_release_all(&self) -> bool {
        self.limits().release_all_pages
    }

    /// A fault: the firmware raises a page request of its own accord. False for one that releases
    /// all where the driver has not allowed it.
    pub(crate) fn raise_demand(&mut self, owner: PageOwner, demand: PageDemand) -> bool {
        let count = |pages: u32| i32::try_from(pages).unwrap_or(i32::MAX);
        match demand {
            PageDemand::Give(pages) => {
                let count = count(pages);
                self.pages.of(owner).owed += u64::from(count.unsigned_abs());
                self.raise(owner, count, false);
            }
            PageDemand::Take(pages) | PageDemand::Hint(pages) => {
                let count = count(pages);
                let holding = self.pages.of(owner);
                holding.offered += u64::from(count.unsigned_abs());
                if matches!(demand, PageDemand::Take(_)) {
                    holding.released += u64::from(count.unsigned_abs());
                }
                self.raise(owner, -count, false);
            }
            PageDemand::ReleaseAll => {
                if !self.may_release_all() {
                    return false;
                }
                let pages = &mut self.pages;
                if let Some(holding) = pages.holdings.get_mut(&owner) {
                    for (first, len) in holding.set.take_last(u64::MAX) {
                        pages.all.remove(first, len);
                    }
                    holding.offered = 0;
                    holding.released = 0;
                }
                self.raise(owner, 0, true);
            }
        }
        true
    }
}

fn query(firmware: &mut Firmware, _: &QueryPagesIn, call: &Call<'_>) -> Answer<QueryPagesOut> {
    let boot = u64::from(firmware.character.boot_pages);
    let init = u64::from(firmware.character.init_pages);
    let early = Stop::because(Reason::PagesMissing);
    let phase = Stop::Refuse(
        Reason::WrongPhase,
        super::About::Number(firmware.phase as u16),
    );
    let held = firmware.pages.own().set.len();
    let wanted = match call.op_mod {
        REGULAR => {
            ensure(firmware.phase == Phase::Running, phase)?;
            firmware.pages.own().owed
        }
        which => {
            ensure(firmware.phase == Phase::Enabled, phase)?;
            let total = if which == BOOT { boot } else { boot + init };
            ensure(which == BOOT || firmware.pages.boot_done, early)?;
            let wanted = total.saturating_sub(held);
            firmware.pages.own().owed = wanted;
            let done = if which == BOOT {
                &mut firmware.pages.boot_done
            } else {
                &mut firmware.pages.init_done
            };
            *done |= wanted == 0;
            wanted
        }
    };
    let mut out = QueryPagesOut::zeroed();
    out.set_num_pages(wanted as u32);
    Ok(out.into())
}

fn manage(
    firmware: &mut Firmware,
    input: &ManagePagesIn,
    call: &Call<'_>,
) -> Answer<ManagePagesOut> {
    let count = input.input_num_entries();
    let owner = PageOwner {
        function: input.function_id(),
        embedded: input.embedded_cpu_function(),
    };
    // Functions are known by what the firmware asked for them.
    let known = owner == PageOwner::OWN || firmware.pages.holdings.contains_key(&owner);
    ensure(known, Stop::value("function_id"))?;
    let refuse_above = firmware.manners.refuse_above.unwrap_or(u32::MAX);
    ensure(count <= refuse_above, Stop::value("input_num_entries"))?;
    let mut out = ManagePagesOut::zeroed();
    match call.op_mod {
        GIVE => {
            give(firmware, owner, count, call)?;
            Ok(out.into())
        }
        CANT_GIVE => {
            ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
            ensure(count == 0, Stop::value("input_num_entries"))?;
            firmware.pages.of(owner).owed = 0;
            firmware.pages.denied |= owner == PageOwner::OWN;
            firmware.pages.news = true;
            Ok(out.into())
        }
        _ => {
            ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
            let mut taken = take(firmware, owner, count, call)?;
            let more = lie(firmware, owner, &mut taken);
            out.set_output_num_entries((taken.len() as u32).saturating_add(more));
            let mut tail = Vec::with_capacity(8 * taken.len());
            for page in &taken {
                tail.extend_from_slice(&page.to_be_bytes());
            }
            Ok(super::Reply::with_tail(out, tail))
        }
    }
}

fn give(
    firmware: &mut Firmware,
    owner: PageOwner,
    count: u32,
    call: &Call<'_>,
) -> Result<(), Stop> {
    let mut list = call.words64();
    ensure(
        list.len() == count as usize,
        Stop::value("input_num_entries"),
    )?;
    ensure(count > 0, Stop::value("input_num_entries"))?;
    let owed = firmware.pages.of(owner).owed;
    let unasked = Stop::field(Reason::PagesUnasked, "input_num_entries");
    ensure(
        u64::from(count) <= owed && firmware.phase != Phase::TornDown,
        unasked,
    )?;
    let bad = Stop::because(Reason::BadPage);
    let aligned = |page: &u64| *page != 0 && page.trailing_zeros() >= LOG_PAGE;
    ensure(list.iter().all(aligned), bad)?;
    list.iter_mut().for_each(|page| *page >>= LOG_PAGE);
    let pages = &mut firmware.pages;
    for (at, (first, len)) in runs(&list).enumerate() {
        if !pages.all.insert(first, len) {
            // What went in goes out again.
            for (first, len) in runs(&list).take(at) {
                pages.all.remove(first, len);
            }
            return Err(bad);
        }
    }
    let holding = pages.of(owner);
    for (first, len) in runs(&list) {
        holding.set.insert(first, len);
    }
    holding.owed -= u64::from(count);
    let held = holding.set.len();
    pages.denied = false;
    pages.news = true;
    if owner == PageOwner::OWN {
        let boot = u64::from(firmware.character.boot_pages);
        let init = u64::from(firmware.character.init_pages);
        pages.boot_done |= held >= boot;
        pages.init_done |= held >= boot + init;
    }
    Ok(())
}

/// Takes at most what is idle: all after TEARDOWN_HCA.
fn take(
    firmware: &mut Firmware,
    owner: PageOwner,
    count: u32,
    call: &Call<'_>,
) -> Result<Vec<u64>, Stop> {
    ensure(count > 0, Stop::value("input_num_entries"))?;
    let room = call.room.saturating_sub(ManagePagesOut::LEN) / 8;
    ensure(room >= count as usize, Stop::because(Reason::OutputLength))?;
    let need = match firmware.phase {
        Phase::Running if owner == PageOwner::OWN => {
            firmware.need_for(firmware.objects.len() as u64)
        }
        _ => 0,
    };
    let (partial, repeats) = (firmware.manners.partial, firmware.manners.repeats);
    let running = firmware.phase == Phase::Running;
    let pages = &mut firmware.pages;
    let Some(holding) = pages.holdings.get_mut(&owner) else {
        return Ok(Vec::new());
    };
    let idle = holding.set.len().saturating_sub(need).max(holding.released);
    let most = idle
        .min(u64::from(count))
        .min(partial.map_or(u64::MAX, u64::from));
    let mut taken = Vec::with_capacity(most.min(holding.set.len()) as usize);
    for (first, len) in holding.set.take_last(most) {
        pages.all.remove(first, len);
        taken.extend((first..first + len).map(|page| page << LOG_PAGE));
    }
    holding.offered = holding.offered.saturating_sub(taken.len() as u64);
    holding.released = holding.released.saturating_sub(taken.len() as u64);
    if taken.is_empty() {
        holding.offered = 0;
    }
    let left = holding.offered.min(holding.set.len());
    if firmware.phase == Phase::Enabled {
        firmware.pages.boot_done = false;
        firmware.pages.init_done = false;
    }
    if repeats && running && left > 0 {
        let count = i32::try_from(left).unwrap_or(i32::MAX);
        firmware.raise(owner, -count, false);
    }
    Ok(taken)
}

/// A fault: makes the answer to a TAKE wrong. Returns how many more pages it names than it lists.
fn lie(firmware: &mut Firmware, owner: PageOwner, taken: &mut [u64]) -> u32 {
    let Some(lie) = firmware.lies.pop_front() else {
        return 0;
    };
    let first = taken.first().copied().unwrap_or_default();
    let others = firmware
        .pages
        .holdings
        .iter()
        .filter(|(of, _)| **of != owner)
        .find_map(|(_, holding)| holding.set.first());
    let false_page = match lie {
        PageLie::Twice => first,
        PageLie::Misaligned => first | 8,
        // Above every address that a driver can have given.
        PageLie::Unknown => 1 << 60,
        PageLie::Others => others.unwrap_or_default() << LOG_PAGE,
        PageLie::TooMany => return 1,
    };
    if let Some(last) = taken.last_mut() {
        *last = false_page;
    }
    0
}
