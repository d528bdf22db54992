//! Which header fields a flow group can match on this model.

use crate::fields::{bits_at, leaves};
use crate::firmware::{About, Firmware, Stop, ensure};
use crate::syndrome::Reason;
use pollux_prm::Layout;
use pollux_prm::commands::capability::CapGroup;
use pollux_prm::commands::flow::CreateFlowGroupIn;
use pollux_prm::commands::matching::{FteMatchLyr24, FteMatchParam};
use std::sync::LazyLock;

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
    pub(super) fn matchable(&self, mask: &FteMatchParam) -> Result<(), Stop> {
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
