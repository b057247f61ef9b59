//! Legacy CUDA IPC: lets other processes map a caller's `cudaMalloc` memory. Only for memory that the caller already
//! has; heaps of the library are VMM allocations. `world` calls this.
//!
//! CUDA refuses to open a handle in the process that exported it; there the original pointer is used.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUipcMemHandle};

use super::device::Device;
use super::error::call;
use super::pointer::{PointerKind, kind_of};
use crate::bail;
use crate::base::error::Result;

/// What a peer needs to map a range of `cudaMalloc` memory. Plain bytes, meant to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcExport {
    /// The driver's handle of the whole allocation.
    pub handle: [u8; 64],
    /// Where the range begins in the allocation.
    pub offset: u64,
    /// Size of the range in bytes.
    pub bytes: u64,
}

/// Exports `[ptr, ptr + bytes)`, which must lie in one `cudaMalloc` allocation.
///
/// # Safety
/// The memory is the caller's to give to whoever gets the export, and the allocation outlives all peers' use of it.
pub unsafe fn ipc_export(device: &Arc<Device>, ptr: u64, bytes: u64) -> Result<IpcExport> {
    device.with_current(|| {
        let kind = kind_of(ptr)?;
        if kind != PointerKind::DeviceMalloc {
            bail!(NMC_ERR_INVALID_ARG, "{ptr:#x} is {kind}; legacy IPC exports device memory of cudaMalloc only");
        }
        let (mut base, mut size) = (0, 0usize);
        // SAFETY: out-pointers are locals; the driver checks the address.
        unsafe { call!(sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, ptr))? };
        let offset = ptr - base;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > size as u64) {
            bail!(
                NMC_ERR_INVALID_ARG,
                "{bytes} bytes at {ptr:#x} are not inside its allocation of {size} bytes at {base:#x}"
            );
        }
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address is the base of a live allocation.
        unsafe { call!(sys::cuIpcGetMemHandle(&raw mut handle, base))? };
        Ok(IpcExport { handle: handle.reserved.map(|b| b.to_ne_bytes()[0]), offset, bytes })
    })
}

/// A peer's `cudaMalloc` memory, mapped here.
#[derive(Debug)]
pub struct IpcHeap {
    device: Arc<Device>,
    opened: u64,
    base: u64,
}

impl IpcHeap {
    /// Maps an export of another process; peer access is enabled when the memory is on another device.
    pub fn open(device: &Arc<Device>, export: &IpcExport) -> Result<Self> {
        let handle = CUipcMemHandle { reserved: export.handle.map(|b| core::ffi::c_char::from_ne_bytes([b])) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut opened = 0;
        device.with_current(|| {
            // SAFETY: the driver checks the handle; the out-pointer is a local.
            unsafe { call!(sys::cuIpcOpenMemHandle_v2(&raw mut opened, handle, flags)) }
                .map_err(|e| e.context("opening a peer's cudaMalloc memory"))
        })?;
        Ok(Self { device: Arc::clone(device), opened, base: opened + export.offset })
    }

    /// First address of the exported range in this process.
    pub fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for IpcHeap {
    fn drop(&mut self) {
        // A failure means that the context is gone or belongs to a parent process; the mapping goes with it.
        let _done = self.device.with_current(|| {
            // SAFETY: opened once by `open` and not used after this.
            unsafe { call!(sys::cuIpcCloseMemHandle(self.opened)) }
        });
    }
}
