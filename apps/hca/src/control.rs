//! The control socket: a script connects, sends lines, and gets a line for each.
//!
//! `ok` stands before an answer, `error` before what was wrong. The lines are those of
//! [`pollux_emu::control`], and `help`, whose answer has several lines joined by `; `. Clients are
//! served one after the other; one that is silent for [`SILENCE`] is let go, so that none can keep
//! the others out.

use pollux_emu::{Emulator, control};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a client may say nothing.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Longest line.
const LINE: u64 = 4096;

/// The answer to a line.
pub fn answer(emulator: &Emulator, line: &str) -> String {
    if line.trim() == "help" {
        return format!("ok {}", control::HELP.join("; "));
    }
    match control::run(emulator, line) {
        Ok(answer) => format!("ok {answer}"),
        Err(why) => format!("error {why}"),
    }
}

/// Serves one client until it leaves.
///
/// # Errors
/// It was silent, sent too long a line, or does not read its answers.
pub fn serve(emulator: &Emulator, stream: UnixStream) -> Result<(), Error> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        let got = lines.by_ref().take(LINE).read_line(&mut line)?;
        if got == 0 {
            return Ok(());
        }
        if !line.ends_with('\n') && got as u64 == LINE {
            let why = format!("a line of more than {LINE} bytes");
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        writeln!(out, "{}", answer(emulator, line.trim_end()))?;
    }
}

/// Asks the program at `path` one line.
///
/// # Errors
/// Nobody listens there, or the answer does not come.
pub fn ask(path: &Path, line: &str) -> Result<Result<String, String>, Error> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SILENCE))?;
    writeln!(stream, "{line}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let answer = answer.trim_end();
    let text = |prefix: &str| {
        let rest = answer.strip_prefix(prefix)?;
        Some(rest.trim_start().to_owned())
    };
    match (text("ok"), text("error")) {
        (Some(said), _) => Ok(Ok(said)),
        (None, Some(why)) => Ok(Err(why)),
        (None, None) => Err(Error::new(
            ErrorKind::InvalidData,
            format!("an answer that is none: {answer:?}"),
        )),
    }
}
