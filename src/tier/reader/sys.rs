//! Blocks of files on their way to memory by address: to pieces of the program, whose maker vouches for them (see `Pieces`), and
//! to scratch, which is ours. Bytes are seen only when they have arrived.
#![allow(unsafe_code, reason = "the kernel writes to memory by address")]

use super::scratch::{Pool, Scratch};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_INTERNAL;
use crate::store::copy::Slice;
use crate::tier::io::{File, Read, Readers};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

/// Reads that are made together. The kernel is through with the memory when [`Flight::read`] returns.
pub struct Flight<'p> {
    /// Where reads may go. Only this has it: what was read there is seen through [`Landed`].
    scratch: Scratch<'p>,
    reads: Vec<Read>,
    arrived: Vec<bool>,
    files: Vec<Arc<dyn File>>,
}

/// What has arrived.
#[derive(Clone, Copy)]
pub struct Landed<'a> {
    reads: &'a [Read],
    arrived: &'a [bool],
}

impl<'p> Flight<'p> {
    /// With no read, and room for scratch.
    pub fn new(pool: &'p Pool) -> Self {
        Self { scratch: Scratch::new(pool), reads: Vec::new(), arrived: Vec::new(), files: Vec::new() }
    }

    /// Reads that come now are of this file.
    pub fn open(&mut self, file: Arc<dyn File>) -> Result<()> {
        memory::push(&mut self.files, file)
    }

    /// Whether [`Flight::add_to_scratch`] has room for this many bytes; see [`Scratch::has`].
    pub fn has_scratch(&mut self, bytes: usize) -> Result<bool> {
        self.scratch.has(bytes)
    }

    /// Reads a slice from `offset` on. If both follow the read before, and both together have no more than `longest` bytes, it becomes
    /// longer, and this gives false.
    pub fn add(&mut self, offset: u64, to: Slice, longest: u32) -> Result<bool> {
        self.add_at(offset, to.address(), u32::try_from(to.bytes()).unwrap_or(u32::MAX), longest)
    }

    /// The same with scratch, which has room.
    pub fn add_to_scratch(&mut self, offset: u64, bytes: u32, longest: u32) -> Result<bool> {
        let address = self.scratch.take(bytes as usize)?;
        self.add_at(offset, address, bytes, longest)
    }

    /// To an address of a piece of the program, or of scratch. No more bytes than are there.
    fn add_at(&mut self, offset: u64, address: u64, bytes: u32, longest: u32) -> Result<bool> {
        let Some(fd) = self.files.last().and_then(|file| file.descriptor()).map(|fd| fd.as_raw_fd()) else {
            return Err(Error::new(NMC_ERR_INTERNAL, "a file without a descriptor cannot be read by a client"));
        };
        if let Some(last) = self.reads.last_mut() {
            let end = (last.offset + u64::from(last.bytes), last.address + u64::from(last.bytes));
            if last.fd == fd && end == (offset, address) && last.bytes.saturating_add(bytes) <= longest {
                last.bytes += bytes;
                return Ok(false);
            }
        }
        memory::push(&mut self.reads, Read { fd, address, bytes, offset })?;
        Ok(true)
    }

    /// Makes all reads. `done` is called with the number of each when it has arrived, while others are under way.
    pub fn read(&mut self, readers: &Readers, mut done: impl FnMut(Landed<'_>, usize)) -> Result<()> {
        memory::resize(&mut self.arrived, self.reads.len(), false)?;
        let (reads, arrived) = (&self.reads, &mut self.arrived);
        let mut each = |number: usize| {
            if let Some(mark) = arrived.get_mut(number) {
                *mark = true;
            }
            done(Landed { reads, arrived }, number);
        };
        // SAFETY: the memory is of pieces, whose maker vouches for it, or of our scratch, which nobody touches but through
        // `Landed`: reads that have arrived only. The files are open as long as this.
        unsafe { readers.read(reads, &mut each) }
    }

    /// Forgets all reads; the scratch can be used again.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.arrived.clear();
        self.files.clear();
        self.scratch.clear();
    }
}

impl<'a> Landed<'a> {
    /// Whether a read has arrived.
    pub fn has(&self, number: usize) -> bool {
        self.arrived.get(number).copied().unwrap_or(false)
    }

    /// What a read brought; nothing if it has not arrived.
    pub fn bytes(&self, number: usize) -> &'a [u8] {
        match self.reads.get(number) {
            // SAFETY: it has arrived, so the kernel does not write there any more, and the memory stays as long as the flight: it is
            // a piece, see `Pieces`, or scratch, which is not given out again before that.
            Some(read) if self.has(number) => unsafe {
                std::slice::from_raw_parts(read.address as *const u8, read.bytes as usize)
            },
            _ => &[],
        }
    }
}
