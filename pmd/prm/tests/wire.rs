//! Signatures, tokens, completions, WQE words and doorbells against values worked out by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

use pollux_prm::command::Opcode;
use pollux_prm::command_queue::{
    CommandEntry, InitSegment, Mailbox, block_range, mailboxes, next_token, registers, xor8,
};
use pollux_prm::commands::register::{ExtLinkMode, LinkMode, RegisterId, mask_names};
use pollux_prm::completion::{
    self, Cqe, CqeFormat, CqeOpcode, ErrorCqe, Headers, L3HeaderType, L4HeaderType, Syndrome, Tail,
};
use pollux_prm::event::{self, EventType, PageRequestEvent};
use pollux_prm::wqe::{
    self, ChecksumFlags, CtrlFlags, CtrlSeg, DataSeg, EthSeg, InlineSeg, SendOpcode, record, uar,
};
use proptest::prelude::*;

/// Words in memory order as bytes.
fn bytes(words: [u32; 4]) -> [u8; 16] {
    let mut out = [0; 16];
    for (at, word) in words.into_iter().enumerate() {
        out[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    out
}

/// The 64-bit word at `at`, as a load from memory gives it.
fn load(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn mailboxes_start_behind_the_sixteen_bytes_of_the_entry() {
    for (len, count) in [
        (0, 0),
        (16, 0),
        (17, 1),
        (528, 1),
        (529, 2),
        (4112, 8),
        (102_960, 202),
        (400_016, 782),
    ] {
        assert_eq!(mailboxes(len), count, "{len} bytes");
    }
    assert_eq!(block_range(0, 4112), 16..528);
    assert_eq!(block_range(7, 4112), 3600..4112);
    assert_eq!(block_range(0, 20), 16..20);
    assert!(block_range(1, 20).is_empty());
    assert!(block_range(0, 8).is_empty());
}

#[test]
fn tokens_go_round_without_zero() {
    assert_eq!(next_token(0), 1);
    assert_eq!(next_token(1), 2);
    assert_eq!(next_token(255), 1);
}

#[test]
fn an_entry_is_signed_as_the_kernel_signs_it() {
    let mut entry = CommandEntry::zeroed();
    entry
        .set_entry_type(7)
        .set_input_length(16)
        .set_output_length(16);
    let mut inline = [0; 16];
    inline[..2].copy_from_slice(&[0x01, 0x04]);
    entry
        .set_input_inline(inline)
        .set_token(1)
        .set_ownership(true);
    entry.sign();
    // 07 ^ 10 ^ 01 ^ 04 ^ 10 ^ 01 ^ 01 = 02, and its complement is fd.
    assert_eq!(entry.signature(), 0xfd);
    assert!(entry.is_signed());
    assert_eq!(entry.opcode(), Opcode::ENABLE_HCA);
    // The owner bit is under the signature.
    entry.set_ownership(false);
    assert!(!entry.is_signed());
}

#[test]
fn a_mailbox_has_two_signatures() {
    let mailbox = Mailbox::chained(&[0xa5, 0x5a, 0x0f], 0x0000_0007_ab12_1000, 3, 0x1c);
    // Control part: 07 ^ ab ^ 12 ^ 10 ^ 03 ^ 1c = b1, complement 4e.
    assert_eq!(mailbox.ctrl_signature(), 0x4e);
    // The whole: data a5 ^ 5a ^ 0f = f0; control part with its signature ff; f0 ^ ff = 0f,
    // complement f0.
    assert_eq!(mailbox.signature(), 0xf0);
    assert!(mailbox.is_ctrl_signed());
    assert!(mailbox.is_signed());
    assert_eq!(xor8(mailbox.bytes()), 0xff);

    let mut other = mailbox;
    other.bytes_mut()[0] ^= 1;
    assert!(
        other.is_ctrl_signed(),
        "the data is not under the control signature"
    );
    assert!(!other.is_signed());
    let mut other = mailbox;
    other.set_token(0x1d);
    assert!(!other.is_ctrl_signed());
}

#[test]
fn a_mailbox_takes_no_more_than_its_data() {
    let mailbox = Mailbox::chained(&[0xff; 600], 0, 0, 1);
    assert_eq!(mailbox.data(), [0xff; 512]);
    assert_eq!(mailbox.next_pointer(), 0);
    assert_eq!(mailbox.bytes()[512..560], [0; 48]);
    let short = Mailbox::chained(&[1, 2], 0, 0, 1);
    assert_eq!(short.data()[..3], [1, 2, 0]);
}

#[test]
fn the_initialization_segment_and_its_registers_agree() {
    let mut segment = InitSegment::zeroed();
    segment
        .set_fw_rev_major(14)
        .set_fw_rev_minor(12)
        .set_fw_rev_subminor(1220);
    segment.set_cmd_interface_rev(5).set_initializing(true);
    segment
        .set_nic_interface(7)
        .unwrap()
        .set_log_cmdq_size(5)
        .unwrap();
    segment
        .set_log_cmdq_stride(6)
        .unwrap()
        .set_cmdq_phy_addr_31_12(0xf3d00)
        .unwrap();
    let b = segment.bytes();
    assert_eq!(b[registers::FW_REV..][..4], [0, 12, 0, 14]);
    assert_eq!(b[registers::CMDIF_REV_FW_SUB..][..4], [0, 5, 4, 196]);
    assert_eq!(
        b[registers::CMDQ_ADDR_L_SZ..][..4],
        [0xf3, 0xd0, 0x07, 0x56]
    );
    assert_eq!(b[registers::INITIALIZING], 0x80);
}

#[test]
fn events_have_one_bit_each_in_the_mask() {
    assert_eq!(EventType::COMP.mask(), [1, 0, 0, 0]);
    assert_eq!(EventType::PAGE_REQUEST.mask(), [0x800, 0, 0, 0]);
    assert_eq!(EventType(0x41).mask(), [0, 2, 0, 0]);
    assert_eq!(EventType(0xff).mask(), [0, 0, 0, 1 << 63]);
    assert_eq!(EventType::PAGE_REQUEST.to_string(), "PAGE_REQUEST(0xb)");
    assert_eq!(EventType(0xee).to_string(), "0xee");
}

#[test]
fn the_owner_bit_turns_with_each_lap() {
    let owners: Vec<bool> = (0..8).map(|index| event::owner(index, 1)).collect();
    assert_eq!(owners, [false, false, true, true, false, false, true, true]);
    assert!(!completion::lap(1023, 10));
    assert!(completion::lap(1024, 10));
    assert!(!completion::lap(0, 0));
    assert!(completion::lap(1, 0));
}

#[test]
fn page_requests_carry_flags_and_a_signed_count() {
    let data = [0xc0, 0, 0x12, 0x34, 0xff, 0xff, 0xff, 0xfe];
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&data);
    let request = PageRequestEvent::from_bytes(bytes);
    assert!(request.embedded_cpu_function());
    assert!(request.release_all());
    assert_eq!(request.function_id(), 0x1234);
    assert_eq!(request.count(), -2);
}

#[test]
fn a_completion_is_read_from_its_words() {
    let mut raw = [0; 64];
    raw[8..16].copy_from_slice(&[0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef]);
    // L2, L3 and L4 are right; UDP in IPv4 with a tag taken off.
    raw[28..32].copy_from_slice(&[0x07, 0x29, 0x61, 0x23]);
    raw[44..48].copy_from_slice(&[0, 0, 0x05, 0xdc]);
    raw[56..64].copy_from_slice(&[0x0a, 0x00, 0x09, 0x99, 0x12, 0x34, 0x00, 0x21]);

    assert_eq!(
        completion::rss_hash(load(&raw, completion::offset::RSS_HASH)),
        0xdead_beef
    );
    assert_eq!(
        completion::byte_cnt(load(&raw, completion::offset::BYTE_CNT)),
        1500
    );
    let headers = Headers::from_memory(load(&raw, completion::offset::HEADERS));
    assert!(headers.l2_ok() && headers.l3_ok() && headers.l4_ok() && !headers.ip_frag());
    assert_eq!(
        (headers.l3(), headers.l4()),
        (L3HeaderType::IPV4, L4HeaderType::UDP)
    );
    assert_eq!(headers.vlan(), Some(0x6123));
    let tail = Tail::from_memory(load(&raw, completion::offset::TAIL));
    assert_eq!(tail.opcode(), CqeOpcode::RESP_SEND);
    assert_eq!(tail.wqe_counter(), 0x1234);
    assert_eq!(tail.number(), 0x999);
    assert_eq!(tail.send_opcode(), 0x0a);
    assert_eq!(tail.format(), CqeFormat::NO_INLINE_DATA);
    assert!(tail.is_owned(true) && !tail.is_owned(false) && !tail.is_error());
    assert_eq!(tail.to_memory(), load(&raw, completion::offset::TAIL));

    // The accessors see the same.
    let cqe = Cqe::from_bytes(raw);
    assert!(cqe.l2_ok() && cqe.l3_ok() && cqe.l4_ok() && cqe.vlan_stripped() && !cqe.ip_frag());
    assert_eq!(
        (cqe.l3_hdr_type(), cqe.l4_hdr_type(), cqe.vlan_info()),
        (2, 2, 0x6123)
    );
    assert_eq!(
        (cqe.byte_cnt(), cqe.wqe_counter(), cqe.opcode()),
        (1500, 0x1234, 2)
    );
    assert!(cqe.owner());
}

#[test]
fn an_entry_not_yet_written_is_never_owned() {
    for owner in [false, true] {
        let tail = Tail::new(0, 0, 0, CqeOpcode::INVALID, owner);
        assert!(!tail.is_owned(false) && !tail.is_owned(true));
    }
    // What a driver fills a new ring with: opcode 15, owner 1.
    assert!(!Tail::from_memory(u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 0xf1])).is_owned(true));
}

#[test]
fn an_error_says_why() {
    let mut raw = [0; 64];
    raw[54..64].copy_from_slice(&[0x68, 0x04, 0x0a, 0x00, 0x00, 0x99, 0x00, 0x07, 0x00, 0xd0]);
    let cqe = ErrorCqe::from_bytes(raw);
    assert_eq!(Syndrome(cqe.syndrome()), Syndrome::LOCAL_PROT_ERR);
    assert_eq!(
        (cqe.vendor_err_synd(), cqe.qpn(), cqe.wqe_counter()),
        (0x68, 0x99, 7)
    );
    assert_eq!(CqeOpcode(cqe.opcode()), CqeOpcode::REQ_ERR);
    assert!(Tail::from_memory(load(&raw, 56)).is_error());
}

#[test]
fn segments_are_the_words_of_the_prm() {
    let ctrl = CtrlSeg::words(
        0x01,
        0x1234,
        SendOpcode::LSO,
        0x0a_bcde,
        4,
        CtrlFlags::CQ_UPDATE,
    );
    let expected = [
        0x01, 0x12, 0x34, 0x0e, 0x0a, 0xbc, 0xde, 0x04, 0, 0, 0, 0x08, 0, 0, 0, 0,
    ];
    assert_eq!(bytes(ctrl), expected);
    assert_eq!(wqe::doorbell(ctrl).to_ne_bytes(), expected[..8]);

    let flags = ChecksumFlags(ChecksumFlags::L3_CSUM.0 | ChecksumFlags::L4_CSUM.0);
    let eth = EthSeg::words(flags, 1460, 18, [0x02, 0x11]);
    assert_eq!(
        bytes(eth),
        [
            0, 0, 0, 0, 0xc0, 0, 0x05, 0xb4, 0, 0, 0, 0, 0x00, 0x12, 0x02, 0x11
        ]
    );
    let eth = EthSeg::words_vlan(ChecksumFlags::NONE, 0, 0xa123);
    assert_eq!(
        bytes(eth),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x00, 0xa1, 0x23]
    );

    let data = DataSeg::words(1500, 0x0001_0742, 0x1122_3344_5566_7788);
    let expected = [
        0, 0, 0x05, 0xdc, 0x00, 0x01, 0x07, 0x42, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ];
    assert_eq!(bytes(data), expected);
    let halves = DataSeg::halves(1500, 0x0001_0742, 0x1122_3344_5566_7788);
    assert_eq!(halves[0].to_ne_bytes(), expected[..8]);
    assert_eq!(halves[1].to_ne_bytes(), expected[8..]);

    let mut inline = InlineSeg::zeroed();
    inline.set_inline(true).set_byte_count(46).unwrap();
    assert_eq!(inline.bytes(), &[0x80, 0, 0, 46]);
}

#[test]
fn doorbells_are_the_words_of_the_prm() {
    assert_eq!(record::counter(0xfffe).to_ne_bytes(), [0, 0, 0xff, 0xfe]);
    assert_eq!(
        record::cq_consumer(0x0112_3456).to_ne_bytes(),
        [0, 0x12, 0x34, 0x56]
    );
    let arm = record::cq_arm(6, false, 0x0112_3456);
    assert_eq!(arm.to_ne_bytes(), [0x20, 0x12, 0x34, 0x56]);
    assert_eq!(record::cq_arm(1, true, 1).to_ne_bytes(), [0x11, 0, 0, 1]);
    assert_eq!(
        uar::cq_arm(arm, 0x481).to_ne_bytes(),
        [0x20, 0x12, 0x34, 0x56, 0, 0, 4, 0x81]
    );
    assert_eq!(
        uar::eq_consumer(0x1f, 0x0112_3456).to_ne_bytes(),
        [0x1f, 0x12, 0x34, 0x56]
    );
}

#[test]
fn capability_masks_count_from_the_end() {
    // `mlx5_ifc_pcam_regs_5000_to_507f_bits` has ppcnt at bit 0x77 and pplm at bit 0x5c.
    let mut mask = [0; 16];
    mask[0x77 / 8] |= 0x80 >> (0x77 % 8);
    mask[0x5c / 8] |= 0x80 >> (0x5c % 8);
    for register in [RegisterId::PPCNT, RegisterId::PPLM] {
        assert!(mask_names(&mask, register), "{register}");
    }
    for register in [RegisterId::PTYS, RegisterId::PFCC, RegisterId::PCAM] {
        assert!(!mask_names(&mask, register), "{register}");
    }
}

#[test]
fn every_link_mode_has_its_speed() {
    for mode in LinkMode::NAMED {
        assert_ne!(
            LinkMode(u8::try_from(mode.value).unwrap()).mbps(),
            0,
            "{}",
            mode.name
        );
    }
    for mode in ExtLinkMode::NAMED {
        assert_ne!(
            ExtLinkMode(u8::try_from(mode.value).unwrap()).mbps(),
            0,
            "{}",
            mode.name
        );
    }
    assert_eq!(LinkMode::SR_25GBASE.mbps(), 25_000);
    assert_eq!(LinkMode::SR_25GBASE.bit(), 1 << 29);
    assert_eq!(LinkMode(17).mbps(), 0);
}

proptest! {
    #[test]
    fn word_constructors_and_accessors_agree(
        opmod: u8, index: u16, opcode: u8, qpn in 0_u32..1 << 24, ds in 0_u8..64, flags: u8,
        mss: u16, size: u16, start: [u8; 2], len: u32, lkey: u32, addr: u64,
    ) {
        let made = CtrlSeg::words(opmod, index, SendOpcode(opcode), qpn, ds, CtrlFlags(flags));
        let ctrl = CtrlSeg::from_bytes(bytes(made));
        prop_assert_eq!((ctrl.opmod(), ctrl.wqe_index(), ctrl.opcode()), (opmod, index, opcode));
        prop_assert_eq!((ctrl.qpn(), ctrl.ds()), (qpn, ds));
        prop_assert_eq!(ctrl.bytes()[11], flags);
        let eth = EthSeg::from_bytes(bytes(EthSeg::words(ChecksumFlags(flags), mss, size, start)));
        prop_assert_eq!((eth.mss(), eth.inline_hdr_sz()), (mss, size));
        prop_assert_eq!(eth.inline_hdr_start(), start);
        prop_assert_eq!(eth.bytes()[4], flags);
        let data = DataSeg::from_bytes(bytes(DataSeg::words(len, lkey, addr)));
        prop_assert_eq!((data.byte_count(), data.lkey(), data.addr()), (len, lkey, addr));
    }

    #[test]
    fn tail_and_accessors_agree(
        upper: u32, counter: u16, signature: u8, opcode in 0_u8..16, owner: bool,
    ) {
        let tail = Tail::new(upper, counter, signature, CqeOpcode(opcode), owner);
        let mut raw = [0; 64];
        raw[56..].copy_from_slice(&tail.to_memory().to_ne_bytes());
        let cqe = Cqe::from_bytes(raw);
        prop_assert_eq!((cqe.sop_drop_qpn(), cqe.wqe_counter()), (upper, counter));
        prop_assert_eq!((cqe.signature(), cqe.opcode(), cqe.owner()), (signature, opcode, owner));
        prop_assert_eq!(tail.is_owned(owner), opcode != 15);
        prop_assert!(!tail.is_owned(!owner));
    }

    #[test]
    fn signing_is_undone_by_any_single_bit(
        seed in proptest::collection::vec(any::<u8>(), 64), bit in 0_usize..512,
    ) {
        let mut entry = CommandEntry::from_bytes(seed.try_into().unwrap());
        entry.sign();
        prop_assert!(entry.is_signed());
        entry.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!entry.is_signed());
    }
}
