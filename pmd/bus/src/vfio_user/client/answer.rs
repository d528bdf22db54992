//! What came behind the header of an answer.

use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The bytes, and the descriptors that came with them.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Answer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes from `at` on; none behind the end.
    pub fn tail(&self, at: usize) -> &[u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    /// The structure at `at`, or `None` when the answer ends before it does.
    pub fn read<T: FromBytes + KnownLayout + Immutable>(&self, at: usize) -> Option<T> {
        T::read_from_prefix(self.tail(at))
            .map(|(body, _)| body)
            .ok()
    }
}
