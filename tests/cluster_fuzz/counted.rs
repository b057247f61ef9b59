//! An allocator that counts what a thread has, and the most that it had.
#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Below zero if the thread has freed what others had.
    static USED: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The most that this thread had during something, beyond what it had before.
pub fn most(during: impl FnOnce()) -> usize {
    let before = USED.get();
    MOST.set(before);
    during();
    usize::try_from(MOST.get() - before).unwrap_or(0)
}

/// Bytes that this thread has, to be compared with what it had at another time.
pub fn used() -> isize {
    USED.get()
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    USED.set(USED.get() + bytes);
    MOST.set(MOST.get().max(USED.get()));
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
