//! `nmc_client_drain`: a segment is emptied before it goes.

use super::basic::nmc_slice_t;
use super::client::{nmc_client_t, some_name, with};
use super::{guard, guard_status, optional_out, remember};
use crate::base::deadline::{Deadline, MAX_TIMEOUT_MS};
use crate::base::error::Error;
use crate::base::status::{NMC_IN_PROGRESS, nmc_status_t};

/// Closes a segment and has what is only there copied to other nodes. Nobody stores there any more: values of others go to other nodes, and puts
/// of the node's own programs to other ranks of its store, or, if they name this one or there is no other, end with `NMC_ERR_NO_SPACE`. It waits up to
/// `timeout_ms` until nothing is left to copy, 0 not at all, -1 for as long as it takes. `NMC_IN_PROGRESS` means that copying goes on, or that a put which had begun has not ended;
/// `nmc_last_error_message` says then what is left, the first objects by their names. `*out_left`, if `out_left` is not NULL, is how many objects are left, as far as that
/// is known. Call it again until it returns `NMC_OK`, then unmount, which opens an attached store again; or `nmc_client_undrain`. A new leader knows of no drain: the segment is open
/// until this is called again, or asks again while it waits.
///
/// Asks the leader; while it waits also again if none answers. Returns at most 2 s after `timeout_ms` or the client's time, whichever is later. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such segment),
/// `NMC_ERR_BUSY` (too many are being drained), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`, `NMC_ERR_CANCELLED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_drain(
    client: *mut nmc_client_t,
    segment: nmc_slice_t,
    timeout_ms: i64,
    out_left: *mut u64,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |open| {
            let place = optional_out(out_left, "out_left")?;
            let limit = Deadline::from_ms(timeout_ms, MAX_TIMEOUT_MS)?.left();
            // SAFETY: the C contract of `segment`.
            let drained = open.cluster.drain(unsafe { some_name(segment) }?, limit)?;
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

/// Gives a drain up: the segment takes values again, of others at once and of its own programs when its node has heard of it, within a second or two. Copies that were made
/// stay. Whoever waits in `nmc_client_drain` for the same segment closes it again.
///
/// Asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND` (there is no such segment), `NMC_ERR_UNAVAILABLE`, `NMC_ERR_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_undrain(client: *mut nmc_client_t, segment: nmc_slice_t) -> nmc_status_t {
    guard(|| {
        with(client, |open| {
            // SAFETY: the C contract of `segment`.
            open.cluster.undrain(unsafe { some_name(segment) }?)
        })
    })
}
