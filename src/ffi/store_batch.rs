//! `nmc_store_*_batch`: many objects in one call, asking the master as seldom as possible.

use super::arg::{array, array_out, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::store::{nmc_store_t, presence_code, status_of, with};
use super::store_access::{opened_of, pin_of, pinned, plan_of, view_of};
use super::store_types::{
    metadata_of, nmc_buffer_t, nmc_put_options_t, nmc_view_t, nmc_write_plan_t, parse_batch_options,
};
use super::{guard_status, optional_out, out, remember, remember_missing};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_NOT_FOUND, NMC_NOT_READY, NMC_OK, nmc_status_t};
use crate::store::copy::Pieces;
use crate::store::types::{Look, PutOptions};

/// Where the results of the items of a batch go.
pub(super) struct Statuses<'a> {
    places: &'a mut [nmc_status_t],
    /// What the call returns: the status of the first item that failed; if none did, of the first that is not ready.
    pub(super) first: nmc_status_t,
    /// Which item that is.
    item: usize,
}

impl<'a> Statuses<'a> {
    /// # Safety
    /// `ptr` is NULL or points to `n` statuses.
    pub(super) unsafe fn new(ptr: *mut nmc_status_t, n: usize) -> Result<Self> {
        // SAFETY: forwarded from the caller.
        let places = if ptr.is_null() { &mut [] } else { unsafe { array_out(ptr, n, "out_statuses") }? };
        Ok(Self { places, first: NMC_OK, item: usize::MAX })
    }

    /// Nothing was done, for want of memory: so says every item.
    pub(super) fn refuse(&mut self, error: &Error) -> nmc_status_t {
        self.places.fill(error.status);
        remember(error)
    }

    pub(super) fn set(&mut self, item: usize, result: Result<nmc_status_t>) {
        self.set_of(item, &[], result);
    }

    /// The same, for a look for `key`: a miss is no error yet.
    pub(super) fn set_of(&mut self, item: usize, key: &[u8], result: Result<nmc_status_t>) {
        let status = result.as_ref().map_or_else(|error| error.status, |status| *status);
        if let Some(place) = self.places.get_mut(item) {
            *place = status;
        }
        // Items with bad arguments are known before the others: what counts is the order of the items.
        let earlier = (status < 0) == (self.first < 0) && item < self.item;
        if status != NMC_OK && (earlier || (status < 0 && self.first >= 0)) {
            (self.first, self.item) = (status, item);
            match &result {
                Err(error) => _ = remember(error),
                Ok(NMC_ERR_NOT_FOUND) => _ = remember_missing(key),
                Ok(_) => {}
            }
        }
    }
}

/// The metadata of the objects of a batch, if each has its own.
struct MetadataEach<'a> {
    given: &'a [nmc_slice_t],
    /// Of those whose arguments are right.
    taken: Vec<&'a [u8]>,
}

impl<'a> MetadataEach<'a> {
    /// # Safety
    /// `ptr` is NULL or points to `n` slices.
    unsafe fn new(ptr: *const nmc_slice_t, n: usize) -> Result<Self> {
        // SAFETY: forwarded from the caller.
        let given = if ptr.is_null() { &[] } else { unsafe { array(ptr, n, "metadata_each") }? };
        Ok(Self { given, taken: Vec::new() })
    }

    /// Room for all of it.
    fn room(&mut self) -> Result<()> {
        memory::reserve(&mut self.taken, self.given.len())
    }

    /// Takes that of object `item`, which is the next whose key is right.
    fn take(&mut self, item: usize) -> Result<()> {
        if let Some(given) = self.given.get(item) {
            // SAFETY: by the contract of `new` these are slices of the caller.
            self.taken.push(unsafe { metadata_of(*given) }?);
        }
        Ok(())
    }
}

/// The keys that can be one, and their numbers; the others have their status.
///
/// # Safety
/// Each of `keys` is one as the C contract says.
pub(super) unsafe fn good_keys<'a>(
    keys: &[nmc_slice_t],
    statuses: &mut Statuses<'_>,
) -> Result<(Vec<&'a [u8]>, Vec<usize>)> {
    let (mut good, mut numbers) = pair(keys.len())?;
    for (i, key) in keys.iter().enumerate() {
        // SAFETY: forwarded from the caller.
        match unsafe { key_of(*key) } {
            Ok(key) => {
                good.push(key);
                numbers.push(i);
            }
            Err(error) => statuses.set(i, Err(error)),
        }
    }
    Ok((good, numbers))
}

/// Two empty lists with room for `n`.
fn pair<A, B>(n: usize) -> Result<(Vec<A>, Vec<B>)> {
    Ok((memory::with_capacity(n)?, memory::with_capacity(n)?))
}

/// Stores `n` values, `values[i]` under `keys[i]`. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
/// `keys[i]`. `options` apply to all and may be NULL. One that fails does not stop the others. Otherwise like
/// `nmc_store_put`.
///
/// Asks the master once for every 256 objects. Thread-safe. Not graph-safe. Returns `NMC_OK` if all succeeded,
/// otherwise the status of the first item that failed. Statuses as for `nmc_store_put`; `NMC_ERR_NO_MEMORY` is also
/// given for all items at once, before anything is done, if there is no memory for lists of `n`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_put_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    values: *const nmc_slice_t,
    n: usize,
    options: *const nmc_put_options_t,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, (options, each), mut statuses) = unsafe {
                (
                    array(keys, n, "keys")?,
                    array(values, n, "values")?,
                    parse_batch_options(options)?,
                    Statuses::new(out_statuses, n)?,
                )
            };
            // SAFETY: the C contract of `metadata_each`.
            let mut metadata = unsafe { MetadataEach::new(each, n) }?;
            let (mut items, mut numbers) = match metadata.room().and_then(|()| pair(n)) {
                Ok(room) => room,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            for (i, (key, value)) in keys.iter().zip(values).enumerate() {
                // SAFETY: the C contract of `values`; what cannot be memory is refused.
                let pieces = Pieces::Slices(unsafe { slices_of(std::slice::from_ref(value)) });
                // SAFETY: the C contract of `keys`.
                let key = unsafe { key_of(*key) }.and_then(|key| pieces.check().map(|()| key));
                match key.and_then(|key| metadata.take(i).map(|()| key)) {
                    Ok(key) => {
                        items.push((key, pieces));
                        numbers.push(i);
                    }
                    Err(error) => statuses.set(i, Err(error)),
                }
            }
            match store.put_many(&items, &PutOptions { metadata_each: &metadata.taken, ..options }) {
                Ok(results) => {
                    for (i, result) in numbers.iter().zip(results) {
                        statuses.set(*i, result.map(|()| NMC_OK));
                    }
                }
                Err(error) => return Ok(statuses.refuse(&error)),
            }
            Ok(statuses.first)
        })
    })
}

/// Reads `n` values into `buffers`, each of exactly the value's size. Values that are only on disk are read together:
/// up to `depth` of the tier requests are under way at a time, for 64 values at most. Items that are being written give
/// `NMC_NOT_READY`. Otherwise like `nmc_store_get_into` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_into_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (keys, buffers, mut statuses) =
                unsafe { (array(keys, n, "keys")?, array(buffers, n, "buffers")?, Statuses::new(out_statuses, n)?) };
            let item = |i: usize| {
                // SAFETY: the C contract of `keys` and `buffers`; what cannot be memory is refused.
                let (key, buffer) = unsafe { (key_of(keys[i])?, slices_of(std::slice::from_ref(&buffers[i]))) };
                Ok((key, Pieces::Slices(buffer)))
            };
            store.get_many_into(n, item, |i, look| {
                // SAFETY: as above.
                let key = unsafe { key_of(keys[i]) }.unwrap_or_default();
                statuses.set_of(i, key, look.map(|look| status_of(&look)));
            });
            Ok(statuses.first)
        })
    })
}

/// Stores in `out_states[i]` whether the object `keys[i]` is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY` or, if it is
/// only on disk, `_ON_DISK`. Otherwise like `nmc_store_exists`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_exists_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_states: *mut u32,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (keys, states) = unsafe { (array(keys, n, "keys")?, array_out(out_states, n, "out_states")?) };
            let mut places = states.iter_mut();
            // SAFETY: the C contract of `keys`.
            store.look_many_anywhere(keys.iter().map(|key| unsafe { key_of(*key) }), |presence| {
                if let Some(place) = places.next() {
                    *place = presence_code(presence);
                }
                true
            })?;
            Ok(NMC_OK)
        })
    })
}

/// Stores in `*out_matched` how many of the `n` keys, from the first one on, can be read from memory or from disk. This
/// tells an engine how much of a prompt is cached. It does not read the disk.
///
/// Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
/// Statuses: `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (one is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_match_prefix(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_matched: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_matched, "out_matched")?;
            // SAFETY: the C contract of `keys`.
            let keys = unsafe { array(keys, n, "keys") }?;
            // SAFETY: as above.
            place.write(store.match_prefix(keys.iter().map(|key| unsafe { key_of(*key) }))?);
            Ok(NMC_OK)
        })
    })
}

/// Removes `n` objects, in memory and on disk. Otherwise like `nmc_store_remove` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_remove_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (keys, mut statuses) = unsafe { (array(keys, n, "keys")?, Statuses::new(out_statuses, n)?) };
            // SAFETY: the C contract of `keys`.
            let (good, numbers) = match unsafe { good_keys(keys, &mut statuses) } {
                Ok(good) => good,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            match store.remove_many(&good) {
                Ok(results) => {
                    for (i, result) in numbers.iter().zip(results) {
                        statuses.set(*i, result.map(|()| NMC_OK));
                    }
                }
                Err(error) => return Ok(statuses.refuse(&error)),
            }
            Ok(statuses.first)
        })
    })
}

/// Opens `n` objects of `sizes[i]` bytes for writing. Plans of items that failed are all zero. Otherwise like
/// `nmc_store_open_for_write` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_open_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    sizes: *const u64,
    n: usize,
    options: *const nmc_put_options_t,
    out_plans: *mut nmc_write_plan_t,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (keys, sizes, (options, each), plans, mut statuses) = unsafe {
                (
                    array(keys, n, "keys")?,
                    array(sizes, n, "sizes")?,
                    parse_batch_options(options)?,
                    array_out(out_plans, n, "out_plans")?,
                    Statuses::new(out_statuses, n)?,
                )
            };
            // SAFETY: the C contract of `metadata_each`.
            let mut metadata = unsafe { MetadataEach::new(each, n) }?;
            // SAFETY: all zero is a valid plan: integers and null pointers.
            plans.iter_mut().for_each(|plan| *plan = unsafe { std::mem::zeroed() });
            let (mut items, mut numbers) = match metadata.room().and_then(|()| pair(n)) {
                Ok(room) => room,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            for (i, (key, size)) in keys.iter().zip(sizes).enumerate() {
                // SAFETY: the C contract of `keys`.
                match unsafe { key_of(*key) }.and_then(|key| metadata.take(i).map(|()| key)) {
                    Ok(key) => {
                        items.push((key, *size));
                        numbers.push(i);
                    }
                    Err(error) => statuses.set(i, Err(error)),
                }
            }
            let results = match store.open_many(&items, &PutOptions { metadata_each: &metadata.taken, ..options }) {
                Ok(results) => results,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            for ((i, (key, _)), opened) in numbers.iter().zip(&items).zip(results) {
                let written = opened.and_then(|(opened, location)| plan_of(store, key, &opened, &location));
                let result = written.and_then(|plan| match plans.get_mut(*i) {
                    Some(place) => {
                        *place = plan;
                        Ok(NMC_OK)
                    }
                    None => Err(Error::new(NMC_ERR_INTERNAL, "more plans than keys")),
                });
                statuses.set(*i, result);
            }
            Ok(statuses.first)
        })
    })
}

/// Commits `n` plans. Otherwise like `nmc_store_commit` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_commit_batch(
    store: *mut nmc_store_t,
    plans: *const nmc_write_plan_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (plans, mut statuses) = unsafe { (array(plans, n, "plans")?, Statuses::new(out_statuses, n)?) };
            let commit = store.committing();
            for (i, plan) in plans.iter().enumerate() {
                // SAFETY: a plan of the caller's array.
                let committed = unsafe { opened_of(plan) }.and_then(|plan| commit(&plan));
                statuses.set(i, committed.map(|()| NMC_OK));
            }
            Ok(statuses.first)
        })
    })
}

/// Pins `n` objects. If `out_pinned` is not NULL, pins as many as it can and stores their number there. If it is NULL,
/// pins all or none: a failure unpins those that were pinned. Views of items that failed are all zero. Otherwise like
/// `nmc_store_pin` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_pin_batch(
    store: *mut nmc_store_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_views: *mut nmc_view_t,
    out_pinned: *mut usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let count = optional_out(out_pinned, "out_pinned")?;
            // SAFETY: the C contract of these arguments.
            let (keys, views, mut statuses) = unsafe {
                (array(keys, n, "keys")?, array_out(out_views, n, "out_views")?, Statuses::new(out_statuses, n)?)
            };
            // SAFETY: all zero is a valid view: integers and null pointers.
            views.iter_mut().for_each(|view| *view = unsafe { std::mem::zeroed() });
            let mut held = 0;
            for (i, (key, view)) in keys.iter().zip(views.iter_mut()).enumerate() {
                // SAFETY: the C contract of `keys`.
                let key = match unsafe { key_of(*key) } {
                    Ok(key) => key,
                    Err(error) => {
                        statuses.set(i, Err(error));
                        continue;
                    }
                };
                let result = store.pin(key).and_then(|look| {
                    if let Look::Ready((pin, location)) = &look {
                        *view = pinned(store, *pin, location, location.n_pages)?;
                        held += 1;
                    }
                    match &look {
                        Look::Missing if store.is_on_disk(key)? => Ok(NMC_NOT_READY),
                        look => Ok(status_of(look)),
                    }
                });
                statuses.set_of(i, key, result);
            }
            match count {
                Some(count) => {
                    count.write(held);
                }
                None if statuses.first != NMC_OK => {
                    // All of them, also if one fails. No epoch is 0.
                    let mut ended = Ok(());
                    for view in views.iter_mut().filter(|view| view.epoch != 0) {
                        ended = store.unpin(pin_of(view)).and(ended);
                        // SAFETY: as above.
                        *view = unsafe { std::mem::zeroed() };
                    }
                    ended?;
                }
                None => {}
            }
            Ok(statuses.first)
        })
    })
}

/// Ends `n` pins. Otherwise like `nmc_store_unpin` and `nmc_store_put_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_unpin_batch(
    store: *mut nmc_store_t,
    views: *const nmc_view_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (views, mut statuses) = unsafe { (array(views, n, "views")?, Statuses::new(out_statuses, n)?) };
            for (i, view) in views.iter().enumerate() {
                // SAFETY: a view of the caller's array.
                let view = unsafe { view_of(view) }?;
                statuses.set(i, store.unpin(pin_of(view)).map(|()| NMC_OK));
            }
            Ok(statuses.first)
        })
    })
}
