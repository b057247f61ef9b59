//! Threads that the library runs for itself. Signals are blocked in them, so that the program's handlers run on its own
//! threads, and a bug does not end what others depend on.

use super::panics;
use crate::base::error::{Error, Result};
use crate::base::log;
use std::ffi::CStr;
use std::thread::JoinHandle;
use std::time::Duration;

/// Starts a thread, bound to a CPU if asked.
pub fn spawn(name: &'static CStr, cpu: Option<u32>, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let name = name.to_str().unwrap_or("nmc");
    let _quiet = BlockSignals::now();
    let settled = move || {
        if let Some(cpu) = cpu {
            bind(cpu);
        }
        body();
    };
    std::thread::Builder::new()
        .name(name.into())
        .spawn(settled)
        .map_err(|e| Error::os(&format!("starting the thread {name}"), &e))
}

/// Runs the body of a thread that others depend on until it ends by itself. A bug in it is logged, and it begins again.
pub fn persist(what: &str, mut body: impl FnMut()) {
    while panics::catch(&mut body).is_err() {
        log::emit(log::ERROR, || format!("{what} met a bug in nanomc and goes on; please report it"));
        // Should it happen again and again, at least others can work.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Binds the calling thread to a CPU.
fn bind(cpu: u32) {
    // SAFETY: CPU_SET writes inside the set (the index is below its size), and the set outlives the call. A CPU
    // that does not exist leaves the affinity as it is.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if usize::try_from(libc::CPU_SETSIZE).is_ok_and(|size| (cpu as usize) < size) {
            libc::CPU_SET(cpu as usize, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// Blocks all signals in threads started while the guard lives.
pub struct BlockSignals(libc::sigset_t);

impl BlockSignals {
    /// From now on.
    #[must_use]
    pub fn now() -> Self {
        // SAFETY: sigfillset and pthread_sigmask fill the sets they are given.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockSignals {
    fn drop(&mut self) {
        // SAFETY: restores the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test may")]
mod tests {
    #[test]
    fn a_thread_that_others_need_goes_on_after_a_bug() {
        let mut rounds = 0;
        super::persist("a test", || {
            rounds += 1;
            assert!(rounds > 2, "a bug, for a test");
        });
        assert_eq!(rounds, 3);
    }
}
