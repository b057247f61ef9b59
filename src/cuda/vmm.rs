//! Device memory that processes share: VMM allocations exported and imported as POSIX file descriptors.
//! A heap stays mapped at one address for its lifetime; dropping it undoes exactly what making it did, and memory lives
//! until the last process that maps it lets go. `world` calls this.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle};

use super::device::Device;
use super::error::call;
use super::pointer::{PointerKind, kind_of, mapping_of};
use crate::bail;
use crate::base::error::{Error, Result};

const POSIX_FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A reference to an allocation, given back on drop. Dropped inside `with_current`.
#[derive(Debug)]
pub(super) struct Allocation(CUmemGenericAllocationHandle);

impl Allocation {
    /// Allocates `bytes`, a multiple of the granularity, on the device. Call inside `with_current`.
    pub(super) fn create(device: &Device, bytes: usize) -> Result<Self> {
        let property = property_for(device);
        let mut handle = 0;
        // SAFETY: the property is complete and the out-pointer is a local.
        unsafe { call!(sys::cuMemCreate(&raw mut handle, bytes, &raw const property, 0)) }?;
        Ok(Self(handle))
    }

    /// The driver's name of it, valid as long as this value lives.
    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: every `Allocation` owns one reference, from create, import or retain.
        unsafe { sys::cuMemRelease(self.0) };
    }
}

/// A mapped address range, unmapped and given back on drop. Dropped inside `with_current`.
#[derive(Debug)]
struct Mapping {
    base: u64,
    bytes: usize,
    mapped: bool,
}

impl Mapping {
    /// Maps the whole allocation and lets `device` read and write it.
    fn new(device: &Device, allocation: &Allocation, bytes: usize, granularity: usize) -> Result<Self> {
        let mut mapping = Self { base: 0, bytes, mapped: false };
        let access = read_write(device);
        // SAFETY: out-pointers are locals; the range is reserved before it is mapped and mapped before access is set.
        // On a failure `mapping` is dropped and undoes what was done.
        unsafe {
            call!(sys::cuMemAddressReserve(&raw mut mapping.base, bytes, granularity, 0, 0))?;
            call!(sys::cuMemMap(mapping.base, bytes, 0, allocation.0, 0))?;
            mapping.mapped = true;
            call!(sys::cuMemSetAccess(mapping.base, bytes, &raw const access, 1))?;
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was reserved, and mapped if the flag says so, by `new`, and is not used after this.
        unsafe {
            if self.mapped {
                sys::cuMemUnmap(self.base, self.bytes);
            }
            if self.base != 0 {
                sys::cuMemAddressFree(self.base, self.bytes);
            }
        }
    }
}

/// A heap in device memory that other processes can map.
#[derive(Debug)]
pub struct VmmHeap {
    device: Arc<Device>,
    base: u64,
    bytes: u64,
    export_offset: u64,
    export_bytes: u64,
    /// `None` for memory that the caller mapped.
    mapping: Option<Mapping>,
    /// `None` only while dropping.
    allocation: Option<Allocation>,
}

impl VmmHeap {
    /// Allocates, maps and zeroes at least `bytes` bytes on the device.
    pub fn create(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        if bytes == 0 {
            bail!(NMC_ERR_INVALID_ARG, "a heap of 0 bytes cannot be created; give heap_bytes of at least 1");
        }
        require_vmm(device)?;
        device.with_current(|| {
            let granularity = granularity_for(device)?;
            let rounded = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(granularity));
            let Some(size) = rounded else {
                bail!(NMC_ERR_NO_MEMORY, "a heap of {bytes} bytes is larger than the address space");
            };
            let allocation = Allocation::create(device, size).map_err(|e| {
                let (name, total) = (device.name(), device.facts().total_bytes);
                e.context(format_args!("a heap of {size} bytes on device {} ({name}, {total} bytes)", device.ordinal()))
            })?;
            let mapping = Mapping::new(device, &allocation, size, granularity)?;
            let base = mapping.base;
            device.run_and_wait(|stream| {
                // SAFETY: the range is mapped with write access and nobody else has its address yet.
                unsafe { call!(sys::cuMemsetD8Async(base, 0, size, stream)) }
            })?;
            Ok(Self::owned(device, mapping, allocation))
        })
    }

    /// Maps memory that another process exported. `bytes` is the exporter's [`VmmHeap::export_bytes`]; the heap begins
    /// [`VmmHeap::export_offset`] bytes into it, which the caller adds. The descriptor stays the caller's.
    pub fn import(device: &Arc<Device>, fd: BorrowedFd<'_>, bytes: u64) -> Result<Self> {
        require_vmm(device)?;
        device.with_current(|| {
            let mut handle = 0;
            // By the driver's convention the descriptor itself travels in the pointer.
            let os_handle = fd.as_raw_fd() as usize as *mut c_void;
            // SAFETY: the descriptor is open for the call and the out-pointer is a local.
            unsafe { call!(sys::cuMemImportFromShareableHandle(&raw mut handle, os_handle, POSIX_FD)) }
                .map_err(|e| e.context("importing a peer's heap"))?;
            let allocation = Allocation(handle);
            let facts = facts_of(&allocation)?;
            if facts.device != device.ordinal() && !device.can_reach(facts.device)? {
                bail!(
                    NMC_ERR_UNSUPPORTED,
                    "device {} cannot access the heap on device {} (no peer access between them); place both ranks on \
                     connected devices or on one",
                    device.ordinal(),
                    facts.device
                );
            }
            let granularity = granularity(&property_at(facts.device))?;
            let size = match usize::try_from(bytes) {
                Ok(size) if size != 0 && size % granularity == 0 => size,
                _ => bail!(
                    NMC_ERR_INVALID_ARG,
                    "a peer's heap of {bytes} bytes is not a multiple of the granularity of {granularity} bytes"
                ),
            };
            let mapping = Mapping::new(device, &allocation, size, granularity)
                .map_err(|e| e.context(format_args!("mapping a peer's heap of {size} bytes")))?;
            Ok(Self::owned(device, mapping, allocation))
        })
    }

    /// Takes memory that the caller allocated and mapped with VMM: `[ptr, ptr + bytes)` must lie in one allocation on
    /// this device that can be exported as a POSIX descriptor. The caller's mapping is used and stays the caller's.
    ///
    /// # Safety
    /// The memory is the caller's to give away, and its mapping stays as long as the heap. (What is no such memory is refused; whose it is
    /// the driver does not know.)
    pub unsafe fn import_caller(device: &Arc<Device>, ptr: u64, bytes: u64) -> Result<Self> {
        let Some(last) = bytes.checked_sub(1).and_then(|n| ptr.checked_add(n)).filter(|_| ptr != 0) else {
            bail!(NMC_ERR_INVALID_ARG, "memory at {ptr:#x} of {bytes} bytes is empty or passes the end of addresses");
        };
        require_vmm(device)?;
        device.with_current(|| {
            let kind = kind_of(ptr)?;
            if kind != PointerKind::DeviceVmm {
                bail!(
                    NMC_ERR_INVALID_ARG,
                    "{ptr:#x} is {kind}, not memory mapped with cuMemMap; allocate it with cuMemCreate, or import \
                     cudaMalloc memory as such"
                );
            }
            let allocation = retain(ptr)?;
            // Two mappings side by side look like one range; the driver returns the same handle only for one allocation.
            if retain(last).map(|end| end.0) != Ok(allocation.0) {
                bail!(
                    NMC_ERR_INVALID_ARG,
                    "[{ptr:#x}, {last:#x}] is not one allocation; a heap needs one cuMemCreate that covers it"
                );
            }
            let (start, size) = mapping_of(ptr)?;
            if last - start >= size {
                bail!(
                    NMC_ERR_INVALID_ARG,
                    "[{ptr:#x}, {last:#x}] passes the end of its mapping of {size} bytes at {start:#x}"
                );
            }
            let facts = facts_of(&allocation)?;
            if facts.handle_types & POSIX_FD.0 == 0 {
                bail!(
                    NMC_ERR_INVALID_ARG,
                    "the memory at {ptr:#x} cannot be exported; create it with requestedHandleTypes = \
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
                );
            }
            if facts.device != device.ordinal() {
                let (theirs, ours) = (facts.device, device.ordinal());
                bail!(
                    NMC_ERR_INVALID_ARG,
                    "the memory at {ptr:#x} is on device {theirs}, and the rank uses device {ours}"
                );
            }
            Ok(Self {
                device: Arc::clone(device),
                base: ptr,
                bytes,
                export_offset: ptr - start,
                export_bytes: size,
                mapping: None,
                allocation: Some(allocation),
            })
        })
    }

    fn owned(device: &Arc<Device>, mapping: Mapping, allocation: Allocation) -> Self {
        let bytes = mapping.bytes as u64;
        Self {
            device: Arc::clone(device),
            base: mapping.base,
            bytes,
            export_offset: 0,
            export_bytes: bytes,
            mapping: Some(mapping),
            allocation: Some(allocation),
        }
    }

    /// A new descriptor for the allocation, closed on exec. A peer gives it to [`VmmHeap::import`].
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let Some(allocation) = &self.allocation else {
            bail!(NMC_ERR_INTERNAL, "a heap was exported while it was dropped");
        };
        let mut fd: i32 = -1;
        self.device.with_current(|| {
            // SAFETY: for POSIX descriptors the driver stores an int at the out-pointer.
            unsafe { call!(sys::cuMemExportToShareableHandle((&raw mut fd).cast(), allocation.0, POSIX_FD, 0)) }
        })?;
        // SAFETY: the driver gave us the open descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain fcntl on a descriptor that is owned here.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(Error::last_os("fcntl(FD_CLOEXEC)"));
        }
        Ok(fd)
    }

    /// First address of the heap in this process.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size of the heap in bytes; created heaps are rounded up to the granularity of the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the heap begins in the exported allocation; 0 unless the caller's own memory begins later.
    pub fn export_offset(&self) -> u64 {
        self.export_offset
    }

    /// Size of the exported allocation in bytes, which an importer maps as a whole.
    pub fn export_bytes(&self) -> u64 {
        self.export_bytes
    }
}

impl Drop for VmmHeap {
    fn drop(&mut self) {
        let (mapping, allocation) = (self.mapping.take(), self.allocation.take());
        let mut parts = Some((mapping, allocation));
        let _done = self.device.with_current(|| {
            drop(parts.take());
            Ok(())
        });
        // Only when the context could not be entered (a forked child, a device that was reset): the driver's objects are
        // not ours to touch then, and the driver frees them with the process.
        core::mem::forget(parts);
    }
}

pub(super) fn require_vmm(device: &Device) -> Result<()> {
    let facts = device.facts();
    if !facts.vmm || !facts.posix_fd_export {
        bail!(
            NMC_ERR_UNSUPPORTED,
            "device {} ({}) cannot share memory as POSIX descriptors (virtual memory management: {}, export: {}); use \
             host memory (NMC_HEAP_HOST)",
            device.ordinal(),
            device.name(),
            facts.vmm,
            facts.posix_fd_export
        );
    }
    Ok(())
}

fn location_of(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// Lets the device read and write what is mapped.
pub(super) fn read_write(device: &Device) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: location_of(device.ordinal()),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn property_at(ordinal: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX_FD,
        location: location_of(ordinal),
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn property_for(device: &Device) -> CUmemAllocationProp {
    let mut property = property_at(device.ordinal());
    property.allocFlags.gpuDirectRDMACapable = u8::from(device.facts().rdma_with_vmm);
    property
}

/// Sizes and addresses of the device's allocations are multiples of this.
pub(super) fn granularity_for(device: &Device) -> Result<usize> {
    granularity(&property_for(device))
}

fn granularity(property: &CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the property is complete and the out-pointer is a local.
    unsafe { call!(sys::cuMemGetAllocationGranularity(&raw mut bytes, property, option))? };
    if bytes == 0 {
        bail!(NMC_ERR_CUDA, "the driver reports a granularity of 0 bytes for device memory");
    }
    Ok(bytes)
}

fn retain(address: u64) -> Result<Allocation> {
    let mut handle = 0;
    // SAFETY: the driver checks the address; the out-pointer is a local.
    unsafe { call!(sys::cuMemRetainAllocationHandle(&raw mut handle, address as *mut c_void))? };
    Ok(Allocation(handle))
}

struct AllocationFacts {
    device: i32,
    handle_types: u32,
}

/// Reads the location type as a number: a driver newer than cudarc's enum may return a value that the enum does not have.
fn facts_of(allocation: &Allocation) -> Result<AllocationFacts> {
    let mut property = MaybeUninit::<CUmemAllocationProp>::zeroed();
    let p = property.as_mut_ptr();
    // SAFETY: the driver fills the struct; the fields are read as integers of their own size, never as enums.
    let (location_type, device, handle_types) = unsafe {
        call!(sys::cuMemGetAllocationPropertiesFromHandle(p, allocation.0))?;
        let location_type = (&raw const (*p).location.type_).cast::<u32>().read();
        (location_type, (*p).location.id, (*p).requestedHandleTypes.0)
    };
    if location_type != sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32 {
        bail!(NMC_ERR_INVALID_ARG, "the allocation is not in device memory (CUmemLocationType {location_type})");
    }
    Ok(AllocationFacts { device, handle_types })
}
