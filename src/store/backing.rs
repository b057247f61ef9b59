//! Where a tier below memory meets the store: what a client asks for when memory has nothing, and what a master has written
//! down before it answers that something is gone. A store without a tier pays one branch on a miss. Values that are in memory
//! never come here.

use super::copy::Pieces;
use super::disk::DiskMap;
use super::master::ToWrite;
use super::told::Told;
use crate::base::error::{Error, Result};
use crate::layout::disk::{Entry, Space, Spot};
use crate::layout::store::MAX_NAMESPACE_NAME;
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

/// An entry that a value was read from, of one opening of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadFrom {
    /// Name of the disk's index.
    pub disk: u64,
    /// Which entry it was.
    pub entry: u32,
    /// Its first word.
    pub word: u64,
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

/// The store's memory as whoever writes the disk uses it.
pub trait HeldMemory: Send + Sync {
    /// Random name of the store.
    fn store_id(&self) -> u64;

    /// Copies bytes of an object that the master holds, and verifies them where there are sums.
    fn read_held(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()>;

    /// Brings the value of a key back into the heap of a rank, if nothing that only memory has must go for it; gives whether it is there now.
    fn promote(&self, namespace: u32, key: &[u8], rank: u32) -> bool;
}

/// What a client of another process gets, to read by itself.
pub struct DiskGrant {
    /// The index.
    pub map: Arc<DiskMap>,
    /// The directory.
    pub directory: OwnedFd,
    /// How it is read: `FLAG_*` of the tier.
    pub flags: u64,
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
pub(super) fn make_reader(directory: OwnedFd, flags: u64) -> Result<Arc<dyn DiskReader>> {
    match MAKER.get() {
        Some(make) => make(directory, flags),
        None => crate::bail!(NMC_ERR_UNSUPPORTED, "the store has a tier below memory, which this program cannot read"),
    }
}

/// A namespace's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceName {
    bytes: [u8; MAX_NAMESPACE_NAME],
    len: u8,
}

impl SpaceName {
    /// The name; `None` if it is too long.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_NAMESPACE_NAME];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len: u8::try_from(name.len()).ok()? })
    }
}

impl std::ops::Deref for SpaceName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Something that must not come back from the disk, or that must be known there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The value at this place was removed or replaced, or is not known to anybody.
    Dead {
        /// Where its record is, or will be.
        spot: Spot,
        /// Whether an entry led there.
        entered: bool,
    },
    /// The value at this place is of a generation that is over: nothing has to be written for it.
    Over {
        /// Where its record is.
        spot: Spot,
    },
    /// Everything of a namespace before this generation is forgotten.
    Generation(Space),
    /// A namespace has this number and generation on disk, whatever had the number before.
    Namespace(SpaceName, Space),
    /// The drop log of the cluster was applied this far.
    Position {
        /// Term of the entry.
        term: u64,
        /// Its number in that term.
        number: u64,
    },
}

/// The disk as the master writes it.
pub trait DiskOwner: Send + Sync {
    /// Takes marks, in the order in which they come about: called under the master's lock, and does not wait.
    fn note(&self, marks: &[Mark]);

    /// Writes down what was noted, by whatever call, before this returns. Called without the master's lock before a call is
    /// answered; `mine` tells that some of it came up in that call. If that could not be written the call fails, and what it
    /// removed stays removed in memory.
    fn settle(&self, mine: bool) -> Result<()>;

    /// Why nothing can be written down, if that is known.
    fn trouble(&self) -> Option<Error>;

    /// There is something to write, or soon will be.
    fn wake(&self);

    /// For a client of another process.
    fn grant(&self) -> Result<DiskGrant>;

    /// For those of this one.
    fn reader(&self) -> (Arc<DiskMap>, Arc<dyn DiskReader>);

    /// A call of a handle in another process: what, two numbers, and keys. The tier knows what they mean.
    fn call(&self, what: u32, arguments: [u64; 2], keys: &[&[u8]]) -> Result<[u64; 3]>;

    /// What happened to values of the disk with this name since it had told of so many, as far as names and keys take so many bytes.
    /// Does not wait.
    fn told(&self, disk: u64, since: u64, room: usize) -> Result<Told>;
}
