//! How a client reads values from disk by itself. What it gives is right: the entry of the index is the same after the I/O as
//! before it, the record has the key, put, length and namespace that the entry stands for, and every 64 KiB that were touched
//! have their checksum. An entry that ended meanwhile is no failure; what is wrong while the entry stands is looked at twice,
//! then `NMC_ERR_CORRUPT`.
//!
//! `round` plans and verifies reads, `files` keeps files open, `scratch` has memory for what cannot go straight to where it
//! belongs, `list` goes through the keys, and `record` checks records for the owner of the directory.

mod files;
mod list;
mod record;
mod round;
mod scratch;
mod sys;
#[cfg(test)]
mod tests;

pub use list::Live;
pub use record::check_record;

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::disk::Space;
use crate::store::copy::Pieces;
use crate::store::disk::{DiskEntry, DiskInfo, DiskMap, DiskRead, DiskReader, NextOnDisk, Target, Wanted};
use crate::tier::config::Backend;
use crate::tier::format::GRANULE;
use crate::tier::io::{Buffer, FixedBuffer, Options, Readers, RealDisk};
use files::Files;
use list::{EachLive, Lists, Lost};
use round::Job;
use scratch::Pool;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// In the flags of a grant: files are read around the page cache.
pub const FLAG_DIRECT: u64 = 1;
/// In the flags of a grant: many requests at a time, through io_uring.
pub const FLAG_URING: u64 = 2;
/// The flags from here on, 4 bits, are the code of the backend.
const BACKEND_SHIFT: u32 = 4;
/// The flags from here on, 16 bits, are the most requests in flight for one call.
const DEPTH_SHIFT: u32 = 8;

/// A value of up to so many bytes that is read alone is one request: a plain call is quicker than two halves of which one is summed
/// up while the other comes.
const WHOLE: u64 = 384 << 10;
/// Up to here its last quarter is a request of its own, for which it is waited while the rest is summed up.
const IN_TWO: u64 = 2 << 20;
/// Requests of a longer one, and of several values.
const LONG: u64 = 512 << 10;
/// Where requests follow each other, the kernel splits long ones better.
const ONE_BY_ONE: u32 = 8 << 20;

/// How a directory is read, for the flags of a grant.
#[must_use]
pub fn flags(options: Options, backend: Backend) -> u64 {
    let set = |on, flag| if on { flag } else { 0 };
    let depth = u64::from(options.depth.clamp(1, u16::MAX.into()));
    let backend = u64::from(backend.code());
    set(options.direct, FLAG_DIRECT) | set(options.uring, FLAG_URING) | backend << BACKEND_SHIFT | depth << DEPTH_SHIFT
}

/// The inverse of [`flags`].
fn options(flags: u64) -> Result<(Options, Backend)> {
    let depth = u32::try_from(flags >> DEPTH_SHIFT & u64::from(u16::MAX)).unwrap_or(1);
    let options = Options { direct: flags & FLAG_DIRECT != 0, uring: flags & FLAG_URING != 0, depth: depth.max(1) };
    let code = u32::try_from(flags >> BACKEND_SHIFT & 15).unwrap_or(u32::MAX);
    match Backend::from_code(code) {
        Some(backend) => Ok((options, backend)),
        None => crate::bail!(NMC_ERR_VERSION, "this library does not know backend {code} of the store's tier"),
    }
}

/// Lets clients of stores read tiers. To be called before the first one comes; calling it again does nothing.
pub fn install() {
    crate::store::disk::set_maker(make);
}

/// The reader of a directory, see `store::disk::MakeReader`.
pub fn make(directory: OwnedFd, flags: u64) -> Result<Arc<dyn DiskReader>> {
    let (options, backend) = options(flags)?;
    Ok(Arc::new(Reader::new(directory, options, backend)?))
}

/// The disk as a client reads it. Threads may share it.
pub struct Reader {
    files: Files,
    readers: Readers,
    pool: Pool,
    lists: Lists,
    /// Several requests are under way at a time.
    together: bool,
    #[cfg(test)]
    stage: tests::Stage,
}

impl Reader {
    fn new(directory: OwnedFd, options: Options, backend: Backend) -> Result<Self> {
        Ok(Self {
            files: Files::new(Arc::new(RealDisk::from_fd(directory, options)?), backend)?,
            readers: Readers::new(options),
            pool: Pool::default(),
            lists: Lists::default(),
            together: options.uring && options.depth > 1,
            #[cfg(test)]
            stage: tests::Stage::default(),
        })
    }

    /// Values will often be read into this memory.
    pub fn fix(&self, memory: &Arc<FixedBuffer>) {
        self.readers.fix(memory);
    }

    /// Every record to which an entry leads, of all namespaces, until `each` says false. `lost` hears of buckets whose lists cannot be read.
    pub fn each(&self, map: &DiskMap, each: &mut EachLive<'_>, lost: &mut Lost<'_>) -> Result<()> {
        self.lists.each(&self.files, map, each, lost)
    }

    /// Reads all of a record, and fails if it is not the one that the entry stands for, or not whole.
    pub fn check(&self, live: &Live<'_>, scratch: &mut Buffer) -> Result<()> {
        let DiskEntry { entry, put, .. } = live.entry;
        let mut check = |anew| {
            let (file, block) = self.files.get(entry.spot, anew)?;
            check_record(&*file, block, live.key, put, entry.bytes, scratch)
        };
        // Its file may be another one by now.
        check(false).or_else(|_| check(true))
    }

    /// Bytes of the longest request for so many, of a value that is read alone or with others.
    fn longest(&self, bytes: u64, alone: bool) -> u32 {
        let part = match bytes {
            _ if !alone => LONG,
            0..=WHOLE => WHOLE,
            n if n <= IN_TWO => (n * 3 / 4).next_multiple_of(GRANULE as u64),
            _ => LONG,
        };
        if self.together { u32::try_from(part).unwrap_or(ONE_BY_ONE) } else { ONE_BY_ONE }
    }

    /// Whether an entry is what it was, after everything that was read for it.
    fn is_still(&self, map: &DiskMap, entry: &DiskEntry) -> bool {
        #[cfg(test)]
        if let Some(answer) = self.stage.before_the_second_look() {
            return answer;
        }
        map.is_still(entry)
    }
}

impl DiskReader for Reader {
    fn read(&self, map: &DiskMap, reads: &mut [DiskRead<'_>]) {
        match memory::with_capacity(reads.len()) {
            Ok(mut jobs) => {
                jobs.extend(reads.iter_mut().map(Job::new));
                self.work(map, &mut jobs);
            }
            Err(error) => reads.iter_mut().for_each(|read| read.outcome = Err(error.clone())),
        }
    }

    fn infos(&self, map: &DiskMap, wanted: &[(DiskEntry, &[u8])]) -> Result<Vec<Result<Option<DiskInfo>>>> {
        let mut reads = memory::collect(wanted.iter().map(|(entry, key)| {
            let to = Target::Host(Pieces::Slices(&[]));
            DiskRead { entry: *entry, key, offset: 0, bytes: 0, to, outcome: Ok(false) }
        }))?;
        let mut jobs = memory::collect(reads.iter_mut().map(Job::new))?;
        self.work(map, &mut jobs);
        let found = memory::collect(jobs.into_iter().map(|job| job.info))?;
        let told = reads.into_iter().zip(found).map(|(read, info)| read.outcome.map(|there| there.then_some(info)));
        memory::collect(told)
    }

    fn key_of(&self, map: &DiskMap, entry: &DiskEntry) -> Result<Option<(Vec<u8>, Space)>> {
        let found = self.lists.key_of(&self.files, map, &entry.entry);
        // What is wrong with a bucket that has gone meanwhile is wrong with nothing.
        if self.is_still(map, entry) { found } else { Ok(None) }
    }

    fn next(&self, map: &DiskMap, space: Space, cursor: u64, wanted: &mut Wanted<'_>) -> Result<NextOnDisk> {
        self.lists.next(&self.files, map, space, cursor, wanted)
    }
}
