//! Regions of the device: what there is, which parts can be mapped, and access by message.

use super::answer::Answer;
use super::duplicate;
use super::link::Link;
use crate::vfio_user::message::{RegionAccess, RegionInfo, SparseArea, SparseAreas, command};
use crate::{BusError, MappedWindow};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use pollux_mempool::Segment;
use pollux_mempool::page::system_page_size;
use std::os::fd::OwnedFd;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use zerocopy::IntoBytes;

/// The region with the registers.
pub(super) const REGISTERS: u32 = VFIO_PCI_BAR0_REGION_INDEX;

/// The largest register region and number of mapped areas that are believed.
const MAX_REGION: u64 = 1 << 32;
const MAX_AREAS: u32 = 64;

/// Bytes of a region's description without its capabilities, and with the most that is read.
const INFO: usize = size_of::<RegionInfo>();
const MAX_INFO: usize = INFO + 4096;

/// What was said about a region, and the whole answer, for its capabilities and descriptors.
fn info(link: &Link, what: &'static str, index: u32) -> Result<(RegionInfo, Answer), BusError> {
    let question = RegionInfo {
        argsz: MAX_INFO as u32,
        flags: 0,
        index,
        cap_offset: 0,
        size: 0,
        offset: 0,
    };
    let (command, bytes) = (command::DEVICE_GET_REGION_INFO, question.as_bytes());
    let answer = link.call(what, command, bytes, &[], INFO..=MAX_INFO)?;
    let info: RegionInfo = answer
        .read(0)
        .ok_or_else(|| link.nonsense(what, "a description that is too short".to_owned()))?;
    let (needed, flags, found) = (info.argsz, info.flags, info.index);
    if found != index {
        return Err(link.nonsense(what, format!("region {found} in place of {index}")));
    }
    if needed as usize > MAX_INFO {
        let text = format!("a description of {needed} bytes, {MAX_INFO} at most");
        return Err(link.nonsense(what, text));
    }
    let both = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    if flags & both != both {
        let text = format!("region {index} cannot be read and written (flags {flags:#x})");
        return Err(link.nonsense(what, text));
    }
    Ok((info, answer))
}

/// Size of a region that is only accessed by message.
pub(super) fn size(link: &Link, index: u32) -> Result<u64, BusError> {
    info(link, "a region's description", index).map(|(info, _)| info.size)
}

/// Size of the register region, and the parts of it that are mapped.
pub(super) fn registers(link: &Link) -> Result<(u64, Vec<MappedWindow>), BusError> {
    const WHAT: &str = "the registers' description";
    let nonsense = |text| link.nonsense(WHAT, text);
    let (info, answer) = info(link, WHAT, REGISTERS)?;
    let size = info.size;
    if size == 0 || size > MAX_REGION {
        return Err(nonsense(format!(
            "{size:#x} bytes of registers, {MAX_REGION:#x} at most"
        )));
    }
    let listed = match info.flags & VFIO_REGION_INFO_FLAG_CAPS {
        0 => None,
        _ => sparse_areas(&info, &answer).map_err(nonsense)?,
    };
    let areas = match (info.flags & VFIO_REGION_INFO_FLAG_MMAP, listed) {
        (0, _) => return Ok((size, Vec::new())),
        (_, Some(areas)) => areas,
        // Without a list the whole region can be mapped.
        (_, None) => vec![(0, size)],
    };
    check_areas(&areas, size).map_err(nonsense)?;
    if areas.is_empty() {
        return Ok((size, Vec::new()));
    }
    let [file] = <[OwnedFd; 1]>::try_from(answer.fds).map_err(|fds| {
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
fn sparse_areas(info: &RegionInfo, answer: &Answer) -> Result<Option<Vec<(u64, u64)>>, String> {
    let mut at = info.cap_offset as usize;
    let mut before = 0;
    while at != 0 {
        // All capabilities begin alike: with an id, a version, and where the next one is.
        let Some(list) = answer
            .read::<SparseAreas>(at)
            // Ever forward, so that the walk ends.
            .filter(|_| at > before && at >= INFO)
        else {
            let len = answer.len();
            return Err(format!(
                "a capability at {at} of a description of {len} bytes"
            ));
        };
        if u32::from(list.id) == VFIO_REGION_INFO_CAP_SPARSE_MMAP {
            let first = at + size_of::<SparseAreas>();
            let area = |index: u32| {
                let area: SparseArea =
                    answer.read(first + size_of::<SparseArea>() * index as usize)?;
                Some((area.offset, area.size))
            };
            let areas = (list.count <= MAX_AREAS).then(|| (0..list.count).map(area).collect());
            return areas.flatten().map(Some).ok_or_else(|| {
                let (count, room) = (list.count, answer.tail(first).len());
                format!("{count} mappable areas in {room} bytes, at most {MAX_AREAS} of 16")
            });
        }
        before = at;
        at = list.next as usize;
    }
    Ok(None)
}

fn place(offset: u64, region: u32, data: &[u8]) -> RegionAccess {
    RegionAccess {
        offset,
        region,
        count: data.len() as u32,
    }
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
        let asked = place(at, region, part);
        let head = size_of::<RegionAccess>();
        let lengths = head + part.len()..=head + part.len();
        let answer = link.call(WHAT, command::REGION_READ, asked.as_bytes(), &[], lengths)?;
        check_echo(link, WHAT, answer.read(0), asked)?;
        part.copy_from_slice(answer.tail(head));
        at = at.wrapping_add(part.len() as u64);
    }
    Ok(())
}

/// Stores to a region by message, and waits until the device has taken it.
pub(super) fn store(link: &Link, region: u32, offset: u64, bytes: &[u8]) -> Result<(), BusError> {
    const WHAT: &str = "a store";
    let mut at = offset;
    for part in bytes.chunks(link.data_per_message()) {
        let asked = place(at, region, part);
        let question = [asked.as_bytes(), part].concat();
        let done = link.ask(WHAT, command::REGION_WRITE, &question)?;
        check_echo(link, WHAT, Some(done), asked)?;
        at = at.wrapping_add(part.len() as u64);
    }
    Ok(())
}

/// Stores to a region by message, without waiting: it is behind all earlier messages and before
/// all later ones.
pub(super) fn post(link: &Link, region: u32, offset: u64, bytes: &[u8]) {
    let mut at = offset;
    for part in bytes.chunks(link.data_per_message()) {
        let message = [place(at, region, part).as_bytes(), part].concat();
        link.post("a posted store", command::REGION_WRITE, &message);
        at = at.wrapping_add(part.len() as u64);
    }
}

/// The answer must be about what was asked.
fn check_echo(
    link: &Link,
    what: &'static str,
    answer: Option<RegionAccess>,
    asked: RegionAccess,
) -> Result<(), BusError> {
    if answer == Some(asked) {
        return Ok(());
    }
    let text = format!("an answer about {answer:?} in place of {asked:?}");
    Err(link.nonsense(what, text))
}
