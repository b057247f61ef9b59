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
use parking_lot::Mutex;
use std::ffi::c_void;

/// Bytes of a page of a segment, if none are said: small values are common, and each takes whole pages.
const SEGMENT_PAGE: u32 = 16 << 10;
/// Longest name of a node.
const MAX_NAME: usize = 255;

/// A client of a cluster: it puts objects on nodes and reads them from there, and can itself be nodes, with memory that it mounts or stores
/// that it attaches. Whatever its nodes have it reads without a message.
///
/// A key names one value until it is removed, or its owners are away and somebody puts another one (docs/cluster.md). A get returns every byte of one put of that key, or an error. After a put has returned
/// `NMC_OK`, a get finds it until it is removed, evicted, or its owners are lost. After a remove has returned `NMC_OK`, no get that begins
/// later returns what was there before.
///
/// All functions that take it may be called from any thread at the same time; closing waits for those that are under way. Every call
/// returns at most 2 s after the time that the client's config gives it. What is submitted and not waited for has the same time. Values are
/// host memory, or memory of a GPU. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`, and if it asks a
/// master `NMC_ERR_PERMISSION` (the token is another, or a certificate is not of the authority) and `NMC_ERR_VERSION` (masters and client speak different versions).
pub struct nmc_client_t {
    _opaque: [u8; 0],
}

/// What a handle stands for.
pub(super) struct Open {
    pub(super) cluster: Cluster,
    /// Memory that was registered: first byte and how many.
    registered: Mutex<Vec<(usize, usize)>>,
}

impl Object for Open {
    const KIND: u64 = 8;
    const NAME: &'static str = "client";
    fn cancel(&self) {
        self.cluster.cancel();
    }
}

impl HasC for Open {
    type C = nmc_client_t;
}

pub(super) fn with<R>(client: *const nmc_client_t, body: impl FnOnce(&Open) -> Result<R>) -> Result<R> {
    handle::with::<Open, R>(client, body)
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

/// Opens a client and puts a handle into `*out_client`. Nobody is contacted yet, but names of machines are looked up.
///
/// Thread-safe. Not graph-safe. Closed with `nmc_client_close`. Statuses: `NMC_ERR_INVALID_ARG` (the config; the message names what),
/// `NMC_ERR_VERSION`, `NMC_ERR_PERMISSION` (neither token nor certificates, and not everything is on the loopback device),
/// `NMC_ERR_NO_MEMORY`, `NMC_ERR_LIMIT` (no descriptor is left), `NMC_ERR_OS`.
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
        let open = Open { cluster: Cluster::open(config)?, registered: Mutex::new(Vec::new()) };
        slot.write(handle::create(open)?);
        Ok(())
    })
}

/// Closes a client. Its nodes leave the cluster: what only they have, nobody finds any more; memory that was mounted is freed, stores that
/// were attached stay. NULL is fine; in a forked child it does nothing.
///
/// Blocks until calls of other threads have returned: they end early with `NMC_ERR_CANCELLED`. Not graph-safe. Thread-safe: of several
/// callers one succeeds. Statuses: `NMC_ERR_BUSY` when called inside a callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_close(client: *mut nmc_client_t) -> nmc_status_t {
    guard(|| handle::take::<Open>(client).map(drop))
}

/// Gives the cluster memory of this process: a node with a segment of `config->heap_bytes` bytes, named `name`, or `host:port` if that is
/// empty. No other segment in the cluster may have the name. `config` is that of an embedded store (`nmc_store_create` without a
/// world); `page_bytes` 0 is 16 KiB here, since each value takes whole pages. The node evicts by itself what it has no room for, as a store does.
/// With `heap_kind` `NMC_HEAP_CUDA` it is a segment on a GPU, see `nmc_client_attach_store`. With `heap_import` the memory is the program's own, which may use it again when
/// `nmc_client_unmount` or `nmc_client_close` has returned, or this call with an error.
///
/// Waits until a master has taken the node as a member. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (this client has such a
/// node), `NMC_ERR_UNAVAILABLE` (no master has taken it in time: none answers, or the name is taken; nothing is left of it), `NMC_ERR_LIMIT` (ports), `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_OS`, and those of `nmc_store_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_mount(
    client: *mut nmc_client_t,
    name: nmc_slice_t,
    config: *const nmc_store_config_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (name, (mut config, mut raw)) = unsafe { (name_of(name)?, parse_store(config)?) };
            if raw.page_bytes == 0 {
                (raw.page_bytes, config.page_bytes) = (SEGMENT_PAGE, SEGMENT_PAGE);
            }
            config.master_rank = 0;
            crate::tier::install();
            let store = embedded(&raw, &config)?;
            open.cluster.mount(&store, name, true).map(drop)
        })
    })
}

/// Makes a node of a store that the program has: what is put into it, by whomever and in which way, others find; others put to it. Its
/// segments are the heaps of its ranks, named `name`, and with more than one rank `name/rank`, and its tier, `name/ssd`. One process of a world
/// attaches its store. If the tier is opened or closed later the node begins anew with it by itself: for a moment others do not find what only it has.
/// A put with `nmc_store_put` is found elsewhere a moment later (`nmc_client_sync` waits for that), and a remove with
/// `nmc_store_remove` concerns this node's copy alone.
///
/// A store that never was in a cluster, or was empty when it left, is taken with all that is in it. One that was, keeps what it has if it comes
/// back under its name within an hour (`gone_ms`); what was removed meanwhile goes. Otherwise, and if it comes from another cluster, after another
/// store had its name, or under another name and something was removed since, all that is in it is removed: nobody knows what of it should be
/// gone. Open its tier before this call: of a tier that is opened later, what memory does not have goes unless nothing was removed meanwhile.
///
/// Heaps on a GPU are segments of `NMC_MEDIA_VRAM`. What others put there or read from there goes by way of host memory of this process, 256 MiB each way at a
/// time (one value may be larger): puts and gets wait for that by themselves, until their time is over. Where `protocol` is `rdma`, NIXL moves values from and to the heap itself, as far as it can.
///
/// Waits until a master has taken the node as a member. The store stays open until the client is closed or `nmc_client_unmount` is called, also
/// after `nmc_store_destroy`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_mount`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_attach_store(
    client: *mut nmc_client_t,
    name: nmc_slice_t,
    store: *mut nmc_store_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            // SAFETY: the C contract of `name`.
            let name = unsafe { name_of(name) }?;
            let store = store::with(store, |store| Ok(store.share()))?;
            open.cluster.mount(&store, name, false).map(drop)
        })
    })
}

/// Takes a node of this client out of the cluster: nobody finds what only it has any more. Memory that was mounted is freed, a store that was
/// attached stays as it is. `nmc_client_drain` first copies what is only there.
///
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (this client has no node of that name: only who mounted a segment unmounts it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_unmount(client: *mut nmc_client_t, name: nmc_slice_t) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            // SAFETY: the C contract of `name`.
            open.cluster.unmount(unsafe { some_name(name) }?)
        })
    })
}

/// Says that values will be put from, or read into, this memory, of the host or of a GPU. With `rdma` it is registered with NIXL, which then moves bytes
/// from and to it without a copy; any other memory is copied through 64 MiB of the library's, and what does not fit there goes by tcp. With `tcp` nothing
/// depends on it. The memory stays as it is until that is taken back. For memory of a GPU set `UCX_MEMTYPE_CACHE=n` before the program starts.
///
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (part of it is registered), `NMC_ERR_UNSUPPORTED` (NIXL does not take it),
/// `NMC_ERR_LIMIT` (others could not be told of as many pieces: register fewer, larger ones), `NMC_ERR_TIMEOUT` (NIXL does not answer),
/// `NMC_ERR_NO_MEMORY`. After an error the memory is not registered.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_register(client: *mut nmc_client_t, memory: *mut c_void, bytes: usize) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let first = memory as usize;
            if first == 0 || bytes == 0 || first.checked_add(bytes).is_none() {
                crate::bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes at {memory:p} are no memory");
            }
            let mut list = open.registered.lock();
            if let Some((other, n)) = list.iter().find(|(other, n)| first < other + n && *other < first + bytes) {
                crate::bail!(
                    NMC_ERR_EXISTS,
                    "{bytes} bytes at {memory:p} overlap {n} at {other:#x} that are registered"
                );
            }
            memory::reserve(&mut list, 1)?;
            // SAFETY: the C contract of this function.
            unsafe { open.cluster.register(first, bytes) }?;
            list.push((first, bytes));
            Ok(())
        })
    })
}

/// Takes that back, with the address that was given. No call may use the memory meanwhile.
///
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_unregister(client: *mut nmc_client_t, memory: *mut c_void) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let mut list = open.registered.lock();
            let Some(at) = list.iter().position(|(first, _)| *first == memory as usize) else {
                crate::bail!(NMC_ERR_NOT_FOUND, "nothing is registered at {memory:p}");
            };
            list.swap_remove(at);
            open.cluster.unregister(memory as usize)
        })
    })
}

/// Puts a value, which `n` slices of memory make up, under `key`. `options` may be NULL: one copy, wherever the master says. Slices may be memory of a
/// GPU: they are copied to host memory first, on a stream of the library: what your kernels write must be there when this is called.
///
/// Asks the leader, sends the bytes to each owner, and tells the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_EXISTS` (there is a value under the key, or an
/// owner that was chosen has one; the old value stays), `NMC_ERR_NO_SPACE` (no segment, or none has room), `NMC_ERR_BUSY`, `NMC_ERR_STALE` (it was removed or evicted
/// at once), `NMC_ERR_LIMIT` (4,096 namespaces of the cluster have something, or the nodes have had values of 63 namespaces each), `NMC_ERR_UNAVAILABLE` (no master
/// answers, or no owner that was asked can be reached), `NMC_ERR_TIMEOUT` (after both it may have been put), `NMC_ERR_CANCELLED`,
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
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (key, slices, options) =
                unsafe { (key_of(key)?, array(slices, n, "slices")?, parse_replicate(options)?) };
            let item = Item::new(key, checked(slices_of(slices))?);
            single(open.cluster.put(&[item], &options)?)
        })
    })
}

/// Reads a value into `n` buffers, one after the other, and stores in `*out_bytes`, if that is not NULL, how many bytes it has.
/// If the buffers have room for fewer, that is `NMC_ERR_TOO_SMALL`, and `*out_bytes` is the size all the same. Buffers may be memory of a GPU: the value comes
/// to host memory and is copied there when it is whole, and that is done when this returns.
///
/// What a node of this client has costs no message. Else the leader is asked where it is, unless that is remembered, and an owner for the
/// bytes; if that one fails, the next. What the buffers hold after an error is not defined. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_TOO_SMALL`, `NMC_ERR_UNAVAILABLE` (no master answers, or a new one is still being told what there is), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    out_bytes: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let place = optional_out(out_bytes, "out_bytes")?;
            // SAFETY: the C contract of these arguments.
            let (key, buffers) = unsafe { (key_of(key)?, array(buffers, n, "buffers")?) };
            let item = Item::new(key, checked(slices_of(buffers))?);
            let got = single(open.cluster.get(&[item])?.into_iter().map(Ok).collect())?;
            if let Some(place) = place.filter(|_| got.result.is_ok() || got.bytes > 0) {
                place.write(got.bytes);
            }
            got.result
        })
    })
}

/// Puts `n` values. With `counts` NULL `slices[i]` is the value of `keys[i]`; else the first `counts[0]` slices make up that of `keys[0]`, the next `counts[1]` that
/// of `keys[1]`, and so on. `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it. A failed one does not stop the others.
/// They are put at the same time: if a key is named twice, both may succeed, and a get returns one of the two values. Values in memory of a GPU are put 64 MiB
/// at a time.
///
/// Up to 256 are under way together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all went well, else the status of the first that did not.
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
        with(client, |open| {
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
                let results = open.cluster.put(&items, &options)?;
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

/// Reads `n` values: that of `keys[i]` into `buffers[i]`, or with `counts` into as many of the buffers, one after the other, as `nmc_client_put_batch` takes slices.
/// `out_bytes[i]`, if `out_bytes` is not NULL, is how many bytes it has, and
/// `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it. Values that go to memory of a GPU are read 64 MiB at a time.
///
/// Where they are is asked for 256 at once, and as many are read together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, else
/// the status of the first that was not. Statuses as for `nmc_client_get`.
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
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, mut statuses) = unsafe {
                (array(keys, n, "keys")?, Values::new(buffers, counts, n, "buffers")?, Statuses::new(out_statuses, n)?)
            };
            // SAFETY: as above.
            let sizes = if out_bytes.is_null() { &mut [] } else { unsafe { array_out(out_bytes, n, "out_bytes") }? };
            sizes.fill(0);
            // SAFETY: the C contract of `keys`.
            let done = unsafe { items(keys, &values, &mut statuses) }.and_then(|(items, numbers)| {
                for (at, got) in numbers.into_iter().zip(open.cluster.get(&items)?) {
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

/// Whether there is a value under `key`: `NMC_OK` or `NMC_ERR_NOT_FOUND`.
///
/// Asks the leader, unless a node of this client has it. Thread-safe. Not graph-safe. Statuses besides: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_exists(client: *mut nmc_client_t, key: nmc_slice_t) -> nmc_status_t {
    guard_status(|| {
        with(client, |open| {
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let found = open.cluster.exists(&[key])?.first().copied().unwrap_or(false);
            Ok(if found { NMC_OK } else { NMC_ERR_NOT_FOUND })
        })
    })
}

/// The same for `n` keys: `out_statuses[i]` is `NMC_OK` or `NMC_ERR_NOT_FOUND`, or why it could not be found out.
///
/// Asks the leader once for 256. Thread-safe. Not graph-safe. Returns `NMC_OK` if it was found out for all, whether they are there or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_exists_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (keys, places) = unsafe { (array(keys, n, "keys")?, array_out(out_statuses, n, "out_statuses")?) };
            // SAFETY: as above; it only says which keys are none.
            let mut statuses = unsafe { Statuses::new(std::ptr::null_mut(), 0) }?;
            places.fill(crate::base::status::NMC_ERR_INVALID_ARG);
            // SAFETY: the C contract of `keys`.
            let (good, numbers) = unsafe { good_keys(keys, &mut statuses) }?;
            match open.cluster.exists(&good) {
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

/// Calls `callback` with each copy of an object that the leader lists.
///
/// Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_query(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    callback: nmc_replica_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            let listed = open.cluster.query(&[key])?.pop();
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

/// Calls `callback` with each segment of the cluster.
///
/// Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_segments(
    client: *mut nmc_client_t,
    callback: nmc_segment_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            for found in open.cluster.segments()? {
                let segment = segment_of(&found, &open.cluster);
                // SAFETY: as above.
                if unsafe { callback(user, &raw const segment) } == 0 {
                    break;
                }
            }
            Ok(())
        })
    })
}

/// Calls `callback` with the keys of the client's namespace that begin with `prefix`, which may be empty, one page a call and in no particular order.
/// `*cursor` is 0 at first; each call moves it, and it is 0 again after the last page. A page may have no key although there are more. Keys that
/// come or go meanwhile may or may not be seen; what stays is seen once, unless another master takes the lead: then begin again. If `callback`
/// ends the list the cursor stays, and the next call begins with the same page.
///
/// Asks the leader, once. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_keys(
    client: *mut nmc_client_t,
    prefix: nmc_slice_t,
    cursor: *mut u64,
    callback: nmc_key_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            let Some(callback) = callback else { crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL") };
            // SAFETY: the C contract of these arguments.
            let (prefix, place) = unsafe {
                (bytes_of(prefix, "prefix", crate::layout::store::MAX_KEY)?, array_out(cursor, 1, "cursor")?)
            };
            let Some(Ok(from)) = place.first().map(|from| u32::try_from(*from)) else {
                crate::bail!(NMC_ERR_INVALID_ARG, "*cursor is neither 0 nor what a call has stored there");
            };
            let (keys, next) = open.cluster.keys(prefix, from)?;
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

/// Waits until others find everything that was stored in this client's nodes before, by `nmc_store_put` too.
///
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TIMEOUT`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_STALE` (a node was away for so long that it is emptied as it
/// comes back: what was stored in it before is gone).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_sync(client: *mut nmc_client_t) -> nmc_status_t {
    guard(|| with(client, |open| open.cluster.sync()))
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
