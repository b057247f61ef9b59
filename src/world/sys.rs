//! The operating system as the world needs it: pidfds, pipes and locks on files.
#![allow(unsafe_code, reason = "system calls")]
#![allow(clippy::cast_possible_truncation, reason = "constants and struct sizes of the kernel's interface fit")]

use crate::base::error::{Error, Result};
use crate::rpc::owned;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A descriptor of this very process that becomes readable when it dies.
pub fn own_pidfd() -> Result<OwnedFd> {
    let pid = libc::pid_t::try_from(std::process::id()).unwrap_or(0);
    // SAFETY: plain system call; the descriptor is close-on-exec by definition.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if raw < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        crate::bail!(NMC_ERR_UNSUPPORTED, "joining needs pidfd_open, that is Linux 5.3 or later");
    }
    owned(RawFd::try_from(raw).unwrap_or(-1), "pidfd_open")
}

/// State and start time (in clock ticks since boot) of a process; with the pid the latter names it for good.
fn process(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may hold anything; count from the last parenthesis.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((state, rest.nth(18)?.parse().ok()?))
}

/// Start time of this process; 0 if /proc does not tell.
#[must_use]
pub fn own_start_time() -> u64 {
    process(std::process::id()).map_or(0, |(_, started)| started)
}

/// Whether the process that `pid` and its start time name is running. One that only waits to be reaped is not.
#[must_use]
pub fn is_running(pid: u32, started: u64) -> bool {
    let alive = |(state, start)| start == started && !matches!(state, 'Z' | 'X');
    pid != 0 && started != 0 && process(pid).is_some_and(alive)
}

/// A pipe: reading end, writing end. Nothing is ever written; its end of file is the message.
pub fn life_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(Error::last_os("pipe2"));
    }
    Ok((owned(ends[0], "pipe2")?, owned(ends[1], "pipe2")?))
}

/// Takes the exclusive lock on an open file; false if another open file of it has the lock.
pub fn try_lock(fd: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: plain system call.
    if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let cause = io::Error::last_os_error();
    if cause.raw_os_error() == Some(libc::EWOULDBLOCK) { Ok(false) } else { Err(Error::os("flock", &cause)) }
}

fn byte_lock(kind: libc::c_int, at: libc::off_t, bytes: libc::off_t) -> libc::flock {
    // SAFETY: all zeroes is a valid flock; the pid must be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (at, bytes);
    lock
}

/// Locks byte `at` of an open file for this open file alone; false if another one has it.
pub fn try_lock_byte(fd: BorrowedFd<'_>, at: libc::off_t) -> Result<bool> {
    let lock = byte_lock(libc::F_WRLCK, at, 1);
    // SAFETY: the struct is live for the call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(Error::os("fcntl(F_OFD_SETLK)", &cause)),
    }
}

/// Gives back all bytes that this open file has locked.
pub fn unlock_bytes(fd: BorrowedFd<'_>) {
    let lock = byte_lock(libc::F_UNLCK, 0, 0);
    // SAFETY: as above.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
}

/// Whether another open file has byte `at` locked.
#[must_use]
pub fn is_locked(fd: BorrowedFd<'_>, at: libc::off_t) -> bool {
    let mut lock = byte_lock(libc::F_WRLCK, at, 1);
    // SAFETY: as above; the kernel writes what is in the way into the struct.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    asked && lock.l_type != libc::F_UNLCK as libc::c_short
}
