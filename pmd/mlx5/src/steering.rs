//! Receive steering: which packets reach the queues, and which queue each of them goes to.
//!
//! ```text
//! root table (level 0)                        spread table (level 1, only with several queues)
//!   own addresses, broadcast  ------------->    IPv4 TCP, IPv4 UDP, IPv6 TCP, IPv6 UDP,
//!   everything (promiscuous)  ------------->    IPv4, IPv6        -> RSS over all queues
//!                                               everything else   -> first queue
//! ```
//!
//! With one queue the root table sends to it at once. A packet that no entry of the root table
//! wants is dropped by the device. Control plane only.

use crate::config::MacAddress;
use crate::control::Control;
use crate::error::Error;
use crate::stack::Stack;
use pollux_prm::command::Command;
use pollux_prm::commands::flow::{
    CreateFlowGroup, CreateFlowTable, DeleteFlowTableEntry, Destination, DestinationType,
    DestroyFlowGroup, DestroyFlowTable, FlowAction, FlowContext, FlowTableContext, MatchCriteria,
    SetFlowTableEntry, SetFlowTableRoot, TableType,
};
use pollux_prm::commands::matching::{FteMatchLyr24, FteMatchParam};
use pollux_prm::commands::tir::{
    CreateRqt, CreateTir, DestroyRqt, DestroyTir, DispType, L3Protocol, L4Protocol, RqNum, Rqtc,
    RxHashField, RxHashFieldSelect, RxHashFn, Tirc,
};

/// Entries of the root table.
const LOG_ROOT: u8 = 4;
/// Entries for single addresses: the first ones.
const ADDRESSES: std::ops::Range<u32> = 0..14;
/// The entry for everything.
const EVERYTHING: u32 = 15;
/// Entries of the spread table.
const LOG_SPREAD: u8 = 4;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The key that Microsoft publishes with its test vectors for the Toeplitz hash.
const RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Where packets go.
#[derive(Clone, Copy, Debug)]
struct Target(DestinationType, u32);

/// The tables of a started port.
pub(crate) struct Steering {
    root: u32,
    addresses: u32,
    everything: u32,
    target: Target,
    /// Addresses by entry.
    entries: Vec<Option<MacAddress>>,
    promiscuous: bool,
}

/// Entries of the indirection table for `queues` queues: enough that no queue gets half as much
/// again as another.
fn indirections(queues: usize, max: usize) -> usize {
    let even = if queues.is_power_of_two() {
        queues
    } else {
        queues.next_power_of_two() * 8
    };
    even.min(max).max(1)
}

impl Steering {
    /// Makes tables, groups and receive interfaces for the receive queues `rqs` (at least one).
    /// Nothing is admitted yet, and nothing works before [`open`](Self::open). Everything made is pushed on `stack`.
    ///
    /// # Errors
    /// Firmware's refusal.
    pub(crate) fn new(
        control: &Control,
        stack: &mut Stack,
        transport_domain: u32,
        rqs: &[u32],
        max_indirections: usize,
    ) -> Result<Self, Error> {
        let target = match rqs {
            [] => {
                return Err(Error::Setting {
                    what: "receive queues to steer to",
                    given: 0,
                    allowed: "1 or more".into(),
                    remedy: "configure a receive queue".into(),
                });
            }
            [only] => Target(
                DestinationType::TIR,
                direct(control, stack, transport_domain, *only)?,
            ),
            [first, ..] => {
                let rest = direct(control, stack, transport_domain, *first)?;
                let table = indirection_table(control, stack, rqs, max_indirections)?;
                let spread = spread(control, stack, transport_domain, table, rest)?;
                Target(DestinationType::FLOW_TABLE, spread)
            }
        };
        let root = table(control, stack, 0, LOG_ROOT)?;
        let mut criteria = FteMatchLyr24::zeroed();
        criteria.set_dmac([0xff; 6]);
        let addresses = group(control, stack, root, ADDRESSES, Some(criteria))?;
        let everything = group(control, stack, root, EVERYTHING..EVERYTHING + 1, None)?;
        Ok(Self {
            root,
            addresses,
            everything,
            target,
            entries: vec![None; ADDRESSES.len()],
            promiscuous: false,
        })
    }

    /// Puts the tables to work, with what was admitted so far: all of it from the same moment on, so
    /// that of packets that wait for the port none is lost to an entry that comes later.
    ///
    /// # Errors
    /// Firmware's refusal.
    pub(crate) fn open(&self, control: &Control) -> Result<(), Error> {
        let mut input = SetFlowTableRoot::request();
        input.set_table_type(TableType::NIC_RX.0);
        input.set_table_id(self.root)?;
        control.execute::<SetFlowTableRoot>(&input)?;
        Ok(())
    }

    /// Admits packets for `mac`.
    ///
    /// # Errors
    /// No entry left, or firmware's refusal.
    pub(crate) fn admit(&mut self, control: &Control, mac: MacAddress) -> Result<(), Error> {
        if self.entries.contains(&Some(mac)) {
            return Ok(());
        }
        let Some(free) = self.entries.iter().position(Option::is_none) else {
            return Err(Error::Setting {
                what: "addresses admitted",
                given: self.entries.len() as u64 + 1,
                allowed: format!("at most {}", self.entries.len()),
                remedy: "use promiscuous mode".into(),
            });
        };
        let mut value = FteMatchLyr24::zeroed();
        value.set_dmac(mac.0);
        let index = ADDRESSES.start + free as u32;
        set_entry(
            control,
            self.root,
            self.addresses,
            index,
            Some(value),
            self.target,
        )?;
        if let Some(entry) = self.entries.get_mut(free) {
            *entry = Some(mac);
        }
        Ok(())
    }

    /// Admits packets for `mac` no more.
    ///
    /// # Errors
    /// Firmware's refusal.
    pub(crate) fn expel(&mut self, control: &Control, mac: MacAddress) -> Result<(), Error> {
        let Some(at) = self.entries.iter().position(|entry| *entry == Some(mac)) else {
            return Ok(());
        };
        delete_entry(control, self.root, ADDRESSES.start + at as u32)?;
        if let Some(entry) = self.entries.get_mut(at) {
            *entry = None;
        }
        Ok(())
    }

    /// Admits everything, or only the addresses.
    ///
    /// # Errors
    /// Firmware's refusal.
    pub(crate) fn set_promiscuous(&mut self, control: &Control, on: bool) -> Result<(), Error> {
        if on == self.promiscuous {
            return Ok(());
        }
        if on {
            set_entry(
                control,
                self.root,
                self.everything,
                EVERYTHING,
                None,
                self.target,
            )?;
        } else {
            delete_entry(control, self.root, EVERYTHING)?;
        }
        self.promiscuous = on;
        Ok(())
    }

    /// Deletes what was admitted, so that the tables, which are on the stack, can go.
    pub(crate) fn clear(&mut self, control: &Control) -> Vec<Error> {
        let mut errors = Vec::new();
        errors.extend(self.set_promiscuous(control, false).err());
        for mac in self.entries.clone().into_iter().flatten() {
            errors.extend(self.expel(control, mac).err());
        }
        errors
    }
}

/// A receive interface in front of one queue.
fn direct(control: &Control, stack: &mut Stack, domain: u32, rq: u32) -> Result<u32, Error> {
    let mut context = Tirc::zeroed();
    context.set_disp_type(DispType::DIRECT.0)?;
    context.set_inline_rqn(rq)?;
    context.set_transport_domain(domain)?;
    tir(control, stack, context)
}

fn tir(control: &Control, stack: &mut Stack, context: Tirc) -> Result<u32, Error> {
    let mut input = CreateTir::request();
    input.set_ctx(context);
    let number = control.execute::<CreateTir>(&input)?.tirn();
    let mut destroy = DestroyTir::request();
    destroy.set_tirn(number)?;
    stack.destroy::<DestroyTir>("TIR", destroy);
    Ok(number)
}

fn indirection_table(
    control: &Control,
    stack: &mut Stack,
    rqs: &[u32],
    max: usize,
) -> Result<u32, Error> {
    let size = indirections(rqs.len(), max);
    let mut context = Rqtc::zeroed();
    context
        .set_rqt_max_size(size as u16)
        .set_rqt_actual_size(size as u16);
    let mut input = CreateRqt::request();
    input.set_rqt_context(context);
    let mut tail = Vec::with_capacity(size * RqNum::LEN);
    for rq in rqs.iter().cycle().take(size) {
        let mut number = RqNum::zeroed();
        number.set_rq_num(*rq)?;
        tail.extend(number.bytes());
    }
    let number = control.execute_with::<CreateRqt>(&input, &tail)?.rqtn();
    let mut destroy = DestroyRqt::request();
    destroy.set_rqtn(number)?;
    stack.destroy::<DestroyRqt>("RQT", destroy);
    Ok(number)
}

/// The table behind the root that sends each kind of packet to its hash.
fn spread(
    control: &Control,
    stack: &mut Stack,
    domain: u32,
    indirect: u32,
    rest: u32,
) -> Result<u32, Error> {
    let number = table(control, stack, 1, LOG_SPREAD)?;
    let mut both = FteMatchLyr24::zeroed();
    both.set_ethertype(0xffff).set_ip_protocol(0xff);
    let mut ethertype = FteMatchLyr24::zeroed();
    ethertype.set_ethertype(0xffff);
    let four = group(control, stack, number, 0..4, Some(both))?;
    let two = group(control, stack, number, 4..6, Some(ethertype))?;
    let one = group(control, stack, number, 6..7, None)?;
    let kinds = [
        (four, IPV4, Some(TCP)),
        (four, IPV4, Some(UDP)),
        (four, IPV6, Some(TCP)),
        (four, IPV6, Some(UDP)),
        (two, IPV4, None),
        (two, IPV6, None),
    ];
    for (index, (group, version, protocol)) in (0u32..).zip(kinds) {
        let hashed = hashed(control, stack, domain, indirect, version, protocol)?;
        let mut value = FteMatchLyr24::zeroed();
        value.set_ethertype(version);
        value.set_ip_protocol(protocol.unwrap_or(0));
        let target = Target(DestinationType::TIR, hashed);
        set_entry(control, number, group, index, Some(value), target)?;
        stack.push("flow entry", move |control, _| {
            delete_entry(control, number, index)
        });
    }
    set_entry(
        control,
        number,
        one,
        6,
        None,
        Target(DestinationType::TIR, rest),
    )?;
    stack.push("flow entry", move |control, _| {
        delete_entry(control, number, 6)
    });
    Ok(number)
}

/// A receive interface that spreads one kind of packet over all queues.
fn hashed(
    control: &Control,
    stack: &mut Stack,
    domain: u32,
    indirect: u32,
    version: u16,
    protocol: Option<u8>,
) -> Result<u32, Error> {
    let mut fields = RxHashField::SRC_IP.bit() | RxHashField::DST_IP.bit();
    let mut select = RxHashFieldSelect::zeroed();
    let l3 = if version == IPV6 {
        L3Protocol::IPV6
    } else {
        L3Protocol::IPV4
    };
    select.set_l3_prot_type(l3 == L3Protocol::IPV6);
    if let Some(protocol) = protocol {
        fields |= RxHashField::L4_SPORT.bit() | RxHashField::L4_DPORT.bit();
        let l4 = if protocol == UDP {
            L4Protocol::UDP
        } else {
            L4Protocol::TCP
        };
        select.set_l4_prot_type(l4 == L4Protocol::UDP);
    }
    select.set_selected_fields(fields)?;
    let mut context = Tirc::zeroed();
    context.set_disp_type(DispType::INDIRECT.0)?;
    context.set_indirect_table(indirect)?;
    context.set_rx_hash_fn(RxHashFn::TOEPLITZ.0)?;
    context.set_rx_hash_toeplitz_key(RSS_KEY);
    context.set_rx_hash_field_selector_outer(select);
    context.set_transport_domain(domain)?;
    tir(control, stack, context)
}

fn table(control: &Control, stack: &mut Stack, level: u8, log_size: u8) -> Result<u32, Error> {
    let mut context = FlowTableContext::zeroed();
    context.set_level(level).set_log_size(log_size);
    let mut input = CreateFlowTable::request();
    input
        .set_table_type(TableType::NIC_RX.0)
        .set_flow_table_context(context);
    let number = control.execute::<CreateFlowTable>(&input)?.table_id();
    let mut destroy = DestroyFlowTable::request();
    destroy.set_table_type(TableType::NIC_RX.0);
    destroy.set_table_id(number)?;
    stack.destroy::<DestroyFlowTable>("flow table", destroy);
    Ok(number)
}

/// A group of the entries `range` that match on the outer headers' `criteria`, or on nothing.
fn group(
    control: &Control,
    stack: &mut Stack,
    table: u32,
    range: std::ops::Range<u32>,
    criteria: Option<FteMatchLyr24>,
) -> Result<u32, Error> {
    let mut input = CreateFlowGroup::request();
    input.set_table_type(TableType::NIC_RX.0);
    input.set_table_id(table)?;
    input
        .set_start_flow_index(range.start)
        .set_end_flow_index(range.end.saturating_sub(1));
    if let Some(criteria) = criteria {
        let mut mask = FteMatchParam::zeroed();
        mask.set_outer_headers(criteria);
        input
            .set_match_criteria_enable(MatchCriteria::OUTER_HEADERS.0)
            .set_match_criteria(mask);
    }
    let number = control.execute::<CreateFlowGroup>(&input)?.group_id();
    let mut destroy = DestroyFlowGroup::request();
    destroy
        .set_table_type(TableType::NIC_RX.0)
        .set_group_id(number);
    destroy.set_table_id(table)?;
    stack.destroy::<DestroyFlowGroup>("flow group", destroy);
    Ok(number)
}

fn set_entry(
    control: &Control,
    table: u32,
    group: u32,
    index: u32,
    value: Option<FteMatchLyr24>,
    target: Target,
) -> Result<(), Error> {
    let mut context = FlowContext::zeroed();
    context
        .set_group_id(group)
        .set_action(FlowAction::FWD_DEST.0);
    context.set_destination_list_size(1)?;
    if let Some(value) = value {
        let mut parameters = FteMatchParam::zeroed();
        parameters.set_outer_headers(value);
        context.set_match_value(parameters);
    }
    let mut destination = Destination::zeroed();
    destination.set_destination_type(target.0.0);
    destination.set_destination_id(target.1)?;
    let mut input = SetFlowTableEntry::request();
    input.set_table_type(TableType::NIC_RX.0);
    input.set_table_id(table)?;
    input.set_flow_index(index).set_flow_context(context);
    control.execute_with::<SetFlowTableEntry>(&input, destination.bytes())?;
    Ok(())
}

fn delete_entry(control: &Control, table: u32, index: u32) -> Result<(), Error> {
    let mut input = DeleteFlowTableEntry::request();
    input
        .set_table_type(TableType::NIC_RX.0)
        .set_flow_index(index);
    input.set_table_id(table)?;
    control.execute::<DeleteFlowTableEntry>(&input)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirection_tables_are_even() {
        assert_eq!(indirections(2, 512), 2);
        assert_eq!(indirections(3, 512), 32);
        assert_eq!(indirections(3, 16), 16);
        assert_eq!(indirections(64, 512), 64);
        for queues in 2..64 {
            let size = indirections(queues, 512);
            assert!(size.is_power_of_two() && size >= queues);
            let (most, least) = (size.div_ceil(queues), size / queues);
            assert!(most * 2 <= least * 3, "{queues} queues in {size} entries");
        }
    }
}
