//! Raw rows and words of the CPU backend. A group's descriptor says where they are; the program vouches for its own
//! pointers by the C contract.
#![allow(unsafe_code, reason = "rows and words by address")]

use std::sync::atomic::{AtomicU32, AtomicU64};

/// A number that may be read from any bytes.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for i32 {}
impl Plain for i64 {}
impl Plain for u32 {}
impl Plain for f32 {}

#[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
fn size(n: u64) -> usize {
    n as usize
}

/// `n` numbers at `address`, which the protocol or the program keeps unchanged meanwhile.
#[must_use]
pub fn slice<'a, T: Plain>(address: u64, n: u64) -> &'a [T] {
    if n == 0 {
        return &[];
    }
    // SAFETY: aligned by the layout or checked where the program gave it; readable for `n` numbers by contract, and any
    // bytes are a number.
    unsafe { std::slice::from_raw_parts(address as *const T, size(n)) }
}

/// `n` numbers at `address`, which nobody else uses meanwhile.
#[must_use]
pub fn slice_mut<'a, T: Plain>(address: u64, n: u64) -> &'a mut [T] {
    if n == 0 {
        return &mut [];
    }
    // SAFETY: as in `slice`, and written by this thread alone until the next flag.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, size(n)) }
}

/// The number at `address`.
#[must_use]
pub fn get<T: Plain>(address: u64) -> T {
    // SAFETY: as in `slice`.
    unsafe { (address as *const T).read() }
}

/// Stores a number.
pub fn put<T: Plain>(address: u64, value: T) {
    // SAFETY: as in `slice_mut`.
    unsafe { (address as *mut T).write(value) };
}

/// Copies bytes.
pub fn copy(from: u64, to: u64, bytes: u64) {
    // SAFETY: as in `slice` and `slice_mut`; the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size(bytes)) };
}

/// Fills with zeros.
pub fn zero(to: u64, bytes: u64) {
    // SAFETY: as in `slice_mut`.
    unsafe { std::ptr::write_bytes(to as *mut u8, 0, size(bytes)) };
}

/// A word that several processes use.
#[must_use]
pub fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: aligned by the layout, mapped as long as the group's membership, and only used as an atomic.
    unsafe { &*(address as *const AtomicU64) }
}

/// The same of 32 bits.
#[must_use]
pub fn word32<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: as in `word`.
    unsafe { &*(address as *const AtomicU32) }
}
