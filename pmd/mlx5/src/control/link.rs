//! Questions about the link: state of the virtual port, then, if it is up, the port's speed.

use super::{Tag, Thread};
use crate::command::Request;
use crate::error::CommandFailure;
use crate::link::{Link, speed};
use pollux_prm::command::Command;
use pollux_prm::commands::register::{Ptys, PtysProtocol, Register, RegisterAccess};
use pollux_prm::commands::vport::{
    QueryVportState, QueryVportStateOut, VportState, VportStateKind,
};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

impl Thread {
    /// Asks for the state when that is due.
    pub(super) fn ask_link(&mut self, now: Instant) {
        if self.fault.is_some() || self.link.next_question().is_none_or(|due| now < due) {
            return;
        }
        let mut input = QueryVportState::request();
        input.set_op_mod(VportStateKind::VNIC_VPORT.0);
        let request = Request {
            input: input.as_bytes().to_vec(),
            output_len: QueryVportState::output_len(0),
            patience: self.patience,
        };
        self.link.asked();
        self.post_first(request, Tag::LinkState, now);
    }

    pub(super) fn link_state(&mut self, result: Result<Vec<u8>, CommandFailure>, now: Instant) {
        let state = match &result {
            Ok(output) => QueryVportStateOut::read_from_prefix(output)
                .ok()
                .map(|(out, _)| VportState(out.state())),
            Err(failure) => {
                tracing::warn!(%failure, "link state not known");
                None
            }
        };
        match state {
            Some(VportState::UP) if self.fault.is_none() => {
                let mut ptys = Ptys::zeroed();
                ptys.set_local_port(1);
                // Not reached otherwise: the value is a constant that fits.
                if ptys.set_proto_mask(PtysProtocol::EN.0).is_ok() {
                    let input = ptys.access(RegisterAccess::READ);
                    let output_len = input.len();
                    let request = Request {
                        input,
                        output_len,
                        patience: self.patience,
                    };
                    self.post_first(request, Tag::LinkSpeed, now);
                }
            }
            Some(VportState::DOWN) => self.link_answer(Some(Link::DOWN), now),
            _ => self.link_answer(None, now),
        }
    }

    pub(super) fn link_speed(&mut self, result: Result<Vec<u8>, CommandFailure>, now: Instant) {
        // The port is up; that its speed cannot be read does not change that, unless nobody
        // answers at all.
        let link = match result {
            Ok(output) => Some(Link::up(
                Ptys::from_access(&output).as_ref().map_or(0, speed),
            )),
            Err(CommandFailure::Refused(_)) => Some(Link::up(0)),
            Err(_) => None,
        };
        self.link_answer(link, now);
    }

    fn link_answer(&mut self, link: Option<Link>, now: Instant) {
        if let Some(link) = self.link.answer(link, now) {
            self.shared.tell_link(link);
        }
    }
}
