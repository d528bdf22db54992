//! Register windows and the doorbell: the only ways a driver stores into a device.
//!
//! All values are big-endian registers, as mlx5 has them; the accessors take and give native
//! integers. A window is wholly mapped or wholly trapped.

use crate::BusError;
use pollux_mempool::{Window, Word64};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a trapped window passes a load or store on. Bytes are in memory order.
pub trait Trap: Send + Sync {
    /// Loads `bytes.len()` bytes from the region's `offset`.
    fn load(&self, offset: u64, bytes: &mut [u8]);
    /// Stores `bytes` at the region's `offset`.
    fn store(&self, offset: u64, bytes: &[u8]);
}

#[derive(Clone)]
enum Access {
    Mapped(Window),
    Trapped { trap: Arc<dyn Trap>, base: u64 },
}

/// A window on a function's registers. Cheap to clone; keeps the mapping alive.
#[derive(Clone)]
pub struct Registers {
    access: Access,
    len: u64,
}

impl Registers {
    /// A window over mapped memory.
    pub fn mapped(window: Window) -> Self {
        let len = window.len() as u64;
        Self {
            access: Access::Mapped(window),
            len,
        }
    }

    /// A window whose every access goes through `trap`, `base` bytes into the region.
    pub fn trapped(trap: Arc<dyn Trap>, base: u64, len: u64) -> Self {
        Self {
            access: Access::Trapped { trap, base },
            len,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether accesses are plain loads and stores.
    pub fn is_mapped(&self) -> bool {
        matches!(self.access, Access::Mapped(_))
    }

    fn check(&self, offset: u64, width: usize) -> Result<usize, BusError> {
        let fits = offset
            .checked_add(width as u64)
            .is_some_and(|end| end <= self.len);
        if fits && offset % width as u64 == 0 {
            Ok(offset as usize)
        } else {
            Err(BusError::Access {
                offset,
                width,
                len: self.len,
            })
        }
    }

    /// Loads a 32-bit register.
    ///
    /// # Errors
    /// [`BusError::Access`] outside the window or misaligned.
    pub fn load_u32(&self, offset: u64) -> Result<u32, BusError> {
        let at = self.check(offset, 4)?;
        match &self.access {
            Access::Mapped(window) => Ok(u32::from_be(window.word32(at)?.load(Ordering::Acquire))),
            Access::Trapped { trap, base } => {
                let mut bytes = [0; 4];
                trap.load(base + offset, &mut bytes);
                Ok(u32::from_be_bytes(bytes))
            }
        }
    }

    /// Stores a 32-bit register, after everything the caller wrote to memory before.
    ///
    /// # Errors
    /// [`BusError::Access`] outside the window or misaligned.
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), BusError> {
        let at = self.check(offset, 4)?;
        pollux_mempool::barrier::before_doorbell();
        match &self.access {
            Access::Mapped(window) => window.word32(at)?.store(value.to_be(), Ordering::Release),
            Access::Trapped { trap, base } => trap.store(base + offset, &value.to_be_bytes()),
        }
        Ok(())
    }

    /// Copies registers out byte by byte in memory order, in 32-bit loads.
    ///
    /// # Errors
    /// [`BusError::Access`] outside the window, or not whole 32-bit words.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let misfit = BusError::Access {
            offset,
            width: bytes.len(),
            len: self.len,
        };
        if bytes.len() % 4 != 0 {
            return Err(misfit);
        }
        let mut at = offset;
        for word in bytes.chunks_exact_mut(4) {
            word.copy_from_slice(&self.load_u32(at)?.to_be_bytes());
            at += 4;
        }
        Ok(())
    }

    /// The 64-bit doorbell register at `offset`, resolved once, rung from the data path.
    ///
    /// # Errors
    /// [`BusError::Access`] outside the window or misaligned.
    pub fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
        let at = self.check(offset, 8)?;
        Ok(Doorbell {
            target: match &self.access {
                Access::Mapped(window) => Target::Mapped(window.word64(at)?),
                Access::Trapped { trap, base } => Target::Trapped {
                    trap: Arc::clone(trap),
                    at: base + offset,
                },
            },
        })
    }
}

#[derive(Clone)]
enum Target {
    Mapped(Word64),
    Trapped { trap: Arc<dyn Trap>, at: u64 },
}

/// One 64-bit doorbell register.
#[derive(Clone)]
pub struct Doorbell {
    target: Target,
}

impl Doorbell {
    /// Whether ringing is one plain store. A trapped doorbell calls the device or the kernel; a
    /// driver warns when a data queue gets one.
    pub fn is_mapped(&self) -> bool {
        matches!(self.target, Target::Mapped(_))
    }

    /// Stores `value` (native; memory gets it big-endian), after all stores to memory before it.
    #[inline]
    pub fn ring(&self, value: u64) {
        pollux_mempool::barrier::before_doorbell();
        match &self.target {
            Target::Mapped(word) => word.store(value.to_be(), Ordering::Release),
            Target::Trapped { trap, at } => trap.store(*at, &value.to_be_bytes()),
        }
    }
}
