//! The mailboxes of one direction of one slot: made once, filled for each command.

use crate::dma::{Carver, DmaMemory};
use crate::error::Error;
use pollux_mempool::MemoryError;
use pollux_prm::command_queue::{
    INLINE, MAILBOX_ALIGN, MAILBOX_DATA, Mailbox, block_range, mailboxes,
};

/// Mailboxes that lie one after the other, 1 KiB apart.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    memory: DmaMemory,
    boxes: usize,
}

impl Chain {
    /// Mailboxes for messages of up to `bytes`, inline part included.
    pub(super) fn new(carver: &mut Carver, bytes: usize) -> Result<Self, Error> {
        let boxes = mailboxes(bytes);
        let memory = carver.take(boxes * MAILBOX_ALIGN, MAILBOX_ALIGN)?;
        Ok(Self { memory, boxes })
    }

    /// Longest message in bytes, inline part included.
    pub(super) fn capacity(&self) -> usize {
        INLINE + self.boxes * MAILBOX_DATA
    }

    fn address(&self, index: usize) -> u64 {
        self.memory.iova().0 + (index * MAILBOX_ALIGN) as u64
    }

    /// Puts `message` behind its inline part into mailboxes; returns the first one's device
    /// address, 0 when none is needed.
    pub(super) fn fill(&self, message: &[u8], token: u8) -> Result<u64, MemoryError> {
        self.write(message.len(), token, |block| {
            message
                .get(block_range(block, message.len()))
                .unwrap_or(&[])
        })
    }

    /// Prepares empty mailboxes for an answer of `len` bytes.
    pub(super) fn clear(&self, len: usize, token: u8) -> Result<u64, MemoryError> {
        self.write(len, token, |_| &[])
    }

    fn write<'a>(
        &self,
        len: usize,
        token: u8,
        data: impl Fn(usize) -> &'a [u8],
    ) -> Result<u64, MemoryError> {
        let count = mailboxes(len);
        for block in 0..count {
            let next = if block + 1 < count {
                self.address(block + 1)
            } else {
                0
            };
            let mailbox = Mailbox::chained(data(block), next, block as u32, token);
            self.memory
                .window()
                .write(block * MAILBOX_ALIGN, mailbox.bytes())?;
        }
        Ok(if count == 0 { 0 } else { self.address(0) })
    }

    /// Copies an answer out, behind the inline part that `message` begins with. With a token, the
    /// mailboxes' signatures, tokens and numbers are checked; the inner error names what is wrong.
    pub(super) fn read(
        &self,
        message: &mut [u8],
        token: Option<u8>,
    ) -> Result<Result<(), &'static str>, MemoryError> {
        let len = message.len();
        for block in 0..mailboxes(len) {
            let Some(target) = message.get_mut(block_range(block, len)) else {
                break;
            };
            let at = block * MAILBOX_ALIGN;
            if let Some(token) = token {
                let mailbox: Mailbox = self.memory.window().read(at)?;
                if !mailbox.is_signed() {
                    return Ok(Err("signature of a mailbox"));
                }
                if mailbox.token() != token || mailbox.block_number() as usize != block {
                    return Ok(Err("token or number of a mailbox"));
                }
            }
            self.memory.window().copy_out(at, target)?;
        }
        Ok(Ok(()))
    }
}
