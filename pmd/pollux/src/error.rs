//! What can go wrong between an application and its ports. Each message is one line and says what
//! was given, what is allowed, and what to do.

use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device string that means nothing.
    #[error("device {given:?}: {reason}")]
    Device {
        /// The string.
        given: String,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// A device string that means something which this build cannot reach.
    #[error("device {given:?}: {what} cannot be reached yet; use emu: (a software adapter)")]
    NotReachable {
        /// The string.
        given: String,
        /// What it names.
        what: &'static str,
    },
    /// No device was named, and the choice is not ours.
    #[error(
        "no device named, and {found} bound to vfio-pci; name one of them, or emu: for a software adapter"
    )]
    Undecided {
        /// The adapters' addresses.
        found: String,
    },
    /// A configuration file that cannot be read.
    #[error("{file}: {source}; give a readable TOML file", file = .file.display())]
    ConfigFile {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Something in a configuration is not as it must be.
    #[error("{file}:{line}:{column}: {reason}")]
    Config {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A setting that is out of range.
    #[error("{what} = {given}: {allowed} allowed; {remedy}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        given: String,
        /// What it may be.
        allowed: String,
        /// What to do.
        remedy: String,
    },
}
