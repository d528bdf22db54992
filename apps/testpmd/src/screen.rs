//! Where answers go: standard output, or a buffer in tests.
//!
//! A reader that went away (a closed pipe) is no reason to leave ports running: it is
//! remembered, and the program ends as if told to quit.

use std::fmt::Display;
use std::io::{BufWriter, Write};

/// The program's output. Used by the shell's thread only.
pub struct Screen {
    out: BufWriter<Box<dyn Write + Send>>,
    gone: bool,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Screen(gone: {})", self.gone)
    }
}

impl Screen {
    /// Standard output.
    pub fn stdout() -> Self {
        Self::new(Box::new(std::io::stdout()))
    }

    /// Anything else.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        Self {
            out: BufWriter::new(out),
            gone: false,
        }
    }

    /// Writes text as it is.
    pub fn text(&mut self, text: impl Display) {
        let written = write!(self.out, "{text}");
        self.note(written);
    }

    /// Writes text and ends the line.
    pub fn line(&mut self, text: impl Display) {
        let written = writeln!(self.out, "{text}");
        self.note(written);
    }

    /// Shows what was written.
    pub fn flush(&mut self) {
        let written = self.out.flush();
        self.note(written);
    }

    /// Nobody reads any more.
    pub fn gone(&self) -> bool {
        self.gone
    }

    fn note(&mut self, written: std::io::Result<()>) {
        self.gone |= written.is_err();
    }
}
