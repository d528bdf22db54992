//! What can go wrong when an emulator is described or made.

use crate::data::DataError;
use crate::wire::WireError;
use pollux_mempool::MemoryError;

/// Every failure of this crate. Each message says what was asked, what is allowed, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmuError {
    /// A key of the device string that does not exist.
    #[error("{key}: no such key for an emulated device; there are {allowed}")]
    Key {
        /// The key given.
        key: String,
        /// The keys that exist.
        allowed: String,
    },
    /// A value that a key does not take.
    #[error("{key}={given}: {allowed} expected")]
    Value {
        /// The key.
        key: String,
        /// The value given.
        given: String,
        /// What would do.
        allowed: String,
    },
    /// Keys that do not go together.
    #[error("{what}")]
    Combination {
        /// What is wrong and what would do.
        what: String,
    },
    /// A function number out of range.
    #[error("function {asked} asked for, the emulator has {there}, counted from 0")]
    Function {
        /// Asked for.
        asked: usize,
        /// Present.
        there: usize,
    },
    /// A model's description is wrong.
    #[error("the description of model {model} is wrong: {what}")]
    Profile {
        /// The model.
        model: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A wire could not be set up.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The data side could not be set up or does not answer.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Register pages could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
