//! Which PCI devices are mlx5 adapters: names by device id, and what cannot be one.
//!
//! The driver goes by capabilities and not by this list: an id that it does not name is tried, and
//! said. Only what is known to be something else is refused. Ids: kernel `mlx5_core` and rdma-core
//! for the adapters, `pci.ids` for the rest.

use pollux_bus::Identity;

/// Vendor id of all of them.
const VENDOR: u16 = 0x15b3;

/// What a device id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kin {
    /// An adapter of this family.
    Known(&'static str),
    /// Nothing.
    Unknown,
    /// Something that this driver can do nothing with.
    Other {
        /// What it is.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

/// The adapters, for people.
const LIST: &str = "ConnectX-4 1013, 4 Lx 1015, 5 1017, 5 Ex 1019, 6 101b, 6 Dx 101d, 6 Lx 101f, 7 1021, 8 1023, 9 1025, BlueField a2d2, a2d6, a2d9, a2dc, a2df, and their virtual functions";

/// What is known of a function by its ids.
pub(crate) fn kin(identity: &Identity) -> Kin {
    if identity.vendor != VENDOR {
        return Kin::Other {
            what: "a device of another vendor (Mellanox and NVIDIA adapters are 15b3)",
            remedy: "lspci -D -d 15b3: lists the adapters that are here",
        };
    }
    match identity.device {
        0x1013 => Kin::Known("ConnectX-4"),
        0x1014 => Kin::Known("ConnectX-4 virtual function"),
        0x1015 => Kin::Known("ConnectX-4 Lx"),
        0x1016 => Kin::Known("ConnectX-4 Lx virtual function"),
        0x1017 => Kin::Known("ConnectX-5"),
        0x1018 => Kin::Known("ConnectX-5 virtual function"),
        0x1019 => Kin::Known("ConnectX-5 Ex"),
        0x101a => Kin::Known("ConnectX-5 Ex virtual function"),
        0x101b => Kin::Known("ConnectX-6"),
        0x101c => Kin::Known("ConnectX-6 virtual function"),
        0x101d => Kin::Known("ConnectX-6 Dx"),
        0x101e => Kin::Known("ConnectX family virtual function"),
        0x101f => Kin::Known("ConnectX-6 Lx"),
        0x1021 => Kin::Known("ConnectX-7"),
        0x1023 => Kin::Known("ConnectX-8"),
        0x1025 => Kin::Known("ConnectX-9"),
        0xa2d2 => Kin::Known("BlueField"),
        0xa2d3 => Kin::Known("BlueField virtual function"),
        0xa2d6 => Kin::Known("BlueField-2"),
        0xa2d9 => Kin::Known("BlueField-3 Lx"),
        0xa2dc => Kin::Known("BlueField-3"),
        0xa2df => Kin::Known("BlueField-4"),
        0x1011 | 0x1012 => Kin::Other {
            what: "a Connect-IB, whose ports are InfiniBand for good",
            remedy: "use an adapter with Ethernet ports",
        },
        0x1000..=0x1010 | 0x5a44..=0x5a46 | 0x5e8c..=0x5e8d | 0x6274..=0x6282 | 0x6340..=0x6778 => {
            Kin::Other {
                what: "an adapter older than ConnectX-4 (the kernel's mlx4 drives it), with another interface",
                remedy: "use a ConnectX-4 or newer",
            }
        }
        0x0191..=0x0221 => Kin::Other {
            what: "an adapter in flash recovery: its firmware is missing or does not start",
            remedy: "burn its firmware (mstflint -d PCI -i IMAGE burn), then a cold boot",
        },
        0x1974..=0x197f | 0x2020..=0x202f => Kin::Other {
            what: "a PCI bridge of an adapter",
            remedy: "name the adapter's own function",
        },
        0xa2d0
        | 0xa2d1
        | 0xa2d4
        | 0xa2d5
        | 0xa2d7
        | 0xa2d8
        | 0xa2da
        | 0xa2db
        | 0xa2dd
        | 0xa2de
        | 0xc2d0..=0xc2df
        | 0x6001 => Kin::Other {
            what: "a part of a BlueField that is no network controller",
            remedy: "name the network controller beside it (its function 0)",
        },
        _ => Kin::Unknown,
    }
}

/// Name of an adapter's family.
pub(crate) fn model(identity: &Identity) -> &'static str {
    match kin(identity) {
        Kin::Known(name) => name,
        _ => "mlx5 adapter of unknown model",
    }
}

/// What is to be said of an id that is not in the list.
pub(crate) fn unknown(identity: &Identity) -> String {
    format!(
        "device id {:04x}:{:04x} is not one that Pollux knows ({LIST}); it goes by the adapter's capabilities, which is untried on this model",
        identity.vendor, identity.device
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vendor: u16, device: u16) -> Identity {
        Identity {
            name: "0000:3b:00.0".into(),
            vendor,
            device,
            emulated: false,
            node: None,
        }
    }

    #[test]
    fn adapters_have_names_and_strangers_are_tried() {
        assert_eq!(kin(&of(VENDOR, 0x1017)), Kin::Known("ConnectX-5"));
        assert_eq!(kin(&of(VENDOR, 0x1027)), Kin::Unknown);
        assert_eq!(kin(&of(VENDOR, 0x0262)), Kin::Unknown, "a programmable one");
        let text = unknown(&of(VENDOR, 0x1027));
        assert!(
            text.contains("15b3:1027") && text.contains("101d"),
            "{text}"
        );
    }

    #[test]
    fn what_is_something_else_is_named() {
        for (vendor, device, word) in [
            (0x8086, 0x1017, "another vendor"),
            (VENDOR, 0x1003, "older than ConnectX-4"),
            (VENDOR, 0x1007, "older than ConnectX-4"),
            (VENDOR, 0x673c, "older than ConnectX-4"),
            (VENDOR, 0x1011, "InfiniBand for good"),
            (VENDOR, 0x020d, "flash recovery"),
            (VENDOR, 0x0218, "flash recovery"),
            (VENDOR, 0x1976, "bridge"),
            (VENDOR, 0xa2d5, "no network controller"),
        ] {
            let found = kin(&of(vendor, device));
            let Kin::Other { what, remedy } = found else {
                panic!("{device:#x}: {found:?}");
            };
            assert!(what.contains(word), "{device:#x}: {what}");
            assert!(!remedy.is_empty());
        }
    }
}
