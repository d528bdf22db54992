//! `clear`.

use crate::grammar::{All, Clear, ClearPort, Stats};
use crate::output::nic::Meter;
use crate::session::Session;

/// Runs it.
pub fn run(session: &mut Session, what: Clear) {
    match what {
        Clear::Fwd(Stats::Stats(All::All)) => session.clear_forward_stats(),
        Clear::Port(ClearPort::Stats { port }) => {
            for n in session.shown(port) {
                if reset(session, n) {
                    session
                        .screen
                        .line(format!("\n  NIC statistics for port {n} cleared"));
                }
            }
        }
        Clear::Port(ClearPort::Xstats { port }) => {
            for n in session.shown(port) {
                reset(session, n);
            }
        }
    }
}

/// Forwarding statistics go on from what the port counts now.
fn reset(session: &mut Session, number: u16) -> bool {
    let done = session.port(number).map(pollux::Port::reset_stats);
    if let Some(Err(e)) = done {
        session
            .screen
            .line(format!("Error: failed to reset stats (port {number}): {e}"));
        return false;
    }
    let now = session.nic_stats(number);
    if let Some(state) = session.state(number) {
        state.base = now;
        state.meter = Meter::default();
    }
    true
}
