//! Packets of a pcap or pcapng file, one after the other, with every fault of the file
//! told in one line.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError};

/// First guess at the largest block.
const BUFFER: usize = 256 * 1024;
/// A block beyond this is a damaged length field, not a packet.
const LARGEST_BLOCK: usize = 16 * 1024 * 1024;

/// Why a capture could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened.
    #[error("{path}: {source}; give a pcap or pcapng file that can be read", path = .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file holds nothing.
    #[error("{}: the file is empty; a capture has at least a header", .0.display())]
    Empty(PathBuf),
    /// Not a capture at all.
    #[error("{}: neither pcap nor pcapng (first bytes {first}); give a capture in one of these formats", .path.display())]
    NotACapture {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        first: String,
    },
    /// It ends within a block.
    #[error("{}: cut off or damaged after {packets} whole packets, in the block at byte {offset}; capture it again or repair it", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Packets read so far.
        packets: u64,
        /// Where the incomplete block starts.
        offset: usize,
    },
    /// A block makes no sense.
    #[error("{}: damaged after {packets} packets, at byte {offset}: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Packets read so far.
        packets: u64,
        /// Where the block starts.
        offset: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Packets of another link layer.
    #[error("{}: packet {packet} is of link type {link_type}, not Ethernet (1); only Ethernet captures can be compared", .path.display())]
    NotEthernet {
        /// The file.
        path: PathBuf,
        /// The packet, counted from 1.
        packet: u64,
        /// Its link type by name or number.
        link_type: String,
    },
}

/// One packet's facts; its bytes are in [`Capture::bytes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketFacts {
    /// Counted from 1.
    pub number: u64,
    /// Length on the wire; more than was captured when the capture had a length limit.
    pub wire_length: u32,
    /// Its link type.
    pub link_type: i32,
}

/// What [`Capture::summary`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Packets.
    pub packets: u64,
    /// Captured bytes.
    pub bytes: u64,
    /// Shortest packet, 0 without packets.
    pub min: usize,
    /// Longest packet.
    pub max: usize,
    /// Packets of which only a part was captured.
    pub cut: u64,
    /// Link types by name, in order of number.
    pub link_types: String,
}

struct Interface {
    link_type: i32,
    snap_length: u32,
}

/// An open capture.
pub struct Capture {
    path: PathBuf,
    reader: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<Interface>,
    legacy: bool,
    packets: u64,
    capacity: usize,
    bytes: Vec<u8>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Capture({}, {} packets)",
            self.path.display(),
            self.packets
        )
    }
}

impl Capture {
    /// Opens `path` and recognises its format.
    ///
    /// # Errors
    /// The file cannot be opened, is empty, is no capture, or ends within its header.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let io = |source| CaptureError::Open {
            path: path.to_path_buf(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        let reader = pcap_parser::create_reader(BUFFER, file).map_err(|e| match e {
            PcapError::Eof => CaptureError::Empty(path.to_path_buf()),
            PcapError::Incomplete(_) | PcapError::UnexpectedEof => CaptureError::Truncated {
                path: path.to_path_buf(),
                packets: 0,
                offset: 0,
            },
            _ => CaptureError::NotACapture {
                path: path.to_path_buf(),
                first: first_bytes(path),
            },
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            reader,
            interfaces: Vec::new(),
            legacy: false,
            packets: 0,
            capacity: BUFFER,
            bytes: Vec::new(),
        })
    }

    /// `pcap` or `pcapng`; known after the first packet was asked for.
    pub fn format(&self) -> &'static str {
        if self.legacy { "pcap" } else { "pcapng" }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The captured bytes of the packet that [`Capture::next_packet`] gave last.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The next packet, `None` at the end.
    ///
    /// # Errors
    /// The file is cut off or damaged.
    pub fn next_packet(&mut self) -> Result<Option<PacketFacts>, CaptureError> {
        loop {
            let offset = self.reader.consumed();
            match self.reader.next() {
                Ok((size, block)) => {
                    let taken = take(block, &mut self.interfaces, &mut self.bytes);
                    self.reader.consume(size);
                    match taken {
                        Ok(Taken::Packet(link_type, wire_length)) => {
                            self.packets += 1;
                            return Ok(Some(PacketFacts {
                                number: self.packets,
                                wire_length,
                                link_type,
                            }));
                        }
                        Ok(Taken::LegacyHeader) => self.legacy = true,
                        Ok(Taken::Other) => {}
                        Err(what) => return Err(self.damaged(offset, what)),
                    }
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_)) => self.refill(offset)?,
                Err(PcapError::UnexpectedEof) => {
                    return Err(CaptureError::Truncated {
                        path: self.path.clone(),
                        packets: self.packets,
                        offset,
                    });
                }
                Err(PcapError::BufferTooSmall) => self.grow(offset)?,
                Err(PcapError::NomError(_, kind) | PcapError::OwnedNomError(_, kind)) => {
                    let what = format!("no valid block ({kind:?})");
                    return Err(self.damaged(offset, what));
                }
                Err(PcapError::ReadError | PcapError::HeaderNotRecognized) => {
                    return Err(self.damaged(offset, "the file could not be read on".into()));
                }
            }
        }
    }

    /// The next packet, which must be Ethernet.
    ///
    /// # Errors
    /// As [`Capture::next_packet`]; and the packet is of another link layer.
    pub fn next_ethernet(&mut self) -> Result<Option<PacketFacts>, CaptureError> {
        let packet = self.next_packet()?;
        if let Some(p) = packet.filter(|p| p.link_type != Linktype::ETHERNET.0) {
            return Err(CaptureError::NotEthernet {
                path: self.path.clone(),
                packet: p.number,
                link_type: Linktype(p.link_type).to_string(),
            });
        }
        Ok(packet)
    }

    /// Reads the rest of the file.
    ///
    /// # Errors
    /// As [`Capture::next_packet`].
    pub fn summary(&mut self) -> Result<Summary, CaptureError> {
        let mut link_types = BTreeSet::new();
        let mut s = Summary {
            packets: 0,
            bytes: 0,
            min: usize::MAX,
            max: 0,
            cut: 0,
            link_types: String::new(),
        };
        while let Some(p) = self.next_packet()? {
            let n = self.bytes.len();
            s.packets += 1;
            s.bytes += n as u64;
            s.min = s.min.min(n);
            s.max = s.max.max(n);
            s.cut += u64::from(n < p.wire_length as usize);
            link_types.insert(p.link_type);
        }
        if s.packets == 0 {
            s.min = 0;
        }
        link_types.extend(self.interfaces.iter().map(|i| i.link_type));
        let names: Vec<String> = link_types
            .iter()
            .map(|t| Linktype(*t).to_string())
            .collect();
        s.link_types = names.join(", ");
        Ok(s)
    }

    fn refill(&mut self, offset: usize) -> Result<(), CaptureError> {
        if self.reader.refill().is_err() {
            return Err(self.damaged(offset, "the file could not be read on".into()));
        }
        Ok(())
    }

    fn grow(&mut self, offset: usize) -> Result<(), CaptureError> {
        self.capacity *= 2;
        if self.capacity > LARGEST_BLOCK {
            return Err(self.damaged(
                offset,
                format!("a block of more than {} MiB", LARGEST_BLOCK >> 20),
            ));
        }
        self.reader.grow(self.capacity);
        self.refill(offset)
    }

    fn damaged(&self, offset: usize, what: String) -> CaptureError {
        CaptureError::Damaged {
            path: self.path.clone(),
            packets: self.packets,
            offset,
            what,
        }
    }
}

enum Taken {
    /// Link type and wire length; the bytes were copied.
    Packet(i32, u32),
    LegacyHeader,
    Other,
}

fn take(
    block: PcapBlockOwned<'_>,
    interfaces: &mut Vec<Interface>,
    bytes: &mut Vec<u8>,
) -> Result<Taken, String> {
    match block {
        PcapBlockOwned::LegacyHeader(h) => {
            interfaces.push(Interface {
                link_type: h.network.0,
                snap_length: h.snaplen,
            });
            Ok(Taken::LegacyHeader)
        }
        PcapBlockOwned::Legacy(p) => {
            let i = interfaces.first().ok_or("a packet before the header")?;
            bytes.clear();
            bytes.extend_from_slice(p.data);
            Ok(Taken::Packet(i.link_type, p.origlen))
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            Ok(Taken::Other)
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(i)) => {
            interfaces.push(Interface {
                link_type: i.linktype.0,
                snap_length: i.snaplen,
            });
            Ok(Taken::Other)
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(p)) => {
            let n = interfaces.len();
            let i = usize::try_from(p.if_id)
                .ok()
                .and_then(|i| interfaces.get(i))
                .ok_or_else(|| format!("a packet of interface {}, of {n} described", p.if_id))?;
            let data = p
                .data
                .get(..p.caplen as usize)
                .ok_or_else(|| format!("a packet of {} bytes in a smaller block", p.caplen))?;
            bytes.clear();
            bytes.extend_from_slice(data);
            Ok(Taken::Packet(i.link_type, p.origlen))
        }
        PcapBlockOwned::NG(Block::SimplePacket(p)) => {
            let i = interfaces
                .first()
                .ok_or("a packet before any interface was described")?;
            // The block's data is padded to 4 bytes; its length is told nowhere else.
            let limit = if i.snap_length == 0 {
                u32::MAX
            } else {
                i.snap_length
            };
            let length = p.origlen.min(limit) as usize;
            let data = p.raw_packet_data();
            bytes.clear();
            bytes.extend_from_slice(data.get(..length).unwrap_or(data));
            Ok(Taken::Packet(i.link_type, p.origlen))
        }
        PcapBlockOwned::NG(_) => Ok(Taken::Other),
    }
}

fn first_bytes(path: &Path) -> String {
    use std::io::Read as _;
    let mut first = [0; 4];
    let n = File::open(path)
        .and_then(|mut f| f.read(&mut first))
        .unwrap_or(0);
    first
        .get(..n)
        .unwrap_or(&[])
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}
