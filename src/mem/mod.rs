//! Memory that processes share: sealed memfd slabs, and heaps on top of them or of CUDA memory.
//! Memory is reserved before it can be touched, so that a shortage is a status and never a signal.
#![allow(unsafe_code, reason = "mmap and friends")]

pub mod heap;
pub mod limits;
pub mod mapped_view;
pub mod numa;
pub mod page_pool;
pub mod ranges;
pub mod slab;

pub use heap::{Heap, HeapDesc, HeapKind, Import};
pub use mapped_view::{MappedDisk, MappedView};
pub use page_pool::{PagePool, PageRange};
pub use ranges::{HostPages, HostRange};
pub use slab::Slab;
