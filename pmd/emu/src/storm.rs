//! Page requests that the firmware raises of its own accord, at set times after INIT_HCA.
//!
//! A storm is a list of waves. In a device string: `storm=2000:give:1300000+5000:take:1300000`,
//! each wave being milliseconds, kind (`give`, `take`, `hint`, `release`) and pages, and after a
//! third colon the number of functions that raise it: the function itself and those with the ids
//! behind it. Unlike a fault that a test asks for, a storm comes to any driver, a kernel's too.

use crate::faults::{PageDemand, PageOwner};
use serde::Deserialize;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How a wave is written.
pub const FORM: &str =
    "MS:give|take|hint:PAGES[:FUNCTIONS] or MS:release:0[:FUNCTIONS], joined by +";

/// One wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Wave {
    /// Time after INIT_HCA.
    pub after: Duration,
    /// What is raised.
    pub demand: PageDemand,
    /// By how many functions, from 0 on.
    pub functions: u16,
}

impl FromStr for Wave {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no wave; write {FORM}");
        let mut parts = text.split(':');
        let mut next = || parts.next();
        let (Some(millis), Some(kind), Some(pages)) = (next(), next(), next()) else {
            return Err(wrong());
        };
        let functions = next().map_or(Ok(1), str::parse).map_err(|_| wrong())?;
        let pages: u32 = pages.parse().map_err(|_| wrong())?;
        let demand = match kind {
            "give" => PageDemand::Give(pages),
            "take" => PageDemand::Take(pages),
            "hint" => PageDemand::Hint(pages),
            "release" => PageDemand::ReleaseAll,
            _ => return Err(wrong()),
        };
        let counted = kind == "release" || (1..=i32::MAX as u32).contains(&pages);
        if next().is_some() || functions == 0 || !counted {
            return Err(wrong());
        }
        Ok(Self {
            after: Duration::from_millis(millis.parse().map_err(|_| wrong())?),
            demand,
            functions,
        })
    }
}

impl TryFrom<String> for Wave {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The waves of one function, as time goes by.
#[derive(Debug)]
pub(crate) struct Storm {
    /// The last one comes first.
    waves: Vec<Wave>,
    left: Vec<Wave>,
    began: Option<Instant>,
    /// It does not come again with the next INIT_HCA.
    once: bool,
}

impl Storm {
    pub(crate) fn new(waves: &[Wave]) -> Self {
        let mut waves = waves.to_vec();
        waves.sort_by_key(|wave| std::cmp::Reverse(wave.after));
        Self {
            waves,
            left: Vec::new(),
            began: None,
            once: false,
        }
    }

    /// A storm that comes once, from now on or from INIT_HCA.
    pub(crate) fn once(waves: &[Wave]) -> Self {
        Self {
            once: true,
            ..Self::new(waves)
        }
    }

    /// When the next wave comes.
    pub(crate) fn next(&self) -> Option<Instant> {
        Some(self.began? + self.left.last()?.after)
    }

    /// What is raised now. Time runs while the firmware does.
    pub(crate) fn due(&mut self, running: bool, now: Instant) -> Vec<(PageOwner, PageDemand)> {
        if self.waves.is_empty() && self.left.is_empty() {
            return Vec::new();
        }
        if running != self.began.is_some() {
            self.began = running.then_some(now);
            self.left.clone_from(&self.waves);
            if running && self.once {
                self.waves.clear();
            }
        }
        let mut raised = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some(wave) = self.left.pop() else { break };
            for function in 0..wave.functions {
                let owner = PageOwner {
                    function,
                    embedded: false,
                };
                raised.push((owner, wave.demand));
            }
        }
        raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_are_written_in_one_way() {
        let wave: Wave = "20:take:1300000:3".parse().unwrap();
        assert_eq!(wave.after, Duration::from_millis(20));
        assert_eq!(
            (wave.demand, wave.functions),
            (PageDemand::Take(1_300_000), 3)
        );
        assert_eq!("0:release:0".parse::<Wave>().unwrap().functions, 1);
        for bad in [
            "",
            "1",
            "1:give",
            "x:give:1",
            "1:lend:1",
            "1:give:0",
            "1:give:-1",
            "1:give:3000000000",
            "1:give:1:0",
            "1:give:1:1:1",
        ] {
            let why = bad.parse::<Wave>().unwrap_err();
            assert!(why.contains("MS:give"), "{why}");
        }
    }

    #[test]
    fn a_storm_by_request_does_not_come_again() {
        let waves = ["0:give:7".parse().unwrap(), "30:take:5".parse().unwrap()];
        let mut storm = Storm::once(&waves);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(storm.due(false, at(0)).is_empty());
        assert_eq!(storm.due(true, at(10)).len(), 1);
        // The firmware stops before the second wave, and starts again.
        assert!(storm.due(false, at(20)).is_empty());
        assert!(storm.due(true, at(30)).is_empty());
        assert!(storm.due(true, at(500)).is_empty());
        assert_eq!(storm.next(), None);
    }

    #[test]
    fn waves_come_in_time_and_again_after_a_restart() {
        let waves = ["30:take:5".parse().unwrap(), "10:give:7:2".parse().unwrap()];
        let mut storm = Storm::new(&waves);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(storm.due(false, at(100)).is_empty());
        for begin in [1000, 5000] {
            assert!(storm.due(true, at(begin)).is_empty());
            assert_eq!(storm.next(), Some(at(begin + 10)));
            let first: Vec<_> = storm.due(true, at(begin + 11));
            assert_eq!(first.len(), 2);
            assert_eq!(first[1].0.function, 1);
            assert_eq!(storm.due(true, at(begin + 500)).len(), 1);
            assert_eq!(storm.next(), None);
            assert!(storm.due(false, at(begin + 600)).is_empty());
        }
    }
}
