//! Profiles: every capability that a model announces has an implementation, and a test that
//! exercises it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

use pollux_emu::Model;
use pollux_emu::profile::Profile;
use pollux_prm::commands::capability::CapGroup;
use std::collections::BTreeSet;

/// Sources of the tests that the table names.
const SOURCES: &[(&str, &str)] = &[
    ("init_segment", include_str!("../src/init_segment.rs")),
    ("profiles", include_str!("profiles.rs")),
    ("order", include_str!("order.rs")),
    ("mutation", include_str!("mutation/main.rs")),
    ("slots", include_str!("slots.rs")),
    ("objects", include_str!("objects.rs")),
    ("counters", include_str!("counters.rs")),
    ("registers", include_str!("registers.rs")),
    ("flows", include_str!("flows.rs")),
    ("completion", include_str!("data/completion.rs")),
    ("kernel", include_str!("data/kernel.rs")),
    ("moderation", include_str!("data/moderation.rs")),
    ("doorbell", include_str!("data/doorbell.rs")),
    ("joint", include_str!("data/joint.rs")),
    ("receive", include_str!("data/receive.rs")),
    ("send", include_str!("data/send.rs")),
    ("steer", include_str!("data/steer.rs")),
];

const GENERAL: CapGroup = CapGroup::GENERAL;
const ETHERNET: CapGroup = CapGroup::ETHERNET_OFFLOADS;
const FLOW: CapGroup = CapGroup::FLOW_TABLE;
const RX: &str = "flow_table_properties_nic_receive";

/// Which test exercises a capability (or all below a path).
const EXERCISED: &[(CapGroup, &str, &str, &str)] = &[
    (
        GENERAL,
        "log_max_cq",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_mkey",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_rq",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_rqt",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_sq",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_tir",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_tis",
        "objects",
        "no_more_queues_than_announced",
    ),
    (
        GENERAL,
        "log_max_pd",
        "objects",
        "no_more_objects_than_announced",
    ),
    (
        GENERAL,
        "log_max_transport_domain",
        "objects",
        "no_more_objects_than_announced",
    ),
    (
        GENERAL,
        "log_max_eq",
        "objects",
        "no_more_objects_than_announced",
    ),
    (
        GENERAL,
        "max_qp_cnt",
        "objects",
        "no_more_objects_than_announced",
    ),
    (
        GENERAL,
        "log_max_cq_sz",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_eq_sz",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_wq_sz",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_rqt_size",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_current_uc_list",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_current_mc_list",
        "objects",
        "no_larger_than_announced",
    ),
    (
        GENERAL,
        "log_max_vlan_list",
        "objects",
        "no_larger_than_announced",
    ),
    // A key of the whole address space, and page lists in units of 4 KiB.
    (
        GENERAL,
        "log_max_mrw_sz",
        "objects",
        "queries_return_what_was_set",
    ),
    (
        GENERAL,
        "log_pg_sz",
        "objects",
        "queries_return_what_was_set",
    ),
    (
        GENERAL,
        "log_min_stride_sz_rq",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (
        GENERAL,
        "log_max_stride_sz_rq",
        "receive",
        "a_buffer_in_pieces_is_filled_in_order",
    ),
    (
        GENERAL,
        "max_wqe_sz_rq",
        "receive",
        "a_buffer_in_pieces_is_filled_in_order",
    ),
    (
        GENERAL,
        "log_min_stride_sz_sq",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (
        GENERAL,
        "log_max_stride_sz_sq",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (
        GENERAL,
        "max_wqe_sz_sq",
        "send",
        "frames_arrive_byte_for_byte_in_every_shape",
    ),
    (
        GENERAL,
        "basic_cyclic_rcv_wqe",
        "receive",
        "a_buffer_in_pieces_is_filled_in_order",
    ),
    (GENERAL, "cq_oi", "completion", "overruns_may_be_ignored"),
    (
        GENERAL,
        "cq_moderation",
        "moderation",
        "so_many_completions_make_an_event",
    ),
    (
        GENERAL,
        "cq_period_start_from_cqe",
        "moderation",
        "a_period_from_the_completion_starts_anew_with_each",
    ),
    (
        GENERAL,
        "cq_period_mode_modify",
        "objects",
        "moderation_is_changed_by_field",
    ),
    (
        GENERAL,
        "cqe_version",
        "receive",
        "completions_describe_the_packet",
    ),
    (
        GENERAL,
        "cmdif_checksum",
        "slots",
        "signatures_are_demanded_when_switched_on",
    ),
    (
        GENERAL,
        "device_frequency_mhz",
        "profiles",
        "the_timer_runs_as_announced",
    ),
    (
        GENERAL,
        "device_frequency_khz",
        "profiles",
        "the_timer_runs_as_announced",
    ),
    (
        GENERAL,
        "eth_net_offloads",
        "joint",
        "checksums_and_tags_are_written_where_announced",
    ),
    (
        GENERAL,
        "nic_flow_table",
        "steer",
        "own_address_broadcast_multicast_and_then_everything",
    ),
    (
        GENERAL,
        "vport_counters",
        "counters",
        "every_counter_counts_what_it_says",
    ),
    (
        GENERAL,
        "nic_receive_steering_discard",
        "counters",
        "every_counter_counts_what_it_says",
    ),
    (
        GENERAL,
        "invalid_command_count",
        "counters",
        "every_counter_counts_what_it_says",
    ),
    (
        GENERAL,
        "modify_rq_counter_set_id",
        "counters",
        "a_queue_counts_into_the_set_it_was_moved_to",
    ),
    (
        GENERAL,
        "driver_version",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (
        GENERAL,
        "release_all_pages",
        "slots",
        "all_pages_can_be_dropped_with_consent",
    ),
    (
        GENERAL,
        "pcam_reg",
        "registers",
        "the_newest_have_extended_modes_and_say_so",
    ),
    (
        GENERAL,
        "port_type",
        "order",
        "kernel_order_is_accepted_byte_for_byte",
    ),
    (
        GENERAL,
        "num_ports",
        "order",
        "kernel_order_is_accepted_byte_for_byte",
    ),
    (
        GENERAL,
        "bf",
        "doorbell",
        "every_register_of_the_page_rings_and_no_other_place_does",
    ),
    (
        GENERAL,
        "log_bf_reg_size",
        "doorbell",
        "every_register_of_the_page_rings_and_no_other_place_does",
    ),
    (
        ETHERNET,
        "cqe_checksum_full",
        "kernel",
        "the_sum_of_a_completion_is_what_the_driver_takes_it_for",
    ),
    (
        ETHERNET,
        "csum_cap",
        "joint",
        "checksums_and_tags_are_written_where_announced",
    ),
    (
        ETHERNET,
        "wqe_vlan_insert",
        "joint",
        "checksums_and_tags_are_written_where_announced",
    ),
    (
        ETHERNET,
        "vlan_cap",
        "receive",
        "tags_are_taken_out_and_check_sequences_appended",
    ),
    (
        ETHERNET,
        "scatter_fcs",
        "receive",
        "tags_are_taken_out_and_check_sequences_appended",
    ),
    (
        ETHERNET,
        "max_lso_cap",
        "joint",
        "a_large_send_is_cut_and_waits_for_buffers_in_the_middle",
    ),
    (
        ETHERNET,
        "wqe_inline_mode",
        "send",
        "the_inline_header_is_insisted_on",
    ),
    (
        ETHERNET,
        "rss_ind_tbl_cap",
        "steer",
        "the_hash_picks_the_queue_and_is_told",
    ),
    (
        ETHERNET,
        "self_lb_en_modifiable",
        "objects",
        "self_loopback_is_kept_where_it_can_be_changed",
    ),
    (
        FLOW,
        "ft_support",
        "steer",
        "tables_chain_miss_drop_copy_and_do_not_go_in_circles",
    ),
    (
        FLOW,
        "modify_root",
        "counters",
        "every_counter_counts_what_it_says",
    ),
    (
        FLOW,
        "log_max_ft_size",
        "flows",
        "tables_levels_sizes_and_destinations_have_limits",
    ),
    (
        FLOW,
        "max_ft_level",
        "flows",
        "tables_levels_sizes_and_destinations_have_limits",
    ),
    (
        FLOW,
        "log_max_ft_num",
        "flows",
        "tables_levels_sizes_and_destinations_have_limits",
    ),
    (
        FLOW,
        "log_max_destination",
        "flows",
        "tables_levels_sizes_and_destinations_have_limits",
    ),
    (
        FLOW,
        "log_max_flow_counter",
        "flows",
        "tables_levels_sizes_and_destinations_have_limits",
    ),
    (
        FLOW,
        "flow_counter",
        "counters",
        "every_counter_counts_what_it_says",
    ),
    (
        FLOW,
        "flow_modify_en",
        "counters",
        "entries_can_be_changed_where_announced",
    ),
    (
        FLOW,
        "identified_miss_table_mode",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (
        FLOW,
        "flow_table_modify",
        "mutation",
        "every_command_of_a_running_function",
    ),
    (FLOW, "ft_field_support", "steer", "every_field_can_decide"),
    (
        FLOW,
        "ft_field_bitmask_support",
        "flows",
        "a_group_matches_what_its_model_announces_and_nothing_else",
    ),
];

fn exercised(group: CapGroup, path: &str) -> Option<(&'static str, &'static str)> {
    let path = path
        .strip_prefix(RX)
        .and_then(|rest| rest.strip_prefix('.'))
        .unwrap_or(path);
    let below = |name: &str| {
        path.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    EXERCISED
        .iter()
        .find(|(of, name, ..)| *of == group && below(name))
        .map(|(_, _, file, test)| (*file, *test))
}

#[test]
fn every_announced_capability_has_a_test() {
    let mut named = BTreeSet::new();
    for model in Model::ALL {
        let profile = Profile::of(model).unwrap();
        for (group, contents) in &profile.groups {
            for capability in &contents.announced {
                if capability.max == 0 {
                    continue;
                }
                let what = format!("{model}: {}", capability.path);
                let Some((file, test)) = exercised(CapGroup(*group), &capability.path) else {
                    panic!("{what} is announced, but no test exercises it");
                };
                let source = SOURCES.iter().find(|(name, _)| *name == file);
                let (_, source) = source.unwrap_or_else(|| panic!("{what}: no source {file}"));
                assert!(
                    source.contains(&format!("fn {test}()")),
                    "{what}: no test {test} in {file}"
                );
                named.insert((file, test));
            }
        }
    }
    // No row of the table is left over.
    for (_, name, file, test) in EXERCISED {
        assert!(
            named.contains(&(*file, *test)),
            "{name} is announced by nobody"
        );
    }
}

#[test]
fn what_is_not_announced_is_zero_even_between_the_fields() {
    for model in Model::ALL {
        let profile = Profile::of(model).unwrap();
        for group in profile.groups.values() {
            let announced: u32 = group
                .announced
                .iter()
                .map(|item| item.max.count_ones())
                .sum();
            let set: u32 = group.max.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(announced, set, "{model}");
            let initial: u32 = group
                .announced
                .iter()
                .map(|item| item.current.count_ones())
                .sum();
            let set: u32 = group.current.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(initial, set, "{model}");
        }
    }
}

#[test]
fn the_timer_runs_as_announced() {
    // That it advances at this rate is the initialization segment's own test.
    for model in Model::ALL {
        let profile = Profile::of(model).unwrap();
        let khz = profile.max(GENERAL, "device_frequency_khz");
        let mhz = profile.max(GENERAL, "device_frequency_mhz");
        assert_eq!(mhz, u64::from(profile.timer_khz) / 1000, "{model}");
        // The oldest firmware tells MHz only.
        let expected = if model == Model::ConnectX4Lx {
            0
        } else {
            profile.timer_khz.into()
        };
        assert_eq!(khz, expected, "{model}");
    }
}

#[test]
fn models_are_told_apart_by_device_and_firmware() {
    let facts = |model| {
        let profile = Profile::of(model).unwrap();
        (profile.device, profile.firmware.major)
    };
    assert_eq!(facts(Model::ConnectX4Lx), (0x1015, 14));
    assert_eq!(facts(Model::ConnectX5), (0x1017, 16));
    assert_eq!(facts(Model::ConnectX6Dx), (0x101d, 22));
    assert_eq!(facts(Model::ConnectX7), (0x1021, 28));
}
