//! Where a tier below memory meets the master of a store: what the master has written down before it answers that something is
//! gone, what is to be written, and what was.

use super::map::DiskMap;
use super::reader::DiskReader;
use super::told::Told;
use crate::base::error::{Error, Result};
use crate::layout::disk::{Entry, Space, Spot};
use crate::layout::store::MAX_NAMESPACE_NAME;
use crate::store::types::Retain;
use std::os::fd::OwnedFd;
use std::sync::Arc;

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

/// An object that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToWrite {
    /// Header.
    pub index: u32,
    /// Epoch.
    pub epoch: u64,
    /// Its namespace in the store.
    pub namespace: u32,
    /// The same on disk.
    pub space: Space,
    /// Its key.
    pub key: Vec<u8>,
    /// What its writer said about it.
    pub metadata: Vec<u8>,
    /// Bytes of its value.
    pub bytes: u64,
    /// Rank whose heap holds it.
    pub rank: u32,
    /// Retain class and priority.
    pub class: (Retain, u16),
    /// The put that it came from.
    pub put: u64,
}

/// Which objects are to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that may be evicted soon.
    Ahead,
    /// All.
    All,
}

/// A record that was found on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    /// Its entry.
    pub entry: Entry,
    /// Store in which it was written.
    pub store_id: u64,
    /// The put that it came from.
    pub put: u64,
}

/// What a directory has when its owner begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskContent<'a> {
    /// Namespaces.
    pub names: &'a [(SpaceName, Space)],
    /// Records.
    pub found: &'a [OnDisk],
    /// The highest epoch of a record that was ever there.
    pub last_epoch: u64,
    /// How far the drop log of a cluster was applied to it.
    pub position: Option<(u64, u64)>,
}

/// An object whose record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Header.
    pub index: u32,
    /// Its namespace on disk, when it was chosen.
    pub generation: u32,
    /// Its entry.
    pub entry: Entry,
    /// The put that it came from.
    pub put: u64,
}

/// What the master has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Entries that live.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Room for so many entries.
    pub capacity: u64,
    /// Objects whose records are being written.
    pub held: u64,
    /// Evicted objects that the disk had.
    pub evicted_clean: u64,
    /// Evicted objects that it had not: they are lost.
    pub evicted_dirty: u64,
    /// Objects that were written and had no room in the index.
    pub full: u64,
    /// Entries that ended to make room for others.
    pub evicted: u64,
}

/// Which objects are written ahead of their eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Of a rank no more than so many, and so many bytes: a disk that holds less than is written ahead would write it again and
    /// again.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
    /// Those that were read in so many different milliseconds.
    pub reads: u32,
    /// Those with this priority, or a higher one.
    pub priority: u16,
}

impl Default for Admission {
    fn default() -> Self {
        Self { objects: u64::MAX, bytes: u64::MAX, reads: 0, priority: 0 }
    }
}
