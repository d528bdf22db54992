//! What the kernel says of a PCI function before anybody opens it: who it is, which driver has it,
//! in which IOMMU group it is and with whom.

use crate::BusError;
use std::path::{Path, PathBuf};

/// A PCI function as `/sys/bus/pci/devices` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PciFunction {
    pub(super) address: String,
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) subsystem: (u16, u16),
    pub(super) node: Option<u32>,
    pub(super) driver: Option<String>,
    pub(super) group: Option<u32>,
}

impl PciFunction {
    /// The number of its group, if vfio-pci has it and an IOMMU stands before it.
    pub(super) fn openable(&self) -> Result<u32, BusError> {
        let address = self.address.clone();
        match (self.driver.as_deref(), self.group) {
            (Some("vfio-pci"), Some(group)) => Ok(group),
            (Some("vfio-pci"), None) => Err(BusError::NoIommu { address }),
            (other, _) => Err(BusError::NotBound {
                address,
                driver: other.unwrap_or("no driver").to_owned(),
            }),
        }
    }
}

/// The file system under which all this is found; another one in tests.
#[derive(Clone, Debug)]
pub(super) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

impl Sysfs {
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    fn folder(&self, address: &str) -> PathBuf {
        self.0.join("bus/pci/devices").join(address)
    }

    /// Looks a function up.
    pub(super) fn function(&self, address: &str) -> Result<PciFunction, BusError> {
        let folder = self.folder(address);
        if !folder.exists() {
            return Err(BusError::NoFunction {
                address: address.to_owned(),
            });
        }
        let id = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            let digits = text.trim().trim_start_matches("0x");
            u16::from_str_radix(digits, 16).unwrap_or(0)
        };
        let node = std::fs::read_to_string(folder.join("numa_node"))
            .ok()
            // -1 where the platform does not say.
            .and_then(|text| text.trim().parse().ok());
        Ok(PciFunction {
            address: address.to_owned(),
            vendor: id("vendor"),
            device: id("device"),
            subsystem: (id("subsystem_vendor"), id("subsystem_device")),
            node,
            driver: link_name(&folder.join("driver")),
            group: link_name(&folder.join("iommu_group")).and_then(|name| name.parse().ok()),
        })
    }

    /// The functions of a group which keep it from being given to user space, each with the driver
    /// that has it.
    pub(super) fn culprits(&self, group: u32) -> Vec<String> {
        let folder = self.0.join(format!("kernel/iommu_groups/{group}/devices"));
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter_map(|address| {
                let driver = link_name(&self.folder(&address).join("driver"))?;
                // What the kernel tolerates beside a function in user space.
                let harmless = ["vfio-pci", "pcieport", "pci-stub"].contains(&driver.as_str());
                (!harmless).then(|| format!("{address} (driver {driver})"))
            })
            .collect();
        found.sort();
        found
    }

    /// Address ranges which the platform keeps for itself in a group, ends inclusive.
    pub(super) fn reserved(&self, group: u32) -> Vec<(u64, u64)> {
        let file = self
            .0
            .join(format!("kernel/iommu_groups/{group}/reserved_regions"));
        std::fs::read_to_string(file)
            .unwrap_or_default()
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let mut number = || {
                    let word = words.next()?.strip_prefix("0x")?;
                    u64::from_str_radix(word, 16).ok()
                };
                Some((number()?, number()?))
            })
            .collect()
    }

    /// How many mappings a container takes, where nothing else says it.
    pub(super) fn mapping_limit(&self) -> Option<usize> {
        let file = self
            .0
            .join("module/vfio_iommu_type1/parameters/dma_entry_limit");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }
}

/// The last part of what a link leads to.
fn link_name(link: &Path) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Root(PathBuf);

    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    /// An adapter with two functions in group 26, the second of which the kernel's driver has.
    fn root(name: &str) -> Root {
        let root = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        let group = root.join("kernel/iommu_groups/26");
        std::fs::create_dir_all(group.join("devices")).unwrap();
        let reserved = "0x00000000fee00000 0x00000000feefffff msi\n0x0 0xfff direct\nodd line\n";
        std::fs::write(group.join("reserved_regions"), reserved).unwrap();
        for (address, driver) in [
            ("0000:3b:00.0", Some("vfio-pci")),
            ("0000:3b:00.1", Some("mlx5_core")),
            ("0000:3a:00.0", Some("pcieport")),
            ("0000:3b:00.2", None),
        ] {
            let folder = root.join("bus/pci/devices").join(address);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, text) in [
                ("vendor", "0x15b3\n"),
                ("device", "0x1017\n"),
                ("subsystem_vendor", "0x15b3\n"),
                ("subsystem_device", "0x0008\n"),
                ("numa_node", if driver.is_some() { "1\n" } else { "-1\n" }),
            ] {
                std::fs::write(folder.join(file), text).unwrap();
            }
            symlink(&group, folder.join("iommu_group")).unwrap();
            symlink(&folder, group.join("devices").join(address)).unwrap();
            if let Some(driver) = driver {
                symlink(
                    root.join("bus/pci/drivers").join(driver),
                    folder.join("driver"),
                )
                .unwrap();
            }
        }
        Root(root)
    }

    #[test]
    fn a_function_is_read_whole() {
        let root = root("function");
        let sysfs = Sysfs::at(&root.0);
        let function = sysfs.function("0000:3b:00.0").unwrap();
        assert_eq!(
            function,
            PciFunction {
                address: "0000:3b:00.0".into(),
                vendor: 0x15b3,
                device: 0x1017,
                subsystem: (0x15b3, 8),
                node: Some(1),
                driver: Some("vfio-pci".into()),
                group: Some(26),
            }
        );
        assert_eq!(function.openable().unwrap(), 26);
        let taken = sysfs.function("0000:3b:00.1").unwrap().openable();
        let taken = taken.unwrap_err().to_string();
        assert!(
            taken.contains("mlx5_core") && taken.contains("scripts/host bind"),
            "{taken}"
        );
        let bare = PciFunction {
            group: None,
            ..function
        };
        let bare = bare.openable().unwrap_err().to_string();
        assert!(bare.contains("intel_iommu=on"), "{bare}");
        let alone = sysfs.function("0000:3b:00.2").unwrap();
        assert_eq!((alone.node, alone.driver), (None, None));
        let absent = sysfs.function("0000:ff:00.0").unwrap_err().to_string();
        assert!(
            absent.contains("0000:ff:00.0") && absent.contains("lspci"),
            "{absent}"
        );
    }

    #[test]
    fn culprits_are_those_with_another_driver() {
        let root = root("culprits");
        let sysfs = Sysfs::at(&root.0);
        assert_eq!(sysfs.culprits(26), ["0000:3b:00.1 (driver mlx5_core)"]);
        assert_eq!(sysfs.culprits(27), Vec::<String>::new());
    }

    #[test]
    fn reserved_ranges_are_read_line_by_line() {
        let root = root("reserved");
        let sysfs = Sysfs::at(&root.0);
        assert_eq!(sysfs.reserved(26), [(0xfee0_0000, 0xfeef_ffff), (0, 0xfff)]);
        assert_eq!(sysfs.mapping_limit(), None);
    }
}
