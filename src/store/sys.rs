//! What needs the operating system or raw addresses: clocks, and copies to and from heaps.
#![allow(unsafe_code, reason = "clocks, and copies by address")]

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time
}

/// CLOCK_MONOTONIC in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock(libc::CLOCK_MONOTONIC);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
thread_local! {
    /// What a test has [`coarse_ms`] say to its thread.
    pub(super) static COARSE_MS: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// The same in ms, a few ms late, and cheap.
#[must_use]
pub fn coarse_ms() -> u64 {
    #[cfg(test)]
    if let Some(ms) = COARSE_MS.get() {
        return ms;
    }
    let time = clock(libc::CLOCK_MONOTONIC_COARSE);
    time.tv_sec.unsigned_abs() * 1_000 + time.tv_nsec.unsigned_abs() / 1_000_000
}

/// Copies between addresses of this process.
///
/// # Safety
/// `from` has `bytes` readable bytes that nobody writes to, and `to` as many writable ones, elsewhere, that nobody else uses,
/// both until this returns. For a heap of the store a pin or an open plan keeps that, for memory of the program whoever
/// called the C function.
#[inline(always)]
pub unsafe fn copy(from: u64, to: u64, bytes: u64) {
    #[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
    let bytes = bytes as usize;
    // SAFETY: by contract.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// CRC32C of memory of this process.
///
/// # Safety
/// `from` has `bytes` readable bytes that nobody writes to until this returns, as in [`copy`].
#[must_use]
pub unsafe fn checksum(seed: u32, from: u64, bytes: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
    let bytes = bytes as usize;
    if bytes == 0 {
        return seed;
    }
    // SAFETY: by contract.
    crate::base::crc::crc32c_append(seed, unsafe { std::slice::from_raw_parts(from as *const u8, bytes) })
}
