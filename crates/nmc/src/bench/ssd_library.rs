//! A store with an SSD tier as a C program sees it, on top of [`Shelf`].
#![allow(unsafe_code, reason = "calls through the C ABI")]

use super::library::c_api::{
    Config as _, NMC_OBJECT_ON_DISK, NMC_TIER_PAUSED, nmc_buffer_t, nmc_slice_t, nmc_status_t, nmc_tier_config_t,
    nmc_tier_entry_t, nmc_tier_stats_t, nmc_tier_t,
};
use super::library::{blank, call, try_call};
use super::ssd_raw::Place;
use super::store_library::{Part, Shelf, Slices, Wanted};
use crate::args::Failure;
use nanomc::tier::format::{BLOCK, Shape};
use nanomc::tier::io::Buffer;
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of values that are made at a time.
const AT_ONCE: usize = 16 << 20;

/// Values by their keys, and where they lie.
type Found = HashMap<Vec<u8>, Place>;

/// An embedded store that owns a tier.
pub struct Drive {
    // Its handle is closed by hand, before the store.
    tier: *mut nmc_tier_t,
    /// The store.
    pub shelf: Shelf,
    /// How long opening the tier took.
    pub opened: Duration,
}

// SAFETY: the addresses of thread-safe functions and objects of the library, and options that nobody changes.
unsafe impl Sync for Drive {}

impl Drive {
    /// A new store with the tier in `directory`, for `max_objects` values or, if that is 0, the default; `paused` writes only when
    /// told.
    pub fn open(wanted: &Wanted, directory: &Path, max_objects: u64, paused: bool) -> Result<Self, Failure> {
        let directory = directory.as_os_str().as_bytes();
        let config = nmc_tier_config_t {
            directory: nmc_slice_t { ptr: directory.as_ptr().cast(), len: directory.len() },
            max_objects,
            flags: if paused { NMC_TIER_PAUSED } else { 0 },
            ..nmc_tier_config_t::defaults()
        };
        let shelf = Shelf::embedded(wanted)?;
        let mut drive = Self { tier: std::ptr::null_mut(), shelf, opened: Duration::ZERO };
        let start = Instant::now();
        let Shelf { nanomc, store, .. } = &drive.shelf;
        // SAFETY: a full config whose path lives during the call; the out-pointer is ours.
        unsafe { try_call!(nanomc, nmc_tier_open(*store, &raw const config, &raw mut drive.tier)) }?;
        drive.opened = start.elapsed();
        Ok(drive)
    }

    /// Stores values that no disk can make smaller, under these keys.
    pub fn fill(&self, keys: Part<'_>, bytes: usize) -> Result<(), Failure> {
        let at_once = (AT_ONCE / bytes).clamp(1, 256).min(keys.len());
        let values = Slices::noise(at_once, bytes);
        for part in keys.0.chunks(at_once) {
            self.shelf.check("nmc_store_put_batch", self.shelf.put_batch(Part(part), values.all()))?;
        }
        Ok(())
    }

    /// `nmc_tier_offload` of everything that is in memory and not on disk; how many values that were.
    pub fn offload_all(&self) -> Result<u64, Failure> {
        let mut written = 0;
        let none = std::ptr::null();
        // SAFETY: no keys; the out-pointer is a local.
        unsafe { try_call!(self.shelf.nanomc, nmc_tier_offload(self.tier, none, 0, &raw mut written)) }?;
        Ok(written)
    }

    /// Stores values and moves them to disk: they are not in memory any more.
    pub fn fill_disk(&self, keys: Part<'_>, bytes: usize) -> Result<(), Failure> {
        self.fill(keys, bytes)?;
        self.offload_all()?;
        self.evict()?;
        let mut states = vec![0; keys.len()];
        self.shelf.exist(keys, &mut states);
        match states.iter().filter(|state| **state != NMC_OBJECT_ON_DISK).count() {
            0 => Ok(()),
            n => Err(Failure::new(format!("{n} of {} values are not on disk alone", keys.len()))),
        }
    }

    /// `nmc_store_evict_until_below`: nothing stays in memory that can go.
    pub fn evict(&self) -> Result<(), Failure> {
        let Shelf { nanomc, store, .. } = &self.shelf;
        // SAFETY: the library checks the handle.
        unsafe { try_call!(nanomc, nmc_store_evict_until_below(*store, 0, 0)) }
    }

    /// `nmc_store_get_into_batch`.
    #[inline(always)]
    pub fn get_into_batch(&self, keys: Part<'_>, to: &mut Buffers) -> nmc_status_t {
        let n = keys.len().min(to.places.len());
        let (keys, to) = (keys.0.as_ptr(), to.places.as_ptr());
        let Shelf { nanomc, store, .. } = &self.shelf;
        // SAFETY: `n` keys and buffers that live during the call; no statuses are asked for.
        unsafe { call!(nanomc, nmc_store_get_into_batch(*store, keys, to, n, std::ptr::null_mut())) }
    }

    /// `nmc_tier_stats`.
    pub fn stats(&self) -> Result<nmc_tier_stats_t, Failure> {
        // SAFETY: numbers, for which all zero is a value.
        let mut stats: nmc_tier_stats_t = unsafe { blank() };
        // SAFETY: an out-pointer that is a local, with its size.
        unsafe { try_call!(self.shelf.nanomc, nmc_tier_stats(self.tier, &raw mut stats)) }?;
        Ok(stats)
    }

    /// Where the values of these keys lie. They are not so small that they lie beside their headers.
    pub fn places(&self, keys: Part<'_>) -> Result<Vec<Place>, Failure> {
        let found = self.found()?;
        let place = |key: super::store_library::Item<'_>| found.get(key.bytes()).copied();
        keys.each().map(place).collect::<Option<_>>().ok_or_else(|| Failure::new("a key is not on disk"))
    }

    /// The same of all values, in their order on disk.
    pub fn all_places(&self) -> Result<Vec<Place>, Failure> {
        let mut places: Vec<Place> = self.found()?.into_values().collect();
        places.sort_by_key(|place| (place.file, place.offset));
        Ok(places)
    }

    /// What is on disk, by `nmc_tier_scan`.
    fn found(&self) -> Result<Found, Failure> {
        unsafe extern "C" fn take(user: *mut c_void, entry: *const nmc_tier_entry_t) -> i32 {
            // SAFETY: `user` is the map below, which nobody else uses during the scan; the entry is valid during the call.
            let (found, entry) = unsafe { (&mut *user.cast::<Found>(), *entry) };
            // SAFETY: as above.
            let key = unsafe { std::slice::from_raw_parts(entry.key.ptr.cast::<u8>(), entry.key.len) };
            let shape = Shape::of(key.len(), entry.bytes);
            let offset = entry.block * BLOCK as u64 + shape.value_at;
            found.insert(key.to_vec(), Place { file: entry.bucket, offset });
            1
        }
        let mut found = Found::new();
        let user = (&raw mut found).cast();
        // SAFETY: the function takes what it is given, and the map outlives the call.
        unsafe { try_call!(self.shelf.nanomc, nmc_tier_scan(self.tier, Some(take), user)) }?;
        Ok(found)
    }

    /// Ends in order.
    pub fn close(mut self) -> Result<(), Failure> {
        let tier = std::mem::replace(&mut self.tier, std::ptr::null_mut());
        // SAFETY: a handle that was not closed yet.
        unsafe { try_call!(self.shelf.nanomc, nmc_tier_close(tier)) }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // SAFETY: the library checks handles; NULL is fine.
        unsafe { call!(self.shelf.nanomc, nmc_tier_close(self.tier)) };
    }
}

/// Memory that values are read to, as a C program passes it.
pub struct Buffers {
    pub(super) places: Vec<nmc_buffer_t>,
    memory: Vec<Buffer>,
}

impl Buffers {
    /// `count` of `bytes` each, at multiples of a block, all of it touched.
    pub fn new(count: usize, bytes: usize) -> Result<Self, Failure> {
        let mut memory = (0..count).map(|_| Buffer::new(bytes)).collect::<Result<Vec<_>, _>>()?;
        memory.iter_mut().for_each(|buffer| buffer.fill(1));
        let place = |buffer: &mut Buffer| nmc_buffer_t { ptr: buffer.as_mut_ptr().cast(), len: buffer.len() };
        let places = memory.iter_mut().map(place).collect();
        Ok(Self { places, memory })
    }

    /// Their bytes.
    pub fn slices(&mut self) -> Vec<&mut [u8]> {
        self.memory.iter_mut().map(|buffer| &mut **buffer).collect()
    }

    /// Those of the first one.
    pub fn first(&mut self) -> &mut [u8] {
        &mut self.memory[0]
    }
}
