//! `nmc_client_set_placement`: where a program itself wants its values.

use super::basic::nmc_slice_t;
use super::client::{nmc_client_t, segment_of, with};
use super::client_types::nmc_segment_t;
use super::guard;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{is_known, nmc_status_t};
use crate::cluster::facade::{Placement, Placing};
use std::ffi::c_void;
use std::sync::Arc;

/// Most copies that a value can have, and so the most segments that `nmc_placement_fn` can choose.
pub const NMC_CLIENT_MAX_COPIES: u32 = 16;
const _: () = assert!(NMC_CLIENT_MAX_COPIES == crate::cluster::wire::MAX_COPIES);

/// A value to be placed. What it points to is valid during the callback only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_placement_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// Number of copies that the put asks for.
    pub copies: u32,
    /// Size of the value.
    pub bytes: u64,
    /// Key of the value.
    pub key: nmc_slice_t,
    /// The segments of the cluster, as the leader listed them at most a second ago.
    pub segments: *const *const nmc_segment_t,
    /// Number of segments.
    pub n_segments: usize,
}

/// Chooses where a value goes. Stores up to `NMC_CLIENT_MAX_COPIES` (16) indexes into `put->segments` in
/// `out_segments`, each once and the best first, and returns how many. If it chooses fewer than `put->copies`, the
/// leader chooses the rest; with 0, the leader chooses all of them. A negative status ends the put with that status;
/// a negative number that is no status ends it with `NMC_ERR_INVALID_ARG`.
/// Called on the thread that puts or submits, by several threads at the same time, while no lock of the library is
/// held. Must not throw, and must not put.
pub type nmc_placement_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, put: *const nmc_placement_t, out_segments: *mut u32) -> i32>;

/// Called when `user` is not needed any more: once, on the thread that needed it last. Must not throw.
pub type nmc_release_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

struct Callback {
    place: unsafe extern "C" fn(*mut c_void, *const nmc_placement_t, *mut u32) -> i32,
    user: *mut c_void,
    release: nmc_release_fn,
}

// SAFETY: by the C contract the function may be called, with `user`, by several threads at the same time, and released by any.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program's function, called once, when nobody calls the other one any more.
            unsafe { release(self.user) };
        }
    }
}

impl Placement for Callback {
    fn place(&self, what: &Placing<'_>) -> Result<Vec<u32>> {
        let segments = memory::collect(what.segments.iter().map(|found| segment_of(found, what.cluster)))?;
        let pointers = memory::collect(segments.iter().map(std::ptr::from_ref))?;
        let put = nmc_placement_t {
            struct_size: u32::try_from(size_of::<nmc_placement_t>()).unwrap_or(0),
            copies: what.copies,
            bytes: what.bytes,
            key: nmc_slice_t { ptr: what.key.as_ptr().cast(), len: what.key.len() },
            segments: pointers.as_ptr(),
            n_segments: pointers.len(),
        };
        let mut chosen = [u32::MAX; NMC_CLIENT_MAX_COPIES as usize];
        // SAFETY: the program's function, called as its type says, with what lives for the call.
        let count = unsafe { (self.place)(self.user, &raw const put, chosen.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) if count <= chosen.len() => memory::copy(chosen.get(..count).unwrap_or_default()),
            Ok(count) => crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the placement says that it has stored {count} segments; there is room for {}",
                chosen.len()
            ),
            Err(_) if !is_known(count) => crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the placement of the client has returned {count}, which is neither a number of segments nor a status"
            ),
            Err(_) => Err(Error::new(count, "the placement of the client ends the put")),
        }
    }
}

/// Sets a function that chooses where the values go that this client puts, unless their options name `locations`. A
/// NULL `placement` removes it. `release`, if not NULL, is called with `user` when `placement` will not be called with
/// it any more: after the next `nmc_client_set_placement`, or during `nmc_client_close`. If this call fails, or
/// `placement` is NULL, `release` is not called.
///
/// The function is called on the calling thread, for each value of a put or batch before the first of them is sent, and
/// for submitted values before the submitting call returns. It sees the segments as the leader listed them at most a
/// second ago; a put that has to ask the leader for that list waits for it, even one that is submitted. An invalid
/// choice (a number that is no segment, one that appears twice, or more than there is room for) ends that put with
/// `NMC_ERR_INVALID_ARG`; a segment that is full or gone by then ends it with `NMC_ERR_NO_SPACE`. Copies on a medium
/// (`media_copies`) come on top of the chosen ones, as they do with locations.
///
/// Does not block. Thread-safe. Not graph-safe. Statuses: none of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_set_placement(
    client: *mut nmc_client_t,
    placement: nmc_placement_fn,
    user: *mut c_void,
    release: nmc_release_fn,
) -> nmc_status_t {
    guard(|| {
        with(client, |cluster| {
            let made = placement.map(|place| Arc::new(Callback { place, user, release }) as Arc<dyn Placement>);
            cluster.set_placement(made);
            Ok(())
        })
    })
}
