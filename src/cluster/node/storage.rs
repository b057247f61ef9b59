//! What a node's agent needs of the node's store. The store does what it is proven to do; this is the seam, with a model of it
//! behind it in the simulator. Every call is made by the agent's one control thread and does a bounded amount of work.
//!
//! What the store has to offer for it:
//! - **Facts**: a ring in the control slab to which the store's master appends {number, kind, index, epoch} whenever an object
//!   is published (seen by the master, revealed, promoted, recovered, offloaded) or retired (evicted, removed, replaced, taken,
//!   flushed), in the order in which it happens and before the call that caused it returns. Numbers start at 1 and never
//!   repeat within a store. What a `Published` fact needs besides is read from the header when the fact is read; if that is another epoch
//!   by then the fact may be left out, since its `Retired` follows.
//! - **The put id stays with the object**: in the header, in the record on disk, and through offload, promotion and recovery.
//! - **One object, several places**: dropping an object takes with it its other places on the node (memory and tier), since
//!   they are one put; each tells its own `Retired`.
//! - **Epochs never go back**: not across restarts, and not below what a tier recovered.
//! - **A position of the drop log** that lives as long as the objects do: in the slab, and in the tier's journal, where it is
//!   durable before it is confirmed to the master.

use crate::base::error::Result;
use crate::cluster::net::{Span, Spans};
use crate::cluster::types::{ObjectKey, Position, PutId};
use crate::cluster::wire::{Extent, Fact, Metadata, Published, Region, SegmentInfo};
use std::sync::Arc;

/// Tells a loop that there is something to look at.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What is to be written.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The put that it belongs to; the plan's id.
    pub put: PutId,
    /// The object.
    pub key: &'a ObjectKey,
    /// Bytes of the value.
    pub length: u64,
    /// Number of the segment.
    pub segment: u32,
    /// Whether no other one will do, where that has no room, or none without evicting.
    pub exact: bool,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What the writer says about it.
    pub metadata: &'a Metadata,
    /// Whether others have it too: then nobody waits for a disk.
    pub is_copy: bool,
}

/// A place for a value that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// Header.
    pub index: u32,
    /// Epoch to publish.
    pub epoch: u64,
}

/// A value that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// What the pin is called.
    pub pin: u64,
    /// The put that it came from.
    pub put: PutId,
    /// Bytes of the value.
    pub length: u64,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What its writer said about it.
    pub metadata: Metadata,
}

/// What became of the wish to hold a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// It is held.
    Held(Pinned),
    /// It is brought from the disk, under this number; see [`Storage::came`].
    Coming(u64),
}

/// What a node offers that changes with the tier below its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Name of the store: another one with another tier, since what is on disk has other places.
    pub store: u64,
    /// Slots of the tier.
    pub slots: u32,
    /// Its segments.
    pub segments: Vec<SegmentInfo>,
}

/// What a ring has from a number on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// These, in order; none if there is nothing yet.
    Facts(Vec<Fact>),
    /// Some of them were overwritten.
    Overwritten,
}

/// Objects in some indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// First index.
    pub from: u32,
    /// The index behind the last that was looked at.
    pub to: u32,
    /// What lives there.
    pub live: Vec<Published>,
    /// Where to go on; `None` at the end.
    pub next: Option<u32>,
}

/// See the module.
pub trait Storage {
    /// Finds room for a value. EXISTS if the key has one, or is being written; NO_SPACE, BUSY.
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan>;

    /// Where the bytes of a plan are, for those who write them from elsewhere, and from now on nobody else does. UNSUPPORTED if they cannot.
    fn extents(&mut self, plan: Plan) -> Result<Vec<Extent>>;

    /// CRC32C of the bytes of a plan that nobody writes to any more.
    fn checksum(&self, plan: Plan) -> Result<u32>;

    /// All bytes are there: publishes. Gives the number of the fact; none if it is to be on disk, see [`Storage::written`]. STALE if the plan was given up.
    fn commit(&mut self, plan: Plan) -> Result<Option<u64>>;

    /// Whether a value that was published is on disk by now: then the number of the newest fact. It is asked again and again until then, or until the
    /// plan is abandoned. An error says that it will not be.
    fn written(&mut self, plan: Plan) -> Result<Option<u64>>;

    /// Gives a plan up of which no byte is under way: its pages may be used again. If it was published and is not on disk yet, it goes.
    fn abandon(&mut self, plan: Plan);

    /// Gives a plan up of which bytes may still arrive: nobody gets its pages until it is abandoned. Gives how many bytes.
    fn doubt(&mut self, plan: Plan) -> u64;

    /// Holds a value, if it is the one with this index, epoch and key, or begins to bring it from the disk. If it has moved meanwhile, that of
    /// this put; where there is a disk and nobody says which put is meant, that of the key.
    fn pin(&mut self, plan: Plan, key: &ObjectKey, put: PutId) -> Result<Hold>;

    /// What was coming, held; `None` while it comes. It is asked again and again until then, or until nobody wants it any more.
    fn came(&mut self, coming: u64) -> Result<Option<Pinned>>;

    /// Nobody wants what is coming any more.
    fn forget(&mut self, coming: u64);

    /// These bytes of a value that is held are about to be sent. If they cannot be read where they are, they are brought to where they can. BUSY if that
    /// is to be tried again.
    fn ready(&mut self, _pin: u64, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// CRC32C of a value that is held, as its writer had it, if that is known. Nobody looks at the bytes for that.
    fn sum(&mut self, _pin: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Looks at these bytes of a value that is held: CORRUPT if it is known that they are something else than its writer had.
    fn verify(&mut self, _pin: u64, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Lets go of it.
    fn unpin(&mut self, pin: u64);

    /// Drops the object with this index, epoch and key, if it is there. Readers that hold it finish.
    fn drop_named(&mut self, plan: Plan, key: &ObjectKey);

    /// Drops what this key has, if it came from this put.
    fn drop_put(&mut self, key: &ObjectKey, put: PutId);

    /// Drops what this key has.
    fn drop_key(&mut self, key: &ObjectKey);

    /// Drops everything of a namespace, or of all.
    fn drop_space(&mut self, space: Option<&[u8]>);

    /// Number of the newest fact.
    fn newest(&self) -> u64;

    /// The same, certainly with everything that was published before this.
    fn notice(&self) -> Result<u64>;

    /// Facts behind a number, so many at most.
    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail>;

    /// What lives from an index on: a range with so many objects at most. Headers come first, then slots of the tier.
    fn part(&mut self, from: u32, most: usize) -> Result<Part>;

    /// How far the drop log was applied; `None` if the store was never in a cluster.
    fn position(&self) -> Option<Position>;

    /// Name of the tier, the same whenever it is opened; 0 for none.
    fn tier(&self) -> u64;

    /// How far the drop log was applied to what the tier has, if the tier was not there while it was applied to the rest.
    fn apart(&self) -> Option<Position>;

    /// Whether a tier that the store had is not there any more, and no leader has heard of that: it is not told what is dropped from now on.
    /// No leader need hear of it again when a position was set.
    fn has_left(&self) -> bool;

    /// Drops what the tier has brought and memory had not. It belongs to the rest when a position is set.
    fn drop_apart(&mut self) -> Result<()>;

    /// The drop log was applied this far. With a position of term 0 the store is as one that never was in a cluster. Fails if the tier was opened
    /// or closed since it was asked what it offers: entries may have been applied without it.
    fn set_position(&mut self, position: Position) -> Result<()>;

    /// Bytes in use, by segment in the order in which they were mounted: all of one in which nothing can lie.
    fn used(&self) -> Vec<u64>;

    /// Whether anything has bytes anywhere, also what is being written.
    fn has_bytes(&self) -> bool;

    /// Nothing new is stored in a segment, by whomever; or it is again.
    fn close(&mut self, segment: u32, closed: bool) -> Result<()>;

    /// Whether nobody is writing to a segment: all that was written there is published, and in the facts by now.
    fn is_quiet(&mut self, segment: u32) -> bool;
}

/// A store whose values are in the memory of this process, or come there by the way.
pub trait Memory: Storage {
    /// Where the bytes of a plan go, for as long as it is neither committed nor given up.
    fn plan_spans(&self, plan: Plan) -> Result<Vec<Span>>;

    /// Where these bytes of a value are, which are ready, for as long as it is held.
    fn pin_spans(&self, pin: u64, offset: u64, bytes: u64) -> Result<Spans>;

    /// Where these bytes of a value are, for those who write them elsewhere and reach what the CPU does not. UNSUPPORTED if they do not reach these.
    fn far_spans(&self, pin: u64, offset: u64, bytes: u64) -> Result<Spans> {
        self.pin_spans(pin, offset, bytes)
    }

    /// Memory of the store that its extents are in, by the numbers of regions in them. What is elsewhere, or comes later, is not written to by others.
    fn regions(&mut self) -> Result<Vec<Region>>;

    /// What is called, from any thread, when something that was coming is there.
    fn wake_with(&mut self, wake: Wake);

    /// What is called, from any thread, when the node is about to end: nothing here waits for long from then on.
    fn ends_with(&self) -> Wake {
        Arc::new(|| ())
    }

    /// Whether the tier was opened or closed since it was asked what it offers.
    fn has_changed(&self) -> bool;

    /// What it offers now, as a node of this name.
    fn offer(&mut self, node: &str) -> Result<Offer>;
}
