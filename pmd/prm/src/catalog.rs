//! Every layout and every named number of this crate, for tools that go through all of them.

use crate::layout::Shape;
use crate::open_enum::Named;
use crate::{command, command_queue, commands, completion, event, opcode, wqe};

/// All layouts.
pub fn layouts() -> impl Iterator<Item = &'static Shape> {
    let modules: [&'static [Shape]; 21] = [
        command::LAYOUTS,
        command_queue::LAYOUTS,
        completion::LAYOUTS,
        event::LAYOUTS,
        wqe::LAYOUTS,
        commands::capability::LAYOUTS,
        commands::counters::LAYOUTS,
        commands::cq::LAYOUTS,
        commands::eq::LAYOUTS,
        commands::flow::LAYOUTS,
        commands::hca::LAYOUTS,
        commands::matching::LAYOUTS,
        commands::offload::LAYOUTS,
        commands::pages::LAYOUTS,
        commands::port_counters::LAYOUTS,
        commands::protection::LAYOUTS,
        commands::register::LAYOUTS,
        commands::rq::LAYOUTS,
        commands::sq::LAYOUTS,
        commands::tir::LAYOUTS,
        commands::vport::LAYOUTS,
    ];
    modules.into_iter().flatten()
}

/// All enumerations: name and values.
pub fn enumerations() -> impl Iterator<Item = &'static (&'static str, &'static [Named])> {
    let modules: [&'static [(&'static str, &'static [Named])]; 18] = [
        opcode::ENUMS,
        command_queue::ENUMS,
        completion::ENUMS,
        event::ENUMS,
        wqe::ENUMS,
        commands::capability::ENUMS,
        commands::cq::ENUMS,
        commands::eq::ENUMS,
        commands::flow::ENUMS,
        commands::hca::ENUMS,
        commands::pages::ENUMS,
        commands::port_counters::ENUMS,
        commands::protection::ENUMS,
        commands::register::ENUMS,
        commands::rq::ENUMS,
        commands::sq::ENUMS,
        commands::tir::ENUMS,
        commands::vport::ENUMS,
    ];
    modules.into_iter().flatten()
}
