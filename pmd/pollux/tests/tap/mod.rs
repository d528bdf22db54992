//! A device that passes everything on to another and notes each command on the way.

use pollux_bus::{Device, Host, HostReader, Identity, MappedWindow};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A command as it was handed over, and its answer where it has come.
#[derive(Clone, Debug)]
pub struct Sent {
    pub opcode: u16,
    pub input: Vec<u8>,
    pub output_len: usize,
    /// Empty until the command is read again.
    pub output: Vec<u8>,
    pub doorbell: u32,
    entry: u64,
    token: u8,
}

impl Sent {
    pub fn op_mod(&self) -> u16 {
        u16::from_be_bytes([self.input[6], self.input[7]])
    }
}

struct State {
    reader: Option<HostReader>,
    high: u32,
    queue: u64,
    sent: Vec<Sent>,
}

pub struct Tap {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Reads a message: its inline part, then the mailboxes from `next` on.
fn message(reader: &mut HostReader, inline: &[u8], mut next: u64, len: usize) -> Vec<u8> {
    let mut bytes = inline.to_vec();
    while bytes.len() < len && next != 0 {
        let mut mailbox = [0; 576];
        reader.copy_out(next, &mut mailbox).unwrap();
        bytes.extend(&mailbox[..512]);
        next = be64(&mailbox, 560);
    }
    bytes.truncate(len);
    bytes
}

impl State {
    /// Takes the answers that have come since the last look; whether none is missing.
    fn answers(&mut self) -> bool {
        let Some(reader) = &mut self.reader else {
            return true;
        };
        reader.unpark();
        for sent in self.sent.iter_mut().filter(|s| s.output.is_empty()) {
            let mut entry = [0; 64];
            reader.copy_out(sent.entry, &mut entry).unwrap();
            if entry[63] & 1 == 0 && entry[60] == sent.token {
                sent.output = message(reader, &entry[32..48], be64(&entry, 48), sent.output_len);
            }
        }
        reader.park();
        self.sent.iter().all(|s| !s.output.is_empty())
    }

    fn commands(&mut self, doorbell: u32) {
        self.answers();
        let Some(reader) = &mut self.reader else {
            return;
        };
        reader.unpark();
        for slot in (0..32u64).filter(|slot| doorbell >> slot & 1 != 0) {
            let at = self.queue + slot * 64;
            let mut entry = [0; 64];
            reader.copy_out(at, &mut entry).unwrap();
            let len = be32(&entry, 4) as usize;
            let input = message(reader, &entry[16..32], be64(&entry, 8), len);
            self.sent.push(Sent {
                opcode: u16::from_be_bytes([input[0], input[1]]),
                input,
                output_len: be32(&entry, 56) as usize,
                output: Vec::new(),
                doorbell,
                entry: at,
                token: entry[60],
            });
        }
        reader.park();
    }
}

impl Tap {
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let state = State {
            reader: None,
            high: 0,
            queue: 0,
            sent: Vec::new(),
        };
        Arc::new(Self {
            device,
            state: Mutex::new(state),
        })
    }

    /// All commands so far.
    pub fn sent(&self) -> Vec<Sent> {
        let mut state = self.state.lock().unwrap();
        state.answers();
        state.sent.clone()
    }
}

impl Device for Tap {
    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn register_size(&self) -> u64 {
        self.device.register_size()
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        self.device.mapped_windows()
    }

    fn vectors(&self) -> usize {
        self.device.vectors()
    }

    fn connect(&self, host: Host) -> bool {
        let mut reader = host.memory.reader();
        reader.park();
        self.state.lock().unwrap().reader = Some(reader);
        self.device.connect(host)
    }

    fn disconnect(&self) {
        self.state.lock().unwrap().reader = None;
        self.device.disconnect();
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) {
        self.device.load(offset, bytes);
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let word = if bytes.len() == 4 { be32(bytes, 0) } else { 0 };
        let mut state = self.state.lock().unwrap();
        match offset {
            0x10 => state.high = word,
            0x14 => state.queue = u64::from(state.high) << 32 | u64::from(word & !0xfff),
            0x18 => state.commands(word),
            _ => {}
        }
        self.device.store(offset, bytes);
        // The driver stands still meanwhile: its next command would overwrite this answer. A
        // command that waits for pages has no answer yet; it is read with a later one.
        let start = Instant::now();
        while offset == 0x18 && !state.answers() && start.elapsed() < Duration::from_millis(200) {
            std::thread::yield_now();
        }
    }

    fn reset(&self) {
        self.device.reset();
    }
}
