//! What clients and nodes say to each other: values, and how they are moved.

use super::nouns::Done;
use crate::base::status::nmc_status_t;
use crate::cluster::types::{Name, ObjectKey, Position, PutId, Term};
use crate::cluster::wire::fields::{Card, Metadata};
use crate::rpc::packet::message_structs;

message_structs! {
    /// Whoever connects → whom it connected to, if that wants to know: the first message. It is not answered unless the token is wrong: then [`Answer`] with PERMISSION, and the connection ends.
    pub struct Hello {
        /// What both know.
        pub token: String,
    }

    /// Client → node: a value, whose bytes follow. Answered by [`PutDone`].
    pub struct Put {
        /// Plan id at the owner.
        pub put: PutId,
        /// The term in which the put began.
        pub term: Term,
        /// Which life of the node is meant.
        pub incarnation: u64,
        /// See [`Place::after`].
        pub after: Position,
        /// The segment.
        pub segment: u32,
        /// The object.
        pub key: ObjectKey,
        /// Bytes of the value.
        pub length: u64,
        /// Code of the retain class and priority.
        pub retain: u32,
        /// What the writer says about it.
        pub metadata: Metadata,
        /// It is not published before the master has the owner compare its checksum, see [`PutEnd::crc`], for which there is the time that the
        /// frame says, at most 30 s and what the value takes at 16 KiB a second. The fact that is answered is 0.
        pub hold: bool,
        /// It goes to that segment or nowhere, see [`Place::exact`]. Without, to another one of the node if that has no room, or has room without evicting.
        pub exact: bool,
    }

    /// Client → node: the same when somebody else moves the bytes: answered by [`Reserved`].
    pub struct Reserve {
        /// As in a put.
        pub put: Put,
        /// Whose agent is going to write.
        pub writer: String,
    }

    /// A run of bytes in a region that both sides know by its number. No address ever travels.
    pub struct Extent {
        /// The region.
        pub region: u32,
        /// Where in it.
        pub offset: u64,
        /// How many bytes.
        pub length: u64,
    }

    /// Node → client: where the bytes go.
    pub struct Reserved {
        /// Whether they may.
        pub status: nmc_status_t,
        /// The name under which it will be published.
        pub name: Option<Name>,
        /// Where to.
        pub extents: Vec<Extent>,
        /// Which of the owner's movers takes them: nothing arrives by way of another.
        pub mover: u64,
    }

    /// Client → node: all bytes are there, none is under way. Answered by [`PutDone`].
    pub struct Commit {
        /// The put.
        pub put: PutId,
    }

    /// Client → node: nothing more of this put is sent. Answered by [`Answer`].
    pub struct Stopped {
        /// The put.
        pub put: PutId,
        /// Something was: of that, bytes may still arrive.
        pub begun: bool,
    }

    /// Node → client: what came of a put.
    pub struct PutDone {
        /// OK, or NO_SPACE, BUSY, EXISTS: try another segment; NOT_READY: this one in a moment; STALE: begin again.
        pub status: nmc_status_t,
        /// What was published.
        pub done: Option<Done>,
    }

    /// Client → node: some bytes of a replica. Answered by [`Fetched`], which the bytes follow.
    pub struct Fetch {
        /// Which one. A value that has moved since, between memory and disk, is found by its key and put.
        pub name: Name,
        /// Its key, which the owner compares.
        pub key: ObjectKey,
        /// The put that it is of: what the key names by now may be another. 0 for whatever it is of.
        pub put: PutId,
        /// First byte.
        pub offset: u64,
        /// How many, at most.
        pub length: u64,
        /// Where the owner is to write them itself; none if they follow the answer.
        pub into: Vec<Extent>,
        /// Which of the caller's movers takes them then: nothing arrives by way of another.
        pub mover: u64,
        /// How long after it was first read the value goes, in ms: the owner tells the leader. 0 if it stays.
        pub expire_ms: u32,
        /// What is meant is the stub of a striped value.
        pub stub: bool,
        /// The owner compares the bytes with their checksums first, if it has any: CORRUPT if they are not what they were. For whoever cannot do that with
        /// [`Fetched::sum`], or found another.
        pub verify: bool,
    }

    /// Node → client: the bytes, or why not.
    pub struct Fetched {
        /// OK, NOT_FOUND, BUSY or UNAVAILABLE; CORRUPT if the owner knows that it has something else by now; UNSUPPORTED if it cannot write them itself;
        /// TIMEOUT if it has tried, and bytes may still arrive.
        pub status: nmc_status_t,
        /// The put that they are of.
        pub put: PutId,
        /// Bytes of the whole value.
        pub length: u64,
        /// Bytes that follow.
        pub follows: u64,
        /// CRC32C of the value as its writer had it, if the owner keeps checksums and all of it is sent. It has not looked at the bytes: whoever reads
        /// compares. Of a part the owner has compared what it has of it.
        pub sum: Option<u32>,
        /// Code of the retain class and priority.
        pub retain: u32,
        /// What the writer said about it.
        pub metadata: Metadata,
    }

    /// Client → node: stop writing what this request asked for. Answered by [`Answer`]: OK if all of it has arrived or nothing of it was
    /// sent, TIMEOUT if bytes may still arrive.
    pub struct CancelFetch {
        /// Number of the request.
        pub request: u64,
        /// Which life of the node was asked: another one knows nothing of it.
        pub incarnation: u64,
    }

    /// Memory that a mover writes to, or reads.
    pub struct Region {
        /// Its number, by which extents name it.
        pub number: u32,
        /// Where it is for its own process: what its mover has said is somewhere in it, and nobody else uses it.
        pub base: u64,
        /// How many bytes.
        pub length: u64,
        /// Number of the GPU whose memory it is; none for the host's.
        pub device: Option<u32>,
    }

    /// Client → node, and back: how the mover of whoever says it is reached. A node answers with its own. With the id 0 there is none.
    pub struct Mover {
        /// Which one: random, another after each renewal.
        pub id: u64,
        /// How often its memory has changed.
        pub edition: u64,
        /// What its library says about itself.
        pub card: Card,
        /// Its memory.
        pub regions: Vec<Region>,
    }
}
