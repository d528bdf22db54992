//! Protection domains, transport domains and memory keys.

use super::{Answer, Call, Firmware, RUNNING, Spec, Stop, command, ensure};
use crate::data::{MAX_MKEYS, MkeySpec, Translation};
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::protection::*;

/// Index of the first memory key; those below are the device's own.
const FIRST_KEY: u64 = 0x10;
const FIRST_DOMAIN: u64 = 1;
/// A key that is bound to no queue pair.
const ANY_QP: u32 = 0xff_ffff;

/// A page that may be read and written: the low bits of its entry, where `pg_access` says that
/// entries have such bits (rdma-core `mlx5_vfio.c`, `MLX5_MTT_PRESENT`).
const PAGE_PRESENT: u64 = 3;

const ACCESS_PHYSICAL: u8 = 0;
const ACCESS_PAGES: u8 = 1;

pub(super) fn commands() -> Vec<Spec> {
    let mkey = [
        "pg_access",
        "memory_key_mkey_entry.lw",
        "memory_key_mkey_entry.lr",
        "memory_key_mkey_entry.access_mode_1_0",
        "memory_key_mkey_entry.qpn",
        "memory_key_mkey_entry.mkey_7_0",
        "memory_key_mkey_entry.length64",
        "memory_key_mkey_entry.pd",
        "memory_key_mkey_entry.start_addr",
        "memory_key_mkey_entry.length",
        "memory_key_mkey_entry.translations_octword_size",
        "memory_key_mkey_entry.log_page_size",
        "translations_octword_actual_size",
    ];
    vec![
        command::<AllocPd>(RUNNING, &[], alloc_pd),
        command::<DeallocPd>(RUNNING, &["pd"], dealloc_pd),
        command::<AllocTransportDomain>(RUNNING, &[], alloc_td),
        command::<DeallocTransportDomain>(RUNNING, &["transport_domain"], dealloc_td),
        command::<CreateMkey>(RUNNING, &mkey, create_mkey),
        command::<QueryMkey>(RUNNING, &["mkey_index"], query_mkey),
        command::<DestroyMkey>(RUNNING, &["mkey_index"], destroy_mkey),
    ]
}

/// A memory key's context as it was created.
#[derive(Clone, Debug)]
pub(super) struct Mkey {
    context: Mkc,
    translation: Vec<u8>,
}

fn alloc_pd(firmware: &mut Firmware, _: &AllocPdIn, call: &Call<'_>) -> Answer<AllocPdOut> {
    let number = firmware.number(Kind::Pd, FIRST_DOMAIN, firmware.limits().pds)?;
    firmware
        .objects
        .create((Kind::Pd, number.into()), call.uid, vec![]);
    let mut out = AllocPdOut::zeroed();
    out.set_pd(number)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn dealloc_pd(firmware: &mut Firmware, input: &DeallocPdIn, call: &Call<'_>) -> Answer<PlainOut> {
    firmware.remove((Kind::Pd, input.pd().into()), call.uid, "pd")?;
    Ok(PlainOut::zeroed().into())
}

fn alloc_td(
    firmware: &mut Firmware,
    _: &AllocTransportDomainIn,
    call: &Call<'_>,
) -> Answer<AllocTransportDomainOut> {
    let count = firmware.limits().transport_domains;
    let number = firmware.number(Kind::TransportDomain, FIRST_DOMAIN, count)?;
    firmware
        .objects
        .create((Kind::TransportDomain, number.into()), call.uid, vec![]);
    let mut out = AllocTransportDomainOut::zeroed();
    out.set_transport_domain(number)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn dealloc_td(
    firmware: &mut Firmware,
    input: &DeallocTransportDomainIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    let id = (Kind::TransportDomain, u64::from(input.transport_domain()));
    firmware.remove(id, call.uid, "transport_domain")?;
    Ok(PlainOut::zeroed().into())
}

fn translation(context: &Mkc, input: &CreateMkeyIn, call: &Call<'_>) -> Result<Translation, Stop> {
    let octwords = input.translations_octword_actual_size();
    let total = "memory_key_mkey_entry.translations_octword_size";
    match context.access_mode_1_0() {
        ACCESS_PHYSICAL => {
            ensure(
                octwords == 0,
                Stop::value("translations_octword_actual_size"),
            )?;
            ensure(context.translations_octword_size() == 0, Stop::value(total))?;
            ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
            ensure(!input.pg_access(), Stop::value("pg_access"))?;
            let no_pages = Stop::value("memory_key_mkey_entry.log_page_size");
            ensure(context.log_page_size() == 0, no_pages)?;
            Ok(Translation::Physical)
        }
        ACCESS_PAGES => {
            let bytes = u64::from(octwords) * 16;
            ensure(
                call.tail.len() as u64 == bytes,
                Stop::because(Reason::InputLength),
            )?;
            ensure(
                context.translations_octword_size() == octwords,
                Stop::value(total),
            )?;
            let log_page_size = u32::from(context.log_page_size());
            let shift = Stop::value("memory_key_mkey_entry.log_page_size");
            ensure((12..=40).contains(&log_page_size), shift)?;
            ensure(
                !context.length64(),
                Stop::value("memory_key_mkey_entry.length64"),
            )?;
            let page = 1u64 << log_page_size;
            let offset = context.start_addr() & (page - 1);
            let end = offset.checked_add(context.length());
            let needed = end.map(|end| end.div_ceil(page)).unwrap_or(u64::MAX);
            let mut pages = call.words64();
            let long = Stop::value("memory_key_mkey_entry.length");
            ensure(context.length() > 0 && needed <= pages.len() as u64, long)?;
            // The list comes in pairs: the last one may be padding.
            pages.truncate(needed as usize);
            // Rights of single pages are not told apart: each has both or the list is refused.
            let rights = if input.pg_access() { PAGE_PRESENT } else { 0 };
            let good = |entry: &u64| entry % page == rights;
            let bad = Stop::field(Reason::BadAddress, "translations_octword_actual_size");
            ensure(pages.iter().all(good), bad)?;
            pages.iter_mut().for_each(|entry| *entry &= !PAGE_PRESENT);
            Ok(Translation::Pages {
                pages,
                log_page_size,
                offset,
            })
        }
        _ => Err(Stop::field(
            Reason::NotOffered,
            "memory_key_mkey_entry.access_mode_1_0",
        )),
    }
}

fn create_mkey(
    firmware: &mut Firmware,
    input: &CreateMkeyIn,
    call: &Call<'_>,
) -> Answer<CreateMkeyOut> {
    let context = input.memory_key_mkey_entry();
    let pd = firmware.need(Kind::Pd, context.pd(), call.uid, "memory_key_mkey_entry.pd")?;
    ensure(
        context.qpn() == ANY_QP,
        Stop::value("memory_key_mkey_entry.qpn"),
    )?;
    if context.length64() {
        let whole = context.start_addr() == 0 && context.length() == 0;
        ensure(whole, Stop::value("memory_key_mkey_entry.length64"))?;
    } else {
        let end = context.start_addr().checked_add(context.length());
        let good = context.length() > 0 && end.is_some();
        ensure(good, Stop::value("memory_key_mkey_entry.length"))?;
    }
    let translation = translation(&context, input, call)?;
    let count = firmware
        .limits()
        .mkeys
        .min(u64::from(MAX_MKEYS) - FIRST_KEY);
    let index = firmware.number(Kind::Mkey, FIRST_KEY, count)?;
    firmware.data.set_mkey(MkeySpec {
        key: index << 8 | u32::from(context.mkey_7_0()),
        pd: Some(context.pd()),
        start: context.start_addr(),
        len: (!context.length64()).then(|| context.length()),
        local_read: context.lr(),
        local_write: context.lw(),
        translation,
    })?;
    firmware
        .objects
        .create((Kind::Mkey, index.into()), call.uid, vec![pd]);
    firmware.keys.insert(
        index,
        Mkey {
            context,
            translation: call.tail.to_vec(),
        },
    );
    let mut out = CreateMkeyOut::zeroed();
    out.set_mkey_index(index)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn query_mkey(
    firmware: &mut Firmware,
    input: &QueryMkeyIn,
    call: &Call<'_>,
) -> Answer<QueryMkeyOut> {
    let index = input.mkey_index();
    firmware.need(Kind::Mkey, index, call.uid, "mkey_index")?;
    let absent = Stop::field(Reason::NoObject, "mkey_index");
    let key = firmware.keys.get(&index).ok_or(absent)?;
    let mut out = QueryMkeyOut::zeroed();
    out.set_memory_key_mkey_entry(key.context);
    let part = |at: usize| {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip(key.translation.iter().skip(at)) {
            *to = *from;
        }
        bytes
    };
    out.set_bsf0_klm0_pas_mtt0_1(part(0));
    out.set_bsf1_klm1_pas_mtt2_3(part(16));
    Ok(out.into())
}

fn destroy_mkey(
    firmware: &mut Firmware,
    input: &DestroyMkeyIn,
    call: &Call<'_>,
) -> Answer<PlainOut> {
    let index = input.mkey_index();
    let id = (Kind::Mkey, u64::from(index));
    firmware.removable(id, call.uid, "mkey_index")?;
    firmware.data.remove_mkey(index)?;
    firmware.remove(id, call.uid, "mkey_index")?;
    firmware.keys.remove(&index);
    Ok(PlainOut::zeroed().into())
}
