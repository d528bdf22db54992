//! Reads and writes of bit fields in big-endian byte arrays.
//!
//! Bits are counted as the PRM and `mlx5_ifc.h` count them: bit 0 is the most significant bit
//! of byte 0, and a field's first bit is its most significant one. With constant offsets each
//! function folds to one load, one byte swap and one shift or mask. Only the expansion of
//! `layout!` calls these; it proves at compile time that offset and width fit.

/// The window through which a field is reached: `(first byte, bytes, shift right)`.
///
/// The window is 1, 2, 4 or 8 bytes, naturally aligned where the field allows that.
const fn window(len: usize, offset: usize, width: usize) -> (usize, usize, usize) {
    let mut size = 1;
    while size < 8 {
        let start = offset / (size * 8) * size;
        if start + size <= len && offset + width <= (start + size) * 8 {
            return (start, size, (start + size) * 8 - offset - width);
        }
        size *= 2;
    }
    let aligned = offset / 64 * 8;
    let start = if aligned + 8 <= len && offset + width <= (aligned + 8) * 8 {
        aligned
    } else if offset / 8 + 8 <= len {
        offset / 8
    } else {
        len - 8
    };
    (start, 8, (start + 8) * 8 - offset - width)
}

/// All ones in the low `width` bits.
pub(crate) const fn mask(width: usize) -> u64 {
    if width >= 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    }
}

/// Whether a field can be reached through one window; checked at compile time for each field.
#[allow(
    dead_code,
    reason = "Rust 1.85 does not count uses in unnamed constants"
)]
pub(crate) const fn reachable(len: usize, offset: usize, width: usize) -> bool {
    if width == 0 || width > 64 || offset + width > len * 8 {
        return false;
    }
    let first = offset / 8;
    let last = (offset + width - 1) / 8;
    last - first < 8 && (len >= 8 || last - first == 0 || len == 4 || len == 2)
}

/// Reads `width` bits at bit `offset`.
#[inline(always)]
pub(crate) const fn get<const N: usize>(bytes: &[u8; N], offset: usize, width: usize) -> u64 {
    let (b, size, shift) = window(N, offset, width);
    let word = match size {
        1 => bytes[b] as u64,
        2 => u16::from_be_bytes([bytes[b], bytes[b + 1]]) as u64,
        4 => u32::from_be_bytes([bytes[b], bytes[b + 1], bytes[b + 2], bytes[b + 3]]) as u64,
        _ => u64::from_be_bytes([
            bytes[b],
            bytes[b + 1],
            bytes[b + 2],
            bytes[b + 3],
            bytes[b + 4],
            bytes[b + 5],
            bytes[b + 6],
            bytes[b + 7],
        ]),
    };
    (word >> shift) & mask(width)
}

/// Writes the low `width` bits of `value` at bit `offset`; the other bits stay.
#[inline(always)]
pub(crate) const fn set<const N: usize>(
    bytes: &mut [u8; N],
    offset: usize,
    width: usize,
    value: u64,
) {
    let (b, size, shift) = window(N, offset, width);
    let kept = get(bytes, b * 8, size * 8) & !(mask(width) << shift);
    let word = kept | ((value & mask(width)) << shift);
    // One arm a size: a loop over the bytes would be stored byte by byte.
    match size {
        1 => bytes[b] = word as u8,
        2 => put(bytes, b, &(word as u16).to_be_bytes()),
        4 => put(bytes, b, &(word as u32).to_be_bytes()),
        _ => put(bytes, b, &word.to_be_bytes()),
    }
}

/// Copies `M` bytes out, from byte `at` on.
#[inline(always)]
pub(crate) const fn part<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    let mut out = [0; M];
    let mut i = 0;
    while i < M {
        out[i] = bytes[at + i];
        i += 1;
    }
    out
}

/// Copies `part` in, from byte `at` on.
#[inline(always)]
pub(crate) const fn put<const N: usize, const M: usize>(
    bytes: &mut [u8; N],
    at: usize,
    part: &[u8; M],
) {
    let mut i = 0;
    while i < M {
        bytes[at + i] = part[i];
        i += 1;
    }
}
