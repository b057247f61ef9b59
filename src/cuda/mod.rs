//! CUDA driver access: devices, shared device memory, registered host memory, stream writes and the embedded kernels.
//!
//! The only module that touches cudarc. Nothing here panics on a machine without a driver: every path begins with
//! [`require`]. A call never changes the caller's current context and is legal while the caller captures a stream.
//! The layers above (`mem`, `world`, `store`, `ep`, `kv`, `cluster`) may call it; it imports `base`, `layout` and `alloc` only.

#![allow(unsafe_code, reason = "the CUDA driver is a C library; every block says what keeps it sound")]

mod copy;
mod device;
mod error;
mod host;
mod ipc;
mod kernels;
mod pointer;
mod probe;
mod ranges;
mod rdma;
mod stream;
mod table;
mod vmm;

pub use copy::{Copier, Ordinary};
pub use device::{Device, DeviceFacts};
pub use host::HostRegistration;
pub use ipc::{IpcExport, IpcHeap, ipc_export};
pub use kernels::{Kernel, Kernels, Launch, PatternVerify, PatternWrite, STRETCHES, Stretch, VERIFY_RESULT_WORDS, arg};
pub use pointer::{Owner, PointerKind, Reach, initialized, kernel_address, owner, pointer_kind, reach, reach_around};
pub use probe::{MIN_DRIVER_CUDA, Probe, in_process, probe, require};
pub use ranges::{CudaPages, CudaRange};
pub use rdma::{Seen, Visible};
pub use stream::{GivenEvent, GivenStream, Mark, Stream, copy_on_stream, may_be_captured, stream_write_value64};
pub use table::DeviceTable;
pub use vmm::VmmHeap;
