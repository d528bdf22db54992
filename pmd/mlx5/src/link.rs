//! Link state: what the device says of it, kept true across every race.
//!
//! A port-change event is only a hint that something has changed: the state is then asked for.
//! It may arrive before the new state can be read, so an answer that contradicts the newest event
//! is asked for again, for a while. Whoever listens hears each state once. A query that fails
//! makes the state unknown: an old "up" is never kept. Control thread only, but for the values.

use pollux_prm::commands::register::{ExtLinkMode, LinkMode, Ptys};
use std::time::{Duration, Instant};

/// Duplex of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplex {
    /// Not known, or no link.
    #[default]
    Unknown,
    /// Full, as every link of these adapters is.
    Full,
}

/// State of a port's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up; `None` when the device does not say.
    pub up: Option<bool>,
    /// Speed in Mbit/s; 0 when not known.
    pub speed_mbps: u32,
    /// Duplex.
    pub duplex: Duplex,
}

impl Link {
    /// A link without carrier.
    pub const DOWN: Self = Self {
        up: Some(false),
        speed_mbps: 0,
        duplex: Duplex::Unknown,
    };

    /// A link of `speed_mbps` with carrier.
    pub const fn up(speed_mbps: u32) -> Self {
        Self {
            up: Some(true),
            speed_mbps,
            duplex: Duplex::Full,
        }
    }
}

/// Speed that PTYS reports in Mbit/s: the fastest of the modes in use; 0 for none.
pub(crate) fn speed(ptys: &Ptys) -> u32 {
    let bits = |word: u32| (0..32u8).filter(move |bit| word >> bit & 1 != 0);
    let plain = bits(ptys.eth_proto_oper()).map(|bit| LinkMode(bit).mbps());
    let extended = bits(ptys.ext_eth_proto_oper()).map(|bit| ExtLinkMode(bit).mbps());
    plain.chain(extended).max().unwrap_or(0)
}

/// Time between two looks while event and state disagree.
const RETRY: Duration = Duration::from_millis(20);
/// How long they may disagree before the state is believed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two questions while nobody can say how the link is.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Decides when to ask and what to tell.
#[derive(Debug, Default)]
pub(crate) struct LinkWatch {
    told: Link,
    /// A question is due at this time.
    due: Option<Instant>,
    asking: bool,
    /// What the newest event said, and until when an answer may contradict it.
    hint: Option<(bool, Instant)>,
    /// Nobody is left to ask.
    lost: bool,
}

impl LinkWatch {
    /// Something may have changed; `up` is what the event says of it, if anything.
    pub(crate) fn event(&mut self, up: Option<bool>, now: Instant) {
        if let Some(up) = up {
            self.hint = Some((up, now + PATIENCE));
        }
        self.due = Some(now);
    }

    /// When the next question is due, unless one is being asked.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        if self.asking || self.lost {
            None
        } else {
            self.due
        }
    }

    /// The question is being asked now.
    pub(crate) fn asked(&mut self) {
        self.asking = true;
        self.due = None;
    }

    /// The answer; `None` when the question failed. Returns the state if it is to be told.
    pub(crate) fn answer(&mut self, link: Option<Link>, now: Instant) -> Option<Link> {
        self.asking = false;
        let link = link.unwrap_or_default();
        if let Some((up, until)) = self.hint {
            if link.up == Some(up) || now >= until {
                self.hint = None;
            } else if self.due.is_none() {
                self.due = Some(now + RETRY);
            }
        }
        if link.up.is_none() && self.due.is_none() {
            // No event need come any more: the link may be as it was before the question failed.
            self.due = Some(now + UNKNOWN);
        }
        // Another event came while the question was out: its answer decides, and this one may
        // still be told, because it was true once.
        (link != self.told).then(|| {
            self.told = link;
            link
        })
    }

    /// The device has failed.
    pub(crate) fn lost(&mut self) -> Option<Link> {
        self.lost = true;
        self.hint = None;
        self.answer(None, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (LinkWatch, Instant) {
        (LinkWatch::default(), Instant::now())
    }

    #[test]
    fn an_event_before_the_state_is_readable_is_asked_again() {
        let (mut w, t) = watch();
        w.event(None, t);
        w.asked();
        assert_eq!(w.answer(Some(Link::DOWN), t), Some(Link::DOWN));
        w.event(Some(true), t);
        assert_eq!(w.next_question(), Some(t));
        w.asked();
        assert_eq!(w.answer(Some(Link::DOWN), t), None, "still the old state");
        let again = w.next_question().unwrap();
        assert!(again > t && again < t + PATIENCE);
        w.asked();
        assert_eq!(
            w.answer(Some(Link::up(25_000)), again),
            Some(Link::up(25_000))
        );
        assert_eq!(w.next_question(), None);
    }

    #[test]
    fn each_final_state_is_told_once() {
        let (mut w, t) = watch();
        let mut told = Vec::new();
        for (event, state) in [
            (true, Link::up(10_000)),
            (true, Link::up(10_000)),
            (false, Link::DOWN),
        ] {
            w.event(Some(event), t);
            w.asked();
            told.extend(w.answer(Some(state), t));
        }
        assert_eq!(told, [Link::up(10_000), Link::DOWN]);
    }

    #[test]
    fn a_change_during_the_question_is_asked_for() {
        let (mut w, t) = watch();
        w.event(Some(true), t);
        w.asked();
        w.event(Some(false), t);
        assert_eq!(w.next_question(), None, "one question at a time");
        w.answer(Some(Link::up(1)), t);
        assert_eq!(w.next_question(), Some(t));
        w.asked();
        assert_eq!(w.answer(Some(Link::DOWN), t), Some(Link::DOWN));
        assert_eq!(w.next_question(), None);
    }

    #[test]
    fn a_failed_query_is_no_link() {
        let (mut w, t) = watch();
        w.event(Some(true), t);
        w.asked();
        w.answer(Some(Link::up(1)), t);
        w.event(None, t);
        w.asked();
        assert_eq!(w.answer(None, t), Some(Link::default()));
        assert_eq!(w.told.up, None);
        // The event that would tell of its end may have come and gone meanwhile.
        let again = w.next_question().unwrap();
        assert!(again > t);
        w.asked();
        assert_eq!(w.answer(Some(Link::up(1)), again), Some(Link::up(1)));
        assert_eq!(w.next_question(), None);
    }

    #[test]
    fn a_lost_device_is_not_asked() {
        let (mut w, t) = watch();
        w.event(Some(true), t);
        w.asked();
        w.answer(Some(Link::up(1)), t);
        w.event(None, t);
        w.asked();
        assert_eq!(w.lost(), Some(Link::default()));
        assert_eq!(w.answer(None, t), None, "the question that was out");
        assert_eq!(w.next_question(), None);
    }

    #[test]
    fn an_event_that_never_comes_true_ends() {
        let (mut w, t) = watch();
        w.event(Some(true), t);
        w.asked();
        w.answer(Some(Link::DOWN), t);
        w.asked();
        w.answer(Some(Link::DOWN), t + PATIENCE);
        assert_eq!(w.next_question(), None);
        assert_eq!(w.told, Link::DOWN);
    }

    #[test]
    fn the_fastest_mode_counts() {
        let mut ptys = Ptys::zeroed();
        assert_eq!(speed(&ptys), 0);
        ptys.set_eth_proto_oper(LinkMode::CR_25GBASE.bit());
        assert_eq!(speed(&ptys), 25_000);
        ptys.set_ext_eth_proto_oper(ExtLinkMode::GAUI_4_200G.bit());
        assert_eq!(speed(&ptys), 200_000);
    }
}
