//! `nmc_store_*_async` and what graphs and kernels need: the store on CUDA streams.

use super::arg::{array, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::store::{missed_in_memory, nmc_store_t, with};
use super::store_access::{opened_of, pin_of, pinned, view_of};
use super::store_types::{nmc_buffer_t, nmc_view_t, nmc_write_plan_t};
use super::{guard, guard_status, out};
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::cuda::GivenStream;
use crate::store::copy::Pieces;
use crate::store::stream::DevicePin;
use crate::store::types::Look;
use std::ffi::c_void;

/// cbindgen:ignore
#[repr(C)]
pub struct nmc_publish_desc_t {
    /// See `nanomc/layout.h`.
    pub word: u64,
    /// See `nanomc/layout.h`.
    pub epoch: u64,
}

/// cbindgen:ignore
#[repr(C)]
pub struct nmc_device_pin_t {
    /// See `nanomc/layout.h`, also for the others.
    pub slot: u64,
    /// Value.
    pub value: u64,
    /// Control word.
    pub control: u64,
    /// Publish word.
    pub published: u64,
    /// Epoch.
    pub epoch: u64,
    /// First byte.
    pub payload: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Publishes a plan when the stream gets there, after everything that this stream stored before. Order what other
/// streams store before it with events. The value is baked into a captured graph: capture `nmc_store_publish_captured`
/// instead. Call `nmc_store_commit` afterwards for the plan's outcome.
///
/// Does not block. Thread-safe. Statuses: `NMC_ERR_NOT_FOUND` (no such plan), `NMC_ERR_UNSUPPORTED` (no device; a plan
/// with `NMC_PUT_REPLACE` or checksums), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_commit_async(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    // SAFETY: the C contract of `plan`.
    guard(|| with(store, |store| store.commit_async(&unsafe { opened_of(plan) }?, stream)))
}

/// Copies `n` slices of memory that the GPU can reach into the plan's pages, from byte `offset` of the value on, when the
/// stream gets there. Follow with `nmc_store_commit_async`.
///
/// Does not block. Thread-safe. Graph-safe (a captured copy goes to the pages of this plan each time). Statuses as for
/// `nmc_store_commit_async`; `NMC_ERR_INVALID_ARG` for memory that the GPU cannot reach; `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_push_async(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    offset: u64,
    slices: *const nmc_slice_t,
    n: usize,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (plan, slices) = unsafe { (opened_of(plan)?, slices_of(array(slices, n, "slices")?)) };
            let pieces = Pieces::Slices(slices);
            pieces.check()?;
            store.push_async(&plan, offset, &pieces, stream)
        })
    })
}

/// Copies from a pinned object, from byte `offset` on, into `n` buffers that the GPU can reach, when the stream gets
/// there. Unpin afterwards with `nmc_store_unpin_async` on the same stream.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not pinned), `NMC_ERR_UNSUPPORTED`,
/// `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_fetch_async(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    offset: u64,
    buffers: *const nmc_buffer_t,
    n: usize,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (view, buffers) = unsafe { (view_of(view)?, slices_of(array(buffers, n, "buffers")?)) };
            let pieces = Pieces::Slices(buffers);
            pieces.check()?;
            store.fetch_async(pin_of(view), offset, &pieces, stream)
        })
    })
}

/// Ends a pin when the stream gets there: everything that this stream reads of the object before is done then. The view
/// must not be used again by the caller.
///
/// Does not block. Thread-safe. Not to be captured: reserve a slot for that. Statuses: `NMC_ERR_NOT_FOUND` (not pinned),
/// `NMC_ERR_UNSUPPORTED` (no device), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_unpin_async(
    store: *mut nmc_store_t,
    view: *const nmc_view_t,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of `view`.
            let view = unsafe { view_of(view) }?;
            store.unpin_async(pin_of(view), stream)
        })
    })
}

/// Makes the stream wait until an object can be read, which is being written or there already. `*out_result`, in memory
/// that the GPU can reach, or NULL, becomes `NMC_READY_YES`, `NMC_READY_STALE` (it never will be: given up, removed or
/// lost) or `NMC_READY_TIMEOUT` (after `timeout_ms`; -1 for 30 s). One block of the GPU spins during the wait. A
/// published object can still be evicted: pin it from the host after the wait, or in a kernel with `nmc_dev_pin`.
///
/// Does not block. Thread-safe. Graph-safe (it waits for this very object each time). Statuses: `NMC_ERR_NOT_FOUND`
/// (also if it is only on disk), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_wait_ready_async(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    timeout_ms: i64,
    stream: *mut c_void,
    out_result: *mut u32,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        let limit = crate::base::Deadline::from_ms(timeout_ms, 30_000)?.left();
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the C contract of these arguments.
        with(store, |store| unsafe { store.wait_ready_async(key_of(key)?, limit, out_result as u64, stream) })
    })
}

/// Fills a descriptor for `nmc_store_publish_captured`: before each launch of the graph, for the plan that this launch
/// writes. `out_desc` is memory of the host that the GPU can reach (pinned).
///
/// Does not block. Thread-safe. Graph-safe. Statuses as for `nmc_store_commit_async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_publish_desc(
    store: *mut nmc_store_t,
    plan: *const nmc_write_plan_t,
    out_desc: *mut nmc_publish_desc_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(out_desc, "out_desc")?;
            // SAFETY: the C contract of `plan`.
            let (word, epoch) = store.publish_descriptor(&unsafe { opened_of(plan) }?)?;
            place.write(nmc_publish_desc_t { word, epoch });
            Ok(())
        })
    })
}

/// Publishes what `n` descriptors hold at the time the stream gets there. A captured graph does this anew in every
/// launch. A descriptor with epoch 0 is skipped. The descriptors must stay as they are until the launch has run.
///
/// Does not block. Thread-safe. Graph-safe: made to be captured. Statuses: `NMC_ERR_UNSUPPORTED` (no device),
/// `NMC_ERR_INVALID_ARG` (memory that the GPU cannot reach), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_publish_captured(
    store: *mut nmc_store_t,
    descs: *const nmc_publish_desc_t,
    n: usize,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| {
        with(store, |store| {
            let Ok(n) = u32::try_from(n) else {
                crate::bail!(NMC_ERR_INVALID_ARG, "{n} descriptors cannot be published at a time");
            };
            // SAFETY: the C contract of these arguments.
            unsafe { store.publish_captured(descs as u64, n, stream) }
        })
    })
}

/// Reserves a pin slot for a captured graph or for kernels, and stores its number in `*out_slot`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY` (no free slot), `NMC_ERR_UNSUPPORTED` (no device).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_slot_reserve(store: *mut nmc_store_t, out_slot: *mut u32) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = out(out_slot, "out_slot")?;
            place.write(store.reserve_slot()?);
            Ok(())
        })
    })
}

/// Gives back a reserved slot. No graph and no kernel may use it again.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_slot_release(store: *mut nmc_store_t, slot: u32) -> nmc_status_t {
    guard(|| with(store, |store| store.release_slot(slot)))
}

/// Pins an object in a reserved slot, before the launch of a graph that ends the pin with a captured
/// `nmc_store_slot_unpin_async`. Returns `NMC_ERR_BUSY` while the previous launch still uses the slot. Otherwise like
/// `nmc_store_pin`, also for an object that is only on disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_slot_pin(
    store: *mut nmc_store_t,
    slot: u32,
    key: nmc_slice_t,
    out_view: *mut nmc_view_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_view, "out_view")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            match store.pin_slot(slot, key)? {
                Look::Ready((pin, location)) => {
                    place.write(pinned(store, pin, &location, location.n_pages)?);
                    Ok(NMC_OK)
                }
                other => missed_in_memory(store, key, &other),
            }
        })
    })
}

/// Ends the pin in a reserved slot when the stream gets there; in a captured graph, with every launch.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (not reserved), `NMC_ERR_UNSUPPORTED`,
/// `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_slot_unpin_async(
    store: *mut nmc_store_t,
    slot: u32,
    stream: *mut c_void,
) -> nmc_status_t {
    // SAFETY: the C contract of `stream`.
    let stream = unsafe { GivenStream::new(stream) };
    guard(|| with(store, |store| store.unpin_slot_async(slot, stream)))
}

/// Stores in `*out_pin` what a kernel needs to pin the object by itself (`nmc_dev_pin`), with a reserved slot. The
/// object must lie in one extent.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (also if it is only on disk),
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNSUPPORTED`, `NMC_ERR_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_device_pin(
    store: *mut nmc_store_t,
    slot: u32,
    key: nmc_slice_t,
    out_pin: *mut nmc_device_pin_t,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            let place = out(out_pin, "out_pin")?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let look = store.device_pin(slot, key)?;
            if let Look::Ready(DevicePin { slot, value, control, published, epoch, payload, bytes }) = look {
                place.write(nmc_device_pin_t { slot, value, control, published, epoch, payload, bytes });
            }
            missed_in_memory(store, key, &look)
        })
    })
}
