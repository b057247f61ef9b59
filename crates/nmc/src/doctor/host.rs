//! The machine itself: CPU, kernel, memory, limits, and the kernel features that the library uses.

use super::Check;
use crate::facts::{self, size};
use crate::sys::{self, Limit};
use nanomc::mem::limits;
use std::path::Path;

const HEAPS: &str = "host heaps";
const HUGE: &str = "heaps with NMC_HEAP_HUGE_PAGES (fewer TLB misses)";

/// All checks of this file.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::ok("cpu.model", facts::cpu_model(), "everything"),
        Check::ok("cpu.cores", facts::cores().to_string(), "everything")
            .warn_if(facts::cores() < 2, "give the process a second CPU: the library's thread shares the only one"),
        Check::ok("kernel.version", facts::kernel(), "everything"),
    ];
    checks.extend(kernel());
    checks.extend(memory());
    checks.extend(ulimits());
    checks
}

fn kernel() -> Vec<Check> {
    let container = "update the kernel, or let the container's seccomp profile allow the call";
    let membarrier = match sys::try_membarrier() {
        Ok(()) => Check::ok("kernel.membarrier", "works", "cheap handle checks"),
        Err(cause) => Check::ok("kernel.membarrier", cause.to_string(), "cheap handle checks")
            .warn_if(true, "nothing breaks, every call costs a fence more; allow membarrier(2) to get rid of it"),
    };
    vec![
        Check::tried("kernel.pidfd", sys::try_pidfd(), "noticing dead ranks", format!("Linux 5.3: {container}")),
        Check::tried(
            "kernel.wipe_on_fork",
            sys::try_wipe_on_fork(),
            "handles in forked children",
            "Linux 4.14 is needed",
        ),
        membarrier,
        io_uring(),
    ]
}

fn io_uring() -> Check {
    let name = "kernel.io_uring";
    let needed_for = "many requests at a time to the SSD tier";
    let Err(cause) = sys::try_io_uring() else { return Check::ok(name, "works", needed_for) };
    let filtered = facts::read("/proc/self/status").lines().any(|l| l.starts_with("Seccomp:") && !l.ends_with('0'));
    let (why, remedy) = match (facts::read("/proc/sys/kernel/io_uring_disabled").as_str(), filtered) {
        ("2", _) => ("sysctl kernel.io_uring_disabled is 2", "sysctl kernel.io_uring_disabled=0"),
        ("1", _) => (
            "sysctl kernel.io_uring_disabled is 1",
            "sysctl kernel.io_uring_disabled=0, or put the user into the group of kernel.io_uring_group",
        ),
        (_, true) => ("a seccomp filter is active", "allow io_uring_setup, io_uring_enter and io_uring_register in it"),
        (_, false) => ("the kernel has none", "update the kernel to 5.10 or newer"),
    };
    Check::ok(name, format!("{cause} ({why})"), needed_for).warn_if(true, remedy)
}

fn memory() -> Vec<Check> {
    let meminfo = facts::read("/proc/meminfo");
    let total = meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(0);
    let available = limits::mem_available(&meminfo).unwrap_or(0);
    let mut checks = vec![
        Check::ok("memory.page_size", size(sys::page_bytes()), HEAPS).warn_if(
            sys::page_bytes() != 4096,
            "the library rounds sizes to 4 KiB and is tested with pages of that size only; please report how it goes",
        ),
        Check::ok("memory.total", size(total), HEAPS),
        Check::ok("memory.available", size(available), HEAPS)
            .warn_if(available < 1 << 30, "free memory or use small heaps: heaps are reserved whole"),
    ];
    checks.push(cgroup(total));
    checks.extend(huge_pages());
    checks
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn cgroup(total: u64) -> Check {
    let groups = limits::memory_groups(Path::new("/"), &facts::read("/proc/self/cgroup"));
    let tightest = groups.iter().filter_map(|g| Some((limits::group_headroom(g)?, g))).min();
    match tightest {
        // Version 1 writes "unlimited" as a number that no machine has.
        Some((left, group)) if left < total => {
            Check::ok("memory.cgroup", format!("{} left in {}", size(left), group.display()), HEAPS)
                .warn_if(left < 1 << 30, "raise the memory limit of the container: all heaps of a world count")
        }
        _ => Check::ok("memory.cgroup", "no limit", HEAPS),
    }
}

fn huge_pages() -> Vec<Check> {
    let folder = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    let count = |file: &str| facts::read(folder.join(file)).parse::<u64>().unwrap_or(0);
    let (free, all) = (count("free_hugepages"), count("nr_hugepages"));
    let modes = facts::read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let mode = selected(&modes).unwrap_or("not supported by the kernel").to_owned();
    let usable = ["always", "within_size", "advise", "force"].contains(&mode.as_str());
    vec![
        Check::ok("memory.huge_pages", format!("{free} of {all} pages of 2 MiB free"), HUGE)
            .warn_if(free == 0, "sysctl vm.nr_hugepages=N, where N is the heap bytes of all ranks / 2 MiB"),
        Check::ok("memory.huge_pages_shmem", mode, HUGE)
            .warn_if(!usable, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    ]
}

/// The word in brackets.
fn selected(modes: &str) -> Option<&str> {
    modes.split_once('[')?.1.split_once(']').map(|(mode, _)| mode)
}

fn ulimits() -> Vec<Check> {
    let row =
        |name: &str, limit: Limit, needed_for, in_bytes: bool, least: Option<u64>, remedy: &str| match sys::soft_limit(
            limit,
        ) {
            Ok(None) => Check::ok(name, "unlimited", needed_for),
            Ok(Some(value)) => {
                let text = if in_bytes { size(value) } else { value.to_string() };
                Check::ok(name, text, needed_for).warn_if(least.is_none_or(|least| value < least), remedy)
            }
            Err(cause) => Check::ok(name, cause.to_string(), needed_for).warn_if(true, "allow getrlimit(2)"),
        };
    vec![
        row(
            "limits.open_files",
            Limit::Files,
            "ranks (about 5 descriptors a peer)",
            false,
            Some(1024),
            "ulimit -n 65536",
        ),
        row(
            "limits.locked_memory",
            Limit::Locked,
            "registered buffers of the SSD tier",
            true,
            Some(64 << 20),
            "ulimit -l unlimited (docker run --ulimit memlock=-1)",
        ),
        row("limits.file_size", Limit::FileBytes, HEAPS, true, None, "ulimit -f unlimited: heaps are memory files"),
        row(
            "limits.address_space",
            Limit::AddressSpace,
            HEAPS,
            true,
            None,
            "ulimit -v unlimited: every rank maps all heaps",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_mode_is_the_one_in_brackets() {
        assert_eq!(selected("always [madvise] never"), Some("madvise"));
        assert_eq!(selected(""), None);
    }

    #[test]
    fn fields_of_meminfo_are_kilobytes() {
        assert_eq!(meminfo_bytes("MemTotal:       2 kB\n", "MemTotal:"), Some(2048));
        assert_eq!(meminfo_bytes("", "MemTotal:"), None);
    }
}
