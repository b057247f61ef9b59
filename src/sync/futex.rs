//! Sleeping on a word in shared memory. Spurious returns are allowed; callers re-check and hold a deadline.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `seen`, at most `limit`. Works across processes that map the same memory.
pub fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: the word outlives the call, and FUTEX_WAIT only reads it and the timespec.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time, 0, 0) };
}

/// Wakes everyone who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}
