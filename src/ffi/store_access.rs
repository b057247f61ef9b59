//! `nmc_store_*` for programs that touch the bytes themselves: where an object is, write plans, pins.

use super::arg::{array_out, key_of, one};
use super::basic::nmc_slice_t;
use super::store::{metadata_out, missed_in_memory, nmc_store_t, status_of, with};
use super::store_types::{
    nmc_extent_t, nmc_object_meta_t, nmc_put_options_t, nmc_view_t, nmc_write_plan_t, parse_options,
};
use super::{guard, guard_status, optional_out, out};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::store::Store;
use crate::store::types::{Extents, Location, Look, Opened, Pin};
use std::ffi::c_void;

/// Stores where in memory an object is, without pinning it: by the time the caller looks there, it may be gone.
///
/// Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
/// Statuses: `NMC_NOT_READY` (it is being written, or is only on disk), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`,
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_location(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    out_meta: *mut nmc_object_meta_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_meta, "out_meta")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let look = store.location(key)?;
            if let Look::Ready(l) = look {
                let (payload, _) = store.payload(&l)?;
                place.write(nmc_object_meta_t {
                    key_hash: store.route_of(key),
                    epoch: l.epoch,
                    bytes_total: l.bytes_total,
                    payload: payload as *const c_void,
                    header: store.header_address(l.index) as *const c_void,
                    owner_rank: l.owner_rank,
                    page_bytes: l.page_bytes,
                    n_pages: l.n_pages,
                    last_page_bytes: l.last_page_bytes,
                    n_extents: l.n_extents,
                    index: l.index,
                    reserved: [0; 2],
                });
            }
            missed_in_memory(store, key, &look)
        })
    })
}

/// Opens an object of `bytes` bytes for writing. The program stores the bytes itself, where the plan says, with its own
/// kernels or memcpy, and then commits. Until then the object cannot be read, and the key counts as taken. A key that
/// is only on disk counts as existing, as for `nmc_store_put`.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses as for `nmc_store_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_open_for_write(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    bytes: u64,
    options: *const nmc_put_options_t,
    out_plan: *mut nmc_write_plan_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(out_plan, "out_plan")?;
            // SAFETY: the C contract of these arguments.
            let (key, options) = unsafe { (key_of(key)?, parse_options(options)?) };
            let (opened, location) = store.open_for_write(key, bytes, &options)?;
            place.write(plan_of(store, key, &opened, &location)?);
            Ok(())
        })
    })
}

pub(super) fn plan_of(store: &Store, key: &[u8], opened: &Opened, l: &Location) -> Result<nmc_write_plan_t> {
    let (payload, payload_device) = store.payload(l).inspect_err(|_| _ = store.abort(opened))?;
    let (publish, publish_device) = store.publish_word(opened.index);
    Ok(nmc_write_plan_t {
        key_hash: store.route_of(key),
        plan_id: opened.plan_id,
        epoch: opened.epoch,
        bytes_total: l.bytes_total,
        payload: payload as *mut c_void,
        payload_device: payload_device as *mut c_void,
        header: store.header_address(opened.index) as *const c_void,
        publish_word: publish as *mut u64,
        publish_word_device: publish_device as *mut u64,
        dst_rank: l.owner_rank,
        page_bytes: l.page_bytes,
        n_pages: l.n_pages,
        last_page_bytes: l.last_page_bytes,
        n_extents: l.n_extents,
        index: opened.index,
        reserved: [0; 2],
    })
}

/// The plan behind a C struct.
///
/// # Safety
/// `plan` is NULL or points to a plan.
pub(super) unsafe fn opened_of(plan: *const nmc_write_plan_t) -> Result<Opened> {
    // SAFETY: forwarded from the caller.
    let plan = unsafe { one(plan, "plan") }?;
    Ok(Opened { index: plan.index, epoch: plan.epoch, plan_id: plan.plan_id })
}

/// Publishes an object whose bytes are all stored, by this thread or before it by others that it is ordered after. With
/// `NMC_PUT_REPLACE` the new value now takes the place of the old one, in memory and on disk. A program that publishes
/// by itself, by storing `epoch` into the publish word, also calls this soon after, since until then the library keeps
/// the plan; the call then only finds out the plan's outcome. Idempotent while the object lives.
///
/// A plan with `NMC_PUT_REPLACE` for a key that exists is not a value of that key yet: `nmc_store_remove` removes the
/// old value and leaves the plan, whose commit then returns `NMC_OK` and stores the key anew.
/// `nmc_store_remove_by_prefix` and `nmc_store_remove_all` give up such a plan too.
///
/// Asks the master only in these cases: to replace, to report that a plan which the master gave up is over, and if the
/// tier writes through or is new to the client (see `nmc_store_t`); it waits for the tier as for an answer.
/// Thread-safe. Graph-safe. Statuses: `NMC_ERR_STALE` (the master gave up the plan: it took longer than the watchdog
/// allows, or the key was removed), `NMC_ERR_NOT_FOUND` (no such plan, or aborted), `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` (when it replaces, or from the tier: the commit can be repeated).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_commit(store: *mut nmc_store_t, plan: *const nmc_write_plan_t) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.commit(&unsafe { opened_of(plan) }?)))
}

/// Publishes the first `pages` pages of a plan, whose bytes are stored: readers may begin with them
/// (`nmc_store_pin_partial`). Never fewer than before. Otherwise like `nmc_store_commit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_publish_pages(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    pages: u32,
) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.publish_pages(&unsafe { opened_of(plan) }?, pages.into())))
}

/// Gives up a plan. By calling this you declare that nothing stores to the plan any more: streams are drained, and no
/// captured graph will be launched with it again. The memory is free at once; after `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` it is free when the master hears of it. The plan is over in every case:
/// there is nothing to repeat.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_INVALID_ARG`
/// (it is committed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_abort(store: *mut nmc_store_t, plan: *const nmc_write_plan_t) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.abort(&unsafe { opened_of(plan) }?)))
}

/// The extents of a plan, in order: stores up to `capacity` of them and their number in `*out_n`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL` (`*out_n` is stored),
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_plan_extents(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    out_extents: *mut nmc_extent_t,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `plan`.
            let opened = unsafe { opened_of(plan) }?;
            // SAFETY: the C contract of `out_extents`.
            unsafe { extents_out(store, store.plan_extents(&opened)?, out_extents, capacity, out_n) }
        })
    })
}

/// The extents of a pinned object, in order. Otherwise like `nmc_store_plan_extents`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_view_extents(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    out_extents: *mut nmc_extent_t,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `view`.
            let pin = pin_of(unsafe { view_of(view) }?);
            // SAFETY: the C contract of `out_extents`.
            unsafe { extents_out(store, store.view_extents(pin)?, out_extents, capacity, out_n) }
        })
    })
}

/// # Safety
/// `out_extents` points to `capacity` structs, unless that is 0.
unsafe fn extents_out(
    store: &Store,
    found: Extents,
    out_extents: *mut nmc_extent_t,
    capacity: usize,
    out_n: *mut usize,
) -> Result<()> {
    let count = out(out_n, "out_n")?;
    let n = found.runs.len();
    count.write(n);
    if n > capacity {
        crate::bail!(NMC_ERR_TOO_SMALL, "there are {n} extents, and room for {capacity}");
    }
    // SAFETY: forwarded from the caller.
    let places = unsafe { array_out(out_extents, n, "out_extents") }?;
    for (place, (ptr, device_ptr, bytes)) in places.iter_mut().zip(store.addresses(found)?) {
        *place = nmc_extent_t { ptr: ptr as *mut c_void, device_ptr: device_ptr as *mut c_void, bytes };
    }
    Ok(())
}

/// Pins an object and stores a view of it. Its bytes stay where and what they are until `nmc_store_unpin`, even if the
/// object is removed or evicted, or the master dies. Unpin soon: pinned memory cannot be evicted.
///
/// Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe
/// (the CPU pins before the launch). Statuses: `NMC_NOT_READY` (it is being written, or is only on disk:
/// `nmc_store_get_into` reads it from there), `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY` (no free pin slot),
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_pin(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    out_view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_view, "out_view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.pin(key)? {
                Look::Ready((pin, location)) => {
                    place.write(pinned(store, pin, &location, location.n_pages)?);
                    Ok(NMC_OK)
                }
                other => missed_in_memory(store, key, &other),
            }
        })
    })
}

/// Pins an object and removes it, for exactly one consumer: of several that ask, in any process, one gets a view; for
/// the others, and for every later call, the key does not exist. The view is one of `nmc_store_pin`; the memory is free
/// when it is unpinned.
///
/// Delivery is at most once. When the call has succeeded, the object belongs to this consumer: if it is killed before
/// it unpins, the value is gone. A consumer that is killed during the call either leaves the object in the store or
/// takes it with it. After `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` and `NMC_ERR_CANCELLED` the object may be gone too:
/// the master may have removed it, and its answer did not come in time. (A call that is cancelled while the master
/// works on it waits up to 250 ms for the answer: with a master that answers, nothing is lost.) If a value must survive
/// its consumer, pin it, use it, and remove it afterwards.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is being written, with
/// `NMC_STORE_CHECKSUMS` not yet committed, or only on disk: then it stays there), `NMC_ERR_NOT_FOUND` (also if another
/// consumer was faster), `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`,
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_IO` (the disk of the store's tier refuses to note that it is gone: nothing was taken,
/// unless it refused for the first time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_consume(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    out_view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_view, "out_view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.consume(key)? {
                Look::Ready((pin, location)) => {
                    place.write(pinned(store, pin, &location, location.n_pages)?);
                    Ok(NMC_OK)
                }
                other => missed_in_memory(store, key, &other),
            }
        })
    })
}

/// Compares every page of a pinned object with its checksum, as a get does: for programs that read in place.
///
/// Reads the whole value; does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (its checksums are
/// not stored yet), `NMC_ERR_CORRUPT` (the message names the page), `NMC_ERR_UNSUPPORTED` (the store has no checksums: those on
/// CUDA heaps never do), `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_PEER_LOST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_verify(store: *mut nmc_store_t, view: *const nmc_view_t) -> nmc_status_t {
    guard_status(|| {
        // SAFETY: the C contract of `view`.
        with(store, |store| Ok(status_of(&store.verify(pin_of(unsafe { view_of(view) }?))?)))
    })
}

/// Like `nmc_store_get_metadata`, for an object that is pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_view_metadata(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    buffer: *mut c_void,
    capacity: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (view, buffer) = unsafe { (view_of(view)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let size = optional_out(out_bytes, "out_bytes")?;
            let look = store.view_metadata(pin_of(view))?;
            if let Look::Ready(metadata) = &look {
                metadata_out(metadata, buffer, size)?;
            }
            Ok(status_of(&look))
        })
    })
}

/// Like `nmc_store_pin`, but also pins an object that is still being written, if at least its first `pages` pages are
/// ready (`nmc_store_publish_pages`). `ready_pages` of the view says how many are; only those may be read. If the
/// writer gives up, these pages stay until they are unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_pin_partial(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    pages: u32,
    out_view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_view, "out_view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.pin_partial(key, pages.into())? {
                Look::Ready((pin, location, ready)) => {
                    place.write(pinned(store, pin, &location, u32::try_from(ready).unwrap_or(u32::MAX))?);
                    Ok(NMC_OK)
                }
                other => missed_in_memory(store, key, &other),
            }
        })
    })
}

#[inline(always)]
pub(super) fn pinned(store: &Store, pin: Pin, l: &Location, ready_pages: u32) -> Result<nmc_view_t> {
    let (data, data_device) = match store.payload(l) {
        Ok(found) => found,
        Err(error) => return Err(unpinned(store, pin, error)),
    };
    Ok(nmc_view_t {
        data: data as *const c_void,
        data_device: data_device as *const c_void,
        bytes: l.bytes_total,
        epoch: pin.epoch,
        ready_pages,
        n_extents: l.n_extents,
        owner_rank: l.owner_rank,
        page_bytes: l.page_bytes,
        index: pin.index,
        slot: pin.slot,
        nonce: pin.turn,
    })
}

#[cold]
fn unpinned(store: &Store, pin: Pin, error: Error) -> Error {
    let _ = store.unpin(pin);
    error
}

/// The pin behind a view.
#[inline(always)]
pub(super) fn pin_of(view: &nmc_view_t) -> Pin {
    Pin { index: view.index, slot: view.slot, epoch: view.epoch, turn: view.nonce }
}

/// # Safety
/// `view` is NULL or points to a view.
#[inline(always)]
pub(super) unsafe fn view_of<'a>(view: *const nmc_view_t) -> Result<&'a nmc_view_t> {
    // SAFETY: forwarded from the caller.
    unsafe { one(view, "view") }
}

/// Ends a pin.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (it is not pinned, or not any more).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_unpin(store: *mut nmc_store_t, view: *const nmc_view_t) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `view`.
            let view = unsafe { view_of(view) }?;
            store.unpin(pin_of(view))
        })
    })
}

/// Stores in `*out_pages` how many pages of a pinned object are ready by now.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_STALE` (its writer
/// gave up: no more will come).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_ready_pages(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    out_pages: *mut u32,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(out_pages, "out_pages")?;
            // SAFETY: the C contract of `view`.
            let ready = store.ready_pages(pin_of(unsafe { view_of(view) }?))?;
            place.write(u32::try_from(ready).unwrap_or(u32::MAX));
            Ok(())
        })
    })
}
