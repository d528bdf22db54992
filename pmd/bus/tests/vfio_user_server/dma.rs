//! Memory that a client shares, and what the device's thread reaches of it.

use crate::raw::{CONFIG, DMA_MAP, DMA_UNMAP, Raw, Rig, map_body, unmap_body};
use pollux_bus::vfio_user::Trust;
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::io::Write;
use std::os::fd::AsFd;

fn memory(pages: usize) -> Segment {
    let request = SegmentRequest::new("guest", pages * 0x1000).page(PageChoice::Ordinary);
    Segment::map(&request).unwrap()
}

fn word(memory: &Segment, page: usize) -> u32 {
    u32::from_be(memory.whole().read(page * 0x1000).unwrap())
}

fn map(client: &mut Raw, memory: &Segment, page: u64, iova: u64, pages: u64) -> Result<(), i32> {
    client.map(memory.fd().unwrap(), page * 0x1000, iova, pages * 0x1000)
}

#[test]
fn parts_of_one_file_are_mapped_and_unmapped_each_by_itself() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(8);
    map(&mut client, &guest, 3, 0x10_0000, 1).unwrap();
    map(&mut client, &guest, 0, 0x20_0000, 2).unwrap();
    // The same page twice is fine, a guest does so.
    map(&mut client, &guest, 3, 0x30_0000, 1).unwrap();
    for iova in [0x10_0000, 0x20_1000, 0x30_0000] {
        assert_eq!(client.add(iova), 1);
    }
    assert_eq!((word(&guest, 3), word(&guest, 1)), (2, 1));
    assert_eq!(client.add(0x20_2000), 2, "past the end");
    client.unmap(0x10_0000, 0x1000).unwrap();
    assert_eq!(client.add(0x10_0000), 2);
    assert_eq!(client.add(0x30_0000), 1);
    assert_eq!(word(&guest, 3), 3);
}

#[test]
fn without_bus_mastering_there_is_no_dma() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(1);
    map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
    client.write(CONFIG, 4, &[0x02, 0x00]);
    assert_eq!(client.add(0x10_0000), 2);
    client.write(CONFIG, 4, &[0x06, 0x00]);
    assert_eq!(client.add(0x10_0000), 1);
    assert_eq!(word(&guest, 0), 1);
}

#[test]
fn a_range_that_was_never_mapped_is_unmapped_without_a_word() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(2);
    client.unmap(0x10_0000, 0x1000).unwrap();
    map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
    map(&mut client, &guest, 1, 0x30_0000, 1).unwrap();
    // All around and between, with an end that is 2^64.
    client.unmap(0x20_0000, 0x1000).unwrap();
    client.unmap(0x40_0000, 0x4000_0000_0000).unwrap();
    assert_eq!(client.add(0x10_0000), 1);
    client
        .unmap(0x30_0000, 0_u64.wrapping_sub(0x30_0000))
        .unwrap();
    assert_eq!((client.add(0x10_0000), client.add(0x30_0000)), (1, 2));
    client.unmap(0, u64::MAX).unwrap();
    assert_eq!(client.add(0x10_0000), 2);
}

#[test]
fn all_are_unmapped_at_once() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(2);
    map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
    map(&mut client, &guest, 1, u64::MAX - 0xfff, 1).unwrap_err();
    map(&mut client, &guest, 1, 0x7fff_ffff_f000, 1).unwrap();
    client.ask(DMA_UNMAP, &unmap_body(2, 0, 0), &[]).unwrap();
    assert_eq!(client.add(0x10_0000), 2);
    assert_eq!(client.add(0x7fff_ffff_f000), 2);
    map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
    assert_eq!(client.add(0x10_0000), 1);
}

#[test]
fn a_cut_through_a_mapping_is_refused() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(4);
    map(&mut client, &guest, 0, 0x10_0000, 4).unwrap();
    for (iova, size) in [
        (0x10_0000, 0x1000),
        (0x10_1000, 0x3000),
        (0xf_0000, 0x1_1000),
        (0x10_3000, 0x10_0000),
    ] {
        assert_eq!(
            client.unmap(iova, size),
            Err(libc::EINVAL),
            "{iova:#x}+{size:#x}"
        );
        assert_eq!(client.add(0x10_3000), 1);
    }
}

#[test]
fn a_mapping_without_a_file_is_taken_and_leads_nowhere() {
    let rig = Rig::new();
    let mut client = rig.client();
    client
        .ask(DMA_MAP, &map_body(1, 0, 0xfffc_0000, 0x4_0000), &[])
        .unwrap();
    assert_eq!(client.add(0xfffc_0000), 2);
    client.unmap(0xfffc_0000, 0x4_0000).unwrap();
}

#[test]
fn a_mapping_that_may_only_be_read_is_never_written() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(1);
    client
        .ask(
            DMA_MAP,
            &map_body(1, 0, 0x10_0000, 0x1000),
            &[guest.fd().unwrap()],
        )
        .unwrap();
    let host = rig.fake.host().unwrap();
    let mut reader = host.memory.reader();
    let mut bytes = [1; 4];
    reader.copy_out(0x10_0000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    reader.copy_in(0x10_0000, &[9; 4]).unwrap_err();
    reader.window_mut(0x10_0000, 4).unwrap_err();
    reader.window(0x10_0000, 4).unwrap();
    assert_eq!(word(&guest, 0), 0);
}

#[test]
fn thousands_of_pages_are_one_mapping_of_the_file() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(4);
    for page in 0..3000 {
        map(&mut client, &guest, page % 4, 0x10_0000 + page * 0x2000, 1).unwrap();
    }
    let held = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|line| line.contains("memfd:guest"))
            .count()
    };
    // Other tests of this process have guests too.
    assert!(held() < 64, "{} mappings", held());
    assert_eq!(client.add(0x10_0000 + 2999 * 0x2000), 1);
    for page in (0..3000).rev() {
        client.unmap(0x10_0000 + page * 0x2000, 0x1000).unwrap();
    }
    assert_eq!(client.add(0x10_0000), 2);
}

#[test]
fn nonsense_about_memory_is_refused() {
    let rig = Rig::new();
    let mut client = rig.client();
    let guest = memory(2);
    let fd = guest.fd().unwrap();
    map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
    for (what, body, fds, errno) in [
        (
            "nothing",
            map_body(3, 0, 0x20_0000, 0),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "past the file's end",
            map_body(3, 0x1000, 0x20_0000, 0x1001),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "far past it",
            map_body(3, 1 << 60, 0x20_0000, 0x1000),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "an offset that wraps",
            map_body(3, u64::MAX - 0xfff, 0x20_0000, 0x2000),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "addresses that wrap",
            map_body(3, 0, u64::MAX - 0xfff, 0x2000),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "a huge size",
            map_body(3, 0, 0, u64::MAX),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "an overlap",
            map_body(3, 0, 0xf_f000, 0x2000),
            vec![fd],
            libc::EEXIST,
        ),
        (
            "two files",
            map_body(3, 0, 0x20_0000, 0x1000),
            vec![fd, fd],
            libc::EINVAL,
        ),
        (
            "odd flags",
            map_body(0x13, 0, 0x20_0000, 0x1000),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "a short body",
            map_body(3, 0, 0x20_0000, 0x1000)[..31].to_vec(),
            vec![fd],
            libc::EINVAL,
        ),
        (
            "a long body",
            [map_body(3, 0, 0x20_0000, 0x1000), vec![0]].concat(),
            vec![fd],
            libc::EINVAL,
        ),
    ] {
        assert_eq!(
            client.ask(DMA_MAP, &body, &fds).unwrap_err(),
            errno,
            "{what}"
        );
    }
    for (what, body, errno) in [
        ("nothing", unmap_body(0, 0x10_0000, 0), libc::EINVAL),
        (
            "addresses that wrap",
            unmap_body(0, u64::MAX, 2),
            libc::EINVAL,
        ),
        (
            "dirty pages",
            unmap_body(1, 0x10_0000, 0x1000),
            libc::EOPNOTSUPP,
        ),
        (
            "a short body",
            unmap_body(0, 0x10_0000, 0x1000)[..23].to_vec(),
            libc::EINVAL,
        ),
    ] {
        assert_eq!(
            client.ask(DMA_UNMAP, &body, &[]).unwrap_err(),
            errno,
            "{what}"
        );
    }
    assert_eq!(client.add(0x10_0000), 1);
    assert_eq!(client.add(0x20_0000), 2);
}

#[test]
fn only_files_that_cannot_shrink_are_taken() {
    let path = std::env::temp_dir().join(format!("pollux-guest-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&[0; 0x2000]).unwrap();
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    let folder = std::fs::File::open(std::env::temp_dir()).unwrap();
    let null = std::fs::File::open("/dev/zero").unwrap();

    let rig = Rig::new();
    let mut client = rig.client();
    for fd in [file.as_fd(), pipe.as_fd(), folder.as_fd(), null.as_fd()] {
        assert_eq!(client.map(fd, 0, 0x10_0000, 0x1000), Err(libc::EINVAL));
        assert_eq!(client.add(0x10_0000), 2);
    }

    let rig = Rig::trusting(Trust::Anything);
    let mut client = rig.client();
    client.map(file.as_fd(), 0, 0x10_0000, 0x1000).unwrap();
    assert_eq!(client.add(0x10_0000), 1);
    for fd in [pipe.as_fd(), folder.as_fd(), null.as_fd()] {
        assert_eq!(client.map(fd, 0, 0x20_0000, 0x1000), Err(libc::EINVAL));
    }
}

#[test]
fn a_client_that_dies_leaves_no_mapping() {
    let rig = Rig::new();
    let guest = memory(1);
    for round in 1..=3 {
        let mut client = rig.client();
        map(&mut client, &guest, 0, 0x10_0000, 1).unwrap();
        assert_eq!(client.add(0x10_0000), 1);
        assert_eq!(word(&guest, 0), round);
        let host = rig.fake.host().unwrap();
        drop(client);
        rig.departed(round as usize);
        assert!(rig.fake.host().is_none(), "the device was disconnected");
        // Whoever still holds the table finds the device's thread gone.
        assert_eq!(std::sync::Arc::strong_count(&host.memory), 1);
    }
}

#[test]
fn memory_that_is_taken_away_costs_its_client_the_session_and_nobody_anything_else() {
    let rig = Rig::trusting(Trust::Anything);
    let (other, mut witness) = (memory(1), None);
    for round in 1..=3 {
        let request = SegmentRequest::new("sealed", 0x1000).page(PageChoice::Ordinary);
        let steady = Segment::map(&request).unwrap();
        let name = c"shrinking";
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = std::fs::File::from(nix::sys::memfd::memfd_create(name, flags).unwrap());
        file.set_len(0x4000).unwrap();
        let mut client = rig.client();
        map(&mut client, &steady, 0, 0x20_0000, 1).unwrap();
        client.map(file.as_fd(), 0, 0x10_0000, 0x4000).unwrap();
        assert_eq!(client.add(0x10_1000), 1);
        // Grown, and mapped anew: ranges of before keep their mapping.
        file.set_len(0x8000).unwrap();
        client.map(file.as_fd(), 0x4000, 0x30_0000, 0x4000).unwrap();
        assert_eq!((client.add(0x10_1000), client.add(0x30_0000)), (1, 1));
        file.set_len(0x1000).unwrap();
        let at = [0x10_1000_u64, 0x10_3ffc, 0x30_0000][round - 1];
        // The device's thread touches what is no longer there, and lives.
        client.write(crate::raw::BAR0, 0x10, &at.to_be_bytes());
        while !client.is_over() {}
        rig.departed(round);
        witness = Some(word(&steady, 0));
    }
    assert_eq!(witness, Some(0));
    let mut client = rig.client();
    map(&mut client, &other, 0, 0x10_0000, 1).unwrap();
    assert_eq!(client.add(0x10_0000), 1);
}

#[test]
fn files_are_counted_grown_ones_too() {
    let rig = Rig::new();
    let mut client = rig.client();
    let flags =
        nix::sys::memfd::MFdFlags::MFD_CLOEXEC | nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
    let file = std::fs::File::from(nix::sys::memfd::memfd_create(c"growing", flags).unwrap());
    let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK;
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).unwrap();
    for half in 0..pollux_bus::vfio_user::MAX_FILES as u64 / 2 {
        file.set_len((half + 1) * 0x1000).unwrap();
        client
            .map(file.as_fd(), half * 0x1000, half * 0x1000, 0x1000)
            .unwrap();
        let other = memory(1);
        map(&mut client, &other, 0, 0x1000_0000 + half * 0x1000, 1).unwrap();
    }
    let one_more = memory(1);
    let refused = map(&mut client, &one_more, 0, 0x2000_0000, 1);
    assert_eq!(refused, Err(libc::ENOSPC));
    // What is mapped already can be mapped again, and what was let go makes room.
    client.map(file.as_fd(), 0, 0x3000_0000, 0x1000).unwrap();
    client.unmap(0x1000_0000, 0x1000).unwrap();
    map(&mut client, &one_more, 0, 0x2000_0000, 1).unwrap();
    assert_eq!(client.add(0x2000_0000), 1);
}
