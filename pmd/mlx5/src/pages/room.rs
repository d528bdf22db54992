//! Whether the host has the memory that firmware asks for at start, before any of it is taken: a
//! host that runs out of memory kills programs, and not the adapter that asked for too much.

use std::path::Path;

const PAGE: u64 = 4096;
/// Demands that any host meets; no look is taken for them.
const USUAL: u64 = 64 << 20;

/// Why `count` pages cannot be had, as far as that can be known before.
pub(crate) fn lacking(count: i32) -> Option<String> {
    let wanted = u64::try_from(count).ok()?.saturating_mul(PAGE);
    if wanted <= USUAL {
        return None;
    }
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).ok()?;
    verdict(wanted, available(&text)?)
}

fn verdict(wanted: u64, there: u64) -> Option<String> {
    (wanted > there).then(|| {
        format!(
            "that is {} MiB, and the host has {} MiB free; free memory, or reset the adapter if its firmware is known to need less",
            wanted >> 20,
            there >> 20
        )
    })
}

/// Bytes that the kernel says programs can have, free hugepages included.
fn available(meminfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let plain = field("MemAvailable:")?.saturating_mul(1024);
    let huge = field("HugePages_Free:")
        .zip(field("Hugepagesize:"))
        .map_or(0, |(free, kib)| {
            free.saturating_mul(kib).saturating_mul(1024)
        });
    Some(plain.saturating_add(huge))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384000 kB\nMemAvailable:    1024000 kB\nHugePages_Free:      100\nHugepagesize:       2048 kB\n";

    #[test]
    fn memory_and_free_hugepages_count() {
        assert_eq!(available(MEMINFO), Some((1_024_000 + 204_800) * 1024));
        assert_eq!(available("MemFree: 3 kB"), None);
    }

    #[test]
    fn only_what_cannot_be_is_refused() {
        assert_eq!(verdict(1 << 30, 1 << 30), None);
        let text = verdict(2 << 30, 1 << 30).unwrap();
        assert!(
            text.contains("2048 MiB") && text.contains("1024 MiB"),
            "{text}"
        );
        assert_eq!(lacking(0), None);
        assert_eq!(lacking(-5), None);
        assert!(lacking(i32::MAX).is_some(), "8 TiB");
    }
}
