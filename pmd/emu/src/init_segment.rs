//! The initialization segment: the registers by which a driver finds and starts the function.
//!
//! Reads are computed from the clock and a few words of state; any thread may read or write.

use crate::card::Starting;
use crate::profile::FirmwareVersion;
use pollux_prm::command_queue::{HealthBuffer, NicInterface, registers};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command_queue::{LOG_SLOTS, LOG_STRIDE};

/// How long the firmware takes to start after a reset.
const START_TIME: Duration = Duration::from_millis(5);
/// The health counter advances this often.
const HEARTBEAT: Duration = Duration::from_millis(10);
const HEALTH: Range<usize> = registers::HEALTH..registers::HEALTH + HealthBuffer::LEN;
const INITIALIZING: u32 = 1 << 31;
const ADDRESS_LOW: u32 = 0xffff_f000;

/// What a store to the segment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Nothing.
    Nothing,
    /// A command queue at this address.
    Queue(u64),
    /// No command queue: the interface is closed.
    Close,
    /// Slots to be started.
    Doorbell(u32),
    /// A reset.
    Reset,
}

/// When the firmware is there.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// What it needs after a reset.
    needs: Starting,
    /// `None`: never.
    ready_at: Option<Instant>,
}

impl Start {
    fn again(&mut self) {
        self.ready_at = match self.needs {
            Starting::After(time) => Some(Instant::now() + time),
            Starting::Never => None,
        };
    }
}

/// What tells one function's segment from another's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPlan {
    pub version: FirmwareVersion,
    /// Hardware id in the health buffer.
    pub hardware: u32,
    pub timer_khz: u32,
    /// Revision of the command interface.
    pub interface_revision: u16,
    /// What firmware needs to start; nothing at power-on and a moment after a reset by default.
    pub starting: Option<Starting>,
    pub syndrome: u8,
}

/// State of the segment.
pub(crate) struct InitSegment {
    version: FirmwareVersion,
    hardware: u32,
    timer_khz: u32,
    interface_revision: u16,
    power_on: Instant,
    start: Mutex<Start>,
    /// Health syndrome; with one, the firmware asks for a reset.
    syndrome: AtomicU8,
    address_high: AtomicU32,
    address_low: AtomicU32,
    interface: AtomicU8,
}

impl InitSegment {
    pub(crate) fn new(plan: SegmentPlan) -> Self {
        let now = Instant::now();
        let mut start = Start {
            needs: plan.starting.unwrap_or(Starting::After(START_TIME)),
            ready_at: Some(now),
        };
        if plan.starting.is_some() {
            start.again();
        }
        Self {
            version: plan.version,
            hardware: plan.hardware,
            timer_khz: plan.timer_khz,
            interface_revision: plan.interface_revision,
            power_on: now,
            start: Mutex::new(start),
            syndrome: AtomicU8::new(plan.syndrome),
            address_high: AtomicU32::new(0),
            address_low: AtomicU32::new(0),
            interface: AtomicU8::new(NicInterface::FULL_DRIVER.0),
        }
    }

    /// Back to the state after a reset: starting, interface closed.
    pub(crate) fn reset(&self) {
        self.start().again();
        self.address_high.store(0, Ordering::Release);
        self.address_low.store(0, Ordering::Release);
        self.interface
            .store(NicInterface::DISABLED.0, Ordering::Release);
    }

    /// A driver left: as after power-on.
    pub(crate) fn forget(&self) {
        self.address_high.store(0, Ordering::Release);
        self.address_low.store(0, Ordering::Release);
        self.interface
            .store(NicInterface::FULL_DRIVER.0, Ordering::Release);
    }

    fn start(&self) -> MutexGuard<'_, Start> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn starting(&self) -> bool {
        let ready_at = self.start().ready_at;
        ready_at.is_none_or(|ready| Instant::now() < ready)
    }

    /// A fault: the firmware starts anew now, and needs so long, now and after each reset.
    pub(crate) fn start_anew(&self, needs: Starting) {
        let mut start = self.start();
        start.needs = needs;
        start.again();
    }

    /// A fault: the firmware stops with this syndrome; 0 makes it well.
    pub(crate) fn fall_ill(&self, syndrome: u8) {
        self.syndrome.store(syndrome, Ordering::Release);
    }

    /// Value of the 32-bit register at `offset`.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        let version = self.version;
        match offset {
            registers::FW_REV => u32::from(version.minor) << 16 | u32::from(version.major),
            registers::CMDIF_REV_FW_SUB => {
                u32::from(self.interface_revision) << 16 | u32::from(version.subminor)
            }
            registers::CMDQ_ADDR_H => self.address_high.load(Ordering::Acquire),
            registers::CMDQ_ADDR_L_SZ => {
                self.address_low.load(Ordering::Acquire)
                    | u32::from(self.interface.load(Ordering::Acquire)) << 8
                    | u32::from(LOG_SLOTS) << 4
                    | u32::from(LOG_STRIDE)
            }
            registers::INITIALIZING if self.starting() => INITIALIZING,
            registers::HEALTH_COUNTER => {
                (self.power_on.elapsed().as_millis() / HEARTBEAT.as_millis()) as u32 & 0xff_ffff
            }
            _ if HEALTH.contains(&offset) => {
                let mut health = HealthBuffer::zeroed();
                let fw = u32::from(version.major) << 24
                    | u32::from(version.minor & 0xff) << 16
                    | u32::from(version.subminor);
                health.set_fw_version(fw).set_hw_id(self.hardware);
                let syndrome = self.syndrome.load(Ordering::Acquire);
                health.set_synd(syndrome).set_rfr(syndrome != 0);
                let at = offset - registers::HEALTH;
                let word = health.bytes().get(at..at + 4).unwrap_or_default();
                word.iter()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte))
            }
            _ if offset == registers::INTERNAL_TIMER => (self.timer() >> 32) as u32,
            _ if offset == registers::INTERNAL_TIMER + 4 => self.timer() as u32,
            _ => 0,
        }
    }

    fn timer(&self) -> u64 {
        let cycles = self.power_on.elapsed().as_nanos() * u128::from(self.timer_khz) / 1_000_000;
        cycles as u64
    }

    /// A store of `value` to the 32-bit register at `offset`.
    pub(crate) fn store(&self, offset: usize, value: u32) -> Asked {
        match offset {
            registers::CMDQ_ADDR_H => {
                self.address_high.store(value, Ordering::Release);
                Asked::Nothing
            }
            registers::CMDQ_ADDR_L_SZ => {
                let interface = NicInterface((value >> 8 & 7) as u8);
                self.interface.store(interface.0, Ordering::Release);
                self.address_low
                    .store(value & ADDRESS_LOW, Ordering::Release);
                let high = u64::from(self.address_high.load(Ordering::Acquire));
                match interface {
                    NicInterface::FULL_DRIVER => {
                        Asked::Queue(high << 32 | u64::from(value & ADDRESS_LOW))
                    }
                    NicInterface::SW_RESET => Asked::Reset,
                    _ => Asked::Close,
                }
            }
            registers::CMD_DBELL if self.interface.load(Ordering::Acquire) == 0 => {
                Asked::Doorbell(value)
            }
            _ => Asked::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> InitSegment {
        let version = FirmwareVersion {
            major: 16,
            minor: 35,
            subminor: 4030,
        };
        InitSegment::new(SegmentPlan {
            version,
            hardware: 0x20d,
            timer_khz: 1_000_000,
            interface_revision: 5,
            starting: None,
            syndrome: 0,
        })
    }

    #[test]
    fn says_who_it_is() {
        let segment = segment();
        assert_eq!(segment.load(0x0), 35 << 16 | 16);
        assert_eq!(segment.load(0x4), 5 << 16 | 4030);
        assert_eq!(segment.load(0x14), 5 << 4 | 6);
        assert_eq!(segment.load(0x1fc), 0);
        // Health: firmware version and hardware id, no syndrome.
        assert_eq!(segment.load(0x230), 16 << 24 | 35 << 16 | 4030);
        assert_eq!(segment.load(0x234), 0x20d);
        assert_eq!(segment.load(0x23c), 0);
    }

    #[test]
    fn says_what_is_wrong_with_it() {
        let segment = segment();
        segment.fall_ill(0x10);
        // Reset is required; the syndrome.
        assert_eq!(segment.load(0x238), 1 << 31);
        assert_eq!(segment.load(0x23c), 0x10 << 16);
        segment.reset();
        assert_eq!(segment.load(0x23c), 0x10 << 16, "a reset does not help");
        segment.fall_ill(0);
        assert_eq!((segment.load(0x238), segment.load(0x23c)), (0, 0));

        segment.start_anew(Starting::Never);
        assert_eq!(segment.load(0x1fc), 1 << 31);
        segment.reset();
        assert_eq!(segment.load(0x1fc), 1 << 31);
        segment.start_anew(Starting::After(Duration::ZERO));
        assert_eq!(segment.load(0x1fc), 0);
    }

    #[test]
    fn queue_address_doorbell_and_reset() {
        let segment = segment();
        assert_eq!(segment.store(0x10, 0x7), Asked::Nothing);
        assert_eq!(
            segment.store(0x14, 0xaf3d_0000),
            Asked::Queue(0x7_af3d_0000)
        );
        assert_eq!(segment.load(0x10), 0x7);
        assert_eq!(segment.load(0x14), 0xaf3d_0000 | 5 << 4 | 6);
        assert_eq!(
            segment.store(0x18, 0x8000_0001),
            Asked::Doorbell(0x8000_0001)
        );
        assert_eq!(segment.store(0x14, 0xaf3d_0100), Asked::Close);
        assert_eq!(segment.load(0x14) >> 8 & 7, 1);
        assert_eq!(segment.store(0x18, 1), Asked::Nothing);
        assert_eq!(segment.store(0x14, 0x700), Asked::Reset);
        segment.reset();
        assert_eq!(segment.load(0x1fc), 0x8000_0000);
        assert_eq!(segment.load(0x14) >> 8 & 7, 1);
    }

    #[test]
    fn timer_and_heartbeat_advance() {
        let segment = segment();
        let timer = |segment: &InitSegment| {
            u64::from(segment.load(0x1000)) << 32 | u64::from(segment.load(0x1004))
        };
        let (before, beat) = (timer(&segment), segment.load(0x1010));
        std::thread::sleep(HEARTBEAT * 2);
        assert!(timer(&segment) > before);
        assert_ne!(segment.load(0x1010), beat);
    }
}
