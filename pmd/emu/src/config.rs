//! How an emulator is described: configuration structs, and the keys of a device string.
//!
//! A device string is a list of `key=value`. `ports` says how many functions there are; every
//! other key may end in a function's number (`wire1=null`), and without one it holds for all.

use crate::card::{Less, Module, Starting};
use crate::data::IdlePolicy;
use crate::error::EmuError;
use crate::profile::{FirmwareVersion, Model};
use crate::storm::Wave;
use crate::wire::{GenConfig, InterfaceConfig, PcapConfig, WireConfig, WireKind};
use serde::Deserialize;
use std::path::PathBuf;
use std::str::FromStr;

/// Most functions of one emulator.
pub const MAX_FUNCTIONS: usize = 8;
/// Interrupt vectors of a function unless configured otherwise.
pub const DEFAULT_VECTORS: usize = 32;
/// Most interrupt vectors of a function.
pub const MAX_VECTORS: usize = 256;
/// Pages that the firmware asks for at boot unless configured otherwise.
pub const DEFAULT_BOOT_PAGES: u32 = 6;
/// Pages that the firmware asks for before INIT_HCA unless configured otherwise.
pub const DEFAULT_INIT_PAGES: u32 = 512;
/// Pages of those that are for objects unless configured otherwise.
pub const DEFAULT_SPARE_PAGES: u32 = 256;

/// One function.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FunctionConfig {
    /// What it plays.
    pub model: Model,
    /// MAC address; one that is made from the function's number when left out.
    pub mac: Option<[u8; 6]>,
    /// What the port is plugged into.
    pub wire: WireConfig,
    /// Firmware version; the model's own when left out.
    pub firmware: Option<FirmwareVersion>,
    /// Speed of the port in Mbit/s; the model's own when left out.
    pub speed: Option<u32>,
    /// Interrupt vectors.
    pub vectors: usize,
    /// Pages that the firmware asks for at boot.
    pub boot_pages: u32,
    /// Pages that the firmware asks for before INIT_HCA.
    pub init_pages: u32,
    /// Pages of the latter that are for objects, 16 to a page; with more objects the firmware asks
    /// for more pages.
    pub spare_pages: u32,
    /// Page requests that the firmware raises of its own accord.
    pub storm: Vec<Wave>,
    /// PCI device id; the model's own when left out.
    pub device_id: Option<u16>,
    /// Revision of the command interface; 5, the only one there is, when left out.
    pub cmdif: Option<u16>,
    /// How long the firmware needs to start; a moment when left out.
    pub starting: Option<Starting>,
    /// Health syndrome with which the firmware has stopped; 0 for none.
    pub syndrome: u8,
    /// What is plugged into the port's cage.
    pub module: Module,
    /// Capabilities that it has less of than its model.
    pub cap: Vec<Less>,
}

impl Default for FunctionConfig {
    fn default() -> Self {
        Self {
            model: Model::default(),
            mac: None,
            wire: WireConfig::default(),
            firmware: None,
            speed: None,
            vectors: DEFAULT_VECTORS,
            boot_pages: DEFAULT_BOOT_PAGES,
            init_pages: DEFAULT_INIT_PAGES,
            spare_pages: DEFAULT_SPARE_PAGES,
            storm: Vec::new(),
            device_id: None,
            cmdif: None,
            starting: None,
            syndrome: 0,
            module: Module::default(),
            cap: Vec::new(),
        }
    }
}

/// One emulator: its functions and the thread that serves them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmulatorConfig {
    /// The functions.
    pub functions: Vec<FunctionConfig>,
    /// Doorbell records are read only after their doorbell, as a card does.
    pub strict: bool,
    /// CPU for the thread that moves packets.
    pub data_cpu: Option<usize>,
    /// What that thread does when there is no work.
    pub idle: IdlePolicy,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            functions: vec![FunctionConfig::default()],
            strict: true,
            data_cpu: None,
            idle: IdlePolicy::default(),
        }
    }
}

/// The keys of a device string.
pub const KEYS: &[&str] = &[
    "ports",
    "wire",
    "interface",
    "model",
    "mac",
    "firmware",
    "speed",
    "vectors",
    "boot_pages",
    "init_pages",
    "spare_pages",
    "storm",
    "device_id",
    "cmdif",
    "starting",
    "syndrome",
    "module",
    "cap",
    "in",
    "out",
    "repeat",
    "rate",
    "count",
    "sizes",
    "flows",
    "seed",
    "lossy",
    "strict",
    "data_cpu",
    "idle",
];

/// Keys that hold for the whole emulator.
const WHOLE: &[&str] = &["ports", "strict", "data_cpu", "idle"];

fn wrong(key: &str, given: &str, allowed: &str) -> EmuError {
    EmuError::Value {
        key: key.into(),
        given: given.into(),
        allowed: allowed.into(),
    }
}

fn value<T: FromStr>(key: &str, given: &str, allowed: &str) -> Result<T, EmuError> {
    given.parse().map_err(|_| wrong(key, given, allowed))
}

fn flag(key: &str, given: &str) -> Result<bool, EmuError> {
    match given {
        "1" | "on" | "true" | "yes" => Ok(true),
        "0" | "off" | "false" | "no" => Ok(false),
        _ => Err(wrong(key, given, "on or off")),
    }
}

/// A number as data sheets write it: hexadecimal with `0x`, else decimal.
fn code<T: TryFrom<u32>>(key: &str, given: &str) -> Result<T, EmuError> {
    let parsed = match given.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => given.parse().ok(),
    };
    parsed
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            let bits = 8 * size_of::<T>();
            wrong(
                key,
                given,
                &format!("a number of {bits} bits, such as 0x10"),
            )
        })
}

/// A MAC address as people write it.
fn mac(key: &str, given: &str) -> Result<[u8; 6], EmuError> {
    let allowed = "a unicast address such as 02:00:00:00:00:01, or zeros for a virtual function that was given none";
    let refuse = || wrong(key, given, allowed);
    let parts: Option<Vec<u8>> = given
        .split([':', '-'])
        .map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok())?)
        .collect();
    let mac: [u8; 6] = parts
        .and_then(|parts| parts.try_into().ok())
        .ok_or_else(refuse)?;
    let group = mac.first().is_none_or(|first| first & 1 == 1);
    if group { Err(refuse()) } else { Ok(mac) }
}

/// The raw settings of one function's wire, before they are put together.
#[derive(Clone, Default, PartialEq)]
struct WireKeys {
    kind: Option<String>,
    interface: Option<String>,
    input: Option<PathBuf>,
    output: Option<PathBuf>,
    repeat: Option<u64>,
    rate: Option<u64>,
    count: Option<u64>,
    sizes: Option<Vec<u32>>,
    flows: Option<u32>,
    seed: Option<u64>,
    lossy: Option<bool>,
}

impl WireKeys {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl EmulatorConfig {
    /// Reads the keys of a device string, in the order in which they were given.
    ///
    /// # Errors
    /// [`EmuError::Key`], [`EmuError::Value`], [`EmuError::Combination`].
    pub fn from_keys<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, EmuError> {
        let pairs: Vec<(&str, &str)> = pairs.into_iter().collect();
        let mut config = Self::default();
        let range = format!("1 to {MAX_FUNCTIONS}");
        let mut ports: usize = 1;
        for (key, given) in pairs.iter().filter(|(key, _)| *key == "ports") {
            ports = value(key, given, &range)?;
            if !(1..=MAX_FUNCTIONS).contains(&ports) {
                return Err(wrong(key, given, &range));
            }
        }
        config.functions = vec![FunctionConfig::default(); ports];
        let mut wires = vec![WireKeys::default(); ports];
        // Keys for all functions first, so that the numbered ones win in any order.
        for numbered in [false, true] {
            for (key, given) in &pairs {
                let (name, number) = split(key)?;
                if number.is_some() != numbered {
                    continue;
                }
                if WHOLE.contains(&name) {
                    config.whole(name, given)?;
                    continue;
                }
                let chosen = match number {
                    Some(number) if number >= ports => {
                        return Err(EmuError::Function {
                            asked: number,
                            there: ports,
                        });
                    }
                    Some(number) => number..number + 1,
                    None => 0..ports,
                };
                for at in chosen {
                    let parts = config.functions.get_mut(at).zip(wires.get_mut(at));
                    if let Some((function, wire)) = parts {
                        set(function, wire, name, key, given)?;
                    }
                }
            }
        }
        // Ports that nothing was said about come joined two by two.
        let silent = wires.iter().all(|wire| wire.is_empty());
        if silent && ports % 2 == 0 {
            wires
                .iter_mut()
                .for_each(|wire| wire.kind = Some("pair".into()));
        }
        for (at, wire) in wires.into_iter().enumerate() {
            let joined = join(at, ports, wire)?;
            if let Some(function) = config.functions.get_mut(at) {
                function.wire = joined;
            }
        }
        Ok(config)
    }

    fn whole(&mut self, name: &str, given: &str) -> Result<(), EmuError> {
        match name {
            "strict" => self.strict = flag(name, given)?,
            "data_cpu" => self.data_cpu = Some(value(name, given, "the number of a CPU")?),
            "idle" => {
                self.idle = match given {
                    "spin" => IdlePolicy::Spin,
                    "adaptive" => IdlePolicy::Adaptive,
                    "yield" => IdlePolicy::Yield,
                    _ => return Err(wrong(name, given, "spin, adaptive or yield")),
                }
            }
            // `ports` was read first.
            _ => {}
        }
        Ok(())
    }
}

/// A key's name, and the number of a function at its end.
fn split(key: &str) -> Result<(&str, Option<usize>), EmuError> {
    let name = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = key.get(name.len()..).filter(|digits| !digits.is_empty());
    let known = KEYS.contains(&name) && (number.is_none() || !WHOLE.contains(&name));
    if !known {
        return Err(EmuError::Key {
            key: key.into(),
            allowed: KEYS.join(", "),
        });
    }
    match number {
        None => Ok((name, None)),
        Some(digits) => value(key, digits, "the number of a function").map(|n| (name, Some(n))),
    }
}

fn set(
    function: &mut FunctionConfig,
    wire: &mut WireKeys,
    name: &str,
    key: &str,
    given: &str,
) -> Result<(), EmuError> {
    const NUMBER: &str = "a number";
    match name {
        "model" => function.model = given.parse()?,
        "mac" => function.mac = Some(mac(key, given)?),
        "firmware" => function.firmware = Some(given.parse()?),
        "speed" => function.speed = Some(value(key, given, "a speed in Mbit/s")?),
        "vectors" => function.vectors = value(key, given, NUMBER)?,
        "boot_pages" => function.boot_pages = value(key, given, NUMBER)?,
        "init_pages" => function.init_pages = value(key, given, NUMBER)?,
        "spare_pages" => function.spare_pages = value(key, given, NUMBER)?,
        "storm" => {
            let waves: Result<Vec<Wave>, EmuError> = given
                .split('+')
                .map(|wave| value(key, wave, crate::storm::FORM))
                .collect();
            function.storm = waves?;
        }
        "device_id" => function.device_id = Some(code(key, given)?),
        "cmdif" => function.cmdif = Some(code(key, given)?),
        "starting" => function.starting = Some(given.parse()?),
        "syndrome" => function.syndrome = code(key, given)?,
        "module" => function.module = given.parse()?,
        "cap" => {
            let less: Result<Vec<Less>, EmuError> = given.split('+').map(str::parse).collect();
            function.cap = less?;
        }
        "wire" => wire.kind = Some(given.into()),
        "interface" => wire.interface = Some(given.into()),
        "in" => wire.input = Some(given.into()),
        "out" => wire.output = Some(given.into()),
        "repeat" => wire.repeat = Some(value(key, given, NUMBER)?),
        "rate" => wire.rate = Some(value(key, given, "frames per second")?),
        "count" => wire.count = Some(value(key, given, NUMBER)?),
        "flows" => wire.flows = Some(value(key, given, NUMBER)?),
        "seed" => wire.seed = Some(value(key, given, NUMBER)?),
        "lossy" => wire.lossy = Some(flag(key, given)?),
        "sizes" => {
            let sizes: Result<Vec<u32>, EmuError> = given
                .split(['+', ','])
                .map(|size| value(key, size, "frame sizes in bytes, joined by +"))
                .collect();
            wire.sizes = Some(sizes?);
        }
        _ => {}
    }
    Ok(())
}

fn join(at: usize, ports: usize, keys: WireKeys) -> Result<WireConfig, EmuError> {
    let combination = |what: String| EmuError::Combination { what };
    let kind = keys.kind.as_deref();
    let captures = keys.input.is_some() || keys.output.is_some();
    let kind = match (kind, captures) {
        (None, true) => "pcap",
        (None, false) => "null",
        (Some(kind), _) => kind,
    };
    if captures && kind != "pcap" {
        return Err(combination(format!(
            "port {at}: in= and out= need wire=pcap, not wire={kind}"
        )));
    }
    if keys.interface.is_some() && kind != "tap" && kind != "packet" {
        return Err(combination(format!(
            "port {at}: interface= needs wire=tap or wire=packet, not wire={kind}"
        )));
    }
    let interface = || {
        let interface = keys.interface.clone().ok_or_else(|| {
            combination(format!(
                "port {at}: wire={kind} needs the name of an interface, such as interface{at}={}",
                if kind == "tap" { "tap0" } else { "veth0" }
            ))
        })?;
        Ok::<_, EmuError>(InterfaceConfig { interface })
    };
    let generated = keys.sizes.is_some() || keys.flows.is_some() || keys.count.is_some();
    if (generated || keys.seed.is_some()) && kind != "gen" {
        return Err(combination(format!(
            "port {at}: sizes, flows, count and seed need wire=gen, not wire={kind}"
        )));
    }
    if keys.rate.is_some() && kind != "gen" && kind != "pcap" {
        return Err(combination(format!(
            "port {at}: rate needs wire=gen or wire=pcap, not wire={kind}"
        )));
    }
    let kind = match kind {
        "loop" => WireKind::Loop,
        "null" => WireKind::Null,
        "pair" if ports % 2 == 0 => WireKind::Pair { peer: at ^ 1 },
        "pair" => {
            return Err(combination(format!(
                "wire=pair joins ports two by two, there are {ports}; give ports=2"
            )));
        }
        "pcap" => WireKind::Pcap(PcapConfig {
            input: keys.input,
            output: keys.output,
            repeat: keys.repeat.unwrap_or(1),
            rate: keys.rate,
        }),
        "tap" => WireKind::Tap(interface()?),
        "packet" => WireKind::Packet(interface()?),
        "gen" => {
            let plain = GenConfig::default();
            WireKind::Gen(GenConfig {
                sizes: keys.sizes.unwrap_or(plain.sizes),
                flows: keys.flows.unwrap_or(plain.flows),
                count: keys.count,
                rate: keys.rate,
                seed: keys.seed.unwrap_or(plain.seed + at as u64),
                destination: plain.destination,
            })
        }
        other => {
            return Err(wrong(
                &format!("wire{at}"),
                other,
                "loop, pair, null, gen, pcap, tap or packet",
            ));
        }
    };
    Ok(WireConfig {
        kind,
        lossy: keys.lossy.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<EmulatorConfig, EmuError> {
        let pairs = text
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        EmulatorConfig::from_keys(pairs)
    }

    fn wires(text: &str) -> Vec<WireKind> {
        read(text)
            .unwrap()
            .functions
            .into_iter()
            .map(|function| function.wire.kind)
            .collect()
    }

    #[test]
    fn two_ports_come_joined() {
        let pair = vec![WireKind::Pair { peer: 1 }, WireKind::Pair { peer: 0 }];
        assert_eq!(wires("ports=2"), pair);
        assert_eq!(wires("wire=pair ports=2"), pair);
        assert_eq!(wires(""), [WireKind::Null]);
        assert_eq!(
            wires("ports=2 wire0=loop"),
            [WireKind::Loop, WireKind::Null]
        );
    }

    #[test]
    fn captures_in_and_out() {
        let wires = wires("ports=2 wire0=pcap in0=a.pcap repeat0=3 out1=b.pcapng");
        let input = PcapConfig {
            input: Some("a.pcap".into()),
            repeat: 3,
            ..Default::default()
        };
        let output = PcapConfig {
            output: Some("b.pcapng".into()),
            repeat: 1,
            ..Default::default()
        };
        assert_eq!(wires, [WireKind::Pcap(input), WireKind::Pcap(output)]);
    }

    #[test]
    fn interfaces_by_name() {
        let wires = wires("ports=2 wire0=tap interface0=tap7 wire1=packet interface1=veth1");
        let named = |name: &str| InterfaceConfig {
            interface: name.into(),
        };
        assert_eq!(
            wires,
            [
                WireKind::Tap(named("tap7")),
                WireKind::Packet(named("veth1"))
            ]
        );
    }

    #[test]
    fn numbered_keys_win_in_any_order() {
        let config =
            read("model1=cx7 ports=2 model=cx4lx mac1=02:00:00:00:00:07 strict=off").unwrap();
        assert_eq!(config.functions[0].model, Model::ConnectX4Lx);
        assert_eq!(config.functions[1].model, Model::ConnectX7);
        assert_eq!(config.functions[1].mac, Some([2, 0, 0, 0, 0, 7]));
        assert!(!config.strict);
    }

    #[test]
    fn nonsense_is_named() {
        for (text, parts) in [
            ("prots=2", vec!["prots", "ports"]),
            ("ports=9", vec!["ports=9", "1 to 8"]),
            ("ports=0", vec!["ports=0", "1 to 8"]),
            ("strict1=on", vec!["strict1"]),
            ("ports=2 wire2=loop", vec!["function 2", "has 2"]),
            (
                "wire=rope",
                vec!["rope", "loop, pair, null, gen, pcap, tap or packet"],
            ),
            ("wire=tap", vec!["interface0=tap0"]),
            ("wire=packet", vec!["interface0=veth0"]),
            ("wire=null interface=eth0", vec!["wire=packet", "wire=null"]),
            ("wire=pair", vec!["ports=2"]),
            ("model=cx3", vec!["cx3", "cx4lx"]),
            ("mac=01:00:00:00:00:01", vec!["unicast"]),
            ("mac=2:0:0:0:0:1", vec!["unicast"]),
            ("wire=loop in=x.pcap", vec!["wire=pcap"]),
            ("wire=pcap in=x.pcap count=3", vec!["wire=gen"]),
            ("wire=null rate=3", vec!["rate"]),
            ("vectors=many", vec!["vectors=many", "number"]),
            ("idle=never", vec!["adaptive"]),
            ("lossy=perhaps", vec!["on or off"]),
            ("firmware=16", vec!["major.minor.subminor"]),
            ("device_id=0x12345", vec!["16 bits"]),
            ("syndrome=hot", vec!["8 bits"]),
            ("starting=soon", vec!["milliseconds, or never"]),
            ("module=gone", vec!["absent"]),
            ("cap=port_type", vec!["NAME:VALUE"]),
        ] {
            let message = read(text).unwrap_err().to_string();
            for part in parts {
                assert!(message.contains(part), "{text}: {message}");
            }
        }
    }
}
