//! How firmware's pages are served. Plain values.

use super::MAX_PAGES_PER_STEP;
use crate::error::Error;
use std::time::Duration;

/// What stands behind a page that firmware is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageBacking {
    /// Memory, all of it there before firmware hears of it.
    #[default]
    Populated,
    /// Address space that becomes memory when it is touched. Only for an emulated function, which
    /// never touches firmware's pages: millions of them then need none of the host's memory.
    Untouched,
}

/// How firmware's pages are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Most pages of one GIVE, for firmware that takes fewer than [`MAX_PAGES_PER_STEP`].
    pub give_limit: u32,
    /// Most pages that one TAKE asks for, for firmware that returns fewer at once.
    pub take_limit: u32,
    /// Time between two blocks of idle page memory that are unmapped; `None` keeps them all.
    /// Unmapping interrupts every CPU that runs a thread of the process.
    pub release_interval: Option<Duration>,
    /// Pages that stay mapped for the next demand, whatever is idle.
    pub pooled: usize,
    /// What stands behind the pages.
    pub backing: PageBacking,
    /// Lifts the bound of both limits. For measurements of what the bound is worth.
    #[cfg(feature = "bench")]
    pub unbounded: bool,
}

impl Default for PageOptions {
    fn default() -> Self {
        Self {
            give_limit: MAX_PAGES_PER_STEP,
            take_limit: MAX_PAGES_PER_STEP,
            release_interval: Some(Duration::from_secs(1)),
            pooled: 65_536,
            backing: PageBacking::Populated,
            #[cfg(feature = "bench")]
            unbounded: false,
        }
    }
}

impl PageOptions {
    /// Pages of the largest step in either direction.
    pub(crate) fn largest(&self) -> u32 {
        self.give_limit.max(self.take_limit)
    }

    fn bound(&self) -> u32 {
        #[cfg(feature = "bench")]
        if self.unbounded {
            return 1 << 22;
        }
        MAX_PAGES_PER_STEP
    }

    /// Checks the limits, and that no real device is promised memory which is not there.
    pub(crate) fn check(&self, emulated: bool) -> Result<(), Error> {
        let bound = self.bound();
        for (what, given) in [
            ("pages of a GIVE", self.give_limit),
            ("pages of a TAKE", self.take_limit),
        ] {
            if !(1..=bound).contains(&given) {
                return Err(Error::Setting {
                    what,
                    given: given.into(),
                    allowed: format!("1 to {bound}"),
                    remedy: "leave it out unless firmware refuses that many at once".into(),
                });
            }
        }
        if self.backing == PageBacking::Untouched && !emulated {
            return Err(Error::Setting {
                what: "untouched page memory",
                given: 1,
                allowed: "0 on an adapter".into(),
                remedy: "a device writes its pages; give it populated ones".into(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked() {
        let plain = PageOptions::default();
        plain.check(false).unwrap();
        for (give_limit, take_limit) in [(0, 1), (1, 0), (50_001, 1), (1, u32::MAX)] {
            let odd = PageOptions {
                give_limit,
                take_limit,
                ..plain
            };
            let error = odd.check(true).unwrap_err().to_string();
            assert!(error.contains("1 to 50000"), "{error}");
        }
        let small = PageOptions {
            give_limit: 1,
            take_limit: 768,
            ..plain
        };
        small.check(false).unwrap();
        assert_eq!(small.largest(), 768);
    }

    #[test]
    fn an_adapter_gets_real_memory() {
        let untouched = PageOptions {
            backing: PageBacking::Untouched,
            ..PageOptions::default()
        };
        untouched.check(true).unwrap();
        assert!(untouched.check(false).is_err());
    }
}
