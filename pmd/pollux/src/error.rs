//! What can go wrong between an application and its ports. Each message is one line and says what
//! was given, what is allowed, and what to do.

use pollux_bus::BusError;
use pollux_mempool::MemoryError;
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
    /// A device that is not there, or does not let itself be reached.
    #[error("device {given:?}: {source}")]
    Unreached {
        /// The string.
        given: String,
        /// Why not.
        source: Box<BusError>,
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
    /// A CPU that runs an lcore already.
    #[error("CPU {cpu} runs an lcore already; give each lcore a CPU of its own")]
    LcoreTaken {
        /// The CPU.
        cpu: usize,
    },
    /// The system refused a thread.
    #[error("no thread for the lcore on CPU {cpu}: {source}; raise the limit of threads")]
    LcoreThread {
        /// The CPU.
        cpu: usize,
        /// Why not.
        source: std::io::Error,
    },
    /// The code on an lcore panicked.
    #[error("the lcore on CPU {cpu} panicked: {cause}")]
    LcorePanicked {
        /// The CPU.
        cpu: usize,
        /// The panic's message.
        cause: String,
    },
    /// Memory, pinning or an lcore's slot could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device could not be reached.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A port or its device failed.
    #[error(transparent)]
    Driver(#[from] pollux_mlx5::Error),
    /// The emulator could not be made, or refused something.
    #[cfg(feature = "emu")]
    #[error("device {given:?}: {source}")]
    Emulator {
        /// The device string.
        given: String,
        /// Why not.
        source: pollux_emu::EmuError,
    },
}

impl Error {
    /// Whether giving something else mends it (a device string, a file, a setting, a CPU, less
    /// memory), as against a device or a machine that fails.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Device { .. }
            | Self::Undecided { .. }
            | Self::ConfigFile { .. }
            | Self::Config { .. }
            | Self::Setting { .. }
            | Self::LcoreTaken { .. }
            | Self::Memory(_)
            | Self::Driver(
                pollux_mlx5::Error::Setting { .. } | pollux_mlx5::Error::NotMlx5 { .. },
            ) => true,
            #[cfg(feature = "emu")]
            Self::Emulator { .. } => true,
            Self::Unreached { source, .. } => matches!(
                **source,
                BusError::Unreachable { .. }
                    | BusError::NoFunction { .. }
                    | BusError::NotBound { .. }
                    | BusError::NoIommu { .. }
                    | BusError::GroupNotViable { .. }
            ),
            _ => false,
        }
    }
}
