//! System calls on a directory and the files in it, by descriptor.
#![allow(unsafe_code, reason = "system calls")]

use super::hitch;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Keeps memory in pages of the usual size: a huge one would be locked whole for every part of it.
pub fn plain_pages(memory: &[u8]) {
    keep_in(memory, libc::MADV_NOHUGEPAGE);
}

/// Keeps memory in huge pages, as far as there are some.
pub fn huge_pages(memory: &[u8]) {
    keep_in(memory, libc::MADV_HUGEPAGE);
}

fn keep_in(memory: &[u8], pages: i32) {
    const PAGE: usize = super::BLOCK;
    let first = memory.as_ptr().align_offset(PAGE);
    let bytes = memory.len().saturating_sub(first) / PAGE * PAGE;
    if let Some(whole) = memory.get(first..first + bytes) {
        // SAFETY: pages of the slice's own; the call changes how they are kept, not what they hold. It is a wish.
        unsafe { libc::madvise(whole.as_ptr().cast_mut().cast(), whole.len(), pages) };
    }
}

/// Bytes that are left for us on a file system, and how many it has.
pub fn space(dir: BorrowedFd<'_>) -> Option<(u64, u64)> {
    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the struct is ours.
    checked(|| unsafe { libc::fstatvfs(dir.as_raw_fd(), &raw mut found) }).ok()?;
    Some((found.f_bavail.saturating_mul(found.f_frsize), found.f_blocks.saturating_mul(found.f_frsize)))
}

/// What a descriptor or a name leads to.
pub struct Found {
    pub regular: bool,
    pub directory: bool,
    pub bytes: u64,
    /// Device and number: names the file as long as it lives.
    pub id: (u64, u64),
}

impl From<libc::stat> for Found {
    fn from(stat: libc::stat) -> Self {
        let kind = stat.st_mode & libc::S_IFMT;
        Self {
            regular: kind == libc::S_IFREG,
            directory: kind == libc::S_IFDIR,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            id: (stat.st_dev, stat.st_ino),
        }
    }
}

fn c_string(name: &[u8]) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The outcome of a call that gives -1 on failure, waited through signals.
fn checked(mut call: impl FnMut() -> i32) -> io::Result<i32> {
    loop {
        let got = hitch::call(|| match call() {
            got if got >= 0 => Ok(got),
            _ => Err(io::Error::last_os_error()),
        });
        match got {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            got => return got,
        }
    }
}

fn owned(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor to a caller in this file; nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Opens a directory by its path.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = c_string(path.as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero.
    checked(|| unsafe { libc::open(path.as_ptr(), flags) }).map(owned)
}

/// The same directory once more, as another open file.
pub fn reopen_directory(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name ends with a zero.
    checked(|| unsafe { libc::openat(dir.as_raw_fd(), c".".as_ptr(), flags) }).map(owned)
}

/// Opens what `dir` itself holds under `name`, never through a link. The name is of one component.
pub fn open_beneath(dir: BorrowedFd<'_>, name: &str, flags: i32) -> io::Result<OwnedFd> {
    let name = c_string(name.as_bytes())?;
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let mode: libc::mode_t = if flags & libc::O_CREAT == 0 { 0 } else { 0o600 };
    // SAFETY: zeros are a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from(flags.unsigned_abs());
    how.mode = u64::from(mode);
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
    let opened = checked(|| {
        // SAFETY: name and struct are live, the size is the struct's.
        let raw = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw const how,
                size_of::<libc::open_how>(),
            )
        };
        i32::try_from(raw).unwrap_or(-1)
    });
    match opened {
        // An old kernel, or a filter that does not know the call. O_NOFOLLOW does the same for a single component.
        Err(cause) if matches!(cause.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            // SAFETY: the name ends with a zero.
            checked(|| unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, mode) }).map(owned)
        }
        other => other.map(owned),
    }
}

/// What an open descriptor leads to.
pub fn found(fd: BorrowedFd<'_>) -> io::Result<Found> {
    // SAFETY: zeros are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is live for the call.
    checked(|| unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(stat.into())
}

fn found_as(dir: RawFd, name: &CStr) -> io::Result<Found> {
    // SAFETY: zeros are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: name and struct are live for the call.
    checked(|| unsafe { libc::fstatat(dir, name.as_ptr(), &raw mut stat, libc::AT_SYMLINK_NOFOLLOW) })?;
    Ok(stat.into())
}

/// What `dir` holds under `name`; a link is not followed.
pub fn found_beneath(dir: BorrowedFd<'_>, name: &str) -> io::Result<Found> {
    found_as(dir.as_raw_fd(), &c_string(name.as_bytes())?)
}

/// Makes a file that was opened with O_NONBLOCK block again, since io_uring takes that to mean that reads must not wait, and
/// direct if asked for, which not every file system can (EINVAL). An `open` that is refused for that would leave a new file.
pub fn set_mode(fd: BorrowedFd<'_>, direct: bool) -> io::Result<()> {
    // SAFETY: plain system call.
    let flags = checked(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    let flags = flags & !libc::O_NONBLOCK | if direct { libc::O_DIRECT } else { 0 };
    // SAFETY: as above.
    checked(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// How memory and offsets of direct I/O on this file must be aligned, if the kernel tells (Linux 6.1); 0 means that it cannot be.
pub fn direct_align(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    // SAFETY: zeros are a valid `statx`.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the empty name ends with a zero and the struct is live.
    let asked = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut stat) } == 0;
    (asked && stat.stx_mask & mask != 0).then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Fails if a file of this process may not become so long (RLIMIT_FSIZE): to try it would end the process by a signal.
pub fn may_reach(bytes: u64) -> io::Result<()> {
    match crate::mem::limits::longest_file() {
        Some(longest) if bytes > longest => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
}

/// Makes a file this long.
pub fn truncate(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    // Shorter it may be made in any case.
    may_reach(bytes).or_else(|cause| if bytes <= found(fd)?.bytes { Ok(()) } else { Err(cause) })?;
    let bytes = i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: plain system call.
    checked(|| unsafe { libc::ftruncate(fd.as_raw_fd(), bytes) }).map(drop)
}

/// Reserves space for the first `bytes` of a file and makes it that long.
pub fn allocate(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    may_reach(bytes)?;
    fallocate(fd, 0, 0, bytes)
}

/// Gives the space of some bytes back.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
}

fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let (offset, bytes) = (i64::try_from(offset).map_err(too_large)?, i64::try_from(bytes).map_err(too_large)?);
    // SAFETY: plain system call.
    checked(|| unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, bytes) }).map(drop)
}

/// Gives a file of `dir` another name.
pub fn rename(dir: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
    let (from, to, dir) = (c_string(from.as_bytes())?, c_string(to.as_bytes())?, dir.as_raw_fd());
    // SAFETY: both names end with a zero.
    checked(|| unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) }).map(drop)
}

/// Takes a name out of `dir`.
pub fn unlink(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = c_string(name.as_bytes())?;
    // SAFETY: the name ends with a zero.
    checked(|| unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Makes a folder in `dir`, for this user alone.
pub fn make_folder(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = c_string(name.as_bytes())?;
    // SAFETY: the name ends with a zero.
    checked(|| unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) }).map(drop)
}

/// Takes an empty folder out of `dir`.
pub fn remove_folder(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = c_string(name.as_bytes())?;
    // SAFETY: the name ends with a zero.
    checked(|| unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

/// Makes what is in a file, and its size, last.
pub fn datasync(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain system call.
    checked(|| unsafe { libc::fdatasync(fd.as_raw_fd()) }).map(drop)
}

/// Makes the names in a directory last.
pub fn sync(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain system call.
    checked(|| unsafe { libc::fsync(dir.as_raw_fd()) }).map(drop)
}

/// Takes the exclusive lock on an open file; false if another open file of it has the lock.
pub fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: plain system call.
    match checked(|| unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(false),
        other => other.map(|_| true),
    }
}

/// Gives up the lock of a file, whoever else has it open.
pub fn unlock(fd: BorrowedFd<'_>) {
    // SAFETY: plain system call. It cannot fail for a file that is open.
    unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_UN) };
}

/// Name of this machine; empty if it has none.
#[must_use]
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is writable, and its last byte stays zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    CStr::from_bytes_until_nul(&name).map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// An open directory stream.
struct Stream(*mut libc::DIR);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: opened by `names`, closed once.
        unsafe { libc::closedir(self.0) };
    }
}

/// Every name in a directory, and what it leads to. The descriptor is used up.
pub fn names(dir: OwnedFd) -> io::Result<Vec<(CString, Found)>> {
    // SAFETY: a descriptor of our own, which the stream closes from now on if there is one.
    let stream = unsafe { libc::fdopendir(dir.as_raw_fd()) };
    if stream.is_null() {
        return Err(io::Error::last_os_error());
    }
    let (stream, dir) = (Stream(stream), dir.into_raw_fd());
    let mut all = Vec::new();
    loop {
        // SAFETY: errno belongs to this thread.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the stream is open, and this thread alone uses it.
        let entry = unsafe { libc::readdir(stream.0) };
        if entry.is_null() {
            let cause = io::Error::last_os_error();
            return if cause.raw_os_error() == Some(0) { Ok(all) } else { Err(cause) };
        }
        // SAFETY: the entry lives until the next call on the stream, and its name ends with a zero.
        let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) };
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match found_as(dir, name) {
            Ok(found) => {
                all.try_reserve(1).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
                all.push((name.to_owned(), found));
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {} // gone since
            Err(cause) => return Err(cause),
        }
    }
}

/// The path that a descriptor leads to, for messages.
#[must_use]
pub fn path_of(fd: RawFd) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map_or_else(|_| format!("descriptor {fd}"), |path| path.display().to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::{Options, RealDisk};
    use crate::base::status::NMC_ERR_EXISTS;

    #[test]
    fn a_forked_child_does_not_keep_the_lock_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path(), false, Options::default()).unwrap();
        let lock = disk.lock().unwrap();
        assert_eq!(disk.lock().unwrap_err().status, NMC_ERR_EXISTS, "control: while it is held");
        // SAFETY: the child waits to be killed.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            loop {
                // SAFETY: plain system call.
                unsafe { libc::pause() };
            }
        }
        drop(lock);
        // The child may not have run yet; the lock is free when it has.
        let free = (0..10_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            disk.lock().is_ok()
        });
        // SAFETY: ends our own child and waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(free);
    }
}
