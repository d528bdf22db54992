//! `port`.

use pollux::PortSettings;

use crate::grammar::{Port, PortConfig, PortConfigAll, Ports};
use crate::session::{Session, Status, node_number};
use crate::settings::fits_buffers;

/// Runs it.
pub fn run(session: &mut Session, what: Port) {
    match what {
        Port::Start { port } => {
            // The answer is on the screen; only at program start is a failure the end.
            drop(start(session, port));
        }
        Port::Stop { port } => stop(session, port),
        Port::Close { port } => close(session, port),
        Port::Config(PortConfig::Mtu { port, value }) => mtu(session, port, value as usize),
        Port::Config(PortConfig::All(what)) => config_all(session, what),
    }
}

/// Starts all ports.
///
/// # Errors
/// The first port that does not start; it was said on the screen, too.
pub fn start_all(session: &mut Session) -> Result<(), pollux::Error> {
    start(session, Ports::All)
}

fn start(session: &mut Session, which: Ports) -> Result<(), pollux::Error> {
    let mut any = false;
    for n in session.named(which) {
        let Some(state) = session.state(n) else {
            continue;
        };
        if state.status != Status::Stopped {
            session.screen.line(format!("Port {n} is now not stopped"));
            continue;
        }
        let socket = session.port(n).map_or(0, |p| node_number(p.info().node));
        session
            .screen
            .line(format!("Configuring Port {n} (socket {socket})"));
        if let Err(e) = session.start_port(n) {
            session.screen.line(format!("Fail to start port {n}: {e}"));
            return Err(e);
        }
        let mac = session.port(n).map(|p| p.mac().to_string());
        session
            .screen
            .line(format!("Port {n}: {}", mac.unwrap_or_default()));
        any = true;
    }
    if any && !session.settings.disable_link_check {
        session.wait_for_links();
    }
    session.screen.line("Done");
    Ok(())
}

fn stop(session: &mut Session, which: Ports) {
    let numbers = session.named(which);
    if numbers.is_empty() && which != Ports::All {
        return;
    }
    session.screen.line("Stopping ports...");
    let mut any = false;
    for n in numbers {
        if forwards(session, n) {
            session.screen.line(format!(
                "Please remove port {n} from forwarding configuration."
            ));
            continue;
        }
        if session.state(n).is_none_or(|s| s.status != Status::Started) {
            continue;
        }
        if let Err(e) = session.stop_port(n) {
            session.screen.line(format!("Port {n}: {e}"));
        }
        any = true;
    }
    if any && !session.settings.disable_link_check {
        session.screen.line("Checking link statuses...");
    }
    session.screen.line("Done");
}

fn forwards(session: &Session, number: u16) -> bool {
    session
        .forwarding
        .as_ref()
        .is_some_and(|f| f.ports.contains(&number))
}

fn close(session: &mut Session, which: Ports) {
    let numbers = session.named(which);
    if numbers.is_empty() && which != Ports::All {
        return;
    }
    session.screen.line("Closing ports...");
    for n in numbers {
        if forwards(session, n) {
            session.screen.line(format!(
                "Please remove port {n} from forwarding configuration."
            ));
            continue;
        }
        if session
            .state(n)
            .is_some_and(|s| s.status == Status::Started)
        {
            session.screen.line(format!("Please stop port {n} first"));
            continue;
        }
        let closed = session.port(n).map(pollux::Port::close);
        if let Some(state) = session.state(n) {
            state.status = Status::Closed;
        }
        if let Some(Err(e)) = &closed {
            session.screen.line(format!("Port {n}: {e}"));
        }
        session.screen.line(format!("Port {n} is closed"));
    }
    session.screen.line("Done");
}

fn mtu(session: &mut Session, number: u16, value: usize) {
    if session.named(Ports::One(number)).is_empty() {
        return;
    }
    let Some(port) = session.port(number) else {
        return;
    };
    let (max, data_room) = (port.info().max_mtu, port.pool().data_room());
    const MIN: usize = 68;
    if value < MIN {
        session.screen.line(format!(
            "MTU ({value}) < device min MTU ({MIN}) for port_id {number}"
        ));
        return;
    }
    if value > max {
        session.screen.line(format!(
            "MTU ({value}) > device max MTU ({max}) for port_id {number}"
        ));
        return;
    }
    if let Err(e) = fits_buffers(value, data_room) {
        session.screen.line(format!("Set MTU failed. {e}"));
        return;
    }
    match session.state(number).map(|s| s.status) {
        Some(Status::Started) => {
            session
                .screen
                .line(format!("Set MTU failed. Please stop port {number} first"));
        }
        Some(Status::Stopped) => {
            if let Some(Err(e)) = session.port(number).map(|p| p.set_mtu(value)) {
                session.screen.line(format!("Set MTU failed. {e}"));
            } else if let Some(state) = session.state(number) {
                state.wanted.mtu = Some(value);
            }
        }
        _ => {}
    }
}

fn config_all(session: &mut Session, what: PortConfigAll) {
    if let PortConfigAll::Burst { value } = what {
        return super::set::burst(session, value);
    }
    if session.ports.iter().any(|p| p.status == Status::Started) {
        session.screen.line("Please stop all ports first");
        return;
    }
    let change: Box<dyn Fn(&mut PortSettings)> = match what.clone() {
        PortConfigAll::Rxq { value } => Box::new(move |p| p.rx_queues = value as usize),
        PortConfigAll::Txq { value } => Box::new(move |p| p.tx_queues = value as usize),
        PortConfigAll::Rxd { value } => Box::new(move |p| p.rx_descriptors = value as usize),
        PortConfigAll::Txd { value } => Box::new(move |p| p.tx_descriptors = value as usize),
        PortConfigAll::Burst { .. } => return,
    };
    // All or none: a number that one port cannot have is no number for the others.
    for number in session.valid_ports() {
        let Some(mut wanted) = session.state(number).map(|s| s.wanted.clone()) else {
            continue;
        };
        change(&mut wanted);
        if let Err(e) = possible(session, number, &what, &wanted) {
            session.screen.line(format!("Warning: {e} - ignored"));
            return;
        }
    }
    for number in session.valid_ports() {
        if let Some(state) = session.state(number) {
            change(&mut state.wanted);
        }
    }
}

/// What can be said of the changed number before the port is started.
fn possible(
    session: &Session,
    number: u16,
    what: &PortConfigAll,
    wanted: &PortSettings,
) -> Result<(), String> {
    let Some(port) = session.port(number) else {
        return Ok(());
    };
    let info = port.info();
    let queues = |what: &str, given: usize, max: usize| {
        if (1..=max).contains(&given) {
            return Ok(());
        }
        Err(format!(
            "{given} {what} queues given, 1 to {max} allowed on port {number}; one per forwarding core is usual"
        ))
    };
    let ring = |what: &str, given: usize, limits: &pollux::Limits| {
        if (limits.min..=limits.max).contains(&given) && given.is_power_of_two() {
            return Ok(());
        }
        Err(format!(
            "{given} {what} descriptors given, powers of two from {limits} allowed on port {number}; 512 is usual"
        ))
    };
    match what {
        PortConfigAll::Rxq { .. } => queues("receive", wanted.rx_queues, info.max_rx_queues),
        PortConfigAll::Txq { .. } => queues("transmit", wanted.tx_queues, info.max_tx_queues),
        PortConfigAll::Rxd { .. } => ring("receive", wanted.rx_descriptors, &info.rx_descriptors),
        PortConfigAll::Txd { .. } => ring("transmit", wanted.tx_descriptors, &info.tx_descriptors),
        PortConfigAll::Burst { .. } => Ok(()),
    }
}
