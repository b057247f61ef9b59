//! Shuttle's mutex, and the numbers of its threads; in place of src/sync/lock.rs.

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
