//! A GPU and its primary context, retained for as long as a [`Device`] lives and released when the last one goes.
//! Every driver call of this module runs inside [`Device::with_current`], which leaves the caller's current context and
//! stream-capture mode as they were. Any thread may use a device; a forked child gets `NMC_ERR_FORKED`.
//!
//! The context is shared with the CUDA runtime of the process: after `cudaDeviceReset` every call here fails.

use core::ffi::{CStr, c_int};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute, CUstream, CUstreamCaptureMode, CUuuid};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use super::error::call;
use super::kernels::Loaded;
use super::probe;
use crate::bail;
use crate::base::error::Result;

/// What a device can do, read once when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Major compute capability.
    pub cc_major: i32,
    /// Minor compute capability.
    pub cc_minor: i32,
    /// Virtual memory management (`cuMemCreate`, `cuMemMap`).
    pub vmm: bool,
    /// VMM memory can be exported as a POSIX file descriptor.
    pub posix_fd_export: bool,
    /// The device says it can export fabric handles; only a trial export shows whether the machine can.
    pub fabric_handle: bool,
    /// VMM memory can be made readable by a NIC.
    pub rdma_with_vmm: bool,
    /// Host memory can be registered.
    pub host_register: bool,
    /// Host memory that is mapped read-only can be registered.
    pub read_only_host_register: bool,
    /// GPU atomics on host memory are atomic to the CPU. 0 on PCIe machines; nanomc never relies on it.
    pub host_native_atomics: bool,
    /// `cuStreamWriteValue64` works.
    pub stream_mem_ops_64: bool,
    /// Memory of the device in bytes.
    pub total_bytes: u64,
    /// Streaming multiprocessors.
    pub sm_count: i32,
}

/// A GPU with its primary context retained.
pub struct Device {
    ordinal: i32,
    handle: sys::CUdevice,
    context: CUcontext,
    uuid: [u8; 16],
    name: String,
    facts: DeviceFacts,
    pid: u32,
    stream: OnceCell<PrivateStream>,
    urgent: OnceCell<PrivateStream>,
    loaded: OnceCell<Loaded>,
}

/// The non-blocking stream of the library's own copies. The legacy default stream would wait for the caller's work.
struct PrivateStream(CUstream);

// SAFETY: a stream handle is a number to the driver, which allows its use from every thread.
unsafe impl Send for PrivateStream {}
// SAFETY: as above; the field is never changed after creation.
unsafe impl Sync for PrivateStream {}
// SAFETY: context and device handles may be used from every thread; everything else is plain data.
unsafe impl Send for Device {}
// SAFETY: as above; nothing is changed after `open` except through `OnceCell`.
unsafe impl Sync for Device {}

/// The devices that are open in this process, so that all ranks of a process share one stream and one set of kernels:
/// loading them may wait for the GPU, which must not happen while a kernel of another rank waits for this one.
static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// Undoes a push of the context and the change of the capture mode, also when the call in between fails or panics.
struct Restore {
    capture_mode: CUstreamCaptureMode,
    /// What `INSIDE` was.
    outer: CUcontext,
}

thread_local! {
    /// The context that a `with_current` of this thread has made current.
    static INSIDE: core::cell::Cell<CUcontext> = const { core::cell::Cell::new(core::ptr::null_mut()) };
}

impl Restore {
    fn enter(context: CUcontext) -> Result<Self> {
        let mut capture_mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the context is retained by the device; both pairs are undone in `drop` on this same thread.
        unsafe {
            call!(sys::cuCtxPushCurrent_v2(context))?;
            if let Err(error) = call!(sys::cuThreadExchangeStreamCaptureMode(&raw mut capture_mode)) {
                let mut popped = core::ptr::null_mut();
                sys::cuCtxPopCurrent_v2(&raw mut popped);
                return Err(error);
            }
        }
        Ok(Self { capture_mode, outer: INSIDE.replace(context) })
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
        let mut popped = core::ptr::null_mut();
        // SAFETY: gives back the mode taken in `enter` and pops the context pushed there. A failure here has no one to
        // tell: the call that ran in between has already reported what is wrong with the context.
        unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&raw mut self.capture_mode);
            sys::cuCtxPopCurrent_v2(&raw mut popped);
        }
    }
}

impl Device {
    /// Opens a device, or returns it if it is open. -1 takes the device of the calling thread's current context, or
    /// device 0 when there is none.
    pub fn open(ordinal: i32) -> Result<Arc<Self>> {
        probe::require()?;
        let devices = probe::probe().devices;
        let ordinal = if ordinal == -1 { current_ordinal(devices)? } else { ordinal };
        if ordinal < 0 || ordinal >= devices {
            bail!(
                NMC_ERR_INVALID_ARG,
                "device {ordinal} does not exist; this process sees {devices} (CUDA_VISIBLE_DEVICES), numbered from 0"
            );
        }
        let mut open = OPEN.lock();
        open.retain(|device| device.strong_count() > 0);
        if let Some(device) = open.iter().filter_map(Weak::upgrade).find(|device| device.ordinal == ordinal) {
            return Ok(device);
        }
        let device = Arc::new(Self::retain(ordinal)?);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    fn retain(ordinal: i32) -> Result<Self> {
        let handle = device_handle(ordinal)?;
        let (uuid, name, facts) = (read_uuid(handle)?, read_name(handle)?, read_facts(handle)?);
        let mut context = core::ptr::null_mut();
        // SAFETY: the device handle is valid; the retained context is released once, in `drop`.
        unsafe { call!(sys::cuDevicePrimaryCtxRetain(&raw mut context, handle))? };
        Ok(Self {
            ordinal,
            handle,
            context,
            uuid,
            name,
            facts,
            pid: std::process::id(),
            stream: OnceCell::new(),
            urgent: OnceCell::new(),
            loaded: OnceCell::new(),
        })
    }

    /// Number of the device in this process.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Identity of the device on the machine, the same in every process.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Product name.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// What the device can do.
    pub fn facts(&self) -> DeviceFacts {
        self.facts
    }

    /// What the driver says about the device now.
    pub(super) fn number(&self, attribute: CUdevice_attribute) -> Result<c_int> {
        number_of(self.handle, attribute)
    }

    /// Whether a kernel on this device can reach the memory of the device with `other_ordinal`.
    pub fn can_reach(&self, other_ordinal: i32) -> Result<bool> {
        if other_ordinal == self.ordinal {
            return Ok(true);
        }
        self.with_current(|| {
            let other = device_handle(other_ordinal)?;
            let mut can: c_int = 0;
            // SAFETY: both handles are valid and the out-pointer is a local.
            unsafe { call!(sys::cuDeviceCanAccessPeer(&raw mut can, self.handle, other))? };
            Ok(can != 0)
        })
    }

    /// Runs `f` with this device's primary context current and stream capture relaxed for the calling thread, and puts
    /// both back afterwards, also on an error or a panic.
    pub fn with_current<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.pid != std::process::id() {
            bail!(NMC_ERR_FORKED, "process {} opened this device before it forked this one", self.pid);
        }
        // Nested calls find the context in place.
        if INSIDE.get() == self.context {
            return f();
        }
        let _restore = Restore::enter(self.context)?;
        f()
    }

    /// Waits until everything that this process has given to the device is done.
    pub fn synchronize(&self) -> Result<()> {
        self.with_current(|| {
            // SAFETY: the context is current.
            unsafe { call!(sys::cuCtxSynchronize()) }
        })
    }

    /// Runs the library's own asynchronous work on the private stream and waits for it. Call inside `with_current`.
    pub(super) fn run_and_wait(&self, enqueue: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        let stream = self.stream.get_or_try_init(|| -> Result<PrivateStream> {
            let mut stream = core::ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: this device's context is current; the stream is destroyed in `drop`.
            unsafe { call!(sys::cuStreamCreate(&raw mut stream, flags))? };
            Ok(PrivateStream(stream))
        })?;
        enqueue(stream.0)?;
        // SAFETY: the stream lives as long as the device.
        unsafe { call!(sys::cuStreamSynchronize(stream.0)) }
    }

    /// Copies to device memory, and waits.
    ///
    /// # Safety
    /// From `device_addr` on there are as many bytes of memory that the device reaches, host memory among it: the driver looks for an
    /// allocation, not for whose it is. They can be written to, and nobody else uses them until this returns.
    pub unsafe fn write_now(&self, device_addr: u64, bytes: &[u8]) -> Result<()> {
        self.with_current(|| {
            self.run_and_wait(|stream| {
                // SAFETY: the caller vouches for the address, and the source is borrowed until the copy is done.
                unsafe { call!(sys::cuMemcpyAsync(device_addr, bytes.as_ptr() as u64, bytes.len(), stream)) }
            })
        })
    }

    /// Copies from device memory, and waits.
    ///
    /// # Safety
    /// From `device_addr` on there are as many bytes of memory that the device reaches. What others write meanwhile may come torn.
    pub unsafe fn read_now(&self, device_addr: u64, words: &mut [u64]) -> Result<()> {
        self.with_current(|| {
            self.run_and_wait(|stream| {
                let (to, bytes) = (words.as_mut_ptr() as u64, size_of_val(words));
                // SAFETY: the caller vouches for the address, and the words are borrowed until the copy is done.
                unsafe { call!(sys::cuMemcpyAsync(to, device_addr, bytes, stream)) }
            })
        })
    }

    /// Fills device memory with zeros, and waits.
    ///
    /// # Safety
    /// As for [`Self::write_now`].
    pub unsafe fn zero_now(&self, device_addr: u64, bytes: usize) -> Result<()> {
        self.with_current(|| {
            self.run_and_wait(|stream| {
                // SAFETY: the caller vouches for the address.
                unsafe { call!(sys::cuMemsetD8Async(device_addr, 0, bytes, stream)) }
            })
        })
    }

    fn urgent_stream(&self) -> Result<CUstream> {
        let stream = self.urgent.get_or_try_init(|| -> Result<PrivateStream> {
            let (mut stream, mut least, mut greatest) = (core::ptr::null_mut(), 0, 0);
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: this device's context is current; the stream is destroyed in `drop`.
            unsafe {
                call!(sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
                call!(sys::cuStreamCreateWithPriority(&raw mut stream, flags, greatest))?;
            }
            Ok(PrivateStream(stream))
        })?;
        Ok(stream.0)
    }

    /// Makes what [`Self::write_urgently`] needs.
    pub fn prepare_urgent(&self) -> Result<()> {
        self.with_current(|| self.urgent_stream().map(drop))
    }

    /// Has a word stored at a multiple of 8 in memory of a device, without waiting. It goes by a stream of the library with the
    /// highest priority, which has other queues of the GPU than ordinary streams: no kernel that waits is in front of it. Legal
    /// while other streams are captured.
    ///
    /// # Safety
    /// There is a word that the device can write to, which others only use as an atomic, and it stays there until the next `synchronize`
    /// of the device has returned.
    pub unsafe fn write_urgently(&self, device_addr: u64, value: u64) -> Result<()> {
        self.with_current(|| {
            let stream = self.urgent_stream()?;
            // SAFETY: by contract; the stream is our own.
            unsafe { super::stream::stream_write_value64(self, stream.cast(), device_addr, value) }
        })
    }

    pub(super) fn loaded(&self) -> Result<&Loaded> {
        self.loaded.get_or_try_init(|| self.with_current(Loaded::load))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let (streams, loaded) = ([self.stream.take(), self.urgent.take()], self.loaded.take());
        // A forked child fails the check in `with_current` and so touches nothing of its parent's.
        let released = self.with_current(|| {
            // SAFETY: both were created by this device and nobody can reach them any more.
            unsafe {
                for stream in streams.into_iter().flatten() {
                    sys::cuStreamDestroy_v2(stream.0);
                }
                if let Some(loaded) = loaded {
                    loaded.unload();
                }
            }
            Ok(())
        });
        if self.pid == std::process::id() {
            drop(released);
            // SAFETY: pairs with the retain in `open`.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
        }
    }
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Device({} {})", self.ordinal, self.name)
    }
}

fn device_handle(ordinal: i32) -> Result<sys::CUdevice> {
    let mut handle = 0;
    // SAFETY: the out-pointer is a local; the driver checks the ordinal.
    unsafe { call!(sys::cuDeviceGet(&raw mut handle, ordinal))? };
    Ok(handle)
}

fn current_ordinal(devices: i32) -> Result<i32> {
    let mut context = core::ptr::null_mut();
    // SAFETY: the out-pointer is a local.
    unsafe { call!(sys::cuCtxGetCurrent(&raw mut context))? };
    if context.is_null() {
        return Ok(0);
    }
    let mut current = 0;
    // SAFETY: a context is current, and the out-pointer is a local.
    unsafe { call!(sys::cuCtxGetDevice(&raw mut current))? };
    for ordinal in 0..devices {
        if device_handle(ordinal)? == current {
            return Ok(ordinal);
        }
    }
    bail!(NMC_ERR_CUDA, "the current context belongs to device handle {current}, which is none of {devices} devices")
}

fn read_uuid(handle: sys::CUdevice) -> Result<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the device handle is valid and the out-pointer is a local.
    unsafe { call!(sys::cuDeviceGetUuid_v2(&raw mut uuid, handle))? };
    Ok(uuid.bytes.map(|b| b.to_ne_bytes()[0]))
}

fn read_name(handle: sys::CUdevice) -> Result<String> {
    let mut bytes = [0u8; 128];
    // SAFETY: the driver writes at most 127 bytes and a NUL into the buffer of 128.
    unsafe { call!(sys::cuDeviceGetName(bytes.as_mut_ptr().cast(), 128, handle))? };
    let name = CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned());
    Ok(name)
}

fn number_of(handle: sys::CUdevice, attribute: CUdevice_attribute) -> Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: the device handle is valid and the out-pointer is a local.
    unsafe { call!(sys::cuDeviceGetAttribute(&raw mut value, attribute, handle))? };
    Ok(value)
}

fn read_facts(handle: sys::CUdevice) -> Result<DeviceFacts> {
    use CUdevice_attribute as A;
    let number = |attribute| number_of(handle, attribute);
    let yes = |attribute| -> Result<bool> { Ok(number(attribute)? != 0) };
    let mut total: usize = 0;
    // SAFETY: as above.
    unsafe { call!(sys::cuDeviceTotalMem_v2(&raw mut total, handle))? };
    Ok(DeviceFacts {
        cc_major: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        cc_minor: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        vmm: yes(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
        posix_fd_export: yes(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
        fabric_handle: yes(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?,
        rdma_with_vmm: yes(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        host_register: yes(A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?,
        read_only_host_register: yes(A::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)?,
        host_native_atomics: yes(A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED)?,
        stream_mem_ops_64: yes(A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?,
        total_bytes: total as u64,
        sm_count: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}
