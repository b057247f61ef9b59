//! The one system call that the standard library lacks, and so the only unsafe code of the program.
#![allow(unsafe_code, reason = "a system call")]

/// Lets this process have as many descriptors as it may: every connection is one. What it may not have it does without.
pub fn raise_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct that the kernel fills in, and then reads.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
