//! What processes wait for each other with.

use crate::sync::futex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A futex that is rung only if somebody listens.
#[repr(C, align(8))]
pub struct Bell {
    /// The futex.
    pub ring: AtomicU32,
    /// Not 0 if somebody may wait since the last ring.
    pub waiting: AtomicU32,
}

impl Bell {
    /// Wakes those who wait, in all processes. They say that they do anew before each look: a waiter that died costs one
    /// wake.
    #[inline]
    pub fn ring(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // Before the ring: whoever says it after hears the next one.
            self.waiting.store(0, Ordering::SeqCst);
            self.ring.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.ring);
        }
    }

    /// Says that somebody waits. To be called before each look; [`Bell::wait`] with what it gave sleeps unless the bell
    /// has rung since.
    #[must_use]
    pub fn listen(&self) -> u32 {
        let heard = self.ring.load(Ordering::SeqCst);
        self.waiting.store(1, Ordering::SeqCst);
        heard
    }

    /// Sleeps until the bell rings, at most for `limit`.
    pub fn wait(&self, heard: u32, limit: std::time::Duration) {
        futex::wait(&self.ring, heard, limit);
    }
}

/// What wakes those who wait.
#[repr(C, align(64))]
pub struct Bells {
    /// For a publication: rung by writers that commit.
    pub published: Bell,
    /// For room: rung by the master when it has freed something, and by writers, whose objects can be evicted from then on.
    pub room: Bell,
    reserved: [AtomicU64; 6],
}
