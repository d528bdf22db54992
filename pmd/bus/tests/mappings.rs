//! The mapping table against a model that is a plain list, over mixes of all its operations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

use pollux_bus::{BusError, HostMemory, Iova};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use proptest::prelude::*;

const PAGE: u64 = 0x1000;
/// Pages of addresses that are used: crowded, so that ranges meet.
const SPACE: u64 = 1200;

#[derive(Clone, Copy, Debug)]
enum Step {
    Map {
        page: u64,
        pages: u64,
        writable: bool,
    },
    /// Of one of those that are there.
    Unmap {
        which: usize,
    },
    Within {
        page: u64,
        pages: u64,
    },
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SPACE, 1..5_u64);
    prop_oneof![
        600 => (range, any::<bool>()).prop_map(|((page, pages), writable)| Step::Map { page, pages, writable }),
        100 => any::<usize>().prop_map(|which| Step::Unmap { which }),
        100 => (0..SPACE, 1..40_u64).prop_map(|(page, pages)| Step::Within { page, pages }),
        1 => Just(Step::Clear),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    page: u64,
    pages: u64,
    writable: bool,
}

impl Known {
    fn meets(&self, page: u64, pages: u64) -> bool {
        self.page < page + pages && page < self.page + self.pages
    }

    fn within(&self, page: u64, pages: u64) -> bool {
        self.page >= page && self.page + self.pages <= page + pages
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_table_is_what_a_list_would_be(steps in prop::collection::vec(step(), 1..900)) {
        let request = SegmentRequest::new("model", 4 * PAGE as usize).page(PageChoice::Ordinary);
        let file = Segment::map(&request).unwrap();
        let memory = HostMemory::new();
        memory.set_bus_master(true).unwrap();
        let mut reader = memory.reader();
        reader.park();
        let mut model: Vec<Known> = Vec::new();
        for step in steps {
            match step {
                Step::Map { page, pages, writable } => {
                    let window = file.window(0, (pages * PAGE) as usize).unwrap();
                    let iova = Iova(page * PAGE);
                    let outcome = match writable {
                        true => memory.map(iova, window),
                        false => memory.map_read_only(iova, window),
                    };
                    let free = !model.iter().any(|known| known.meets(page, pages));
                    prop_assert_eq!(outcome.is_ok(), free);
                    if free {
                        model.push(Known { page, pages, writable });
                    }
                }
                Step::Unmap { which } => {
                    if !model.is_empty() {
                        let known = model.swap_remove(which % model.len());
                        memory.unmap(Iova(known.page * PAGE), known.pages * PAGE).unwrap();
                    }
                }
                Step::Within { page, pages } => {
                    let (first, last) = (page * PAGE, (page + pages) * PAGE - 1);
                    let cut = model.iter().any(|known| known.meets(page, pages) && !known.within(page, pages));
                    match memory.unmap_within(first, last) {
                        Ok(removed) => {
                            prop_assert!(!cut);
                            let gone = model.iter().filter(|known| known.within(page, pages)).count();
                            prop_assert_eq!(removed.len(), gone);
                            model.retain(|known| !known.within(page, pages));
                        }
                        Err(BusError::NotMapped { .. }) => prop_assert!(cut),
                        Err(other) => panic!("{other}"),
                    }
                }
                Step::Clear => {
                    memory.clear().unwrap();
                    model.clear();
                }
            }
            prop_assert_eq!(memory.mappings(), model.len());
        }
        reader.unpark();
        for page in 0..SPACE + 8 {
            let known = model.iter().find(|known| known.meets(page, 1));
            let read = reader.resolve(page * PAGE, 1).map(|(_, offset)| offset as u64);
            let offset = known.map(|known| (page - known.page) * PAGE);
            prop_assert_eq!(read.ok(), offset, "page {}", page);
            let write = reader.resolve_mut(page * PAGE + 7, 9).is_ok();
            prop_assert_eq!(write, known.is_some_and(|known| known.writable));
            // Never across the end of a mapping.
            let whole = known.map_or(0, |known| (known.page + known.pages - page) * PAGE);
            prop_assert!(reader.resolve(page * PAGE, whole + 1).is_err());
        }
    }
}
