//! The virtual port: state, addresses, MTU, promiscuous modes, counters.

use super::{
    AWAKE, Answer, Call, Character, Firmware, RUNNING, Reply, Spec, Stop, command, ensure,
};
use crate::data::{LinkSpec, Traffic};
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::vport::*;

/// Largest MTU of the port in bytes. The device's MTU is that of the frame: Ethernet header, one
/// VLAN tag and check sequence, 22 bytes, are included (kernel `en_main.c`, `hard_mtu`).
pub(super) const MAX_MTU: u16 = 10_000;
/// MTU after power-on.
pub(super) const DEFAULT_MTU: u16 = 1522;
/// Smallest MTU.
pub(super) const MIN_MTU: u16 = 68;
const CHECK_SEQUENCE: u32 = 4;

const DOWN: u8 = 0;
const UP: u8 = 1;
const AUTO: u8 = 2;

const LIST_UNICAST: u8 = 0;
const LIST_MULTICAST: u8 = 1;
const LIST_VLAN: u8 = 2;

pub(super) fn commands() -> Vec<Spec> {
    let modify = [
        "field_select.mtu",
        "field_select.promisc",
        "field_select.permanent_address",
        "field_select.addresses_list",
        "nic_vport_context.mtu",
        "nic_vport_context.promisc_uc",
        "nic_vport_context.promisc_mc",
        "nic_vport_context.promisc_all",
        "nic_vport_context.allowed_list_type",
        "nic_vport_context.allowed_list_size",
        "nic_vport_context.permanent_address",
    ];
    vec![
        command::<QueryVportState>(RUNNING, &[], query_state),
        command::<ModifyVportState>(RUNNING, &["admin_state"], modify_state),
        command::<QueryNicVportContext>(RUNNING, &["allowed_list_type"], query_context),
        command::<ModifyNicVportContext>(RUNNING, &modify, modify_context),
        command::<QueryVportCounter>(AWAKE, &["clear"], query_counter),
        command::<QueryVnicEnv>(RUNNING, &[], query_env),
    ]
}

/// State of the vport.
#[derive(Clone, Debug)]
pub(super) struct Vport {
    admin: u8,
    mac: [u8; 6],
    mtu: u16,
    promisc_uc: bool,
    promisc_mc: bool,
    promisc_all: bool,
    unicast: Vec<[u8; 8]>,
    multicast: Vec<[u8; 8]>,
    vlans: Vec<[u8; 8]>,
    min_inline: u8,
    guid: u64,
    /// Counters at the last clear, since the data side has one set for all readers.
    cleared: crate::data::Counters,
}

impl Vport {
    pub fn new(character: &Character) -> Self {
        let inline = character.profile.max(
            pollux_prm::commands::capability::CapGroup::ETHERNET_OFFLOADS,
            "wqe_inline_mode",
        );
        Self {
            admin: AUTO,
            mac: character.mac,
            mtu: DEFAULT_MTU,
            promisc_uc: false,
            promisc_mc: false,
            promisc_all: false,
            unicast: Vec::new(),
            multicast: Vec::new(),
            vlans: Vec::new(),
            min_inline: if inline == 2 { 0 } else { 1 },
            guid: guid(character.mac),
            cleared: crate::data::Counters::default(),
        }
    }

    /// Inline mode that send queues must have at least.
    pub fn min_inline(&self) -> u8 {
        self.min_inline
    }
}

/// A 64-bit id out of a MAC, in the way that EUI-64 is built from it.
fn guid(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a, b, c, 0, 0, d, e, f])
}

impl Firmware {
    /// Whether the driver wants the link.
    fn link_wanted(&self) -> bool {
        self.vport.admin != DOWN && self.port.admin_up()
    }

    /// Tells the data side what port and vport allow.
    pub(super) fn apply_link(&mut self) -> Result<(), Stop> {
        let mtu = self.vport.mtu.min(self.port.mtu());
        self.data.set_link(LinkSpec {
            up: self.link_wanted(),
            max_frame: u32::from(mtu) - CHECK_SEQUENCE,
        })?;
        self.link_changed();
        Ok(())
    }

    /// Settings of port and vport as after power-on.
    pub(super) fn forget_settings(&mut self) {
        self.vport = Vport::new(&self.character);
        self.port = super::registers::Port::new(&self.character);
    }
}

fn query_state(
    firmware: &mut Firmware,
    _: &QueryVportStateIn,
    _: &Call<'_>,
) -> Answer<QueryVportStateOut> {
    let up = firmware.data.link_up()?;
    let internal = |_| Stop::because(Reason::Internal);
    let mut out = QueryVportStateOut::zeroed();
    out.set_admin_state(firmware.vport.admin)
        .map_err(internal)?;
    out.set_state(if up { UP } else { DOWN })
        .map_err(internal)?;
    Ok(out.into())
}

fn modify_state(
    firmware: &mut Firmware,
    input: &ModifyVportStateIn,
    _: &Call<'_>,
) -> Answer<PlainOut> {
    ensure(input.admin_state() <= AUTO, Stop::value("admin_state"))?;
    firmware.vport.admin = input.admin_state();
    firmware.apply_link()?;
    Ok(PlainOut::zeroed().into())
}

fn query_context(
    firmware: &mut Firmware,
    input: &QueryNicVportContextIn,
    _: &Call<'_>,
) -> Answer<QueryNicVportContextOut> {
    let vport = &firmware.vport;
    let list = match input.allowed_list_type() {
        LIST_UNICAST => &vport.unicast,
        LIST_MULTICAST => &vport.multicast,
        LIST_VLAN => &vport.vlans,
        _ => return Err(Stop::value("allowed_list_type")),
    };
    let internal = |_| Stop::because(Reason::Internal);
    let mut context = NicVportContext::zeroed();
    context
        .set_min_wqe_inline_mode(vport.min_inline)
        .map_err(internal)?;
    context.set_mtu(vport.mtu);
    context.set_system_image_guid(vport.guid);
    context.set_port_guid(vport.guid);
    context.set_node_guid(vport.guid);
    context.set_promisc_uc(vport.promisc_uc);
    context.set_promisc_mc(vport.promisc_mc);
    context.set_promisc_all(vport.promisc_all);
    context
        .set_allowed_list_type(input.allowed_list_type())
        .map_err(internal)?;
    context
        .set_allowed_list_size(list.len() as u16)
        .map_err(internal)?;
    let mut address = MacAddress::zeroed();
    address.set_mac(vport.mac);
    context.set_permanent_address(address);
    let mut out = QueryNicVportContextOut::zeroed();
    out.set_nic_vport_context(context);
    Ok(Reply::with_tail(out, list.concat()))
}

fn modify_context(
    firmware: &mut Firmware,
    input: &ModifyNicVportContextIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    let select = input.field_select();
    let context = input.nic_vport_context();
    let limits = firmware.limits();
    let mut vport = firmware.vport.clone();
    if select.mtu() {
        let range = MIN_MTU..=MAX_MTU;
        ensure(
            range.contains(&context.mtu()),
            Stop::value("nic_vport_context.mtu"),
        )?;
        vport.mtu = context.mtu();
    }
    if select.promisc() {
        vport.promisc_uc = context.promisc_uc();
        vport.promisc_mc = context.promisc_mc();
        vport.promisc_all = context.promisc_all();
    }
    if select.permanent_address() {
        let mac = context.permanent_address().mac();
        let group = mac.first().is_none_or(|first| first & 1 == 1);
        let path = "nic_vport_context.permanent_address.mac";
        ensure(!group && mac != [0; 6], Stop::value(path))?;
        vport.mac = mac;
    }
    let size = usize::from(context.allowed_list_size());
    if select.addresses_list() {
        let entries: Vec<[u8; 8]> = call
            .tail
            .chunks_exact(8)
            .filter_map(|entry| entry.try_into().ok())
            .collect();
        let path = "nic_vport_context.allowed_list_size";
        ensure(entries.len() == size, Stop::value(path))?;
        let (list, most) = match context.allowed_list_type() {
            LIST_UNICAST => (&mut vport.unicast, limits.uc_list),
            LIST_MULTICAST => (&mut vport.multicast, limits.mc_list),
            LIST_VLAN => (&mut vport.vlans, limits.vlan_list),
            _ => return Err(Stop::value("nic_vport_context.allowed_list_type")),
        };
        ensure(size as u64 <= most, Stop::field(Reason::Limit, path))?;
        *list = entries;
    } else {
        ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
        ensure(
            size == 0,
            Stop::value("nic_vport_context.allowed_list_size"),
        )?;
        let no_list = Stop::value("nic_vport_context.allowed_list_type");
        ensure(context.allowed_list_type() == 0, no_list)?;
    }
    firmware.vport = vport;
    firmware.apply_link()?;
    Ok(PlainOut::zeroed().into())
}

fn query_counter(
    firmware: &mut Firmware,
    input: &QueryVportCounterIn,
    _: &Call<'_>,
) -> Answer<QueryVportCounterOut> {
    let now = firmware.data.counters()?;
    let base = &firmware.vport.cleared;
    let traffic = |now: Traffic, base: Traffic| {
        let mut counter = TrafficCounter::zeroed();
        counter.set_packets(now.frames.saturating_sub(base.frames));
        counter.set_octets(now.bytes.saturating_sub(base.bytes));
        counter
    };
    let errors = |now: u64, base: u64| {
        let mut counter = TrafficCounter::zeroed();
        counter.set_packets(now.saturating_sub(base));
        counter
    };
    let received =
        |counters: &crate::data::Counters| counters.rx_buffer_too_small + counters.rx_too_short;
    let mut out = QueryVportCounterOut::zeroed();
    out.set_received_errors(errors(received(&now), received(base)));
    out.set_transmit_errors(errors(now.tx_errors, base.tx_errors));
    out.set_received_eth_unicast(traffic(now.vport_rx.unicast, base.vport_rx.unicast));
    out.set_received_eth_multicast(traffic(now.vport_rx.multicast, base.vport_rx.multicast));
    out.set_received_eth_broadcast(traffic(now.vport_rx.broadcast, base.vport_rx.broadcast));
    out.set_transmitted_eth_unicast(traffic(now.vport_tx.unicast, base.vport_tx.unicast));
    out.set_transmitted_eth_multicast(traffic(now.vport_tx.multicast, base.vport_tx.multicast));
    out.set_transmitted_eth_broadcast(traffic(now.vport_tx.broadcast, base.vport_tx.broadcast));
    if input.clear() {
        firmware.vport.cleared = now;
    }
    Ok(out.into())
}

fn query_env(firmware: &mut Firmware, _: &QueryVnicEnvIn, _: &Call<'_>) -> Answer<QueryVnicEnvOut> {
    let unknown = Stop::because(Reason::UnknownOpcode);
    ensure(firmware.limits().vnic_env, unknown)?;
    let now = firmware.data.counters()?;
    let mut env = VnicDiagnostics::zeroed();
    env.set_nic_receive_steering_discard(now.rx_no_destination);
    env.set_invalid_command(firmware.refused as u32);
    let mut out = QueryVnicEnvOut::zeroed();
    out.set_vport_env(env);
    Ok(out.into())
}
