//! Queue counter sets and flow counters.

use super::{Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::counters::*;
use pollux_prm::commands::vport::TrafficCounter;

const FIRST_SET: u64 = 1;
const FIRST_FLOW: u64 = 1;
const LAST_SET: u64 = 255;

pub(super) fn commands() -> Vec<Spec> {
    vec![
        command::<AllocQCounter>(RUNNING, &[], alloc_set),
        command::<QueryQCounter>(RUNNING, &["clear", "counter_set_id"], query_set),
        command::<DeallocQCounter>(RUNNING, &["counter_set_id"], dealloc_set),
        command::<AllocFlowCounter>(RUNNING, &[], alloc_flow),
        command::<QueryFlowCounter>(
            RUNNING,
            &["clear", "num_of_counters", "flow_counter_id"],
            query_flow,
        ),
        command::<DeallocFlowCounter>(RUNNING, &["flow_counter_id"], dealloc_flow),
    ]
}

fn alloc_set(
    firmware: &mut Firmware,
    _: &AllocQCounterIn,
    call: &Call<'_>,
) -> Answer<AllocQCounterOut> {
    let count = firmware.limits().q_counters.min(LAST_SET);
    let number = firmware.number(Kind::QCounter, FIRST_SET, count)?;
    let short = u8::try_from(number).map_err(|_| Stop::because(Reason::Internal))?;
    firmware
        .objects
        .create((Kind::QCounter, number.into()), call.uid, vec![]);
    let mut out = AllocQCounterOut::zeroed();
    out.set_counter_set_id(short);
    Ok(out.into())
}

fn query_set(
    firmware: &mut Firmware,
    input: &QueryQCounterIn,
    call: &Call<'_>,
) -> Answer<QueryQCounterOut> {
    let number = input.counter_set_id();
    firmware.need(Kind::QCounter, number.into(), call.uid, "counter_set_id")?;
    let dropped = firmware.data.out_of_buffer(number, input.clear())?;
    let mut out = QueryQCounterOut::zeroed();
    out.set_out_of_buffer(dropped as u32);
    Ok(out.into())
}

fn dealloc_set(
    firmware: &mut Firmware,
    input: &DeallocQCounterIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    let id = (Kind::QCounter, u64::from(input.counter_set_id()));
    firmware.removable(id, call.uid, "counter_set_id")?;
    // The next owner of the number starts at zero.
    firmware.data.out_of_buffer(input.counter_set_id(), true)?;
    firmware.remove(id, call.uid, "counter_set_id")?;
    Ok(PlainOut::zeroed().into())
}

fn announced(firmware: &Firmware) -> Result<(), Stop> {
    ensure(
        firmware.limits().flow_counter,
        Stop::because(Reason::UnknownOpcode),
    )
}

fn alloc_flow(
    firmware: &mut Firmware,
    _: &AllocFlowCounterIn,
    call: &Call<'_>,
) -> Answer<AllocFlowCounterOut> {
    announced(firmware)?;
    let count = firmware.limits().flow_counters;
    let number = firmware.number(Kind::FlowCounter, FIRST_FLOW, count)?;
    firmware
        .objects
        .create((Kind::FlowCounter, number.into()), call.uid, vec![]);
    let mut out = AllocFlowCounterOut::zeroed();
    out.set_flow_counter_id(number);
    Ok(out.into())
}

fn query_flow(
    firmware: &mut Firmware,
    input: &QueryFlowCounterIn,
    call: &Call<'_>,
) -> Answer<QueryFlowCounterOut> {
    announced(firmware)?;
    // 0 means one; several need the bulk capability, which is not announced.
    ensure(
        input.num_of_counters() <= 1,
        Stop::field(Reason::NotOffered, "num_of_counters"),
    )?;
    let number = input.flow_counter_id();
    firmware.need(Kind::FlowCounter, number, call.uid, "flow_counter_id")?;
    let value = firmware.data.flow_counter(number, input.clear())?;
    let mut counter = TrafficCounter::zeroed();
    counter.set_packets(value.frames);
    counter.set_octets(value.bytes);
    Ok(Reply::with_tail(
        QueryFlowCounterOut::zeroed(),
        counter.bytes().to_vec(),
    ))
}

fn dealloc_flow(
    firmware: &mut Firmware,
    input: &DeallocFlowCounterIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    announced(firmware)?;
    let id = (Kind::FlowCounter, u64::from(input.flow_counter_id()));
    firmware.removable(id, call.uid, "flow_counter_id")?;
    firmware.data.flow_counter(input.flow_counter_id(), true)?;
    firmware.remove(id, call.uid, "flow_counter_id")?;
    Ok(PlainOut::zeroed().into())
}
