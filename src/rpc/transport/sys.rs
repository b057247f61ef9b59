//! Packets with descriptors over a Unix socket, as the kernel has them.
#![allow(unsafe_code, reason = "system calls")]
#![allow(clippy::cast_possible_truncation, reason = "constants and struct sizes of the kernel's interface fit")]

use super::super::sys::{ParentOnly, owned};
use super::{Answer, MAX_FDS, Packet, Sent};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_PROTOCOL};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// A bound, listening packet socket at `path`.
pub fn listen(path: &Path) -> Result<ParentOnly> {
    let fd = ParentOnly::new(packet_socket()?);
    let (address, len) = address(path)?;
    // SAFETY: `address` is a filled sockaddr_un of `len` bytes.
    if unsafe { libc::bind(fd.as_fd().as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(Error::last_os("bind").context(path.display()));
    }
    // SAFETY: listen on our own socket.
    if unsafe { libc::listen(fd.as_fd().as_raw_fd(), BACKLOG) } != 0 {
        return Err(Error::last_os("listen"));
    }
    Ok(fd)
}

/// Connects to the socket at `path`; `None` when nobody is there (yet).
pub fn connect(path: &Path) -> Result<Option<OwnedFd>> {
    let fd = packet_socket()?;
    let (address, len) = address(path)?;
    // SAFETY: `address` is a filled sockaddr_un of `len` bytes.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
        return Ok(Some(fd));
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
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let raw = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    if raw >= 0 {
        return owned(raw, "accept").map(Some);
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

/// Ends a connection for both sides.
pub fn shut_down(socket: BorrowedFd<'_>) {
    // SAFETY: our own socket.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

const CONTROL_BYTES: usize = (MAX_FDS * size_of::<RawFd>() + 64).next_multiple_of(8);

#[repr(C, align(8))]
struct ControlBuffer(MaybeUninit<[u8; CONTROL_BYTES]>);

/// Sends with `call` until it was not interrupted.
fn sent(name: &str, call: impl Fn(libc::c_int) -> isize) -> Result<Sent> {
    loop {
        // MSG_NOSIGNAL keeps a closed peer from raising SIGPIPE.
        if call(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) >= 0 {
            return Ok(Sent::Yes);
        }
        let cause = io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS) => return Ok(Sent::Full),
            Some(libc::EPIPE | libc::ECONNRESET) => return Ok(Sent::Closed),
            _ => return Err(Error::os(name, &cause)),
        }
    }
}

/// Sends one packet without descriptors.
pub fn send_plain(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<Sent> {
    // SAFETY: `bytes` is readable.
    sent("send", |flags| unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Sends one packet with at most [`MAX_FDS`] descriptors.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent> {
    let fds = &fds[..fds.len().min(MAX_FDS)];
    let mut control = ControlBuffer(MaybeUninit::zeroed());
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let payload = (fds.len() * size_of::<RawFd>()) as u32;
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
    // SAFETY: the message refers to live buffers.
    sent("sendmsg", |flags| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Receives one packet into `buffer`. Descriptors that come with a bad packet are closed.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Packet> {
    let mut control = ControlBuffer(MaybeUninit::uninit());
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
    // SAFETY: the kernel filled msg_controllen bytes of the control buffer, and the CMSG macros stay inside them. Every
    // descriptor found is ours alone and is owned at once.
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
        // Who is told may be another process.
        let process = std::process::id();
        return Err(Error::new(
            NMC_ERR_LIMIT,
            format!(
                "process {process} was sent more descriptors than it may have open; raise its limit of open files (ulimit -n)"
            ),
        ));
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Error::new(NMC_ERR_PROTOCOL, format!("a packet is longer than {} bytes", buffer.len())));
    }
    let got = usize::try_from(got).unwrap_or(0);
    if got == 0 && fds.is_empty() {
        return Ok(Packet::End);
    }
    Ok(Packet::Data(got, fds))
}

/// Receives one packet into `buffer`; descriptors that come with it are closed by the kernel.
pub fn receive_plain(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Answer> {
    // MSG_TRUNC makes the call tell the true length.
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    loop {
        // SAFETY: `buffer` is writable.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        if let Ok(len) = usize::try_from(got) {
            if len > buffer.len() {
                crate::bail!(NMC_ERR_PROTOCOL, "a packet has {len} bytes; {} are possible", buffer.len());
            }
            return Ok(if len == 0 { Answer::End } else { Answer::Packet(len) });
        }
        let cause = io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECONNRESET) => return Ok(Answer::End),
            Some(libc::EAGAIN) => return Ok(Answer::Late),
            _ => return Err(Error::os("recv", &cause)),
        }
    }
}

/// Waits until something can be received, at most `limit`.
pub fn wait(socket: BorrowedFd<'_>, limit: Duration) {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(limit.as_millis().min(60_000)).unwrap_or(60_000) + 1;
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut one, 1, ms) };
}

fn ended(set: &libc::pollfd) -> bool {
    set.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL) != 0
}

/// Waits until the connection has ended; false if `nudge` became readable or `limit` passed first.
pub fn wait_for_end(link: BorrowedFd<'_>, nudge: BorrowedFd<'_>, limit: Duration) -> bool {
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
pub fn has_ended(link: BorrowedFd<'_>) -> bool {
    let mut one = libc::pollfd { fd: link.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut one, 1, 0) };
    ended(&one)
}
