//! Memory that processes share: sealed memfd slabs, and heaps on top of them or of CUDA memory.
//! Memory is reserved before it can be touched, so that a shortage is a status and never a signal.
#![allow(unsafe_code, reason = "mmap and friends")]

pub mod heap;
pub mod limits;
pub mod placed;
pub mod ranges;
pub mod slab;
pub mod viewed;

pub use heap::{Heap, HeapDesc, HeapKind, Import};
pub use placed::{PagePool, PageRange};
pub use ranges::{HostPages, HostRange};
pub use slab::Slab;
pub use viewed::Viewed;
