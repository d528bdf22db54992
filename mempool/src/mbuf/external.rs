//! Memory that is not a pool's, shown by packet buffers.

use std::fmt;

use crate::error::MemoryError;
use crate::foreign::Window;

/// A window of some segment that packet buffers can show instead of their own room.
///
/// Shared by `Arc`: each buffer that shows a part of it holds one count, and the free
/// callback runs when the last one is gone (on the thread that drops it).
pub struct ExternalBuffer {
    pub(crate) window: Window,
    pub(crate) iova: u64,
    pub(crate) lkey: u32,
    pub(crate) region: u16,
    on_free: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl ExternalBuffer {
    /// Wraps a window; `on_free` runs once, when nobody shows it any more.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] for an empty window.
    pub fn new(
        window: Window,
        on_free: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, MemoryError> {
        if window.is_empty() {
            return Err(MemoryError::OutOfRange {
                what: "bytes of an external buffer",
                given: 0,
                min: 1,
                max: isize::MAX as u64,
                remedy: String::new(),
            });
        }
        Ok(Self {
            window,
            iova: 0,
            lkey: 0,
            region: super::NO_REGION,
            on_free: Some(Box::new(on_free)),
        })
    }

    /// With the device's address of the window's first byte, and the key for it.
    #[must_use]
    pub fn device_address(mut self, iova: u64, lkey: u32) -> Self {
        self.iova = iova;
        self.lkey = lkey;
        self
    }

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }
}

impl fmt::Debug for ExternalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalBuffer")
            .field("window", &self.window)
            .field("iova", &self.iova)
            .finish_non_exhaustive()
    }
}

impl Drop for ExternalBuffer {
    fn drop(&mut self) {
        if let Some(on_free) = self.on_free.take() {
            on_free();
        }
    }
}
