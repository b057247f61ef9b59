//! Where buckets lie. Everything that makes a tier safe is the same for all backends: a bucket has a number that is never used
//! again, its records are known by number and block, marks in the journal say which of them are over, and a bucket counts from
//! the moment on at which it is sealed. A backend decides what a bucket is made of, and with that how it is written, sealed,
//! found and taken away:
//!
//! | backend | a bucket is | it is sealed by |
//! |---|---|---|
//! | bucket | a file | the sync of its name |
//! | file-per-key | a folder with a file for every record | the sync of its name |
//! | offset | an extent of one large file | a record of the journal |
//! | noop | nothing | – |
//!
//! Whoever writes is alone, and has the lock of the directory; any number of processes read.

mod bucket;
mod file_per_key;
mod noop;
mod offset;

pub use bucket::{meta_id, meta_name};
pub use offset::DATA_NAME;

use super::config::{Backend, Config};
use super::format::{BLOCK, Item, MAX_BLOCK, MAX_BUCKET, Tail};
use super::io::{Buffer, Disk, File, Listed};
use super::journal::{Journal, State};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND};
use crate::layout::disk::Spot;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of the end of a bucket that are read at first; most lists fit.
const TAIL_GUESS: u64 = 64 << 10;

/// What a file is known by: two numbers that no other one ever has.
pub type FileId = (u64, u64);

/// How to come to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The folders on the way: none or two.
    pub folders: Option<[String; 2]>,
    /// Its name.
    pub name: String,
}

impl Place {
    /// Opens the file for reading.
    pub fn open(&self, disk: &dyn Disk) -> Result<Box<dyn File>> {
        match &self.folders {
            Some([outer, inner]) => disk.folder(outer)?.folder(inner)?.open(&self.name, false),
            None => disk.open(&self.name, false),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some([outer, inner]) = &self.folders {
            write!(f, "{outer}/{inner}/")?;
        }
        write!(f, "{}", self.name)
    }
}

/// What is in a directory, besides its head, its lock and its journals.
#[derive(Debug, Default)]
pub struct Found {
    /// Numbers of the buckets, in order.
    pub buckets: Vec<u64>,
    /// What was begun and never sealed, or is of no use any more: names, or folder and name.
    pub leftovers: Vec<(Option<String>, String)>,
    /// What was damaged and renamed, in the same way.
    pub aside: Vec<(Option<String>, String)>,
    /// Blocks that this takes.
    pub aside_blocks: u64,
    /// Names that are not the tier's.
    pub foreign: Vec<String>,
    /// The highest number of a bucket that a name has, whatever stands there: a new one must not meet it.
    pub last: u64,
}

impl Found {
    /// There is a name that has this number.
    fn meet(&mut self, bucket: u64) {
        if bucket < MAX_BUCKET {
            self.last = self.last.max(bucket);
        }
    }
}

/// A backend. The functions that change something are the owner's.
pub trait Storage: Send + Sync {
    /// Looks for what is there. `listed` is in the directory, `state` is what the journal says.
    fn find(&self, listed: &[Listed], state: &State) -> Result<Found>;

    /// Whether only the journal says which buckets there are.
    fn is_in_journal(&self) -> bool {
        false
    }

    /// The file that a record is in, and its block there.
    fn locate(&self, spot: Spot) -> (FileId, u64);

    /// Where the file is.
    fn place(&self, file: FileId) -> Place;

    /// Reads the list of a bucket: its last block and the list itself. `NMC_ERR_NOT_FOUND` if there is no such bucket.
    fn list(&self, bucket: u64) -> Result<(Tail, Vec<u8>)>;

    /// Blocks that a bucket takes which [`Storage::find`] has found, with all that goes with it.
    fn blocks(&self, bucket: u64) -> Result<u64>;

    /// Begins to use a directory for writing, when it is known what is there.
    fn begin(&mut self, config: &Config, state: &State) -> Result<()>;

    /// Makes a bucket whose records take so many blocks, one behind the other. Their list has `list_bytes` at most, and exactly
    /// so many if all of them are written.
    fn draft(&self, bucket: u64, records: &[u64], list_bytes: u64) -> Result<Box<dyn Draft + '_>>;

    /// Nothing is left of a draft, sealed or not, that failed. `gone`: should it come back, everybody knows that it does not
    /// count.
    fn discard(&self, bucket: u64, gone: bool);

    /// Whether the journal has to say durably that a bucket is gone before it is taken away: where that is not done in one step,
    /// or its space is used again.
    fn gone_must_last(&self) -> bool {
        true
    }

    /// Takes a sealed bucket away of which the journal says that it is gone. Gives a file whose space may be taken when nobody
    /// reads it any more. `NMC_ERR_NOT_FOUND` if somebody else has taken it away, who may bring it back.
    fn take_away(&self, bucket: u64) -> Result<Option<Box<dyn File>>>;

    /// Takes away once more what is gone by now: if the sync failed that was to make it last, no later one does. Gives the buckets
    /// that [`Storage::forget`] may be called for.
    fn take_away_again(&self, gone: &[u64]) -> Result<Vec<u64>>;

    /// The buckets were taken away, and one was sealed since: makes sure that they never come back.
    fn forget(&self, gone: &[u64]) -> Result<()>;

    /// Gives back the space of records that are over, by block and number of blocks, in a bucket that is not; gives how many blocks
    /// came back.
    fn give_back(&self, bucket: u64, records: &[(u64, u64)]) -> Result<u64>;

    /// A bucket whose list is damaged: it is renamed or deleted, and does not count any more. False if that cannot be done here,
    /// and the journal has to say so.
    fn set_aside(&self, bucket: u64, delete: bool) -> Result<bool>;

    /// Takes away one of [`Found::leftovers`], or of those that are aside.
    fn clean(&self, leftover: &(Option<String>, String)) -> Result<()>;

    /// Whether what is written can be found again.
    fn keeps(&self) -> bool {
        true
    }
}

/// A bucket that is being written. Its blocks have the numbers that places will have.
pub trait Draft: Sync {
    /// The block of its first record.
    fn first(&self) -> u64 {
        0
    }

    /// Writes whole blocks of records, from memory that is aligned as they are.
    fn write(&self, from: &[u8], offset: u64) -> Result<()>;

    /// All records are written; these ones count, and `list` is what [`super::format::encode_footer`] makes of them. What is there
    /// lasts when this returns; the bucket does not count yet. Gives how many blocks it takes.
    fn complete(&mut self, items: &[Item<'_>], list: &[u8]) -> Result<u64>;

    /// The bucket counts, from now on and for ever.
    fn seal(&mut self, journal: &Mutex<Journal>) -> Result<()>;
}

/// Fails if a config asks for what its backend does not have.
pub fn check(config: &Config) -> Result<()> {
    let most = MAX_BLOCK * BLOCK as u64;
    if config.backend == Backend::Offset && !(BLOCK as u64..=most).contains(&config.capacity_bytes) {
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "the offset backend needs capacity_bytes, from {BLOCK} to {most}; it is {}",
            config.capacity_bytes
        );
    }
    if config.write_through && config.backend == Backend::Noop {
        crate::bail!(NMC_ERR_INVALID_ARG, "the noop backend keeps nothing: no put could wait until its value is there");
    }
    if config.meta && config.backend != Backend::Bucket {
        crate::bail!(NMC_ERR_INVALID_ARG, "only the bucket backend writes lists twice, not {}", config.backend.name());
    }
    Ok(())
}

/// The backend of a directory.
#[must_use]
pub fn storage(backend: Backend, disk: &Arc<dyn Disk>) -> Box<dyn Storage> {
    let disk = Arc::clone(disk);
    match backend {
        Backend::Bucket => Box::new(bucket::Buckets::new(disk)),
        Backend::File => Box::new(file_per_key::Folders::new(disk)),
        Backend::Offset => Box::new(offset::Extents::new(disk)),
        Backend::Noop => Box::new(noop::Noop),
    }
}

/// Blocks of a file.
fn blocks_of(file: &Listed) -> u64 {
    file.bytes.div_ceil(BLOCK as u64)
}

/// Takes a name away, if it is there.
pub fn take_away(disk: &dyn Disk, name: &str) -> Result<()> {
    gone_is_fine(disk.unlink(name))
}

/// What is not there need not be taken away.
pub fn gone_is_fine<T: Default>(taken: Result<T>) -> Result<T> {
    match taken {
        Err(error) if error.status == NMC_ERR_NOT_FOUND => Ok(T::default()),
        taken => taken,
    }
}

/// Why the list of a bucket cannot be read that should be there.
#[must_use]
pub fn missed(mut error: Error) -> Error {
    if error.status == NMC_ERR_NOT_FOUND {
        (error.status, error.message) = (NMC_ERR_CORRUPT, format!("its file is gone: {}", error.message));
    }
    error
}

/// Reads the end of a bucket that ends at byte `end` of a file: what its last block says, and its list.
fn read_end(file: &dyn File, end: u64) -> Result<(Tail, Vec<u8>)> {
    read_tail(file, end, Tail::decode)
}

/// The same for a file that has nothing else.
fn read_list_file(file: &dyn File) -> Result<(Tail, Vec<u8>)> {
    read_tail(file, file.bytes()?, Tail::decode_alone)
}

fn read_tail(file: &dyn File, end: u64, decode: impl Fn(&[u8], u64) -> Result<Tail>) -> Result<(Tail, Vec<u8>)> {
    if end < BLOCK as u64 {
        crate::bail!(NMC_ERR_CORRUPT, "a bucket has {end} bytes");
    }
    let guess = TAIL_GUESS.min(end / BLOCK as u64 * BLOCK as u64);
    let mut last = Buffer::new(usize::try_from(guess).unwrap_or(BLOCK))?;
    file.read(&mut last, end - guess)?;
    let tail = decode(&last[last.len() - BLOCK..], end)?;
    let mut list = memory::zeroed::<u8>(usize::try_from(tail.list_bytes).unwrap_or(usize::MAX))?;
    match (last.len() - BLOCK).checked_sub(list.len()) {
        Some(from) => list.copy_from_slice(&last[from..last.len() - BLOCK]),
        None => file.read(&mut list, tail.list_at)?,
    }
    Ok((tail, list))
}

/// Fails if a list is that of another bucket.
fn check_is(tail: &Tail, bucket: u64) -> Result<()> {
    if tail.bucket != bucket {
        crate::bail!(NMC_ERR_CORRUPT, "the list of bucket {bucket} says that it is that of bucket {}", tail.bucket);
    }
    Ok(())
}

#[cold]
fn no_bucket(bucket: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("there is no bucket {bucket}"))
}
