//! Queues and bursts: printed at `start` and by `show config rxtx`.

use std::fmt;

/// One port's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortQueues {
    /// The port's number.
    pub port: u16,
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors per receive queue.
    pub rx_descriptors: u32,
    /// Descriptors per transmit queue.
    pub tx_descriptors: u32,
}

/// The block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RxTx {
    /// The forwarding mode's name.
    pub mode: &'static str,
    /// The mode retries.
    pub retry: bool,
    /// Packets per burst.
    pub burst: usize,
    /// Length of the packets that the mode makes itself.
    pub packet_length: Option<u32>,
    /// Cores chosen for forwarding.
    pub cores: usize,
    /// Ports that forward.
    pub forwarding_ports: usize,
    /// All ports.
    pub ports: Vec<PortQueues>,
}

impl fmt::Display for RxTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {} packet forwarding{} packets/burst={}",
            self.mode,
            if self.retry { " with retry" } else { "" },
            self.burst
        )?;
        if let Some(length) = self.packet_length {
            writeln!(f, "  packet len={length} - nb packet segments=1")?;
        }
        writeln!(
            f,
            "  nb forwarding cores={} - nb forwarding ports={}",
            self.cores, self.forwarding_ports
        )?;
        for p in &self.ports {
            writeln!(
                f,
                "  port {}: RX queue number: {} Tx queue number: {}",
                p.port, p.rx_queues, p.tx_queues
            )?;
            writeln!(f, "    Rx offloads=0x0 Tx offloads=0x0")?;
            writeln!(f, "    RX queue: 0")?;
            writeln!(
                f,
                "      RX desc={} - RX free threshold=0",
                p.rx_descriptors
            )?;
            writeln!(
                f,
                "      RX threshold registers: pthresh=0 hthresh=0  wthresh=0"
            )?;
            writeln!(f, "      RX Offloads=0x0")?;
            writeln!(f, "    TX queue: 0")?;
            writeln!(
                f,
                "      TX desc={} - TX free threshold=0",
                p.tx_descriptors
            )?;
            writeln!(
                f,
                "      TX threshold registers: pthresh=0 hthresh=0  wthresh=0"
            )?;
            writeln!(f, "      TX offloads=0x0 - TX RS bit threshold=0")?;
        }
        Ok(())
    }
}
