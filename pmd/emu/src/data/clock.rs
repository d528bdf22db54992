//! The device's free-running clock: the internal timer of the initialization segment and the time
//! stamps in completions are the same clock.

use pollux_mempool::cycles;

/// A clock of a given frequency, counting since the CPU's counter was zero. Two of the same
/// frequency agree.
#[derive(Clone, Copy, Debug)]
pub struct DeviceClock {
    /// Ticks per CPU count, as a 32.32 fixed-point number.
    ratio: u64,
}

impl DeviceClock {
    /// A clock of `khz`.
    pub fn new(khz: u32) -> Self {
        let counts = u128::from(cycles::frequency().max(1));
        let ratio = ((u128::from(khz) * 1000) << 32) / counts;
        Self {
            ratio: u64::try_from(ratio).unwrap_or(u64::MAX),
        }
    }

    /// Ticks now.
    #[inline]
    pub fn now(&self) -> u64 {
        self.at(cycles::now())
    }

    /// Ticks at a value of the CPU's counter.
    #[inline]
    pub fn at(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.ratio)) >> 32) as u64
    }
}
