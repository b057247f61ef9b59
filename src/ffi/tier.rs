//! `nmc_tier_*`: what memory evicts, disk keeps.

use super::arg::{array, array_out, key_of};
use super::basic::nmc_slice_t;
use super::config::OutStruct;
use super::handle::{self, HasC, Object};
use super::store::{self, nmc_store_t, status_of};
use super::store_batch::{Statuses, good_keys};
use super::tier_types::{
    NMC_TIER_EVICTED, NMC_TIER_STORED, entry_of, nmc_tier_config_t, nmc_tier_event_fn, nmc_tier_event_t,
    nmc_tier_scan_fn, nmc_tier_stats_t, nmc_tier_verified_t, nmc_tier_verify_fn, parse_tier, stats_of, verified_of,
};
use super::{guard, guard_status, optional_out, out};
use crate::base::deadline::MAX_TIMEOUT_MS;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_NOT_READY, NMC_OK, nmc_status_t};
use crate::store::read::Look;
use crate::tier::{Happened, Tier};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The SSD tier of a store: its owner in the process of the store's master, elsewhere a handle to it. Nobody needs a handle to read:
/// `nmc_store_get` and the others find what is on disk by themselves, in every process, also while the master is away. What
/// each function of the store does with a key that is on disk only is in its comment, and in one table in docs/tier.md.
///
/// All functions that take it may be called from any thread at the same time, also while another thread closes it. It keeps the
/// store open, also after `nmc_store_destroy`, until it is closed. Statuses that every function can return: `NMC_ERR_BAD_HANDLE`,
/// `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`.
pub struct nmc_tier_t {
    _opaque: [u8; 0],
}

/// What a handle stands for.
struct Open {
    tier: Tier,
    /// It is being closed: calls that go through many values end early.
    closing: AtomicBool,
}

impl Object for Open {
    const KIND: u64 = 7;
    const NAME: &'static str = "tier";
    fn cancel(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.tier.stop();
    }
}

impl HasC for Open {
    type C = nmc_tier_t;
}

impl Open {
    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// The result of a call that goes through many values: one that was ended early by a close has none.
    fn finished<T>(&self, result: Result<T>) -> Result<T> {
        if self.is_closing() {
            return Err(Error::new(NMC_ERR_CANCELLED, "the tier is being closed"));
        }
        result
    }
}

fn with<R>(tier: *const nmc_tier_t, body: impl FnOnce(&Open) -> Result<R>) -> Result<R> {
    handle::with::<Open, R>(tier, body)
}

/// Opens the tier of a store and puts a handle into `*out_tier`.
///
/// In the process of the store's master it makes the owner: it takes the directory, recovers what is there, and from then on
/// writes values to it before memory evicts them, on a thread of its own. What it found can be read by every process when
/// the call returns. With `store` embedded, that is this process. In other processes it gives a handle to the tier that the
/// store has; `config` may be NULL there, and only its flags and numbers are checked. A new master does not open it by
/// itself: after a restart of the master, calls that change something return `NMC_ERR_UNAVAILABLE` until its process has called this again.
///
/// What was removed, replaced or flushed while no owner had the directory is not known there: those keys come back.
///
/// Blocks while it recovers, which `progress` of the config reports. Thread-safe. Not graph-safe. Closed with `nmc_tier_close`. Statuses:
/// `NMC_ERR_INVALID_ARG` (the config, no directory, or a variable of the environment: the message names it and its text),
/// `NMC_ERR_VERSION` (the config, or a directory of another format), `NMC_ERR_EXISTS` (another process owns the directory, the message
/// names it; or the store has a tier), `NMC_ERR_NOT_FOUND` (a part of the path; or, elsewhere, the store has no tier), `NMC_ERR_CORRUPT` (head or
/// journal are damaged, see `NMC_TIER_RESET_IF_DAMAGED`), `NMC_ERR_PERMISSION`, `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_UNAVAILABLE` (the master is away), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_IO`, `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_open(
    store: *mut nmc_store_t,
    config: *const nmc_tier_config_t,
    out_tier: *mut *mut nmc_tier_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_tier, "out_tier")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        // SAFETY: the C contract of `config`.
        let (config, raw) = unsafe { parse_tier(config) }?;
        let mut progress = |done, total| {
            if let Some(callback) = raw.progress {
                // SAFETY: the program's function, called as its type says.
                unsafe { callback(raw.progress_user, done, total) };
            }
        };
        let tier = store::with(store, |store| Tier::open(store, &config, &mut progress))?;
        slot.write(handle::create(Open { tier, closing: AtomicBool::new(false) })?);
        Ok(())
    })
}

/// Closes a handle. That of the owner ends the tier: what is being written is completed and made safe from a power loss, the
/// directory is free for another owner, and keys that are on disk only are not found any more until it is opened again. What
/// is in memory stays, and what is removed from now on comes back with the directory. A handle of another process ends alone. NULL
/// is fine; in a forked child it does nothing.
///
/// Blocks until calls of other threads have returned, which end early with `NMC_ERR_CANCELLED` if they would take long, also those that wait for
/// an owner that does not answer. Not graph-safe. Thread-safe: of several callers one succeeds. Statuses: `NMC_ERR_BUSY` when called inside a callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_close(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| handle::take::<Open>(tier).map(drop))
}

/// Everything that was removed, replaced or flushed before, and every value that counts as written, is safe from a power loss when
/// this returns. It writes no values: `nmc_tier_offload` does.
///
/// Waits for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_IO` (the disk
/// refuses, see `degraded` of `nmc_tier_stats_t`), `NMC_ERR_NO_SPACE`, `NMC_ERR_CANCELLED` (the tier is being closed),
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_sync(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.sync()))
}

/// Writes values to disk now, also while offloading is paused: those of `n` keys in the namespace of the store that the tier was
/// opened with, or, if `keys` is NULL and `n` is 0, all that are in memory, of every namespace. Stores in `*out_written`, if that
/// is not NULL, how many were written; if it fails, nothing is stored there. Not counted are those that are on disk already, which
/// includes keys that are on disk only, that are being written or not there, that came after the call had begun, or whose checksum in
/// memory is wrong: none of them is an error. The values stay in memory.
///
/// Waits for the disk: what was written is safe from a power loss when it returns. Outside of the owner's process it asks the master.
/// If the disk evicts (`eviction` of the config) and holds less than memory, it ends when it is full of what was written. Thread-safe.
/// Not graph-safe. Statuses: `NMC_ERR_NO_SPACE` (the file system, `capacity_bytes` or `max_objects` is used up; what fitted is written), `NMC_ERR_IO`, `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_PEER_LOST` (the heap of a rank cannot be read at the moment; what lies in others is written), `NMC_ERR_CANCELLED` (the tier is being
/// closed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_offload(
    tier: *mut nmc_tier_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_written: *mut u64,
) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            let place = optional_out(out_written, "out_written")?;
            let written = if keys.is_null() && n == 0 {
                open.tier.offload(None)?
            } else {
                // SAFETY: the C contract of `keys`.
                let keys = unsafe { array(keys, n, "keys") }?;
                // SAFETY: as above.
                let keys = memory::try_collect(keys.iter().map(|key| unsafe { key_of(*key) }))?;
                open.tier.offload(Some(&keys))?
            };
            if let Some(place) = place {
                place.write(written);
            }
            Ok(())
        })
    })
}

/// Brings the values of `n` keys back into memory, into the heap of this process's rank, in the namespace of the store that the tier was
/// opened with: those that are on disk only are read 64 together. `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of
/// `keys[i]`: `NMC_OK` if it is in memory, whether it was there before or not, `NMC_NOT_READY` if it is being written there,
/// `NMC_ERR_NOT_FOUND` if it is nowhere. What comes back stays on disk too, so that memory can evict it without writing it again, and
/// keeps its metadata, its priority and its retain class, but for a retention for a time.
///
/// Reads the disk in this process, and asks the master for room, which evicts others as a put does; it does not wait for room. A key that
/// is removed or replaced meanwhile does not come back. If more is asked for than memory holds, the last push the first out again. Thread-safe.
/// Not graph-safe. Returns `NMC_OK` if all came, else the status of the first that failed or, if none did, `NMC_NOT_READY`: besides
/// these `NMC_ERR_NO_SPACE` and `NMC_ERR_BUSY` (no room, or everything there is in use), `NMC_ERR_STALE` (given up for another one), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the
/// master or the tier's owner is away), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_prefetch(
    tier: *mut nmc_tier_t,
    keys: *const nmc_slice_t,
    n: usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(tier, |open| {
            // SAFETY: the C contract of these arguments.
            let (keys, mut statuses) = unsafe { (array(keys, n, "keys")?, Statuses::new(out_statuses, n)?) };
            // SAFETY: the C contract of `keys`.
            let (good, numbers) = match unsafe { good_keys(keys, &mut statuses) } {
                Ok(good) => good,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            open.tier.prefetch(&good, |number, came| {
                statuses.set(numbers[number], came.map(|ready| if ready { NMC_OK } else { NMC_NOT_READY }));
            });
            Ok(statuses.first)
        })
    })
}

/// How long values stay in staging memory if `nmc_tier_stage` does not say, in ms.
pub const NMC_TIER_STAGE_MS: u32 = 5000;

/// Reads the values of `n` keys into memory of the library, wherever they are, and lends that to the caller: for who has no buffer of its
/// own, or hands them on to a network. `out_values[i]` tells where the value of `keys[i]` is, with a NULL pointer if it is not there, and
/// `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it: `NMC_OK`, `NMC_NOT_READY` if it is being written,
/// `NMC_ERR_NOT_FOUND`. `*out_loan` names the loan, which holds all of them; 0 if there is none. Keys are those of the namespace of the store
/// that the tier was opened with; all that are on disk are read together. Values begin at multiples of 4 KiB and may be read only.
///
/// The loan ends with `nmc_tier_release`, with the handle, or after `ttl_ms` (0: `NMC_TIER_STAGE_MS`), counted from the return: after that the memory
/// is lent to others. Whoever may be slower copies first and then asks `nmc_tier_release`, which says whether it was in time. 64 MiB can be lent
/// by a handle at a time, in 1,024 loans.
///
/// Reads the disk in this process. Thread-safe. Not graph-safe. Returns `NMC_OK` if all came, else the status of the first that failed or, if
/// none did, `NMC_NOT_READY`: besides these `NMC_ERR_BUSY` (the memory is lent: repeat it when some has come back; or a value was replaced
/// meanwhile), `NMC_ERR_LIMIT` (more than it holds), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the tier cannot be read yet, see `nmc_store_t`),
/// `NMC_ERR_CANCELLED` (while it waited for that; or the tier is being closed), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_stage(
    tier: *mut nmc_tier_t,
    keys: *const nmc_slice_t,
    n: usize,
    ttl_ms: u64,
    out_loan: *mut u64,
    out_values: *mut nmc_slice_t,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(tier, |open| {
            let loan = out(out_loan, "out_loan")?;
            loan.write(0);
            // SAFETY: the C contract of these arguments.
            let (keys, values, mut statuses) = unsafe {
                (array(keys, n, "keys")?, array_out(out_values, n, "out_values")?, Statuses::new(out_statuses, n)?)
            };
            values.fill(nmc_slice_t { ptr: std::ptr::null(), len: 0 });
            // SAFETY: the C contract of `keys`.
            let (good, numbers) = match unsafe { good_keys(keys, &mut statuses) } {
                Ok(good) => good,
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            if ttl_ms > MAX_TIMEOUT_MS.unsigned_abs() {
                crate::bail!(NMC_ERR_INVALID_ARG, "ttl_ms {ttl_ms} is above {MAX_TIMEOUT_MS}");
            }
            let time = Duration::from_millis(if ttl_ms == 0 { NMC_TIER_STAGE_MS.into() } else { ttl_ms });
            let staged = open.tier.stage(&good, time, |at, look| {
                let status = look.map(|look| {
                    if let Look::Ready(lent) = &look {
                        let len = usize::try_from(lent.bytes).unwrap_or(0);
                        values[numbers[at]] = nmc_slice_t { ptr: lent.address as *const c_void, len };
                    }
                    status_of(&look)
                });
                statuses.set_of(numbers[at], good[at], status);
            });
            match staged {
                Ok(name) => loan.write(name),
                Err(error) => return Ok(statuses.refuse(&error)),
            };
            Ok(statuses.first)
        })
    })
}

/// Ends a loan of `nmc_tier_stage`: its values must not be read any more. `NMC_OK` also says that everything that was read until now was
/// right, `NMC_ERR_STALE` that the loan's time was over: what was read after that may be other values. A loan of 0 is fine.
///
/// Does not wait. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_STALE` (the loan has ended).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_release(tier: *mut nmc_tier_t, loan: u64) -> nmc_status_t {
    guard(|| with(tier, |open| if loan == 0 { Ok(()) } else { open.tier.release(loan) }))
}

/// Takes values from the disk, whole buckets, those that `eviction` of the config says first (the oldest if it says nothing), until its
/// files take at most `keep_bytes`, besides those of damaged buckets that were set aside. Stores in `*out_evicted`, if that is not NULL, how many values went. Those that are in memory as well
/// stay there, and are written again before memory evicts them. It is no removal: a power loss right after it may bring them back.
///
/// Outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_IO` (the disk refuses),
/// `NMC_ERR_NO_SPACE` (the journal must say first that a bucket goes; it is full, and the file system has no room for a new one: that bucket and those after it
/// stay), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_evict(tier: *mut nmc_tier_t, keep_bytes: u64, out_evicted: *mut u64) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            let place = optional_out(out_evicted, "out_evicted")?;
            let evicted = open.tier.evict(keep_bytes)?;
            if let Some(place) = place {
                place.write(evicted);
            }
            Ok(())
        })
    })
}

/// Calls `callback` for everything that happened to values on disk since the last call, the oldest first, until it returns 0: batches
/// of keys that were stored or evicted (`nmc_tier_event_t`). With `NMC_TIER_EVENTS` only. While there is something to take, the
/// descriptor of `nmc_store_event_fd` is readable, for the store that the tier was opened with.
///
/// Does not wait. In the owner's process only. Thread-safe: each event is given to one caller. Not graph-safe. Statuses:
/// `NMC_ERR_UNSUPPORTED` (this process does not own the tier), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_events(
    tier: *mut nmc_tier_t,
    callback: nmc_tier_event_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            let Some(callback) = callback else {
                crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL: nobody would get the events");
            };
            while let Some(event) = open.tier.next_event()? {
                let slice = |bytes: &[u8]| nmc_slice_t { ptr: bytes.as_ptr().cast(), len: bytes.len() };
                let names: Vec<_> = memory::collect(event.values.iter().map(|(name, ..)| slice(name)))?;
                let keys: Vec<_> = memory::collect(event.values.iter().map(|(_, key, _)| slice(key)))?;
                let bytes: Vec<u64> = memory::collect(event.values.iter().map(|(.., bytes)| *bytes))?;
                let told = nmc_tier_event_t {
                    struct_size: u32::try_from(size_of::<nmc_tier_event_t>()).unwrap_or(0),
                    what: match event.happened {
                        Happened::Stored => NMC_TIER_STORED,
                        Happened::Evicted => NMC_TIER_EVICTED,
                    },
                    n: event.values.len(),
                    namespace_names: names.as_ptr(),
                    keys: keys.as_ptr(),
                    bytes: bytes.as_ptr(),
                    lost: event.lost,
                };
                // SAFETY: the program's function, called as its type says, with what lives for the call.
                if unsafe { callback(user, &raw const told) } == 0 {
                    break;
                }
            }
            open.finished(Ok(()))
        })
    })
}

/// Ends offloading until `nmc_tier_resume`: what memory evicts from now on is lost, unless it is on disk already. What is being
/// written is written. Reads, removals and `nmc_tier_offload` go on.
///
/// Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses:
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_pause(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.pause(true)))
}

/// Begins offloading again. Otherwise like `nmc_tier_pause`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_resume(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.pause(false)))
}

/// Stores numbers about the tier in `*out_stats`, which starts from `NMC_TIER_STATS_INIT`.
///
/// Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe. Statuses:
/// `NMC_ERR_UNAVAILABLE` (the master or the tier is not there any more), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_stats(tier: *mut nmc_tier_t, out_stats: *mut nmc_tier_stats_t) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            // SAFETY: the C contract of `out_stats`.
            let place = unsafe { OutStruct::new(out_stats, "out_stats") }?;
            place.put(stats_of(open.tier.is_owner(), &open.tier.stats()?));
            Ok(())
        })
    })
}

/// Reads every value on disk, whether it is in memory as well or not, and compares it with its checksums. Those that are wrong
/// end: their keys are not found any more, unless they are in memory. Stores what it found in `*out_verified`, which starts from
/// `NMC_TIER_VERIFIED_INIT`. `callback`, which may be NULL, is told how far it is; if it returns 0, the call ends with what was found so
/// far.
///
/// Reads the whole disk, in this process; whether what is wrong ends is the owner's to say, who looks once more. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`
/// (the owner does not answer) and `NMC_ERR_NOT_FOUND` (the tier was closed); if some values could not be read for another
/// reason than damage, they are counted as `unreadable` and stay, all others are looked at, and it returns why: `NMC_ERR_IO`, `NMC_ERR_LIMIT`,
/// `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_verify(
    tier: *mut nmc_tier_t,
    callback: nmc_tier_verify_fn,
    user: *mut c_void,
    out_verified: *mut nmc_tier_verified_t,
) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            // SAFETY: the C contract of `out_verified`.
            let place = unsafe { OutStruct::new(out_verified, "out_verified") }?;
            let mut go_on = |done, total| {
                // SAFETY: the program's function, called as its type says.
                !open.is_closing() && callback.is_none_or(|callback| unsafe { callback(user, done, total) } != 0)
            };
            let (found, why) = open.finished(open.tier.verify(&mut go_on))?;
            place.put(verified_of(&found));
            why.map_or(Ok(()), Err)
        })
    })
}

/// Calls `callback` for every value on disk, of all namespaces, whether it is in memory as well or not, in no order that means anything,
/// until it returns 0. What comes and goes meanwhile may be among them or not.
///
/// Reads the lists of all buckets, in this process. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED` (the tier is being closed),
/// `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` (the owner does not answer) and
/// `NMC_ERR_NOT_FOUND` (the tier was closed); if lists could not be read, after all
/// others: `NMC_ERR_IO`, `NMC_ERR_CORRUPT`, `NMC_ERR_LIMIT`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_tier_scan(
    tier: *mut nmc_tier_t,
    callback: nmc_tier_scan_fn,
    user: *mut c_void,
) -> nmc_status_t {
    guard(|| {
        with(tier, |open| {
            let Some(callback) = callback else {
                crate::bail!(NMC_ERR_INVALID_ARG, "callback is NULL: a scan without one does nothing");
            };
            open.finished(open.tier.scan(&mut |found| {
                let entry = entry_of(found);
                // SAFETY: the program's function, called as its type says, with what lives for the call.
                !open.is_closing() && unsafe { callback(user, &raw const entry) } != 0
            }))
        })
    })
}
