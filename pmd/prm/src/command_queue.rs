//! The command interface: initialization segment, command entries, mailboxes, signatures.
//!
//! A command lives in one 64-byte entry of the command queue. The first 16 bytes of input and
//! output stand in the entry; the rest is spread over mailboxes of 512 data bytes, chained by
//! pointers. Input and output have a chain each. The driver fills the entry with the owner bit
//! set, signs it, and writes the entry's bit to the doorbell; the device writes the output,
//! signs, and clears the owner bit last.
//!
//! Sources: kernel `device.h` and `mlx5_ifc.h` for the layouts; kernel `cmd.c` and rdma-core's
//! `mlx5_vfio.c` for signatures, tokens and chain order.

use crate::command::Opcode;
use crate::layout::layout;
use crate::open_enum::open_enum;

layout! {
    /// The start of the initialization segment, up to the health buffer.
    ///
    /// The device exposes it as 32-bit big-endian registers; [`registers`] has their offsets and
    /// those of the registers further behind.
    pub struct InitSegment = "mlx5_ifc_initial_seg_bits", 576 bytes {
        fw_rev_minor set_fw_rev_minor: u16 @ 0x0 +16;
        fw_rev_major set_fw_rev_major: u16 @ 0x10 +16;
        /// Must be [`CMD_INTERFACE_REV`].
        cmd_interface_rev set_cmd_interface_rev: u16 @ 0x20 +16;
        fw_rev_subminor set_fw_rev_subminor: u16 @ 0x30 +16;
        /// Upper half of the command queue's device address.
        cmdq_phy_addr_63_32 set_cmdq_phy_addr_63_32: u32 @ 0x80 +32;
        /// Bits 31 to 12 of the command queue's device address.
        cmdq_phy_addr_31_12 set_cmdq_phy_addr_31_12: u32 @ 0xa0 +20;
        /// A [`NicInterface`]. Three bits, as the kernel reads them: `mlx5_ifc.h` says two.
        nic_interface set_nic_interface: u8 @ 0xb5 +3 from "mlx5_init_seg.cmdq_addr_l_sz";
        /// Number of entries, as a power of two.
        log_cmdq_size set_log_cmdq_size: u8 @ 0xb8 +4;
        /// Distance of entries in bytes, as a power of two.
        log_cmdq_stride set_log_cmdq_stride: u8 @ 0xbc +4;
        /// One bit for each entry that is to be executed.
        command_doorbell_vector set_command_doorbell_vector: u32 @ 0xc0 +32;
        /// Set while the firmware starts.
        initializing set_initializing: bool @ 0xfe0;
        nic_interface_supported set_nic_interface_supported: u8 @ 0xfe5 +3;
        embedded_cpu set_embedded_cpu: bool @ 0xfe8;
        health_buffer set_health_buffer: HealthBuffer @ 0x1000;
    }

    /// What the firmware says of its health.
    pub struct HealthBuffer = "mlx5_ifc_health_buffer_bits", 64 bytes {
        assert_var set_assert_var: [u32; 6] @ 0x0 from "health_buffer.assert_var";
        assert_existptr set_assert_existptr: u32 @ 0x100 +32;
        assert_callra set_assert_callra: u32 @ 0x120 +32;
        time set_time: u32 @ 0x160 +32;
        /// Firmware version; all ones mean that the device does not answer.
        fw_version set_fw_version: u32 @ 0x180 +32;
        hw_id set_hw_id: u32 @ 0x1a0 +32;
        /// Reset is required.
        rfr set_rfr: bool @ 0x1c0;
        valid set_valid: bool @ 0x1c4;
        severity set_severity: u8 @ 0x1c5 +3;
        irisc_index set_irisc_index: u8 @ 0x1e0 +8;
        /// A [`HealthSyndrome`].
        synd set_synd: u8 @ 0x1e8 +8;
        ext_synd set_ext_synd: u16 @ 0x1f0 +16;
    }

    /// One command of the command queue.
    pub struct CommandEntry = "mlx5_ifc_cmd_queue_entry_bits", 64 bytes {
        /// [`ENTRY_TYPE`]; anything else is refused.
        entry_type set_entry_type: u8 @ 0x0 +8 as "type";
        /// Bytes of input, inline part included.
        input_length set_input_length: u32 @ 0x20 +32;
        /// Device address of the first input mailbox; 512-aligned at least.
        input_mailbox set_input_mailbox: u64 @ 0x40 +64 from "mlx5_cmd_layout.in_ptr";
        input_inline set_input_inline: [u8; 16] @ 0x80 as "command_input_inline_data";
        output_inline set_output_inline: [u8; 16] @ 0x100 as "command_output_inline_data";
        /// Device address of the first output mailbox; 512-aligned at least.
        output_mailbox set_output_mailbox: u64 @ 0x180 +64 from "mlx5_cmd_layout.out_ptr";
        /// Bytes of output, inline part included.
        output_length set_output_length: u32 @ 0x1c0 +32;
        /// Ties the entry to its mailboxes; never 0 where there are any.
        token set_token: u8 @ 0x1e0 +8;
        signature set_signature: u8 @ 0x1e8 +8;
        /// A [`DeliveryStatus`].
        status set_status: u8 @ 0x1f8 +7;
        /// Set while the device owns the entry.
        ownership set_ownership: bool @ 0x1ff;
    }

    /// One mailbox: 512 bytes of data and the link to the next.
    pub struct Mailbox = "mlx5_ifc_cmd_if_box_bits", 576 bytes {
        data set_data: [u8; 512] @ 0x0 as "mailbox_data";
        /// Device address of the next mailbox, 0 in the last; 1 KiB aligned.
        next_pointer set_next_pointer: u64 @ 0x1180 +64 from "mlx5_cmd_prot_block.next";
        /// Position in the chain, from 0.
        block_number set_block_number: u32 @ 0x11c0 +32;
        token set_token: u8 @ 0x11e8 +8;
        ctrl_signature set_ctrl_signature: u8 @ 0x11f0 +8;
        signature set_signature: u8 @ 0x11f8 +8;
    }
}

open_enum! {
    /// Whether the entry reached the firmware, beside the command's own status.
    pub struct DeliveryStatus(u8) = "MLX5_CMD_DELIVERY_STAT_" {
        OK = 0x0 from "kernel cmd.c";
        SIGNATURE_ERROR = 0x1 from "kernel cmd.c";
        TOKEN_ERROR = 0x2 from "kernel cmd.c";
        BAD_BLOCK_NUMBER = 0x3 from "kernel cmd.c";
        OUTPUT_POINTER_ALIGNMENT = 0x4 from "kernel cmd.c";
        INPUT_POINTER_ALIGNMENT = 0x5 from "kernel cmd.c";
        FIRMWARE_ERROR = 0x6 from "kernel cmd.c";
        INPUT_LENGTH_ERROR = 0x7 from "kernel cmd.c";
        OUTPUT_LENGTH_ERROR = 0x8 from "kernel cmd.c";
        RESERVED_NOT_CLEAR = 0x9 from "kernel cmd.c";
        BAD_DESCRIPTOR = 0x10 from "kernel cmd.c";
    }

    /// What the function offers on its registers.
    pub struct NicInterface(u8) = "MLX5_INITIAL_SEG_NIC_INTERFACE_" {
        FULL_DRIVER = 0x0;
        DISABLED = 0x1;
        NO_DRAM_NIC = 0x2;
        SW_RESET = 0x7;
    }

    /// Why the firmware is not well.
    pub struct HealthSyndrome(u8) = "MLX5_INITIAL_SEG_HEALTH_SYNDROME_" {
        FW_INTERNAL_ERR = 0x1;
        DEAD_IRISC = 0x7;
        HW_FATAL_ERR = 0x8;
        FW_CRC_ERR = 0x9;
        ICM_FETCH_PCI_ERR = 0xa;
        ICM_PAGE_ERR = 0xb;
        ASYNCHRONOUS_EQ_BUF_OVERRUN = 0xc;
        EQ_IN_ERR = 0xd;
        EQ_INV = 0xe;
        FFSER_ERR = 0xf;
        HIGH_TEMP_ERR = 0x10;
        ICM_PCI_POISONED_ERR = 0x12;
    }
}

/// Byte offsets of registers in the initialization segment (kernel `device.h`, `mlx5_init_seg`).
///
/// All are 32-bit big-endian words, except the 64-bit ones that their text names.
pub mod registers {
    /// Firmware revision: minor in the upper half, major in the lower.
    pub const FW_REV: usize = 0x0;
    /// Command interface revision in the upper half, firmware sub-minor in the lower.
    pub const CMDIF_REV_FW_SUB: usize = 0x4;
    /// Upper half of the command queue's device address.
    pub const CMDQ_ADDR_H: usize = 0x10;
    /// Lower half of the same, with the interface state and, when read, the queue's size.
    pub const CMDQ_ADDR_L_SZ: usize = 0x14;
    /// Command doorbell: bit `n` starts entry `n`.
    pub const CMD_DBELL: usize = 0x18;
    /// Bit 31 is set while the firmware starts.
    pub const INITIALIZING: usize = 0x1fc;
    /// [`HealthBuffer`](super::HealthBuffer), 64 bytes.
    pub const HEALTH: usize = 0x200;
    /// Command time-out.
    pub const CMD_EXEC_TO: usize = 0x0ff8;
    /// Where not zero, the device answers DTOR.
    pub const CMD_Q_INIT_TO: usize = 0x0ffc;
    /// Free-running 64-bit timer, upper half first.
    pub const INTERNAL_TIMER: usize = 0x1000;
    /// Advances while the firmware lives.
    pub const HEALTH_COUNTER: usize = 0x1010;
    /// Real time, 64 bits, upper half first.
    pub const REAL_TIME: usize = 0x1040;
    /// Writing clears the legacy interrupt.
    pub const CLR_INTX: usize = 0x200c;
    /// End of the segment.
    pub const END: usize = 0x2010;

    /// Offset and C name of each register, for the header check.
    pub const ALL: &[(&str, usize)] = &[
        ("fw_rev", FW_REV),
        ("cmdif_rev_fw_sub", CMDIF_REV_FW_SUB),
        ("cmdq_addr_h", CMDQ_ADDR_H),
        ("cmdq_addr_l_sz", CMDQ_ADDR_L_SZ),
        ("cmd_dbell", CMD_DBELL),
        ("initializing", INITIALIZING),
        ("health", HEALTH),
        ("cmd_exec_to", CMD_EXEC_TO),
        ("cmd_q_init_to", CMD_Q_INIT_TO),
        ("internal_timer_h", INTERNAL_TIMER),
        ("health_counter", HEALTH_COUNTER),
        ("real_time_h", REAL_TIME),
        ("clr_intx", CLR_INTX),
    ];
}

/// Revision of the command interface that this crate describes.
pub const CMD_INTERFACE_REV: u16 = 5;
/// Type of a command entry (PCIe transport).
pub const ENTRY_TYPE: u8 = 7;
/// Bytes of input and of output that stand in the entry itself.
pub const INLINE: usize = 16;
/// Data bytes of one mailbox.
pub const MAILBOX_DATA: usize = 512;
/// Alignment of mailboxes in device memory.
pub const MAILBOX_ALIGN: usize = 1024;
/// Most that `log_cmdq_size + log_cmdq_stride` may be: the queue is one 4 KiB page.
pub const LOG_QUEUE_BYTES: u8 = 12;
/// Most command slots: the doorbell and the completion event have 32 bits.
pub const MAX_SLOTS: usize = 32;

/// Mailboxes that `len` bytes of input or output need.
pub const fn mailboxes(len: usize) -> usize {
    len.saturating_sub(INLINE).div_ceil(MAILBOX_DATA)
}

/// The token after `token`: tokens count from 1 to 255 and skip 0.
pub const fn next_token(token: u8) -> u8 {
    match token.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Exclusive or of all bytes.
pub const fn xor8(bytes: &[u8]) -> u8 {
    let (mut sum, mut i) = (0, 0);
    while i < bytes.len() {
        sum ^= bytes[i];
        i += 1;
    }
    sum
}

/// Where a mailbox's control part starts: what [`Mailbox::ctrl_signature`] covers.
const CTRL: usize = MAILBOX_DATA;
/// 64-bit numbers in a mailbox's data.
const WORDS: usize = MAILBOX_DATA / 8;
const CTRL_SIGNATURE: usize = 574;
const SIGNATURE: usize = 575;

impl CommandEntry {
    /// The opcode in the inline input.
    pub const fn opcode(&self) -> Opcode {
        let b = self.bytes();
        Opcode(u16::from_be_bytes([b[16], b[17]]))
    }

    /// Signs the entry: the exclusive or of all its bytes becomes 0xff. To be called last.
    pub fn sign(&mut self) -> &mut Self {
        self.set_signature(0);
        let signature = !xor8(self.bytes());
        self.set_signature(signature)
    }

    /// Whether the signature is right.
    pub fn is_signed(&self) -> bool {
        xor8(self.bytes()) == 0xff
    }
}

/// Which bytes of a message stand in mailbox `block`, the last one being filled up with zeros.
pub const fn block_range(block: usize, len: usize) -> core::ops::Range<usize> {
    let start = min(INLINE + block * MAILBOX_DATA, len);
    start..min(start + MAILBOX_DATA, len)
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

impl Mailbox {
    /// A signed mailbox: `data` (at most 512 bytes, the rest is dropped), the next one's device
    /// address (0 for the last), its place in the chain, and the entry's token.
    pub fn chained(data: &[u8], next: u64, block: u32, token: u8) -> Self {
        let mut mailbox = Self::zeroed();
        for (to, from) in mailbox
            .bytes_mut()
            .iter_mut()
            .zip(data.iter().take(MAILBOX_DATA))
        {
            *to = *from;
        }
        mailbox
            .set_next_pointer(next)
            .set_block_number(block)
            .set_token(token);
        mailbox.sign();
        mailbox
    }

    /// As [`chained`](Self::chained), with data of 64-bit numbers (at most 64, the rest is
    /// dropped), as page lists have them; the signatures are made by whole words.
    pub fn of_words(words: &[u64], next: u64, block: u32, token: u8) -> Self {
        let mut mailbox = Self::zeroed();
        let mut sum = 0;
        for (to, word) in mailbox
            .bytes_mut()
            .chunks_exact_mut(8)
            .zip(words.iter().take(WORDS))
        {
            to.copy_from_slice(&word.to_be_bytes());
            sum ^= word;
        }
        mailbox
            .set_next_pointer(next)
            .set_block_number(block)
            .set_token(token);
        // All else of the control part is zero. With its signature it sums up to 0xff, so that the
        // whole's signature is the sum of the data.
        let ctrl = xor8(&(next ^ u64::from(block)).to_ne_bytes()) ^ token;
        mailbox.set_ctrl_signature(!ctrl);
        mailbox.set_signature(xor8(&sum.to_ne_bytes()));
        mailbox
    }

    /// The data as 64-bit numbers.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.bytes()[..MAILBOX_DATA]
            .chunks_exact(8)
            .map(|bytes| bytes.first_chunk().map_or(0, |b| u64::from_be_bytes(*b)))
    }

    /// Signs control part and whole; to be called last.
    pub fn sign(&mut self) -> &mut Self {
        self.set_ctrl_signature(0);
        let ctrl = !xor8(&self.bytes()[CTRL..CTRL_SIGNATURE]);
        self.set_ctrl_signature(ctrl);
        let whole = !xor8(&self.bytes()[..SIGNATURE]);
        self.set_signature(whole)
    }

    /// Whether the control part's signature is right. All that a device can check which does not
    /// read the data.
    pub fn is_ctrl_signed(&self) -> bool {
        xor8(&self.bytes()[CTRL..SIGNATURE]) == 0xff
    }

    /// Whether both signatures are right.
    pub fn is_signed(&self) -> bool {
        self.is_ctrl_signed() && xor8(self.bytes()) == 0xff
    }
}
