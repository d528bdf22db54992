//! A card that is not as it should be: what a function has other than its model, from power-on.
//!
//! Values of a device string. What comes and goes while the function runs is asked for through
//! [`Emulator::faults`](crate::Emulator::faults).

use crate::error::EmuError;
use crate::fields::{bits_at, set_bits_at};
use crate::profile::Profile;
use pollux_prm::commands::register::LinkTroubleCode;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long firmware needs to start, after power-on and after each reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Starting {
    /// So long.
    After(Duration),
    /// It never leaves its initializing state.
    Never,
}

impl FromStr for Starting {
    type Err = EmuError;

    fn from_str(text: &str) -> Result<Self, EmuError> {
        if text == "never" {
            return Ok(Self::Never);
        }
        text.parse()
            .map(|millis| Self::After(Duration::from_millis(millis)))
            .map_err(|_| EmuError::Value {
                key: "starting".into(),
                given: text.into(),
                allowed: "milliseconds, or never".into(),
            })
    }
}

impl TryFrom<String> for Starting {
    type Error = EmuError;

    fn try_from(text: String) -> Result<Self, EmuError> {
        text.parse()
    }
}

/// What is plugged into the port's cage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Module {
    /// A cable that works.
    #[default]
    Present,
    /// Nothing.
    Absent,
    /// A module that this adapter does not take.
    Unsupported,
    /// A module that was switched off because it is too hot.
    Hot,
    /// A cable whose other end is switched off or not plugged in.
    Dark,
}

impl Module {
    const NAMES: [(&'static str, Self); 5] = [
        ("present", Self::Present),
        ("absent", Self::Absent),
        ("unsupported", Self::Unsupported),
        ("hot", Self::Hot),
        ("dark", Self::Dark),
    ];

    /// Whether the link can come up.
    pub const fn works(self) -> bool {
        matches!(self, Self::Present)
    }

    /// What the port says of it when the link is down.
    pub(crate) const fn trouble(self) -> (LinkTroubleCode, &'static str) {
        match self {
            Self::Absent => (LinkTroubleCode::NO_CABLE, "Cable is unplugged"),
            Self::Unsupported => (LinkTroubleCode::UNSUPPORTED_MODULE, "Unsupported module"),
            Self::Hot => (LinkTroubleCode::OVERHEATED_MODULE, "Module is too hot"),
            // Also when a fault has cut the cable.
            Self::Dark | Self::Present => (LinkTroubleCode::NO_PARTNER, "No partner detected"),
        }
    }

    /// As a number that [`from_number`](Self::from_number) knows.
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Self {
        Self::NAMES
            .into_iter()
            .map(|(_, module)| module)
            .find(|module| module.number() == number)
            .unwrap_or_default()
    }
}

impl FromStr for Module {
    type Err = EmuError;

    fn from_str(text: &str) -> Result<Self, EmuError> {
        Self::NAMES
            .into_iter()
            .find(|(name, _)| *name == text)
            .map(|(_, module)| module)
            .ok_or_else(|| EmuError::Value {
                key: "module".into(),
                given: text.into(),
                allowed: "present, absent, unsupported, hot or dark".into(),
            })
    }
}

/// A capability that a function has less of than its model, `NAME:VALUE`; `port_type:0` is a port
/// in InfiniBand mode. It cannot have more: what is announced must be there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Less {
    /// The capability's name: the last part of its path, or all of it.
    pub name: String,
    /// Its value, at most the model's.
    pub value: u64,
}

impl fmt::Display for Less {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.value)
    }
}

impl FromStr for Less {
    type Err = EmuError;

    fn from_str(text: &str) -> Result<Self, EmuError> {
        let parsed = text.split_once(':').and_then(|(name, value)| {
            let value = value.parse().ok()?;
            let name = name.to_owned();
            (!name.is_empty()).then_some(Self { name, value })
        });
        parsed.ok_or_else(|| EmuError::Value {
            key: "cap".into(),
            given: text.into(),
            allowed: "NAME:VALUE of a capability, several joined by +".into(),
        })
    }
}

impl TryFrom<String> for Less {
    type Error = EmuError;

    fn try_from(text: String) -> Result<Self, EmuError> {
        text.parse()
    }
}

impl Less {
    /// Takes it from a profile.
    pub(crate) fn apply(&self, profile: &mut Profile) -> Result<(), EmuError> {
        let wrong = |allowed: String| EmuError::Value {
            key: "cap".into(),
            given: self.to_string(),
            allowed,
        };
        let called = |path: &str| {
            path.strip_suffix(self.name.as_str())
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let mut found = Vec::new();
        for (group, contents) in &profile.groups {
            for (at, item) in contents.announced.iter().enumerate() {
                if called(&item.path) {
                    found.push((*group, at, item.path.clone(), item.max));
                }
            }
        }
        let (group, at, path, most) = match found.as_slice() {
            [] => {
                return Err(wrong(format!(
                    "a capability that a {} announces (see pmd/emu/src/profile)",
                    profile.name
                )));
            }
            [(group, at, path, most)] => (*group, *at, path.clone(), *most),
            several => {
                let paths: Vec<&str> = several.iter().map(|(_, _, path, _)| &**path).collect();
                return Err(wrong(format!("one of {}", paths.join(", "))));
            }
        };
        if self.value > most {
            return Err(wrong(format!("at most {most} of {path}")));
        }
        let Some(contents) = profile.groups.get_mut(&group) else {
            return Ok(());
        };
        let leaf = contents.leaves.iter().find(|leaf| leaf.path == path);
        if let Some(leaf) = leaf {
            let current = bits_at(&contents.current, leaf.bit_offset, leaf.bits);
            let (offset, bits) = (leaf.bit_offset, leaf.bits);
            set_bits_at(&mut contents.max, offset, bits, self.value);
            set_bits_at(&mut contents.current, offset, bits, current.min(self.value));
        }
        if let Some(item) = contents.announced.get_mut(at) {
            item.max = self.value;
            item.current = item.current.min(self.value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Model;
    use pollux_prm::commands::capability::CapGroup;

    #[test]
    fn modules_keep_their_number() {
        for (name, module) in Module::NAMES {
            assert_eq!(name.parse::<Module>().unwrap(), module);
            assert_eq!(Module::from_number(module.number()), module);
        }
    }

    #[test]
    fn a_function_can_have_less_and_never_more() {
        let mut profile = Profile::of(Model::ConnectX5).unwrap();
        let mut apply = |text: &str| text.parse::<Less>().unwrap().apply(&mut profile);
        apply("port_type:0").unwrap();
        apply("flow_table_properties_nic_receive.max_ft_level:1").unwrap();
        for (text, word) in [
            ("num_ports:2", "at most 1"),
            ("roce:0", "announces"),
            // Of matching and of masking.
            ("outer_dmac:0", "one of"),
            ("level:0", "announces"),
        ] {
            let error = apply(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert_eq!(profile.max(CapGroup::GENERAL, "port_type"), 0);
        let level = "flow_table_properties_nic_receive.max_ft_level";
        assert_eq!(profile.max(CapGroup::FLOW_TABLE, level), 1);
        for text in ["port_type", "port_type:", ":1", "port_type:x", ""] {
            assert!(text.parse::<Less>().is_err(), "{text}");
        }
    }
}
