//! Host memory that kernels and stream operations can reach: registered (pinned and mapped) for as long as the
//! registration lives. The owner of the memory keeps it mapped at least that long. `world` and `store` call this.

use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::error::call;
use crate::bail;
use crate::base::error::Result;

/// A range of host memory registered with CUDA.
#[derive(Debug)]
pub struct HostRegistration {
    device: Arc<Device>,
    host: *mut u8,
    device_ptr: u64,
}

// SAFETY: the pointer is only a key for the driver and never dereferenced here.
unsafe impl Send for HostRegistration {}
// SAFETY: as above; nothing changes after creation.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Registers `[ptr, ptr + bytes)`, usable from every device. `read_only` is for memory mapped without write access.
    /// A range is registered once per process.
    ///
    /// # Safety
    /// The range is memory of the caller's, which stays mapped until the registration is dropped: the device goes on to reach the pages that
    /// it had, whatever comes to the addresses.
    pub unsafe fn new(device: &Arc<Device>, ptr: *mut u8, bytes: u64, read_only: bool) -> Result<Self> {
        if ptr.is_null() || bytes == 0 {
            bail!(NMC_ERR_INVALID_ARG, "host memory at {ptr:p} of {bytes} bytes cannot be registered");
        }
        let Ok(size) = usize::try_from(bytes) else {
            bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes of host memory are more than there are addresses");
        };
        let facts = device.facts();
        if !facts.host_register || (read_only && !facts.read_only_host_register) {
            let what = if facts.host_register { "read-only host memory" } else { "host memory" };
            bail!(NMC_ERR_UNSUPPORTED, "device {} ({}) cannot register {what}", device.ordinal(), device.name());
        }
        let mut flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        if read_only {
            flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
        }
        let mut registration = device.with_current(|| {
            // SAFETY: the caller vouches for the range, and keeps it mapped.
            unsafe { call!(sys::cuMemHostRegister_v2(ptr.cast(), size, flags)) }
                .map_err(|e| e.context(format_args!("registering {bytes} bytes of host memory")))?;
            Ok(Self { device: Arc::clone(device), host: ptr, device_ptr: 0 })
        })?;
        device.with_current(|| {
            // SAFETY: the range was just registered with a device mapping; the out-pointer is a field of a local.
            unsafe { call!(sys::cuMemHostGetDevicePointer_v2(&raw mut registration.device_ptr, ptr.cast(), 0)) }
        })?;
        Ok(registration)
    }

    /// Address of the first byte for kernels and stream operations.
    pub fn device_ptr(&self) -> u64 {
        self.device_ptr
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        // A failure means that the context is gone or belongs to a parent process; the registration goes with it.
        let _done = self.device.with_current(|| {
            // SAFETY: registered once by `new`.
            unsafe { call!(sys::cuMemHostUnregister(self.host.cast())) }
        });
    }
}
