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
use crate::store::types::Look;
use crate::tier::{Happened, Tier};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The SSD tier of a store. In the process of the store's master, the handle owns the tier; in any other process it
/// refers to the tier that the store has. Reading needs no handle: `nmc_store_get` and the other reads find values on
/// disk by themselves, in every process, even while the master is away. The comment of each store function says what it
/// does with a key that is only on disk, and docs/tier.md has all of them in one table.
///
/// All functions that take the handle may be called from any thread at the same time, even while another thread closes
/// it. It keeps the store open until it is closed, even after `nmc_store_destroy`. Statuses that every function can
/// return: `NMC_ERR_BAD_HANDLE`, `NMC_ERR_FORKED`, `NMC_ERR_INVALID_ARG`. Those that read values or keys from the disk can
/// also return `NMC_ERR_PERMISSION` (a file of the tier must not be opened, or is no regular file any more).
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

/// Opens the tier of a store and stores a handle in `*out_tier`. Close it with `nmc_tier_close`.
///
/// In the process of the store's master, this process becomes the owner of the tier. It takes the directory, recovers
/// what is in it, and from then on a thread of the library writes values there before memory evicts them. When the call
/// returns, every process can read what was recovered. An embedded `store` has its master in this process. In any other
/// process, the handle refers to the tier that the store already has; `config` may be NULL there, and only its flags
/// and numbers are checked.
///
/// A new master does not open the tier by itself. After a restart of the master, calls that change something return
/// `NMC_ERR_UNAVAILABLE` until its process has called `nmc_tier_open` again. A directory does not know what was
/// removed, replaced or flushed while it had no owner: those keys come back.
///
/// Blocks during recovery; `progress` of the config reports how far it is. Thread-safe. Not graph-safe. Statuses:
/// `NMC_ERR_INVALID_ARG` (the config, no directory given, or an environment variable, which the message names together
/// with its text), `NMC_ERR_VERSION` (the config, or a directory of another format), `NMC_ERR_MISMATCH` (the directory
/// has another `backend`, or see `NMC_TIER_OTHER_DIRECTORY`), `NMC_ERR_EXISTS` (another process, which the message
/// names, owns the directory; or the store already has a tier), `NMC_ERR_NOT_FOUND` (a part of the path does not exist;
/// or, in another process, the store has no tier), `NMC_ERR_CORRUPT` (the head or the journal is damaged, see
/// `NMC_TIER_RESET_IF_DAMAGED`), `NMC_ERR_PERMISSION` (also if something in the directory that is no regular file stands
/// where the tier has one), `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_UNAVAILABLE` (the master
/// is away), `NMC_ERR_UNSUPPORTED`, `NMC_ERR_IO`, `NMC_ERR_OS`.
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

/// Closes a handle. NULL is fine; in a forked child this does nothing.
///
/// Closing the owner's handle ends the tier. Writes that have begun are completed and made safe from a power loss, and
/// the directory is free for another owner. Keys that are only on disk are not found any more until the tier is opened
/// again; values in memory stay. Whatever is removed from now on stays in the directory, and comes back with it. In
/// another process, only the handle ends.
///
/// Blocks until calls in other threads have returned. Calls that would take long, and calls that wait for an owner that
/// does not answer, end early with `NMC_ERR_CANCELLED`. Thread-safe: of several callers, one succeeds. Not graph-safe.
/// Statuses: `NMC_ERR_BUSY` (called inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_close(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| handle::take::<Open>(tier).map(drop))
}

/// Waits until everything so far is safe from a power loss: all removals, replacements and flushes that happened
/// before, and all values that count as written. It does not write values; `nmc_tier_offload` does.
///
/// Blocks until the disk is done. Outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_IO` (the disk refuses, see `degraded` of `nmc_tier_stats_t`), `NMC_ERR_NO_SPACE`, `NMC_ERR_LIMIT`
/// (as for `nmc_tier_offload`), `NMC_ERR_NO_MEMORY`, `NMC_ERR_CANCELLED` (the tier is being closed),
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_sync(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.sync()))
}

/// Writes values to disk now, even while offloading is paused. The values stay in memory. `keys` are `n` keys in the
/// namespace of the store that the tier was opened with. If `keys` is NULL and `n` is 0, everything in memory is
/// written, in every namespace.
///
/// Stores in `*out_written`, if not NULL, how many values were written; on failure nothing is stored. The following are
/// not counted, and are not errors: values that are already on disk (including those that are only on disk), values
/// that are being written, keys that do not exist, values that came after the call began, and values whose checksum in
/// memory is wrong.
///
/// Blocks until the disk is done: what was written is safe from a power loss when the call returns. Outside of the
/// owner's process it asks the master. If the disk evicts (`eviction` of the config) and holds less than memory, the
/// call ends when the disk is full of what it has written. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NO_SPACE`
/// (the file system, `capacity_bytes` or `max_objects` is used up; what fitted is written), `NMC_ERR_IO`,
/// `NMC_ERR_NO_MEMORY`, `NMC_ERR_PEER_LOST` (the heap of a rank cannot be read at the moment; what lies in the others
/// is written), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_LIMIT`
/// (the owner's process has no descriptor left, or must not make files that long: see `ulimit`), `NMC_ERR_OS` (it may not
/// have another thread).
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

/// Brings the values of `n` keys back into memory, into the heap of this process's rank. The keys are those of the
/// namespace of the store that the tier was opened with. Values that are only on disk are read 64 at a time.
/// `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for `keys[i]`: `NMC_OK` if the value is in memory,
/// whether it was there before or not, `NMC_NOT_READY` if it is being written there, `NMC_ERR_NOT_FOUND` if it is
/// nowhere.
///
/// A value that comes back stays on disk too, so memory can evict it again without writing it. It keeps its metadata,
/// its priority and its retain class, except `NMC_RETAIN_SOFT`, which is not restored. A key that is removed or
/// replaced during the call does not come back. If you ask for more than memory holds, the last values push the first
/// ones out again.
///
/// Blocks while this process reads the disk and the master makes room, which evicts other values as a put does; it does
/// not wait for room. Thread-safe. Not graph-safe. Returns `NMC_OK` if all values came; otherwise the status of the
/// first one that failed, or, if none failed, `NMC_NOT_READY`. Statuses other than those above: `NMC_ERR_NO_SPACE` and
/// `NMC_ERR_BUSY` (no room, or everything there is in use), `NMC_ERR_STALE` (given up in favour of another value),
/// `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the master or the tier's owner is away), `NMC_ERR_TIMEOUT`,
/// `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
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

/// How long a loan of `nmc_tier_stage` lasts if its `ttl_ms` is 0, in ms.
pub const NMC_TIER_STAGE_MS: u32 = 5000;

/// Reads the values of `n` keys, wherever they are, into memory of the library and lends that memory to the caller. Use
/// it if you have no buffer of your own, or to pass values on to a network. The keys are those of the namespace of the
/// store that the tier was opened with; those that are on disk are all read together.
///
/// `out_values[i]` is where the value of `keys[i]` lies; its pointer is NULL if the value is not there. Values begin at
/// multiples of 4 KiB, and you may only read them. `out_statuses[i]`, if `out_statuses` is not NULL, is the outcome for
/// `keys[i]`: `NMC_OK`, `NMC_NOT_READY` if the value is being written, `NMC_ERR_NOT_FOUND`, or why it could not be
/// read. `*out_loan` is the number of the loan, which covers all of these values; 0 if nothing was lent.
///
/// The loan ends with `nmc_tier_release`, when the handle is closed, or `ttl_ms` after this call has returned (0 for
/// `NMC_TIER_STAGE_MS`). After that the memory is lent to others. If you may take longer, copy the values first and
/// then call `nmc_tier_release`, which says whether you were in time. One handle lends up to 64 MiB at a time, in up to
/// 1,024 loans.
///
/// Blocks while this process reads the disk. Thread-safe. Not graph-safe. Returns `NMC_OK` if all values came;
/// otherwise the status of the first one that failed, or, if none failed, `NMC_NOT_READY`. Statuses other than those
/// above: `NMC_ERR_BUSY` (the memory is on loan: try again when some has been released; or a value was replaced during
/// the call), `NMC_ERR_LIMIT` (more than the memory holds), `NMC_ERR_CORRUPT`, `NMC_ERR_IO`, `NMC_ERR_UNAVAILABLE` (the
/// tier cannot be read yet, see `nmc_store_t`), `NMC_ERR_CANCELLED` (ended while waiting for that, or the tier is being
/// closed), `NMC_ERR_NO_MEMORY`.
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
                        let len = usize::try_from(lent.bytes()).unwrap_or(0);
                        values[numbers[at]] = nmc_slice_t { ptr: lent.address() as *const c_void, len };
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

/// Ends a loan of `nmc_tier_stage`: do not read its values any more. `NMC_OK` also confirms that everything read from
/// it until now was right. `NMC_ERR_STALE` means that the loan's time was over: anything read after that may belong to
/// other values. A loan of 0 is fine.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_STALE` (the loan had already ended).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_release(tier: *mut nmc_tier_t, loan: u64) -> nmc_status_t {
    guard(|| with(tier, |open| if loan == 0 { Ok(()) } else { open.tier.release(loan) }))
}

/// Evicts values from the disk until its files take at most `keep_bytes`. Files of damaged buckets that were set aside
/// do not count here. Whole buckets go, in the order that `eviction` of the config gives (the oldest first if that is
/// `NMC_EVICT_NONE`). Stores in `*out_evicted`, if not NULL, how many values went. Values that are also in memory stay
/// there, and count as not written: they are written again ahead of their eviction like new ones, and are lost if
/// memory evicts them before that. This is not a removal: a power loss right afterwards may bring the values back.
///
/// Blocks until the disk is done. Outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_IO` (the disk refuses), `NMC_ERR_NO_SPACE` (the journal must record that a bucket goes before it
/// goes; it is full, and the file system has no room for a new one: that bucket and those after it stay),
/// `NMC_ERR_LIMIT` (as for `nmc_tier_offload`), `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`,
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
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

/// Calls `callback` for everything that has happened to values on disk since the last call in this process, oldest
/// first, until the callback returns 0. Each event is a batch of keys that were stored or evicted, or a part of one
/// (`nmc_tier_event_t`). The owner of the tier must have been opened with `NMC_TIER_EVENTS` (`nmc master --ssd-events`).
/// It keeps the newest events, of up to 65,536 values, for every process; what a process does not take in time is gone
/// for it, and is counted in `lost`. The first call in a process begins with the oldest event that is kept, and so does
/// the first one after the tier was opened anew. While there are events to take, the descriptor of `nmc_store_event_fd`
/// is readable, for the store that the tier was opened with; in other processes than the owner's up to 100 ms later.
///
/// Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe: of the threads of a
/// process, each event goes to one. Not graph-safe. Statuses: `NMC_ERR_UNSUPPORTED` (another process owns the tier, and
/// keeps no events; in the owner's own process there are just none), `NMC_ERR_UNAVAILABLE` (the master or the tier does
/// not exist any more), `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`.
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

/// Stops offloading until `nmc_tier_resume`: what memory evicts from now on is lost, unless it is on disk already.
/// Writes that have begun are completed. Reads, removals and `nmc_tier_offload` go on.
///
/// Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED` (the tier is being closed).
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_pause(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.pause(true)))
}

/// Starts offloading again. Otherwise like `nmc_tier_pause`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_tier_resume(tier: *mut nmc_tier_t) -> nmc_status_t {
    guard(|| with(tier, |open| open.tier.pause(false)))
}

/// Stores counters of the tier in `*out_stats`, which starts from `NMC_TIER_STATS_INIT`.
///
/// Does not wait for the disk; outside of the owner's process it asks the master. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_UNAVAILABLE` (the master or the tier does not exist any more), `NMC_ERR_TIMEOUT`,
/// `NMC_ERR_CANCELLED` (the tier is being closed).
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

/// Reads every value on disk, whether or not it is also in memory, and compares it with its checksums. Damaged values
/// are given up: their keys are not found any more, unless they are in memory. Stores the result in `*out_verified`,
/// which starts from `NMC_TIER_VERIFIED_INIT`. `callback`, which may be NULL, is told the progress; if it returns 0,
/// the call ends with the result so far.
///
/// Blocks while this process reads the whole disk. Only the owner gives up a value, after looking at it once more.
/// Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED` (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside
/// of the owner's process also `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT` (the owner does not answer) and
/// `NMC_ERR_NOT_FOUND` (the tier was closed). If some values cannot be read for another reason than damage, they stay
/// and are counted as `unreadable`, all others are checked, the result is stored, and the call returns the reason:
/// `NMC_ERR_IO`, `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
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

/// Calls `callback` for every value on disk, of all namespaces, whether or not it is also in memory, in no particular
/// order, until the callback returns 0. Values that come or go during the scan may or may not be seen.
///
/// Blocks while this process reads the lists of all buckets. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_CANCELLED`
/// (the tier is being closed), `NMC_ERR_NO_MEMORY`; outside of the owner's process also `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT` (the owner does not answer) and `NMC_ERR_NOT_FOUND` (the tier was closed). If some lists cannot be
/// read, the call first goes through all others and then returns the reason: `NMC_ERR_IO`, `NMC_ERR_CORRUPT` (damaged, or
/// not there), `NMC_ERR_LIMIT`, `NMC_ERR_PERMISSION`, `NMC_ERR_OS`.
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
