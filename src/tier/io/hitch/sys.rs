//! What tests of the real calls need of the system: that it refuses one, and memory by address.
#![allow(unsafe_code, reason = "system calls")]

use super::super::{FixedBuffer, Read, Readers};
use crate::base::error::Result;
use std::io;

/// From now on this system call fails with this error, without having been made, on this thread and those that it makes.
pub fn refuse(number: i64, code: i32) -> io::Result<()> {
    let (number, code) = (u32::try_from(number).unwrap_or(0), u32::try_from(code).unwrap_or(0));
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k };
    let mut steps = [
        // The number of the call comes first.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | code),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    // SAFETY: plain system calls; the program lives until they return.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads for a client; `done` sees what has come of each.
pub fn read(readers: &Readers, reads: &[Read], done: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
    let mut seen = |i: usize| {
        // SAFETY: this read is over, and whoever calls has the memory.
        done(i, unsafe { std::slice::from_raw_parts(reads[i].address as *const u8, reads[i].bytes as usize) });
    };
    // SAFETY: tests read to memory of their own, which they keep until this returns.
    unsafe { readers.read(reads, &mut seen) }
}

/// The bytes of a buffer that nobody else uses.
pub fn with_fixed<R>(memory: &FixedBuffer, body: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: it is alive, and the test's own.
    body(unsafe { std::slice::from_raw_parts_mut(memory.address() as *mut u8, memory.bytes()) })
}
