//! Wires to interfaces of this machine, in a network namespace of the test's own: nothing outside
//! of it is touched. Where namespaces may not be made, a line says so and nothing is tested.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::{InterfaceConfig, WireKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

const INSIDE: &str = "POLLUX_TEST_NAMESPACE";
const HOST: [u8; 4] = [192, 0, 2, 1];
const PORT: [u8; 4] = [192, 0, 2, 2];

/// Runs `body` in a process of its own with a network namespace of its own.
fn apart(name: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let try_out = Command::new("unshare")
        .args([
            "-Urn",
            "sh",
            "-c",
            "ip link set lo up && test -w /dev/net/tun",
        ])
        .output();
    if !try_out.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!(
            "NOT RUN: {name}: no network namespace, no `ip`, or no /dev/net/tun here ({try_out:?})"
        );
        return;
    }
    let this = std::env::current_exe().unwrap();
    let done = Command::new("unshare")
        .args([
            "-Urn",
            this.to_str().unwrap(),
            "--exact",
            name,
            "--nocapture",
        ])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && text.contains("1 passed"),
        "{text}\n{said}"
    );
    for line in said.lines().filter(|line| line.starts_with("NOT RUN")) {
        eprintln!("{line}");
    }
}

fn ip(arguments: &str) -> String {
    let done = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

/// No traffic of the machine's own accord: no IPv6 on interfaces that come.
fn quiet() {
    for name in ["default", "all"] {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        // Not there without IPv6, which is as well.
        if std::fs::write(path, "1").is_err() {}
    }
}

fn named(kind: fn(InterfaceConfig) -> WireKind, name: &str) -> pollux_emu::wire::WireConfig {
    wire(kind(InterfaceConfig {
        interface: name.into(),
    }))
}

fn ones(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn arp_request() -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(MAC);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(MAC);
    bytes.extend(PORT);
    bytes.extend([0; 6]);
    bytes.extend(HOST);
    bytes
}

fn ping(to: &[u8], number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = to.to_vec();
    bytes.extend(MAC);
    bytes.extend([8, 0, 0x45, 0, 0, 0, 0, number, 0, 0, 64, 1, 0, 0]);
    bytes.extend(PORT);
    bytes.extend(HOST);
    let total = (28 + payload.len()) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    let check = !ones(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&check.to_be_bytes());
    bytes.extend([8, 0, 0, 0, 0x12, 0x34, 0, number]);
    bytes.extend(payload);
    let check = !ones(&bytes[34..]);
    bytes[36..38].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// The next frame that satisfies `wanted`; what the machine sends besides is passed over.
fn frame_like(rq: &mut Rq, cq: &mut Cq, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    loop {
        let cqe = cq.next();
        let bytes = rq.bytes(&cqe);
        rq.repost();
        rq.publish();
        if wanted(&bytes) {
            return bytes;
        }
    }
}

#[test]
fn a_tap_interface_answers_arp_and_ping() {
    apart("interfaces::a_tap_interface_answers_arp_and_ping", || {
        quiet();
        let mut rig = Setup::new(vec![named(WireKind::Tap, "tap0")]).start();
        let a = &mut rig.sides[0];
        // Made by being opened, and down.
        assert!(!a.port.link_up().unwrap());
        ip("address add 192.0.2.1/24 dev tap0");
        ip("link set tap0 up");
        assert_eq!(a.event(), DataEvent::Link { up: true });
        let (mut rq, mut rcq) = a.receiver(6, 64);
        let (mut sq, mut scq) = a.sender(6);
        a.send(&mut sq, &arp_request());
        scq.next();
        let reply = frame_like(&mut rq, &mut rcq, |bytes| bytes[12..14] == [8, 6]);
        assert_eq!((&reply[..6], reply[21]), (&MAC[..], 2));
        assert_eq!(reply[28..32], HOST);
        let host = reply[6..12].to_vec();
        for (number, len) in [(1, 0), (2, 1), (3, 56), (4, 1400), (5, 1472)] {
            let payload: Vec<u8> = (0..len).map(|k| k as u8 ^ 0x5a).collect();
            a.send(&mut sq, &ping(&host, number, &payload));
            scq.next();
            let reply = frame_like(&mut rq, &mut rcq, |bytes| {
                bytes[12..14] == [8, 0] && bytes[23] == 1
            });
            assert_eq!((reply[34], reply[41]), (0, number), "an echo reply");
            assert_eq!(reply[42..], payload);
            assert_eq!(ones(&reply[34..]), 0xffff);
        }
        // Down and up again, from either end.
        let carrier = |wanted: bool| {
            until("the carrier", || {
                let text = ip("-o link show tap0");
                (text.contains("NO-CARRIER") != wanted).then_some(())
            });
        };
        let link = |up| LinkSpec {
            up,
            max_frame: 1518,
        };
        a.port.set_link(link(false)).unwrap();
        carrier(false);
        a.port.set_link(link(true)).unwrap();
        carrier(true);
        ip("link set tap0 down");
        until("down", || (!a.port.link_up().unwrap()).then_some(()));
        let discards = a.port.counters().unwrap().tx_discards;
        a.send(&mut sq, &ping(&host, 9, &[]));
        scq.next();
        assert_eq!(a.port.counters().unwrap().tx_discards, discards + 1);
        ip("link set tap0 up");
        until("up", || a.port.link_up().unwrap().then_some(()));
        // The machine forgot its neighbors.
        a.send(&mut sq, &arp_request());
        frame_like(&mut rq, &mut rcq, |bytes| {
            bytes[12..14] == [8, 6] && bytes[21] == 2
        });
        a.send(&mut sq, &ping(&host, 10, b"again"));
        let reply = frame_like(&mut rq, &mut rcq, |bytes| {
            bytes[12..14] == [8, 0] && bytes[23] == 1
        });
        assert_eq!(reply[42..], *b"again");
        drop(rig);
        let left = Command::new("ip").args(["link", "show", "tap0"]).output();
        assert!(!left.unwrap().status.success(), "tap0 is still there");
    });
}

fn veth() -> bool {
    let done = Command::new("ip")
        .args("link add v0 type veth peer name v1".split(' '))
        .output()
        .unwrap();
    if !done.status.success() {
        eprintln!(
            "NOT RUN: no veth interfaces here: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        return false;
    }
    ip("link set v0 mtu 9000 up");
    ip("link set v1 mtu 9000 up");
    true
}

#[test]
fn frames_cross_a_veth_pair_byte_for_byte() {
    apart("interfaces::frames_cross_a_veth_pair_byte_for_byte", || {
        quiet();
        if !veth() {
            return;
        }
        let wires = vec![named(WireKind::Packet, "v0"), named(WireKind::Packet, "v1")];
        let mut rig = Setup::new(wires).start();
        let (a, b) = rig.both();
        for side in [&mut *a, &mut *b] {
            let link = LinkSpec {
                up: true,
                max_frame: 9018,
            };
            side.port.set_link(link).unwrap();
            until("the link", || side.port.link_up().unwrap().then_some(()));
        }
        for turn in 0..2 {
            let (a, b) = if turn == 0 {
                (&mut *a, &mut *b)
            } else {
                (&mut *b, &mut *a)
            };
            let rcq = &mut b.cq(7);
            let mut rq = b.rq_with(5, 4, rcq, |_| {});
            for _ in 0..32 {
                let (at, iova) = b.take(12288);
                rq.post(&[(9216, KEY, iova)], at);
            }
            rq.publish();
            b.steer_all(rq.spec.rqn);
            let (mut sq, mut scq) = a.sender(6);
            for (seed, len) in [14usize, 60, 61, 64, 1514, 1518, 4000, 9014]
                .into_iter()
                .enumerate()
            {
                for tag in [None, Some([0x81, 0, 0x40, 5]), Some([0x88, 0xa8, 0, 7])] {
                    let mut bytes = frame(len, seed as u64);
                    if let (Some(tag), true) = (tag, len >= 60) {
                        bytes[12..16].copy_from_slice(&tag);
                    }
                    a.send(&mut sq, &bytes);
                    scq.next();
                    let got = frame_like(&mut rq, rcq, |got| got[..6] == MAC);
                    assert_eq!(got, bytes, "{len} bytes, tag {tag:x?}");
                }
            }
            // Longer than the interface's MTU: lost, counted and named, and nothing else happens.
            if turn == 0 {
                ip("link set v0 mtu 1500");
                let before = a.port.counters().unwrap().tx_discards;
                a.send(&mut sq, &frame(4000, 1));
                assert_eq!(scq.next().opcode(), 0);
                assert_eq!(a.port.counters().unwrap().tx_discards, before + 1);
                let said = a.port.wire().unwrap().output_error.unwrap();
                assert!(
                    said.contains("v0") && said.contains("1 frames lost"),
                    "{said}"
                );
                ip("link set v0 mtu 9000");
            }
        }
        // One end's carrier is the other end's state.
        ip("link set v1 down");
        for side in [&*a, &*b] {
            until("down", || (!side.port.link_up().unwrap()).then_some(()));
        }
        ip("link del v0");
        a.settle();
        assert!(!a.port.link_up().unwrap());
    });
}

#[test]
fn what_the_machine_leaves_undone_is_finished() {
    apart(
        "interfaces::what_the_machine_leaves_undone_is_finished",
        || {
            quiet();
            if !veth() {
                return;
            }
            ip("address add 192.0.2.1/24 dev v1");
            ip("neighbor add 192.0.2.2 lladdr 02:00:00:00:00:09 dev v1");
            let mut rig = Setup::new(vec![named(WireKind::Packet, "v0")]).start();
            let a = &mut rig.sides[0];
            let link = LinkSpec {
                up: true,
                max_frame: 9018,
            };
            a.port.set_link(link).unwrap();
            until("the link", || a.port.link_up().unwrap().then_some(()));
            let rcq = &mut a.cq(7);
            let mut rq = a.rq_with(5, 4, rcq, |_| {});
            for _ in 0..32 {
                let (at, iova) = a.take(12288);
                rq.post(&[(9216, KEY, iova)], at);
            }
            rq.publish();
            a.steer_all(rq.spec.rqn);
            let socket = UdpSocket::bind((Ipv4Addr::from(HOST), 4000)).unwrap();
            let ours = |bytes: &[u8]| bytes[12..14] == [8, 0] && bytes[23] == 17;
            let right = |bytes: &[u8]| {
                let mut pseudo = bytes[26..34].to_vec();
                pseudo.extend([0, 17, bytes[38], bytes[39]]);
                pseudo.extend(&bytes[34..]);
                ones(&bytes[14..34]) == 0xffff && ones(&pseudo) == 0xffff
            };
            for len in [0usize, 1, 100, 1400, 8000] {
                let payload: Vec<u8> = (0..len).map(|k| (k * 7) as u8).collect();
                socket
                    .send_to(&payload, (Ipv4Addr::from(PORT), 5000))
                    .unwrap();
                let got = frame_like(&mut rq, rcq, ours);
                assert_eq!(got[42..], payload);
                assert!(right(&got), "the checksum of {len} bytes");
            }
            // What was sent while the port was down is gone.
            a.port.set_link(LinkSpec { up: false, ..link }).unwrap();
            for _ in 0..20 {
                socket
                    .send_to(b"stale", (Ipv4Addr::from(PORT), 5000))
                    .unwrap();
            }
            a.port.set_link(link).unwrap();
            socket
                .send_to(b"fresh", (Ipv4Addr::from(PORT), 5000))
                .unwrap();
            assert_eq!(frame_like(&mut rq, rcq, ours)[42..], *b"fresh");
            // Larger than the port takes: named, and the next one comes.
            let small = LinkSpec {
                up: true,
                max_frame: 1518,
            };
            a.port.set_link(small).unwrap();
            socket
                .send_to(&[1; 3000], (Ipv4Addr::from(PORT), 5000))
                .unwrap();
            socket
                .send_to(&[2; 30], (Ipv4Addr::from(PORT), 5000))
                .unwrap();
            assert_eq!(frame_like(&mut rq, rcq, ours)[42..], [2; 30]);
            let report = a.port.wire().unwrap();
            let named = report.oversize_first[0];
            assert_eq!((report.oversize, named.outgoing), (1, false));
            assert_eq!((named.length, named.limit), (3042, 1518));
            a.port.set_link(link).unwrap();
            // Several datagrams that the machine leaves in one piece.
            use nix::sys::socket::{setsockopt, sockopt};
            if setsockopt(&socket, sockopt::UdpGsoSegment, &1000).is_err() {
                eprintln!("NOT RUN: no segmentation of datagrams here");
                return;
            }
            let payload: Vec<u8> = (0..5300usize).map(|k| (k * 13) as u8).collect();
            socket
                .send_to(&payload, (Ipv4Addr::from(PORT), 5000))
                .unwrap();
            let mut collected = Vec::new();
            while collected.len() < payload.len() {
                let got = frame_like(&mut rq, rcq, ours);
                assert!(right(&got));
                assert!(got.len() <= 1042);
                collected.extend_from_slice(&got[42..]);
            }
            assert_eq!(collected, payload);
        },
    );
}

#[test]
fn interfaces_that_cannot_be_used_are_named_with_the_remedy() {
    let refused = |kind: fn(InterfaceConfig) -> WireKind, name: &str| {
        let uars = segment("uars", 8 * 4096).whole();
        let function = DataFunction {
            uars,
            first_uar: 4,
            log_bf_reg_size: 9,
            features: Features::default(),
            frequency_khz: 1_000_000,
            wire: named(kind, name),
            events: Box::new(|_| {}),
        };
        let config = DataPlaneConfig {
            strict: true,
            cpu: None,
            idle: IdlePolicy::Yield,
            functions: vec![function],
        };
        match DataPlane::start(config) {
            Ok(_) => panic!("{name} was opened"),
            Err(why) => why.to_string(),
        }
    };
    let none = refused(WireKind::Packet, "nosuchthing0");
    assert!(
        none.contains("nosuchthing0") && none.contains("ip link"),
        "{none}"
    );
    for name in ["", "a-name-that-is-too-long", "a/b", "a b"] {
        let bad = refused(WireKind::Tap, name);
        assert!(bad.contains("1 to 15 characters"), "{bad}");
    }
    // Not a TAP interface: refused, whatever this user may do.
    let loopback = refused(WireKind::Tap, "lo");
    assert!(
        loopback.contains("lo")
            && (loopback.contains("ip tuntap") || loopback.contains("/dev/net/tun")),
        "{loopback}"
    );
}
