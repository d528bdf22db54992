//! When the next frame of a wire with a rate is due.

use pollux_mempool::cycles;

/// How far a wire that was held up may catch up.
const CATCH_UP_MS: u64 = 10;

/// A clock for frames. Without a rate every frame is due.
#[derive(Debug)]
pub(super) struct Pace {
    /// CPU counts between two frames, as a 48.16 fixed-point number; 0 for no rate.
    interval: u64,
    slack: u64,
    /// When the next frame is due, and the fraction of a count.
    due: Option<u64>,
    fraction: u64,
}

impl Pace {
    /// `rate` frames per second.
    pub fn new(rate: Option<u64>) -> Self {
        let hz = cycles::frequency();
        let interval = match rate {
            Some(rate) if rate > 0 => (u128::from(hz) << 16) / u128::from(rate),
            _ => 0,
        };
        Self {
            interval: u64::try_from(interval).unwrap_or(u64::MAX),
            slack: hz / 1000 * CATCH_UP_MS,
            due: None,
            fraction: 0,
        }
    }

    /// Whether a frame is due when the CPU's counter stands at `now`. The first is at once.
    #[inline]
    pub fn is_due(&mut self, now: u64) -> bool {
        if self.interval == 0 {
            return true;
        }
        let due = *self.due.get_or_insert(now);
        if now.saturating_sub(due) > self.slack {
            self.due = Some(now - self.slack);
            return true;
        }
        due <= now
    }

    /// A frame was taken.
    #[inline]
    pub fn advance(&mut self) {
        if let Some(due) = &mut self.due {
            let step = self.interval.saturating_add(self.fraction);
            *due = due.saturating_add(step >> 16);
            self.fraction = step & 0xffff;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_mean_and_forgets_long_gaps() {
        let hz = cycles::frequency();
        let mut pace = Pace::new(Some(3));
        let mut taken = 0;
        // Ten seconds in steps of a millisecond: the rate is exact although it divides nothing.
        for step in 0..10_000u64 {
            let now = 1000 + hz / 1000 * step;
            while pace.is_due(now) {
                pace.advance();
                taken += 1;
            }
        }
        assert_eq!(taken, 30);
        // A gap of an hour is worth no more than the slack.
        let mut fast = Pace::new(Some(1000));
        assert!(fast.is_due(0));
        fast.advance();
        let now = hz * 3600;
        let mut burst = 0;
        while fast.is_due(now) {
            fast.advance();
            burst += 1;
        }
        assert!((10..=11).contains(&burst), "{burst}");
    }
}
