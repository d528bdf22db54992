//! QUERY_HCA_CAP, SET_HCA_CAP, and the limits that follow from what is set.

use super::{About, Answer, Call, Firmware, Spec, Stop, command, ensure};
use crate::fields::bits_at;
use crate::profile::{Group, Profile, value};
use crate::syndrome::{Phase, Reason};
use pollux_prm::command::PlainOut;
use pollux_prm::commands::capability::CapGroup;
use pollux_prm::commands::hca::*;
use std::collections::BTreeMap;

/// Bytes of capabilities that the commands carry.
const SPACE: usize = 4096;

pub(super) fn commands() -> Vec<Spec> {
    const BEFORE: &[Phase] = &[Phase::Enabled];
    const ASK: &[Phase] = &[Phase::Enabled, Phase::Running];
    const SET: &[u16] = &[CapGroup::GENERAL.set()];
    vec![
        command::<QueryHcaCap>(ASK, &[], query).variants(&[]),
        command::<SetHcaCap>(BEFORE, &["capability"], set).variants(SET),
    ]
}

/// Limits on objects, as the current capabilities have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is the capability of that name, its logarithm resolved
pub(crate) struct Limits {
    pub eqs: u64,
    pub log_eq_size: u8,
    pub pds: u64,
    pub transport_domains: u64,
    pub mkeys: u64,
    pub cqs: u64,
    pub log_cq_size: u8,
    pub sqs: u64,
    pub rqs: u64,
    pub tises: u64,
    pub tirs: u64,
    pub rqts: u64,
    pub log_rqt_size: u8,
    pub log_wq_size: u8,
    pub min_stride: u8,
    pub max_stride: u8,
    pub uc_list: u64,
    pub mc_list: u64,
    pub vlan_list: u64,
    pub q_counters: u64,
    pub flow_counters: u64,
    pub flow_tables: u64,
    pub log_flow_table: u8,
    pub flow_levels: u64,
    pub flow_destinations: u64,
    pub release_all_pages: bool,
    pub driver_version: bool,
    pub checksum: u8,
    pub cq_moderation: bool,
    pub cq_period_from_cqe: bool,
    pub cq_period_mode_modify: bool,
    pub cq_oi: bool,
    pub inline_mode: u8,
    pub vlan_strip: bool,
    pub scatter_fcs: bool,
    pub self_loopback: bool,
    pub flow_modify: bool,
    pub identified_miss: bool,
    pub flow_table_modify: bool,
    pub flow_counter: bool,
    pub vnic_env: bool,
    pub pcam: bool,
}

/// The capabilities in force, by group.
#[derive(Clone, Debug)]
pub(super) struct Capabilities {
    groups: BTreeMap<u16, Group>,
    initial: BTreeMap<u16, Vec<u8>>,
    limits: Limits,
}

impl Capabilities {
    /// The current value of a field of a group.
    pub fn current(&self, group: CapGroup, path: &str) -> u64 {
        self.groups
            .get(&group.0)
            .map_or(0, |group| value(&group.current, &group.leaves, path))
    }

    pub fn new(profile: &Profile) -> Self {
        let groups = profile.groups.clone();
        let initial = groups
            .iter()
            .map(|(number, group)| (*number, group.current.clone()))
            .collect();
        let limits = limits(&groups);
        Self {
            groups,
            initial,
            limits,
        }
    }

    /// As after power-on.
    pub fn reset(&mut self) {
        for (number, group) in &mut self.groups {
            if let Some(initial) = self.initial.get(number) {
                group.current.clone_from(initial);
            }
        }
        self.limits = limits(&self.groups);
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }
}

fn limits(groups: &BTreeMap<u16, Group>) -> Limits {
    let of = |group: CapGroup, path: &str| {
        groups
            .get(&group.0)
            .map_or(0, |group| value(&group.current, &group.leaves, path))
    };
    let general = |path| of(CapGroup::GENERAL, path);
    let ethernet = |path| of(CapGroup::ETHERNET_OFFLOADS, path);
    let rx = |name: &str| {
        of(
            CapGroup::FLOW_TABLE,
            &format!("flow_table_properties_nic_receive.{name}"),
        )
    };
    let count = |path| 1u64 << general(path).min(24);
    let eqs = match general("max_num_eqs") {
        0 => count("log_max_eq"),
        number => number,
    };
    Limits {
        eqs,
        log_eq_size: general("log_max_eq_sz") as u8,
        pds: count("log_max_pd"),
        transport_domains: count("log_max_transport_domain"),
        mkeys: count("log_max_mkey"),
        cqs: count("log_max_cq"),
        log_cq_size: general("log_max_cq_sz") as u8,
        sqs: count("log_max_sq"),
        rqs: count("log_max_rq"),
        tises: count("log_max_tis"),
        tirs: count("log_max_tir"),
        rqts: count("log_max_rqt"),
        log_rqt_size: general("log_max_rqt_size") as u8,
        log_wq_size: general("log_max_wq_sz") as u8,
        min_stride: general("log_min_stride_sz_rq") as u8,
        max_stride: general("log_max_stride_sz_rq") as u8,
        uc_list: count("log_max_current_uc_list"),
        mc_list: count("log_max_current_mc_list"),
        vlan_list: count("log_max_vlan_list"),
        q_counters: general("max_qp_cnt"),
        flow_counters: if rx("flow_counter") == 1 {
            1 << rx("log_max_flow_counter").min(16)
        } else {
            0
        },
        flow_tables: 1 << rx("log_max_ft_num").min(24),
        log_flow_table: rx("log_max_ft_size") as u8,
        flow_levels: rx("max_ft_level"),
        flow_destinations: 1 << rx("log_max_destination").min(16),
        release_all_pages: general("release_all_pages") == 1,
        driver_version: general("driver_version") == 1,
        checksum: general("cmdif_checksum") as u8,
        cq_moderation: general("cq_moderation") == 1,
        cq_period_from_cqe: general("cq_period_start_from_cqe") == 1,
        cq_period_mode_modify: general("cq_period_mode_modify") == 1,
        cq_oi: general("cq_oi") == 1,
        inline_mode: ethernet("wqe_inline_mode") as u8,
        vlan_strip: ethernet("vlan_cap") == 1,
        scatter_fcs: ethernet("scatter_fcs") == 1,
        self_loopback: ethernet("self_lb_en_modifiable") == 1,
        flow_modify: rx("flow_modify_en") == 1,
        identified_miss: rx("identified_miss_table_mode") == 1,
        flow_table_modify: rx("flow_table_modify") == 1,
        flow_counter: rx("flow_counter") == 1,
        vnic_env: general("vnic_env_queue_counters") == 1
            || general("nic_receive_steering_discard") == 1,
        pcam: general("pcam_reg") == 1,
    }
}

fn query(firmware: &mut Firmware, _: &QueryHcaCapIn, call: &Call<'_>) -> Answer<QueryHcaCapOut> {
    ensure(
        firmware.boot_pages_given(),
        Stop::because(Reason::PagesMissing),
    )?;
    let (group, current) = CapGroup::of_op_mod(call.op_mod);
    // A group that exists but has nothing announced reads as zero.
    ensure(
        group.name().is_some(),
        Stop::because(Reason::UnknownVariant),
    )?;
    let mut space = [0; SPACE];
    if let Some(group) = firmware.capabilities.groups.get(&group.0) {
        let from = if current { &group.current } else { &group.max };
        for (to, from) in space.iter_mut().zip(from) {
            *to = *from;
        }
    }
    let mut out = QueryHcaCapOut::zeroed();
    out.set_capability(space);
    Ok(out.into())
}

fn set(firmware: &mut Firmware, input: &SetHcaCapIn, call: &Call<'_>) -> Answer<PlainOut> {
    ensure(
        firmware.boot_pages_given(),
        Stop::because(Reason::PagesMissing),
    )?;
    let (group, _) = CapGroup::of_op_mod(call.op_mod);
    let wanted = input.capability();
    let unknown = Stop::because(Reason::UnknownVariant);
    let group = firmware
        .capabilities
        .groups
        .get_mut(&group.0)
        .ok_or(unknown)?;
    for leaf in group.leaves.iter() {
        let asked = bits_at(&wanted, leaf.bit_offset, leaf.bits);
        let most = bits_at(&group.max, leaf.bit_offset, leaf.bits);
        let above = Stop::Refuse(Reason::AboveMaximum, About::Number(leaf.index));
        ensure(asked <= most, above)?;
    }
    // Bits that no field covers cannot be announced either.
    let named = |bit: usize| {
        group
            .leaves
            .iter()
            .any(|leaf| (leaf.bit_offset..leaf.bit_offset + leaf.bits).contains(&bit))
    };
    for (at, byte) in wanted.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        for bit in (0..8)
            .filter(|bit| byte & 0x80 >> bit != 0)
            .map(|bit| at * 8 + bit)
        {
            let word = About::Number((bit / 32 + 4) as u16);
            ensure(named(bit), Stop::Refuse(Reason::ReservedBits, word))?;
        }
    }
    let len = group.current.len();
    if let Some(set) = wanted.get(..len) {
        group.current.copy_from_slice(set);
    }
    firmware.capabilities.limits = limits(&firmware.capabilities.groups);
    Ok(PlainOut::zeroed().into())
}
