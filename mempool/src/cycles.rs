//! The CPU's cycle counter and its frequency.
//!
//! [`now`] costs some tens of cycles and is not ordered against neighbouring loads;
//! the data path does not read it. [`frequency`] is found once, at the first call.
#![allow(unsafe_code)] // the counter-reading instructions

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter's value now (x86-64: TSC; arm64: CNTVCT_EL0; elsewhere nanoseconds).
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[allow(unused_unsafe)] // a safe function in later compilers
        // SAFETY: RDTSC is part of the x86-64 baseline and reads no memory.
        unsafe {
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: Linux lets user space read CNTVCT_EL0; no memory is touched.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack));
        }
        count
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        nanoseconds()
    }
}

/// Counts per second, at least 1. The first call may take some 20 ms, when neither
/// CPUID nor the kernel tells.
pub fn frequency() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| reported().unwrap_or_else(calibrated).max(1))
}

/// `cycles` as time.
pub fn to_duration(cycles: u64) -> Duration {
    let hz = u128::from(frequency());
    let ns = u128::from(cycles) * 1_000_000_000 / hz;
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// `time` in cycles, saturating.
pub fn from_duration(time: Duration) -> u64 {
    let cycles = time.as_nanos() * u128::from(frequency()) / 1_000_000_000;
    u64::try_from(cycles).unwrap_or(u64::MAX)
}

#[cfg(target_arch = "x86_64")]
fn reported() -> Option<u64> {
    #[allow(unused_unsafe)] // a safe function in later compilers
    let leaf = |n: u32| {
        // SAFETY: CPUID is part of the x86-64 baseline; each leaf is asked for only when
        // the leaf that counts them says that it exists.
        unsafe { core::arch::x86_64::__cpuid(n) }
    };
    // Leaf 0x15 (SDM vol. 2, CPUID): TSC = crystal * EBX / EAX, crystal in ECX.
    if leaf(0).eax >= 0x15 {
        let l = leaf(0x15);
        if l.eax != 0 && l.ebx != 0 && l.ecx != 0 {
            return Some(u64::from(l.ecx) * u64::from(l.ebx) / u64::from(l.eax));
        }
    }
    // Hypervisor timing leaf: kHz in EAX; only where a hypervisor announces itself.
    if leaf(1).ecx & (1 << 31) != 0 && leaf(0x4000_0000).eax >= 0x4000_0010 {
        let khz = leaf(0x4000_0010).eax;
        if khz > 100_000 {
            return Some(u64::from(khz) * 1000);
        }
    }
    None
}

#[cfg(target_arch = "aarch64")]
fn reported() -> Option<u64> {
    let hz: u64;
    // SAFETY: CNTFRQ_EL0 is readable in user space; no memory is touched.
    unsafe {
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack));
    }
    (hz != 0).then_some(hz)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn reported() -> Option<u64> {
    Some(1_000_000_000)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Counts against the system clock over 20 ms.
fn calibrated() -> u64 {
    let (t0, c0) = (Instant::now(), now());
    std::thread::sleep(Duration::from_millis(20));
    let (c1, elapsed) = (now(), t0.elapsed());
    let ns = elapsed.as_nanos().max(1);
    u64::try_from(u128::from(c1.wrapping_sub(c0)) * 1_000_000_000 / ns).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_agrees_with_the_clock() {
        let measured = calibrated() as f64;
        let told = frequency() as f64;
        // Loose, since a busy machine may stop us between two readings: a wrong unit is
        // off by a thousand.
        let ratio = told / measured;
        assert!((0.1..10.0).contains(&ratio), "{told} against {measured}");
    }

    #[test]
    fn duration_round_trip() {
        let d = Duration::from_millis(1500);
        let back = to_duration(from_duration(d));
        assert!(d.abs_diff(back) < Duration::from_micros(1));
        assert_eq!(from_duration(Duration::MAX), u64::MAX);
    }
}
