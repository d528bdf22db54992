//! An emulator's own view, and its faults, as lines of text: one line asks, one line answers.
//!
//! For scripts and tests that stand beside a driver under test: what the device saw (reports), and
//! what it shall do wrong (faults). A line is a verb, the number of a function, and arguments;
//! [`HELP`] lists them. Numbers are decimal, or hexadecimal with `0x`.

use crate::Emulator;
use crate::faults::{
    CommandFault, FaultInjector, PageDemand, PageLie, PageManners, PageOwner, Trigger,
};
use crate::objects::Kind;
use crate::storm::Wave;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Verbs and their arguments, one a line.
pub const HELP: &[&str] = &[
    "functions                             how many functions there are",
    "report N                              pages, objects and commands of function N",
    "wire N                                frames and bytes of its wire",
    "mac N                                 its MAC address",
    "cqs N | sqs N                         numbers of its completion and send queues",
    "arm N TRIGGER FAULT                   a command fault: TRIGGER nth:COUNT, opcode:OPCODE:COUNT, each:OPCODE or all; FAULT fail:STATUS:SYNDROME, undelivered:STATUS, wait:MS, delay:MS, drop-answer, drop-event or die",
    "armed N | disarm N                    faults not met yet: how many, forget them",
    "demand N give COUNT|take COUNT|hint COUNT|release [FUNCTION [ec]]   a request for pages, for N itself or another function id",
    "storm N WAVES                         page requests at times from now, as in a device string: MS:give|take|hint:PAGES[:FUNCTIONS] or MS:release:0[:FUNCTIONS], joined by +",
    "manners N [partial:COUNT] [refuse-above:COUNT] [repeats] [holds]    how the firmware deals with pages",
    "lie N twice|misaligned|unknown|others|too-many      the next answer to a TAKE is wrong",
    "kill N | revive N                     registers read all ones and nothing is answered, or no longer",
    "hold N | go N                         what the wire brings waits, or comes",
    "link N up|down                        the wire is mended or cut",
    "module N present|absent|unsupported|hot|dark       what is in the port's cage; the link goes with it",
    "starting N MS|never                   the firmware starts anew, and needs so long, now and after each reset",
    "syndrome N CODE                       the firmware has stopped with this health syndrome; 0 makes it well",
    "doorbells N SQN COUNT                 so many doorbells of a send queue are lost",
    "corrupt N CQN SKIP BYTE MASK          the completion after SKIP others has a byte xored",
];

/// Does one line.
///
/// # Errors
/// What is wrong with the line, or why it could not be done; one line.
pub fn run(emulator: &Emulator, line: &str) -> Result<String, String> {
    let mut words = Words(line.split_whitespace());
    let verb = words.next("a verb")?;
    if verb == "functions" {
        words.end()?;
        return Ok(emulator.len().to_string());
    }
    if !HELP
        .iter()
        .any(|help| verbs(help).any(|known| known == verb))
    {
        let known: Vec<&str> = HELP.iter().flat_map(|help| verbs(help)).collect();
        return Err(format!("{verb:?} is no verb; known: {}", known.join(", ")));
    }
    let function: usize = words.number("the number of a function")?;
    let faults = emulator.faults(function).map_err(said)?;
    let answer = match verb {
        "report" => report(emulator, function)?,
        "wire" => wire(emulator, function)?,
        "mac" => {
            let mac = emulator.mac(function).map_err(said)?;
            mac.map(|byte| format!("{byte:02x}")).join(":")
        }
        "cqs" => numbers(emulator, function, Kind::Cq)?,
        "sqs" => numbers(emulator, function, Kind::Sq)?,
        "armed" => faults.armed().to_string(),
        _ => {
            act(verb, &mut words, &faults)?;
            "ok".to_owned()
        }
    };
    words.end()?;
    Ok(answer)
}

/// The verbs of a line of help.
fn verbs(help: &str) -> impl Iterator<Item = &str> {
    help.split(" | ").filter_map(|part| part.split(' ').next())
}

fn said(error: impl Display) -> String {
    error.to_string()
}

struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, String> {
        let word = self.next(what)?;
        number(word).map_err(|why| format!("{what}: {why}"))
    }

    fn end(&mut self) -> Result<(), String> {
        match self.0.next() {
            None => Ok(()),
            Some(more) => Err(format!("{more:?} is too much")),
        }
    }
}

fn number<T: TryFrom<u64>>(word: &str) -> Result<T, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => u64::from_str(word).ok(),
    };
    parsed
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{word:?} is no number that fits"))
}

fn report(emulator: &Emulator, function: usize) -> Result<String, String> {
    let report = emulator.report(function).map_err(said)?;
    let kinds: Vec<String> = report
        .objects
        .iter()
        .filter(|(_, numbers)| !numbers.is_empty())
        .map(|(kind, numbers)| format!("{kind:?}:{}", numbers.len()))
        .collect();
    Ok(format!(
        "connected={} pages={} objects={} commands={} refused={} undelivered={} stray={} events={} lost={} faults={} dma_faults={} dma_fault={} holding={} kinds={}",
        u8::from(report.connected),
        report.firmware_pages,
        report.live_objects(),
        report.commands,
        report.refused,
        report.undelivered,
        report.stray_doorbells,
        report.events,
        report.events_lost,
        report.faults,
        report.dma_faults,
        report
            .last_dma_fault
            .map_or_else(|| "none".into(), |iova| iova.to_string()),
        u8::from(report.holding),
        kinds.join(",")
    ))
}

fn wire(emulator: &Emulator, function: usize) -> Result<String, String> {
    let wire = emulator.wire(function).map_err(said)?;
    Ok(format!(
        "in={} out={} bytes_in={} bytes_out={} waiting={} dropped={} oversize={} drained={} up={}",
        wire.frames_in,
        wire.frames_out,
        wire.bytes_in,
        wire.bytes_out,
        wire.waiting,
        wire.dropped,
        wire.oversize,
        u8::from(wire.drained),
        u8::from(wire.up)
    ))
}

fn numbers(emulator: &Emulator, function: usize, kind: Kind) -> Result<String, String> {
    let report = emulator.report(function).map_err(said)?;
    let numbers: Vec<String> = report.numbers(kind).iter().map(u64::to_string).collect();
    Ok(numbers.join(","))
}

fn act(verb: &str, words: &mut Words<'_>, faults: &FaultInjector) -> Result<(), String> {
    match verb {
        "arm" => {
            let trigger = trigger(words.next("a trigger")?)?;
            let fault = fault(words.next("a fault")?)?;
            faults.command(trigger, fault);
        }
        "disarm" => faults.disarm(),
        "demand" => {
            let kind = words.next("give, take, hint or release")?;
            let mut count = || words.number("a number of pages");
            let demand = match kind {
                "give" => PageDemand::Give(count()?),
                "take" => PageDemand::Take(count()?),
                "hint" => PageDemand::Hint(count()?),
                "release" => PageDemand::ReleaseAll,
                other => return Err(format!("{other:?} is not give, take, hint or release")),
            };
            let mut owner = PageOwner::OWN;
            if let Some(word) = words.0.next() {
                owner.function = number(word)?;
                owner.embedded = match words.0.next() {
                    None => false,
                    Some("ec") => true,
                    Some(other) => return Err(format!("{other:?} is not ec")),
                };
            }
            faults.page_requests([(owner, demand)]);
        }
        "storm" => {
            let waves = words.next("waves")?;
            let waves: Result<Vec<Wave>, String> = waves.split('+').map(str::parse).collect();
            faults.storm(waves?);
        }
        "manners" => {
            let mut manners = PageManners::default();
            for word in words.0.by_ref() {
                match word.split_once(':') {
                    Some(("partial", count)) => manners.partial = Some(number(count)?),
                    Some(("refuse-above", count)) => manners.refuse_above = Some(number(count)?),
                    None if word == "repeats" => manners.repeats = true,
                    None if word == "holds" => manners.holds = true,
                    _ => {
                        return Err(format!(
                            "{word:?} is no manner: partial:COUNT, refuse-above:COUNT, repeats or holds"
                        ));
                    }
                }
            }
            faults.page_manners(manners);
        }
        "lie" => faults.lie_about_pages(match words.next("a lie")? {
            "twice" => PageLie::Twice,
            "misaligned" => PageLie::Misaligned,
            "unknown" => PageLie::Unknown,
            "others" => PageLie::Others,
            "too-many" => PageLie::TooMany,
            other => {
                return Err(format!(
                    "{other:?} is no lie: twice, misaligned, unknown, others or too-many"
                ));
            }
        }),
        "kill" => faults.kill().map_err(said)?,
        "revive" => faults.revive().map_err(said)?,
        "hold" => faults.hold(true).map_err(said)?,
        "go" => faults.hold(false).map_err(said)?,
        "link" => match words.next("up or down")? {
            "up" => faults.link(true).map_err(said)?,
            "down" => faults.link(false).map_err(said)?,
            other => return Err(format!("{other:?} is not up or down")),
        },
        "module" => {
            let module = words.next("a module")?.parse().map_err(said)?;
            faults.module(module).map_err(said)?;
        }
        "starting" => {
            let needs = words.next("milliseconds, or never")?;
            faults.starting(needs.parse().map_err(said)?);
        }
        "syndrome" => faults.syndrome(words.number("a health syndrome of 8 bits")?),
        "doorbells" => {
            let sqn = words.number("the number of a send queue")?;
            let count = words.number("a number of doorbells")?;
            faults.ignore_doorbells(sqn, count).map_err(said)?;
        }
        "corrupt" => {
            let cqn = words.number("the number of a completion queue")?;
            let skip = words.number("a number of completions")?;
            let at: usize = words.number("a byte's place, 0 to 63")?;
            let mut mask = [0; 64];
            let byte = mask
                .get_mut(at)
                .ok_or_else(|| format!("a completion has 64 bytes, not {at}"))?;
            *byte = words.number("a mask of 8 bits")?;
            faults.corrupt_cqe(cqn, skip, mask).map_err(said)?;
        }
        // All other verbs were answered before.
        other => return Err(format!("{other:?} is no verb")),
    }
    Ok(())
}

fn trigger(word: &str) -> Result<Trigger, String> {
    let parts: Vec<&str> = word.split(':').collect();
    match parts.as_slice() {
        ["nth", count] => Ok(Trigger::Command(number(count)?)),
        ["opcode", opcode, count] => Ok(Trigger::Opcode(number(opcode)?, number(count)?)),
        ["each", opcode] => Ok(Trigger::EveryOpcode(number(opcode)?)),
        ["all"] => Ok(Trigger::Every),
        _ => Err(format!(
            "{word:?} is no trigger: nth:COUNT, opcode:OPCODE:COUNT, each:OPCODE or all"
        )),
    }
}

fn fault(word: &str) -> Result<CommandFault, String> {
    let parts: Vec<&str> = word.split(':').collect();
    match parts.as_slice() {
        ["fail", status, syndrome] => Ok(CommandFault::Fail {
            status: number(status)?,
            syndrome: number(syndrome)?,
        }),
        ["undelivered", status] => Ok(CommandFault::Undelivered {
            status: number(status)?,
        }),
        ["wait", millis] => Ok(CommandFault::Wait(Duration::from_millis(number(millis)?))),
        ["delay", millis] => Ok(CommandFault::Delay(Duration::from_millis(number(millis)?))),
        ["drop-answer"] => Ok(CommandFault::DropAnswer),
        ["drop-event"] => Ok(CommandFault::DropEvent),
        ["die"] => Ok(CommandFault::Die),
        _ => Err(format!(
            "{word:?} is no fault: fail:STATUS:SYNDROME, undelivered:STATUS, wait:MS, delay:MS, drop-answer, drop-event or die"
        )),
    }
}
