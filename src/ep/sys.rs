//! Memory of a group on host heaps, and of the program. All of it is reached through a [`Region`], which checks bounds and
//! alignment; who makes one says why the memory is there. Addresses that the program gives are [`Given`]s: the C boundary
//! vouches for them.
#![allow(unsafe_code, reason = "regions are made from addresses")]

use crate::base::error::Result;
use crate::mem::Slab;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// An address in memory of the program, or none. It is only looked into by the step that it is given for, and by as much as the
/// C header says that lies there.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Given(u64);

impl Given {
    /// No memory.
    pub(crate) const NONE: Self = Self(0);

    /// # Safety
    /// The pointer is NULL, or has behind it what the C header says about the argument, until the step that uses it is over.
    /// That it is aligned and not NULL is checked before.
    pub(crate) unsafe fn new(ptr: *const c_void) -> Self {
        Self(ptr as u64)
    }

    /// Memory of a test, which keeps it until its step is over.
    #[cfg(test)]
    pub(super) fn of<T: Plain>(memory: &mut [T]) -> Self {
        Self(memory.as_mut_ptr() as u64)
    }

    /// The address, for kernels and messages.
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The first `bytes` bytes.
    ///
    /// # Safety
    /// The header says that at least so many lie there, and `'a` ends with the step.
    pub(super) unsafe fn region<'a>(self, bytes: u64) -> Region<'a> {
        // SAFETY: `Given::new` and this function's caller vouch for it.
        unsafe { Region::new(self.0, bytes) }
    }
}

/// Memory of the program for what is between the steps of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspace {
    first: Given,
    bytes: u64,
}

impl Workspace {
    /// # Safety
    /// The pointer is NULL, or has so many bytes behind it, which nobody else uses until the step is over that it is given for.
    pub(crate) unsafe fn new(ptr: *const c_void, bytes: u64) -> Self {
        // SAFETY: by contract.
        Self { first: unsafe { Given::new(ptr) }, bytes }
    }

    /// Where it begins.
    pub(super) fn first(self) -> Given {
        self.first
    }

    /// Its size.
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// What lies `offset` bytes behind its beginning.
    pub(super) fn at(self, offset: u64) -> Result<Given> {
        match self.first.0.checked_add(offset).filter(|_| offset <= self.bytes && !self.first.is_none()) {
            Some(address) => Ok(Given(address)),
            None => crate::bail!(NMC_ERR_INTERNAL, "byte {offset} is not in a workspace of {}", self.bytes),
        }
    }
}

/// A number that any bytes are.
pub(super) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for i32 {}
impl Plain for i64 {}
impl Plain for u32 {}
impl Plain for f32 {}

/// Bytes that are there as long as `'a`. Other processes may use them as well; what is not an atomic belongs to the step between
/// the flags of the protocol. To reach outside, or at an odd address, is a bug of this library and a panic, which the C boundary
/// turns into an error.
#[derive(Clone, Copy)]
pub(super) struct Region<'a>(&'a [Cell<u8>]);

impl<'a> Region<'a> {
    /// # Safety
    /// `bytes` bytes at `base` are mapped for reading and writing as long as `'a`, and used as the type says.
    pub(super) unsafe fn new(base: u64, bytes: u64) -> Self {
        if base == 0 || bytes == 0 {
            return Self(&[]);
        }
        // SAFETY: the caller vouches for the memory; any bytes are in order, and a cell allows others to change them.
        Self(unsafe { std::slice::from_raw_parts(base as *const Cell<u8>, size(bytes)) })
    }

    /// A slab, as long as it is borrowed.
    pub(super) fn of_slab(slab: &'a Slab) -> Self {
        // SAFETY: the slab has these bytes mapped until it is dropped.
        unsafe { Self::new(slab.base() as u64, slab.bytes() as u64) }
    }

    /// `bytes` bytes from `offset` on.
    pub(super) fn part(self, offset: u64, bytes: u64) -> Self {
        Self(&self.0[size(offset)..][..size(bytes)])
    }

    /// Row `at` of rows of `bytes` bytes each.
    pub(super) fn row(self, at: u64, bytes: u32) -> Self {
        self.part(at * u64::from(bytes), bytes.into())
    }

    fn first<T>(self) -> *const T {
        let first = self.0.as_ptr().cast::<T>();
        assert!(first.is_aligned() && self.0.len() >= size_of::<T>(), "no number of this type at {first:p}");
        first
    }

    /// All of it as numbers.
    pub(super) fn cells<T: Plain>(self) -> &'a [Cell<T>] {
        if self.0.is_empty() {
            return &[];
        }
        // SAFETY: inside the region and aligned; any bytes are a number, and cells may be changed by whoever has them.
        unsafe { std::slice::from_raw_parts(self.first::<Cell<T>>(), self.0.len() / size_of::<T>()) }
    }

    /// The number at byte `offset`.
    pub(super) fn get<T: Plain>(self, offset: u64) -> T {
        self.part(offset, size_of::<T>() as u64).cells()[0].get()
    }

    /// Stores a number at byte `offset`.
    pub(super) fn put<T: Plain>(self, offset: u64, value: T) {
        self.part(offset, size_of::<T>() as u64).cells()[0].set(value);
    }

    /// Stores numbers from the beginning on.
    pub(super) fn write<T: Plain>(self, values: &[T]) {
        let to = self.part(0, size_of_val(values) as u64);
        // SAFETY: there is room for all of them, and they are this process's own.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), to.0.as_ptr() as *mut u8, to.0.len()) };
    }

    /// Copies all of `from` to the beginning of it.
    pub(super) fn copy_from(self, from: Region<'_>) {
        let to = self.part(0, from.0.len() as u64);
        // SAFETY: there is room for all of it; cells may be changed.
        unsafe { std::ptr::copy(from.0.as_ptr().cast::<u8>(), to.0.as_ptr() as *mut u8, to.0.len()) };
    }

    /// A word that several processes use, at byte `offset`.
    pub(super) fn word(self, offset: u64) -> &'a AtomicU64 {
        // SAFETY: inside the region and aligned; words of the protocol are only used as atomics.
        unsafe { &*self.part(offset, 8).first() }
    }

    /// The same of 32 bits.
    pub(super) fn word32(self, offset: u64) -> &'a AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { &*self.part(offset, 4).first() }
    }
}

/// Bytes as this process counts them.
#[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
pub(super) fn size(n: u64) -> usize {
    n as usize
}
