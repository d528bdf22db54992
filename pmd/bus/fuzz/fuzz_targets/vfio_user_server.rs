//! Arbitrary message streams against the vfio-user server.
//!
//! `cd pmd/bus && cargo +nightly fuzz run vfio_user_server -- -max_len=2048`
#![no_main]

#[path = "../door/mod.rs"]
mod door;

use door::Door;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static DOOR: OnceLock<Door> = OnceLock::new();

fuzz_target!(|program: &[u8]| {
    let door = DOOR.get_or_init(Door::new);
    door.feed(program);
    door.witness();
});
