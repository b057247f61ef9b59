//! Atomics that a model checker can replace, and the few primitives built straight on them.
//! With the feature `loom`, in crates/loom, the same code runs on loom's types; nothing else may know about it.
#![allow(unsafe_code, reason = "madvise, membarrier and futex are system calls")]

pub mod barrier;
pub mod disk_entry;
#[cfg(all(feature = "loom", test))]
mod disk_entry_model;
pub mod facts;
#[cfg(not(feature = "loom"))]
pub mod fork;
#[cfg(not(feature = "loom"))]
pub mod futex;
pub mod hazard;
#[cfg(all(feature = "loom", test))]
mod hazard_model;
pub mod ids;
pub mod index;
#[cfg(all(feature = "loom", test))]
mod index_model;
#[cfg(not(feature = "loom"))]
pub mod lock;
pub mod membarrier;
pub mod object;
#[cfg(all(feature = "loom", test))]
mod object_model;
#[cfg(not(feature = "loom"))]
pub mod panics;
#[cfg(not(feature = "loom"))]
pub mod service_thread;
#[cfg(not(feature = "loom"))]
pub mod thread_slot;

/// The atomics to use in code that is model-checked.
pub mod atomic {
    #[cfg(feature = "loom")]
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    #[cfg(not(feature = "loom"))]
    pub use std::sync::atomic::{AtomicU64, Ordering, fence};

    /// `fence(SeqCst)`, for the hot paths. On x86-64 any locked instruction is one, and costs less than half of the `mfence`
    /// that the compiler makes of it, which also waits for what is not memory.
    #[inline(always)]
    pub fn full_fence() {
        #[cfg(all(target_arch = "x86_64", not(feature = "loom")))]
        // SAFETY: changes nothing; the stack is writable. Without `nomem` the compiler moves no access across it.
        unsafe {
            std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
        }
        #[cfg(any(not(target_arch = "x86_64"), feature = "loom"))]
        fence(Ordering::SeqCst);
    }
}
