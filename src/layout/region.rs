//! A stretch of memory that other processes write to at any time. It is never seen as plain bytes: the only way in is
//! a reference to a struct made of atomics, checked for bounds and alignment.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// A struct that may lie in shared memory.
///
/// # Safety
/// `repr(C)`, made of atomics only: valid for any bytes, and safe to access while others change them.
pub unsafe trait InShared {}

/// Mapped shared memory, alive for `'a`.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    base: NonNull<u8>,
    bytes: usize,
    mapped: PhantomData<&'a ()>,
}

/// Tells the CPU that the cache line at `place` will be read soon. Changes nothing else.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

impl<'a> Region<'a> {
    /// # Safety
    /// `base` points to `bytes` bytes that stay mapped for `'a`.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize) -> Self {
        Self { base, bytes, mapped: PhantomData }
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The struct at `offset`; `None` if it does not fit or is not aligned there.
    #[must_use]
    pub fn at<T: InShared>(&self, offset: usize) -> Option<&'a T> {
        let end = offset.checked_add(size_of::<T>())?;
        // SAFETY: `offset` is in bounds if `end` is; nothing is dereferenced before that is known.
        let place = (end <= self.bytes).then(|| unsafe { self.base.add(offset) })?.cast::<T>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: in bounds, mapped for 'a, aligned, and valid for any bytes by the trait's contract.
        Some(unsafe { place.as_ref() })
    }

    /// `count` structs that begin at `offset`; `None` if they do not fit or are not aligned there.
    #[must_use]
    pub fn slice<T: InShared>(&self, offset: usize, count: usize) -> Option<&'a [T]> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| offset.checked_add(bytes))?;
        // SAFETY: `offset` is in bounds if `end` is; nothing is dereferenced before that is known.
        let place = (end <= self.bytes).then(|| unsafe { self.base.add(offset) })?.cast::<T>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: in bounds, mapped for 'a, aligned, and valid for any bytes by the trait's contract.
        Some(unsafe { std::slice::from_raw_parts(place.as_ptr(), count) })
    }
}

// SAFETY: an atomic itself.
unsafe impl InShared for std::sync::atomic::AtomicU64 {}
// SAFETY: an atomic itself.
unsafe impl InShared for std::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl InShared for std::sync::atomic::AtomicU8 {}
