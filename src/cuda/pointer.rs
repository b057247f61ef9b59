//! Says what kind of memory an address belongs to, so that an import takes the right path or names the wrong one.
//! `world` and the imports of this module call it.

use core::ffi::{c_int, c_void};

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUresult};

use super::device::Device;
use super::error::{call, failure};
use crate::base::error::Result;

/// What memory an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerKind {
    /// Host memory that CUDA does not know.
    Host,
    /// Host memory registered with or allocated by CUDA.
    RegisteredHost,
    /// Device memory of `cudaMalloc`.
    DeviceMalloc,
    /// Device memory of a stream-ordered pool (`cudaMallocAsync`), which legacy IPC cannot export.
    DevicePool,
    /// Memory mapped with `cuMemMap`.
    DeviceVmm,
    /// Memory of `cudaMallocManaged`.
    Managed,
}

impl core::fmt::Display for PointerKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Host => "ordinary host memory",
            Self::RegisteredHost => "pinned host memory",
            Self::DeviceMalloc => "device memory of cudaMalloc",
            Self::DevicePool => "device memory of a stream-ordered pool (cudaMallocAsync)",
            Self::DeviceVmm => "device memory mapped with cuMemMap",
            Self::Managed => "managed memory (cudaMallocManaged)",
        })
    }
}

/// The kind of memory at `ptr`, as seen from `device`.
pub fn pointer_kind(device: &Device, ptr: u64) -> Result<PointerKind> {
    device.with_current(|| kind_of(ptr))
}

/// The same inside `with_current`.
pub(super) fn kind_of(ptr: u64) -> Result<PointerKind> {
    let mut memory_type: u32 = 0;
    // SAFETY: this attribute stores an unsigned int.
    let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut memory_type).cast()) };
    match result {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(PointerKind::Host),
        other => return Err(failure("cuPointerGetAttribute", other)),
    }
    let mut managed: u32 = 0;
    // SAFETY: this attribute stores a boolean as an unsigned int (the driver writes one to four bytes).
    let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, (&raw mut managed).cast()) };
    if result == CUresult::CUDA_SUCCESS && managed != 0 {
        return Ok(PointerKind::Managed);
    }
    if memory_type == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
        return Ok(PointerKind::RegisteredHost);
    }
    let mut legacy_ipc: c_int = 0;
    // SAFETY: this attribute stores a boolean in at most an int.
    let result =
        unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (&raw mut legacy_ipc).cast()) };
    if result == CUresult::CUDA_SUCCESS && legacy_ipc != 0 {
        return Ok(PointerKind::DeviceMalloc);
    }
    let mut pool: *mut c_void = core::ptr::null_mut();
    // SAFETY: this attribute stores a pool handle, which is a pointer.
    let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (&raw mut pool).cast()) };
    if result == CUresult::CUDA_SUCCESS && !pool.is_null() {
        return Ok(PointerKind::DevicePool);
    }
    let mut handle = 0;
    // SAFETY: the driver checks the address; a reference that it hands out is given back at once.
    unsafe {
        if sys::cuMemRetainAllocationHandle(&raw mut handle, ptr as *mut c_void) == CUresult::CUDA_SUCCESS {
            call!(sys::cuMemRelease(handle))?;
            return Ok(PointerKind::DeviceVmm);
        }
    }
    Ok(PointerKind::DeviceMalloc)
}

/// Who can reach the memory at an address. One question to the driver, where [`pointer_kind`] may ask five.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The CPU alone.
    Cpu,
    /// Pinned host memory: both.
    Both,
    /// Memory of a device, or managed memory: to be copied by the device.
    Gpu,
}

/// See [`Reach`].
pub fn reach(device: &Device, ptr: u64) -> Result<Reach> {
    device.with_current(|| {
        let mut memory_type: u32 = 0;
        // SAFETY: this attribute stores an unsigned int.
        let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut memory_type).cast()) };
        match result {
            CUresult::CUDA_SUCCESS if memory_type == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 => Ok(Reach::Both),
            CUresult::CUDA_SUCCESS => Ok(Reach::Gpu),
            CUresult::CUDA_ERROR_INVALID_VALUE => Ok(Reach::Cpu),
            other => Err(failure("cuPointerGetAttribute", other)),
        }
    })
}

/// Who has the memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Ordinary host memory, which kernels do not reach.
    Host,
    /// Pinned host memory.
    Pinned,
    /// The device with this number; managed memory is of none.
    Device(Option<i32>),
}

impl Owner {
    /// The number of the device, if only that reaches the memory.
    #[must_use]
    pub fn device(self) -> Option<u32> {
        match self {
            Self::Device(Some(ordinal)) => u32::try_from(ordinal).ok(),
            Self::Device(None) | Self::Host | Self::Pinned => None,
        }
    }
}

/// See [`Owner`]. For addresses of which no device is known yet; after [`super::require`].
pub fn owner(ptr: u64) -> Result<Owner> {
    let mut memory_type: u32 = 0;
    // SAFETY: this attribute stores an unsigned int.
    match unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut memory_type).cast()) } {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(Owner::Host),
        // The calling thread has used no device so far.
        CUresult::CUDA_ERROR_INVALID_CONTEXT => return Device::open(-1)?.with_current(|| owner(ptr)),
        other => return Err(failure("cuPointerGetAttribute", other)),
    }
    let mut managed: u32 = 0;
    // SAFETY: this attribute stores a boolean as an unsigned int (the driver writes one to four bytes).
    let known = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, (&raw mut managed).cast()) };
    if known == CUresult::CUDA_SUCCESS && managed != 0 {
        return Ok(Owner::Device(None));
    }
    if memory_type == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
        return Ok(Owner::Pinned);
    }
    let mut ordinal: c_int = 0;
    // SAFETY: this attribute stores an int.
    let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut ordinal).cast()) };
    super::error::check("cuPointerGetAttribute", result)?;
    Ok(Owner::Device(Some(ordinal)))
}

/// Whether somebody has initialized the driver, whose library is in this process: before that no address belongs to a device.
pub fn initialized() -> bool {
    let mut memory_type: u32 = 0;
    // SAFETY: this attribute stores an unsigned int.
    let asked = unsafe { read(1, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut memory_type).cast()) };
    asked != CUresult::CUDA_ERROR_NOT_INITIALIZED
}

/// Where kernels of `device` find pinned host memory: what was registered can have another address there.
pub fn kernel_address(device: &Device, ptr: u64) -> Result<u64> {
    device.with_current(|| {
        let mut address = 0u64;
        // SAFETY: this attribute stores an address.
        let result = unsafe { read(ptr, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (&raw mut address).cast()) };
        super::error::check("cuPointerGetAttribute", result)?;
        Ok(address)
    })
}

/// [`Reach`] at an address, and for memory of a device the addresses around it, of the same allocation, that are no different.
pub fn reach_around(device: &Device, ptr: u64) -> Result<(Reach, core::ops::Range<u64>)> {
    let found = reach(device, ptr)?;
    if found != Reach::Gpu {
        return Ok((found, ptr..ptr));
    }
    device.with_current(|| {
        let (mut start, mut size): (u64, usize) = (0, 0);
        // SAFETY: these attributes store an address and a size.
        let known = unsafe {
            read(ptr, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (&raw mut start).cast())
                == CUresult::CUDA_SUCCESS
                && read(ptr, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, (&raw mut size).cast())
                    == CUresult::CUDA_SUCCESS
        };
        Ok((found, if known { start..start.saturating_add(size as u64) } else { ptr..ptr }))
    })
}

/// First address and size of the mapping that `ptr` lies in. Inside `with_current`, for VMM memory.
pub(super) fn mapping_of(ptr: u64) -> Result<(u64, u64)> {
    let mut start: u64 = 0;
    let mut size: usize = 0;
    // SAFETY: these attributes store an address and a size.
    unsafe {
        let base = Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
        super::error::check("cuPointerGetAttribute", read(ptr, base, (&raw mut start).cast()))?;
        let bytes = Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
        super::error::check("cuPointerGetAttribute", read(ptr, bytes, (&raw mut size).cast()))?;
    }
    Ok((start, size as u64))
}

/// # Safety
/// `out` must be large enough for the attribute.
unsafe fn read(ptr: u64, attribute: Attribute, out: *mut c_void) -> CUresult {
    // SAFETY: the caller vouches for `out`; the driver checks the address.
    unsafe { sys::cuPointerGetAttribute(out, attribute, ptr) }
}
