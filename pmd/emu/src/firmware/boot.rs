//! Bring-up and teardown: ENABLE_HCA to INIT_HCA, TEARDOWN_HCA and DISABLE_HCA, and the few
//! commands that only ask who the device is.

use super::{AWAKE, Answer, Call, Firmware, Spec, Stop, command, ensure};
use crate::syndrome::{Phase, Reason};
use pollux_prm::command::{PlainOut, ShortOut};
use pollux_prm::commands::hca::*;
use pollux_prm::commands::protection::{
    QuerySpecialContexts, QuerySpecialContextsIn, QuerySpecialContextsOut,
};

/// The interface step that this device speaks.
const ISSI: u16 = 1;
/// The key that addresses all memory by device address, as QUERY_SPECIAL_CONTEXTS gives it.
const RESERVED_LKEY: u32 = 0x700;
const MELLANOX_OUI: u32 = 0x02c9;
const MELLANOX_PCI: u16 = 0x15b3;

pub(super) fn commands() -> Vec<Spec> {
    const ASLEEP: &[Phase] = &[Phase::Disabled];
    const DOWN: &[Phase] = &[Phase::Enabled, Phase::TornDown];
    const BEFORE: &[Phase] = &[Phase::Enabled];
    vec![
        command::<EnableHca>(ASLEEP, &[], enable),
        command::<DisableHca>(DOWN, &[], disable),
        command::<QueryIssi>(AWAKE, &[], query_issi),
        command::<SetIssi>(BEFORE, &["current_issi"], set_issi),
        // The owner's identity came with later headers.
        command::<InitHca>(BEFORE, &[], init).min_input(16),
        command::<TeardownHca>(super::RUNNING, &[], teardown),
        command::<QueryAdapter>(AWAKE, &[], query_adapter),
        command::<SetDriverVersion>(super::RUNNING, &["driver_version"], driver_version),
        command::<QuerySpecialContexts>(super::RUNNING, &[], special_contexts),
        command::<Nop>(AWAKE, &[], |_, _, _| Ok(PlainOut::zeroed().into())),
    ]
}

fn enable(firmware: &mut Firmware, _: &EnableHcaIn, _: &Call<'_>) -> Answer<ShortOut> {
    firmware.phase = Phase::Enabled;
    Ok(ShortOut::zeroed().into())
}

fn disable(firmware: &mut Firmware, _: &DisableHcaIn, _: &Call<'_>) -> Answer<ShortOut> {
    ensure(firmware.pages.held() == 0, Stop::because(Reason::PagesLeft))?;
    firmware.phase = Phase::Disabled;
    firmware.pages = Default::default();
    firmware.issi = 0;
    firmware.capabilities.reset();
    Ok(ShortOut::zeroed().into())
}

fn query_issi(firmware: &mut Firmware, _: &QueryIssiIn, _: &Call<'_>) -> Answer<QueryIssiOut> {
    let mut out = QueryIssiOut::zeroed();
    out.set_current_issi(firmware.issi);
    out.set_supported_issi_dw0(1 << ISSI);
    Ok(out.into())
}

fn set_issi(firmware: &mut Firmware, input: &SetIssiIn, _: &Call<'_>) -> Answer<PlainOut> {
    ensure(input.current_issi() == ISSI, Stop::value("current_issi"))?;
    firmware.issi = ISSI;
    Ok(PlainOut::zeroed().into())
}

fn init(firmware: &mut Firmware, _: &InitHcaIn, _: &Call<'_>) -> Answer<PlainOut> {
    ensure(
        firmware.init_pages_given(),
        Stop::because(Reason::PagesMissing),
    )?;
    firmware.phase = Phase::Running;
    firmware.apply_link()?;
    Ok(PlainOut::zeroed().into())
}

fn teardown(firmware: &mut Firmware, _: &TeardownHcaIn, _: &Call<'_>) -> Answer<TeardownHcaOut> {
    if let Some(kind) = firmware.objects.some_kind() {
        return Err(Stop::kind(Reason::ObjectsLeft, kind));
    }
    firmware.phase = Phase::TornDown;
    firmware.events.clear();
    firmware.data.reset()?;
    firmware.forget_settings();
    Ok(TeardownHcaOut::zeroed().into())
}

fn query_adapter(
    firmware: &mut Firmware,
    _: &QueryAdapterIn,
    _: &Call<'_>,
) -> Answer<QueryAdapterOut> {
    let mut block = AdapterBlock::zeroed();
    // The fields are wide enough for both constants.
    block
        .set_ieee_vendor_id(MELLANOX_OUI)
        .map_err(|_| Stop::because(Reason::Internal))?;
    block.set_vsd_vendor_id(MELLANOX_PCI);
    let mut psid = [0; 16];
    for (to, from) in psid.iter_mut().zip(firmware.character.profile.psid.bytes()) {
        *to = from;
    }
    block.set_vsd_contd_psid(psid);
    let mut out = QueryAdapterOut::zeroed();
    out.set_query_adapter_struct(block);
    Ok(out.into())
}

fn driver_version(_: &mut Firmware, input: &SetDriverVersionIn, _: &Call<'_>) -> Answer<PlainOut> {
    let text = input.driver_version();
    let end = text.iter().position(|byte| *byte == 0);
    let printable = |text: &[u8]| text.iter().all(|byte| (b' '..=b'~').contains(byte));
    let good = end.is_some_and(|end| {
        end > 0
            && printable(text.get(..end).unwrap_or_default())
            && text.iter().skip(end).all(|byte| *byte == 0)
    });
    ensure(good, Stop::value("driver_version"))?;
    Ok(PlainOut::zeroed().into())
}

fn special_contexts(
    _: &mut Firmware,
    _: &QuerySpecialContextsIn,
    _: &Call<'_>,
) -> Answer<QuerySpecialContextsOut> {
    let mut out = QuerySpecialContextsOut::zeroed();
    out.set_resd_lkey(RESERVED_LKEY);
    Ok(out.into())
}
