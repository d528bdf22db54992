//! What an application is told: devices, cores, memory and ports; as a value, or as TOML.
//!
//! Every field may be left out. An unknown key is an error with its line and column, so that a
//! misspelt setting is not a silent default. An application that has settings of its own nests a
//! [`Config`] in its own type and reads that with [`read_toml`].

use crate::Error;
use pollux_mempool::pool::{MAX_BUFFER, MAX_CACHE};
use pollux_mempool::{NodeId, PageChoice};
use pollux_mlx5::{OpenOptions, PageOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Device strings (see [`DeviceSpec`](crate::DeviceSpec)); ports are numbered in this order.
    /// None: an emulator, unless adapters wait on vfio-pci.
    pub devices: Vec<String>,
    /// CPUs for lcores. None: the last CPU that this process may use.
    pub lcores: Vec<usize>,
    /// Packet memory.
    pub memory: MemoryConfig,
    /// What every port starts with.
    pub port: PortSettings,
    /// Pages that firmware asks for.
    pub firmware: FirmwareConfig,
}

/// How firmware is waited for, and how its page requests are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FirmwareConfig {
    /// Most pages that one command gives, for firmware that refuses more.
    pub give_limit: u32,
    /// Most pages that one command takes back, for firmware that refuses more.
    pub take_limit: u32,
    /// Milliseconds between two blocks of idle page memory (64 MiB) that are unmapped, which
    /// interrupts every CPU of the process; 0 keeps them all.
    pub release_ms: u64,
    /// Idle page memory in MiB that stays in any case.
    pub pooled_mib: usize,
    /// Milliseconds that firmware may need to leave its initializing state.
    pub start_ms: u64,
}

impl Default for FirmwareConfig {
    fn default() -> Self {
        let plain = PageOptions::default();
        Self {
            give_limit: plain.give_limit,
            take_limit: plain.take_limit,
            release_ms: plain.release_interval.map_or(0, millis),
            pooled_mib: plain.pooled / PAGES_PER_MIB,
            start_ms: millis(OpenOptions::default().init_deadline),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Firmware pages (4 KiB) in a MiB.
const PAGES_PER_MIB: usize = 256;

impl From<&FirmwareConfig> for PageOptions {
    fn from(config: &FirmwareConfig) -> Self {
        Self {
            give_limit: config.give_limit,
            take_limit: config.take_limit,
            release_interval: (config.release_ms > 0)
                .then(|| Duration::from_millis(config.release_ms)),
            pooled: config.pooled_mib.saturating_mul(PAGES_PER_MIB),
            ..Self::default()
        }
    }
}

impl Config {
    /// All of one device's ports, everything else as it is by default.
    pub fn of_device(device: &str) -> Self {
        Self {
            devices: vec![device.into()],
            ..Self::default()
        }
    }
}

/// Packet memory: one pool per NUMA node that has ports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Which pages.
    pub pages: Pages,
    /// The node to be on. None: the node of the port, where the platform says which that is.
    pub node: Option<u32>,
    /// Packet buffers per pool. None: enough for full rings, caches and bursts.
    pub mbufs: Option<usize>,
    /// Bytes for packet data in one buffer, behind the headroom.
    pub data_room: usize,
    /// Bytes kept free before the packet, for headers that the application adds.
    pub headroom: usize,
    /// Buffers that each lcore keeps for itself.
    pub cache: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            pages: Pages::Best,
            node: None,
            mbufs: None,
            data_room: 2048,
            headroom: 128,
            cache: 256,
        }
    }
}

impl MemoryConfig {
    /// The node asked for.
    pub fn node(&self) -> Option<NodeId> {
        self.node.map(NodeId)
    }
}

/// Which pages packet memory is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Pages {
    /// The largest hugepages that are free, else ordinary pages with a warning.
    #[default]
    #[serde(rename = "best")]
    Best,
    /// Ordinary pages.
    #[serde(rename = "ordinary")]
    Ordinary,
    /// 2 MiB hugepages or none.
    #[serde(rename = "2M")]
    Huge2M,
    /// 1 GiB hugepages or none.
    #[serde(rename = "1G")]
    Huge1G,
}

impl From<Pages> for PageChoice {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Best => Self::BestEffort,
            Pages::Ordinary => Self::Ordinary,
            Pages::Huge2M => Self::Huge2M,
            Pages::Huge1G => Self::Huge1G,
        }
    }
}

/// What a port starts with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortSettings {
    /// Receive queues.
    pub rx_queues: usize,
    /// Transmit queues.
    pub tx_queues: usize,
    /// Descriptors of each receive queue; a power of two.
    pub rx_descriptors: usize,
    /// Descriptors of each transmit queue; a power of two.
    pub tx_descriptors: usize,
    /// Largest packet behind the Ethernet header. None: what the device has.
    pub mtu: Option<usize>,
    /// Whether frames for other addresses are received too.
    pub promiscuous: bool,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 512,
            tx_descriptors: 512,
            mtu: None,
            promiscuous: true,
        }
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`Error::ConfigFile`], [`Error::Config`] with line and column, or what
    /// [`check`](Self::check) says.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let config: Self = read_toml(path)?;
        config.check()?;
        Ok(config)
    }

    /// Reads a configuration from text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let config: Self = parse_toml(name, text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what can be known before a device is opened. [`Pollux::open`](crate::Pollux::open)
    /// does it too.
    ///
    /// # Errors
    /// [`Error::Setting`] or [`Error::Device`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        for device in &self.devices {
            crate::DeviceSpec::parse(device)?;
        }
        for (at, cpu) in self.lcores.iter().enumerate() {
            if self.lcores.iter().skip(at + 1).any(|other| other == cpu) {
                return Err(setting(
                    "lcores",
                    format!("{:?}", self.lcores),
                    "each CPU once",
                    format!("remove one {cpu}"),
                ));
            }
        }
        self.memory.check()?;
        self.port.check()
    }
}

impl MemoryConfig {
    fn check(&self) -> Result<(), Error> {
        range(
            "memory.data_room",
            self.data_room,
            64,
            MAX_BUFFER,
            "2048 suits an MTU of 1500",
        )?;
        range("memory.headroom", self.headroom, 0, 4096, "128 is usual")?;
        range(
            "memory.cache",
            self.cache,
            0,
            MAX_CACHE,
            "256 is usual, 0 switches caching off",
        )?;
        let buffer = self.data_room + self.headroom;
        range(
            "memory.data_room + headroom",
            buffer,
            64,
            MAX_BUFFER,
            "make one of them smaller",
        )?;
        if let Some(mbufs) = self.mbufs {
            range(
                "memory.mbufs",
                mbufs,
                64,
                1 << 26,
                "leave it out for a fitting number",
            )?;
        }
        Ok(())
    }
}

impl PortSettings {
    /// Checks what needs no device.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(&self) -> Result<(), Error> {
        // What a device may have; its own limits come when it is opened.
        range(
            "port.rx_queues",
            self.rx_queues,
            0,
            1024,
            "one per lcore is usual",
        )?;
        range(
            "port.tx_queues",
            self.tx_queues,
            0,
            1024,
            "one per lcore is usual",
        )?;
        if self.rx_queues + self.tx_queues == 0 {
            let given = "0 and tx_queues = 0".to_owned();
            return Err(setting(
                "port.rx_queues",
                given,
                "not both",
                "ask for one queue".into(),
            ));
        }
        descriptors("port.rx_descriptors", self.rx_descriptors)?;
        descriptors("port.tx_descriptors", self.tx_descriptors)?;
        if let Some(mtu) = self.mtu {
            range("port.mtu", mtu, 68, 65_535, "1500 is usual")?;
        }
        Ok(())
    }
}

fn setting(what: &'static str, given: String, allowed: &str, remedy: String) -> Error {
    Error::Setting {
        what,
        given,
        allowed: allowed.to_owned(),
        remedy,
    }
}

fn range(
    what: &'static str,
    given: usize,
    min: usize,
    max: usize,
    remedy: &str,
) -> Result<(), Error> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(setting(
        what,
        given.to_string(),
        &format!("{min} to {max}"),
        remedy.to_owned(),
    ))
}

fn descriptors(what: &'static str, given: usize) -> Result<(), Error> {
    range(what, given, 1, 32_768, "512 is usual")?;
    if given.is_power_of_two() {
        return Ok(());
    }
    let above = given.next_power_of_two();
    let remedy = format!("use {} or {above}", above / 2);
    Err(setting(what, given.to_string(), "powers of two", remedy))
}

/// Reads a TOML file of any shape.
///
/// # Errors
/// [`Error::ConfigFile`] or [`Error::Config`].
pub fn read_toml<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T, Error> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|source| Error::ConfigFile {
        file: path.to_owned(),
        source,
    })?;
    parse_toml(&path.display().to_string(), &text)
}

/// Reads TOML text of any shape; `name` stands for the file in messages.
///
/// # Errors
/// [`Error::Config`], with line and column.
pub fn parse_toml<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = position(text, at);
        // A message must stay on one line, whatever was in the file.
        let reason = error.message().trim().replace('\n', "; ");
        Error::Config {
            file: name.to_owned(),
            line,
            column,
            reason,
        }
    })
}

/// Line and column, from 1, of a byte of `text`.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).map_or(0, |rest| rest.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_may_be_left_out() {
        assert_eq!(Config::parse("t", "").unwrap(), Config::default());
        Config::default().check().unwrap();
    }

    #[test]
    fn everything_can_be_said() {
        let text = r#"
            devices = ["emu:ports=2,wire=pair"]
            lcores = [1, 2]
            [memory]
            pages = "2M"
            node = 0
            mbufs = 8192
            data_room = 9216
            headroom = 64
            cache = 32
            [port]
            rx_queues = 2
            tx_queues = 3
            rx_descriptors = 1024
            tx_descriptors = 2048
            mtu = 9000
            promiscuous = false
            [firmware]
            give_limit = 768
            take_limit = 4096
            release_ms = 0
            pooled_mib = 2
            start_ms = 5000
        "#;
        let expected = Config {
            devices: vec!["emu:ports=2,wire=pair".to_owned()],
            lcores: vec![1, 2],
            memory: MemoryConfig {
                pages: Pages::Huge2M,
                node: Some(0),
                mbufs: Some(8192),
                data_room: 9216,
                headroom: 64,
                cache: 32,
            },
            port: PortSettings {
                rx_queues: 2,
                tx_queues: 3,
                rx_descriptors: 1024,
                tx_descriptors: 2048,
                mtu: Some(9000),
                promiscuous: false,
            },
            firmware: FirmwareConfig {
                give_limit: 768,
                take_limit: 4096,
                release_ms: 0,
                pooled_mib: 2,
                start_ms: 5000,
            },
        };
        assert_eq!(Config::parse("t", text).unwrap(), expected);
    }

    #[test]
    fn the_default_is_the_drivers() {
        let plain = PageOptions::from(&FirmwareConfig::default());
        assert_eq!(plain, PageOptions::default());
        let off = FirmwareConfig {
            release_ms: 0,
            ..FirmwareConfig::default()
        };
        assert_eq!(PageOptions::from(&off).release_interval, None);
    }

    #[test]
    fn errors_in_the_text_name_line_and_column() {
        for (text, line, column, words) in [
            ("lcore = [1]", 1, 1, "lcores"),
            ("\n[port]\nrx_queues = 1\n  rxq = 2\n", 4, 3, "rxq"),
            ("[memory]\npages = \"4K\"\n", 2, 9, "ordinary"),
            ("# ü\nlcores = [1, \"two\"]\n", 2, 14, "two"),
            ("lcores = [1\n", 1, 12, "]"),
            ("[ports]\n", 1, 2, "ports"),
            ("[port]\nmtu = -1\n", 2, 7, ""),
        ] {
            let error = Config::parse("my.toml", text).unwrap_err();
            let shown = error.to_string();
            match error {
                Error::Config {
                    line: l, column: c, ..
                } => {
                    assert_eq!((l, c), (line, column), "{shown}");
                }
                other => panic!("{other}"),
            }
            assert!(
                shown.starts_with(&format!("my.toml:{line}:{column}: ")),
                "{shown}"
            );
            assert!(shown.contains(words), "{shown}");
            assert!(!shown.contains('\n'), "{shown}");
        }
    }

    #[test]
    fn values_out_of_range_name_range_and_remedy() {
        for (text, words) in [
            ("lcores = [1, 2, 1]", "remove one 1"),
            ("devices = [\"eth0\"]", "emu:"),
            ("[port]\nrx_descriptors = 1000", "use 512 or 1024"),
            ("[port]\ntx_descriptors = 0", "1 to 32768"),
            ("[port]\nrx_descriptors = 65536", "1 to 32768"),
            ("[port]\nmtu = 67", "68 to 65535"),
            ("[port]\nrx_queues = 2000", "0 to 1024"),
            ("[port]\nrx_queues = 0\ntx_queues = 0", "not both"),
            ("[memory]\ndata_room = 10", "64 to 65535"),
            ("[memory]\ndata_room = 65500", "smaller"),
            ("[memory]\nheadroom = 70000", "0 to 4096"),
            ("[memory]\nmbufs = 1", "leave it out"),
        ] {
            let error = Config::parse("t", text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load("/no/such/pollux.toml")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such/pollux.toml"), "{error}");
    }
}
