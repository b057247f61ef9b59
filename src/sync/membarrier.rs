//! Asymmetric fences: `light` costs a reader nothing, `heavy` makes the rare writer pay with `membarrier(2)`.
//! A `light` on one thread and a `heavy` on another order like two SeqCst fences. Where the kernel has no
//! private expedited membarrier, both are SeqCst fences.

#[cfg(feature = "loom")]
mod imp {
    /// The reader's side.
    pub fn light() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
    /// The writer's side.
    pub fn heavy() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(not(feature = "loom"))]
mod imp {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    const UNKNOWN: u8 = 0;
    const MEMBARRIER: u8 = 1;
    const FENCES: u8 = 2;
    static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

    const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Chooses the mode once. Must run before the first `light` whose ordering matters: handle creation calls it.
    pub fn init() {
        if MODE.load(Ordering::Relaxed) == UNKNOWN {
            let mode = if membarrier(CMD_REGISTER_PRIVATE_EXPEDITED) { MEMBARRIER } else { FENCES };
            MODE.store(mode, Ordering::SeqCst);
        }
    }

    /// The reader's side.
    #[inline(always)]
    pub fn light() {
        if MODE.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The writer's side.
    pub fn heavy() {
        fence(Ordering::SeqCst);
        if MODE.load(Ordering::Relaxed) == MEMBARRIER && !membarrier(CMD_PRIVATE_EXPEDITED) {
            // Registration succeeded, so only something like a new seccomp filter makes this fail. From now on readers
            // fence for themselves; those in flight are long done after the pause.
            MODE.store(FENCES, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

pub use imp::*;
