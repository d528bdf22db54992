//! Frames that a receive queue wants otherwise than they came: without their tag, with their check
//! sequence.

use super::checksum;
use super::cq::{Cq, Entry};
use super::describe::Sums;
use super::frame::{Frame, Headers};
use super::memory::Memory;
use super::request::DataEvent;
use super::rq::{Rq, Taken};

/// Takes a frame in the shape that the queue wants: tag taken out, check sequence appended.
#[cold]
#[allow(clippy::too_many_arguments)] // what `Rq::take` needs, and what it is made of
pub(super) fn take_reshaped<F: Frame>(
    rq: &mut Rq,
    frame: &F,
    headers: &Headers,
    mut entry: Entry,
    flow_tag: u32,
    scratch: &mut Vec<u8>,
    memory: &mut Memory,
    cq: &mut Cq,
    events: &mut Vec<DataEvent>,
    sums: Sums,
) -> Taken {
    scratch.clear();
    frame.append_to(scratch);
    let crc = rq.spec().scatter_fcs.then(|| crc32(scratch));
    // Service tags stay: a completion has no room to tell which kind was taken.
    if let (true, Some((tag, false))) = (rq.spec().vlan_strip, headers.vlan) {
        scratch.drain(12..16);
        let [_, _, _, flags, ..] = &mut entry.body;
        *flags |= (1u64 << 16 | u64::from(tag)).to_be();
    }
    if let Some(crc) = crc {
        scratch.extend_from_slice(&crc.to_le_bytes());
    }
    if sums == Sums::Frame {
        entry.set_sum(checksum::fold(checksum::sum(scratch, 14, scratch.len())));
    }
    rq.take(&scratch.as_slice(), entry, flow_tag, memory, cq, events)
}

/// Ethernet's check sequence.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_sequence_of_the_nine_digits() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
