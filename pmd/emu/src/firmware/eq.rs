//! Doorbell pages and event queues: ALLOC_UAR, CREATE_EQ and their kin.

use super::{Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::RingMemory;
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::eq::*;

/// Number of the first event queue, as cards have it.
const FIRST: u64 = 0x10;
/// Event queue entries are 64 bytes.
const LOG_ENTRY: u32 = 6;
/// Number of the event type of completions; it cannot be subscribed to.
const COMPLETION: u32 = 0;

const ARMED: u8 = 0x9;
const FIRED: u8 = 0xa;
const WRITE_FAILURE: u8 = 0xa;

pub(super) fn commands() -> Vec<Spec> {
    let context = [
        "eq_context_entry.oi",
        "eq_context_entry.log_eq_size",
        "eq_context_entry.uar_page",
        "eq_context_entry.intr",
        "eq_context_entry.log_page_size",
        "event_bitmask",
    ];
    vec![
        command::<AllocUar>(RUNNING, &[], alloc_uar),
        command::<DeallocUar>(RUNNING, &["uar"], dealloc_uar),
        command::<CreateEq>(RUNNING, &context, create),
        command::<QueryEq>(RUNNING, &["eq_number"], query),
        command::<DestroyEq>(RUNNING, &["eq_number"], destroy),
    ]
}

/// An event queue: its context, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Eq {
    context: Eqc,
    /// Event types that come here.
    pub(crate) events: [u64; 4],
    pub(crate) ring: RingMemory,
    pub(crate) log_size: u32,
    pub(crate) overrun_ignore: bool,
    pub(crate) vector: usize,
    pub(crate) uar: u32,
    /// Entries written, modulo 2^24.
    pub(crate) producer: u32,
    /// What the driver said last, modulo 2^24.
    pub(crate) consumer: u32,
    pub(crate) armed: bool,
    /// Overrun, or its memory went away: nothing is written any more.
    pub(crate) failed: bool,
}

/// Checks a list of page addresses against the ring it is for.
pub(super) fn ring_memory(
    list: Vec<u64>,
    ring_bytes: u64,
    log_page: u8,
    path: &'static str,
) -> Result<RingMemory, Stop> {
    let log_page_size = 12 + u32::from(log_page);
    let page = 1u64 << log_page_size;
    let pages = ring_bytes.div_ceil(page);
    ensure(list.len() as u64 == pages, Stop::because(Reason::PageList))?;
    let good = |address: &u64| *address != 0 && address % page == 0;
    ensure(list.iter().all(good), Stop::field(Reason::BadAddress, path))?;
    Ok(RingMemory {
        pages: list,
        log_page_size,
        offset: 0,
    })
}

/// A page list as a command's tail.
pub(super) fn page_list(ring: &RingMemory) -> Vec<u8> {
    ring.pages
        .iter()
        .flat_map(|page| page.to_be_bytes())
        .collect()
}

fn alloc_uar(firmware: &mut Firmware, _: &AllocUarIn, call: &Call<'_>) -> Answer<AllocUarOut> {
    let range = firmware.character.uars.clone();
    let count = u64::from(range.end - range.start);
    let number = firmware.number(Kind::Uar, u64::from(range.start), count)?;
    firmware.data.enable_uar(number)?;
    firmware
        .objects
        .create((Kind::Uar, number.into()), call.uid, vec![]);
    let mut out = AllocUarOut::zeroed();
    out.set_uar(number)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn dealloc_uar(firmware: &mut Firmware, input: &DeallocUarIn, call: &Call<'_>) -> Answer<PlainOut> {
    let id = (Kind::Uar, u64::from(input.uar()));
    firmware.removable(id, call.uid, "uar")?;
    firmware.data.disable_uar(input.uar())?;
    firmware.remove(id, call.uid, "uar")?;
    Ok(PlainOut::zeroed().into())
}

fn create(firmware: &mut Firmware, input: &CreateEqIn, call: &Call<'_>) -> Answer<CreateEqOut> {
    let context = input.eq_context_entry();
    let limits = firmware.limits();
    let log_size = context.log_eq_size();
    let size = "eq_context_entry.log_eq_size";
    ensure(
        log_size <= limits.log_eq_size,
        Stop::field(Reason::Limit, size),
    )?;
    let uar = context.uar_page();
    let page = firmware.need(Kind::Uar, uar, call.uid, "eq_context_entry.uar_page")?;
    let vector = usize::from(context.intr());
    let no_vector = Stop::value("eq_context_entry.intr");
    ensure(vector < firmware.character.vectors, no_vector)?;
    let events = input.event_bitmask();
    let subscribable = events
        .first()
        .is_none_or(|word| word >> COMPLETION & 1 == 0);
    ensure(subscribable, Stop::value("event_bitmask"))?;
    let taken = |eq: &Eq| {
        eq.events
            .iter()
            .zip(&events)
            .any(|(there, new)| there & new != 0)
    };
    let free = !firmware.eqs.values().any(taken);
    ensure(free, Stop::field(Reason::Taken, "event_bitmask"))?;
    let bytes = 1u64 << (u32::from(log_size) + LOG_ENTRY);
    let path = "eq_context_entry.log_page_size";
    let ring = ring_memory(call.words64(), bytes, context.log_page_size(), path)?;
    let number = firmware.number(Kind::Eq, FIRST, limits.eqs)?;
    let short = u8::try_from(number).map_err(|_| Stop::kind(Reason::Exhausted, Kind::Eq))?;
    if uar >= firmware.character.first_mapped_uar {
        firmware.data.watch_eq(uar, true)?;
    }
    firmware
        .objects
        .create((Kind::Eq, number.into()), call.uid, vec![page]);
    let eq = Eq {
        context,
        events,
        ring,
        log_size: log_size.into(),
        overrun_ignore: context.oi(),
        vector,
        uar,
        producer: 0,
        consumer: 0,
        armed: false,
        failed: false,
    };
    firmware.eqs.insert(short, eq);
    let mut out = CreateEqOut::zeroed();
    out.set_eq_number(short);
    Ok(out.into())
}

fn query(firmware: &mut Firmware, input: &QueryEqIn, call: &Call<'_>) -> Answer<QueryEqOut> {
    let number = input.eq_number();
    firmware.need(Kind::Eq, number.into(), call.uid, "eq_number")?;
    let absent = Stop::field(Reason::NoObject, "eq_number");
    let eq = firmware.eqs.get(&number).ok_or(absent)?;
    let mut context = eq.context;
    let internal = |_| Stop::because(Reason::Internal);
    context
        .set_st(if eq.armed { ARMED } else { FIRED })
        .map_err(internal)?;
    context
        .set_status(if eq.failed { WRITE_FAILURE } else { 0 })
        .map_err(internal)?;
    context
        .set_producer_counter(eq.producer)
        .map_err(internal)?;
    context
        .set_consumer_counter(eq.consumer)
        .map_err(internal)?;
    let mut out = QueryEqOut::zeroed();
    out.set_eq_context_entry(context);
    out.set_event_bitmask(eq.events.first().copied().unwrap_or(0));
    Ok(Reply::with_tail(out, page_list(&eq.ring)))
}

fn destroy(firmware: &mut Firmware, input: &DestroyEqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let number = input.eq_number();
    let id = (Kind::Eq, u64::from(number));
    firmware.removable(id, call.uid, "eq_number")?;
    let uar = firmware.eqs.get(&number).map_or(0, |eq| eq.uar);
    if uar >= firmware.character.first_mapped_uar {
        firmware.data.watch_eq(uar, false)?;
    }
    firmware.remove(id, call.uid, "eq_number")?;
    firmware.eqs.remove(&number);
    Ok(PlainOut::zeroed().into())
}
