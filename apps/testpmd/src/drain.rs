//! The end of a run over captures: when everything was sent, received and sent on, and
//! what the wires say of it.

use std::time::{Duration, Instant};

use pollux::{DeviceSpec, Setting, WireReport};

use crate::forwarding::Totals;
use crate::report::{Oversize, Wire};
use crate::session::Session;
use crate::settings::BadSetting;

/// Everything came out of the wires, but not all of it reached the cores: packets were
/// lost on the way. After so long without a packet the run ends all the same.
const SILENCE: Duration = Duration::from_millis(500);

/// Wires still have packets, but none has moved for so long: they will not.
const STUCK: Duration = Duration::from_secs(10);

/// Whether a run is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not yet.
    Wait,
    /// It is.
    Done,
    /// It never will be.
    Stuck,
}

/// Watches a run.
#[derive(Debug, Default)]
pub struct Drain {
    last: Option<(Totals, Instant)>,
}

impl Drain {
    /// A run can only drain where a wire has an end.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn possible(session: &Session) -> Result<(), BadSetting> {
        if session.pollux.emulator().is_some() {
            return Ok(());
        }
        Err(BadSetting(
            "--until-drained: only an emulator's captures have an end; give a device like emu:wire0=pcap,in0=FILE, or --duration"
                .into(),
        ))
    }

    /// Looks once.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn look(&mut self, session: &mut Session) -> Result<Verdict, pollux::Error> {
        let Some(running) = &session.forwarding else {
            return Ok(Verdict::Done);
        };
        let (mode, before) = (running.mode, running.totals());
        let (delivered, drained) = delivered(session)?;
        let after = session
            .forwarding
            .as_ref()
            .map(|f| f.totals())
            .unwrap_or_default();
        let handed_on = !mode.sends() || after.tx + after.dropped >= after.rx;
        // What the device gave to receive queues has been received, and what was received
        // was handed to transmit queues before the wires were found drained.
        if drained && before == after && after.rx >= delivered && handed_on {
            return Ok(Verdict::Done);
        }
        let now = Instant::now();
        match self.last {
            Some((seen, since)) if seen == after => {
                let silent = now.duration_since(since);
                if drained && silent > SILENCE {
                    return Ok(Verdict::Done);
                }
                if silent > STUCK {
                    return Ok(Verdict::Stuck);
                }
            }
            _ => self.last = Some((after, now)),
        }
        Ok(Verdict::Wait)
    }
}

/// Reports of all wires with their ports' numbers.
fn wires(session: &Session) -> Vec<(u16, Result<WireReport, pollux::Error>)> {
    let Some(emulator) = session.pollux.emulator() else {
        return Vec::new();
    };
    (0..emulator.functions())
        .map(|f| {
            let port = u16::try_from(emulator.first_port() + f).unwrap_or(u16::MAX);
            (port, emulator.wire(f))
        })
        .collect()
}

/// Frames that wires gave to receive queues, and whether nothing more will come or go.
fn delivered(session: &Session) -> Result<(u64, bool), pollux::Error> {
    let (mut frames, mut drained) = (0, true);
    for (_, wire) in wires(session) {
        let wire = wire?;
        frames += wire.frames_in;
        drained &= wire.drained;
    }
    Ok((frames, drained))
}

/// How many packets are known to come; `None` when some wire does not say.
pub fn expected(session: &Session) -> Option<u64> {
    session.pollux.emulator()?;
    wires(session).into_iter().try_fold(0u64, |sum, (_, wire)| {
        let wire = wire.ok()?;
        Some(sum + wire.waiting + wire.frames_in)
    })
}

/// Fills the report's list of wires.
pub fn record_wires(session: &mut Session) {
    let settings: Vec<Setting> = session
        .device_strings()
        .iter()
        .filter_map(|d| match DeviceSpec::parse(d) {
            Ok(DeviceSpec::Emulated(settings)) => Some(settings),
            _ => None,
        })
        .flatten()
        .collect();
    let first = session.pollux.emulator().map_or(0, |e| e.first_port());
    let file = |kind: &str, port: u16| {
        let key = format!("{kind}{}", usize::from(port) - first);
        settings
            .iter()
            .find(|s| s.key == key || s.key == kind)
            .map(|s| s.value.clone())
    };
    session.report.wires = wires(session)
        .into_iter()
        .filter_map(|(port, wire)| Some((port, wire.ok()?)))
        .map(|(port, w)| Wire {
            port,
            what: w.what,
            input: file("in", port),
            output: file("out", port),
            frames_in: w.frames_in,
            frames_out: w.frames_out,
            dropped: w.dropped,
            drained: w.drained,
            oversize_count: w.oversize,
            oversize_limit: w.oversize_first.iter().map(|o| o.limit).min(),
            oversize: w
                .oversize_first
                .iter()
                .filter(|o| !o.outgoing)
                .map(|o| Oversize {
                    packet: o.index + 1,
                    bytes: o.length,
                })
                .collect(),
            output_error: w.output_error,
        })
        .collect();
}

/// Says how fast the run was, and what wires could not take.
pub fn tell(session: &mut Session) {
    record_wires(session);
    if let Some(run) = &session.report.run {
        let line = format!(
            "{}{}: {} packets received, {} sent in {:.6} s, {:.0} packets per second",
            if session.report.emulated {
                "EMULATED device, "
            } else {
                ""
            },
            session.report.mode,
            run.rx_packets,
            run.tx_packets,
            run.seconds,
            run.packets_per_second
        );
        session.screen.line(line);
    }
    let wires = session.report.wires.clone();
    for w in wires {
        if w.oversize_count > 0 {
            let named: Vec<String> = w
                .oversize
                .iter()
                .map(|o| format!("{} ({} bytes)", o.packet, o.bytes))
                .collect();
            let more = w.oversize_count as usize > named.len();
            session.screen.line(format!(
                "port {}: {} packets of the wire were longer than the {} bytes that port and buffers take, and were skipped: {}{}",
                w.port,
                w.oversize_count,
                w.oversize_limit.unwrap_or_default(),
                named.join(", "),
                if more { ", ..." } else { "" }
            ));
        }
        if let Some(e) = &w.output_error {
            session
                .screen
                .line(format!("port {}: output capture: {e}", w.port));
        }
    }
}

/// 1 when a run that should lose nothing lost something other than what was too large.
pub fn losses(session: &mut Session) -> u8 {
    let (missed, dropped) = session.report.run.as_ref().map_or((0, 0), |r| {
        (
            r.ports.iter().map(|p| p.rx_missed).sum::<u64>(),
            r.ports.iter().map(|p| p.tx_dropped).sum::<u64>(),
        )
    });
    let wires = &session.report.wires;
    let unwritten = wires.iter().any(|w| w.output_error.is_some());
    let lost: u64 = wires
        .iter()
        .map(|w| w.dropped.saturating_sub(w.oversize_count))
        .sum();
    if !wires.iter().all(|w| w.drained) {
        session.screen.line(format!(
            "stuck: wires still have packets, but none moved for {} s; receive queues may wait for buffers: give more with --total-num-mbufs",
            STUCK.as_secs()
        ));
        return 1;
    }
    if missed + dropped + lost == 0 && !unwritten {
        return 0;
    }
    session.screen.line(format!(
        "lost: {lost} packets on the wires, {missed} for want of receive descriptors, {dropped} on sending"
    ));
    1
}
