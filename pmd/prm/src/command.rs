//! Commands: what one is, the headers that all share, and the list of all.
//!
//! A command is an input and an output, each a fixed layout that may be followed by a list (the
//! tail), for instance page addresses. The first eight bytes have the same form for all of them.

use zerocopy::IntoBytes;

use crate::layout::{Layout, Shape, layout};
pub use crate::opcode::{Opcode, Status};

layout! {
    /// What every input starts with.
    pub struct InputHeader = "mlx5_ifc_cmd_in_bits", 8 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        /// Owner of the object; 0 is the driver itself.
        uid set_uid: u16 @ 0x10 +16 from "mlx5_ifc_alloc_pd_in_bits.uid";
        /// Variant of the command.
        op_mod set_op_mod: u16 @ 0x30 +16;
    }

    /// What every output starts with.
    pub struct OutputHeader = "mlx5_ifc_cmd_out_bits", 8 bytes {
        /// A [`Status`].
        status set_status: u8 @ 0x0 +8;
        /// The firmware's own reason; only its maker knows the list.
        syndrome set_syndrome: u32 @ 0x20 +32;
    }

    /// Output of the many commands that return nothing but their status.
    pub struct PlainOut = "mlx5_ifc_set_issi_out_bits", 16 bytes {
        /// A [`Status`].
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
    }

    /// Output of `ENABLE_HCA` and `DISABLE_HCA`: four bytes shorter than [`PlainOut`]. Older
    /// drivers ask for 16 bytes here.
    pub struct ShortOut = "mlx5_ifc_enable_hca_out_bits", 12 bytes {
        /// A [`Status`].
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
    }
}

/// A command: its opcode, the fixed part of its input and output, and their tails.
///
/// A tail starts where the fixed part ends.
pub trait Command {
    /// The opcode, which [`Command::request`] fills in.
    const OPCODE: Opcode;
    /// Fixed part of the input.
    type Input: Layout;
    /// Fixed part of the output.
    type Output: Layout;
    /// Fewest bytes of an input: older drivers send some without their last fields.
    const INPUT_MIN: usize;
    /// Bytes of one element of the input's tail; 0 if it has none.
    const INPUT_ELEMENT: usize;
    /// Bytes of one element of the output's tail; 0 if it has none.
    const OUTPUT_ELEMENT: usize;

    /// An input with its opcode set and everything else zero.
    fn request() -> Self::Input {
        let mut input = Self::Input::default();
        if let Some(head) = input.as_mut_bytes().first_chunk_mut() {
            *head = Self::OPCODE.0.to_be_bytes();
        }
        input
    }

    /// Bytes of an input with `tail` elements.
    fn input_len(tail: usize) -> usize {
        Self::Input::LEN + tail * Self::INPUT_ELEMENT
    }

    /// Bytes of an output with `tail` elements.
    fn output_len(tail: usize) -> usize {
        Self::Output::LEN + tail * Self::OUTPUT_ELEMENT
    }
}

/// One row of [`crate::commands::ALL`].
#[derive(Debug, Clone, Copy)]
pub struct CommandInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Stem of the header's struct names: `mlx5_ifc_<stem>_in_bits` and `..._out_bits`.
    pub stem: &'static str,
    /// The fixed part of the input.
    pub input: &'static Shape,
    /// Fewest bytes of an input: older drivers send some without their last fields.
    pub input_min: usize,
    /// Bytes of one element of the input's tail, 0 if it has none.
    pub input_element: usize,
    /// The fixed part of the output.
    pub output: &'static Shape,
    /// Bytes of one element of the output's tail, 0 if it has none.
    pub output_element: usize,
}

/// Makes command types from a table: `Name = OPCODE "stem", Input + element => Output + element;`;
/// `min` after the input's type gives the length that older drivers send.
macro_rules! command {
    ($(
        $(#[$meta:meta])*
        $Name:ident = $OPCODE:ident $stem:literal,
            $Input:ident $(min $min:literal)? $(+ $ie:literal)? => $Output:ident $(+ $oe:literal)?;
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $Name;

            impl $crate::command::Command for $Name {
                const OPCODE: $crate::command::Opcode = $crate::command::Opcode::$OPCODE;
                type Input = $Input;
                type Output = $Output;
                const INPUT_MIN: usize = $crate::command::input_min!($Input $($min)?);
                const INPUT_ELEMENT: usize = 0 $(+ $ie)?;
                const OUTPUT_ELEMENT: usize = 0 $(+ $oe)?;
            }
        )*

        /// The commands of this module.
        pub const COMMANDS: &[$crate::command::CommandInfo] = &[ $(
            $crate::command::CommandInfo {
                opcode: $crate::command::Opcode::$OPCODE,
                stem: $stem,
                input: &const { $crate::layout::Shape::of::<$Input>() },
                input_min: $crate::command::input_min!($Input $($min)?),
                input_element: 0 $(+ $ie)?,
                output: &const { $crate::layout::Shape::of::<$Output>() },
                output_element: 0 $(+ $oe)?,
            },
        )* ];
    };
}

macro_rules! input_min {
    ($Input:ident) => {
        $Input::LEN
    };
    ($Input:ident $min:literal) => {
        $min
    };
}

pub(crate) use {command, input_min};
