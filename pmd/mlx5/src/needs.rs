//! What the driver needs of an adapter's capabilities, what for, and where it comes from; and what
//! it does without.
//!
//! Names are those of `mlx5_ifc.h`. A required capability that is missing is an error that names
//! all of them at once; an optional one makes less of the port, and is said once.

use crate::capability::Capabilities;
use crate::eq::EqKind;
use crate::error::Error;
use pollux_bus::Identity;

/// `port_type` of an Ethernet port, and of an InfiniBand one.
const PORT_ETHERNET: u8 = 1;
const PORT_INFINIBAND: u8 = 0;
/// Descriptors of the smallest ring, log 2.
const LOG_RING: u8 = 5;
/// Entries of the root flow table, log 2.
const LOG_TABLE: u8 = 4;
/// Bytes of the smallest send WQE.
const SEND_WQE: u16 = 64;
/// Levels of flow tables: the root, and with several queues one that spreads.
const LEVELS_SPREAD: u8 = 2;

/// Firmware that has everything required.
const FIRMWARE: &str = "update its firmware (mstflint -d PCI query shows it): every release of the last years for a ConnectX-4 or newer has them; on a virtual function or behind a BlueField, see what its owner has taken away";

/// One capability that is less than needed.
struct Missing {
    name: &'static str,
    there: u64,
    needed: u64,
    what_for: &'static str,
}

/// What a port does without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Without {
    /// Counters of the virtual port.
    pub(crate) vport_counters: bool,
    /// Spreading over several receive queues.
    pub(crate) spreading: bool,
}

/// Said when firmware refuses a counter set.
pub(crate) const NO_COUNTER_SET: &str = "the adapter gives no counter set (max_qp_cnt): packets that find no receive descriptor are lost uncounted, RX-missed stays 0";

impl Without {
    /// In sentences.
    pub(crate) fn said(self) -> impl Iterator<Item = String> {
        [
            (
                self.vport_counters,
                "the adapter has no port counters (vport_counters 0): only what the queues count is shown",
            ),
            (
                self.spreading,
                "the adapter cannot spread packets by their headers (max_ft_level below 2, or no outer_ethertype, outer_ip_protocol or indirection tables): one receive queue at most",
            ),
        ]
        .into_iter()
        .filter(|(missing, _)| *missing)
        .map(|(_, text)| text.to_owned())
    }
}

/// Which number `mlxconfig` gives the port of a function with this name.
fn port_number(name: &str) -> u8 {
    if name.ends_with(".1") { 2 } else { 1 }
}

/// Refuses an adapter that lacks what the driver cannot do without; says what it does without.
///
/// # Errors
/// [`Error::PortType`], or [`Error::Capabilities`] with all that is missing.
pub(crate) fn check(capabilities: &Capabilities, identity: &Identity) -> Result<Without, Error> {
    let general = &capabilities.general;
    let function = identity.name.clone();
    if general.port_type() != PORT_ETHERNET {
        let found = match general.port_type() {
            PORT_INFINIBAND => "InfiniBand".to_owned(),
            other => format!("type {other}"),
        };
        let port = port_number(&function);
        return Err(Error::PortType {
            function,
            found,
            port,
        });
    }
    let receive = capabilities.flow_table.flow_table_properties_nic_receive();
    let fields = receive.ft_field_support();
    // As EQs are counted by the one or the other.
    let eqs = match u64::from(general.max_num_eqs()) {
        0 => 1u64 << general.log_max_eq().min(32),
        number => number,
    };
    let flag = |name, there: bool, what_for| Missing {
        name,
        there: there.into(),
        needed: 1,
        what_for,
    };
    let log = |name, there: u8, needed: u8, what_for| Missing {
        name,
        there: there.into(),
        needed: needed.into(),
        what_for,
    };
    let flow = general.nic_flow_table();
    let missing: Vec<String> = [
        flag(
            "eth_net_offloads",
            general.eth_net_offloads(),
            "send and receive queues for Ethernet",
        ),
        flag("nic_flow_table", flow, "rules that bring packets to queues"),
        flag(
            "ft_support",
            !flow || receive.ft_support(),
            "receive flow tables",
        ),
        flag(
            "outer_dmac",
            !flow || fields.outer_dmac(),
            "rules for the port's own address",
        ),
        log(
            "max_ft_level",
            if flow { receive.max_ft_level() } else { 1 },
            1,
            "receive flow tables",
        ),
        log(
            "log_max_ft_size",
            if flow {
                receive.log_max_ft_size()
            } else {
                LOG_TABLE
            },
            LOG_TABLE,
            "a rule for each address",
        ),
        Missing {
            name: "event queues (log_max_eq)",
            there: eqs,
            needed: EqKind::ALL.len() as u64,
            what_for: "commands, events and completions",
        },
        log(
            "log_max_cq",
            general.log_max_cq(),
            1,
            "a completion queue each way",
        ),
        log(
            "log_max_cq_sz",
            general.log_max_cq_sz(),
            LOG_RING,
            "completion queues as long as the shortest ring",
        ),
        log(
            "log_max_wq_sz",
            general.log_max_wq_sz(),
            LOG_RING,
            "rings of descriptors",
        ),
        Missing {
            name: "max_wqe_sz_sq",
            there: general.max_wqe_sz_sq().into(),
            needed: SEND_WQE.into(),
            what_for: "send descriptors",
        },
    ]
    .into_iter()
    .filter(|capability| capability.there < capability.needed)
    .map(|capability| {
        format!(
            "{} {} of {} (for {})",
            capability.name, capability.there, capability.needed, capability.what_for
        )
    })
    .collect();
    if !missing.is_empty() {
        return Err(Error::Capabilities {
            function,
            missing: missing.join(", "),
            remedy: FIRMWARE,
        });
    }
    Ok(Without {
        vport_counters: !general.vport_counters(),
        spreading: receive.max_ft_level() < LEVELS_SPREAD
            || !(fields.outer_ether_type() && fields.outer_ip_protocol())
            || general.log_max_rqt_size() == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_function_is_the_second_port() {
        for (name, port) in [
            ("0000:3b:00.0", 1),
            ("0000:3b:00.1", 2),
            ("0000:3b:00.5", 1),
            ("emu1", 1),
        ] {
            assert_eq!(port_number(name), port, "{name}");
        }
    }
}
