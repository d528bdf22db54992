//! Flow entries: what they match within their group, and what they do.

use super::{Entry, receive, table_id, within};
use crate::data::steering::{self, FlowAction, FlowDestination};
use crate::firmware::{About, Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::objects::{Kind, ObjectId};
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::flow::*;

const ACTION_DROP: u16 = 0x2;
const ACTION_FORWARD: u16 = 0x4;
const ACTION_COUNT: u16 = 0x8;

/// Bits of SET_FLOW_TABLE_ENTRY's `modify_enable_mask` (kernel `fs_cmd.c`).
const CHANGE_ACTION: u8 = 1;
const CHANGE_TAG: u8 = 2;
const CHANGE_DESTINATIONS: u8 = 4;
const CHANGE_COUNTERS: u8 = 8;
/// Variants of SET_FLOW_TABLE_ENTRY.
const SET: u16 = 0;
const MODIFY: u16 = 1;

const TO_TABLE: u8 = 1;
const TO_TIR: u8 = 2;

pub(super) fn commands() -> Vec<Spec> {
    let entry = [
        "table_type",
        "table_id",
        "modify_enable_mask",
        "flow_index",
        "flow_context.group_id",
        "flow_context.flow_tag",
        "flow_context.action",
        "flow_context.destination_list_size",
        "flow_context.flow_counter_list_size",
        "flow_context.match_value.outer_headers",
    ];
    let one = ["table_type", "table_id", "flow_index"];
    vec![
        command::<SetFlowTableEntry>(RUNNING, &entry, set_entry).variants(&[SET, MODIFY]),
        command::<QueryFlowTableEntry>(RUNNING, &one, query_entry),
        command::<DeleteFlowTableEntry>(RUNNING, &one, delete_entry),
    ]
}

/// An entry as the data side wants it.
pub(super) fn snapshot(entry: &Entry) -> steering::FlowEntry {
    let drop = entry.context.action() & ACTION_DROP != 0;
    let to = |destination: &Destination| match destination.destination_type() {
        TO_TABLE => FlowDestination::Table(destination.destination_id()),
        _ => FlowDestination::Tir(destination.destination_id()),
    };
    steering::FlowEntry {
        value: *entry.context.match_value().outer_headers().bytes(),
        flow_tag: entry.context.flow_tag(),
        counters: entry.counters.clone(),
        action: if drop {
            FlowAction::Drop
        } else {
            FlowAction::Forward(entry.destinations.iter().map(to).collect())
        },
    }
}
/// Checks what an entry does, and gives what it uses.
fn entry_uses(firmware: &Firmware, level: u8, entry: &Entry) -> Result<Vec<ObjectId>, Stop> {
    let limits = firmware.limits();
    let action = entry.context.action();
    let known = ACTION_DROP | ACTION_FORWARD | ACTION_COUNT;
    let path = "flow_context.action";
    ensure(action & !known == 0, Stop::field(Reason::NotOffered, path))?;
    let (drop, forward) = (action & ACTION_DROP != 0, action & ACTION_FORWARD != 0);
    ensure(drop != forward, Stop::value(path))?;
    let list = "flow_context.destination_list_size";
    ensure(forward != entry.destinations.is_empty(), Stop::value(list))?;
    let most = entry.destinations.len() as u64 <= limits.flow_destinations;
    ensure(most, Stop::field(Reason::Limit, list))?;
    let count = action & ACTION_COUNT != 0;
    ensure(
        !count || limits.flow_counter,
        Stop::field(Reason::NotOffered, path),
    )?;
    let counters = "flow_context.flow_counter_list_size";
    ensure(count != entry.counters.is_empty(), Stop::value(counters))?;
    let mut uses = Vec::new();
    for destination in &entry.destinations {
        let number = destination.destination_id();
        match destination.destination_type() {
            TO_TABLE => {
                let table = firmware.flow.tables.get(&number);
                let table = table.ok_or(Stop::field(Reason::NoObject, list))?;
                ensure(table.context.level() > level, Stop::value(list))?;
                uses.push(table_id(number));
            }
            TO_TIR => uses.push(firmware.need(Kind::Tir, number, 0, list)?),
            _ => return Err(Stop::field(Reason::NotOffered, list)),
        }
    }
    for counter in &entry.counters {
        uses.push(firmware.need(Kind::FlowCounter, *counter, 0, counters)?);
    }
    Ok(uses)
}

fn lists(context: &FlowContext, call: &Call<'_>) -> Result<(Vec<Destination>, Vec<u32>), Stop> {
    let destinations = context.destination_list_size() as usize;
    let counters = context.flow_counter_list_size() as usize;
    let items: Vec<[u8; 8]> = call
        .tail
        .chunks_exact(8)
        .filter_map(|item| item.try_into().ok())
        .collect();
    let whole = destinations.checked_add(counters) == Some(items.len());
    ensure(whole, Stop::because(Reason::InputLength))?;
    let (first, second) = items.split_at(destinations);
    let parse = |bytes: &[u8; 8]| {
        let item = Destination::from_bytes(*bytes);
        let mut plain = Destination::zeroed();
        plain.set_destination_type(item.destination_type());
        let fits = plain.set_destination_id(item.destination_id()).is_ok();
        let list = "flow_context.destination_list_size";
        ensure(fits && plain == item, Stop::field(Reason::NotOffered, list)).map(|()| item)
    };
    let number = |bytes: &[u8; 8]| {
        let item = CounterEntry::from_bytes(*bytes);
        let mut plain = CounterEntry::zeroed();
        plain.set_flow_counter_id(item.flow_counter_id());
        let list = "flow_context.flow_counter_list_size";
        ensure(plain == item, Stop::field(Reason::NotOffered, list))
            .map(|()| item.flow_counter_id())
    };
    let destinations = first.iter().map(parse).collect::<Result<_, _>>()?;
    let counters = second.iter().map(number).collect::<Result<_, _>>()?;
    Ok((destinations, counters))
}

fn set_entry(
    firmware: &mut Firmware,
    input: &SetFlowTableEntryIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let (number, index) = (input.table_id(), input.flow_index());
    let table_object = firmware.need(Kind::FlowTable, number, call.uid, "table_id")?;
    let new = input.flow_context();
    let (destinations, counters) = lists(&new, call)?;
    let table = firmware.flow.table(number)?;
    let level = table.context.level();
    let old = table.entries.get(&index).cloned();
    let group = table.groups.get(&new.group_id());
    let group = group.ok_or(Stop::field(Reason::NoObject, "flow_context.group_id"))?;
    let inside = (group.first..=group.last).contains(&index);
    ensure(inside, Stop::field(Reason::Index, "flow_index"))?;
    // A value that the mask does not cover could never match.
    let (mask, value) = (group.mask, new.match_value());
    let covered = mask
        .bytes()
        .iter()
        .zip(value.bytes())
        .all(|(mask, value)| value & !mask == 0);
    let path = "flow_context.match_value";
    ensure(covered, Stop::Refuse(Reason::BadValue, About::Field(path)))?;
    let change = input.modify_enable_mask();
    let entry = match (call.op_mod, old) {
        (SET, None) => {
            ensure(change == 0, Stop::value("modify_enable_mask"))?;
            Entry {
                context: new,
                destinations,
                counters,
            }
        }
        (SET, Some(_)) => return Err(Stop::field(Reason::Taken, "flow_index")),
        (_, None) => return Err(Stop::field(Reason::NoObject, "flow_index")),
        (_, Some(old)) => {
            let offered = firmware.limits().flow_modify;
            let path = "modify_enable_mask";
            ensure(offered, Stop::field(Reason::NotOffered, path))?;
            merge(old, new, destinations, counters, change)?
        }
    };
    let mut uses = entry_uses(firmware, level, &entry)?;
    let group_object = within(Kind::FlowGroup, number, new.group_id());
    uses.extend([table_object, group_object]);
    let id = within(Kind::FlowEntry, number, index);
    if call.op_mod == SET {
        firmware.charge(1)?;
        firmware.objects.create(id, call.uid, uses);
    } else {
        firmware.objects.reuse(id, uses);
    }
    if let Some(table) = firmware.flow.tables.get_mut(&number) {
        table.entries.insert(index, entry);
    }
    firmware.steer()?;
    Ok(PlainOut::zeroed().into())
}

fn merge(
    old: Entry,
    new: FlowContext,
    destinations: Vec<Destination>,
    counters: Vec<u32>,
    change: u8,
) -> Result<Entry, Stop> {
    let mask = "modify_enable_mask";
    let known = CHANGE_ACTION | CHANGE_TAG | CHANGE_DESTINATIONS | CHANGE_COUNTERS;
    ensure(change != 0 && change & !known == 0, Stop::value(mask))?;
    let fixed =
        new.group_id() == old.context.group_id() && new.match_value() == old.context.match_value();
    ensure(
        fixed,
        Stop::field(Reason::WrongState, "flow_context.group_id"),
    )?;
    let internal = |_| Stop::because(Reason::Internal);
    let mut entry = old;
    if change & CHANGE_ACTION != 0 {
        entry.context.set_action(new.action());
    }
    if change & CHANGE_TAG != 0 {
        entry
            .context
            .set_flow_tag(new.flow_tag())
            .map_err(internal)?;
    }
    if change & CHANGE_DESTINATIONS != 0 {
        entry
            .context
            .set_destination_list_size(new.destination_list_size())
            .map_err(internal)?;
        entry.destinations = destinations;
    }
    if change & CHANGE_COUNTERS != 0 {
        entry
            .context
            .set_flow_counter_list_size(new.flow_counter_list_size())
            .map_err(internal)?;
        entry.counters = counters;
    }
    Ok(entry)
}

fn query_entry(
    firmware: &mut Firmware,
    input: &QueryFlowTableEntryIn,
    _: &Call<'_>,
) -> Answer<QueryFlowTableEntryOut> {
    receive(input.table_type())?;
    let table = firmware.flow.table(input.table_id())?;
    let absent = Stop::field(Reason::NoObject, "flow_index");
    let entry = table.entries.get(&input.flow_index()).ok_or(absent)?;
    let mut out = QueryFlowTableEntryOut::zeroed();
    out.set_flow_context(entry.context);
    let mut tail: Vec<u8> = entry
        .destinations
        .iter()
        .flat_map(|to| *to.bytes())
        .collect();
    for counter in &entry.counters {
        let mut item = CounterEntry::zeroed();
        item.set_flow_counter_id(*counter);
        tail.extend_from_slice(item.bytes());
    }
    Ok(Reply::with_tail(out, tail))
}

fn delete_entry(
    firmware: &mut Firmware,
    input: &DeleteFlowTableEntryIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let (number, index) = (input.table_id(), input.flow_index());
    firmware.need(Kind::FlowTable, number, call.uid, "table_id")?;
    firmware.remove(
        within(Kind::FlowEntry, number, index),
        call.uid,
        "flow_index",
    )?;
    if let Some(table) = firmware.flow.tables.get_mut(&number) {
        table.entries.remove(&index);
    }
    firmware.steer()?;
    Ok(PlainOut::zeroed().into())
}
