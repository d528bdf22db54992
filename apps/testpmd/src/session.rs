//! The state that commands work on: ports, and what is configured for the next start.
//!
//! Lives on the shell's thread. Forwarding cores own their queues while they run and
//! bring them back when they stop ([`crate::forwarding`]); between runs the queues rest
//! here, by port. A port that stops or closes drops them first.

use std::time::{Duration, Instant};

use pollux::{Pollux, Port, PortSettings, RxQueue, TxQueue};
use pollux_mempool::lcore::allowed_cpus;

use crate::forwarding::{Forwarding, Snapshot};
use crate::output::Mac;
use crate::output::device::{DeviceBlock, FunctionLine, MemoryLine};
use crate::output::nic::{Meter, NicStats};
use crate::report::Report;
use crate::screen::Screen;
use crate::settings::{BadSetting, Settings};

/// How long a link may take to come up after a port was started.
const LINK_PATIENCE: Duration = Duration::from_secs(9);
/// Between two looks at it.
const LINK_INTERVAL: Duration = Duration::from_millis(20);

/// Where a port is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Configured or to be configured at its next start.
    Stopped,
    /// Its queues exist.
    Started,
    /// Gone for this run.
    Closed,
}

/// What the shell keeps of a port.
#[derive(Debug)]
pub struct PortState {
    /// Its number.
    pub number: u16,
    /// Where it is in its life.
    pub status: Status,
    /// What its next start uses.
    pub wanted: PortSettings,
    /// Receive queues that rest; a slot is empty while its queue is with a core.
    pub rx: Vec<Option<RxQueue>>,
    /// Transmit queues, likewise.
    pub tx: Vec<Option<TxQueue>>,
    /// Counters when forwarding started or its statistics were cleared.
    pub base: NicStats,
    /// For rates.
    pub meter: Meter,
}

impl PortState {
    fn drop_queues(&mut self) {
        self.rx.clear();
        self.tx.clear();
    }
}

/// What goes on after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// The next command.
    Continue,
    /// The end.
    Quit,
}

/// Everything that commands work on.
#[derive(Debug)]
pub struct Session {
    /// The driver.
    pub pollux: Pollux,
    /// What was asked for, changed by commands.
    pub settings: Settings,
    /// The `retry` variant is chosen.
    pub retry: bool,
    /// Level of `set verbose`.
    pub verbose: u32,
    /// All ports, closed ones too.
    pub ports: Vec<PortState>,
    /// The run that goes on.
    pub forwarding: Option<Forwarding>,
    /// What the last run did.
    pub last: Snapshot,
    /// What becomes the report.
    pub report: Report,
    /// Where answers go.
    pub screen: Screen,
}

impl Session {
    /// Opens the devices; ports are not started yet.
    ///
    /// # Errors
    /// Whatever the driver meets, or a limit on memory.
    pub fn open(settings: Settings, screen: Screen) -> anyhow::Result<Self> {
        let pollux = Pollux::open(&settings.config)?;
        memory_limits(&pollux, &settings.socket_mem)?;
        let ports = pollux
            .ports()
            .iter()
            .map(|p| PortState {
                number: p.info().number,
                status: Status::Stopped,
                wanted: p.settings().clone(),
                rx: Vec::new(),
                tx: Vec::new(),
                base: NicStats::default(),
                meter: Meter::default(),
            })
            .collect();
        let mut session = Self {
            pollux,
            settings,
            retry: false,
            verbose: 0,
            ports,
            forwarding: None,
            last: Snapshot::default(),
            report: Report::default(),
            screen,
        };
        let block = session.device_block();
        let devices = session.device_strings();
        session.report.describe(&devices, &block);
        Ok(session)
    }

    /// The device strings, the default one included.
    pub fn device_strings(&self) -> Vec<String> {
        match self.settings.config.devices.as_slice() {
            [] => vec!["emu:".into()],
            given => given.to_vec(),
        }
    }

    /// Memory and devices, for the banner.
    pub fn device_block(&self) -> DeviceBlock {
        DeviceBlock {
            device: self.device_strings().join(" "),
            memory: self
                .pollux
                .memory()
                .iter()
                .map(|m| MemoryLine {
                    pool: m.name.clone(),
                    mbufs: m.buffers,
                    mbuf_size: m.buffer_bytes,
                    bytes: m.bytes as u64,
                    page: m.page_size.bytes() as u64,
                    node: node_number(m.node),
                })
                .collect(),
            functions: self
                .pollux
                .ports()
                .iter()
                .map(|p| FunctionLine {
                    port: p.info().number,
                    model: p.info().model.to_owned(),
                    firmware: p.info().firmware.to_string(),
                    mac: Mac(p.mac().0),
                    emulated: p.info().identity.emulated,
                    node: node_number(p.info().node),
                })
                .collect(),
        }
    }

    /// Numbers of the ports that are not closed.
    pub fn valid_ports(&self) -> Vec<u16> {
        self.ports
            .iter()
            .filter(|p| p.status != Status::Closed)
            .map(|p| p.number)
            .collect()
    }

    /// The shell's part of a port that is not closed.
    pub fn state(&mut self, number: u16) -> Option<&mut PortState> {
        self.ports
            .iter_mut()
            .find(|p| p.number == number && p.status != Status::Closed)
    }

    /// The driver's part.
    pub fn port(&self, number: u16) -> Option<&Port> {
        self.pollux
            .ports()
            .iter()
            .find(|p| p.info().number == number)
    }

    /// A core on this CPU keeps the emulator from working.
    pub fn shares(&self, cpu: usize) -> bool {
        self.pollux
            .emulator()
            .is_some_and(|e| e.cpu().map_or(allowed_cpus().len() < 2, |c| c == cpu))
    }

    /// A port's counters; what cannot be had is 0, and said.
    pub fn nic_stats(&mut self, number: u16) -> NicStats {
        match self.port(number).map(Port::stats) {
            Some(Ok(s)) => NicStats {
                rx_packets: s.ipackets,
                rx_missed: s.imissed,
                rx_bytes: s.ibytes,
                rx_errors: s.ierrors,
                rx_nombuf: s.rx_nombuf,
                tx_packets: s.opackets,
                tx_errors: s.oerrors,
                tx_bytes: s.obytes,
            },
            Some(Err(e)) => {
                self.screen
                    .line(format!("Error: failed to get stats (port {number}): {e}"));
                NicStats::default()
            }
            None => NicStats::default(),
        }
    }

    /// Starts one stopped port and takes its queues.
    ///
    /// # Errors
    /// What the driver says; the port is stopped as before, and a second try says the same.
    pub fn start_port(&mut self, number: u16) -> Result<(), pollux::Error> {
        let Some(at) = self.ports.iter().position(|p| p.number == number) else {
            return Ok(());
        };
        let (Some(port), Some(state)) = (self.pollux.ports().get(at), self.ports.get_mut(at))
        else {
            return Ok(());
        };
        port.start_with(&state.wanted)?;
        if let Err(e) = take_queues(port, state) {
            state.drop_queues();
            // The first error is the one to tell.
            drop(port.stop());
            return Err(e);
        }
        state.status = Status::Started;
        Ok(())
    }

    /// Stops one started port.
    ///
    /// # Errors
    /// What firmware refused; the port is stopped all the same.
    pub fn stop_port(&mut self, number: u16) -> Result<(), pollux::Error> {
        let Some(at) = self.ports.iter().position(|p| p.number == number) else {
            return Ok(());
        };
        if let Some(state) = self.ports.get_mut(at) {
            state.drop_queues();
            state.status = Status::Stopped;
        }
        self.pollux.ports().get(at).map_or(Ok(()), Port::stop)
    }

    /// Waits until the links of all started ports are up, some seconds at most.
    pub fn wait_for_links(&mut self) {
        self.screen.line("Checking link statuses...");
        self.screen.flush();
        let deadline = Instant::now() + LINK_PATIENCE;
        let all_up = |s: &Self| {
            s.ports
                .iter()
                .zip(s.pollux.ports())
                .filter(|(state, _)| state.status == Status::Started)
                .all(|(_, port)| port.link().up == Some(true))
        };
        while !all_up(self) && Instant::now() < deadline {
            std::thread::sleep(LINK_INTERVAL);
        }
        for line in self.links_down() {
            self.screen.line(line);
        }
    }
}

impl Session {
    /// A line for each started port without link, with the reason as far as the port says it.
    fn links_down(&self) -> Vec<String> {
        self.ports
            .iter()
            .zip(self.pollux.ports())
            .filter(|(state, port)| {
                state.status == Status::Started && port.link().up != Some(true)
            })
            .map(|(state, port)| {
                let reason = match port.link_trouble() {
                    Ok(Some(trouble)) => trouble.to_string(),
                    Ok(None) => "no cable, no module, or the other end is off".to_owned(),
                    Err(e) => e.to_string(),
                };
                format!(
                    "Port {}: link down: {reason}. It starts all the same; what it sends before the link comes is lost",
                    state.number
                )
            })
            .collect()
    }
}

fn take_queues(port: &Port, state: &mut PortState) -> Result<(), pollux::Error> {
    state.rx = (0..state.wanted.rx_queues)
        .map(|q| port.take_rx(q).map(Some))
        .collect::<Result<_, _>>()?;
    state.tx = (0..state.wanted.tx_queues)
        .map(|q| port.take_tx(q).map(Some))
        .collect::<Result<_, _>>()?;
    Ok(())
}

/// A node as the output shows it; a machine that does not say has one, number 0.
pub fn node_number(node: Option<pollux::NodeId>) -> i32 {
    node.map_or(0, |n| i32::try_from(n.0).unwrap_or(i32::MAX))
}

/// `--socket-mem`: buffers may take so much of each node.
fn memory_limits(pollux: &Pollux, limits: &[u64]) -> Result<(), BadSetting> {
    for (node, limit) in limits.iter().enumerate().filter(|(_, mib)| **mib > 0) {
        let on_node = |m: &&pollux::PoolSummary| node_number(m.node) as usize == node;
        let bytes: usize = pollux
            .memory()
            .iter()
            .filter(on_node)
            .map(|m| m.bytes)
            .sum();
        let mib = (bytes as u64).div_ceil(1 << 20);
        if mib > *limit {
            return Err(BadSetting(format!(
                "--socket-mem: node {node} may give {limit} MiB, but the buffers take {mib}; raise it or lower --total-num-mbufs"
            )));
        }
    }
    Ok(())
}
