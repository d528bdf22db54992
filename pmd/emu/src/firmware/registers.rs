//! ACCESS_REG and the port registers.
//!
//! A register is checked like a command: on a read only its selectors may be set, on a write only
//! what can be written; a register that this device does not have is refused.

use super::{AWAKE, About, Answer, Call, Character, Firmware, Reply, Spec, Stop, command, ensure};
use crate::data::{Counters, Traffic};
use crate::events::Event;
use crate::fields::{Understood, Unwanted};
use crate::syndrome::Reason;
use pollux_prm::commands::port_counters::*;
use pollux_prm::commands::register::*;
use std::time::Instant;

/// The only port.
const LOCAL_PORT: u8 = 1;
/// Priorities that have counters.
const PRIORITIES: u8 = 8;
/// Bytes of a frame that the device adds and takes away itself.
const CHECK_SEQUENCE: u64 = 4;
/// Mailbox: what a register's word numbers count from.
const NO_WORD: u16 = 0;

pub(super) fn commands() -> Vec<Spec> {
    const BOTH: &[u16] = &[RegisterAccess::WRITE.0, RegisterAccess::READ.0];
    vec![command::<AccessReg>(AWAKE, &["register_id"], access).variants(BOTH)]
}

/// What the port's registers hold.
#[derive(Clone, Debug)]
pub(super) struct Port {
    up: bool,
    mtu: u16,
    /// Speed in Mbit/s.
    speed: u32,
    speeds: Vec<u32>,
    /// Speeds that the driver allows.
    admin: Vec<u32>,
    cleared: Counters,
    /// When that was.
    cleared_at: Instant,
    /// Times that the link went down since then.
    link_downs: u32,
    /// Link state that was seen last.
    known: Option<bool>,
}

impl Port {
    pub fn new(character: &Character) -> Self {
        let speeds = character.profile.speeds_mbps.clone();
        Self {
            up: true,
            mtu: super::vport::DEFAULT_MTU,
            speed: character.speed,
            admin: speeds
                .iter()
                .copied()
                .filter(|speed| *speed <= character.speed)
                .collect(),
            speeds,
            cleared: Counters::default(),
            cleared_at: Instant::now(),
            link_downs: 0,
            known: None,
        }
    }

    /// Whether the driver wants the port up.
    pub fn admin_up(&self) -> bool {
        self.up
    }

    /// Largest frame in bytes, check sequence included.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }
}

impl Firmware {
    /// Raises a port event when the link is not what it was. The state at INIT_HCA is no change.
    pub(crate) fn link_changed(&mut self) {
        let Ok(up) = self.data.link_up() else { return };
        if self
            .port
            .known
            .replace(up)
            .is_some_and(|before| before != up)
        {
            self.port.link_downs = self.port.link_downs.wrapping_add(u32::from(!up));
            self.events.push(Event::PortChange { up });
        }
    }
}

/// Reads a register out of the tail, and checks that only the bits of `paths` are set.
fn register<R: Register>(call: &Call<'_>, paths: &[&str]) -> Result<R, Stop> {
    ensure(
        call.tail.len() == R::LEN,
        Stop::because(Reason::InputLength),
    )?;
    match Understood::new(R::FIELDS, R::LEN, paths).unwanted(call.tail) {
        None => {}
        Some(Unwanted::Reserved { word }) => {
            return Err(Stop::Refuse(Reason::RegisterValue, About::Number(word)));
        }
        Some(Unwanted::Field { leaf }) => {
            let leaves = crate::fields::leaves(R::FIELDS);
            let found = leaves.iter().find(|known| known.index == leaf);
            let word = found.map_or(NO_WORD, |leaf| (leaf.bit_offset / 32) as u16);
            return Err(Stop::Refuse(Reason::RegisterValue, About::Number(word)));
        }
    }
    let register = R::read_from_bytes(call.tail).map_err(|_| Stop::because(Reason::InputLength))?;
    if R::FIELDS.iter().any(|field| field.name == "local_port") {
        let port = register.value_of("local_port") == Some(u64::from(LOCAL_PORT));
        ensure(port, word(0))?;
    }
    Ok(register)
}

const fn word(word: u16) -> Stop {
    Stop::Refuse(Reason::RegisterValue, About::Number(word))
}

fn access(firmware: &mut Firmware, input: &AccessRegIn, call: &Call<'_>) -> Answer<AccessRegOut> {
    let read = call.op_mod == RegisterAccess::READ.0;
    let tail = match RegisterId(input.register_id()) {
        RegisterId::HOST_ENDIANNESS => endianness(call)?,
        RegisterId::PTYS if read => ptys(firmware, call)?,
        RegisterId::PTYS => set_ptys(firmware, call)?,
        RegisterId::PAOS if read => paos(firmware, call)?,
        RegisterId::PAOS => set_paos(firmware, call)?,
        RegisterId::PMTU if read => pmtu(firmware, call)?,
        RegisterId::PMTU => set_pmtu(firmware, call)?,
        RegisterId::PMLP if read => pmlp(firmware, call)?,
        RegisterId::PDDR if read => pddr(firmware, call)?,
        RegisterId::PFCC => pfcc(call, read)?,
        RegisterId::PCMR => pcmr(call, read)?,
        RegisterId::PPCNT if read => ppcnt(firmware, call)?,
        RegisterId::PCAM if read && firmware.limits().pcam => pcam(firmware, call)?,
        _ => return Err(Stop::field(Reason::UnknownRegister, "register_id")),
    };
    Ok(Reply::with_tail(AccessRegOut::zeroed(), tail))
}

fn endianness(call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    // Only little-endian hosts: structures of other hosts would have to be swapped.
    register::<HostEndianness>(call, &[])?;
    Ok(HostEndianness::zeroed().bytes().to_vec())
}

/// Bits of the two masks of PTYS for a set of speeds.
fn modes(speeds: &[u32]) -> (u32, u32) {
    speeds.iter().fold((0, 0), |(plain, extended), speed| {
        let bit = match speed {
            10_000 => LinkMode::CR_10GBASE.bit(),
            25_000 => LinkMode::CR_25GBASE.bit(),
            40_000 => LinkMode::CR4_40GBASE.bit(),
            50_000 => LinkMode::CR2_50GBASE.bit(),
            100_000 => LinkMode::CR4_100GBASE.bit(),
            _ => 0,
        };
        let ext = match speed {
            10_000 => ExtLinkMode::XFI_10GBASE.bit(),
            25_000 => ExtLinkMode::GAUI_1_25G.bit(),
            40_000 => ExtLinkMode::XLAUI_40GBASE.bit(),
            50_000 => ExtLinkMode::GAUI_2_50G.bit(),
            100_000 => ExtLinkMode::CAUI_4_100G.bit(),
            200_000 => ExtLinkMode::GAUI_4_200G.bit(),
            400_000 => ExtLinkMode::GAUI_8_400G.bit(),
            _ => 0,
        };
        (plain | bit, extended | ext)
    })
}

fn ptys_now(firmware: &mut Firmware) -> Result<Ptys, Stop> {
    let up = firmware.data.link_up()?;
    let port = &firmware.port;
    let extended = firmware.limits().pcam;
    let internal = |_| Stop::because(Reason::Internal);
    let mut out = Ptys::zeroed();
    out.set_local_port(LOCAL_PORT);
    out.set_proto_mask(PtysProtocol::EN.0).map_err(internal)?;
    let (can, can_ext) = modes(&port.speeds);
    let (admin, admin_ext) = modes(&port.admin);
    let (oper, oper_ext) = if up { modes(&[port.speed]) } else { (0, 0) };
    out.set_eth_proto_capability(can);
    out.set_eth_proto_admin(admin);
    out.set_eth_proto_oper(oper);
    if extended {
        out.set_ext_eth_proto_capability(can_ext);
        out.set_ext_eth_proto_admin(admin_ext);
        out.set_ext_eth_proto_oper(oper_ext);
    }
    Ok(out)
}

/// Word of PTYS that holds the protocol mask.
const PTYS_PROTOCOL: u16 = 0;
/// Words of PTYS that hold the two administrative masks.
const PTYS_ADMIN: u16 = 6;

fn ptys(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let asked = register::<Ptys>(call, &["local_port", "proto_mask"])?;
    ensure(
        asked.proto_mask() == PtysProtocol::EN.0,
        word(PTYS_PROTOCOL),
    )?;
    Ok(ptys_now(firmware)?.bytes().to_vec())
}

fn set_ptys(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let paths = [
        "local_port",
        "proto_mask",
        "eth_proto_admin",
        "ext_eth_proto_admin",
    ];
    let asked = register::<Ptys>(call, &paths)?;
    ensure(
        asked.proto_mask() == PtysProtocol::EN.0,
        word(PTYS_PROTOCOL),
    )?;
    let (plain, extended) = (asked.eth_proto_admin(), asked.ext_eth_proto_admin());
    ensure(extended == 0 || firmware.limits().pcam, word(PTYS_ADMIN))?;
    let chosen: Vec<u32> = firmware
        .port
        .speeds
        .iter()
        .copied()
        .filter(|speed| {
            let (bit, ext) = modes(&[*speed]);
            plain & bit != 0 || extended & ext != 0
        })
        .collect();
    let (bits, ext) = modes(&chosen);
    ensure(plain & !bits == 0 && extended & !ext == 0, word(PTYS_ADMIN))?;
    let fastest = chosen.iter().copied().max().ok_or(word(PTYS_ADMIN))?;
    firmware.port.admin = chosen;
    firmware.port.speed = fastest;
    Ok(ptys_now(firmware)?.bytes().to_vec())
}

fn paos_now(firmware: &mut Firmware) -> Result<Paos, Stop> {
    let status = |up| {
        if up {
            PortStatus::UP.0
        } else {
            PortStatus::DOWN.0
        }
    };
    let internal = |_| Stop::because(Reason::Internal);
    let mut out = Paos::zeroed();
    out.set_local_port(LOCAL_PORT);
    out.set_admin_status(status(firmware.port.up))
        .map_err(internal)?;
    out.set_oper_status(status(firmware.data.link_up()?))
        .map_err(internal)?;
    Ok(out)
}

fn paos(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    register::<Paos>(call, &["local_port"])?;
    Ok(paos_now(firmware)?.bytes().to_vec())
}

fn set_paos(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let asked = register::<Paos>(call, &["local_port", "admin_status", "ase"])?;
    // Without its enable bit the status is not to be changed, which nobody asks for.
    ensure(asked.ase(), word(1))?;
    firmware.port.up = match PortStatus(asked.admin_status()) {
        PortStatus::UP => true,
        PortStatus::DOWN => false,
        _ => return Err(word(0)),
    };
    firmware.apply_link()?;
    Ok(paos_now(firmware)?.bytes().to_vec())
}

fn pmtu_now(firmware: &Firmware) -> Pmtu {
    let mut out = Pmtu::zeroed();
    out.set_local_port(LOCAL_PORT);
    out.set_max_mtu(super::vport::MAX_MTU);
    out.set_admin_mtu(firmware.port.mtu);
    out.set_oper_mtu(firmware.port.mtu);
    out
}

fn pmtu(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    register::<Pmtu>(call, &["local_port"])?;
    Ok(pmtu_now(firmware).bytes().to_vec())
}

fn set_pmtu(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let asked = register::<Pmtu>(call, &["local_port", "admin_mtu"])?;
    let range = super::vport::MIN_MTU..=super::vport::MAX_MTU;
    ensure(range.contains(&asked.admin_mtu()), word(2))?;
    firmware.port.mtu = asked.admin_mtu();
    firmware.apply_link()?;
    Ok(pmtu_now(firmware).bytes().to_vec())
}

fn pmlp(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    register::<Pmlp>(call, &["local_port"])?;
    let width = if firmware.port.speed >= 40_000 { 4 } else { 1 };
    let internal = |_| Stop::because(Reason::Internal);
    let mut lanes = [PmlpLane::zeroed(); 4];
    for (number, lane) in lanes.iter_mut().enumerate().take(width) {
        lane.set_rx_lane(number as u8).map_err(internal)?;
        lane.set_tx_lane(number as u8).map_err(internal)?;
    }
    let mut out = Pmlp::zeroed();
    out.set_local_port(LOCAL_PORT);
    out.set_width(width as u8);
    out.set_lanes(lanes);
    Ok(out.bytes().to_vec())
}

/// Why the link is down: of its pages the one for that, of its opcodes the monitor's.
fn pddr(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let asked = register::<Pddr>(call, &["local_port", "page_select"])?;
    ensure(asked.page_select() == PDDR_TROUBLESHOOTING, word(1))?;
    let (code, text) = match firmware.data.link_up()? || !firmware.port.admin_up() {
        true => (LinkTroubleCode::NONE, "No issue was observed"),
        false => firmware.module.trouble(),
    };
    let mut message = [0; 236];
    for (to, from) in message.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    let mut page = PddrTroubleshooting::zeroed();
    page.set_status_opcode(code.0).set_status_message(message);
    let mut out = Pddr::zeroed();
    out.set_local_port(LOCAL_PORT)
        .set_page_select(PDDR_TROUBLESHOOTING)
        .set_page(page);
    Ok(out.bytes().to_vec())
}

/// No flow control is done: reads say so, writes may only ask for that.
fn pfcc(call: &Call<'_>, read: bool) -> Result<Vec<u8>, Stop> {
    let masks: &[&str] = if read {
        &["local_port"]
    } else {
        &[
            "local_port",
            "prio_mask_tx",
            "prio_mask_rx",
            "pptx_mask_n",
            "pprx_mask_n",
            "ppan_mask_n",
        ]
    };
    register::<Pfcc>(call, masks)?;
    let mut out = Pfcc::zeroed();
    out.set_local_port(LOCAL_PORT);
    Ok(out.bytes().to_vec())
}

/// Check sequences are always checked.
fn pcmr(call: &Call<'_>, read: bool) -> Result<Vec<u8>, Stop> {
    let paths: &[&str] = if read {
        &["local_port"]
    } else {
        &["local_port", "fcs_chk"]
    };
    let asked = register::<Pcmr>(call, paths)?;
    ensure(read || asked.fcs_chk(), word(2))?;
    let mut out = Pcmr::zeroed();
    out.set_local_port(LOCAL_PORT);
    out.set_fcs_chk(true);
    Ok(out.bytes().to_vec())
}

/// The port registers of [`access`], by their last seven bits.
const PORT_REGISTERS: [RegisterId; 8] = [
    RegisterId::PDDR,
    RegisterId::PMLP,
    RegisterId::PMTU,
    RegisterId::PTYS,
    RegisterId::PAOS,
    RegisterId::PFCC,
    RegisterId::PPCNT,
    RegisterId::PCMR,
];
/// Feature bit of PCAM: PTYS has extended link modes.
const FEATURE_EXTENDED_PTYS: usize = 13;

fn pcam(_: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    // Group 0 is the only one of either kind.
    register::<Pcam>(call, &[])?;
    let set = |mask: &mut [u8; 16], bit: usize| {
        if let Some(byte) = mask.get_mut(15 - bit / 8) {
            *byte |= 1 << (bit % 8);
        }
    };
    let (mut registers, mut features) = ([0; 16], [0; 16]);
    for register in PORT_REGISTERS.iter().chain([&RegisterId::PCAM]) {
        set(&mut registers, usize::from(register.0 & 0x7f));
    }
    set(&mut features, FEATURE_EXTENDED_PTYS);
    let mut out = Pcam::zeroed();
    out.set_registers(registers);
    out.set_features(features);
    Ok(out.bytes().to_vec())
}

fn since(now: u64, base: u64) -> u64 {
    now.saturating_sub(base)
}

/// Frames and bytes since the last clear, check sequences counted.
fn octets(now: Traffic, base: Traffic) -> (u64, u64) {
    let frames = since(now.frames, base.frames);
    (
        frames,
        since(now.bytes, base.bytes) + frames * CHECK_SEQUENCE,
    )
}

fn ppcnt(firmware: &mut Firmware, call: &Call<'_>) -> Result<Vec<u8>, Stop> {
    let asked = register::<Ppcnt>(call, &["local_port", "grp", "clr", "prio_tc"])?;
    let now = firmware.data.counters()?;
    let base = firmware.port.cleared.clone();
    let mut out = Ppcnt::zeroed();
    out.set_local_port(LOCAL_PORT);
    let priority = asked.prio_tc();
    let internal = |_| Stop::because(Reason::Internal);
    match CounterGroup(asked.grp()) {
        CounterGroup::IEEE_802_3 => out.set_counters(&ieee(&now, &base)),
        CounterGroup::RFC_2863 => out.set_counters(&rfc2863(&now, &base)),
        CounterGroup::RFC_2819 => out.set_counters(&rfc2819(&now, &base)),
        CounterGroup::RFC_3635 => {
            let mut group = Rfc3635Counters::zeroed();
            group.set_dot3stats_frame_too_longs(since(now.rx_too_long, base.rx_too_long));
            out.set_counters(&group)
        }
        CounterGroup::PHYSICAL_LAYER => {
            let mut group = PhyCounters::zeroed();
            let age = firmware.port.cleared_at.elapsed().as_millis();
            group.set_time_since_last_clear(u64::try_from(age).unwrap_or(u64::MAX));
            group.set_link_down_events(firmware.port.link_downs);
            out.set_counters(&group)
        }
        CounterGroup::PER_PRIORITY => {
            ensure(priority < PRIORITIES, word(1))?;
            let mut group = PerPriorityCounters::zeroed();
            // Untagged traffic, which is all that is told apart, has priority 0.
            if priority == 0 {
                let (rx, rx_octets) = octets(now.port_rx.total(), base.port_rx.total());
                let (tx, tx_octets) = octets(now.port_tx.total(), base.port_tx.total());
                group.set_rx_frames(rx);
                group.set_rx_octets(rx_octets);
                group.set_tx_frames(tx);
                group.set_tx_octets(tx_octets);
                group.set_rx_discards(since(now.rx_discards, base.rx_discards));
            }
            out.set_counters(&group)
        }
        _ => return Err(word(0)),
    };
    let grouped = CounterGroup(asked.grp()) == CounterGroup::PER_PRIORITY;
    ensure(grouped || priority == 0, word(1))?;
    out.set_prio_tc(priority).map_err(internal)?;
    if asked.clr() {
        firmware.port.cleared = now;
        firmware.port.cleared_at = Instant::now();
        firmware.port.link_downs = 0;
    }
    Ok(out.bytes().to_vec())
}

fn ieee(now: &Counters, base: &Counters) -> Ieee8023Counters {
    let (rx, rx_octets) = octets(now.port_rx.total(), base.port_rx.total());
    let (tx, tx_octets) = octets(now.port_tx.total(), base.port_tx.total());
    let mut group = Ieee8023Counters::zeroed();
    group.set_a_frames_received_ok(rx);
    group.set_a_octets_received_ok(rx_octets);
    group.set_a_frames_transmitted_ok(tx);
    group.set_a_octets_transmitted_ok(tx_octets);
    let multicast = since(now.port_rx.multicast.frames, base.port_rx.multicast.frames);
    group.set_a_multicast_frames_received_ok(multicast);
    let broadcast = since(now.port_rx.broadcast.frames, base.port_rx.broadcast.frames);
    group.set_a_broadcast_frames_received_ok(broadcast);
    let multicast = since(now.port_tx.multicast.frames, base.port_tx.multicast.frames);
    group.set_a_multicast_frames_xmitted_ok(multicast);
    let broadcast = since(now.port_tx.broadcast.frames, base.port_tx.broadcast.frames);
    group.set_a_broadcast_frames_xmitted_ok(broadcast);
    group.set_a_frame_too_long_errors(since(now.rx_too_long, base.rx_too_long));
    group
}

fn rfc2863(now: &Counters, base: &Counters) -> Rfc2863Counters {
    let mut group = Rfc2863Counters::zeroed();
    group.set_if_in_octets(octets(now.port_rx.total(), base.port_rx.total()).1);
    group.set_if_out_octets(octets(now.port_tx.total(), base.port_tx.total()).1);
    let frames = |now: Traffic, base: Traffic| since(now.frames, base.frames);
    group.set_if_in_ucast_pkts(frames(now.port_rx.unicast, base.port_rx.unicast));
    group.set_if_in_multicast_pkts(frames(now.port_rx.multicast, base.port_rx.multicast));
    group.set_if_in_broadcast_pkts(frames(now.port_rx.broadcast, base.port_rx.broadcast));
    group.set_if_out_ucast_pkts(frames(now.port_tx.unicast, base.port_tx.unicast));
    group.set_if_out_multicast_pkts(frames(now.port_tx.multicast, base.port_tx.multicast));
    group.set_if_out_broadcast_pkts(frames(now.port_tx.broadcast, base.port_tx.broadcast));
    group.set_if_in_discards(since(now.rx_discards, base.rx_discards));
    let errors = |counters: &Counters| counters.rx_too_long + counters.rx_too_short;
    group.set_if_in_errors(since(errors(now), errors(base)));
    group.set_if_out_discards(since(now.tx_discards, base.tx_discards));
    group
}

fn rfc2819(now: &Counters, base: &Counters) -> Rfc2819Counters {
    let (frames, bytes) = octets(now.port_rx.total(), base.port_rx.total());
    let too_long = since(now.rx_too_long, base.rx_too_long);
    let too_short = since(now.rx_too_short, base.rx_too_short);
    let mut group = Rfc2819Counters::zeroed();
    group.set_ether_stats_pkts(frames + too_long + too_short);
    group.set_ether_stats_octets(bytes);
    group.set_ether_stats_drop_events(since(now.rx_discards, base.rx_discards));
    group.set_ether_stats_oversize_pkts(too_long);
    group.set_ether_stats_undersize_pkts(too_short);
    let multicast = since(now.port_rx.multicast.frames, base.port_rx.multicast.frames);
    group.set_ether_stats_multicast_pkts(multicast);
    let broadcast = since(now.port_rx.broadcast.frames, base.port_rx.broadcast.frames);
    group.set_ether_stats_broadcast_pkts(broadcast);
    let [a, b, c, d, e, f, g, h, i, j] = std::array::from_fn(|class| {
        let of = |counters: &Counters| counters.rx_sizes.get(class).copied().unwrap_or(0);
        since(of(now), of(base))
    });
    group.set_ether_stats_pkts64octets(a);
    group.set_ether_stats_pkts65to127octets(b);
    group.set_ether_stats_pkts128to255octets(c);
    group.set_ether_stats_pkts256to511octets(d);
    group.set_ether_stats_pkts512to1023octets(e);
    group.set_ether_stats_pkts1024to1518octets(f);
    group.set_ether_stats_pkts1519to2047octets(g);
    group.set_ether_stats_pkts2048to4095octets(h);
    group.set_ether_stats_pkts4096to8191octets(i);
    group.set_ether_stats_pkts8192to10239octets(j);
    group
}
