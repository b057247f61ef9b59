//! A rank's heap: memory that every rank of the world maps. It is made by the library (sealed memfd, or CUDA VMM
//! exported as a descriptor) or lent by the engine (its own pool). A [`HeapDesc`] and at most one descriptor are
//! all that another process needs to open it.

use super::slab::Slab;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_PERMISSION, NMC_ERR_PROTOCOL, NMC_ERR_UNSUPPORTED};
use crate::base::{Deadline, id};
use crate::cuda::{self, Device, HostRegistration, IpcExport, IpcHeap, VmmHeap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Where the bytes of a heap are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapKind {
    /// Host memory.
    Host,
    /// Memory of a CUDA device.
    Cuda,
}

impl HeapKind {
    /// The number of the kind in the C header.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            HeapKind::Host => 1,
            HeapKind::Cuda => 2,
        }
    }

    /// The kind with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(HeapKind::Host),
            2 => Some(HeapKind::Cuda),
            _ => None,
        }
    }
}

/// Memory that the engine lends instead of letting the library allocate.
#[derive(Debug)]
pub struct Import(Lent);

#[derive(Debug)]
enum Lent {
    /// So many bytes from an address on.
    HostPtr(u64, u64),
    HostFd(OwnedFd),
    /// As above.
    CudaPtr(u64, u64),
    CudaFd(OwnedFd),
}

impl Import {
    /// Host memory by address; only ranks of the same process can use it.
    ///
    /// # Safety
    /// From `address` on there are `bytes` bytes of memory, which can be read and written, belong to nobody else and stay where they are
    /// until every heap that is made of them is gone, in each rank that opened it.
    #[must_use]
    pub const unsafe fn host_ptr(address: u64, bytes: u64) -> Self {
        Self(Lent::HostPtr(address, bytes))
    }

    /// A memfd sealed against shrinking and growing.
    #[must_use]
    pub const fn host_fd(fd: OwnedFd) -> Self {
        Self(Lent::HostFd(fd))
    }

    /// Device memory by address: `cudaMalloc` memory or one VMM allocation.
    ///
    /// # Safety
    /// As for [`Self::host_ptr`], with memory of a device.
    #[must_use]
    pub const unsafe fn cuda_ptr(address: u64, bytes: u64) -> Self {
        Self(Lent::CudaPtr(address, bytes))
    }

    /// A VMM allocation that the engine exported as a POSIX descriptor.
    #[must_use]
    pub const fn cuda_fd(fd: OwnedFd) -> Self {
        Self(Lent::CudaFd(fd))
    }

    /// Where its bytes are.
    #[must_use]
    pub const fn kind(&self) -> HeapKind {
        match self.0 {
            Lent::HostPtr(..) | Lent::HostFd(_) => HeapKind::Host,
            Lent::CudaPtr(..) | Lent::CudaFd(_) => HeapKind::Cuda,
        }
    }
}

/// Refuses a heap that would reach further than the memory that is lent for it.
fn check_room(lent: u64, bytes: u64) -> Result<()> {
    if bytes > lent {
        crate::bail!(NMC_ERR_INVALID_ARG, "a heap of {bytes} bytes does not fit {lent} bytes that are lent");
    }
    Ok(())
}

/// How another process opens the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Map the memfd that comes along.
    HostFd,
    /// Import the VMM allocation that comes along.
    VmmFd,
    /// Open the legacy IPC handle in the description.
    Ipc,
    /// Only by address, in the process that owns it.
    Address,
}

impl Route {
    /// Number on the wire.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Route::HostFd => 1,
            Route::VmmFd => 2,
            Route::Ipc => 3,
            Route::Address => 4,
        }
    }

    /// The route with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Route::HostFd, Route::VmmFd, Route::Ipc, Route::Address].into_iter().find(|r| r.code() == code)
    }

    /// Whether a descriptor travels with the description.
    #[must_use]
    pub fn has_fd(self) -> bool {
        matches!(self, Route::HostFd | Route::VmmFd)
    }
}

/// Everything about a heap but its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapDesc {
    /// How to open it.
    pub route: Route,
    /// Usable bytes.
    pub bytes: u64,
    /// Bytes of the allocation behind it.
    pub allocation_bytes: u64,
    /// Offset of the heap in that allocation.
    pub offset: u64,
    /// Address in the owner's process.
    pub address: u64,
    /// Address for the GPU in the owner's process, 0 if it has none.
    pub device_address: u64,
    /// Process that owns it, see `base::id::of_process`.
    pub process: u64,
    /// Random name of the memory: equal names are the same memory.
    pub id: u64,
    /// It belongs to an engine, not to the world.
    pub lent: bool,
    /// Legacy IPC handle, zero unless the route is [`Route::Ipc`].
    pub ipc: [u8; 64],
}

#[derive(Debug)]
enum HeapMemory {
    Host(Slab),
    Vmm { _heap: VmmHeap, fd: OwnedFd },
    Ipc { _heap: IpcHeap },
    Lent,
}

/// An open heap: usable as long as the value lives.
#[derive(Debug)]
pub struct Heap {
    desc: HeapDesc,
    base: u64,
    /// Dropped before the memory that it registers.
    registration: Option<HostRegistration>,
    memory: HeapMemory,
}

fn need_device(device: Option<&Arc<Device>>) -> Result<&Arc<Device>> {
    device.ok_or_else(|| {
        Error::new(NMC_ERR_UNSUPPORTED, "this heap is CUDA memory, but the rank was configured without a device")
    })
}

fn wrong_descriptors() -> Error {
    Error::new(NMC_ERR_PROTOCOL, "a heap was announced with the wrong number of descriptors")
}

impl Heap {
    /// Makes a heap of `bytes`, with huge pages if asked for and available.
    pub fn create(
        kind: HeapKind,
        bytes: u64,
        huge: bool,
        device: Option<&Arc<Device>>,
        deadline: &Deadline,
    ) -> Result<Self> {
        match kind {
            HeapKind::Host => Self::from_slab(Slab::create(c"nanomc heap", bytes, huge, deadline)?, bytes, device),
            HeapKind::Cuda => {
                let heap = VmmHeap::create(need_device(device)?, bytes)?;
                Self::from_vmm(heap, bytes)
            }
        }
    }

    /// Takes memory that the program lends to a world of this process alone, which has it until it is destroyed.
    pub fn of_program(import: Import, bytes: u64, device: Option<&Arc<Device>>) -> Result<Self> {
        Self::wrap(import, bytes, device)
    }

    /// Takes memory that the engine lends. It must stay valid until the world is destroyed.
    pub fn lend(import: Import, bytes: u64, device: Option<&Arc<Device>>) -> Result<Self> {
        let mut heap = Self::wrap(import, bytes, device)?;
        heap.desc.lent = true;
        Ok(heap)
    }

    fn wrap(import: Import, bytes: u64, device: Option<&Arc<Device>>) -> Result<Self> {
        match import.0 {
            Lent::HostFd(fd) => {
                let slab = Slab::open(fd, bytes, true).map_err(|e| {
                    let refused = [NMC_ERR_PROTOCOL, NMC_ERR_PERMISSION].contains(&e.status);
                    let status = if refused { NMC_ERR_INVALID_ARG } else { e.status };
                    Error { status, ..e }.context(
                        "the lent descriptor must be a memfd that can be written, and is sealed with F_SEAL_SHRINK|F_SEAL_GROW",
                    )
                })?;
                Self::from_slab(slab, bytes, device)
            }
            Lent::HostPtr(address, lent) => {
                check_room(lent, bytes)?;
                // SAFETY: as many bytes were lent, and they stay as long as the heap (`Import::host_ptr`), which drops this first.
                let register = |d| unsafe { HostRegistration::new(d, address as *mut u8, bytes, false) };
                let registration = device.map(register).transpose()?;
                let mut heap = Self::by_address(Route::Address, address, bytes)?;
                heap.desc.device_address = registration.as_ref().map_or(0, HostRegistration::device_ptr);
                heap.registration = registration;
                Ok(heap)
            }
            Lent::CudaFd(fd) => {
                // The engine's allocation is whole pages of the device, at least as many as the heap needs.
                let heap = VmmHeap::import(need_device(device)?, fd.as_fd(), bytes.next_multiple_of(2 << 20))?;
                Self::with_vmm(heap, fd, bytes)
            }
            Lent::CudaPtr(address, lent) => {
                check_room(lent, bytes)?;
                let device = need_device(device)?;
                if cuda::pointer_kind(device, address)? == cuda::PointerKind::DeviceVmm {
                    // SAFETY: as many bytes were lent, and they stay as long as the heap (`Import::cuda_ptr`).
                    return Self::from_vmm(unsafe { VmmHeap::import_caller(device, address, bytes) }?, bytes);
                }
                // SAFETY: as above; they were lent to all ranks.
                let IpcExport { handle, offset, .. } = unsafe { cuda::ipc_export(device, address, bytes) }?;
                let mut heap = Self::by_address(Route::Ipc, address, bytes)?;
                heap.desc.device_address = address;
                heap.desc.offset = offset;
                heap.desc.allocation_bytes = bytes.saturating_add(offset);
                heap.desc.ipc = handle;
                Ok(heap)
            }
        }
    }

    /// Opens the heap of another rank.
    ///
    /// # Safety
    /// Its address, if that is how another rank of this process is to reach it, is that of a heap which stays until this one is dropped.
    pub unsafe fn open(desc: &HeapDesc, fd: Option<OwnedFd>, device: Option<&Arc<Device>>) -> Result<Self> {
        let same_process = desc.process == id::of_process()?;
        match (desc.route, fd) {
            (_, Some(fd)) => Self::open_descriptor(desc, fd, device),
            (Route::Ipc | Route::Address, None) if same_process => {
                Ok(Self { desc: desc.clone(), base: desc.address, memory: HeapMemory::Lent, registration: None })
            }
            (Route::Ipc, None) => {
                let export = IpcExport { handle: desc.ipc, offset: desc.offset, bytes: desc.bytes };
                let heap = IpcHeap::open(need_device(device)?, &export)?;
                let base = heap.base();
                Ok(Self { desc: desc.clone(), base, memory: HeapMemory::Ipc { _heap: heap }, registration: None })
            }
            (Route::Address, None) => crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "the heap is private memory of another process; a memfd can be lent to other processes, an address cannot"
            ),
            (Route::HostFd | Route::VmmFd, None) => Err(wrong_descriptors()),
        }
    }

    /// Opens the heap of another rank by the descriptor that came with its description. Whatever that says, the heap is memory behind the
    /// descriptor, and no other.
    pub fn open_descriptor(desc: &HeapDesc, fd: OwnedFd, device: Option<&Arc<Device>>) -> Result<Self> {
        match desc.route {
            Route::HostFd => {
                let mut heap = Self::from_slab(Slab::open(fd, desc.bytes, true)?, desc.bytes, device)?;
                heap.desc.id = desc.id;
                heap.desc.lent = desc.lent;
                Ok(heap)
            }
            Route::VmmFd => {
                let (bytes, all) = (desc.bytes, desc.allocation_bytes);
                if desc.offset.checked_add(bytes).is_none_or(|end| end > all) {
                    crate::bail!(NMC_ERR_PROTOCOL, "a heap of {bytes} bytes is announced in an allocation of {all}");
                }
                let heap = VmmHeap::import(need_device(device)?, fd.as_fd(), all)?;
                let base = heap.base() + desc.offset;
                Ok(Self { desc: desc.clone(), base, memory: HeapMemory::Vmm { _heap: heap, fd }, registration: None })
            }
            Route::Ipc | Route::Address => Err(wrong_descriptors()),
        }
    }

    fn describe(route: Route, address: u64, bytes: u64) -> Result<HeapDesc> {
        Ok(HeapDesc {
            route,
            bytes,
            allocation_bytes: bytes,
            offset: 0,
            address,
            device_address: 0,
            process: id::of_process()?,
            id: id::random_u64()?,
            lent: false,
            ipc: [0; 64],
        })
    }

    fn from_slab(slab: Slab, bytes: u64, device: Option<&Arc<Device>>) -> Result<Self> {
        let registration = device.map(|d| slab.register(d, false)).transpose()?;
        let base = slab.base() as u64;
        let mut desc = Self::describe(Route::HostFd, base, bytes)?;
        desc.allocation_bytes = slab.bytes() as u64;
        desc.device_address = registration.as_ref().map_or(0, HostRegistration::device_ptr);
        Ok(Self { desc, base, registration, memory: HeapMemory::Host(slab) })
    }

    fn from_vmm(heap: VmmHeap, bytes: u64) -> Result<Self> {
        let fd = heap.export_fd()?;
        Self::with_vmm(heap, fd, bytes)
    }

    fn with_vmm(heap: VmmHeap, fd: OwnedFd, bytes: u64) -> Result<Self> {
        let base = heap.base();
        let mut desc = Self::describe(Route::VmmFd, base, bytes)?;
        desc.allocation_bytes = heap.export_bytes();
        desc.offset = heap.export_offset();
        desc.device_address = base;
        Ok(Self { desc, base, registration: None, memory: HeapMemory::Vmm { _heap: heap, fd } })
    }

    fn by_address(route: Route, address: u64, bytes: u64) -> Result<Self> {
        let desc = Self::describe(route, address, bytes)?;
        Ok(Self { desc, base: address, registration: None, memory: HeapMemory::Lent })
    }

    /// Fills this process's page tables for a host heap of the library; see [`Slab::populate`]. A lent heap is as its engine
    /// made it, and one on a device has no pages here.
    pub fn populate(&self, goes_on: impl Fn() -> bool) -> Result<()> {
        match &self.memory {
            HeapMemory::Host(slab) if !self.desc.lent => slab.populate(goes_on),
            _ => Ok(()),
        }
    }

    /// Where its bytes are.
    #[must_use]
    pub fn kind(&self) -> HeapKind {
        match (&self.memory, self.desc.route) {
            (HeapMemory::Host(_), _) | (HeapMemory::Lent, Route::Address) => HeapKind::Host,
            _ => HeapKind::Cuda,
        }
    }

    /// What another process needs to know.
    #[must_use]
    pub fn desc(&self) -> &HeapDesc {
        &self.desc
    }

    /// The descriptor that travels with the description, if its route has one.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            HeapMemory::Host(slab) => Some(slab.as_fd()),
            HeapMemory::Vmm { fd, .. } => Some(fd.as_fd()),
            HeapMemory::Ipc { .. } | HeapMemory::Lent => None,
        }
    }

    /// First byte, in this process. A device address for CUDA heaps.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// First byte as the GPU sees it: the same for CUDA heaps, the registered address for host heaps, 0 without
    /// a device.
    #[must_use]
    pub fn device_base(&self) -> u64 {
        match (&self.memory, &self.registration) {
            (_, Some(registration)) => registration.device_ptr(),
            (HeapMemory::Vmm { .. } | HeapMemory::Ipc { .. }, None) => self.base,
            (HeapMemory::Lent, None) => self.desc.device_address,
            (HeapMemory::Host(_), None) => 0,
        }
    }

    /// Usable bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.desc.bytes
    }

    /// Whether the library got huge pages for it.
    #[must_use]
    pub fn huge(&self) -> bool {
        matches!(&self.memory, HeapMemory::Host(slab) if slab.huge())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn a_descriptor_that_cannot_be_lent_is_the_callers_mistake() {
        let slab = Slab::create(c"lent", 8192, false, &Deadline::after(std::time::Duration::from_secs(60))).unwrap();
        let good = || slab.as_fd().try_clone_to_owned().unwrap();
        assert!(Heap::lend(Import::host_fd(good()), 8192, None).is_ok(), "control");
        let status = |fd: OwnedFd, bytes| Heap::lend(Import::host_fd(fd), bytes, None).err().map(|error| error.status);
        assert_eq!(status(good(), 1 << 20), Some(NMC_ERR_INVALID_ARG), "too short");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(status(file.into(), 4096), Some(NMC_ERR_INVALID_ARG), "no memfd");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&slab.as_fd()));
        let read_only = std::fs::File::open(path).unwrap();
        assert_eq!(status(read_only.into(), 8192), Some(NMC_ERR_INVALID_ARG), "it cannot be written");
    }

    /// Whatever a description says, with a descriptor it is memory behind that.
    #[test]
    fn a_description_that_does_not_fit_its_descriptor_is_refused() {
        let slab = Slab::create(c"opened", 8192, false, &Deadline::after(std::time::Duration::from_secs(60))).unwrap();
        let good = Heap::describe(Route::HostFd, 4096, 8192).unwrap();
        let open = |desc: &HeapDesc| Heap::open_descriptor(desc, slab.as_fd().try_clone_to_owned().unwrap(), None);
        let heap = open(&good).unwrap();
        assert!(heap.kind() == HeapKind::Host && heap.base() != good.address, "control");
        let status = |desc: HeapDesc| open(&desc).err().map(|error| error.status);
        for route in [Route::Address, Route::Ipc] {
            assert_eq!(
                status(HeapDesc { route, ..good.clone() }),
                Some(NMC_ERR_PROTOCOL),
                "{route:?} has no descriptor"
            );
        }
        assert_eq!(status(HeapDesc { bytes: 1 << 20, ..good.clone() }), Some(NMC_ERR_PROTOCOL), "too short");
        let route = Route::VmmFd;
        for (offset, bytes) in [(4096, 8192), (u64::MAX, 1)] {
            let beyond = HeapDesc { route, offset, bytes, ..good.clone() };
            assert_eq!(status(beyond), Some(NMC_ERR_PROTOCOL), "{bytes} bytes at {offset}");
        }
    }
}
