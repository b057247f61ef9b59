//! `nmc_store_*` around the objects: waiting, watching, iteration, eviction by hand, numbers and texts.

use super::arg::{array_out, key_of};
use super::basic::nmc_slice_t;
use super::config::{OutStruct, OutStructs};
use super::store::{nmc_store_t, with};
use super::store_types::{
    NMC_WAIT_APPEAR, nmc_completion_t, nmc_retry_hint_t, nmc_store_rank_stats_t, nmc_store_stats_t,
};
use super::text::{check_buffer, copy_out};
use super::{guard, guard_status, optional_out, out};
use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::status::{NMC_OK, nmc_status_t};
use crate::store::completions::Completion;
use crate::store::{RankStats, RetryHint, Stats, Store, percentile};
use std::ffi::{c_char, c_void};

/// Waits until an object can be read from memory. `flags` is 0, or `NMC_WAIT_APPEAR` to wait also for a key that is not
/// being written yet.
///
/// Blocks up to `timeout_ms` (-1 for 30 s). Thread-safe. Not graph-safe. Statuses: `NMC_NOT_READY` (at once, if it is
/// only on disk: `nmc_store_get_into` reads it from there), `NMC_ERR_TIMEOUT` (not yet), `NMC_ERR_NOT_FOUND` (it is not
/// being written, or it existed and has been removed, replaced or evicted), `NMC_ERR_STALE` (its writer gave it up, or
/// was late), `NMC_ERR_PEER_LOST` (its writer is gone, or the memory that it was written to is; or it lies in memory
/// that its rank did not have when this client attached), `NMC_ERR_CANCELLED` (`nmc_store_cancel`, destroy, or the rank
/// has aborted), `NMC_ERR_BUSY`, `NMC_ERR_UNAVAILABLE` (it is not in memory, and the tier cannot be read yet: see
/// `nmc_store_t`).
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

/// Ends every wait and every watch of this client, in all threads, with `NMC_ERR_CANCELLED`: for an object, for room,
/// and for a master that does not answer. Later ones are not affected. Does not block. Thread-safe. Graph-safe.
/// Statuses: none of its own.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_store_cancel(store: *mut nmc_store_t) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            store.cancel();
            Ok(())
        })
    })
}

/// Watches a key: when the object can be read, or never will be, a completion with `token` is queued and the descriptor
/// of `nmc_store_event_fd` becomes readable. `flags` is as in `nmc_store_wait_ready`. The library runs a thread while
/// keys are watched; 65,536 keys can be watched at a time. This concerns memory only: a copy on disk is not looked at,
/// and nothing is queued when one is made or goes.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`.
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

/// Takes queued completions, oldest first and at most `capacity`, and stores their number in `*out_n`. At most
/// `NMC_MAX_COMPLETIONS` are kept. If they are not taken, the oldest go, and `lost` of the next one that is taken, and
/// of that one alone, says how many went.
///
/// Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_completions(
    store: *mut nmc_store_t,
    out_completions: *mut nmc_completion_t,
    capacity: usize,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let count = out(out_n, "out_n")?;
            // SAFETY: the C contract of `out_completions`.
            let places = unsafe { array_out(out_completions, capacity, "out_completions") }?;
            let mut places = places.iter_mut();
            count.write(store.completions(capacity, |Completion { token, status, lost }| {
                if let Some(place) = places.next() {
                    *place = nmc_completion_t { token, status, lost };
                }
            }));
            Ok(())
        })
    })
}

/// Stores a descriptor in `*out_fd` that is readable (poll, epoll) while completions are queued. It belongs to the store: do
/// not close it. Does not block. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_event_fd(store: *mut nmc_store_t, out_fd: *mut i32) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            out(out_fd, "out_fd")?.write(store.event_fd());
            Ok(())
        })
    })
}

/// Evicts objects of `rank` until at most `permille`/1000 of its heap are used, or nothing is left that may be evicted. Those that
/// are on disk can be read from there afterwards.
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

/// Stores in `*out_hint`, after `NMC_ERR_BUSY` or `NMC_ERR_NO_SPACE`, what is free on `rank`, what is about to become
/// free, and when to try again. `*out_hint` starts from `NMC_RETRY_HINT_INIT`.
///
/// Does not block and does not ask the master. Thread-safe. Graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_retry_hint(
    store: *mut nmc_store_t,
    rank: i32,
    out_hint: *mut nmc_retry_hint_t,
) -> nmc_status_t {
    guard(|| {
        let Ok(rank) = u32::try_from(rank) else { crate::bail!(NMC_ERR_INVALID_ARG, "rank {rank} is negative") };
        let RetryHint { retry_after_us, free_bytes, largest_free_bytes, waiting_bytes, ready_count } =
            with(store, |store| store.retry_hint(rank))?;
        let value = nmc_retry_hint_t {
            struct_size: 0,
            reserved: 0,
            retry_after_us,
            free_bytes,
            largest_free_bytes,
            waiting_bytes,
            ready_count,
        };
        // SAFETY: the C contract of `out_hint`.
        unsafe { OutStruct::new(out_hint, "out_hint") }?.put(value);
        Ok(())
    })
}

/// Lists the objects of the namespace that can be read, one per call, in no particular order. Start with 0 in
/// `*cursor`. Each call stores a key (up to `capacity` bytes) in `key`, its length in `*out_key_len`, and the size of
/// the value in `*out_bytes`, if not NULL, and moves the cursor; `NMC_ERR_NOT_FOUND` is the end. Objects that are only
/// on disk or in both places come first, then those that are only in memory.
///
/// Objects that come, go or are replaced during the listing may or may not be seen; objects that stay are seen. An
/// object is seen once if it stays where it is. It may be seen twice if it comes from disk into memory, leaves memory
/// for the disk, or has a record on disk that was found damaged. (One that leaves memory, comes back and then leaves
/// the disk too, all during one listing, may be missed.)
///
/// Blocks only for the disk, and does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_NOT_FOUND`,
/// `NMC_ERR_TOO_SMALL` (`*out_key_len` is stored), `NMC_ERR_UNAVAILABLE` (the store's tier is not open, or cannot be
/// read yet, see `nmc_store_t`), `NMC_ERR_IO` and `NMC_ERR_CORRUPT` (the disk failed, or the list of a bucket is
/// damaged or not there), `NMC_ERR_LIMIT` (no descriptor is left to read the disk; see `ulimit`), `NMC_ERR_CANCELLED`
/// (while it waited for the tier). After an error the cursor stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_next(
    store: *mut nmc_store_t,
    cursor: *mut u64,
    key: *mut c_void,
    capacity: usize,
    out_key_len: *mut usize,
    out_bytes: *mut u64,
) -> nmc_status_t {
    guard_status(|| {
        with(store, |store| {
            // SAFETY: the C contract of these arguments.
            let (places, buffer) =
                unsafe { (array_out(cursor, 1, "cursor")?, array_out(key.cast::<u8>(), capacity, "key")?) };
            let (len, size) = (out(out_key_len, "out_key_len")?, optional_out(out_bytes, "out_bytes")?);
            let Some(place) = places.first_mut() else { crate::bail!(NMC_ERR_INVALID_ARG, "cursor is NULL") };
            let Some(found) = store.next(*place)? else {
                crate::bail!(NMC_ERR_NOT_FOUND, "there are no more objects");
            };
            len.write(found.key.len());
            let Some(room) = buffer.get_mut(..found.key.len()) else {
                crate::bail!(NMC_ERR_TOO_SMALL, "the key has {} bytes, the buffer {capacity}", found.key.len());
            };
            room.copy_from_slice(&found.key);
            if let Some(size) = size {
                size.write(found.bytes);
            }
            *place = found.cursor;
            Ok(NMC_OK)
        })
    })
}

/// Stores counters of the store and of this client in `*out_stats`, which starts from `NMC_STORE_STATS_INIT`, and those
/// of each rank in `out_ranks[0..n_ranks]`, if not NULL. Each element of `out_ranks` starts from
/// `NMC_STORE_RANK_STATS_INIT`; the size in the first one is the distance from one element to the next.
///
/// Does not ask the master. Thread-safe. Graph-safe. Statuses: `NMC_ERR_INVALID_ARG`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_stats(
    store: *mut nmc_store_t,
    out_ranks: *mut nmc_store_rank_stats_t,
    n_ranks: usize,
    out_stats: *mut nmc_store_stats_t,
) -> nmc_status_t {
    guard(|| {
        with(store, |store| {
            let n_ranks = if out_ranks.is_null() { 0 } else { n_ranks };
            // SAFETY: the C contract of these arguments.
            let (all, each) =
                unsafe { (OutStruct::new(out_stats, "out_stats")?, OutStructs::new(out_ranks, n_ranks, "out_ranks")?) };
            let found = store.stats()?;
            for (at, rank) in found.ranks.iter().enumerate() {
                each.put(at, rank_stats(rank));
            }
            all.put(stats(&found));
            Ok(())
        })
    })
}

fn stats(found: &Stats) -> nmc_store_stats_t {
    let (own, r) = (&found.own, &found.total);
    nmc_store_stats_t {
        struct_size: 0,
        n_ranks: u32::try_from(found.ranks.len()).unwrap_or(0),
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
        t_plan_us: own.average_plan_ns.div_ceil(1000),
        bytes_tx: own.average_tx,
        bytes_rx: own.average_rx,
        puts: own.puts,
        bytes_written: own.tx,
        get_hits: own.hits,
        get_misses: own.misses,
        bytes_read: own.rx,
        hit_permille: own.hit_permille(),
        put_p50_ns: percentile(&own.histograms[0], 500),
        put_p99_ns: percentile(&own.histograms[0], 990),
        get_p50_ns: percentile(&own.histograms[1], 500),
        get_p99_ns: percentile(&own.histograms[1], 990),
        metadata_bytes: found.metadata_bytes,
        master_bytes: found.master_bytes,
        master_up: found.master_up.into(),
    }
}

fn rank_stats(r: &RankStats) -> nmc_store_rank_stats_t {
    nmc_store_rank_stats_t {
        struct_size: 0,
        reserved: 0,
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

/// Writes the counters in the text format of Prometheus, as `nmc_world_dump` writes its text. Does not ask the master.
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_prometheus(
    store: *mut nmc_store_t,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        check_buffer(buffer, capacity)?;
        let text = with(store, Store::prometheus)?;
        copy_out(&text, buffer, capacity, out_needed)
    })
}

/// Writes a picture of the heaps, and what is waiting, for people: `#` used, `.` free, `+` mixed, `width` characters
/// per rank. Asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_TOO_SMALL` (`*out_needed` is stored),
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_store_dump(
    store: *mut nmc_store_t,
    width: u32,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> nmc_status_t {
    guard(|| {
        check_buffer(buffer, capacity)?;
        let text = with(store, |store| store.dump(width))?;
        copy_out(&text, buffer, capacity, out_needed)
    })
}
