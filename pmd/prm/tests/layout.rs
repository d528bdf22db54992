//! Every field of every layout, set and read back, against an independent reader of bits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

use pollux_prm::commands::cq::Cqc;
use pollux_prm::commands::pages::QueryPagesOut;
use pollux_prm::commands::tir::Tirc;
use pollux_prm::layout::{Field, Kind, Layout, SetFieldError, Shape};
use pollux_prm::{FieldTooWide, catalog};
use proptest::prelude::*;
use zerocopy::FromBytes;

/// One bit, counted from the most significant bit of byte 0.
fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] & (0x80 >> (at % 8)) != 0
}

/// A field's value, one bit after the other.
fn slow_value(bytes: &[u8], field: &Field) -> u64 {
    (field.bit_offset..field.bit_offset + field.bits)
        .fold(0, |value, at| value << 1 | u64::from(bit(bytes, at)))
}

fn integers(shape: &'static Shape) -> impl Iterator<Item = &'static Field> {
    shape
        .fields
        .iter()
        .filter(|f| matches!(f.kind, Kind::Integer))
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn getters_read_the_bits_that_the_table_says(seed: u64) {
        for shape in catalog::layouts() {
            let bytes = noise(shape.len, seed);
            for field in integers(shape) {
                prop_assert_eq!(
                    (shape.value_of)(&bytes, field.name),
                    Some(slow_value(&bytes, field)),
                    "{}.{}", shape.name, field.name
                );
            }
        }
    }

    #[test]
    fn setters_change_their_own_bits_and_no_other(seed: u64, value: u64) {
        for shape in catalog::layouts() {
            let before = noise(shape.len, seed);
            for field in integers(shape) {
                let value = value >> (64 - field.bits);
                let mut after = before.clone();
                prop_assert!((shape.set_value_of)(&mut after, field.name, value).is_ok());
                prop_assert_eq!(slow_value(&after, field), value, "{}.{}", shape.name, field.name);
                let own = field.bit_offset..field.bit_offset + field.bits;
                // Only the bytes at the field's ends can be shared with others.
                for at in (0..shape.len * 8).filter(|at| !own.contains(at)) {
                    if before[at / 8] != after[at / 8] {
                        prop_assert_eq!(bit(&before, at), bit(&after, at), "{} {}", shape.name, at);
                    }
                }
            }
        }
    }

    #[test]
    fn values_wider_than_the_field_are_refused(seed: u64, excess in 0_u32..64) {
        for shape in catalog::layouts() {
            let before = noise(shape.len, seed);
            for field in integers(shape).filter(|f| f.bits < 64) {
                let bits = u32::try_from(field.bits).unwrap();
                let value = 1_u64 << (bits + excess % (64 - bits));
                let mut after = before.clone();
                let refused = (shape.set_value_of)(&mut after, field.name, value);
                prop_assert_eq!(refused, Err(SetFieldError::TooWide(FieldTooWide {
                    layout: shape.name,
                    field: field.name,
                    bits: field.bits,
                    value,
                })));
                prop_assert_eq!(&after, &before, "nothing changes");
            }
        }
    }

    #[test]
    fn reserved_bits_are_those_that_no_field_covers(seed: u64) {
        for shape in catalog::layouts() {
            let bytes = noise(shape.len, seed);
            let mut covered = vec![false; shape.len * 8];
            cover(shape.fields, 0, &mut covered);
            let kept = (shape.without_reserved)(&bytes).expect("enough bytes");
            for (at, covered) in covered.into_iter().enumerate() {
                let expected = covered && bit(&bytes, at);
                prop_assert_eq!(bit(&kept, at), expected, "{} bit {}", shape.name, at);
            }
        }
    }
}

/// Marks the bits of all fields, and of the fields of nested layouts.
fn cover(fields: &[Field], base: usize, covered: &mut [bool]) {
    for field in fields {
        let start = base + field.bit_offset;
        match field.kind {
            Kind::Nested { fields, count } => {
                for index in 0..count {
                    cover(fields, start + index * field.bits / count, covered);
                }
            }
            _ => covered[start..start + field.bits].fill(true),
        }
    }
}

#[test]
fn names_are_unique_within_a_layout_and_among_layouts() {
    let mut layouts: Vec<&str> = catalog::layouts().map(|s| s.name).collect();
    let count = layouts.len();
    layouts.sort_unstable();
    layouts.dedup();
    assert_eq!(layouts.len(), count);
    for shape in catalog::layouts() {
        let mut names: Vec<&str> = shape.fields.iter().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), shape.fields.len(), "{}", shape.name);
    }
}

#[test]
fn too_short_bytes_are_no_layout() {
    for shape in catalog::layouts() {
        let mut short = vec![0xff; shape.len - 1];
        assert_eq!((shape.without_reserved)(&short), None);
        assert_eq!((shape.describe)(&short), None);
        for field in integers(shape).take(1) {
            assert_eq!((shape.value_of)(&short, field.name), None);
            let refused = (shape.set_value_of)(&mut short, field.name, 0);
            assert_eq!(
                refused,
                Err(SetFieldError::Short {
                    layout: shape.name,
                    len: shape.len
                })
            );
        }
    }
}

#[test]
fn unknown_names_are_refused() {
    let mut cqc = Cqc::zeroed();
    assert_eq!(cqc.value_of("no_such_field"), None);
    let refused = cqc.set_value_of("no_such_field", 1);
    assert_eq!(refused, Err(SetFieldError::Unknown { layout: "Cqc" }));
    // Arrays and layouts are no integers.
    let refused = Tirc::zeroed().set_value_of("rx_hash_toeplitz_key", 1);
    assert_eq!(refused, Err(SetFieldError::Unknown { layout: "Tirc" }));
}

#[test]
fn the_error_names_layout_field_value_and_limit() {
    let mut cqc = Cqc::zeroed();
    let error = cqc.set_log_cq_size(32).expect_err("five bits");
    assert_eq!(
        error.to_string(),
        "Cqc.log_cq_size: value 0x20 does not fit its 5 bits (at most 0x1f)"
    );
    assert_eq!(cqc, Cqc::zeroed());
}

#[test]
fn printing_shows_what_is_not_zero() {
    let mut cqc = Cqc::zeroed();
    assert_eq!(format!("{cqc:?}"), "Cqc");
    cqc.set_oi(true).set_log_cq_size(10).unwrap();
    assert_eq!(format!("{cqc:?}"), "Cqc { oi: true, log_cq_size: 10 }");
}

#[test]
fn layouts_are_read_at_any_alignment() {
    let mut bytes = [0; 1 + Cqc::LEN];
    bytes[1 + 0xc] = 10;
    let (cqc, rest) = Cqc::read_from_prefix(&bytes[1..]).unwrap();
    assert_eq!(cqc.log_cq_size(), 10);
    assert!(rest.is_empty());
}

#[test]
fn layouts_can_be_made_in_constants() {
    const CQC: Cqc = {
        let mut cqc = Cqc::zeroed();
        cqc.set_oi(true).set_c_eqn_or_apu_element(0x0102_0304);
        cqc
    };
    assert_eq!(CQC.bytes()[0x14..0x18], [1, 2, 3, 4]);
}

#[test]
fn page_counts_are_signed() {
    let mut out = QueryPagesOut::zeroed();
    out.set_num_pages(0xffff_fff0);
    assert_eq!(out.count(), -16);
}
