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

macro_rules! zero {
    (bool) => {
        false
    };
    (u8) => {
        0
    };
    (u16) => {
        0
    };
    (u32) => {
        0
    };
    (u64) => {
        0
    };
    ([u8; $n:expr]) => {
        [0u8; $n]
    };
    ([u16; $n:expr]) => {
        [0u16; $n]
    };
    ([u32; $n:expr]) => {
        [0u32; $n]
    };
    ([u64; $n:expr]) => {
        [0u64; $n]
    };
    ([$T:ident; $n:expr]) => {
        [$T::zeroed(); $n]
    };
    ($T:ident) => {
        $T::zeroed()
    };
}

macro_rules! value {
    ($self:ident $get:ident bool) => {
        Some($self.$get() as u64)
    };
    ($self:ident $get:ident u8) => {
        Some($self.$get() as u64)
    };
    ($self:ident $get:ident u16) => {
        Some($self.$get() as u64)
    };
    ($self:ident $get:ident u32) => {
        Some($self.$get() as u64)
    };
    ($self:ident $get:ident u64) => {
        Some($self.$get())
    };
    ($self:ident $get:ident $other:tt) => {
        None
    };
}

macro_rules! set_value {
    ($Name:ident $self:ident $get:ident $set:ident bool [] $value:ident) => {
        match $value {
            0 | 1 => {
                $self.$set($value == 1);
                Ok(())
            }
            _ => Err($crate::rows::too_wide!($Name $get 1, $value).into()),
        }
    };
    ($Name:ident $self:ident $get:ident $set:ident u8 [8] $value:ident) => {
        $crate::rows::set_value!(@whole $Name $self $get $set u8 8 $value)
    };
    ($Name:ident $self:ident $get:ident $set:ident u16 [16] $value:ident) => {
        $crate::rows::set_value!(@whole $Name $self $get $set u16 16 $value)
    };
    ($Name:ident $self:ident $get:ident $set:ident u32 [32] $value:ident) => {
        $crate::rows::set_value!(@whole $Name $self $get $set u32 32 $value)
    };
    ($Name:ident $self:ident $get:ident $set:ident u64 [64] $value:ident) => {{
        $self.$set($value);
        Ok(())
    }};
    (@whole $Name:ident $self:ident $get:ident $set:ident $T:ident $w:tt $value:ident) => {
        match $T::try_from($value) {
            Ok(value) => {
                $self.$set(value);
                Ok(())
            }
            Err(_) => Err($crate::rows::too_wide!($Name $get $w, $value).into()),
        }
    };
    ($Name:ident $self:ident $get:ident $set:ident $T:ident [$w:tt] $value:ident) => {
        match $T::try_from($value) {
            Ok(value) => match $self.$set(value) {
                Ok(_) => Ok(()),
                Err(e) => Err(e.into()),
            },
            Err(_) => Err($crate::rows::too_wide!($Name $get $w, $value).into()),
        }
    };
    ($Name:ident $self:ident $get:ident $set:ident $ty:tt [] $value:ident) => {{
        let _ = $value;
        Err($crate::layout::SetFieldError::Unknown { layout: stringify!($Name) })
    }};
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
                .map(|part| $crate::layout::Layout::without_reserved(&part)),
        );
    };
    ($self:ident $out:ident $get:ident $set:ident $T:ident [$off:tt] []) => {
        $out.$set($crate::layout::Layout::without_reserved(&$self.$get()));
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

pub(crate) use {accessors, carry, kind, set_value, source, too_wide, value, width, zero};
