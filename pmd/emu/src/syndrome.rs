//! Why a command was refused, in 32 bits.
//!
//! A real adapter's syndromes are known to its maker only. Ours have a form: a reason in bits
//! 31:24, the opcode in bits 23:12, and in bits 11:0 what the reason is about (a field of the
//! input, a kind of object, a word, a phase). [`explain`] turns one into a sentence.

use crate::fields::leaves;
use crate::objects::Kind;
use pollux_prm::Layout;
use pollux_prm::command::{Opcode, Status};
use pollux_prm::commands::capability::CmdHcaCap;
use pollux_prm::layout::Field;
use std::fmt;

/// What bits 11:0 of a syndrome hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Nothing,
    /// Index of a field of the input (see [`crate::fields::Leaf`]).
    Field,
    /// Index of a 32-bit word of the input.
    Word,
    /// A [`Kind`].
    Object,
    /// A [`Phase`].
    Phase,
    /// Index of a field of the general capabilities.
    Capability,
}

macro_rules! reasons {
    ($( $(#[$meta:meta])* $Name:ident = $number:literal, $STATUS:ident, $about:ident, $text:literal; )*) => {
        /// Reasons for a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $( $(#[$meta])* #[doc = concat!("\n\n`", stringify!($STATUS), "`: ", $text, ".")] $Name = $number, )*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[ $(Self::$Name),* ];

            /// The status that goes with it.
            pub const fn status(self) -> Status {
                match self { $( Self::$Name => Status::$STATUS, )* }
            }

            /// The sentence about it; `{}` stands for what it is about.
            pub const fn text(self) -> &'static str {
                match self { $( Self::$Name => $text, )* }
            }

            const fn about(self) -> About {
                match self { $( Self::$Name => About::$about, )* }
            }
        }
    };
}

reasons! {
    /// No such command here.
    UnknownOpcode = 0x01, BAD_OP_ERR, Nothing, "this device has no such command";
    /// `op_mod` names no variant of the command.
    UnknownVariant = 0x02, BAD_OP_ERR, Nothing, "the command has no variant with this op_mod";
    /// Input too short, too long, or its tail is not whole.
    InputLength = 0x03, BAD_INP_LEN_ERR, Nothing, "the input's length is not the command's";
    /// Output too short.
    OutputLength = 0x04, BAD_OUTP_LEN_ERR, Nothing, "there is no room for the command's output";
    /// A bit that no field covers.
    ReservedBits = 0x05, BAD_PARAM_ERR, Word, "reserved bits are set in word {} of the input";
    /// A field that stands for something this device does not do.
    NotOffered = 0x06, BAD_PARAM_ERR, Field, "{} asks for something that this function does not announce";
    /// A value outside its range, or at odds with another.
    BadValue = 0x07, BAD_PARAM_ERR, Field, "the value of {} is out of range or at odds with the rest";
    /// More than a capability allows.
    AboveMaximum = 0x08, BAD_PARAM_ERR, Capability, "{} is above what the function announces as its maximum";
    /// An address that is zero, misaligned, or given already.
    BadAddress = 0x09, BAD_PARAM_ERR, Field, "{} is an address that is zero, not aligned, or in use";
    /// A page in the tail of MANAGE_PAGES that cannot be taken.
    BadPage = 0x0a, BAD_PARAM_ERR, Nothing, "a page in the list is zero, not aligned to 4096, given twice or already given";
    /// The function is in a phase in which the command has no place.
    WrongPhase = 0x0b, BAD_SYS_STATE_ERR, Phase, "the function is {}";
    /// Boot or init pages are missing.
    PagesMissing = 0x0c, BAD_SYS_STATE_ERR, Nothing, "the firmware has not got the pages it asked for";
    /// The driver said that it cannot give the pages that the command needs.
    PagesDenied = 0x1c, NO_RES_ERR, Nothing, "the driver gave no pages for another object";
    /// Pages are still with the firmware.
    PagesLeft = 0x0d, BAD_SYS_STATE_ERR, Nothing, "the firmware still holds pages of the driver";
    /// More pages than were asked for.
    PagesUnasked = 0x0e, BAD_PARAM_ERR, Field, "{} exceeds the pages that the firmware asked for";
    /// Objects are alive.
    ObjectsLeft = 0x0f, RES_BUSY, Object, "a {} is still alive";
    /// A number that names nothing, or something of another owner.
    NoObject = 0x10, BAD_RES_ERR, Field, "{} names nothing, or something of another owner";
    /// Somebody uses it.
    InUse = 0x11, RES_BUSY, Object, "the {} is in use by another object";
    /// No number is left.
    Exhausted = 0x12, NO_RES_ERR, Object, "no more {}s: the announced maximum is reached";
    /// Larger than announced.
    Limit = 0x13, LIM_ERR, Field, "{} is above the announced limit";
    /// The object's state does not allow it.
    WrongState = 0x14, BAD_RES_STATE_ERR, Field, "{}: the object's state does not allow this change";
    /// An index outside its table.
    Index = 0x15, IX_ERR, Field, "{} is outside the table";
    /// Taken already.
    Taken = 0x16, BAD_RES_STATE_ERR, Field, "{} is taken already";
    /// A register that this device does not have.
    UnknownRegister = 0x17, BAD_PARAM_ERR, Field, "{} names a register that this device does not have";
    /// A value in a register that cannot be written.
    RegisterValue = 0x18, BAD_PARAM_ERR, Word, "word {} of the register cannot be written so";
    /// The page list does not cover the ring.
    PageList = 0x19, BAD_INP_LEN_ERR, Nothing, "the page list is not as long as the ring needs";
    /// The data side could not do it.
    Internal = 0x1a, INT_ERR, Nothing, "the device's data side does not answer";
    /// A fault that a test asked for.
    Injected = 0x1b, INT_ERR, Nothing, "a fault was injected";
}

/// Phases of a function's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// After power-on, reset or DISABLE_HCA.
    Disabled = 1,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA: objects can be made.
    Running,
    /// After TEARDOWN_HCA.
    TornDown,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "not enabled",
            Self::Enabled => "enabled but not initialized",
            Self::Running => "initialized",
            Self::TornDown => "torn down",
        })
    }
}

const DETAIL: u32 = 0xfff;

/// A refusal's status and syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Command status.
    pub status: Status,
    /// Syndrome.
    pub syndrome: u32,
}

impl Refusal {
    /// A refusal of `opcode` for `reason`, about `detail` (0 when about nothing).
    pub const fn new(opcode: u16, reason: Reason, detail: u16) -> Self {
        let syndrome =
            (reason as u32) << 24 | (opcode as u32 & DETAIL) << 12 | detail as u32 & DETAIL;
        Self {
            status: reason.status(),
            syndrome,
        }
    }
}

/// Reason, opcode and detail of a syndrome of ours.
pub fn parts(syndrome: u32) -> Option<(Reason, Opcode, u16)> {
    let number = (syndrome >> 24) as u8;
    let reason = Reason::ALL
        .iter()
        .copied()
        .find(|reason| *reason as u8 == number)?;
    Some((
        reason,
        Opcode((syndrome >> 12 & DETAIL) as u16),
        (syndrome & DETAIL) as u16,
    ))
}

/// What a syndrome of this device means, for people; nothing for a number that is not ours.
pub fn explain(syndrome: u32) -> Option<String> {
    let (reason, opcode, detail) = parts(syndrome)?;
    let about = match reason.about() {
        About::Nothing => String::new(),
        About::Word => format!("{detail:#x}"),
        About::Object => Kind::of(detail).map_or("object".into(), |kind| kind.to_string()),
        About::Phase => match detail {
            1 => Phase::Disabled.to_string(),
            2 => Phase::Enabled.to_string(),
            3 => Phase::Running.to_string(),
            _ => Phase::TornDown.to_string(),
        },
        About::Field => name(crate::firmware::input_fields(opcode), detail),
        About::Capability => name(Some(CmdHcaCap::FIELDS), detail),
    };
    Some(format!("{opcode}: {}", reason.text().replace("{}", &about)))
}

fn name(fields: Option<&'static [Field]>, index: u16) -> String {
    fields
        .and_then(|fields| leaves(fields).into_iter().find(|leaf| leaf.index == index))
        .map_or_else(|| "an element of the list".into(), |leaf| leaf.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn reasons_are_distinct_and_come_back() {
        let numbers: BTreeSet<u8> = Reason::ALL.iter().map(|reason| *reason as u8).collect();
        assert_eq!(numbers.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let refusal = Refusal::new(0x400, *reason, 5);
            assert_eq!(
                parts(refusal.syndrome),
                Some((*reason, Opcode::CREATE_CQ, 5))
            );
            assert_ne!(refusal.status, Status::OK);
        }
        assert_eq!(parts(0xff40_0005), None);
    }

    #[test]
    fn explains_with_names() {
        let syndrome = Refusal::new(0x400, Reason::InUse, Kind::Cq as u16).syndrome;
        let text = explain(syndrome).unwrap();
        assert!(
            text.contains("CREATE_CQ") && text.contains("completion queue"),
            "{text}"
        );
        let syndrome = Refusal::new(0x800, Reason::NotOffered, 2).syndrome;
        assert!(
            explain(syndrome).unwrap().contains("uid"),
            "{}",
            explain(syndrome).unwrap()
        );
        assert_eq!(explain(0), None);
    }
}
