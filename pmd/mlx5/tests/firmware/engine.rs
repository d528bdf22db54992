//! The device's thread: takes doorbells, reads and writes the driver's memory, raises vectors.

use super::{Command, Firmware, Verdict};
use pollux_bus::{Host, HostReader};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

/// Something for the device's thread.
pub(super) enum Message {
    Queue(u64),
    Doorbell(u32),
    Consumed { eqn: u8, index: u32, arm: bool },
    Raise(Raise),
    Vector(usize),
    Release,
    Reset,
}

/// An event of the device's own accord.
#[derive(Clone, Debug)]
pub enum Raise {
    /// A page request: function, flags (0x8000 embedded, 0x4000 release all), count.
    Pages {
        function: u16,
        flags: u16,
        count: i32,
    },
    /// Port change with this sub-type.
    Port(u8),
    /// Any event: type, and its 28 bytes of data.
    Other(u8, [u8; 28]),
    /// The same, many times.
    Many(u8, [u8; 28], usize),
}

struct Eq {
    base: u64,
    log_size: u32,
    producer: u32,
    consumer: u32,
    armed: bool,
    vector: usize,
    mask: u64,
}

pub(super) struct Engine {
    firmware: Arc<Firmware>,
    reader: HostReader,
    host: Host,
    queue: u64,
    eqs: BTreeMap<u8, Eq>,
    held: Vec<(Command, u8)>,
    seen: BTreeMap<u16, usize>,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Engine {
    pub(super) fn new(firmware: Arc<Firmware>, host: Host) -> Self {
        let reader = host.memory.reader();
        Self {
            firmware,
            reader,
            host,
            queue: 0,
            eqs: BTreeMap::new(),
            held: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            self.reader.park();
            let Ok(message) = messages.recv() else { return };
            self.reader.unpark();
            match message {
                Message::Queue(address) => self.queue = address,
                Message::Doorbell(bits) => {
                    (0..32)
                        .filter(|slot| bits >> slot & 1 != 0)
                        .for_each(|slot| self.command(slot));
                }
                Message::Consumed { eqn, index, arm } => self.consumed(eqn, index, arm),
                Message::Raise(raise) => self.raise(&raise),
                Message::Vector(vector) => {
                    self.host.interrupts.raise(vector);
                }
                Message::Release => {
                    for (command, token) in std::mem::take(&mut self.held).into_iter().rev() {
                        self.carry_out(&command, token, &Verdict::Do);
                    }
                }
                Message::Reset => {
                    self.queue = 0;
                    self.eqs.clear();
                    self.held.clear();
                }
            }
        }
    }

    fn command(&mut self, slot: u32) {
        let mut entry = [0; 64];
        self.reader
            .copy_out(self.queue + u64::from(slot) * 64, &mut entry)
            .unwrap();
        assert_eq!(entry[0], 7, "type of the entry");
        assert_eq!(entry[63], 1, "owned by the device, no status");
        assert_eq!(
            entry.iter().fold(0, |a, b| a ^ b),
            0xff,
            "signature of the entry"
        );
        let token = entry[60];
        assert_ne!(token, 0);
        let input_len = be32(&entry, 4) as usize;
        let mut input = entry[16..32].to_vec();
        let mut next = be64(&entry, 8);
        let mut number = 0;
        while input.len() < input_len {
            let mut mailbox = [0; 576];
            assert_eq!(next % 1024, 0, "alignment of a mailbox");
            self.reader.copy_out(next, &mut mailbox).unwrap();
            assert_eq!(be32(&mailbox, 568), number, "block number");
            assert_eq!(mailbox[573], token, "token of a mailbox");
            assert_eq!(
                mailbox.iter().fold(0, |a, b| a ^ b),
                0xff,
                "signature of a mailbox"
            );
            input.extend(&mailbox[..512]);
            next = be64(&mailbox, 560);
            number += 1;
        }
        assert_eq!(next, 0, "the chain ends with the message");
        input.truncate(input_len);
        let opcode = u16::from_be_bytes([input[0], input[1]]);
        let nth = self.seen.entry(opcode).or_default();
        let command = Command {
            opcode,
            op_mod: u16::from_be_bytes([input[6], input[7]]),
            nth: *nth,
            slot,
            input,
            output_len: be32(&entry, 56) as usize,
        };
        *nth += 1;
        let verdict = {
            let mut state = self.firmware.state.lock().unwrap();
            state.log.push(command.clone());
            // Taken out, because it may look at the state.
            let mut script = state.script.take();
            drop(state);
            let verdict = script
                .as_mut()
                .map_or(Verdict::Do, |script| script(&command));
            let mut state = self.firmware.state.lock().unwrap();
            if state.script.is_none() {
                state.script = script;
            }
            verdict
        };
        match verdict {
            Verdict::Hang => {}
            Verdict::Hold => self.held.push((command, token)),
            verdict => self.carry_out(&command, token, &verdict),
        }
    }

    fn carry_out(&mut self, command: &Command, token: u8, verdict: &Verdict) {
        let mut output = vec![0; command.output_len.max(16)];
        let mut status = 0;
        match verdict {
            Verdict::Refuse(code, syndrome) => {
                output[0] = *code;
                output[4..8].copy_from_slice(&syndrome.to_be_bytes());
            }
            Verdict::Delivery(code) => status = code << 1,
            Verdict::Answer(answer) => {
                self.obey(command, &mut output);
                output[..answer.len()].copy_from_slice(answer);
            }
            _ => self.obey(command, &mut output),
        }
        let at = self.queue + u64::from(command.slot) * 64;
        let mut entry = [0; 64];
        self.reader.copy_out(at, &mut entry).unwrap();
        entry[32..48].copy_from_slice(&output[..16]);
        let mut next = be64(&entry, 48);
        for part in output[16..].chunks(512) {
            let mut mailbox = [0; 576];
            self.reader.copy_out(next, &mut mailbox).unwrap();
            mailbox[..part.len()].copy_from_slice(part);
            if *verdict == Verdict::WrongToken {
                mailbox[573] ^= 1;
            }
            mailbox[574] = 0;
            mailbox[574] = !mailbox[512..574].iter().fold(0, |a, b| a ^ b);
            mailbox[575] = 0;
            mailbox[575] = !mailbox.iter().fold(0, |a, b| a ^ b);
            self.reader.copy_in(next, &mailbox).unwrap();
            next = be64(&mailbox, 560);
        }
        entry[60] = token;
        entry[63] = status;
        entry[61] = 0;
        entry[61] = !entry.iter().fold(0, |a, b| a ^ b);
        self.reader.copy_in(at, &entry[..60]).unwrap();
        let last = u32::from_ne_bytes(entry[60..].try_into().unwrap());
        let (window, offset) = self.reader.resolve(at + 60, 4).unwrap();
        window
            .word32(offset)
            .unwrap()
            .store(last, Ordering::Release);
        if *verdict != Verdict::LoseEvent {
            let mut data = [0; 28];
            data[..4].copy_from_slice(&(1u32 << command.slot).to_be_bytes());
            self.event(0x0a, 0, &data);
        }
    }

    fn obey(&mut self, command: &Command, output: &mut [u8]) {
        let mut state = self.firmware.state.lock().unwrap();
        state.objects.carry_out(command, output);
        match command.opcode {
            0x10a => output[108..112].copy_from_slice(&3u32.to_be_bytes()),
            0x107 => {
                let count = state.startup[usize::from(command.op_mod) - 1];
                output[12..16].copy_from_slice(&count.to_be_bytes());
            }
            0x108 => state.objects.manage_pages(command, output),
            0x100 => capabilities(command.op_mod >> 1, &mut output[16..]),
            0x750 => output[15] = 0x10 | u8::from(state.link_up),
            0x754 => output[16 + 0xf6..16 + 0xfc].copy_from_slice(&[2, 0, 0, 0, 0, 7]),
            0x805 => register(command, output),
            0x301 => {
                drop(state);
                self.create_eq(command, output);
            }
            0x302 => {
                drop(state);
                self.eqs.remove(&command.input[11]);
            }
            _ => {}
        }
    }

    fn create_eq(&mut self, command: &Command, output: &[u8]) {
        let context = &command.input[16..];
        let eq = Eq {
            base: be64(&command.input, 272),
            log_size: u32::from(context[12] & 0x1f),
            producer: 0,
            consumer: 0,
            armed: false,
            vector: usize::from(context[23]),
            mask: be64(&command.input, 0x58) | extra(&command.input),
        };
        assert_eq!(
            eq.base % (64 << eq.log_size),
            0,
            "the ring is one page of its size"
        );
        self.eqs.insert(output[11], eq);
    }

    fn consumed(&mut self, eqn: u8, index: u32, arm: bool) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        eq.consumer = index;
        eq.armed |= arm;
        self.fire(eqn);
    }

    fn fire(&mut self, eqn: u8) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        if eq.armed && eq.producer & 0xff_ffff != eq.consumer {
            eq.armed = false;
            let deaf = self.firmware.state.lock().unwrap().deaf;
            if !deaf {
                self.host.interrupts.raise(eq.vector);
            }
        }
    }

    fn raise(&mut self, raise: &Raise) {
        match raise {
            Raise::Pages {
                function,
                flags,
                count,
            } => {
                let mut data = [0; 28];
                data[..2].copy_from_slice(&flags.to_be_bytes());
                data[2..4].copy_from_slice(&function.to_be_bytes());
                data[4..8].copy_from_slice(&count.to_be_bytes());
                self.event(0x0b, 0, &data);
            }
            Raise::Port(kind) => {
                let mut data = [0; 28];
                data[8] = 0x10;
                self.event(0x09, *kind, &data);
            }
            Raise::Other(kind, data) => self.event(*kind, 0, data),
            Raise::Many(kind, data, count) => {
                (0..*count).for_each(|_| self.event(*kind, 0, data));
            }
        }
    }

    /// Writes an event into the queue that wants it.
    fn event(&mut self, kind: u8, sub: u8, data: &[u8; 28]) {
        let found = self.eqs.iter_mut().find(|(_, eq)| eq.mask >> kind & 1 != 0);
        let Some((eqn, eq)) = found else { return };
        let eqn = *eqn;
        let used = eq.producer.wrapping_sub(eq.consumer) & 0xff_ffff;
        if used >= 1 << eq.log_size {
            let fault = format!("event queue {eqn} overrun");
            self.firmware
                .state
                .lock()
                .unwrap()
                .objects
                .faults
                .push(fault);
            return;
        }
        let size = 1u32 << eq.log_size;
        let at = eq.base + u64::from(eq.producer & (size - 1)) * 64;
        let mut entry = [0; 64];
        entry[1] = kind;
        entry[3] = sub;
        entry[32..60].copy_from_slice(data);
        entry[63] = u8::from(eq.producer & size != 0);
        eq.producer += 1;
        self.reader.copy_in(at, &entry[..60]).unwrap();
        let last = u32::from_ne_bytes(entry[60..].try_into().unwrap());
        let (window, offset) = self.reader.resolve(at + 60, 4).unwrap();
        window
            .word32(offset)
            .unwrap()
            .store(last, Ordering::Release);
        self.fire(eqn);
    }
}

/// Capability groups with what the driver asks for.
fn capabilities(group: u16, bytes: &mut [u8]) {
    match group {
        0 => {
            bytes[0x19] = 15; // log_max_cq_sz
            bytes[0x1b] = 16; // log_max_cq
            bytes[0x1f] = 7; // log_max_eq
            bytes[0x30] = 0x40; // vport_counters
            bytes[0x34] = 0x02; // nic_flow_table
            bytes[0x36] = 0x01; // Ethernet
            bytes[0x43] = 0x08; // eth_net_offloads
            bytes[0x52..0x54].copy_from_slice(&1024u16.to_be_bytes()); // max_wqe_sz_sq
            bytes[0x6c] = 10; // log_max_rq
            bytes[0x6d] = 10; // log_max_sq
            bytes[0x72] = 9; // log_max_rqt_size
            bytes[0x7b] = 15; // log_max_wq_sz
        }
        1 => bytes[2] = 0x20, // wqe_inline_mode: not required
        7 => {
            bytes[0x40] = 0x80; // receive tables: supported
            bytes[0x44] = 16; // entries, log 2
            bytes[0x47] = 64; // levels
            bytes[0x60..0x62].copy_from_slice(&[0xa0, 0x01]); // MAC, EtherType, IP protocol
        }
        _ => {}
    }
}

/// ACCESS_REG: PMTU and PTYS can be read.
fn register(command: &Command, output: &mut [u8]) {
    match u16::from_be_bytes([command.input[10], command.input[11]]) {
        0x5003 => {
            for (at, mtu) in [(4, 9978u16), (8, 1522), (12, 1522)] {
                output[16 + at..18 + at].copy_from_slice(&mtu.to_be_bytes());
            }
        }
        0x5004 => output[16 + 36..16 + 40].copy_from_slice(&(1u32 << 27).to_be_bytes()),
        _ => {}
    }
}

/// The queue for port events takes those that tests make up, too.
fn extra(input: &[u8]) -> u64 {
    if be64(input, 0x58) >> 9 & 1 != 0 {
        1 << 0x16
    } else {
        0
    }
}
