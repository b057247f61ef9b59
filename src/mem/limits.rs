//! Looks before it leaps: reserving more than a memory cgroup allows gets the process killed, and growing a file
//! past RLIMIT_FSIZE raises SIGXFSZ. Both are checked first and reported as a status with the numbers.

use crate::base::error::Result;
use std::path::{Path, PathBuf};

/// How long a file of this process may become; none if the kernel does not say.
#[must_use]
pub fn longest_file() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the struct it is given.
    (unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0).then_some(limit.rlim_cur)
}

/// Fails with `NMC_ERR_NO_MEMORY` if a file may not become `bytes` long.
pub fn check_file_size(bytes: u64) -> Result<()> {
    match longest_file().filter(|longest| bytes > *longest) {
        Some(longest) => {
            crate::bail!(NMC_ERR_NO_MEMORY, "{bytes} bytes are needed, but RLIMIT_FSIZE (ulimit -f) allows {longest}")
        }
        None => Ok(()),
    }
}

/// Fails with `NMC_ERR_NO_MEMORY` if `bytes` of shared memory can be seen not to fit.
pub fn check_headroom(bytes: u64) -> Result<()> {
    check_file_size(bytes)?;
    check_available(bytes)
}

/// Fails with `NMC_ERR_NO_MEMORY` if `bytes` of memory can be seen not to fit. An allocator gives addresses freely, and the
/// kernel ends a process that then uses more than there is.
pub fn check_available(bytes: u64) -> Result<()> {
    for group in memory_groups(Path::new("/"), &std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()) {
        if let Some(free) = group_headroom(&group)
            && bytes > free
        {
            crate::bail!(
                NMC_ERR_NO_MEMORY,
                "{bytes} bytes are needed, but the memory cgroup {} has {free} left",
                group.display()
            );
        }
    }
    if let Some(free) = mem_available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
        && bytes > free
    {
        crate::bail!(NMC_ERR_NO_MEMORY, "{bytes} bytes are needed, but the machine has {free} available");
    }
    Ok(())
}

/// Bytes that the kernel thinks can be taken without swapping.
#[must_use]
pub fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory cgroups (v1 or v2) that the process is in, innermost first.
#[must_use]
pub fn memory_groups(root: &Path, proc_self_cgroup: &str) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for line in proc_self_cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let mount = match controllers {
            "" => root.join("sys/fs/cgroup"),
            c if c.split(',').any(|c| c == "memory") => root.join("sys/fs/cgroup/memory"),
            _ => continue,
        };
        let mut at = mount.join(path.trim_start_matches('/'));
        while at.starts_with(&mount) {
            groups.push(at.clone());
            if !at.pop() {
                break;
            }
        }
    }
    groups
}

/// Bytes left in a memory cgroup, page cache that can be dropped counted as free; `None` if it has no limit.
#[must_use]
pub fn group_headroom(group: &Path) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let droppable = stat
        .lines()
        .find_map(|l| l.strip_prefix("total_inactive_file ").or_else(|| l.strip_prefix("inactive_file ")))
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(droppable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_limit_is_seen_in_both_versions() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let v2 = dir.path().join("sys/fs/cgroup/a/b");
        std::fs::create_dir_all(&v2)?;
        std::fs::write(v2.join("memory.max"), "1000\n")?;
        std::fs::write(v2.join("memory.current"), "900\n")?;
        std::fs::write(v2.join("memory.stat"), "anon 1\ninactive_file 50\n")?;
        let groups = memory_groups(dir.path(), "0::/a/b\n");
        assert_eq!(groups.first(), Some(&v2));
        assert_eq!(group_headroom(&v2), Some(150));
        let v1 = dir.path().join("sys/fs/cgroup/memory/x");
        std::fs::create_dir_all(&v1)?;
        std::fs::write(v1.join("memory.limit_in_bytes"), "10\n")?;
        std::fs::write(v1.join("memory.usage_in_bytes"), "20\n")?;
        let groups = memory_groups(dir.path(), "5:cpu:/x\n4:memory:/x\n");
        assert_eq!(groups.first(), Some(&v1));
        assert_eq!(group_headroom(&v1), Some(0));
        assert_eq!(group_headroom(dir.path()), None, "a group without a limit has no headroom to report");
        Ok(())
    }
}
