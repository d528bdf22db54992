//! Health of the device: the counter that must advance, the fatal sensors, and registers that
//! read as all ones because nobody answers. Control thread only; a fault is for good.

use crate::init_segment::{ALL_ONES, InitSegment};
use pollux_bus::BusError;
use pollux_prm::command_queue::{HealthSyndrome, NicInterface};
use std::fmt;
use std::time::{Duration, Instant};

/// The counter advances about twice a second; three missed looks two seconds apart are an error
/// for the Linux driver, and so they are here.
const COUNTER_PATIENCE: Duration = Duration::from_secs(6);

/// Why a device is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Registers read as all ones: the function is gone from the bus.
    NotAnswering,
    /// The function's interface is switched off.
    Disabled,
    /// The function is being reset by software.
    SoftwareReset,
    /// Firmware has stopped with this syndrome and asks for a reset.
    Firmware {
        /// What went wrong.
        syndrome: HealthSyndrome,
        /// Firmware's own detail.
        extended: u16,
    },
    /// The health counter stands still.
    CounterStopped {
        /// For how long it did.
        seconds: u64,
    },
    /// The registers could not be read at all.
    Bus,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnswering => f.write_str("registers read as all ones, it is gone"),
            Self::Disabled => f.write_str("its interface is disabled"),
            Self::SoftwareReset => f.write_str("it is in software reset"),
            Self::Firmware { syndrome, extended } => {
                write!(
                    f,
                    "health syndrome {syndrome}, extended {extended:#x}; reset the function"
                )
            }
            Self::CounterStopped { seconds } => {
                write!(
                    f,
                    "health counter unchanged for {seconds} s; reset the function"
                )
            }
            Self::Bus => f.write_str("its registers cannot be read"),
        }
    }
}

/// Watches one device.
#[derive(Debug)]
pub(crate) struct Watch {
    counter: u32,
    changed: Instant,
    count: bool,
}

impl Watch {
    /// Only looks whether the device answers; the rest is watched from [`count`](Self::count) on.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            counter: 0,
            changed: now,
            count: false,
        }
    }

    /// Sensors and counter are watched from now on, or not.
    pub(crate) fn count(&mut self, on: bool, now: Instant) {
        self.count = on;
        self.changed = now;
    }

    /// One look at everything.
    pub(crate) fn look(&mut self, segment: &InitSegment, now: Instant) -> Option<Fault> {
        if !self.count {
            return (!segment.answers()).then_some(Fault::NotAnswering);
        }
        match sensors(segment) {
            Ok(None) => {}
            Ok(fault) => return fault,
            Err(_) => return Some(Fault::Bus),
        }
        let Ok(counter) = segment.health_counter() else {
            return Some(Fault::Bus);
        };
        if counter != self.counter {
            self.counter = counter;
            self.changed = now;
            return None;
        }
        let still = now.saturating_duration_since(self.changed);
        (still > COUNTER_PATIENCE).then_some(Fault::CounterStopped {
            seconds: still.as_secs(),
        })
    }
}

fn sensors(segment: &InitSegment) -> Result<Option<Fault>, BusError> {
    let health = segment.health()?;
    if !segment.answers() || health.fw_version() == ALL_ONES {
        return Ok(Some(Fault::NotAnswering));
    }
    match segment.interface()? {
        NicInterface::DISABLED => return Ok(Some(Fault::Disabled)),
        NicInterface::SW_RESET => return Ok(Some(Fault::SoftwareReset)),
        _ => {}
    }
    let syndrome = HealthSyndrome(health.synd());
    let stopped = health.rfr() && syndrome.0 != 0;
    Ok(stopped.then(|| Fault::Firmware {
        syndrome,
        extended: health.ext_synd(),
    }))
}
