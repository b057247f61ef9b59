//! Tells a forked child from the process that made the handles. One page of memory is marked wipe-on-fork: the
//! kernel hands every child a zeroed copy, however it was forked, so the check is a single load.

use crate::base::error::{Error, Result};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static INIT: OnceCell<()> = OnceCell::new();
const PARENT: u32 = 0x4e4d_4321;

/// Marks the calling process as the owner of all handles. Idempotent; called before the first handle is made.
pub fn init() -> Result<()> {
    INIT.get_or_try_init(|| {
        let bytes = 4096;
        // SAFETY: a fresh anonymous mapping; nothing else refers to it, and it is never unmapped.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(Error::last_os("mmap of the fork marker"));
        }
        // SAFETY: the page was mapped above with exactly this length.
        if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } != 0 {
            return Err(Error::last_os("madvise(MADV_WIPEONFORK); Linux 4.14 or later is needed"));
        }
        let marker = page.cast::<AtomicU32>();
        // SAFETY: page-aligned, writable, zero-initialised memory is a valid AtomicU32.
        unsafe { &*marker }.store(PARENT, Ordering::Relaxed);
        PAGE.store(marker, Ordering::Release);
        Ok(())
    })
    .copied()
}

/// Whether this process is a forked child of one that made handles.
#[inline(always)]
pub fn is_child() -> bool {
    let marker = PAGE.load(Ordering::Acquire);
    // SAFETY: non-null means `init` published a mapping that is never unmapped.
    !marker.is_null() && unsafe { &*marker }.load(Ordering::Relaxed) != PARENT
}
