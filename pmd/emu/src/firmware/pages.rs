//! Firmware pages: QUERY_PAGES, MANAGE_PAGES, and the ledger.
//!
//! The firmware asks for boot pages after ENABLE_HCA and for init pages before INIT_HCA. A part of
//! the latter is for objects; when more objects live than fit, it raises a page request and holds
//! the command that made it short until pages come, or refuses it when the driver cannot give.
//! When objects have gone it hints that pages can be taken back. After TEARDOWN_HCA everything can.

use super::{AWAKE, Answer, Call, Firmware, Spec, Stop, command, ensure};
use crate::events::Event;
use crate::syndrome::{Phase, Reason};
use pollux_prm::commands::pages::*;
use std::collections::BTreeSet;

const PAGE: u64 = 4096;
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

/// What the firmware has and wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    given: BTreeSet<u64>,
    /// Pages asked for by QUERY_PAGES or a request and not given yet.
    owed: u64,
    /// The driver said that it cannot give; held commands fail.
    denied: bool,
    /// A hint to take pages back that is not answered yet.
    offered: u64,
    /// Pages that the firmware lets go of although it needs them.
    released: u64,
    /// Boot pages, and init pages, were complete once.
    boot_done: bool,
    init_done: bool,
    /// More pages came since the held commands were tried last.
    pub(crate) news: bool,
}

impl Pages {
    /// Pages that the firmware has.
    pub(crate) fn held(&self) -> usize {
        self.given.len()
    }
}

pub(super) fn commands() -> Vec<Spec> {
    vec![
        command::<QueryPages>(AWAKE, &[], query).variants(&[BOOT, INIT, REGULAR]),
        command::<ManagePages>(AWAKE, &["input_num_entries"], manage)
            .variants(&[CANT_GIVE, GIVE, TAKE]),
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

    /// Pages that the firmware needs for itself and `objects` objects.
    fn need_for(&self, objects: u64) -> u64 {
        let core = u64::from(self.character.boot_pages) + u64::from(self.character.init_pages);
        let spare = u64::from(self.character.spare_pages);
        core + objects.div_ceil(OBJECTS_PER_PAGE).saturating_sub(spare)
    }

    /// Makes sure that there are pages for `count` more objects.
    pub(super) fn charge(&mut self, count: u64) -> Result<(), Stop> {
        let need = self.need_for(self.objects.len() as u64 + count);
        let held = self.pages.held() as u64;
        if need <= held {
            return Ok(());
        }
        if std::mem::take(&mut self.pages.denied) {
            return Err(Stop::because(Reason::PagesDenied));
        }
        if self.pages.owed == 0 {
            let ask = (need - held).max(REQUEST);
            self.pages.owed = ask;
            self.events.push(Event::PageRequest {
                count: ask as i32,
                release_all: false,
            });
        }
        Err(Stop::Hold)
    }

    /// Offers pages back when many are idle.
    pub(super) fn relieve(&mut self) {
        let idle =
            (self.pages.held() as u64).saturating_sub(self.need_for(self.objects.len() as u64));
        if self.phase == Phase::Running && self.pages.offered == 0 && idle >= IDLE {
            self.pages.offered = idle;
            self.events.push(Event::PageRequest {
                count: -(idle as i32),
                release_all: false,
            });
        }
    }

    /// A fault: the firmware offers pages of its own accord, and means it or does not.
    pub(crate) fn offer_pages(&mut self, count: i32, meant: bool) {
        let pages = u64::from(count.unsigned_abs());
        self.pages.offered += pages;
        self.pages.released += if meant { pages } else { 0 };
        self.events.push(Event::PageRequest {
            count: -count,
            release_all: false,
        });
    }

    /// A fault: the firmware asks for pages of its own accord.
    pub(crate) fn request_pages(&mut self, count: i32) {
        self.pages.owed += u64::from(count.unsigned_abs());
        self.events.push(Event::PageRequest {
            count,
            release_all: false,
        });
    }

    /// A fault: the firmware drops all pages and says so. Only where the driver has allowed it.
    pub(crate) fn release_all_pages(&mut self) -> bool {
        if !self.limits().release_all_pages {
            return false;
        }
        self.pages.given.clear();
        self.events.push(Event::PageRequest {
            count: 0,
            release_all: true,
        });
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
    let held = firmware.pages.held() as u64;
    let wanted = match call.op_mod {
        REGULAR => {
            ensure(firmware.phase == Phase::Running, phase)?;
            firmware.pages.owed
        }
        which => {
            ensure(firmware.phase == Phase::Enabled, phase)?;
            let total = if which == BOOT { boot } else { boot + init };
            ensure(which == BOOT || firmware.pages.boot_done, early)?;
            let wanted = total.saturating_sub(held);
            firmware.pages.owed = wanted;
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
    let mut out = ManagePagesOut::zeroed();
    match call.op_mod {
        GIVE => {
            give(firmware, count, call)?;
            Ok(out.into())
        }
        CANT_GIVE => {
            ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
            ensure(count == 0, Stop::value("input_num_entries"))?;
            firmware.pages.owed = 0;
            firmware.pages.denied = true;
            firmware.pages.news = true;
            Ok(out.into())
        }
        _ => {
            ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
            let taken = take(firmware, count, call)?;
            out.set_output_num_entries(taken.len() as u32);
            let tail = taken.iter().flat_map(|page| page.to_be_bytes()).collect();
            Ok(super::Reply::with_tail(out, tail))
        }
    }
}

fn give(firmware: &mut Firmware, count: u32, call: &Call<'_>) -> Result<(), Stop> {
    let list = call.words64();
    ensure(
        list.len() == count as usize,
        Stop::value("input_num_entries"),
    )?;
    ensure(count > 0, Stop::value("input_num_entries"))?;
    let owed = firmware.pages.owed;
    let unasked = Stop::field(Reason::PagesUnasked, "input_num_entries");
    ensure(
        u64::from(count) <= owed && firmware.phase != Phase::TornDown,
        unasked,
    )?;
    let mut fresh = BTreeSet::new();
    for page in list {
        let good = page != 0
            && page % PAGE == 0
            && !firmware.pages.given.contains(&page)
            && fresh.insert(page);
        ensure(good, Stop::because(Reason::BadPage))?;
    }
    let pages = &mut firmware.pages;
    pages.given.append(&mut fresh);
    pages.owed -= u64::from(count);
    pages.denied = false;
    pages.news = true;
    let boot = u64::from(firmware.character.boot_pages);
    let init = u64::from(firmware.character.init_pages);
    let held = pages.held() as u64;
    pages.boot_done |= held >= boot;
    pages.init_done |= held >= boot + init;
    Ok(())
}

/// Takes at most what is idle: all after TEARDOWN_HCA.
fn take(firmware: &mut Firmware, count: u32, call: &Call<'_>) -> Result<Vec<u64>, Stop> {
    ensure(count > 0, Stop::value("input_num_entries"))?;
    let room = call.room.saturating_sub(ManagePagesOut::LEN) / 8;
    ensure(room >= count as usize, Stop::because(Reason::OutputLength))?;
    let held = firmware.pages.held();
    let idle = match firmware.phase {
        Phase::Running => {
            let need = firmware.need_for(firmware.objects.len() as u64) as usize;
            held.saturating_sub(need)
                .max(firmware.pages.released as usize)
        }
        _ => held,
    };
    let mut taken = Vec::new();
    while taken.len() < idle.min(count as usize) {
        match firmware.pages.given.pop_last() {
            Some(page) => taken.push(page),
            None => break,
        }
    }
    let pages = &mut firmware.pages;
    pages.offered = pages.offered.saturating_sub(taken.len() as u64);
    pages.released = pages.released.saturating_sub(taken.len() as u64);
    if taken.is_empty() {
        pages.offered = 0;
    }
    if firmware.phase == Phase::Enabled {
        pages.boot_done = false;
        pages.init_done = false;
    }
    Ok(taken)
}
