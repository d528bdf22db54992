//! Fields of a layout by path, and what a command understands of its input.
//!
//! Paths name leaves through nested layouts with dots (`cq_context.log_cq_size`). Control path
//! only; nothing here keeps state.

use pollux_prm::layout::{Field, Kind};

/// One field that is not itself a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Names from the outermost layout on, joined by dots.
    pub path: String,
    /// Position among the leaves of its layout, from 1.
    pub index: u16,
    /// First bit, most significant bit of byte 0 being bit 0.
    pub bit_offset: usize,
    /// Width in bits.
    pub bits: usize,
}

/// All leaves of a table of fields, in the table's order.
pub fn leaves(fields: &[Field]) -> Vec<Leaf> {
    let mut out = Vec::new();
    collect(fields, "", 0, &mut out);
    out
}

fn collect(fields: &[Field], prefix: &str, base: usize, out: &mut Vec<Leaf>) {
    for field in fields {
        let path = if prefix.is_empty() {
            field.name.into()
        } else {
            format!("{prefix}.{}", field.name)
        };
        let bit_offset = base + field.bit_offset;
        match field.kind {
            Kind::Nested { fields, count: 1 } => collect(fields, &path, bit_offset, out),
            _ => {
                let index = out.len() as u16 + 1;
                out.push(Leaf {
                    path,
                    index,
                    bit_offset,
                    bits: field.bits,
                });
            }
        }
    }
}

/// Reads up to 64 bits; bits past the end read as zero.
pub fn bits_at(bytes: &[u8], bit_offset: usize, bits: usize) -> u64 {
    (bit_offset..bit_offset + bits.min(64)).fold(0, |value, bit| {
        let byte = bytes.get(bit / 8).copied().unwrap_or(0);
        value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
    })
}

/// Writes up to 64 bits; bits past the end are dropped.
pub fn set_bits_at(bytes: &mut [u8], bit_offset: usize, bits: usize, value: u64) {
    let bits = bits.min(64);
    for i in 0..bits {
        let bit = bit_offset + i;
        if let Some(byte) = bytes.get_mut(bit / 8) {
            let mask = 1 << (7 - bit % 8);
            let one = value >> (bits - 1 - i) & 1 == 1;
            *byte = if one { *byte | mask } else { *byte & !mask };
        }
    }
}

/// What a command does with each bit of its input.
#[derive(Clone, Debug)]
pub struct Understood {
    leaves: Vec<Leaf>,
    /// Bits that some field covers.
    named: Vec<u8>,
    /// Bits that the command acts on.
    used: Vec<u8>,
}

/// The first bit of an input that must not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// No field is there; the 32-bit word that holds the bit.
    Reserved {
        /// Index of the word in the input.
        word: u16,
    },
    /// A field that this device does not act on; its leaf index.
    Field {
        /// Index of the leaf.
        leaf: u16,
    },
}

impl Understood {
    /// An input of `len` bytes of which the leaves at or below `paths` are acted on.
    pub fn new(fields: &[Field], len: usize, paths: &[&str]) -> Self {
        let leaves = leaves(fields);
        let mut named = vec![0; len];
        let mut used = vec![0; len];
        for leaf in &leaves {
            mark(&mut named, leaf);
            let below = |path: &&str| {
                leaf.path
                    .strip_prefix(*path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if paths.iter().any(below) {
                mark(&mut used, leaf);
            }
        }
        Self {
            leaves,
            named,
            used,
        }
    }

    /// The fields.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Whether the command acts on a leaf.
    pub fn uses(&self, leaf: &Leaf) -> bool {
        bits_at(&self.used, leaf.bit_offset, 1) == 1
    }

    /// Index of the leaf at `path`, 0 when there is none.
    pub fn leaf(&self, path: &str) -> u16 {
        self.leaves
            .iter()
            .find(|leaf| leaf.path == path)
            .map_or(0, |leaf| leaf.index)
    }

    /// The first set bit that the command does not act on.
    pub fn unwanted(&self, input: &[u8]) -> Option<Unwanted> {
        for (at, byte) in input.iter().enumerate() {
            let used = self.used.get(at).copied().unwrap_or(0);
            let extra = byte & !used;
            if extra == 0 {
                continue;
            }
            let bit = at * 8 + extra.leading_zeros() as usize;
            let named = self.named.get(at).copied().unwrap_or(0);
            if extra & named & (0x80 >> extra.leading_zeros()) == 0 {
                return Some(Unwanted::Reserved {
                    word: (bit / 32) as u16,
                });
            }
            let leaf = self
                .leaves
                .iter()
                .find(|leaf| (leaf.bit_offset..leaf.bit_offset + leaf.bits).contains(&bit));
            return Some(Unwanted::Field {
                leaf: leaf.map_or(0, |leaf| leaf.index),
            });
        }
        None
    }
}

fn mark(bytes: &mut [u8], leaf: &Leaf) {
    for bit in leaf.bit_offset..leaf.bit_offset + leaf.bits {
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte |= 0x80 >> (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_prm::Layout;
    use pollux_prm::commands::cq::CreateCqIn;

    #[test]
    fn tells_reserved_bits_from_fields_not_acted_on() {
        let understood = Understood::new(
            CreateCqIn::FIELDS,
            CreateCqIn::LEN,
            &["opcode", "cq_context.log_cq_size"],
        );
        let mut input = CreateCqIn::zeroed();
        input.set_opcode(0x400);
        let mut cqc = input.cq_context();
        cqc.set_log_cq_size(9).unwrap();
        input.set_cq_context(cqc);
        assert_eq!(understood.unwanted(input.bytes()), None);
        cqc.set_oi(true);
        input.set_cq_context(cqc);
        let oi = understood.leaf("cq_context.oi");
        assert_ne!(oi, 0);
        assert_eq!(
            understood.unwanted(input.bytes()),
            Some(Unwanted::Field { leaf: oi })
        );
        let mut raw = *CreateCqIn::zeroed().bytes();
        raw[9] = 1;
        assert_eq!(
            understood.unwanted(&raw),
            Some(Unwanted::Reserved { word: 2 })
        );
    }

    #[test]
    fn bits_go_in_and_out_anywhere() {
        let mut bytes = [0; 12];
        set_bits_at(&mut bytes, 0x1b, 13, 0x1555);
        assert_eq!(bits_at(&bytes, 0x1b, 13), 0x1555);
        assert_eq!(bytes, [0, 0, 0, 0x15, 0x55, 0, 0, 0, 0, 0, 0, 0]);
        set_bits_at(&mut bytes, 0x10, 64, u64::MAX);
        assert_eq!(bits_at(&bytes, 0x10, 64), u64::MAX);
        assert_eq!(bytes[1], 0);
        assert_eq!(bits_at(&bytes, 90, 64), 0);
    }
}
