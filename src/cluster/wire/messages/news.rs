//! What is in a node's reports: what its store has, and what became of it.

use crate::cluster::types::{ObjectKey, Position, PutId};
use crate::cluster::wire::fields::numbered;
use crate::rpc::packet::message_structs;

message_structs! {
    /// Facts of the ring, in its order.
    pub struct Facts {
        /// Number of the first.
        pub first: u64,
        /// They.
        pub facts: Vec<Fact>,
    }

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
