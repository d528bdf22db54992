//! Captures: every format that is read, every damage that is refused, and what is written.

use crate::rig::*;
use pollux_emu::data::*;
use pollux_emu::wire::{PcapConfig, WireConfig, WireKind};
use std::path::{Path, PathBuf};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Byte order and ticks of a hand-made pcap.
#[derive(Clone, Copy)]
struct Form {
    big: bool,
    nano: bool,
}

fn word(big: bool, value: u32) -> [u8; 4] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn half(big: bool, value: u16) -> [u8; 2] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn pcap(form: Form, link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let Form { big, nano } = form;
    let mut file = Vec::new();
    file.extend(word(big, if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
    file.extend(half(big, 2));
    file.extend(half(big, 4));
    file.extend([0; 8]);
    file.extend(word(big, 96));
    file.extend(word(big, link));
    for (index, frame) in frames.iter().enumerate() {
        file.extend(word(big, index as u32));
        file.extend(word(big, 5));
        file.extend(word(big, frame.len() as u32));
        // Longer on the wire than in the file, as with a snap length.
        file.extend(word(big, frame.len() as u32 + 1000));
        file.extend(frame);
    }
    file
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = body.len() as u32 + 12;
    let mut block = word(big, kind).to_vec();
    block.extend(word(big, len));
    block.extend(body);
    block.extend(word(big, len));
    block
}

fn section(big: bool) -> Vec<u8> {
    let mut body = word(big, 0x1a2b_3c4d).to_vec();
    body.extend(half(big, 1));
    body.extend(half(big, 0));
    body.extend([0xff; 8]);
    block(big, 0x0a0d_0d0a, &body)
}

fn interface(big: bool, link: u16, snap: u32) -> Vec<u8> {
    let mut body = half(big, link).to_vec();
    body.extend([0; 2]);
    body.extend(word(big, snap));
    // A name that is no UTF-8 and no end of the options: both are met in the wild.
    body.extend(half(big, 2));
    body.extend(half(big, 2));
    body.extend([0xff, 0xfe, 0, 0]);
    block(big, 1, &body)
}

fn enhanced(big: bool, interface: u32, frame: &[u8]) -> Vec<u8> {
    let mut body = word(big, interface).to_vec();
    body.extend([0; 8]);
    body.extend(word(big, frame.len() as u32));
    body.extend(word(big, frame.len() as u32));
    body.extend(frame);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(half(big, 2));
    body.extend(half(big, 4));
    body.extend([0; 8]);
    block(big, 6, &body)
}

fn simple(big: bool, frame: &[u8], claimed: u32) -> Vec<u8> {
    let mut body = word(big, claimed).to_vec();
    body.extend(frame);
    block(big, 3, &body)
}

fn obsolete(big: bool, frame: &[u8]) -> Vec<u8> {
    let mut body = half(big, 0).to_vec();
    body.extend([0; 10]);
    body.extend(word(big, frame.len() as u32));
    body.extend(word(big, frame.len() as u32));
    body.extend(frame);
    block(big, 2, &body)
}

/// Two sections of different byte order with all kinds of packet blocks.
fn pcapng(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for (number, part) in frames.chunks(frames.len().div_ceil(2)).enumerate() {
        let big = number == 1;
        file.extend(section(big));
        file.extend(interface(big, 1, 0));
        file.extend(interface(big, 105, 0));
        file.extend(interface(big, 1, 0));
        for (index, frame) in part.iter().enumerate() {
            file.extend(match index % 3 {
                0 => enhanced(big, 2, frame),
                1 => simple(big, frame, frame.len() as u32),
                _ => obsolete(big, frame),
            });
            file.extend(block(big, 0x0bad_cafe, &[1, 2, 3, 4]));
        }
    }
    file
}

fn input(path: &Path) -> PcapConfig {
    PcapConfig {
        input: Some(path.to_owned()),
        output: None,
        repeat: 1,
        rate: None,
    }
}

fn frames() -> Vec<Vec<u8>> {
    (0..25)
        .map(|k| frame([60, 61, 62, 63, 1514, 300][k % 6], k as u64))
        .collect()
}

/// All that a wire brings.
fn play(config: PcapConfig, count: usize) -> Vec<Vec<u8>> {
    let mut rig = Setup::new(vec![wire(WireKind::Pcap(config))]).start();
    let a = &mut rig.sides[0];
    a.settle();
    assert_eq!(
        a.port.wire().unwrap().waiting,
        count as u64,
        "nothing is lost before a start"
    );
    let (mut rq, mut rcq) = a.receiver(3, 8);
    let mut got = Vec::new();
    for _ in 0..count {
        got.push(rq.receive(&mut rcq));
        rq.repost();
        rq.publish();
    }
    a.settle();
    assert!(rcq.poll().is_none());
    let report = a.port.wire().unwrap();
    assert!(report.drained);
    assert_eq!(
        (report.frames_in, report.waiting, report.dropped),
        (count as u64, 0, 0)
    );
    got
}

#[test]
fn a_held_wire_waits_though_its_receiver_is_ready() {
    let folder = Folder::new("held");
    let frames = frames();
    let form = Form {
        big: false,
        nano: false,
    };
    let path = folder.write("held.pcap", &pcap(form, 1, &frames));
    let mut rig = Setup::new(vec![wire(WireKind::Pcap(input(&path)))]).start();
    let a = &mut rig.sides[0];
    a.port.hold_wire(true).unwrap();
    let (rq, mut rcq) = a.receiver(3, 8);
    a.settle();
    assert!(rcq.poll().is_none());
    assert!(a.port.wire().unwrap().up);
    assert_eq!(a.port.wire().unwrap().waiting, frames.len() as u64);
    a.port.hold_wire(false).unwrap();
    assert_eq!(rq.receive(&mut rcq), frames[0]);
}

#[test]
fn every_format_is_played_in_order_byte_for_byte() {
    let folder = Folder::new("formats");
    let frames = frames();
    for big in [false, true] {
        for nano in [false, true] {
            let path = folder.write("a.pcap", &pcap(Form { big, nano }, 1, &frames));
            assert_eq!(
                play(input(&path), frames.len()),
                frames,
                "big {big}, nano {nano}"
            );
        }
    }
    // The upper bits of the link type tell about check sequences.
    let path = folder.write(
        "b.pcap",
        &pcap(
            Form {
                big: true,
                nano: false,
            },
            0x1400_0001,
            &frames,
        ),
    );
    assert_eq!(play(input(&path), frames.len()), frames);
    let path = folder.write("a.pcapng", &pcapng(&frames));
    assert_eq!(play(input(&path), frames.len()), frames);
    let path = folder.write(
        "none.pcap",
        &pcap(
            Form {
                big: false,
                nano: false,
            },
            1,
            &[],
        ),
    );
    assert!(play(input(&path), 0).is_empty());
    let twice = PcapConfig {
        repeat: 3,
        ..input(&folder.write("c.pcapng", &pcapng(&frames[..4])))
    };
    assert_eq!(
        play(twice, 12),
        [&frames[..4], &frames[..4], &frames[..4]].concat()
    );
}

#[test]
fn a_simple_block_is_cut_at_the_snap_length() {
    let folder = Folder::new("snap");
    let bytes = frame(100, 1);
    let mut file = section(false);
    file.extend(interface(false, 1, 64));
    file.extend(simple(false, &bytes[..64], 100));
    let got = play(input(&folder.write("a.pcapng", &file)), 1);
    assert_eq!(got, [bytes[..64].to_vec()]);
}

fn refused(configs: Vec<PcapConfig>) -> String {
    let functions = configs
        .into_iter()
        .map(|config| DataFunction {
            uars: segment("uars", 4096).whole(),
            first_uar: 0,
            log_bf_reg_size: 9,
            features: Features::default(),
            frequency_khz: 1,
            wire: WireConfig {
                kind: WireKind::Pcap(config),
                lossy: false,
            },
            events: Box::new(|_| {}),
        })
        .collect();
    let idle = IdlePolicy::Yield;
    match DataPlane::start(DataPlaneConfig {
        strict: true,
        cpu: None,
        idle,
        functions,
    }) {
        Ok(_) => panic!("was accepted"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            text
        }
    }
}

#[test]
fn what_cannot_be_played_is_refused_with_one_clear_line() {
    let folder = Folder::new("refused");
    let frames = frames();
    let form = Form {
        big: false,
        nano: false,
    };
    let whole = pcap(form, 1, &frames);
    let complain = |name: &str, bytes: &[u8], words: &[&str]| {
        let text = refused(vec![input(&folder.write(name, bytes))]);
        for word in words.iter().chain([&name]) {
            assert!(text.contains(word), "{word:?} is missing in {text:?}");
        }
    };
    complain("empty", &[], &["empty"]);
    complain("text", b"once upon a time", &["neither pcap nor pcapng"]);
    complain("zipped", &[0x1f, 0x8b, 8, 0, 0], &["unpack"]);
    complain("header", &whole[..20], &["truncated", "20 bytes"]);
    complain("cut", &whole[..whole.len() - 7], &["truncated", "frame 24"]);
    complain(
        "cut in a header",
        &whole[..24 + 60 + 16 + 9],
        &["truncated", "frame 1", "byte 100"],
    );
    complain(
        "wifi",
        &pcap(form, 105, &frames),
        &["link type 105", "Ethernet"],
    );
    let mut huge = whole.clone();
    huge[24 + 8..24 + 12].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    complain("huge", &huge, &["frame 0", "2147483647", "damaged"]);
    let ng = pcapng(&frames);
    complain("cut.pcapng", &ng[..ng.len() - 5], &["truncated"]);
    complain("cut early.pcapng", &ng[..10], &["truncated"]);
    let mut file = section(false);
    file.extend(enhanced(false, 0, &frames[0]));
    complain(
        "undescribed.pcapng",
        &file,
        &["interface 0", "not described"],
    );
    let mut file = section(false);
    file.extend(interface(false, 113, 0));
    file.extend(enhanced(false, 0, &frames[0]));
    complain("cooked.pcapng", &file, &["link type 113"]);
    let mut file = section(false);
    file.extend(interface(false, 1, 0));
    let mut lying = enhanced(false, 0, &frames[0]);
    lying[8 + 12] = 200;
    file.extend(lying);
    complain("lying.pcapng", &file, &["claims 200 bytes", "damaged"]);
    let mut file = section(false);
    file.extend(block(false, 6, &[0; 8]));
    complain("short.pcapng", &file, &["too short"]);
    let mut file = section(false);
    let at = file.len();
    file.extend(interface(false, 1, 0));
    file[at + 4] = 7;
    complain("odd.pcapng", &file, &["damaged"]);
    let missing = refused(vec![input(&folder.0.join("nowhere.pcap"))]);
    assert!(
        missing.contains("nowhere.pcap") && missing.contains("No such file"),
        "{missing}"
    );
    let folder_itself = refused(vec![input(&folder.0)]);
    assert!(folder_itself.contains("regular file"), "{folder_itself}");
    // Nothing may be overwritten that is being read, or written twice.
    let path = folder.write("kept.pcap", &whole);
    let to = |path: &Path| PcapConfig {
        output: Some(path.to_owned()),
        ..PcapConfig::default()
    };
    for configs in [
        vec![input(&path), to(&path)],
        vec![to(&path), to(&path)],
        vec![PcapConfig {
            output: Some(
                folder
                    .0
                    .join("../")
                    .join(folder.0.file_name().unwrap())
                    .join("kept.pcap"),
            ),
            ..input(&path)
        }],
    ] {
        assert!(refused(configs).contains("another wire"));
    }
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    let nowhere = refused(vec![to(&folder.0.join("no/such/folder.pcap"))]);
    assert!(nowhere.contains("cannot be created"), "{nowhere}");
}

#[test]
fn what_is_sent_is_written_and_can_be_read_again() {
    let folder = Folder::new("written");
    let frames = frames();
    for name in ["out.pcap", "out.pcapng"] {
        let path = folder.0.join(name);
        let config = PcapConfig {
            output: Some(path.clone()),
            ..PcapConfig::default()
        };
        let mut rig = Setup::new(vec![wire(WireKind::Pcap(config))]).start();
        let a = &mut rig.sides[0];
        let (mut sq, mut scq) = a.sender(6);
        for bytes in &frames {
            a.send(&mut sq, bytes);
        }
        for _ in 0..frames.len() {
            scq.next();
        }
        let report = a.port.wire().unwrap();
        assert!(report.drained && report.output_error.is_none());
        assert_eq!(report.frames_out, frames.len() as u64);
        // Drained means that it is all in the file, while the device still runs.
        let written = std::fs::read(&path).unwrap();
        assert_eq!(play(input(&path), frames.len()), frames);
        drop(rig);
        assert_eq!(std::fs::read(&path).unwrap(), written);
        if name == "out.pcap" {
            assert_eq!(written[..4], 0xa1b2_3c4du32.to_le_bytes());
            let seconds = u32::from_le_bytes(written[24..28].try_into().unwrap());
            let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
            assert!(now.abs_diff(u64::from(seconds)) < 3600, "{seconds}");
        }
    }
}

#[test]
fn frames_larger_than_the_port_are_named_and_the_rest_is_played() {
    let folder = Folder::new("large");
    let list = vec![
        frame(60, 1),
        frame(3000, 2),
        frame(80, 3),
        frame(1519, 4),
        frame(1518, 5),
    ];
    let path = folder.write(
        "a.pcap",
        &pcap(
            Form {
                big: false,
                nano: false,
            },
            1,
            &list,
        ),
    );
    let mut rig = Setup::new(vec![wire(WireKind::Pcap(input(&path)))]).start();
    let a = &mut rig.sides[0];
    let (rq, mut rcq) = a.receiver(4, 8);
    for index in [0, 2, 4] {
        assert_eq!(rq.receive(&mut rcq), list[index]);
    }
    let report = until("the end", || {
        Some(a.port.wire().unwrap()).filter(|report| report.drained)
    });
    assert_eq!(
        (report.frames_in, report.dropped, report.oversize),
        (3, 2, 2)
    );
    let named: Vec<_> = report
        .oversize_first
        .iter()
        .map(|o| (o.index, o.length))
        .collect();
    assert_eq!(named, [(1, 3000), (3, 1519)]);
}

#[test]
fn damaged_captures_never_end_the_program() {
    let folder = Folder::new("damaged");
    let small: Vec<_> = (0..4).map(|k| frame(60 + k, k as u64)).collect();
    let files = [
        pcapng(&small),
        pcap(
            Form {
                big: true,
                nano: false,
            },
            1,
            &small,
        ),
    ];
    let mut state = 7u64;
    for round in 0..300 {
        let mut file = files[round % 2].clone();
        for _ in 0..=round % 4 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (state >> 33) as usize % file.len();
            file[at] = (state >> 24) as u8;
        }
        file.truncate(file.len() - round % 7);
        let config = input(&folder.write("x", &file));
        let functions = vec![DataFunction {
            uars: segment("uars", 4096).whole(),
            first_uar: 0,
            log_bf_reg_size: 9,
            features: Features::default(),
            frequency_khz: 1,
            wire: wire(WireKind::Pcap(config)),
            events: Box::new(|_| {}),
        }];
        let idle = IdlePolicy::Yield;
        // Either it is a capture or it is not; a panic of the thread would make the call fail.
        if let Ok(plane) = DataPlane::start(DataPlaneConfig {
            strict: true,
            cpu: None,
            idle,
            functions,
        }) {
            assert!(plane.port(0).unwrap().wire().unwrap().waiting <= 8);
        }
    }
}
