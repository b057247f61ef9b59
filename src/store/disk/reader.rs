//! Where a tier below memory meets a client: what that asks for when memory has nothing. A store without a tier pays one branch on a
//! miss. Values that are in memory never come here.

use super::map::DiskMap;
use crate::base::error::Result;
use crate::layout::disk::{Entry, Space};
use crate::store::copy::Pieces;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// A live entry of the disk's index, as it was when it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskEntry {
    /// Which entry it is.
    pub index: u32,
    /// Its first word: another one says that the entry has ended, or is another value's.
    pub word: u64,
    /// What it says.
    pub entry: Entry,
    /// The put that its value came from: the record that it leads to has the same.
    pub put: u64,
}

/// Takes the bytes of a value that are found right, from this offset on; they come in order.
pub type Take<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Where the bytes of a value go.
pub enum Target<'a> {
    /// Into memory that the CPU writes.
    Host(Pieces<'a>),
    /// To whoever takes them elsewhere.
    Take(&'a mut Take<'a>),
}

/// A value, or a part of one, that is to be read.
pub struct DiskRead<'a> {
    /// Where it is.
    pub entry: DiskEntry,
    /// Its key.
    pub key: &'a [u8],
    /// The first byte that is wanted.
    pub offset: u64,
    /// How many are: they end within the value.
    pub bytes: u64,
    /// Where they go. After a failure nothing is known of what is there.
    pub to: Target<'a>,
    /// What came of it: false if the entry has ended meanwhile, and the key is to be looked for again.
    pub outcome: Result<bool>,
}

/// A value as its record describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// What its writer said about it.
    pub metadata: Vec<u8>,
    /// Codes of its retain class and priority.
    pub class: (u8, u8),
}

/// A record that a listing comes to.
#[derive(Debug, Clone, Copy)]
pub struct DiskRecord<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Epoch of the object that was written.
    pub epoch: u64,
    /// Name of the put that the value came from.
    pub put: u64,
    /// An entry leads to it. If not it is over, or its bucket was completed a moment ago.
    pub resident: bool,
}

/// Which records a listing gives.
pub type Wanted<'a> = dyn FnMut(&DiskRecord<'_>) -> Result<bool> + 'a;
/// A key that a listing came to, with the bytes of its value, and where it goes on.
pub type NextOnDisk = (Option<(Vec<u8>, u64)>, u64);

/// Shift of a bucket's number in a place on disk: below it are the records of one bucket.
pub const PLACE_SHIFT: u32 = 26;

/// The disk as a client reads it, by itself, without asking the master.
pub trait DiskReader: Any + Send + Sync {
    /// Reads all of these, many at a time; nothing is under way when this returns.
    fn read(&self, map: &DiskMap, reads: &mut [DiskRead<'_>]);

    /// What the records of these entries and keys say; `None` for each whose entry has ended.
    fn infos(&self, map: &DiskMap, wanted: &[(DiskEntry, &[u8])]) -> Result<Vec<Result<Option<DiskInfo>>>>;

    /// The key of an entry and what its namespace was when it was written; `None` if the entry has ended.
    fn key_of(&self, map: &DiskMap, entry: &DiskEntry) -> Result<Option<(Vec<u8>, Space)>>;

    /// The first record of a namespace at `cursor` or behind that is wanted, bucket by bucket, in the order in which they are
    /// written: its key, which may be over by now, and the bytes of its value. Gives where to go on, also at the end: the number of
    /// a bucket from bit `PLACE_SHIFT` on, below which everything was come to.
    fn next(&self, map: &DiskMap, space: Space, cursor: u64, wanted: &mut Wanted<'_>) -> Result<NextOnDisk>;
}

/// Makes the reader of a directory.
pub type MakeReader = fn(OwnedFd, u64) -> Result<Arc<dyn DiskReader>>;

/// The maker that the layer above gave, see [`set_maker`].
static MAKER: OnceLock<MakeReader> = OnceLock::new();

/// Says how readers are made: the tier does, since the store does not know it.
pub fn set_maker(maker: MakeReader) {
    let _ = MAKER.set(maker);
}

/// A reader for a directory.
pub(in crate::store) fn make_reader(directory: OwnedFd, flags: u64) -> Result<Arc<dyn DiskReader>> {
    match MAKER.get() {
        Some(make) => make(directory, flags),
        None => crate::bail!(NMC_ERR_UNSUPPORTED, "the store has a tier below memory, which this program cannot read"),
    }
}
