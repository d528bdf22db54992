//! VERSION: both ends say which protocol they speak and what they take.

use super::link::Link;
use crate::BusError;
use crate::vfio_user::message::{MAJOR, MINOR, Version, command};
use serde_json::Value;
use std::io::ErrorKind;
use zerocopy::IntoBytes;

/// The longest text that is read.
const MAX_TEXT: usize = 1 << 16;

/// What the other end takes, with the protocol's defaults where it says nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Descriptors in one message.
    pub max_msg_fds: u64,
    /// Bytes of a region in one message.
    pub max_data_xfer_size: u64,
    /// Mappings at once.
    pub max_dma_maps: usize,
    /// Bit n: mappings in units of 2^n bytes.
    pub page_sizes: u64,
}

/// Agrees on a version.
///
/// # Errors
/// [`BusError::InUse`], or [`BusError::Peer`] for versions and texts that make no sense.
pub(super) fn negotiate(link: &Link, name: &str) -> Result<Capabilities, BusError> {
    const WHAT: &str = "agreeing on a version";
    let text = format!(
        r#"{{"capabilities":{{"max_msg_fds":{},"max_data_xfer_size":1048576}}}}"#,
        super::socket::FDS
    );
    let ours = Version {
        major: MAJOR,
        minor: MINOR,
    };
    let question = [ours.as_bytes(), text.as_bytes(), &[0]].concat();
    let numbers = size_of::<Version>();
    let lengths = numbers..=numbers + MAX_TEXT;
    let answer = link
        .call(WHAT, command::VERSION, &question, &[], lengths)
        .map_err(|error| refused(name, error))?;
    let theirs = answer
        .read::<Version>(0)
        .filter(|theirs| theirs.major == MAJOR && theirs.minor <= MINOR);
    if theirs.is_none() {
        let text = format!("it does not speak version {MAJOR}.{MINOR}; use a server that does");
        return Err(link.nonsense(WHAT, text));
    }
    parse(answer.tail(numbers)).map_err(|text| link.nonsense(WHAT, text))
}

/// A device that is held by another driver says so in one of two ways.
fn refused(name: &str, error: BusError) -> BusError {
    let busy = nix::errno::Errno::EBUSY.to_string();
    match error {
        BusError::Refused { reason, .. } if reason == busy => BusError::InUse {
            name: name.to_owned(),
        },
        BusError::Peer { what, source } if source.kind() == ErrorKind::UnexpectedEof => {
            let text = "it closed the connection before the first answer; it may serve another driver, or be no vfio-user server";
            BusError::Peer {
                what,
                source: std::io::Error::new(source.kind(), text),
            }
        }
        other => other,
    }
}

/// The text of a VERSION message: JSON with a NUL behind it, or nothing at all.
fn parse(text: &[u8]) -> Result<Capabilities, String> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let json = match text {
        [] => Value::Null,
        text => serde_json::from_slice(text)
            .map_err(|error| format!("capabilities that are no JSON ({error})"))?,
    };
    let number = |name: &str, default: u64, least: u64| {
        let value = match json.pointer("/capabilities").and_then(|all| all.get(name)) {
            None => default,
            Some(value) => value
                .as_u64()
                .ok_or_else(|| format!("capability {name} is no number"))?,
        };
        if value < least {
            return Err(format!("capability {name} is {value}, at least {least}"));
        }
        Ok(value)
    };
    let page_sizes = number("pgsizes", 0x1000, 1)?;
    // Smaller units than pages are of no use to anybody, and none above 1 GiB are common.
    if page_sizes.trailing_zeros() > 30 {
        return Err(format!(
            "capability pgsizes is {page_sizes:#x}, units of 1 GiB at most"
        ));
    }
    Ok(Capabilities {
        max_msg_fds: number("max_msg_fds", 1, 1)?,
        // A doorbell is one store of eight bytes.
        max_data_xfer_size: number("max_data_xfer_size", 1 << 20, 8)?,
        max_dma_maps: usize::try_from(number("max_dma_maps", 65_535, 1)?).unwrap_or(usize::MAX),
        page_sizes: page_sizes & !0xfff | if page_sizes & 0xfff == 0 { 0 } else { 0x1000 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_the_protocols_defaults() {
        let defaults = Capabilities {
            max_msg_fds: 1,
            max_data_xfer_size: 1_048_576,
            max_dma_maps: 65_535,
            page_sizes: 0x1000,
        };
        for text in [&b""[..], b"\0", b"{}\0", br#"{"capabilities":{}}"#, b"[]\0"] {
            assert_eq!(parse(text).as_ref(), Ok(&defaults));
        }
    }

    #[test]
    fn what_is_said_counts() {
        let text = br#"{"capabilities":{"max_msg_fds":32,"max_data_xfer_size":4096,"max_dma_maps":7,"pgsizes":2101249,"migration":{"pgsize":4096}}}"#;
        let said = parse(text).unwrap();
        assert_eq!((said.max_msg_fds, said.max_data_xfer_size), (32, 4096));
        assert_eq!((said.max_dma_maps, said.page_sizes), (7, 0x20_1000));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            &b"hello"[..],
            b"{\0",
            b"\xff\xfe",
            b"{}\0\0",
            br#"{"capabilities":{"max_msg_fds":-1}}"#,
            br#"{"capabilities":{"max_msg_fds":0}}"#,
            br#"{"capabilities":{"max_msg_fds":"many"}}"#,
            br#"{"capabilities":{"max_data_xfer_size":4}}"#,
            br#"{"capabilities":{"max_dma_maps":0}}"#,
            br#"{"capabilities":{"pgsizes":0}}"#,
            br#"{"capabilities":{"pgsizes":4611686018427387904}}"#,
            &[b'['; 4096],
        ] {
            assert!(parse(text).is_err(), "{}", text.escape_ascii());
        }
    }
}
