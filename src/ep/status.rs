//! The page of a rank on which its host looks: the error word of the group, the request to end it, and what did not fit. The words are
//! in memory that the host and its GPU both see, so that looking needs no synchronisation.

use super::sys::Region;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::cuda::{Device, HostRegistration};
use crate::mem::Slab;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Where overflow is counted, per local expert.
pub(super) const OFF_OVERFLOW: u64 = 64;
/// Where steps of this rank are asked to end the group, with an error word.
pub(super) const OFF_REQUEST: u64 = 8;

/// The page that the host looks at.
pub(super) struct Status {
    /// Dropped before the memory that it registers.
    registration: Option<HostRegistration>,
    page: Slab,
    /// The error that ended the group, once the host has seen it.
    pub(super) ended: Mutex<Option<Error>>,
}

impl Status {
    /// A page for a rank with `n_local` experts.
    pub(super) fn new(n_local: u32, device: Option<&Arc<Device>>) -> Result<Self> {
        let bytes = OFF_OVERFLOW + 8 * u64::from(n_local);
        let page = Slab::create(c"nanomc ep status", bytes, false, &Deadline::after(Duration::from_secs(10)))?;
        let registration = device.map(|device| page.register(device, false)).transpose()?;
        Ok(Self { registration, page, ended: Mutex::new(None) })
    }

    /// Its address for kernels.
    pub(super) fn address(&self) -> u64 {
        self.registration.as_ref().map_or(self.page.base() as u64, HostRegistration::device_ptr)
    }

    /// Its words: the error word, the request, and overflow.
    pub(super) fn words(&self) -> Region<'_> {
        Region::of_slab(&self.page)
    }
}
