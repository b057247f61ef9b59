//! Text goes out the same way everywhere: `(char* buffer, size_t capacity, size_t* needed)`.

use crate::base::error::Result;
use std::ffi::c_char;

/// Refuses a buffer that cannot be one.
pub(crate) fn check_buffer(buffer: *const c_char, capacity: usize) -> Result<()> {
    if buffer.is_null() && capacity != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "the text buffer is NULL but its capacity is {capacity}");
    }
    Ok(())
}

/// Copies `text` and a NUL into the caller's buffer. `needed`, if given, receives the size including the NUL,
/// also when the buffer is too small; then as much as fits is stored, NUL-terminated.
pub(crate) fn copy_out(text: &str, buffer: *mut c_char, capacity: usize, needed: *mut usize) -> Result<()> {
    check_buffer(buffer, capacity)?;
    if !needed.is_null() {
        super::out(needed, "needed")?.write(text.len() + 1);
    }
    let fits = text.len().min(capacity.saturating_sub(1));
    if capacity > 0 {
        // SAFETY: the caller promises `capacity` writable bytes; `fits + 1 <= capacity`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), fits);
            buffer.add(fits).write(0);
        }
    }
    let only_asked_for_the_size = capacity == 0 && !needed.is_null();
    if capacity <= text.len() && !only_asked_for_the_size {
        crate::bail!(NMC_ERR_TOO_SMALL, "the text needs {} bytes, the buffer has {capacity}", text.len() + 1);
    }
    Ok(())
}
