//! A directory of a real file system. Files are opened beneath it by descriptor, so that nothing outside is reached and
//! renaming the directory changes nothing. Where `O_DIRECT` is not possible, files go through the page cache.

use super::ring::{Rings, Stopped, read_some};
use super::{BLOCK, Buffer, Disk, File, Listed, Options, check_name, ended, error, sys};
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_PERMISSION};
use crate::base::{log, memory};
use crate::rpc::ParentOnly;
use std::fs::DirBuilder;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the file that the owner of a directory has locked.
pub const LOCK: &str = "LOCK";
/// How often the lock is tried again when somebody removed its file meanwhile.
const MOST_TRIES: u32 = 16;
/// Bytes that are copied at a time where memory is not aligned.
const BOUNCED: usize = 1 << 20;

/// A real directory.
pub struct RealDisk(Arc<Dir>);

/// The directory, as all files that were opened in it share it.
struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    /// Folders share them.
    rings: Arc<Rings>,
    /// The file system cannot do direct I/O.
    only_buffered: AtomicBool,
    read_only: bool,
}

/// The right to be the owner of a directory, until it is dropped or the process ends. A forked child does not have it.
#[derive(Debug)]
pub struct DirLock {
    pub(super) fd: ParentOnly,
    process: u32,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked just now has the file open too, until it gets to close it.
        if self.process == std::process::id() {
            sys::unlock(self.fd.as_fd());
        }
    }
}

impl RealDisk {
    /// Opens a directory for its owner. With `create` it is made, for this user alone, if it is not there.
    pub fn open(path: &Path, create: bool, options: Options) -> Result<Self> {
        let named = path.display().to_string();
        let error = |call: &str, named: &str, cause: &io::Error| {
            let mut error = error(call, named, cause);
            // The path itself is wrong, not the disk.
            if let Some(libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP) = cause.raw_os_error() {
                error.status = NMC_ERR_INVALID_ARG;
            }
            error
        };
        if create {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error("mkdir", &named, &cause));
                }
                _ => sync_parent(path)?,
            }
        }
        let fd = sys::open_directory(path).map_err(|cause| error("open", &named, &cause))?;
        Ok(Self(Arc::new(Dir::new(fd, path.to_path_buf(), options, false))))
    }

    /// For readers: from a descriptor that was received. Nothing can be changed through it.
    pub fn from_fd(fd: OwnedFd, options: Options) -> Result<Self> {
        let path = sys::path_of(fd.as_raw_fd());
        let found = sys::found(fd.as_fd()).map_err(|cause| error("fstat", &path, &cause))?;
        if !found.directory {
            crate::bail!(NMC_ERR_INVALID_ARG, "{path} is no directory");
        }
        Ok(Self(Arc::new(Dir::new(fd, path.into(), options, true))))
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// A read-only descriptor of the directory that may be sent to other processes: another open file than any that a lock is on.
    pub fn shareable(&self) -> Result<OwnedFd> {
        self.0.reopened()
    }

    /// Becomes the owner; `NMC_ERR_EXISTS` if there is one, with its process id and machine.
    pub fn lock(&self) -> Result<DirLock> {
        let dir = &self.0;
        dir.check_writable()?;
        let told = |call: &str, cause: io::Error| error(call, &dir.full(LOCK), &cause);
        for _ in 0..MOST_TRIES {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK;
            let fd =
                sys::open_beneath(dir.fd.as_fd(), LOCK, flags).map_err(|cause| dir.refused("open", LOCK, &cause))?;
            // Before it is locked: a child that is forked meanwhile would keep the lock.
            let fd = ParentOnly::new(fd);
            let found = sys::found(fd.as_fd()).map_err(|cause| told("fstat", cause))?;
            if !found.regular {
                return Err(dir.not_regular(LOCK));
            }
            if !sys::try_lock(fd.as_fd()).map_err(|cause| told("flock", cause))? {
                let mut line = [0; 256];
                let bytes = read_some(fd.as_fd(), &mut line, 0).unwrap_or(0);
                let owner = String::from_utf8_lossy(&line[..bytes]);
                let owner = if bytes == 0 { "another process" } else { owner.trim_end() };
                crate::bail!(NMC_ERR_EXISTS, "{} is owned by {owner}", dir.path.display());
            }
            // If somebody removed the file meanwhile, another owner may have locked a new one.
            if sys::found_beneath(dir.fd.as_fd(), LOCK).is_ok_and(|now| now.id == found.id) {
                let line = format!("process {} on {}\n", std::process::id(), sys::host_name());
                sys::truncate(fd.as_fd(), 0).map_err(|cause| told("truncate", cause))?;
                let written = dir.rings.write(fd.as_fd(), &[(0, line.as_bytes())]);
                written.map_err(|stopped| stopped.error("write", &dir.full(LOCK)))?;
                return Ok(DirLock { fd, process: std::process::id() });
            }
        }
        crate::bail!(NMC_ERR_IO, "{} was removed {MOST_TRIES} times while it was being locked", dir.full(LOCK));
    }
}

/// Makes the name of a directory last, as far as this user may.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    let Ok(fd) = sys::open_directory(parent) else { return Ok(()) };
    sys::sync(fd.as_fd()).map_err(|cause| error("fsync", &parent.display().to_string(), &cause))
}

impl Dir {
    fn new(fd: OwnedFd, path: PathBuf, options: Options, read_only: bool) -> Self {
        let only_buffered = AtomicBool::new(!options.direct);
        Self { fd, path, rings: Arc::new(Rings::new(options)), only_buffered, read_only }
    }

    /// A folder in it, never through a link.
    fn folder(&self, name: &str) -> Result<Self> {
        check_name(name)?;
        let fd = sys::open_beneath(self.fd.as_fd(), name, libc::O_RDONLY | libc::O_DIRECTORY);
        let fd = fd.map_err(|cause| match cause.raw_os_error() {
            Some(libc::ELOOP | libc::ENOTDIR) => {
                Error::new(NMC_ERR_PERMISSION, format!("{} is no folder", self.full(name)))
            }
            _ => error("open", &self.full(name), &cause),
        })?;
        let only_buffered = AtomicBool::new(self.only_buffered.load(Ordering::Relaxed));
        let (path, rings) = (self.path.join(name), Arc::clone(&self.rings));
        Ok(Self { fd, path, rings, only_buffered, read_only: self.read_only })
    }

    fn reopened(&self) -> Result<OwnedFd> {
        let path = || self.path.display().to_string();
        sys::reopen_directory(self.fd.as_fd()).map_err(|cause| error("open", &path(), &cause))
    }

    fn full(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            crate::bail!(NMC_ERR_PERMISSION, "{} was opened for reading only", self.path.display());
        }
        Ok(())
    }

    fn not_regular(&self, name: &str) -> Error {
        Error::new(NMC_ERR_PERMISSION, format!("{} is no regular file", self.full(name)))
    }

    fn refused(&self, call: &str, name: &str, cause: &io::Error) -> Error {
        match cause.raw_os_error() {
            // A link, a directory, a socket.
            Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => self.not_regular(name),
            _ => error(call, &self.full(name), cause),
        }
    }

    /// The file system turned out to do no direct I/O.
    fn give_up_direct(&self) {
        if !self.only_buffered.swap(true, Ordering::Relaxed) {
            log::emit(log::WARN, || {
                format!("{}: no direct I/O there; files go through the page cache", self.path.display())
            });
        }
    }

    /// Opens what is there under a name, or makes it. O_NONBLOCK is for planted pipes, and goes again.
    fn open(&self, name: &str, flags: i32) -> Result<OwnedFd> {
        check_name(name)?;
        sys::open_beneath(self.fd.as_fd(), name, flags | libc::O_NONBLOCK | libc::O_NOCTTY)
            .map_err(|cause| self.refused("open", name, &cause))
    }

    /// Makes a file of a descriptor, if it is a regular one, and direct if that is wanted and possible.
    fn adopt(self: &Arc<Self>, fd: OwnedFd, name: &str, direct: bool) -> Result<RealFile> {
        let told = |call: &str, cause: io::Error| error(call, &self.full(name), &cause);
        if !sys::found(fd.as_fd()).map_err(|cause| told("fstat", cause))?.regular {
            return Err(self.not_regular(name));
        }
        let mut direct_align = None;
        if direct && !self.only_buffered.load(Ordering::Relaxed) {
            // A block is enough for all file systems that keep silent about it.
            let block = u32::try_from(BLOCK).unwrap_or(0);
            let (memory, offset) = sys::direct_align(fd.as_fd()).unwrap_or((block, block));
            let fits = (1..=block).contains(&memory) && (1..=block).contains(&offset);
            if fits && sys::set_mode(fd.as_fd(), true).is_ok() {
                direct_align = Some(memory as usize);
            } else {
                self.give_up_direct();
            }
        }
        if direct_align.is_none() {
            sys::set_mode(fd.as_fd(), false).map_err(|cause| told("fcntl", cause))?;
        }
        Ok(RealFile { fd, name: name.to_string(), dir: Arc::clone(self), direct_align })
    }

    fn open_any(self: &Arc<Self>, name: &str, write: bool, direct: bool) -> Result<Box<dyn File>> {
        if write {
            self.check_writable()?;
        }
        let fd = self.open(name, if write { libc::O_RDWR } else { libc::O_RDONLY })?;
        Ok(Box::new(self.adopt(fd, name, direct)?))
    }

    fn create_any(self: &Arc<Self>, name: &str, bytes: u64, direct: bool) -> Result<Box<dyn File>> {
        self.check_writable()?;
        let fd = self.open(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        let made = self.adopt(fd, name, direct).and_then(|file| {
            let reserved = if bytes == 0 { Ok(()) } else { sys::allocate(file.fd.as_fd(), bytes) };
            let sized = match reserved {
                Err(cause) if cause.raw_os_error() == Some(libc::EOPNOTSUPP) => sys::truncate(file.fd.as_fd(), bytes),
                other => other,
            };
            sized.map_err(|cause| error("fallocate", &format!("{}, {bytes} bytes", self.full(name)), &cause))?;
            Ok(file)
        });
        if made.is_err() {
            let _ = sys::unlink(self.fd.as_fd(), name);
        }
        Ok(Box::new(made?))
    }

    fn changed(&self, call: &str, name: &str, outcome: io::Result<()>) -> Result<()> {
        outcome.map_err(|cause| error(call, &self.full(name), &cause))
    }
}

impl Disk for RealDisk {
    fn space(&self) -> Option<(u64, u64)> {
        sys::space(self.0.fd.as_fd())
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let names = sys::names(self.0.reopened()?);
        let names = names.map_err(|cause| error("readdir", &self.0.path.display().to_string(), &cause))?;
        let mut all = memory::collect(names.into_iter().map(|(name, found)| {
            let named = name.to_str().is_ok();
            let (regular, folder) = (found.regular && named, found.directory && named);
            Listed { name: name.to_string_lossy().into_owned(), bytes: found.bytes, regular, folder }
        }))?;
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn create(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.0.create_any(name, bytes, true)
    }

    fn create_buffered(&self, name: &str, bytes: u64) -> Result<Box<dyn File>> {
        self.0.create_any(name, bytes, false)
    }

    fn open(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        self.0.open_any(name, write, true)
    }

    fn open_buffered(&self, name: &str, write: bool) -> Result<Box<dyn File>> {
        self.0.open_any(name, write, false)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.0.check_writable()?;
        self.0.changed("rename", from, sys::rename(self.0.fd.as_fd(), from, to))
    }

    fn unlink(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.0.check_writable()?;
        self.0.changed("unlink", name, sys::unlink(self.0.fd.as_fd(), name))
    }

    fn sync(&self) -> Result<()> {
        self.0.check_writable()?;
        self.0.changed("fsync", "", sys::sync(self.0.fd.as_fd()))
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(Self(Arc::new(self.0.folder(name)?))))
    }

    fn make_folder(&self, name: &str) -> Result<Arc<dyn Disk>> {
        check_name(name)?;
        self.0.check_writable()?;
        self.0.changed("mkdir", name, sys::make_folder(self.0.fd.as_fd(), name))?;
        self.folder(name)
    }

    fn remove_folder(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.0.check_writable()?;
        self.0.changed("rmdir", name, sys::remove_folder(self.0.fd.as_fd(), name))
    }
}

/// A file of a real directory.
struct RealFile {
    fd: OwnedFd,
    name: String,
    dir: Arc<Dir>,
    /// What addresses of memory must be multiples of; none if it goes through the page cache.
    direct_align: Option<usize>,
}

impl RealFile {
    fn told(&self, call: &str, cause: &io::Error) -> Error {
        error(call, &self.dir.full(&self.name), cause)
    }

    fn stopped(&self, call: &str, stopped: Stopped) -> Error {
        stopped.error(call, &self.dir.full(&self.name))
    }

    /// Whether the kernel takes a piece as it is.
    fn is_straight(&self, memory: &[u8], offset: u64) -> bool {
        self.direct_align.is_none_or(|align| {
            let whole = memory.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
            whole && (memory.as_ptr() as usize).is_multiple_of(align)
        })
    }

    /// Reads all pieces: those that the kernel takes together, the others one by one.
    fn read_all<'a>(&self, pieces: impl Iterator<Item = (u64, &'a mut [u8])>) -> Result<()> {
        let (mut straight, mut bounced) = (Vec::new(), Vec::new());
        for (offset, to) in pieces {
            let list = if self.is_straight(to, offset) { &mut straight } else { &mut bounced };
            memory::push(list, (offset, to))?;
        }
        self.dir.rings.read(self.fd.as_fd(), &mut straight).map_err(|stopped| self.stopped("read", stopped))?;
        bounced.into_iter().try_for_each(|(offset, to)| self.read_bounced(to, offset))
    }

    /// Writes all pieces: those that the kernel takes together, the others one by one.
    fn write_all<'a>(&self, pieces: impl Iterator<Item = (u64, &'a [u8])>) -> Result<()> {
        let (mut straight, mut bounced) = (Vec::new(), Vec::new());
        for (offset, from) in pieces {
            let list = if self.is_straight(from, offset) { &mut straight } else { &mut bounced };
            memory::push(list, (offset, from))?;
        }
        self.dir.rings.write(self.fd.as_fd(), &straight).map_err(|stopped| self.stopped("write", stopped))?;
        bounced.into_iter().try_for_each(|(offset, from)| self.write_bounced(from, offset))
    }

    /// Fills a buffer of whole blocks from the file; what is behind its end is left as it is. Gives how much there was.
    fn read_blocks(&self, to: &mut [u8], offset: u64) -> Result<usize> {
        read_some(self.fd.as_fd(), to, offset).map_err(|stopped| self.stopped("read", stopped))
    }

    fn read_bounced(&self, mut to: &mut [u8], mut offset: u64) -> Result<()> {
        let mut buffer = Buffer::new((to.len() + 2 * BLOCK).next_multiple_of(BLOCK).min(BOUNCED))?;
        while !to.is_empty() {
            let skip = skip_of(offset);
            let now = to.len().min(buffer.len() - skip);
            let blocks = (skip + now).next_multiple_of(BLOCK);
            let got = self.read_blocks(&mut buffer[..blocks], offset - skip as u64)?;
            if got < skip + now {
                return Err(ended(&self.dir.full(&self.name), offset - skip as u64 + got as u64));
            }
            let (part, rest) = to.split_at_mut(now);
            part.copy_from_slice(&buffer[skip..skip + now]);
            (to, offset) = (rest, offset + now as u64);
        }
        Ok(())
    }

    fn write_bounced(&self, mut from: &[u8], mut offset: u64) -> Result<()> {
        let end = offset.saturating_add(from.len() as u64).max(self.bytes()?);
        let mut buffer = Buffer::new((from.len() + 2 * BLOCK).next_multiple_of(BLOCK).min(BOUNCED))?;
        while !from.is_empty() {
            let skip = skip_of(offset);
            let now = from.len().min(buffer.len() - skip);
            let blocks = (skip + now).next_multiple_of(BLOCK);
            let start = offset - skip as u64;
            // Blocks that are written in part keep the rest of what they had, or of the zeros behind the end.
            for edge in [(skip > 0).then_some(0), (skip + now < blocks).then_some(blocks - BLOCK)].into_iter().flatten()
            {
                buffer[edge..edge + BLOCK].fill(0);
                self.read_blocks(&mut buffer[edge..edge + BLOCK], start + edge as u64)?;
            }
            let (part, rest) = from.split_at(now);
            buffer[skip..skip + now].copy_from_slice(part);
            let written = self.dir.rings.write(self.fd.as_fd(), &[(start, &buffer[..blocks])]);
            written.map_err(|stopped| self.stopped("write", stopped))?;
            (from, offset) = (rest, offset + now as u64);
        }
        // The last block was written whole.
        if self.bytes()? > end { self.truncate(end) } else { Ok(()) }
    }
}

/// Bytes from the beginning of its block to an offset.
fn skip_of(offset: u64) -> usize {
    usize::try_from(offset % BLOCK as u64).unwrap_or(0)
}

impl File for RealFile {
    fn bytes(&self) -> Result<u64> {
        sys::found(self.fd.as_fd()).map(|found| found.bytes).map_err(|cause| self.told("fstat", &cause))
    }

    fn read(&self, to: &mut [u8], offset: u64) -> Result<()> {
        self.read_all(std::iter::once((offset, to)))
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.write_all(std::iter::once((offset, from)))
    }

    fn batch_read(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.read_all(reads.iter_mut().map(|(offset, to)| (*offset, &mut **to)))
    }

    fn vector_read(&self, to: &mut [IoSliceMut<'_>], mut offset: u64) -> Result<()> {
        self.read_all(to.iter_mut().map(|piece| {
            let at = offset;
            offset = offset.saturating_add(piece.len() as u64);
            (at, &mut **piece)
        }))
    }

    fn vector_write(&self, from: &[IoSlice<'_>], mut offset: u64) -> Result<()> {
        self.write_all(from.iter().map(|piece| {
            let at = offset;
            offset = offset.saturating_add(piece.len() as u64);
            (at, &**piece)
        }))
    }

    fn datasync(&self) -> Result<()> {
        sys::datasync(self.fd.as_fd()).map_err(|cause| self.told("fdatasync", &cause))
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<bool> {
        if bytes == 0 {
            return Ok(true);
        }
        match sys::punch(self.fd.as_fd(), offset, bytes) {
            Ok(()) => Ok(true),
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(false),
            Err(cause) => Err(self.told("fallocate", &cause)),
        }
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        sys::truncate(self.fd.as_fd(), bytes).map_err(|cause| self.told("truncate", &cause))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn memory_align(&self) -> usize {
        self.direct_align.unwrap_or(1)
    }
}
