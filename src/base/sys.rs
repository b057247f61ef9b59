//! What this layer needs of the operating system and of the allocator.
#![allow(unsafe_code, reason = "a system call, and memory that is zero already")]

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Ends this process as `kill -9` does.
#[cfg(any(debug_assertions, feature = "crash-points"))]
pub fn kill_self() {
    // SAFETY: sends a signal to this process; nothing of it runs afterwards.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Types of which a value is nothing but zero bytes.
///
/// # Safety
/// All bytes zero are a value of the type.
pub unsafe trait Zero {}

macro_rules! zeros {
    ($($t:ty),*) => {$(
        // SAFETY: an integer, or one in a cell.
        unsafe impl Zero for $t {}
    )*};
}
zeros!(u8, u16, u32, u64, AtomicU8, AtomicU32, AtomicU64);

// SAFETY: all entries are.
unsafe impl<T: Zero, const N: usize> Zero for [T; N] {}

/// `n` zeros. Large ones are pages that take no memory until they are used.
pub fn zeroed<T: Zero>(n: usize) -> Option<Vec<T>> {
    let layout = std::alloc::Layout::array::<T>(n).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout has bytes.
    let first = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<T>();
    if first.is_null() {
        return None;
    }
    // SAFETY: allocated here for `n` of T by the allocator that Vec uses; zero bytes are values of T.
    Some(unsafe { Vec::from_raw_parts(first, n, n) })
}
