//! For tests: threads that go on until a flag is set end whatever becomes of the thread that sets it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it goes, with a panic too: a scope waits for its threads before it lets a panic through.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
