//! `nmc_store_*`: immutable objects in the heaps of a world.

use super::arg::{array, array_out, buffer_of, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::handle::{self, HasC, Object};
use super::store_types::{
    NMC_OBJECT_ABSENT, NMC_OBJECT_ELSEWHERE, NMC_OBJECT_ON_DISK, NMC_OBJECT_READY, NMC_OBJECT_WRITING, embedded, keep,
    nmc_buffer_t, nmc_put_options_t, nmc_store_config_t, parse_options, parse_store,
};
use super::world::nmc_world_t;
use super::world_types::NMC_IMPORT_NONE;
use super::{guard, guard_status, optional_out, out, remember_missing};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_TOO_SMALL, NMC_NOT_READY, NMC_OK, nmc_status_t};
use crate::store::Store;
use crate::store::copy::{Pieces, Rows, Slice};
use crate::store::types::{Look, Presence};
use crate::world::World;
use std::ffi::c_void;

/// A client of a store, in one of its namespaces. All functions that take it may be called from any thread at the same
/// time, even while another thread destroys it.
///
/// Reads (`get`, `pin`, `exists`, `match_prefix`, ...) never ask the master, and go on while it is away. Calls that do
/// ask the master return `NMC_ERR_UNAVAILABLE` then, and can be repeated. Calls that wait for its answer return
/// `NMC_ERR_CANCELLED` when `nmc_store_cancel`, destroy or `nmc_world_abort` ends the wait.
///
/// To read an SSD tier that another process owns, a client needs its index. It gets it in the background, once for each
/// opening of the tier: when the client attaches, and soon (0.1 s) after the tier was opened. A read of a key that is
/// not in memory, and that comes before that, waits for it, for 500 ms at most; otherwise reads do not block. If the
/// owner does not answer in that time, the read returns `NMC_ERR_UNAVAILABLE`. All reads after it then do so at once,
/// without waiting, until the owner has answered. Keys in memory are not affected.
///
/// Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG` (keys have 1
/// to 1,024 bytes), `NMC_ERR_NO_MEMORY` (the message says how much was refused). Those that read values or keys from a
/// tier can also return `NMC_ERR_PERMISSION` (a file of the tier must not be opened, or is no regular file any more).
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

/// The status of a look.
#[inline]
pub(super) fn status_of<T>(look: &Look<T>) -> nmc_status_t {
    match look {
        Look::Ready(_) => NMC_OK,
        Look::Writing(..) => NMC_NOT_READY,
        Look::Missing => NMC_ERR_NOT_FOUND,
    }
}

/// The same, as the result of a call: a miss is a normal outcome, whose text is made when it is asked for.
#[inline]
pub(super) fn missed<T>(key: &[u8], look: &Look<T>) -> Result<nmc_status_t> {
    match status_of(look) {
        NMC_ERR_NOT_FOUND => Ok(remember_missing(key)),
        other => Ok(other),
    }
}

/// The same for calls that are about memory: what is on disk only is not ready.
#[inline]
pub(super) fn missed_in_memory<T>(store: &Store, key: &[u8], look: &Look<T>) -> Result<nmc_status_t> {
    match look {
        Look::Missing if store.is_on_disk(key)? => Ok(NMC_NOT_READY),
        look => missed(key, look),
    }
}

/// Creates a store, or attaches to the store of a world, and stores a handle in `*out_store`. Destroy it with
/// `nmc_store_destroy`.
///
/// With `world` NULL the store is embedded: it has a heap of `config->heap_bytes` of its own, in this process alone,
/// without socket, files or threads. With a world, the calling rank becomes a client of the world's one store; the
/// process of `master_rank` (or the world's external master) runs the master. The world must not be destroyed before
/// the store.
///
/// Blocks up to `attach_timeout_ms` for the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_VERSION`,
/// `NMC_ERR_MISMATCH` (names both values), `NMC_ERR_TIMEOUT` (says who is missing), `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_LIMIT`, `NMC_ERR_CANCELLED` (the rank has left), `NMC_ERR_PERMISSION`, `NMC_ERR_PROTOCOL`, `NMC_ERR_OS`,
/// `NMC_ERR_UNSUPPORTED` (among others: a rank of the world lends its memory, see `nmc_world_config_t.heap_import`),
/// `NMC_ERR_CUDA`.
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
        crate::tier::install();
        let store = if world.is_null() {
            let mut config = config;
            config.master_rank = 0;
            embedded(&raw, &config)?
        } else {
            if raw.heap_import.kind != NMC_IMPORT_NONE {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "heap_import is for an embedded store; the heaps of a world are its ranks'"
                );
            }
            handle::with::<World, _>(world, |world| Store::attach(world, &config))?
        };
        slot.write(handle::create(store)?);
        Ok(())
    })
}

/// Opens a namespace of the same store and stores a handle for it in `*out_store`. A namespace has keys of its own, an
/// optional quota, and `nmc_store_remove_all` removes only its objects. `quota_bytes` limits the bytes of its pages on
/// all ranks together: a put that would exceed it evicts objects of this namespace first, and of no other. 0 means no
/// limit, `UINT64_MAX` leaves the quota as it is. Names have 1 to 64 bytes; there are at most 63 namespaces.
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`,
/// `NMC_ERR_NO_MEMORY`.
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
        if crate::cluster::types::is_reserved(name) {
            crate::bail!(NMC_ERR_INVALID_ARG, "names of namespaces that begin with the byte 0xff are the library's");
        }
        let quota = (quota_bytes != u64::MAX).then_some(quota_bytes);
        slot.write(handle::create(with(store, |store| store.namespace(name, quota))?)?);
        Ok(())
    })
}

/// Destroys a handle. With the last one of a client its pins end, its open plans are given up, and it leaves the store:
/// no kernel and no thread of the program may use its views and plans any more. NULL is fine; in a forked child it does
/// nothing.
///
/// Blocks until calls of other threads have returned: those that wait, for an object, for room or for a master that does not
/// answer, are cancelled. Not graph-safe. Thread-safe: of several callers one succeeds.
/// Statuses: `NMC_ERR_BUSY` when called inside a log callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_destroy(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| {
        drop(handle::take::<Store>(store)?);
        Ok(())
    })
}

/// Stores a value of `bytes` bytes under `key`. `options` may be NULL. Device memory is copied on a stream of the
/// library, so whatever the program's streams write to it must be done before the call. A key that is only on disk
/// counts as existing; with `NMC_PUT_REPLACE` its copy on disk ends when the new value takes its place.
///
/// Asks the master once, unless it waits for room (`wait_ms`). Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS`
/// (the old value stays), `NMC_ERR_BUSY` (everything else is pinned, retained or being written: try again,
/// `nmc_store_retry_hint` says when, or wait for room), `NMC_ERR_CANCELLED` (the wait was cancelled),
/// `NMC_ERR_NO_SPACE` (larger than a heap or the namespace's quota, or nothing of the namespace can be evicted to stay
/// within it), `NMC_ERR_LIMIT` (headers, or the slab for keys and metadata), `NMC_ERR_STALE` (it took longer than the
/// watchdog allows, or the key was removed during the call), `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`, `NMC_ERR_PEER_LOST`, `NMC_ERR_NOT_FOUND` (the namespace), `NMC_ERR_CUDA`.
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
                unsafe { (key_of(key)?, slices_of(array(slices, n, "slices")?), parse_options(options)?) };
            let pieces = Pieces::Slices(slices);
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
            // SAFETY: the C contract of the rows; `check` refuses those that cannot be memory.
            let pieces = unsafe { rows_of(data as u64, rows, row_bytes, stride) };
            pieces.check()?;
            store.put(key, &pieces, &options)
        })
    })
}

/// # Safety
/// As [`Rows::new`].
unsafe fn rows_of(address: u64, rows: usize, row_bytes: usize, stride: usize) -> Pieces<'static> {
    // SAFETY: by contract.
    Pieces::Rows(unsafe { Rows::new(address, rows as u64, row_bytes as u64, stride as u64) })
}

/// Reads a value into `buffer` and stores its size in `*out_bytes`, if not NULL. With `capacity` 0 and `out_bytes` it
/// only stores the size. If the buffer is too small, only the size is stored. A value that is only on disk is read from
/// there by the calling process. After a failure the contents of the buffer are undefined.
///
/// Blocks only for the disk, and does not ask the master. Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (it is
/// being written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (a
/// checksum is wrong, and the buffer does not have the value, or the object's header was overwritten),
/// `NMC_ERR_PEER_LOST`, `NMC_ERR_CUDA`, `NMC_ERR_NO_MEMORY` (for a list of many buffers, or to copy device memory),
/// `NMC_ERR_IO` (the disk failed), `NMC_ERR_LIMIT` (no descriptor is left to read the disk; see `ulimit`),
/// `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let size = optional_out(out_bytes, "out_bytes")?;
            // SAFETY: the C contract of `buffer`.
            let look = store.get(key, unsafe { buffer_of(buffer, capacity) }?)?;
            if let Look::Ready(bytes) = look {
                size_out(size, bytes, capacity, "value")?;
            }
            missed(key, &look)
        })
    })
}

/// Stores the size of what was asked for, and fails if the buffer has no room for it, unless only the size was asked for.
#[inline]
pub(super) fn size_out(
    place: Option<&mut std::mem::MaybeUninit<usize>>,
    bytes: u64,
    capacity: usize,
    what: &str,
) -> Result<()> {
    let asked = capacity == 0 && place.is_some();
    if let Some(place) = place {
        place.write(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if bytes > capacity as u64 && !asked {
        return Err(too_small(bytes, capacity, what));
    }
    Ok(())
}

#[cold]
fn too_small(bytes: u64, capacity: usize, what: &str) -> Error {
    Error::new(NMC_ERR_TOO_SMALL, format!("the {what} has {bytes} bytes, the buffer {capacity}"))
}

/// Reads a value of exactly `bytes` bytes into `dst`: another size is `NMC_ERR_INVALID_ARG`. A value that is on disk only is read
/// from there, straight into `dst` where that is aligned as the disk wants it. Otherwise like `nmc_store_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_into(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    dst: *mut c_void,
    bytes: usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            // SAFETY: the C contract of `dst`; `get_into` refuses what cannot be memory.
            let slices = [unsafe { Slice::new(dst as u64, bytes as u64) }];
            missed(key, &store.get_into(key, &Pieces::Slices(&slices))?)
        })
    })
}

/// Reads a part of a value, from byte `offset` on, into `n` buffers of host or device memory, as many bytes as they hold.
/// Stores the size of the whole value in `*out_bytes`, if that is not NULL. A part that reaches behind the end of the value
/// is `NMC_ERR_INVALID_ARG`. Of a value that is on disk only, the 64 KiB that the part touches are read. Otherwise like
/// `nmc_store_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_slices(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    offset: u64,
    buffers: *const nmc_buffer_t,
    n: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (key, buffers) = unsafe { (key_of(key)?, slices_of(array(buffers, n, "buffers")?)) };
            let size = optional_out(out_bytes, "out_bytes")?;
            let look = store.get_part(key, offset, &Pieces::Slices(buffers))?;
            if let (Some(size), Look::Ready(total)) = (size, look) {
                size.write(usize::try_from(total).unwrap_or(usize::MAX));
            }
            missed(key, &look)
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
            // SAFETY: the C contract of the rows; `get_part` refuses those that cannot be memory.
            let pieces = unsafe { rows_of(dst as u64, rows, row_bytes, stride) };
            missed(key, &store.get_part(key, offset, &pieces)?)
        })
    })
}

/// Reads an object's metadata, which its writer passed as `metadata` of `nmc_put_options_t`, into `buffer`. Stores its
/// size in `*out_bytes`, if not NULL; 0 if there is none. With `capacity` 0 and `out_bytes` it only stores the size. If
/// the buffer is too small, only the size is stored. `NMC_MAX_METADATA` bytes are always enough. The metadata of an
/// object that is only on disk is read from there. Through a handle of `nmc_client_open_store`, a node is asked for the
/// metadata of an object that is nowhere in this store.
///
/// Blocks only for the disk and for nodes, and does not ask the master. It does not count as an access or as a read.
/// Thread-safe. Graph-safe. Statuses: `NMC_NOT_READY` (it is being written), `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`,
/// `NMC_ERR_BUSY` (no free pin slot), `NMC_ERR_CORRUPT` (with `NMC_STORE_CHECKSUMS`, or on disk: it is not what the
/// writer passed), `NMC_ERR_IO` (the disk failed), `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be
/// read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_get_metadata(
    store: *mut nmc_store_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (key, buffer) = unsafe { (key_of(key)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let size = optional_out(out_bytes, "out_bytes")?;
            missed(key, &store.tell_metadata(key, |metadata| metadata_out(metadata, buffer, size))?)
        })
    })
}

pub(super) fn metadata_out(
    metadata: &[u8],
    buffer: &mut [u8],
    size: Option<&mut std::mem::MaybeUninit<usize>>,
) -> Result<()> {
    size_out(size, metadata.len() as u64, buffer.len(), "metadata")?;
    if let Some(room) = buffer.get_mut(..metadata.len()) {
        room.copy_from_slice(metadata);
    }
    Ok(())
}

/// Stores in `*out_state` whether the object is `NMC_OBJECT_ABSENT`, `_WRITING`, `_READY`, or, if it is only on disk,
/// `_ON_DISK`. It does not pin the object, does not count as an access, and does not read the disk.
///
/// Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
/// Statuses: `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
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
            state.write(presence_code(store.presence_anywhere(unsafe { key_of(key) }?)?));
            Ok(())
        })
    })
}

pub(super) fn presence_code(presence: Presence) -> u32 {
    match presence {
        Presence::Absent => NMC_OBJECT_ABSENT,
        Presence::Writing => NMC_OBJECT_WRITING,
        Presence::Ready => NMC_OBJECT_READY,
        Presence::OnDisk => NMC_OBJECT_ON_DISK,
        Presence::Elsewhere => NMC_OBJECT_ELSEWHERE,
    }
}

/// Removes an object at once. Readers that have pinned it keep it; its memory is free when all have unpinned. Its copy
/// on disk ends too, even if the object is only on disk: it does not come back, whatever process is killed after this
/// has returned (for a power loss, see `NMC_TIER_DURABLE_REMOVE`).
///
/// Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`, `NMC_ERR_IO` (the object is gone, but the disk refused to note it: after a restart it may be
/// there again).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_remove(store: *mut nmc_store_t, key: nmc_slice_t) -> nmc_status_t {
    // SAFETY: the C contract of `key`.
    guard(|| with(store, |store| store.remove(unsafe { key_of(key) }?)))
}

/// Removes all objects of the namespace whose keys begin with `prefix`, in memory and on disk. Stores how many in
/// `*out_removed`, if not NULL; an object that is in both places, or is being replaced, counts once. To find those that
/// are only on disk, it reads the ends of all buckets. It takes one call of the master for every few thousand objects
/// that the store can hold. Otherwise like `nmc_store_remove`; also `NMC_ERR_BUSY` (values kept coming back into memory and
/// leaving the disk meanwhile: some may be left), `NMC_ERR_CORRUPT` (the end of a bucket is damaged, or its file is not there:
/// some are left; `nmc_tier_verify` gives up those that cannot be read), and `NMC_ERR_LIMIT` (no descriptor is left to read
/// the disk; see `ulimit`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_remove_by_prefix(
    store: *mut nmc_store_t,
    prefix: nmc_slice_t,
    out_removed: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let place = optional_out(out_removed, "out_removed")?;
            // SAFETY: the C contract of `prefix`.
            let n = store.remove_by_prefix(unsafe { super::world_types::bytes_of(prefix, "prefix", 4096) }?)?;
            if let Some(place) = place {
                place.write(n);
            }
            Ok(())
        })
    })
}

/// Removes all objects of the namespace at once, for example when the weights of a model have changed: from now on none
/// is found. Their memory becomes free gradually, and so does their space on disk. The removal is safe from a power
/// loss when this returns. Otherwise like `nmc_store_remove`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_remove_all(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| with(store, Store::remove_all))
}

/// Counts as an access to the object, without reading it, for eviction policies other than FIFO. If the object is only
/// on disk, it counts as an access to its bucket.
///
/// Does not block, except for a tier that is new to the client, and does not ask the master. Thread-safe. Graph-safe.
/// Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be
/// read yet: see `nmc_store_t`), `NMC_ERR_CANCELLED` (while it waited for the tier).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_touch(store: *mut nmc_store_t, key: nmc_slice_t) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            Ok(if store.touch(key)? { NMC_OK } else { remember_missing(key) })
        })
    })
}

/// Changes how an object is kept in memory: class, priority and time as in `nmc_put_options_t`. Returns `NMC_NOT_READY`
/// if the object is only on disk, where nothing keeps it. Otherwise like `nmc_store_remove`.
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
