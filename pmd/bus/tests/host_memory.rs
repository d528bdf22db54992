//! The table that stands in for an IOMMU, and the address space above it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

use pollux_bus::{BusError, DmaDomain, DmaLimits, DmaSpace, HostMemory, Iova};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

fn segment(len: usize) -> Segment {
    Segment::map(&SegmentRequest::new("test", len).page(PageChoice::Ordinary)).unwrap()
}

fn table(ranges: &[(u64, usize)]) -> Arc<HostMemory> {
    let memory = HostMemory::new();
    memory.set_bus_master(true).unwrap();
    for (iova, len) in ranges {
        memory.map(Iova(*iova), segment(*len).whole()).unwrap();
    }
    memory
}

#[test]
fn refuses_every_kind_of_overlap() {
    let memory = table(&[(0x10_0000, 0x3000), (0x20_0000, 0x1000)]);
    for (iova, len) in [
        (0x10_0000, 0x3000),        // the same
        (0x10_1000, 0x1000),        // inside
        (0x0f_f000, 0x2000),        // over the start
        (0x10_2000, 0x2000),        // over the end
        (0x0f_f000, 0x8000),        // around
        (0x10_3000, 0x10_0000),     // from between into the next
        (u64::MAX - 0xfff, 0x2000), // past the end of the space
    ] {
        let refused = memory.map(Iova(iova), segment(len).whole());
        assert!(
            matches!(refused, Err(BusError::Overlap { .. })),
            "{iova:#x}+{len:#x}"
        );
    }
    assert_eq!(memory.mappings(), 2);
    // Neighbours that only touch are fine, on both sides.
    memory
        .map(Iova(0x10_3000), segment(0x1000).whole())
        .unwrap();
    memory
        .map(Iova(0x0f_f000), segment(0x1000).whole())
        .unwrap();
    assert_eq!(memory.mappings(), 4);
}

#[test]
fn unmaps_whole_mappings_only() {
    let memory = table(&[(0x10_0000, 0x3000), (0x10_3000, 0x1000)]);
    for (iova, len) in [
        (0x10_0000, 0x1000),
        (0x10_1000, 0x2000),
        (0x10_0000, 0x4000),
        (0x10_0000, 0),
        (0x30_0000, 0x1000),
        (0x10_0000, u64::MAX),
    ] {
        let refused = memory.unmap(Iova(iova), len);
        assert!(
            matches!(refused, Err(BusError::NotMapped { .. })),
            "{iova:#x}+{len:#x}"
        );
    }
    memory.unmap(Iova(0x10_0000), 0x3000).unwrap();
    assert!(memory.unmap(Iova(0x10_0000), 0x3000).is_err(), "once only");
    assert_eq!(memory.mappings(), 1);
}

#[test]
fn resolves_inside_one_mapping_and_copies_across_neighbours() {
    let memory = table(&[
        (0x10_0000, 0x1000),
        (0x10_1000, 0x1000),
        (0x10_3000, 0x1000),
    ]);
    let mut reader = memory.reader();
    assert!(reader.resolve(0x10_0ffc, 4).is_ok());
    assert!(reader.resolve(0x10_0ffd, 4).is_err(), "two mappings");
    assert!(reader.resolve(0x0f_ffff, 1).is_err());
    assert!(reader.resolve(0x10_2000, 1).is_err());
    assert!(reader.resolve(u64::MAX, 2).is_err());
    assert!(reader.resolve(0x10_0000, u64::MAX).is_err());
    assert_eq!(reader.window(0x10_1800, 0x800).unwrap().len(), 0x800);

    let bytes: Vec<u8> = (0..0x1800u32).map(|i| (i % 251) as u8).collect();
    reader.copy_in(0x10_0400, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    reader.copy_out(0x10_0400, &mut back).unwrap();
    assert!(bytes == back);
    let fault = reader.copy_in(0x10_1ff0, &[1; 0x20]).unwrap_err();
    assert_eq!(
        fault.iova,
        Iova(0x10_2000),
        "the first byte that is not there"
    );
    assert!(reader.copy_out(u64::MAX - 3, &mut [0; 8]).is_err());
}

#[test]
fn a_reader_sees_changes_when_it_says_so() {
    let memory = table(&[(0x10_0000, 0x1000)]);
    let mut reader = memory.reader();
    let before = reader.generation();
    assert!(!reader.quiesce());
    memory
        .map(Iova(0x20_0000), segment(0x1000).whole())
        .unwrap();
    assert!(reader.resolve(0x20_0000, 1).is_err(), "still the old table");
    assert!(reader.quiesce());
    assert_ne!(reader.generation(), before);
    assert!(reader.resolve(0x20_0000, 1).is_ok());
    assert!(!reader.quiesce());
}

/// Unmapping is held back by a reader that has not moved on, and by no other thread.
#[test]
fn unmap_waits_for_the_reader_that_holds() {
    let memory = table(&[(0x10_0000, 0x1000)]);
    let returned = Arc::new(AtomicBool::new(false));
    let (resolved, told) = mpsc::channel();
    let reader_thread = std::thread::spawn({
        let (memory, returned) = (Arc::clone(&memory), Arc::clone(&returned));
        move || {
            let mut reader = memory.reader();
            let window = reader.window(0x10_0000, 0x1000).unwrap();
            resolved.send(()).unwrap();
            // Gone from the table, and yet the memory must be there.
            while memory.mappings() != 0 {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                window.write(0, &7u32).unwrap();
                std::thread::yield_now();
            }
            let early = returned.load(Ordering::SeqCst);
            drop(window);
            reader.quiesce();
            early
        }
    });
    told.recv().unwrap();
    memory.unmap(Iova(0x10_0000), 0x1000).unwrap();
    returned.store(true, Ordering::SeqCst);
    assert!(
        !reader_thread.join().unwrap(),
        "unmap returned while the window was held"
    );
}

#[test]
fn nobody_waits_for_sleepers_and_the_gone() {
    let memory = table(&[
        (0x10_0000, 0x1000),
        (0x20_0000, 0x1000),
        (0x30_0000, 0x1000),
    ]);
    let mut sleeper = memory.reader();
    let gone = memory.reader();
    sleeper.park();
    drop(gone);
    memory.unmap(Iova(0x10_0000), 0x1000).unwrap();
    assert!(
        sleeper.resolve(0x20_0000, 1).is_err(),
        "a sleeper holds nothing"
    );
    sleeper.unpark();
    assert!(sleeper.resolve(0x10_0000, 1).is_err());
    assert!(sleeper.resolve(0x20_0000, 1).is_ok());
}

/// Readers that park and unpark all the time never use memory after its unmapping returned.
#[test]
fn parking_readers_never_touch_what_is_unmapped() {
    let memory = table(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    // One word per round: set before the mapping, cleared after the unmapping.
    let valid: Arc<Vec<AtomicBool>> = Arc::new((0..400).map(|_| AtomicBool::new(false)).collect());
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (memory, stop, valid) =
                (Arc::clone(&memory), Arc::clone(&stop), Arc::clone(&valid));
            std::thread::spawn(move || {
                let mut reader = memory.reader();
                let mut used = 0usize;
                while !stop.load(Ordering::Acquire) {
                    if let Ok((window, _)) = reader.resolve(0x10_0000, 8) {
                        let round: u64 = window.read(0).unwrap();
                        assert!(
                            valid[round as usize].load(Ordering::SeqCst),
                            "round {round} was over"
                        );
                        used += 1;
                    }
                    if used % 3 == 0 {
                        reader.park();
                        std::thread::yield_now();
                        reader.unpark();
                    }
                    reader.quiesce();
                }
                used
            })
        })
        .collect();
    for round in 0..valid.len() {
        let memory_of_round = segment(0x1000);
        memory_of_round.whole().write(0, &(round as u64)).unwrap();
        valid[round].store(true, Ordering::SeqCst);
        memory
            .map(Iova(0x10_0000), memory_of_round.whole())
            .unwrap();
        std::thread::yield_now();
        memory.unmap(Iova(0x10_0000), 0x1000).unwrap();
        valid[round].store(false, Ordering::SeqCst);
    }
    stop.store(true, Ordering::Release);
    for reader in readers {
        reader.join().unwrap();
    }
}

/// A space that can be told to refuse.
#[derive(Default)]
struct Stubborn {
    refuse_map: AtomicBool,
    refuse_unmap: AtomicBool,
    maps: AtomicUsize,
    unmaps: Mutex<Vec<(Iova, u64)>>,
}

struct Handle(Arc<Stubborn>);

impl DmaSpace for Handle {
    fn limits(&self) -> DmaLimits {
        let below = 0..0x40_0000;
        DmaLimits {
            address_bits: 32,
            reserved: vec![below],
            page_sizes: 0xffff_f000,
            max_mappings: 3,
        }
    }

    fn map(&self, _: Iova, _: &Window) -> Result<(), BusError> {
        if self.0.refuse_map.load(Ordering::SeqCst) {
            return Err(BusError::Refused {
                what: "a mapping",
                reason: "told so".to_owned(),
            });
        }
        self.0.maps.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), BusError> {
        if self.0.refuse_unmap.load(Ordering::SeqCst) {
            return Err(BusError::NotQuiescent {
                iova,
                len,
                millis: 1,
            });
        }
        self.0.unmaps.lock().unwrap().push((iova, len));
        Ok(())
    }
}

#[test]
fn the_domain_keeps_to_the_limits() {
    let space = Arc::new(Stubborn::default());
    let domain = DmaDomain::new(Box::new(Handle(Arc::clone(&space))));
    let segments: Vec<Segment> = (0..4).map(|_| segment(0x1000)).collect();
    let mut mappings: Vec<_> = segments[..3]
        .iter()
        .map(|s| domain.map(s).unwrap())
        .collect();
    for mapping in &mappings {
        assert!(mapping.iova().0 >= 0x40_0000 && mapping.iova().0 < 1 << 32);
    }
    let full = domain.map(&segments[3]).unwrap_err();
    assert!(full.to_string().contains("holds 3 mappings"), "{full}");
    // Joining a mapping that is there needs no room.
    mappings.push(domain.map(&segments[0]).unwrap());
    mappings.swap_remove(1);
    mappings.push(domain.map(&segments[3]).unwrap());
    assert_eq!(space.maps.load(Ordering::SeqCst), 4);
    drop(mappings);
    assert_eq!(domain.mappings(), 0);
    assert_eq!(space.unmaps.lock().unwrap().len(), 4);
}

#[test]
fn a_refused_mapping_leaves_nothing() {
    let space = Arc::new(Stubborn::default());
    let domain = DmaDomain::new(Box::new(Handle(Arc::clone(&space))));
    let memory = segment(0x1000);
    space.refuse_map.store(true, Ordering::SeqCst);
    assert!(
        domain
            .map(&memory)
            .unwrap_err()
            .to_string()
            .contains("told so")
    );
    assert_eq!(domain.mappings(), 0);
    space.refuse_map.store(false, Ordering::SeqCst);
    let mapping = domain.map(&memory).unwrap();
    drop(mapping);
    assert_eq!(space.unmaps.lock().unwrap().len(), 1);
}

#[test]
fn what_could_not_be_unmapped_is_never_used_again() {
    let space = Arc::new(Stubborn::default());
    let domain = DmaDomain::new(Box::new(Handle(Arc::clone(&space))));
    let memory = segment(0x1000);
    let address = memory.address();
    let mapping = domain.map(&memory).unwrap();
    let lost = mapping.iova();
    space.refuse_unmap.store(true, Ordering::SeqCst);
    drop(mapping);
    drop(memory);
    space.refuse_unmap.store(false, Ordering::SeqCst);
    assert_eq!(domain.mappings(), 1, "the address stays taken");
    let next = segment(0x1000);
    assert_ne!(next.address(), address, "the memory stays mapped");
    assert_ne!(domain.map(&next).unwrap().iova(), lost);
}
