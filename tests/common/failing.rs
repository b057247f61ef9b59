//! An allocator that refuses memory when a test says so: the nth request for [`LEAST`] bytes or more, of the calling
//! thread or of any. Below that size nothing is refused: what is that small does not follow from sizes of the caller's.
//! A test program that has this module has the allocator. One test at a time may arm it for all threads.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]

use nanomc::base::status::{NMC_ERR_NO_MEMORY, NMC_OK};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller requests are not counted, and are never refused.
pub const LEAST: usize = 4096;
/// No request is refused.
const NEVER: u64 = u64::MAX;

/// What is counted and refused: requests from `first` on, `refused` of them.
#[derive(Clone, Copy)]
struct Armed {
    seen: u64,
    first: u64,
    refused: u64,
}

thread_local! {
    // Without a destructor and without memory of its own, so that the allocator may use it.
    static HERE: Cell<Option<Armed>> = const { Cell::new(None) };
    /// What is refused to all threads is not refused to this one.
    static SPARED: Cell<bool> = const { Cell::new(false) };
}

/// The same for all threads; `FIRST` is [`NEVER`] while it is not armed.
static SEEN: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicU64 = AtomicU64::new(NEVER);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with refusals.
pub struct Failing;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn is_refused(bytes: usize) -> bool {
    if bytes < LEAST {
        return false;
    }
    let here = HERE.try_with(|here| {
        let armed = here.get()?;
        here.set(Some(Armed { seen: armed.seen + 1, ..armed }));
        Some((armed.first..armed.first.saturating_add(armed.refused)).contains(&armed.seen))
    });
    let first = FIRST.load(Ordering::SeqCst);
    let spared = || SPARED.try_with(Cell::get).unwrap_or(false);
    let anywhere = first != NEVER && !spared() && {
        let seen = SEEN.fetch_add(1, Ordering::SeqCst);
        (first..first.saturating_add(REFUSED.load(Ordering::SeqCst))).contains(&seen)
    };
    anywhere || here.ok().flatten() == Some(true)
}

// SAFETY: everything is the system allocator's; a NULL is what an allocator answers that has no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Growing in place is a request as well; giving back is none.
        if bytes > layout.size() && is_refused(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn run<R>(first: u64, refused: u64, body: impl FnOnce() -> R) -> (R, u64) {
    HERE.set(Some(Armed { seen: 0, first, refused }));
    let result = body();
    let seen = HERE.take().map_or(0, |armed| armed.seen);
    (result, seen)
}

/// Runs `body`, in which this thread's request number `n` from 0 is refused, and that one alone. Returns what it
/// returned and how many requests there were: if that is `n` or less, none was refused.
pub fn fail_nth<R>(n: u64, body: impl FnOnce() -> R) -> (R, u64) {
    run(n, 1, body)
}

/// The same, but all requests from number `n` on are refused.
pub fn fail_from<R>(n: u64, body: impl FnOnce() -> R) -> (R, u64) {
    run(n, NEVER, body)
}

/// Counts this thread's requests in `body`.
pub fn count<R>(body: impl FnOnce() -> R) -> (R, u64) {
    run(NEVER, 0, body)
}

/// Like [`fail_nth`], with the requests of all threads; `NEVER` itself cannot be asked for.
pub fn fail_nth_anywhere<R>(n: u64, body: impl FnOnce() -> R) -> (R, u64) {
    SEEN.store(0, Ordering::SeqCst);
    REFUSED.store(1, Ordering::SeqCst);
    FIRST.store(n, Ordering::SeqCst);
    let result = body();
    FIRST.store(NEVER, Ordering::SeqCst);
    (result, SEEN.load(Ordering::SeqCst))
}

/// The same with the requests of all threads but this one.
pub fn fail_nth_elsewhere<R>(n: u64, body: impl FnOnce() -> R) -> (R, u64) {
    SPARED.set(true);
    let done = fail_nth_anywhere(n, body);
    SPARED.set(false);
    done
}

/// More requests for memory than any call makes.
pub const MANY: u64 = 400;

/// One test at a time: the allocator of all of them is one, and some look at the descriptors of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of the thread's last error.
pub fn last_error() -> String {
    // SAFETY: a text of the library, valid until the next call.
    unsafe { CStr::from_ptr(nanomc::ffi::basic::nmc_last_error_message()) }.to_string_lossy().into_owned()
}

/// How many descriptors the process has.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

/// A call was refused memory, and says how much.
pub fn check_message(status: i32) {
    assert_eq!(status, NMC_ERR_NO_MEMORY, "{}", last_error());
    let text = last_error();
    assert!(text.contains("bytes") && text.chars().any(|c| c.is_ascii_digit()), "no size in {text:?}");
}

/// Makes a call once for each of its requests for memory, which is refused, and once without: `unchanged` is called after
/// every refusal. Gives how many requests there were.
pub fn refuse_each(what: &str, mut call: impl FnMut() -> i32, mut unchanged: impl FnMut()) -> u64 {
    for n in 0..MANY {
        let (status, seen) = fail_nth(n, &mut call);
        if seen <= n {
            assert_eq!(status, NMC_OK, "{what}: {}", last_error());
            return n;
        }
        check_message(status);
        unchanged();
    }
    panic!("{what} makes more than {MANY} requests for memory");
}
