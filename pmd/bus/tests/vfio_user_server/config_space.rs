//! PCI configuration space, walked as a kernel walks it. Names and numbers are those of the
//! installed `linux/pci_regs.h`, read at run time: they are not ours.

use crate::raw::{CONFIG, Raw, Rig};
use std::collections::HashMap;

/// `#define NAME NUMBER` of the kernel's header.
struct Kernel(HashMap<String, u64>);

impl Kernel {
    /// The header, or nothing where it is not installed (package linux-libc-dev).
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/usr/include/linux/pci_regs.h");
        let Ok(text) = text else {
            eprintln!("SKIPPED: linux/pci_regs.h is not installed; apt-get install linux-libc-dev");
            return None;
        };
        let define = |line: &str| {
            let mut words = line.split_whitespace();
            let name = words
                .next()
                .filter(|word| *word == "#define")
                .and(words.next())?;
            let number = words.next()?;
            let value = match number.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits.trim_end_matches('U'), 16).ok()?,
                None => number.parse().ok()?,
            };
            Some((name.to_owned(), value))
        };
        Some(Self(text.lines().filter_map(define).collect()))
    }

    fn get(&self, name: &str) -> u64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the header"))
    }

    fn u32(&self, name: &str) -> u32 {
        self.get(name) as u32
    }
}

fn read16(client: &mut Raw, at: u64) -> u16 {
    u16::from_le_bytes(client.read(CONFIG, at, 2).try_into().unwrap())
}

/// Capabilities by id: where each is.
fn capabilities(client: &mut Raw, kernel: &Kernel) -> HashMap<u64, u64> {
    let status = read16(client, kernel.get("PCI_STATUS"));
    assert_ne!(u64::from(status) & kernel.get("PCI_STATUS_CAP_LIST"), 0);
    let mut found = HashMap::new();
    let mut at = u64::from(client.read(CONFIG, kernel.get("PCI_CAPABILITY_LIST"), 1)[0]);
    while at != 0 {
        assert!(at >= 0x40 && at % 4 == 0, "capability at {at:#x}");
        let head = client.read(CONFIG, at, 2);
        let twice = found.insert(u64::from(head[0]), at);
        assert_eq!(twice, None, "capability {:#x} twice", head[0]);
        at = u64::from(head[1]);
    }
    found
}

#[test]
fn the_header_says_who_it_is() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    assert_eq!(read16(&mut client, kernel.get("PCI_VENDOR_ID")), 0x15b3);
    assert_eq!(read16(&mut client, kernel.get("PCI_DEVICE_ID")), 0x1015);
    // Network controller, Ethernet.
    assert_eq!(
        client.read(CONFIG, kernel.get("PCI_CLASS_PROG"), 3),
        [0, 0, 2]
    );
    let kind = client.read(CONFIG, kernel.get("PCI_HEADER_TYPE"), 1);
    assert_eq!(u64::from(kind[0]), kernel.get("PCI_HEADER_TYPE_NORMAL"));
    assert_eq!(
        read16(&mut client, kernel.get("PCI_SUBSYSTEM_VENDOR_ID")),
        0x15b3
    );
    // No pin: INTx is not there.
    assert_eq!(client.read(CONFIG, kernel.get("PCI_INTERRUPT_PIN"), 1), [0]);
    // Identity is not for writing.
    client.write(CONFIG, 0, &[0; 4]);
    client.write(CONFIG, 8, &[0; 4]);
    assert_eq!(client.read(CONFIG, 0, 4), [0xb3, 0x15, 0x15, 0x10]);
    assert_eq!(client.read(CONFIG, 8, 4), [0, 0, 0, 2]);
}

#[test]
fn bars_are_sized_by_writing_ones() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let size = |client: &mut Raw, at: u64| {
        let before = client.read32(CONFIG, at);
        client.write(CONFIG, at, &[0xff; 4]);
        let ones = client.read32(CONFIG, at);
        client.write(CONFIG, at, &before.to_le_bytes());
        ones
    };
    let bar0 = kernel.get("PCI_BASE_ADDRESS_0");
    let low = size(&mut client, bar0);
    let high = size(&mut client, bar0 + 4);
    let kind =
        kernel.u32("PCI_BASE_ADDRESS_MEM_TYPE_64") | kernel.u32("PCI_BASE_ADDRESS_MEM_PREFETCH");
    assert_eq!(low & 0xf, kind);
    let mask = u64::from(high) << 32 | u64::from(low & !0xf);
    assert_eq!(!mask + 1, 0x8000);
    // The interrupt tables' BAR: 32 bits, not prefetchable.
    let bar2 = size(&mut client, kernel.get("PCI_BASE_ADDRESS_2"));
    assert_eq!((bar2 & 0xf, !bar2 + 1), (0, 0x2000));
    for name in [
        "PCI_BASE_ADDRESS_3",
        "PCI_BASE_ADDRESS_4",
        "PCI_BASE_ADDRESS_5",
        "PCI_ROM_ADDRESS",
    ] {
        assert_eq!(size(&mut client, kernel.get(name)), 0, "{name}");
    }
    // An address stays.
    client.write(CONFIG, bar0, &0x8000_0000_u32.to_le_bytes());
    client.write(CONFIG, bar0 + 4, &0x38_u32.to_le_bytes());
    assert_eq!(client.read32(CONFIG, bar0), 0x8000_0000 | kind);
    assert_eq!(client.read32(CONFIG, bar0 + 4), 0x38);
}

#[test]
fn the_express_capability_is_an_endpoints() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let there = capabilities(&mut client, &kernel);
    let at = there[&kernel.get("PCI_CAP_ID_EXP")];
    let flags = read16(&mut client, at + kernel.get("PCI_EXP_FLAGS"));
    assert_eq!(u64::from(flags) & kernel.get("PCI_EXP_FLAGS_VERS"), 2);
    let kind = (u64::from(flags) & kernel.get("PCI_EXP_FLAGS_TYPE")) >> 4;
    assert_eq!(kind, kernel.get("PCI_EXP_TYPE_ENDPOINT"));
    let devcap = client.read32(CONFIG, at + kernel.get("PCI_EXP_DEVCAP"));
    for bit in [
        "PCI_EXP_DEVCAP_FLR",
        "PCI_EXP_DEVCAP_RBER",
        "PCI_EXP_DEVCAP_EXT_TAG",
    ] {
        assert_ne!(devcap & kernel.u32(bit), 0, "{bit}");
    }
    let linkcap = client.read32(CONFIG, at + kernel.get("PCI_EXP_LNKCAP"));
    let status = u32::from(read16(&mut client, at + kernel.get("PCI_EXP_LNKSTA")));
    let speed = linkcap & kernel.u32("PCI_EXP_LNKCAP_SLS");
    assert_eq!(speed, kernel.u32("PCI_EXP_LNKCAP_SLS_8_0GB"));
    assert_eq!(status & kernel.u32("PCI_EXP_LNKSTA_CLS"), speed);
    let width = linkcap & kernel.u32("PCI_EXP_LNKCAP_MLW");
    assert_eq!(width >> 4, 16);
    assert_eq!(status & kernel.u32("PCI_EXP_LNKSTA_NLW"), width);
    let speeds = client.read32(CONFIG, at + kernel.get("PCI_EXP_LNKCAP2"));
    let three = [
        "PCI_EXP_LNKCAP2_SLS_2_5GB",
        "PCI_EXP_LNKCAP2_SLS_5_0GB",
        "PCI_EXP_LNKCAP2_SLS_8_0GB",
    ];
    assert_eq!(
        speeds,
        three.iter().map(|name| kernel.u32(name)).sum::<u32>()
    );
    // Payload and read request sizes can be set; the reset bit never reads as one.
    let control = at + kernel.get("PCI_EXP_DEVCTL");
    let wanted = kernel.get("PCI_EXP_DEVCTL_PAYLOAD_256B") as u16
        | kernel.get("PCI_EXP_DEVCTL_READRQ_1024B") as u16;
    client.write(CONFIG, control, &wanted.to_le_bytes());
    assert_eq!(read16(&mut client, control), wanted);
    let reset = wanted | kernel.get("PCI_EXP_DEVCTL_BCR_FLR") as u16;
    client.write(CONFIG, control, &reset.to_le_bytes());
    assert_eq!(
        u64::from(read16(&mut client, control)) & kernel.get("PCI_EXP_DEVCTL_BCR_FLR"),
        0
    );
    client.write(CONFIG, kernel.get("PCI_COMMAND"), &[0x06, 0]);
    assert_eq!(client.register(0x0c), 1, "resets");
}

#[test]
fn msix_tables_are_away_from_the_registers() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let there = capabilities(&mut client, &kernel);
    let at = there[&kernel.get("PCI_CAP_ID_MSIX")];
    let control = at + kernel.get("PCI_MSIX_FLAGS");
    let flags = u64::from(read16(&mut client, control));
    assert_eq!((flags & kernel.get("PCI_MSIX_FLAGS_QSIZE")) + 1, 40);
    let table = client.read32(CONFIG, at + kernel.get("PCI_MSIX_TABLE"));
    let pending = client.read32(CONFIG, at + kernel.get("PCI_MSIX_PBA"));
    assert_eq!(table & kernel.u32("PCI_MSIX_TABLE_BIR"), 2);
    assert_eq!(table & kernel.u32("PCI_MSIX_TABLE_OFFSET"), 0);
    assert_eq!(pending & kernel.u32("PCI_MSIX_PBA_BIR"), 2);
    assert_eq!(pending & kernel.u32("PCI_MSIX_PBA_OFFSET"), 0x1000);
    let on = kernel.get("PCI_MSIX_FLAGS_ENABLE") | kernel.get("PCI_MSIX_FLAGS_MASKALL");
    client.write(CONFIG, control, &[0xff, 0xff]);
    assert_eq!(u64::from(read16(&mut client, control)), 39 | on);
    client.write(CONFIG, control, &[0, 0]);
    assert_eq!(read16(&mut client, control), 39);
}

#[test]
fn power_states_can_be_entered_and_lose_nothing() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let there = capabilities(&mut client, &kernel);
    let control = there[&kernel.get("PCI_CAP_ID_PM")] + kernel.get("PCI_PM_CTRL");
    let kept = kernel.get("PCI_PM_CTRL_NO_SOFT_RESET") as u16;
    assert_eq!(read16(&mut client, control), kept);
    client.write(CONFIG, control, &[3, 0]);
    assert_eq!(read16(&mut client, control), kept | 3);
    client.write(CONFIG, control, &[0, 0]);
    assert_eq!(client.register(0), 0x1111_2222);
}

#[test]
fn vital_product_data_adds_up() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let there = capabilities(&mut client, &kernel);
    let at = there[&kernel.get("PCI_CAP_ID_VPD")];
    let address = at + kernel.get("PCI_VPD_ADDR");
    let flag = kernel.get("PCI_VPD_ADDR_F") as u16;
    let mut data = Vec::new();
    for place in (0..64_u16).step_by(4) {
        client.write(CONFIG, address, &place.to_le_bytes());
        assert_eq!(
            read16(&mut client, address),
            place | flag,
            "the read is done"
        );
        data.extend(client.read(CONFIG, at + kernel.get("PCI_VPD_DATA"), 4));
    }
    // The product's name, read-only data with nothing but the checksum, the end.
    let name = b"fake:0";
    let mut wanted = vec![0x82, name.len() as u8, 0];
    wanted.extend_from_slice(name);
    wanted.extend_from_slice(&[0x90, 4, 0, b'R', b'V', 1]);
    assert_eq!(data[..wanted.len()], wanted);
    let end = wanted.len() + 1;
    let sum = data[..end]
        .iter()
        .fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    assert_eq!((sum, data[end]), (0, 0x78));
    assert!(data[end + 1..].iter().all(|byte| *byte == 0));
    // A store is over at once, and changes nothing.
    client.write(CONFIG, at + kernel.get("PCI_VPD_DATA"), &[1, 2, 3, 4]);
    client.write(CONFIG, address, &flag.to_le_bytes());
    assert_eq!(read16(&mut client, address), 0);
    client.write(CONFIG, address, &[0, 0]);
    assert_eq!(
        client.read(CONFIG, at + kernel.get("PCI_VPD_DATA"), 4),
        data[..4]
    );
    // The last address is as harmless as any.
    client.write(CONFIG, address, &0x7ffc_u16.to_le_bytes());
    assert_eq!(
        client.read(CONFIG, at + kernel.get("PCI_VPD_DATA"), 4),
        [0; 4]
    );
}

#[test]
fn the_vendors_gateway_can_be_locked_and_has_nothing_behind_it() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let there = capabilities(&mut client, &kernel);
    // Registers of the gateway as the kernel's mlx5 driver has them: control 4, counter 8,
    // semaphore 0xc, address 0x10, data 0x14; status is control's top three bits.
    let at = there[&kernel.get("PCI_CAP_ID_VNDR")];
    assert_eq!(client.read(CONFIG, at + 2, 1), [0x18]);
    assert_eq!(client.read32(CONFIG, at + 0xc), 0, "free");
    let counter = client.read32(CONFIG, at + 8);
    assert_ne!(counter, client.read32(CONFIG, at + 8), "tickets differ");
    client.write(CONFIG, at + 0xc, &counter.to_le_bytes());
    assert_eq!(client.read32(CONFIG, at + 0xc), counter, "locked");
    client.write(CONFIG, at + 0xc, &(counter + 7).to_le_bytes());
    assert_eq!(
        client.read32(CONFIG, at + 0xc),
        counter,
        "still the first one's"
    );
    client.write(CONFIG, at + 4, &7_u32.to_le_bytes());
    assert_eq!(
        client.read32(CONFIG, at + 4),
        7,
        "space 7, status: not supported"
    );
    // Who reads all the same is told that it failed, not left waiting.
    client.write(CONFIG, at + 0x10, &0x100_u32.to_le_bytes());
    assert_eq!(client.read32(CONFIG, at + 0x10), 0xc000_0100);
    client.write(CONFIG, at + 0xc, &[0; 4]);
    assert_eq!(client.read32(CONFIG, at + 0xc), 0, "unlocked");
}

#[test]
fn extended_capabilities_are_a_list_without_rubbish() {
    let rig = Rig::new();
    let mut client = rig.client();
    // The fake has no serial number: an empty list.
    assert_eq!(client.read32(CONFIG, 0x100), 0);
    let rest = client.read(CONFIG, 0x100, 0xf00);
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn any_store_anywhere_leaves_a_space_that_can_be_walked() {
    let Some(kernel) = Kernel::read() else { return };
    let rig = Rig::new();
    let mut client = rig.client();
    let before = capabilities(&mut client, &kernel);
    for value in [0x00, 0xff, 0xa5] {
        for width in [1, 2, 4, 8, 256] {
            for at in (0..0x1000 - width).step_by(if width < 8 { 13 } else { 128 }) {
                client.write(CONFIG, at as u64, &vec![value; width]);
            }
        }
        assert_eq!(capabilities(&mut client, &kernel), before);
    }
    client.write(CONFIG, 4, &[0x06, 0]);
    assert_eq!(client.register(0), 0x1111_2222);
}
