//! The operating system as the CLI needs it: trials of kernel features, limits, signals, and a packet socket. Together
//! with the files `*library.rs`, `ssd_raw.rs` and `copy.rs` of `bench` the only unsafe code of the CLI.
#![allow(unsafe_code, reason = "system calls")]

use std::ffi::CStr;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Bytes that are read of a file that says who has locked it.
const MOST_SAID: u64 = 256;

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i64) -> io::Result<OwnedFd> {
    let raw = RawFd::try_from(checked(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Size of a page.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf with a constant name.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// Who holds the lock on a file, as the file says itself; `None` if nobody does, or there is no such file that this user may read.
/// Fails if it is no file but something else, which is neither followed nor waited for.
pub fn locked_by(path: &Path) -> io::Result<Option<String>> {
    let mut options = std::fs::File::options();
    let file = match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(cause) if cause.raw_os_error() == Some(libc::ELOOP) => return Err(not_regular()),
        Err(_) => return Ok(None),
    };
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    // SAFETY: a system call on a descriptor that is open. A shared lock, which ends with the file a moment later.
    let free = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0;
    let says = io::read_to_string(file.take(MOST_SAID)).unwrap_or_default();
    let says = says.lines().next().filter(|line| !line.is_empty()).unwrap_or("another process").to_owned();
    Ok((!free).then_some(says))
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

/// Limits that matter to the library.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// Open descriptors.
    Files,
    /// Locked memory.
    Locked,
    /// Size of a file, a memfd among them.
    FileBytes,
    /// Address space.
    AddressSpace,
}

/// The soft limit; `None` for unlimited.
pub fn soft_limit(limit: Limit) -> io::Result<Option<u64>> {
    let mut values = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let which = match limit {
        Limit::Files => libc::RLIMIT_NOFILE,
        Limit::Locked => libc::RLIMIT_MEMLOCK,
        Limit::FileBytes => libc::RLIMIT_FSIZE,
        Limit::AddressSpace => libc::RLIMIT_AS,
    };
    // SAFETY: getrlimit fills the struct it is given.
    checked(i64::from(unsafe { libc::getrlimit(which, &raw mut values) }))?;
    Ok((values.rlim_cur != libc::RLIM_INFINITY).then_some(values.rlim_cur))
}

/// Whether processes can be observed through descriptors (Linux 5.3).
pub fn try_pidfd() -> io::Result<()> {
    // SAFETY: a system call on integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) }).map(drop)
}

/// Whether one thread can put a fence into all others of its process (Linux 4.14).
pub fn try_membarrier() -> io::Result<()> {
    const QUERY: i32 = 0;
    const PRIVATE_EXPEDITED: i64 = 1 << 3;
    // SAFETY: a system call on integers.
    let known = checked(unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) })?;
    if known & PRIVATE_EXPEDITED == 0 { Err(io::Error::from_raw_os_error(libc::EINVAL)) } else { Ok(()) }
}

/// Whether a page can be wiped in forked children (Linux 4.14).
pub fn try_wipe_on_fork() -> io::Result<()> {
    let page = Mapping::private(4096)?;
    // SAFETY: advice on our own mapping.
    checked(i64::from(unsafe { libc::madvise(page.base.cast(), page.bytes, libc::MADV_WIPEONFORK) })).map(drop)
}

/// Whether an io_uring can be made.
pub fn try_io_uring() -> io::Result<()> {
    // struct io_uring_params is 120 bytes that the kernel fills in.
    let mut params = [0u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes of `params`, which lives until the call returns.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) }).map(drop)
}

/// A mapping that belongs to this value: what the baselines of the benchmarks use.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
    _fd: Option<OwnedFd>,
}

impl Mapping {
    fn map(bytes: usize, flags: libc::c_int, fd: Option<OwnedFd>) -> io::Result<Self> {
        let raw = fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, raw, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), bytes, _fd: fd })
    }

    /// Memory of this process alone.
    pub fn private(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)
    }

    /// A memfd, reserved whole and mapped: the least that shared memory which cannot fault costs.
    pub fn shared(bytes: usize) -> io::Result<Self> {
        let length = i64::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a NUL-terminated name.
        let fd = owned(i64::from(unsafe { libc::memfd_create(c"nmc bench".as_ptr(), libc::MFD_CLOEXEC) }))?;
        // SAFETY: a system call on our own descriptor.
        checked(i64::from(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, length) }))?;
        Self::map(bytes, libc::MAP_SHARED, Some(fd))
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing with this length; whoever has an address of it has borrowed this value.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and not unmapped since.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Waits until `fd` is readable; false when the time is over.
pub fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one pollfd that lives during the call.
    Ok(checked(i64::from(unsafe { libc::poll(&raw mut entry, 1, ms) }))? > 0)
}

/// Another descriptor for a world's eventfd, which belongs to the world.
pub fn duplicate(raw: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for the duration of the duplication only; a number that is not open gives EBADF.
    unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned()
}

/// CPUs on which a thread may run.
#[derive(Clone, Copy)]
pub struct Cpus(libc::cpu_set_t);

impl Cpus {
    /// Those of the calling thread.
    pub fn current() -> io::Result<Self> {
        // SAFETY: all-zero bytes are an empty set, which the kernel fills in.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            checked(i64::from(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set)))?;
            Ok(Self(set))
        }
    }

    /// One CPU alone.
    pub fn one(cpu: u32) -> Self {
        // SAFETY: all-zero bytes are an empty set; a number that does not fit panics in the libc crate, so it is cut.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET((cpu % 1024) as usize, &mut set);
            Self(set)
        }
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<u32> {
        // SAFETY: the set holds 1024 bits.
        (0..1024).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu as usize, &self.0) }).collect()
    }

    /// Keeps the calling thread, and threads and processes that it starts from now on, on them.
    pub fn bind(&self) -> io::Result<()> {
        // SAFETY: the kernel reads the set.
        let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
        checked(i64::from(rc)).map(drop)
    }
}

/// Makes the kernel kill this process when its parent dies; false if it is already gone.
pub fn die_with_parent(parent: u32) -> bool {
    // SAFETY: prctl and getppid on integers.
    let now = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid()
    };
    u32::try_from(now) == Ok(parent)
}

/// The same for another program; only the main thread may start it, since it dies with the thread that did.
pub fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let first = move || if die_with_parent(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) };
    // SAFETY: between fork and exec only system calls on integers are made.
    unsafe { command.pre_exec(first) };
}

/// The signals by which a user or a supervisor ends a command. While the value lives they wait for [`Interrupts::wait`].
#[derive(Clone, Copy)]
pub struct Interrupts {
    set: libc::sigset_t,
}

impl Interrupts {
    fn new(more: &[i32]) -> Self {
        // SAFETY: sigemptyset initialises the set, which all-zero bytes are a valid value for; a number that is no signal is refused.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].iter().chain(more) {
                libc::sigaddset(&raw mut set, *signal);
            }
            set
        };
        Self { set }
    }

    /// Holds the signals back, for this thread and those that it starts.
    pub fn hold() -> Self {
        Self::hold_with(&[])
    }

    /// The same, and some others.
    pub fn hold_with(more: &[i32]) -> Self {
        let held = Self::new(more);
        // SAFETY: changes the mask of the calling thread.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held.set, std::ptr::null_mut()) };
        held
    }

    /// Lets them act as usual again; a child inherits what its parent holds.
    pub fn release() {
        let held = Self::new(&[]);
        // SAFETY: changes the mask of the calling thread.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const held.set, std::ptr::null_mut()) };
    }

    /// The same for a while at most.
    pub fn wait_for(&self, time: Duration) -> Option<i32> {
        let limit = libc::timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // SAFETY: the set and the limit are locals; nothing is asked for about the signal.
        let signal = unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const limit) };
        (signal > 0).then_some(signal)
    }

    /// Sleeps until one of them comes and returns its number.
    pub fn wait(self) -> i32 {
        let mut signal = 0;
        // SAFETY: the set is initialised and the out-pointer is a local.
        while unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } != 0 {}
        signal
    }
}

/// Stops this process, as Ctrl-Z would have; returns when it goes on.
pub fn stop_this_process() {
    // SAFETY: a signal for this process, which nobody can hold back.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Columns and rows of the terminal that stdout is; `None` if it is none, or does not know.
pub fn window() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel fills in `size`, which lives until the call returns.
    let rc = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (rc == 0 && size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Who listens on a socket.
#[derive(Debug, Clone, Copy)]
pub struct Listener {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

/// Connects to the packet socket at `path`, asks the kernel who listens there, and hangs up.
pub fn who_listens(path: &Path) -> io::Result<Listener> {
    // SAFETY: a system call on integers.
    let raw =
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    let fd = owned(i64::from(raw))?;
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = u16::try_from(libc::AF_UNIX).map_err(io::Error::other)?;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other("the path is longer than a socket's may be"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: a filled, NUL-terminated address of `length` bytes.
    checked(i64::from(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) }))?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of_val(&peer)).map_err(io::Error::other)?;
    let at = (&raw mut peer).cast();
    // SAFETY: the kernel writes at most `length` bytes, the size of `peer`.
    let rc =
        unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut length) };
    checked(i64::from(rc))?;
    Ok(Listener { pid: peer.pid, uid: peer.uid })
}

/// Whether the dynamic linker finds and loads a library. It stays loaded: libraries with threads of their own do not
/// survive being unloaded.
pub fn can_load(name: &CStr) -> bool {
    // SAFETY: loading runs the library's constructors, which is what using it would do, too.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }.is_null()
}
