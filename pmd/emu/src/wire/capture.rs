//! Captures as wires: pcap and pcapng, read whole and checked before anything starts, written as
//! frames come. The only module that knows the file formats' crate.
//!
//! Frames that a capture cut short (its snap length) are played as they are in the file.

use super::pace::Pace;
use super::{Delivery, PcapConfig, Wire, WireError};
use byteorder_slice::{BigEndian, ByteOrder, LittleEndian};
use pcap_file::pcap::{PcapHeader, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::{
    ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, PACKET_BLOCK, SECTION_HEADER_BLOCK,
    SIMPLE_PACKET_BLOCK,
};
use pcap_file::pcapng::{PcapNgWriter, RawBlock};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Longest frame that is believed; capture tools write no longer ones.
const MAX_FRAME: u32 = 256 * 1024;
/// Link type of Ethernet.
const ETHERNET: u32 = 1;
/// Buffer before the output file.
const BUFFER: usize = 1 << 20;

fn refuse(path: &Path, reason: impl Into<String>) -> WireError {
    WireError::Capture {
        path: path.display().to_string(),
        reason: reason.into(),
    }
}

/// A capture in memory: the file and where its frames are.
#[derive(Debug)]
struct Recording {
    file: Vec<u8>,
    frames: Vec<(usize, u32)>,
}

impl Recording {
    fn read(path: &Path) -> Result<Self, WireError> {
        let kind = std::fs::metadata(path).map_err(|error| refuse(path, error.to_string()))?;
        if !kind.is_file() {
            return Err(refuse(
                path,
                "is not a regular file; name a pcap or pcapng file",
            ));
        }
        let file = std::fs::read(path).map_err(|error| refuse(path, error.to_string()))?;
        let found = match file.first_chunk::<4>() {
            None => Err("is empty or shorter than any capture; name a pcap or pcapng file".into()),
            Some([0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d]) => pcap::<BigEndian>(&file),
            Some([0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1]) => {
                pcap::<LittleEndian>(&file)
            }
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng(&file),
            Some(other) => Err(format!(
                "starts with {other:02x?}, which is neither pcap nor pcapng; if it is packed, unpack it"
            )),
        };
        let frames = found.map_err(|reason| refuse(path, reason))?;
        Ok(Self { file, frames })
    }

    fn frame(&self, index: usize) -> Option<&[u8]> {
        let (at, len) = *self.frames.get(index)?;
        self.file.get(at..at + len as usize)
    }
}

fn check_link(link: u32) -> Result<(), String> {
    if link == ETHERNET {
        return Ok(());
    }
    Err(format!(
        "holds frames of link type {link} ({:?}), only Ethernet ({ETHERNET}) can be sent; capture on an Ethernet interface",
        DataLink::from(link)
    ))
}

fn check_len(number: usize, at: usize, len: u32) -> Result<(), String> {
    if len <= MAX_FRAME {
        return Ok(());
    }
    Err(format!(
        "frame {number} at byte {at} claims {len} bytes, more than {MAX_FRAME}: the file is damaged"
    ))
}

fn cut_short(number: usize, at: usize, len: usize) -> String {
    format!(
        "is truncated: the file ends at byte {len} inside frame {number}, which starts at byte {at}; copy it anew"
    )
}

fn pcap<B: ByteOrder>(file: &[u8]) -> Result<Vec<(usize, u32)>, String> {
    let (mut rest, header) = PcapHeader::from_slice(file).map_err(|_| {
        format!(
            "is truncated: {} bytes are no whole pcap header",
            file.len()
        )
    })?;
    // The upper bits say how long a check sequence is; the frames tell that themselves.
    check_link(u32::from(header.datalink) & 0xffff)?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let at = file.len() - rest.len();
        let number = frames.len();
        // The length is looked at first: what is damaged is not merely cut short.
        if let Some(len) = rest.get(8..12) {
            check_len(number, at, B::read_u32(len))?;
        }
        let Ok((next, frame)) = RawPcapPacket::from_slice::<B>(rest) else {
            return Err(cut_short(number, at, file.len()));
        };
        frames.push((at + 16, frame.incl_len));
        rest = next;
    }
    Ok(frames)
}

fn pcapng(file: &[u8]) -> Result<Vec<(usize, u32)>, String> {
    let mut reader = Blocks {
        frames: Vec::new(),
        links: Vec::new(),
        snap: Vec::new(),
    };
    let mut rest = file;
    let mut big = false;
    while !rest.is_empty() {
        let at = file.len() - rest.len();
        if let Some([0x0a, 0x0d, 0x0d, 0x0a]) = rest.first_chunk::<4>() {
            big = matches!(rest.get(8..12), Some([0x1a, 0x2b, 0x3c, 0x4d]));
        }
        rest = match big {
            true => reader.block::<BigEndian>(rest, at, file.len())?,
            false => reader.block::<LittleEndian>(rest, at, file.len())?,
        };
    }
    Ok(reader.frames)
}

struct Blocks {
    frames: Vec<(usize, u32)>,
    /// Link types and snap lengths of the section's interfaces.
    links: Vec<u16>,
    snap: Vec<u32>,
}

impl Blocks {
    /// Takes one block; what follows it is returned.
    fn block<'a, B: ByteOrder>(
        &mut self,
        rest: &'a [u8],
        at: usize,
        len: usize,
    ) -> Result<&'a [u8], String> {
        let number = self.frames.len();
        let (next, block) = RawBlock::from_slice::<B>(rest).map_err(|error| match error {
            PcapError::IncompleteBuffer => cut_short(number, at, len),
            other => format!("is damaged at byte {at}, near frame {number}: {other}"),
        })?;
        let body: &[u8] = &block.body;
        let short = || format!("is damaged: the block at byte {at} is too short for its kind");
        let word = |offset: usize| {
            body.get(offset..offset + 4)
                .map(B::read_u32)
                .ok_or_else(short)
        };
        match block.type_ {
            SECTION_HEADER_BLOCK => {
                self.links.clear();
                self.snap.clear();
            }
            INTERFACE_DESCRIPTION_BLOCK => {
                let link = body.get(..2).map(B::read_u16).ok_or_else(short)?;
                self.links.push(link);
                self.snap.push(word(4)?);
            }
            ENHANCED_PACKET_BLOCK => {
                self.frame(word(0)?, number, at, word(12)?, 20, body.len())?;
            }
            PACKET_BLOCK => {
                let interface = body.get(..2).map(B::read_u16).ok_or_else(short)?;
                self.frame(u32::from(interface), number, at, word(12)?, 20, body.len())?;
            }
            SIMPLE_PACKET_BLOCK => {
                let snap = match self.snap.first() {
                    Some(0) | None => u32::MAX,
                    Some(snap) => *snap,
                };
                self.frame(0, number, at, word(0)?.min(snap), 4, body.len())?;
            }
            _ => {}
        }
        Ok(next)
    }

    fn frame(
        &mut self,
        interface: u32,
        number: usize,
        at: usize,
        len: u32,
        skip: usize,
        there: usize,
    ) -> Result<(), String> {
        let link = self.links.get(interface as usize).ok_or_else(|| {
            format!("is damaged: frame {number} at byte {at} names interface {interface}, which is not described")
        })?;
        check_link(u32::from(*link))?;
        check_len(number, at, len)?;
        if skip + len as usize > there {
            return Err(format!(
                "is damaged: frame {number} at byte {at} claims {len} bytes, its block holds {}",
                there.saturating_sub(skip)
            ));
        }
        self.frames.push((at + 8 + skip, len));
        Ok(())
    }
}

enum Format {
    Pcap(BufWriter<File>),
    PcapNg(PcapNgWriter<BufWriter<File>>),
}

/// A capture that is being written.
struct Output {
    format: Format,
    error: Option<String>,
}

impl Output {
    fn create(path: &Path) -> Result<Self, WireError> {
        let file = File::create(path)
            .map_err(|error| refuse(path, format!("cannot be created: {error}")))?;
        let mut writer = BufWriter::with_capacity(BUFFER, file);
        let failed = |error: PcapError| refuse(path, reason(&error));
        let ng = path
            .extension()
            .is_some_and(|name| name.eq_ignore_ascii_case("pcapng"));
        let format = if ng {
            let mut writer =
                PcapNgWriter::with_endianness(writer, Endianness::Little).map_err(failed)?;
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: MAX_FRAME,
                // The crate writes nanoseconds, whatever this says.
                options: vec![InterfaceDescriptionOption::IfTsResol(9)],
            };
            writer.write_pcapng_block(interface).map_err(failed)?;
            Format::PcapNg(writer)
        } else {
            let header = PcapHeader {
                snaplen: MAX_FRAME,
                datalink: DataLink::ETHERNET,
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::Little,
                ..PcapHeader::default()
            };
            header.write_to(&mut writer).map_err(failed)?;
            Format::Pcap(writer)
        };
        Ok(Self {
            format,
            error: None,
        })
    }

    fn write(&mut self, frame: &[u8], time: Duration) {
        if self.error.is_some() {
            return;
        }
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let written = match &mut self.format {
            Format::Pcap(writer) => RawPcapPacket {
                // The format's seconds have 32 bits.
                ts_sec: time.as_secs() as u32,
                ts_frac: time.subsec_nanos(),
                incl_len: len,
                orig_len: len,
                data: Cow::Borrowed(frame),
            }
            .write_to::<_, LittleEndian>(writer),
            Format::PcapNg(writer) => writer.write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: time,
                original_len: len,
                data: Cow::Borrowed(frame),
                options: Vec::new(),
            }),
        };
        if let Err(error) = written {
            self.error = Some(reason(&error));
        }
    }

    fn flush(&mut self) {
        let flushed = match &mut self.format {
            Format::Pcap(writer) => writer.flush(),
            Format::PcapNg(writer) => writer.get_mut().flush(),
        };
        if let (Err(error), None) = (flushed, &self.error) {
            self.error = Some(error.to_string());
        }
    }
}

fn reason(error: &PcapError) -> String {
    match error {
        PcapError::IoError(error) => format!("cannot be written: {error}"),
        other => format!("cannot be written: {other}"),
    }
}

/// A capture to receive from, one to send to, or both.
pub(super) struct PcapWire {
    what: String,
    input: Option<Recording>,
    output: Option<Output>,
    /// Next frame of the input.
    next: usize,
    /// Times that the input is still played, this one included; `None` for ever.
    turns: Option<u64>,
    pace: Pace,
}

impl PcapWire {
    /// Reads and checks the input, then creates the output.
    pub fn open(config: &PcapConfig) -> Result<Self, WireError> {
        let name = |path: &Option<std::path::PathBuf>| match path {
            Some(path) => path.display().to_string(),
            None => "nothing".to_owned(),
        };
        let what = format!(
            "pcap from {} to {}",
            name(&config.input),
            name(&config.output)
        );
        let input = config.input.as_deref().map(Recording::read).transpose()?;
        let output = config.output.as_deref().map(Output::create).transpose()?;
        let empty = input.as_ref().is_none_or(|input| input.frames.is_empty());
        let turns = match (empty, config.repeat) {
            (true, _) => Some(0),
            (false, 0) => None,
            (false, turns) => Some(turns),
        };
        Ok(Self {
            what,
            input,
            output,
            next: 0,
            turns,
            pace: Pace::new(config.rate),
        })
    }
}

impl Wire for PcapWire {
    fn what(&self) -> String {
        self.what.clone()
    }

    fn brings(&self) -> bool {
        self.turns != Some(0)
    }

    fn wants_frames(&self) -> bool {
        self.output.is_some()
    }

    fn peek(&mut self, now: u64) -> Option<&[u8]> {
        if self.turns == Some(0) || !self.pace.is_due(now) {
            return None;
        }
        self.input.as_ref()?.frame(self.next)
    }

    fn advance(&mut self) {
        self.pace.advance();
        self.next += 1;
        if self
            .input
            .as_ref()
            .is_some_and(|input| self.next >= input.frames.len())
        {
            self.next = 0;
            if let Some(turns) = &mut self.turns {
                *turns = turns.saturating_sub(1);
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        let frames = self.input.as_ref().map_or(0, |input| input.frames.len()) as u64;
        self.turns
            .map(|turns| (turns * frames).saturating_sub(self.next as u64))
    }

    fn send(&mut self, frame: &[u8], time: Duration) -> Delivery {
        if let Some(output) = &mut self.output {
            output.write(frame, time);
        }
        Delivery::Taken
    }

    fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
    }

    fn error(&self) -> Option<String> {
        self.output.as_ref().and_then(|output| output.error.clone())
    }
}

impl Drop for PcapWire {
    fn drop(&mut self) {
        self.flush();
        if let Some(error) = self.error() {
            tracing::error!("{}: {error}", self.what);
        }
    }
}
