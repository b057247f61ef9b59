//! Every message of the protocol. The comment of a struct says who sends it to whom and what it does; the answers of a
//! request are named there too. `docs/cluster.md` has the same as one table.

use super::fields::{Card, Metadata, Prefix, Space, numbered};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::nmc_status_t;
use crate::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId, Term};
use crate::rpc::packet::{Cursor, Field, message_structs};

/// Keys of one [`Find`].
pub const MAX_KEYS: usize = 256;
/// Replicas of one key in an answer.
pub const MAX_LISTED: usize = 16;
/// Copies that a put may ask for.
pub const MAX_COPIES: u32 = 16;
/// Segments of one node.
pub const MAX_SEGMENTS: usize = 128;
/// The bits of a report's number above these say which stream of the node it is in: a later one has a higher number.
pub const STREAM_SHIFT: u32 = 32;
/// Bytes of text in front of which an item in a list is closed, so that the message fits.
pub const ROOM: usize = super::MAX_MESSAGE - 4096;

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
        /// The host that copies should be near, for a strategy that knows hosts.
        pub near: String,
    }

    /// Client → master: lets a put begin. Answered by [`PutPlaces`].
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

    /// A replica that an owner says it has published.
    pub struct Done {
        /// Its name.
        pub name: Name,
        /// The number of the fact in the owner's ring.
        pub fact: u64,
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

    /// A replica as the master lists it.
    pub struct Replica {
        /// Its name.
        pub name: Name,
        /// The put it came from.
        pub put: PutId,
        /// Bytes of the value; of a striped one, of all its parts.
        pub length: u64,
        /// Where it is kept.
        pub media: Media,
        /// Where its owner listens.
        pub endpoint: String,
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

    /// Node → master: a put was read by somebody who wants it to go so long after that. All replicas of that put do, and nothing else that has the key. Not answered; if it was asked for before, that counts.
    pub struct Expire {
        /// What was read.
        pub key: ObjectKey,
        /// The put that it came from.
        pub put: PutId,
        /// How long it stays.
        pub after_ms: u32,
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

    /// A segment as its owner describes it.
    pub struct SegmentInfo {
        /// Its number on the node: facts name it.
        pub number: u32,
        /// Its name; no other segment in the cluster has it.
        pub name: String,
        /// What it is made of.
        pub media: Media,
        /// Bytes in all.
        pub capacity: u64,
        /// Bytes in use.
        pub used: u64,
        /// NUMA node or device, -1 for none.
        pub near: i32,
    }

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

    /// Client → master: a segment takes nothing more, and what is only there is copied elsewhere. Answered by [`Answer`] with
    /// the number of objects that are left, and some of their keys.
    pub struct Drain {
        /// Name of the segment.
        pub segment: String,
        /// It is not to be emptied any more, and takes values again.
        pub cancel: bool,
    }

    /// Node → master: the node ends. It serves nobody any more and is not waited for; this life of it does not come back. Not answered.
    pub struct Leave {
        /// Whose it is.
        pub node: NodeId,
        /// Which life of the node.
        pub incarnation: u64,
        /// It has nothing: whatever it has when it comes back is not of this cluster, and need not be waited for.
        pub empty: bool,
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
        /// frame says, 30 s at most. The fact that is answered is 0.
        pub hold: bool,
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
        /// OK, or NO_SPACE, BUSY, EXISTS: try another segment; STALE: begin again.
        pub status: nmc_status_t,
        /// What was published.
        pub done: Option<Done>,
    }

    /// Client → node: some bytes of a replica. Answered by [`Fetched`], which the bytes follow.
    pub struct Fetch {
        /// Which one.
        pub name: Name,
        /// Its key: the owner compares both.
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
    }

    /// Node → client: the bytes, or why not.
    pub struct Fetched {
        /// OK, NOT_FOUND, BUSY or UNAVAILABLE; UNSUPPORTED if the owner cannot write them itself; TIMEOUT if it has tried, and bytes may
        /// still arrive.
        pub status: nmc_status_t,
        /// The put that they are of.
        pub put: PutId,
        /// Bytes of the whole value.
        pub length: u64,
        /// Bytes that follow.
        pub follows: u64,
        /// Code of the retain class and priority.
        pub retain: u32,
        /// What the writer said about it.
        pub metadata: Metadata,
    }

    /// Whoever connects → whom it connected to, if that wants to know: the first message. It is not answered.
    pub struct Hello {
        /// What both know.
        pub token: String,
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

    /// Client → node: stop writing what this request asked for. Answered by [`Answer`]: OK if all of it has arrived or nothing of it was
    /// sent, TIMEOUT if bytes may still arrive.
    pub struct CancelFetch {
        /// Number of the request.
        pub request: u64,
        /// Which life of the node was asked: another one knows nothing of it.
        pub incarnation: u64,
    }
}

message_structs! {
    /// An object lives at an index.
    pub struct Published {
        /// Where.
        pub index: u32,
        /// Epoch of that.
        pub epoch: u64,
        /// The object.
        pub key: ObjectKey,
        /// The put that it came from.
        pub put: PutId,
        /// Bytes of the value.
        pub length: u64,
        /// Number of the segment.
        pub segment: u32,
    }

    /// What lived at an index is no more: evicted, removed, replaced, taken.
    pub struct Retired {
        /// Where.
        pub index: u32,
        /// Epoch of that.
        pub epoch: u64,
    }

    /// Facts of the ring, in its order.
    pub struct Facts {
        /// Number of the first.
        pub first: u64,
        /// They.
        pub facts: Vec<Fact>,
    }

    /// Part of a snapshot: what lives in a range of indexes. What is not listed does not live.
    pub struct Range {
        /// First index.
        pub from: u32,
        /// The index behind the last.
        pub to: u32,
        /// What lives there.
        pub live: Vec<Published>,
    }

    /// A snapshot is complete.
    pub struct SnapshotEnd {
        /// It holds the facts up to this one; those behind it follow.
        pub facts: u64,
    }

    /// The drop log was applied, and the facts that came of it are in the stream before this.
    pub struct Applied {
        /// How far.
        pub position: Position,
    }

    /// A copy is going to be published, if there is still such a replica. Answered by [`Announced`].
    pub struct Announce {
        /// The object.
        pub key: ObjectKey,
        /// The put that it is a copy of.
        pub put: PutId,
        /// Whose answer is whose.
        pub ticket: u64,
    }

    /// A copy that was announced is not going to be published.
    pub struct Withdraw {
        /// The object.
        pub key: ObjectKey,
        /// The put that it was to be a copy of.
        pub put: PutId,
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
}

numbered! {
    /// What happened in a node's store.
    pub enum Fact: "kind of fact" {
        /// Something lives.
        1 => Published(Published),
        /// Something no longer does.
        2 => Retired(Retired),
    }
}

numbered! {
    /// What a report says.
    pub enum News: "kind of news" {
        /// What happened.
        1 => Facts(Facts),
        /// What there is.
        2 => Range(Range),
        /// That was all.
        3 => SnapshotEnd(SnapshotEnd),
        /// Drops that were applied.
        4 => Applied(Applied),
        /// A copy to come.
        5 => Announce(Announce),
        /// A copy that does not come.
        6 => Withdraw(Withdraw),
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

/// An enum inside of a message: its number, then what it holds.
macro_rules! enum_fields {
    ($($t:ty),*) => {$(
        impl Field for $t {
            fn put(&self, to: &mut Vec<u8>) {
                self.number().put(to);
                self.put_body(to);
            }
            fn get(from: &mut Cursor<'_>) -> Result<Self> {
                let number = u32::get(from)?;
                Self::get_body(number, from)
            }
        }
    )*};
}
enum_fields!(Fact, News, Dropped);

numbered! {
    /// A message.
    pub enum Message: "message" {
        /// Lets a put begin.
        1 => PutStart(PutStart),
        /// Where it may go.
        2 => PutPlaces(PutPlaces),
        /// Opens its gate.
        3 => PutEnd(PutEnd),
        /// Gives it up.
        4 => PutRevoke(PutRevoke),
        /// Asks for replicas.
        5 => Find(Find),
        /// Replicas.
        6 => Found(Found),
        /// Removes an object.
        7 => Remove(Remove),
        /// Removes many.
        8 => RemoveAll(RemoveAll),
        /// Asks for segments.
        9 => ListSegments(ListSegments),
        /// Segments.
        10 => Segments(Segments),
        /// What came of it.
        11 => Answer(Answer),
        /// Somebody else leads.
        12 => Redirect(Redirect),
        /// Empties a segment.
        13 => Drain(Drain),
        /// Asks for keys.
        14 => ListKeys(ListKeys),
        /// Keys.
        15 => Keys(Keys),
        /// What was read goes after a while.
        16 => Expire(Expire),
        /// A node comes.
        20 => Join(Join),
        /// It is a member.
        21 => Welcome(Welcome),
        /// The stream of a node.
        22 => Report(Report),
        /// A node lives.
        23 => Ping(Ping),
        /// What was received of it.
        24 => Ack(Ack),
        /// It is no member.
        25 => Rejoin(Rejoin),
        /// What it must drop.
        26 => Drops(Drops),
        /// A copy may be published.
        27 => Announced(Announced),
        /// A segment comes or goes.
        28 => Mount(Mount),
        /// A copy is wanted.
        29 => CopyThis(CopyThis),
        /// A node ends.
        30 => Leave(Leave),
        /// A node wants a copy.
        31 => AddReplica(AddReplica),
        /// A node wants its disk to have less.
        32 => EvictDisk(EvictDisk),
        /// A value is to be compared.
        33 => Verify(Verify),
        /// It was.
        34 => Verified(Verified),
        /// A value comes.
        40 => Put(Put),
        /// What came of it.
        41 => PutDone(PutDone),
        /// A value is wanted.
        42 => Fetch(Fetch),
        /// A value.
        43 => Fetched(Fetched),
        /// Room for a value is wanted.
        44 => Reserve(Reserve),
        /// Room.
        45 => Reserved(Reserved),
        /// The value is there.
        46 => Commit(Commit),
        /// No byte of it comes any more.
        47 => Stopped(Stopped),
        /// Stop sending it.
        48 => CancelFetch(CancelFetch),
        /// How a mover is reached.
        49 => Mover(Mover),
        /// Who connects.
        60 => Hello(Hello),
    }
}

impl Message {
    /// Bytes of the value that follows.
    #[must_use]
    pub fn value(&self) -> u64 {
        match self {
            Message::Put(put) => put.length,
            Message::Fetched(fetched) => fetched.follows,
            _ => 0,
        }
    }
}

impl Message {
    /// The life of a node that says this to a master: on the wire it is the secret of that life.
    pub fn own_incarnation(&mut self) -> Option<&mut u64> {
        match self {
            Message::Join(join) => Some(&mut join.incarnation),
            Message::Report(report) => Some(&mut report.incarnation),
            Message::Ping(ping) => Some(&mut ping.incarnation),
            Message::Leave(leave) => Some(&mut leave.incarnation),
            Message::Mount(mount) => Some(&mut mount.incarnation),
            Message::AddReplica(add) => Some(&mut add.incarnation),
            Message::EvictDisk(evict) => Some(&mut evict.incarnation),
            Message::Verified(verified) => Some(&mut verified.incarnation),
            _ => None,
        }
    }
}

/// Whether a value may follow a message of this kind.
pub(super) fn may_carry_a_value(kind: u32) -> bool {
    matches!(kind, 40 | 43)
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
