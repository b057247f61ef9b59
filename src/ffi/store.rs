//! `nmc_store_*`: immutable objects in the heaps of a world.

use super::basic::nmc_slice_t;
use super::handle::{self, HasC, Object};
use super::store_types::{
    NMC_OBJECT_ABSENT, NMC_OBJECT_READY, NMC_OBJECT_WRITING, NMC_WAIT_APPEAR, embedded_world, keep, nmc_buffer_t,
    nmc_completion_t, nmc_extent_t, nmc_object_meta_t, nmc_put_options_t, nmc_retry_hint_t, nmc_store_config_t,
    nmc_store_rank_stats_t, nmc_store_stats_t, nmc_view_t, nmc_write_plan_t, parse_options, parse_store,
};
use super::text::{check_buffer, copy_out};
use super::world::nmc_world_t;
use super::{guard, guard_status, optional_out, out, put_struct};
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_NOT_READY, NMC_OK, nmc_status_t};
use crate::store::copy::{Pieces, Slice};
use crate::store::master::{Opened, check_key, not_found};
use crate::store::read::{Extents, Location, Look, Pin};
use crate::store::{RankStats, Store, percentile};
use crate::world::World;
use std::ffi::{c_char, c_void};

/// A client of a store, in one of its namespaces. All functions that take it may be called from any thread at the same
/// time, also while another thread destroys it.
///
/// Reads (`get`, `pin`, `exists`, `match_prefix`, ...) never ask the master and go on while it is away. Calls that do ask
/// it return `NMC_ERR_UNAVAILABLE` then, and can be repeated. Statuses that every function can return:
/// `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (keys have 1 to 1,024 bytes).
pub struct nmc_store_t {
    _opaque: [u8; 0],
}

impl Object for Store {
    const KIND: u64 = 3;
    const NAME: &'static str = "store";
    fn cancel(&self) {
        self.close();
    }
}

impl HasC for Store {
    type C = nmc_store_t;
}

#[inline]
pub(super) fn with<R>(store: *const nmc_store_t, body: impl FnOnce(&Store) -> Result<R>) -> Result<R> {
    handle::with::<Store, R>(store, body)
}

#[cold]
fn bad_key_pointer(len: usize) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, format!("the key has no address, but a length of {len}"))
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
    // SAFETY: non-null; the caller promises the bytes. Lengths above the limit are refused before they are read.
    let bytes = unsafe { std::slice::from_raw_parts(key.ptr.cast::<u8>(), key.len.min(isize::MAX.unsigned_abs())) };
    check_key(bytes)?;
    Ok(bytes)
}

/// An array of the caller.
///
/// # Safety
/// `ptr` points to `n` values, unless `n` is 0.
pub(super) unsafe fn array<'a, T>(ptr: *const T, n: usize, name: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() || !ptr.is_aligned() || n > isize::MAX.unsigned_abs() / size_of::<T>().max(1) {
        crate::bail!(NMC_ERR_INVALID_ARG, "{name} must be an aligned pointer to {n} entries, got {ptr:p}");
    }
    // SAFETY: non-null and aligned; the caller promises `n` values.
    Ok(unsafe { std::slice::from_raw_parts(ptr, n) })
}

/// An array of the caller that is written to; `None` if the pointer may be and is NULL.
///
/// # Safety
/// `ptr` is NULL or points to `n` values.
pub(super) unsafe fn array_out<'a, T>(ptr: *mut T, n: usize, name: &str) -> Result<&'a mut [T]> {
    // SAFETY: as promised by the caller.
    unsafe { array(ptr.cast_const(), n, name) }?;
    if n == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked above; nobody else uses the caller's array during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, n) })
}

pub(super) fn slice_of(value: nmc_slice_t) -> Slice {
    Slice { address: value.ptr as u64, bytes: value.len as u64 }
}

pub(super) fn buffer_of(value: nmc_buffer_t) -> Slice {
    Slice { address: value.ptr as u64, bytes: value.len as u64 }
}

/// The status of a look that is not a success.
#[inline]
pub(super) fn missed<T>(key: &[u8], look: &Look<T>) -> Result<nmc_status_t> {
    match look {
        Look::Ready(_) => Ok(NMC_OK),
        Look::Writing(..) => Ok(NMC_NOT_READY),
        Look::Missing => Err(not_found(key)),
    }
}

/// Makes a store, or attaches to the store of a world, and puts a handle into `*out_store`.
///
/// With `world` NULL the store is embedded: it has a heap of `config->heap_bytes` of its own, in this process alone,
/// without socket, files or threads. With a world the calling rank becomes a client of the world's one store; the process
/// of `master_rank` (or the world's external master) runs the master. The world must not be destroyed before the store.
///
/// Blocks up to `attach_timeout_ms` for the master. Thread-safe. Not graph-safe. Destroyed with `nmc_store_destroy`.
/// Statuses: `NMC_ERR_VERSION`, `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_TIMEOUT` (says who is missing),
/// `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the rank has left), `NMC_ERR_PERMISSION`,
/// `NMC_ERR_PROTOCOL`, `NMC_ERR_OS`, `NMC_ERR_UNSUPPORTED`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_create(
    world: *mut nmc_world_t,
    config: *const nmc_store_config_t,
    out_store: *mut *mut nmc_store_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_store, "out_store")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let (config, raw) = unsafe { parse_store(config) }?;
        let store = if world.is_null() {
            let mut config = config;
            config.master_rank = 0;
            Store::embedded(&embedded_world(&raw)?, &config)?
        } else {
            handle::with::<World, _>(world, |world| Store::attach(world, &config))?
        };
        slot.write(handle::create(store)?);
        Ok(())
    })
}

/// Opens a namespace of the same store: keys of its own, an optional quota, and `nmc_store_remove_all` for it alone. A
/// handle of its own goes into `*out_store`. `quota_bytes` limits the bytes of its pages on all ranks together; 0 is no
/// limit, `UINT64_MAX` leaves what it is. Names have 1 to 64 bytes; there are at most 63.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_namespace(
    store: *mut nmc_store_t,
    name: nmc_slice_t,
    quota_bytes: u64,
    out_store: *mut *mut nmc_store_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_store, "out_store")?;
        slot.write(std::ptr::null_mut());
        // SAFETY: the C contract of `name`.
        let name = unsafe { super::world_types::bytes_of(name, "name", 4096) }?;
        let quota = (quota_bytes != u64::MAX).then_some(quota_bytes);
        slot.write(handle::create(with(store, |store| store.namespace(name, quota))?)?);
        Ok(())
    })
}

/// Destroys a handle. With the last one of a client its pins end, its open plans are given up, and it leaves the store:
/// no kernel and no thread of the program may use its views and plans any more. NULL is fine; in a forked child it does
/// nothing.
///
/// Blocks until calls of other threads have returned (waiting ones are cancelled). Not graph-safe. Thread-safe: of
/// several callers one succeeds. Statuses: `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_destroy(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<Store>(store)?);
        Ok(())
    })
}

/// Stores a value of `bytes` bytes under `key`. `options` may be NULL. Device memory is copied on a stream of the library: what
/// the program's streams write to it must be done before the call.
///
/// Asks the master once. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (the old value stays),
/// `NMC_ERR_BUSY` (everything else is pinned, retained or being written: try again, `nmc_store_retry_hint` says when), `NMC_ERR_NO_SPACE` (larger than a
/// heap, or the quota is used up), `NMC_ERR_LIMIT` (headers or key slab), `NMC_ERR_STALE` (took longer than the
/// watchdog, or removed meanwhile), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`, `NMC_ERR_NOT_FOUND`
/// (the namespace), `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_put(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    data: *const c_void,
    bytes: usize,
    options: *const nmc_put_options_t,
) -> nmc_status_t {
    let slices = [nmc_slice_t { ptr: data.cast(), len: bytes }];
    // SAFETY: the C contract of this function.
    unsafe { nmc_store_put_slices(store, key, slices.as_ptr(), 1, options) }
}

/// Like `nmc_store_put`, from `n` slices of host or device memory one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_put_slices(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    slices: *const nmc_slice_t,
    n: usize,
    options: *const nmc_put_options_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (key, slices, options) =
                unsafe { (key_of(key)?, array(slices, n, "slices")?, parse_options(options)?) };
            let one;
            let many: Vec<Slice>;
            let pieces = if let [slice] = slices {
                one = [slice_of(*slice)];
                Pieces::Slices(&one)
            } else {
                many = slices.iter().map(|slice| slice_of(*slice)).collect();
                Pieces::Slices(&many)
            };
            pieces.check()?;
            store.put(key, &pieces, &options)
        })
    })
}

/// Like `nmc_store_put`, from `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_put_strided(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    data: *const c_void,
    rows: usize,
    row_bytes: usize,
    stride: usize,
    options: *const nmc_put_options_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (key, options) = unsafe { (key_of(key)?, parse_options(options)?) };
            let pieces = rows_of(data as u64, rows, row_bytes, stride);
            pieces.check()?;
            store.put(key, &pieces, &options)
        })
    })
}

fn rows_of(address: u64, rows: usize, row_bytes: usize, stride: usize) -> Pieces<'static> {
    Pieces::Rows { address, rows: rows as u64, row_bytes: row_bytes as u64, stride: stride as u64 }
}

/// Reads a value into `buffer` and stores its size in `*size`, if `size` is not NULL. With `capacity` 0 and a `size` it
/// only tells the size. If the buffer is too small, only the size is stored.
///
/// Does not block and does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is being
/// written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (a checksum
/// is wrong), `NMC_ERR_PEER_LOST`, `NMC_ERR_CUDA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    size: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let size = optional_out(size, "size")?;
            check_buffer(buffer.cast(), capacity)?;
            let asks = capacity == 0 && size.is_some();
            // The size of the value decides how much is read: look first.
            let (pin, place) = match store.pin(key)? {
                Look::Ready(found) => found,
                other => return missed(key, &other),
            };
            let bytes = place.bytes_total;
            let read = (|| -> Result<()> {
                if let Some(size) = size {
                    size.write(usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                if asks {
                    return Ok(());
                }
                if bytes > capacity as u64 {
                    crate::bail!(NMC_ERR_TOO_SMALL, "the value has {bytes} bytes, the buffer {capacity}");
                }
                let slices = [Slice { address: buffer as u64, bytes }];
                store.read_view(pin.index, 0, &Pieces::Slices(&slices))
            })();
            store.unpin(pin.slot, pin.index, pin.epoch)?;
            read.map(|()| NMC_OK)
        })
    })
}

/// Reads a value of exactly `bytes` bytes into `dst`: another size is `NMC_ERR_INVALID_ARG`. Otherwise like
/// `nmc_store_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_into(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    dst: *mut c_void,
    bytes: usize,
) -> nmc_status_t {
    let buffers = [nmc_buffer_t { ptr: dst, len: bytes }];
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            read_all(store, key, &buffers)
        })
    })
}

/// Reads a whole value into buffers that must have its size together.
pub(super) fn read_all(store: &Store, key: &[u8], buffers: &[nmc_buffer_t]) -> Result<nmc_status_t> {
    let one;
    let many: Vec<Slice>;
    let pieces = if let [buffer] = buffers {
        one = [buffer_of(*buffer)];
        Pieces::Slices(&one)
    } else {
        many = buffers.iter().map(|buffer| buffer_of(*buffer)).collect();
        Pieces::Slices(&many)
    };
    pieces.check()?;
    let wanted = pieces.bytes()?;
    let look = store.read(key, 0, &pieces, |total| {
        if total != wanted {
            crate::bail!(NMC_ERR_INVALID_ARG, "the value has {total} bytes, the buffers {wanted}");
        }
        Ok(true)
    })?;
    missed(key, &look)
}

/// Reads a part of a value, from byte `offset` on, into `n` buffers of host or device memory, as many bytes as they hold.
/// Stores the size of the whole value in `*size`, if that is not NULL. A part that reaches behind the end of the value
/// is `NMC_ERR_INVALID_ARG`. Otherwise like `nmc_store_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_slices(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    offset: u64,
    buffers: *const nmc_buffer_t,
    n: usize,
    size: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (key, buffers) = unsafe { (key_of(key)?, array(buffers, n, "buffers")?) };
            let slices: Vec<Slice> = buffers.iter().map(|buffer| buffer_of(*buffer)).collect();
            read_part(store, key, offset, &Pieces::Slices(&slices), size)
        })
    })
}

/// Like `nmc_store_get_slices`, into one buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_range(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    offset: u64,
    dst: *mut c_void,
    bytes: usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let slices = [Slice { address: dst as u64, bytes: bytes as u64 }];
            read_part(store, key, offset, &Pieces::Slices(&slices), std::ptr::null_mut())
        })
    })
}

/// Like `nmc_store_get_slices`, into `rows` rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_strided(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    offset: u64,
    dst: *mut c_void,
    rows: usize,
    row_bytes: usize,
    stride: usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            read_part(store, key, offset, &rows_of(dst as u64, rows, row_bytes, stride), std::ptr::null_mut())
        })
    })
}

fn read_part(store: &Store, key: &[u8], offset: u64, pieces: &Pieces<'_>, size: *mut usize) -> Result<nmc_status_t> {
    pieces.check()?;
    let size = optional_out(size, "size")?;
    let bytes = pieces.bytes()?;
    let look = store.read(key, offset, pieces, |total| {
        if offset.checked_add(bytes).is_none_or(|end| end > total) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{bytes} bytes from offset {offset} on reach behind the end of the value, which has {total}"
            );
        }
        Ok(true)
    })?;
    if let (Some(size), Look::Ready(total)) = (size, look) {
        size.write(usize::try_from(total).unwrap_or(usize::MAX));
    }
    missed(key, &look)
}

/// Stores in `*out_state` whether the object is `NMC_OBJECT_ABSENT`, `_WRITING` or `_READY`. It neither pins nor counts
/// as an access.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_exists(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    out_state: *mut u32,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let state = out(out_state, "out_state")?;
            // SAFETY: the C contract of `key`.
            let look = store.state(unsafe { key_of(key) }?)?;
            state.write(state_code(&look));
            Ok(())
        })
    })
}

pub(super) fn state_code<T>(look: &Look<T>) -> u32 {
    match look {
        Look::Ready(_) => NMC_OBJECT_READY,
        Look::Writing(..) => NMC_OBJECT_WRITING,
        Look::Missing => NMC_OBJECT_ABSENT,
    }
}

/// Takes an object away at once. Whoever has pinned it keeps it; its memory is free when nobody does.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_remove(store: *mut nmc_store_t, key: nmc_slice_t) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    guard(|| with(store, |store| store.remove(unsafe { key_of(key) }?)))
}

/// Removes all objects of the namespace whose keys begin with `prefix`; stores how many in `*removed`, if that is not
/// NULL. Takes one call of the master for some thousand objects that the store can hold. Otherwise like
/// `nmc_store_remove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_remove_by_prefix(
    store: *mut nmc_store_t,
    prefix: nmc_slice_t,
    removed: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = optional_out(removed, "removed")?;
            // SAFETY: the C contract of `prefix`.
            let n = store.remove_by_prefix(unsafe { super::world_types::bytes_of(prefix, "prefix", 4096) }?)?;
            if let Some(place) = place {
                place.write(n);
            }
            Ok(())
        })
    })
}

/// Forgets every object of the namespace at once, as when the weights of a model changed: from now on none is found. The
/// memory comes back bit by bit. Otherwise like `nmc_store_remove`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_remove_all(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| with(store, Store::remove_all))
}

/// Counts as an access to the object, without reading it, for policies other than FIFO.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_touch(store: *mut nmc_store_t, key: nmc_slice_t) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    guard(|| with(store, |store| store.touch(unsafe { key_of(key) }?)))
}

/// Changes how an object is kept: class, priority and time as in `nmc_put_options_t`. Otherwise like `nmc_store_remove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_retain(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    retain: u32,
    priority: u32,
    ttl_ms: u64,
) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    guard(|| with(store, |store| store.retain(unsafe { key_of(key) }?, keep(retain, priority, ttl_ms)?)))
}

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
                    key_hash: l.key_hash,
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
            place.write(plan_of(store, &opened, &location)?);
            Ok(())
        })
    })
}

pub(super) fn plan_of(store: &Store, opened: &Opened, l: &Location) -> Result<nmc_write_plan_t> {
    let (payload, payload_device) = match payload(store, l) {
        Ok(found) => found,
        Err(error) => {
            let _ = store.abort(opened);
            return Err(error);
        }
    };
    let (publish, publish_device) = store.publish_word(opened.index);
    Ok(nmc_write_plan_t {
        key_hash: l.key_hash,
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
/// `NMC_ERR_PEER_LOST`.
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
            store.check_plan(&opened)?;
            // SAFETY: the C contract of `extents`.
            unsafe { extents_out(store, opened.index, extents, capacity, n) }
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
            store.check_view(view.slot, view.index, view.epoch)?;
            // SAFETY: the C contract of `extents`.
            unsafe { extents_out(store, view.index, extents, capacity, n) }
        })
    })
}

/// # Safety
/// `extents` points to `capacity` structs, unless that is 0.
unsafe fn extents_out(
    store: &Store,
    index: u32,
    extents: *mut nmc_extent_t,
    capacity: usize,
    n: *mut usize,
) -> Result<()> {
    let count = out(n, "n")?;
    let Extents { owner_rank, bytes_total, runs } = store.extents(index)?;
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

pub(super) fn pinned(store: &Store, pin: Pin, l: &Location, ready_pages: u32) -> Result<nmc_view_t> {
    let (data, data_device) = match payload(store, l) {
        Ok(found) => found,
        Err(error) => {
            store.unpin(pin.slot, pin.index, pin.epoch)?;
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
        reserved: 0,
    })
}

/// # Safety
/// `view` is NULL or points to a view.
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
            store.unpin(view.slot, view.index, view.epoch)
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
            store.check_view(view.slot, view.index, view.epoch)?;
            let (ready, _) = store.progress(view.index, view.epoch)?;
            place.write(u32::try_from(ready).unwrap_or(u32::MAX));
            Ok(())
        })
    })
}

/// Waits until an object can be read. `flags` is 0 or `NMC_WAIT_APPEAR`, to wait also for a key that nobody is writing yet.
///
/// Blocks up to `timeout_ms` (-1 for 30 s). Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TIMEOUT`, `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_STALE` (its writer gave up, or it was removed), `NMC_ERR_CANCELLED` (`nmc_store_cancel` or destroy).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_wait_ready(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    flags: u32,
    timeout_ms: i64,
) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    unsafe { nmc_store_wait_pages(store, key, u32::MAX, flags, timeout_ms) }
}

/// Like `nmc_store_wait_ready`, until at least the first `pages` pages are ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_wait_pages(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    pages: u32,
    flags: u32,
    timeout_ms: i64,
) -> nmc_status_t {
    guard(|| {
        let deadline = Deadline::from_ms(timeout_ms, 30_000)?;
        with(store, |store| {
            let appear = wait_flags(flags)?;
            let pages = (pages != u32::MAX).then_some(u64::from(pages));
            // SAFETY: the C contract of `key`.
            store.wait_ready(unsafe { key_of(key) }?, pages, appear, &deadline)
        })
    })
}

fn wait_flags(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        NMC_WAIT_APPEAR => Ok(true),
        other => crate::bail!(NMC_ERR_INVALID_ARG, "flags {other:#x} has bits that mean nothing"),
    }
}

/// Makes every wait and every watch of this client, in all threads, end with `NMC_ERR_CANCELLED`. Later ones are not
/// affected. Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_cancel(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            store.cancel();
            Ok(())
        })
    })
}

/// Watches a key: when the object can be read, or will not become so, a completion with `token` is queued and the
/// descriptor of `nmc_store_event_fd` becomes readable. `flags` as in `nmc_store_wait_ready`. The library runs a thread
/// while keys are watched.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_watch(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    flags: u32,
    token: u64,
) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    guard(|| with(store, |store| store.watch(unsafe { key_of(key) }?, token, wait_flags(flags)?)))
}

/// Takes queued completions, at most `capacity`; stores their number in `*n`.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_completions(
    store: *mut nmc_store_t,
    completions: *mut nmc_completion_t,
    capacity: usize,
    n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let count = out(n, "n")?;
            // SAFETY: the C contract of `completions`.
            let places = unsafe { array_out(completions, capacity, "completions") }?;
            let mut taken = 0;
            for place in places {
                let Some(done) = store.completion() else { break };
                *place = nmc_completion_t { token: done.token, status: done.status, reserved: 0 };
                taken += 1;
            }
            count.write(taken);
            Ok(())
        })
    })
}

/// Stores a descriptor in `*fd` that is readable (poll, epoll) while completions are queued. It belongs to the store: do
/// not close it. Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_event_fd(store: *mut nmc_store_t, fd: *mut i32) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            out(fd, "fd")?.write(store.event_fd());
            Ok(())
        })
    })
}

/// Evicts objects of `rank` until at most `permille`/1000 of its heap are used, or nothing is left that may be evicted.
///
/// Asks the master, several times if there is much to do. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_evict_until_below(store: *mut nmc_store_t, rank: i32, permille: u32) -> nmc_status_t {
    guard(|| {
        let Ok(rank) = u32::try_from(rank) else { crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is negative") };
        with(store, |store| store.evict_until_below(rank, permille))
    })
}

/// After `NMC_ERR_BUSY` or `NMC_ERR_NO_SPACE`: what is free on `rank`, what waits, and when to try again.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_retry_hint(
    store: *mut nmc_store_t,
    rank: i32,
    hint: *mut nmc_retry_hint_t,
) -> nmc_status_t {
    guard(|| {
        let place = out(hint, "hint")?;
        let Ok(rank) = u32::try_from(rank) else { crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is negative") };
        let r = with(store, |store| store.rank_stats(rank))?;
        let waiting_bytes = r.limbo_bytes + r.quarantined_bytes;
        let in_motion = waiting_bytes + r.writing_count + r.ready_count > 0;
        place.write(nmc_retry_hint_t {
            // The master looks at what waits every millisecond or so.
            retry_after_us: if in_motion { 1_000 } else { 0 },
            free_bytes: r.bytes_total.saturating_sub(r.bytes_used),
            largest_free_bytes: r.largest_free_bytes,
            waiting_bytes,
            ready_count: r.ready_count,
        });
        Ok(())
    })
}

/// Goes through the objects of the namespace that can be read, in no particular order. `*cursor` is 0 at first; each call
/// stores a key (up to `capacity` bytes) in `key`, its length in `*key_len`, the size of the value in `*bytes`, and moves
/// the cursor; `NMC_ERR_NOT_FOUND` is the end. Objects that come or go meanwhile may or may not be seen.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_TOO_SMALL` (`*key_len` is stored, the cursor stays).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_next(
    store: *mut nmc_store_t,
    cursor: *mut u32,
    key: *mut c_void,
    capacity: usize,
    key_len: *mut usize,
    bytes: *mut u64,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (places, buffer) =
                unsafe { (array_out(cursor, 1, "cursor")?, array_out(key.cast::<u8>(), capacity, "key")?) };
            let (len, size) = (out(key_len, "key_len")?, optional_out(bytes, "bytes")?);
            let Some(place) = places.first_mut() else { crate::bail!(NMC_ERR_INVALID_ARG, "cursor is NULL") };
            let mut found = None;
            let at = store.iterate(*place, |key, bytes| {
                found = Some((key.to_vec(), bytes));
                false
            })?;
            let (Some((name, value)), Some(at)) = (found, at) else {
                crate::bail!(NMC_ERR_NOT_FOUND, "there are no more objects");
            };
            len.write(name.len());
            let Some(room) = buffer.get_mut(..name.len()) else {
                crate::bail!(NMC_ERR_TOO_SMALL, "the key has {} bytes, the buffer {capacity}", name.len());
            };
            room.copy_from_slice(&name);
            if let Some(size) = size {
                size.write(value);
            }
            *place = at + 1;
            Ok(NMC_OK)
        })
    })
}

/// Stores numbers about the store and this client in `*stats`, and those of each rank in `ranks[0..n_ranks]`, if that is
/// not NULL.
///
/// Does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_stats(
    store: *mut nmc_store_t,
    stats: *mut nmc_store_stats_t,
    ranks: *mut nmc_store_rank_stats_t,
    n_ranks: usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let found = store.stats()?;
            let own = &found.own;
            let sum = found.ranks.iter().fold(RankStats::default(), add);
            if !ranks.is_null() {
                // SAFETY: the C contract of `ranks`.
                let places = unsafe { array_out(ranks, n_ranks, "ranks") }?;
                places.iter_mut().zip(&found.ranks).for_each(|(place, rank)| *place = rank_stats(rank));
            }
            let reads = own.hits + own.misses;
            let value = nmc_store_stats_t {
                struct_size: 0,
                n_ranks: u32::try_from(found.ranks.len()).unwrap_or(0),
                total: rank_stats(&sum),
                t_plan_us: own.average_plan_ns.div_ceil(1000),
                bytes_tx: own.average_tx,
                bytes_rx: own.average_rx,
                puts: own.puts,
                bytes_written: own.tx,
                get_hits: own.hits,
                get_misses: own.misses,
                bytes_read: own.rx,
                hit_permille: own.hits * 1000 / reads.max(1),
                put_p50_ns: percentile(&own.histograms[0], 500),
                put_p99_ns: percentile(&own.histograms[0], 990),
                get_p50_ns: percentile(&own.histograms[1], 500),
                get_p99_ns: percentile(&own.histograms[1], 990),
                metadata_bytes: found.metadata_bytes,
                master_bytes: found.master_bytes,
                master_up: store.client().master_up().into(),
            };
            // SAFETY: the C contract of `stats`.
            unsafe { put_struct(stats, value) }
        })
    })
}

fn rank_stats(r: &RankStats) -> nmc_store_rank_stats_t {
    nmc_store_rank_stats_t {
        bytes_used: r.bytes_used,
        bytes_total: r.bytes_total,
        ready_count: r.ready_count,
        writing_count: r.writing_count,
        evict_count: r.evict_count,
        oom_count: r.oom_count,
        evict_in_use_retry: r.evict_in_use_retry,
        stuck_put_reclaimed: r.stuck_put_reclaimed,
        quarantined_bytes: r.quarantined_bytes,
        limbo_bytes: r.limbo_bytes,
        free_runs: r.free_runs,
        largest_free_bytes: r.largest_free_bytes,
    }
}

fn add(mut sum: RankStats, r: &RankStats) -> RankStats {
    sum.bytes_used += r.bytes_used;
    sum.bytes_total += r.bytes_total;
    sum.ready_count += r.ready_count;
    sum.writing_count += r.writing_count;
    sum.evict_count += r.evict_count;
    sum.oom_count += r.oom_count;
    sum.evict_in_use_retry += r.evict_in_use_retry;
    sum.stuck_put_reclaimed += r.stuck_put_reclaimed;
    sum.quarantined_bytes += r.quarantined_bytes;
    sum.limbo_bytes += r.limbo_bytes;
    sum.free_runs += r.free_runs;
    sum.largest_free_bytes = sum.largest_free_bytes.max(r.largest_free_bytes);
    sum
}

/// The numbers in the text format of Prometheus, as `nmc_world_dump` gives text. Does not ask the master. Thread-safe. Not
/// graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*needed` is stored).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_prometheus(
    store: *mut nmc_store_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        check_buffer(buffer, capacity)?;
        let text = with(store, Store::prometheus)?;
        copy_out(&text, buffer, capacity, needed)
    })
}

/// A picture of the heaps and what waits, for people: `#` used, `.` free, `+` mixed, `width` characters a rank. Asks the
/// master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*needed` is stored), `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_dump(
    store: *mut nmc_store_t,
    width: u32,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        check_buffer(buffer, capacity)?;
        let text = with(store, |store| store.dump(width))?;
        copy_out(&text, buffer, capacity, needed)
    })
}
