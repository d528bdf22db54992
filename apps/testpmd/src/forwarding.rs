//! A forwarding run: cores with their streams, from `start` to `stop`.

use std::time::{Duration, Instant};

use pollux::{LcoreHandle, RxQueue, TxQueue};
use pollux_mempool::{Burst, cycles, topology};

use crate::args::options::ForwardMode;
use crate::forward::counters::{Counters, Reading, Shared};
use crate::forward::job::{Done, Job, Mode};
use crate::forward::plan::{CorePlan, Plan, Request, StreamPlan, plan};
use crate::forward::stream::{Pause, Stream, WhenFull};
use crate::forward::txonly::{Txonly, packet};
use crate::forward::verbose::Printer;
use crate::output::Mac;
use crate::output::banner::{Banner, CoreLines, Retry, StreamLine};
use crate::output::forward::{BusyCycles, ForwardReport, PortStats, StreamStats};
use crate::output::gaps::CoreGaps;
use crate::output::rxtx::{PortQueues, RxTx};
use crate::report::Run;
use crate::session::{Session, Status, node_number};
use crate::settings::End;

/// Tries when a transmit queue is full, and the time between two of them.
const RETRY: Retry = Retry {
    count: 64,
    delay_us: 1,
};
/// Where nothing may be lost, a full queue gets about a second.
const PATIENT: Retry = Retry {
    count: 1_000_000,
    delay_us: 1,
};

type Core = LcoreHandle<Done<RxQueue, TxQueue>>;

/// The run that goes on.
#[derive(Debug)]
pub struct Forwarding {
    /// What it does.
    pub mode: ForwardMode,
    /// Its ports.
    pub ports: Vec<u16>,
    cores: Vec<Core>,
    streams: Vec<Running>,
    timed: bool,
    started: Instant,
    printer: Option<Printer>,
}

#[derive(Debug)]
struct Running {
    plan: StreamPlan,
    counters: Shared,
    base: Reading,
}

/// What streams did, of a run that goes on or of the last one.
#[derive(Clone, Default, Debug)]
pub struct Snapshot {
    mode: ForwardMode,
    ports: Vec<u16>,
    readings: Vec<(StreamPlan, Reading)>,
}

/// All streams of a run together, since its start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Packets received.
    pub rx: u64,
    /// Packets sent.
    pub tx: u64,
    /// Packets dropped for want of room in transmit queues.
    pub dropped: u64,
}

impl Forwarding {
    /// What moved since the run started.
    pub fn totals(&self) -> Totals {
        self.streams.iter().fold(Totals::default(), |sum, s| {
            let r = s.counters.read();
            Totals {
                rx: sum.rx + r.rx,
                tx: sum.tx + r.tx,
                dropped: sum.dropped + r.dropped,
            }
        })
    }

    /// A core ended by itself, which it never should.
    pub fn broken(&self) -> bool {
        self.cores.iter().any(LcoreHandle::is_finished)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            mode: self.mode,
            ports: self.ports.clone(),
            readings: self
                .streams
                .iter()
                .map(|s| (s.plan, s.counters.read().since(&s.base)))
                .collect(),
        }
    }

    /// From the first packet to the last, when turns were timed.
    fn moving(&self) -> Option<Duration> {
        let readings = || self.streams.iter().map(|s| s.counters.read());
        let first = readings().map(|r| r.first).filter(|c| *c > 0).min()?;
        let last = readings().map(|r| r.last).max()?;
        Some(cycles::to_duration(last.saturating_sub(first)))
    }
}

impl Session {
    /// What retry means for the next run.
    fn retrying(&self) -> Option<Retry> {
        if self.retry {
            Some(RETRY)
        } else if self.settings.end == End::Drained {
            Some(PATIENT)
        } else {
            None
        }
    }

    /// Which core does what at the next start.
    pub fn plan(&self) -> Plan {
        let ports = self.valid_ports();
        // Ports share their numbers of queues; a port of an earlier number would be
        // restarted first.
        let wanted = |f: fn(&pollux::PortSettings) -> usize| {
            let least = self
                .ports
                .iter()
                .filter(|p| p.status != Status::Closed)
                .map(|p| f(&p.wanted))
                .min();
            u16::try_from(least.unwrap_or(0)).unwrap_or(u16::MAX)
        };
        let cores = self.settings.cpus.len().min(self.settings.nb_cores);
        plan(&Request {
            ports: &ports,
            rx_queues: wanted(|p| p.rx_queues),
            tx_queues: wanted(|p| p.tx_queues),
            topology: self.settings.topology,
            mode: self.settings.mode,
            cpus: self.settings.cpus.get(..cores).unwrap_or(&[]),
        })
    }

    /// The address of a port's neighbour.
    pub fn peer(&self, port: u16) -> Mac {
        let [high, low] = port.to_be_bytes();
        self.settings
            .peers
            .iter()
            .rev()
            .find(|p| p.port == port)
            .map_or(Mac([2, 0, 0, 0, high, low]), |p| p.mac)
    }

    /// The block of `show config fwd`.
    pub fn banner(&self, plan: &Plan) -> Banner {
        let topology = topology::current();
        let socket = |port: u16| self.port(port).map_or(0, |p| node_number(p.info().node));
        Banner {
            mode: self.settings.mode.name(),
            retry: self.retrying(),
            ports: self.valid_ports().len(),
            cores: plan
                .cores
                .iter()
                .map(|c| CoreLines {
                    cpu: c.cpu,
                    socket: node_number(topology.node_of_cpu(c.cpu)),
                    yields: self.shares(c.cpu),
                    streams: c
                        .streams
                        .iter()
                        .map(|s| StreamLine {
                            rx: s.rx,
                            rx_socket: socket(s.rx.0),
                            tx: s.tx,
                            tx_socket: socket(s.tx.0),
                            peer: self.peer(s.tx.0),
                        })
                        .collect(),
                })
                .collect(),
        }
    }

    /// The block of `show config rxtx`.
    pub fn rxtx(&self) -> RxTx {
        let ports: Vec<PortQueues> = self
            .ports
            .iter()
            .filter(|p| p.status != Status::Closed)
            .map(|p| PortQueues {
                port: p.number,
                rx_queues: p.wanted.rx_queues as u16,
                tx_queues: p.wanted.tx_queues as u16,
                rx_descriptors: p.wanted.rx_descriptors as u32,
                tx_descriptors: p.wanted.tx_descriptors as u32,
            })
            .collect();
        RxTx {
            mode: self.settings.mode.name(),
            retry: self.retrying().is_some(),
            burst: self.settings.burst,
            packet_length: (self.settings.mode == ForwardMode::Txonly)
                .then_some(self.settings.tx_length as u32),
            cores: self.settings.nb_cores,
            forwarding_ports: ports.len(),
            ports,
        }
    }

    /// Starts forwarding, after `first` bursts of made packets. Says what it does, or why
    /// it does not.
    pub fn start_forwarding(&mut self, first: u32) -> bool {
        let ports = self.valid_ports();
        let all_started = self
            .ports
            .iter()
            .all(|p| matches!(p.status, Status::Started | Status::Closed));
        if !all_started || ports.is_empty() {
            self.screen.line("Not all ports were started");
            return false;
        }
        if self.forwarding.is_some() {
            self.screen.line("Packet forwarding already started");
            return false;
        }
        let plan = self.plan();
        for w in &plan.warnings {
            self.screen.line(format!("\n{w}\n"));
        }
        let banner = self.banner(&plan);
        self.screen.text(banner);
        let rxtx = self.rxtx();
        self.screen.text(rxtx);
        self.screen.flush();
        for number in &ports {
            let now = self.nic_stats(*number);
            if let Some(state) = self.state(*number) {
                state.base = now;
            }
        }
        let mode = self.settings.mode;
        let timed = self.settings.poll_gaps || self.settings.record_core_cycles;
        let mut running = Forwarding {
            mode,
            ports,
            cores: Vec::new(),
            streams: Vec::new(),
            timed,
            started: Instant::now(),
            printer: None,
        };
        if self.verbose > 0 {
            match Printer::start(print) {
                Ok(printer) => running.printer = Some(printer),
                Err(e) => self.screen.line(format!("No thread to print packets: {e}")),
            }
        }
        for core in &plan.cores {
            if let Err(e) = self.start_core(core, first, &mut running) {
                self.screen
                    .line(format!("Core {} does not start: {e}", core.cpu));
                self.bring_back(&mut running);
                self.mend_ports();
                return false;
            }
        }
        self.forwarding = Some(running);
        true
    }

    fn start_core(
        &mut self,
        core: &CorePlan,
        first: u32,
        running: &mut Forwarding,
    ) -> Result<(), pollux::Error> {
        let yields = self.shares(core.cpu);
        let streams = core
            .streams
            .iter()
            .map(|s| self.stream(*s, yields, running))
            .collect();
        let pool = core
            .streams
            .first()
            .and_then(|s| self.port(s.rx.0))
            .map(|p| p.pool().clone());
        let made = pool.map(|pool| Txonly { pool });
        let job = Job {
            cpu: core.cpu,
            streams,
            mode: match (self.settings.mode, &made) {
                (ForwardMode::Io, _) => Mode::Io,
                (ForwardMode::Mac, _) => Mode::Mac,
                (ForwardMode::Macswap, _) => Mode::Macswap,
                (ForwardMode::Txonly, Some(made)) => Mode::Txonly(made.clone()),
                (ForwardMode::Rxonly, _) | (ForwardMode::Txonly, None) => Mode::Rxonly,
            },
            first: made.filter(|_| first > 0).map(|made| (first, made)),
            timed: running.timed,
            yields,
        };
        let handle = self
            .pollux
            .spawn(core.cpu, move |lcore| job.run(&|| lcore.running()))?;
        running.cores.push(handle);
        Ok(())
    }

    fn stream(
        &mut self,
        plan: StreamPlan,
        yields: bool,
        running: &mut Forwarding,
    ) -> Stream<RxQueue, TxQueue> {
        let counters = Counters::shared();
        running.streams.push(Running {
            plan,
            counters: counters.clone(),
            base: Reading::default(),
        });
        let peer = self.peer(plan.tx.0).0;
        let own = self.port(plan.tx.0).map_or([0; 6], |p| p.mac().0);
        let mut header = [0; 12];
        header[..6].copy_from_slice(&peer);
        header[6..].copy_from_slice(&own);
        let when_full = self.retrying().map_or(WhenFull::Drop, |r| WhenFull::Retry {
            count: r.count,
            pause: if yields {
                Pause::Yield
            } else {
                Pause::Spin(pauses(r.delay_us))
            },
        });
        let template = packet(peer, own, self.settings.tx_length).into();
        let pool = self.port(plan.rx.0).map_or("", |p| p.pool().name());
        let talk = running
            .printer
            .as_ref()
            .and_then(|p| p.talk(pool, self.verbose));
        let rx = self
            .state(plan.rx.0)
            .and_then(|p| p.rx.get_mut(usize::from(plan.rx.1))?.take());
        let tx = self
            .state(plan.tx.0)
            .and_then(|p| p.tx.get_mut(usize::from(plan.tx.1))?.take());
        Stream {
            plan,
            rx,
            tx,
            burst: Burst::with_capacity(self.settings.burst),
            counters,
            when_full,
            header,
            template,
            talk,
        }
    }

    /// Stops the cores and takes their queues back; returns the gaps they recorded.
    fn bring_back(&mut self, running: &mut Forwarding) -> Vec<CoreGaps> {
        for core in &running.cores {
            core.stop();
        }
        let mut gaps = Vec::new();
        for core in running.cores.drain(..) {
            let cpu = core.cpu();
            match core.join() {
                Ok(done) => {
                    gaps.extend(done.gaps.as_ref().map(|g| CoreGaps {
                        cpu,
                        count: g.gaps,
                        p50: g.p50,
                        p99: g.p99,
                        p999: g.p999,
                        longest: g.longest,
                        lost_ppm: g.lost_ppm,
                        long_gaps: g.long_gaps,
                        observed: g.wall,
                        yields: done.yields,
                    }));
                    for stream in done.streams {
                        self.put_back(stream);
                    }
                }
                Err(e) => self.screen.line(e),
            }
        }
        if let Some(printer) = running.printer.take() {
            printer.finish();
        }
        gaps
    }

    fn put_back(&mut self, stream: Stream<RxQueue, TxQueue>) {
        let Stream { plan, rx, tx, .. } = stream;
        let slot = self
            .state(plan.rx.0)
            .and_then(|p| p.rx.get_mut(usize::from(plan.rx.1)));
        if let (Some(slot), Some(rx)) = (slot, rx) {
            *slot = Some(rx);
        }
        let slot = self
            .state(plan.tx.0)
            .and_then(|p| p.tx.get_mut(usize::from(plan.tx.1)));
        if let (Some(slot), Some(tx)) = (slot, tx) {
            *slot = Some(tx);
        }
    }

    /// Ports whose queues were lost with a core are stopped, so that a start makes new ones.
    fn mend_ports(&mut self) {
        let lost: Vec<u16> = self
            .ports
            .iter()
            .filter(|p| p.status == Status::Started)
            .filter(|p| p.rx.iter().any(Option::is_none) || p.tx.iter().any(Option::is_none))
            .map(|p| p.number)
            .collect();
        for number in lost {
            let stopped = self.stop_port(number);
            self.screen.line(format!(
                "Port {number} has lost queues and was stopped; `port start {number}` makes new ones"
            ));
            if let Err(e) = stopped {
                self.screen.line(e);
            }
        }
    }

    /// The block of `show fwd stats all`: of the run that goes on, or of the last one.
    pub fn forward_report(&mut self) -> ForwardReport {
        if let Some(running) = &self.forwarding {
            self.last = running.snapshot();
        }
        let mut shown = self.last.clone();
        let valid = self.valid_ports();
        if shown.ports.is_empty() {
            shown.ports.clone_from(&valid);
        }
        shown.ports.retain(|p| valid.contains(p));
        self.report_of(&shown)
    }

    fn port_stats(&mut self, number: u16, refused: u64) -> PortStats {
        let now = self.nic_stats(number);
        let base = self.state(number).map(|s| s.base).unwrap_or_default();
        let s = now.since(&base);
        PortStats {
            port: number,
            rx_packets: s.rx_packets,
            rx_missed: s.rx_missed,
            rx_errors: s.rx_errors,
            rx_nombuf: s.rx_nombuf,
            tx_packets: s.tx_packets,
            tx_dropped: refused.saturating_add(s.tx_errors),
        }
    }

    fn report_of(&mut self, shown: &Snapshot) -> ForwardReport {
        let readings = &shown.readings;
        let ports = shown
            .ports
            .iter()
            .map(|port| {
                let refused = readings
                    .iter()
                    .filter(|(plan, _)| plan.tx.0 == *port)
                    .map(|(_, r)| r.dropped)
                    .sum();
                self.port_stats(*port, refused)
            })
            .collect();
        ForwardReport {
            streams: readings
                .iter()
                .map(|(plan, r)| StreamStats {
                    rx: plan.rx,
                    tx: plan.tx,
                    rx_packets: r.rx,
                    tx_packets: r.tx,
                    dropped: r.dropped,
                })
                .collect(),
            ports,
            busy: self.settings.record_core_cycles.then(|| BusyCycles {
                cycles: readings.iter().map(|(_, r)| r.busy).sum(),
                mode: shown.mode.name(),
                sends_only: !shown.mode.receives(),
                mhz: cycles::frequency() / 1_000_000,
            }),
        }
    }

    /// `clear fwd stats all`: from now on.
    pub fn clear_forward_stats(&mut self) {
        for number in self.valid_ports() {
            let now = self.nic_stats(number);
            if let Some(state) = self.state(number) {
                state.base = now;
            }
        }
        for s in self.forwarding.iter_mut().flat_map(|f| &mut f.streams) {
            s.base = s.counters.read();
        }
        self.last.readings.clear();
    }

    /// Stops forwarding and shows what it did; `None` when it was not started.
    pub fn stop_forwarding(&mut self) -> Option<Vec<CoreGaps>> {
        let Some(mut running) = self.forwarding.take() else {
            self.screen.line("Packet forwarding not started");
            return None;
        };
        self.screen.line("Telling cores to stop...");
        self.screen.line("Waiting for lcores to finish...");
        self.screen.flush();
        let gaps = self.bring_back(&mut running);
        let elapsed = running.started.elapsed();
        self.last = running.snapshot();
        let report = self.forward_report();
        self.screen.text(&report);
        self.screen.line("\nDone.");
        let mut run = Run {
            seconds: running.moving().unwrap_or(elapsed).as_secs_f64(),
            poll_gaps: gaps.iter().map(Into::into).collect(),
            ..Run::default()
        };
        run.count(&report);
        run.packets_per_second = if run.seconds > 0.0 {
            run.rx_packets.max(run.tx_packets) as f64 / run.seconds
        } else {
            0.0
        };
        self.report.mode = running.mode.name();
        self.report.burst = self.settings.burst;
        self.report.run = Some(run);
        self.mend_ports();
        Some(gaps)
    }
}

/// Text of a packet, on standard output beside the shell's.
fn print(text: &str) {
    use std::io::Write as _;
    // A reader that went away is noticed by the screen.
    _ = std::io::stdout().write_all(text.as_bytes());
}

/// Pause instructions that take about so many microseconds on this processor. Measured
/// once, before a core needs it: the core itself reads no clock.
fn pauses(us: u32) -> u32 {
    const TRIAL: u32 = 10_000;
    let from = Instant::now();
    for _ in 0..TRIAL {
        std::hint::spin_loop();
    }
    let taken = from.elapsed().as_nanos().max(1);
    let n = u128::from(TRIAL) * u128::from(us) * 1000 / taken;
    u32::try_from(n).unwrap_or(u32::MAX).max(1)
}
