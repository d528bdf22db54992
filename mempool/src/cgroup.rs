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

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with files, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("pollux-cgroup-{}-{name}", std::process::id()));
            for (file, text) in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn left(result: Result<(), MemoryError>) -> (u64, String) {
        match result.unwrap_err() {
            MemoryError::CgroupLimit { left, file, .. } => (left, file),
            e => panic!("{e}"),
        }
    }

    #[test]
    fn version_2_limits_of_the_group_and_above() {
        let tree = Tree::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/pods/web\n"),
                ("sys/fs/cgroup/pods/web/hugetlb.2MB.max", "max\n"),
                ("sys/fs/cgroup/pods/hugetlb.2MB.max", "8388608\n"),
                ("sys/fs/cgroup/pods/hugetlb.2MB.current", "2097152\n"),
                ("sys/fs/cgroup/pods/web/memory.max", "1000000\n"),
                ("sys/fs/cgroup/pods/web/memory.current", "400000\n"),
                ("sys/fs/cgroup/pods/web/hugetlb.1GB.rsvd.max", "0\n"),
            ],
        );
        let check = |page, needed| check(&tree.0, "q", page, needed);
        assert!(check(PageSize::HUGE_2M, 6 << 20).is_ok());
        let (bytes, file) = left(check(PageSize::HUGE_2M, 8 << 20));
        assert_eq!(bytes, 6 << 20);
        assert!(
            file.ends_with("sys/fs/cgroup/pods/hugetlb.2MB.max"),
            "{file}"
        );
        assert!(check(PageSize::ordinary(), 600_000).is_ok());
        let e = check(PageSize::ordinary(), 600_001)
            .unwrap_err()
            .to_string();
        assert!(
            e.starts_with("q: 600001 bytes needed, but the memory control group of this process leaves 600000 (limit 1000000); raise "),
            "{e}"
        );
        // A limit on reservations counts too.
        assert_eq!(left(check(PageSize::HUGE_1G, 1 << 30)).0, 0);
    }

    #[test]
    fn version_1_limits() {
        let tree = Tree::new(
            "v1",
            &[
                (
                    "proc/self/cgroup",
                    "5:cpu,cpuacct:/x\n4:hugetlb:/box\n3:memory:/box\n",
                ),
                (
                    "sys/fs/cgroup/hugetlb/box/hugetlb.2MB.limit_in_bytes",
                    "4194304\n",
                ),
                (
                    "sys/fs/cgroup/hugetlb/box/hugetlb.2MB.usage_in_bytes",
                    "0\n",
                ),
                ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4096\n"),
            ],
        );
        let check = |page, needed| check(&tree.0, "q", page, needed);
        assert!(check(PageSize::HUGE_2M, 4 << 20).is_ok());
        assert_eq!(left(check(PageSize::HUGE_2M, 6 << 20)).0, 4 << 20);
        assert_eq!(left(check(PageSize::ordinary(), 4097)).0, 4096);
    }

    #[test]
    fn no_groups_no_limits() {
        let tree = Tree::new("none", &[("proc/self/other", "")]);
        assert!(check(&tree.0, "q", PageSize::HUGE_2M, u64::MAX).is_ok());
    }
}
