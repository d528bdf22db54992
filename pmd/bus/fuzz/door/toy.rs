//! A device that does with a client's memory and vectors what a client could wish it did not.
//!
//! | offset | register |
//! | --- | --- |
//! | 0x08 | store n (8 bytes): raise vector n |
//! | 0x10 | store a device address (8 bytes): a thread counts there, again and again, until 0 |
//! | others | a load gives the low byte of each byte's offset |
//! | 0x2000, 0x3000 | mapped pages |

use pollux_bus::{Device, Host, HostReader, Identity, MappedWindow};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The register that says where to count.
pub const TARGET: u64 = 0x10;
const RAISE: u64 = 0x08;

const SIZE: u64 = 0x4000;
const VECTORS: usize = 8;

struct Connected {
    host: Host,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// See the module.
pub struct Toy {
    pages: Segment,
    target: Arc<AtomicU64>,
    connected: Mutex<Option<Connected>>,
    pub connects: AtomicUsize,
    pub disconnects: AtomicUsize,
}

impl Toy {
    pub fn new() -> Arc<Self> {
        let request = SegmentRequest::new("toy", SIZE as usize).page(PageChoice::Ordinary);
        Arc::new(Self {
            pages: Segment::map(&request).unwrap(),
            target: Arc::default(),
            connected: Mutex::new(None),
            connects: AtomicUsize::new(0),
            disconnects: AtomicUsize::new(0),
        })
    }

    /// The first word of the first mapped page.
    pub fn look(&self) -> u64 {
        let word = self.pages.whole().word64(0x2000).unwrap();
        u64::from_be(word.load(Ordering::Acquire))
    }

    fn wake(&self) {
        if let Some(connected) = &*self.connected.lock().unwrap() {
            connected.thread.thread().unpark();
        }
    }
}

fn count(reader: &mut HostReader, target: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        match target.load(Ordering::Acquire) {
            0 => {
                reader.park();
                std::thread::park();
                reader.unpark();
            }
            at => {
                reader.quiesce();
                let mut bytes = [0; 4];
                if reader.copy_out(at, &mut bytes).is_ok() {
                    let next = u32::from_ne_bytes(bytes).wrapping_add(1);
                    // Memory that may only be read refuses.
                    reader.copy_in(at, &next.to_ne_bytes()).unwrap_or_default();
                }
                std::thread::yield_now();
            }
        }
    }
}

impl Device for Toy {
    fn identity(&self) -> Identity {
        Identity {
            name: "toy".to_owned(),
            vendor: 0x15b3,
            device: 0x1015,
            emulated: true,
            node: None,
        }
    }

    fn register_size(&self) -> u64 {
        SIZE
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        [0x2000, 0x3000]
            .into_iter()
            .map(|offset| MappedWindow {
                offset: offset as u64,
                memory: self.pages.window(offset, 0x1000).unwrap(),
            })
            .collect()
    }

    fn vectors(&self) -> usize {
        VECTORS
    }

    fn connect(&self, host: Host) -> bool {
        let mut connected = self.connected.lock().unwrap();
        if connected.is_some() {
            return false;
        }
        self.target.store(0, Ordering::Release);
        let (stop, target) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.target));
        let mut reader = host.memory.reader();
        let its_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || count(&mut reader, &target, &its_stop));
        *connected = Some(Connected { host, stop, thread });
        self.connects.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn disconnect(&self) {
        if let Some(connected) = self.connected.lock().unwrap().take() {
            connected.stop.store(true, Ordering::Release);
            connected.thread.thread().unpark();
            connected.thread.join().unwrap();
            self.disconnects.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            *byte = at as u8;
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let Ok(value) = bytes.try_into().map(u64::from_be_bytes) else {
            return;
        };
        match offset {
            RAISE => {
                if let Some(connected) = &*self.connected.lock().unwrap() {
                    connected.host.interrupts.raise(value as usize);
                }
            }
            TARGET => {
                self.target.store(value, Ordering::Release);
                self.wake();
            }
            _ => {}
        }
    }

    fn reset(&self) {
        self.target.store(0, Ordering::Release);
    }
}
