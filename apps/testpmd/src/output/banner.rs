//! What forwarding will do: printed at `start` and by `show config fwd`.

use std::fmt;

use super::Mac;

/// One stream's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamLine {
    /// Port and queue received from.
    pub rx: (u16, u16),
    /// NUMA node of that port.
    pub rx_socket: i32,
    /// Port and queue sent to.
    pub tx: (u16, u16),
    /// NUMA node of that port.
    pub tx_socket: i32,
    /// Destination that the modes `mac` and `txonly` write.
    pub peer: Mac,
}

/// One forwarding core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreLines {
    /// CPU number.
    pub cpu: usize,
    /// Its NUMA node.
    pub socket: i32,
    /// The CPU also runs the emulator's data thread, so the core yields.
    pub yields: bool,
    /// Its streams.
    pub streams: Vec<StreamLine>,
}

/// Retry of packets that a full transmit queue refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Tries at most.
    pub count: u32,
    /// Time between two tries.
    pub delay_us: u32,
}

/// The block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Banner {
    /// The forwarding mode's name.
    pub mode: &'static str,
    /// Present in the `retry` variant.
    pub retry: Option<Retry>,
    /// Ports that take part.
    pub ports: usize,
    /// The cores.
    pub cores: Vec<CoreLines>,
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams: usize = self.cores.iter().map(|c| c.streams.len()).sum();
        writeln!(
            f,
            "{} packet forwarding{} - ports={} - cores={} - streams={streams} - NUMA support enabled, MP allocation mode: native",
            self.mode,
            if self.retry.is_some() {
                " with retry"
            } else {
                ""
            },
            self.ports,
            self.cores.len()
        )?;
        if let Some(r) = self.retry {
            writeln!(
                f,
                "TX retry num: {}, delay between TX retries: {}us",
                r.count, r.delay_us
            )?;
        }
        for c in &self.cores {
            write!(
                f,
                "Logical Core {} (socket {}) forwards packets on {} streams:",
                c.cpu,
                c.socket,
                c.streams.len()
            )?;
            for s in &c.streams {
                write!(
                    f,
                    "\n  RX P={}/Q={} (socket {}) -> TX P={}/Q={} (socket {}) peer={}",
                    s.rx.0, s.rx.1, s.rx_socket, s.tx.0, s.tx.1, s.tx_socket, s.peer
                )?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        for c in self.cores.iter().filter(|c| c.yields) {
            writeln!(
                f,
                "Logical Core {} shares its CPU with the emulator: it yields when it finds nothing to receive, so rates and poll gaps are those of a shared CPU\n",
                c.cpu
            )?;
        }
        Ok(())
    }
}
