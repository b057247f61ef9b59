//! Peers that lie, stammer, stay silent or are somebody else: none of them stops ranks from joining.
#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test reports by failing"
)]
#![allow(unsafe_code, reason = "speaks to the socket below the library")]

mod common;
#[path = "../src/base/random.rs"]
mod random;

use common::{PATIENCE, config, eventually};
use nanomc::base::Deadline;
use nanomc::base::status::*;
use nanomc::world::wire::{Message, Refusal};
use nanomc::world::{Hosting, Master, World};
use random::Random;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn socket(dir: &Path) -> PathBuf {
    dir.join("t/sock")
}

fn raw_address(path: &Path) -> libc::sockaddr_un {
    // SAFETY: all zeroes is a valid address.
    let mut a: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    a.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in a.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = from.cast_signed();
    }
    a
}

fn raw_socket() -> OwnedFd {
    // SAFETY: a fresh descriptor of our own.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)) }
}

fn raw_connect(path: &Path) -> OwnedFd {
    let fd = raw_socket();
    let a = raw_address(path);
    let len = size_of_val(&a) as libc::socklen_t;
    // SAFETY: a filled address of that length.
    assert_eq!(unsafe { libc::connect(fd.as_raw_fd(), (&raw const a).cast(), len) }, 0, "connect");
    fd
}

fn raw_send(fd: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes are readable. A peer that closed already is fine here.
    unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
}

/// The next packet, empty at the end. Gives up after [`PATIENCE`].
fn raw_receive(fd: &OwnedFd) -> Vec<u8> {
    let time = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
    let mut buffer = vec![0u8; 65536];
    // SAFETY: option and buffer are as long as stated.
    let got = unsafe {
        let len = size_of_val(&time) as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), len);
        libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
    };
    assert!(got >= 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ECONNRESET), "no answer in time");
    buffer.truncate(usize::try_from(got).unwrap_or(0));
    buffer
}

fn reject_of(packet: &[u8]) -> Refusal {
    match Message::decode(packet) {
        Ok(Message::Refusal(reject)) => reject,
        other => panic!("expected a rejection, got {other:?}"),
    }
}

fn serve(dir: &Path, n: u32) -> Master {
    Master::open(&config(dir, None, n)).expect("master")
}

fn external(dir: &Path, rank: u32, n: u32) -> nanomc::world::Config {
    nanomc::world::Config { hosting: Hosting::Elsewhere, ..config(dir, Some(rank), n) }
}

fn all_join(dir: &Path, n: u32) {
    let worlds = World::join_many((0..n).map(|r| external(dir, r, n)).collect()).expect("ranks still join");
    assert_eq!(worlds.len(), n as usize);
}

#[test]
fn garbage_gets_an_answer_and_hurts_nobody() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    let mut random = Random(1);
    for length in [1usize, 3, 4, 8, 9, 100, 4096, 60_000] {
        let peer = raw_connect(&socket(dir.path()));
        let bytes = random.bytes(length);
        raw_send(&peer, &bytes);
        assert_eq!(reject_of(&raw_receive(&peer)).status, NMC_ERR_PROTOCOL, "{length} bytes");
        assert!(raw_receive(&peer).is_empty(), "then it is closed");
    }
    all_join(dir.path(), 2);
}

#[test]
fn truncated_and_premature_messages_are_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    let reject =
        Message::Refusal(Refusal { status: -1, message: "I am not a master".into() }).encode().expect("memory");
    for packet in [&reject[..], &reject[..reject.len() / 2], &reject[..8]] {
        let peer = raw_connect(&socket(dir.path()));
        raw_send(&peer, packet);
        assert_eq!(reject_of(&raw_receive(&peer)).status, NMC_ERR_PROTOCOL);
    }
    all_join(dir.path(), 2);
}

#[test]
fn a_silent_peer_is_put_out_and_a_crowd_of_them_keeps_nobody_out() {
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 2);
    let crowd: Vec<OwnedFd> = (0..300).map(|_| raw_connect(&socket(dir.path()))).collect();
    all_join(dir.path(), 2);
    assert!(raw_receive(crowd.last().expect("last")).is_empty(), "silence is answered by closing");
}

#[test]
fn a_peer_of_another_user_is_refused() {
    if nobody_cannot_be_played() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let _master = serve(dir.path(), 1);
    for open in [dir.path().to_path_buf(), dir.path().join("t")] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o711)).expect("chmod");
    }
    std::fs::set_permissions(socket(dir.path()), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let packet = as_nobody(|| {
        let peer = raw_connect(&socket(dir.path()));
        raw_receive(&peer)
    });
    let reject = reject_of(&packet);
    assert_eq!(reject.status, NMC_ERR_PERMISSION);
    assert!(reject.message.contains("user 65534"), "{}", reject.message);
    std::fs::set_permissions(dir.path().join("t"), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    all_join(dir.path(), 1);
}

#[test]
fn a_directory_that_others_own_or_can_write_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let world = dir.path().join("t");
    let refused = |why: &str| {
        let error = World::join(config(dir.path(), Some(0), 1)).err().expect(why);
        assert_eq!(error.status, NMC_ERR_PERMISSION, "{why}: {error}");
    };
    std::fs::create_dir(&world).expect("mkdir");
    std::fs::set_permissions(&world, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    refused("world-writable");
    std::fs::remove_dir(&world).expect("rmdir");
    std::os::unix::fs::symlink("/tmp", &world).expect("symlink");
    refused("a symlink");
    std::fs::remove_file(&world).expect("rm");
    std::fs::write(&world, "").expect("a file");
    refused("a file");
    std::fs::remove_file(&world).expect("rm");
    World::join(config(dir.path(), Some(0), 1)).expect("a clean directory works");
}

#[test]
fn what_a_dead_master_left_is_replaced() {
    let dir = tempfile::tempdir().expect("dir");
    std::fs::create_dir(dir.path().join("t")).expect("mkdir");
    let stale = raw_socket();
    let a = raw_address(&socket(dir.path()));
    // SAFETY: a filled address; bound and never served, as after a crash.
    assert_eq!(unsafe { libc::bind(stale.as_raw_fd(), (&raw const a).cast(), size_of_val(&a) as u32) }, 0);
    drop(stale);
    assert!(socket(dir.path()).exists());
    World::join(config(dir.path(), Some(0), 1)).expect("join over a stale socket");
}

/// Plays a master that does `answer` with each connection.
fn fake_master(dir: &Path, answer: impl Fn(OwnedFd) + Send + 'static) {
    std::fs::create_dir(dir.join("t")).expect("mkdir");
    let listener = raw_socket();
    let a = raw_address(&socket(dir));
    // SAFETY: a filled address; our own socket.
    unsafe {
        assert_eq!(libc::bind(listener.as_raw_fd(), (&raw const a).cast(), size_of_val(&a) as u32), 0);
        assert_eq!(libc::listen(listener.as_raw_fd(), 16), 0);
    }
    std::thread::spawn(move || {
        loop {
            // SAFETY: our own socket; the thread ends with the test process.
            let fd = unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
            if fd < 0 {
                return;
            }
            // SAFETY: freshly accepted.
            answer(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    });
}

fn join_shortly(dir: &Path) -> nanomc::base::Error {
    let mut c = external(dir, 1, 2);
    c.deadline = Deadline::after(Duration::from_millis(500));
    World::join(c).err().expect("nobody can join a fake")
}

#[test]
fn a_fake_master_cannot_hang_or_fool_a_rank() {
    let dir = tempfile::tempdir().expect("dir");
    fake_master(dir.path(), |fd| raw_send(&fd, b"surprise"));
    assert_eq!(join_shortly(dir.path()).status, NMC_ERR_PROTOCOL, "garbage");
    let dir = tempfile::tempdir().expect("dir");
    fake_master(dir.path(), drop);
    assert_eq!(join_shortly(dir.path()).status, NMC_ERR_TIMEOUT, "one that closes at once");
    let dir = tempfile::tempdir().expect("dir");
    fake_master(dir.path(), std::mem::forget);
    assert_eq!(join_shortly(dir.path()).status, NMC_ERR_TIMEOUT, "one that says nothing");
    let dir = tempfile::tempdir().expect("dir");
    let ok = Message::Refusal(Refusal { status: 0, message: "all is well".into() }).encode().expect("memory");
    fake_master(dir.path(), move |fd| raw_send(&fd, &ok));
    assert_eq!(join_shortly(dir.path()).status, NMC_ERR_PROTOCOL, "a refusal that claims success");
}

#[test]
fn a_second_master_of_the_same_name_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let master = serve(dir.path(), 1);
    assert_eq!(Master::open(&config(dir.path(), None, 1)).err().expect("taken").status, NMC_ERR_EXISTS);
    drop(master);
    assert!(eventually(|| std::fs::read_dir(dir.path()).is_ok_and(|d| d.count() == 0)), "it cleans up");
    drop(serve(dir.path(), 1));
}

#[test]
fn paths_and_names_that_cannot_work_are_named() {
    let dir = tempfile::tempdir().expect("dir");
    let deep = dir.path().join("d".repeat(100));
    std::fs::create_dir(&deep).expect("mkdir");
    let error = World::join(config(&deep, Some(0), 1)).err().expect("too long");
    assert!(error.status == NMC_ERR_INVALID_ARG && error.message.contains("107"), "{error}");
    let error = World::join(config(Path::new("/proc/no/such"), Some(0), 1)).err().expect("no directory");
    assert!(error.message.contains("/proc/no/such"), "{error}");
    for name in ["", ".hidden", "a/b", "ä", &"x".repeat(49)] {
        let c = nanomc::world::Config { name: name.into(), ..config(dir.path(), Some(0), 1) };
        assert_eq!(World::join(c).err().expect(name).status, NMC_ERR_INVALID_ARG, "{name:?}");
    }
}

fn nobody_cannot_be_played() -> bool {
    // SAFETY: always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: only root can play another user");
    }
    !root
}

/// Runs `f` in a forked process as user 65534 and returns its bytes.
fn as_nobody(f: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let mut ends = [0; 2];
    // SAFETY: plain system calls; the child only uses raw system calls through `f` and leaves with _exit.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::setgid(65534);
            libc::setuid(65534);
            let bytes = f();
            libc::write(ends[1], bytes.as_ptr().cast(), bytes.len());
            libc::_exit(0);
        }
        libc::close(ends[1]);
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from_raw_fd(ends[0]), &mut bytes).expect("pipe");
        libc::waitpid(pid, std::ptr::null_mut(), 0);
        bytes
    }
}
