//! What the Linux Ethernet driver does with descriptors: headers inline with and without tags,
//! large sends of both protocols and IP versions, completions for its ways of checking sums, rings
//! of several fragments, queues that send nothing and queues that only drop.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_prm::completion::{Cqe, CqeOpcode};
use pollux_prm::wqe::{CtrlFlags, INVALID_LKEY, SendOpcode};

pub fn setup(rx_checksum_full: bool) -> Rig {
    let rig = Setup {
        features: Features {
            tx_checksum: true,
            rx_checksum_full,
            tx_vlan_insert: true,
            max_lso: 1 << 18,
        },
        ..Setup::pair()
    }
    .start();
    for side in &rig.sides {
        let link = LinkSpec {
            up: true,
            max_frame: 9018,
        };
        side.port.set_link(link).unwrap();
    }
    rig
}

/// One's complement sum over big-endian halves.
fn ones(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    six: bool,
    tag: Option<u16>,
    udp: bool,
}

impl Shape {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for six in [false, true] {
            for tag in [None, Some(0x2064)] {
                for udp in [false, true] {
                    all.push(Self { six, tag, udp });
                }
            }
        }
        all
    }

    fn l3(self) -> usize {
        if self.tag.is_some() { 18 } else { 14 }
    }

    fn l4(self) -> usize {
        self.l3() + if self.six { 40 } else { 20 }
    }

    /// TCP comes with a time stamp option, as Linux sends it.
    fn headers(self) -> usize {
        self.l4() + if self.udp { 8 } else { 32 }
    }

    /// Where the L4 checksum is.
    fn check_at(self) -> usize {
        self.l4() + if self.udp { 6 } else { 16 }
    }

    fn pseudo(self, bytes: &[u8], len: usize) -> u32 {
        let addresses = match self.six {
            true => &bytes[self.l3() + 8..self.l3() + 40],
            false => &bytes[self.l3() + 12..self.l3() + 20],
        };
        let protocol = if self.udp { 17 } else { 6 };
        u32::from(ones(addresses, 0)) + protocol + len as u32
    }

    /// A packet as the stack hands it down for checksums: the sum of the pseudo header stands where
    /// the checksum goes.
    fn packet(self, payload: usize) -> Vec<u8> {
        let mut bytes = frame(self.headers() + payload, 77);
        let l3 = self.l3();
        if let Some(tag) = self.tag {
            bytes[12..14].copy_from_slice(&[0x81, 0]);
            bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        }
        let protocol = if self.udp { 17 } else { 6 };
        let l4_len = bytes.len() - self.l4();
        if self.six {
            bytes[l3 - 2..l3].copy_from_slice(&[0x86, 0xdd]);
            bytes[l3..l3 + 8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, 64]);
            bytes[l3 + 4..l3 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
        } else {
            bytes[l3 - 2..l3].copy_from_slice(&[8, 0]);
            let total = (l4_len + 20) as u16;
            bytes[l3..l3 + 12]
                .copy_from_slice(&[0x45, 0, 0, 0, 7, 0xfe, 0x40, 0, 64, protocol, 0, 0]);
            bytes[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            let check = !ones(&bytes[l3..l3 + 20], 0);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
        }
        let l4 = self.l4();
        if self.udp {
            bytes[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
        } else {
            bytes[l4 + 12..l4 + 14].copy_from_slice(&[0x80, 0x18]);
            bytes[l4 + 18..l4 + 20].copy_from_slice(&[0, 0]);
        }
        let sum = ones(&[], self.pseudo(&bytes, l4_len));
        let at = self.check_at();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Lengths and checksums of a packet on the wire.
    fn check(self, bytes: &[u8]) {
        let l3 = self.l3();
        let l4_len = bytes.len() - self.l4();
        let said = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        if self.six {
            assert_eq!(said(l3 + 4), l4_len, "{self:?}");
        } else {
            assert_eq!(said(l3 + 2), l4_len + 20, "{self:?}");
            assert_eq!(ones(&bytes[l3..l3 + 20], 0), 0xffff, "{self:?}");
        }
        if self.udp {
            assert_eq!(said(self.l4() + 4), l4_len, "{self:?}");
        }
        let sum = ones(&bytes[self.l4()..], self.pseudo(bytes, l4_len));
        assert_eq!(sum, 0xffff, "{self:?}");
        if let Some(tag) = self.tag {
            assert_eq!((said(12), said(14)), (0x8100, tag.into()));
        }
    }
}

const BOTH_SUMS: u32 = 0xc0 << 24;

#[test]
fn checksums_of_packets_whose_headers_stand_inline_or_not() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    for shape in Shape::all() {
        for payload in [0, 1, 999] {
            let bytes = shape.packet(payload);
            for inline in [0, shape.l3(), shape.headers() - 6] {
                let iova = a.place(&bytes);
                let data = [((bytes.len() - inline) as u32, KEY, iova + inline as u64)];
                let eth = [0, BOTH_SUMS.to_be(), 0, 0];
                let update = CtrlFlags::CQ_UPDATE;
                sq.send_with(SendOpcode::SEND, update, eth, &bytes[..inline], &data);
                sq.publish();
                sq.ring(a);
                assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
                let cqe = rcq.next();
                let got = rq.bytes(&cqe);
                shape.check(&got);
                assert!(cqe.l3_ok() && cqe.l4_ok(), "{shape:?}");
                assert_eq!(got.len(), bytes.len());
                rq.repost();
                rq.publish();
            }
        }
    }
}

#[test]
fn large_sends_of_every_kind_from_many_fragments() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (mut rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    for shape in Shape::all() {
        // 17 fragments after a linear part, an odd size, and a short last segment for TCP.
        let mss = 1347;
        let total = if shape.udp { mss * 20 } else { mss * 20 + 13 };
        let bytes = shape.packet(total);
        let headers = shape.headers();
        let iova = a.place(&bytes[headers..]);
        let mut data = vec![(101, KEY, iova)];
        let mut at = 101u64;
        while (at as usize) < total {
            let len = (total as u64 - at).min(1600);
            data.push((len as u32, KEY, iova + at));
            at += len;
        }
        assert!(data.len() >= 17);
        let eth = [0, (BOTH_SUMS | mss as u32).to_be(), 0, 0];
        let update = CtrlFlags::CQ_UPDATE;
        sq.send_with(SendOpcode::LSO, update, eth, &bytes[..headers], &data);
        sq.publish();
        sq.ring(a);
        assert_eq!(scq.next().send_opcode(), SendOpcode::LSO.0, "{shape:?}");
        let mut payload = Vec::new();
        let first = u32::from_be_bytes(bytes[shape.l4() + 4..shape.l4() + 8].try_into().unwrap());
        while payload.len() < total {
            let cqe = rcq.next();
            let got = rq.bytes(&cqe);
            shape.check(&got);
            if !shape.udp {
                let at = shape.l4() + 4;
                let sequence = u32::from_be_bytes(got[at..at + 4].try_into().unwrap());
                assert_eq!(sequence, first.wrapping_add(payload.len() as u32));
            }
            // Options and ports are repeated.
            assert_eq!(got[..12], bytes[..12]);
            assert_eq!(
                got[headers - 12..headers - 10],
                bytes[headers - 12..headers - 10]
            );
            payload.extend_from_slice(&got[headers..]);
            rq.repost();
            rq.publish();
        }
        assert_eq!(payload, bytes[headers..], "{shape:?}");
        assert!(rcq.poll().is_none());
    }
}

#[test]
fn the_longest_descriptor_has_63_segments() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, mut scq) = a.sender(6);
    // Ring's end in the middle of the second one.
    for round in 0..8u64 {
        let bytes = frame(61 * 16, round);
        let iova = a.place(&bytes);
        let data: Vec<_> = (0..61).map(|k| (16, KEY, iova + k * 16)).collect();
        sq.send(&[], &data);
        sq.publish();
        sq.ring(a);
        assert_eq!(scq.next().opcode(), CqeOpcode::REQ.0);
        assert_eq!(rq.receive(&mut rcq), bytes);
    }
}

/// The driver's rule for taking the completion's sum as that of the whole packet.
fn sum_that_the_driver_makes(cqe: &Cqe, bytes: &[u8], shape: Shape, full: bool) -> u16 {
    let sum = u32::from(cqe.check_sum());
    if full {
        return ones(&[], sum);
    }
    // Tags in front of IP and what follows its packet are added.
    let l3 = shape.l3();
    let end = match shape.six {
        true => l3 + 40 + usize::from(u16::from_be_bytes([bytes[l3 + 4], bytes[l3 + 5]])),
        false => l3 + usize::from(u16::from_be_bytes([bytes[l3 + 2], bytes[l3 + 3]])),
    };
    let sum = u32::from(ones(&bytes[14..l3], sum));
    let mut tail = bytes[end..].to_vec();
    if end % 2 == 1 {
        tail.insert(0, 0);
    }
    u32::from(ones(&tail, sum)) as u16
}

#[test]
fn the_sum_of_a_completion_is_what_the_driver_takes_it_for() {
    for full in [false, true] {
        let mut rig = setup(full);
        let (a, b) = rig.both();
        let (mut rq, mut rcq) = b.receiver(6, 64);
        let (mut sq, mut scq) = a.sender(6);
        for strip in [false, true] {
            let change = RqChange {
                vlan_strip: Some(strip),
                ..RqChange::default()
            };
            b.port.modify_rq(rq.spec.rqn, change).unwrap();
            for shape in Shape::all() {
                for (payload, padding) in [(100, 0), (101, 0), (60, 7), (61, 7), (2, 30), (601, 2)]
                {
                    let mut bytes = shape.packet(payload);
                    bytes.extend((0..padding).map(|k| 0xe1 ^ k as u8));
                    a.send(&mut sq, &bytes);
                    scq.next();
                    let cqe = rcq.next();
                    let got = rq.bytes(&cqe);
                    let stripped = strip && shape.tag.is_some();
                    assert_eq!(cqe.vlan_stripped(), stripped);
                    let mut bare = shape;
                    if stripped {
                        assert_eq!(Some(cqe.vlan_info()), shape.tag);
                        bare.tag = None;
                    }
                    let made = sum_that_the_driver_makes(&cqe, &got, bare, full);
                    // Zero has two forms.
                    assert_eq!(
                        made % 0xffff,
                        ones(&got[14..], 0) % 0xffff,
                        "{shape:?}, {payload}+{padding} bytes, full {full}, strip {strip}"
                    );
                    rq.repost();
                    rq.publish();
                }
            }
        }
    }
}

#[test]
fn with_check_sequences_appended_the_whole_sum_covers_them() {
    let mut rig = setup(true);
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let (mut sq, _scq) = a.sender(6);
    let change = RqChange {
        scatter_fcs: Some(true),
        ..RqChange::default()
    };
    b.port.modify_rq(rq.spec.rqn, change).unwrap();
    for shape in Shape::all() {
        let bytes = shape.packet(91);
        a.send(&mut sq, &bytes);
        let cqe = rcq.next();
        let got = rq.bytes(&cqe);
        assert_eq!(got.len(), bytes.len() + 4);
        assert_eq!(cqe.check_sum() % 0xffff, ones(&got[14..], 0) % 0xffff);
    }
}

#[test]
fn service_tags_stay_in_the_packet() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (rq, mut rcq) = b.receiver(6, 64);
    let change = RqChange {
        vlan_strip: Some(true),
        ..RqChange::default()
    };
    b.port.modify_rq(rq.spec.rqn, change).unwrap();
    let (mut sq, _scq) = a.sender(6);
    let mut bytes = frame(100, 3);
    bytes[12..20].copy_from_slice(&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5]);
    a.send(&mut sq, &bytes);
    let cqe = rcq.next();
    assert_eq!((rq.bytes(&cqe), cqe.vlan_stripped()), (bytes, false));
}

#[test]
fn a_jumbo_frame_fills_four_fragments() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let mut rcq = b.cq(5);
    // Strides of 64 bytes, four segments: 1.5 KiB, 2 KiB, 2 KiB, a page.
    let mut rq = b.rq_with(3, 6, &rcq, |_| {});
    let sizes = [1536u32, 2048, 2048, 4096];
    let mut places = Vec::new();
    for _ in 0..8 {
        let (at, iova) = b.take(4 * 4096);
        let data: Vec<_> = (0..4)
            .map(|k| (sizes[k], KEY, iova + (3 - k as u64) * 4096))
            .collect();
        rq.post(&data, at);
        places.push(at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, _scq) = a.sender(6);
    for (at, len) in places
        .iter()
        .zip([60usize, 1536, 1537, 3584, 5632, 5633, 9014, 9018])
    {
        let bytes = frame(len, len as u64);
        a.send(&mut sq, &bytes);
        assert_eq!(rcq.next().byte_cnt() as usize, len);
        let mut got = Vec::new();
        for (k, size) in sizes.iter().enumerate() {
            let part = at + (3 - k) * 4096;
            got.extend(b.heap.to_vec(part, *size as usize).unwrap());
        }
        assert_eq!(got[..len], bytes);
    }
}

#[test]
fn fragments_end_at_the_terminator() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let mut rcq = b.cq(5);
    let mut rq = b.rq_with(3, 6, &rcq, |_| {});
    for _ in 0..2 {
        let (at, iova) = b.take(8192);
        let end = (0, INVALID_LKEY, 0);
        let data = [
            (2048, KEY, iova),
            (2048, KEY, iova + 4096),
            end,
            (64, KEY, iova),
        ];
        rq.post(&data, at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let (mut sq, _scq) = a.sender(6);
    a.send(&mut sq, &frame(4097, 1));
    assert_eq!(rcq.next().opcode(), CqeOpcode::RESP_ERR.0);
    a.send(&mut sq, &frame(4096, 1));
    assert_eq!(rcq.next().byte_cnt(), 4096);
}

#[test]
fn a_queue_without_a_way_out_does_nothing_and_says_so() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let (_rq, mut rcq) = b.receiver(6, 8);
    let mut scq = a.cq(6);
    let mut sq = a.sq_with(6, &scq, |spec| spec.transmits = false);
    for round in 0..100u16 {
        let nop = sq.control(SendOpcode::NOP, 1, CtrlFlags::CQ_UPDATE);
        sq.wqe(&nop);
        sq.publish();
        sq.ring(a);
        let cqe = scq.next();
        assert_eq!((cqe.opcode(), cqe.wqe_counter()), (CqeOpcode::REQ.0, round));
    }
    for opcode in [SendOpcode::SEND, SendOpcode::LSO] {
        let scq = &mut scq;
        let mut sq = a.sq_with(6, scq, |spec| spec.transmits = false);
        let iova = a.place(&frame(60, 1));
        let header = if opcode == SendOpcode::LSO { 54 } else { 0 };
        let header = vec![0; header];
        sq.send_with(
            opcode,
            CtrlFlags::CQ_UPDATE,
            [0; 4],
            &header,
            &[(60, KEY, iova)],
        );
        sq.publish();
        sq.ring(a);
        assert_eq!(scq.next_error().vendor_err_synd(), 0x66);
    }
    assert!(rcq.poll().is_none());
}

#[test]
fn a_queue_that_never_had_buffers_drops_and_holds_up_nobody() {
    let mut rig = setup(false);
    let (a, b) = rig.both();
    let rcq = b.cq(0);
    let drop = b.rq_with(0, 4, &rcq, |spec| spec.counter_set = 9);
    b.steer_all(drop.spec.rqn);
    let (mut sq, mut scq) = a.sender(6);
    for seed in 0..40 {
        a.send(&mut sq, &frame(60, seed));
        scq.next();
    }
    assert_eq!(b.port.out_of_buffer(9, false).unwrap(), 40);
    assert_eq!(b.port.counters().unwrap().rx_discards, 40);
    assert_eq!(
        b.port.rq_status(drop.spec.rqn).unwrap().state,
        QueueState::Ready
    );
}
