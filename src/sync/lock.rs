//! The mutex of code that is run under chosen schedules, and the numbers of its threads. In every library that is shipped
//! the mutex is parking_lot's.

#[cfg(not(feature = "shuttle"))]
pub use plain::{Mutex, MutexGuard, thread_number};
#[cfg(feature = "shuttle")]
pub use scheduled::{Mutex, MutexGuard, thread_number};

#[cfg(not(feature = "shuttle"))]
mod plain {
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
}

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::sync::PoisonError;

    /// Shuttle's mutex with the face of parking_lot's.
    #[derive(Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// What has the lock.
    pub type MutexGuard<'a, T> = shuttle::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        /// Unlocked.
        pub fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Shuttle's threads share the thread they run on, and its locals; so it is the number that shuttle gave them.
    pub fn thread_number() -> usize {
        usize::from(shuttle::current::me())
    }
}
