//! What several messages speak of.

use crate::cluster::types::{Media, Name, PutId};
use crate::rpc::packet::message_structs;

message_structs! {
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
        /// NUMA node of memory of the host, number of the GPU for memory of one; -1 if that is not known.
        pub near: i32,
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

    /// A replica that an owner says it has published.
    pub struct Done {
        /// Its name.
        pub name: Name,
        /// The number of the fact in the owner's ring.
        pub fact: u64,
    }
}
