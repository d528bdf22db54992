//! The published client of this protocol, which shares not a line with this server, and this
//! crate's own.

use crate::raw::{BAR0, CONFIG, HANG, Rig};
use ::vfio_user::Client;
use pollux_bus::{BusError, Interrupt, vfio_user};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

const MSIX: u32 = 2;

fn register(client: &mut Client, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(BAR0, offset, &mut bytes).unwrap();
    u32::from_be_bytes(bytes)
}

#[test]
fn a_strangers_client_is_served() {
    let rig = Rig::new();
    let mut client = Client::new(rig.path()).unwrap();
    let registers = client.region(BAR0).unwrap();
    assert_eq!((registers.size, registers.flags & 7), (0x8000, 7));
    let areas: Vec<(u64, u64)> = registers
        .sparse_areas
        .iter()
        .map(|area| (area.offset, area.size))
        .collect();
    assert_eq!(areas, [(0x2000, 0x1000), (0x5000, 0x1000)]);
    assert!(registers.file_offset.is_some(), "a file to map");
    let mut ids = [0; 4];
    client.region_read(CONFIG, 0, &mut ids).unwrap();
    assert_eq!(ids, [0xb3, 0x15, 0x15, 0x10]);
    client.region_write(CONFIG, 4, &[0x06, 0]).unwrap();
    assert_eq!(register(&mut client, 0), 0x1111_2222);
    let irq = client.get_irq_info(MSIX).unwrap();
    assert_eq!((irq.count, irq.flags), (40, 1));

    let vector = Interrupt::new().unwrap();
    let fds = [vector.as_fd().as_raw_fd()];
    client.set_irqs(MSIX, 0x24, 7, 1, &fds).unwrap();
    client.region_write(BAR0, 8, &7_u32.to_be_bytes()).unwrap();
    assert_eq!(vector.take(), 1);

    let request = SegmentRequest::new("stranger", 0x2000).page(PageChoice::Ordinary);
    let memory = Segment::map(&request).unwrap();
    let fd = memory.fd().unwrap().as_raw_fd();
    client.dma_map(0x1000, 0x4000_0000, 0x1000, fd).unwrap();
    client
        .region_write(BAR0, 0x10, &0x4000_0ffc_u64.to_be_bytes())
        .unwrap();
    let deadline = Instant::now() + HANG;
    while register(&mut client, 0x18) == 0 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(register(&mut client, 0x18), 1);
    let word: u32 = memory.whole().read(0x1ffc).unwrap();
    assert_eq!(u32::from_be(word), 1);
    client.dma_unmap(0x4000_0000, 0x1000).unwrap();
    client.reset().unwrap();
    client.region_write(CONFIG, 4, &[0x06, 0]).unwrap();
    assert_eq!(register(&mut client, 0x0c), 1);
    client.shutdown().unwrap();
    rig.departed(1);
}

#[test]
fn the_drivers_own_end_fits() {
    let rig = Rig::new();
    for round in 1..=3 {
        let function = vfio_user::connect(rig.path()).unwrap();
        assert_eq!(function.identity().device, 0x1015);
        assert_eq!(function.vectors(), 40);
        let registers = function.registers(0, 0x20).unwrap();
        assert_eq!(registers.load_u32(0).unwrap(), 0x1111_2222);
        let bell = function.registers(0x5000, 0x1000).unwrap();
        let bell = bell.doorbell(8).unwrap();
        assert!(bell.is_mapped());
        let vectors = function.enable_interrupts(3).unwrap();
        registers.store_u32(8, 2).unwrap();
        // Behind the store.
        registers.load_u32(0).unwrap();
        assert_eq!(vectors[2].take(), 1);
        let busy = vfio_user::connect(rig.path()).err().unwrap();
        assert!(matches!(busy, BusError::InUse { .. }), "{busy}");
        drop(function);
        rig.departed(round);
    }
}
