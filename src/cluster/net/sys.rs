//! System calls of connections: waiting for many, and moving bytes between sockets and memory that somebody vouches for.
#![allow(unsafe_code, reason = "system calls")]

use crate::base::crc::crc32c_append;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::rpc::{drain, owned};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

/// Pieces that one call moves.
const MOST_PIECES: usize = 64;
/// Connections that one wait tells of.
const MOST_READY: usize = 256;
/// Connections that may wait to be taken, if the machine allows as many.
const MOST_WAITING: libc::c_int = 4096;

/// A run of bytes in this process, for which whoever made it vouches: see [`Span::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    first: usize,
    len: usize,
}

impl Span {
    /// `len` bytes from this address on.
    ///
    /// # Safety
    /// They can be read, or written if they are to be, until those who were given them, or a part of them, are done with them: by this
    /// process, or if they are a device's, by what moves bytes for it. Meanwhile nobody else writes what is read of them, and nobody
    /// else uses what is written.
    #[must_use]
    pub const unsafe fn new(first: usize, len: usize) -> Self {
        Self { first, len }
    }

    /// Bytes that are there as long as the program, and may be written to.
    #[must_use]
    pub fn of_static(bytes: &'static [AtomicU8]) -> Self {
        Self { first: bytes.as_ptr().expose_provenance(), len: bytes.len() }
    }

    /// The same for tests, which keep the memory, or do not touch it.
    #[cfg(test)]
    pub fn of_test(first: usize, len: usize) -> Self {
        Self { first, len }
    }

    /// Address of its first byte.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Whether all of another is in it.
    #[must_use]
    pub fn holds(&self, other: &Span) -> bool {
        other.first >= self.first && other.len <= self.len && other.first - self.first <= self.len - other.len
    }

    /// Copies what it holds to the beginning of another that does not overlap; as much as fits.
    pub fn copy_to(&self, to: &Span) {
        // SAFETY: whoever made the spans vouches for them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.first as *const u8, to.first as *mut u8, self.len.min(to.len));
        }
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Without its first bytes.
    #[must_use]
    pub fn behind(&self, n: usize) -> Self {
        let n = n.min(self.len);
        Self { first: self.first + n, len: self.len - n }
    }

    /// Its first bytes.
    #[must_use]
    pub fn up_to(&self, n: usize) -> Self {
        Self { first: self.first, len: self.len.min(n) }
    }

    /// Stores bytes at its beginning; as many as fit.
    pub fn store(&self, bytes: &[u8]) {
        // SAFETY: whoever made the span vouches for it; the bytes come from a buffer of ours.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.first as *mut u8, bytes.len().min(self.len)) };
    }

    /// CRC32C of what has sum `before` and of what it holds.
    #[must_use]
    pub fn sum(&self, before: u32) -> u32 {
        // SAFETY: whoever made the span vouches for it.
        crc32c_append(before, unsafe { std::slice::from_raw_parts(self.first as *const u8, self.len) })
    }

    /// Appends what it holds.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        // SAFETY: whoever made the span vouches for it.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(self.first as *const u8, self.len) });
    }

    fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.first as *mut libc::c_void, iov_len: self.len }
    }
}

/// How a call that does not wait went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// None at the moment.
    Later,
    /// The connection has ended.
    Ended,
}

fn moved(n: isize) -> Moved {
    match usize::try_from(n) {
        Ok(0) => Moved::Ended,
        Ok(n) => Moved::Bytes(n),
        Err(_) => match std::io::Error::last_os_error().kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Moved::Later,
            _ => Moved::Ended,
        },
    }
}

/// Receives into a buffer of ours, behind what it holds: so many bytes at most, and up to its capacity.
pub fn receive(from: BorrowedFd<'_>, to: &mut Vec<u8>, most: usize) -> Moved {
    let room = to.spare_capacity_mut();
    let most = room.len().min(most);
    // SAFETY: the room is there to be written.
    let n = moved(unsafe { libc::recv(from.as_raw_fd(), room.as_mut_ptr().cast(), most, libc::MSG_DONTWAIT) });
    if let Moved::Bytes(n) = n {
        // SAFETY: the kernel wrote so many bytes behind the former end.
        unsafe { to.set_len(to.len() + n) };
    }
    n
}

/// Receives into spans, in their order.
pub fn receive_into(from: BorrowedFd<'_>, to: &[Span]) -> Moved {
    let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_PIECES];
    let n = fill(&mut list, to.iter().copied());
    let mut message = empty(&mut list[..n]);
    // SAFETY: the pieces are vouched for by whoever made the spans; the list outlives the call.
    moved(unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Sends bytes of ours and then what the spans hold. An end is told as such, never by a signal.
pub fn send(to: BorrowedFd<'_>, spans: impl Iterator<Item = Span>) -> Moved {
    let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_PIECES];
    let n = fill(&mut list, spans);
    let message = empty(&mut list[..n]);
    // SAFETY: as above; nothing is written through the pieces.
    moved(unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// A span of bytes that are read only and outlive the call for which it is made.
#[must_use]
pub(super) fn reading(bytes: &[u8]) -> Span {
    Span { first: bytes.as_ptr() as usize, len: bytes.len() }
}

/// Looks at what the first of these hold, as many as one call moves.
pub fn read_all<T>(spans: impl Iterator<Item = Span>, look: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    let mut list = [IoSlice::new(&[]); MOST_PIECES];
    let mut n = 0;
    for (place, span) in list.iter_mut().zip(spans.filter(|span| !span.is_empty())) {
        // SAFETY: whoever made the span vouches for it.
        *place = IoSlice::new(unsafe { std::slice::from_raw_parts(span.first as *const u8, span.len) });
        n += 1;
    }
    look(&list[..n])
}

/// A span of bytes that are written and outlive the call for which it is made.
#[must_use]
pub(super) fn writing(bytes: &mut [u8]) -> Span {
    Span { first: bytes.as_mut_ptr() as usize, len: bytes.len() }
}

fn fill(list: &mut [libc::iovec; MOST_PIECES], spans: impl Iterator<Item = Span>) -> usize {
    let mut n = 0;
    for (place, span) in list.iter_mut().zip(spans.filter(|span| !span.is_empty())) {
        *place = span.iovec();
        n += 1;
    }
    n
}

fn empty(list: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: zero is a message without address, pieces and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len();
    message
}

/// A socket that begins to connect and does not wait for it.
pub fn connect_tcp(to: &SocketAddr) -> Result<OwnedFd> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain system call.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    let socket = owned(raw, "socket")?;
    tune(&socket);
    // SAFETY: zero is a valid address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = (&raw mut storage).cast::<libc::c_void>();
    let len = match to {
        SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: family_of(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough for any address, and aligned.
            unsafe { at.cast::<libc::sockaddr_in>().write(address) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: family_of(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<libc::sockaddr_in6>().write(address) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: the address is of this length.
    let done = unsafe { libc::connect(socket.as_raw_fd(), at.cast(), socket_len(len)) };
    if done < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINPROGRESS) {
        return Err(Error::last_os("connect").context(to));
    }
    Ok(socket)
}

/// The same, to a path. Where too many wait to be accepted it fails: whoever tries again later need not wait here.
pub fn connect_unix(to: &Path) -> std::io::Result<OwnedFd> {
    // SAFETY: plain system call.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: zero is a valid address of no family.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = family_of(libc::AF_UNIX);
    let path = to.as_os_str().as_bytes();
    // The last byte stays zero.
    if path.is_empty() || path.contains(&0) || path.len() >= address.sun_path.len() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = libc::c_char::from_ne_bytes([*byte]);
    }
    let at = (&raw const address).cast();
    // SAFETY: the address is of this length.
    if unsafe { libc::connect(socket.as_raw_fd(), at, socket_len(size_of::<libc::sockaddr_un>())) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(socket)
}

fn family_of(code: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(code).unwrap_or(0)
}

fn socket_len(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).unwrap_or(0)
}

fn set(socket: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let (at, len) = ((&raw const value).cast(), socket_len(size_of::<libc::c_int>()));
    // SAFETY: the value is an int, as the options that are set here want. If it fails the connection is slower, or ends later.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, len) };
}

/// What an option of a socket is.
#[cfg(test)]
pub fn get(socket: &impl AsRawFd, level: libc::c_int, option: libc::c_int) -> libc::c_int {
    let (mut value, mut len) = (0, socket_len(size_of::<libc::c_int>()));
    // SAFETY: an int and its length, which the kernel fills in.
    unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    value
}

/// Lets more connections wait to be taken than the 128 of the standard library: when all come again at once, after a restart, those who
/// find no room try a second later.
pub fn let_many_wait(listener: &impl AsRawFd) {
    let_wait(listener, MOST_WAITING);
}

/// Lets so many wait.
pub fn let_wait(listener: &impl AsRawFd, most: libc::c_int) {
    // SAFETY: a descriptor that the caller has open and that listens already; if it fails there is as much room as before.
    unsafe { libc::listen(listener.as_raw_fd(), most) };
}

/// The next who has connected, as a socket that does not block.
pub fn accept(listener: &impl AsRawFd) -> std::io::Result<OwnedFd> {
    let (nobody, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: nothing is written; who it is nobody asks.
    let raw = unsafe { libc::accept4(listener.as_raw_fd(), nobody, std::ptr::null_mut(), flags) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Whether something has come that was not received yet.
pub fn has_bytes(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: one writable byte.
    unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) > 0 }
}

/// Bytes that have come and were not received yet.
pub fn unread(socket: BorrowedFd<'_>) -> u64 {
    count(socket, libc::FIONREAD)
}

/// Bytes that were sent and that the machine at the other end has not taken; on a socket of this machine, that the other process has not.
pub fn untaken(socket: BorrowedFd<'_>) -> u64 {
    count(socket, libc::TIOCOUTQ)
}

fn count(socket: BorrowedFd<'_>, what: libc::Ioctl) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both of what is asked for write one int.
    let known = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut bytes) } == 0;
    u64::try_from(bytes).ok().filter(|_| known).unwrap_or(0)
}

/// The kernel keeps little of what is under way there, or comes to who connects there.
#[cfg(test)]
pub fn keep_little(socket: &impl AsRawFd) {
    for what in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let bytes: libc::c_int = 8 << 10;
        // SAFETY: both are one int.
        let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, what, (&raw const bytes).cast(), 4) };
        assert_eq!(set, 0);
    }
}

/// Descriptors that this process may have.
#[must_use]
pub fn most_files() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct that the kernel fills in.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    usize::try_from(limit.rlim_cur).ok().filter(|_| known).unwrap_or(1024)
}

/// Small messages leave at once, and a machine that is gone is noticed: after 10 s if something was sent to it, else after 20. A socket of this
/// machine stays as it is.
pub fn tune(socket: &impl AsRawFd) {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 10_000);
    set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10);
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 3);
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
}

/// The socket counts as readable when it has so many bytes, or is at its end.
pub fn wake_for(socket: &impl AsRawFd, bytes: usize) {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, libc::c_int::try_from(bytes).unwrap_or(1));
}

/// Ends a connection, whoever else has the descriptor.
pub fn shut(socket: &impl AsRawFd) {
    // SAFETY: a socket of ours.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Nothing more is sent on a connection: the other end reads what was, and ends it.
pub fn shut_sending(socket: &impl AsRawFd) {
    // SAFETY: a socket of ours.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// ms of a clock that goes on while the machine sleeps.
#[must_use]
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// ns of the same.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writable; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// What a descriptor is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The number under which it was added.
    pub number: u64,
    /// It can be written to.
    pub writable: bool,
    /// It can be read, or is at its end.
    pub readable: bool,
}

fn events(writable: bool) -> libc::c_int {
    if writable { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN }
}

/// A descriptor that becomes readable again and again.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that does not yet.
    pub fn new() -> Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: plain system call.
        Ok(Self(owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }, "timerfd_create")?))
    }

    /// After each so many ms from now on; 0 for never.
    pub fn every(&self, ms: u32) {
        let time = libc::timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the times are live for the call, and can be ones.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const times, std::ptr::null_mut()) };
    }

    /// It is not readable until the next time.
    pub fn drain(&self) {
        drain(&self.0);
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits for many descriptors.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Poller {
    /// One that waits for nothing.
    pub fn new() -> Result<Self> {
        // SAFETY: plain system call.
        Ok(Self(owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1")?))
    }

    fn control(&self, what: libc::c_int, fd: &impl AsRawFd, number: u64, events: libc::c_int) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: number };
        // SAFETY: the event is live for the call.
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd.as_raw_fd(), &raw mut event) } < 0 {
            return Err(Error::last_os("epoll_ctl"));
        }
        Ok(())
    }

    /// Waits for it from now on; also until it can be written to, if that is wanted. It ends when the descriptor is closed.
    pub fn add(&self, fd: &impl AsRawFd, number: u64, writable: bool) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, number, events(writable))
    }

    /// Changes whether it is waited until it can be written to.
    pub fn change(&self, fd: &impl AsRawFd, number: u64, writable: bool) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, number, events(writable))
    }

    /// Does not wait for it until that is changed.
    pub fn mute(&self, fd: &impl AsRawFd, number: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, number, 0)
    }

    /// Does not wait for it any more.
    pub fn remove(&self, fd: &impl AsRawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits, and looks for a moment without sleeping first: for whoever waits for an answer that takes no longer than a thread needs to
    /// wake up. Gives whether something came in that moment.
    pub fn wait_awake(&self, moment: Duration, limit: Duration, ready: &mut Vec<Ready>) -> bool {
        let since = Instant::now();
        while since.elapsed() < moment {
            self.wait(Duration::ZERO, ready);
            if !ready.is_empty() {
                return true;
            }
        }
        self.wait(limit, ready);
        false
    }

    /// Waits this long at most; adds what is ready.
    pub fn wait(&self, limit: Duration, ready: &mut Vec<Ready>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST_READY];
        let ms = i32::try_from(limit.as_millis().min(60_000)).unwrap_or(60_000);
        let (at, most) = (events.as_mut_ptr(), i32::try_from(MOST_READY).unwrap_or(1));
        // SAFETY: the array is live and its length is right.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), at, most, ms) };
        let n = usize::try_from(n).unwrap_or(0);
        if memory::reserve(ready, n).is_err() {
            // They are still ready the next time.
            return;
        }
        for event in events.iter().take(n) {
            let bits = event.events;
            let writable = bits & libc::EPOLLOUT as u32 != 0;
            ready.push(Ready { number: event.u64, writable, readable: bits & !(libc::EPOLLOUT as u32) != 0 });
        }
    }
}

/// A forked child of this process that does nothing, and lives until it is dropped.
#[cfg(test)]
pub struct Child(libc::pid_t);

#[cfg(test)]
impl Child {
    /// One that has come so far that what is done in a child first is done.
    pub fn fork() -> Self {
        Self::doing(|| ())
    }

    /// One that has done this: system calls, and nothing for which it needs what another thread may have had when it was made.
    pub fn doing(first: impl FnOnce()) -> Self {
        let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child makes system calls, for which it takes memory at most, and ends by itself if nobody ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system call.
            unsafe { libc::alarm(60) };
            first();
            // SAFETY: as above; the byte and the descriptor are the child's own.
            unsafe {
                libc::write(there.as_raw_fd(), [1u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(child > 0);
        std::io::Read::read_exact(&mut here, &mut [0]).unwrap();
        Self(child)
    }
}

#[cfg(test)]
impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
