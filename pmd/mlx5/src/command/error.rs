//! What firmware says about a command that it refuses, and what to do about it.

use pollux_prm::opcode::{Opcode, Status};
use std::fmt;

/// A command that firmware refused.
///
/// The syndrome is the firmware's own reason; only its maker has the list, so it is printed for
/// those who ask there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The command.
    pub opcode: Opcode,
    /// Its variant.
    pub op_mod: u16,
    /// Firmware's status, never OK.
    pub status: Status,
    /// Firmware's own reason.
    pub syndrome: u32,
}

impl CommandError {
    /// The status in words (`MLX5_CMD_STAT_*`).
    pub fn text(&self) -> &'static str {
        match self.status {
            Status::OK => "no error",
            Status::INT_ERR => "internal error",
            Status::BAD_OP_ERR => "bad operation",
            Status::BAD_PARAM_ERR => "bad parameter",
            Status::BAD_SYS_STATE_ERR => "bad system state",
            Status::BAD_RES_ERR => "bad resource",
            Status::RES_BUSY => "resource busy",
            Status::NOT_READY => "not ready",
            Status::LIM_ERR => "limit exceeded",
            Status::BAD_RES_STATE_ERR => "bad resource state",
            Status::IX_ERR => "bad index",
            Status::NO_RES_ERR => "no resources",
            Status::BAD_INP_LEN_ERR => "bad input length",
            Status::BAD_OUTP_LEN_ERR => "bad output length",
            Status::BAD_QP_STATE_ERR => "bad queue state",
            Status::BAD_PKT_ERR => "bad packet",
            Status::BAD_SIZE_OUTS_CQES_ERR => "too many outstanding completions",
            _ => "unknown status",
        }
    }

    /// What usually helps, or an empty string.
    pub fn remedy(&self) -> &'static str {
        match self.status {
            Status::INT_ERR => "look at the health buffer; a function reset may help",
            Status::BAD_OP_ERR => "this firmware does not know the command; update it",
            Status::BAD_SYS_STATE_ERR => {
                "another driver may hold the function, or it needs a reset first"
            }
            Status::RES_BUSY => "destroy what still uses the object first",
            Status::NOT_READY => "try again",
            Status::LIM_ERR | Status::NO_RES_ERR => {
                "use fewer or smaller objects, or give firmware more pages"
            }
            Status::BAD_RES_STATE_ERR | Status::BAD_QP_STATE_ERR => {
                "the object is in another state than the command needs"
            }
            _ => "",
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (op_mod {:#x}) refused: {} (status {:#x}, syndrome {:#x})",
            self.opcode,
            self.op_mod,
            self.text(),
            self.status.0,
            self.syndrome
        )?;
        match self.remedy() {
            "" => Ok(()),
            remedy => write!(f, "; {remedy}"),
        }
    }
}

impl std::error::Error for CommandError {}
