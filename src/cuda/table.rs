//! A small array of addresses in device memory, such as the heap bases that kernels index by rank. Updates are complete
//! when they return, go over a private stream and are legal while the caller captures another one. `world` calls this.

use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::error::call;
use super::ipc::{IpcExport, ipc_export};
use crate::bail;
use crate::base::error::Result;

/// A device array of `u64`.
#[derive(Debug)]
pub struct DeviceTable {
    device: Arc<Device>,
    ptr: u64,
    len: usize,
}

impl DeviceTable {
    /// Allocates the array and fills it.
    pub fn new(device: &Arc<Device>, values: &[u64]) -> Result<Self> {
        if values.is_empty() {
            bail!(NMC_ERR_INVALID_ARG, "a device table of 0 entries cannot be made");
        }
        let mut ptr = 0;
        device.with_current(|| {
            // SAFETY: the out-pointer is a local.
            unsafe { call!(sys::cuMemAlloc_v2(&raw mut ptr, size_of_val(values))) }
        })?;
        let table = Self { device: Arc::clone(device), ptr, len: values.len() };
        table.update(values)?;
        Ok(table)
    }

    /// An export of it, for whoever wants to see whether that works: those that open it must be through before the table goes.
    pub fn export(&self) -> Result<IpcExport> {
        // SAFETY: an allocation of its own, in which nothing lies but what the table is for.
        unsafe { ipc_export(&self.device, self.ptr, size_of::<u64>() as u64) }
    }

    /// Address of the first entry, for kernels.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Replaces all entries and waits until the device has them. A kernel that runs meanwhile may see old and new ones.
    pub fn update(&self, values: &[u64]) -> Result<()> {
        if values.len() != self.len {
            bail!(NMC_ERR_INVALID_ARG, "a device table of {} entries was given {}", self.len, values.len());
        }
        self.device.with_current(|| {
            self.device.run_and_wait(|stream| {
                let (source, bytes) = (values.as_ptr().cast(), size_of_val(values));
                // SAFETY: the array has exactly these bytes, and `values` outlives the wait that follows.
                unsafe { call!(sys::cuMemcpyHtoDAsync_v2(self.ptr, source, bytes, stream)) }
            })
        })
    }

    /// Copies all entries to the host.
    pub fn read(&self) -> Result<Vec<u64>> {
        let mut values = vec![0u64; self.len];
        self.device.with_current(|| {
            self.device.run_and_wait(|stream| {
                let (to, bytes) = (values.as_mut_ptr().cast(), self.len * size_of::<u64>());
                // SAFETY: both sides have exactly these bytes, and `values` outlives the wait that follows.
                unsafe { call!(sys::cuMemcpyDtoHAsync_v2(to, self.ptr, bytes, stream)) }
            })
        })?;
        Ok(values)
    }
}

impl Drop for DeviceTable {
    /// Waits for the device (`cuMemFree` does), so a table is dropped only when no kernel waits for this thread.
    fn drop(&mut self) {
        // A failure means that the context is gone or belongs to a parent process; the memory goes with it.
        let _done = self.device.with_current(|| {
            // SAFETY: allocated by `new`; the owner lets no kernel use it after this.
            unsafe { call!(sys::cuMemFree_v2(self.ptr)) }
        });
    }
}
