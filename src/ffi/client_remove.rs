//! `nmc_client_remove`: objects go from all nodes, one, many or all of a namespace.

use super::arg::{array, key_of};
use super::basic::nmc_slice_t;
use super::client::{check_flags, nmc_client_t, with};
use super::client_types::{NMC_REMOVE_ASYNC, NMC_REMOVE_EVERYWHERE};
use super::guard_status;
use super::store_batch::{Statuses, good_keys};
use crate::base::status::nmc_status_t;

/// Removes an object from all nodes. With `flags` 0 it waits until every owner has dropped the object. It returns
/// `NMC_IN_PROGRESS` if an owner is away and the master has no etcd to record the removal in: until that owner is back,
/// its own programs, and clients that remember where the value is, may still read it. With `NMC_REMOVE_ASYNC` it does
/// not wait for the owners. Reads that have begun finish.
///
/// Blocks while it asks the leader. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_NOT_FOUND`, `NMC_ERR_UNAVAILABLE`,
/// `NMC_ERR_TIMEOUT` (the object may have been removed), `NMC_ERR_CANCELLED`. If the leader is lost during the call and
/// the next one knows nothing under the key, the status is `NMC_OK`: the object is gone, and it is unknown whether it
/// existed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_remove(client: *mut nmc_client_t, key: nmc_slice_t, flags: u32) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            check_flags(flags, NMC_REMOVE_ASYNC)?;
            // SAFETY: the C contract of `key`.
            let key = unsafe { key_of(key) }?;
            cluster.remove(key, flags & NMC_REMOVE_ASYNC == 0)
        })
    })
}

/// Removes `n` objects, like `nmc_client_remove`, with the same `flags` for all. `out_statuses[i]`, if `out_statuses`
/// is not NULL, is the outcome for `keys[i]`: `NMC_OK`, `NMC_IN_PROGRESS`, `NMC_ERR_NOT_FOUND`, or why it failed. One
/// that fails does not stop the others. If a key appears twice, one of the two may be `NMC_ERR_NOT_FOUND`.
///
/// Blocks as `nmc_client_remove` does; up to 256 are under way together. Thread-safe. Not graph-safe. Returns the
/// status of the first one that failed; if none failed, `NMC_IN_PROGRESS` if that is the status of any, otherwise
/// `NMC_OK`. Statuses as for `nmc_client_remove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_remove_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    n: usize,
    flags: u32,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            check_flags(flags, NMC_REMOVE_ASYNC)?;
            // SAFETY: the C contract of these arguments.
            let (keys, mut statuses) = unsafe { (array(keys, n, "keys")?, Statuses::new(out_statuses, n)?) };
            // SAFETY: the C contract of `keys`.
            let done = unsafe { good_keys(keys, &mut statuses) }.and_then(|(good, numbers)| {
                let results = cluster.remove_batch(&good, flags & NMC_REMOVE_ASYNC == 0)?;
                numbers.into_iter().zip(results).for_each(|(at, result)| statuses.set(at, result));
                Ok(())
            });
            Ok(match done {
                Ok(()) => statuses.first,
                Err(error) => statuses.refuse(&error),
            })
        })
    })
}

/// Removes all objects of the client's namespace in one step, or of all namespaces with `NMC_REMOVE_EVERYWHERE`.
/// Otherwise like `nmc_client_remove`, except that it is no error if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_client_remove_all(client: *mut nmc_client_t, flags: u32) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            check_flags(flags, NMC_REMOVE_ASYNC | NMC_REMOVE_EVERYWHERE)?;
            cluster.remove_all(flags & NMC_REMOVE_EVERYWHERE != 0, flags & NMC_REMOVE_ASYNC == 0)
        })
    })
}
