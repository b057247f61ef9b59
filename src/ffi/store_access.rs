//! `nmc_store_*` for programs that touch the bytes themselves: where an object is, write plans, pins.

use super::basic::nmc_slice_t;
use super::store::{array, array_out, key_of, missed, nmc_store_t, with};
use super::store_types::{
    nmc_extent_t, nmc_object_meta_t, nmc_put_options_t, nmc_view_t, nmc_write_plan_t, parse_options,
};
use super::{guard, guard_status, out};
use crate::base::error::Result;
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::store::Store;
use crate::store::master::Opened;
use crate::store::read::{Extents, Location, Look, Pin};
use std::ffi::c_void;

/// Tells where an object is, without pinning it: by the time the caller looks there, it may be gone. Never blocks.
///
/// Does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`,
/// `NMC_ERR_PEER_LOST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_location(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    meta: *mut nmc_object_meta_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(meta, "meta")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let look = store.location(key)?;
            if let Look::Ready(l) = look {
                let (payload, _) = payload(store, &l)?;
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
            missed(key, &look)
        })
    })
}

/// First byte of a value here and on the GPU.
#[inline(always)]
fn payload(store: &Store, l: &Location) -> Result<(u64, u64)> {
    if l.bytes_total == 0 {
        return Ok((0, 0));
    }
    let device = store.device_base(l.owner_rank);
    Ok((store.base(l.owner_rank)? + l.offset, if device == 0 { 0 } else { device + l.offset }))
}

/// Opens an object of `bytes` bytes for writing: the program stores the bytes itself, where the plan says, with its own
/// kernels or memcpy, and commits. Until then nobody can read it, and the key counts as taken.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses as for `nmc_store_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_open_for_write(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    bytes: u64,
    options: *const nmc_put_options_t,
    plan: *mut nmc_write_plan_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(plan, "plan")?;
            // SAFETY: the C contract of these arguments.
            let (key, options) = unsafe { (key_of(key)?, parse_options(options)?) };
            let (opened, location) = store.open_for_write(key, bytes, &options)?;
            place.write(plan_of(store, key, &opened, &location)?);
            Ok(())
        })
    })
}

pub(super) fn plan_of(store: &Store, key: &[u8], opened: &Opened, l: &Location) -> Result<nmc_write_plan_t> {
    let (payload, payload_device) = match payload(store, l) {
        Ok(found) => found,
        Err(error) => {
            let _ = store.abort(opened);
            return Err(error);
        }
    };
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
    let plans = unsafe { array(plan, 1, "plan") }?;
    match plans.first() {
        Some(plan) => Ok(Opened { index: plan.index, epoch: plan.epoch, plan_id: plan.plan_id }),
        None => crate::bail!(NMC_ERR_INVALID_ARG, "plan is NULL"),
    }
}

/// Publishes an object whose bytes are all stored (by this thread, or by whoever it is ordered after). If the program has
/// stored `epoch` into the publish word itself, it only looks what became of the plan. Idempotent while the object lives.
/// With `NMC_PUT_REPLACE` the new value takes the place of the old one now. A program that publishes by itself calls it too, soon
/// after: until then the library keeps the plan.
///
/// Asks the master only to replace, and to tell it that a plan which it gave up is over. Thread-safe. Graph-safe. Statuses: `NMC_ERR_STALE` (the master gave the
/// plan up: it took longer than the watchdog, or the key was removed), `NMC_ERR_NOT_FOUND` (no such plan, or aborted),
/// `NMC_ERR_UNAVAILABLE` and `NMC_ERR_TIMEOUT` (to replace: the commit can be repeated).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_commit(store: *mut nmc_store_t, plan: *const nmc_write_plan_t) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.commit(&unsafe { opened_of(plan) }?)))
}

/// Tells readers that the first `pages` pages of the plan are stored: they may begin with them (`nmc_store_pin_partial`).
/// Never less than before. Otherwise like `nmc_store_commit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_publish_pages(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    pages: u32,
) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.publish_pages(&unsafe { opened_of(plan) }?, pages.into())))
}

/// Gives a plan up. The caller says by it that nothing stores for the plan any more: streams are drained, no captured
/// graph will be launched again with it. The memory is free at once.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_INVALID_ARG` (it is
/// committed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_abort(store: *mut nmc_store_t, plan: *const nmc_write_plan_t) -> nmc_status_t {
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.abort(&unsafe { opened_of(plan) }?)))
}

/// The extents of a plan, in order: stores up to `capacity` of them and their number in `*n`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL` (`*n` is stored),
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_plan_extents(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    extents: *mut nmc_extent_t,
    capacity: usize,
    n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `plan`.
            let opened = unsafe { opened_of(plan) }?;
            // SAFETY: the C contract of `extents`.
            unsafe { extents_out(store, store.plan_extents(&opened)?, extents, capacity, n) }
        })
    })
}

/// The extents of a pinned object, in order. Otherwise like `nmc_store_plan_extents`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_view_extents(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    extents: *mut nmc_extent_t,
    capacity: usize,
    n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `view`.
            let view = unsafe { view_of(view) }?;
            store.check_view(pin_of(view))?;
            // SAFETY: the C contract of `extents`.
            unsafe { extents_out(store, store.extents(view.index)?, extents, capacity, n) }
        })
    })
}

/// # Safety
/// `extents` points to `capacity` structs, unless that is 0.
unsafe fn extents_out(
    store: &Store,
    found: Extents,
    extents: *mut nmc_extent_t,
    capacity: usize,
    n: *mut usize,
) -> Result<()> {
    let count = out(n, "n")?;
    let Extents { owner_rank, bytes_total, runs } = found;
    count.write(runs.len());
    if runs.len() > capacity {
        crate::bail!(NMC_ERR_TOO_SMALL, "there are {} extents, and room for {capacity}", runs.len());
    }
    // SAFETY: forwarded from the caller.
    let places = unsafe { array_out(extents, runs.len(), "extents") }?;
    let (base, device) = (store.base(owner_rank)?, store.device_base(owner_rank));
    let mut left = bytes_total;
    for (place, (offset, bytes)) in places.iter_mut().zip(runs) {
        let device_ptr = if device == 0 { 0 } else { device + offset };
        let bytes = bytes.min(left);
        left -= bytes;
        *place = nmc_extent_t { ptr: (base + offset) as *mut c_void, device_ptr: device_ptr as *mut c_void, bytes };
    }
    Ok(())
}

/// Pins an object and stores a view of it: its bytes stay where and what they are until `nmc_store_unpin`, also if it is
/// removed or evicted meanwhile, or the master dies. Unpin soon: pinned memory cannot be evicted.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe (the CPU pins before the launch). Statuses:
/// `NMC_NOT_READY`, `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_PEER_LOST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_pin(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(view, "view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.pin(key)? {
                Look::Ready((pin, location)) => {
                    place.write(pinned(store, pin, &location, location.n_pages)?);
                    Ok(NMC_OK)
                }
                other => missed(key, &other),
            }
        })
    })
}

/// Like `nmc_store_pin`, for an object that may still be being written, if at least its first `pages` pages are ready
/// (`nmc_store_publish_pages`); `ready_pages` of the view tells how many are. Only those may be read. If the writer gives
/// up, what is there stays until it is unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_pin_partial(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    pages: u32,
    view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(view, "view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.pin_partial(key, pages.into())? {
                Look::Ready((pin, location, ready)) => {
                    place.write(pinned(store, pin, &location, u32::try_from(ready).unwrap_or(u32::MAX))?);
                    Ok(NMC_OK)
                }
                other => missed(key, &other),
            }
        })
    })
}

#[inline(always)]
pub(super) fn pinned(store: &Store, pin: Pin, l: &Location, ready_pages: u32) -> Result<nmc_view_t> {
    let (data, data_device) = match payload(store, l) {
        Ok(found) => found,
        Err(error) => {
            store.unpin(pin)?;
            return Err(error);
        }
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
    match unsafe { array(view, 1, "view") }?.first() {
        Some(view) => Ok(view),
        None => crate::bail!(NMC_ERR_INVALID_ARG, "view is NULL"),
    }
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

/// How many pages of a pinned object are ready by now: stores it in `*pages`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_STALE` (its writer gave
/// up: no more will come).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_ready_pages(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    pages: *mut u32,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(pages, "pages")?;
            // SAFETY: the C contract of `view`.
            let view = unsafe { view_of(view) }?;
            store.check_view(pin_of(view))?;
            let (ready, _) = store.progress(view.index, view.epoch)?;
            place.write(u32::try_from(ready).unwrap_or(u32::MAX));
            Ok(())
        })
    })
}
