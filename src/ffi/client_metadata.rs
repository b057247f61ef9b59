//! `nmc_client_get_metadata`: what the writer of a value said about it.

use super::arg::{array, array_out, key_of, slices_of};
use super::basic::nmc_slice_t;
use super::client::{checked, nmc_client_t, single, with};
use super::store::metadata_out;
use super::store_batch::{Statuses, good_keys};
use super::store_types::nmc_buffer_t;
use super::{guard, guard_status, optional_out};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_TOO_SMALL, NMC_OK, nmc_status_t};
use crate::cluster::facade::{Got, Item, What};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Where metadata goes when it comes.
struct Place(*mut u8, usize);

// SAFETY: by the C contract nobody else uses what it points to until the completion was taken; one thread at a time writes there.
unsafe impl Send for Place {}

impl Place {
    fn take(&self, said: &[u8]) -> (u64, nmc_status_t) {
        if said.len() > self.1 {
            return (said.len() as u64, NMC_ERR_TOO_SMALL);
        }
        // SAFETY: the buffer was checked when it was passed, has room, and is ours until the completion was taken.
        unsafe { self.0.copy_from_nonoverlapping(said.as_ptr(), said.len()) };
        (said.len() as u64, NMC_OK)
    }
}

/// Stores metadata that was read, and its size.
fn put_out(got: Got, buffer: &mut [u8], size: Option<&mut MaybeUninit<usize>>) -> Result<nmc_status_t> {
    got.result?;
    metadata_out(&got.metadata, buffer, size).map(|()| NMC_OK)
}

/// Reads the metadata of a value into `buffer`: what was passed as `metadata` of `nmc_replicate_t` or
/// `nmc_put_options_t` when it was put. Stores its size in `*out_bytes`, if not NULL; 0 if there is none. With
/// `capacity` 0 and `out_bytes` this only stores the size. If the buffer is too small, this stores only the size and
/// returns `NMC_ERR_TOO_SMALL`; `NMC_MAX_METADATA` bytes are always enough.
///
/// If a node of this client has the value, this costs no message, and metadata that is only on disk is read from there.
/// Otherwise it blocks: it asks an owner, as `nmc_client_get` does, which sends no byte of the value. If that node has
/// the value only on disk, the value comes into its memory. The call does not count as a read of the value.
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get_metadata(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (key, buffer) = unsafe { (key_of(key)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let size = optional_out(out_bytes, "out_bytes")?;
            put_out(
                single(cluster.get_what(&[Item::new(key, &[])], What::Metadata)?.into_iter().map(Ok).collect())?,
                buffer,
                size,
            )
        })
    })
}

/// Reads the metadata of `n` values, that of `keys[i]` into `buffers[i]`; otherwise like `nmc_client_get_metadata`.
/// `out_bytes[i]`, if `out_bytes` is not NULL, is the size of the metadata, and `out_statuses[i]`, if `out_statuses` is
/// not NULL, is the outcome for `keys[i]`.
///
/// Blocks until all have ended. It asks where up to 256 values are at once, and reads as many together. Thread-safe.
/// Not graph-safe. Returns `NMC_OK` if all were read, otherwise the status of the first one that was not. Statuses as
/// for `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get_metadata_batch(
    client: *mut nmc_client_t,
    keys: *const nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    out_bytes: *mut usize,
    out_statuses: *mut nmc_status_t,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (keys, buffers, mut statuses) =
                unsafe { (array(keys, n, "keys")?, array(buffers, n, "buffers")?, Statuses::new(out_statuses, n)?) };
            // SAFETY: as above.
            let sizes = if out_bytes.is_null() { &mut [] } else { unsafe { array_out(out_bytes, n, "out_bytes") }? };
            sizes.fill(0);
            // SAFETY: the C contract of `keys`.
            let done = unsafe { good_keys(keys, &mut statuses) }.and_then(|(good, numbers)| {
                let items = memory::collect(good.iter().map(|key| Item::new(key, &[])))?;
                for (at, got) in numbers.into_iter().zip(cluster.get_what(&items, What::Metadata)?) {
                    if let Some(place) = sizes.get_mut(at).filter(|_| got.result.is_ok()) {
                        *place = got.metadata.len();
                    }
                    let to = buffers[at];
                    // SAFETY: the C contract of `buffers`.
                    let to = unsafe { array_out(to.ptr.cast::<u8>(), to.len, "a buffer") };
                    statuses.set(at, to.and_then(|to| put_out(got, to, None)));
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

/// Submits a read of a value's metadata, like `nmc_client_get_metadata`, and returns; see `nmc_client_submit_put`. The
/// buffer is the library's until the completion has been taken. `bytes` of the completion is the size of the metadata.
///
/// Thread-safe. Not graph-safe. Statuses as for `nmc_client_submit_put`. The completion has those of `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_submit_get_metadata(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    token: u64,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            // SAFETY: the C contract of these arguments.
            let (key, buffer) = unsafe { (key_of(key)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let place = Place(buffer.as_mut_ptr(), buffer.len());
            cluster.submit_about(token, key, Box::new(move |said| place.take(said)))
        })
    })
}

/// Reads a value like `nmc_client_get`, and its metadata into `metadata`; both are of the same put.
/// `*out_metadata_bytes`, if not NULL, is the size of the metadata. If `metadata` is too small for it, this returns
/// `NMC_ERR_TOO_SMALL`, as it does when the buffers are too small, and both sizes are stored if the value fits.
///
/// Costs no more messages than `nmc_client_get`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get_with_metadata(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffers: *const nmc_buffer_t,
    n: usize,
    metadata: nmc_buffer_t,
    out_bytes: *mut u64,
    out_metadata_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |cluster| {
            let place = optional_out(out_bytes, "out_bytes")?;
            let size = optional_out(out_metadata_bytes, "out_metadata_bytes")?;
            // SAFETY: the C contract of these arguments.
            let (key, buffers, to) = unsafe {
                (
                    key_of(key)?,
                    slices_of(array(buffers, n, "buffers")?),
                    array_out(metadata.ptr.cast::<u8>(), metadata.len, "metadata")?,
                )
            };
            let item = Item::new(key, checked(buffers)?);
            let got = single(cluster.get_what(&[item], What::Both)?.into_iter().map(Ok).collect())?;
            if let Some(place) = place.filter(|_| got.result.is_ok() || got.bytes > 0) {
                place.write(got.bytes);
            }
            put_out(got, to, size)
        })
    })
}
