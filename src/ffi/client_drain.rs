//! `nmc_client_drain`: a segment is emptied before it goes.

use super::basic::nmc_slice_t;
use super::client::{nmc_client_t, some_name, with};
use super::{guard, guard_status, optional_out, remember};
use crate::base::deadline::{Deadline, MAX_TIMEOUT_MS};
use crate::base::error::Error;
use crate::base::status::{NMC_IN_PROGRESS, nmc_status_t};

/// Closes a segment, and has values that are only there copied to other nodes. From now on nothing is stored there.
/// Values of others go to other nodes. Puts of the node's own programs go to other ranks of its store; if they name
/// this rank, or there is no other, they end with `NMC_ERR_NO_SPACE`.
///
/// Waits up to `timeout_ms` until nothing is left to copy: 0 does not wait, -1 waits as long as it takes. Returns
/// `NMC_IN_PROGRESS` if copying goes on, or if a put that had begun has not ended; `nmc_last_error_message` then says
/// what is left, and names the first objects. `*out_left`, if `out_left` is not NULL, is how many objects are left, as
/// far as that is known. Call this again until it returns `NMC_OK`, then call `nmc_client_unmount`, which opens an
/// attached store for puts again. To give up instead, call `nmc_client_undrain`. A new leader does not know about the
/// drain: the segment is open until this function is called again. A call that is waiting asks again by itself.
///
/// Blocks while it asks the leader. A call that waits asks again if no leader answers. It returns at most 2 s after
/// `timeout_ms` or the client's own timeout, whichever is later. Thread-safe. Not graph-safe. Statuses:
/// `NMC_ERR_NOT_FOUND` (there is no such segment), `NMC_ERR_BUSY` (64 other segments are being drained),
/// `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_drain(
    client: *mut nmc_client_t,
    segment: nmc_slice_t,
    timeout_ms: i64,
    out_left: *mut u64,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            let place = optional_out(out_left, "out_left")?;
            let limit = Deadline::from_ms(timeout_ms, MAX_TIMEOUT_MS)?.left();
            // SAFETY: the C contract of `segment`.
            let drained = cluster.drain(unsafe { some_name(segment) }?, limit)?;
            if let Some(place) = place {
                place.write(drained.left);
            }
            if drained.status == NMC_IN_PROGRESS {
                remember(&Error::new(NMC_IN_PROGRESS, drained.what));
            }
            Ok(drained.status)
        })
    })
}

/// Gives up a drain: the segment accepts values again, from others at once, and from its node's own programs as soon as
/// the node has heard of it, within a second or two. Copies that were made stay. If a thread is waiting in
/// `nmc_client_drain` for the same segment, it closes the segment again.
///
/// Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such
/// segment), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_undrain(client: *mut nmc_client_t, segment: nmc_slice_t) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of `segment`.
            cluster.undrain(unsafe { some_name(segment) }?)
        })
    })
}
