//! The largest request for memory, for tests of what takes its sizes from outside: nobody may make us ask for more than there is.

mod sys;

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    // Without a destructor and without memory of its own, so that the allocator may use it.
    static HERE: Cell<Option<Largest>> = const { Cell::new(None) };
}

/// The largest request of all threads that it was told to watch.
#[derive(Debug, Clone, Copy)]
pub struct Largest(&'static AtomicUsize);

impl Largest {
    /// Of no thread yet. Its word lives as long as the process.
    #[must_use]
    pub fn of_nobody() -> Self {
        Self(Box::leak(Box::default()))
    }

    /// From now on this thread is watched, until it ends or another one watches it.
    pub fn watch_here(self) {
        HERE.set(Some(self));
    }

    /// The largest request since the last call.
    #[must_use]
    pub fn take(self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

fn requested(bytes: usize) {
    if let Ok(Some(largest)) = HERE.try_with(Cell::get) {
        largest.0.fetch_max(bytes, Relaxed);
    }
}

#[test]
fn the_largest_request_of_a_watched_thread_is_seen_and_no_other() {
    let largest = Largest::of_nobody();
    drop(vec![1u8; 5000]);
    assert_eq!(largest.take(), 0);
    largest.watch_here();
    std::thread::scope(|scope| _ = scope.spawn(|| drop(vec![1u8; 9000])));
    drop((vec![1u8; 7000], super::memory::zeroed::<u64>(1000)));
    assert_eq!(largest.take(), 8000);
    let mut list: Vec<u8> = Vec::with_capacity(5000);
    list.reserve_exact(8500);
    assert_eq!((largest.take(), largest.take()), (8500, 0));
}
