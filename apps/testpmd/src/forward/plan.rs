//! Which streams there are, and which core serves them: as DPDK's users expect it.

use crate::args::options::{ForwardMode, Topology};

/// One stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamPlan {
    /// Port and queue received from.
    pub rx: (u16, u16),
    /// Port and queue sent to.
    pub tx: (u16, u16),
}

/// One core's streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorePlan {
    /// CPU number.
    pub cpu: usize,
    /// Its streams, in polling order.
    pub streams: Vec<StreamPlan>,
}

/// What is asked of [`plan`].
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Ports that take part, in order.
    pub ports: &'a [u16],
    /// Receive queues per port.
    pub rx_queues: u16,
    /// Transmit queues per port.
    pub tx_queues: u16,
    /// Which port's packets leave by which.
    pub topology: Topology,
    /// The mode: some use one side only.
    pub mode: ForwardMode,
    /// CPUs for forwarding; no more are used than there are streams.
    pub cpus: &'a [usize],
}

/// The plan and what the user should know about it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Cores that have work.
    pub cores: Vec<CorePlan>,
    /// One line each.
    pub warnings: Vec<String>,
}

impl Plan {
    /// All streams, core after core: the order in which statistics show them.
    pub fn streams(&self) -> impl Iterator<Item = &StreamPlan> {
        self.cores.iter().flat_map(|c| &c.streams)
    }
}

/// Makes the plan. Streams go queue by queue over all ports; cores get equal shares of
/// consecutive streams, the last cores one more where it does not divide evenly.
pub fn plan(r: &Request<'_>) -> Plan {
    let mut warnings = Vec::new();
    let queues = match r.mode {
        ForwardMode::Rxonly => r.rx_queues,
        ForwardMode::Txonly => r.tx_queues,
        _ => r.rx_queues.min(r.tx_queues),
    };
    if r.mode.receives() && queues < r.rx_queues {
        warnings.push(format!(
            "Warning! rxq={} but txq={}: receive queues from {queues} on are not polled, and what RSS steers there is lost; give as many of both",
            r.rx_queues, r.tx_queues
        ));
    }
    let n = r.ports.len();
    if r.topology == Topology::Paired && n % 2 == 1 && r.mode.sends() && r.mode.receives() {
        warnings.push(
            "Warning! port-topology=paired and odd forward ports number, the last port will pair with itself."
                .into(),
        );
    }
    let peer_of = |i: usize| match r.topology {
        Topology::Paired if i % 2 == 1 => i - 1,
        Topology::Paired if i + 1 < n => i + 1,
        Topology::Chained => (i + 1) % n,
        Topology::Paired | Topology::Loop => i,
    };
    let port = |i: usize| r.ports.get(i).copied().unwrap_or_default();
    let streams: Vec<StreamPlan> = (0..queues)
        .flat_map(|q| (0..n).map(move |i| (q, i)))
        .map(|(q, i)| StreamPlan {
            rx: (port(i), q.min(r.rx_queues.saturating_sub(1))),
            tx: (port(peer_of(i)), q.min(r.tx_queues.saturating_sub(1))),
        })
        .collect();
    Plan {
        cores: deal(&streams, r.cpus),
        warnings,
    }
}

fn deal(streams: &[StreamPlan], cpus: &[usize]) -> Vec<CorePlan> {
    let cores = cpus.len().min(streams.len());
    if cores == 0 {
        return Vec::new();
    }
    let (share, extra) = (streams.len() / cores, streams.len() % cores);
    let mut rest = streams;
    cpus.iter()
        .take(cores)
        .enumerate()
        .map(|(i, cpu)| {
            let own = share + usize::from(i >= cores - extra);
            let (mine, others) = rest.split_at(own.min(rest.len()));
            rest = others;
            CorePlan {
                cpu: *cpu,
                streams: mine.to_vec(),
            }
        })
        .collect()
}
