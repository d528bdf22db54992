//! Segments, windows, words, cells and bulk copies through the public API.
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pollux_mempool::{Cells, MemoryError, PageChoice, Segment, SegmentRequest};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

fn segment(len: usize) -> Segment {
    Segment::map(&SegmentRequest::new("test", len).page(PageChoice::Ordinary)).unwrap()
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Cqe {
    head: [u8; 60],
    counter: [u8; 2],
    signature: u8,
    owner: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Odd([u8; 7]);

fn cqe(n: u8) -> Cqe {
    Cqe {
        head: std::array::from_fn(|i| n.wrapping_add(i as u8)),
        counter: [n, n ^ 0xff],
        signature: 0x5a,
        owner: n & 1,
    }
}

#[test]
fn words_are_read_at_any_alignment() {
    let w = segment(4096).whole();
    let bytes: Vec<u8> = (0..200u8).collect();
    w.copy_in(4096 - 200, &bytes).unwrap();
    for skip in 0..=200 - 24 {
        let words = w.read_words::<3>(4096 - 200 + skip).unwrap();
        let expected: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(expected, bytes[skip..skip + 24], "at {skip}");
    }
    assert!(w.read_words::<3>(4096 - 23).is_err());
    // Hints may be given for anywhere.
    w.prefetch(0);
    w.prefetch(usize::MAX);
    w.prefetch_write(4095);
    w.prefetch_write(4096);
}

#[test]
fn fresh_memory_is_zero_and_whole_pages() {
    let s = segment(5000);
    assert_eq!(s.len() % s.page_size().bytes(), 0);
    assert!(s.len() >= 5000);
    assert!(
        s.whole()
            .to_vec(0, s.len())
            .unwrap()
            .iter()
            .all(|b| *b == 0)
    );
}

#[test]
fn windows_stay_inside_their_segment() {
    let s = segment(4096);
    let w = s.window(100, 200).unwrap();
    assert_eq!((w.len(), w.segment_offset()), (200, 100));
    let sub = w.window(50, 150).unwrap();
    assert_eq!((sub.len(), sub.segment_offset()), (150, 150));
    for (off, len) in [
        (51, 150),
        (201, 0),
        (usize::MAX, 1),
        (1, usize::MAX),
        (0, 201),
    ] {
        let e = w.window(off, len).unwrap_err();
        assert!(
            matches!(e, MemoryError::OutOfBounds { offset, asked, len: 200, .. } if offset == off && asked == len),
            "{e}"
        );
    }
    assert_eq!(w.window(200, 0).unwrap().len(), 0);
}

#[test]
fn every_access_is_checked() {
    let w = segment(4096).window(0, 64).unwrap();
    let mut buf = [0; 65];
    assert!(w.copy_out(0, &mut buf).is_err());
    assert!(w.copy_in(1, &buf[..64]).is_err());
    assert!(w.fill(64, 1, 0).is_err());
    assert!(w.read::<[u8; 65]>(0).is_err());
    assert!(w.write(63, &0u16).is_err());
    assert!(w.word64(60).is_err());
    assert!(matches!(w.word32(2), Err(MemoryError::Misaligned { .. })));
    assert!(w.copy_to(0, &w, 1, 64).is_err());
    assert!(w.copy_to(1, &w, 0, 64).is_err());
    assert!(w.cells::<Cqe>(0, 2).is_err());
    assert!(matches!(
        w.cells::<Odd>(0, 3),
        Err(MemoryError::NotPowerOfTwo { count: 3, .. })
    ));
    assert!(matches!(
        w.cells::<u64>(4, 1),
        Err(MemoryError::Misaligned { .. })
    ));
    // Nothing was written on the way.
    assert_eq!(w.to_vec(0, 64).unwrap(), vec![0; 64]);
}

#[test]
fn words_see_each_other_and_the_bytes() {
    let s = segment(4096);
    let w = s.window(8, 64).unwrap();
    let word = w.word32(4).unwrap();
    word.store_be(0x0102_0304, Ordering::Release);
    assert_eq!(w.to_vec(4, 4).unwrap(), [1, 2, 3, 4]);
    assert_eq!(word.load_be(Ordering::Acquire), 0x0102_0304);
    assert_eq!(s.whole().word8(12).unwrap().load(Ordering::Relaxed), 1);
    assert_eq!(
        word.swap(7, Ordering::AcqRel),
        u32::from_ne_bytes([1, 2, 3, 4])
    );
    // Orderings that a load or store cannot have do not panic.
    word.store(8, Ordering::Acquire);
    assert_eq!(word.load(Ordering::Release), 8);
    let big = w.word64(8).unwrap();
    big.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(big.fetch_add(2, Ordering::Relaxed), u64::MAX);
    assert_eq!(w.word16(8).unwrap().load(Ordering::Relaxed).to_le(), 1);
}

#[test]
fn typed_copies_at_any_offset() {
    let w = segment(4096).whole();
    for off in 0..17 {
        w.write(off, &cqe(off as u8)).unwrap();
        assert_eq!(w.read::<Cqe>(off).unwrap(), cqe(off as u8));
        w.write(off, &Odd([1, 2, 3, 4, 5, 6, 7])).unwrap();
        assert_eq!(w.to_vec(off, 7).unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(w.read::<Odd>(off).unwrap(), Odd([1, 2, 3, 4, 5, 6, 7]));
    }
}

#[test]
fn cells_wrap_by_mask() {
    let s = segment(4096);
    let cells: Cells<Cqe> = s.whole().cells(64, 8).unwrap();
    for i in 0u32..8 {
        cells.write(i, &cqe(i as u8));
    }
    assert_eq!(cells.read(11u32), cqe(3));
    assert_eq!(cells.read(usize::MAX), cqe(7));
    assert_eq!(cells.read(u16::MAX), cqe(7));
    assert_eq!(cells.load_u8::<63>(10u32, Ordering::Acquire), 0);
    assert_eq!(cells.load_u8::<63>(13u32, Ordering::Acquire), 1);
    assert_eq!(cells.read_part::<[u8; 4], 60>(2u32), [2, 2 ^ 0xff, 0x5a, 0]);
    cells.write_part::<[u8; 2], 60>(2u32, &[9, 9]);
    cells.store_u64::<8>(
        2u32,
        u64::from_be_bytes(*b"ABCDEFGH").to_be(),
        Ordering::Release,
    );
    let mut expect = cqe(2);
    expect.counter = [9, 9];
    expect.head[8..16].copy_from_slice(b"ABCDEFGH");
    assert_eq!(cells.read(2u32), expect);
    // Neighbours and the bytes before the array are untouched.
    assert_eq!(cells.read(1u32), cqe(1));
    assert_eq!(cells.read(3u32), cqe(3));
    assert_eq!(s.whole().to_vec(0, 64).unwrap(), vec![0; 64]);
    cells
        .word32::<60>(1u32)
        .unwrap()
        .store_be(0x0a0b_0c0d, Ordering::Release);
    assert_eq!(cells.read_part::<[u8; 4], 60>(1u32), [10, 11, 12, 13]);
}

#[test]
fn cells_of_odd_sizes() {
    let w = segment(4096).whole();
    let cells: Cells<Odd> = w.cells(3, 4).unwrap();
    cells.write(5u32, &Odd([9; 7]));
    assert_eq!(
        w.to_vec(3, 28).unwrap(),
        [vec![0; 7], vec![9; 7], vec![0; 14]].concat()
    );
    assert_eq!(cells.read(1u32), Odd([9; 7]));
}

#[test]
fn inline_data_wraps_at_the_end_of_the_ring() {
    let w = segment(4096).whole();
    let cells: Cells<[u8; 64]> = w.cells(0, 4).unwrap();
    let data: Vec<u8> = (1..=100).collect();
    cells.copy_in(3u32, 28, &data);
    assert_eq!(w.to_vec(3 * 64 + 28, 36).unwrap(), &data[..36]);
    assert_eq!(w.to_vec(0, 64).unwrap(), &data[36..]);
    assert_eq!(w.to_vec(64, 3 * 64 - 36).unwrap(), vec![0; 3 * 64 - 36]);
    assert_eq!(w.to_vec(256, 64).unwrap(), vec![0; 64]);
}

#[test]
fn bulk_copies_of_every_length() {
    let a = segment(16384).whole();
    let b = segment(16384).whole();
    let lens = (0..200).chain([255, 256, 257, 1023, 1024, 1025, 1500, 9000]);
    for len in lens {
        for (from, to) in [(0, 0), (1, 3), (7, 64)] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8 | 1).collect();
            b.fill(0, 10_000, 0).unwrap();
            a.copy_in(from, &data).unwrap();
            a.copy_to(from, &b, to, len).unwrap();
            let mut back = vec![0; len];
            b.copy_out(to, &mut back).unwrap();
            assert_eq!(back, data, "length {len}");
            assert!(b.to_vec(0, to).unwrap().iter().all(|x| *x == 0));
            assert!(b.to_vec(to + len, 64).unwrap().iter().all(|x| *x == 0));
        }
    }
}

#[test]
fn a_passed_descriptor_shows_the_same_memory() {
    let mine = segment(8192);
    mine.whole().copy_in(4096, b"hello").unwrap();
    let fd = mine.fd().unwrap().try_clone_to_owned().unwrap();
    let theirs = Segment::from_fd(fd, 4096, 100).unwrap();
    assert_eq!(theirs.len(), 100);
    assert_eq!(theirs.whole().to_vec(0, 5).unwrap(), b"hello");
    theirs
        .whole()
        .word32(8)
        .unwrap()
        .store(77, Ordering::Release);
    assert_eq!(
        mine.whole().word32(4104).unwrap().load(Ordering::Acquire),
        77
    );
    assert!(theirs.warnings().is_empty(), "own files cannot shrink");
    // The mapping outlives the handle it came from.
    let window = theirs.whole();
    drop((mine, theirs));
    assert_eq!(window.to_vec(0, 5).unwrap(), b"hello");
}

#[test]
fn a_short_or_misaligned_mapping_is_refused() {
    let mine = segment(8192);
    let dup = || mine.fd().unwrap().try_clone_to_owned().unwrap();
    let e = Segment::from_fd(dup(), 4096, 4097).unwrap_err();
    assert!(
        matches!(e, MemoryError::FileTooShort { size: 8192, .. }),
        "{e}"
    );
    assert!(Segment::from_fd(dup(), 12288, 1).is_err());
    assert!(Segment::from_fd(dup(), !4095, 8192).is_err());
    let e = Segment::from_fd(dup(), 100, 10).unwrap_err();
    assert!(
        matches!(e, MemoryError::Misaligned { offset: 100, .. }),
        "{e}"
    );
    assert!(Segment::from_fd(dup(), 0, 0).is_err());
}

#[test]
fn a_reservation_costs_nothing_until_touched() {
    let s = Segment::reserve(1 << 40).unwrap();
    assert_eq!(s.len(), 1 << 40);
    assert!(s.fd().is_none());
    let w = s.whole().word64((1 << 40) - 8).unwrap();
    assert_eq!(w.load(Ordering::Relaxed), 0);
    w.store(5, Ordering::Relaxed);
    assert_eq!(w.load(Ordering::Relaxed), 5);
    assert!(Segment::reserve(0).is_err());
    assert!(Segment::reserve(usize::MAX).is_err());
}

#[test]
fn what_does_not_fit_fails_at_once_and_says_why() {
    let e = Segment::map(&SegmentRequest::new("queues", 1 << 46).page(PageChoice::Ordinary))
        .unwrap_err();
    assert!(
        matches!(e, MemoryError::OutOfMemory { needed, .. } if needed == 1 << 46),
        "{e}"
    );
    assert!(
        e.to_string()
            .starts_with("queues: 70368744177664 bytes needed"),
        "{e}"
    );
    let e = Segment::map(&SegmentRequest::new("q", 1 << 46).page(PageChoice::Huge2M)).unwrap_err();
    let text = e.to_string();
    assert!(
        matches!(
            e,
            MemoryError::NoHugepages {
                needed: 0x200_0000,
                ..
            }
        ),
        "{text}"
    );
    assert!(text.contains("nr_hugepages="), "{text}");
    assert!(Segment::map(&SegmentRequest::new("q", 0)).is_err());
    assert!(Segment::map(&SegmentRequest::new("q", usize::MAX)).is_err());
}

#[test]
fn the_owner_of_a_file_stays_as_long_as_any_window() {
    let ours = segment(8192);
    let fd = ours.fd().unwrap().try_clone_to_owned().unwrap();
    let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    let seen = Arc::downgrade(&owner);
    let theirs = Segment::from_owned_fd(fd, 4096, 4096, Some(owner)).unwrap();
    let word = theirs.whole().word32(0).unwrap();
    drop(theirs);
    assert!(seen.upgrade().is_some());
    drop(word);
    assert!(seen.upgrade().is_none());
}
