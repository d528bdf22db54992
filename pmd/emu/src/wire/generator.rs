//! A wire that makes frames up: UDP over IPv4, sizes and flows drawn by a seeded generator.
//!
//! All frames are made when the wire is opened, so that playing them costs a look into a table.

use super::pace::Pace;
use super::{Delivery, GenConfig, Wire, WireError};
use std::time::Duration;

/// Smallest frame that holds the headers and the sequence of its template.
const SMALLEST: u32 = 60;
/// Largest frame that any port takes.
const LARGEST: u32 = 65_535;
/// Most frames that are kept ready.
const TEMPLATES: usize = 4096;
/// Most bytes that they may take together.
const TEMPLATE_BYTES: usize = 64 << 20;

pub(super) struct GenWire {
    what: String,
    frames: Vec<Vec<u8>>,
    next: usize,
    left: Option<u64>,
    pace: Pace,
}

/// Marsaglia's xorshift with 64 bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

impl GenWire {
    pub fn open(config: &GenConfig) -> Result<Self, WireError> {
        let refuse = |reason: String| Err(WireError::Generator { reason });
        if config.sizes.is_empty() {
            return refuse("no frame sizes given; name at least one, as in sizes=[60]".into());
        }
        for size in &config.sizes {
            if !(SMALLEST..=LARGEST).contains(size) {
                return refuse(format!(
                    "frame size {size} is not in {SMALLEST}..={LARGEST} bytes; the check sequence is not counted"
                ));
            }
        }
        let flows = config.flows as usize;
        if flows == 0 || flows > TEMPLATES {
            return refuse(format!(
                "{flows} flows asked for, 1 to {TEMPLATES} can be had"
            ));
        }
        // Zero is the one state that xorshift never leaves.
        let mut random = Random(config.seed ^ 0x9e37_79b9_7f4a_7c15);
        if random.0 == 0 {
            random.0 = 1;
        }
        // Enough frames for every flow in every size, within the limits.
        let longest = config.sizes.iter().max().copied().unwrap_or(SMALLEST) as usize;
        let wanted = flows.saturating_mul(config.sizes.len()).max(64);
        let count = wanted
            .min(TEMPLATES)
            .min((TEMPLATE_BYTES / longest).max(1))
            .max(flows);
        let frames = (0..count)
            .map(|index| {
                let size = config.sizes.get(random.below(config.sizes.len()));
                let size = size.copied().unwrap_or(SMALLEST) as usize;
                frame(config, index % flows, size, &mut random)
            })
            .collect();
        Ok(Self {
            what: format!("generator of {:?}-byte frames, {flows} flows", config.sizes),
            frames,
            next: 0,
            left: config.count,
            pace: Pace::new(config.rate),
        })
    }
}

fn frame(config: &GenConfig, flow: usize, size: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&config.destination.unwrap_or([0xff; 6]));
    bytes.extend_from_slice(&[0x02, 0, 0, 0, (flow >> 8) as u8, flow as u8]);
    bytes.extend_from_slice(&[0x08, 0x00]);
    let total = (size - 14) as u16;
    let mut header = [
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 0, 10, 1, 0, 1,
    ];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[14..16].copy_from_slice(&(flow as u16).to_be_bytes());
    let check = !ones(&header, 0);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    bytes.extend_from_slice(&header);
    let udp = total - 20;
    let start = bytes.len();
    bytes.extend_from_slice(&(1024 + flow as u16).to_be_bytes());
    bytes.extend_from_slice(&[0x13, 0x88]);
    bytes.extend_from_slice(&udp.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    while bytes.len() < size {
        let word = random.next().to_le_bytes();
        let room = (size - bytes.len()).min(word.len());
        bytes.extend(word.iter().take(room));
    }
    let pseudo = ones(&header[12..20], u32::from(udp) + 17);
    let check = match !ones(bytes.get(start..).unwrap_or_default(), u32::from(pseudo)) {
        0 => 0xffff,
        check => check,
    };
    if let Some(room) = bytes.get_mut(start + 6..start + 8) {
        room.copy_from_slice(&check.to_be_bytes());
    }
    bytes
}

/// The internet sum of some bytes, begun with `start`.
fn ones(bytes: &[u8], start: u32) -> u16 {
    let mut total = start;
    for pair in bytes.chunks(2) {
        let high = pair.first().copied().unwrap_or(0);
        let low = pair.get(1).copied().unwrap_or(0);
        total += u32::from(u16::from_be_bytes([high, low]));
        total = (total & 0xffff) + (total >> 16);
    }
    ((total & 0xffff) + (total >> 16)) as u16
}

impl Wire for GenWire {
    fn what(&self) -> String {
        self.what.clone()
    }

    fn brings(&self) -> bool {
        self.left != Some(0)
    }

    fn wants_frames(&self) -> bool {
        false
    }

    fn peek(&mut self, now: u64) -> Option<&[u8]> {
        if self.left == Some(0) || !self.pace.is_due(now) {
            return None;
        }
        self.frames.get(self.next).map(Vec::as_slice)
    }

    fn advance(&mut self) {
        self.pace.advance();
        self.next += 1;
        if self.next >= self.frames.len() {
            self.next = 0;
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
    }

    fn remaining(&self) -> Option<u64> {
        self.left
    }

    fn send(&mut self, _frame: &[u8], _time: Duration) -> Delivery {
        Delivery::Taken
    }

    fn flush(&mut self) {}

    fn error(&self) -> Option<String> {
        None
    }
}
