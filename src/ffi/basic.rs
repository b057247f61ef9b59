//! Versions, status names and the last error message.

use crate::base::status::{self, nmc_status_t};
use std::ffi::c_char;

/// Version of the C ABI. It grows by one with every release that adds to the ABI; a release that would break it
/// changes the soname instead.
pub const NMC_ABI_VERSION: u32 = 1;

/// A sequence of bytes that belongs to the caller. `ptr` may be NULL if `len` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_slice_t {
    /// First byte.
    pub ptr: *const std::ffi::c_void,
    /// Number of bytes.
    pub len: usize,
}

/// Version of the library as text, such as "0.1.0". Static, never NULL. Thread-safe, does not block, graph-safe.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Version of the ABI that the loaded library speaks; compare with `NMC_ABI_VERSION` of the header that was
/// compiled in. Thread-safe, does not block, graph-safe.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_abi_version() -> u32 {
    NMC_ABI_VERSION
}

/// Layout version of the loaded library; compare with `NMC_LAYOUT_VERSION`. Ranks with different versions do not
/// join. Thread-safe, does not block, graph-safe.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_layout_version() -> u32 {
    crate::layout::VERSION
}

/// Name of a status, such as "NMC_ERR_TIMEOUT"; "NMC_UNKNOWN_STATUS" for a number that is none. Static, never
/// NULL. Thread-safe, does not block, graph-safe.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_status_name(status: nmc_status_t) -> *const c_char {
    status::name(status).as_ptr()
}

/// Why the last failed call of this thread failed: one sentence with the values involved. Empty if none failed
/// yet; calls that succeed leave it alone. Never NULL; valid until the next failing call of the same thread.
/// Thread-safe, does not block, graph-safe.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_last_error_message() -> *const c_char {
    super::tell();
    super::LAST_ERROR
        .try_with(|last| {
            let last = last.borrow();
            if last.is_empty() { c"".as_ptr() } else { last.as_ptr().cast() }
        })
        .unwrap_or(c"".as_ptr())
}
