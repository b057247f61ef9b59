//! Structs of any age. What may grow begins with `struct_size`, as the caller's header has it: a program compiled against an
//! older header passes a shorter struct, one compiled against a newer header a longer one. Of what a program fills, missing
//! fields take their default and unknown ones must be zero; what the library fills is written as far as it goes. In an array
//! the size of the first element is the distance from one to the next.

use super::out;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_VERSION};
use std::marker::PhantomData;

/// Largest `struct_size` that is looked at.
const MAX_STRUCT_BYTES: u32 = 4096;

/// A struct of the ABI that the program fills.
///
/// # Safety
/// The type is `repr(C)`, starts with `struct_size: u32` and, unless it is only an element of arrays, `abi_version: u32`;
/// it has at least 8 bytes, holds only integers and raw pointers (any bit pattern is valid), and has no padding.
pub unsafe trait Config: Copy {
    /// Name for messages.
    const NAME: &'static str;
    /// What the C initialiser macro stores. It is generated from this function (`build/structs.rs`), which therefore spells
    /// out every field.
    fn defaults() -> Self;
}

/// Reads a caller's config, whatever its age.
///
/// # Safety
/// `ptr` is NULL or points to at least 8 readable bytes, and to `struct_size` readable bytes.
pub(crate) unsafe fn read<C: Config>(ptr: *const C) -> Result<C> {
    if ptr.is_null() || !ptr.cast::<u64>().is_aligned() {
        crate::bail!(NMC_ERR_INVALID_ARG, "{}: the config pointer is NULL or not aligned to 8 bytes", C::NAME);
    }
    // SAFETY: the caller promises at least 8 readable bytes, and the alignment was checked.
    let (size, abi) = unsafe { (ptr.cast::<u32>().read(), ptr.cast::<u32>().add(1).read()) };
    if !possible(size) || abi == 0 {
        return Err(Error::new(
            NMC_ERR_VERSION,
            format!(
                "{}: struct_size {size} and abi_version {abi} are not those of a config; start from its _INIT macro",
                C::NAME
            ),
        ));
    }
    // SAFETY: the caller promises `size` readable bytes.
    unsafe { adapt(ptr, size as usize) }
}

/// Whether a struct of the ABI can have this size: it has a field behind the size, and is no rubbish.
fn possible(size: u32) -> bool {
    (8..=MAX_STRUCT_BYTES).contains(&size) && size.is_multiple_of(4)
}

/// The struct of `size` bytes at `ptr`, as this library knows it.
///
/// # Safety
/// `ptr` points to `size` readable bytes.
unsafe fn adapt<C: Config>(ptr: *const C, size: usize) -> Result<C> {
    let known = size_of::<C>();
    let mut config = C::defaults();
    // SAFETY: both regions hold at least min(size, known) bytes, and any bit pattern is a valid C (trait contract).
    unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), (&raw mut config).cast::<u8>(), size.min(known)) };
    if size > known {
        // SAFETY: the caller promises `size` readable bytes.
        let tail = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>().add(known), size - known) };
        if let Some(at) = tail.iter().position(|b| *b != 0) {
            crate::bail!(
                NMC_ERR_VERSION,
                "{}: byte {} of {size} is set, but this library knows only {known}; it is older than the header",
                C::NAME,
                known + at
            );
        }
    }
    Ok(config)
}

/// A caller's array of structs that may grow.
pub(crate) struct InStructs<C> {
    first: *const u8,
    stride: usize,
    count: usize,
    _elements: PhantomData<C>,
}

impl<C: Config> InStructs<C> {
    /// Checks the array `name` of `count` elements. NULL is fine if there are none.
    ///
    /// # Safety
    /// `ptr` is NULL or points to `count` structs whose size is what the first field of the first one says; they stay
    /// while the result is used.
    pub(crate) unsafe fn new(ptr: *const C, count: usize, name: &str) -> Result<Self> {
        let mut stride = size_of::<C>();
        if count > 0 {
            // SAFETY: nothing is read yet but the first size, which the caller promises, and its place is checked before.
            stride = unsafe { stride_of(ptr, count, name) }?;
        }
        Ok(Self { first: ptr.cast(), stride, count, _elements: PhantomData })
    }

    /// The elements as this library knows them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<C>> + '_ {
        (0..self.count).map(|at| {
            // SAFETY: `at` is below the count, for which there are `stride` bytes each (contract of `new`).
            let element = unsafe { self.first.add(at * self.stride) };
            // SAFETY: as above; the first was aligned and the stride keeps the rest so.
            let size = unsafe { element.cast::<u32>().read() };
            if size as usize != self.stride {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "{}: struct_size {size} of element {at} is not that of the first, {}; start each from {}",
                    C::NAME,
                    self.stride,
                    macro_of::<C>()
                );
            }
            // SAFETY: the element has `stride` readable bytes.
            unsafe { adapt(element.cast::<C>(), self.stride) }
        })
    }
}

/// A caller's out struct: checked before a call does anything, and written when it has succeeded.
pub(crate) struct OutStruct<T> {
    place: *mut T,
    bytes: usize,
}

impl<T: Copy> OutStruct<T> {
    /// Checks the out pointer `name`.
    ///
    /// # Safety
    /// `T` begins with `struct_size: u32`. `to` is NULL or points to a writable struct whose size is what its first field
    /// says, and which stays while the result is used.
    #[inline]
    pub(crate) unsafe fn new(to: *mut T, name: &str) -> Result<Self> {
        let place = out(to, name)?.as_mut_ptr();
        // SAFETY: the first four bytes are the caller's struct_size.
        let size = unsafe { place.cast::<u32>().read() };
        if !possible(size) || !(size as usize).is_multiple_of(align_of::<T>()) {
            return Err(bad_size::<T>(size, name));
        }
        Ok(Self { place, bytes: (size as usize).min(size_of::<T>()) })
    }

    /// The same for a pointer that may be NULL.
    ///
    /// # Safety
    /// As for `new`.
    #[inline]
    pub(crate) unsafe fn optional(to: *mut T, name: &str) -> Result<Option<Self>> {
        // SAFETY: forwarded from the caller.
        if to.is_null() { Ok(None) } else { unsafe { Self::new(to, name) }.map(Some) }
    }

    /// Stores as much of `value` as there is room for. The caller's `struct_size` stays what it is.
    pub(crate) fn put(&self, value: T) {
        let from = (&raw const value).cast::<u8>();
        // SAFETY: both sides hold at least `bytes` bytes, at least 8 (contract of `new`).
        unsafe { std::ptr::copy_nonoverlapping(from.add(4), self.place.cast::<u8>().add(4), self.bytes - 4) };
    }
}

/// Stores as much of `value` as the caller's struct has room for.
///
/// # Safety
/// `to` is NULL or points to a struct whose first field is its size in bytes.
pub(crate) unsafe fn put_struct<T: Copy>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: forwarded from the caller.
    unsafe { OutStruct::new(to, name_of::<T>()) }?.put(value);
    Ok(())
}

/// A caller's array of out structs. Only the first needs its `struct_size`; the library stores it in the others.
pub(crate) struct OutStructs<T> {
    first: *mut T,
    stride: usize,
    count: usize,
}

impl<T: Copy> OutStructs<T> {
    /// Checks the array `name` of `count` elements. NULL is fine if there are none.
    ///
    /// # Safety
    /// `T` begins with `struct_size: u32`. `to` is NULL or points to `count` writable structs whose size is what the first
    /// field of the first one says, and which stay while the result is used.
    pub(crate) unsafe fn new(to: *mut T, count: usize, name: &str) -> Result<Self> {
        let mut stride = size_of::<T>();
        if count > 0 {
            // SAFETY: the first size is all that is read, and its place is checked before.
            stride = unsafe { stride_of(to.cast_const(), count, name) }?;
        }
        Ok(Self { first: to, stride, count })
    }

    /// Stores as much of `value` as element `at` has room for. An element that the array does not have is left out.
    pub(crate) fn put(&self, at: usize, value: T) {
        if at >= self.count {
            return;
        }
        // SAFETY: `at` is below the count, for which there are `stride` bytes each (contract of `new`).
        let place = unsafe { self.first.cast::<u8>().add(at * self.stride) }.cast::<T>();
        // SAFETY: as above; the stride keeps elements aligned. It fits, being at most MAX_STRUCT_BYTES.
        unsafe { place.cast::<u32>().write(u32::try_from(self.stride).unwrap_or(0)) };
        OutStruct { place, bytes: self.stride.min(size_of::<T>()) }.put(value);
    }
}

/// The distance from one element to the next, which is the size of the first.
///
/// # Safety
/// `ptr` is NULL or points to a readable `u32`.
unsafe fn stride_of<T>(ptr: *const T, count: usize, name: &str) -> Result<usize> {
    out(ptr.cast_mut(), name)?;
    // SAFETY: checked by `out` but for being readable, which the caller promises.
    let size = unsafe { ptr.cast::<u32>().read() };
    let stride = size as usize;
    if !possible(size) || !stride.is_multiple_of(align_of::<T>()) {
        return Err(bad_size::<T>(size, name));
    }
    if stride.checked_mul(count).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        crate::bail!(NMC_ERR_INVALID_ARG, "{name}: {count} elements of {stride} bytes are more than memory has");
    }
    Ok(stride)
}

#[cold]
fn bad_size<T>(size: u32, name: &str) -> Error {
    let text = format!(
        "{name}: struct_size {size} is not that of an {} (a multiple of {} from 8 to {MAX_STRUCT_BYTES}); start it from {}",
        name_of::<T>(),
        align_of::<T>(),
        macro_of::<T>()
    );
    Error::new(NMC_ERR_INVALID_ARG, text)
}

/// The C name of a struct; its Rust name is the same.
fn name_of<T>() -> &'static str {
    let path = std::any::type_name::<T>();
    path.rsplit("::").next().unwrap_or(path)
}

/// `NMC_WORLD_INFO_INIT` for `nmc_world_info_t`.
fn macro_of<T>() -> String {
    format!("{}_INIT", name_of::<T>().trim_end_matches("_t").to_uppercase())
}

#[cfg(test)]
#[allow(clippy::panic, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test reports by failing")]
mod tests {
    use super::*;

    /// What the library knows, in these tests.
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct nmc_thing_t {
        struct_size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: as the trait asks; it is only an element of arrays.
    unsafe impl Config for nmc_thing_t {
        const NAME: &'static str = "nmc_thing_t";
        fn defaults() -> Self {
            Self { struct_size: 16, first: 7, second: 9 }
        }
    }

    /// What programs of other ages know: the first field only, and two more.
    #[repr(C, align(8))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Older {
        struct_size: u32,
        first: u32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Newer {
        known: nmc_thing_t,
        third: u64,
    }

    const VALUE: nmc_thing_t = nmc_thing_t { struct_size: 0, first: 1, second: 2 };

    #[test]
    fn an_out_struct_of_any_age_is_written_as_far_as_it_goes() {
        let mut older = [Older { struct_size: 8, first: 0 }; 2];
        // SAFETY: the size says how much may be written.
        unsafe { put_struct((&raw mut older[0]).cast::<nmc_thing_t>(), VALUE) }.unwrap();
        assert_eq!(older, [Older { struct_size: 8, first: 1 }, Older { struct_size: 8, first: 0 }]);
        let mut newer = Newer { known: nmc_thing_t { struct_size: 24, first: 0, second: 0 }, third: 5 };
        // SAFETY: as above.
        unsafe { put_struct((&raw mut newer).cast::<nmc_thing_t>(), VALUE) }.unwrap();
        assert_eq!(newer, Newer { known: nmc_thing_t { struct_size: 24, ..VALUE }, third: 5 });
    }

    #[test]
    fn an_out_struct_without_its_size_is_refused_and_its_macro_named() {
        for size in [0, 4, 6, 10, 12, 4104, u32::MAX] {
            let mut thing = nmc_thing_t { struct_size: size, first: 0, second: 0 };
            // SAFETY: the struct has 16 bytes; no more are read before the size is refused.
            let refused = unsafe { OutStruct::optional(&raw mut thing, "out_thing") };
            let Err(error) = refused else { panic!("struct_size {size} was accepted") };
            assert_eq!(error.status, NMC_ERR_INVALID_ARG);
            for word in ["out_thing", &format!("struct_size {size} "), "NMC_THING_INIT"] {
                assert!(error.message.contains(word), "{}", error.message);
            }
        }
        // SAFETY: NULL is allowed.
        assert!(unsafe { OutStruct::<nmc_thing_t>::optional(std::ptr::null_mut(), "out_thing") }.unwrap().is_none());
    }

    #[test]
    fn the_first_size_is_the_stride_of_an_out_array() {
        let mut older = [Older { struct_size: 8, first: 0 }; 3];
        older[1].struct_size = 77; // only the first one counts
        // SAFETY: three elements of 8 bytes.
        let places = unsafe { OutStructs::new((&raw mut older[0]).cast::<nmc_thing_t>(), 3, "things") }.unwrap();
        (0..4).for_each(|at| places.put(at, nmc_thing_t { first: 10 + at as u32, ..VALUE }));
        assert_eq!(older.map(|o| (o.struct_size, o.first)), [(8, 10), (8, 11), (8, 12)]);
        let mut newer = [Newer { known: nmc_thing_t { struct_size: 24, ..VALUE }, third: 5 }; 2];
        // SAFETY: two elements of 24 bytes.
        let places = unsafe { OutStructs::new((&raw mut newer[0]).cast::<nmc_thing_t>(), 2, "things") }.unwrap();
        (0..2).for_each(|at| places.put(at, nmc_thing_t { first: 10 + at as u32, ..VALUE }));
        assert_eq!(newer.map(|n| (n.known.struct_size, n.known.first, n.third)), [(24, 10, 5), (24, 11, 5)]);
    }

    #[test]
    fn the_first_size_is_the_stride_of_an_array_that_a_program_fills() {
        let older = [Older { struct_size: 8, first: 3 }, Older { struct_size: 8, first: 4 }];
        // SAFETY: two elements of 8 bytes.
        let found = unsafe { InStructs::<nmc_thing_t>::new((&raw const older[0]).cast(), 2, "things") }.unwrap();
        let found: Vec<_> = found.iter().map(|thing| thing.map(|t| (t.first, t.second)).unwrap()).collect();
        assert_eq!(found, [(3, 9), (4, 9)], "what is missing has its default");
        let mut newer = [Newer { known: nmc_thing_t { struct_size: 24, ..VALUE }, third: 0 }; 2];
        let read = |newer: &[Newer; 2]| -> Result<Vec<nmc_thing_t>> {
            // SAFETY: two elements of 24 bytes.
            unsafe { InStructs::<nmc_thing_t>::new((&raw const newer[0]).cast(), 2, "things") }?.iter().collect()
        };
        assert_eq!(read(&newer).unwrap().len(), 2);
        newer[1].third = 1;
        assert_eq!(read(&newer).unwrap_err().status, NMC_ERR_VERSION, "what is unknown must be zero");
        newer[1].third = 0;
        newer[1].known.struct_size = 16;
        let error = read(&newer).unwrap_err();
        assert_eq!(error.status, NMC_ERR_INVALID_ARG);
        assert!(error.message.contains("struct_size 16 of element 1"), "{}", error.message);
    }

    #[test]
    fn arrays_that_cannot_be_are_refused() {
        let things = [nmc_thing_t { struct_size: 12, ..VALUE }; 2];
        // SAFETY: the size is refused, since its multiples are not aligned.
        assert!(unsafe { InStructs::new(things.as_ptr(), 2, "things") }.is_err());
        let things = [nmc_thing_t { struct_size: 16, ..VALUE }; 2];
        // SAFETY: the count is refused before anything but the first size is read.
        assert!(unsafe { InStructs::new(things.as_ptr(), usize::MAX / 16, "things") }.is_err());
        // SAFETY: NULL is refused.
        assert!(unsafe { InStructs::<nmc_thing_t>::new(std::ptr::null(), 1, "things") }.is_err());
        // SAFETY: nothing is read.
        assert_eq!(unsafe { InStructs::<nmc_thing_t>::new(std::ptr::null(), 0, "things") }.unwrap().iter().count(), 0);
    }
}
