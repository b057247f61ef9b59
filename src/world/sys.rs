//! The operating system as the world needs it: packets with descriptors over a Unix socket, pidfds, pipes,
//! eventfds and `poll`. Every other file of the layer is safe code.
#![allow(unsafe_code, reason = "system calls")]
#![allow(clippy::cast_possible_truncation, reason = "constants and struct sizes of the kernel's interface fit")]

use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_PROTOCOL};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Largest packet that is sent or accepted.
pub const MAX_PACKET: usize = 64 << 10;
/// Most descriptors in one packet (the kernel's own limit is 253).
pub const MAX_FDS: usize = 3 * crate::layout::MAX_RANKS + 4;

fn owned(raw: RawFd, call: &str) -> Result<OwnedFd> {
    if raw < 0 {
        return Err(Error::last_os(call));
    }
    // SAFETY: the kernel just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
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

/// A connection. Dropping it ends it for the other side too, whoever else has a copy of the descriptor.
#[derive(Debug)]
pub struct Link(ParentOnly);

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: our own socket.
        unsafe { libc::shutdown(self.0.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// A bound, listening packet socket at `path`.
pub fn listen(path: &Path) -> Result<ParentOnly> {
    let fd = ParentOnly::new(packet_socket()?);
    let (address, len) = address(path)?;
    // SAFETY: `address` is a filled sockaddr_un of `len` bytes.
    if unsafe { libc::bind(fd.as_fd().as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(Error::last_os("bind").context(path.display()));
    }
    // SAFETY: listen on our own socket.
    if unsafe { libc::listen(fd.as_fd().as_raw_fd(), 128) } != 0 {
        return Err(Error::last_os("listen"));
    }
    Ok(fd)
}

/// Connects to the socket at `path`; `None` when nobody is there (yet).
pub fn connect(path: &Path) -> Result<Option<Link>> {
    let fd = packet_socket()?;
    let (address, len) = address(path)?;
    // SAFETY: `address` is a filled sockaddr_un of `len` bytes.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
        return Ok(Some(Link(ParentOnly::new(fd))));
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN | libc::EINTR) => Ok(None),
        Some(libc::EPROTOTYPE | libc::ENOTSOCK) => {
            crate::bail!(NMC_ERR_PROTOCOL, "{} is not a nanomc socket: {cause}", path.display())
        }
        _ => Err(Error::os("connect", &cause).context(path.display())),
    }
}

fn packet_socket() -> Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }, "socket")
}

fn address(path: &Path) -> Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "the socket path {} has {} bytes; the limit is {}: choose a shorter directory or name",
            path.display(),
            bytes.len(),
            address.sun_path.len() - 1
        );
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Takes a waiting connection; `None` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<Link>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let raw = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    if raw >= 0 {
        return owned(raw, "accept").map(|fd| Some(Link(ParentOnly::new(fd))));
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(None),
        _ => Err(Error::os("accept", &cause)),
    }
}

/// User id of the process at the other end, as the kernel recorded it.
pub fn peer_uid(socket: BorrowedFd<'_>) -> Result<u32> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` and `len` describe a writable ucred.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    if rc != 0 {
        return Err(Error::last_os("getsockopt(SO_PEERCRED)"));
    }
    Ok(cred.uid)
}

/// Effective user id of this process.
#[must_use]
pub fn own_uid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// What a try to send or receive gave.
pub enum Packet {
    /// The length of the packet in the buffer, and the descriptors that came with it.
    Data(usize, Vec<OwnedFd>),
    /// Nothing there yet.
    Empty,
    /// The other end is closed.
    End,
}

#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL_BYTES]);
const CONTROL_BYTES: usize = (MAX_FDS * size_of::<RawFd>() + 64).next_multiple_of(8);

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Yes,
    /// There is no room at the moment: the other end has not read, or too many descriptors are in flight.
    Full,
    /// The other end has closed.
    Closed,
}

/// Sends one packet with descriptors, without waiting.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent> {
    if bytes.len() > MAX_PACKET || fds.len() > MAX_FDS {
        crate::bail!(NMC_ERR_INTERNAL, "a packet of {} bytes and {} descriptors", bytes.len(), fds.len());
    }
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = u32::try_from(size_of_val(fds) / size_of::<BorrowedFd<'_>>() * size_of::<RawFd>()).unwrap_or(0);
        message.msg_control = (&raw mut control).cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN are arithmetic; the buffer holds MAX_FDS descriptors, so CMSG_FIRSTHDR
        // is inside it and CMSG_DATA has room for `fds`.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the message refers to live buffers; MSG_NOSIGNAL keeps a closed peer from raising SIGPIPE.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(Sent::Yes);
        }
        let cause = io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS) => return Ok(Sent::Full),
            Some(libc::EPIPE | libc::ECONNRESET) => return Ok(Sent::Closed),
            _ => return Err(Error::os("sendmsg", &cause)),
        }
    }
}

/// Receives one packet into `buffer`, without waiting. Descriptors that come with a bad packet are closed.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<Packet> {
    memory::resize(buffer, MAX_PACKET, 0)?;
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message refers to live, writable buffers of the stated sizes.
    let mut got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECONNRESET) {
        // The kernel reports once that the peer closed without reading everything; what it sent before comes after.
        // SAFETY: as above.
        got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    }
    if got < 0 {
        let cause = io::Error::last_os_error();
        return match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(Packet::Empty),
            Some(libc::ECONNRESET) => Ok(Packet::End),
            _ => Err(Error::os("recvmsg", &cause)),
        };
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer; the CMSG macros stay inside msg_controllen. Every descriptor
    // found is ours alone and is owned at once.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Error::new(
            NMC_ERR_LIMIT,
            "descriptors that a peer sent did not fit; raise the limit of open files (ulimit -n)",
        ));
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Error::new(NMC_ERR_PROTOCOL, format!("a packet is longer than {MAX_PACKET} bytes")));
    }
    let got = usize::try_from(got).unwrap_or(0);
    if got == 0 && fds.is_empty() {
        return Ok(Packet::End);
    }
    Ok(Packet::Data(got, fds))
}

/// A descriptor of this very process that becomes readable when it dies.
pub fn own_pidfd() -> Result<OwnedFd> {
    let pid = libc::pid_t::try_from(std::process::id()).unwrap_or(0);
    // SAFETY: plain system call; the descriptor is close-on-exec by definition.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if raw < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        crate::bail!(NMC_ERR_UNSUPPORTED, "joining needs pidfd_open, that is Linux 5.3 or later");
    }
    owned(RawFd::try_from(raw).unwrap_or(-1), "pidfd_open")
}

/// State and start time (in clock ticks since boot) of a process; with the pid the latter names it for good.
fn process(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may hold anything; count from the last parenthesis.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((state, rest.nth(18)?.parse().ok()?))
}

/// Start time of this process; 0 if /proc does not tell.
#[must_use]
pub fn own_start_time() -> u64 {
    process(std::process::id()).map_or(0, |(_, started)| started)
}

/// Whether the process that `pid` and its start time name is running. One that only waits to be reaped is not.
#[must_use]
pub fn is_running(pid: u32, started: u64) -> bool {
    let alive = |(state, start)| start == started && !matches!(state, 'Z' | 'X');
    pid != 0 && started != 0 && process(pid).is_some_and(alive)
}

/// A pipe: reading end, writing end. Nothing is ever written; its end of file is the message.
pub fn life_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(Error::last_os("pipe2"));
    }
    Ok((owned(ends[0], "pipe2")?, owned(ends[1], "pipe2")?))
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
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes. Without a signal there is nothing to read (EAGAIN).
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
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

/// Takes the exclusive lock on an open file; false if another open file of it has the lock.
pub fn try_lock(fd: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: plain system call.
    if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let cause = io::Error::last_os_error();
    if cause.raw_os_error() == Some(libc::EWOULDBLOCK) { Ok(false) } else { Err(Error::os("flock", &cause)) }
}

fn byte_lock(kind: libc::c_int, at: libc::off_t, bytes: libc::off_t) -> libc::flock {
    // SAFETY: all zeroes is a valid flock; the pid must be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (at, bytes);
    lock
}

/// Locks byte `at` of an open file for this open file alone; false if another one has it.
pub fn try_lock_byte(fd: BorrowedFd<'_>, at: libc::off_t) -> Result<bool> {
    let lock = byte_lock(libc::F_WRLCK, at, 1);
    // SAFETY: the struct is live for the call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(Error::os("fcntl(F_OFD_SETLK)", &cause)),
    }
}

/// Gives back all bytes that this open file has locked.
pub fn unlock_bytes(fd: BorrowedFd<'_>) {
    let lock = byte_lock(libc::F_UNLCK, 0, 0);
    // SAFETY: as above.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
}

/// Whether another open file has byte `at` locked.
#[must_use]
pub fn is_locked(fd: BorrowedFd<'_>, at: libc::off_t) -> bool {
    let mut lock = byte_lock(libc::F_WRLCK, at, 1);
    // SAFETY: as above; the kernel writes what is in the way into the struct.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    asked && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Runs the body of a thread that others depend on until it ends by itself. A bug in it is logged, and it begins again.
pub fn persist(what: &str, mut body: impl FnMut()) {
    while crate::sync::panics::catch(&mut body).is_err() {
        log::emit(log::ERROR, || format!("{what} met a bug in nanomc and goes on; please report it"));
        // Should it happen again and again, at least others can work.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Names the calling thread and binds it to a CPU if asked.
pub fn settle_thread(name: &std::ffi::CStr, cpu: Option<u32>) {
    // SAFETY: a NUL-terminated name of at most 15 characters for the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    if let Some(cpu) = cpu {
        // SAFETY: CPU_SET writes inside the set (the index is below its size), and the set outlives the call. A CPU
        // that does not exist leaves the affinity as it is.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if (cpu as usize) < libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu as usize, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        }
    }
}

/// Blocks all signals in threads started while the guard lives, so that the program's handlers run on its own
/// threads.
pub struct BlockSignals(libc::sigset_t);

impl BlockSignals {
    /// Blocks now, for the calling thread and the threads it starts.
    #[must_use]
    pub fn new() -> Self {
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

impl Default for BlockSignals {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BlockSignals {
    fn drop(&mut self) {
        // SAFETY: restores the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Fills `bytes` bytes of a mapped host heap with 64-bit words.
pub fn fill_words(address: u64, bytes: u64, word: impl Fn(u64) -> u64) {
    let at = address as *mut u64;
    for i in 0..bytes / 8 {
        // SAFETY: callers pass a range that `World::ptr` checked against the heap, and heaps are mapped and
        // page-aligned. Others may look at the bytes meanwhile, so the stores are volatile.
        unsafe { at.add(i as usize).write_volatile(word(i)) };
    }
}

/// Index of the first word in a mapped host heap that is not what it should be.
pub fn first_bad_word(address: u64, bytes: u64, word: impl Fn(u64) -> u64) -> Option<u64> {
    let at = address as *const u64;
    // SAFETY: as in `fill_words`.
    (0..bytes / 8).find(|i| unsafe { at.add(*i as usize).read_volatile() } != word(*i))
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
