//! Regions of the device: what there is, which parts can be mapped, and access by message.

use super::duplicate;
use super::link::Link;
use super::message::{Answer, Request, command};
use super::socket::FDS;
use crate::{BusError, MappedWindow};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use pollux_mempool::Segment;
use pollux_mempool::page::system_page_size;
use std::os::fd::OwnedFd;

/// Indexes of a PCI device's regions (`linux/vfio.h`).
pub(super) const REGISTERS: u32 = 0;
pub(super) const CONFIG: u32 = 7;

/// The largest register region and number of mapped areas that are believed.
const MAX_REGION: u64 = 1 << 32;
const MAX_AREAS: u32 = 64;

/// Bytes of a region's description without its capabilities, and with the most that is read.
const INFO: usize = 32;
const MAX_INFO: usize = INFO + 4096;

/// Flags of a region (`VFIO_REGION_INFO_FLAG_*`).
const READ: u32 = 1 << 0;
const WRITE: u32 = 1 << 1;
const MMAP: u32 = 1 << 2;
const CAPS: u32 = 1 << 3;

/// The capability that lists the mappable areas (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`).
const SPARSE_MMAP: u16 = 1;

struct Info {
    flags: u32,
    size: u64,
    /// Where the region begins in its file.
    offset: u64,
    /// The answer, for its capabilities and descriptors.
    answer: Answer,
}

fn info(link: &Link, what: &'static str, index: u32) -> Result<Info, BusError> {
    let question = Request::new().u32(MAX_INFO as u32).u32(0).u32(index);
    let question = question.u32(0).u64(0).u64(0);
    let command = command::DEVICE_GET_REGION_INFO;
    let answer = link.call(what, command, &question, &[], INFO..=MAX_INFO)?;
    let (needed, flags, found) = (answer.u32(0), answer.u32(4), answer.u32(8));
    if found != index {
        return Err(link.nonsense(what, format!("region {found} in place of {index}")));
    }
    if needed as usize > MAX_INFO {
        let text = format!("a description of {needed} bytes, {MAX_INFO} at most");
        return Err(link.nonsense(what, text));
    }
    if flags & (READ | WRITE) != READ | WRITE {
        let text = format!("region {index} cannot be read and written (flags {flags:#x})");
        return Err(link.nonsense(what, text));
    }
    Ok(Info {
        flags,
        size: answer.u64(16),
        offset: answer.u64(24),
        answer,
    })
}

/// Size of a region that is only accessed by message.
pub(super) fn size(link: &Link, index: u32) -> Result<u64, BusError> {
    info(link, "a region's description", index).map(|info| info.size)
}

/// Size of the register region, and the parts of it that are mapped.
pub(super) fn registers(link: &Link) -> Result<(u64, Vec<MappedWindow>), BusError> {
    const WHAT: &str = "the registers' description";
    let nonsense = |text| link.nonsense(WHAT, text);
    let mut info = info(link, WHAT, REGISTERS)?;
    let size = info.size;
    if size == 0 || size > MAX_REGION {
        return Err(nonsense(format!(
            "{size:#x} bytes of registers, {MAX_REGION:#x} at most"
        )));
    }
    let listed = match info.flags & CAPS {
        0 => None,
        _ => sparse_areas(&info.answer).map_err(nonsense)?,
    };
    let areas = match (info.flags & MMAP, listed) {
        (0, _) => return Ok((size, Vec::new())),
        (_, Some(areas)) => areas,
        // Without a list the whole region can be mapped.
        (_, None) => vec![(0, size)],
    };
    check_areas(&areas, size).map_err(nonsense)?;
    if areas.is_empty() {
        return Ok((size, Vec::new()));
    }
    let fds = std::mem::take(&mut info.answer.fds);
    let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|fds| {
        nonsense(format!(
            "{} descriptors with the registers, one expected",
            fds.len()
        ))
    })?;
    check_seal(&file).map_err(nonsense)?;
    let windows = areas
        .into_iter()
        .map(|(offset, len)| {
            let at = info
                .offset
                .checked_add(offset)
                .ok_or_else(|| nonsense(format!("area {offset:#x} is past any file's end")))?;
            let len =
                usize::try_from(len).map_err(|_| nonsense(format!("an area of {len:#x} bytes")))?;
            let memory = Segment::from_fd(duplicate(&file)?, at, len)?.whole();
            Ok(MappedWindow { offset, memory })
        })
        .collect::<Result<_, BusError>>()?;
    Ok((size, windows))
}

/// Whole pages inside the region, none of them twice.
fn check_areas(areas: &[(u64, u64)], size: u64) -> Result<(), String> {
    let page = system_page_size() as u64;
    for (index, (offset, len)) in areas.iter().enumerate() {
        let end = offset.checked_add(*len).filter(|end| *end <= size);
        let (Some(end), true) = (end, *len != 0 && offset % page == 0 && len % page == 0) else {
            return Err(format!(
                "mappable area {offset:#x}+{len:#x} of a region of {size:#x} bytes; whole pages inside it expected"
            ));
        };
        let before = areas.get(..index).unwrap_or_default();
        let apart = |(other, len): &(u64, u64)| *other >= end || other + len <= *offset;
        if !before.iter().all(apart) {
            return Err(format!(
                "mappable area {offset:#x}+{len:#x} overlaps another"
            ));
        }
    }
    Ok(())
}

/// Touching a page that its file has lost kills the process, so the file must be unable to lose
/// any.
fn check_seal(file: &OwnedFd) -> Result<(), String> {
    let sealed = fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK));
    match sealed {
        true => Ok(()),
        false => Err(
            "a register file that its owner can shrink under us; seal it (F_SEAL_SHRINK)"
                .to_owned(),
        ),
    }
}

/// The areas of the sparse mmap capability, if it is in the list: offset and length each.
fn sparse_areas(answer: &Answer) -> Result<Option<Vec<(u64, u64)>>, String> {
    let mut at = answer.u32(12) as usize;
    let mut before = 0;
    while at != 0 {
        // Ever forward, so that the walk ends.
        if at <= before || at < INFO || at.saturating_add(8) > answer.len() {
            return Err(format!(
                "a capability at {at} of a description of {} bytes",
                answer.len()
            ));
        }
        if answer.u16(at) == SPARSE_MMAP {
            let count = answer.u32(at + 8);
            let list = answer.tail(at + 16);
            if count > MAX_AREAS || list.len() < count as usize * 16 {
                return Err(format!(
                    "{count} mappable areas in {} bytes, at most {MAX_AREAS} of 16",
                    list.len()
                ));
            }
            let area = |index| {
                let from = at + 16 + 16 * index as usize;
                (answer.u64(from), answer.u64(from + 8))
            };
            return Ok(Some((0..count).map(area).collect()));
        }
        before = at;
        at = answer.u32(at + 4) as usize;
    }
    Ok(None)
}

fn place(offset: u64, region: u32, len: usize) -> Request {
    Request::new().u64(offset).u32(region).u32(len as u32)
}

/// Loads from a region by message.
pub(super) fn load(
    link: &Link,
    region: u32,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), BusError> {
    const WHAT: &str = "a load";
    let mut at = offset;
    for part in bytes.chunks_mut(link.data_per_message()) {
        let question = place(at, region, part.len());
        let len = 16 + part.len();
        let answer = link.call(WHAT, command::REGION_READ, &question, &[], len..=len)?;
        check_echo(link, WHAT, &answer, (at, region, part.len()))?;
        part.copy_from_slice(answer.tail(16));
        at = at.wrapping_add(part.len() as u64);
    }
    Ok(())
}

/// Stores to a region by message, and waits until the device has taken it.
pub(super) fn store(link: &Link, region: u32, offset: u64, bytes: &[u8]) -> Result<(), BusError> {
    const WHAT: &str = "a store";
    let mut at = offset;
    for part in bytes.chunks(link.data_per_message()) {
        let question = place(at, region, part.len()).bytes(part);
        let answer = link.call(WHAT, command::REGION_WRITE, &question, &[], 16..=16)?;
        check_echo(link, WHAT, &answer, (at, region, part.len()))?;
        at = at.wrapping_add(part.len() as u64);
    }
    Ok(())
}

/// Stores to a region by message, without waiting: it is behind all earlier messages and before
/// all later ones.
pub(super) fn post(link: &Link, region: u32, offset: u64, bytes: &[u8]) {
    let mut at = offset;
    for part in bytes.chunks(link.data_per_message()) {
        let message = place(at, region, part.len()).bytes(part);
        link.post("a posted store", command::REGION_WRITE, &message);
        at = at.wrapping_add(part.len() as u64);
    }
}

/// The answer must be about what was asked.
fn check_echo(
    link: &Link,
    what: &'static str,
    answer: &Answer,
    asked: (u64, u32, usize),
) -> Result<(), BusError> {
    let found = (answer.u64(0), answer.u32(8), answer.u32(12) as usize);
    if found == asked && answer.fds.len() <= FDS {
        return Ok(());
    }
    let text = format!(
        "{} bytes at {:#x} of region {} in place of {} at {:#x} of {}",
        found.2, found.0, found.1, asked.2, asked.0, asked.1
    );
    Err(link.nonsense(what, text))
}
