//! What a node and its master say to each other: who is a member, what it must drop, which copies it is to make.

use super::news::News;
use super::nouns::{Done, Replica, SegmentInfo};
use crate::base::status::nmc_status_t;
use crate::cluster::types::{NodeId, ObjectKey, Position, PutId, Term};
use crate::cluster::wire::fields::{Space, numbered};
use crate::rpc::packet::message_structs;

message_structs! {
    /// Node → master: a node comes, or comes back. Answered by [`Welcome`], or by [`Answer`] with the reason why not.
    pub struct Join {
        /// Name of the node; [`NodeId::of`] it is its id.
        pub name: String,
        /// Which life of it this is.
        pub incarnation: u64,
        /// Which store it has: names in it go on when only the agent is new.
        pub store: u64,
        /// How far the store has applied the drop log; none if it was never in a cluster.
        pub since: Option<Position>,
        /// Name of the tier that it has; 0 for none.
        pub tier: u64,
        /// How far the tier has applied it, if it was not there for a while and was not told what was dropped.
        pub apart: Option<Position>,
        /// A tier that the store had is not there any more: it is not told what is dropped from now on.
        pub left: bool,
        /// Where it listens.
        pub endpoint: String,
        /// The machine it is on.
        pub host: String,
        /// Headers that its store has.
        pub headers: u32,
        /// Slots of its tier.
        pub slots: u32,
        /// When it was sent, by the node's clock.
        pub sent_at: u64,
        /// What it offers.
        pub segments: Vec<SegmentInfo>,
    }

    /// Master → node: the node is a member. It applies the drop log, which follows, up to `head`; then it reports.
    pub struct Welcome {
        /// The leader's term.
        pub term: Term,
        /// Which life of the node was welcomed.
        pub incarnation: u64,
        /// The report that the master waits for. If it is in a later stream than the node's the master knows nothing of that, and
        /// the node begins again from this number, with a snapshot.
        pub next: u64,
        /// The log does not reach back to where the node is: it drops all that it had.
        pub fresh: bool,
        /// Nobody knows what of the part that was not there was removed: the node drops that part.
        pub apart: bool,
        /// Where the log ends for the node.
        pub head: Position,
        /// How long after its last answered message the node may serve others.
        pub fence_ms: u32,
        /// When the node said that it comes, see [`Ping::sent_at`].
        pub sent_at: u64,
    }

    /// Node → master: the next part of the node's one ordered stream. Answered by [`Ack`].
    pub struct Report {
        /// The term whose leader it is meant for.
        pub term: Term,
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// Its number. Only the one that the master waits for is taken.
        pub number: u64,
        /// When it was sent, by the node's clock.
        pub sent_at: u64,
        /// What it says.
        pub news: News,
    }

    /// Node → master: the node lives. Answered by [`Ack`].
    pub struct Ping {
        /// The term whose leader it is meant for.
        pub term: Term,
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// When it was sent, by the node's clock.
        pub sent_at: u64,
        /// How far the drop log was applied.
        pub position: Position,
        /// Bytes in use, of each segment in the order in which they were mounted.
        pub used: Vec<u64>,
        /// Segments that take nothing more, and to which nobody is writing any more.
        pub closed: Vec<u32>,
        /// The facts up to this one tell of all that was ever put there.
        pub newest: u64,
        /// From the answer by which they were closed.
        pub changed: u64,
    }

    /// Master → node: what was received.
    pub struct Ack {
        /// The leader's term.
        pub term: Term,
        /// Which life of the node.
        pub incarnation: u64,
        /// The report that the master waits for.
        pub next: u64,
        /// The ring's facts that the directory has: all up to this one.
        pub facts: u64,
        /// From the message that this answers.
        pub sent_at: u64,
        /// Segments that are to take nothing more; all others do.
        pub closed: Vec<u32>,
        /// How often the leader has changed its mind about that.
        pub changed: u64,
    }

    /// Master → node: the master does not count the node as a member at the moment. It joins again.
    pub struct Rejoin {
        /// The leader's term.
        pub term: Term,
    }

    /// Node → master: the node ends. It serves nobody any more and is not waited for; this life of it does not come back. Answered by [`Answer`] if it has a
    /// request number.
    pub struct Leave {
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// It has nothing: whatever it has when it comes back is not of this cluster, and need not be waited for.
        pub empty: bool,
    }

    /// Node → master: a segment more, or one less. Answered by [`Answer`].
    pub struct Mount {
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// The segment.
        pub segment: SegmentInfo,
        /// Whether it goes.
        pub unmount: bool,
    }

    /// Master → node: entries of the drop log that concern the node. Applied if the node has all before them.
    pub struct Drops {
        /// The leader's term.
        pub term: Term,
        /// What the node must have applied.
        pub after: Position,
        /// What it has applied afterwards.
        pub through: Position,
        /// Entries, in their order.
        pub entries: Vec<DropEntry>,
    }

    /// An entry of the drop log, as one node is told it.
    pub struct DropEntry {
        /// Its place.
        pub position: Position,
        /// What is to go.
        pub what: Dropped,
    }

    /// One replica: dropped by its name if that is of this life of the node, else by key and put.
    pub struct DropReplica {
        /// The life of the node in which it had that name.
        pub incarnation: u64,
        /// Where; [`crate::cluster::types::NO_INDEX`] if it was announced only.
        pub index: u32,
        /// Epoch of that.
        pub epoch: u64,
        /// The object.
        pub key: ObjectKey,
        /// The put.
        pub put: PutId,
    }

    /// Whatever has this key: for nodes of which the master did not know what they had.
    pub struct DropKey {
        /// The key.
        pub key: ObjectKey,
    }

    /// Everything, or everything of a namespace.
    pub struct DropSpace {
        /// Which; none for all.
        pub space: Option<Space>,
    }

    /// Master → node: whether a copy that was announced may be published.
    pub struct Announced {
        /// The leader's term.
        pub term: Term,
        /// Which life of the node.
        pub incarnation: u64,
        /// What the announcement said.
        pub ticket: u64,
        /// OK, or NOT_FOUND if there is no such replica.
        pub status: nmc_status_t,
    }

    /// Master → node: make a copy of this, by announcing it first.
    pub struct CopyThis {
        /// The leader's term.
        pub term: Term,
        /// Which life of the node is meant.
        pub incarnation: u64,
        /// The object.
        pub key: ObjectKey,
        /// Where it is.
        pub from: Replica,
    }

    /// Master → node: a put has ended; if what the node holds back of it has this checksum it is published. Answered by [`Verified`].
    pub struct Verify {
        /// The leader's term.
        pub term: Term,
        /// Which life of the node is meant.
        pub incarnation: u64,
        /// The put.
        pub put: PutId,
        /// CRC32C of the value.
        pub crc: u32,
    }

    /// Node → master: what came of it.
    pub struct Verified {
        /// The term whose leader it is meant for.
        pub term: Term,
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// The put.
        pub put: PutId,
        /// OK; CORRUPT if the checksum is another; STALE if there is no such put; INVALID_ARG if it was not held back.
        pub status: nmc_status_t,
        /// What was published.
        pub done: Option<Done>,
    }

    /// Node → master: a put was read by somebody who wants it to go so long after that. All replicas of that put do, and nothing else that has the key. Not answered; if it was asked for before, that counts.
    pub struct Expire {
        /// What was read.
        pub key: ObjectKey,
        /// The put that it came from.
        pub put: PutId,
        /// How long it stays.
        pub after_ms: u32,
    }

    /// For a node, by whoever knows the secret of its life: it wants a copy of this put. Answered by [`Answer`], and [`CopyThis`] to the node.
    pub struct AddReplica {
        /// The node.
        pub node: NodeId,
        /// Which life of it.
        pub incarnation: u64,
        /// The object.
        pub key: ObjectKey,
        /// The put.
        pub put: PutId,
    }

    /// For a node, in the same way: what its disk has of these is to go, all of it or nothing. Answered like [`Remove`].
    pub struct EvictDisk {
        /// The node.
        pub node: NodeId,
        /// Which life of it.
        pub incarnation: u64,
        /// The objects.
        pub keys: Vec<ObjectKey>,
    }
}

numbered! {
    /// What an entry of the drop log takes away.
    pub enum Dropped: "kind of drop" {
        /// One replica.
        1 => Replica(DropReplica),
        /// A key.
        2 => Key(DropKey),
        /// A namespace.
        3 => Space(DropSpace),
    }
}
