//! Send queues, and what send and receive queues have in common.

use super::cq::record;
use super::eq::{page_list, ring_memory};
use super::{Answer, Call, Firmware, Limits, RUNNING, Reply, Spec, Stop, command, ensure};
use crate::data::{InlineMode, QueueState, RingMemory, SqSpec};
use crate::objects::Kind;
use crate::syndrome::Reason;
use pollux_prm::command::PlainOut;
use pollux_prm::commands::sq::*;

const FIRST: u64 = 0x100;
/// The only kind of ring: cyclic.
const WQ_CYCLIC: u8 = 1;
/// Send queues are rings of 64-byte basic blocks.
const LOG_BASIC_BLOCK: u8 = 6;

const RESET: u8 = 0;
const READY: u8 = 1;
const ERROR: u8 = 3;

/// Inline capability: what the vport context says counts.
const INLINE_BY_VPORT: u8 = 1;
/// Inline capability: headers need not stand inline.
const INLINE_NOT_REQUIRED: u8 = 2;

pub(super) fn commands() -> Vec<Spec> {
    let create_paths = [
        "ctx.flush_in_error_en",
        "ctx.min_wqe_inline_mode",
        "ctx.user_index",
        "ctx.cqn",
        "ctx.tis_lst_sz",
        "ctx.tis_num_0",
        "ctx.wq.wq_type",
        "ctx.wq.pd",
        "ctx.wq.uar_page",
        "ctx.wq.dbr_addr",
        "ctx.wq.log_wq_stride",
        "ctx.wq.log_wq_pg_sz",
        "ctx.wq.log_wq_sz",
    ];
    vec![
        command::<CreateSq>(RUNNING, &create_paths, create),
        command::<ModifySq>(RUNNING, &["sq_state", "sqn", "ctx.state"], modify),
        command::<QuerySq>(RUNNING, &["sqn"], query),
        command::<DestroySq>(RUNNING, &["sqn"], destroy),
    ]
}

/// A send queue's context as it was created.
#[derive(Clone, Debug)]
pub(crate) struct Sq {
    context: Sqc,
    ring: RingMemory,
}

/// Checks what send and receive queues have in common, and gives the ring.
pub(super) fn work_queue(
    wq: &Wq,
    stride: u8,
    limits: &Limits,
    call: &Call<'_>,
) -> Result<RingMemory, Stop> {
    ensure(
        wq.wq_type() == WQ_CYCLIC,
        Stop::field(Reason::NotOffered, "ctx.wq.wq_type"),
    )?;
    let size = Stop::field(Reason::Limit, "ctx.wq.log_wq_sz");
    ensure(wq.log_wq_sz() <= limits.log_wq_size, size)?;
    let bytes = 1u64 << (wq.log_wq_sz() + stride);
    let ring = ring_memory(
        call.words64(),
        bytes,
        wq.log_wq_pg_sz(),
        "ctx.wq.log_wq_pg_sz",
    )?;
    record(wq.dbr_addr(), "ctx.wq.dbr_addr")?;
    Ok(ring)
}

/// The state that a context's number names.
pub(super) fn queue_state(number: u8, path: &'static str) -> Result<QueueState, Stop> {
    match number {
        RESET => Ok(QueueState::Reset),
        READY => Ok(QueueState::Ready),
        ERROR => Ok(QueueState::Error),
        _ => Err(Stop::value(path)),
    }
}

/// The number of a state in a context.
pub(super) const fn state_number(state: QueueState) -> u8 {
    match state {
        QueueState::Reset => RESET,
        QueueState::Ready => READY,
        QueueState::Error => ERROR,
    }
}

/// Checks a change of state: `now` is the true one, `said` what the driver believes.
pub(super) fn transition(
    now: QueueState,
    said: QueueState,
    to: QueueState,
    said_path: &'static str,
) -> Result<(), Stop> {
    ensure(now == said, Stop::field(Reason::WrongState, said_path))?;
    let legal = !matches!((now, to), (QueueState::Error, QueueState::Ready));
    ensure(legal, Stop::field(Reason::WrongState, "ctx.state"))
}

impl Firmware {
    /// What must stand inline in WQEs of a queue that asks for `asked`.
    fn inline(&self, asked: u8) -> Result<InlineMode, Stop> {
        let floor = match self.limits().inline_mode {
            INLINE_NOT_REQUIRED => 0,
            INLINE_BY_VPORT => self.vport.min_inline(),
            // Always layer 2.
            _ => 1,
        };
        match asked.max(floor) {
            0 => Ok(InlineMode::None),
            1 => Ok(InlineMode::L2),
            2 => Ok(InlineMode::Ip),
            3 => Ok(InlineMode::TcpUdp),
            _ => Err(Stop::value("ctx.min_wqe_inline_mode")),
        }
    }
}

fn create(firmware: &mut Firmware, input: &CreateSqIn, call: &Call<'_>) -> Answer<CreateSqOut> {
    let context = input.ctx();
    let wq = context.wq();
    let limits = firmware.limits();
    let inline = firmware.inline(context.min_wqe_inline_mode())?;
    let cq = firmware.need(Kind::Cq, context.cqn(), call.uid, "ctx.cqn")?;
    // Without a TIS the queue sends nothing: the Linux driver has such queues for work inside the
    // device.
    let tis = match context.tis_lst_sz() {
        0 => {
            ensure(context.tis_num_0() == 0, Stop::value("ctx.tis_num_0"))?;
            None
        }
        1 => Some(firmware.need(Kind::Tis, context.tis_num_0(), call.uid, "ctx.tis_num_0")?),
        _ => return Err(Stop::value("ctx.tis_lst_sz")),
    };
    let pd = firmware.need(Kind::Pd, wq.pd(), call.uid, "ctx.wq.pd")?;
    let uar = firmware.need(Kind::Uar, wq.uar_page(), call.uid, "ctx.wq.uar_page")?;
    ensure(
        wq.log_wq_stride() == LOG_BASIC_BLOCK,
        Stop::value("ctx.wq.log_wq_stride"),
    )?;
    let ring = work_queue(&wq, LOG_BASIC_BLOCK, &limits, call)?;
    let sqn = firmware.number(Kind::Sq, FIRST, limits.sqs)?;
    firmware.data.create_sq(SqSpec {
        sqn,
        ring: ring.clone(),
        log_size: wq.log_wq_sz().into(),
        doorbell_record: wq.dbr_addr(),
        uar: wq.uar_page(),
        cqn: context.cqn(),
        transmits: tis.is_some(),
        pd: wq.pd(),
        inline,
        flush_in_error: context.flush_in_error_en(),
        user_index: context.user_index(),
        state: QueueState::Reset,
    })?;
    let uses = [cq, pd, uar].into_iter().chain(tis).collect();
    firmware
        .objects
        .create((Kind::Sq, sqn.into()), call.uid, uses);
    firmware.sqs.insert(sqn, Sq { context, ring });
    let mut out = CreateSqOut::zeroed();
    out.set_sqn(sqn)
        .map_err(|_| Stop::because(Reason::Internal))?;
    Ok(out.into())
}

fn modify(firmware: &mut Firmware, input: &ModifySqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let sqn = input.sqn();
    firmware.need(Kind::Sq, sqn, call.uid, "sqn")?;
    ensure(call.tail.is_empty(), Stop::because(Reason::InputLength))?;
    let said = queue_state(input.sq_state(), "sq_state")?;
    let to = queue_state(input.ctx().state(), "ctx.state")?;
    let now = firmware.data.sq_status(sqn)?.state;
    transition(now, said, to, "sq_state")?;
    if to != now {
        firmware.data.modify_sq(sqn, to)?;
    }
    Ok(PlainOut::zeroed().into())
}

fn query(firmware: &mut Firmware, input: &QuerySqIn, call: &Call<'_>) -> Answer<QuerySqOut> {
    let sqn = input.sqn();
    firmware.need(Kind::Sq, sqn, call.uid, "sqn")?;
    let sq = firmware
        .sqs
        .get(&sqn)
        .ok_or(Stop::field(Reason::NoObject, "sqn"))?;
    let status = firmware.data.sq_status(sqn)?;
    let mut context = sq.context;
    let internal = |_| Stop::because(Reason::Internal);
    context
        .set_state(state_number(status.state))
        .map_err(internal)?;
    let mut wq = context.wq();
    wq.set_hw_counter(status.hardware_index.into());
    wq.set_sw_counter(status.software_index.into());
    context.set_wq(wq);
    let mut out = QuerySqOut::zeroed();
    out.set_sq_context(context);
    Ok(Reply::with_tail(out, page_list(&sq.ring)))
}

fn destroy(firmware: &mut Firmware, input: &DestroySqIn, call: &Call<'_>) -> Answer<PlainOut> {
    let sqn = input.sqn();
    let id = (Kind::Sq, u64::from(sqn));
    firmware.removable(id, call.uid, "sqn")?;
    firmware.data.destroy_sq(sqn)?;
    firmware.remove(id, call.uid, "sqn")?;
    firmware.sqs.remove(&sqn);
    Ok(PlainOut::zeroed().into())
}
