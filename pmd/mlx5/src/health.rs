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
    /// A command of close was not answered, so that no further one is sent.
    Silent,
}

impl Fault {
    /// What a person can do about it.
    fn remedy(&self) -> &'static str {
        match self {
            Self::NotAnswering => "look at its slot and at dmesg",
            Self::Silent => "it is being reset; if it comes again, a cold boot",
            Self::Firmware { syndrome, .. } if *syndrome == HealthSyndrome::HIGH_TEMP_ERR => {
                "it is too hot: look at its fans and heat sink, let it cool, then a cold boot"
            }
            Self::Firmware { syndrome, .. } if *syndrome == HealthSyndrome::FW_CRC_ERR => {
                "its firmware is damaged: burn it anew (mstflint), then a cold boot"
            }
            _ => {
                "reset it (mlxfwreset -d PCI reset), else a cold boot; if it comes again, ask NVIDIA with this line"
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnswering => f.write_str("registers read as all ones, it is gone")?,
            Self::Disabled => f.write_str("its interface is disabled")?,
            Self::SoftwareReset => f.write_str("it is in software reset")?,
            Self::Firmware { syndrome, extended } => {
                write!(f, "health syndrome {syndrome}, extended {extended:#x}")?;
            }
            Self::CounterStopped { seconds } => {
                write!(f, "health counter unchanged for {seconds} s")?;
            }
            Self::Bus => f.write_str("its registers cannot be read")?,
            Self::Silent => f.write_str("it left a command of close unanswered")?,
        }
        write!(f, "; {}", self.remedy())
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

/// What firmware says of itself before it is asked for anything: why it has stopped, or a syndrome
/// with which it goes on.
pub(crate) fn before_start(
    segment: &InitSegment,
) -> Result<(Option<Fault>, Option<HealthSyndrome>), BusError> {
    let health = segment.health()?;
    let syndrome = HealthSyndrome(health.synd());
    if syndrome.0 == 0 || health.fw_version() == ALL_ONES {
        return Ok((None, None));
    }
    let stopped = health.rfr().then(|| Fault::Firmware {
        syndrome,
        extended: health.ext_synd(),
    });
    Ok((stopped, Some(syndrome)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_bus::{Registers, Trap};
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// Registers by offset; zero where nothing was set.
    #[derive(Default)]
    struct Board(Mutex<BTreeMap<u64, u32>>);

    impl Board {
        fn set(&self, offset: u64, value: u32) {
            self.0.lock().unwrap().insert(offset, value);
        }
    }

    impl Trap for Board {
        fn load(&self, offset: u64, bytes: &mut [u8]) {
            let value = self.0.lock().unwrap().get(&offset).copied().unwrap_or(0);
            bytes.copy_from_slice(&value.to_be_bytes());
        }

        fn store(&self, _: u64, _: &[u8]) {}
    }

    fn board() -> (Arc<Board>, InitSegment) {
        let board = Arc::new(Board::default());
        let registers = Registers::trapped(Arc::clone(&board) as Arc<dyn Trap>, 0, 0x2010);
        (board, InitSegment::over(registers))
    }

    const COUNTER: u64 = 0x1010;
    const INTERFACE: u64 = 0x14;
    const FIRMWARE: u64 = 0x00;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_counter_may_pause_but_not_stop() {
        let (board, segment) = board();
        let start = Instant::now();
        let mut watch = Watch::new(start);
        watch.count(true, start);
        board.set(COUNTER, 1);
        assert_eq!(watch.look(&segment, start), None);
        assert_eq!(watch.look(&segment, start + 6 * SECOND), None, "a pause");
        board.set(COUNTER, 2);
        assert_eq!(watch.look(&segment, start + 7 * SECOND), None);
        assert_eq!(watch.look(&segment, start + 13 * SECOND), None);
        let fault = watch.look(&segment, start + 14 * SECOND);
        assert_eq!(fault, Some(Fault::CounterStopped { seconds: 7 }));
    }

    #[test]
    fn before_the_function_runs_only_silence_is_a_fault() {
        let (board, segment) = board();
        let start = Instant::now();
        let mut watch = Watch::new(start);
        board.set(INTERFACE, 1 << 8);
        assert_eq!(watch.look(&segment, start + 60 * SECOND), None);
        watch.count(true, start);
        assert_eq!(watch.look(&segment, start), Some(Fault::Disabled));
        board.set(INTERFACE, 7 << 8);
        assert_eq!(watch.look(&segment, start), Some(Fault::SoftwareReset));
        watch.count(false, start);
        assert_eq!(watch.look(&segment, start), None);
        board.set(FIRMWARE, u32::MAX);
        assert_eq!(watch.look(&segment, start), Some(Fault::NotAnswering));
    }

    #[test]
    fn firmware_that_asks_for_a_reset_is_heard() {
        let (board, segment) = board();
        let start = Instant::now();
        let mut watch = Watch::new(start);
        watch.count(true, start);
        board.set(0x23c, 0x0008_0042);
        assert_eq!(watch.look(&segment, start), None, "a syndrome without that");
        board.set(0x238, 1 << 31);
        let syndrome = HealthSyndrome::HW_FATAL_ERR;
        let fault = Fault::Firmware {
            syndrome,
            extended: 0x42,
        };
        assert_eq!(watch.look(&segment, start), Some(fault));
    }
}
