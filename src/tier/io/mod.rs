//! Directories and files as the tier uses them: real ones, and simulated ones that fail and forget as a disk may. Every call
//! moves all of its bytes or fails; nothing outside the directory is ever opened, and nothing but regular files.
//!
//! [`Disk`] and [`File`] are what the owner of a tier works with; [`Readers`] is for clients, which read many values at once.

mod buffer;
mod hitch;
mod real;
mod ring;
#[cfg(test)]
pub mod sim;
mod sys;
#[cfg(test)]
mod tests;

use crate::base::error::{Error, Result};
use crate::base::status::{
    NMC_ERR_EXISTS, NMC_ERR_IO, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_OS, NMC_ERR_PERMISSION,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use buffer::{Buffer, FixedBuffer};
pub use real::{DirLock, LOCK, RealDisk};
pub use ring::{Read, Readers};

/// Bytes of a block: offsets and sizes of everything the tier writes are multiples of it.
pub const BLOCK: usize = 4096;

/// How files are opened and read.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Around the page cache (`O_DIRECT`), where the file system can.
    pub direct: bool,
    /// Many requests at a time through io_uring, where it can be had.
    pub uring: bool,
    /// Most requests in flight for one call.
    pub depth: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { direct: true, uring: true, depth: 32 }
    }
}

/// What a directory holds under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name; where that is not UTF-8, something that looks like it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it is a regular file whose name is as given.
    pub regular: bool,
    /// Whether it is a folder whose name is as given.
    pub folder: bool,
}

/// A directory: what the owner of a tier does with it. Names are plain file names of one component. Names last from the next
/// [`Disk::sync`] on, what is in files from their [`File::datasync`] on. A folder in it is a directory of its own: names in there
/// last from the sync of the folder on.
pub trait Disk: Send + Sync {
    /// Everything in the directory, by name.
    fn list(&self) -> Result<Vec<Listed>>;

    /// Makes a file of `bytes` zeros, for which space is reserved; `NMC_ERR_EXISTS` if the name is taken. Nothing is left of
    /// one that fails.
    fn create(&self, name: &str, bytes: u64) -> Result<Box<dyn File>>;

    /// The same for a file that is written in odd pieces and often: it goes through the page cache.
    fn create_buffered(&self, name: &str, bytes: u64) -> Result<Box<dyn File>>;

    /// Opens a regular file.
    fn open(&self, name: &str, write: bool) -> Result<Box<dyn File>>;

    /// Opens a regular file that is read or written in odd pieces and often: it goes through the page cache.
    fn open_buffered(&self, name: &str, write: bool) -> Result<Box<dyn File>>;

    /// Gives a file or a folder another name. Whatever had that name has none any more.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Takes a file's name away; it is gone when nobody has it open.
    fn unlink(&self, name: &str) -> Result<()>;

    /// Makes all names last. After a failure nobody knows which do, and repeating the call does not help.
    fn sync(&self) -> Result<()>;

    /// Bytes that the file system has left, and how many it has at all, if that is known.
    fn space(&self) -> Option<(u64, u64)> {
        None
    }

    /// A folder of it.
    fn folder(&self, name: &str) -> Result<Arc<dyn Disk>>;

    /// Makes a folder; `NMC_ERR_EXISTS` if the name is taken.
    fn make_folder(&self, name: &str) -> Result<Arc<dyn Disk>>;

    /// Takes a folder away in which nothing is.
    fn remove_folder(&self, name: &str) -> Result<()>;
}

/// A file. All calls move everything or fail: short transfers are continued, signals are waited through. Different threads may
/// use different blocks at the same time.
pub trait File: Send + Sync {
    /// Its size.
    fn bytes(&self) -> Result<u64>;

    /// Reads, at any alignment. Reading behind the end is `NMC_ERR_CORRUPT`.
    fn read(&self, to: &mut [u8], offset: u64) -> Result<()>;

    /// Writes, at any alignment. Blocks at the edges of an unaligned piece are read and written back.
    fn write(&self, from: &[u8], offset: u64) -> Result<()>;

    /// Reads whole blocks into a buffer that is aligned as they are. Long ones are split into requests in flight together.
    fn read_aligned(&self, to: &mut [u8], offset: u64) -> Result<()> {
        check_aligned(to, offset)?;
        self.read(to, offset)
    }

    /// Writes whole blocks from a buffer that is aligned as they are. Long ones are one request of up to 1 GiB, which the kernel splits:
    /// nobody waits for a part of what is written.
    fn write_aligned(&self, from: &[u8], offset: u64) -> Result<()> {
        check_aligned(from, offset)?;
        self.write(from, offset)
    }

    /// Reads from many offsets, all in flight together.
    fn batch_read(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        reads.iter_mut().try_for_each(|(offset, to)| self.read(to, *offset))
    }

    /// Reads what is consecutive in the file to where it is scattered in memory.
    fn vector_read(&self, to: &mut [IoSliceMut<'_>], mut offset: u64) -> Result<()> {
        to.iter_mut().try_for_each(|piece| {
            self.read(piece, offset)?;
            offset += piece.len() as u64;
            Ok(())
        })
    }

    /// Writes what is scattered in memory to consecutive places of the file.
    fn vector_write(&self, from: &[IoSlice<'_>], mut offset: u64) -> Result<()> {
        from.iter().try_for_each(|piece| {
            self.write(piece, offset)?;
            offset += piece.len() as u64;
            Ok(())
        })
    }

    /// Makes all that was written, and the size, last. After a failure nobody knows what does, and repeating the call does not
    /// help: what the file should hold has to be written anew, elsewhere.
    fn datasync(&self) -> Result<()>;

    /// Gives the space of these bytes back; they read as zeros. False where the file system cannot.
    fn punch(&self, offset: u64, bytes: u64) -> Result<bool>;

    /// Makes the file shorter, or longer by zeros.
    fn truncate(&self, bytes: u64) -> Result<()>;

    /// For [`Readers`]. A simulated file has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What addresses of memory must be multiples of to be read to or written from without a copy in between, where offset and
    /// length are whole blocks; 1 if the file is not direct, and then offset and length may be any, too.
    fn memory_align(&self) -> usize {
        1
    }
}

/// Makes a file under a temporary name, in the place of one that was begun before and never got its own. Something that cannot be taken
/// away, a folder, is in the way, which is another thing than a directory that somebody owns.
pub fn create_temporary(disk: &dyn Disk, name: &str, bytes: u64) -> Result<Box<dyn File>> {
    let _ = disk.unlink(name);
    disk.create_buffered(name, bytes).map_err(|mut error| {
        if error.status == NMC_ERR_EXISTS {
            error.status = NMC_ERR_PERMISSION;
        }
        error
    })
}

/// The error of a failed call on a file: what a caller can act on has a status of its own, the rest is `NMC_ERR_IO`.
#[must_use]
pub fn error(call: &str, file: &str, cause: &std::io::Error) -> Error {
    let mut error = Error::os(&format!("{call}({file})"), cause);
    match cause.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => error.status = NMC_ERR_NO_SPACE,
        // It may be raised, and no other file that goes helps.
        Some(libc::EFBIG) => {
            error.message.push_str("; see the limit of file sizes (ulimit -f), and that of the file system");
            error.status = NMC_ERR_LIMIT;
        }
        Some(libc::ENOENT) => error.status = NMC_ERR_NOT_FOUND,
        Some(libc::EEXIST) => error.status = NMC_ERR_EXISTS,
        _ if error.status == NMC_ERR_OS => error.status = NMC_ERR_IO,
        _ => {}
    }
    error
}

/// The error of a read behind the end of a file.
fn ended(file: &str, end: u64) -> Error {
    Error::new(
        crate::base::status::NMC_ERR_CORRUPT,
        format!("read({file}): it ends at byte {end}, before what was to be read"),
    )
}

/// Refuses what is no plain file name.
fn check_name(name: &str) -> Result<()> {
    const LONGEST: usize = 255;
    let odd = matches!(name, "" | "." | "..") || name.len() > LONGEST || name.bytes().any(|b| matches!(b, b'/' | 0));
    if odd {
        crate::bail!(NMC_ERR_INVALID_ARG, "{name:?} is no plain file name of at most {LONGEST} bytes");
    }
    Ok(())
}

/// Refuses memory and offsets that are not whole blocks.
fn check_aligned(memory: &[u8], offset: u64) -> Result<()> {
    let address = memory.as_ptr() as usize;
    if !address.is_multiple_of(BLOCK) || !memory.len().is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK as u64) {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "address {address:#x}, length {} and offset {offset} must be multiples of {BLOCK}",
            memory.len()
        );
    }
    Ok(())
}
