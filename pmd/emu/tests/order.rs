//! Bring-up and teardown in the order that the kernel uses, as raw bytes; and every wrong order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::{Driver, words};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{EmulatorConfig, FunctionConfig, Model};
use pollux_prm::command::Status;

fn good(driver: &mut Driver, input: &[u32], room: usize) -> Vec<u32> {
    let out = driver.raw(&words(input), room);
    assert_eq!(out[..8], [0; 8], "refused: {:02x?}", &out[..8]);
    out.chunks_exact(4)
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        .collect()
}

fn refused(driver: &mut Driver, input: &[u32], room: usize) -> (Status, Reason) {
    let why = driver.try_raw(&words(input), room).unwrap_err();
    (why.status, parts(why.syndrome).unwrap().0)
}

#[test]
fn kernel_order_is_accepted_byte_for_byte() {
    let mut driver = Driver::one(FunctionConfig {
        model: Model::ConnectX4Lx,
        ..Default::default()
    });
    // ENABLE_HCA
    good(&mut driver, &[0x0104_0000, 0, 0, 0], 16);
    // QUERY_ISSI: step 1 is spoken.
    let out = good(&mut driver, &[0x010a_0000, 0, 0, 0], 112);
    assert_eq!((out[2], out[27]), (0, 2));
    // SET_ISSI 1
    good(&mut driver, &[0x010b_0000, 0, 1, 0], 16);
    assert_eq!(good(&mut driver, &[0x010a_0000, 0, 0, 0], 112)[2], 1);
    // QUERY_PAGES boot, MANAGE_PAGES give
    let out = good(&mut driver, &[0x0107_0000, 1, 0, 0], 16);
    assert_eq!(out, [0, 0, 0, 6]);
    give(&mut driver, 6);
    // HOST_ENDIANNESS, write 0
    good(&mut driver, &[0x0805_0000, 0, 0x7004, 0, 0, 0, 0, 0], 32);
    // QUERY_HCA_CAP, general, maximum and current.
    let most = good(&mut driver, &[0x0100_0000, 0, 0, 0], 4112);
    let now = good(&mut driver, &[0x0100_0000, 1, 0, 0], 4112);
    assert_eq!(now[4 + 13] & 0xff, 1, "ports");
    assert_eq!(now[4 + 13] >> 8 & 3, 1, "Ethernet");
    assert_eq!(most[4 + 16] >> 14 & 3, 3, "checksums can be switched on");
    assert_eq!(now[4 + 16] >> 14 & 3, 0, "and are off");
    // SET_HCA_CAP, current values.
    let mut set = vec![0x0109_0000, 0, 0, 0];
    set.extend_from_slice(&now[4..]);
    good(&mut driver, &set, 16);
    assert_eq!(
        good(&mut driver, &[0x0100_0000, 1, 0, 0], 4112)[4..],
        now[4..]
    );
    // QUERY_PAGES init, give
    let out = good(&mut driver, &[0x0107_0000, 2, 0, 0], 16);
    give(&mut driver, out[3] as usize);
    // INIT_HCA, as older drivers send it: 16 bytes.
    good(&mut driver, &[0x0102_0000, 0, 0, 0], 16);
    // ALLOC_UAR
    assert_eq!(good(&mut driver, &[0x0802_0000, 0, 0, 0], 16)[2], 0x10);
    // CREATE_EQ for commands: 256 entries in one 16 KiB page, vector 1.
    let ring = driver.take_aligned(16 << 10);
    let page = driver.iova(ring);
    let mut eq = vec![
        0x0301_0000,
        0,
        0,
        0,
        0,
        0,
        0,
        0x0800_0010,
        0,
        1,
        0x0200_0000,
    ];
    eq.resize(64 + 4, 0);
    eq[23] = 0x400;
    eq.extend([(page >> 32) as u32, page as u32]);
    assert_eq!(eq.len() * 4, 280);
    assert_eq!(good(&mut driver, &eq, 16)[2], 0x10);
    // ALLOC_PD, ALLOC_TRANSPORT_DOMAIN and back.
    let pd = good(&mut driver, &[0x0800_0000, 0, 0, 0], 16)[2];
    let domain = good(&mut driver, &[0x0816_0000, 0, 0, 0], 16)[2];
    good(&mut driver, &[0x0817_0000, 0, domain, 0], 16);
    good(&mut driver, &[0x0801_0000, 0, pd, 0], 16);
    // DESTROY_EQ, DEALLOC_UAR
    good(&mut driver, &[0x0302_0000, 0, 0x10, 0], 16);
    good(&mut driver, &[0x0803_0000, 0, 0x10, 0], 16);
    // TEARDOWN_HCA
    good(&mut driver, &[0x0103_0000, 0, 0, 0], 16);
    // MANAGE_PAGES take until empty
    let mut back = 0;
    loop {
        let out = good(&mut driver, &[0x0108_0000, 2, 0, 768], 16 + 768 * 8);
        if out[2] == 0 {
            break;
        }
        back += out[2];
    }
    let report = driver.emulator.report(0).unwrap();
    assert_eq!(back, 6 + 512);
    // DISABLE_HCA
    good(&mut driver, &[0x0105_0000, 0, 0, 0], 16);
    assert_eq!(
        (report.firmware_pages, report.live_objects(), report.refused),
        (0, 0, 0)
    );
}

fn give(driver: &mut Driver, count: usize) {
    let at = driver.take(count * 4096);
    let mut input = vec![0x0108_0000, 1, 0, count as u32];
    for page in 0..count {
        let address = driver.iova(at + page * 4096);
        input.extend([(address >> 32) as u32, address as u32]);
    }
    good(driver, &input, 16);
}

#[test]
fn nothing_but_enable_is_taken_from_a_sleeping_function() {
    let mut driver = Driver::new(EmulatorConfig::default());
    for shape in pollux_emu::command_shapes() {
        if shape.opcode.0 == 0x104 {
            continue;
        }
        let mut input = vec![0; shape.input_len];
        input[..2].copy_from_slice(&shape.opcode.0.to_be_bytes());
        let why = driver.try_raw(&input, 8192).unwrap_err();
        let (reason, opcode, phase) = parts(why.syndrome).unwrap();
        assert_eq!(opcode, shape.opcode);
        assert_eq!(
            (why.status, reason),
            (Status::BAD_SYS_STATE_ERR, Reason::WrongPhase)
        );
        assert_eq!(phase, 1, "{}", why.text());
        assert!(why.text().contains("not enabled"), "{}", why.text());
    }
}

#[test]
fn steps_out_of_order_are_refused() {
    let mut driver = Driver::new(EmulatorConfig::default());
    let phase = (Status::BAD_SYS_STATE_ERR, Reason::WrongPhase);
    let pages = (Status::BAD_SYS_STATE_ERR, Reason::PagesMissing);
    good(&mut driver, &[0x0104_0000, 0, 0, 0], 16);
    // A second ENABLE_HCA.
    assert_eq!(refused(&mut driver, &[0x0104_0000, 0, 0, 0], 16), phase);
    // Capabilities, init pages and INIT_HCA before boot pages.
    assert_eq!(refused(&mut driver, &[0x0100_0000, 1, 0, 0], 4112), pages);
    assert_eq!(refused(&mut driver, &[0x0107_0000, 2, 0, 0], 16), pages);
    assert_eq!(
        refused(&mut driver, &[0x0102_0000, 0, 0, 0, 0, 0, 0, 0], 16),
        pages
    );
    driver.give_pages(1);
    // INIT_HCA before init pages; objects before INIT_HCA.
    assert_eq!(
        refused(&mut driver, &[0x0102_0000, 0, 0, 0, 0, 0, 0, 0], 16),
        pages
    );
    assert_eq!(refused(&mut driver, &[0x0802_0000, 0, 0, 0], 16), phase);
    assert_eq!(refused(&mut driver, &[0x0103_0000, 0, 0, 0], 16), phase);
    driver.give_pages(2);
    good(&mut driver, &[0x0102_0000, 0, 0, 0, 0, 0, 0, 0], 16);
    // Twice, and what belongs before it.
    assert_eq!(
        refused(&mut driver, &[0x0102_0000, 0, 0, 0, 0, 0, 0, 0], 16),
        phase
    );
    assert_eq!(refused(&mut driver, &[0x010b_0000, 0, 1, 0], 16), phase);
    let mut set = vec![0x0109_0000];
    set.resize(1028, 0);
    assert_eq!(refused(&mut driver, &set, 16), phase);
    assert_eq!(refused(&mut driver, &[0x0107_0000, 1, 0, 0], 16), phase);
    assert_eq!(refused(&mut driver, &[0x0105_0000, 0, 0, 0], 16), phase);
    // Teardown with an object alive.
    let pd = good(&mut driver, &[0x0800_0000, 0, 0, 0], 16)[2];
    let busy = (Status::RES_BUSY, Reason::ObjectsLeft);
    assert_eq!(refused(&mut driver, &[0x0103_0000, 0, 0, 0], 16), busy);
    good(&mut driver, &[0x0801_0000, 0, pd, 0], 16);
    good(&mut driver, &[0x0103_0000, 0, 0, 0], 16);
    // Nothing is made any more; pages must go back before DISABLE_HCA.
    assert_eq!(refused(&mut driver, &[0x0800_0000, 0, 0, 0], 16), phase);
    let left = (Status::BAD_SYS_STATE_ERR, Reason::PagesLeft);
    assert_eq!(refused(&mut driver, &[0x0105_0000, 0, 0, 0], 16), left);
    while !driver.take_pages(100).is_empty() {}
    good(&mut driver, &[0x0105_0000, 0, 0, 0], 16);
    // And from the start again.
    driver.bring_up();
    assert_eq!(driver.shut_down(), 518);
}

#[test]
fn pages_are_kept_by_address() {
    let mut driver = Driver::new(EmulatorConfig::default());
    good(&mut driver, &[0x0104_0000, 0, 0, 0], 16);
    let at = driver.take(16 * 4096);
    let page = |driver: &Driver, n: usize| driver.iova(at + n * 4096);
    let reason = |why: driver::Refused| parts(why.syndrome).unwrap().0;
    let four: Vec<u64> = (0..4).map(|n| page(&driver, n)).collect();
    // Before anybody asked.
    assert_eq!(
        reason(driver.give_list(&four).unwrap_err()),
        Reason::PagesUnasked
    );
    good(&mut driver, &[0x0107_0000, 1, 0, 0], 16);
    driver.give_list(&four).unwrap();
    // Given already, zero, not aligned, twice in one list, more than asked for, a count that lies.
    let fifth = page(&driver, 4);
    for bad in [vec![four[0]], vec![0], vec![fifth + 8], vec![fifth, fifth]] {
        assert_eq!(
            reason(driver.give_list(&bad).unwrap_err()),
            Reason::BadPage,
            "{bad:x?}"
        );
    }
    let many: Vec<u64> = (4..7).map(|n| page(&driver, n)).collect();
    assert_eq!(
        reason(driver.give_list(&many).unwrap_err()),
        Reason::PagesUnasked
    );
    let input = [0x0108_0000, 1, 0, 2, (fifth >> 32) as u32, fifth as u32];
    assert_eq!(refused(&mut driver, &input, 16).1, Reason::BadValue);
    // A refused list leaves nothing behind.
    assert_eq!(driver.emulator.report(0).unwrap().firmware_pages, 4);
    assert_eq!(good(&mut driver, &[0x0107_0000, 1, 0, 0], 16)[3], 2);
    driver.give_list(&many[..2]).unwrap();
    // All come back, each once.
    let mut back = driver.take_pages(4);
    back.extend(driver.take_pages(100));
    assert!(driver.take_pages(1).is_empty());
    back.sort_unstable();
    let given: Vec<u64> = (0..6).map(|n| page(&driver, n)).collect();
    assert_eq!(back, given);
    good(&mut driver, &[0x0105_0000, 0, 0, 0], 16);
}
