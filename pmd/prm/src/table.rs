//! What can be done with any layout by its table alone: access by name, printing, and removal of
//! reserved bits. Not for the data path; the accessors that `layout!` makes are.

use crate::bits::mask;
use crate::layout::{Field, FieldTooWide, Kind, SetFieldError};
use core::fmt;

/// Reads up to 64 bits, bit by byte; bits past the end are zero.
fn read(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let mut value = 0;
    let mut at = offset;
    let end = offset + width;
    while at < end {
        let byte = bytes.get(at / 8).copied().unwrap_or(0);
        let step = (8 - at % 8).min(end - at);
        let part = (byte >> (8 - at % 8 - step)) & mask(step) as u8;
        value = if step < 64 { value << step } else { 0 } | u64::from(part);
        at += step;
    }
    value
}

/// Writes up to 64 bits; bits past the end are dropped.
fn write(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    let mut at = offset;
    let end = offset + width;
    while at < end {
        let step = (8 - at % 8).min(end - at);
        let shift = 8 - at % 8 - step;
        let part = (value >> (end - at - step)) as u8 & mask(step) as u8;
        if let Some(byte) = bytes.get_mut(at / 8) {
            *byte = *byte & !((mask(step) as u8) << shift) | part << shift;
        }
        at += step;
    }
}

fn integer<'a>(fields: &'a [Field], name: &str) -> Option<&'a Field> {
    fields
        .iter()
        .find(|f| f.name == name && matches!(f.kind, Kind::Integer))
}

/// See [`Layout::value_of`](crate::layout::Layout::value_of).
pub(crate) fn value(bytes: &[u8], fields: &[Field], name: &str) -> Option<u64> {
    integer(fields, name).map(|f| read(bytes, f.bit_offset, f.bits))
}

/// See [`Layout::set_value_of`](crate::layout::Layout::set_value_of).
pub(crate) fn set_value(
    bytes: &mut [u8],
    layout: &'static str,
    fields: &'static [Field],
    name: &str,
    value: u64,
) -> Result<(), SetFieldError> {
    let field = integer(fields, name).ok_or(SetFieldError::Unknown { layout })?;
    if value > mask(field.bits) {
        let refused = FieldTooWide {
            layout,
            field: field.name,
            bits: field.bits,
            value,
        };
        return Err(refused.into());
    }
    write(bytes, field.bit_offset, field.bits, value);
    Ok(())
}

/// The bytes of one of `count` equal parts of a field that starts on a byte.
fn part<'a>(bytes: &'a [u8], field: &Field, count: usize, index: usize) -> &'a [u8] {
    let len = field.bits / 8 / count.max(1);
    let start = field.bit_offset / 8 + index * len;
    bytes.get(start..start + len).unwrap_or_default()
}

/// Copies what the fields cover, and nothing else.
pub(crate) fn carry(from: &[u8], to: &mut [u8], fields: &[Field]) {
    for field in fields {
        match field.kind {
            Kind::Integer => {
                let value = read(from, field.bit_offset, field.bits);
                write(to, field.bit_offset, field.bits, value);
            }
            Kind::Array { .. } => {
                let range = field.bit_offset / 8..(field.bit_offset + field.bits) / 8;
                if let (Some(from), Some(to)) = (from.get(range.clone()), to.get_mut(range)) {
                    to.copy_from_slice(from);
                }
            }
            Kind::Nested { fields, count } => {
                let len = field.bits / 8 / count.max(1);
                for index in 0..count {
                    let start = field.bit_offset / 8 + index * len;
                    let range = start..start + len;
                    if let (Some(from), Some(to)) = (from.get(range.clone()), to.get_mut(range)) {
                        carry(from, to, fields);
                    }
                }
            }
        }
    }
}

/// A nested layout, which has no name of its own in the table.
struct Nested<'a>(&'a [u8], &'static [Field]);

impl fmt::Debug for Nested<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(self.0, "", self.1, f)
    }
}

/// Prints the fields that are not zero.
pub(crate) fn debug(
    bytes: &[u8],
    name: &str,
    fields: &'static [Field],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut out = f.debug_struct(name);
    for field in fields {
        match field.kind {
            Kind::Integer => match read(bytes, field.bit_offset, field.bits) {
                0 => {}
                1 if field.bits == 1 => {
                    out.field(field.name, &true);
                }
                value => {
                    out.field(field.name, &value);
                }
            },
            Kind::Array { count } => {
                let width = field.bits / count.max(1);
                let values: Vec<u64> = (0..count)
                    .map(|index| read(bytes, field.bit_offset + index * width, width))
                    .collect();
                if values.iter().any(|value| *value != 0) {
                    out.field(field.name, &values);
                }
            }
            Kind::Nested { fields, count } => {
                let parts: Vec<Nested<'_>> = (0..count)
                    .map(|index| Nested(part(bytes, field, count, index), fields))
                    .filter(|nested| nested.0.iter().any(|byte| *byte != 0))
                    .collect();
                match parts.as_slice() {
                    [] => {}
                    [one] if count == 1 => {
                        out.field(field.name, one);
                    }
                    several => {
                        out.field(field.name, &several);
                    }
                }
            }
        }
    }
    out.finish()
}
