//! The short way of a packet: plain WQEs of one send queue, one after the other, to one receive
//! queue of the function at the other end.
//!
//! What stays the same for all of them is looked up once: rings, resolved memory, the rule that
//! the packet before met. A WQE that is anything but plain, a packet for which that rule does not
//! speak, a missing buffer, an error: all end the burst with nothing of that packet done, and it
//! goes the long way ([`Sq::serve`](super::sq::Sq)), which alone decides what is wrong with it.

use super::describe::{Description, Glance};
use super::frame::{Headers, LINE, Piece, Pieces, trimmed};
use super::outlet::{Dispatched, Joint, Outlet};
use super::receiver::Target;
use super::request::{Direction, InlineMode};
use super::rss::Hashed;
use super::sq::Sq;
use super::steering::frame_key;
use pollux_mempool::barrier;
use pollux_prm::completion::{CqeOpcode, Tail};
use pollux_prm::wqe::{INVALID_LKEY, SendOpcode};
use std::sync::atomic::Ordering;

/// WQEs, packets and entries that are fetched ahead.
const AHEAD: u16 = 6;

/// What a burst did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Burst {
    /// WQEs carried out.
    pub packets: usize,
    /// The last of them, by index, wants a completion.
    pub complete: Option<u16>,
}

impl Sq {
    /// Sends plain packets until one is not, or wants a completion, or `budget` is used up.
    #[inline(never)]
    pub(super) fn burst(
        &mut self,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
        budget: usize,
    ) -> Burst {
        self.try_burst(function, outlet, sent, budget)
            .unwrap_or_default()
    }

    #[inline(always)]
    fn try_burst(
        &mut self,
        function: usize,
        outlet: &mut Outlet<'_>,
        sent: &mut Dispatched,
        budget: usize,
    ) -> Option<Burst> {
        let plug = outlet.plugs.get(function)?;
        let Joint::Function(peer) = plug.joint else {
            return None;
        };
        if !plug.up || self.spec.inline != InlineMode::None || !self.spec.transmits {
            return None;
        }
        let stamp = outlet.stamp(peer);
        let sums = outlet.plugs.get(peer)?.sums;
        let limit = plug
            .link
            .max_frame
            .min(outlet.plugs.get(peer)?.link.max_frame) as usize;
        let (read, write) = (outlet.memories.get(function)?, outlet.memories.get(peer)?);
        let receiver = outlet.receivers.get_mut(peer)?;
        let side = outlet.completions.get_mut(peer)?;
        receiver.refresh();
        let (rule, place) = receiver.rules.last()?;
        let Target::Queue(queue) = *receiver.targets.get(place)? else {
            return None;
        };
        let rq = receiver.rqs.at(queue).filter(|rq| rq.is_ready())?;
        let cq = side.cqs.at(rq.cq).filter(|cq| cq.is_plain())?;
        if !rq.is_plain() || !rq.look(&mut side.events) {
            return None;
        }
        let count = budget.min(cq.room()).min(usize::from(rq.posted()));
        let count = count.min(usize::from(self.pending())) as u16;

        let sends = self.reached.as_ref()?.ring.whole()?.by_ref();
        let buffers = rq.reached.as_ref()?.ring.whole()?.by_ref();
        let entries = cq.reached.as_ref()?.ring.whole()?.by_ref();
        let from = self.views.hot(read)?;
        let into = rq.views.hot(write)?;
        let (log_entries, first_entry) = (cq.spec.log_size, cq.producer);
        let (first_send, first_buffer) = (self.hardware, rq.hardware);
        let number = u64::from(rq.spec.rqn) << 32;
        let user = (u64::from(rq.spec.user_index & 0xff_ffff) << 32).to_be();
        let strips = rq.spec.vlan_strip;
        // A plain SEND of three segments, but for its index.
        let control = u64::from(SendOpcode::SEND.0) << 32 | u64::from(self.spec.sqn) << 8 | 3;
        let checksums = if self.features.tx_checksum {
            0xf0 << 24
        } else {
            0
        };
        let empty = Piece {
            window: from.window,
            offset: 0,
            len: 0,
        };

        let mut direction = Direction::default();
        // Most bursts are of one length: it is counted when it changes.
        let (mut length, mut run) = (0, 0u64);
        let sizes = &mut receiver.tally;
        let mut done = 0u16;
        let mut complete = None;
        while done < count {
            let send = first_send.wrapping_add(done);
            let buffer = first_buffer.wrapping_add(done);
            let entry = first_entry.wrapping_add(u32::from(done));
            sends.prefetch(send.wrapping_add(2 * AHEAD));
            entries.prefetch_write(entry.wrapping_add(u32::from(AHEAD)));
            if count - done > AHEAD {
                // Posted, so what stands there is an address; if not, the hint goes nowhere.
                let [.., address, _, _] = sends.read(send.wrapping_add(AHEAD));
                from.prefetch(u64::from_be(address));
                let [_, address] = buffers.read(buffer.wrapping_add(AHEAD));
                into.prefetch_write(u64::from_be(address));
            }
            let [first, second, eth, inline, head, address, _, _] = sends.read(send);
            let (first, second) = (u64::from_be(first), u64::from_be(second));
            let (eth, inline) = (u64::from_be(eth), u64::from_be(inline));
            let plain = first == control | u64::from(send) << 40
                && eth & checksums == 0
                && inline >> 16 & 0xffff == 0;
            let (head, address) = (u64::from_be(head), u64::from_be(address));
            let len = (head >> 32) as usize;
            if !plain || len < 14 || len > limit {
                break;
            }
            let Some(offset) = from.offset(head as u32, address, len) else {
                break;
            };
            let frame = Pieces {
                head: empty,
                body: Piece {
                    window: from.window,
                    offset,
                    len,
                },
            };
            let Ok(line) = from.window.read_words::<LINE>(offset) else {
                break;
            };
            let line = trimmed(line, len);
            let (description, link, class) = match Glance::new(&line, len) {
                Some(glance) => (glance.describe(&frame, sums), glance.link(), glance.class()),
                None => {
                    let headers = Headers::parse(&frame);
                    if strips && headers.vlan.is_some() {
                        break;
                    }
                    let [link, station, ..] = frame_key(&headers);
                    (
                        Description::of(&frame, &headers, sums),
                        [link, station],
                        headers.class(),
                    )
                }
            };
            if !rule.speaks_for(link) {
                break;
            }
            let [head, address] = buffers.read(buffer);
            let (head, address) = (u64::from_be(head), u64::from_be(address));
            let (room, key) = ((head >> 32) as usize, head as u32);
            if room < len || key == INVALID_LKEY {
                break;
            }
            let Some(at) = into.offset(key, address, len) else {
                break;
            };
            if from.window.copy_to(offset, into.window, at, len).is_err() {
                break;
            }
            let mut body = description.entry(Hashed::NONE, stamp).body;
            let [_, _, _, flags, index, bytes, _] = &mut body;
            *flags |= number.to_be();
            *index = user;
            *bytes = (len as u64).to_be();
            let lap = entry >> log_entries & 1 == 1;
            let tail = Tail::new(rule.flow_tag, buffer, 0, CqeOpcode::RESP_SEND, lap);
            entries.write_part::<[u64; 7], 0>(entry, &body);
            barrier::dma_write();
            entries.store_u64::<56>(entry, tail.to_memory(), Ordering::Release);
            direction.count(class, len);
            if len != length {
                sizes.size(length, run);
                (length, run) = (len, 0);
            }
            run += 1;
            done += 1;
            if second >> 34 & 3 >= 2 {
                complete = Some(send);
                break;
            }
        }
        sizes.size(length, run);
        self.hardware = first_send.wrapping_add(done);
        rq.hardware = first_buffer.wrapping_add(done);
        if done > 0 {
            cq.advance(u32::from(done), &mut side.events);
            sent.frames = sent.frames.plus(&direction);
            receiver.tally.accepted = receiver.tally.accepted.plus(&direction);
        }
        Some(Burst {
            packets: usize::from(done),
            complete,
        })
    }
}
