//! A device as small as bring-up needs one: registers, a command queue, event queues. It accepts
//! every command, remembers what is alive, and does what a script says instead where a test wants
//! a device that answers late, never, wrongly, or in another order.
//!
//! Every number here is the PRM's, written down again: nothing is taken from the driver or from
//! the wire-format crate.
#![allow(dead_code)] // each test file uses a part

mod engine;
mod objects;

pub use engine::Raise;
pub use objects::Objects;

use engine::{Engine, Message};
use pollux_bus::{Device, Function, Host, Identity, MappedWindow};
use pollux_mempool::{PageChoice, Segment, SegmentRequest};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A command as it arrived.
#[derive(Clone, Debug)]
pub struct Command {
    pub opcode: u16,
    pub op_mod: u16,
    /// How many of this opcode came before.
    pub nth: usize,
    pub slot: u32,
    pub input: Vec<u8>,
    pub output_len: usize,
}

impl Command {
    /// The big-endian 32-bit word at byte `at` of the input.
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.input[at..at + 4].try_into().unwrap())
    }
}

/// What the script says about a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Do it.
    Do,
    /// Refuse it with this status and syndrome.
    Refuse(u8, u32),
    /// Do it, but answer with this output.
    Answer(Vec<u8>),
    /// Do it; the completion event gets lost.
    LoseEvent,
    /// Never answer.
    Hang,
    /// Answer only when [`Firmware::release`] says so.
    Hold,
    /// End with this delivery status.
    Delivery(u8),
    /// Do it, but answer with a wrong token in the mailboxes.
    WrongToken,
}

type Script = Box<dyn FnMut(&Command) -> Verdict + Send>;

/// What tests may look at and change while the device runs.
pub struct State {
    pub registers: BTreeMap<u64, u32>,
    /// Every load gives ones.
    pub gone: bool,
    /// The health counter stands still.
    pub frozen: bool,
    /// Steps of the health counter.
    pub health: u32,
    pub script: Option<Script>,
    /// All commands, in order.
    pub log: Vec<Command>,
    pub objects: Objects,
    /// Answers to QUERY_PAGES, boot and init.
    pub startup: [i32; 2],
    /// Output of QUERY_VPORT_STATE: up or not.
    pub link_up: bool,
    /// Interrupts go nowhere.
    pub deaf: bool,
    pub resets: usize,
    /// The bus says that a program plays the device.
    pub emulated: bool,
}

/// The device.
pub struct Firmware {
    pub state: Mutex<State>,
    engine: Mutex<Option<(Sender<Message>, JoinHandle<()>)>>,
    uars: Segment,
}

/// First UAR page, which is trapped; the others are memory.
pub const FIRST_UAR: u32 = 16;
const UARS: usize = 64;
pub const VECTORS: usize = 4;

impl Firmware {
    pub fn new() -> Arc<Self> {
        let request = SegmentRequest::new("UAR pages", UARS * 4096).page(PageChoice::Ordinary);
        let registers = BTreeMap::from([
            (0x00, 0x0010_000e),         // firmware 14.16
            (0x04, 5 << 16 | 1020),      // command interface 5, sub-minor
            (0x14, 0x56),                // 32 entries of 64 bytes
            (0x200 + 0x30, 0x0e10_03fc), // health buffer: firmware version
        ]);
        Arc::new(Self {
            state: Mutex::new(State {
                registers,
                gone: false,
                frozen: false,
                health: 0,
                script: None,
                log: Vec::new(),
                objects: Objects::default(),
                startup: [6, 600],
                link_up: true,
                deaf: false,
                resets: 0,
                emulated: true,
            }),
            engine: Mutex::new(None),
            uars: Segment::map(&request).unwrap(),
        })
    }

    pub fn connect(self: &Arc<Self>) -> Arc<dyn Function> {
        pollux_bus::local::connect(Arc::new(Handle(Arc::clone(self)))).unwrap()
    }

    /// Sets what is done about commands from now on.
    pub fn script(&self, script: impl FnMut(&Command) -> Verdict + Send + 'static) {
        self.state.lock().unwrap().script = Some(Box::new(script));
    }

    pub fn no_script(&self) {
        self.state.lock().unwrap().script = None;
    }

    /// Opcodes in the order of arrival.
    pub fn opcodes(&self) -> Vec<u16> {
        self.state
            .lock()
            .unwrap()
            .log
            .iter()
            .map(|c| c.opcode)
            .collect()
    }

    fn send(&self, message: Message) {
        if let Some((engine, _)) = &*self.engine.lock().unwrap() {
            engine.send(message).unwrap();
        }
    }

    /// Writes an event and raises its vector.
    pub fn raise(&self, event: Raise) {
        self.send(Message::Raise(event));
    }

    /// Answers the commands held back, the last one first.
    pub fn release(&self) {
        self.send(Message::Release);
    }

    /// Raises a vector without an event.
    pub fn ring_vector(&self, vector: usize) {
        self.send(Message::Vector(vector));
    }
}

struct Handle(Arc<Firmware>);

impl Device for Handle {
    fn identity(&self) -> Identity {
        Identity {
            name: "fake0".into(),
            vendor: 0x15b3,
            device: 0x1017,
            emulated: self.0.state.lock().unwrap().emulated,
            node: None,
        }
    }

    fn register_size(&self) -> u64 {
        u64::from(FIRST_UAR) * 4096 + (UARS as u64) * 4096
    }

    fn mapped_windows(&self) -> Vec<MappedWindow> {
        let memory = self.0.uars.window(4096, (UARS - 1) * 4096).unwrap();
        vec![MappedWindow {
            offset: u64::from(FIRST_UAR + 1) * 4096,
            memory,
        }]
    }

    fn vectors(&self) -> usize {
        VECTORS
    }

    fn connect(&self, host: Host) -> bool {
        let mut engine = self.0.engine.lock().unwrap();
        if engine.is_some() {
            return false;
        }
        let (sender, receiver) = channel();
        let firmware = Arc::clone(&self.0);
        let join = std::thread::spawn(move || Engine::new(firmware, host).run(&receiver));
        *engine = Some((sender, join));
        true
    }

    fn disconnect(&self) {
        let engine = self.0.engine.lock().unwrap().take();
        if let Some((sender, join)) = engine {
            drop(sender);
            join.join().unwrap();
        }
        self.0.state.lock().unwrap().objects = Objects::default();
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) {
        let mut state = self.0.state.lock().unwrap();
        if state.gone {
            bytes.fill(0xff);
            return;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            let at = offset + at as u64;
            let word = match at & !3 {
                0x1010 => {
                    state.health += u32::from(!state.frozen);
                    state.health >> 2
                }
                register => state.registers.get(&register).copied().unwrap_or(0),
            };
            *byte = word.to_be_bytes()[(at & 3) as usize];
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let word = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        let uar = u64::from(FIRST_UAR) * 4096;
        match offset {
            0x10 => {
                self.0.state.lock().unwrap().registers.insert(0x10, word);
            }
            0x14 => {
                let high = {
                    let mut state = self.0.state.lock().unwrap();
                    state.registers.insert(0x14, (word & !0xff) | 0x56);
                    state.registers.get(&0x10).copied().unwrap_or(0)
                };
                self.0.send(Message::Queue(
                    u64::from(high) << 32 | u64::from(word & !0xfff),
                ));
            }
            0x18 => self.0.send(Message::Doorbell(word)),
            at if at == uar + 0x40 || at == uar + 0x48 => self.0.send(Message::Consumed {
                eqn: (word >> 24) as u8,
                index: word & 0xff_ffff,
                arm: at == uar + 0x40,
            }),
            _ => {}
        }
    }

    fn reset(&self) {
        let mut state = self.0.state.lock().unwrap();
        state.resets += 1;
        state.objects = Objects::default();
        drop(state);
        self.0.send(Message::Reset);
    }
}
