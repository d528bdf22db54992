//! The pieces of `layout!`: what one row of a table expands to.
//!
//! Each macro takes a row's type and, in brackets, its width if it has one, and has one arm for
//! each form a row can take. Integers whose type is as wide as the field get a setter that cannot
//! fail, narrower fields one that refuses what does not fit.

macro_rules! source {
    ($get:ident) => {
        $crate::layout::Source::Exact(stringify!($get))
    };
    ($get:ident as $place:literal) => {
        $crate::layout::Source::Exact($place)
    };
    ($get:ident span $first:literal $last:literal) => {
        $crate::layout::Source::Span($first, $last)
    };
    ($get:ident part $place:literal) => {
        $crate::layout::Source::Part($place)
    };
    ($get:ident from $place:literal) => {
        $crate::layout::Source::Elsewhere($place)
    };
}

macro_rules! width {
    (bool []) => {
        1
    };
    ([u8; $n:expr] []) => {
        8 * $n
    };
    ([u16; $n:expr] []) => {
        16 * $n
    };
    ([u32; $n:expr] []) => {
        32 * $n
    };
    ([u64; $n:expr] []) => {
        64 * $n
    };
    ([$T:ident; $n:expr] []) => {
        8 * $T::LEN * $n
    };
    ($T:ident []) => {
        8 * $T::LEN
    };
    ($T:ident [$w:tt]) => {
        $w
    };
}

macro_rules! kind {
    (bool) => {
        $crate::layout::Kind::Integer
    };
    (u8) => {
        $crate::layout::Kind::Integer
    };
    (u16) => {
        $crate::layout::Kind::Integer
    };
    (u32) => {
        $crate::layout::Kind::Integer
    };
    (u64) => {
        $crate::layout::Kind::Integer
    };
    ([u8; $n:expr]) => {
        $crate::layout::Kind::Array { count: $n }
    };
    ([u16; $n:expr]) => {
        $crate::layout::Kind::Array { count: $n }
    };
    ([u32; $n:expr]) => {
        $crate::layout::Kind::Array { count: $n }
    };
    ([u64; $n:expr]) => {
        $crate::layout::Kind::Array { count: $n }
    };
    ([$T:ident; $n:expr]) => {
        $crate::layout::Kind::Nested {
            fields: <$T as $crate::layout::Layout>::FIELDS,
            count: $n,
        }
    };
    ($T:ident) => {
        $crate::layout::Kind::Nested {
            fields: <$T as $crate::layout::Layout>::FIELDS,
            count: 1,
        }
    };
}

macro_rules! too_wide {
    ($Name:ident $get:ident $w:tt, $value:expr) => {
        $crate::layout::FieldTooWide {
            layout: stringify!($Name),
            field: stringify!($get),
            bits: $w,
            value: $value as u64,
        }
    };
}

/// Carries one field from one value to another through its accessors.
#[cfg(feature = "recording")]
macro_rules! carry {
    ($self:ident $out:ident $get:ident $set:ident u8 [$off:tt] [8]) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident u16 [$off:tt] [16]) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident u32 [$off:tt] [32]) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident u64 [$off:tt] [64]) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident $T:ident [$off:tt] [$w:tt]) => {
        $crate::layout::carried($out.$set($self.$get()));
    };
    ($self:ident $out:ident $get:ident $set:ident bool [$off:tt] []) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident [u8; $n:expr] [$off:tt] []) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident [u16; $n:expr] [$off:tt] []) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident [u32; $n:expr] [$off:tt] []) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident [u64; $n:expr] [$off:tt] []) => {
        $out.$set($self.$get());
    };
    ($self:ident $out:ident $get:ident $set:ident [$T:ident; $n:expr] [$off:tt] []) => {
        $out.$set(
            $self
                .$get()
                .map(|part| $crate::layout::Layout::through_accessors(&part)),
        );
    };
    ($self:ident $out:ident $get:ident $set:ident $T:ident [$off:tt] []) => {
        $out.$set($crate::layout::Layout::through_accessors(&$self.$get()));
    };
}

macro_rules! accessors {
    ([$($m:tt)*] $Name:ident $get:ident $set:ident bool [$off:tt] []) => {
        #[doc = concat!("`", stringify!($get), "`: bit ", stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> bool {
            $crate::bits::get(&self.0, $off, 1) != 0
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: bool) -> &mut Self {
            $crate::bits::set(&mut self.0, $off, 1, value as u64);
            self
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident u8 [$off:tt] [8]) => {
        $crate::rows::accessors! { @whole [$($m)*] $Name $get $set u8 [$off] [8] }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident u16 [$off:tt] [16]) => {
        $crate::rows::accessors! { @whole [$($m)*] $Name $get $set u16 [$off] [16] }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident u32 [$off:tt] [32]) => {
        $crate::rows::accessors! { @whole [$($m)*] $Name $get $set u32 [$off] [32] }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident u64 [$off:tt] [64]) => {
        $crate::rows::accessors! { @whole [$($m)*] $Name $get $set u64 [$off] [64] }
    };
    (@whole [$($m:tt)*] $Name:ident $get:ident $set:ident $T:ident [$off:tt] [$w:tt]) => {
        #[doc = concat!("`", stringify!($get), "`: ", stringify!($w), " bits at bit ",
            stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> $T {
            $crate::bits::get(&self.0, $off, $w) as $T
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: $T) -> &mut Self {
            $crate::bits::set(&mut self.0, $off, $w, value as u64);
            self
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident $T:ident [$off:tt] [$w:tt]) => {
        #[doc = concat!("`", stringify!($get), "`: ", stringify!($w), " bits at bit ",
            stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> $T {
            const { assert!($w < $T::BITS as usize, "the type is narrower than the field") };
            $crate::bits::get(&self.0, $off, $w) as $T
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[doc = ""]
        #[doc = "# Errors"]
        #[doc = concat!("[`FieldTooWide`](crate::layout::FieldTooWide) if the value needs more than ",
            stringify!($w), " bits; nothing changes then.")]
        #[inline]
        pub const fn $set(
            &mut self,
            value: $T,
        ) -> Result<&mut Self, $crate::layout::FieldTooWide> {
            if value as u64 > $crate::bits::mask($w) {
                return Err($crate::rows::too_wide!($Name $get $w, value));
            }
            $crate::bits::set(&mut self.0, $off, $w, value as u64);
            Ok(self)
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident [u8; $n:expr] [$off:tt] []) => {
        #[doc = concat!("`", stringify!($get), "`: ", stringify!($n), " bytes at bit ",
            stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> [u8; $n] {
            $crate::bits::part(&self.0, $off / 8)
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: [u8; $n]) -> &mut Self {
            $crate::bits::put(&mut self.0, $off / 8, &value);
            self
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident [u16; $n:expr] [$off:tt] []) => {
        $crate::rows::accessors! { @array [$($m)*] $get $set u16 $n, $off }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident [u32; $n:expr] [$off:tt] []) => {
        $crate::rows::accessors! { @array [$($m)*] $get $set u32 $n, $off }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident [u64; $n:expr] [$off:tt] []) => {
        $crate::rows::accessors! { @array [$($m)*] $get $set u64 $n, $off }
    };
    (@array [$($m:tt)*] $get:ident $set:ident $T:ident $n:expr, $off:tt) => {
        #[doc = concat!("`", stringify!($get), "`: ", stringify!($n), " integers at bit ",
            stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> [$T; $n] {
            let mut out = [0; $n];
            let mut i = 0;
            while i < $n {
                let width = $T::BITS as usize;
                out[i] = $crate::bits::get(&self.0, $off + i * width, width) as $T;
                i += 1;
            }
            out
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: [$T; $n]) -> &mut Self {
            let mut i = 0;
            while i < $n {
                let width = $T::BITS as usize;
                $crate::bits::set(&mut self.0, $off + i * width, width, value[i] as u64);
                i += 1;
            }
            self
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident [$T:ident; $n:expr] [$off:tt] []) => {
        #[doc = concat!("`", stringify!($get), "`: ", stringify!($n), " layouts at bit ",
            stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> [$T; $n] {
            let mut out = [$T::zeroed(); $n];
            let mut i = 0;
            while i < $n {
                out[i] = $T::from_bytes($crate::bits::part(&self.0, $off / 8 + i * $T::LEN));
                i += 1;
            }
            out
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: [$T; $n]) -> &mut Self {
            let mut i = 0;
            while i < $n {
                $crate::bits::put(&mut self.0, $off / 8 + i * $T::LEN, value[i].bytes());
                i += 1;
            }
            self
        }
    };
    ([$($m:tt)*] $Name:ident $get:ident $set:ident $T:ident [$off:tt] []) => {
        #[doc = concat!("`", stringify!($get), "`: a layout at bit ", stringify!($off), ".")]
        #[doc = ""]
        $($m)*
        #[inline]
        pub const fn $get(&self) -> $T {
            $T::from_bytes($crate::bits::part(&self.0, $off / 8))
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self, value: $T) -> &mut Self {
            $crate::bits::put(&mut self.0, $off / 8, value.bytes());
            self
        }
    };
}

#[cfg(feature = "recording")]
pub(crate) use carry;
pub(crate) use {accessors, kind, source, too_wide, width};
