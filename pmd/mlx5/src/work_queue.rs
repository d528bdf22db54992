//! Send and receive queues as firmware sees them: states, and the commands that move them.

use crate::error::Error;
use pollux_prm::command::Command;
use pollux_prm::commands::rq::{ModifyRq, QueryRq, QueryRqOut, Rqc};
use pollux_prm::commands::sq::{ModifySq, QuerySq, QuerySqOut, Sqc};
use zerocopy::{FromBytes, IntoBytes};

/// Which kind of work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// Receive.
    Rx,
    /// Send.
    Tx,
}

impl QueueKind {
    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rx => "RX",
            Self::Tx => "TX",
        }
    }
}

/// State of a work queue (`MLX5_RQC_STATE_*`, `MLX5_SQC_STATE_*`; the numbers are the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueState(pub(crate) u8);

impl QueueState {
    /// Reset.
    pub(crate) const RESET: Self = Self(0);
    /// Ready.
    pub(crate) const READY: Self = Self(1);
    /// Error.
    pub(crate) const ERROR: Self = Self(3);
}

/// Input that moves a queue from one state to another, and the length of the output.
pub(crate) fn modify(
    kind: QueueKind,
    number: u32,
    from: QueueState,
    to: QueueState,
) -> Result<(Vec<u8>, usize), Error> {
    Ok(match kind {
        QueueKind::Rx => {
            let mut context = Rqc::zeroed();
            context.set_state(to.0)?;
            let mut input = ModifyRq::request();
            input.set_rqn(number)?;
            input.set_rq_state(from.0)?;
            input.set_ctx(context);
            (input.as_bytes().to_vec(), ModifyRq::output_len(0))
        }
        QueueKind::Tx => {
            let mut context = Sqc::zeroed();
            context.set_state(to.0)?;
            let mut input = ModifySq::request();
            input.set_sqn(number)?;
            input.set_sq_state(from.0)?;
            input.set_ctx(context);
            (input.as_bytes().to_vec(), ModifySq::output_len(0))
        }
    })
}

/// Input that asks for a queue's context, and the length of the output.
pub(crate) fn query(kind: QueueKind, number: u32) -> Result<(Vec<u8>, usize), Error> {
    Ok(match kind {
        QueueKind::Rx => {
            let mut input = QueryRq::request();
            input.set_rqn(number)?;
            (input.as_bytes().to_vec(), QueryRq::output_len(0))
        }
        QueueKind::Tx => {
            let mut input = QuerySq::request();
            input.set_sqn(number)?;
            (input.as_bytes().to_vec(), QuerySq::output_len(0))
        }
    })
}

/// The state in the answer to [`query`].
pub(crate) fn state(kind: QueueKind, output: &[u8]) -> Option<QueueState> {
    let state = match kind {
        QueueKind::Rx => QueryRqOut::read_from_prefix(output)
            .ok()?
            .0
            .rq_context()
            .state(),
        QueueKind::Tx => QuerySqOut::read_from_prefix(output)
            .ok()?
            .0
            .sq_context()
            .state(),
    };
    Some(QueueState(state))
}
