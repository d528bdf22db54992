//! Flow tables, groups and entries of NIC receive.
//!
//! State is kept as the driver gave it; after each change the data side gets the whole as one
//! snapshot. What the data side cannot express (other table types, misc and inner headers,
//! modifications of headers) is refused.

mod entry;
mod matching;

use super::{Answer, Call, Firmware, RUNNING, Spec, Stop, command, ensure};
use crate::data::steering::{self, Steering};
use crate::objects::{Kind, ObjectId};
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::matching::FteMatchParam;
use std::collections::BTreeMap;

const FIRST_TABLE: u64 = 1;
const FIRST_GROUP: u64 = 1;
/// The table type: NIC receive.
const NIC_RX: u8 = 0;

const MISS_DEFAULT: u8 = 0;
const MISS_TABLE: u8 = 1;
/// Bit of MODIFY_FLOW_TABLE: the miss table changes.
const MODIFY_MISS: u16 = 1;

const MATCH_OUTER: u8 = 1;

pub(super) fn commands() -> Vec<Spec> {
    let table = [
        "table_type",
        "flow_table_context.table_miss_action",
        "flow_table_context.level",
        "flow_table_context.log_size",
        "flow_table_context.table_miss_id",
    ];
    let change = [
        "modify_field_select",
        "table_type",
        "table_id",
        "flow_table_context.table_miss_action",
        "flow_table_context.table_miss_id",
    ];
    let group = [
        "table_type",
        "table_id",
        "start_flow_index",
        "end_flow_index",
        "match_criteria_enable",
        "match_criteria.outer_headers",
    ];
    let mut all = vec![
        command::<CreateFlowTable>(RUNNING, &table, create_table),
        command::<ModifyFlowTable>(RUNNING, &change, modify_table),
        command::<QueryFlowTable>(RUNNING, &["table_type", "table_id"], query_table),
        command::<DestroyFlowTable>(RUNNING, &["table_type", "table_id"], destroy_table),
        command::<SetFlowTableRoot>(RUNNING, &["table_type", "table_id"], set_root),
        command::<CreateFlowGroup>(RUNNING, &group, create_group),
        command::<QueryFlowGroup>(
            RUNNING,
            &["table_type", "table_id", "group_id"],
            query_group,
        ),
        command::<DestroyFlowGroup>(
            RUNNING,
            &["table_type", "table_id", "group_id"],
            destroy_group,
        ),
    ];
    all.extend(entry::commands());
    all
}

#[derive(Clone, Debug)]
struct Group {
    first: u32,
    last: u32,
    enable: u8,
    mask: FteMatchParam,
}

#[derive(Clone, Debug)]
struct Entry {
    context: FlowContext,
    destinations: Vec<Destination>,
    counters: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Table {
    context: FlowTableContext,
    groups: BTreeMap<u32, Group>,
    entries: BTreeMap<u32, Entry>,
}

/// All flow tables, and the one that packets meet first.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowTables {
    tables: BTreeMap<u32, Table>,
    root: Option<u32>,
}

/// Groups and entries are numbered within their table.
fn within(kind: Kind, table: u32, number: u32) -> ObjectId {
    (kind, u64::from(table) << 32 | u64::from(number))
}

fn table_id(number: u32) -> ObjectId {
    (Kind::FlowTable, u64::from(number))
}

fn receive(table_type: u8) -> Result<(), Stop> {
    ensure(
        table_type == NIC_RX,
        Stop::field(Reason::NotOffered, "table_type"),
    )
}

impl FlowTables {
    fn table(&self, number: u32) -> Result<&Table, Stop> {
        self.tables
            .get(&number)
            .ok_or(Stop::field(Reason::NoObject, "table_id"))
    }

    /// The tables as the data side wants them.
    fn snapshot(&self) -> Steering {
        let tables = self.tables.iter().map(|(id, table)| steering::FlowTable {
            id: *id,
            miss: miss(&table.context),
            groups: groups(table),
        });
        Steering {
            root: self.root,
            tables: tables.collect(),
        }
    }
}

fn miss(context: &FlowTableContext) -> Option<u32> {
    (context.table_miss_action() == MISS_TABLE).then(|| context.table_miss_id())
}

fn groups(table: &Table) -> Vec<steering::FlowGroup> {
    let mut sorted: Vec<&Group> = table.groups.values().collect();
    sorted.sort_by_key(|group| group.first);
    sorted
        .into_iter()
        .map(|group| steering::FlowGroup {
            mask: *group.mask.outer_headers().bytes(),
            entries: table
                .entries
                .range(group.first..=group.last)
                .map(|(_, e)| entry::snapshot(e))
                .collect(),
        })
        .collect()
}
impl Firmware {
    /// Hands the tables to the data side. Tables and groups without entries wait for the next time:
    /// no packet can tell.
    fn steer(&mut self) -> Result<(), Stop> {
        self.data.set_steering(self.flow.snapshot())?;
        Ok(())
    }

    /// What a table uses: the one that its misses go to, which must be on a higher level.
    fn miss_use(&self, context: &FlowTableContext, level: u8) -> Result<Vec<ObjectId>, Stop> {
        let id = "flow_table_context.table_miss_id";
        match context.table_miss_action() {
            MISS_DEFAULT => {
                ensure(context.table_miss_id() == 0, Stop::value(id))?;
                Ok(vec![])
            }
            MISS_TABLE => {
                let offered = self.limits().identified_miss;
                let action = "flow_table_context.table_miss_action";
                ensure(offered, Stop::field(Reason::NotOffered, action))?;
                let target = context.table_miss_id();
                let table = self.flow.tables.get(&target);
                let table = table.ok_or(Stop::field(Reason::NoObject, id))?;
                ensure(table.context.level() > level, Stop::value(id))?;
                Ok(vec![table_id(target)])
            }
            _ => Err(Stop::value("flow_table_context.table_miss_action")),
        }
    }
}

fn create_table(
    firmware: &mut Firmware,
    input: &CreateFlowTableIn,
    call: &Call<'_>,
) -> Answer<CreateFlowTableOut> {
    receive(input.table_type())?;
    let context = input.flow_table_context();
    let limits = firmware.limits();
    let size = Stop::field(Reason::Limit, "flow_table_context.log_size");
    ensure(context.log_size() <= limits.log_flow_table, size)?;
    let level = Stop::field(Reason::Limit, "flow_table_context.level");
    ensure(u64::from(context.level()) < limits.flow_levels, level)?;
    let uses = firmware.miss_use(&context, context.level())?;
    let number = firmware.number(Kind::FlowTable, FIRST_TABLE, limits.flow_tables)?;
    firmware.objects.create(table_id(number), call.uid, uses);
    let table = Table {
        context,
        groups: BTreeMap::new(),
        entries: BTreeMap::new(),
    };
    firmware.flow.tables.insert(number, table);
    let mut out = CreateFlowTableOut::zeroed();
    out.set_table_id(number)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify_table(
    firmware: &mut Firmware,
    input: &ModifyFlowTableIn,
    _: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let number = input.table_id();
    let mut context = firmware.flow.table(number)?.context;
    let select = Stop::field(Reason::NotOffered, "modify_field_select");
    let offered = firmware.limits().flow_table_modify;
    ensure(
        offered && input.modify_field_select() == MODIFY_MISS,
        select,
    )?;
    let new = input.flow_table_context();
    let uses = firmware.miss_use(&new, context.level())?;
    let internal = |_| Stop::because(Reason::Internal);
    context
        .set_table_miss_action(new.table_miss_action())
        .map_err(internal)?;
    context
        .set_table_miss_id(new.table_miss_id())
        .map_err(internal)?;
    firmware.objects.reuse(table_id(number), uses);
    if let Some(table) = firmware.flow.tables.get_mut(&number) {
        table.context = context;
    }
    firmware.steer()?;
    Ok(PlainOut::zeroed().into())
}

fn query_table(
    firmware: &mut Firmware,
    input: &QueryFlowTableIn,
    _: &Call<'_>,
) -> Answer<QueryFlowTableOut> {
    receive(input.table_type())?;
    let table = firmware.flow.table(input.table_id())?;
    let mut out = QueryFlowTableOut::zeroed();
    out.set_flow_table_context(table.context);
    Ok(out.into())
}

fn destroy_table(
    firmware: &mut Firmware,
    input: &DestroyFlowTableIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let number = input.table_id();
    firmware.remove(table_id(number), call.uid, "table_id")?;
    firmware.flow.tables.remove(&number);
    if firmware.flow.root == Some(number) {
        // Without a root packets are dropped until another is set.
        firmware.flow.root = None;
        firmware.steer()?;
    }
    Ok(PlainOut::zeroed().into())
}

fn set_root(
    firmware: &mut Firmware,
    input: &SetFlowTableRootIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let number = input.table_id();
    firmware.need(Kind::FlowTable, number, call.uid, "table_id")?;
    firmware.flow.root = Some(number);
    firmware.steer()?;
    Ok(PlainOut::zeroed().into())
}

fn create_group(
    firmware: &mut Firmware,
    input: &CreateFlowGroupIn,
    call: &Call<'_>,
) -> Answer<CreateFlowGroupOut> {
    receive(input.table_type())?;
    let number = input.table_id();
    let id = firmware.need(Kind::FlowTable, number, call.uid, "table_id")?;
    let table = firmware.flow.table(number)?;
    let (first, last) = (input.start_flow_index(), input.end_flow_index());
    ensure(first <= last, Stop::value("start_flow_index"))?;
    let size = 1u64 << table.context.log_size().min(31);
    ensure(
        u64::from(last) < size,
        Stop::field(Reason::Index, "end_flow_index"),
    )?;
    let overlaps = |group: &Group| group.first <= last && first <= group.last;
    let taken = Stop::field(Reason::Taken, "start_flow_index");
    ensure(!table.groups.values().any(overlaps), taken)?;
    let enable = input.match_criteria_enable();
    ensure(
        enable & !MATCH_OUTER == 0,
        Stop::field(Reason::NotOffered, "match_criteria_enable"),
    )?;
    let mask = input.match_criteria();
    let matches = mask != FteMatchParam::zeroed();
    let unused = Stop::value("match_criteria_enable");
    ensure(enable & MATCH_OUTER != 0 || !matches, unused)?;
    firmware.matchable(&mask)?;
    // Groups have numbers of their own in each table.
    let base = u64::from(number) << 32;
    let found = firmware.objects.free_number(
        Kind::FlowGroup,
        base | FIRST_GROUP,
        base + (FIRST_GROUP + size),
    );
    let exhausted = Stop::kind(Reason::Exhausted, Kind::FlowGroup);
    let group = (found.ok_or(exhausted)? & 0xff_ffff) as u32;
    firmware.charge(1)?;
    firmware
        .objects
        .create(within(Kind::FlowGroup, number, group), call.uid, vec![id]);
    if let Some(table) = firmware.flow.tables.get_mut(&number) {
        table.groups.insert(
            group,
            Group {
                first,
                last,
                enable,
                mask,
            },
        );
    }
    let mut out = CreateFlowGroupOut::zeroed();
    out.set_group_id(group)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn query_group(
    firmware: &mut Firmware,
    input: &QueryFlowGroupIn,
    _: &Call<'_>,
) -> Answer<QueryFlowGroupOut> {
    receive(input.table_type())?;
    let table = firmware.flow.table(input.table_id())?;
    let absent = Stop::field(Reason::NoObject, "group_id");
    let group = table.groups.get(&input.group_id()).ok_or(absent)?;
    let mut out = QueryFlowGroupOut::zeroed();
    out.set_start_flow_index(group.first);
    out.set_end_flow_index(group.last);
    out.set_match_criteria_enable(group.enable);
    out.set_match_criteria(group.mask);
    Ok(out.into())
}

fn destroy_group(
    firmware: &mut Firmware,
    input: &DestroyFlowGroupIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    receive(input.table_type())?;
    let (number, group) = (input.table_id(), input.group_id());
    firmware.need(Kind::FlowTable, number, call.uid, "table_id")?;
    firmware.remove(within(Kind::FlowGroup, number, group), call.uid, "group_id")?;
    if let Some(table) = firmware.flow.tables.get_mut(&number) {
        table.groups.remove(&group);
    }
    Ok(PlainOut::zeroed().into())
}
