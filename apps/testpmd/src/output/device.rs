//! Where the memory came from and what the device is: printed once, before the ports
//! are set up.

use std::fmt;

use super::Mac;

/// The buffers' memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryLine {
    /// Pool's name.
    pub pool: String,
    /// Buffers.
    pub mbufs: usize,
    /// Bytes of data per buffer, headroom included.
    pub mbuf_size: usize,
    /// Bytes mapped.
    pub bytes: u64,
    /// Page size in bytes.
    pub page: u64,
    /// NUMA node asked for.
    pub node: i32,
}

/// One function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionLine {
    /// The port's number.
    pub port: u16,
    /// Model, e.g. `ConnectX-6 Dx`.
    pub model: String,
    /// Firmware version.
    pub firmware: String,
    /// The address.
    pub mac: Mac,
    /// The device is software.
    pub emulated: bool,
    /// NUMA node of the device.
    pub node: i32,
}

/// The block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceBlock {
    /// The device string.
    pub device: String,
    /// One line per pool.
    pub memory: Vec<MemoryLine>,
    /// One line per function.
    pub functions: Vec<FunctionLine>,
}

impl fmt::Display for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for m in &self.memory {
            writeln!(
                f,
                "memory: pool {}: {} mbufs of {} bytes, {} on {} pages, NUMA node {}",
                m.pool,
                m.mbufs,
                m.mbuf_size,
                size_text(m.bytes),
                size_text(m.page),
                m.node
            )?;
        }
        let emulated = self.functions.iter().any(|x| x.emulated);
        writeln!(
            f,
            "device: {}{} with {} function{}",
            if emulated { "EMULATED " } else { "" },
            self.device,
            self.functions.len(),
            if self.functions.len() == 1 { "" } else { "s" }
        )?;
        for x in &self.functions {
            writeln!(
                f,
                "  port {}: {}{}, firmware {}, MAC {}, NUMA node {}",
                x.port,
                if x.emulated { "EMULATED " } else { "" },
                x.model,
                x.firmware,
                x.mac,
                x.node
            )?;
        }
        Ok(())
    }
}

/// Bytes in the largest unit that divides them evenly.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, unit) in UNITS {
        if bytes >= unit && bytes % unit == 0 {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}
