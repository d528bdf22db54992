//! The function's virtual port and its physical port: address, MTU, promiscuous mode, state.
//!
//! Sizes: the MTU that users speak of counts the IP packet; the device counts the whole frame,
//! with a VLAN tag and the check sequence.

use crate::config::MacAddress;
use crate::control::Control;
use crate::error::{CommandFailure, Error};
use pollux_prm::command::Command;
use pollux_prm::commands::register::{Paos, Pmtu, PortStatus, Register, RegisterAccess};
use pollux_prm::commands::vport::{
    self, ModifyNicVportContext, NicVportContext, NicVportFieldSelect, QueryNicVportContext,
    VportList,
};
use pollux_prm::opcode::Opcode;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Ethernet header and one VLAN tag.
const HEADERS: usize = 14 + 4;
/// Check sequence, which the device counts and buffers do not hold.
const FCS: usize = 4;
/// Smallest MTU: what IPv4 guarantees.
pub(crate) const MIN_MTU: usize = 68;

/// Bytes of the longest frame for an MTU, without check sequence.
pub(crate) fn frame(mtu: usize) -> usize {
    mtu + HEADERS
}

/// The device's MTU for a user's, and back.
fn to_device(mtu: usize) -> Option<u16> {
    u16::try_from(frame(mtu) + FCS).ok()
}

fn from_device(mtu: u16) -> usize {
    usize::from(mtu).saturating_sub(HEADERS + FCS)
}

fn access<R: Register>(
    control: &Control,
    register: &R,
    direction: RegisterAccess,
) -> Result<R, Error> {
    let input = register.access(direction);
    let output_len = input.len();
    let output = control.execute_bytes(input, output_len)?;
    let short = CommandFailure::Damaged {
        opcode: Opcode::ACCESS_REG,
        what: "short register",
    };
    Ok(R::from_access(&output).ok_or(short)?)
}

fn pmtu(control: &Control) -> Result<Pmtu, Error> {
    let mut register = Pmtu::zeroed();
    register.set_local_port(1);
    access(control, &register, RegisterAccess::READ)
}

/// The port's largest MTU, and the one in force.
pub(crate) fn mtu(control: &Control) -> Result<(usize, usize), Error> {
    let register = pmtu(control)?;
    Ok((
        from_device(register.max_mtu()),
        from_device(register.oper_mtu()),
    ))
}

/// Sets the MTU of port and virtual port, and reads it back.
///
/// # Errors
/// An MTU that the device does not take.
pub(crate) fn set_mtu(control: &Control, mtu: usize, max: usize) -> Result<usize, Error> {
    let refuse = || Error::Setting {
        what: "MTU in bytes",
        given: mtu as u64,
        allowed: format!("{MIN_MTU} to {max}"),
        remedy: "choose one inside".into(),
    };
    if !(MIN_MTU..=max).contains(&mtu) {
        return Err(refuse());
    }
    let wanted = to_device(mtu).ok_or_else(refuse)?;
    let mut register = Pmtu::zeroed();
    register.set_local_port(1).set_admin_mtu(wanted);
    let _written: Pmtu = access(control, &register, RegisterAccess::WRITE)?;
    let mut context = NicVportContext::zeroed();
    context.set_mtu(wanted);
    let mut select = NicVportFieldSelect::zeroed();
    select.set_mtu(true);
    modify(control, select, context, &[])?;
    Ok(from_device(pmtu(control)?.oper_mtu()))
}

/// Switches the physical port on.
pub(crate) fn set_port_up(control: &Control) -> Result<(), Error> {
    let mut register = Paos::zeroed();
    register.set_local_port(1).set_ase(true);
    register.set_admin_status(PortStatus::UP.0)?;
    let _written: Paos = access(control, &register, RegisterAccess::WRITE)?;
    Ok(())
}

/// The virtual port's context.
pub(crate) fn context(control: &Control) -> Result<NicVportContext, Error> {
    let mut input = QueryNicVportContext::request();
    input.set_allowed_list_type(VportList::UC.0)?;
    Ok(control
        .execute::<QueryNicVportContext>(&input)?
        .nic_vport_context())
}

fn entry(mac: MacAddress) -> vport::MacAddress {
    let mut entry = vport::MacAddress::zeroed();
    entry.set_mac(mac.0);
    entry
}

/// Tells which unicast addresses the function takes.
pub(crate) fn set_addresses(control: &Control, addresses: &[MacAddress]) -> Result<(), Error> {
    let mut context = NicVportContext::zeroed();
    context.set_allowed_list_type(VportList::UC.0)?;
    context.set_allowed_list_size(addresses.len() as u16)?;
    let mut select = NicVportFieldSelect::zeroed();
    select.set_addresses_list(true);
    let tail: Vec<u8> = addresses
        .iter()
        .flat_map(|mac| *entry(*mac).bytes())
        .collect();
    modify(control, select, context, &tail)
}

/// An address for a function that has none: locally administered, and hardly anybody else's.
pub(crate) fn made_up() -> MacAddress {
    // Seeded by the operating system, anew for each.
    let number = RandomState::new().build_hasher().finish();
    let [mut first, b, c, d, e, f, ..] = number.to_le_bytes();
    first = first & 0xfc | 0x02;
    MacAddress([first, b, c, d, e, f])
}

/// Gives the virtual port an address of its own.
pub(crate) fn set_permanent_address(control: &Control, mac: MacAddress) -> Result<(), Error> {
    let mut context = NicVportContext::zeroed();
    context.set_permanent_address(entry(mac));
    let mut select = NicVportFieldSelect::zeroed();
    select.set_permanent_address(true);
    modify(control, select, context, &[])
}

/// Sets whether the virtual port asks for every packet.
pub(crate) fn set_promiscuous(control: &Control, on: bool) -> Result<(), Error> {
    let mut context = NicVportContext::zeroed();
    context.set_promisc_all(on);
    let mut select = NicVportFieldSelect::zeroed();
    select.set_promisc(true);
    modify(control, select, context, &[])
}

fn modify(
    control: &Control,
    select: NicVportFieldSelect,
    context: NicVportContext,
    tail: &[u8],
) -> Result<(), Error> {
    let mut input = ModifyNicVportContext::request();
    input
        .set_field_select(select)
        .set_nic_vport_context(context);
    control.execute_with::<ModifyNicVportContext>(&input, tail)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_made_up_are_local_and_of_one() {
        let made: Vec<MacAddress> = (0..64).map(|_| made_up()).collect();
        assert!(made.iter().all(|mac| mac.0[0] & 3 == 2), "{made:?}");
        let mut distinct = made.clone();
        distinct.sort_by_key(|mac| mac.0);
        distinct.dedup();
        assert_eq!(distinct.len(), made.len());
    }

    #[test]
    fn sizes_count_headers_tag_and_check_sequence() {
        assert_eq!(frame(1500), 1518);
        assert_eq!(to_device(1500), Some(1522));
        assert_eq!(from_device(1522), 1500);
        assert_eq!(to_device(usize::from(u16::MAX)), None);
        assert_eq!(from_device(3), 0);
    }
}
