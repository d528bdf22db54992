//! One line per port.

use std::fmt;

use super::{Mac, link_text, speed_text};

/// One port's line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SummaryLine {
    /// The port's number.
    pub port: u16,
    /// Its address.
    pub mac: Mac,
    /// The device's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// Link state; `None` when the device did not tell.
    pub link_up: Option<bool>,
    /// Link speed in Mbit/s.
    pub speed_mbps: Option<u32>,
}

/// The table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// How many ports there are (the lines may be fewer).
    pub available: usize,
    /// The lines.
    pub ports: Vec<SummaryLine>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Number of available ports: {}", self.available)?;
        writeln!(
            f,
            "{:<4} {:<17} {:<12} {:<14} {:<8} Link",
            "Port", "MAC Address", "Name", "Driver", "Status"
        )?;
        for p in &self.ports {
            writeln!(
                f,
                "{:<4} {} {:<12} {:<14} {:<8} {}",
                p.port,
                p.mac,
                p.name,
                p.driver,
                link_text(p.link_up),
                speed_text(p.speed_mbps)
            )?;
        }
        Ok(())
    }
}
