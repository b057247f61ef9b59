//! A store as a C program sees it: `libnanomc.so` loaded at run time, keys and values made beforehand, nothing allocated
//! in a call. The wrappers do what a C++ program would do and no more.
#![allow(unsafe_code, reason = "calls through the C ABI, and copies to and from a store's memory by address")]

use super::library::c_api::{
    Config as _, NMC_OK, nmc_put_options_t, nmc_slice_t, nmc_status_t, nmc_store_config_t, nmc_store_stats_t,
    nmc_store_t, nmc_view_t, nmc_world_config_t, nmc_world_t,
};
use super::library::{Nanomc, blank, call, try_call};
use super::random::Random;
use crate::args::Failure;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bytes of every key.
pub const KEY_BYTES: usize = 32;

/// Keys or values of one size, with the slices that a C program would pass.
pub struct Slices {
    slices: Vec<nmc_slice_t>,
    _bytes: Vec<u8>,
}

impl Slices {
    fn cut(bytes: Vec<u8>, each: usize) -> Self {
        let slices =
            bytes.chunks_exact(each).map(|part| nmc_slice_t { ptr: part.as_ptr().cast(), len: each }).collect();
        Self { slices, _bytes: bytes }
    }

    /// Keys of a family with these numbers, the same in every process, lying one after the other.
    pub fn keys(family: u32, numbers: impl Iterator<Item = u64>) -> Self {
        let word = |seed: u64| {
            let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z ^ z >> 27
        };
        let key = |number: u64| {
            let seed = u64::from(family) << 48 | number;
            [seed, word(seed), word(!seed), word(seed ^ 0x5555)].map(u64::to_le_bytes).concat()
        };
        Self::cut(numbers.flat_map(key).collect(), KEY_BYTES)
    }

    /// `count` values of `each` bytes.
    pub fn values(count: usize, each: usize) -> Self {
        Self::cut(vec![0x5a; count * each], each)
    }

    /// `count` values of `each` bytes that no disk can make smaller.
    pub fn noise(count: usize, each: usize) -> Self {
        Self::cut(Random(1).bytes(count * each), each)
    }

    /// `count` of them from `from` on.
    pub fn part(&self, from: usize, count: usize) -> Part<'_> {
        Part(&self.slices[from..from + count])
    }

    /// All of them.
    pub fn all(&self) -> Part<'_> {
        Part(&self.slices)
    }
}

/// Some keys or values.
#[derive(Clone, Copy)]
pub struct Part<'a>(pub(super) &'a [nmc_slice_t]);

impl<'a> Part<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The first `count` of them.
    pub fn head(&self, count: usize) -> Part<'a> {
        Part(&self.0[..count.min(self.0.len())])
    }

    /// One after the other.
    pub fn each(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.0.iter().map(Item)
    }

    /// Number `at`.
    #[inline(always)]
    pub fn item(&self, at: usize) -> Item<'a> {
        Item(&self.0[at])
    }
}

/// One key or value.
#[derive(Clone, Copy)]
pub struct Item<'a>(pub(super) &'a nmc_slice_t);

impl Item<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `Slices::cut` made the slice from bytes that live as long as it.
        unsafe { std::slice::from_raw_parts(self.0.ptr.cast(), self.0.len) }
    }
}

/// Where the bytes of an object lie in this process.
#[derive(Clone, Copy)]
pub struct Place {
    at: *mut u8,
    bytes: usize,
}

impl Place {
    /// The baseline of a read: memcpy out of the mapping.
    #[inline(always)]
    pub fn copy_to(&self, to: &mut [u8]) {
        assert!(to.len() >= self.bytes);
        // SAFETY: the mapping lives as long as the store, which outlives the measurement; while it runs nobody writes
        // to the object, and `to` is memory of this process that is large enough.
        unsafe { std::ptr::copy_nonoverlapping(self.at, to.as_mut_ptr(), self.bytes) };
    }

    /// The baseline of a write: memcpy into pages of the store that are free.
    #[inline(always)]
    pub fn copy_from(&self, from: Item<'_>) {
        assert!(from.0.len >= self.bytes);
        // SAFETY: as in `copy_to`; the object that was here is removed, so nobody reads the pages.
        unsafe { std::ptr::copy_nonoverlapping(from.0.ptr.cast(), self.at, self.bytes) };
    }
}

/// What a store is to be like.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Bytes of each heap.
    pub heap_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Most objects; 0 for the default.
    pub max_objects: u32,
    /// Whether the heap may be filled to the last page before anything is evicted.
    pub brim: bool,
}

impl Wanted {
    fn config(&self) -> nmc_store_config_t {
        let mark = if self.brim { 1000 } else { -1 };
        nmc_store_config_t {
            heap_bytes: self.heap_bytes,
            page_bytes: self.page_bytes,
            max_objects: self.max_objects,
            high_permille: mark,
            low_permille: mark,
            ..nmc_store_config_t::defaults()
        }
    }
}

/// A client of a store.
pub struct Shelf {
    pub(super) nanomc: Nanomc,
    world: *mut nmc_world_t,
    pub(super) store: *mut nmc_store_t,
    options: nmc_put_options_t,
}

impl Shelf {
    fn load() -> Result<Self, Failure> {
        let nanomc = Nanomc::load()?;
        let options = nmc_put_options_t { preferred_segment: 0, ..nmc_put_options_t::defaults() };
        Ok(Self { nanomc, world: std::ptr::null_mut(), store: std::ptr::null_mut(), options })
    }

    /// A store of this process alone.
    pub fn embedded(wanted: &Wanted) -> Result<Self, Failure> {
        let mut shelf = Self::load()?;
        shelf.create(wanted)?;
        Ok(shelf)
    }

    /// The store of a world of `size` processes, whose values all lie in the heap of rank 0, which runs the master.
    pub fn join(dir: &Path, rank: u32, size: u32, wanted: &Wanted) -> Result<Self, Failure> {
        let mut shelf = Self::load()?;
        let slice = |bytes: &[u8]| nmc_slice_t { ptr: bytes.as_ptr().cast(), len: bytes.len() };
        let config = nmc_world_config_t {
            name: slice(b"bench"),
            dir: slice(dir.as_os_str().as_bytes()),
            rank: i32::try_from(rank).unwrap_or(-1),
            world_size: size,
            heap_bytes: wanted.heap_bytes,
            ..nmc_world_config_t::defaults()
        };
        // SAFETY: a full config whose slices live during the call.
        unsafe { try_call!(shelf.nanomc, nmc_world_join(&raw const config, &raw mut shelf.world)) }?;
        shelf.create(wanted)?;
        Ok(shelf)
    }

    fn create(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let config = wanted.config();
        // SAFETY: a full config; the world is NULL or joined.
        unsafe { try_call!(self.nanomc, nmc_store_create(self.world, &raw const config, &raw mut self.store)) }
    }

    /// Turns a status into a failure with its reason.
    pub fn check(&self, what: &str, status: nmc_status_t) -> Result<(), Failure> {
        self.nanomc.check(what, status)
    }

    /// `nmc_store_put`.
    #[inline(always)]
    pub fn put(&self, key: Item<'_>, value: Item<'_>) -> nmc_status_t {
        let options = &raw const self.options;
        // SAFETY: key and value are slices of this process that live during the call.
        unsafe { call!(self.nanomc, nmc_store_put(self.store, *key.0, value.0.ptr, value.0.len, options)) }
    }

    /// `nmc_store_put_batch`, one value for each key.
    #[inline(always)]
    pub fn put_batch(&self, keys: Part<'_>, values: Part<'_>) -> nmc_status_t {
        let n = keys.len().min(values.len());
        let (keys, values, options) = (keys.0.as_ptr(), values.0.as_ptr(), &raw const self.options);
        // SAFETY: `n` keys and values that live during the call; no statuses are asked for.
        unsafe { call!(self.nanomc, nmc_store_put_batch(self.store, keys, values, n, options, std::ptr::null_mut())) }
    }

    /// `nmc_store_get`.
    #[inline(always)]
    pub fn get(&self, key: Item<'_>, to: &mut [u8]) -> nmc_status_t {
        let mut size = 0;
        // SAFETY: the buffer is ours.
        unsafe {
            call!(self.nanomc, nmc_store_get(self.store, *key.0, to.as_mut_ptr().cast(), to.len(), &raw mut size))
        }
    }

    /// `nmc_store_get_into`.
    #[inline(always)]
    pub fn get_into(&self, key: Item<'_>, to: &mut [u8]) -> nmc_status_t {
        // SAFETY: the buffer is ours.
        unsafe { call!(self.nanomc, nmc_store_get_into(self.store, *key.0, to.as_mut_ptr().cast(), to.len())) }
    }

    /// `nmc_store_exists`; whether it is there.
    #[inline(always)]
    pub fn exists(&self, key: Item<'_>) -> bool {
        let mut state = 0;
        // SAFETY: the out-pointer is a local.
        let status = unsafe { call!(self.nanomc, nmc_store_exists(self.store, *key.0, &raw mut state)) };
        status == NMC_OK && state != 0
    }

    /// `nmc_store_exists_batch`; whether all are there. `states` has room for each of them.
    #[inline(always)]
    pub fn exist(&self, keys: Part<'_>, states: &mut [u32]) -> bool {
        let n = keys.len().min(states.len());
        // SAFETY: `n` keys and states of ours.
        let status =
            unsafe { call!(self.nanomc, nmc_store_exists_batch(self.store, keys.0.as_ptr(), n, states.as_mut_ptr())) };
        status == NMC_OK && states[..n].iter().all(|state| *state != 0)
    }

    /// `nmc_store_pin`, a look at the first byte's address, `nmc_store_unpin`.
    #[inline(always)]
    pub fn pin_unpin(&self, key: Item<'_>) -> nmc_status_t {
        let mut view = MaybeUninit::<nmc_view_t>::uninit();
        // SAFETY: the view is filled by a pin that succeeds, and only then used.
        unsafe {
            match call!(self.nanomc, nmc_store_pin(self.store, *key.0, view.as_mut_ptr())) {
                NMC_OK => call!(self.nanomc, nmc_store_unpin(self.store, view.as_ptr())),
                status => status,
            }
        }
    }

    /// Where these objects lie.
    pub fn places(&self, keys: Part<'_>) -> Result<Vec<Place>, Failure> {
        let place = |key: Item<'_>| {
            let mut view = MaybeUninit::<nmc_view_t>::uninit();
            // SAFETY: the out-pointer is a local.
            unsafe { try_call!(self.nanomc, nmc_store_pin(self.store, *key.0, view.as_mut_ptr())) }?;
            // SAFETY: the pin succeeded, so it is filled.
            let view = unsafe { view.assume_init() };
            // SAFETY: a view that is pinned.
            unsafe { try_call!(self.nanomc, nmc_store_unpin(self.store, &raw const view)) }?;
            let bytes = usize::try_from(view.bytes).map_err(|_| Failure::new("a value does not fit"))?;
            if view.n_extents != 1 {
                return Err(Failure::new(format!("a value lies in {} runs of pages", view.n_extents)));
            }
            Ok(Place { at: view.data.cast_mut().cast(), bytes })
        };
        keys.each().map(place).collect()
    }

    /// `nmc_store_remove_batch`.
    pub fn remove(&self, keys: Part<'_>) -> Result<(), Failure> {
        // SAFETY: keys that live during the call; no statuses are asked for.
        unsafe {
            try_call!(
                self.nanomc,
                nmc_store_remove_batch(self.store, keys.0.as_ptr(), keys.len(), std::ptr::null_mut())
            )
        }
    }

    /// Stores the same value under all keys, in batches.
    pub fn fill(&self, keys: Part<'_>, bytes: usize) -> Result<(), Failure> {
        let at_once = (32 << 20) / bytes.max(1);
        let values = Slices::values(1, bytes);
        let one = *values.all().item(0).0;
        let many = vec![one; at_once.clamp(1, 256)];
        for part in keys.0.chunks(many.len()) {
            self.check("nmc_store_put_batch", self.put_batch(Part(part), Part(&many)))?;
        }
        Ok(())
    }

    /// Bytes of metadata: shared, and of the master in this process.
    pub fn metadata_bytes(&self) -> Result<(u64, u64), Failure> {
        // SAFETY: numbers, for which all zero is a value.
        let mut stats: nmc_store_stats_t = unsafe { blank() };
        // SAFETY: an out-pointer that is a local, with its size; no statistics of ranks are asked for.
        unsafe { try_call!(self.nanomc, nmc_store_stats(self.store, std::ptr::null_mut(), 0, &raw mut stats)) }?;
        Ok((stats.metadata_bytes, stats.master_bytes))
    }

    /// Leaves in order.
    pub fn close(mut self) -> Result<(), Failure> {
        let store = std::mem::replace(&mut self.store, std::ptr::null_mut());
        // SAFETY: a handle that was not destroyed yet.
        unsafe { try_call!(self.nanomc, nmc_store_destroy(store)) }?;
        if !self.world.is_null() {
            // SAFETY: a handle that was not destroyed yet.
            unsafe { try_call!(self.nanomc, nmc_world_finalize(self.world)) }?;
        }
        Ok(())
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // SAFETY: the library checks handles; NULL is fine.
        unsafe {
            call!(self.nanomc, nmc_store_destroy(self.store));
            call!(self.nanomc, nmc_world_destroy(self.world));
        }
    }
}
