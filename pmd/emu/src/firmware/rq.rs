//! Receive queues.

use super::eq::page_list;
use super::sq::{queue_state, state_number, transition, work_queue};
use super::{Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::{QueueState, RingMemory, RqChange, RqSpec};
use crate::objects::{Kind, ObjectId};
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::EndPadding;

const FIRST: u64 = 0x200;

/// Bits of MODIFY_RQ's bitmask (kernel `mlx5_ifc.h`, `MODIFY_RQ_IN_MODIFY_BITMASK_*`).
const CHANGE_VSD: u64 = 1 << 1;
const CHANGE_SCATTER_FCS: u64 = 1 << 2;
const CHANGE_COUNTER_SET: u64 = 1 << 3;

pub(super) fn commands() -> Vec<Spec> {
    let create_paths = [
        "ctx.scatter_fcs",
        "ctx.vsd",
        "ctx.flush_in_error_en",
        "ctx.user_index",
        "ctx.cqn",
        "ctx.counter_set_id",
        "ctx.wq.wq_type",
        "ctx.wq.end_padding_mode",
        "ctx.wq.pd",
        "ctx.wq.dbr_addr",
        "ctx.wq.log_wq_stride",
        "ctx.wq.log_wq_pg_sz",
        "ctx.wq.log_wq_sz",
    ];
    let modify_paths = [
        "rq_state",
        "rqn",
        "modify_bitmask",
        "ctx.state",
        "ctx.vsd",
        "ctx.scatter_fcs",
        "ctx.counter_set_id",
    ];
    vec![
        command::<CreateRq>(RUNNING, &create_paths, create),
        command::<ModifyRq>(RUNNING, &modify_paths, modify),
        command::<QueryRq>(RUNNING, &["rqn"], query),
        command::<DestroyRq>(RUNNING, &["rqn"], destroy),
    ]
}

/// A receive queue's context as it was created or changed.
#[derive(Clone, Debug)]
pub(crate) struct Rq {
    context: Rqc,
    ring: RingMemory,
    /// What it uses beside its counter set.
    uses: Vec<ObjectId>,
}

impl Firmware {
    /// The counter set that a context names: 0 is the device's own.
    fn counter_set(&self, number: u8, uid: u16) -> Result<Option<ObjectId>, Stop> {
        match number {
            0 => Ok(None),
            n => self
                .need(Kind::QCounter, n.into(), uid, "ctx.counter_set_id")
                .map(Some),
        }
    }
}

fn create(firmware: &mut Firmware, input: &CreateRqIn, call: &Call<'_>) -> Answer<CreateRqOut> {
    let context = input.ctx();
    let wq = context.wq();
    let limits = firmware.limits();
    let fcs = Stop::field(Reason::NotOffered, "ctx.scatter_fcs");
    ensure(!context.scatter_fcs() || limits.scatter_fcs, fcs)?;
    let strip = Stop::field(Reason::NotOffered, "ctx.vsd");
    ensure(context.vsd() || limits.vlan_strip, strip)?;
    let cq = firmware.need(Kind::Cq, context.cqn(), call.uid, "ctx.cqn")?;
    // The Linux driver's queue that only drops has no domain; no memory key is of domain 0.
    let pd = match wq.pd() {
        0 => None,
        pd => Some(firmware.need(Kind::Pd, pd, call.uid, "ctx.wq.pd")?),
    };
    let counter = firmware.counter_set(context.counter_set_id(), call.uid)?;
    let stride = wq.log_wq_stride();
    let strides = limits.min_stride..=limits.max_stride;
    ensure(
        strides.contains(&stride),
        Stop::field(Reason::Limit, "ctx.wq.log_wq_stride"),
    )?;
    let ring = work_queue(&wq, stride, &limits, call)?;
    // Aligned padding lets the device write up to the end of the last cache line; this one never
    // does. The Linux driver asks for it without looking at the capability.
    let padding = EndPadding(wq.end_padding_mode());
    ensure(
        [EndPadding::NONE, EndPadding::ALIGN].contains(&padding),
        Stop::value("ctx.wq.end_padding_mode"),
    )?;
    let rqn = firmware.number(Kind::Rq, FIRST, limits.rqs)?;
    firmware.data.create_rq(RqSpec {
        rqn,
        ring: ring.clone(),
        log_size: wq.log_wq_sz().into(),
        log_stride: stride.into(),
        doorbell_record: wq.dbr_addr(),
        cqn: context.cqn(),
        pd: wq.pd(),
        vlan_strip: !context.vsd(),
        scatter_fcs: context.scatter_fcs(),
        counter_set: context.counter_set_id(),
        flush_in_error: context.flush_in_error_en(),
        user_index: context.user_index(),
        state: QueueState::Reset,
    })?;
    let uses: Vec<ObjectId> = [cq].into_iter().chain(pd).collect();
    let all = uses.iter().copied().chain(counter).collect();
    firmware
        .objects
        .create((Kind::Rq, rqn.into()), call.uid, all);
    firmware.rqs.insert(
        rqn,
        Rq {
            context,
            ring,
            uses,
        },
    );
    let mut out = CreateRqOut::zeroed();
    out.set_rqn(rqn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify(firmware: &mut Firmware, input: &ModifyRqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let rqn = input.rqn();
    let id = firmware.need(Kind::Rq, rqn, call.uid, "rqn")?;
    ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
    let limits = firmware.limits();
    let mask = input.modify_bitmask();
    let known = CHANGE_VSD | CHANGE_SCATTER_FCS | CHANGE_COUNTER_SET;
    ensure(
        mask & !known == 0,
        Stop::field(Reason::NotOffered, "modify_bitmask"),
    )?;
    let context = input.ctx();
    let said = queue_state(input.rq_state(), "rq_state")?;
    let to = queue_state(context.state(), "ctx.state")?;
    let now = firmware.data.rq_status(rqn)?.state;
    transition(now, said, to, "rq_state")?;
    let rq = firmware
        .rqs
        .get(&rqn)
        .ok_or(Stop::field(Reason::NoObject, "rqn"))?;
    let (mut kept, mut uses) = (rq.context, rq.uses.clone());
    let mut change = RqChange {
        state: (to != now).then_some(to),
        ..RqChange::default()
    };
    // A field whose bit is not set must not pretend to change anything.
    if mask & CHANGE_VSD != 0 {
        let strip = Stop::field(Reason::NotOffered, "ctx.vsd");
        ensure(context.vsd() || limits.vlan_strip, strip)?;
        change.vlan_strip = Some(!context.vsd());
        kept.set_vsd(context.vsd());
    }
    if mask & CHANGE_SCATTER_FCS != 0 {
        let fcs = Stop::field(Reason::NotOffered, "ctx.scatter_fcs");
        ensure(limits.scatter_fcs, fcs)?;
        change.scatter_fcs = Some(context.scatter_fcs());
        kept.set_scatter_fcs(context.scatter_fcs());
    }
    if mask & CHANGE_COUNTER_SET != 0 {
        firmware.counter_set(context.counter_set_id(), call.uid)?;
        change.counter_set = Some(context.counter_set_id());
        kept.set_counter_set_id(context.counter_set_id());
    }
    uses.extend(firmware.counter_set(kept.counter_set_id(), 0)?);
    firmware.data.modify_rq(rqn, change)?;
    firmware.objects.reuse(id, uses);
    if let Some(rq) = firmware.rqs.get_mut(&rqn) {
        rq.context = kept;
    }
    Ok(PlainOut::zeroed().into())
}

fn query(firmware: &mut Firmware, input: &QueryRqIn, call: &Call<'_>) -> Answer<QueryRqOut> {
    let rqn = input.rqn();
    firmware.need(Kind::Rq, rqn, call.uid, "rqn")?;
    let rq = firmware
        .rqs
        .get(&rqn)
        .ok_or(Stop::field(Reason::NoObject, "rqn"))?;
    let status = firmware.data.rq_status(rqn)?;
    let mut context = rq.context;
    let internal = |_| Stop::because(Reason::Internal);
    context
        .set_state(state_number(status.state))
        .map_err(internal)?;
    let mut wq = context.wq();
    wq.set_hw_counter(status.hardware_index.into());
    wq.set_sw_counter(status.software_index.into());
    context.set_wq(wq);
    let mut out = QueryRqOut::zeroed();
    out.set_rq_context(context);
    Ok(Reply::with_tail(out, page_list(&rq.ring)))
}

fn destroy(firmware: &mut Firmware, input: &DestroyRqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let rqn = input.rqn();
    let id = (Kind::Rq, u64::from(rqn));
    firmware.removable(id, call.uid, "rqn")?;
    firmware.data.destroy_rq(rqn)?;
    firmware.remove(id, call.uid, "rqn")?;
    firmware.rqs.remove(&rqn);
    Ok(PlainOut::zeroed().into())
}
