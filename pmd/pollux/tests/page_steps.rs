//! A step of page service allocates and frees nothing of its own: counted by the allocator itself, on the
//! control thread, while pages go back and forth by the hundred thousand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(unsafe_code)] // a global allocator cannot be had otherwise

use pollux_bus::local;
use pollux_emu::faults::PageDemand;
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::PageChoice;
use pollux_mlx5::{OpenOptions, PageBacking, PageOptions, Port};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts calls by thread id; nothing here may allocate.
struct Counting;

const THREADS: usize = 1 << 16;
static CALLS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

fn note() {
    let thread = nix::unistd::gettid().as_raw() as usize;
    CALLS[thread % THREADS].fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The thread of this process that is called so.
fn thread(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let found = tasks.map(Result::unwrap).find(|task| {
        let called = std::fs::read_to_string(task.path().join("comm"));
        called.is_ok_and(|called| called.trim() == name)
    });
    let task = found.unwrap().file_name();
    task.to_str().unwrap().parse().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn steps_allocate_and_free_nothing() {
    let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
    let function = local::connect(emulator.function(0).unwrap()).unwrap();
    let options = OpenOptions {
        pages: PageChoice::Ordinary,
        firmware_pages: PageOptions {
            backing: PageBacking::Untouched,
            // Memory stays, so that the later rounds are steps and nothing else.
            release_interval: None,
            ..PageOptions::default()
        },
        ..OpenOptions::default()
    };
    let port = Port::open(function, options).unwrap();
    let base = port.pages().held;
    let faults = emulator.faults(0).unwrap();
    let control = thread("ctl:emu0");
    let calls = || CALLS[control % THREADS].load(Ordering::Relaxed);
    // Firmware's own ledger says when it is over: asking the control thread would be counted.
    let firmware_has = |pages: usize| {
        until("firmware", || {
            emulator.report(0).unwrap().firmware_pages == pages
        });
        // The last answer is booked, and the thread sleeps.
        std::thread::sleep(Duration::from_millis(50));
    };
    let round = || {
        faults.page_request(PageDemand::Give(400_000));
        firmware_has(base + 400_000);
        faults.page_request(PageDemand::Take(400_000));
        firmware_has(base);
    };
    round();
    let steps = port.pages().steps;
    // The thread is done with that question.
    until("quiet", || {
        let before = calls();
        std::thread::sleep(Duration::from_millis(100));
        before == calls()
    });
    let before = calls();
    assert!(before > 0, "the right thread is looked at");
    for _ in 0..5 {
        round();
    }
    assert_eq!(calls() - before, 0, "calls of the allocator in 80 steps");
    assert_eq!(port.pages().steps - steps, 80);
    port.close().unwrap();
}
