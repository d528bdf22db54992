//! `open_enum!`: numbers that the device may extend.
//!
//! A value that this table does not name is data, not an error: it survives every copy and prints
//! as a number.

/// Makes a number type with named values.
///
/// A row is `NAME = value;`, with `as "C_NAME"` where the header's constant is not the prefix and
/// the name, or `from "place"` where the header has none.
macro_rules! open_enum {
    ($(
        $(#[$meta:meta])*
        pub struct $Name:ident($T:ident) = $prefix:literal {
            $(
                $(#[$vmeta:meta])*
                $value:ident = $number:literal
                $(as $exact:literal)? $(from $from:literal)?;
            )*
        }
    )*) => {
        /// The enumerations of this module.
        pub const ENUMS: &[(&str, &[$crate::open_enum::Named])] =
            &[$((stringify!($Name), $Name::NAMED)),*];

        $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $Name(pub $T);

        impl $Name {
            $(
                #[doc = concat!("`", stringify!($number), "`")]
                #[doc = ""]
                $(#[$vmeta])*
                pub const $value: Self = Self($number);
            )*

            /// Every named value: number, name, and where the header has it.
            pub const NAMED: &'static [$crate::open_enum::Named] = &[ $(
                $crate::open_enum::Named {
                    name: stringify!($value),
                    value: $number,
                    source: $crate::open_enum::place!(
                        $prefix $value $(as $exact)? $(from $from)?
                    ),
                },
            )* ];

            /// The name of this value, or nothing if the table has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some(stringify!($value)), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }

        impl core::fmt::Display for $Name {
            /// Name and number, or the number alone.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name}({:#x})", self.0),
                    None => write!(f, "{:#x}", self.0),
                }
            }
        }

        impl From<$T> for $Name {
            fn from(value: $T) -> Self {
                Self(value)
            }
        }

        impl From<$Name> for $T {
            fn from(value: $Name) -> $T {
                value.0
            }
        }
        )*
    };
}

macro_rules! place {
    ($prefix:literal $value:ident) => {
        $crate::layout::Source::Exact(concat!($prefix, stringify!($value)))
    };
    ($prefix:literal $value:ident as $exact:literal) => {
        $crate::layout::Source::Exact($exact)
    };
    ($prefix:literal $value:ident from $from:literal) => {
        $crate::layout::Source::Elsewhere($from)
    };
}

pub(crate) use {open_enum, place};

/// One named value of an open enumeration.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name here.
    pub name: &'static str,
    /// Its number.
    pub value: u64,
    /// Where the reference header has it.
    pub source: crate::layout::Source,
}
