//! Arguments as C passes them: arrays, keys, slices, and structs that may grow. Everything is checked before it is used; what
//! a caller promises by the C contract, and nobody can check, is in the `# Safety` of each function.

use super::basic::nmc_slice_t;
use super::store_types::nmc_buffer_t;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::store::copy::Slice;
use crate::store::types::{bad_key, check_key};

#[cold]
fn bad_array(address: usize, n: usize, name: &str) -> Error {
    let text = format!("{name} must be an aligned pointer to {n} entries, got {address:#x}");
    Error::new(NMC_ERR_INVALID_ARG, text)
}

/// An array of the caller.
///
/// # Safety
/// `ptr` points to `n` values, unless `n` is 0.
#[inline]
pub(super) unsafe fn array<'a, T>(ptr: *const T, n: usize, name: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    let end = n.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(ptr as usize));
    if ptr.is_null() || !ptr.is_aligned() || end.is_none_or(|end| end > isize::MAX.unsigned_abs()) {
        return Err(bad_array(ptr as usize, n, name));
    }
    // SAFETY: non-null and aligned; the caller promises `n` values.
    Ok(unsafe { std::slice::from_raw_parts(ptr, n) })
}

/// An array of the caller that is written to.
///
/// # Safety
/// `ptr` points to `n` values, unless `n` is 0, and nobody else uses them during the call.
pub(super) unsafe fn array_out<'a, T>(ptr: *mut T, n: usize, name: &str) -> Result<&'a mut [T]> {
    // SAFETY: as promised by the caller.
    unsafe { array(ptr.cast_const(), n, name) }?;
    if n == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked above; nobody else uses the caller's array during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, n) })
}

/// A struct of the caller that is only read.
///
/// # Safety
/// `ptr` is NULL or points to one.
#[inline(always)]
pub(super) unsafe fn one<'a, T>(ptr: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: forwarded from the caller.
    match unsafe { array(ptr, 1, name) }? {
        [one, ..] => Ok(one),
        [] => Err(bad_array(0, 1, name)),
    }
}

#[cold]
fn bad_key_pointer(len: usize) -> Error {
    let text = if len == 0 { "the key is empty".into() } else { format!("the key has {len} bytes but no address") };
    Error::new(NMC_ERR_INVALID_ARG, text)
}

/// The bytes of a key.
///
/// # Safety
/// `key.ptr` points to `key.len` readable bytes.
#[inline]
pub(super) unsafe fn key_of<'a>(key: nmc_slice_t) -> Result<&'a [u8]> {
    if key.ptr.is_null() {
        return Err(bad_key_pointer(key.len));
    }
    if key.len > isize::MAX.unsigned_abs() {
        return Err(bad_key(key.len));
    }
    // SAFETY: non-null; the caller promises the bytes. Lengths above the limit are refused before they are read.
    let bytes = unsafe { std::slice::from_raw_parts(key.ptr.cast::<u8>(), key.len) };
    check_key(bytes)?;
    Ok(bytes)
}

#[cold]
fn no_buffer(capacity: usize) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, format!("buffer is NULL, but its capacity is {capacity}"))
}

/// A buffer of the caller that is written to, as its address.
///
/// # Safety
/// Unless it is NULL, it is as the C contract says: so many bytes, until the call that it is given to has ended.
#[inline]
pub(super) unsafe fn buffer_of(buffer: *mut std::ffi::c_void, capacity: usize) -> Result<Slice> {
    if buffer.is_null() && capacity != 0 {
        return Err(no_buffer(capacity));
    }
    // SAFETY: by contract; NULL has no bytes.
    Ok(unsafe { Slice::new(buffer as u64, capacity as u64) })
}

/// A pointer and a length, as C has them.
///
/// # Safety
/// The type is two words: an address, and how many bytes are there.
pub(super) unsafe trait Span {}
// SAFETY: as the asserts below say.
unsafe impl Span for nmc_slice_t {}
// SAFETY: as above.
unsafe impl Span for nmc_buffer_t {}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<nmc_slice_t>() == size_of::<Slice>() && size_of::<nmc_buffer_t>() == size_of::<Slice>());
    assert!(align_of::<nmc_slice_t>() == align_of::<Slice>() && align_of::<nmc_buffer_t>() == align_of::<Slice>());
    assert!(offset_of!(nmc_slice_t, len) == Slice::BYTES_AT && offset_of!(nmc_buffer_t, len) == Slice::BYTES_AT);
};

/// The caller's array as the library has it, without a copy.
///
/// # Safety
/// Each of them is as [`Slice::new`] wants it: the C contract of the calls that they are given to.
pub(super) unsafe fn slices_of<T: Span>(spans: &[T]) -> &[Slice] {
    // SAFETY: the same two words (see `Span`); the caller vouches for what they say.
    unsafe { std::slice::from_raw_parts(spans.as_ptr().cast::<Slice>(), spans.len()) }
}

/// The memory of the values of a batch: one piece for each, or several.
pub(super) struct Values<'a> {
    slices: &'a [Slice],
    counts: Option<&'a [usize]>,
}

impl<'a> Values<'a> {
    /// # Safety
    /// `counts` is NULL or points to `n` values, and `spans` to as many as they say together; without them to `n`. For the spans, as
    /// [`slices_of`].
    pub(super) unsafe fn new<T: Span + 'a>(
        spans: *const T,
        counts: *const usize,
        n: usize,
        name: &str,
    ) -> Result<Self> {
        let counts = match counts.is_null() {
            true => None,
            // SAFETY: forwarded from the caller.
            false => Some(unsafe { array(counts, n, "counts") }?),
        };
        let all = match counts {
            None => Some(n),
            Some(counts) => counts.iter().try_fold(0usize, |all, count| all.checked_add(*count)),
        };
        let Some(all) = all else {
            crate::bail!(NMC_ERR_INVALID_ARG, "counts add up to more {name} than there can be")
        };
        // SAFETY: as above.
        Ok(Self { slices: unsafe { slices_of(array(spans, all, name)?) }, counts })
    }

    /// Those of each value, in order.
    pub(super) fn each(&self) -> impl Iterator<Item = &'a [Slice]> {
        let (mut rest, counts) = (self.slices, self.counts);
        (0..counts.map_or(rest.len(), <[usize]>::len)).map(move |at| {
            let (value, others) = rest.split_at(counts.map_or(1, |counts| counts[at]));
            rest = others;
            value
        })
    }
}
