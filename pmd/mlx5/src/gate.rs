//! The gate of one queue: what the control thread and the queue's core tell each other.
//!
//! One word, read once per burst. The lcore goes on while it says [`Phase::Running`]; everything
//! else is the slow path. A gate belongs to one queue for one start of its port.
//!
//! ```text
//!            lcore                control              lcore               control
//! Running ----------> Failed ----------------> Reset ---------> Clean ------------------> Resume
//!    ^     error CQE          queue is in RST         indices,          queue is in RDY     |
//!    |                                                record = 0                            |
//!    +--------------------------------------------------------------------------------------+
//!                                     lcore: record = posted
//! any state --control--> Inert (for good)
//! ```
//!
//! Between `Failed` and `Reset` the device may still read the buffers that were handed to it, so
//! the lcore frees nothing before `Reset`. If nobody polls the queue, recovery waits.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a queue is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Packets move.
    Running = 0,
    /// The lcore met an error; the control thread is to reset the device's queue.
    Failed = 1,
    /// The device's queue is in RST; the lcore is to bring its indices back to the start.
    Reset = 2,
    /// The lcore has done so; the control thread is to make the device's queue ready.
    Clean = 3,
    /// The device's queue is ready; the lcore goes on with its next burst.
    Resume = 4,
    /// The port has stopped; every burst returns 0, for good.
    Inert = 5,
}

impl Phase {
    fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Running,
            1 => Self::Failed,
            2 => Self::Reset,
            3 => Self::Clean,
            4 => Self::Resume,
            _ => Self::Inert,
        }
    }
}

/// Why a queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device reported an error completion (`mlx5_err_cqe`).
    Completion {
        /// What went wrong, `MLX5_CQE_SYNDROME_*` of the PRM.
        syndrome: u8,
        /// The vendor's own code.
        vendor: u8,
        /// Index of the WQE, modulo 2^16.
        wqe: u16,
    },
    /// A completion names a WQE that is not the next one.
    WrongIndex {
        /// Index in the completion.
        found: u16,
        /// Index of the WQE that had to come.
        expected: u16,
    },
    /// A completion of a kind that such a queue never gets.
    WrongOpcode {
        /// Its opcode.
        opcode: u8,
        /// Index of the WQE.
        wqe: u16,
    },
    /// The control thread was told by an event, without a completion.
    Event,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completion {
                syndrome,
                vendor,
                wqe,
            } => write!(
                f,
                "error completion for WQE {wqe}: syndrome {syndrome:#04x}, vendor code {vendor:#04x}"
            ),
            Self::WrongIndex { found, expected } => {
                write!(f, "completion for WQE {found} where {expected} was due")
            }
            Self::WrongOpcode { opcode, wqe } => {
                write!(f, "completion with opcode {opcode:#x} for WQE {wqe}")
            }
            Self::Event => f.write_str("error event from the device"),
        }
    }
}

impl Cause {
    /// Kind in bits 56.., first value in bits 0..16, second in bits 16..32. Never zero.
    fn to_word(self) -> u64 {
        let pack = |kind: u64, a: u16, b: u16| kind << 56 | u64::from(b) << 16 | u64::from(a);
        match self {
            Self::Completion {
                syndrome,
                vendor,
                wqe,
            } => pack(1, u16::from_be_bytes([vendor, syndrome]), wqe),
            Self::WrongIndex { found, expected } => pack(2, found, expected),
            Self::WrongOpcode { opcode, wqe } => pack(3, u16::from(opcode), wqe),
            Self::Event => pack(4, 0, 0),
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        let a = word as u16;
        let b = (word >> 16) as u16;
        let [vendor, syndrome] = a.to_be_bytes();
        match word >> 56 {
            1 => Some(Self::Completion {
                syndrome,
                vendor,
                wqe: b,
            }),
            2 => Some(Self::WrongIndex {
                found: a,
                expected: b,
            }),
            3 => Some(Self::WrongOpcode {
                opcode: syndrome,
                wqe: b,
            }),
            4 => Some(Self::Event),
            _ => None,
        }
    }
}

/// A queue's last failure, for whoever holds the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFailure {
    /// `"RX"` or `"TX"`.
    pub kind: &'static str,
    /// Number of the queue within its port.
    pub queue: u16,
    /// Why it failed.
    pub cause: Cause,
    /// Device address of the first buffer of the WQE that failed, where it is known.
    pub address: Option<u64>,
    /// Failures since the port was started.
    pub failures: u32,
}

impl fmt::Display for QueueFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind, queue, cause, ..
        } = self;
        write!(f, "{kind} queue {queue}: {cause}")?;
        if let Some(address) = self.address {
            write!(f, ", device address {address:#x}")?;
        }
        write!(f, " (failure {} of this start)", self.failures)
    }
}

/// The gate of one queue. See the module's text.
#[derive(Debug, Default)]
pub struct Gate {
    phase: AtomicU32,
    /// Cause of the present failure: the first one counts, what follows it are its echoes.
    cause: AtomicU64,
    /// Device address that the failing WQE named; 0 when it is not known.
    address: AtomicU64,
    /// Failures since the start; only the side that moves to `Failed` adds.
    failures: AtomicU32,
}

impl Gate {
    /// An open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the queue is doing.
    pub fn phase(&self) -> Phase {
        Phase::from_word(self.phase.load(Ordering::Acquire))
    }

    /// The lcore's question, once per burst.
    #[inline(always)]
    pub(crate) fn is_running(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Running as u32
    }

    /// Whether the port of this queue has stopped.
    pub fn is_inert(&self) -> bool {
        self.phase() == Phase::Inert
    }

    /// Closes the gate for good. A burst that has begun may still end; the memory and the
    /// doorbell page stay until the queue is dropped. Control thread.
    pub fn close(&self) {
        self.phase.store(Phase::Inert as u32, Ordering::Release);
    }

    /// Why the queue failed last; stays after recovery.
    pub fn cause(&self) -> Option<Cause> {
        Cause::from_word(self.cause.load(Ordering::Acquire))
    }

    /// Device address of the first buffer of the WQE that failed last, where it is known.
    pub fn address(&self) -> Option<u64> {
        Some(self.address.load(Ordering::Acquire)).filter(|address| *address != 0)
    }

    /// How often the queue has failed. A failure counts when its cause can be read.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    /// The last failure, if there was one.
    pub(crate) fn failure(&self, kind: &'static str, queue: u16) -> Option<QueueFailure> {
        let failures = self.failures();
        let cause = self.cause().filter(|_| failures > 0)?;
        Some(QueueFailure {
            kind,
            queue,
            cause,
            address: self.address(),
            failures,
        })
    }

    /// Running to Failed; false (and no new cause) in any other phase. Called by the lcore for an
    /// error completion, by the control thread for an error event.
    pub fn fail(&self, cause: Cause) -> bool {
        self.fail_at(cause, 0)
    }

    /// As [`fail`](Self::fail), with the device address that the WQE named.
    pub(crate) fn fail_at(&self, cause: Cause, address: u64) -> bool {
        let failed = self.step(Phase::Running, Phase::Failed);
        if failed {
            self.cause.store(cause.to_word(), Ordering::Release);
            self.address.store(address, Ordering::Release);
            self.failures.fetch_add(1, Ordering::Release);
        }
        failed
    }

    /// Failed to Reset: the device's queue is in RST. Control thread.
    pub fn was_reset(&self) -> bool {
        self.step(Phase::Failed, Phase::Reset)
    }

    /// Reset to Clean. The lcore.
    pub(crate) fn cleaned(&self) -> bool {
        self.step(Phase::Reset, Phase::Clean)
    }

    /// Clean to Resume: the device's queue is in RDY. Control thread.
    pub fn resume(&self) -> bool {
        self.step(Phase::Clean, Phase::Resume)
    }

    /// Resume to Running. The lcore.
    pub(crate) fn resumed(&self) -> bool {
        self.step(Phase::Resume, Phase::Running)
    }

    /// One step of the circle; loses against [`close`](Self::close).
    fn step(&self, from: Phase, to: Phase) -> bool {
        self.phase
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_round_in_order_only() {
        let gate = Gate::new();
        assert!(gate.is_running());
        assert!(!gate.was_reset() && !gate.cleaned() && !gate.resume() && !gate.resumed());
        assert!(gate.fail(Cause::Event));
        assert!(
            !gate.fail(Cause::Event),
            "a failed queue does not fail again"
        );
        assert!(gate.was_reset() && gate.cleaned() && gate.resume());
        assert_eq!(gate.phase(), Phase::Resume);
        assert!(gate.resumed() && gate.is_running());
        assert_eq!(gate.failures(), 1);
    }

    #[test]
    fn keeps_the_first_cause() {
        let gate = Gate::new();
        assert_eq!(gate.cause(), None);
        let first = Cause::Completion {
            syndrome: 0x04,
            vendor: 0x51,
            wqe: 65_535,
        };
        assert!(gate.fail(first));
        assert!(!gate.fail(Cause::Completion {
            syndrome: 0x05,
            vendor: 0xf5,
            wqe: 0
        }));
        assert_eq!(gate.cause(), Some(first));
        for cause in [
            Cause::WrongIndex {
                found: 7,
                expected: 65_000,
            },
            Cause::WrongOpcode { opcode: 13, wqe: 9 },
            Cause::Event,
        ] {
            let gate = Gate::new();
            gate.fail(cause);
            assert_eq!(gate.cause(), Some(cause));
        }
    }

    #[test]
    fn keeps_the_address_of_the_first_failure() {
        let gate = Gate::new();
        assert_eq!(gate.address(), None);
        let cause = Cause::WrongOpcode { opcode: 13, wqe: 9 };
        assert!(gate.fail_at(cause, 0x1_0000_2040));
        assert!(!gate.fail_at(cause, 0x40));
        assert_eq!(gate.address(), Some(0x1_0000_2040));
    }

    #[test]
    fn a_closed_gate_stays_closed() {
        let gate = Gate::new();
        gate.fail(Cause::Event);
        gate.was_reset();
        gate.close();
        assert!(!gate.cleaned() && !gate.resume() && !gate.resumed() && !gate.fail(Cause::Event));
        assert!(gate.is_inert());
    }
}
