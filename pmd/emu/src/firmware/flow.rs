//! Flow tables, groups and entries of NIC receive.
//!
//! State is kept as the driver gave it; after each change the data side gets the whole as one
//! snapshot. What the data side cannot express (other table types, misc and inner headers,
//! modifications of headers) is refused.

use super::{About, Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::steering::{self, FlowAction, FlowDestination, Steering};
use crate::fields::{bits_at, leaves};
use crate::objects::{Kind, ObjectId};
use crate::syndrome::Reason;
use pollux_prm::Layout;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::capability::CapGroup;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::matching::{FteMatchLyr24, FteMatchParam};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const FIRST_TABLE: u64 = 1;
const FIRST_GROUP: u64 = 1;
/// The table type: NIC receive.
const NIC_RX: u8 = 0;

const MISS_DEFAULT: u8 = 0;
const MISS_TABLE: u8 = 1;
/// Bit of MODIFY_FLOW_TABLE: the miss table changes.
const MODIFY_MISS: u16 = 1;

const MATCH_OUTER: u8 = 1;

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
    vec![
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
        command::<SetFlowTableEntry>(RUNNING, &entry, set_entry).variants(&[SET, MODIFY]),
        command::<QueryFlowTableEntry>(
            RUNNING,
            &["table_type", "table_id", "flow_index"],
            query_entry,
        ),
        command::<DeleteFlowTableEntry>(
            RUNNING,
            &["table_type", "table_id", "flow_index"],
            delete_entry,
        ),
    ]
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

/// Which capability says that a field can be matched; a field that is not here cannot.
const MATCHABLE: &[(&str, &str)] = &[
    ("smac", "outer_smac"),
    ("ethertype", "outer_ether_type"),
    ("dmac", "outer_dmac"),
    ("first_prio", "outer_first_prio"),
    ("first_cfi", "outer_first_cfi"),
    ("first_vid", "outer_first_vid"),
    ("ip_protocol", "outer_ip_protocol"),
    ("ip_dscp", "outer_ip_dscp"),
    ("ip_ecn", "outer_ip_ecn"),
    ("cvlan_tag", "outer_first_vid"),
    ("svlan_tag", "outer_first_vid"),
    ("ip_version", "outer_ip_version"),
    ("tcp_flags", "outer_tcp_flags"),
    ("tcp_sport", "outer_tcp_sport"),
    ("tcp_dport", "outer_tcp_dport"),
    ("ttl_hoplimit", "outer_ipv4_ttl"),
    ("udp_sport", "outer_udp_sport"),
    ("udp_dport", "outer_udp_dport"),
    ("src_ip", "outer_sip"),
    ("dst_ip", "outer_dip"),
];

/// Index among the leaves of CREATE_FLOW_GROUP of each outer header field.
static OUTER_HEADERS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let input = leaves(CreateFlowGroupIn::FIELDS);
    let of = |field: &str| {
        let path = format!("match_criteria.outer_headers.{field}");
        input
            .iter()
            .find(|leaf| leaf.path == path)
            .map_or(0, |leaf| leaf.index)
    };
    // Leaf indices count from 1.
    [0].into_iter()
        .chain(
            leaves(FteMatchLyr24::FIELDS)
                .iter()
                .map(|leaf| of(&leaf.path)),
        )
        .collect()
});

impl Firmware {
    /// Checks that every field of a mask can be matched, and partly where it is partly set.
    fn matchable(&self, mask: &FteMatchParam) -> Result<(), Stop> {
        let headers = mask.outer_headers();
        for leaf in leaves(FteMatchLyr24::FIELDS) {
            let bit = |bit: usize| bits_at(headers.bytes(), bit, 1) == 1;
            let set = (leaf.bit_offset..leaf.bit_offset + leaf.bits)
                .filter(|at| bit(*at))
                .count();
            if set == 0 {
                continue;
            }
            let kind = if set == leaf.bits {
                "ft_field_support"
            } else {
                "ft_field_bitmask_support"
            };
            let known = MATCHABLE.iter().find(|(field, _)| *field == leaf.path);
            let announced = known.is_some_and(|(_, capability)| {
                let path = format!("flow_table_properties_nic_receive.{kind}.{capability}");
                self.capabilities.current(CapGroup::FLOW_TABLE, &path) == 1
            });
            let index = OUTER_HEADERS
                .get(usize::from(leaf.index))
                .copied()
                .unwrap_or(0);
            ensure(
                announced,
                Stop::Refuse(Reason::NotOffered, About::Number(index)),
            )?;
        }
        Ok(())
    }
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
                .map(|(_, e)| entry(e))
                .collect(),
        })
        .collect()
}

fn entry(entry: &Entry) -> steering::FlowEntry {
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
