//! Buffers of tests as the library is given them: by address. The one place where tests make [`Slice`]s.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unsafe_code, reason = "says that the memory of a test is there")]

use nanomc::store::copy::Slice;

/// A buffer that is read. The test keeps it, and nobody writes to it, until each call with the slice has ended.
pub fn slice(bytes: &[u8]) -> Slice {
    // SAFETY: as said above.
    unsafe { Slice::new(bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64) }
}

/// A buffer that is written to. The test keeps it, and nobody else uses it, until each call with the slice has ended.
pub fn slice_mut(bytes: &mut [u8]) -> Slice {
    // SAFETY: as said above.
    unsafe { Slice::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64) }
}
