//! A small device model: enough registers to see each way in which a backing carries bytes, and a
//! thread that reaches the driver's memory as a device's threads do.
//!
//! | offset | register |
//! | --- | --- |
//! | 0x00 | reads 0x1111_2222 |
//! | 0x04 | scratch |
//! | 0x08 | store n: raise vector n |
//! | 0x0c | reads the number of resets |
//! | 0x10 | store a device address (64 bits): add 1 to the big-endian 32-bit word there |
//! | 0x18 | outcome of the last addition: 1 done, 2 not mapped |
//! | 0x1c | store 1: keep the window that was resolved last; store 0: let go |
//! | 0x2000, 0x5000 | one mapped page each |

use pollux_bus::{Device, Host, HostReader, Identity, MappedWindow};
use pollux_mempool::{PageChoice, Segment, SegmentRequest, Window};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub const SIZE: u64 = 0x6000;
pub const VECTORS: usize = 40;
/// Mapped pages; each is at the same place in the region and in its file.
const PAGES: [u64; 2] = [0x2000, 0x5000];

enum Job {
    Add(u64),
    Hold(bool),
    Stop,
}

struct Connected {
    host: Host,
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

/// See the module.
pub struct Fake {
    pages: Segment,
    scratch: AtomicU32,
    resets: AtomicU32,
    outcome: Arc<AtomicU32>,
    connected: Mutex<Option<Connected>>,
    pub disconnects: AtomicU32,
    /// Loads of 0x20 wait while this is set.
    pub deaf: AtomicBool,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        let request =
            SegmentRequest::new("fake registers", SIZE as usize).page(PageChoice::Ordinary);
        Arc::new(Self {
            pages: Segment::map(&request).unwrap(),
            scratch: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            outcome: Arc::default(),
            connected: Mutex::new(None),
            disconnects: AtomicU32::new(0),
            deaf: AtomicBool::new(false),
        })
    }

    /// The device's own view of a mapped register word.
    pub fn look(&self, page: usize) -> u64 {
        u64::from_be(
            self.pages
                .whole()
                .word64(PAGES[page] as usize)
                .unwrap()
                .load(Ordering::Acquire),
        )
    }

    pub fn host(&self) -> Option<Host> {
        self.connected
            .lock()
            .unwrap()
            .as_ref()
            .map(|connected| connected.host.clone())
    }
}

fn work(jobs: &mpsc::Receiver<Job>, mut reader: HostReader, outcome: &AtomicU32) {
    let mut last: Option<Window> = None;
    let mut hold = false;
    loop {
        // A device thread does not sleep while it holds something, and parks when it does.
        let job = if hold {
            match jobs.recv_timeout(Duration::from_millis(1)) {
                Ok(job) => job,
                Err(mpsc::RecvTimeoutError::Timeout) => continue,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        } else {
            last = None;
            reader.park();
            let Ok(job) = jobs.recv() else { return };
            reader.unpark();
            job
        };
        match job {
            Job::Add(iova) => match reader.window(iova, 4) {
                Ok(window) => {
                    let value: u32 = u32::from_be(window.read(0).unwrap());
                    window.write(0, &(value + 1).to_be()).unwrap();
                    last = Some(window);
                    outcome.store(1, Ordering::Release);
                }
                Err(_) => outcome.store(2, Ordering::Release),
            },
            Job::Hold(on) => {
                hold = on;
                if on {
                    outcome.store(3, Ordering::Release);
                }
            }
            Job::Stop => return,
        }
        let _ = &last;
    }
}

impl Device for Fake {
    fn identity(&self) -> Identity {
        Identity {
            name: "fake:0".to_owned(),
            vendor: 0x15b3,
            device: 0x1015,
            emulated: true,
            node: Some(0),
        }
    }

    fn register_size(&self) -> u64 {
        SIZE
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        PAGES
            .into_iter()
            .map(|offset| MappedWindow {
                offset,
                memory: self.pages.window(offset as usize, 0x1000).unwrap(),
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
        let (jobs, queue) = mpsc::channel();
        let reader = host.memory.reader();
        let outcome = Arc::clone(&self.outcome);
        let thread = std::thread::spawn(move || work(&queue, reader, &outcome));
        *connected = Some(Connected { host, jobs, thread });
        true
    }

    fn disconnect(&self) {
        if let Some(connected) = self.connected.lock().unwrap().take() {
            connected.jobs.send(Job::Stop).unwrap();
            connected.thread.join().unwrap();
        }
        self.disconnects.fetch_add(1, Ordering::SeqCst);
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) {
        if offset == 0x20 {
            while self.deaf.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let value = match offset {
            0x00 => 0x1111_2222,
            0x04 => self.scratch.load(Ordering::Acquire),
            0x0c => self.resets.load(Ordering::Acquire),
            0x18 => self.outcome.load(Ordering::Acquire),
            _ => 0,
        };
        for (to, from) in bytes.iter_mut().zip(value.to_be_bytes()) {
            *to = from;
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let word = || u32::from_be_bytes(bytes.try_into().unwrap());
        let post = |job| {
            self.outcome.store(0, Ordering::Release);
            if let Some(connected) = self.connected.lock().unwrap().as_ref() {
                connected.jobs.send(job).unwrap();
            }
        };
        match offset {
            0x04 => self.scratch.store(word(), Ordering::Release),
            0x08 => {
                if let Some(host) = self.host() {
                    host.interrupts.raise(word() as usize);
                }
            }
            0x10 => post(Job::Add(u64::from_be_bytes(bytes.try_into().unwrap()))),
            0x1c => post(Job::Hold(word() == 1)),
            _ => {}
        }
    }

    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::AcqRel);
        self.scratch.store(0, Ordering::Release);
    }
}
