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

/// Reads what the writer of a value said about it (`metadata` of `nmc_replicate_t` or `nmc_put_options_t`) into `buffer`, and stores its size in `*out_bytes`, if that is not
/// NULL: 0 if that was nothing. With `capacity` 0 and `out_bytes` it only tells the size. If the buffer is too small, only the size is stored. `NMC_MAX_METADATA` bytes are enough for any.
///
/// What a node of this client has costs no message. Else an owner is asked, as for `nmc_client_get`, and sends no byte of the value; what it has on disk only it reads
/// from there. It does not count as having been read; a value that another node has on disk alone comes into
/// its memory for that. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_get_metadata(
    client: *mut nmc_client_t,
    key: nmc_slice_t,
    buffer: *mut c_void,
    capacity: usize,
    out_bytes: *mut usize,
) -> nmc_status_t {
    guard_status(|| {
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (key, buffer) = unsafe { (key_of(key)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let size = optional_out(out_bytes, "out_bytes")?;
            put_out(
                single(open.cluster.get_what(&[Item::new(key, &[])], What::Metadata)?.into_iter().map(Ok).collect())?,
                buffer,
                size,
            )
        })
    })
}

/// The same for `n` values: what was said about `keys[i]` goes into `buffers[i]`. `out_bytes[i]`, if `out_bytes` is not NULL, is how many bytes that is, and
/// `out_statuses[i]`, if `out_statuses` is not NULL, tells what became of it.
///
/// Where they are is asked for 256 at once, and as many are asked together. Thread-safe. Not graph-safe. Returns `NMC_OK` if all were read, else
/// the status of the first that was not. Statuses as for `nmc_client_get`.
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
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (keys, buffers, mut statuses) =
                unsafe { (array(keys, n, "keys")?, array(buffers, n, "buffers")?, Statuses::new(out_statuses, n)?) };
            // SAFETY: as above.
            let sizes = if out_bytes.is_null() { &mut [] } else { unsafe { array_out(out_bytes, n, "out_bytes") }? };
            sizes.fill(0);
            // SAFETY: the C contract of `keys`.
            let done = unsafe { good_keys(keys, &mut statuses) }.and_then(|(good, numbers)| {
                let items = memory::collect(good.iter().map(|key| Item::new(key, &[])))?;
                for (at, got) in numbers.into_iter().zip(open.cluster.get_what(&items, What::Metadata)?) {
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

/// Reads what was said about a value like `nmc_client_get_metadata` and does not wait; see `nmc_client_submit_put`. The buffer is the library's until the completion was taken,
/// whose `bytes` are the size of the metadata.
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
        with(client, |open| {
            // SAFETY: the C contract of these arguments.
            let (key, buffer) = unsafe { (key_of(key)?, array_out(buffer.cast::<u8>(), capacity, "buffer")?) };
            let place = Place(buffer.as_mut_ptr(), buffer.len());
            open.cluster.submit_about(token, key, Box::new(move |said| place.take(said)))
        })
    })
}

/// Reads a value like `nmc_client_get`, and what its writer said about it into `metadata`, both of the same put. `*out_metadata_bytes`, if it is not NULL, is the size of
/// that; if it has no room there the status is `NMC_ERR_TOO_SMALL`, as if the buffers were too small, and both sizes are stored if the value fits.
///
/// Costs no message more than `nmc_client_get`. Thread-safe. Not graph-safe. Statuses as for `nmc_client_get`.
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
        with(client, |open| {
            let place = optional_out(out_bytes, "out_bytes")?;
            let size = optional_out(out_metadata_bytes, "out_metadata_bytes")?;
            // SAFETY: the C contract of these arguments.
            let (key, buffers, to) = unsafe {
                (
                    key_of(key)?,
                    array(buffers, n, "buffers")?,
                    array_out(metadata.ptr.cast::<u8>(), metadata.len, "metadata")?,
                )
            };
            let item = Item::new(key, checked(slices_of(buffers))?);
            let got = single(open.cluster.get_what(&[item], What::Both)?.into_iter().map(Ok).collect())?;
            if let Some(place) = place.filter(|_| got.result.is_ok() || got.bytes > 0) {
                place.write(got.bytes);
            }
            put_out(got, to, size)
        })
    })
}
