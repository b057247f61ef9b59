//! What needs the operating system or raw addresses: clocks, copies to and from heaps, and packets of a call.
#![allow(unsafe_code, reason = "clocks, copies by address and sockets")]

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use std::os::fd::{AsRawFd as _, BorrowedFd};

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time
}

/// CLOCK_MONOTONIC in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock(libc::CLOCK_MONOTONIC);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The same in ms, a few ms late, and cheap.
#[must_use]
pub fn coarse_ms() -> u64 {
    let time = clock(libc::CLOCK_MONOTONIC_COARSE);
    time.tv_sec.unsigned_abs() * 1_000 + time.tv_nsec.unsigned_abs() / 1_000_000
}

/// Copies between addresses of this process.
///
/// # Safety
/// `from` has `bytes` readable bytes that nobody writes to, and `to` as many writable ones, elsewhere, that nobody else uses,
/// both until this returns. For a heap of the store a pin or an open plan keeps that, for memory of the program whoever
/// called the C function.
#[inline(always)]
pub unsafe fn copy(from: u64, to: u64, bytes: u64) {
    #[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
    let bytes = bytes as usize;
    // SAFETY: by contract.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// CRC32C of memory of this process.
///
/// # Safety
/// `from` has `bytes` readable bytes that nobody writes to until this returns, as in [`copy`].
#[must_use]
pub unsafe fn checksum(seed: u32, from: u64, bytes: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "64-bit only")]
    let bytes = bytes as usize;
    if bytes == 0 {
        return seed;
    }
    // SAFETY: by contract.
    crc32c::crc32c_append(seed, unsafe { std::slice::from_raw_parts(from as *const u8, bytes) })
}

/// What a try to receive gave.
pub enum Heard {
    /// The length of the packet in the buffer.
    Packet(usize),
    /// Nothing came in time.
    Nothing,
    /// The other end is closed.
    End,
}

/// Sends a packet; false when the other end is closed or does not read.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<bool> {
    loop {
        // SAFETY: `bytes` is readable; MSG_NOSIGNAL keeps a closed peer from raising SIGPIPE.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(true);
        }
        let cause = std::io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EPIPE | libc::ECONNRESET | libc::EAGAIN) => return Ok(false),
            _ => return Err(Error::os("send", &cause)),
        }
    }
}

/// Waits until something can be received, or `deadline` has passed.
fn wait(socket: BorrowedFd<'_>, deadline: &Deadline) {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(deadline.left().as_millis().min(60_000)).unwrap_or(60_000) + 1;
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut one, 1, ms) };
}

/// For how long a caller looks for an answer again and again, letting others run in between, before it sleeps. An answer
/// takes about 15 us, of which waking the sleeper would be a third.
const EAGER_NS: u64 = 30_000;

/// Receives a packet into `buffer`, waiting until `deadline`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], deadline: Option<&Deadline>) -> Result<Heard> {
    let eager_until = deadline.map(|_| now_ns() + EAGER_NS);
    loop {
        // SAFETY: `buffer` is writable. MSG_TRUNC makes the call tell the true length.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
            )
        };
        if let Ok(len) = usize::try_from(got) {
            if len > buffer.len() {
                crate::bail!(NMC_ERR_PROTOCOL, "a packet has {len} bytes; {} are possible", buffer.len());
            }
            return Ok(if len == 0 { Heard::End } else { Heard::Packet(len) });
        }
        let cause = std::io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECONNRESET) => return Ok(Heard::End),
            Some(libc::EAGAIN) => {
                let Some(deadline) = deadline.filter(|d| !d.passed()) else { return Ok(Heard::Nothing) };
                if eager_until.is_some_and(|until| now_ns() < until) {
                    std::thread::yield_now();
                } else {
                    wait(socket, deadline);
                }
            }
            _ => return Err(Error::os("recv", &cause)),
        }
    }
}

fn ended(set: &libc::pollfd) -> bool {
    set.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL) != 0
}

/// Waits until the connection has ended; false if `nudge` became readable or `limit` passed first.
pub fn wait_for_end(link: BorrowedFd<'_>, nudge: BorrowedFd<'_>, limit: std::time::Duration) -> bool {
    let mut set = [
        libc::pollfd { fd: link.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 },
        libc::pollfd { fd: nudge.as_raw_fd(), events: libc::POLLIN, revents: 0 },
    ];
    let ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: two live pollfds.
    unsafe { libc::poll(set.as_mut_ptr(), 2, ms) };
    ended(&set[0])
}

/// Whether the connection has ended.
#[must_use]
pub fn has_ended(link: BorrowedFd<'_>) -> bool {
    let mut one = libc::pollfd { fd: link.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut one, 1, 0) };
    ended(&one)
}
