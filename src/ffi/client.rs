//! `nmc_client_*`: objects of many machines.

use super::arg::{Values, array, array_out, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::client_types::{
    nmc_client_config_t, nmc_key_fn, nmc_replica_fn, nmc_replica_t, nmc_replicate_t, nmc_segment_fn, nmc_segment_t,
    parse_client, parse_replicate,
};
use super::handle::{self, HasC, Object};
use super::store::{self, nmc_store_t};
use super::store_batch::{Statuses, good_keys};
use super::store_types::{embedded, nmc_buffer_t, nmc_store_config_t, parse_store};
use super::world_types::bytes_of;
use super::{guard, guard_status, optional_out, out};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_UNAVAILABLE, NMC_OK, nmc_status_t};
use crate::cluster::facade::{Cluster, Item};
use crate::cluster::wire::Segment;
use crate::store::copy::Slice;
use std::ffi::c_void;

/// Bytes of a page of a segment, if none are said: small values are common, and each takes whole pages.
const SEGMENT_PAGE: u32 = 16 << 10;
/// Longest name of a node.
const MAX_NAME: usize = 255;

/// A client of a cluster. It puts objects on nodes and reads them from there. It can also be one or more nodes itself,
/// with memory that it mounts or stores that it attaches; what its own nodes have, it reads without sending a message.
///
/// A get returns every byte of one put of that key, or an error. After a put has returned `NMC_OK`, a get finds the
/// value until it is removed or evicted, or its owners (the nodes that have it) are lost. After a remove has returned
/// `NMC_OK`, no get that begins later returns what was there before. A key names one value until it is removed, unless
/// another one is put while its owners are away, by two programs at the same time, or into an attached store without the
/// client (docs/cluster.md).
///
/// All functions that take it may be called from any thread at the same time; closing waits for those that are under
/// way. Every call returns at most 2 s after the `timeout_ms` of the client's config, but for `nmc_client_register` and
/// `nmc_client_unregister`, which wait for NIXL; submitted calls have the same time. Values may be in host memory or GPU
/// memory. One of the masters leads; this leader knows which node has which key. Statuses that every function can
/// return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`; and if it asks a master, `NMC_ERR_PERMISSION`
/// (the token differs, or a certificate is not from the authority), `NMC_ERR_VERSION` (masters and client speak
/// different versions) and `NMC_ERR_LIMIT` (it needs a connection, and no file descriptor is left).
pub struct nmc_client_t {
    _opaque: [u8; 0],
}

impl Object for Cluster {
    const KIND: u64 = 8;
    const NAME: &'static str = "client";
    fn cancel(&self) {
        Cluster::cancel(self);
    }
}

impl HasC for Cluster {
    type C = nmc_client_t;
}

pub(super) fn with<R>(client: *const nmc_client_t, body: impl FnOnce(&Cluster) -> Result<R>) -> Result<R> {
    handle::with::<Cluster, R>(client, body)
}

/// # Safety
/// `name` is a slice as the C contract says.
unsafe fn name_of<'a>(name: nmc_slice_t) -> Result<Option<&'a str>> {
    // SAFETY: forwarded from the caller.
    let bytes = unsafe { bytes_of(name, "name", MAX_NAME) }?;
    match std::str::from_utf8(bytes) {
        Ok("") => Ok(None),
        Ok(name) if !name.chars().any(char::is_control) => Ok(Some(name)),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "name \"{}\" is no text of one line", bytes.escape_ascii()),
    }
}

/// # Safety
/// `name` is a slice as the C contract says.
pub(super) unsafe fn some_name<'a>(name: nmc_slice_t) -> Result<&'a str> {
    // SAFETY: forwarded from the caller.
    match unsafe { name_of(name) }? {
        Some(name) => Ok(name),
        None => crate::bail!(NMC_ERR_INVALID_ARG, "the name is empty"),
    }
}

/// Opens a client and stores a handle in `*out_client`. Close it with `nmc_client_close`. It contacts no master yet,
/// but resolves host names.
///
/// Blocks while host names are resolved. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_INVALID_ARG` (the config; the
/// message says which field), `NMC_ERR_VERSION`, `NMC_ERR_PERMISSION` (there is neither a token nor certificates, and
/// not everything is on the loopback device), `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT` (no file descriptor is left),
/// `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_open(
    config: *const nmc_client_config_t,
    out_client: *mut *mut nmc_client_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_client, "out_client")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let config = unsafe { parse_client(config) }?;
        slot.write(handle::create(Cluster::open(config)?)?);
        Ok(())
    })
}

/// Closes a client. Its nodes leave the cluster: values that only they have are not found any more. Mounted memory is
/// freed; attached stores stay. NULL is fine; in a forked child this does nothing.
///
/// Blocks until calls in other threads have returned; they end early with `NMC_ERR_CANCELLED`. Thread-safe: of several
/// callers, one succeeds. Not graph-safe. Statuses: `NMC_ERR_BUSY` (called inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_close(client: *mut nmc_client_t) -> nmc_status_t {
    guard(|| handle::take::<Cluster>(client).map(drop))
}

/// Gives memory of this process to the cluster: makes a node with a segment of `config->heap_bytes` bytes. The segment
/// is called `name`, or `host:port` if `name` is empty; no other segment in the cluster may have that name. `config` is
/// that of an embedded store (`nmc_store_create` without a world), except that `page_bytes` 0 means 16 KiB, because
/// each value takes whole pages. When the segment is full, the node evicts by itself, as a store does.
///
/// With `heap_kind` `NMC_HEAP_CUDA` the segment is on a GPU, see `nmc_client_attach_store`. With `heap_import` the
/// memory is the program's own. The program may use it again after `nmc_client_unmount` or `nmc_client_close` has
/// returned, or after this call has returned an error.
///
/// Blocks until a master has accepted the node as a member. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS`
/// (this client already has a node of that name), `NMC_ERR_UNAVAILABLE` (no master accepted the node in time, because
/// none answers or the name is taken: the message has what the master said; nothing of the node is left),
/// `NMC_ERR_LIMIT` (no port is free), `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`, and those of `nmc_store_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_mount(
    client: *mut nmc_client_t,
    name: nmc_slice_t,
    config: *const nmc_store_config_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (name, (mut config, mut raw)) = unsafe { (name_of(name)?, parse_store(config)?) };
            if raw.page_bytes == 0 {
                (raw.page_bytes, config.page_bytes) = (SEGMENT_PAGE, SEGMENT_PAGE);
            }
            config.master_rank = 0;
            crate::tier::install();
            let store = embedded(&raw, &config)?;
            cluster.mount(&store, name, true).map(drop)
        })
    })
}

/// Makes a node of a store that the program has. Others find every value in the store, no matter which program put it
/// there and how, and put their own values into it. The segments are the heaps of the store's ranks, called `name`, or
/// `name/rank` if there are several ranks, and its tier, called `name/ssd`. In a world, one process attaches the store.
/// A value put with `nmc_store_put` is found elsewhere a moment later (`nmc_client_sync` waits for that).
/// `nmc_store_remove` removes only this node's copy.
///
/// What programs put into the store themselves is about this store alone: a put of a key that another node has succeeds,
/// and `NMC_PUT_REPLACE` replaces only this node's copy. Then the cluster has two values under one key, of which a get
/// returns either, until `nmc_client_remove` removes both (docs/cluster.md). Put keys that others may have through a client.
///
/// A store that was never in a cluster, or was empty when it left, keeps all that is in it. A store that returns under
/// its name within an hour (`gone_ms`) keeps what it has, except what was removed meanwhile. Any other store is
/// emptied, because it is unknown what in it should be gone: one that returns later, comes from another cluster,
/// returns after another store had its name, or returns under another name after something was removed.
///
/// Open the store's tier before this call. If it is opened later, values that only the tier has are dropped, unless
/// nothing was removed in the meantime. When the tier is opened or closed, the node starts anew with it by itself, and
/// for a moment others do not find values that only this node has.
///
/// Heaps on a GPU are segments of `NMC_MEDIA_VRAM`. Values that others put there or read from there go through host
/// memory of this process, up to 256 MiB at a time in each direction (a single value may be larger). Puts and gets wait
/// for room there by themselves, until their time is over. Where `protocol` is `rdma`, NIXL moves values to and from
/// the heap directly, as far as it can.
///
/// Blocks until a master has accepted the node as a member. The store stays open until `nmc_client_unmount` or
/// `nmc_client_close`, even after `nmc_store_destroy`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_mount`;
/// `NMC_ERR_EXISTS` also if a client has attached the store already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_attach_store(
    client: *mut nmc_client_t,
    name: nmc_slice_t,
    store: *mut nmc_store_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of `name`.
            let name = unsafe { name_of(name) }?;
            let store = store::with(store, |store| Ok(store.share()))?;
            cluster.mount(&store, name, false).map(drop)
        })
    })
}

/// Takes a node of this client out of the cluster: values that only it has are not found any more. Mounted memory is
/// freed; an attached store stays as it is. To have such values copied to other nodes first, call `nmc_client_drain`.
///
/// Blocks until the node's thread has ended. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (this client
/// has no node of that name: a segment can only be unmounted by the client that mounted it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_unmount(client: *mut nmc_client_t, name: nmc_slice_t) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of `name`.
            cluster.unmount(unsafe { some_name(name) }?)
        })
    })
}

/// Announces that values will be put from, or read into, this memory, of the host or of a GPU. With `rdma` it is
/// registered with NIXL, which then moves bytes without a copy; values in any other memory are copied through 64 MiB of
/// the library's, or go by TCP if they do not fit there. With `tcp` it makes no difference. The memory must stay valid
/// until `nmc_client_unregister`. For GPU memory, set `UCX_MEMTYPE_CACHE=n` before the program starts.
///
/// Blocks while NIXL registers it, up to 30 s. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (part of it is already
/// registered), `NMC_ERR_UNSUPPORTED` (NIXL does not accept it), `NMC_ERR_LIMIT` (too many pieces to announce to
/// others: register fewer, larger ones), `NMC_ERR_TIMEOUT` (NIXL does not answer), `NMC_ERR_NO_MEMORY`. After an error
/// the memory is not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_register(
    client: *mut nmc_client_t,
    memory: *mut c_void,
    bytes: usize,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of this function.
            unsafe { cluster.register(memory as usize, bytes) }
        })
    })
}

/// Undoes `nmc_client_register`; `memory` is the address that was passed there. No call may be using the memory.
///
/// Blocks while NIXL lets go of it, up to 30 s, and as long for each other call of these two that is under way.
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (nothing is registered at that address),
/// `NMC_ERR_TIMEOUT` (NIXL does not answer: it lets go of the memory later, which must stay until the client is closed).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_unregister(client: *mut nmc_client_t, memory: *mut c_void) -> nmc_status_t {
    guard(|| with(client, |cluster| cluster.unregister(memory as usize)))
}

/// Puts a value under `key`. The value is the bytes of the `n` slices, one after the other. `options` may be NULL: one
/// copy, wherever the leader chooses. Slices may be GPU memory. They are copied to host memory first, on a stream of
/// the library, so whatever your kernels write must be there when you call this.
///
/// Blocks: it asks the leader for places, sends the bytes to each owner, and reports to the leader. Thread-safe. Not
/// graph-safe. Statuses: `NMC_ERR_EXISTS` (there is a value under the key, or a chosen owner has one; the old value
/// stays), `NMC_ERR_NO_SPACE` (there is no segment, or none has room), `NMC_ERR_BUSY` (try again: a node has no room at
/// the moment, another put of the key is under way, or a node that may have a copy cannot be reached), `NMC_ERR_STALE`
/// (the value was removed or evicted at once), `NMC_ERR_LIMIT` (4,096 namespaces of the cluster have values, or the
/// nodes have each had values of 63 namespaces), `NMC_ERR_UNAVAILABLE` (no master answers, or no owner that was asked
/// can be reached) and `NMC_ERR_TIMEOUT` (after either of these two the value may have been put), `NMC_ERR_CANCELLED`,
/// `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_put(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    slices: *const nmc_slice_t,
    n: usize,
    options: *const nmc_replicate_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (key, slices, options) =
                unsafe { (key_of(key)?, slices_of(array(slices, n, "slices")?), parse_replicate(options)?) };
            let item = Item::new(key, checked(slices)?);
            single(cluster.put(&[item], &options)?)
        })
    })
}

/// Reads a value into `n` buffers, one after the other, and stores its size in `*out_bytes`, if not NULL. If the
/// buffers are too small, this returns `NMC_ERR_TOO_SMALL`, and `*out_bytes` is the size in that case too. Buffers may
/// be GPU memory: the value is received in host memory and copied when it is complete, and the copy is done when this
/// returns.
///
/// A value that a node of this client has costs no message. Otherwise this blocks: it asks the leader where the value
/// is, unless the client remembers that, and then asks an owner for the bytes; if that owner fails, it asks the next
/// one. After an error the contents of the buffers are undefined. Thread-safe. Not graph-safe. Statuses:
/// `NMC_ERR_NOT_FOUND`, `NMC_ERR_TOO_SMALL`, `NMC_ERR_UNAVAILABLE` (no master answers, or a new one does not know yet
/// what the nodes have), `NMC_ERR_CORRUPT` (the owners keep checksums, and every copy that was read was damaged),
/// `NMC_ERR_BUSY` (an owner had nothing free to send it with: pin slots, or room for what only its disk has),
/// `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    out_bytes: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let place = optional_out(out_bytes, "out_bytes")?;
            // SAFETY: the C contract of these arguments.
            let (key, buffers) = unsafe { (key_of(key)?, slices_of(array(buffers, n, "buffers")?)) };
            let item = Item::new(key, checked(buffers)?);
            let got = single(cluster.get(&[item])?.into_iter().map(Ok).collect())?;
            if let Some(place) = place.filter(|_| got.result.is_ok() || got.bytes > 0) {
                place.write(got.bytes);
            }
            got.result
        })
    })
}

/// Puts `n` values. If `counts` is NULL, `slices[i]` is the value of `keys[i]`. Otherwise the first `counts[0]` slices
/// are the value of `keys[0]`, the next `counts[1]` slices that of `keys[1]`, and so on. `options` is as for
/// `nmc_client_put`, and the same for all. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
/// `keys[i]`. One that fails does not stop the others. The values are put at the same time: if a key appears twice,
/// both puts may succeed, and a get returns one of the two values.
///
/// Blocks until all have ended; up to 256 are under way together. Values in GPU memory are put 64 MiB at a time.
/// Thread-safe. Not graph-safe. Returns `NMC_OK` if all succeeded, otherwise the status of the first one that did not.
/// Statuses as for `nmc_client_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_put_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    slices: *const nmc_slice_t,
    counts: *const usize,
    n: usize,
    options: *const nmc_replicate_t,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, options, mut statuses) = unsafe {
                (
                    array(keys, n, "keys")?,
                    Values::new(slices, counts, n, "slices")?,
                    parse_replicate(options)?,
                    Statuses::new(out_statuses, n)?,
                )
            };
            // SAFETY: the C contract of `keys`.
            let done = unsafe { items(keys, &values, &mut statuses) }.and_then(|(items, numbers)| {
                let results = cluster.put(&items, &options)?;
                for (at, result) in numbers.into_iter().zip(results) {
                    statuses.set(at, result.map(|()| NMC_OK));
                }
                Ok(())
            });
            Ok(match done {
                Ok(()) => statuses.first,
                Err(error) => statuses.refuse(&error),
            })
        })
    })
}

/// Reads `n` values. If `counts` is NULL, the value of `keys[i]` goes into `buffers[i]`; otherwise each value goes into
/// several buffers, one after the other, counted as in `nmc_client_put_batch`. `out_bytes[i]`, if `out_bytes` is not
/// NULL, is the size of the value of `keys[i]`, and `out_statuses[i]`, if `out_statuses` is not NULL, is its outcome.
///
/// Blocks until all have ended. It asks where up to 256 values are at once, and reads as many together; values that go
/// to GPU memory are read 64 MiB at a time. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, otherwise
/// the status of the first one that was not. Statuses as for `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    buffers: *const nmc_buffer_t,
    counts: *const usize,
    n: usize,
    out_bytes: *mut u64,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, mut statuses) = unsafe {
                (array(keys, n, "keys")?, Values::new(buffers, counts, n, "buffers")?, Statuses::new(out_statuses, n)?)
            };
            // SAFETY: as above.
            let sizes = if out_bytes.is_null() { &mut [] } else { unsafe { array_out(out_bytes, n, "out_bytes") }? };
            sizes.fill(0);
            // SAFETY: the C contract of `keys`.
            let done = unsafe { items(keys, &values, &mut statuses) }.and_then(|(items, numbers)| {
                for (at, got) in numbers.into_iter().zip(cluster.get(&items)?) {
                    if let Some(place) = sizes.get_mut(at) {
                        *place = got.bytes;
                    }
                    statuses.set(at, got.result.map(|()| NMC_OK));
                }
                Ok(())
            });
            Ok(match done {
                Ok(()) => statuses.first,
                Err(error) => statuses.refuse(&error),
            })
        })
    })
}

/// Checks whether there is a value under `key`. Returns `NMC_OK` or `NMC_ERR_NOT_FOUND`.
///
/// Blocks while it asks the leader, unless a node of this client has the value. Thread-safe. Not graph-safe. Other
/// statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_exists(client: *mut nmc_client_t, key: nmc_slice_t) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let found = cluster.exists(&[key])?.first().copied().unwrap_or(false);
            Ok(if found { NMC_OK } else { NMC_ERR_NOT_FOUND })
        })
    })
}

/// Checks whether there are values under `n` keys. `out_statuses[i]` is `NMC_OK` or `NMC_ERR_NOT_FOUND`, or why it
/// could not be found out.
///
/// Blocks while it asks the leader, once for every 256 keys. Thread-safe. Not graph-safe. Returns `NMC_OK` if it found
/// out about all keys, whether they exist or not. Other statuses as for `nmc_client_exists`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_exists_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, places) = unsafe { (array(keys, n, "keys")?, array_out(out_statuses, n, "out_statuses")?) };
            // SAFETY: as above; it only says which keys are none.
            let mut statuses = unsafe { Statuses::new(std::ptr::null_mut(), 0) }?;
            places.fill(crate::base::status::NMC_ERR_INVALID_ARG);
            // SAFETY: the C contract of `keys`.
            let (good, numbers) = unsafe { good_keys(keys, &mut statuses) }?;
            match cluster.exists(&good) {
                Ok(found) => {
                    for (at, found) in numbers.into_iter().zip(found) {
                        places[at] = if found { NMC_OK } else { NMC_ERR_NOT_FOUND };
                    }
                    Ok(statuses.first)
                }
                Err(error) => {
                    numbers.into_iter().for_each(|at| places[at] = error.status);
                    Err(error)
                }
            }
        })
    })
}

pub(super) fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {flags:#x} has bits that mean nothing here");
    }
    Ok(())
}

/// Calls `callback` for each copy of an object that the leader lists, until the callback returns 0.
///
/// Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_query(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    callback: nmc_replica_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let listed = cluster.query(&[key])?.pop();
            let listed = listed.ok_or_else(|| Error::new(NMC_ERR_UNAVAILABLE, "no master has answered"))?;
            if listed.status != NMC_OK {
                let text = if listed.status == NMC_ERR_NOT_FOUND { "nobody has" } else { "it is not known who has" };
                return Err(Error::new(listed.status, format!("{text} {}", key.escape_ascii())));
            }
            for found in &listed.replicas {
                let replica = nmc_replica_t {
                    struct_size: u32::try_from(size_of::<nmc_replica_t>()).unwrap_or(0),
                    media: found.media.code(),
                    bytes: found.length,
                    put_id: found.put.0,
                    endpoint: slice_of(&found.endpoint),
                };
                // SAFETY: the program's function, called as its type says, with what lives for the call.
                if unsafe { callback(user, &raw const replica) } == 0 {
                    break;
                }
            }
            Ok(())
        })
    })
}

/// Calls `callback` for each segment of the cluster, until the callback returns 0.
///
/// Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_segments(
    client: *mut nmc_client_t,
    callback: nmc_segment_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            for found in cluster.segments()? {
                let segment = segment_of(&found, cluster);
                // SAFETY: as above.
                if unsafe { callback(user, &raw const segment) } == 0 {
                    break;
                }
            }
            Ok(())
        })
    })
}

/// Lists the keys of the client's namespace that begin with `prefix`, one page per call: calls `callback` with each
/// key, in no particular order. `prefix` may be empty. Start with 0 in `*cursor`. Each call moves it, and it is 0 again
/// after the last page. A page may be empty although more follow. Keys that come or go meanwhile may or may not be
/// seen; keys that stay are seen once, unless another master takes the lead: then start again. If `callback` returns 0,
/// the cursor stays, and the next call begins with the same page.
///
/// Blocks while it asks the leader, once. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_keys(
    client: *mut nmc_client_t,
    prefix: nmc_slice_t,
    cursor: *mut u64,
    callback: nmc_key_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            // SAFETY: the C contract of these arguments.
            let (prefix, place) = unsafe {
                (bytes_of(prefix, "prefix", crate::layout::store::MAX_KEY)?, array_out(cursor, 1, "cursor")?)
            };
            let Some(Ok(from)) = place.first().map(|from| u32::try_from(*from)) else {
                crate::bail!(NMC_ERR_INVALID_ARG, "*cursor is neither 0 nor what a call has stored there");
            };
            let (keys, next) = cluster.keys(prefix, from)?;
            for key in &keys {
                let key = nmc_slice_t { ptr: key.key().as_ptr().cast(), len: key.key().len() };
                // SAFETY: the program's function, called as its type says, with what lives for the call.
                if unsafe { callback(user, key) } == 0 {
                    return Ok(());
                }
            }
            place.fill(next.into());
            Ok(())
        })
    })
}

/// Waits until others can find everything that was stored in this client's nodes before the call, including values put
/// with `nmc_store_put`.
///
/// Blocks until the leader has heard of it. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TIMEOUT`,
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_STALE` (a node was away for so long that it is emptied when it comes back: what was
/// stored in it before is gone).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_sync(client: *mut nmc_client_t) -> nmc_status_t {
    guard(|| with(client, |cluster| cluster.sync()))
}

/// A segment, for as long as what it is made from lives.
pub(super) fn segment_of(found: &Segment, client: &Cluster) -> nmc_segment_t {
    nmc_segment_t {
        struct_size: u32::try_from(size_of::<nmc_segment_t>()).unwrap_or(0),
        media: found.info.media.code(),
        state: found.state,
        near: found.info.near,
        capacity: found.info.capacity,
        used: found.info.used,
        name: slice_of(&found.info.name),
        host: slice_of(&found.host),
        here: client.is_here(found).into(),
        reserved: 0,
    }
}

fn slice_of(text: &str) -> nmc_slice_t {
    nmc_slice_t { ptr: text.as_ptr().cast(), len: text.len() }
}

/// Pieces of memory whose addresses can be ones.
pub(super) fn checked(slices: &[Slice]) -> Result<&[Slice]> {
    crate::store::copy::Pieces::Slices(slices).check()?;
    Ok(slices)
}

/// The items of a batch that can be ones, and their numbers; the others have their status.
///
/// # Safety
/// Each of `keys` is one as the C contract says.
pub(super) unsafe fn items<'a>(
    keys: &[nmc_slice_t],
    values: &Values<'a>,
    statuses: &mut Statuses<'_>,
) -> Result<(Vec<Item<'a>>, Vec<usize>)> {
    let (mut items, mut numbers) = (memory::with_capacity(keys.len())?, memory::with_capacity(keys.len())?);
    for (at, (key, value)) in keys.iter().zip(values.each()).enumerate() {
        // SAFETY: forwarded from the caller.
        let key = unsafe { key_of(*key) };
        match key.and_then(|key| Ok(Item::new(key, checked(value)?))) {
            Ok(item) => {
                items.push(item);
                numbers.push(at);
            }
            Err(error) => statuses.set(at, Err(error)),
        }
    }
    Ok((items, numbers))
}

pub(super) fn single<R>(results: Vec<Result<R>>) -> Result<R> {
    let none = || Error::new(NMC_ERR_UNAVAILABLE, "the client is being closed");
    results.into_iter().next().unwrap_or_else(|| Err(none()))
}
