//! The mutex of code that is run under chosen schedules (tests/kv_schedules, which has another one), and the numbers of its threads.

pub use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number that the calling thread keeps; threads get them in turn.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = |number: &Cell<usize>| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    };
    // Without its locals, a thread that ends is number 0.
    NUMBER.try_with(number).unwrap_or(0)
}
