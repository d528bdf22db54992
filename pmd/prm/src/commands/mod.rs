//! The commands, by family.

pub mod capability;
pub mod counters;
pub mod cq;
pub mod eq;
pub mod flow;
pub mod hca;
pub mod matching;
pub mod offload;
pub mod pages;
pub mod port_counters;
pub mod protection;
pub mod register;
pub mod rq;
pub mod sq;
pub mod tir;
pub mod vport;

use crate::command::{CommandInfo, Opcode};

/// All commands that have layouts here, by family.
pub const ALL: &[&[CommandInfo]] = &[
    hca::COMMANDS,
    pages::COMMANDS,
    eq::COMMANDS,
    protection::COMMANDS,
    cq::COMMANDS,
    sq::COMMANDS,
    rq::COMMANDS,
    tir::COMMANDS,
    vport::COMMANDS,
    counters::COMMANDS,
    flow::COMMANDS,
    register::COMMANDS,
];

/// Lengths of the command `opcode`, or nothing if it has no layout here.
pub fn find(opcode: Opcode) -> Option<&'static CommandInfo> {
    ALL.iter().copied().flatten().find(|c| c.opcode == opcode)
}
