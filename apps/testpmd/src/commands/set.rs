//! `set`: what the next start uses.

use pollux_mempool::burst::MAX_BURST;

use crate::args::options::EthPeer;
use crate::forward::txonly::SHORTEST;
use crate::grammar::{Set, Switch};
use crate::session::{Session, Status};

/// Runs it.
pub fn run(session: &mut Session, what: Set) {
    match what {
        Set::Fwd { mode, variant } => {
            session.settings.mode = mode;
            session.retry = variant.is_some();
            session.screen.line(format!(
                "Set {mode} packet forwarding mode{}",
                if session.retry { " with retry" } else { "" }
            ));
        }
        Set::Promisc { port, state } => {
            for n in session.named(port) {
                promiscuous(session, n, state == Switch::On);
            }
        }
        Set::Burst { packets } => burst(session, packets),
        Set::Nbcore { cores } => cores_for(session, cores),
        Set::Txpkts { length } => length_of(session, length),
        Set::EthPeer { port, mac } => {
            if session.state(port).is_none() {
                session
                    .screen
                    .line(format!("Error: Invalid port number {port}"));
                return;
            }
            session.settings.peers.push(EthPeer { port, mac });
        }
        Set::Verbose { level } => {
            session.screen.line(format!(
                "Change verbose level from {} to {level}",
                session.verbose
            ));
            session.verbose = level;
        }
        Set::RecordCoreCycles { state } => {
            session.settings.record_core_cycles = state == Switch::On;
        }
    }
}

fn promiscuous(session: &mut Session, number: u16, on: bool) {
    let Some(state) = session.state(number) else {
        return;
    };
    let started = state.status == Status::Started;
    let done = session
        .port(number)
        .filter(|_| started)
        .map(|p| p.set_promiscuous(on));
    if let Some(Err(e)) = done {
        session.screen.line(format!(
            "Error during {} promiscuous mode for port {number}: {e} - ignore",
            if on { "enabling" } else { "disabling" }
        ));
        return;
    }
    if let Some(state) = session.state(number) {
        state.wanted.promiscuous = on;
    }
}

/// `set burst` and `port config all burst`.
pub fn burst(session: &mut Session, packets: u32) {
    let n = packets as usize;
    if n > MAX_BURST {
        session.screen.line(format!(
            "nb pkt per burst: {n} > {MAX_BURST} (maximum packet per burst)  ignored"
        ));
    } else if n == 0 {
        session.screen.line(format!(
            "nb pkt per burst: 0 < 1 (give 1 to {MAX_BURST})  ignored"
        ));
    } else {
        session.settings.burst = n;
        session
            .screen
            .line(format!("Number of packets per burst set to {n}"));
    }
}

fn cores_for(session: &mut Session, cores: u32) {
    let (n, most) = (cores as usize, session.settings.cpus.len());
    if session.forwarding.is_some() {
        session.screen.line("Please stop forwarding first");
    } else if n > most {
        session.screen.line(format!(
            "nb fwd cores {n} > {most} (max. number of configured lcores) - ignored"
        ));
    } else if n == 0 {
        session
            .screen
            .line(format!("nb fwd cores 0 < 1 (give 1 to {most}) - ignored"));
    } else {
        session.settings.nb_cores = n;
        session
            .screen
            .line(format!("Number of forwarding cores set to {n}"));
    }
}

fn length_of(session: &mut Session, length: u32) {
    let most = session.settings.config.memory.data_room;
    if (SHORTEST..=most).contains(&(length as usize)) {
        session.settings.tx_length = length as usize;
    } else {
        session.screen.line(format!(
            "packet length {length} is not between {SHORTEST} (headers) and {most} (a buffer) - ignored"
        ));
    }
}
