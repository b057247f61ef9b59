//! Every message of the protocol, by who speaks to whom. The comment of a struct says who sends it and what it does; the answers of a
//! request are named there too. `docs/protocol.md` is made of these comments (`NMC_BLESS=1 cargo test --lib wire::`).

mod directory;
mod member;
mod news;
mod nouns;
mod value;

pub use directory::*;
pub use member::*;
pub use news::*;
pub use nouns::*;
pub use value::*;

use super::fields::numbered;
use crate::base::error::Result;
use crate::rpc::packet::{Cursor, Field};

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
