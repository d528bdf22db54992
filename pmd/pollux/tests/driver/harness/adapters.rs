//! Adapters bound to vfio-pci, played by an emulator somewhere else whose control line is a file.
//!
//! `POLLUX_VFIO` says what there is for a test that asks for these settings:
//! `wire=loop@0@0000:81:00.0;ports=2,wire=pair@1@0000:82:00.0,0000:83:00.0` (settings, the emulator's
//! number of the first function, addresses). One function may stand in it more than once, for all
//! the settings that it has. `POLLUX_VFIO_CONTROL` is the control line, `/dev/ttyS2` say.

use pollux_bus::vfio::{self, Container};
use pollux_bus::{BusError, Function};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::sync::{Arc, Mutex};

/// Counters that go on from test to test; what they were is taken off.
const GOES_ON: [&str; 14] = [
    "commands",
    "refused",
    "undelivered",
    "stray",
    "events",
    "lost",
    "faults",
    "in",
    "out",
    "bytes_in",
    "bytes_out",
    "dropped",
    "oversize",
    "waiting",
];

/// Status of a test that needs settings which no adapter here has.
const NOT_OFFERED: i32 = 77;

struct Line {
    ask: File,
    answers: BufReader<File>,
}

impl Line {
    fn ask(&mut self, words: &str) -> String {
        writeln!(self.ask, "{words}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let answer = answer.trim_end();
        match answer.strip_prefix("ok") {
            Some(said) => said.trim_start().to_owned(),
            None => panic!("{words}: {answer:?}"),
        }
    }
}

/// Functions that were made for one kind of test.
pub struct Adapters {
    first: usize,
    addresses: Vec<String>,
    container: Container,
    line: Mutex<Line>,
    /// Key, value, and the question it is the answer to, when the test began.
    before: Vec<(String, String, u64)>,
}

impl Adapters {
    /// Those with these settings.
    pub fn with(settings: &str) -> Self {
        let all = std::env::var("POLLUX_VFIO").expect("POLLUX_VFIO names adapters");
        let found = all.split(';').find_map(|one| {
            let mut parts = one.splitn(3, '@');
            let is_it = parts.next()? == settings;
            let first = parts.next()?.parse().ok()?;
            let addresses = parts.next()?.split(',').map(str::to_owned).collect();
            is_it.then_some((first, addresses))
        });
        let Some((first, addresses)) = found else {
            eprintln!("no adapter with {settings}");
            std::process::exit(NOT_OFFERED);
        };
        let path = std::env::var("POLLUX_VFIO_CONTROL").expect("POLLUX_VFIO_CONTROL is a file");
        let ask = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let answers = BufReader::new(ask.try_clone().unwrap());
        let mut adapters = Self {
            first,
            addresses,
            container: Container::new().unwrap(),
            line: Mutex::new(Line { ask, answers }),
            before: Vec::new(),
        };
        for function in 0..adapters.addresses.len() {
            // Nothing of a test that failed goes on.
            for verb in ["disarm", "manners", "revive", "go"] {
                adapters.ask(&format!("{verb} {function}"));
            }
            for verb in ["report", "wire"] {
                let question = format!("{verb} {function}");
                let answer = adapters.ask(&question);
                adapters
                    .before
                    .extend(answer.split_whitespace().filter_map(|pair| {
                        let (key, value) = pair.split_once('=')?;
                        let counts = GOES_ON.contains(&key);
                        let value = value.parse().ok().filter(|_| counts)?;
                        Some((question.clone(), key.to_owned(), value))
                    }));
            }
        }
        adapters
    }

    pub fn ask(&self, line: &str) -> String {
        // The second word is a function's number.
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if let Some(number) = words.get_mut(1) {
            let own: usize = number.parse().unwrap();
            *number = (own + self.first).to_string();
        }
        let answer = self.line.lock().unwrap().ask(&words.join(" "));
        let pairs = answer.split(' ').map(|pair| match pair.split_once('=') {
            // The machine that plays the host of these drivers stays connected.
            Some(("connected", _)) => "connected=0".to_owned(),
            Some((key, value)) => {
                let old = self.before.iter().find(|(q, k, _)| q == line && k == key);
                match (old, value.parse::<u64>()) {
                    (Some((.., old)), Ok(new)) => format!("{key}={}", new - old),
                    _ => pair.to_owned(),
                }
            }
            None => pair.to_owned(),
        });
        pairs.collect::<Vec<_>>().join(" ")
    }

    pub fn connect(&self, function: usize) -> Result<Arc<dyn Function>, BusError> {
        vfio::open(&self.container, &self.addresses[function], None)
    }
}
