//! The one message of the process backing: fixed size, native byte order (both ends run on one
//! machine), descriptors beside it.

use crate::BusError;
use crate::Iova;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol; both ends must have the same.
pub(super) const VERSION: u64 = 1;

/// Bytes of text or register contents in one message.
pub(super) const DATA: usize = 256;

/// Descriptors in one message.
pub(super) const FDS: usize = 32;

/// What a message asks or answers. An answer repeats the kind of its question.
pub(super) mod kind {
    /// `a`: version. Answer: `a` register bytes, `b` vectors, `c` windows, `d` [`super::Ids`],
    /// data: name.
    pub const HELLO: u32 = 1;
    /// `a`: index. Answer: `a` offset, `b` bytes, `c` offset in the descriptor's file; one fd.
    pub const WINDOW: u32 = 2;
    /// `a`: offset, `len`: bytes. Answer: data.
    pub const LOAD: u32 = 3;
    /// `a`: offset, data. No answer.
    pub const STORE: u32 = 4;
    /// `a`: device address, `b`: bytes, `c`: offset in the descriptor's file; one fd.
    pub const MAP: u32 = 5;
    /// `a`: device address, `b`: bytes.
    pub const UNMAP: u32 = 6;
    /// `a`: 1 on, 0 off.
    pub const BUS_MASTER: u32 = 7;
    /// `a`: first vector; as many fds as vectors.
    pub const ENABLE_INTERRUPTS: u32 = 8;
    /// No arguments.
    pub const DISABLE_INTERRUPTS: u32 = 9;
    /// No arguments.
    pub const RESET: u32 = 10;
    /// No arguments.
    pub const DISCONNECT: u32 = 11;
}

/// How an answer says no. Data holds the device's own words.
pub(super) mod status {
    pub const OK: u32 = 0;
    pub const REFUSED: u32 = 1;
    pub const OVERLAP: u32 = 2;
    pub const NOT_MAPPED: u32 = 3;
    pub const NOT_QUIESCENT: u32 = 4;
    pub const IN_USE: u32 = 5;
    pub const MAP_LIMIT: u32 = 6;
}

/// See the module.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Message {
    pub kind: u32,
    /// Chosen by the question, repeated by the answer.
    pub sequence: u32,
    pub status: u32,
    /// Valid bytes in `data`, or bytes asked for.
    pub len: u32,
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
    pub data: [u8; DATA],
}

impl Message {
    pub fn new(kind: u32, [a, b, c]: [u64; 3]) -> Self {
        Self {
            kind,
            sequence: 0,
            status: status::OK,
            len: 0,
            a,
            b,
            c,
            d: 0,
            data: [0; DATA],
        }
    }

    /// With as much of `bytes` as fits.
    pub fn with_data(mut self, bytes: &[u8]) -> Self {
        let len = bytes.len().min(DATA);
        if let (Some(to), Some(from)) = (self.data.get_mut(..len), bytes.get(..len)) {
            to.copy_from_slice(from);
            self.len = len as u32;
        }
        self
    }

    /// The valid data; `None` when the length is beyond the room.
    pub fn data(&self) -> Option<&[u8]> {
        self.data.get(..self.len as usize)
    }

    /// The answer to this message.
    pub fn answer(&self) -> Self {
        Self {
            sequence: self.sequence,
            ..Self::new(self.kind, [0; 3])
        }
    }

    /// The answer that says no, for this reason.
    pub fn refusal(&self, error: &BusError) -> Self {
        let status = match error {
            BusError::Overlap { .. } => status::OVERLAP,
            BusError::NotMapped { .. } => status::NOT_MAPPED,
            BusError::NotQuiescent { .. } => status::NOT_QUIESCENT,
            BusError::InUse { .. } => status::IN_USE,
            BusError::MapLimit { .. } => status::MAP_LIMIT,
            _ => status::REFUSED,
        };
        let millis = match error {
            BusError::NotQuiescent { millis, .. } => *millis,
            BusError::MapLimit { limit } => *limit as u64,
            _ => 0,
        };
        let text = error.to_string();
        Self {
            status,
            a: millis,
            ..self.answer().with_data(clip(&text).as_bytes())
        }
    }

    /// What an answer says to `question`, as the driver's error.
    pub fn outcome(&self, what: &'static str, question: &Self) -> Result<(), BusError> {
        let (iova, len) = (Iova(question.a), question.b);
        let reason = || match self.data() {
            Some(text) => String::from_utf8_lossy(text).into_owned(),
            None => "an answer without words".to_owned(),
        };
        Err(match self.status {
            status::OK => return Ok(()),
            status::OVERLAP => BusError::Overlap { iova, len },
            status::NOT_MAPPED => BusError::NotMapped { iova, len },
            status::NOT_QUIESCENT => BusError::NotQuiescent {
                iova,
                len,
                millis: self.a,
            },
            status::MAP_LIMIT => BusError::MapLimit {
                limit: self.a as usize,
            },
            status::IN_USE => BusError::InUse { name: reason() },
            _ => BusError::Refused {
                what,
                reason: reason(),
            },
        })
    }
}

/// The longest start of `text` that fits in a message.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(DATA);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// PCI ids and flags of [`kind::HELLO`]'s answer, in one word: vendor 15:0, device 31:16, emulated
/// 32, node known 33, node 63:34.
pub(super) struct Ids {
    pub vendor: u16,
    pub device: u16,
    pub emulated: bool,
    pub node: Option<u32>,
}

const NODE_SHIFT: u32 = 34;

impl Ids {
    pub fn pack(&self) -> u64 {
        // A node number that does not fit is no node number.
        let node = self
            .node
            .map(u64::from)
            .filter(|node| *node < 1 << (64 - NODE_SHIFT));
        u64::from(self.vendor)
            | u64::from(self.device) << 16
            | u64::from(self.emulated) << 32
            | u64::from(node.is_some()) << 33
            | node.unwrap_or(0) << NODE_SHIFT
    }

    pub fn unpack(word: u64) -> Self {
        Self {
            vendor: word as u16,
            device: (word >> 16) as u16,
            emulated: word >> 32 & 1 == 1,
            node: (word >> 33 & 1 == 1).then_some((word >> NODE_SHIFT) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_word() {
        for node in [None, Some(0), Some(7), Some((1 << 30) - 1)] {
            for emulated in [false, true] {
                let ids = Ids {
                    vendor: 0x15b3,
                    device: 0x1015,
                    emulated,
                    node,
                };
                let back = Ids::unpack(ids.pack());
                assert_eq!((back.vendor, back.device), (0x15b3, 0x1015));
                assert_eq!((back.emulated, back.node), (emulated, node));
            }
        }
        let huge = Ids {
            vendor: 1,
            device: 2,
            emulated: true,
            node: Some(u32::MAX),
        };
        assert_eq!(Ids::unpack(huge.pack()).node, None);
    }

    #[test]
    fn long_words_are_cut_at_a_character() {
        let text = "é".repeat(200);
        let error = BusError::Refused {
            what: "x",
            reason: text,
        };
        let message = Message::new(kind::RESET, [0; 3]).refusal(&error);
        assert!(std::str::from_utf8(message.data().unwrap()).is_ok());
        assert!(message.len as usize >= DATA - 1);
    }

    #[test]
    fn a_length_beyond_the_room_is_no_data() {
        let mut message = Message::new(kind::LOAD, [0; 3]);
        message.len = DATA as u32 + 1;
        assert!(message.data().is_none());
    }
}
