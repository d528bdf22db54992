//! Why a link is down: what the port says of it (PDDR), in words and with what to do.
//!
//! Asked for by whoever waits for a link, never by the control thread: an adapter that does not
//! know the register is none the worse.

use crate::control::Control;
use crate::error::{CommandFailure, Error};
use pollux_prm::command::Command;
use pollux_prm::commands::register::{
    AccessReg, LinkTroubleCode, PDDR_TROUBLESHOOTING, Pddr, Register, RegisterAccess,
};
use std::fmt;

/// Why a link is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTrouble {
    /// The port's own number for it; 0 when it knows no reason.
    pub code: u32,
    /// Its own words for it.
    pub said: String,
}

impl LinkTrouble {
    /// What it means and what to do; nothing for a number that is not known here.
    fn meaning(&self) -> Option<&'static str> {
        let text = match LinkTroubleCode(self.code) {
            LinkTroubleCode::NO_PARTNER | LinkTroubleCode::NO_PARTNER_FORCED => {
                "nobody at the other end: switch its port on, or look at the cable"
            }
            LinkTroubleCode::REMOTE_FAULT => {
                "the other end reports a fault: look at its port and at the fibre towards it"
            }
            LinkTroubleCode::BAD_SIGNAL => "bad signal: clean or change the cable",
            LinkTroubleCode::UNSUITABLE_CABLE => {
                "the cable does not do what the port wants: use another, or set another speed"
            }
            LinkTroubleCode::FEC_MISMATCH => {
                "error correction (FEC) is forced otherwise at the other end: set both alike"
            }
            LinkTroubleCode::NO_COMMON_SPEED => {
                "no speed in common with the other end: allow the same on both"
            }
            LinkTroubleCode::NO_CABLE => "no cable or module in the port: plug one in",
            LinkTroubleCode::UNSUPPORTED_MODULE => {
                "a module that this adapter does not take: use one from its firmware's list"
            }
            LinkTroubleCode::UNREADABLE_MODULE => {
                "the module's description cannot be read: reseat or change it"
            }
            LinkTroubleCode::OVERHEATED_MODULE => {
                "the module is too hot and switched off: give it air"
            }
            LinkTroubleCode::MODULE_FAULT => "the cable or module has a fault: change it",
            LinkTroubleCode::POWER_BUDGET => {
                "the module wants more power than the port gives: use another"
            }
            _ => return None,
        };
        Some(text)
    }
}

impl fmt::Display for LinkTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.meaning(), self.said.as_str()) {
            (Some(meaning), _) => write!(f, "{meaning} (status {})", self.code),
            (None, "") if self.code == 0 => f.write_str("the port gives no reason"),
            (None, "") => write!(f, "status {}, which has no name here", self.code),
            (None, said) => write!(f, "the port says: {said} (status {})", self.code),
        }
    }
}

/// Asks the port; nothing where it does not know the register.
pub(crate) fn ask(control: &Control) -> Result<Option<LinkTrouble>, Error> {
    let mut question = Pddr::zeroed();
    question
        .set_local_port(1)
        .set_page_select(PDDR_TROUBLESHOOTING);
    let input = question.access(RegisterAccess::READ);
    let room = input.len();
    let output = match control.execute_bytes(input, room) {
        Ok(output) => output,
        Err(CommandFailure::Refused(refusal)) => {
            tracing::debug!(%refusal, "no reason for a link that is down");
            return Ok(None);
        }
        Err(failure) => return Err(failure.into()),
    };
    let short = CommandFailure::Damaged {
        opcode: AccessReg::OPCODE,
        what: "short register",
    };
    let page = Pddr::from_access(&output).ok_or(short)?.page();
    let said = page.status_message();
    Ok(Some(LinkTrouble {
        code: page.status_opcode(),
        said: said
            .iter()
            .take_while(|byte| (b' '..=b'~').contains(*byte))
            .map(|byte| char::from(*byte))
            .collect::<String>()
            .trim()
            .to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_have_a_remedy_and_others_the_ports_words() {
        let text = |code, said: &str| {
            let said = said.to_owned();
            LinkTrouble { code, said }.to_string()
        };
        for (name, code) in LinkTroubleCode::NAMED.iter().map(|n| (n.name, n.value)) {
            let code = code as u32;
            if code != 0 {
                let text = text(code, "x");
                assert!(text.contains(&format!("(status {code})")), "{name}: {text}");
                assert!(!text.contains("the port says"), "{name}: {text}");
            }
        }
        assert_eq!(text(0, ""), "the port gives no reason");
        assert!(text(77, "odd").contains("the port says: odd (status 77)"));
        assert!(text(77, "").contains("77"));
    }
}
