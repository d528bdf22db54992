//! Captures written byte by byte, so that no parser under test takes part in making them,
//! and a folder that goes away with the test.
#![allow(dead_code)] // each test program uses its own part

pub mod run;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of one test's own.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "pollux-testpmd-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A classic capture, little endian, microseconds.
pub fn pcap(link_type: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut f = Vec::new();
    f.extend(0xa1b2_c3d4u32.to_le_bytes());
    f.extend(2u16.to_le_bytes());
    f.extend(4u16.to_le_bytes());
    f.extend([0; 8]);
    f.extend(262_144u32.to_le_bytes());
    f.extend(link_type.to_le_bytes());
    for (i, p) in packets.iter().enumerate() {
        f.extend((i as u32).to_le_bytes());
        f.extend(0u32.to_le_bytes());
        f.extend((p.len() as u32).to_le_bytes());
        f.extend((p.len() as u32).to_le_bytes());
        f.extend(p);
    }
    f
}

/// The same, big endian.
pub fn pcap_big_endian(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut f = Vec::new();
    f.extend(0xa1b2_c3d4u32.to_be_bytes());
    f.extend(2u16.to_be_bytes());
    f.extend(4u16.to_be_bytes());
    f.extend([0; 8]);
    f.extend(262_144u32.to_be_bytes());
    f.extend(1u32.to_be_bytes());
    for p in packets {
        f.extend([0; 8]);
        f.extend((p.len() as u32).to_be_bytes());
        f.extend((p.len() as u32).to_be_bytes());
        f.extend(p);
    }
    f
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().div_ceil(4) * 4;
    let length = (padded + 12) as u32;
    let mut b = Vec::new();
    b.extend(kind.to_le_bytes());
    b.extend(length.to_le_bytes());
    b.extend(body);
    b.resize(8 + padded, 0);
    b.extend(length.to_le_bytes());
    b
}

/// Section header of a pcapng file.
pub fn pcapng_section() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0x1a2b_3c4du32.to_le_bytes());
    body.extend(1u16.to_le_bytes());
    body.extend(0u16.to_le_bytes());
    body.extend(u64::MAX.to_le_bytes());
    block(0x0a0d_0d0a, &body)
}

/// Interface description.
pub fn pcapng_interface(link_type: u16, snap_length: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(link_type.to_le_bytes());
    body.extend(0u16.to_le_bytes());
    body.extend(snap_length.to_le_bytes());
    block(1, &body)
}

/// Enhanced packet block.
pub fn pcapng_packet(interface: u32, captured: u32, wire: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(interface.to_le_bytes());
    body.extend([0; 8]);
    body.extend(captured.to_le_bytes());
    body.extend(wire.to_le_bytes());
    body.extend(data);
    block(6, &body)
}

/// Simple packet block.
pub fn pcapng_simple(wire: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(wire.to_le_bytes());
    body.extend(data);
    block(3, &body)
}

/// A pcapng file of Ethernet packets.
pub fn pcapng(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut f = pcapng_section();
    f.extend(pcapng_interface(1, 0));
    for p in packets {
        f.extend(pcapng_packet(0, p.len() as u32, p.len() as u32, p));
    }
    f
}

/// An Ethernet frame of `length` bytes, different for each `number`.
pub fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut f = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00];
    f.extend(number.to_be_bytes());
    let mut x = number.wrapping_mul(2_654_435_761) | 1;
    while f.len() < length {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        f.push(x as u8);
    }
    f.truncate(length);
    f
}

/// The frame with its addresses exchanged.
pub fn swapped(frame: &[u8]) -> Vec<u8> {
    let mut f = frame.to_vec();
    f[..12].rotate_left(6);
    f
}

/// The program's file.
pub fn program(name: &str) -> PathBuf {
    let path = match name {
        "pollux-testpmd" => env!("CARGO_BIN_EXE_pollux-testpmd"),
        _ => env!("CARGO_BIN_EXE_capture-proof"),
    };
    Path::new(path).to_path_buf()
}
