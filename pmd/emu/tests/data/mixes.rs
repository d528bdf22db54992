//! Random mixes: whatever is sent is received or counted.

use crate::rig::*;
use pollux_emu::wire::{WireConfig, WireKind};
use pollux_prm::completion::CqeOpcode;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Packet {
    len: usize,
    inline: usize,
    /// Where the rest is cut.
    cut: usize,
}

fn packet() -> impl Strategy<Value = Packet> {
    (14usize..2100, 0usize..80, 0usize..2100).prop_map(|(len, inline, cut)| Packet {
        len,
        inline: inline.min(len - 1),
        cut,
    })
}

#[derive(Clone, Debug)]
struct Mix {
    packets: Vec<Packet>,
    log_sq: u32,
    log_rq: u32,
    buffer: u32,
    burst: usize,
    refill: usize,
    lossy: bool,
    strict: bool,
}

fn mix() -> impl Strategy<Value = Mix> {
    (
        proptest::collection::vec(packet(), 1..120),
        4u32..7,
        1u32..6,
        prop_oneof![Just(2048u32), Just(700), Just(128)],
        1usize..20,
        1usize..20,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(packets, log_sq, log_rq, buffer, burst, refill, lossy, strict)| Mix {
                packets,
                log_sq,
                log_rq,
                buffer,
                burst,
                refill,
                lossy,
                strict,
            },
        )
}

fn run(mix: &Mix) {
    let pair = |peer| WireConfig {
        kind: WireKind::Pair { peer },
        lossy: mix.lossy,
    };
    let setup = Setup {
        strict: mix.strict,
        ..Setup::new(vec![pair(1), pair(0)])
    };
    let mut rig = setup.start();
    let (a, b) = rig.both();
    let mut rcq = b.cq(8);
    let mut rq = b.rq(mix.log_rq, &rcq);
    for _ in 0..1 << mix.log_rq {
        let (at, iova) = b.take(2048);
        rq.post(&[(mix.buffer, KEY, iova)], at);
    }
    rq.publish();
    b.steer_all(rq.spec.rqn);
    let mut scq = a.cq(8);
    let mut sq = a.sq(mix.log_sq, &scq);
    let (heap_at, heap) = a.take(1 << 20);
    let frames: Vec<Vec<u8>> = mix
        .packets
        .iter()
        .enumerate()
        .map(|(k, p)| frame(p.len, k as u64))
        .collect();
    let mut places = Vec::new();
    let mut at = 0;
    for bytes in &frames {
        a.heap.copy_in(heap_at + at, bytes).unwrap();
        places.push(heap + at as u64);
        at += bytes.len();
    }
    let (mut posted, mut completed) = (0, 0);
    let mut received = Vec::new();
    let mut too_small = 0;
    let (mut used, mut ends) = (0, Vec::new());
    while completed < frames.len() {
        let mut any = false;
        for _ in 0..mix.burst {
            let Some(packet) = mix.packets.get(posted) else {
                break;
            };
            // At most four basic blocks each; the ring must not be overrun by us.
            let free = (1u16 << mix.log_sq) - sq.posted.wrapping_sub(used);
            if free < 4 {
                break;
            }
            let rest = packet.len - packet.inline;
            let cut = packet.cut % rest;
            let from = places[posted] + packet.inline as u64;
            let inline = frames[posted][..packet.inline].to_vec();
            if cut == 0 {
                sq.send(&inline, &[(rest as u32, KEY, from)]);
            } else {
                let second = from + cut as u64;
                sq.send(
                    &inline,
                    &[(cut as u32, KEY, from), ((rest - cut) as u32, KEY, second)],
                );
            }
            ends.push(sq.posted);
            posted += 1;
            any = true;
        }
        if any {
            sq.publish();
            sq.ring(a);
        }
        while let Some(cqe) = scq.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::REQ.0, "{cqe:?}");
            completed += 1;
            // Completions come in order; a WQE ends where the next one begins.
            used = ends[completed - 1];
        }
        scq.publish();
        for _ in 0..mix.refill {
            let Some(cqe) = rcq.poll() else { break };
            if cqe.opcode() == CqeOpcode::RESP_ERR.0 {
                too_small += 1;
            } else {
                received.push(rq.bytes(&cqe));
            }
            rq.repost();
        }
        rcq.publish();
        rq.publish();
        std::thread::yield_now();
    }
    while let Some(cqe) = rcq.poll() {
        if cqe.opcode() == CqeOpcode::RESP_ERR.0 {
            too_small += 1;
        } else {
            received.push(rq.bytes(&cqe));
        }
    }
    let report = b.port.wire().unwrap();
    let counters = b.port.counters().unwrap();
    let missed = b.port.out_of_buffer(3, false).unwrap();
    assert_eq!(report.frames_in, received.len() as u64);
    assert_eq!(
        report.frames_in + report.dropped + a.port.counters().unwrap().tx_discards,
        frames.len() as u64
    );
    assert_eq!(
        report.dropped,
        counters.rx_buffer_too_small + counters.rx_too_long + missed
    );
    assert_eq!(counters.rx_buffer_too_small, too_small);
    let fits = |bytes: &Vec<u8>| bytes.len() <= mix.buffer as usize && bytes.len() <= 1518;
    if !mix.lossy {
        assert_eq!(missed, 0);
        let expected: Vec<_> = frames.into_iter().filter(fits).collect();
        assert_eq!(received, expected);
        return;
    }
    // A lossy wire drops, but never changes or reorders.
    let mut rest = frames.iter();
    for bytes in &received {
        assert!(
            rest.any(|sent| sent == bytes),
            "a frame that was not sent, or out of order"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn frames_in_are_frames_out_and_counted_drops(mix in mix()) {
        run(&mix);
    }
}
