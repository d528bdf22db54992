//! Thousands of random and mutated message streams at the vfio-user server's door, while a second
//! function in the same process is in use. The fuzz target next door does the same for as long as
//! one likes; this is its short form, the same each time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

#[path = "../fuzz/door/mod.rs"]
mod door;

use door::{Door, Outcome, SEEDS, seed};

/// Streams per test.
const STREAMS: usize = 2000;

/// xorshift64*: any generator would do, as long as it is the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.roll() >> 16) as usize % limit.max(1)
    }

    /// Values at which comparisons go wrong.
    fn value(&mut self) -> u8 {
        const EDGES: [u8; 10] = [0, 1, 2, 3, 7, 0x10, 0x7f, 0x80, 0xfe, 0xff];
        match self.below(2) {
            0 => EDGES[self.below(EDGES.len())],
            _ => self.roll() as u8,
        }
    }

    fn mutate(&mut self, program: &mut Vec<u8>) {
        let (at, len) = (self.below(program.len()), program.len());
        match self.below(6) {
            0 => program.truncate(at),
            1 => program.insert(at, self.value()),
            2 if len > 0 => drop(program.remove(at)),
            3 => {
                // A run of it once more, somewhere.
                let end = at + self.below(60).min(len - at);
                let copy = program[at..end].to_vec();
                let to = self.below(len);
                program.splice(to..to, copy);
            }
            4 if len >= at + 4 => program[at..at + 4].fill(self.value()),
            _ if len > 0 => program[at] = self.value(),
            _ => {}
        }
    }
}

fn add(sum: &mut Outcome, outcome: Outcome, shown_out: &mut usize) {
    sum.done += outcome.done;
    sum.refused += outcome.refused;
    *shown_out += usize::from(outcome.shown_out);
}

#[test]
fn honest_streams_are_served() {
    let door = Door::new();
    for number in 1..SEEDS {
        let outcome = door.feed(&[number as u8]);
        assert!(outcome.done > 0, "seed {number}: {outcome:?}");
        assert_eq!(
            (outcome.refused, outcome.shown_out),
            (0, false),
            "seed {number}"
        );
    }
    assert_eq!(door.feed(&[0]), Outcome::default(), "who says nothing");
    door.witness();
}

#[test]
fn mutated_streams_are_answered_and_disturb_nobody() {
    let (door, mut dice) = (Door::new(), Dice(0x9e37_79b9_7f4a_7c15));
    let (mut sum, mut shown_out) = (Outcome::default(), 0);
    for number in 0..STREAMS {
        let mut program = seed(dice.below(SEEDS)).to_vec();
        for _ in 0..1 + dice.below(8) {
            dice.mutate(&mut program);
        }
        // Behind an honest beginning, or instead of one.
        program.insert(0, dice.below(SEEDS) as u8);
        add(&mut sum, door.feed(&program), &mut shown_out);
        if number % 50 == 0 {
            door.witness();
        }
    }
    // Deep enough to be worth it: much is served, much is refused, and some are shown out.
    let all = (sum.done, sum.refused, shown_out);
    assert!(sum.done > STREAMS && sum.refused > STREAMS / 2, "{all:?}");
    assert!(shown_out > STREAMS / 50, "{all:?}");
    // And the door is as it was.
    let outcome = door.feed(&[5]);
    assert_eq!((outcome.refused, outcome.shown_out), (0, false));
    door.witness();
}

#[test]
fn random_streams_are_answered_and_disturb_nobody() {
    let (door, mut dice) = (Door::new(), Dice(0x0123_4567_89ab_cdef));
    let (mut sum, mut shown_out) = (Outcome::default(), 0);
    for number in 0..STREAMS {
        let len = 1 + dice.below(200);
        let program: Vec<u8> = (0..len).map(|_| dice.value()).collect();
        add(&mut sum, door.feed(&program), &mut shown_out);
        if number % 50 == 0 {
            door.witness();
        }
    }
    let all = (sum.done, sum.refused, shown_out);
    assert!(sum.refused > STREAMS / 5, "{all:?}");
    let outcome = door.feed(&[5]);
    assert_eq!((outcome.refused, outcome.shown_out), (0, false));
    door.witness();
}
