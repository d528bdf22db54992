//! The mailboxes of one direction of one slot: made once, filled for each command.

use crate::dma::{Carver, DmaMemory};
use crate::error::Error;
use pollux_mempool::MemoryError;
use pollux_prm::command_queue::{
    INLINE, MAILBOX_ALIGN, MAILBOX_DATA, Mailbox, block_range, mailboxes,
};

/// Numbers in a mailbox.
const WORDS: usize = MAILBOX_DATA / 8;

/// Mailboxes that lie one after the other, 1 KiB apart.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    memory: DmaMemory,
    boxes: usize,
}

impl Chain {
    /// Mailboxes for messages of up to `bytes`, inline part included.
    pub(crate) fn new(carver: &mut Carver, bytes: usize) -> Result<Self, Error> {
        let boxes = mailboxes(bytes);
        let memory = carver.take(boxes * MAILBOX_ALIGN, MAILBOX_ALIGN)?;
        Ok(Self { memory, boxes })
    }

    /// Longest message in bytes, inline part included.
    pub(crate) fn capacity(&self) -> usize {
        INLINE + self.boxes * MAILBOX_DATA
    }

    fn address(&self, index: usize) -> u64 {
        self.memory.iova().0 + (index * MAILBOX_ALIGN) as u64
    }

    /// Mailboxes there are.
    pub(crate) fn boxes(&self) -> usize {
        self.boxes
    }

    /// Puts `message` behind its inline part into mailboxes; returns the first one's device
    /// address, 0 when none is needed.
    pub(crate) fn fill(&self, message: &[u8], token: u8) -> Result<u64, MemoryError> {
        self.write(message.len(), |block, next| {
            let data = message
                .get(block_range(block, message.len()))
                .unwrap_or(&[]);
            Mailbox::chained(data, next, block as u32, token)
        })
    }

    /// Puts a list of numbers into mailboxes, behind an inline part that is full.
    pub(crate) fn fill_words(&self, words: &[u64], token: u8) -> Result<u64, MemoryError> {
        let mut parts = words.chunks(WORDS);
        self.write(INLINE + 8 * words.len(), |block, next| {
            Mailbox::of_words(parts.next().unwrap_or(&[]), next, block as u32, token)
        })
    }

    /// Prepares empty mailboxes for an answer of `len` bytes.
    pub(crate) fn clear(&self, len: usize, token: u8) -> Result<u64, MemoryError> {
        self.write(len, |block, next| {
            Mailbox::of_words(&[], next, block as u32, token)
        })
    }

    fn write(
        &self,
        len: usize,
        mut mailbox: impl FnMut(usize, u64) -> Mailbox,
    ) -> Result<u64, MemoryError> {
        let count = mailboxes(len);
        for block in 0..count {
            let next = if block + 1 < count {
                self.address(block + 1)
            } else {
                0
            };
            self.memory
                .window()
                .copy_in(block * MAILBOX_ALIGN, mailbox(block, next).bytes())?;
        }
        Ok(if count == 0 { 0 } else { self.address(0) })
    }

    /// Copies an answer out, behind the inline part that `message` begins with. With a token, the
    /// mailboxes' signatures, tokens and numbers are checked; the inner error names what is wrong.
    pub(crate) fn read(
        &self,
        message: &mut [u8],
        token: Option<u8>,
    ) -> Result<Result<(), &'static str>, MemoryError> {
        let len = message.len();
        for block in 0..mailboxes(len) {
            let Some(target) = message.get_mut(block_range(block, len)) else {
                break;
            };
            match self.one(block, token)? {
                Ok(mailbox) => target
                    .iter_mut()
                    .zip(mailbox.bytes())
                    .for_each(|(to, from)| *to = *from),
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
        Ok(Ok(()))
    }

    /// Appends `count` numbers behind a full inline part to `words`; otherwise as
    /// [`read`](Self::read).
    pub(crate) fn read_words(
        &self,
        words: &mut Vec<u64>,
        count: usize,
        token: Option<u8>,
    ) -> Result<Result<(), &'static str>, MemoryError> {
        let mut left = count;
        for block in 0..mailboxes(INLINE + 8 * count) {
            let there: [u64; WORDS] = if token.is_some() {
                match self.one(block, token)? {
                    Ok(mailbox) => {
                        let mut words = mailbox.words();
                        std::array::from_fn(|_| words.next().unwrap_or(0))
                    }
                    Err(wrong) => return Ok(Err(wrong)),
                }
            } else {
                // Nothing but the data is looked at.
                let data = self.memory.window().read_words(block * MAILBOX_ALIGN)?;
                data.map(u64::swap_bytes)
            };
            words.extend_from_slice(there.get(..left.min(WORDS)).unwrap_or(&there));
            left = left.saturating_sub(WORDS);
        }
        Ok(Ok(()))
    }

    /// A copy of one mailbox, so that what is checked is what is used.
    #[inline]
    fn one(
        &self,
        block: usize,
        token: Option<u8>,
    ) -> Result<Result<Mailbox, &'static str>, MemoryError> {
        let mut mailbox = Mailbox::zeroed();
        self.memory
            .window()
            .copy_out(block * MAILBOX_ALIGN, mailbox.bytes_mut())?;
        if let Some(token) = token {
            if !mailbox.is_signed() {
                return Ok(Err("signature of a mailbox"));
            }
            if mailbox.token() != token || mailbox.block_number() as usize != block {
                return Ok(Err("token or number of a mailbox"));
            }
        }
        Ok(Ok(mailbox))
    }
}
