//! What a test asks of the device's side, as one line and one line of answer: the same words work
//! on an emulator in this process and on one in another. See [`pollux_emu::control`].

use pollux_emu::Emulator;

/// Does one line, which must be right.
pub fn run(emulator: &Emulator, line: &str) -> String {
    pollux_emu::control::run(emulator, line).unwrap_or_else(|why| panic!("{line}: {why}"))
}
