//! What control groups leave to this process: hugetlb and memory limits, versions 1 and 2.
//!
//! A page beyond such a limit would be refused at the first touch, by a signal. So the
//! limits are read before anything is mapped.

use std::path::{Path, PathBuf};

use crate::error::MemoryError;
use crate::page::PageSize;

/// Checks that `needed` bytes fit under every limit that applies.
///
/// # Errors
/// [`MemoryError::CgroupLimit`] for the first one that does not leave enough.
pub(crate) fn check(
    root: &Path,
    name: &str,
    page: PageSize,
    needed: u64,
) -> Result<(), MemoryError> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.trim_start_matches('/');
        let v2 = controllers.is_empty();
        let controller = if page.is_huge() { "hugetlb" } else { "memory" };
        if !v2 && !controllers.split(',').any(|c| c == controller) {
            continue;
        }
        let mounts: &[&str] = if v2 {
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        } else {
            &["sys/fs/cgroup"]
        };
        for mount in mounts {
            let mut base = root.join(mount);
            if !v2 {
                base.push(controllers);
                if !base.exists() {
                    base = root.join(mount).join(controller);
                }
            }
            let files = files(controller, page, v2);
            check_up(&base, path, name, controller, &files, needed)?;
        }
    }
    Ok(())
}

/// (limit, usage) file names.
fn files(controller: &str, page: PageSize, v2: bool) -> Vec<(String, String)> {
    let pair = |a: String, b: String| (a, b);
    if controller == "memory" {
        return vec![if v2 {
            pair("memory.max".into(), "memory.current".into())
        } else {
            pair(
                "memory.limit_in_bytes".into(),
                "memory.usage_in_bytes".into(),
            )
        }];
    }
    let size = match page.bytes() {
        n if n >= 1 << 30 => format!("{}GB", n >> 30),
        n if n >= 1 << 20 => format!("{}MB", n >> 20),
        n => format!("{}KB", n >> 10),
    };
    ["", "rsvd."]
        .iter()
        .map(|kind| {
            if v2 {
                pair(
                    format!("hugetlb.{size}.{kind}max"),
                    format!("hugetlb.{size}.{kind}current"),
                )
            } else {
                pair(
                    format!("hugetlb.{size}.{kind}limit_in_bytes"),
                    format!("hugetlb.{size}.{kind}usage_in_bytes"),
                )
            }
        })
        .collect()
}

/// A group is limited by its ancestors too.
fn check_up(
    base: &Path,
    path: &str,
    name: &str,
    controller: &'static str,
    files: &[(String, String)],
    needed: u64,
) -> Result<(), MemoryError> {
    let mut group = PathBuf::from(path);
    loop {
        let dir = base.join(&group);
        for (limit_file, usage_file) in files {
            let number = |f: &str| -> Option<u64> {
                std::fs::read_to_string(dir.join(f))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            };
            // "max" is no number, and no limit.
            let Some(limit) = number(limit_file) else {
                continue;
            };
            let left = limit.saturating_sub(number(usage_file).unwrap_or(0));
            if left < needed {
                return Err(MemoryError::CgroupLimit {
                    name: name.into(),
                    needed,
                    left,
                    limit,
                    controller,
                    file: dir.join(limit_file).display().to_string(),
                });
            }
        }
        if !group.pop() {
            return Ok(());
        }
    }
}
