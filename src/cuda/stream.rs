//! Streams: what the library puts on a caller's stream besides kernels (a 64-bit store that the CPU or a peer can
//! see), and streams of its own for work that must not queue behind other work. `world` and `store` call it.

use core::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::error::call;
use crate::bail;
use crate::base::error::Result;

/// Stores `value` at `device_addr` after everything on `stream` before it, visible to the system (the default flag fences
/// like `__threadfence_system` for this stream's writes). Does not block and can be captured; a captured value is baked
/// into the graph.
///
/// # Safety
/// `stream` is one of the device's, or NULL. At `device_addr` there is a word of device memory or registered host memory, which others only
/// use as an atomic and which stays there until the store or the last replay has run.
pub unsafe fn stream_write_value64(device: &Device, stream: *mut c_void, device_addr: u64, value: u64) -> Result<()> {
    if device_addr == 0 || !device_addr.is_multiple_of(8) {
        bail!(
            NMC_ERR_INVALID_ARG,
            "a stream can store 64 bits at a multiple of 8 only, and {device_addr:#x} is not one"
        );
    }
    if !device.facts().stream_mem_ops_64 {
        bail!(
            NMC_ERR_UNSUPPORTED,
            "device {} ({}) cannot store 64-bit words from a stream (cuStreamWriteValue64)",
            device.ordinal(),
            device.name()
        );
    }
    let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    device.with_current(|| {
        // SAFETY: the caller vouches for the stream and the word.
        unsafe { call!(sys::cuStreamWriteValue64_v2(stream.cast(), device_addr, value, flags)) }
    })
}

/// Copies between any memory that the device can reach, when the stream gets there. Does not block and can be captured.
///
/// # Safety
/// `stream` is one of the device's, or NULL. `from` has `bytes` bytes, and `to` as many that can be written to, which nobody else uses then:
/// both until the copy or the last replay has run.
pub unsafe fn copy_on_stream(device: &Device, stream: *mut c_void, from: u64, to: u64, bytes: u64) -> Result<()> {
    let Ok(size) = usize::try_from(bytes) else { bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes to copy") };
    device.with_current(|| {
        // SAFETY: the caller vouches for the stream and both sides.
        unsafe { call!(sys::cuMemcpyAsync(to, from, size, stream.cast())) }
    })
}

/// A stream of the program, for which whoever makes this vouches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenStream(usize);

impl GivenStream {
    /// The default stream of a device; where memory is the host's, that there is none.
    pub const NULL: Self = Self(0);

    /// A stream by its address.
    ///
    /// # Safety
    /// It is NULL or a stream of the device for whose work it is given, and stays until that is done.
    #[must_use]
    pub unsafe fn new(stream: *mut c_void) -> Self {
        Self(stream as usize)
    }

    /// Whether it is NULL.
    #[must_use]
    pub fn is_null(self) -> bool {
        self == Self::NULL
    }

    /// Its address.
    #[must_use]
    pub fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// An event of the program, for which whoever makes this vouches.
#[derive(Debug, Clone, Copy)]
pub struct GivenEvent(usize);

impl GivenEvent {
    /// An event by its address; `None` for NULL.
    ///
    /// # Safety
    /// It is NULL or an event, which stays until nobody waits for it any more.
    #[must_use]
    pub unsafe fn new(event: *mut c_void) -> Option<Self> {
        (!event.is_null()).then_some(Self(event as usize))
    }

    /// Blocks until it has happened.
    pub fn wait(self, device: &Device) -> Result<()> {
        wait_for(device, self.0 as sys::CUevent)
    }
}

fn wait_for(device: &Device, event: sys::CUevent) -> Result<()> {
    device.with_current(|| {
        // SAFETY: the event is alive: a mark's own, or one of the program, which vouches for it.
        unsafe { call!(sys::cuEventSynchronize(event)) }
    })
}

/// Whether what is put on `stream` may go into a graph. If the driver does not say, it may.
pub fn may_be_captured(device: &Device, stream: GivenStream) -> bool {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let asked = device.with_current(|| {
        // SAFETY: the out-pointer is a local; whoever gave the stream vouches for it.
        unsafe { call!(sys::cuStreamIsCapturing(stream.raw().cast(), &raw mut status)) }
    });
    asked.is_err() || status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// A stream of the library's own, independent of all others.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    raw: sys::CUstream,
}

// SAFETY: stream handles may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the legacy default stream.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let mut raw = core::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        device.with_current(|| {
            // SAFETY: the out-pointer is a local; the stream is destroyed in `drop`.
            unsafe { call!(sys::cuStreamCreate(&raw mut raw, flags)) }
        })?;
        Ok(Self { device: Arc::clone(device), raw })
    }

    /// The driver's handle.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Waits until everything on the stream is done.
    pub fn synchronize(&self) -> Result<()> {
        self.device.with_current(|| {
            // SAFETY: the stream lives as long as this value.
            unsafe { call!(sys::cuStreamSynchronize(self.raw)) }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A failure means that the context is gone, and the stream with it.
        let _done = self.device.with_current(|| {
            // SAFETY: created by `new`, destroyed once.
            unsafe { call!(sys::cuStreamDestroy_v2(self.raw)) }
        });
    }
}

/// A point on a caller's stream that a thread can wait for.
#[derive(Debug)]
pub struct Mark {
    device: Arc<Device>,
    raw: sys::CUevent,
}

// SAFETY: event handles may be used from every thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// Marks what is on `stream` now. Not while the stream is being captured.
    pub fn on(device: &Arc<Device>, stream: GivenStream) -> Result<Self> {
        let mut raw = core::ptr::null_mut();
        let flags =
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        device.with_current(|| {
            // SAFETY: the out-pointer is a local; the event is destroyed in `drop`.
            unsafe { call!(sys::cuEventCreate(&raw mut raw, flags)) }
        })?;
        let mark = Self { device: Arc::clone(device), raw };
        mark.device.with_current(|| {
            // SAFETY: the event is alive; whoever gave the stream vouches for it.
            unsafe { call!(sys::cuEventRecord(mark.raw, stream.raw().cast())) }
        })?;
        Ok(mark)
    }

    /// Blocks until the stream got there.
    pub fn wait(&self) -> Result<()> {
        wait_for(&self.device, self.raw)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A failure means that the context is gone, and the event with it.
        let _done = self.device.with_current(|| {
            // SAFETY: created by `on`, destroyed once.
            unsafe { call!(sys::cuEventDestroy_v2(self.raw)) }
        });
    }
}
