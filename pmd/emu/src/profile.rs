//! What a model is and announces: capabilities as data.
//!
//! One TOML file per model, compiled in. A capability is named as in the layouts of
//! `pollux_prm`; its value is a number, or `{ max = .., current = .. }` where the driver may
//! raise it with SET_HCA_CAP. What a file does not name is zero: not announced.

use crate::error::EmuError;
use crate::fields::{Leaf, bits_at, leaves, set_bits_at};
use pollux_prm::Layout;
use pollux_prm::commands::capability::{CapGroup, CmdHcaCap};
use pollux_prm::commands::offload::{EthernetOffloadCaps, FlowTableNicCap};
use pollux_prm::layout::Field;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Adapter models that can be played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Model {
    /// ConnectX-4 Lx.
    #[serde(rename = "cx4lx")]
    ConnectX4Lx,
    /// ConnectX-5.
    #[default]
    #[serde(rename = "cx5")]
    ConnectX5,
    /// ConnectX-6 Dx.
    #[serde(rename = "cx6dx")]
    ConnectX6Dx,
    /// ConnectX-7.
    #[serde(rename = "cx7")]
    ConnectX7,
}

impl Model {
    /// All models.
    pub const ALL: [Self; 4] = [
        Self::ConnectX4Lx,
        Self::ConnectX5,
        Self::ConnectX6Dx,
        Self::ConnectX7,
    ];

    /// The name in device strings.
    pub const fn key(self) -> &'static str {
        match self {
            Self::ConnectX4Lx => "cx4lx",
            Self::ConnectX5 => "cx5",
            Self::ConnectX6Dx => "cx6dx",
            Self::ConnectX7 => "cx7",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::ConnectX4Lx => include_str!("profile/connectx4lx.toml"),
            Self::ConnectX5 => include_str!("profile/connectx5.toml"),
            Self::ConnectX6Dx => include_str!("profile/connectx6dx.toml"),
            Self::ConnectX7 => include_str!("profile/connectx7.toml"),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

impl FromStr for Model {
    type Err = EmuError;

    fn from_str(text: &str) -> Result<Self, EmuError> {
        Self::ALL
            .into_iter()
            .find(|model| model.key() == text)
            .ok_or_else(|| EmuError::Value {
                key: "model".into(),
                given: text.into(),
                allowed: "cx4lx, cx5, cx6dx or cx7".into(),
            })
    }
}

/// A firmware version, `major.minor.subminor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FirmwareVersion {
    /// Tells the chip: 14, 16, 22, 28.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Sub-minor.
    pub subminor: u16,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:04}", self.major, self.minor, self.subminor)
    }
}

impl FromStr for FirmwareVersion {
    type Err = EmuError;

    fn from_str(text: &str) -> Result<Self, EmuError> {
        let parts: Option<Vec<u16>> = text.split('.').map(|part| part.parse().ok()).collect();
        match parts.as_deref() {
            Some([major, minor, subminor]) => Ok(Self {
                major: *major,
                minor: *minor,
                subminor: *subminor,
            }),
            _ => Err(EmuError::Value {
                key: "firmware".into(),
                given: text.into(),
                allowed: "major.minor.subminor, each up to 65535".into(),
            }),
        }
    }
}

impl TryFrom<String> for FirmwareVersion {
    type Error = EmuError;

    fn try_from(text: String) -> Result<Self, EmuError> {
        text.parse()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    device: u16,
    firmware: FirmwareVersion,
    psid: String,
    hardware_id: u32,
    pcie_speed: u8,
    pcie_lanes: u8,
    timer_khz: u32,
    speed_mbps: u32,
    speeds_mbps: Vec<u32>,
    general: toml::Table,
    ethernet: toml::Table,
    flow_table: toml::Table,
}

/// One capability that a profile announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Path of the field in its group's layout.
    pub path: String,
    /// What can be set at most.
    pub max: u64,
    /// What is in force before SET_HCA_CAP.
    pub current: u64,
}

/// A group of capabilities.
#[derive(Clone, Debug)]
pub struct Group {
    /// Bytes of the group's layout, maximum values.
    pub max: Vec<u8>,
    /// The same, initial values.
    pub current: Vec<u8>,
    /// What is announced, by path.
    pub announced: Vec<Announced>,
    /// All fields of the group.
    pub leaves: Arc<[Leaf]>,
}

/// A model's description.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The model.
    pub model: Model,
    /// Its name for people.
    pub name: String,
    /// PCI device id.
    pub device: u16,
    /// Firmware version that it reports unless configured otherwise.
    pub firmware: FirmwareVersion,
    /// Board identity.
    pub psid: String,
    /// Hardware id in the health buffer.
    pub hardware_id: u32,
    /// Speed of the card's PCI Express link as PCI Express numbers it.
    pub pcie_speed: u8,
    /// Lanes of that link.
    pub pcie_lanes: u8,
    /// Frequency of the internal timer in kHz.
    pub timer_khz: u32,
    /// Speed of the port unless configured otherwise, in Mbit/s.
    pub speed_mbps: u32,
    /// Speeds that can be configured.
    pub speeds_mbps: Vec<u32>,
    /// Capability groups that are not all zero.
    pub groups: BTreeMap<u16, Group>,
}

impl Profile {
    /// The description of a model.
    ///
    /// # Errors
    /// [`EmuError::Profile`] when the file that was compiled in is wrong; tests read all four.
    pub fn of(model: Model) -> Result<Self, EmuError> {
        let wrong = |what: String| EmuError::Profile {
            model: model.key(),
            what,
        };
        let file: File = toml::from_str(model.file()).map_err(|why| wrong(why.to_string()))?;
        let mut groups = BTreeMap::new();
        let tables: [(CapGroup, &toml::Table, &'static [Field], usize); 3] = [
            (
                CapGroup::GENERAL,
                &file.general,
                CmdHcaCap::FIELDS,
                CmdHcaCap::LEN,
            ),
            (
                CapGroup::ETHERNET_OFFLOADS,
                &file.ethernet,
                EthernetOffloadCaps::FIELDS,
                EthernetOffloadCaps::LEN,
            ),
            (
                CapGroup::FLOW_TABLE,
                &file.flow_table,
                FlowTableNicCap::FIELDS,
                FlowTableNicCap::LEN,
            ),
        ];
        for (group, table, fields, len) in tables {
            groups.insert(group.0, read_group(table, fields, len).map_err(wrong)?);
        }
        Ok(Self {
            model,
            name: file.name,
            device: file.device,
            firmware: file.firmware,
            psid: file.psid,
            hardware_id: file.hardware_id,
            pcie_speed: file.pcie_speed,
            pcie_lanes: file.pcie_lanes,
            timer_khz: file.timer_khz,
            speed_mbps: file.speed_mbps,
            speeds_mbps: file.speeds_mbps,
            groups,
        })
    }

    /// The largest value of a capability; zero for one that is not announced.
    pub fn max(&self, group: CapGroup, path: &str) -> u64 {
        self.groups
            .get(&group.0)
            .map_or(0, |group| value(&group.max, &group.leaves, path))
    }
}

/// The value of the field at `path`; zero where there is none.
pub(crate) fn value(bytes: &[u8], leaves: &[Leaf], path: &str) -> u64 {
    leaves
        .iter()
        .find(|leaf| leaf.path == path)
        .map_or(0, |leaf| bits_at(bytes, leaf.bit_offset, leaf.bits))
}

fn read_group(table: &toml::Table, fields: &[Field], len: usize) -> Result<Group, String> {
    let mut announced = Vec::new();
    flatten(table, "", &mut announced)?;
    let leaves: Arc<[Leaf]> = leaves(fields).into();
    let (mut max, mut current) = (vec![0; len], vec![0; len]);
    for item in &announced {
        let leaf = leaves
            .iter()
            .find(|leaf| leaf.path == item.path)
            .ok_or_else(|| format!("there is no capability {}", item.path))?;
        let limit = u64::MAX >> (64 - leaf.bits.clamp(1, 64));
        if item.max > limit || item.current > item.max {
            return Err(format!("{} does not fit its {} bits", item.path, leaf.bits));
        }
        set_bits_at(&mut max, leaf.bit_offset, leaf.bits, item.max);
        set_bits_at(&mut current, leaf.bit_offset, leaf.bits, item.current);
    }
    Ok(Group {
        max,
        current,
        announced,
        leaves,
    })
}

fn flatten(table: &toml::Table, prefix: &str, out: &mut Vec<Announced>) -> Result<(), String> {
    for (name, value) in table {
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        match value {
            toml::Value::Table(inner) => match (inner.get("max"), inner.get("current")) {
                (Some(max), Some(current)) => {
                    let (max, current) = (number(max, &path)?, number(current, &path)?);
                    out.push(Announced { path, max, current });
                }
                _ => flatten(inner, &path, out)?,
            },
            other => {
                let number = number(other, &path)?;
                out.push(Announced {
                    path,
                    max: number,
                    current: number,
                });
            }
        }
    }
    Ok(())
}

fn number(value: &toml::Value, path: &str) -> Result<u64, String> {
    match value {
        toml::Value::Integer(number) => u64::try_from(*number).map_err(|_| ()),
        toml::Value::Boolean(on) => Ok(u64::from(*on)),
        _ => Err(()),
    }
    .map_err(|()| format!("{path} is neither a number nor true or false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_models_read() {
        for model in Model::ALL {
            let profile = Profile::of(model).unwrap();
            assert_eq!(model.key().parse::<Model>().unwrap(), model);
            assert_eq!(profile.max(CapGroup::GENERAL, "num_ports"), 1);
            assert_eq!(profile.max(CapGroup::GENERAL, "port_type"), 1);
            assert!(profile.speeds_mbps.contains(&profile.speed_mbps));
        }
    }

    #[test]
    fn only_the_oldest_needs_headers_inline() {
        let inline = |model| {
            Profile::of(model)
                .unwrap()
                .max(CapGroup::ETHERNET_OFFLOADS, "wqe_inline_mode")
        };
        // 1: as the vport context says; 2: not needed.
        assert_eq!(inline(Model::ConnectX4Lx), 1);
        assert_eq!(inline(Model::ConnectX5), 2);
        assert_eq!(inline(Model::ConnectX7), 2);
    }

    #[test]
    fn versions_parse_and_print() {
        let version: FirmwareVersion = "16.35.4030".parse().unwrap();
        assert_eq!(
            version,
            FirmwareVersion {
                major: 16,
                minor: 35,
                subminor: 4030
            }
        );
        assert_eq!(version.to_string(), "16.35.4030");
        for bad in ["16.35", "a.b.c", "1.2.3.4", "70000.1.1", ""] {
            assert!(bad.parse::<FirmwareVersion>().is_err(), "{bad}");
        }
    }
}
