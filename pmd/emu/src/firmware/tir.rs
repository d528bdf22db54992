//! Transport interfaces of the receive side, and RSS indirection tables.

use super::{Answer, Call, Firmware, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::{Dispatch, Hash, HashFields, RqtSpec, TirSpec};
use crate::objects::{Kind, ObjectId};
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::tir::*;

const FIRST_TIR: u64 = 0x20;
const FIRST_RQT: u64 = 0x30;

const DIRECT: u8 = 0;
const INDIRECT: u8 = 1;

const HASH_NONE: u8 = 0;
const HASH_XOR8: u8 = 1;
const HASH_TOEPLITZ: u8 = 2;

/// Bits of `selected_fields` (kernel `mlx5_ifc.h`, `MLX5_HASH_FIELD_SEL_*`).
const FIELD_SOURCE_IP: u32 = 1 << 0;
const FIELD_DESTINATION_IP: u32 = 1 << 1;
const FIELD_SOURCE_PORT: u32 = 1 << 2;
const FIELD_DESTINATION_PORT: u32 = 1 << 3;
const FIELD_SPI: u32 = 1 << 4;

/// Receive queues in a table, with nothing else.
const LIST_OF_RQS: u8 = 0;

pub(super) fn commands() -> Vec<Spec> {
    let context = [
        "ctx.disp_type",
        "ctx.inline_rqn",
        "ctx.rx_hash_symmetric",
        "ctx.indirect_table",
        "ctx.rx_hash_fn",
        "ctx.self_lb_block",
        "ctx.transport_domain",
        "ctx.rx_hash_toeplitz_key",
        "ctx.rx_hash_field_selector_outer",
    ];
    let change = [
        "tirn",
        "bitmask.self_lb_en",
        "bitmask.hash",
        "ctx.rx_hash_symmetric",
        "ctx.rx_hash_fn",
        "ctx.self_lb_block",
        "ctx.rx_hash_toeplitz_key",
        "ctx.rx_hash_field_selector_outer",
    ];
    let table = ["rqt_context.rqt_max_size", "rqt_context.rqt_actual_size"];
    vec![
        command::<CreateTir>(RUNNING, &context, create_tir),
        command::<ModifyTir>(RUNNING, &change, modify_tir),
        command::<QueryTir>(RUNNING, &["tirn"], query_tir),
        command::<DestroyTir>(RUNNING, &["tirn"], destroy_tir),
        command::<CreateRqt>(RUNNING, &table, create_rqt),
        command::<ModifyRqt>(
            RUNNING,
            &["rqtn", "bitmask.rqn_list", "ctx.rqt_actual_size"],
            modify_rqt,
        ),
        command::<QueryRqt>(RUNNING, &["rqtn"], query_rqt),
        command::<DestroyRqt>(RUNNING, &["rqtn"], destroy_rqt),
    ]
}

/// A TIR's context.
#[derive(Clone, Debug)]
pub(crate) struct Tir {
    context: Tirc,
}

/// An indirection table.
#[derive(Clone, Debug)]
pub(crate) struct Rqt {
    context: Rqtc,
    queues: Vec<u32>,
}

fn hash(context: &Tirc) -> Result<Hash, Stop> {
    let select = context.rx_hash_field_selector_outer();
    let bits = select.selected_fields();
    let path = "ctx.rx_hash_field_selector_outer.selected_fields";
    let ports = FIELD_SOURCE_PORT | FIELD_DESTINATION_PORT;
    let known = FIELD_SOURCE_IP | FIELD_DESTINATION_IP | ports | FIELD_SPI;
    ensure(bits & !known == 0, Stop::field(Reason::NotOffered, path))?;
    // No packet has both.
    let both = bits & ports != 0 && bits & FIELD_SPI != 0;
    ensure(!both, Stop::value(path))?;
    let fields = HashFields {
        ipv6: select.l3_prot_type(),
        udp: select.l4_prot_type(),
        source_ip: bits & FIELD_SOURCE_IP != 0,
        destination_ip: bits & FIELD_DESTINATION_IP != 0,
        source_port: bits & FIELD_SOURCE_PORT != 0,
        destination_port: bits & FIELD_DESTINATION_PORT != 0,
        spi: bits & FIELD_SPI != 0,
    };
    let symmetric = context.rx_hash_symmetric();
    match context.rx_hash_fn() {
        HASH_NONE => {
            ensure(bits == 0, Stop::value(path))?;
            ensure(!symmetric, Stop::value("ctx.rx_hash_symmetric"))?;
            Ok(Hash::None)
        }
        HASH_XOR8 => {
            ensure(!symmetric, Stop::value("ctx.rx_hash_symmetric"))?;
            Ok(Hash::Xor8 { fields })
        }
        HASH_TOEPLITZ => {
            let key = Box::new(context.rx_hash_toeplitz_key());
            Ok(Hash::Toeplitz {
                fields,
                symmetric,
                key,
            })
        }
        _ => Err(Stop::value("ctx.rx_hash_fn")),
    }
}

impl Firmware {
    fn dispatch(&self, context: &Tirc, uid: u16) -> Result<(Dispatch, ObjectId), Stop> {
        match context.disp_type() {
            DIRECT => {
                let rqn = context.inline_rqn();
                let rq = self.need(Kind::Rq, rqn, uid, "ctx.inline_rqn")?;
                let table = Stop::value("ctx.indirect_table");
                ensure(context.indirect_table() == 0, table)?;
                hash(context)?;
                Ok((Dispatch::Direct { rqn }, rq))
            }
            INDIRECT => {
                let rqtn = context.indirect_table();
                let rqt = self.need(Kind::Rqt, rqtn, uid, "ctx.indirect_table")?;
                ensure(context.inline_rqn() == 0, Stop::value("ctx.inline_rqn"))?;
                Ok((
                    Dispatch::Indirect {
                        rqtn,
                        hash: hash(context)?,
                    },
                    rqt,
                ))
            }
            _ => Err(Stop::value("ctx.disp_type")),
        }
    }

    /// Checks the receive queues of a table's tail.
    fn table(&self, size: u16, call: &Call<'_>, path: &'static str) -> Result<Vec<u32>, Stop> {
        let list = call.words32();
        ensure(
            list.len() == usize::from(size),
            Stop::because(Reason::InputLength),
        )?;
        ensure(size.is_power_of_two(), Stop::value(path))?;
        let queue = |word: &u32| {
            // An entry is 24 bits; the upper byte is reserved.
            let there = self.objects.has((Kind::Rq, u64::from(*word)), call.uid);
            ensure(
                there,
                Stop::Refuse(Reason::NoObject, super::About::Number(0)),
            )
        };
        list.iter().try_for_each(queue)?;
        Ok(list)
    }
}

fn uses_of(queues: &[u32]) -> Vec<ObjectId> {
    queues
        .iter()
        .map(|rqn| (Kind::Rq, u64::from(*rqn)))
        .collect()
}

fn create_tir(
    firmware: &mut Firmware,
    input: &CreateTirIn,
    call: &Call<'_>,
) -> Answer<CreateTirOut> {
    let context = input.ctx();
    let path = "ctx.transport_domain";
    let domain = context.transport_domain();
    let domain = firmware.need(Kind::TransportDomain, domain, call.uid, path)?;
    let (dispatch, target) = firmware.dispatch(&context, call.uid)?;
    let tirn = firmware.number(Kind::Tir, FIRST_TIR, firmware.limits().tirs)?;
    firmware.data.set_tir(TirSpec { tirn, dispatch })?;
    firmware
        .objects
        .create((Kind::Tir, tirn.into()), call.uid, vec![domain, target]);
    firmware.tirs.insert(tirn, Tir { context });
    let mut out = CreateTirOut::zeroed();
    out.set_tirn(tirn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify_tir(firmware: &mut Firmware, input: &ModifyTirIn, call: &Call<'_>) -> Answer<PlainOut> {
    let tirn = input.tirn();
    firmware.need(Kind::Tir, tirn, call.uid, "tirn")?;
    let (mask, new) = (input.bitmask(), input.ctx());
    let loopback = Stop::field(Reason::NotOffered, "bitmask.self_lb_en");
    ensure(
        !mask.self_lb_en() || firmware.limits().self_loopback,
        loopback,
    )?;
    ensure(
        mask.self_lb_en() || mask.hash(),
        Stop::value("bitmask.hash"),
    )?;
    let absent = Stop::field(Reason::NoObject, "tirn");
    let mut context = firmware.tirs.get(&tirn).ok_or(absent)?.context;
    let internal = |_| Stop::because(Reason::Internal);
    if mask.self_lb_en() {
        context
            .set_self_lb_block(new.self_lb_block())
            .map_err(internal)?;
    }
    if mask.hash() {
        context.set_rx_hash_symmetric(new.rx_hash_symmetric());
        context.set_rx_hash_fn(new.rx_hash_fn()).map_err(internal)?;
        context.set_rx_hash_toeplitz_key(new.rx_hash_toeplitz_key());
        context.set_rx_hash_field_selector_outer(new.rx_hash_field_selector_outer());
    }
    let (dispatch, _) = firmware.dispatch(&context, 0)?;
    firmware.data.set_tir(TirSpec { tirn, dispatch })?;
    firmware.tirs.insert(tirn, Tir { context });
    Ok(PlainOut::zeroed().into())
}

fn query_tir(firmware: &mut Firmware, input: &QueryTirIn, call: &Call<'_>) -> Answer<QueryTirOut> {
    firmware.need(Kind::Tir, input.tirn(), call.uid, "tirn")?;
    let absent = Stop::field(Reason::NoObject, "tirn");
    let tir = firmware.tirs.get(&input.tirn()).ok_or(absent)?;
    let mut out = QueryTirOut::zeroed();
    out.set_tir_context(tir.context);
    Ok(out.into())
}

fn destroy_tir(firmware: &mut Firmware, input: &DestroyTirIn, call: &Call<'_>) -> Answer<PlainOut> {
    let tirn = input.tirn();
    let id = (Kind::Tir, u64::from(tirn));
    firmware.removable(id, call.uid, "tirn")?;
    firmware.data.remove_tir(tirn)?;
    firmware.remove(id, call.uid, "tirn")?;
    firmware.tirs.remove(&tirn);
    Ok(PlainOut::zeroed().into())
}

fn create_rqt(
    firmware: &mut Firmware,
    input: &CreateRqtIn,
    call: &Call<'_>,
) -> Answer<CreateRqtOut> {
    let context = input.rqt_context();
    ensure(
        context.list_q_type() == LIST_OF_RQS,
        Stop::value("rqt_context.list_q_type"),
    )?;
    let limits = firmware.limits();
    let most = 1u32 << limits.log_rqt_size.min(16);
    let max = Stop::field(Reason::Limit, "rqt_context.rqt_max_size");
    ensure(
        u32::from(context.rqt_max_size()) <= most && context.rqt_max_size() > 0,
        max,
    )?;
    let size = Stop::value("rqt_context.rqt_actual_size");
    ensure(context.rqt_actual_size() <= context.rqt_max_size(), size)?;
    let path = "rqt_context.rqt_actual_size";
    let queues = firmware.table(context.rqt_actual_size(), call, path)?;
    let rqtn = firmware.number(Kind::Rqt, FIRST_RQT, limits.rqts)?;
    firmware.data.set_rqt(RqtSpec {
        rqtn,
        queues: queues.clone(),
    })?;
    firmware
        .objects
        .create((Kind::Rqt, rqtn.into()), call.uid, uses_of(&queues));
    firmware.rqts.insert(rqtn, Rqt { context, queues });
    let mut out = CreateRqtOut::zeroed();
    out.set_rqtn(rqtn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify_rqt(firmware: &mut Firmware, input: &ModifyRqtIn, call: &Call<'_>) -> Answer<PlainOut> {
    let rqtn = input.rqtn();
    let id = firmware.need(Kind::Rqt, rqtn, call.uid, "rqtn")?;
    ensure(input.bitmask().rqn_list(), Stop::value("bitmask.rqn_list"))?;
    let absent = Stop::field(Reason::NoObject, "rqtn");
    let mut context = firmware.rqts.get(&rqtn).ok_or(absent)?.context;
    let size = input.ctx().rqt_actual_size();
    ensure(
        size <= context.rqt_max_size(),
        Stop::value("ctx.rqt_actual_size"),
    )?;
    let queues = firmware.table(size, call, "ctx.rqt_actual_size")?;
    firmware.data.set_rqt(RqtSpec {
        rqtn,
        queues: queues.clone(),
    })?;
    firmware.objects.reuse(id, uses_of(&queues));
    context.set_rqt_actual_size(size);
    firmware.rqts.insert(rqtn, Rqt { context, queues });
    Ok(PlainOut::zeroed().into())
}

fn query_rqt(firmware: &mut Firmware, input: &QueryRqtIn, call: &Call<'_>) -> Answer<QueryRqtOut> {
    firmware.need(Kind::Rqt, input.rqtn(), call.uid, "rqtn")?;
    let absent = Stop::field(Reason::NoObject, "rqtn");
    let rqt = firmware.rqts.get(&input.rqtn()).ok_or(absent)?;
    let mut out = QueryRqtOut::zeroed();
    out.set_rqt_context(rqt.context);
    let tail = rqt
        .queues
        .iter()
        .flat_map(|rqn| rqn.to_be_bytes())
        .collect();
    Ok(Reply::with_tail(out, tail))
}

fn destroy_rqt(firmware: &mut Firmware, input: &DestroyRqtIn, call: &Call<'_>) -> Answer<PlainOut> {
    let rqtn = input.rqtn();
    let id = (Kind::Rqt, u64::from(rqtn));
    firmware.removable(id, call.uid, "rqtn")?;
    firmware.data.remove_rqt(rqtn)?;
    firmware.remove(id, call.uid, "rqtn")?;
    firmware.rqts.remove(&rqtn);
    Ok(PlainOut::zeroed().into())
}
