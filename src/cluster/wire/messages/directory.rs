//! What clients ask a master for, and its answers: puts, places, removals, listings.

use super::nouns::{Done, Replica, SegmentInfo};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::nmc_status_t;
use crate::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId, Term};
use crate::cluster::wire::fields::{Prefix, Space};
use crate::rpc::packet::message_structs;

message_structs! {
    /// A segment that a put must go to.
    pub struct Location {
        /// Name of the segment.
        pub segment: String,
        /// Medium on that segment's node, if the name is a node's.
        pub media: Option<Media>,
    }

    /// How an object is to be spread.
    pub struct Replicate {
        /// Copies in all.
        pub copies: u32,
        /// Copies by medium, in the order of [`Media::ALL`]; if they are more than `copies` the sum counts.
        pub media: Vec<u32>,
        /// Where copies must be.
        pub fixed: Vec<Location>,
        /// The host that copies should be near, for a strategy that knows hosts: its address, as nodes there say it.
        pub near: String,
    }

    /// Client → master: lets a put begin. Answered by [`PutPlaces`], or by [`Answer`] with the reason why not.
    pub struct PutStart {
        /// What is put.
        pub key: ObjectKey,
        /// Bytes of the value.
        pub length: u64,
        /// Bytes of each piece of it: they must add up.
        pub slices: Vec<u64>,
        /// Where to.
        pub config: Replicate,
        /// It is the stub of a value whose parts are put under the id that this put gets, before it ends: as many bytes as parts.
        pub striped: bool,
    }

    /// A segment that may be put to.
    pub struct Place {
        /// Its node.
        pub node: NodeId,
        /// Which life of it.
        pub incarnation: u64,
        /// Number of the segment on that node.
        pub segment: u32,
        /// What it is made of.
        pub media: Media,
        /// Where the node listens.
        pub endpoint: String,
        /// It must have applied the drop log this far before it takes the put: what was removed in one sweep before the put began
        /// must not take the put with it.
        pub after: Position,
        /// The put names this segment. Otherwise its node may take the value in another one of its memory.
        pub exact: bool,
    }

    /// Master → client: where a put may go.
    pub struct PutPlaces {
        /// Whether it may at all.
        pub status: nmc_status_t,
        /// The leader's term.
        pub term: Term,
        /// The put.
        pub put: PutId,
        /// How many copies are wanted; the places behind the first so many are for when one fails.
        pub copies: u32,
        /// Where to, best first.
        pub places: Vec<Place>,
    }

    /// Client → master: opens the gate of a put. Answered by [`Answer`]: OK when the master has those facts and one of the
    /// replicas lives, STALE when none does or the put was revoked.
    pub struct PutEnd {
        /// The put.
        pub put: PutId,
        /// Its key.
        pub key: ObjectKey,
        /// Where it is.
        pub done: Vec<Done>,
        /// Nodes that were asked to take it and did not say that they have: they may have it all the same.
        pub tried: Vec<NodeId>,
        /// CRC32C of the value: its owners hold it back, and publish it when they have found the same. CORRUPT if none has.
        pub crc: Option<u32>,
    }

    /// Client → master: gives a put up. Answered by [`Answer`], like a remove.
    pub struct PutRevoke {
        /// The put.
        pub put: PutId,
        /// Its key.
        pub key: ObjectKey,
    }

    /// Client → master: where are these? Answered by [`Found`].
    pub struct Find {
        /// Keys.
        pub keys: Vec<ObjectKey>,
        /// Replicas that their owners said they do not have; they are not listed again.
        pub missed: Vec<Name>,
    }

    /// What is known of a key.
    pub struct Listed {
        /// OK, NOT_FOUND, or UNAVAILABLE while the master is still being told what there is.
        pub status: nmc_status_t,
        /// Where it is.
        pub replicas: Vec<Replica>,
    }

    /// Master → client: where they are, in the order of the keys.
    pub struct Found {
        /// The leader's term.
        pub term: Term,
        /// One for each key.
        pub keys: Vec<Listed>,
    }

    /// Client → master: removes an object. Answered by [`Answer`]: OK when every owner has dropped it, IN_PROGRESS when some
    /// owner is away and nothing durable says that it must drop it.
    pub struct Remove {
        /// Which.
        pub key: ObjectKey,
        /// Whether the answer waits for the owners.
        pub wait: bool,
        /// Names the call: if it is asked for again, or comes again, it is not done again.
        pub call: u64,
    }

    /// Client → master: removes all objects of a namespace, or of all of them. Answered like [`Remove`].
    pub struct RemoveAll {
        /// Which namespace; none for all.
        pub space: Option<Space>,
        /// Whether the answer waits for the owners.
        pub wait: bool,
        /// See [`Remove::call`].
        pub call: u64,
    }

    /// Client → master: which segments there are. Answered by [`Segments`].
    pub struct ListSegments {
        /// From where on: 0, or what the last answer said.
        pub cursor: u32,
    }

    /// A segment, with its owner.
    pub struct Segment {
        /// Its owner.
        pub node: NodeId,
        /// The machine, as its node says: the address at which others reach it.
        pub host: String,
        /// As the owner described it.
        pub info: SegmentInfo,
        /// 0 OK, 1 DRAINING, 2 GONE.
        pub state: u32,
    }

    /// Master → client: segments.
    pub struct Segments {
        /// The leader's term.
        pub term: Term,
        /// Some of them.
        pub list: Vec<Segment>,
        /// Where to go on; 0 at the end.
        pub next: u32,
    }

    /// Client → master: a segment takes nothing more, and what is only there is copied elsewhere. Answered by [`Answer`] with
    /// the number of objects that are left, and some of their keys.
    pub struct Drain {
        /// Name of the segment.
        pub segment: String,
        /// It is not to be emptied any more, and takes values again.
        pub cancel: bool,
    }

    /// Client → master: which keys there are. Answered by [`Keys`], or UNAVAILABLE while the master is still being told what there is.
    pub struct ListKeys {
        /// From where on: 0, or what the last answer said.
        pub cursor: u32,
        /// Of which namespace.
        pub space: Space,
        /// What they begin with.
        pub prefix: Prefix,
    }

    /// Master → client: keys.
    pub struct Keys {
        /// The leader's term.
        pub term: Term,
        /// Some of them; it may be none although there are more.
        pub list: Vec<ObjectKey>,
        /// Where to go on; 0 at the end.
        pub next: u32,
    }

    /// Anybody → anybody: what came of a request that gives nothing else.
    pub struct Answer {
        /// The term of a master; 0 of a node.
        pub term: Term,
        /// How it went.
        pub status: nmc_status_t,
        /// How many: copies of a put, entries removed.
        pub count: u64,
        /// Why, for people.
        pub text: String,
    }

    /// Master → anybody: somebody else leads.
    pub struct Redirect {
        /// The highest term that is known.
        pub term: Term,
        /// Where the leader listens; empty if that is not known.
        pub leader: String,
    }
}

impl Find {
    /// The same, if memory is given for it.
    pub fn copy(&self) -> Result<Self> {
        let keys = memory::try_collect(self.keys.iter().map(ObjectKey::copy))?;
        Ok(Self { keys, missed: memory::copy(&self.missed)? })
    }
}

impl Answer {
    /// From a node, or of a term.
    #[must_use]
    pub fn new(term: Term, status: nmc_status_t, text: impl Into<String>) -> Self {
        Self { term, status, count: 0, text: text.into() }
    }
}
