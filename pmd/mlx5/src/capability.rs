//! What an adapter can do, as far as this driver asks, and what is set before it is started.

use crate::control::Control;
use crate::error::{CommandFailure, Error};
use pollux_prm::command::Command;
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::hca::{QueryHcaCap, QueryHcaCapOut, SetHcaCap};
use pollux_prm::commands::offload::{EthernetOffloadCaps, FlowTableNicCap};
use pollux_prm::layout::Layout;
use pollux_prm::opcode::Opcode;

/// `cmdif_checksum`: neither input nor output is checked.
const CHECKSUM_OFF: u8 = 0;
/// `cmdif_checksum`: both are.
const CHECKSUM_ON: u8 = 3;

/// Where the adapter wants packet headers (`wqe_inline_mode` of the Ethernet offload
/// capabilities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineMode {
    /// The L2 header must stand in the WQE.
    L2,
    /// As the virtual port's context says.
    ByVport,
    /// Nothing is needed.
    None,
}

/// The groups of capabilities that the driver reads, as they are in force.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    pub(crate) general: CmdHcaCap,
    pub(crate) ethernet: EthernetOffloadCaps,
    pub(crate) flow_table: FlowTableNicCap,
}

/// Current or largest possible values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Maximum = 0,
    Current = 1,
}

fn query(control: &Control, group: CapGroup, mode: Mode) -> Result<[u8; 4096], CommandFailure> {
    let mut input = QueryHcaCap::request();
    input.set_op_mod(group.0 << 1 | mode as u16);
    let output: QueryHcaCapOut = control.execute::<QueryHcaCap>(&input)?;
    Ok(output.capability())
}

fn group<L: Layout>(bytes: &[u8; 4096]) -> Result<L, CommandFailure> {
    let short = CommandFailure::Damaged {
        opcode: Opcode::QUERY_HCA_CAP,
        what: "short group",
    };
    L::read_from_prefix(bytes)
        .map(|(layout, _)| layout)
        .map_err(|_| short)
}

/// What the driver sets before the function is started: the current values, and
/// - command checksums as asked for;
/// - UAR pages of 4 KiB, whatever the host's pages are;
/// - 64-byte CQEs on 64-byte cache lines;
/// - "release all pages" events, where the adapter has them.
///
/// Unlike the Linux driver it does not raise the number of queue pairs: it has none, and each
/// would cost firmware memory.
pub(crate) fn configure(control: &Control, signatures: bool) -> Result<(), Error> {
    let current = query(control, CapGroup::GENERAL, Mode::Current)?;
    let maximum: CmdHcaCap = group(&query(control, CapGroup::GENERAL, Mode::Maximum)?)?;
    let mut set: CmdHcaCap = group(&current)?;
    set.set_cmdif_checksum(if signatures {
        CHECKSUM_ON
    } else {
        CHECKSUM_OFF
    })?;
    set.set_log_uar_page_sz(0);
    set.set_cache_line_128byte(false);
    if maximum.release_all_pages() {
        set.set_release_all_pages(true);
    }
    let mut input = SetHcaCap::request();
    let mut capability = current;
    for (to, from) in capability.iter_mut().zip(set.bytes()) {
        *to = *from;
    }
    input
        .set_op_mod(CapGroup::GENERAL.0 << 1)
        .set_capability(capability);
    control.execute::<SetHcaCap>(&input)?;
    Ok(())
}

impl Capabilities {
    /// Nothing at all, before anything was read.
    pub(crate) fn none() -> Self {
        Self {
            general: CmdHcaCap::zeroed(),
            ethernet: EthernetOffloadCaps::zeroed(),
            flow_table: FlowTableNicCap::zeroed(),
        }
    }

    /// Reads what is in force after the function was started.
    pub(crate) fn read(control: &Control) -> Result<Self, Error> {
        let general: CmdHcaCap = group(&query(control, CapGroup::GENERAL, Mode::Current)?)?;
        let ethernet = if general.eth_net_offloads() {
            group(&query(control, CapGroup::ETHERNET_OFFLOADS, Mode::Current)?)?
        } else {
            EthernetOffloadCaps::zeroed()
        };
        let flow_table = if general.nic_flow_table() {
            group(&query(control, CapGroup::FLOW_TABLE, Mode::Current)?)?
        } else {
            FlowTableNicCap::zeroed()
        };
        Ok(Self {
            general,
            ethernet,
            flow_table,
        })
    }

    /// Where headers must be.
    pub(crate) fn inline_mode(&self) -> InlineMode {
        match self.ethernet.wqe_inline_mode() {
            0 => InlineMode::L2,
            1 => InlineMode::ByVport,
            _ => InlineMode::None,
        }
    }
}
