//! `layout!`: wire formats as tables.
//!
//! One table makes a byte-array type, its accessors, and the field list which the header check
//! and the generic tools (printing, access by name, removal of reserved bits) read. A layout is
//! plain bytes in the device's order: it can be copied from and to device memory as it is, on
//! any host, at any alignment (zerocopy's `read_from_prefix` and `ref_from_bytes` work on it).
//!
//! A setter whose argument can hold more than the field has bits returns [`FieldTooWide`] and
//! changes nothing: no value is ever cut silently.

use crate::table;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A value does not fit the field it was meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{layout}.{field}: value {value:#x} does not fit its {bits} bits (at most {max:#x})",
    max = crate::bits::mask(*.bits)
)]
pub struct FieldTooWide {
    /// Name of the layout.
    pub layout: &'static str,
    /// Name of the field.
    pub field: &'static str,
    /// Width of the field in bits.
    pub bits: usize,
    /// The refused value.
    pub value: u64,
}

/// Why a field could not be set by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetFieldError {
    /// The layout has no such integer or flag field.
    #[error("{layout} has no integer field of that name; `FIELDS` lists what it has")]
    Unknown {
        /// Name of the layout.
        layout: &'static str,
    },
    /// The bytes are fewer than the layout has.
    #[error("{layout} needs {len} bytes")]
    Short {
        /// Name of the layout.
        layout: &'static str,
        /// Its size in bytes.
        len: usize,
    },
    /// The value has more bits than the field.
    #[error(transparent)]
    TooWide(#[from] FieldTooWide),
}

/// Where a field stands in the reference header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The header has exactly this field under this C designator.
    Exact(&'static str),
    /// The header cuts it in two or more neighbours; these are the first and the last.
    Span(&'static str, &'static str),
    /// The field is a part of this header field, which the header does not subdivide.
    Part(&'static str),
    /// The header does not name it; the text says where it is described.
    Elsewhere(&'static str),
}

/// What a field holds.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// An unsigned integer or a flag.
    Integer,
    /// `count` unsigned integers of `bits / count` bits, or raw bytes.
    Array {
        /// Number of elements.
        count: usize,
    },
    /// `count` layouts, one after the other.
    Nested {
        /// Fields of one of them.
        fields: &'static [Field],
        /// Number of layouts.
        count: usize,
    },
}

/// One row of a layout's table.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name of the getter.
    pub name: &'static str,
    /// Where the reference header has it.
    pub source: Source,
    /// First bit, most significant bit of byte 0 being bit 0.
    pub bit_offset: usize,
    /// Width in bits.
    pub bits: usize,
    /// What it holds.
    pub kind: Kind,
}

/// A wire format: `LEN` bytes with named bit fields.
pub trait Layout:
    Copy
    + Clone
    + Eq
    + Default
    + core::fmt::Debug
    + FromBytes
    + IntoBytes
    + Immutable
    + KnownLayout
    + Unaligned
    + Sized
    + 'static
{
    /// Name of the type.
    const NAME: &'static str;
    /// Tag of the C struct or union that the fields are checked against; empty if there is none.
    const HEADER: &'static str;
    /// Size in bytes.
    const LEN: usize;
    /// The table.
    const FIELDS: &'static [Field];

    /// The integer or flag `name`, or nothing if there is no such field.
    fn value_of(&self, name: &str) -> Option<u64> {
        table::value(self.as_bytes(), Self::FIELDS, name)
    }

    /// Sets the integer or flag `name`.
    ///
    /// # Errors
    /// [`SetFieldError`] if there is no such field, or the value is wider than it.
    fn set_value_of(&mut self, name: &str, value: u64) -> Result<(), SetFieldError> {
        table::set_value(self.as_mut_bytes(), Self::NAME, Self::FIELDS, name, value)
    }

    /// The same fields, every bit that no field covers being zero.
    fn without_reserved(&self) -> Self {
        let mut out = Self::default();
        table::carry(self.as_bytes(), out.as_mut_bytes(), Self::FIELDS);
        out
    }

    /// The same fields, each read with its getter and written with its setter: what the tests
    /// prove the accessors with.
    #[cfg(feature = "recording")]
    fn through_accessors(&self) -> Self;
}

/// A layout as a value: what generic tools (logs, profiles, tests) work with.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Name of the type.
    pub name: &'static str,
    /// Tag of the C struct or union that the fields are checked against; empty if there is none.
    pub header: &'static str,
    /// Size in bytes.
    pub len: usize,
    /// The table.
    pub fields: &'static [Field],
    /// [`Layout::value_of`] on the first `len` bytes; nothing if there are fewer.
    pub value_of: fn(&[u8], &str) -> Option<u64>,
    /// [`Layout::set_value_of`] on the first `len` bytes.
    pub set_value_of: fn(&mut [u8], &str, u64) -> Result<(), SetFieldError>,
    /// [`Layout::without_reserved`] of the first `len` bytes; nothing if there are fewer.
    pub without_reserved: fn(&[u8]) -> Option<Vec<u8>>,
    /// [`Layout::through_accessors`] of the first `len` bytes; nothing if there are fewer.
    #[cfg(feature = "recording")]
    pub through_accessors: fn(&[u8]) -> Option<Vec<u8>>,
    /// The fields that are not zero, by name; nothing if there are fewer than `len` bytes.
    pub describe: fn(&[u8]) -> Option<String>,
}

impl Shape {
    /// The shape of `T`.
    pub const fn of<T: Layout>() -> Self {
        Self {
            name: T::NAME,
            header: T::HEADER,
            len: T::LEN,
            fields: T::FIELDS,
            value_of: |bytes, name| T::ref_from_prefix(bytes).ok()?.0.value_of(name),
            set_value_of: |bytes, name, value| match T::mut_from_prefix(bytes) {
                Ok((layout, _)) => layout.set_value_of(name, value),
                Err(_) => Err(SetFieldError::Short {
                    layout: T::NAME,
                    len: T::LEN,
                }),
            },
            without_reserved: |bytes| {
                let layout = T::ref_from_prefix(bytes).ok()?.0;
                Some(layout.without_reserved().as_bytes().to_vec())
            },
            #[cfg(feature = "recording")]
            through_accessors: |bytes| {
                let layout = T::ref_from_prefix(bytes).ok()?.0;
                Some(layout.through_accessors().as_bytes().to_vec())
            },
            describe: |bytes| Some(format!("{:?}", T::ref_from_prefix(bytes).ok()?.0)),
        }
    }
}

/// Compile-time check of one table; the expansion of `layout!` calls it in a constant.
#[allow(
    dead_code,
    reason = "Rust 1.85 does not count uses in unnamed constants"
)]
pub(crate) const fn check(len: usize, fields: &[Field], setters: &[&str]) {
    let mut i = 0;
    while i < fields.len() {
        let f = &fields[i];
        assert!(
            f.bit_offset + f.bits <= len * 8,
            "a field runs past the end of its layout"
        );
        match f.kind {
            Kind::Integer => assert!(
                crate::bits::reachable(len, f.bit_offset, f.bits),
                "a field does not lie within eight bytes"
            ),
            _ => assert!(
                f.bit_offset % 8 == 0,
                "arrays and nested layouts start on a byte"
            ),
        }
        assert!(
            is_setter_of(setters[i], f.name),
            "the setter is not set_ and the field's name"
        );
        i += 1;
    }
}

#[allow(
    dead_code,
    reason = "Rust 1.85 does not count uses in unnamed constants"
)]
const fn is_setter_of(setter: &str, name: &str) -> bool {
    let (s, n) = (setter.as_bytes(), name.as_bytes());
    let prefix = b"set_";
    if s.len() != prefix.len() + n.len() {
        return false;
    }
    let mut i = 0;
    while i < s.len() {
        let expected = if i < prefix.len() {
            prefix[i]
        } else {
            n[i - prefix.len()]
        };
        if s[i] != expected {
            return false;
        }
        i += 1;
    }
    true
}

/// Discards the result of writing back what a getter returned: that always fits.
pub(crate) const fn carried<T>(result: Result<&mut T, FieldTooWide>) {
    debug_assert!(result.is_ok());
}

/// Makes layouts from tables.
///
/// A row is `getter setter: type @ first_bit +width;`. The type is an unsigned integer (with its
/// width), `bool` (one bit), `[u8; n]`, `[u16; n]`, `[u32; n]` or `[u64; n]`, another layout, or
/// an array of one. Where the header's name is not the getter's: `as "name"` at the end; where
/// the header cuts the field up: `span "first" "last"`; where it only has a larger field around
/// it: `part "name"`; where it has none: `from "place that describes it"`.
macro_rules! layout {
    ($(
        $(#[$meta:meta])*
        pub struct $Name:ident = $header:literal, $len:literal bytes {
            $(
                $(#[$fmeta:meta])*
                $get:ident $set:ident : $ty:tt @ $off:tt $(+ $w:tt)?
                    $(as $exact:literal)? $(span $first:literal $last:literal)?
                    $(part $part:literal)? $(from $from:literal)?;
            )*
        }
    )*) => {
        /// The layouts of this module.
        pub const LAYOUTS: &[$crate::layout::Shape] =
            &[$($crate::layout::Shape::of::<$Name>()),*];

        $(
        $(#[$meta])*
        #[doc = ""]
        #[doc = concat!("Header: `", $header, "`, ", stringify!($len), " bytes.")]
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $Name([u8; $len]);

        #[allow(dead_code)]
        impl $Name {
            /// Size in bytes.
            pub const LEN: usize = $len;

            /// All bits zero.
            pub const fn zeroed() -> Self {
                Self([0; $len])
            }

            /// From bytes in the device's order.
            pub const fn from_bytes(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }

            /// The bytes in the device's order.
            pub const fn bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// The bytes in the device's order, to be changed.
            pub const fn bytes_mut(&mut self) -> &mut [u8; $len] {
                &mut self.0
            }

            $(
                $crate::rows::accessors! {
                    [$(#[$fmeta])*] $Name $get $set $ty [$off] [$($w)?]
                }
            )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::zeroed()
            }
        }

        impl $crate::layout::Layout for $Name {
            const NAME: &'static str = stringify!($Name);
            const HEADER: &'static str = $header;
            const LEN: usize = $len;
            const FIELDS: &'static [$crate::layout::Field] = &[ $(
                $crate::layout::Field {
                    name: stringify!($get),
                    source: $crate::rows::source!(
                        $get $(as $exact)? $(span $first $last)? $(part $part)? $(from $from)?
                    ),
                    bit_offset: $off,
                    bits: $crate::rows::width!($ty [$($w)?]),
                    kind: $crate::rows::kind!($ty),
                },
            )* ];

            #[cfg(feature = "recording")]
            fn through_accessors(&self) -> Self {
                #[allow(unused_mut)]
                let mut out = Self::zeroed();
                $( $crate::rows::carry!(self out $get $set $ty [$off] [$($w)?]); )*
                out
            }
        }

        const _: () = {
            $crate::layout::check(
                $len,
                <$Name as $crate::layout::Layout>::FIELDS,
                &[$(stringify!($set)),*],
            );
            assert!(core::mem::size_of::<$Name>() == $len);
            assert!(core::mem::align_of::<$Name>() == 1);
        };

        impl core::fmt::Debug for $Name {
            /// Prints the fields that are not zero.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let fields = <$Name as $crate::layout::Layout>::FIELDS;
                $crate::table::debug(&self.0, stringify!($Name), fields, f)
            }
        }
    )* };
}

pub(crate) use layout;
