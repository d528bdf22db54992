//! Transport interfaces of the send side.

use super::{Answer, Call, Firmware, RUNNING, Spec, Stop, command, ensure};
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::tir::*;

const FIRST: u64 = 0x10;
/// Priorities are three bits, in the upper three of four.
const MAX_PRIORITY: u8 = 0xe;

pub(super) fn commands() -> Vec<Spec> {
    vec![
        command::<CreateTis>(RUNNING, &["ctx.prio", "ctx.transport_domain"], create),
        command::<ModifyTis>(RUNNING, &["tisn", "bitmask.prio", "ctx.prio"], modify),
        command::<QueryTis>(RUNNING, &["tisn"], query),
        command::<DestroyTis>(RUNNING, &["tisn"], destroy),
    ]
}

/// A TIS's context.
#[derive(Clone, Debug)]
pub(crate) struct Tis {
    context: Tisc,
}

fn priority(context: &Tisc) -> Result<(), Stop> {
    let good = context.prio() <= MAX_PRIORITY && context.prio() % 2 == 0;
    ensure(good, Stop::value("ctx.prio"))
}

fn create(firmware: &mut Firmware, input: &CreateTisIn, call: &Call<'_>) -> Answer<CreateTisOut> {
    let context = input.ctx();
    priority(&context)?;
    let path = "ctx.transport_domain";
    let domain = context.transport_domain();
    let domain = firmware.need(Kind::TransportDomain, domain, call.uid, path)?;
    let tisn = firmware.number(Kind::Tis, FIRST, firmware.limits().tises)?;
    firmware
        .objects
        .create((Kind::Tis, tisn.into()), call.uid, vec![domain]);
    firmware.tises.insert(tisn, Tis { context });
    let mut out = CreateTisOut::zeroed();
    out.set_tisn(tisn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify(firmware: &mut Firmware, input: &ModifyTisIn, call: &Call<'_>) -> Answer<PlainOut> {
    let tisn = input.tisn();
    firmware.need(Kind::Tis, tisn, call.uid, "tisn")?;
    ensure(input.bitmask().prio(), Stop::value("bitmask.prio"))?;
    priority(&input.ctx())?;
    let internal = |_| Stop::because(Reason::Internal);
    if let Some(tis) = firmware.tises.get_mut(&tisn) {
        tis.context.set_prio(input.ctx().prio()).map_err(internal)?;
    }
    Ok(PlainOut::zeroed().into())
}

fn query(firmware: &mut Firmware, input: &QueryTisIn, call: &Call<'_>) -> Answer<QueryTisOut> {
    firmware.need(Kind::Tis, input.tisn(), call.uid, "tisn")?;
    let absent = Stop::field(Reason::NoObject, "tisn");
    let tis = firmware.tises.get(&input.tisn()).ok_or(absent)?;
    let mut out = QueryTisOut::zeroed();
    out.set_tis_context(tis.context);
    Ok(out.into())
}

fn destroy(firmware: &mut Firmware, input: &DestroyTisIn, call: &Call<'_>) -> Answer<PlainOut> {
    firmware.remove((Kind::Tis, input.tisn().into()), call.uid, "tisn")?;
    firmware.tises.remove(&input.tisn());
    Ok(PlainOut::zeroed().into())
}
