//! What the disk gives without the library, the baseline of area `ssd`: plain loops of direct reads and writes, and a bare
//! io_uring for several reads at a time. None of it is the library's own I/O, which would hide what that costs.
#![allow(unsafe_code, reason = "requests to io_uring, and system calls that std does not have")]

use crate::args::Failure;
use crate::facts;
use io_uring::{IoUring, opcode, types};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Where a value lies.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Number of its file.
    pub file: u64,
    /// First byte there.
    pub offset: u64,
}

/// A folder's file system, and how it is used.
#[derive(Debug)]
pub struct FileSystem {
    /// What it is, for people.
    pub name: String,
    /// Whether it can be read past the page cache.
    pub direct: bool,
    /// Bytes that can still be written.
    pub free_bytes: u64,
}

impl FileSystem {
    /// That of a folder in which a file may be made.
    pub fn of(folder: &Path) -> Result<Self, Failure> {
        let os = |e: io::Error| Failure::os(format!("looking at {}", folder.display()), &e);
        let device = folder.metadata().map_err(os)?.dev();
        let device = format!("{}:{}", libc::major(device), libc::minor(device));
        let mounts = facts::read("/proc/self/mountinfo");
        let name = mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let found = place.split(' ').nth(2) == Some(&device);
            found.then(|| format!("{} on {}", kind.next().unwrap_or("?"), kind.next().unwrap_or("?")))
        });
        let trial = folder.join("trial");
        let direct = open(&trial, true, true);
        let trial_made = direct.is_ok() || trial.exists();
        if trial_made {
            std::fs::remove_file(&trial).map_err(os)?;
        }
        Ok(Self {
            name: name.unwrap_or_else(|| format!("an unknown file system ({device})")),
            direct: direct.is_ok(),
            free_bytes: free_bytes(folder).map_err(os)?,
        })
    }
}

fn free_bytes(folder: &Path) -> io::Result<u64> {
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: numbers, which the kernel fills in; the path ends with a NUL byte.
    let (rc, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut found), found)
    };
    if rc == 0 { Ok(found.f_bavail * found.f_frsize) } else { Err(io::Error::last_os_error()) }
}

fn open(path: &Path, direct: bool, write: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    if write {
        options.write(true).create_new(true)
    } else {
        options.read(true)
    };
    options.custom_flags(flags).open(path)
}

/// Files that are read.
pub struct Files(HashMap<u64, File>);

impl Files {
    /// Opens the files of all of these places; `path` gives where one is.
    pub fn open(places: &[Place], direct: bool, path: impl Fn(u64) -> std::path::PathBuf) -> Result<Self, Failure> {
        let mut files = HashMap::new();
        for Place { file, .. } in places {
            if !files.contains_key(file) {
                let path = path(*file);
                let opened = open(&path, direct, false);
                files.insert(*file, opened.map_err(|e| Failure::os(format!("opening {}", path.display()), &e))?);
            }
        }
        Ok(Self(files))
    }

    fn file(&self, place: Place) -> io::Result<&File> {
        self.0.get(&place.file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// One value after the other, each with `pread`.
    pub fn read(&self, place: Place, to: &mut [u8]) -> Result<(), Failure> {
        let read = self.file(place).and_then(|file| file.read_exact_at(to, place.offset));
        read.map_err(|e| Failure::os("reading a file", &e))
    }

    /// Several values at a time, one request each.
    pub fn read_all(&self, ring: &mut IoUring, places: &[Place], to: &mut [&mut [u8]]) -> Result<(), Failure> {
        self.submit(ring, places, to).map_err(|e| Failure::os("reading with io_uring", &e))
    }

    fn submit(&self, ring: &mut IoUring, places: &[Place], to: &mut [&mut [u8]]) -> io::Result<()> {
        let files = places.iter().map(|place| self.file(*place)).collect::<io::Result<Vec<_>>>()?;
        for ((file, place), to) in files.into_iter().zip(places).zip(&mut *to) {
            let bytes = u32::try_from(to.len()).map_err(io::Error::other)?;
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), to.as_mut_ptr(), bytes);
            let read = read.offset(place.offset).build().user_data(bytes.into());
            // SAFETY: file and memory live until the request is done: this function waits for all of them below.
            unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
        }
        let (mut left, mut short) = (places.len(), 0);
        while left > 0 {
            match ring.submit_and_wait(left) {
                // Signals are held back in a benchmark; whatever else it is comes before the first request is under way.
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for done in ring.completion() {
                left -= 1;
                short += usize::from(u64::try_from(done.result()) != Ok(done.user_data()));
            }
        }
        if short == 0 { Ok(()) } else { Err(io::Error::other(format!("{short} of {} failed", places.len()))) }
    }
}

/// Makes a file of `bytes`, in pieces of `from`, and makes it last: space is reserved first, as the tier does it.
pub fn write_file(path: &Path, direct: bool, bytes: u64, from: &[u8]) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let file = open(path, direct, true)?;
        let length = i64::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a system call on a descriptor that is open. Where a file system cannot, writing reserves.
        let _ = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) };
        for offset in (0..bytes).step_by(from.len()) {
            let left = usize::try_from(bytes - offset).map_err(io::Error::other)?;
            file.write_all_at(&from[..left.min(from.len())], offset)?;
        }
        file.sync_data()
    };
    write().map_err(|e| Failure::os(format!("writing {}", path.display()), &e))
}

/// CPU time of all threads of this process, in µs: what `getrusage` tells, with more digits.
pub fn cpu_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct in.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
