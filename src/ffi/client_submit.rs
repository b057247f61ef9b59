//! `nmc_client_submit_*`: calls that nobody waits for, and what became of them.

use super::arg::{Values, array, array_out, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::client::{check_flags, checked, items, nmc_client_t, with};
use super::client_types::{NMC_REMOVE_ASYNC, nmc_client_completion_t, nmc_replicate_t, parse_replicate};
use super::store_batch::{Statuses, good_keys};
use super::store_types::nmc_buffer_t;
use super::{guard, out};
use crate::base::deadline::{Deadline, MAX_TIMEOUT_MS};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::nmc_status_t;
use crate::cluster::facade::Item;
use crate::cluster::submit::{Completion, Sum, Tell};

/// Where the results of a batch go when its items end.
struct Places {
    bytes: *mut u64,
    statuses: *mut nmc_status_t,
}

// SAFETY: by the C contract nobody else uses what they point to until the completion was taken; one thread at a time writes there.
unsafe impl Send for Places {}

impl Places {
    /// Checks them, for `n` items.
    ///
    /// # Safety
    /// Each is NULL or points to `n` values, until the completion was taken.
    unsafe fn new(bytes: *mut u64, statuses: *mut nmc_status_t, n: usize) -> Result<Self> {
        if !bytes.is_null() {
            // SAFETY: forwarded from the caller.
            unsafe { array_out(bytes, n, "out_bytes") }?.fill(0);
        }
        if !statuses.is_null() {
            // SAFETY: as above.
            unsafe { array_out(statuses, n, "out_statuses") }?;
        }
        Ok(Self { bytes, statuses })
    }

    fn set(&self, item: usize, bytes: u64, status: nmc_status_t) {
        // SAFETY: the item is one of the `n` that `new` was told of, and the arrays are ours until the completion was taken.
        unsafe {
            if !self.bytes.is_null() {
                self.bytes.add(item).write(bytes);
            }
            if !self.statuses.is_null() {
                self.statuses.add(item).write(status);
            }
        }
    }

    fn tell(self) -> Tell {
        Box::new(move |item, bytes, status| self.set(item, bytes, status))
    }
}

/// The items of a batch, their numbers, and the sum that those which cannot be one begin.
///
/// # Safety
/// Each of `keys` is one as the C contract says.
unsafe fn batch<'a>(
    keys: &[nmc_slice_t],
    values: &Values<'a>,
    places: Places,
) -> Result<(Vec<Item<'a>>, Vec<usize>, Sum)> {
    let mut bad = memory::with_capacity(keys.len())?;
    bad.resize(keys.len(), crate::base::status::NMC_OK);
    // SAFETY: of our own memory; and forwarded from the caller.
    let (items, numbers) = unsafe { items(keys, values, &mut Statuses::new(bad.as_mut_ptr(), bad.len())?) }?;
    Ok((items, numbers, begun(bad, places)))
}

/// The sum that items begin which cannot be one.
fn begun(bad: Vec<nmc_status_t>, places: Places) -> Sum {
    let mut sum = Sum::new(Some(places.tell()));
    bad.into_iter().enumerate().filter(|(_, status)| *status < 0).for_each(|(at, status)| sum.add(at, 0, status));
    sum
}

/// Submits a put like `nmc_client_put` and returns. When the put has ended, a completion with `token` is queued, and
/// `nmc_client_completions` takes it. The bytes of the value must stay as they are until the completion has been taken
/// or `nmc_client_close` has returned. Key, slices and options need to be valid only during this call. The time that
/// the put may take starts now.
///
/// GPU memory goes through host memory. Values that are put are copied there before this returns, of a batch the first
/// 64 MiB. The rest of a batch, and values that are read, are copied by the thread that drives the client (see
/// `nmc_client_completions`).
///
/// Does not block, except for that copy, for memory to keep track of the call, and, if a placement is set, for the list
/// of segments, which may be a second old. Thread-safe. Not graph-safe. After an error nothing has been submitted, and
/// no completion comes. Statuses: `NMC_ERR_BUSY` (`NMC_CLIENT_MAX_SUBMITTED` calls are submitted: take completions
/// first), `NMC_ERR_NO_MEMORY`, `NMC_ERR_OS`. The completion has those of `nmc_client_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_put(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    slices: *const nmc_slice_t,
    n: usize,
    options: *const nmc_replicate_t,
    token: u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (key, slices, options) =
                unsafe { (key_of(key)?, slices_of(array(slices, n, "slices")?), parse_replicate(options)?) };
            let item = Item::new(key, checked(slices)?);
            cluster.submit_put(token, &[item], &[0], &options, Sum::new(None))
        })
    })
}

/// Submits a read like `nmc_client_get` and returns; see `nmc_client_submit_put`. The buffers are the library's until
/// the completion has been taken. `bytes` of the completion is the size of the value. If a node of this client has the
/// value, it is in the buffers when this returns, and the completion is queued.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_get(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    token: u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (key, buffers) = unsafe { (key_of(key)?, slices_of(array(buffers, n, "buffers")?)) };
            let item = Item::new(key, checked(buffers)?);
            cluster.submit_get(token, &[item], &[0], Sum::new(None))
        })
    })
}

/// Submits a remove like `nmc_client_remove` and returns; see `nmc_client_submit_put`.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of
/// `nmc_client_remove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_remove(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    flags: u32,
    token: u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            check_flags(flags, NMC_REMOVE_ASYNC)?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            cluster.submit_remove(token, &[key], &[0], flags & NMC_REMOVE_ASYNC == 0, Sum::new(None))
        })
    })
}

/// Submits `n` puts like `nmc_client_put_batch` and returns; see `nmc_client_submit_put`. One completion is queued when
/// all have ended. Until it has been taken, `out_statuses`, if not NULL, is the library's, and the values must stay as
/// they are. An invalid item does not stop the others; its status is in `out_statuses`.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_put_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    slices: *const nmc_slice_t,
    counts: *const usize,
    n: usize,
    options: *const nmc_replicate_t,
    token: u64,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, options, places) = unsafe {
                (
                    array(keys, n, "keys")?,
                    Values::new(slices, counts, n, "slices")?,
                    parse_replicate(options)?,
                    Places::new(std::ptr::null_mut(), out_statuses, n)?,
                )
            };
            // SAFETY: the C contract of `keys`.
            let (items, numbers, sum) = unsafe { batch(keys, &values, places) }?;
            cluster.submit_put(token, &items, &numbers, &options, sum)
        })
    })
}

/// Submits `n` reads like `nmc_client_get_batch` and returns; see `nmc_client_submit_get`. One completion is queued
/// when all have ended. Until it has been taken, the buffers are the library's, and so are `out_bytes` and
/// `out_statuses` if not NULL.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_get_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    buffers: *const nmc_buffer_t,
    counts: *const usize,
    n: usize,
    token: u64,
    out_bytes: *mut u64,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, values, places) = unsafe {
                (
                    array(keys, n, "keys")?,
                    Values::new(buffers, counts, n, "buffers")?,
                    Places::new(out_bytes, out_statuses, n)?,
                )
            };
            // SAFETY: the C contract of `keys`.
            let (items, numbers, sum) = unsafe { batch(keys, &values, places) }?;
            cluster.submit_get(token, &items, &numbers, sum)
        })
    })
}

/// Submits `n` removes like `nmc_client_remove_batch` and returns; see `nmc_client_submit_put`. One completion is
/// queued when all have ended. Until it has been taken, `out_statuses`, if not NULL, is the library's.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_remove_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    n: usize,
    flags: u32,
    token: u64,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            check_flags(flags, NMC_REMOVE_ASYNC)?;
            // SAFETY: the C contract of these arguments.
            let (keys, places) =
                unsafe { (array(keys, n, "keys")?, Places::new(std::ptr::null_mut(), out_statuses, n)?) };
            let mut bad = memory::with_capacity(n)?;
            bad.resize(n, crate::base::status::NMC_OK);
            // SAFETY: of our own memory; and the C contract of `keys`.
            let (good, numbers) = unsafe { good_keys(keys, &mut Statuses::new(bad.as_mut_ptr(), n)?) }?;
            let sum = begun(bad, places);
            cluster.submit_remove(token, &good, &numbers, flags & NMC_REMOVE_ASYNC == 0, sum)
        })
    })
}

/// Takes completions of submitted calls, oldest first and at most `capacity`, and stores their number in `*out_n`. None
/// is ever lost. If there are none, it waits for one as long as any call is under way, up to `timeout_ms`: 0 does not
/// wait, -1 waits without limit. If nothing is under way, it returns at once.
///
/// This call also drives the connections. Unless the client has `NMC_CLIENT_THREAD`, submitted calls make progress only
/// while some thread is in this call, or in another call of the client that waits for an answer.
///
/// Blocks up to `timeout_ms`. Thread-safe. Not graph-safe. If no completion comes in time, it returns `NMC_OK` with 0
/// in `*out_n`. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_completions(
    client: *mut nmc_client_t,
    out_completions: *mut nmc_client_completion_t,
    capacity: usize,
    timeout_ms: i64,
    out_n: *mut usize,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let count = out(out_n, "out_n")?;
            let deadline = Deadline::from_ms(timeout_ms, MAX_TIMEOUT_MS)?;
            // SAFETY: the C contract of `out_completions`.
            let places = unsafe { array_out(out_completions, capacity, "out_completions") }?;
            let limit = if timeout_ms == 0 { std::time::Duration::ZERO } else { deadline.left() };
            let mut places = places.iter_mut();
            count.write(cluster.completions(capacity, limit, |Completion { token, bytes, status }| {
                if let Some(place) = places.next() {
                    *place = nmc_client_completion_t { token, bytes, status, reserved: 0 };
                }
            }));
            Ok(())
        })
    })
}

/// Stores a file descriptor in `*out_fd` for poll or epoll. It is readable when you should call
/// `nmc_client_completions` with `timeout_ms` 0: a completion is queued, something has arrived, or it is time to ask
/// again. Not every such call yields a completion. The descriptor belongs to the client: do not close it, and do not
/// read from it. Does not block. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_OS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_event_fd(client: *mut nmc_client_t, out_fd: *mut i32) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let place = out(out_fd, "out_fd")?;
            place.write(cluster.event_fd()?);
            Ok(())
        })
    })
}

/// Ends the calls that were submitted with `token` and are under way. When this returns, their completions are queued:
/// with `NMC_ERR_CANCELLED`, or with its own outcome if a call was just ending, or, for a batch, with the status of the
/// first item that had failed before. The library does not touch their memory any more. A put or remove may have taken
/// effect anyway. Nothing more is sent for it, except that a put is revoked.
///
/// Does not block, except for a thread of this process that is just recording an outcome. Thread-safe. Not graph-safe.
/// Statuses: `NMC_ERR_NOT_FOUND` (no call with that token is under way; its completion may be waiting to be taken),
/// `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_cancel(client: *mut nmc_client_t, token: u64) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| match cluster.cancel_submitted(token)? {
            0 => crate::bail!(NMC_ERR_NOT_FOUND, "nothing with the token {token:#x} is under way"),
            _ => Ok(()),
        })
    })
}
