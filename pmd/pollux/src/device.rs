//! The device string: one grammar for every application and every file.
//!
//! | device | string |
//! | --- | --- |
//! | an emulator in this process | `emu:ports=2,wire=pair`, or `emu:` alone |
//! | an adapter bound to vfio-pci | `0000:3b:00.0`, or `3b:00.0` (PCI domain 0) |
//! | an emulator in another process | `vfio-user:/run/pollux/hca0.sock` |
//!
//! Settings are `key=value`, with commas between them. A value that holds a comma, a quote or a
//! blank at an end is written in double quotes, in which `\"` and `\\` stand for `"` and `\`:
//! `emu:ports=1,wire=pcap,in0="captures/a,b.pcap"`.

use crate::Error;
use pollux_bus::settings;
pub use pollux_bus::settings::Setting;
use std::fmt;
use std::path::Path;

/// A device string, taken apart but not yet opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The software ConnectX, in this process.
    Emulated(Vec<Setting>),
    /// A PCI function, with its full address `dddd:bb:dd.f`.
    Pci {
        /// The address.
        address: String,
        /// Settings behind it.
        settings: Vec<Setting>,
    },
    /// A device model behind a vfio-user socket.
    VfioUser {
        /// Path of the socket.
        path: String,
        /// Settings behind it.
        settings: Vec<Setting>,
    },
}

impl DeviceSpec {
    /// Takes a device string apart.
    ///
    /// # Errors
    /// [`Error::Device`], naming what is wrong and where.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::Device {
            given: text.to_owned(),
            reason,
        };
        let trimmed = text.trim();
        if let Some(rest) = trimmed.strip_prefix("emu:") {
            return Ok(Self::Emulated(settings::split(rest).map_err(bad)?));
        }
        if trimmed == "emu" {
            return Ok(Self::Emulated(Vec::new()));
        }
        let split = |rest: &str| {
            let (head, tail) = rest.split_once(',').unwrap_or((rest, ""));
            settings::split(tail).map(|settings| (head.trim().to_owned(), settings))
        };
        if let Some(rest) = trimmed.strip_prefix("vfio-user:") {
            let (path, settings) = split(rest).map_err(bad)?;
            if path.is_empty() {
                return Err(bad(
                    "the path of the socket is missing; write vfio-user:PATH".into(),
                ));
            }
            return Ok(Self::VfioUser { path, settings });
        }
        let (head, settings) = split(trimmed).map_err(bad)?;
        let address = pci_address(&head).ok_or_else(|| bad(ALLOWED.to_owned()))?;
        Ok(Self::Pci { address, settings })
    }
}

/// The device for an application that was given none: an emulator, unless adapters wait on vfio-pci,
/// so that nobody measures the emulator unawares.
///
/// # Errors
/// [`Error::Undecided`] with the adapters' addresses.
pub(crate) fn default_device() -> Result<String, Error> {
    let found = bound_adapters(Path::new("/sys/bus/pci/drivers/vfio-pci"));
    if found.is_empty() {
        return Ok("emu:".to_owned());
    }
    let are = if found.len() == 1 { "is" } else { "are" };
    Err(Error::Undecided {
        found: format!("{} {are}", found.join(", ")),
    })
}

/// Addresses of the adapters with a driver's folder in sysfs, ascending.
fn bound_adapters(driver: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(driver) else {
        return Vec::new();
    };
    let mellanox = |folder: &Path| {
        std::fs::read_to_string(folder.join("vendor")).is_ok_and(|id| id.trim() == "0x15b3")
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter(|entry| mellanox(&entry.path()))
        .filter_map(|entry| pci_address(&entry.file_name().to_string_lossy()))
        .collect();
    found.sort();
    found
}

const ALLOWED: &str =
    "a device is emu:[KEY=VALUE,...], a PCI address like 0000:3b:00.0, or vfio-user:PATH";

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = match self {
            Self::Emulated(settings) => {
                f.write_str("emu:")?;
                return write_settings(f, settings, "");
            }
            Self::Pci { address, settings } => {
                f.write_str(address)?;
                settings
            }
            Self::VfioUser { path, settings } => {
                write!(f, "vfio-user:{path}")?;
                settings
            }
        };
        write_settings(f, settings, ",")
    }
}

fn write_settings(f: &mut fmt::Formatter<'_>, settings: &[Setting], before: &str) -> fmt::Result {
    let mut separator = before;
    for Setting { key, value } in settings {
        let plain =
            !value.is_empty() && value.trim() == value && !value.contains([',', '"', '\\', '=']);
        let escaped = || value.replace('\\', "\\\\").replace('"', "\\\"");
        match plain {
            true => write!(f, "{separator}{key}={value}")?,
            false => write!(f, "{separator}{key}=\"{}\"", escaped())?,
        }
        separator = ",";
    }
    Ok(())
}

/// `bb:dd.f` or `dddd:bb:dd.f` in hexadecimal digits, as the full form in lower case.
fn pci_address(text: &str) -> Option<String> {
    let hex = |text: &str, digits: usize, max: u32| {
        let right = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| right)?;
        (number <= max).then_some(number)
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let domain = hex(domain, 4, 0xffff)?;
    let bus = hex(bus, 2, 0xff)?;
    let device = hex(device, 2, 0x1f)?;
    let function = hex(function, 1, 7)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Vec<Setting> {
        let own = |(key, value): &(&str, &str)| Setting {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        pairs.iter().map(own).collect()
    }

    fn emulated(text: &str) -> Vec<Setting> {
        match DeviceSpec::parse(text).unwrap() {
            DeviceSpec::Emulated(settings) => settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn emulators() {
        assert_eq!(emulated("emu:"), set(&[]));
        assert_eq!(emulated(" emu "), set(&[]));
        assert_eq!(
            emulated("emu:ports=2,wire=pair"),
            set(&[("ports", "2"), ("wire", "pair")])
        );
        assert_eq!(
            emulated(r#"emu:ports=2, wire0 = pcap ,in0="a, b.pcap",out1="x\"y\\z",in1="""#),
            set(&[
                ("ports", "2"),
                ("wire0", "pcap"),
                ("in0", "a, b.pcap"),
                ("out1", r#"x"y\z"#),
                ("in1", ""),
            ])
        );
        assert_eq!(emulated("emu:in0=a=b.pcap"), set(&[("in0", "a=b.pcap")]));
    }

    #[test]
    fn adapters_and_sockets() {
        let pci = |text: &str| match DeviceSpec::parse(text).unwrap() {
            DeviceSpec::Pci { address, settings } => (address, settings),
            other => panic!("{other:?}"),
        };
        assert_eq!(pci("0000:3B:00.1"), ("0000:3b:00.1".to_owned(), set(&[])));
        assert_eq!(pci("3b:1f.7"), ("0000:3b:1f.7".to_owned(), set(&[])));
        assert_eq!(pci("3b:00.0,mprq=1").1, set(&[("mprq", "1")]));
        assert_eq!(
            DeviceSpec::parse("vfio-user:/run/hca0.sock").unwrap(),
            DeviceSpec::VfioUser {
                path: "/run/hca0.sock".to_owned(),
                settings: set(&[])
            }
        );
    }

    #[test]
    fn every_error_is_one_line_with_the_string_and_a_remedy() {
        for (text, word) in [
            ("", "emu:"),
            ("eth0", "emu:"),
            ("net_memif0", "emu:"),
            ("emulator:ports=2", "emu:"),
            ("3b:20.0", "PCI address"),
            ("3b:00.8", "PCI address"),
            ("00003b:00.0", "PCI address"),
            ("0000:3b:00.0.0", "PCI address"),
            ("+1:00.0", "PCI address"),
            ("vfio-user:", "vfio-user:PATH"),
            ("emu:ports", "KEY=VALUE"),
            ("emu:ports=2,pair", "KEY=VALUE"),
            ("emu:=2", "key"),
            ("emu:ports=2,", "comma"),
            ("emu:,ports=2", "KEY=VALUE"),
            ("emu:ports=1,ports=2", "twice"),
            ("emu:in0=\"a.pcap", "not closed"),
            ("emu:in0=\"a\"b", "comma"),
            ("emu:in0=a\"b\"", "quotes"),
            ("emu:in0=\"a\\b\"", "backslash"),
        ] {
            let error = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
            assert!(error.contains(&format!("{text:?}")), "{text}: {error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_printed_is_parsed_again() {
        for text in [
            "emu:",
            "emu:ports=2,wire=pair",
            r#"emu:in0="a,b",out0="c\\\"d",x="",y=" z""#,
            "0000:3b:00.0",
            "0000:3b:00.0,a=b",
            "vfio-user:/x y/z.sock,k=\"1,2\"",
        ] {
            let spec = DeviceSpec::parse(text).unwrap();
            assert_eq!(spec.to_string(), text);
            assert_eq!(DeviceSpec::parse(&spec.to_string()).unwrap(), spec);
        }
    }

    #[test]
    fn only_adapters_on_vfio_are_offered() {
        let root = std::env::temp_dir().join(format!("pollux-sysfs-{}", std::process::id()));
        for (address, vendor) in [
            ("0000:5e:00.1", "0x15b3"),
            ("0000:5e:00.0", "0x15b3"),
            ("0000:01:00.0", "0x8086"),
        ] {
            std::fs::create_dir_all(root.join(address)).unwrap();
            std::fs::write(root.join(address).join("vendor"), format!("{vendor}\n")).unwrap();
        }
        std::fs::create_dir_all(root.join("module")).unwrap();
        let found = bound_adapters(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["0000:5e:00.0", "0000:5e:00.1"]);
        assert!(bound_adapters(&root).is_empty());
    }
}
