//! What a client is set up with, is asked and told, and what it wants done.

use crate::base::status::nmc_status_t;
use crate::cluster::types::{Cut, Millis, NodeId, ObjectKey, PutId};
use crate::cluster::wire::{Extent, Frame, MAX_COPIES, Message, Metadata, Replica, Replicate, Space};

/// What a client is set up with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses of the masters.
    pub masters: Vec<String>,
    /// The machine, as it is in the addresses of the nodes on it.
    pub host: String,
    /// How long a master may take to answer before another is asked.
    pub master_ms: Millis,
    /// How long an owner may take before another is tried.
    pub owner_ms: Millis,
    /// Keys whose places are remembered.
    pub cache: usize,
    /// Which of several replicas is read.
    pub read_order: ReadOrder,
    /// Whether somebody else moves the bytes, where the other side can do that too; else they follow the frames.
    pub pushed: bool,
    /// Values that are smaller follow the frames in any case.
    pub pushed_from: u64,
    /// What chance begins with: it chooses among equal replicas and names calls, so no other client may have it.
    pub seed: u64,
}

/// Which of several replicas is read first. Owners that have failed lately come last in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadOrder {
    /// On this machine, then in memory, then where least is under way.
    #[default]
    Near,
    /// In memory, then on this machine, then where least is under way.
    Memory,
    /// In memory, then where least is under way, wherever that is.
    Spread,
}

/// What is put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutCall {
    /// The object.
    pub key: ObjectKey,
    /// Bytes of the value.
    pub length: u64,
    /// Bytes of its pieces.
    pub slices: Vec<u64>,
    /// Where to.
    pub config: Replicate,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What is said about it.
    pub metadata: Metadata,
    /// CRC32C of the value, if owners are to compare it before they publish it. Not where somebody else moves the bytes.
    pub crc: Option<u32>,
    /// If it has more bytes than this it is put in parts of about as many; 0 for never. Not with a checksum.
    pub stripe: u64,
}

impl GetCall {
    /// Into memory of so many bytes, and nothing besides.
    #[must_use]
    pub fn new(key: ObjectKey, room: u64) -> Self {
        Self { key, room, keep: false, expire_ms: 0, into: Vec::new(), unseen: false, about: false }
    }
}

impl PutCall {
    /// How it is cut, if it is put in parts.
    pub(super) fn cut(&self) -> Option<Cut> {
        Cut::by_size(self.length, self.stripe).filter(|_| self.crc.is_none() && self.key.may_be_striped())
    }
}

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetCall {
    /// The object.
    pub key: ObjectKey,
    /// Bytes that there is room for: what is larger is not asked for.
    pub room: u64,
    /// Whether a copy is to be kept on this node.
    pub keep: bool,
    /// How long after it was first read it goes, in ms; 0 if it stays.
    pub expire_ms: u32,
    /// Where the bytes go, if somebody else moves them.
    pub into: Vec<Extent>,
    /// The CPU here does not reach what arrives: owners that have checksums compare before they send.
    pub unseen: bool,
    /// Only what is said about it is wanted, and no byte of it.
    pub about: bool,
}

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Puts a value.
    Put(PutCall),
    /// Reads one.
    Get(GetCall),
    /// Removes one; whether it waits for the owners.
    Remove(ObjectKey, bool),
    /// Removes all of a namespace, or of all of them; whether it waits for the owners.
    RemoveAll(Option<Space>, bool),
    /// Asks the leader something that changes nothing, or may be asked twice.
    Ask(Box<Message>),
}

impl Call {
    /// What is read.
    #[must_use]
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Self::Get(get) => Some(&get.key),
            _ => None,
        }
    }
}

/// How many requests a put with so many copies has under way at most.
pub(super) fn requests_of(copies: u32) -> usize {
    copies.clamp(1, MAX_COPIES) as usize + 1
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A call with its number, and how long it may take.
    Call(u64, Millis, Call),
    /// Nobody wants anything of a call any more: nothing is sent for it after this, but that what it began is not to be.
    End(u64),
    /// A master, by its place in the list, says something.
    Master(usize, Frame),
    /// A node does.
    Node(NodeId, Frame),
    /// Time has passed.
    Tick,
    /// No answer to a request will come: its connection has ended.
    Lost(u64),
    /// A request could not be sent, for a reason of this process.
    Failed(u64, nmc_status_t),
    /// The node that was asked refuses this client, or this client the node, whatever it is asked.
    Refused(u64, nmc_status_t),
    /// The bytes that follow an answer are all there, or will not come.
    Took(u64, bool),
    /// The same: all are there, and their checksum is not the one that they were to have.
    Torn(u64),
    /// What somebody else has moved for a call was looked at: whether it has its checksum.
    Checked(u64, bool),
    /// The bytes of a request that somebody else moves are all there, or the call's memory is not read any more: then some may still
    /// arrive.
    Wrote(u64, bool),
    /// What somebody else was to move cannot be: not a byte of it has left.
    Unwritten(u64),
    /// The mover has no byte under way of what was begun before it was to be renewed with this number.
    Renewed(u64),
    /// A request with a value has left. It may have waited here until others had.
    Begun(u64),
    /// So many bytes of the value of a request have come, or were taken by its owner, since this was told last; of those before it, if it waits for them
    /// here. And whether its value has left whole. It is told before a request is late, of all that are under way: see [`Client::is_due`].
    Moved(u64, u64, bool),
}

/// The memory of a call, from a byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The call.
    pub call: u64,
    /// The byte.
    pub offset: u64,
}

/// What a client wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to a master.
    Master(usize, Frame),
    /// Send this to the node that listens there. If a value follows it is in that memory.
    Node(NodeId, String, Frame, Memory),
    /// Take the bytes that follow the answer to a request, into that memory; then say `Took`.
    Take {
        /// The request.
        request: u64,
        /// Where to.
        into: Memory,
        /// How many.
        length: u64,
        /// Their CRC32C, if the owner knows it; if they have another say `Torn`.
        sum: Option<u32>,
    },
    /// Nothing of this request is wanted any more: no byte of it is taken after this.
    Close(u64),
    /// Write a value to these places of a node; then say `Wrote`.
    Write {
        /// The request.
        request: u64,
        /// Where the value is.
        from: Memory,
        /// Its bytes.
        length: u64,
        /// Whose.
        node: NodeId,
        /// By which of its movers.
        mover: u64,
        /// Where to.
        extents: Vec<Extent>,
    },
    /// Try to end what is written. `Wrote` or `Unwritten` is said if that succeeds.
    CancelWrite(u64),
    /// Destroy what moves bytes and make it again, under this number; then say `Renewed`. What is begun after this goes by the
    /// new one.
    Renew(u64),
    /// Somebody else has moved the bytes of a call to where it said. If a checksum is given, say `Checked`.
    Landed {
        /// The call, or the part of one.
        call: u64,
        /// Where in the memory of the call they belong.
        into: Memory,
        /// How many.
        length: u64,
        /// The CRC32C that they are to have.
        sum: Option<u32>,
    },
    /// What was read is to be kept on this node too.
    Keep(u64, ObjectKey, Replica),
    /// A call has ended.
    Done(u64, Outcome),
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it went.
    pub status: nmc_status_t,
    /// The put that was made or read.
    pub put: PutId,
    /// Copies that were put, or bytes that were read.
    pub count: u64,
    /// What the writer of what was read said about it.
    pub metadata: Metadata,
    /// What the leader said, if it was asked.
    pub reply: Option<Box<Message>>,
}

impl Outcome {
    /// Nothing but a status.
    #[must_use]
    pub fn of(status: nmc_status_t) -> Self {
        Self { status, put: PutId(0), count: 0, metadata: Metadata::default(), reply: None }
    }
}
