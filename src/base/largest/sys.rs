//! The system's allocator, of which the requests are seen.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use super::requested;
use std::alloc::{GlobalAlloc, Layout, System};

struct Seen;

#[global_allocator]
static ALLOCATOR: Seen = Seen;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Seen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        requested(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        requested(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        requested(bytes);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}
