//! Text that users and their tools read.
//!
//! Each block is a plain struct with a `Display`: no block asks a device anything, so
//! each is tested byte for byte against the format that tools parse. A block ends with
//! its last newline and starts with the empty line that the format puts before it.
//!
//! Lifecycle: built by a command, printed once. Any thread may build one.

pub mod banner;
pub mod device;
pub mod forward;
pub mod fw_pages;
pub mod gaps;
pub mod nic;
pub mod port_info;
pub mod rxtx;
pub mod summary;
pub mod xstats;

use std::fmt;

/// A MAC address as six upper-case pairs, colons between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

/// A link speed in Mbit/s in the words of the format; `None` when the device did not say.
pub fn speed_text(mbps: Option<u32>) -> String {
    match mbps {
        None => "Unknown".into(),
        Some(0) => "None".into(),
        Some(2500) => "2.5 Gbps".into(),
        Some(m) if m % 1000 == 0 => format!("{} Gbps", m / 1000),
        Some(m) => format!("{m} Mbps"),
    }
}

/// `up` or `down`; a state that the device did not tell counts as down.
pub(crate) fn link_text(up: Option<bool>) -> &'static str {
    if up == Some(true) { "up" } else { "down" }
}
