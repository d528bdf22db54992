//! Completion queues.

use super::eq::{page_list, ring_memory};
use super::{Answer, Call, Firmware, Limits, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::{CqChange, CqSpec, Moderation, RingMemory};
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::cq::*;

const FIRST: u64 = 0x400;

const ARMED: u8 = 0x9;
const FIRED: u8 = 0xa;
const WRITE_FAILURE: u8 = 0xa;

pub(super) fn commands() -> Vec<Spec> {
    let context = [
        "cq_context.cqe_sz",
        "cq_context.oi",
        "cq_context.cq_period_mode",
        "cq_context.cq_period",
        "cq_context.cq_max_count",
        "cq_context.log_cq_size",
        "cq_context.uar_page",
        "cq_context.c_eqn_or_apu_element",
        "cq_context.log_page_size",
        "cq_context.dbr_addr",
    ];
    let change = [
        "cqn",
        "field_select",
        "cq_context.oi",
        "cq_context.cq_period_mode",
        "cq_context.cq_period",
        "cq_context.cq_max_count",
    ];
    vec![
        command::<CreateCq>(RUNNING, &context, create),
        command::<ModifyCq>(RUNNING, &change, modify),
        command::<QueryCq>(RUNNING, &["cqn"], query),
        command::<DestroyCq>(RUNNING, &["cqn"], destroy),
    ]
}

/// A completion queue's context as it was created.
#[derive(Clone, Debug)]
pub(crate) struct Cq {
    context: Cqc,
    ring: RingMemory,
    /// Event queue of its completions.
    pub(crate) eqn: u8,
}

impl Firmware {
    /// The event queue that a completion queue reports to.
    pub(crate) fn eq_of_cq(&self, cqn: u32) -> Option<u8> {
        self.cqs.get(&cqn).map(|cq| cq.eqn)
    }
}

/// How a context holds events back.
fn moderation(context: &Cqc, limits: &Limits) -> Result<Moderation, Stop> {
    let (period, max_count) = (context.cq_period(), context.cq_max_count());
    let offered = limits.cq_moderation;
    let path = "cq_context.cq_period";
    ensure(
        offered || period == 0,
        Stop::field(Reason::NotOffered, path),
    )?;
    let path = "cq_context.cq_max_count";
    ensure(
        offered || max_count == 0,
        Stop::field(Reason::NotOffered, path),
    )?;
    let path = "cq_context.cq_period_mode";
    let from_completion = match CqPeriodMode(context.cq_period_mode()) {
        CqPeriodMode::START_FROM_EQE => false,
        CqPeriodMode::START_FROM_CQE => {
            ensure(
                limits.cq_period_from_cqe,
                Stop::field(Reason::NotOffered, path),
            )?;
            true
        }
        _ => return Err(Stop::value(path)),
    };
    Ok(Moderation {
        period,
        max_count,
        from_completion,
    })
}

fn create(firmware: &mut Firmware, input: &CreateCqIn, call: &Call<'_>) -> Answer<CreateCqOut> {
    let context = input.cq_context();
    let limits = firmware.limits();
    let log_size = context.log_cq_size();
    let size = Stop::field(Reason::Limit, "cq_context.log_cq_size");
    ensure(log_size <= limits.log_cq_size, size)?;
    ensure(context.cqe_sz() <= 1, Stop::value("cq_context.cqe_sz"))?;
    let overrun = Stop::field(Reason::NotOffered, "cq_context.oi");
    ensure(!context.oi() || limits.cq_oi, overrun)?;
    let uar = firmware.need(
        Kind::Uar,
        context.uar_page(),
        call.uid,
        "cq_context.uar_page",
    )?;
    let path = "cq_context.c_eqn_or_apu_element";
    let eq = firmware.need(Kind::Eq, context.c_eqn_or_apu_element(), call.uid, path)?;
    let eqn = context.c_eqn_or_apu_element() as u8;
    let log_entry = 6 + u32::from(context.cqe_sz());
    let bytes = 1u64 << (u32::from(log_size) + log_entry);
    let path = "cq_context.log_page_size";
    let ring = ring_memory(call.words64(), bytes, context.log_page_size(), path)?;
    record(context.dbr_addr(), "cq_context.dbr_addr")?;
    let moderation = moderation(&context, &limits)?;
    let cqn = firmware.number(Kind::Cq, FIRST, limits.cqs)?;
    firmware.data.create_cq(CqSpec {
        cqn,
        ring: ring.clone(),
        log_size: log_size.into(),
        log_entry,
        doorbell_record: context.dbr_addr(),
        uar: context.uar_page(),
        overrun_ignore: context.oi(),
        moderation,
    })?;
    firmware
        .objects
        .create((Kind::Cq, cqn.into()), call.uid, vec![uar, eq]);
    firmware.cqs.insert(cqn, Cq { context, ring, eqn });
    let mut out = CreateCqOut::zeroed();
    out.set_cqn(cqn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

/// Moderation and the handling of overruns. Another size, another event queue are capabilities of
/// their own, which this device does not announce.
fn modify(firmware: &mut Firmware, input: &ModifyCqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let cqn = input.cqn();
    firmware.need(Kind::Cq, cqn, call.uid, "cqn")?;
    ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
    let limits = firmware.limits();
    let select = CqFields(input.field_select());
    let has = |bit: CqFields| select.0 & bit.0 != 0;
    let mut offered = 0;
    for (bit, announced) in [
        (CqFields::CQ_PERIOD, limits.cq_moderation),
        (CqFields::CQ_MAX_COUNT, limits.cq_moderation),
        (CqFields::OI, limits.cq_oi),
        (CqFields::CQ_PERIOD_MODE, limits.cq_period_mode_modify),
    ] {
        offered |= if announced { bit.0 } else { 0 };
    }
    let path = "field_select";
    ensure(
        select.0 & !offered == 0,
        Stop::field(Reason::NotOffered, path),
    )?;
    ensure(select.0 != 0, Stop::value(path))?;
    let new = input.cq_context();
    let absent = Stop::field(Reason::NoObject, "cqn");
    let mut context = firmware.cqs.get(&cqn).ok_or(absent)?.context;
    let internal = |_| Stop::because(Reason::Internal);
    if has(CqFields::CQ_PERIOD) {
        context.set_cq_period(new.cq_period()).map_err(internal)?;
    }
    if has(CqFields::CQ_MAX_COUNT) {
        context.set_cq_max_count(new.cq_max_count());
    }
    if has(CqFields::CQ_PERIOD_MODE) {
        context
            .set_cq_period_mode(new.cq_period_mode())
            .map_err(internal)?;
    }
    if has(CqFields::OI) {
        context.set_oi(new.oi());
    }
    firmware.data.modify_cq(
        cqn,
        CqChange {
            moderation: moderation(&context, &limits)?,
            overrun_ignore: context.oi(),
        },
    )?;
    if let Some(cq) = firmware.cqs.get_mut(&cqn) {
        cq.context = context;
    }
    Ok(PlainOut::zeroed().into())
}

/// Checks the address of a doorbell record.
pub(super) fn record(address: u64, path: &'static str) -> Result<(), Stop> {
    ensure(
        address != 0 && address % 8 == 0,
        Stop::field(Reason::BadAddress, path),
    )
}

fn query(firmware: &mut Firmware, input: &QueryCqIn, call: &Call<'_>) -> Answer<QueryCqOut> {
    let cqn = input.cqn();
    firmware.need(Kind::Cq, cqn, call.uid, "cqn")?;
    let cq = firmware
        .cqs
        .get(&cqn)
        .ok_or(Stop::field(Reason::NoObject, "cqn"))?;
    let status = firmware.data.cq_status(cqn)?;
    let internal = |_| Stop::because(Reason::Internal);
    let mut context = cq.context;
    context
        .set_st(if status.armed { ARMED } else { FIRED })
        .map_err(internal)?;
    context
        .set_status(if status.error { WRITE_FAILURE } else { 0 })
        .map_err(internal)?;
    context
        .set_producer_counter(status.producer & 0xff_ffff)
        .map_err(internal)?;
    context
        .set_consumer_counter(status.consumer & 0xff_ffff)
        .map_err(internal)?;
    let mut out = QueryCqOut::zeroed();
    out.set_cq_context(context);
    Ok(Reply::with_tail(out, page_list(&cq.ring)))
}

fn destroy(firmware: &mut Firmware, input: &DestroyCqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let cqn = input.cqn();
    let id = (Kind::Cq, u64::from(cqn));
    firmware.removable(id, call.uid, "cqn")?;
    firmware.data.destroy_cq(cqn)?;
    firmware.remove(id, call.uid, "cqn")?;
    firmware.cqs.remove(&cqn);
    Ok(PlainOut::zeroed().into())
}
