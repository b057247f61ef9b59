//! What is counted: bytes of memory, CPU time, messages.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with a count of what is in use. One thread does the work, so that adding need not be one step.
pub struct Counting;

pub static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// With what the allocator itself adds: a word, and the rounding to 16 bytes.
pub fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16)
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USED.store(USED.load(Relaxed).wrapping_add(taken(layout)), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.store(USED.load(Relaxed).wrapping_sub(taken(layout)), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// CPU time of this thread, in ns: what others do on the machine is not in it.
pub fn cpu_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a master was asked to do, and what that took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub cpu_ns: u64,
    pub heard: u64,
    pub said: u64,
    pub heard_bytes: u64,
    pub said_bytes: u64,
}

impl Cost {
    pub fn since(self, before: Cost) -> Self {
        Self {
            cpu_ns: self.cpu_ns - before.cpu_ns,
            heard: self.heard - before.heard,
            said: self.said - before.said,
            heard_bytes: self.heard_bytes - before.heard_bytes,
            said_bytes: self.said_bytes - before.said_bytes,
        }
    }

    pub fn us_per(self, count: usize) -> f64 {
        self.cpu_ns as f64 / 1e3 / count.max(1) as f64
    }

    pub fn messages(self) -> u64 {
        self.heard + self.said
    }
}
