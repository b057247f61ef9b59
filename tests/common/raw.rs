//! A client that speaks the protocol message by message, to stop a join where a crash or a slow machine would.
#![allow(unsafe_code, clippy::cast_possible_truncation, reason = "speaks to the socket below the library")]

use nanomc::mem::heap::{HeapDesc, Route};
use nanomc::world::Config;
use nanomc::world::wire::{Hello, Holder, Message, Offer, PeerList, Welcome};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A connection to the master of world "t".
pub struct Raw {
    socket: OwnedFd,
    /// Writing end of the life pipe that was announced.
    pub life: Option<OwnedFd>,
    /// Descriptors that came with the last message.
    pub fds: Vec<OwnedFd>,
}

impl Raw {
    pub fn connect(dir: &Path) -> Self {
        // SAFETY: plain system calls on a socket and structs of our own.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            let mut a: libc::sockaddr_un = std::mem::zeroed();
            a.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (to, from) in a.sun_path.iter_mut().zip(dir.join("t/sock").as_os_str().as_bytes()) {
                *to = from.cast_signed();
            }
            assert_eq!(libc::connect(socket, (&raw const a).cast(), size_of_val(&a) as u32), 0, "connect");
            let time = libc::timeval { tv_sec: crate::common::PATIENCE.as_secs().cast_signed(), tv_usec: 0 };
            let len = size_of_val(&time) as u32;
            libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), len);
            Self { socket: OwnedFd::from_raw_fd(socket), life: None, fds: vec![] }
        }
    }

    pub fn send(&self, message: &Message, fds: &[RawFd]) {
        let bytes = message.encode().expect("memory");
        let mut control = [0u64; 128];
        // SAFETY: the message refers to live buffers; the control buffer has room for the few descriptors.
        unsafe {
            let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            if !fds.is_empty() {
                let payload = size_of_val(fds) as u32;
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(payload) as usize;
                let c = libc::CMSG_FIRSTHDR(&raw const header);
                (*c).cmsg_level = libc::SOL_SOCKET;
                (*c).cmsg_type = libc::SCM_RIGHTS;
                (*c).cmsg_len = libc::CMSG_LEN(payload) as usize;
                for (i, fd) in fds.iter().enumerate() {
                    libc::CMSG_DATA(c).cast::<RawFd>().add(i).write_unaligned(*fd);
                }
            }
            assert!(libc::sendmsg(self.socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) > 0);
        }
    }

    /// The next message; its descriptors are in `fds`. `None` at the end.
    pub fn receive(&mut self) -> Option<Message> {
        let mut buffer = vec![0u8; 65536];
        let mut control = [0u64; 256];
        // SAFETY: as in `send`; every descriptor that arrives is owned at once.
        unsafe {
            let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control);
            let got = libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC);
            self.fds.clear();
            let c = libc::CMSG_FIRSTHDR(&raw const header);
            if got > 0 && !c.is_null() {
                for i in 0..((*c).cmsg_len - libc::CMSG_LEN(0) as usize) / 4 {
                    let fd = libc::CMSG_DATA(c).cast::<RawFd>().add(i).read_unaligned();
                    self.fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            buffer.truncate(usize::try_from(got).unwrap_or(0));
        }
        (!buffer.is_empty()).then(|| Message::decode(&buffer).expect("a message"))
    }

    /// Asks to join as `config` says, on behalf of the process behind `pidfd`.
    pub fn hello_for(&mut self, config: &Config, lent: bool, pid: u32, pidfd: &OwnedFd) {
        let (end, life) = pipe();
        let holder =
            Holder { pid, start_time: 1, device_rank: -1, device: -1, device_uuid: [0; 16], drain_ms: 0, lent };
        let rank = config.rank.map_or(-1, u32::cast_signed);
        let hello = Message::Hello(Hello { params: config.params(), rank, holder });
        self.send(&hello, &[pidfd.as_raw_fd(), end.as_raw_fd()]);
        self.life = Some(life);
    }

    /// Asks to join for this process.
    pub fn hello(&mut self, config: &Config, lent: bool) {
        let pid = std::process::id();
        self.hello_for(config, lent, pid, &pidfd(pid));
    }

    pub fn welcome(&mut self) -> Welcome {
        loop {
            match self.receive() {
                Some(Message::Waiting(_)) => {}
                Some(Message::Welcome(welcome)) => return welcome,
                other => panic!("expected a welcome, got {other:?}"),
            }
        }
    }

    pub fn offer(&self, heap: &OwnedFd) {
        self.send(&Message::Offer(Offer { heap: describe(1 << 20) }), &[heap.as_raw_fd()]);
    }

    pub fn roster(&mut self) -> PeerList {
        loop {
            match self.receive() {
                Some(Message::Waiting(_)) => {}
                Some(Message::PeerList(list)) => return list,
                other => panic!("expected a roster, got {other:?}"),
            }
        }
    }
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two fresh descriptors.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

pub fn pidfd(pid: u32) -> OwnedFd {
    // SAFETY: a fresh descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd) }
}

pub fn describe(bytes: u64) -> HeapDesc {
    HeapDesc {
        route: Route::HostFd,
        bytes,
        allocation_bytes: bytes,
        offset: 0,
        address: 0,
        device_address: 0,
        process: 1,
        id: 77,
        lent: false,
        ipc: [0; 64],
    }
}

pub fn memfd(bytes: i64, sealed: bool) -> OwnedFd {
    // SAFETY: a fresh descriptor of our own.
    unsafe {
        let fd = libc::memfd_create(c"raw".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        libc::ftruncate(fd, bytes);
        if sealed {
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        }
        OwnedFd::from_raw_fd(fd)
    }
}
