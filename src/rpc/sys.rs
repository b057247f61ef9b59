//! Descriptors that a thread of the library waits for, and those that a forked child must not keep.
#![allow(unsafe_code, reason = "system calls")]

use crate::base::error::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Takes the descriptor that `call` just returned to us; an error if it is none.
pub fn owned(raw: RawFd, call: &str) -> Result<OwnedFd> {
    if raw < 0 {
        return Err(Error::last_os(call));
    }
    // SAFETY: the kernel just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Effective user id of this process.
#[must_use]
pub fn own_uid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// Descriptors that a forked child must not keep: it would hold the master's lock and port, or its connections, after
/// the master has died. Children made by a bare `clone` keep them all the same.
static PARENT_ONLY: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];
static AT_FORK: std::sync::Once = std::sync::Once::new();

extern "C" fn close_in_child() {
    for slot in &PARENT_ONLY {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: our own descriptor; no code of the library runs in this child that could use it again.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor that is closed in forked children.
#[derive(Debug)]
pub struct ParentOnly(OwnedFd);

impl ParentOnly {
    /// Marks `fd`.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        // SAFETY: the handler only loads and stores atomics and closes, and the library is never unloaded.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close_in_child));
        });
        let free =
            |slot: &&AtomicI32| slot.compare_exchange(-1, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // With more than the table holds, the rest is merely inherited.
        let _ = PARENT_ONLY.iter().find(free);
        Self(fd)
    }
}

impl Drop for ParentOnly {
    fn drop(&mut self) {
        let fd = self.0.as_raw_fd();
        let held = |slot: &&AtomicI32| slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let _ = PARENT_ONLY.iter().find(held);
    }
}

impl AsFd for ParentOnly {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ParentOnly {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Takes what an eventfd or a timerfd, which does not block, has counted: it is not readable until it counts again.
pub fn drain(counter: &impl AsRawFd) {
    let mut count = [0u8; 8];
    // SAFETY: eight writable bytes. If it has counted nothing there is nothing to read (EAGAIN).
    unsafe { libc::read(counter.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

/// A counter that can be polled.
pub struct Event(OwnedFd);

impl Event {
    /// A new event, not signalled.
    pub fn new() -> Result<Self> {
        // SAFETY: plain system call.
        Ok(Self(owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")?))
    }

    /// Takes the signals that came so far.
    pub fn drain(&self) {
        drain(&self.0);
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full counter (EAGAIN) is signalled already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const FEW_POLLED: usize = 8;
/// More than any thread has: of every client or rank a connection and two signs of life, for as many as there can be.
const MOST_POLLED: usize = 1024;

/// Waits until one of `fds`, of which only the first 1024 count, is readable or at its end, at most `limit`; returns which are.
pub fn poll(fds: &[BorrowedFd<'_>], limit: Duration) -> Vec<bool> {
    // On the stack: a thread of the library must be able to wait when memory is short.
    if fds.len() <= FEW_POLLED { poll_in::<FEW_POLLED>(fds, limit) } else { poll_in::<MOST_POLLED>(fds, limit) }
}

fn poll_in<const N: usize>(fds: &[BorrowedFd<'_>], limit: Duration) -> Vec<bool> {
    let mut set = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; N];
    let set = &mut set[..fds.len().min(N)];
    set.iter_mut().zip(fds).for_each(|(place, fd)| place.fd = fd.as_raw_fd());
    let ms = limit.as_millis().min(60_000);
    // Round up, so that a wait of half a millisecond is not a busy loop.
    let ms = i32::try_from(ms).unwrap_or(60_000) + i32::from(!limit.subsec_nanos().is_multiple_of(1_000_000));
    // SAFETY: the array is live and its length is right. EINTR leaves revents 0: a spurious wake-up.
    unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, ms) };
    set.iter().map(|p| p.revents != 0).collect()
}

/// Whether `fd` is readable or at its end right now.
#[must_use]
pub fn ready(fd: BorrowedFd<'_>) -> bool {
    poll(&[fd], Duration::ZERO).first().copied().unwrap_or(false)
}
