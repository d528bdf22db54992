//! Flow tables: what each model can match, how many there may be of everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::world::World;
use pollux_emu::Model;
use pollux_emu::fields::{Leaf, leaves, set_bits_at};
use pollux_emu::profile::Profile;
use pollux_emu::syndrome::{Reason, parts};
use pollux_prm::command::Status;
use pollux_prm::commands::capability::CapGroup;
use pollux_prm::commands::counters::AllocFlowCounter;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::matching::FteMatchLyr24;
use pollux_prm::{Command, Layout};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// The name that a field has among the capabilities, where it is not the same.
fn capability(field: &str) -> Option<String> {
    let name = match field {
        "ethertype" => "ether_type",
        "ttl_hoplimit" => "ipv4_ttl",
        "src_ip" => "sip",
        "dst_ip" => "dip",
        "cvlan_tag" | "svlan_tag" => "first_vid",
        other => other,
    };
    (!["frag", "l4_type", "ipv4_ihl"].contains(&name)).then(|| format!("outer_{name}"))
}

#[test]
fn a_group_matches_what_its_model_announces_and_nothing_else() {
    let input = leaves(CreateFlowGroupIn::FIELDS);
    let within: BTreeMap<&str, &Leaf> = input
        .iter()
        .filter_map(|leaf| {
            Some((
                leaf.path.strip_prefix("match_criteria.outer_headers.")?,
                leaf,
            ))
        })
        .collect();
    for model in Model::ALL {
        let profile = Profile::of(model).unwrap();
        let mut world = World::new(model);
        let mut kinds = [0; 2];
        for leaf in leaves(FteMatchLyr24::FIELDS) {
            let field = within[leaf.path.as_str()];
            // All bits of a field, and its last one alone.
            for (kind, whole) in [
                ("ft_field_support", true),
                ("ft_field_bitmask_support", false),
            ] {
                let announced = capability(&leaf.path).is_some_and(|name| {
                    let path = format!("flow_table_properties_nic_receive.{kind}.{name}");
                    profile.max(CapGroup::FLOW_TABLE, &path) == 1
                });
                let mut group = world.group_input(4, 7);
                group[63] = 1;
                for bit in field.bit_offset..field.bit_offset + field.bits {
                    let last = bit + 1 == field.bit_offset + field.bits;
                    set_bits_at(&mut group, bit, 1, u64::from(whole || last));
                }
                let result = world.driver.try_raw(&group, 16);
                let what = format!("{model}: {} {kind}", leaf.path);
                kinds[usize::from(announced)] += 1;
                match result {
                    Ok(out) => {
                        assert!(announced, "{what}: accepted");
                        let mut input = DestroyFlowGroup::request();
                        input.set_table_id(world.table).unwrap();
                        input.set_group_id(u32::from_be_bytes(out[8..12].try_into().unwrap()));
                        world.driver.call::<DestroyFlowGroup>(&input).unwrap();
                    }
                    Err(why) => {
                        assert!(!announced, "{what}: {}", why.text());
                        let (reason, _, detail) = parts(why.syndrome).unwrap();
                        let expected = (Reason::NotOffered, field.index);
                        assert_eq!((reason, detail), expected, "{what}: {}", why.text());
                    }
                }
            }
        }
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }
}

fn expect(result: Result<Vec<u8>, driver::Refused>, status: Status, reason: Reason) {
    let why = result.unwrap_err();
    let got = (why.status, parts(why.syndrome).unwrap().0);
    assert_eq!(got, (status, reason), "{}", why.text());
}

#[test]
fn tables_levels_sizes_and_destinations_have_limits() {
    let mut world = World::new(Model::ConnectX5);
    let profile = Profile::of(Model::ConnectX5).unwrap();
    let max = |name: &str| {
        let path = format!("flow_table_properties_nic_receive.{name}");
        profile.max(CapGroup::FLOW_TABLE, &path)
    };
    // Size and level: the largest is good, the next is not.
    for (level, log_size, good) in [
        (max("max_ft_level") - 1, max("log_max_ft_size"), true),
        (max("max_ft_level"), 0, false),
        (0, max("log_max_ft_size") + 1, false),
    ] {
        let mut input = CreateFlowTable::request();
        let mut context = FlowTableContext::zeroed();
        context.set_level(level as u8).set_log_size(log_size as u8);
        input.set_flow_table_context(context);
        let result = world.driver.try_raw(input.as_bytes(), 16);
        if good {
            result.unwrap();
        } else {
            expect(result, Status::LIM_ERR, Reason::Limit);
        }
    }
    // Tables: three are there.
    let table = world.table_input(2);
    for _ in 3..1 << max("log_max_ft_num") {
        world.driver.try_raw(&table, 16).unwrap();
    }
    expect(
        world.driver.try_raw(&table, 16),
        Status::NO_RES_ERR,
        Reason::Exhausted,
    );
    // Destinations of one entry.
    let most = 1usize << max("log_max_destination");
    for (count, good) in [(most, true), (most + 1, false)] {
        let mut input = SetFlowTableEntry::request();
        input.set_table_id(world.table).unwrap();
        input.set_flow_index(1);
        let mut context = FlowContext::zeroed();
        context.set_group_id(world.group).set_action(4);
        context.set_destination_list_size(count as u32).unwrap();
        input.set_flow_context(context);
        let mut to = Destination::zeroed();
        to.set_destination_type(2)
            .set_destination_id(world.tirn)
            .unwrap();
        let tail: Vec<u8> = (0..count).flat_map(|_| *to.bytes()).collect();
        let result = world
            .driver
            .try_raw(&[input.as_bytes(), &tail].concat(), 16);
        if good {
            result.unwrap();
            let mut delete = DeleteFlowTableEntry::request();
            delete.set_table_id(world.table).unwrap();
            delete.set_flow_index(1);
            world.driver.call::<DeleteFlowTableEntry>(&delete).unwrap();
        } else {
            expect(result, Status::LIM_ERR, Reason::Limit);
        }
    }
    // Counters: one is there.
    let alloc = AllocFlowCounter::request();
    for _ in 1..1 << max("log_max_flow_counter") {
        world.driver.call::<AllocFlowCounter>(&alloc).unwrap();
    }
    expect(
        world.driver.try_raw(alloc.as_bytes(), 16),
        Status::NO_RES_ERR,
        Reason::Exhausted,
    );
}

#[test]
fn the_oldest_model_neither_counts_nor_changes_flows() {
    let mut world = World::new(Model::ConnectX4Lx);
    let alloc = AllocFlowCounter::request();
    expect(
        world.driver.try_raw(alloc.as_bytes(), 16),
        Status::BAD_OP_ERR,
        Reason::UnknownOpcode,
    );
    let mut entry = world.entry_input(1);
    // The action COUNT.
    entry[64 + 15] |= 8;
    expect(
        world.driver.try_raw(&entry, 16),
        Status::BAD_PARAM_ERR,
        Reason::NotOffered,
    );
    let mut entry = world.entry_input(0);
    entry[7] = 1;
    entry[0x1b] = 1;
    expect(
        world.driver.try_raw(&entry, 16),
        Status::BAD_PARAM_ERR,
        Reason::NotOffered,
    );
    let mut modify = ModifyFlowTable::request();
    modify.set_table_id(world.table).unwrap();
    modify.set_modify_field_select(1);
    let result = world.driver.try_raw(modify.as_bytes(), 16);
    expect(result, Status::BAD_PARAM_ERR, Reason::NotOffered);
    // A table whose misses go on.
    let mut table = CreateFlowTable::request();
    let mut context = FlowTableContext::zeroed();
    context.set_table_miss_action(1).unwrap();
    context.set_table_miss_id(world.next_table).unwrap();
    table.set_flow_table_context(context);
    let result = world.driver.try_raw(table.as_bytes(), 16);
    expect(result, Status::BAD_PARAM_ERR, Reason::NotOffered);
}
